"""Runs in Redis: fast, and as durable as its server is set to be."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from msgspec import Struct

from triage.core import (
    Event,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreTooNew,
    StoreUnavailable,
    UsageError,
    check_count,
    check_number,
    check_word,
    misuse,
    redact,
)

from .base import Owned, RunInfo
from .rows import Append, Row, as_column, crc_of, events_of, info_of, packed, refs_text, refused
from .writer import Change, Lost, ThreadedStore, own_each

_missing: ImportError | None = None
try:
    import redis
    from redis.backoff import NoBackoff
    from redis.connection import parse_url
    from redis.retry import Retry
except ImportError as error:  # raised when a store is made
    if TYPE_CHECKING:
        raise
    else:
        _missing = error

_PREFIX = re.compile(r"[A-Za-z0-9._:-]{1,64}")


class RedisStore(ThreadedStore):
    """Keeps runs in Redis, version 5 or newer. Needs the extra `redis`.

    url: `redis://host/0`, `rediss://…` or `unix://…`. prefix: of every key, `"triage"` by default.
    persistence: `"aof"` (default) refuses a server without an append-only file; `"any"` accepts it,
    although a restart loses runs. A server that drops keys when it is full is always refused.
    wait_replicas: how many replicas must confirm an append before it counts, 0 by default. timeout:
    seconds after which a server that does not answer is given up, 10 by default; until then an append
    whose connection was lost is repeated.

    Raises UsageError for any other value, and when the package is missing.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "triage",
        persistence: Literal["aof", "any"] = "aof",
        wait_replicas: int = 0,
        timeout: float = 10.0,
    ) -> None:
        if not isinstance(url, str):
            raise misuse("RedisStore.url", url, "text")
        if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
            wanted = "1 to 64 of the characters A-Z a-z 0-9 . _ : -"
            raise misuse("RedisStore.prefix", prefix, wanted)
        check_word("RedisStore.persistence", persistence, ("aof", "any"))
        check_count("RedisStore.wait_replicas", wait_replicas, 0)
        check_number("RedisStore.timeout", timeout, "seconds", above=True)
        if _missing is not None:
            raise UsageError(
                f"a store in Redis needs redis ({_missing}): pip install 'triage-recovery[redis]'"
            ) from _missing
        try:
            given: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call] # redis has no types for it
        except ValueError as error:
            raise UsageError(f"RedisStore.url is none: {error}") from None
        place = given.get("path") or f"{given.get('host', 'localhost')}:{given.get('port', 6379)}"
        self._shown = (
            f"{place}/{given.get('db', 0)}, prefix={prefix!r}, wait_replicas={wait_replicas}"
        )
        options = _Options(url, f"{{{prefix}}}", timeout, wait_replicas, safe=persistence == "aof")
        super().__init__(partial(RedisDriver, options), timeout=timeout)

    def __repr__(self) -> str:
        return f"RedisStore({self._shown})"


# The scripts, each of which is atomic --------------------------------------

# Keys, all in one slot: `p:r:K` a run's row, `p:e:K` its events, `p:p:K` the large values it uses,
# `p:b:D` a large value, `p:u:D` the runs that use it, `p:runs`, `p:s:S` (of a status) and `p:ended` the
# runs in order, `p:tokens` the run that waits with a token, `p:n` a count. K, D and S are digests.
_CLOCK = """
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1000000
local p = KEYS[1]
local function seconds(value) return string.format('%.6f', value) end
local function by_status(status) return p .. ':s:' .. redis.sha1hex(status) end
"""

