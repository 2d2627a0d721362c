"""How values that come from errors, tools and models are shown: on one line, quoted, cut."""

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
    text = escaped(clean).replace('"', "'")
    return f'"{text}"' if len(text) <= limit - 2 else f'"{text[: limit - 3]}…"'


def as_json(value: object, limit: int = _MAX_ARGUMENTS) -> str:
    """A value as JSON on one line, cut and without credentials; texts in it stay in quotes."""
    found = _parsed(value)
    if isinstance(found, str):
        found = found[: 4 * limit]
    text = escaped(redact(_json(found)[: 4 * limit]))
    if len(text) <= limit:
        return text
    cut = text[: limit - 2].rstrip("\\")
    return f'{cut}…"' if _in_quotes(cut) else f"{cut}…"


def one_line(text: str, longest: int = 200) -> str:
    """A text in one line, escaped, without what looks like a credential, cut at `longest`.

    Where characters that cannot be seen stand inside a credential, the text loses all of them instead.
    """
    text = text[:_MOST_READ]
    bare = stripped(text)
    if bare != text and redact(bare) != bare:
        text = bare
    text = escaped(redact(text))
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


class Doing(NamedTuple):
    """What a model did in a step. text: the call with its arguments, or its words, in quotes (`is_words`).

    result: what the call gave, None for nothing.
    """

    text: str
    result: Any = None
    is_words: bool = False


def doings_in(steps: Iterable[Step]) -> list[Doing]:
    """What a model did in these steps: its calls with their results, as far as tools are recorded.

    Where none are: the calls that it asked for, what it said, and what else was recorded.
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
"""The action of a step that is a call of a model."""


def call_text(step: Step) -> str:
    """A step as the call it was: `search({"city": "Porto"})`."""
    name = escaped((step.tool_called or step.action or "step")[:80])
    return f"{name}({as_json(step.tool_input)})" if step.tool_input is not None else name


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=repr)
    except Exception:
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
