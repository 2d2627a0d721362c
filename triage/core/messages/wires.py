"""The forms of messages of providers and frameworks, and the operations on any conversation.

A `Wire` reads one form of a message into `Message` and writes it back. The operations (repair, hints,
shorter requests, new messages in a request) are written once, for all forms. Nothing here raises for
malformed input or changes a message in place.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from operator import is_not, methodcaller
from typing import Any, ClassVar, NamedTuple, TypeAlias

from triage.core.json_values import plain
from triage.core.quoting import one_line
from triage.core.taxonomy import Effect

from . import neutral
from .reading import as_data, mapping, output_text, rewritten, says, shown_content
from .receipts import DETAILS, DONE, DOUBTFUL, Done, Shrink, receipt_lines, unnamed

MOST_SHOWN = 20
"""Maximum number of messages of a request in a step."""


_SHORT = 200
"""Maximum characters of an output that is never masked, because that would save nothing."""


_BEGINNING = 300
"""Characters kept of a masked output of a tool with an unknown effect, since they may be a receipt."""


_CUTS = (8_000, 2_000, 500, _SHORT)
"""Characters kept of an output in the last messages, if it has to be cut; the first that fits is used."""


_MOST_BESIDE_SUMMARY = 2_000


_READ_DETAILS = (120, _SHORT)
"""Characters kept of the arguments and the result of a call that may be repeated."""


_MOST_READS, _MOST_WORDS = 40, 10
"""Maximum number of repeatable calls, and of turns of words, listed for the messages left out."""


_MESSAGE_OVERHEAD, _CALL_OVERHEAD = 40, 90
"""Characters of a message and of a call beside their texts."""


_RECEIPTS = (Effect.ONCE, Effect.IDEMPOTENT)


_Place: TypeAlias = tuple[int, int]
"""The indexes of a message, and of a call or result in it."""


class Repaired(NamedTuple):
    """A repaired history. closed: number of calls that got a result. dropped: number of removed results,
    without a call or second ones.
    """

    messages: list[Any]
    closed: int = 0
    dropped: int = 0


_READS_TITLE = "Called before:"


_WORDS_TITLE = "You said:"


class Sent(NamedTuple):
    """A conversation as it was sent. receipts: characters of its receipts."""

    wire: Wire
    messages: Sequence[Any]
    receipts: int

    def measured(self) -> dict[str, int]:
        """Return its lengths in characters, for a step's metadata."""
        size = _size(self.wire.read(message) for message in self.messages)
        return {"characters": size, "receipts": self.receipts}


SENT: ContextVar[Sent | None] = ContextVar("triage_sent", default=None)
"""The last conversation that this context sent, shortened or not."""


