"""What a shorter request tells of the calls that it leaves out: completed effects are receipts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct, field

from triage.core.quoting import as_json
from triage.core.state import label_of
from triage.core.taxonomy import Effect

DETAILS = ((2_000, 2_000), (600, 100), (300, 0), (60, 0))
"""Characters kept of a receipt's arguments and result: no more than fits."""


class Done(Struct, frozen=True, eq=False):
    """A call that has ended. result: its result, or the error it ended with."""

    tool: str
    arguments: Any
    result: Any
    _texts: dict[tuple[int, int], str] = field(default_factory=dict)

    def told(self, most: tuple[int, int]) -> str:
        """Write it on one line, redacted. most: characters kept of its arguments and its result."""
        text = self._texts.get(most)
        if text is None:
            given = "" if self.arguments is None else as_json(self.arguments, most[0])
            text = f"{self.tool[:80]}({given})"
            if most[1]:
                text += f" → {as_json(self.result, most[1])}"
            self._texts[most] = text  # each way to shorten a conversation tells the same calls
        return text

    @property
    def key(self) -> str:
        """The tool and its arguments, equal for equal calls."""
        return self.told((2_000, 0))


class Shrink(Struct, frozen=True):
    """How to shorten requests. keep_last: number of messages at the end that are no old ones.

    summary: replaces the old messages; None keeps them, with tool outputs masked. The last messages stay
    whole, unless there is a summary or no old output to mask: then their long outputs are cut. effects:
    the effect of each tool by name; outputs of tools that change the world are receipts, and stay.

    max_characters: of a conversation, None for any number. More and more is left out until it fits; what
    is left out is told in few words. receipts: completed calls with an effect, which are all told again
    where messages are left out. reads: other completed calls, and those that failed. doubts: calls that
    failed and may have happened all the same, told like receipts.
    """

    keep_last: int
    summary: str | None = None
    effects: Mapping[str, str] = {}
    max_characters: int | None = None
    receipts: tuple[Done, ...] = ()
    reads: tuple[Done, ...] = ()
    doubts: tuple[Done, ...] = ()

    @classmethod
    def of(cls, guidance: Any, run: Any) -> Shrink | None:
        """Return what an attempt's guidance asks for, or None."""
        if guidance.keep_last is None:
            return None
        told, calls = run.telling
        if told.keep_last is None:
            told = run.told
        calls = list(calls)
        effects = {call.tool: call.effect for call in calls}
        ended = ended_calls(calls)
        return cls(told.keep_last, told.summary, effects, told.max_characters, *ended)


class Ended(NamedTuple):
    """Calls that have ended, as `Shrink` tells them."""

    receipts: tuple[Done, ...]
    reads: tuple[Done, ...]
    doubts: tuple[Done, ...]


def ended_calls(calls: Iterable[Any]) -> Ended:
    """Sort the calls of a journal's state that have ended.

    Calls inside a completed call with an effect are part of that one.
    """
    receipts: list[Done] = []
    reads: list[Done] = []
    doubts: list[Done] = []
    told: set[str] = set()
    for call in calls:
        if call.kind not in ("tool", "run") or call.outcome is None or call.undone:
            continue
        if call.within in told:
            continue
        if call.outcome != "done":
            error = "" if call.error is None else call.error.message
            failed = Done(call.tool, call.arguments, error)
            (doubts if call.outcome == "in_doubt" else reads).append(failed)
            continue
        has_effect = call.effect != Effect.READ
        if has_effect:
            told.add(label_of(call.tool, call.idempotency_key))
        (receipts if has_effect else reads).append(Done(call.tool, call.arguments, call.result))
    return Ended(tuple(receipts), tuple(reads), tuple(doubts))


def with_receipts(summary: str, calls: Iterable[Any]) -> str:
    """Append all calls with an effect, completed or in doubt, that a summary does not name."""
    ended = ended_calls(calls)
    done = receipt_lines(DONE, unnamed(ended.receipts, summary), DETAILS[0])
    return "\n".join((summary, *done, *receipt_lines(DOUBTFUL, ended.doubts, DETAILS[0])))


DONE = "Done, and not to be done again:"


DOUBTFUL = "Failed with this error, and may have taken effect all the same:"


def unnamed(receipts: Iterable[Done], summary: str | None) -> list[Done]:
    return [one for one in receipts if summary is None or one.key not in summary]


def receipt_lines(title: str, calls: Iterable[Done], most: tuple[int, int]) -> list[str]:
    lines = [f"- {call.told(most)}" for call in calls]
    return [title, *lines] if lines else []
