"""What a durable store writes for an append, and how it is read back."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from json.encoder import encode_basestring_ascii as _quoted
from math import inf
from typing import Any, NamedTuple

from triage import _wire
from triage._cut import HEAVY, weight_of
from triage._options import check_number, misuse
from triage._outgoing import Outgoing, look_through
from triage.errors import StoreCorrupt, StoreError, UsageError
from triage.events import (
    CallFinished,
    Event,
    RunFinished,
    RunResumed,
    RunStarted,
    RunSuspended,
    StateUpdated,
)

from ._blobs import Piece, join, refs_text, split
from ._owners import Owned, stale
from .base import RunInfo

LARGE = 16_384
"""Events whose line is longer than this have their large values kept apart."""
MOST_CHARACTERS = 128 * 2**20
"""Of an event's line; a larger one is refused: to write it would keep all others waiting."""
MAX_ID = 512
"""Characters of the longest run id."""
MOST = 2**31
"""Events a run may have; owners too."""
Done = Callable[[BaseException | None], None]
"""Told how an append ended: None, or what it failed with."""
_HELD: dict[type, str] = {
    RunStarted: "the task and the arguments",
    RunFinished: "the result",
    StateUpdated: "a state",
}
_TELLING = frozenset({RunStarted, RunSuspended, RunResumed, RunFinished})


@lru_cache(4096)
def as_column(text: str) -> str:
    """A text as every database keeps and compares it: NUL and lone surrogates are escaped."""
    return _quoted(text)[1:-1]


def from_column(text: str) -> str:
    """What `as_column` was given."""
    return str(json.loads(f'"{text}"'))


class Head(NamedTuple):
    """What a run's row is created with, as columns."""

    agent: str
    parent: str | None
    started: float


class Append:
    """One append, or several of a run that follow each other: written as one row, or refused as one.

    Encoded when it is made, so that no later change of a value can change what is written; what a living
    run has recorded does not change, and is encoded by `ready`. run_id: as a column. status, token: what
    its events say of them, None for no change. pieces: large values that stand apart. dones: told in the
    store's thread how it ended. error: why it could not be encoded.
    """

    __slots__ = (
        "at", "dones", "epoch", "error", "head", "lease_s", "lines", "outgoing", "pieces", "run_id",
        "size", "status", "token", "updated",
    )  # fmt: skip

    def __init__(
        self,
        run_id: str,
        events: Sequence[Event],
        at: int,
        epoch: int,
        lease_s: float | None,
        done: Done,
    ) -> None:
        # The common case first: identity tests only, no call.
        if (
            at.__class__ is not int
            or epoch.__class__ is not int
            or not (0 <= at < MOST and 0 <= epoch < MOST)
            or len(run_id) > MAX_ID
            or (lease_s is not None and (lease_s.__class__ is not float or not 0 < lease_s < inf))
            or (events.__class__ is not Outgoing and not events)
        ):
            _check(run_id, events, at, epoch, lease_s)
        self.run_id = as_column(run_id)
        self.at = at
        self.epoch = epoch
        self.lease_s = lease_s
        self.dones = [done]
        self.pieces: Sequence[Piece] = ()
        self.head: Head | None = None
        self.status: str | None = None
        self.token: str | None = None
        self.lines: list[str] = []
        self.error: Exception | None = None
        self.outgoing: Outgoing | None = None
        if isinstance(events, Outgoing):
            self.outgoing = events
            self.size = events.size
            self.updated = events.ends
            return
        self.size = 0
        for event in events[:]:
            # A very large one is not written in one piece first.
            self._add(event, "" if weight_of(event, HEAVY) > HEAVY else _wire.dumps(event))
        self.updated = events[-1].time

    def encode(self) -> None:
        """Make the lines of what a living run has recorded."""
        outgoing, self.outgoing = self.outgoing, None
        assert outgoing is not None
        try:
            for line, event in outgoing.lines():
                if event is None and len(line) <= LARGE:
                    self.lines.append(line)
                else:
                    self._add(outgoing[len(self.lines)] if event is None else event, line)
        except Exception as error:  # noqa: BLE001 - told as any failure is
            self.error = error

    def _add(self, event: Event, line: str) -> None:
        """Take an event in. line: its own, empty where it is too large to be made."""
        if not line or len(line) > LARGE:
            line = self._split(event)
        self.size += len(line)
        self.lines.append(line)
        if event.__class__ in _TELLING:
            self._take(event)

    def _split(self, event: Event) -> str:
        """The line of an event without its large values. Raises StoreError for one that is too long."""
        line, pieces = split(event, self.at + len(self.lines))
        size = sum(len(piece.body) for piece in pieces)
        if len(line) + size > MOST_CHARACTERS:
            raise StoreError(
                f"{_what(event)} of run {event.run_id} takes {len(line) + size:,} characters as JSON, and "
                f"a store keeps up to {MOST_CHARACTERS:,}; keep it elsewhere and record where it is"
            )
        self.pieces = [*self.pieces, *pieces]
        self.size += size
        return line

    def _take(self, event: Event) -> None:
        """Take in what an event says of its run; what the last of them says counts."""
        self.status, self.token = "running", None
        if isinstance(event, RunStarted):
            parent = None if event.parent is None else as_column(event.parent)
            self.head = Head(as_column(event.agent), parent, event.time)
        elif isinstance(event, RunFinished):
            self.status = as_column(event.status)
        elif isinstance(event, RunSuspended):
            self.status, self.token = "suspended", as_column(event.token_digest)

    def add(self, item: Append) -> bool:
        """Take in an append that goes on where this ends; False for one that does not."""
        if item.epoch != self.epoch or item.at != self.at + len(self.lines):
            return False
        if self.error is not None or item.error is not None:
            return False
        self.dones += item.dones
        self.lines += item.lines
        self.pieces = [*self.pieces, *item.pieces]
        if item.status is not None:
            self.status, self.token = item.status, item.token
        if item.lease_s is not None:
            self.lease_s = item.lease_s
        self.updated = item.updated
        return True

    def without(self, count: int) -> None:
        """Leave out the first events: they are written already."""
        self.at += count
        self.lines = self.lines[count:]
        self.pieces = [piece for piece in self.pieces if piece.seq >= self.at]

    @property
    def over(self) -> bool:
        """Whether the run has no owner afterwards, as it is suspended or has ended."""
        return self.status is not None and self.status != "running"


