"""Conversations with a model in one form, whatever provider or framework wrote them.

A `Wire` reads one provider's form of a message into `Message` and writes it back. Operations on
conversations (repair, hints, shorter requests, what is new in a request) are written once, on top of it.
Nothing here raises for malformed input or changes a message in place.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import is_not
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from msgspec import Struct

from triage.core.failures import ErrorInfo
from triage.core.json_values import plain
from triage.core.steps import Usage
from triage.core.taxonomy import Cause, Effect, FailureType

# Values of any kind ---------------------------------------------------------------------------------

_TEXT_KEYS = ("text", "content", "refusal", "thinking", "output_text", "input_text")
_MOST_PARTS = 10_000


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a dict, else an empty one."""
    return value if isinstance(value, dict) else {}


def listed(value: object) -> list[Any]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def as_data(message: Any) -> Any:
    """Return a message as a dict: a client's model is dumped, anything else stays as it is."""
    if isinstance(message, dict):
        return message
    dump = getattr(message, "model_dump", None)
    return message if dump is None else dump(exclude_unset=True)


def text_or_none(value: object) -> str | None:
    """Return the value if it is text and not empty, else None."""
    return value if isinstance(value, str) and value else None


def as_text(value: object) -> str:
    """Return text as it is, None as empty text, anything else as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return f"<{type(value).__name__}>"


def content_text(content: object) -> str:
    """Return the text of a message's content: a text, or the texts of its parts, one a line."""
    if not isinstance(content, list):
        return _part_text(content)
    return "\n".join(filter(None, (_part_text(part) for part in content[:_MOST_PARTS])))


def _part_text(part: object) -> str:
    if not isinstance(part, dict):
        return as_text(part)
    for key in _TEXT_KEYS:
        if isinstance(part.get(key), str):
            return str(part[key])
    kind = part.get("type")
    return f"[{kind}]" if isinstance(kind, str) else as_text(part)


def result_value(content: object) -> Any:
    """Return a tool's result: its text if it consists of typed parts, else the value as it is."""
    if isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("type"), str) for part in content
    ):
        return content_text(content)
    return content


def arguments(value: object) -> Any:
    """Parse a JSON text of an object or list; return anything else as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def number(value: object) -> float | None:
    """Return a finite number from 0, given as a number or as text, else None."""
    if value is None or isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) and found >= 0 else None


def usage_of(value: object, model: object = None) -> Usage | None:
    """Read the usage of a model call under any of the usual names; None if there is none."""
    found = mapping(value)

    def count(*names: str) -> int | None:
        counts = (number(found.get(name)) for name in names)
        return next((int(one) for one in counts if one is not None), None)

    given, made = (
        count("input_tokens", "prompt_tokens"),
        count("output_tokens", "completion_tokens"),
    )
    cost, calls = number(found.get("cost_usd")), count("calls")
    if given is None and made is None and cost is None:
        return None
    return Usage(
        input_tokens=given or 0,
        output_tokens=made or 0,
        cost_usd=cost,
        calls=1 if calls is None else calls,
        model=text_or_none(found.get("model")) or text_or_none(model),
    )


def max_tokens_of(options: Mapping[str, Any]) -> int | None:
    """Return the token limit of an answer among a request's options, or None."""
    names = ("max_tokens", "max_completion_tokens", "max_output_tokens")
    return next((options[name] for name in names if isinstance(options.get(name), int)), None)


def tools_of(value: object) -> dict[str, Any]:
    """Return the declared tools, name to JSON Schema or None.

    A tool that declares an `outputSchema`, as MCP's do, keeps both of its schemas.

    value: a mapping of names to schemas, a list of names, or a list of declarations in any usual
    provider's form. Entries of another kind are skipped.
    """
    if isinstance(value, dict):
        if isinstance(value.get("tools"), list | dict):
            return tools_of(value["tools"])
        return {name: _schema(schema) for name, schema in value.items()}
    return dict(_declared(listed(value)))


def _declared(entries: list[Any]) -> Iterator[tuple[str, Any]]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry, None
            continue
        declared = mapping(entry)
        inner = mapping(declared.get("function")) or declared
        name = text_or_none(inner.get("name"))
        if name is not None:
            yield name, _schema(inner)
        for nested in listed(declared.get("functionDeclarations")):
            yield from _declared([nested])


