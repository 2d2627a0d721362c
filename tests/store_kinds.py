"""The stores under test, each new one empty and gone afterwards."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio.from_thread
import psycopg
import pytest
import redis
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from psycopg import sql

from triage.stores import MemoryStore, PostgresStore, RedisStore, SQLiteStore, Store

KINDS = ("memory", "sqlite", "postgres", "redis")
DURABLE = KINDS[1:]
POSTGRES = os.environ.get("TRIAGE_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
REDIS = os.environ.get("TRIAGE_TEST_REDIS", "redis://127.0.0.1:6379/0")
EXAMPLES = int(os.environ.get("TRIAGE_EXAMPLES", "1"))
"""How many times the usual number of examples a property draws."""


def missing(service: str, error: Exception) -> None:
    """Skip a test whose service does not run; fail it where all must."""
    reason = f"{service} does not answer: {error}"
    if os.environ.get("TRIAGE_REQUIRE_SERVICES") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


class Opened:
    """Makes stores of a kind that hold no runs, and removes what they leave."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self._folder = folder
        self._count = itertools.count()
        self._names: list[str] = []
        self._made: dict[str, Callable[[], Store]] = {
            "memory": MemoryStore,
            "sqlite": self._sqlite,
            "postgres": self._postgres,
            "redis": self._redis,
        }

    def __enter__(self) -> Self:
        try:
            if self.kind == "postgres":
                psycopg.connect(POSTGRES, connect_timeout=2).close()
            elif self.kind == "redis":
                with redis.Redis.from_url(REDIS, socket_connect_timeout=2) as client:
                    client.ping()
        except (psycopg.Error, redis.RedisError) as error:
            missing(self.kind, error)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.kind == "postgres":
            with psycopg.connect(POSTGRES, autocommit=True) as db:
                for name in self._names:
                    drop = sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE")
                    db.execute(drop.format(sql.Identifier(name)))
        elif self.kind == "redis":
            with redis.Redis.from_url(REDIS) as client:
                for name in self._names:
                    for key in client.scan_iter(f"{{{name}}}:*"):
                        client.delete(key)

    def new(self, **options: Any) -> Any:
        """A new store."""
        return self._made[self.kind](**options)

    @property
    def name(self) -> str:
        """Where the last one keeps its runs."""
        return self._names[-1]

    def another(self, **options: Any) -> Any:
        """A store of its own where the last one keeps its runs."""
        return self.at(self.name, **options)

    def at(self, name: str, **options: Any) -> Any:
        """A store that keeps its runs under a name."""
        if self.kind == "sqlite":
            return SQLiteStore(name, **options)
        if self.kind == "postgres":
            return PostgresStore(POSTGRES, schema=name, **options)
        return RedisStore(REDIS, prefix=name, **{"persistence": "any", **options})

    def _sqlite(self, **options: Any) -> Store:
        return self._named(str(self._folder / f"{next(self._count)}.db"), options)

    def _postgres(self, **options: Any) -> Store:
        return self._named(f"t_{uuid.uuid4().hex}", options)

    def _redis(self, **options: Any) -> Store:
        return self._named(f"t-{uuid.uuid4().hex}", options)

    def _named(self, name: str, options: dict[str, Any]) -> Store:
        self._names.append(name)
        store: Store = self.at(name, **options)
        return store


def opening(*kinds: str) -> Any:
    """A fixture for `opened` in a file of tests: stores of each of these kinds."""

    @pytest.fixture(params=kinds)
    def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
        with Opened(request.param, tmp_path) as made:
            yield made

    return opened


def play_over(
    machine: type[RuleBasedStateMachine], kind: str, backend: Any, *, examples: int, steps: int
) -> None:
    """Run a state machine over a new store of a kind: its `store`, and `call`, which waits for it."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        opened = stack.enter_context(Opened(kind, Path(folder)))
        portal = stack.enter_context(anyio.from_thread.start_blocking_portal(backend))
        made = opened.new()
        stack.callback(portal.call, made.close)
        bound: Any = type("Bound", (machine,), {"store": made, "call": staticmethod(portal.call)})
        play(bound, examples=examples, steps=steps)


def play(machine: type[RuleBasedStateMachine], *, examples: int, steps: int) -> None:
    """Run a state machine that waits for real stores, however long they take."""
    counts = settings(max_examples=examples * EXAMPLES, stateful_step_count=steps)
    run_state_machine_as_test(machine, settings=counts)