def _what(event: Event) -> str:
    """What an event holds that may be large, in words."""
    if isinstance(event, CallFinished):
        tool = event.key.rsplit(":", 2)[0]  # digest and occurrence follow
        return f"the result of tool {tool}"
    return _HELD.get(type(event)) or f"an event {type(event).__name__}"


def _check(
    run_id: str, events: Sequence[Event], at: int, epoch: int, lease_s: float | None
) -> None:
    """Raise UsageError for what cannot be appended."""
    if not events:
        raise UsageError("append.events must hold at least one event")
    for name, value in (("at", at), ("epoch", epoch)):
        if value.__class__ is not int or not 0 <= value < MOST:
            raise misuse(f"append.{name}", value, "a whole number from 0")
    if lease_s is not None:
        check_number("append.lease_s", lease_s, "seconds", above=True)
    if len(run_id) > MAX_ID:
        raise UsageError(f"run_id must have at most {MAX_ID} characters, not {len(run_id)}")


def ready(batch: Iterable[Append]) -> None:
    """Make ready to be written what living runs have recorded: all in one go."""
    left = [item for item in batch if item.outgoing is not None]
    look_through([item.outgoing for item in left if item.outgoing is not None])
    for item in left:
        item.encode()


def rounds(items: Iterable[Append]) -> Iterator[list[Append]]:
    """Rounds of appends, each run once a round, in an order that keeps that of each run."""
    current: dict[str, Append] = {}
    for item in items:
        before = current.setdefault(item.run_id, item)
        if before is not item and not before.add(item):
            yield list(current.values())
            current = {item.run_id: item}
    if current:
        yield list(current.values())