_APPEND = (
    _CLOCK
    + """
local i = 1
local function take() local value = ARGV[i]; i = i + 1; return value end
local outcomes = {}
for g = 1, tonumber(take()) do
    local k, at, epoch, count = take(), tonumber(take()), take(), tonumber(take())
    local lease, status, token, progress, updated = take(), take(), take(), take(), take()
    local head, run_id, agent, parent, around, started = take(), take(), take(), take(), take(), take()
    local first = i
    i = i + count
    local pieces = tonumber(take())
    local piece = i
    i = i + 2 * pieces
    local rk, ek = p .. ':r:' .. k, p .. ':e:' .. k
    local row = redis.call('HMGET', rk, 'events', 'epoch', 'status', 'token', 'n')
    local stands, good = 0, false
    if not row[1] then
        good = at == 0 and epoch == '0' and head == '1'
    elseif row[2] == epoch and at <= tonumber(row[1]) then
        good = true
        if at < tonumber(row[1]) then
            local found = redis.call('LRANGE', ek, at, at + count - 1)
            stands = #found
            for j = 1, stands do
                if found[j] ~= ARGV[first + j - 1] then good = false end
            end
        end
    end
    if not good then
        outcomes[g] = (row[1] or '-') .. ' ' .. (row[2] or '-')
    elseif stands == count then
        redis.call('INCR', p .. ':again')
        outcomes[g] = ''
    else
        outcomes[g] = ''
        for from = first + stands, first + count - 1, 1000 do
            redis.call('RPUSH', ek, unpack(ARGV, from, math.min(from + 999, first + count - 1)))
        end
        redis.call('HSET', rk, 'events', at + count, 'updated', updated)
        local n = row[5]
        if not row[1] then
            n = redis.call('INCR', p .. ':n')
            redis.call('HSET', rk, 'n', n, 'run_id', run_id, 'agent', agent, 'parent', parent,
                'around', around, 'started', started, 'epoch', '0', 'claims', '0', 'lease', '',
                'claimant', '', 'token', '', 'status', '')
            redis.call('ZADD', p .. ':runs', n, k)
        end
        if status ~= '' then
            if row[3] and row[3] ~= '' then redis.call('ZREM', by_status(row[3]), k) end
            redis.call('ZADD', by_status(status), n, k)
            if row[4] and row[4] ~= '' then redis.call('HDEL', p .. ':tokens', row[4]) end
            if token ~= '' then redis.call('HSET', p .. ':tokens', token, k) end
            redis.call('HSET', rk, 'status', status, 'token', token)
            if status ~= 'running' then
                redis.call('HSET', rk, 'claims', '0', 'lease', '')
                if status ~= 'suspended' then redis.call('ZADD', p .. ':ended', seconds(now), k) end
            end
        end
        if progress ~= '' then
            redis.call('HSET', rk, 'claims', '0')
            -- Rows of 0.1.0 lack `around`, the key of the run around theirs.
            local outer = epoch ~= '0' and redis.call('HGET', rk, 'around')
            while outer and outer ~= '' do
                local key = p .. ':r:' .. outer
                if redis.call('HGET', key, 'status') == 'running' then
                    redis.call('HSET', key, 'claims', '0')
                end
                outer = redis.call('HGET', key, 'around')
            end
        end
        local is = status
        if is == '' then is = row[3] end
        if is == 'running' and lease ~= '' then
            redis.call('HSET', rk, 'lease', seconds(now + tonumber(lease)))
        end
        for j = piece, piece + 2 * pieces - 1, 2 do
            redis.call('SETNX', p .. ':b:' .. ARGV[j], ARGV[j + 1])
            redis.call('SADD', p .. ':u:' .. ARGV[j], k)
            redis.call('SADD', p .. ':p:' .. k, ARGV[j])
        end
    end
end
return outcomes
"""
)

_READ = """
local p, k = KEYS[1], ARGV[1]
return {redis.call('HGET', p .. ':r:' .. k, 'events'), redis.call('LRANGE', p .. ':e:' .. k, ARGV[2], -1)}
"""

_OWN = (
    _CLOCK
    + """
local k = ARGV[1]
local rk = p .. ':r:' .. k
local row = redis.call('HMGET', rk, 'status', 'events', 'epoch', 'claims', 'lease', 'claimant', 'n')
for j = 1, 6 do
    if row[j] ~= ARGV[1 + j] then return 0 end
end
if ARGV[8] ~= row[1] then
    redis.call('ZREM', by_status(row[1]), k)
    redis.call('ZADD', by_status(ARGV[8]), row[7], k)
end
redis.call('HSET', rk, 'status', ARGV[8], 'epoch', ARGV[10], 'claims', ARGV[11], 'lease', ARGV[12],
    'claimant', ARGV[13])
return 1
"""
)

