"""Runs in Redis: fast, and as durable as its server is set to be."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Literal

from triage._options import check_count, check_number, check_word, misuse
from triage.errors import UsageError

from ._threaded import ThreadedStore

_PREFIX = re.compile(r"[A-Za-z0-9._:-]{1,64}")


class RedisStore(ThreadedStore):
    """Keeps runs in Redis, version 5 or newer. Needs the extra `redis`.

    url: `redis://host/0`, `rediss://…` or `unix://…`. prefix: `"triage"` by default, of every key.
    persistence: `"aof"` (default) refuses a server without an append-only file; `"any"` takes it, and
    loses runs with it. A server that drops keys when it is full is always refused. wait_replicas: 0 by
    default; how many replicas must have confirmed an append before it counts. timeout: seconds, 10 by
    default, until a server that does not answer is given up; until then an append whose connection was
    lost is repeated.

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
        try:
            from redis.connection import parse_url
        except ImportError as error:
            raise UsageError(
                f"a store in Redis needs redis ({error}): pip install triage-recovery[redis]"
            ) from error
        from ._redis import Options, RedisDriver

        try:
            given: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call] # redis has no types for it
        except ValueError as error:
            raise UsageError(f"RedisStore.url is none: {error}") from None
        place = given.get("path") or f"{given.get('host', 'localhost')}:{given.get('port', 6379)}"
        self._shown = (
            f"{place}/{given.get('db', 0)}, prefix={prefix!r}, wait_replicas={wait_replicas}"
        )
        safe = persistence == "aof"
        connect = partial(RedisDriver, Options(url, prefix, timeout, wait_replicas, safe=safe))
        super().__init__(
            partial(connect, writes=True), partial(connect, writes=False), timeout=timeout
        )

    def __repr__(self) -> str:
        return f"RedisStore({self._shown})"
