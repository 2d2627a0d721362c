"""Encode an append as the rows of a durable store, and decode rows into events."""

from __future__ import annotations

import copy
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, NamedTuple, overload

from triage.core import wire
from triage.core.errors import StoreCorrupt, StoreError, UsageError, check_number, misuse
from triage.core.events import CallFinished, Event, RunFinished, RunStarted, StateUpdated

from .base import Opening, Owned, RunInfo, Told, is_progress, opening, stale, told_by

LARGE = 16_384
"""Maximum characters of an event's line that is stored whole; a longer one is split."""
PIECE_BYTES = 4096
"""Minimum JSON size of a value of a large event that is stored apart."""
MOST_CHARACTERS = 128 * 2**20
"""Maximum characters of an event's line; a longer one is refused, since it would block all others."""
MAX_ID = 512
"""Maximum characters of a run id."""
MOST = 2**31
"""Maximum number of a run's events, and of its owners."""
Done = Callable[[BaseException | None], None]
"""Receives the outcome of an append: None, or the error."""

_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def as_column(text: str) -> str:
    """Escape NUL and lone surrogates, so that all databases keep and compare the text alike."""
    return _quoted(text)[1:-1]


def _column(text: str | None) -> str | None:
    return None if text is None else as_column(text)


def from_column(text: str) -> str:
    """Undo `as_column`."""
    return str(json.loads(f'"{text}"'))


class Outgoing(Sequence[Event]):
    """Events of a living run on their way to a store. kept: makes the stored form of each."""

    def __init__(self, events: Sequence[Event], kept: Callable[[Event], Event]) -> None:
        self._events = list(events)
        self._kept = kept

    def __len__(self) -> int:
        return len(self._events)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        if isinstance(index, slice):
            return [self._kept(event) for event in self._events[index]]
        return self._kept(self._events[index])

    def __iter__(self) -> Iterator[Event]:
        return map(self._kept, self._events)


# Large values -------------------------------------------------------------------------------------


class Piece(NamedTuple):
    """A large value kept apart from its event. seq: the event's position. path: of keys. body: its JSON."""

    seq: int
    path: tuple[str, ...]
    digest: str
    body: bytes

    def ref(self) -> list[Any]:
        """Return the reference for the journal's row."""
        return [self.seq, list(self.path), self.digest]


def _split(event: Event, seq: int) -> tuple[str, list[Piece]]:
    """Take the large values out of an event; return its line and these values."""
    data = wire.dump(event)
    pieces: list[Piece] = []
    places: list[tuple[tuple[str, ...], dict[str, Any]]] = [((), data)]
    step = data.get("step")
    if isinstance(step, dict):
        places.append((("step",), step))
    for path, values in places:
        for name, value in values.items():
            if value is step or not isinstance(value, str | dict | list):
                continue
            body = _json(value).encode("ascii")
            if len(body) > PIECE_BYTES:
                pieces.append(Piece(seq, (*path, name), hashlib.sha256(body).hexdigest(), body))
                values[name] = None
    return _json(data), pieces


def refs_text(pieces: Iterable[Piece]) -> str | None:
    """Return a row's references to values stored apart, None for none."""
    refs = [piece.ref() for piece in pieces]
    return _json(refs) if refs else None


def packed(body: bytes) -> bytes:
    """Compress a value."""
    return zlib.compress(body, 3)


def _unpacked(digest: str, kept: bytes | None) -> Any:
    """Decompress a value. Raises StoreCorrupt if it is missing or does not match the digest."""
    try:
        body = zlib.decompress(kept or b"")
    except zlib.error:
        body = b""
    if hashlib.sha256(body).hexdigest() != digest:
        raise StoreCorrupt(f"the value kept as {digest[:16]} is damaged or gone")
    return json.loads(body)


def _joined(line: str, refs: Iterable[Any], fetch: Callable[[str], bytes | None]) -> Event:
    """Join an event's line and the large values stored apart."""
    data = json.loads(line)
    for _seq, path, digest in refs:
        place = data
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = _unpacked(digest, fetch(digest))
    return wire.load(data)


# Appends ------------------------------------------------------------------------------------------


