"""Write the values of a run as telemetry shows them: names always, content if it is wanted."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from triage.core.errors import UsageError
from triage.core.escaping import escaped
from triage.core.json_values import plain
from triage.core.quoting import one_line
from triage.core.redaction import redact
from triage.core.steps import Step

LONGEST = 16_384
"""Maximum number of characters of an attribute with content; longer text is cut and ends in "…"."""
_MOST_LINES = 500
"""How many texts of a run are cached in the form in which they are shown."""
_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


def wants_content(content: bool | None) -> bool:  # noqa: FBT001 - an option that is handed on
    """Return whether to include content: `content` if it is not None, else the environment variable.

    Raises UsageError if `content` is not True, False or None.
    """
    if content is not None:
        if not isinstance(content, bool):
            raise UsageError(f"content must be True, False or None, not {type(content).__name__}")
        return content
    said = os.environ.get(_VARIABLE, "").strip().lower()
    return said in ("true", "1", "span_only", "span_and_event")


class Shown:
    """Formats the values of a run. content: whether to include prompts, outputs, arguments and results."""

    def __init__(self, *, content: bool) -> None:
        self.content = content
        self._lines: dict[str, str] = {}

    def line(self, text: str) -> str:
        """Return a text on one line, redacted and cut. The same few names recur, so results are cached."""
        known = self._lines.get(text)
        if known is None:
            known = one_line(text)
            if len(self._lines) < _MOST_LINES:
                self._lines[text] = known
        return known

    def text(self, text: str | None) -> str | None:
        """Return a text that is content on one line; None if content is not wanted or the text is empty."""
        return one_line(text) if self.content and text else None

    def json(self, value: Any) -> str | None:
        """Return a value that is content as JSON; None if content is not wanted or the value is None."""
        return content_json(value) if self.content and value is not None else None


def content_json(value: Any) -> str:
    """Write a value as JSON, or a text as it is, redacted as in stores and cut at `LONGEST` characters."""
    clean = redact(plain(value))
    text = clean if isinstance(clean, str) else json.dumps(clean, ensure_ascii=False)
    text = escaped(text, lines=True)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def input_messages(given: Any) -> list[dict[str, Any]]:
    """Return a model's input as messages. A step holds only what was new in the request."""
    entries = given if isinstance(given, list) else [given]
    messages: list[dict[str, Any]] = []
    for entry in entries:
        role, said = "user", entry
        if isinstance(entry, Mapping) and "content" in entry:
            role, said = str(entry.get("role") or "user"), entry["content"]
        messages.append({"role": role, "parts": [_text(said)]})
    return messages


def output_messages(step: Step, result: Any = None) -> list[dict[str, Any]]:
    """Return a model's words in a step and the calls it asked for, as one message.

    result: the call's result, used if the step has neither words nor calls.
    """
    metadata = step.metadata or {}
    words = metadata.get("said") if step.llm_output is None else step.llm_output
    parts: list[dict[str, Any]] = []
    if words:
        parts.append(_text(words))
    asked = step.tool_output if isinstance(step.tool_output, list) else []
    known = metadata.get("ids")
    ids = known if isinstance(known, list) else []
    for at, call in enumerate(asked):
        if not isinstance(call, Mapping):
            continue
        part = {"type": "tool_call", "name": call.get("tool"), "arguments": call.get("arguments")}
        if at < len(ids):
            part["id"] = ids[at]
        parts.append(part)
    if not parts and result is not None:
        parts.append(_text(result))
    return [{"role": "assistant", "parts": parts}]


def _text(said: Any) -> dict[str, Any]:
    content = said if isinstance(said, str) else json.dumps(plain(said), ensure_ascii=False)
    return {"type": "text", "content": content}
