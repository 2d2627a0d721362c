"""Runs that 0.2.0 kept in Redis, to be copied into another store. Nothing is written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl

from anyio import to_thread

from triage.core.errors import StoreCorrupt, StoreUnavailable, UsageError
from triage.core.events import Event
from triage.core.redaction import redact

from .base import RunInfo
from .rows import Row, events_of, info_of

_FIELDS = (
    "run_id", "agent", "status", "started", "updated", "events", "epoch", "claims", "lease", "parent",
)  # fmt: skip


class RedisRuns:
    """Reads the runs in Redis. url: as in 0.2.0, with `?prefix=…` if the prefix is not `triage`.

    Raises UsageError if the package `redis` is missing.
    """

    def __init__(self, url: str) -> None:
        try:
            import redis
        except ImportError as error:
            raise UsageError(f"runs in Redis need {error.name}: pip install redis") from error
        base, _, options = url.partition("?")
        prefix = dict(parse_qsl(options)).get("prefix", "triage")
        self._prefix = f"{{{prefix}}}"
        self._error = redis.RedisError
        self._db: Any = redis.Redis.from_url(base)

    async def runs(self, *, agent: str | None = None) -> list[RunInfo]:
        """Return all runs, or those of an agent, newest first."""
        places = await self._asked(lambda: self._db.zrevrange(self._key("runs"), 0, -1))
        found = [await self._row(place.decode()) for place in places]
        return [one for one in found if one is not None and agent in (None, one.agent)]

    async def info(self, run_id: str) -> RunInfo | None:
        """Return one run, None for an unknown one."""
        return await self._row(_place(run_id))

    async def read(self, run_id: str, after: int = -1) -> list[Event]:
        """Return the events after a position, in order."""
        key = self._key("e", _place(run_id))
        elements: Iterable[bytes] = await self._asked(lambda: self._db.lrange(key, after + 1, -1))
        rows = [_parsed(run_id, seq, one) for seq, one in enumerate(elements, after + 1)]
        value = self._key("b", "")
        found: list[Event] = await self._asked(
            lambda: events_of(run_id, rows, after, lambda digest: self._db.get(value + digest))
        )
        return found

    async def now(self) -> float:
        """Return seconds since the epoch on the server's clock."""
        return float((await self._asked(self._db.time))[0])

    async def close(self) -> None:
        """Close the connection."""
        await self._asked(self._db.close)

    async def _row(self, place: str) -> RunInfo | None:
        values = await self._asked(lambda: self._db.hmget(self._key("r", place), _FIELDS))
        if values[0] is None:
            return None
        row: dict[str, Any] = dict(zip(_FIELDS, (one.decode() for one in values), strict=True))
        row |= {name: int(row[name]) for name in ("events", "epoch", "claims")}
        row |= {name: float(row[name]) for name in ("started", "updated")}
        lease, row["parent"] = row.pop("lease"), row["parent"] or None
        return info_of({**row, "lease_until": float(lease) if lease else None})

    async def _asked(self, ask: Callable[[], Any]) -> Any:
        try:
            return await to_thread.run_sync(ask)
        except self._error as error:
            raise StoreUnavailable(f"Redis does not answer ({redact(str(error))})") from error

    def _key(self, *parts: str) -> str:
        return ":".join((self._prefix, *parts))


def _place(run_id: str) -> str:
    return hashlib.sha256(run_id.encode()).hexdigest()[:32]


def _parsed(run_id: str, seq: int, element: bytes) -> Row:
    try:
        start, _, line = element.decode("ascii").partition("\t")
        return Row(seq, 1, int(start[:8], 16), line, start[8:] or None)
    except ValueError:
        raise StoreCorrupt(f"run {run_id} is damaged at position {seq}") from None