def refused_request(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Add the lengths of the request, if known, to the metadata of a model's failed step."""
    sent = SENT.get()
    return {**metadata, "request": sent.measured()} if sent is not None else dict(metadata)


def _size(read: Iterable[neutral.Message]) -> int:
    """Estimate the characters of a conversation as JSON."""
    return sum(
        _MESSAGE_OVERHEAD
        + len(json.dumps(said.text))
        + sum(_CALL_OVERHEAD + len(call.name) + _length(call.arguments) for call in said.calls)
        + sum(_length(result.output) for result in said.results)
        for said in read
    )


def _length(value: Any) -> int:
    return len(json.dumps(output_text(value)))


class Wire(ABC):
    """One form of messages.

    results_follow: results must directly follow the turn of their calls, else any later turn will do.
    answers_in_order: results must be in the order of their calls.
    """

    results_follow: ClassVar[bool] = True
    answers_in_order: ClassVar[bool] = False

    # Defined by each form ---------------------------------------------------------------------------------

    @abstractmethod
    def read(self, message: Any, tell: neutral.Tell = neutral.tell_nobody) -> neutral.Message:
        """Read a message into the neutral form."""

    def user(self, text: str) -> Any:
        """Make a message of the user."""
        return {"role": "user", "content": text}

    @abstractmethod
    def result(self, asked: neutral.Asked, text: str, *, failed: bool) -> Any:
        """Make the result of a call, in the form of `held` and `joined`."""

    def held(self, message: Any) -> list[Any]:
        """Return the raw results in a message, as in `Message.results`; by default, the message itself."""
        return [message]

    def joined(self, results: list[Any], message: Any | None) -> list[Any]:
        """Return messages with these results, followed by the rest of a message.

        message: a message of the user or with results, whose own results are left out; None for none.
        """
        is_result = message is None or self.read(message).role == "tool"
        return results if is_result else [*results, message]

    @abstractmethod
    def masked(self, message: Any, outputs: Mapping[int, str]) -> Any:
        """Return a message with some outputs replaced, by index among its results."""

    def rewritten(self, message: Any, change: Callable[[str], str]) -> Any:
        """Return a user's message with its texts changed."""
        return rewritten(as_data(message), change)

    def shown(self, message: Any) -> Any:
        """Return a message for a step, without ids, which are new each time."""
        data = mapping(as_data(message))
        return {"role": plain(data.get("role")), "content": shown_content(data.get("content"))}

    def key(self, one: neutral.Asked | neutral.Result) -> Hashable:
        """Return the key that pairs a call with its result; None if the call cannot be answered."""
        return (one.id if isinstance(one, neutral.Asked) else one.call) or None

    def says(self, messages: Any, text: str) -> bool:
        """Whether the messages contain a text."""
        return any(says(as_data(message), text) for message in messages)

    def ending_with(self, messages: list[Any], text: str) -> list[Any]:
        """Return the messages with a text of the user appended."""
        return [*messages, self.user(text)]

    def closing(
        self, asked: neutral.Asked, outcome: neutral.Outcome, lost: str, message: Any
    ) -> Any:
        """Make the replacement of a missing result. message: holds the call."""
        text, failed = outcome.told(lost)
        return self.result(asked, text, failed=failed)

    # The same for all forms -------------------------------------------------------------------------------

    def hinted(self, messages: Any, hint: str | None) -> Any:
        """Return the messages with a hint appended as the user's words, unless they contain it."""
        if not hint or self.says(messages, hint):
            return messages
        return self.ending_with(list(messages), hint)

    def new_in(self, messages: Any) -> list[Any]:
        """Return the messages after the model's last turn, for a step."""
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
        text: str = neutral.LOST,
        outcome_of: Callable[[neutral.Asked], neutral.Outcome] = neutral.outcome_unknown,
    ) -> Repaired:
        """Make a history that a provider accepts: every call has a result and every result a call.

        A failure in the middle of a turn leaves calls without results, and a provider then refuses the
        next request. The repaired history is valid for any input, and equal to a valid one. text: replaces
        the result of a call that was cut off or whose outcome is unknown. outcome_of: returns a call's
        outcome.
        """
        given = list(messages)
        read = [self.read(message) for message in given]
        pairs = self.pairs(read)
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

    def pairs(self, read: list[neutral.Message]) -> dict[_Place, _Place]:
        """Pair each call with the first result that follows, before the next call with the same key."""
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
        """Shorten the messages by masking old outputs or by a summary; None leaves them unchanged.

        A valid history stays valid: no result loses its call and no call its result. A list is copied, so
        that a hint may be appended.
        """
        kept = list(messages) if isinstance(messages, list) else messages
        sent = (
            Sent(self, kept, 0) if shrink is None else _Shortening(self, kept, shrink).shortened()
        )
        SENT.set(sent)
        return list(sent.messages) if isinstance(sent.messages, list) else sent.messages