_PRUNE = (
    _CLOCK
    + """
local border, keep, most = '+inf', tonumber(ARGV[2]), tonumber(ARGV[3])
if ARGV[1] ~= '' then border = '(' .. seconds(now - tonumber(ARGV[1])) end
local spare = redis.call('ZCARD', p .. ':ended') - keep
if spare <= 0 then return 0 end
local gone = redis.call('ZRANGEBYSCORE', p .. ':ended', '-inf', border, 'LIMIT', 0, math.min(spare, most))
for _, k in ipairs(gone) do
    for _, digest in ipairs(redis.call('SMEMBERS', p .. ':p:' .. k)) do
        redis.call('SREM', p .. ':u:' .. digest, k)
        if redis.call('SCARD', p .. ':u:' .. digest) == 0 then redis.call('DEL', p .. ':b:' .. digest) end
    end
    redis.call('ZREM', by_status(redis.call('HGET', p .. ':r:' .. k, 'status')), k)
    redis.call('ZREM', p .. ':runs', k)
    redis.call('ZREM', p .. ':ended', k)
    redis.call('DEL', p .. ':r:' .. k, p .. ':e:' .. k, p .. ':p:' .. k)
end
return #gone
"""
)


# A connection -------------------------------------------------------------------------------------

PRUNED = 200
"""Runs removed by one call of the script, during which the server serves nobody else."""
LATE = 1.0
"""Seconds by which the answer to WAIT may be late."""
PAGE = 500
"""Runs that a listing reads together."""
VERSION = 1

_OWNED = ("status", "events", "epoch", "claims", "lease", "claimant")
_INFO = (*("lease" if name == "lease_until" else name for name in RunInfo._fields),)


def _error_of(error: Exception) -> Exception:
    """Return the exception to raise for an error of the driver; `Lost` where another try may help."""
    text = redact(str(error))
    if isinstance(error, redis.AuthenticationError):
        return StoreUnavailable(f"Redis refuses us ({text})")
    if isinstance(error, redis.ReadOnlyError):  # after a failover this is the old primary
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


class _Options(Struct, frozen=True):
    """The options of a store.

    prefix: of all keys, in braces that put them into one slot of a cluster. safe: the server must have an
    append-only file. replicas: how many must confirm an append.
    """

    url: str
    prefix: str
    timeout: float
    replicas: int
    safe: bool