def _schema(declared: object) -> Any:
    found = mapping(declared)
    for key in ("parameters", "input_schema", "inputSchema"):
        if isinstance(found.get(key), dict):
            gives = found.get("outputSchema")
            both = {"inputSchema": found[key], "outputSchema": gives}
            return both if isinstance(gives, dict) else found[key]
    is_schema = any(key in found for key in ("properties", "type", "$ref", "anyOf", "oneOf"))
    return found if is_schema and found.get("type") != "function" else None


# The neutral form -----------------------------------------------------------------------------------


class Asked(Struct, frozen=True):
    """A tool call that a model asks for. arguments: parsed from JSON, or the text if it is not JSON."""

    id: str
    name: str
    arguments: Any


class Result(Struct, frozen=True):
    """A tool's result. call: the call's id. name: the tool, empty if only the call names it."""

    call: str
    output: Any
    name: str = ""
    failed: bool = False


class Answer(Struct, frozen=True):
    """A model's answer. ended: the provider's stop reason, None if not given."""

    text: str = ""
    calls: tuple[Asked, ...] = ()
    usage: Usage | None = None
    ended: str | None = None


Role: TypeAlias = Literal["system", "user", "model", "tool"]
"""The speaker. `tool` is a message with tool results, and maybe text of the user beside them."""


class Message(Struct, frozen=True):
    """One message of a conversation. usage, ended: those of a model's message, as in `Answer`.

    server_calls, server_results: those of tools that the provider runs itself.
    """

    role: Role
    text: str = ""
    calls: tuple[Asked, ...] = ()
    results: tuple[Result, ...] = ()
    usage: Usage | None = None
    ended: str | None = None
    server_calls: tuple[Asked, ...] = ()
    server_results: tuple[Result, ...] = ()

    @property
    def answer(self) -> Answer:
        """The message as a model's answer."""
        return Answer(self.text, self.calls, self.usage, self.ended)


Tell: TypeAlias = Callable[[str, str], None]
"""Takes a problem of the input: what is wrong, and the remedy."""


def tell_nobody(_text: str, _remedy: str) -> None:
    """Ignore the problem."""


ENDINGS: Mapping[str, tuple[FailureType, Cause]] = {
    "LengthFinishReasonError": (FailureType.CONTEXT_OVERFLOW, Cause.OUTPUT_CUT),
    "ContentFilterFinishReasonError": (FailureType.CONSTRAINT_IGNORED, Cause.CONTENT_FILTER),
    "ResponseServerError": (FailureType.EXTERNAL_FAULT, Cause.SERVER_ERROR),
}
"""The diagnosis of an answer that ended early, by the exception class that stands for it."""
_CUT = ("length", "max_tokens", "max_output_tokens", "model_context_window_exceeded")
_REFUSED = (
    "content_filter", "refusal", "safety", "recitation", "blocklist", "prohibited_content", "spii",
)  # fmt: skip
_BROKEN = ("failed", "error")


def ending_of(reason: object) -> ErrorInfo | None:
    """Return the error that a stop reason stands for, or None if the model had finished."""
    if reason in _CUT:
        name, message = "LengthFinishReasonError", f"the output was cut: finish reason {reason}"
    elif reason in _REFUSED:
        name = "ContentFilterFinishReasonError"
        message = f"the model refused: finish reason {reason}"
    elif reason in _BROKEN:
        name, message = "ResponseServerError", f"the provider failed: finish reason {reason}"
    else:
        return None
    mro = (name, "builtins.Exception", "builtins.BaseException")
    return ErrorInfo(type_name=name, module="", mro=mro, message=message)


# Outcomes of calls ---------------------------------------------------------------------------------

LOST = (
    "This call has no result: the work was interrupted while it ran. It may have taken effect or not; "
    "find out before you call it again."
)
"""Replaces a result that never came."""
NOT_MADE = "This call was not made: the work was stopped before it began."
"""Replaces the result of a call that never began."""
UNDONE = "This call was made, and what it did has been undone since."
"""Replaces the result of a call that a compensator has undone."""


