"""Strategies that ask again and say what was wrong: the evidence, the fields, the loop, the length."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, ClassVar, TypeAlias

from msgspec.structs import replace

from triage.core.actions import Action, Escalate, Retry, lasting
from triage.core.constructors import Struct
from triage.core.errors import check_count, closest, misuse
from triage.core.failures import MAX_FIELDS, FailureContext, fields_of
from triage.core.json_values import plain
from triage.core.messages.reading import MAX_TOKENS
from triage.core.patterns import Pattern
from triage.core.quoting import as_json, call_text, quote
from triage.core.redaction import redact
from triage.core.steps import Step
from triage.core.taxonomy import UNSAFE, Cause, Effect

from . import base

# The wrong fields of an answer or a call, as data: `wrong_fields`.


_LONGEST = 160
_EXAMPLES: dict[str, Any] = {
    "string": "text",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "object": {},
    "date": "2026-01-31",
    "datetime": "2026-01-31T12:00:00Z",
    "time": "12:00:00",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "null": None,
}
_KINDS = (
    ("int_", "integer"), ("float_", "number"), ("decimal_", "number"), ("bool_", "boolean"),
    ("string_", "string"), ("str_", "string"), ("list_", "array"), ("tuple_", "array"),
    ("set_", "array"), ("dict_", "object"), ("model_", "object"), ("dataclass_", "object"),
    ("datetime_", "datetime"), ("date_", "date"), ("time_", "time"), ("uuid_", "uuid"),
    ("none_required", "null"),
)  # fmt: skip
"""The names of pydantic's errors begin with what was expected."""
_ALTERNATIVES = Pattern(r"'([^']{1,80})'")


def wrong_fields(context: FailureContext) -> list[dict[str, Any]]:
    """Return the wrong fields of this failure, most informative first; empty if no error names one.

    Read from pydantic's list of errors, live or captured, or else from the message. The values are
    redacted and cut.
    """
    schema = _schema(context)
    for error in _causes(context.exception):
        listed = _listed(error)
        if listed:
            return _known(listed, schema)
    if context.error is None:
        return []
    for info in context.error.walk():
        detail = info.body.get("detail") if isinstance(info.body, Mapping) else None
        if isinstance(detail, list | tuple) and any(isinstance(one, Mapping) for one in detail):
            return _known([one for one in detail if isinstance(one, Mapping)], schema)
    given = _arguments(context)
    found = []
    for field in fields_of(context.error):
        wrong = {"field": _text(field.name), "expected": _text(field.problem)}
        found += _completed(wrong, field.name.split("."), schema, given)
    return found[:MAX_FIELDS]