class RedisDriver:
    """A connection, used by one thread at a time. writes: whether it is used for more than reading."""

    close_at_fork: ClassVar[bool] = False

    def __init__(self, options: _Options, *, writes: bool) -> None:
        self._options = options
        self._writes = writes
        self._prefix = options.prefix
        with _translated():
            self._db: Any = redis.Redis.from_url(
                options.url,
                # One connection, since WAIT concerns what was written on it; `Lane` repeats what failed.
                single_connection_client=True,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=options.timeout + LATE,
                socket_connect_timeout=options.timeout,
                decode_responses=False,
            )
            self._append = self._db.register_script(_APPEND)
            self._own = self._db.register_script(_OWN)
            self._read = self._db.register_script(_READ)
            self._prune = self._db.register_script(_PRUNE)
            self._check()

    @property
    def raw(self) -> Any:
        """As in `Driver`."""
        return self._db

    def translated(self) -> AbstractContextManager[None]:
        """As in `Driver`."""
        return _translated()

    def close(self) -> None:
        """As in `Driver`."""
        self._db.close()

    def _check(self) -> None:
        """Refuse a server that may lose what it has accepted, and keys of a newer release."""
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

    def commit(self, batch: list[Append]) -> None:
        """As in `Driver`."""
        arguments: list[Any] = [len(batch)]
        for append in batch:
            arguments += _arguments(append)
        with _translated():
            found = self._append(keys=[self._prefix], args=arguments)
            if self._options.replicas:
                self._wait()
        for append, text in zip(batch, found, strict=True):
            append.error = _refusal(append, text.decode())

    def _wait(self) -> None:
        """Wait until enough replicas have confirmed the last writes."""
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
                # Changes nothing if the row has changed since it was read.
                if self._own(keys=[self._prefix], args=[place, *columns, *new]):
                    return row

    # Reading --------------------------------------------------------------------------------------

    def read(self, run_id: str, after: int) -> list[Event]:
        """As in `Driver`."""
        place, start = _place(run_id), max(0, after + 1)
        with _translated():
            # A script, since a full server refuses even a transaction that only reads.
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
            if all(columns[name] == value for name, value in where.items()):
                found.append(_info(columns))
        return found

    def _listed(self, where: dict[str, str]) -> Generator[dict[str, str]]:
        """Yield the columns of all runs that may match, newest first."""
        if "run_id" in where:
            yield from self._columns([_place(where["run_id"])])
            return
        status = where.get("status")
        digest = (
            None
            if status is None
            else hashlib.sha1(status.encode(), usedforsecurity=False).hexdigest()
        )
        index = self._key("runs") if digest is None else self._key("s", digest)
        start = 0
        while True:
            with _translated():
                places = self._db.zrevrange(index, start, start + PAGE - 1)
            yield from self._columns(place.decode() for place in places)
            start += PAGE
            if len(places) < PAGE:
                return

    def _columns(self, places: Iterable[str]) -> Iterator[dict[str, str]]:
        with _translated():
            pipe = self._db.pipeline(transaction=False)
            for place in places:
                pipe.hmget(self._key("r", place), _INFO)
            rows = pipe.execute()
        for row in rows:
            if row[0] is not None:  # else it was removed meanwhile
                yield dict(zip(_INFO, _texts(row), strict=True))

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
    """Return the digest that stands for a run in keys."""
    return hashlib.sha256(run_id.encode()).hexdigest()[:32]


def _texts(values: Iterable[bytes | None]) -> list[str]:
    return ["" if value is None else value.decode() for value in values]


def _owned(columns: list[str]) -> Owned:
    status, events, epoch, claims, lease, claimant = columns
    until = float(lease) if lease else None
    return Owned(status, int(events), int(epoch), int(claims), until, claimant)


def _info(columns: dict[str, str]) -> RunInfo:
    return info_of(
        {
            "run_id": columns["run_id"],
            "agent": columns["agent"],
            "status": columns["status"],
            "started": float(columns["started"]),
            "updated": float(columns["updated"]),
            "events": int(columns["events"]),
            "epoch": int(columns["epoch"]),
            "claims": int(columns["claims"]),
            "lease_until": float(columns["lease"]) if columns["lease"] else None,
            "parent": columns["parent"] or None,
        }
    )


def _arguments(append: Append) -> list[Any]:
    """Return the script's arguments for an append."""
    started = append.started
    head = ("0", "", "", "", "", "")
    if started is not None:
        parent = "" if started.parent is None else as_column(started.parent)
        agent, time = as_column(started.agent), repr(float(started.time))
        head = ("1", append.run_id, agent, parent, _place(parent) if parent else "", time)
    arguments: list[Any] = [
        _place(append.run_id),
        append.at,
        append.epoch,
        len(append.lines),
        "" if append.lease_s is None else repr(float(append.lease_s)),
        append.status or "",
        append.token or "",
        "1" if append.progress else "",
        repr(float(append.updated)),
        *head,
    ]
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


def _refusal(append: Append, found: str) -> StoreError | None:
    """Return why the script did not write an append. found: the journal's length and epoch, or nothing."""
    if not found:
        return None
    events, epoch = found.split()
    if events == "-":
        return refused(append, None, list)
    owned = Owned("", int(events), int(epoch), 0, None)
    # The script has compared the events that the journal has there, and they differ.
    return refused(append, owned, list)