class Row(NamedTuple):
    """Events that were written at once.

    seq: position of the first. size: how many. refs: see `refs_text`.
    """

    seq: int
    size: int
    crc: int
    body: str
    refs: str | None

    @property
    def end(self) -> int:
        """The position behind its last event."""
        return self.seq + self.size


def row_of(append: Append) -> tuple[int, int, int, str, str | None]:
    """What is written for an append: the values of a `Row`."""
    lines = append.lines
    body = "\n".join(lines)
    refs = refs_text(append.pieces) if append.pieces else None
    return (append.at, len(lines), crc_of(append.run_id, append.at, body, refs), body, refs)


def crc_of(run_id: str, seq: int, body: str, refs: str | None) -> int:
    """The checksum of a row: it covers where the row stands too."""
    return zlib.crc32(body.encode(), zlib.crc32(f"{run_id}\n{seq}\n{refs or ''}\n".encode()))


def _checked(run_id: str, rows: Iterable[Row]) -> Iterator[Row]:
    """The rows, each of them whole and none missing between them. Raises StoreCorrupt."""
    following: int | None = None
    for row in rows:
        if following is not None and row.seq != following:
            raise StoreCorrupt(f"run {run_id} lacks events from position {following} on")
        if crc_of(run_id, row.seq, row.body, row.refs) != row.crc:
            raise StoreCorrupt(f"run {run_id} is damaged at position {row.seq}")
        following = row.end
        yield row


def events_of(
    run_id: str, rows: Iterable[Row], after: int, fetch: Callable[[str], bytes | None]
) -> list[Event]:
    """The events of a run's rows behind a position. fetch: what is kept under a digest."""
    found: list[Event] = []
    for row in _checked(run_id, rows):
        refs: list[Any] = [] if row.refs is None else json.loads(row.refs)
        skipped = max(0, after + 1 - row.seq)
        lines = islice(enumerate(row.body.split("\n"), row.seq), skipped, None)
        for seq, line in lines:
            own = [ref for ref in refs if ref[0] == seq]
            found.append(join(line, own, fetch) if own else _wire.loads(line))
    return found


def standing(append: Append, rows: Iterable[Row]) -> int | None:
    """How many events of the append stand in the journal already, None if others stand there.

    rows: those from the append's position on.
    """
    lines: list[str] = []
    refs: list[Any] = []
    for row in _checked(append.run_id, rows):
        if not lines and row.seq > append.at:
            return None
        skipped = max(0, append.at - row.seq)
        lines += row.body.split("\n")[skipped:]
        refs += [] if row.refs is None else json.loads(row.refs)
    count = min(len(lines), len(append.lines))
    end = append.at + count
    ours = [piece.ref() for piece in append.pieces if piece.seq < end]
    theirs = [ref for ref in refs if append.at <= ref[0] < end]
    if count and lines[:count] == append.lines[:count] and ours == theirs:
        return count
    return None


def refused(
    append: Append, owned: Owned | None, rows: Callable[[], Iterable[Row]]
) -> StoreError | None:
    """Why an append that could not be written must not be; None when it is, or can be now.

    What stands in the journal already is left out of the append, perhaps all of it. rows: those of the
    journal from the append's position on.
    """
    if owned is None and append.at == 0 and append.epoch == 0:
        if append.head is None:
            return StoreError(f"run {append.run_id} must begin with RunStarted")
        return None
    if owned is None or owned.epoch != append.epoch or append.at > owned.events:
        return stale(append.run_id, append.at, append.epoch, owned)
    if append.at < owned.events:
        count = standing(append, rows())
        if count is None:
            return stale(append.run_id, append.at, append.epoch, owned)
        append.without(count)
    return None


def info_of(columns: Sequence[Any]) -> RunInfo:
    """A run from the columns of `RunInfo`, in its order."""
    info = RunInfo._make(columns)
    return info._replace(
        run_id=from_column(info.run_id),
        agent=from_column(info.agent),
        parent=None if info.parent is None else from_column(info.parent),
    )


def fresh(error: BaseException) -> BaseException:
    """The same error for one more reader: each of them may add notes to its own."""
    import copy

    again = copy.copy(error)
    again.__cause__ = error.__cause__
    return again