class Append:
    """One append on its way through a store's thread.

    run_id: as a column. done: called in the store's thread with the outcome. lines: the events as JSON.
    pieces: large values stored apart. opening: set if the append may create the run. told: set by its
    events, None for no change. progress: whether one of its events is progress. error: why it was not
    written.

    Events of a living run no longer change, and `encode` encodes them in the store's thread. All others
    are encoded at once, so that no later change of a value reaches the store.
    """

    def __init__(
        self,
        run_id: str,
        events: Sequence[Event],
        at: int,
        epoch: int,
        lease_s: float | None,
        done: Done,
    ) -> None:
        _check(run_id, events, at, epoch, lease_s)
        self.run_id = as_column(run_id)
        self.at = at
        self.epoch = epoch
        self.lease_s = lease_s
        self.done = done
        self.lines: list[str] = []
        self.pieces: list[Piece] = []
        self.opening: Opening | None = None
        self.told: Told | None = None
        self.updated = 0.0
        self.progress = False
        self.error: BaseException | None = None
        self.size = 0
        self._outgoing: Outgoing | None = None
        if isinstance(events, Outgoing):
            self._outgoing = events
        else:
            self._take(events)

    def encode(self) -> None:
        """Encode the remaining events. A failure becomes the append's error."""
        events, self._outgoing = self._outgoing, None
        if events is not None:
            try:
                self._take(events)
            except Exception as error:
                self.error = error

    def _take(self, events: Iterable[Event]) -> None:
        for event in events:
            line = wire.dumps(event)
            if len(line) > LARGE:
                line = self._parted(event)
            self.size += len(line)
            self.lines.append(line)
            self.updated = event.time
            self.progress = self.progress or is_progress(event)
            self.opening = self.opening or opening(event)
            self.told = told_by(event) or self.told

    def _parted(self, event: Event) -> str:
        """Encode an event without its large values. Raises StoreError if it is too long."""
        line, pieces = _split(event, self.at + len(self.lines))
        size = sum(len(piece.body) for piece in pieces)
        if len(line) + size > MOST_CHARACTERS:
            raise StoreError(
                f"{_contents(event)} of run {event.run_id} takes {len(line) + size:,} characters as "
                f"JSON, and a store keeps up to {MOST_CHARACTERS:,}; keep it elsewhere and record where "
                "it is"
            )
        self.pieces += pieces
        self.size += size
        return line

    def without(self, count: int) -> None:
        """Drop the first events, which are already written."""
        self.at += count
        self.lines = self.lines[count:]
        self.pieces = [piece for piece in self.pieces if piece.seq >= self.at]

    def columns(self) -> dict[str, Any]:
        """Return the parameters of the database's statements, by name."""
        opened, told = self.opening, self.told
        row = self.row()
        return {
            "run_id": self.run_id,
            "at": self.at,
            "epoch": self.epoch,
            "count": row.size,
            "updated": self.updated,
            "lease_s": self.lease_s,
            "status": None if told is None else as_column(told.status),
            "token": None if told is None else _column(told.token),
            "subject": None if told is None else _column(told.subject),
            "due": None if told is None else told.due,
            "leased": told is not None and told.leased,
            "ended": told is not None and told.ended,
            "progress": self.progress,
            "kind": None if opened is None else as_column(opened.kind),
            "agent": None if opened is None else as_column(opened.agent),
            "parent": None if opened is None else _column(opened.parent),
            "started": None if opened is None else opened.started,
            "crc": row.crc,
            "body": row.body,
            "refs": row.refs,
        }

    def row(self) -> Row:
        """Return the row of its events."""
        body, refs = "\n".join(self.lines), refs_text(self.pieces)
        return Row(self.at, len(self.lines), crc_of(self.run_id, self.at, body, refs), body, refs)


def _contents(event: Event) -> str:
    """Name the part of an event that may be large."""
    if isinstance(event, CallFinished):
        tool = event.key.rsplit(":", 2)[0]  # digest and occurrence follow
        return f"the result of tool {tool}"
    held: Mapping[type, str] = {
        RunStarted: "the task and the arguments",
        RunFinished: "the result",
        StateUpdated: "a state",
    }
    return held.get(type(event)) or f"an event {type(event).__name__}"


def _check(
    run_id: str, events: Sequence[Event], at: int, epoch: int, lease_s: float | None
) -> None:
    """Raise UsageError for invalid arguments of an append."""
    if not events:
        raise UsageError("append.events must hold at least one event")
    for name, value in (("at", at), ("epoch", epoch)):
        if type(value) is not int or not 0 <= value < MOST:
            raise misuse(f"append.{name}", value, "a whole number from 0")
    if lease_s is not None:
        check_number("append.lease_s", lease_s, "seconds", above=True)
    if len(run_id) > MAX_ID:
        raise UsageError(f"run_id must have at most {MAX_ID} characters, not {len(run_id)}")


