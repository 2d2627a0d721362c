"""How values that come from errors, tools and models are shown: on one line, quoted, cut."""

from __future__ import annotations

import json
from typing import Any

from triage.redact import redact
from triage.steps import Step

MAX_QUOTE = 300
_MAX_ARGUMENTS = 120
_MAX_PARSED = 16_000
_MAX_SAID = 160
MAX_CLEAN = 600
"""Characters of a message that are shown to an engineer; not more than is read for evidence."""


def quote(value: object, limit: int = MAX_QUOTE) -> str:
    """A value in quotes, on one line, cut, without what looks like a credential.

    It can be read, and not mistaken for an instruction.
    """
    text = value if isinstance(value, str) else _json(value)
    return shown(redact(text[: 4 * limit]), limit)


def said_by(text: str) -> str:
    """What an error said, for evidence."""
    return quote(text, _MAX_SAID)


def shown(clean: str, limit: int = _MAX_SAID) -> str:
    """As `quote`, and by default as `said_by`, of a text from which credentials were taken already."""
    text = " ".join(clean.split())
    if '"' in text:
        text = text.replace('"', "'")
    return f'"{text}"' if len(text) <= limit - 2 else f'"{text[: limit - 3]}…"'


def as_json(value: object, limit: int = _MAX_ARGUMENTS) -> str:
    """A value as JSON on one line, cut and without credentials; texts in it stay in quotes."""
    found = _parsed(value)
    if isinstance(found, str):
        found = found[: 4 * limit]
    text = " ".join(redact(_json(found)[: 4 * limit]).split())
    if len(text) <= limit:
        return text
    cut = text[: limit - 2].rstrip("\\")
    return f'{cut}…"' if _in_quotes(cut) else f"{cut}…"


def call_text(step: Step) -> str:
    """A step as the call it was: `search({"city": "Porto"})`."""
    name = (step.tool_called or step.action or "step")[:80]
    return f"{name}({as_json(step.tool_input)})" if step.tool_input is not None else name


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=repr)
    except Exception:  # noqa: BLE001 - a value that cannot be shown is named by its type
        return f"<{type(value).__name__}>"


def _parsed(value: object) -> Any:
    """Arguments may be recorded as JSON text: shown as what they are, not as a text of it."""
    if not isinstance(value, str) or value[:1] not in ("{", "[") or len(value) > _MAX_PARSED:
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _in_quotes(text: str) -> bool:
    """Whether JSON that was cut ends within a text."""
    return text.replace("\\\\", "").replace('\\"', "").count('"') % 2 == 1