class Outcome(Struct, frozen=True):
    """The outcome of a call. value: its result as the journal keeps it. error: its error message.

    how: `done`, `failed` (it returned or raised an error), `cut_off` (it was stopped while running),
    `not_made` (it never began), `undone` (a compensator reverted it) or `unknown` (its tool is not
    recorded, or the conversation is older than the run).
    """

    how: Literal["done", "failed", "cut_off", "not_made", "undone", "unknown"]
    value: Any = None
    error: str = ""

    def told(self, lost: str = LOST) -> tuple[str, bool]:
        """Return the text that tells the model, and whether it reports a failure.

        lost: the text for a call that was cut off or whose outcome is unknown.
        """
        match self.how:
            case "done":
                return text_of(self.value), False
            case "failed":
                return self.error, True
            case "not_made":
                return NOT_MADE, True
            case "undone":
                return UNDONE, True
            case "cut_off" | "unknown":
                return lost, True


def outcome_unknown(_asked: Asked) -> Outcome:
    """Return the outcome of any call outside of a run: unknown."""
    return Outcome("unknown")


def text_of(value: Any) -> str:
    """Return a result as text for a model."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


# Wire forms -----------------------------------------------------------------------------------------

MOST_SHOWN = 20
"""Messages of a request that a step shows, at most."""
_SHORT = 200
"""Characters of the longest output that is never masked, because that would save nothing."""
_BEGINNING = 300
"""Characters kept of a masked output whose tool has an unknown effect: they may be a receipt."""
_MOST_OUTPUT, _MOST_BESIDE_SUMMARY = 8_000, 2_000
"""Characters kept of an output among the last messages, where they have to be cut."""
_RECEIPTS = (Effect.ONCE, Effect.IDEMPOTENT)
_Place: TypeAlias = tuple[int, int]
"""The indexes of a message and of a call or result in it."""


class Repaired(NamedTuple):
    """A repaired history. closed: number of calls that were given a result. dropped: number of results
    removed because they had no call or were a second one.
    """

    messages: list[Any]
    closed: int = 0
    dropped: int = 0


class Shrink(Struct, frozen=True):
    """How to shorten requests. keep_last: number of messages at the end that are no old ones.

    summary: replaces the old messages; None keeps them, with tool outputs masked. The last messages stay
    whole, unless there is a summary or no old output to mask: then their long outputs are cut. effects:
    the effect of each tool by name; outputs of tools that change the world are receipts, and stay.
    """

    keep_last: int
    summary: str | None = None
    effects: Mapping[str, str] = {}

    @classmethod
    def of(cls, guidance: Any, run: Any) -> Shrink | None:
        """Return what an attempt's guidance asks for, or None."""
        if guidance.keep_last is None:
            return None
        effects = {call.tool: call.effect for call in run.session.state.calls.values()}
        return cls(guidance.keep_last, guidance.summary, effects)


def says(value: Any, text: str) -> bool:
    """Whether any string in a JSON value contains a text."""
    if isinstance(value, str):
        return text in value
    if isinstance(value, dict):
        return any(says(item, text) for item in value.values())
    return isinstance(value, list | tuple) and any(says(item, text) for item in value)