# Rows ---------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """The events of one append.

    seq: position of the first. size: their number. refs: see `refs_text`.
    """

    seq: int
    size: int
    crc: int
    body: str
    refs: str | None

    @property
    def end(self) -> int:
        """The position after its last event."""
        return self.seq + self.size


def row_of(run_id: str, columns: tuple[Any, ...]) -> Row:
    """Make a row from the database's columns. Raises StoreCorrupt for columns of other types."""
    match columns:
        case (int(), int(), int(), str(), str() | None):
            return Row(*columns)
        case _:
            raise StoreCorrupt(f"run {run_id} is damaged")


def crc_of(run_id: str, seq: int, body: str, refs: str | None) -> int:
    """Return the checksum of a row, which also covers its place."""
    return zlib.crc32(body.encode(), zlib.crc32(f"{run_id}\n{seq}\n{refs or ''}\n".encode()))


def _checked(run_id: str, rows: Iterable[Row], start: int) -> Iterator[Row]:
    """Yield the rows from a position on. Raises StoreCorrupt if a row is damaged or missing."""
    following: int | None = None
    for row in rows:
        if following is None and row.seq > start:
            raise StoreCorrupt(f"run {run_id} lacks events from position {start} on")
        if following is not None and row.seq != following:
            raise StoreCorrupt(f"run {run_id} lacks events from position {following} on")
        if crc_of(run_id, row.seq, row.body, row.refs) != row.crc:
            raise StoreCorrupt(f"run {run_id} is damaged at position {row.seq}")
        following = row.end
        yield row


def _lines_of(run_id: str, rows: Iterable[Row], start: int) -> Iterator[tuple[str, list[Any]]]:
    """Yield the lines from a position on, each with its references to values stored apart."""
    for row in _checked(run_id, rows, start):
        refs: list[Any] = [] if row.refs is None else json.loads(row.refs)
        for seq, line in enumerate(row.body.split("\n"), row.seq):
            if seq >= start:
                yield line, [ref for ref in refs if ref[0] == seq]


def events_of(
    run_id: str, rows: Iterable[Row], after: int, fetch: Callable[[str], bytes | None]
) -> list[Event]:
    """Return the events of a run's rows after a position. fetch: reads the value with a digest."""
    return [
        _joined(line, refs, fetch) if refs else wire.loads(line)
        for line, refs in _lines_of(run_id, rows, after + 1)
    ]


def _standing(append: Append, rows: Sequence[Row]) -> int | None:
    """Return how many events of the append the journal already has, None if it has others there.

    rows: from the append's position on.
    """
    if not rows or rows[0].seq > append.at:
        return None
    found = list(_lines_of(append.run_id, rows, append.at))
    for seq, ((theirs, refs), ours) in enumerate(zip(found, append.lines, strict=False), append.at):
        if theirs != ours or refs != [piece.ref() for piece in append.pieces if piece.seq == seq]:
            return None
    return min(len(found), len(append.lines)) or None


def refused(
    append: Append, owned: Owned | None, rows: Callable[[], Sequence[Row]]
) -> StoreError | None:
    """Return why an unwritten append is refused; None if the journal has it, or it can be retried.

    Drops events from the append that the journal already has, perhaps all. rows: reads the journal's rows
    from the append's position on.
    """
    if owned is None and append.at == 0 and append.epoch == 0:
        if append.opening is None:
            return StoreError(f"run {append.run_id} must begin with RunStarted")
        return None
    if owned is None or owned.epoch != append.epoch or append.at > owned.events:
        return stale(append.run_id, append.at, append.epoch, owned)
    if append.at < owned.events:
        count = _standing(append, rows())
        if count is None:
            return stale(append.run_id, append.at, append.epoch, owned)
        append.without(count)
    return None


def info_of(columns: Mapping[str, Any]) -> RunInfo:
    """Make a run's info from its columns."""
    info = RunInfo(**columns)
    return info._replace(
        run_id=from_column(info.run_id),
        agent=from_column(info.agent),
        parent=None if info.parent is None else from_column(info.parent),
        subject=None if info.subject is None else from_column(info.subject),
    )


def fresh(error: BaseException) -> BaseException:
    """Copy an error, so that each reader can add notes to its own copy."""
    again = copy.copy(error)
    again.__cause__ = error.__cause__
    return again
