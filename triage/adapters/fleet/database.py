"""A fleet's own database connection, for statements that neither its engine nor its store makes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import anyio
from anyio.lowlevel import RunVar

from triage.core.errors import StoreUnavailable, UsageError
from triage.core.redaction import redact

try:
    import psycopg
    from psycopg import sql
    from psycopg.rows import tuple_row
except ImportError as error:
    raise UsageError(
        f"a fleet needs psycopg ({error}): pip install 'triage-recovery[postgres]'"
    ) from error

T = TypeVar("T")
THREADS = 8
"""How many threads per event loop may wait for a fleet's database at once."""
TIMEOUT_S = 10
"""Seconds to wait for an answer from the database before giving up."""

_limiter: RunVar[anyio.CapacityLimiter | None] = RunVar("triage_fleet_threads", default=None)


async def in_thread(work: Callable[[], T]) -> T:
    """Run blocking database work in a thread, at most `THREADS` at once per event loop."""
    limiter = _limiter.get()
    if limiter is None:
        limiter = anyio.CapacityLimiter(THREADS)
        _limiter.set(limiter)
    return await anyio.to_thread.run_sync(work, limiter=limiter)


async def rows_from(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
    query: sql.Composed,
    values: Mapping[str, Any],
) -> list[tuple[Any, ...]]:
    """Return a statement's rows in the transaction of a caller's connection, as tuples."""
    if isinstance(connection, psycopg.AsyncConnection):
        async with connection.cursor(row_factory=tuple_row) as cursor:
            return await (await cursor.execute(query, values)).fetchall()

    def executed() -> list[tuple[Any, ...]]:
        with connection.cursor(row_factory=tuple_row) as cursor:
            return cursor.execute(query, values).fetchall()

    return await in_thread(executed)


class Database:
    """One connection, opened on first use and reopened when it is lost.

    search_path: the schema for unqualified names. None keeps the server's default.
    """

    def __init__(self, url: str, search_path: str | None = None) -> None:
        self._url = url
        self._options = f"-c statement_timeout={TIMEOUT_S * 1000}"
        if search_path is not None:
            self._options += f" -c search_path={search_path}"
        self._lock = threading.Lock()
        self._db: psycopg.Connection[Any] | None = None

    async def rows(self, query: sql.Composed, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Return a statement's rows. Raises StoreUnavailable if the database does not answer."""
        return await in_thread(lambda: self._rows(query, values))

    def _rows(self, query: sql.Composed, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        with self._lock:
            for again in (True, False):
                try:
                    if self._db is None or self._db.closed:
                        self._db = self._connected()
                    return self._db.execute(query, values).fetchall()
                except psycopg.OperationalError as error:
                    self._close()
                    if not again:
                        raise unavailable(error) from error
        raise AssertionError  # the second attempt returns or raises

    def _connected(self) -> psycopg.Connection[Any]:
        return psycopg.connect(
            self._url,
            autocommit=True,
            connect_timeout=TIMEOUT_S,
            tcp_user_timeout=TIMEOUT_S * 1000,
            options=self._options,
            application_name="triage-fleet",
        )

    def _close(self) -> None:
        if self._db is not None:
            with suppress(psycopg.Error):
                self._db.close()
            self._db = None

    async def close(self) -> None:
        """Close the connection. The next statement opens it again."""

        def close() -> None:
            with self._lock:
                self._close()

        await in_thread(close)


def unavailable(error: Exception) -> StoreUnavailable:
    """Return the error to raise when the database does not answer, with its message redacted."""
    text = redact(str(error).strip().partition("\n")[0])
    return StoreUnavailable(f"the fleet's database does not answer ({text})")