def _causes(error: BaseException | None) -> Iterable[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _listed(error: BaseException) -> list[Mapping[str, Any]]:
    errors = getattr(error, "errors", None)
    if type(error).__name__ != "ValidationError" or not callable(errors):
        return []
    try:
        listed: Any = errors()
    except Exception:
        return []
    if not isinstance(listed, list | tuple):
        return []
    return [one for one in listed if isinstance(one, Mapping) and "type" in one]


def _known(errors: Sequence[Mapping[str, Any]], schema: Any) -> list[dict[str, Any]]:
    """Read the fields from pydantic's list of errors, except an error about the whole text."""
    found: list[dict[str, Any]] = []
    for error in errors[:MAX_FIELDS]:
        kind, path = str(error.get("type", "")), [str(part) for part in error.get("loc") or ()]
        if kind == "json_invalid" and not path:
            continue
        wrong: dict[str, Any] = {"field": _text(".".join(path)) or "the whole value"}
        missing = kind in ("missing", "missing_argument", "missing_keyword_only_argument")
        given = error.get("input")
        if isinstance(given, str):
            given = _hidden(given, *path[-1:])
        if missing:
            wrong["expected"] = "required"
        else:
            if "input" in error:
                wrong["got"] = _value(given, *path[-1:])
            wrong["expected"] = _text(str(error.get("msg", "")).removeprefix("Input should be "))
            given = None if isinstance(given, Mapping) and kind != "extra_forbidden" else given
        example = next((word for start, word in _KINDS if kind.startswith(start)), None)
        choices = _choices(error)
        if choices:
            wrong["example"] = choices[0]
            near = closest(str(given), choices)
            if near is not None:
                wrong["did_you_mean"] = near
        elif example is not None:
            wrong["example"] = _example(example, given)
        found += _completed(wrong, path, schema, given if missing else None)
    return found[:MAX_FIELDS]


def _completed(
    wrong: dict[str, Any], path: Sequence[str], schema: Any, given: Any
) -> list[dict[str, Any]]:
    """Return the wrong field, completed from the schema, and the misspelt field given in its place."""
    name = path[-1] if path else ""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if isinstance(properties, Mapping) and len(path) == 1:
        declared = properties.get(name)
        if isinstance(declared, Mapping):
            _declared(wrong, declared)
        elif "did_you_mean" not in wrong:
            near = closest(name, map(str, properties))
            if near is not None:
                wrong["did_you_mean"] = near
    found = [wrong]
    if isinstance(given, Mapping) and name and name not in given:
        names = [str(key)[:80] for key in given]
        known = set(properties) if isinstance(properties, Mapping) else set()
        near = closest(name, (key for key in names if key not in known))
        if near is not None:
            got = _value(given.get(near), near, name)
            meant = {"field": near, "got": got, "did_you_mean": name}
            found.append(meant)
    return found


def _declared(wrong: dict[str, Any], declared: Mapping[str, Any]) -> None:
    kind = declared.get("type")
    if wrong.get("expected") in ("required", "required, and missing") and isinstance(kind, str):
        wrong["expected"] = f"required, {kind}"
    if "example" in wrong:
        return
    for key in ("examples", "enum"):
        values = declared.get(key)
        if isinstance(values, list | tuple) and values:
            wrong["example"] = _value(values[0])
            return
    if "default" in declared:
        wrong["example"] = _value(declared["default"])
    elif isinstance(kind, str) and kind in _EXAMPLES:
        wrong["example"] = _EXAMPLES[kind]


def _choices(error: Mapping[str, Any]) -> list[str]:
    if error.get("type") not in ("literal_error", "enum"):
        return []
    context = error.get("ctx")
    said = context.get("expected") if isinstance(context, Mapping) else error.get("msg")
    return _ALTERNATIVES.findall(str(said))[:20]


def _example(kind: str, given: Any) -> Any:
    """Return a value of this kind: the given one converted, if that works, else an example."""
    if isinstance(given, str):
        text = given.strip()
        if kind == "integer" and re.fullmatch(r"[+-]?\d{1,15}", text):
            return int(text)
        if kind == "number" and re.fullmatch(r"[+-]?\d{1,15}(\.\d{1,15})?", text):
            return float(text)
        if kind == "boolean" and text.lower() in ("true", "false", "yes", "no"):
            return text.lower() in ("true", "yes")
    elif kind == "string" and isinstance(given, int | float) and not isinstance(given, bool):
        return str(given)
    elif kind == "integer" and isinstance(given, float) and given.is_integer():
        return int(given)
    return _EXAMPLES[kind]


def _schema(context: FailureContext) -> Any:
    """Return the JSON Schema for the arguments of the failed call, if its tool has one."""
    step = base.last_failed(context)
    if step is None or step.tool_called is None or context.trajectory.tools is None:
        return None
    return context.trajectory.tools.get(step.tool_called)


def _arguments(context: FailureContext) -> Any:
    step = base.last_failed(context)
    return None if step is None else step.tool_input


def _value(value: Any, *names: str) -> Any:
    """Make a value fit to be shown: numbers stay, anything else becomes text, redacted and cut.

    names: of the field that has it; a password is known by its field's name alone.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    text = value if isinstance(value, str) else repr(plain(value))
    return _text(_hidden(text, *names))


def _hidden(text: str, *names: str) -> str:
    """The beginning of a text, or `[redacted]` where a field of one of these names keeps it secret."""
    text = text[: 4 * _LONGEST]
    for name in names:
        text = redact({name: text})[name]
    return text


def _text(text: str) -> str:
    clean = redact(text[: 4 * _LONGEST])
    return clean if len(clean) <= _LONGEST else f"{clean[: _LONGEST - 1]}…"


Summarize: TypeAlias = Callable[[FailureContext], str | Awaitable[str]]
"""Summarizes, given a failure, the messages that are left out. May be async."""

_MOST_EVIDENCE = 3
_MOST_TOOLS = 20
_MOST_CALLS = 40


class ask_again(Struct, frozen=True):
    """Call the function again at once, with what was wrong and the evidence for it.

    Recorded calls before the answer that led to the failure are reused; from there the model is asked
    again. max_attempts: retries for this failure type in this run, 2 by default. The hint is that of
    the diagnosis, with up to three pieces of its evidence, each quoted and cut.

    Escalates once the retries are used up, at once if the diagnosis is CRITICAL or FATAL, and where a
    step recorded by hand had an effect, which another attempt would repeat.
    """

    max_attempts: int = 2
    same_again: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("ask_again.max_attempts", self.max_attempts, 0, "it counts retries")

    def __call__(self, context: FailureContext) -> Action:
        """What to do about this failure."""
        stop = base.no_retry(context, self.max_attempts) or _would_repeat(context)
        if stop is not None:
            return stop
        diagnosis = context.diagnosis
        told = diagnosis.hint or ""
        shown = [
            quote(item.text)
            for item in diagnosis.evidence
            if item.text and item.text not in told and item.rule != "hint"
        ]
        seen = f"What shows it: {'; '.join(shown[:_MOST_EVIDENCE])}." if shown else None
        return Retry(base.sentences(told, seen) or None)


class break_loop(Struct, frozen=True):
    """Go back to the step before the loop, and say what was repeated and which other tools exist.

    max_attempts: retries for this failure type in this run, 1 by default. The hint is that of the
    diagnosis, which names the repeated calls, followed by the tools that were not among them.
    Escalates as `ask_again` does.
    """

    max_attempts: int = 1
    same_again: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("break_loop.max_attempts", self.max_attempts, 0, "it counts retries")

    def __call__(self, context: FailureContext) -> Action:
        """What to do about this failure."""
        stop = base.no_retry(context, self.max_attempts) or _would_repeat(context)
        if stop is not None:
            return stop
        first = context.diagnosis.critical_step or 0
        repeated = {
            step.tool_called for step in context.trajectory.steps if (step.index or 0) >= first
        }
        others = [tool[:80] for tool in context.tools if tool not in repeated]
        more = None
        if others:
            rest = ", …" if len(others) > _MOST_TOOLS else ""
            more = f"Other tools there are: {', '.join(others[:_MOST_TOOLS])}{rest}."
        told = context.diagnosis.hint or "The same steps were repeated. Take another way."
        return Retry(base.sentences(told, more))


class repair_arguments(Struct, frozen=True):
    """Call the function again at once, and say for each wrong field what it must be.

    max_attempts: retries for this failure type in this run, 3 by default. The diagnosis' hint is
    followed by a JSON array with an object for each field, at most six: `field` is its path with dots,
    `got` the value given, `expected` what it must be, `example` a valid value, `did_you_mean` the
    closest name or value. What is not known is left out. If no error names a field, the hint stands
    alone.

    Escalates once the retries are used up, and at once if the diagnosis is CRITICAL or FATAL.
    """

    max_attempts: int = 3
    same_again: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("repair_arguments.max_attempts", self.max_attempts, 0, "it counts retries")

    def __call__(self, context: FailureContext) -> Action:
        """What to do about this failure."""
        stop = base.no_retry(context, self.max_attempts)
        if stop is not None:
            return stop
        found = wrong_fields(context)
        fields = None
        if found:
            fields = f"The wrong fields as JSON: {json.dumps(found, ensure_ascii=False)}"
        return Retry(base.sentences(context.diagnosis.hint, fields) or None)


_SPARE = 0.9
"""Of the room that an error tells: tokens are not characters."""
_UNTOLD_SHARE = 0.7
"""Of a refused request, where no error tells how much too long it was; half as much each further time."""
_LEAST_SHARE = 0.01
"""Numbers that are further apart are no sizes of one request."""
_LEAST_SIZE = 256
_SIZE = re.compile(r"(?<![\w.\-/])(?:\d{1,3}(?:[,_]\d{3})+|\d{3,12})(?![\w\-]|\.\d)")


def _longer(context: FailureContext) -> Action:
    """Ask again for an answer that was cut off: with twice the limit, if its request had set one."""
    known = ((step.metadata or {}).get(MAX_TOKENS) for step in reversed(context.trajectory.steps))
    limit = next(filter(None, known), None)
    if type(limit) is not int:
        return ask_again(2)(context)
    factor = lasting(past.action for past in context.attempt_history).get("output_factor", 1)
    told = (
        f"The answer was cut off at the token limit of {limit * factor:,}. It is {limit * factor * 2:,} "
        "now: answer again, and whole."
    )
    action = ask_again(2)(replace(context, diagnosis=replace(context.diagnosis, hint=told)))
    return replace(action, output_factor=factor * 2) if isinstance(action, Retry) else action


class shrink_context(Struct, frozen=True):
    """Call the function again with shorter requests: first without old tool outputs, then with a summary.

    keep_last: messages at the end of a request that are no older ones, 10 by default. First, older tool
    outputs are left out, except those of calls with an effect, which are receipts; where no older one is
    long, the last ones are cut. If that is not enough, a summary replaces the older messages, and the
    last outputs are cut shorter. summarize: makes it from the `FailureContext`, sync
    or async; None lists the calls and their results. Both hold until the run ends. Recorded clients and
    adapters apply them to what they send; an agent that builds its own requests reads
    `run.guidance.keep_last` and `run.guidance.summary`.

    Where the refused request was sent by a recorded client or an adapter, or made by `shrunk_chat` or one
    of its siblings, its size is known. Then requests are made to fit: into the share of it that the error
    tells ("2000 tokens … resulted in 4350"), else, from the second overflow on, into 70 % of it, then less.
    Each request that leaves messages out tells the calls in them, and all that had an effect.

    Where the answer was too long rather than the request, the model is asked again, as by
    `ask_again(2)`: with twice the limit, where the request had set one and was seen on the wire, else for
    a shorter answer.

    Escalates once nothing more can be left out, and if the diagnosis is CRITICAL or FATAL.
    """

    keep_last: int = 10
    summarize: Summarize | None = None

    def __post_init__(self) -> None:
        check_count("shrink_context.keep_last", self.keep_last, 0, "it counts messages")
        summarize: object = self.summarize
        if summarize is not None and not callable(summarize):
            wanted = "a function of the FailureContext, or None"
            raise misuse("shrink_context.summarize", self.summarize, wanted)

    def __call__(self, context: FailureContext) -> base.Answer:
        """What to do about this failure."""
        stop = base.needs_a_person(context)
        if stop is not None:
            return stop
        if context.diagnosis.cause == Cause.OUTPUT_CUT:
            return _longer(context)
        return self._shorter(context)

    def _shorter(self, context: FailureContext) -> base.Answer:
        done = [past.action for past in context.attempt_history if isinstance(past.action, Retry)]
        hint = context.diagnosis.hint
        request = base.refused_request(context)
        most = None if request is None else self._most(context, request.characters, done)
        if request is not None and base.cannot_be_shorter(context):
            return Escalate(
                f"{base.named(context)}: nothing more can be left out of a request of "
                f"{request.characters:,} characters, {request.receipts:,} of them receipts of what "
                "must not be done again"
            )
        if all(action.keep_last is None for action in done):
            left_out = (
                "Long outputs of tools are left out of the conversation or cut: for what you still need "
                "of them, call a read again, in smaller parts."
            )
            return Retry(
                base.sentences(hint, left_out), keep_last=self.keep_last, max_characters=most
            )
        summarized = any(action.summary is not None for action in done)
        if most is not None and (summarized or self.summarize is None):
            return Retry(hint, keep_last=self.keep_last, max_characters=most)
        if summarized:
            return Escalate(
                f"{base.named(context)}: too long with old outputs left out and summarized"
            )
        text = _digest(context) if self.summarize is None else self.summarize(context)
        if inspect.isawaitable(text):
            return self._later(context, text, most)
        return self._summarized(context, text, most)

    def _most(self, context: FailureContext, size: int, done: list[Retry]) -> int | None:
        """How many characters the next requests may have; None for the first try without a known size."""
        share = _told_share(context)
        if share is None and all(action.keep_last is None for action in done):
            return None
        if share is None:
            tried = sum(action.max_characters is not None for action in done)
            return max(1, int(size * _UNTOLD_SHARE / 2**tried))
        return max(1, int(size * share * _SPARE))

    async def _later(
        self, context: FailureContext, text: Awaitable[str], most: int | None
    ) -> Action:
        return self._summarized(context, await text, most)

    def _summarized(self, context: FailureContext, text: object, most: int | None) -> Action:
        if not isinstance(text, str):
            raise misuse("shrink_context.summarize's answer", text, "a text")
        if not text.strip():
            return Escalate(f"{base.named(context)}: there is nothing to summarize")
        hint, keep = context.diagnosis.hint, self.keep_last
        return Retry(hint, keep_last=keep, summary=text, max_characters=most)


def _told_share(context: FailureContext) -> float | None:
    """The part of the refused request that there is room for: its error names two sizes, or does not."""
    for error in () if context.error is None else context.error.walk():
        found = {int(re.sub("[,_]", "", text)) for text in _SIZE.findall(error.message[:2_000])}
        sizes = sorted(size for size in found if size >= _LEAST_SIZE)
        if len(sizes) >= 2 and sizes[-2] / sizes[-1] >= _LEAST_SHARE:
            return sizes[-2] / sizes[-1]
    return None


def _digest(context: FailureContext) -> str:
    """List this attempt's newest calls and their results, one per line, and all with an effect."""
    calls = [step for step in context.trajectory.steps if step.tool_called is not None]
    spare = max(0, len(calls) - _MOST_CALLS)
    kept = []
    for step in calls:
        if spare and not _has_effect(step):
            spare -= 1
            continue
        kept.append(step)
    return "\n".join(f"- {call_text(step)} → {_outcome(step)}" for step in kept)


def _outcome(step: Step) -> str:
    if step.error is not None:
        return f"failed: {quote(step.error, 200)}"
    return as_json(step.tool_output, 600 if _has_effect(step) else 200)


def _has_effect(step: Step) -> bool:
    return step.effect is not None and step.effect != Effect.READ


def _would_repeat(context: FailureContext) -> Escalate | None:
    """Escalate if a step recorded by hand had an effect: its result cannot be reused."""
    attempts: Iterable[Any] = (*context.attempt_history, context)
    for attempt in attempts:
        for step in attempt.trajectory.steps:
            if step.effect in UNSAFE and not (step.metadata and "call" in step.metadata):
                done = step.tool_called or step.action
                return Escalate(
                    f"{base.named(context)}: {done} was recorded by hand and had an effect"
                )
    return None