class Wire(ABC):
    """One form of messages.

    results_follow: results must directly follow the turn that asked for them, else they may come any
    time later. answers_in_order: results must be in the order of their calls.
    """

    results_follow: ClassVar[bool] = True
    answers_in_order: ClassVar[bool] = False

    # What each form defines -------------------------------------------------------------------------------

    @abstractmethod
    def read(self, message: Any, tell: Tell = tell_nobody) -> Message:
        """Read a message into the neutral form."""

    def user(self, text: str) -> Any:
        """Make a message of the user."""
        return {"role": "user", "content": text}

    @abstractmethod
    def result(self, asked: Asked, text: str, *, failed: bool) -> Any:
        """Make the result of a call, in the form of `held` and `joined`."""

    def held(self, message: Any) -> list[Any]:
        """Return the raw results in a message, in the order of `Message.results`; by default, itself."""
        return [message]

    def joined(self, results: list[Any], message: Any | None) -> list[Any]:
        """Return messages with these results, followed by the rest of a message.

        message: a user's or one with results, whose own results are left out; None for no such message.
        """
        is_result = message is None or self.read(message).role == "tool"
        return results if is_result else [*results, message]

    @abstractmethod
    def masked(self, message: Any, outputs: Mapping[int, str]) -> Any:
        """Return a message with some outputs replaced, given by their index among its results."""

    def shown(self, message: Any) -> Any:
        """Return a message as a step shows it, without ids, which are new each time."""
        data = mapping(as_data(message))
        return {"role": plain(data.get("role")), "content": shown_content(data.get("content"))}

    def key(self, one: Asked | Result) -> Hashable:
        """Return the key that pairs a call with its result; None if the call cannot be answered."""
        return (one.id if isinstance(one, Asked) else one.call) or None

    def says(self, messages: Any, text: str) -> bool:
        """Whether the messages contain a text."""
        return any(says(as_data(message), text) for message in messages)

    def ending_with(self, messages: list[Any], text: str) -> list[Any]:
        """Return the messages with a text appended as the user's."""
        return [*messages, self.user(text)]

    def closing(self, asked: Asked, outcome: Outcome, lost: str, message: Any) -> Any:
        """Make the replacement of a missing result. message: the one that asked for it."""
        told, failed = outcome.told(lost)
        return self.result(asked, told, failed=failed)

    # What is the same for all ---------------------------------------------------------------------------

    def hinted(self, messages: Any, hint: str | None) -> Any:
        """Return the messages with a hint appended as the user's, unless they contain it."""
        if not hint or self.says(messages, hint):
            return messages
        return self.ending_with(list(messages), hint)

    def new_in(self, messages: Any) -> list[Any]:
        """Return the messages after the model's last turn, as a step shows them."""
        new: list[Any] = []
        given = messages if isinstance(messages, list | tuple) else []
        for message in reversed(given):
            if self.read(message).role == "model":
                break
            new.append(message)
        return [self.shown(message) for message in new[::-1][:MOST_SHOWN]]

    def repair(
        self,
        messages: Iterable[Any],
        text: str = LOST,
        outcome_of: Callable[[Asked], Outcome] = outcome_unknown,
    ) -> Repaired:
        """Make a history that a provider accepts: every call has a result and every result a call.

        A failure in the middle of a turn leaves calls without results, for which a provider refuses the
        next request. The outcome is valid for any input, and equal to a valid input. text: replaces the
        result of a call that was cut off or whose outcome is unknown. outcome_of: tells a call's outcome.
        """
        given = list(messages)
        read = [self.read(message) for message in given]
        pairs = self._pairs(read)
        kept = set(pairs.values())
        closed = 0
        made: list[Any] = []
        waiting: list[Any] = []
        for at, (message, said) in enumerate(zip(given, read, strict=True)):
            if not self.results_follow:
                if all((at, place) in kept for place in range(len(said.results))):
                    made.append(message)
            elif said.role in ("user", "tool") and (waiting or said.results):
                made += self.joined(waiting, message)
                waiting = []
            else:
                made += self.joined(waiting, None) if waiting else []
                made.append(message)
                waiting = []
            answered: list[tuple[_Place, Any]] = []
            lost: list[Any] = []
            for place, asked in enumerate(said.calls):
                found = pairs.get((at, place))
                if found is not None:
                    answered.append((found, self.held(given[found[0]])[found[1]]))
                elif self.key(asked) is not None:
                    closed += 1
                    lost.append(self.closing(asked, outcome_of(asked), text, message))
                    answered.append(((len(given), place), lost[-1]))
            if not self.results_follow:
                made += lost
                continue
            if not self.answers_in_order:
                answered.sort(key=lambda one: one[0])
            waiting += [raw for _, raw in answered]
        made += self.joined(waiting, None) if waiting else []
        return Repaired(made, closed, sum(len(said.results) for said in read) - len(kept))

    def _pairs(self, read: list[Message]) -> dict[_Place, _Place]:
        """Pair each call with the first result after it and before the next call with the same key."""
        pairs: dict[_Place, _Place] = {}
        waiting: dict[Hashable, list[_Place]] = {}
        for at, said in enumerate(read):
            for place, result in enumerate(said.results):
                calls = waiting.get(self.key(result))
                if calls:
                    pairs[calls.pop(0)] = (at, place)
            asked: dict[Hashable, list[_Place]] = {}
            for place, call in enumerate(said.calls):
                if self.key(call) is not None:
                    asked.setdefault(self.key(call), []).append((at, place))
            waiting |= asked
        return pairs

    def shrunk(self, messages: Sequence[Any], shrink: Shrink | None) -> Any:
        """Shorten the messages by masking old outputs or by a summary; None leaves them as they are.

        A valid history stays valid: no result loses its call and no call its result.
        """
        if shrink is None:
            return messages
        read = [self.read(message) for message in messages]
        tools = {call.id: call.name for said in read for call in said.calls}
        start = max(0, len(messages) - shrink.keep_last)
        most = _MOST_BESIDE_SUMMARY
        if shrink.summary is None:
            most = _MOST_OUTPUT
            masked = [
                _masked(self, message, said, shrink, tools)
                for message, said in zip(messages[:start], read, strict=False)
            ]
            if any(map(is_not, masked, messages)):
                return [*masked, *messages[start:]]
        last = [
            _masked(self, message, said, shrink, tools, most)
            for message, said in zip(messages[start:], read[start:], strict=True)
        ]
        shorter = [*messages[:start], *last]
        if shrink.summary is None:
            return shorter
        return _summarized(self, shorter, read, shrink, tools, start)


