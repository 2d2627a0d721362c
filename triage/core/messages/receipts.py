"""Receipts: lines in a shorter request for the calls that it leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct, field

from triage.core.quoting import as_json
from triage.core.state import label_of
from triage.core.taxonomy import Effect

DETAILS = ((2_000, 2_000), (600, 100), (300, 0), (60, 0))
"""Characters kept of a receipt's arguments and result; the first pair that fits is used."""


class Done(Struct, frozen=True, eq=False):
    """A call that has ended. result: its result or error."""

    tool: str
    arguments: Any
    result: Any
    _texts: dict[tuple[int, int], str] = field(default_factory=dict)

    def line(self, most: tuple[int, int]) -> str:
        """Write the call on one line, redacted. most: characters kept of its arguments and result."""
        text = self._texts.get(most)
        if text is None:
            given = "" if self.arguments is None else as_json(self.arguments, most[0])
            text = f"{self.tool[:80]}({given})"
            if most[1]:
                text += f" → {as_json(self.result, most[1])}"
            self._texts[most] = text  # cached for the other ways to shorten the conversation
        return text

    @property
    def key(self) -> str:
        """The tool and its arguments, equal for equal calls."""
        return self.line((2_000, 0))


class Shrink(Struct, frozen=True):
    """How to shorten requests. keep_last: number of messages at the end that do not count as old.

    summary: replaces the old messages; None keeps them, with tool outputs masked. The last messages stay
    whole, unless there is a summary or no old output to mask: then their long outputs are cut. effects:
    of each tool by name; outputs of tools that change the world are receipts, and stay.

    max_characters: of a conversation, None for any number. Messages are left out until the rest fits, and
    listed in short. receipts: completed calls with an effect, all listed where messages are left out.
    reads: other completed calls, and failed ones. doubts: failed calls that may have happened, listed like
    receipts.
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
        """Return the shortening in an attempt's guidance, or None."""
        if guidance.keep_last is None:
            return None
        source, calls = run.telling
        if source.keep_last is None:
            source = run.told
        calls = list(calls)
        effects = {call.tool: call.effect for call in calls}
        ended = ended_calls(calls)
        return cls(source.keep_last, source.summary, effects, source.max_characters, *ended)


class Ended(NamedTuple):
    """Calls that have ended, by the kinds of `Shrink`."""

    receipts: tuple[Done, ...]
    reads: tuple[Done, ...]
    doubts: tuple[Done, ...]


def ended_calls(calls: Iterable[Any]) -> Ended:
    """Sort the ended calls of a run's state.

    Calls inside a completed call with an effect count as part of it.
    """
    receipts: list[Done] = []
    reads: list[Done] = []
    doubts: list[Done] = []
    labels: set[str] = set()
    for call in calls:
        if call.kind not in ("tool", "run") or call.outcome is None or call.undone:
            continue
        if call.within in labels:
            continue
        if call.outcome != "done":
            error = "" if call.error is None else call.error.message
            failed = Done(call.tool, call.arguments, error)
            (doubts if call.outcome == "in_doubt" else reads).append(failed)
            continue
        has_effect = call.effect != Effect.READ
        if has_effect:
            labels.add(label_of(call.tool, call.idempotency_key))
        (receipts if has_effect else reads).append(Done(call.tool, call.arguments, call.result))
    return Ended(tuple(receipts), tuple(reads), tuple(doubts))


def with_receipts(summary: str, calls: Iterable[Any]) -> str:
    """Append to a summary the completed calls with an effect that it omits, and all calls in doubt."""
    ended = ended_calls(calls)
    done = receipt_lines(DONE, unnamed(ended.receipts, summary), DETAILS[0])
    return "\n".join((summary, *done, *receipt_lines(DOUBTFUL, ended.doubts, DETAILS[0])))


DONE = "Done, and not to be done again:"


DOUBTFUL = "Failed with this error, and may have taken effect all the same:"


def unnamed(receipts: Iterable[Done], summary: str | None) -> list[Done]:
    return [one for one in receipts if summary is None or one.key not in summary]


def receipt_lines(title: str, calls: Iterable[Done], most: tuple[int, int]) -> list[str]:
    lines = [f"- {call.line(most)}" for call in calls]
    return [title, *lines] if lines else []
