"""What was said to and by models and tools, as the conventions write it; told only on demand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from triage.core import Step, escaped, one_line, plain, redact_value

LONGEST = 16_384
"""Characters of one attribute with content; what is longer is cut and ends in "…"."""
_MOST_LINES = 500
"""Texts of a run that are remembered as they are shown."""


class Shown:
    """How the values of a run are shown. content: whether prompts, outputs, arguments and results are."""

    def __init__(self, *, content: bool) -> None:
        self.content = content
        self._lines: dict[str, str] = {}

    def line(self, text: str) -> str:
        """A text on one line, redacted and cut, as every name is. They come again and again."""
        known = self._lines.get(text)
        if known is None:
            known = one_line(text)
            if len(self._lines) < _MOST_LINES:
                self._lines[text] = known
        return known

    def text(self, text: str | None) -> str | None:
        """A text that is content: on one line where content is told, None elsewhere and for none."""
        return one_line(text) if self.content and text else None

    def json(self, value: Any) -> str | None:
        """A value that is content: its JSON where content is told, None elsewhere and for none."""
        return content_json(value) if self.content and value is not None else None


def content_json(value: Any) -> str:
    """Write a value as JSON, redacted as in stores and cut at `LONGEST` characters; a text as it is."""
    clean = redact_value(plain(value))
    text = clean if isinstance(clean, str) else json.dumps(clean, ensure_ascii=False)
    text = escaped(text, lines=True)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def input_messages(given: Any) -> list[dict[str, Any]]:
    """What a model was given, as messages. Steps hold what was new in a request, not all of it."""
    entries = given if isinstance(given, list) else [given]
    messages: list[dict[str, Any]] = []
    for entry in entries:
        role, said = "user", entry
        if isinstance(entry, Mapping) and "content" in entry:
            role, said = str(entry.get("role") or "user"), entry["content"]
        messages.append({"role": role, "parts": [_text(said)]})
    return messages


def output_messages(step: Step, result: Any = None) -> list[dict[str, Any]]:
    """What a model said in a step, and which calls it asked for, as one message.

    result: of the call, told where the step says neither.
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