def _masked(
    wire: Wire,
    message: Any,
    said: Message,
    shrink: Shrink,
    tools: Mapping[str, str],
    most: int | None = None,
) -> Any:
    """Return a message without its long outputs. most: characters that stay of each; None for old ones."""
    changed: dict[int, str] = {}
    for at, result in enumerate(said.results):
        effect = shrink.effects.get(_tool_of(result, tools), Effect.UNKNOWN)
        text = _output_text(result.output)
        if effect in _RECEIPTS or len(text) <= (most or _SHORT):
            continue
        if most is not None:
            changed[at] = (
                f"{text[:most]}… [left out: {len(text) - most:,} of {len(text):,} characters]"
            )
            continue
        kept = "" if effect == Effect.READ else f"{text[:_BEGINNING]}… "
        changed[at] = f"{kept}[left out: {len(text):,} characters]"
    return wire.masked(message, changed) if changed else message


def _summarized(
    wire: Wire,
    messages: Sequence[Any],
    read: list[Message],
    shrink: Shrink,
    tools: Mapping[str, str],
    start: int,
) -> list[Any]:
    """Keep the instructions, the user's messages and the last ones, with a summary and the receipts."""
    begin = 0
    while begin < start and read[begin].role == "system":
        begin += 1
    if begin < start and read[begin].role == "user":
        begin += 1
    while start > begin and _is_inside_of_a_turn(read, start):
        start -= 1
    if begin == start:
        return list(messages)
    lines = [f"What was done before, in short:\n{shrink.summary}"]
    for said in read[begin:start]:
        for result in said.results:
            tool = _tool_of(result, tools)
            if shrink.effects.get(tool) in _RECEIPTS:
                told = _output_text(result.output)
                lines.append(f"Done, and not to be done again: {tool}, which answered {told}")
    kept = [messages[at] for at in range(begin, start) if read[at].role in ("system", "user")]
    return [*messages[:begin], *kept, wire.user("\n".join(lines)), *messages[start:]]


def _is_inside_of_a_turn(read: list[Message], at: int) -> bool:
    """Whether a message belongs to the one before it: a result, or a continued turn of the model."""
    if at == len(read):
        return False
    return read[at].role == "tool" or (read[at].role == "model" and read[at - 1].role == "model")


def _tool_of(result: Result, tools: Mapping[str, str]) -> str:
    return result.name or tools.get(result.call, "")


def _output_text(output: Any) -> str:
    return output if isinstance(output, str) else json.dumps(output, default=str)


def shown_content(content: Any) -> Any:
    """Return a message's content as a step shows it: texts, and results marked as such."""
    if not isinstance(content, list):
        return plain(content)
    shown: list[Any] = []
    for part in map(as_data, content):
        if mapping(part).get("type") == "tool_result":
            shown.append({"result": content_text(part.get("content"))})
        else:
            shown.append(content_text([part]))
    return shown


class ProviderWire(Wire):
    """The form of a provider's interface: the messages it takes and the answers it gives."""

    @abstractmethod
    def answer(self, response: Any) -> Answer:
        """Read the answer in a response."""

    @abstractmethod
    def whole(self, pieces: list[Any]) -> Any:
        """Assemble the pieces of a stream into the response as it would have come without streaming."""

    @abstractmethod
    def is_whole(self, pieces: list[Any]) -> bool:
        """Whether the pieces of a stream reach the end of the answer, successful or not."""

    @abstractmethod
    def turn(self, response: Any) -> list[Any]:
        """Return a response as the messages that continue the conversation."""

    @abstractmethod
    def declared(self, name: str, description: str | None, schema: Any) -> dict[str, Any]:
        """Declare a tool for a request. schema: JSON Schema of its arguments, None if not known."""
