"""Show values of a run: values from outside quoted and cut on one line, our own in plain words."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, assert_never

from msgspec import Struct

from .actions import Abort, Action, Escalate, Replan, Resume, Retry, Rollback, Suspend
from .escaping import escaped, stripped
from .guards import guarded
from .redaction import redact
from .secret_shapes import HIDDEN
from .steps import Step

MAX_QUOTE = 300
_MAX_ARGUMENTS = 120
_MAX_PARSED = 16_000
_MAX_SAID = 160
_MOST_READ = 65_536  # enough for any credential that begins in the shown part
MAX_CLEAN = 600
"""Characters of a message shown to an engineer, and read for evidence."""


@guarded(lambda _value, limit=MAX_QUOTE: shown(HIDDEN, limit))
def quote(value: object, limit: int = MAX_QUOTE) -> str:
    """Quote a value on one line, cut and redacted, so that it reads as data."""
    text = value if isinstance(value, str) else _json(value)
    return shown(redact(text[: 4 * limit]), limit)


def said_by(text: str) -> str:
    """Quote an error's words, for evidence."""
    return quote(text, _MAX_SAID)


def shown(clean: str, limit: int = _MAX_SAID) -> str:
    """Quote a redacted text, cut to `limit` characters."""
    text = escaped(clean).replace('"', "'")
    return f'"{text}"' if len(text) <= limit - 2 else f'"{text[: limit - 3]}…"'


@guarded(lambda _value, limit=_MAX_ARGUMENTS: shown(HIDDEN, limit))
def as_json(value: object, limit: int = _MAX_ARGUMENTS) -> str:
    """Show a value as JSON on one line, cut and redacted; a cut string is closed."""
    found = _parsed(value)
    if isinstance(found, str):
        found = found[: 4 * limit]
    text = escaped(redact(_json(found)[: 4 * limit]))
    if len(text) <= limit:
        return text
    cut = text[: limit - 2].rstrip("\\")
    return f'{cut}…"' if _in_quotes(cut) else f"{cut}…"


@guarded(lambda _text, longest=200: HIDDEN[:longest])
def one_line(text: str, longest: int = 200) -> str:
    """Show a text on one line, escaped, redacted and cut at `longest` characters.

    Invisible characters are escaped, or removed where they would hide a credential from redaction.
    """
    text = text[:_MOST_READ]
    bare = stripped(text)
    if bare != text and redact(bare) != bare:
        text = bare
    text = escaped(redact(text))
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


class Doing(Struct, frozen=True):
    """A model's doing in a step.

    text: the call with its arguments, or quoted words (`is_words`). result: of the call, None without one.
    """

    text: str
    result: Any = None
    is_words: bool = False


def doings_in(steps: Iterable[Step]) -> list[Doing]:
    """List a model's doings in these steps: the recorded tool calls with their results.

    Without any: the requested calls, the model's words, and all other steps.
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
    """Decode arguments recorded as JSON text; return anything else unchanged."""
    if not isinstance(value, str) or value[:1] not in ("{", "[") or len(value) > _MAX_PARSED:
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _in_quotes(text: str) -> bool:
    """Whether cut JSON ends inside a string."""
    return text.replace("\\\\", "").replace('\\"', "").count('"') % 2 == 1


# Numbers, times, JSON values and actions in the words of pages and commands.


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def counted(number: int, word: str) -> str:
    """Write a number of things: `1 step`, `2 steps`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def json_text(value: Any) -> str:
    """Return text unchanged, any other JSON value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def moment(seconds: float) -> str:
    """Write a time, in seconds since the epoch, as UTC."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "unknown"


def span(seconds: float) -> str:
    """Write a duration in the largest unit that it has two of: `119 s`, `2 min`, `47 h`."""
    if not math.isfinite(seconds):
        return "unknown"
    whole = max(0, int(seconds))
    size, unit = next((entry for entry in _UNITS if whole >= 2 * entry[0]), _UNITS[-1])
    return f"{whole // size} {unit}"


def action_text(action: Action) -> str:
    """Write an action, with the hint for the next attempt."""
    match action:
        case Retry(delay=delay) | Replan(delay=delay):
            said = f"{action.kind} in {delay:.2f} s" if delay else action.kind
        case Rollback(checkpoint_id=checkpoint):
            said = f"rollback to {'the last good point' if checkpoint is None else checkpoint}"
        case Resume(subgoal=subgoal):
            said = f"resume from {subgoal or 'the first open subgoal'}"
        case Suspend(question=question):
            return f"suspend: {question}" if question else "suspend"
        case Escalate(reason=reason) | Abort(reason=reason):
            return f"{action.kind}: {reason}" if reason else action.kind
        case _:
            assert_never(action)
    return f"{said}, told: {action.hint}" if action.hint else said