class _Shortening:
    """Shortens a conversation, no more than needed."""

    def __init__(self, wire: Wire, messages: Sequence[Any], shrink: Shrink) -> None:
        self.wire = wire
        self.given = list(messages)
        self.shrink = shrink
        self.read = [wire.read(message) for message in messages]
        self.tools = {call.id: call.name for said in self.read for call in said.calls}
        self.calls = self._calls(wire.pairs(self.read))
        self.boundary = max(0, len(messages) - shrink.keep_last)
        self.outputs = [
            text for done in shrink.reads if len(text := output_text(done.result)) > _SHORT
        ]

    def _calls(self, pairs: Mapping[_Place, _Place]) -> dict[int, list[tuple[Done, bool]]]:
        """Return the calls of each message, each with whether it failed or has no result."""
        found: dict[int, list[tuple[Done, bool]]] = {}
        for at, said in enumerate(self.read):
            for place, call in enumerate(said.calls):
                pair = pairs.get((at, place))
                result = None if pair is None else self.read[pair[0]].results[pair[1]]
                output = "no result" if result is None else result.output
                done = Done(call.name, call.arguments, output)
                found.setdefault(at, []).append((done, result is None or result.failed))
        return found

    def shortened(self) -> Sent:
        """Return the first candidate that fits, preferably with all reads, else the shortest one."""
        last: Sent | None = None
        first_fitting: Sent | None = None
        for sent, lists_reads in self._candidates():
            last = sent
            if self.shrink.max_characters is None:
                break
            if sent.measured()["characters"] <= self.shrink.max_characters:
                if lists_reads:
                    return sent
                first_fitting = first_fitting or sent
        return first_fitting or last or Sent(self.wire, self.given, 0)

    def _candidates(self) -> Iterator[tuple[Sent, bool]]:
        """Yield conversations, each shorter than before, each with whether it lists all reads."""
        cuts: tuple[int, ...] = _CUTS
        if self.shrink.summary is None:
            old = [self._masked(at) for at in range(self.boundary)]
            if any(map(is_not, old, self.given)):
                yield Sent(self.wire, [*old, *self.given[self.boundary :]], 0), True
            last = [self._masked(at, cuts[0]) for at in range(self.boundary, len(self.given))]
            yield Sent(self.wire, [*old, *last], 0), True
        else:
            cuts = (_MOST_BESIDE_SUMMARY, *_CUTS[2:])
        begin = 0
        while begin < self.boundary and self.read[begin].role == "system":
            begin += 1
        if begin < self.boundary and self.read[begin].role == "user":
            begin += 1
        start = self.boundary
        while start > begin and _is_inside_of_a_turn(self.read, start):
            start -= 1
        turns = [at for at in range(start + 1, len(self.read)) if self._begins_a_turn(at)]
        for most in cuts:
            if start == begin:
                last = [self._masked(at, most) for at in range(begin, len(self.given))]
                yield Sent(self.wire, [*self.given[:begin], *last], 0), True
            for at in (start, *turns):
                if at > begin:
                    yield from self._without(begin, at, most)

    def _begins_a_turn(self, at: int) -> bool:
        return self.read[at].role == "model" and not _is_inside_of_a_turn(self.read, at)

    def _without(self, begin: int, start: int, most: int) -> Iterator[tuple[Sent, bool]]:
        """Replace the messages between two indexes, apart from the user's, by a digest."""
        last = [self._masked(at, most) for at in range(start, len(self.given))]
        users = [at for at in range(begin, start) if self.read[at].role in ("system", "user")]
        words = [at for at in users if not self._is_output(at)]
        short = [
            self.wire.rewritten(self.given[at], lambda text: _cut(text, _SHORT)) for at in words
        ]
        kept: list[Any]
        for kept in ([self._masked(at) for at in users], [self._masked(at) for at in words], short):
            around = [*self.given[:begin], *kept, *last]
            text, receipts, lists_reads = self._digest(
                begin, start, _size(map(self.wire.read, around))
            )
            messages = [*self.given[:begin], *kept, self.wire.user(text), *last]
            yield Sent(self.wire, messages, receipts), lists_reads
            if self.shrink.max_characters is None:
                return

    def _digest(self, begin: int, start: int, around: int) -> tuple[str, int, bool]:
        """Write the digest of the messages left out. around: characters of the rest.

        Returns the text, the characters of its receipts, and whether it lists all reads.
        """
        summary = self.shrink.summary
        receipts, reads, doubts, words = self._left_out(begin, start)
        title = (
            "Earlier messages are left out."
            if summary is None
            else (f"What was done before, in short:\n{summary}")
        )
        most = self.shrink.max_characters
        room = None if most is None else most - around - _MESSAGE_OVERHEAD - len(json.dumps(title))
        brief = [f"- {call.line((_READ_DETAILS[0], 0))}" for call in reads]
        all_reads = _measure([_READS_TITLE, *brief])
        lines: list[str] = []
        for detail in DETAILS:
            lines = receipt_lines(DONE, receipts, detail) + receipt_lines(DOUBTFUL, doubts, detail)
            if room is None or _measure(lines) + all_reads <= room:
                break
        size = _measure(lines)
        left = None if room is None else room - size
        if summary is not None:  # it lists the reads before it
            reads = [call for call in reads if call.key not in summary]
        found = [f"- {call.line(_READ_DETAILS)}" for call in reads][-_MOST_READS:]
        if left is not None and _measure([_READS_TITLE, *found]) > left:
            found = brief
        shown = _newest(_READS_TITLE, found, left)
        if left is not None:
            left -= _measure(shown)
        said = [] if summary is not None else _newest(_WORDS_TITLE, words, left)
        text = "\n".join((title, *lines, *shown, *said))
        return text, size, len(shown) > len(found) or not found

    def _left_out(
        self, begin: int, start: int
    ) -> tuple[list[Done], list[Done], list[Done], list[str]]:
        """Return the receipts, reads and doubts missing in the messages from `start` on, and words."""
        shown = Counter(
            call.key for at in range(start, len(self.read)) for call, _ in self.calls.get(at, ())
        )
        receipts = _unseen(unnamed(self.shrink.receipts, self.shrink.summary), shown)
        reads = _unseen(self.shrink.reads, shown)
        doubts = _unseen(self.shrink.doubts, shown)
        ended = (*self.shrink.receipts, *self.shrink.reads, *self.shrink.doubts)
        known = Counter(done.key for done in ended)
        words: list[str] = []
        for at in range(begin, start):
            for done, failed in self.calls.get(at, ()):
                if known[done.key] > 0:
                    known[done.key] -= 1
                    continue
                effect = self.shrink.effects.get(done.tool, Effect.UNKNOWN)
                (reads if failed or effect == Effect.READ else receipts).append(done)
            said = self.read[at]
            if said.role == "model" and said.text:
                words.append(f"- {one_line(said.text, _SHORT)}")
        return receipts, reads, doubts, words[-_MOST_WORDS:]

    def _is_output(self, at: int) -> bool:
        """Whether a user's message is the result of a call, with few other words."""
        text = self.read[at].text
        outputs = (output_text(done.result) for done in (*self.shrink.receipts, *self.shrink.reads))
        return any(
            output
            and len(text) <= len(output) + _SHORT
            and (output in text if len(output) > _SHORT else text.endswith(f" {output}"))
            for output in outputs
        )

    def _masked(self, at: int, most: int | None = None) -> Any:
        """Return a message without its long outputs. most: characters kept of each; None for old ones."""
        message, said = self.given[at], self.read[at]
        if said.role == "user":
            return self._masked_words(message, said, most)
        changed: dict[int, str] = {}
        for place, result in enumerate(said.results):
            effect = self.shrink.effects.get(_tool_of(result, self.tools), Effect.UNKNOWN)
            text = output_text(result.output)
            if effect in _RECEIPTS or len(text) <= (most or _SHORT):
                continue
            changed[place] = _cut(text, most) if most else _mask(text, effect)
        return self.wire.masked(message, changed) if changed else message

    def _masked_words(self, message: Any, said: neutral.Message, most: int | None) -> Any:
        """Return a user's message without tool outputs, which an agent's own loop may put there."""
        found = [output for output in self.outputs if output in said.text]
        found = [output for output in found if len(output) > (most or _SHORT)]
        for output in found:
            short = _cut(output, most) if most else _mask(output, Effect.READ)
            message = self.wire.rewritten(message, methodcaller("replace", output, short))
        return message


