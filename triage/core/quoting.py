"""Show values from errors, tools and models: on one line, quoted, cut."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from .escaping import escaped, stripped
from .redaction import redact
from .steps import Step

MAX_QUOTE = 300
_MAX_ARGUMENTS = 120
_MAX_PARSED = 16_000
_MAX_SAID = 160
_MOST_READ = 65_536  # longer than any credential that begins where it would be shown
MAX_CLEAN = 600
"""Characters of a message shown to an engineer; no more than is read for evidence."""


def quote(value: object, limit: int = MAX_QUOTE) -> str:
    """Show a value in quotes, on one line, cut and redacted, so that it reads as data."""
    text = value if isinstance(value, str) else _json(value)
    return shown(redact(text[: 4 * limit]), limit)


def said_by(text: str) -> str:
    """Quote what an error said, for evidence."""
    return quote(text, _MAX_SAID)


def shown(clean: str, limit: int = _MAX_SAID) -> str:
    """Quote a text that is already redacted, cut as by `said_by` unless `limit` says otherwise."""
    text = escaped(clean).replace('"', "'")
    return f'"{text}"' if len(text) <= limit - 2 else f'"{text[: limit - 3]}…"'


def as_json(value: object, limit: int = _MAX_ARGUMENTS) -> str:
    """Show a value as JSON on one line, cut and redacted; a text that is cut is still closed."""
    found = _parsed(value)
    if isinstance(found, str):
        found = found[: 4 * limit]
    text = escaped(redact(_json(found)[: 4 * limit]))
    if len(text) <= limit:
        return text
    cut = text[: limit - 2].rstrip("\\")
    return f'{cut}…"' if _in_quotes(cut) else f"{cut}…"


def one_line(text: str, longest: int = 200) -> str:
    """Show a text on one line, escaped, redacted and cut at `longest` characters.

    Invisible characters are removed, not escaped, where they would hide a credential from redaction.
    """
    text = text[:_MOST_READ]
    bare = stripped(text)
    if bare != text and redact(bare) != bare:
        text = bare
    text = escaped(redact(text))
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


class Doing(NamedTuple):
    """What a model did in a step.

    text: the call with its arguments, or quoted words (`is_words`). result: of the call, None without.
    """

    text: str
    result: Any = None
    is_words: bool = False


def doings_in(steps: Iterable[Step]) -> list[Doing]:
    """List what a model did in these steps: the recorded tool calls with their results.

    Without any: the calls it asked for, its words, and whatever else was recorded.
    """
    known = list(steps)
    called = [step for step in known if step.tool_called is not None]
    return [doing for step in called or known for doing in _doings(step)]


def _doings(step: Step) -> Iterator[Doing]:
    asked = step.tool_output
    if step.action == _MODEL and step.tool_called is None:
        if isinstance(asked, list):
            for call in asked:
                if isinstance(call, Mapping) and call.get("tool"):
                    yield Doing(
                        f"{escaped(str(call['tool'])[:80])}({as_json(call.get('arguments'))})"
                    )
        elif step.llm_output:
            yield Doing(quote(step.llm_output), is_words=True)
        return
    result = step.error or (asked if asked is not None else step.llm_output)
    yield Doing(call_text(step), result)


_MODEL = "model"
"""The action of a step that records a model call."""


def call_text(step: Step) -> str:
    """Write a step as a call: `search({"city": "Porto"})`."""
    name = escaped((step.tool_called or step.action or "step")[:80])
    return f"{name}({as_json(step.tool_input)})" if step.tool_input is not None else name


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=repr)
    except Exception:
        return f"<{type(value).__name__}>"


def _parsed(value: object) -> Any:
    """Decode arguments that were recorded as JSON text; return anything else unchanged."""
    if not isinstance(value, str) or value[:1] not in ("{", "[") or len(value) > _MAX_PARSED:
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _in_quotes(text: str) -> bool:
    """Whether JSON that was cut ends inside a string."""
    return text.replace("\\\\", "").replace('\\"', "").count('"') % 2 == 1
