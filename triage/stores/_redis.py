"""A connection to Redis: what is read and written."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from triage.errors import (
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreTooNew,
    StoreUnavailable,
)
from triage.events import Event
from triage.redact import redact

from . import _redis_lua as lua
from ._blobs import packed, refs_text
from ._commits import Change, own_each
from ._lane import Lost
from ._owners import Owned
from ._rows import Append, Row, crc_of, events_of, info_of, refused
from .base import RunInfo

PRUNED = 200
"""Runs removed at once: meanwhile nobody else is served."""
LATE = 1.0
"""Seconds that the answer to WAIT may come late."""
PAGE = 500
"""Runs that are looked at together for a listing."""
VERSION = 1

_OWNED = ("status", "events", "epoch", "claims", "lease", "claimant")
_INFO = (
    "run_id", "agent", "status", "started", "updated", "events", "epoch", "claims", "lease", "parent",
)  # fmt: skip


def _error_of(error: Exception) -> Exception:
    """What is raised for an error of the driver; `Lost` where another try may help."""
    text = redact(str(error))
    if isinstance(error, redis.AuthenticationError):
        return StoreUnavailable(f"Redis refuses us ({text})")
    if isinstance(error, redis.ReadOnlyError):  # a failover has left us with the old one
        return Lost(StoreReadOnly(f"Redis may not be written ({text})"))
    if isinstance(error, redis.OutOfMemoryError) or text.startswith(("OOM", "MISCONF")):
        return StoreFull(f"Redis has no room left; free some and go on ({text})")
    later = ("LOADING", "BUSY", "TRYAGAIN", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS")
    if isinstance(error, redis.ConnectionError | redis.TimeoutError) or text.startswith(later):
        return Lost(StoreUnavailable(f"Redis does not answer ({text})"))
    if "READONLY" in text:
        return Lost(StoreReadOnly(f"Redis may not be written ({text})"))
    return StoreError(f"Redis cannot do it ({text})")


@contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise _error_of(error) from error


class Options:
    """How Redis is used. prefix: of all keys. safe: it must keep what it is told. replicas: see `WAIT`."""

    def __init__(self, url: str, prefix: str, timeout: float, replicas: int, *, safe: bool) -> None:
        self.url = url
        self.prefix = f"{{{prefix}}}"  # the braces put all keys into one slot of a cluster
        self.timeout = timeout
        self.replicas = replicas
        self.safe = safe


class RedisDriver:
    """A connection, used by one thread at a time. writes: it is not for reading alone."""

    close_at_fork: ClassVar[bool] = False

    def __init__(self, options: Options, *, writes: bool) -> None:
        self._options = options
        self._writes = writes
        self._prefix = options.prefix
        with _translated():
            self._db: Any = redis.Redis.from_url(
                options.url,
                # One connection, as WAIT speaks of what was written on it; what failed is repeated here.
                single_connection_client=True,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=options.timeout + LATE,
                socket_connect_timeout=options.timeout,
                decode_responses=False,
            )
            self._append = self._db.register_script(lua.APPEND)
            self._own = self._db.register_script(lua.OWN)
            self._read = self._db.register_script(lua.READ)
            self._prune = self._db.register_script(lua.PRUNE)
            self._check()

    def close(self) -> None:
        """As in `Driver`."""
        self._db.close()

    def _check(self) -> None:
        """Refuse a server that loses what it has accepted, and keys of a newer release."""
        memory, disk = self._db.info("memory"), self._db.info("persistence")
        policy = memory.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise StoreUnavailable(
                f"Redis drops keys when it is full (maxmemory-policy {policy}): set noeviction"
            )
        if self._options.safe and not int(disk.get("aof_enabled", 0)):
            raise StoreUnavailable(
                "Redis keeps nothing when it restarts or only what its last snapshot had: set "
                'appendonly yes, or say persistence="any" where runs may be lost'
            )
        if self._writes:
            self._db.setnx(self._key("version"), VERSION)
        version = int(self._db.get(self._key("version")) or VERSION)
        if version > VERSION:
            raise StoreTooNew(
                f"{self._prefix} has keys of version {version}, this release knows {VERSION}; use the "
                "release that wrote them or a newer one"
            )

    def _key(self, *parts: str) -> str:
        return ":".join((self._prefix, *parts))

    # Appends --------------------------------------------------------------------------------------

    def commit(self, batch: list[Append]) -> list[BaseException | None]:
        """As in `Driver`."""
        arguments: list[Any] = [len(batch)]
        for append in batch:
            arguments += _arguments(append)
        with _translated():
            found = self._append(keys=[self._prefix], args=arguments)
            if self._options.replicas:
                self._wait()
        return [_outcome(append, text.decode()) for append, text in zip(batch, found, strict=True)]

    def _wait(self) -> None:
        """Return once enough replicas have what was written."""
        wanted, timeout = self._options.replicas, self._options.timeout
        reached = self._db.wait(wanted, max(1, int(timeout * 1000)))
        if reached < wanted:
            raise StoreUnavailable(
                f"{reached} of {wanted} replicas of Redis have confirmed after {timeout:g} s; what was "
                "appended stands in the first one, and may come again"
            )

    # Owners ---------------------------------------------------------------------------------------

    def own(self, batch: list[tuple[str, Change]]) -> list[Owned | StoreError]:
        """As in `Driver`, each in a commit of its own."""
        rows = own_each(batch, self._own_one)
        if self._options.replicas:
            with _translated():
                self._wait()
        return rows

    def _own_one(self, run_id: str, change: Change) -> Owned:
        place = _place(run_id)
        while True:
            with _translated():
                pipe = self._db.pipeline(transaction=False)
                found, (seconds, micros) = (
                    pipe.hmget(self._key("r", place), _OWNED).time().execute()
                )
            columns = _texts(found)
            owned = None if found[0] is None else _owned(columns)
            row = change(owned, seconds + micros / 1e6)
            lease = "" if row.lease_until is None else f"{row.lease_until:.6f}"
            new = (row.status, row.events, row.epoch, row.claims, lease, row.claimant)
            with _translated():
                # Only if nobody was faster.
                if self._own(keys=[self._prefix], args=[place, *columns, *new]):
                    return row

    # Reading --------------------------------------------------------------------------------------

    def read(self, run_id: str, after: int) -> list[Event]:
        """As in `Driver`."""
        place, start = _place(run_id), max(0, after + 1)
        with _translated():
            # A script, as a full server refuses a transaction even if it only reads.
            length, elements = self._read(keys=[self._prefix], args=[place, start])
        length = int(length or 0)
        if len(elements) != max(0, length - start):
            raise StoreCorrupt(f"run {run_id} lacks events before position {length}")
        rows = [_row(run_id, seq, element) for seq, element in enumerate(elements, start)]
        with _translated():
            return events_of(
                run_id, rows, after, lambda digest: self._db.get(self._key("b", digest))
            )

    def runs(self, where: dict[str, str], limit: int | None) -> list[RunInfo]:
        """As in `Driver`."""
        found: list[RunInfo] = []
        for columns in self._listed(where):
            if limit is not None and len(found) >= limit:
                break
            if all(columns[_INFO.index(name)] == value for name, value in where.items()):
                found.append(_info(columns))
        return found

    def _listed(self, where: dict[str, str]) -> Generator[list[str]]:
        """The columns of the runs among which those are, newest first."""
        if "run_id" in where:
            yield from self._columns([_place(where["run_id"])])
            return
        status = where.get("status")
        digest = None if status is None else hashlib.sha1(status.encode()).hexdigest()  # noqa: S324 - a name
        index = self._key("runs") if digest is None else self._key("s", digest)
        start = 0
        while True:
            with _translated():
                places = self._db.zrevrange(index, start, start + PAGE - 1)
            yield from self._columns(place.decode() for place in places)
            start += PAGE
            if len(places) < PAGE:
                return

    def _columns(self, places: Iterable[str]) -> Iterator[list[str]]:
        with _translated():
            pipe = self._db.pipeline(transaction=False)
            for place in places:
                pipe.hmget(self._key("r", place), _INFO)
            rows = pipe.execute()
        for row in rows:
            if row[0] is not None:  # else it was removed meanwhile
                yield _texts(row)

    def find(self, token: str) -> str | None:
        """As in `Driver`."""
        with _translated():
            place = self._db.hget(self._key("tokens"), token)
            if place is None:
                return None
            status, run_id, waits = self._db.hmget(
                self._key("r", place.decode()), ("status", "run_id", "token")
            )
        if status != b"suspended" or waits is None or waits.decode() != token:
            return None
        return str(run_id.decode())

    def now(self) -> float:
        """As in `Driver`."""
        with _translated():
            seconds, micros = self._db.time()
        return float(seconds) + float(micros) / 1e6

    def prune(self, older_than: float | None, keep: int | None) -> int:
        """As in `Driver`."""
        count = 0
        while True:
            arguments = ("" if older_than is None else repr(float(older_than)), keep or 0, PRUNED)
            with _translated():
                removed = int(self._prune(keys=[self._prefix], args=arguments))
            count += removed
            if removed < PRUNED:
                return count


def _place(run_id: str) -> str:
    """What stands for a run in keys."""
    return hashlib.sha256(run_id.encode()).hexdigest()[:32]


def _texts(values: Iterable[bytes | None]) -> list[str]:
    return ["" if value is None else value.decode() for value in values]


def _owned(columns: list[str]) -> Owned:
    status, events, epoch, claims, lease, claimant = columns
    until = float(lease) if lease else None
    return Owned(status, int(events), int(epoch), int(claims), until, claimant)


def _info(columns: list[str]) -> RunInfo:
    run_id, agent, status, started, updated, events, epoch, claims, lease, parent = columns
    return info_of((
        run_id, agent, status, float(started), float(updated), int(events), int(epoch), int(claims),
        float(lease) if lease else None, parent or None,
    ))  # fmt: skip


def _arguments(append: Append) -> list[Any]:
    """What the script is given of an append."""
    head = append.head
    told: tuple[Any, ...] = ("", "", "", "")
    if head is not None:
        told = (append.run_id, head.agent, head.parent or "", repr(head.started))
    arguments: list[Any] = [
        _place(append.run_id), append.at, append.epoch, len(append.lines),
        "" if append.lease_s is None else repr(float(append.lease_s)),
        append.status or "", append.token or "", repr(append.updated), int(head is not None), *told,
    ]  # fmt: skip
    for seq, line in enumerate(append.lines, append.at):
        refs = refs_text(piece for piece in append.pieces if piece.seq == seq) or ""
        crc = crc_of(append.run_id, seq, line, refs or None)
        arguments.append(f"{crc:08x}{refs}\t{line}")
    arguments.append(len(append.pieces))
    for piece in append.pieces:
        arguments += (piece.digest, packed(piece.body))
    return arguments


def _row(run_id: str, seq: int, element: bytes) -> Row:
    try:
        start, _, line = element.decode("ascii").partition("\t")
        return Row(seq, 1, int(start[:8], 16), line, start[8:] or None)
    except ValueError:
        raise StoreCorrupt(f"run {run_id} is damaged at position {seq}") from None


def _outcome(append: Append, found: str) -> BaseException | None:
    """Why the script did not write an append; found: the journal's length and its epoch, or nothing."""
    if not found:
        return None
    events, epoch = found.split()
    if events == "-":
        return refused(append, None, list)
    owned = Owned("", int(events), int(epoch), 0, None)
    # Where the script compared what stands there, it was something else.
    return refused(append, owned, list)