def _mask(text: str, effect: str) -> str:
    kept = "" if effect == Effect.READ else f"{text[:_BEGINNING]}… "
    return f"{kept}[left out: {len(text):,} characters]"


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[:most]}… [left out: {len(text) - most:,} of {len(text):,} characters]"


def _unseen(calls: Iterable[Done], shown: Counter[str]) -> list[Done]:
    """Return the calls without the newest ones that the kept messages show."""
    left = Counter(shown)
    found: list[Done] = []
    for call in reversed(list(calls)):
        if left[call.key] > 0:
            left[call.key] -= 1
        else:
            found.append(call)
    return found[::-1]


def _measure(lines: Sequence[str]) -> int:
    return len(json.dumps("\n".join(lines)))


def _newest(title: str, lines: list[str], room: int | None) -> list[str]:
    """Return the title and the newest lines that fit."""
    at = 0
    while room is not None and at < len(lines) and _measure([title, *lines[at:]]) > room:
        at += 1
    return [title, *lines[at:]] if at < len(lines) else []


def _is_inside_of_a_turn(read: list[neutral.Message], at: int) -> bool:
    """Whether a message continues the one before: a result, or a further message of the model's turn."""
    if at == len(read):
        return False
    return read[at].role == "tool" or (read[at].role == "model" and read[at - 1].role == "model")


def _tool_of(result: neutral.Result, tools: Mapping[str, str]) -> str:
    return result.name or tools.get(result.call, "")


class ProviderWire(Wire):
    """The form of a provider's requests and answers.

    ends_at_once: a stream ends with the event that completes the answer.
    """

    ends_at_once: ClassVar[bool] = True

    @abstractmethod
    def answer(self, response: Any) -> neutral.Answer:
        """Read the answer in a response."""

    @abstractmethod
    def whole(self, pieces: list[Any]) -> Any:
        """Assemble the pieces of a stream into the response of a request without streaming."""

    @abstractmethod
    def is_whole(self, pieces: list[Any]) -> bool:
        """Whether the pieces of a stream reach the end of the answer, successful or not."""

    @abstractmethod
    def turn(self, response: Any) -> list[Any]:
        """Return a response as the messages that continue the conversation."""

    @abstractmethod
    def declared(self, name: str, description: str | None, schema: Any) -> dict[str, Any]:
        """Declare a tool for a request. schema: JSON Schema of its arguments, None if not known."""


class BlockWire(ProviderWire):
    """A form with blocks in its messages, and results among the blocks of a user's message."""

    @abstractmethod
    def blocks(self, message: Any) -> list[Any]:
        """Return the blocks of a message, in a new list."""

    @abstractmethod
    def is_result(self, block: Any) -> bool:
        """Whether a block is the result of a call."""

    def held(self, message: Any) -> list[Any]:
        return [block for block in self.blocks(message) if self.is_result(block)]

    def joined(self, results: list[Any], message: Any | None) -> list[Any]:
        if message is None:
            return [{"role": "user", "content": results}]
        rest = [block for block in self.blocks(message) if not self.is_result(block)]
        content = [*results, *rest]
        return [{**as_data(message), "content": content}] if content else []
