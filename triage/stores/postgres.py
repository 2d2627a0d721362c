"""Runs in Postgres: durable, and shared by many machines."""

from __future__ import annotations

import re
from functools import partial

from triage._options import misuse
from triage.errors import UsageError

from ._threaded import ThreadedStore

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class PostgresStore(ThreadedStore):
    """Keeps runs in a database, in a schema of their own. Needs the extra `postgres`.

    url: `postgresql://user@host/database`, as libpq knows it; with several hosts, the one that may be
    written is used. schema: `"triage"` by default, made if there is none. timeout: seconds, 10 by
    default, until a database that does not answer is given up; until then an append whose connection was
    lost is repeated. Its connections have `synchronous_commit` on, or stronger where it is set so.
    A pooler in between must keep sessions.

    Raises UsageError for any other value, and when the package is missing.
    """

    def __init__(self, url: str, *, schema: str = "triage", timeout: float = 10.0) -> None:
        if not isinstance(url, str):
            raise misuse("PostgresStore.url", url, "text")
        if not isinstance(schema, str) or not _SCHEMA.fullmatch(schema):
            wanted = "1 to 63 of the characters a-z 0-9 _, no digit first"
            raise misuse("PostgresStore.schema", schema, wanted)
        try:
            import psycopg
        except ImportError as error:
            raise UsageError(
                f"a store in Postgres needs psycopg ({error}): pip install triage-recovery[postgres]"
            ) from error
        from psycopg.conninfo import conninfo_to_dict

        from ._postgres import PostgresDriver

        try:
            given = conninfo_to_dict(url)
        except psycopg.Error as error:
            raise UsageError(f"PostgresStore.url is none: {str(error).partition(':')[0]}") from None
        self._shown = f"{given.get('host', '')}/{given.get('dbname', '')}, schema={schema!r}"
        connect = partial(PostgresDriver, url, schema, timeout)
        super().__init__(
            partial(connect, writes=True), partial(connect, writes=False), timeout=timeout
        )

    def __repr__(self) -> str:
        return f"PostgresStore({self._shown})"
