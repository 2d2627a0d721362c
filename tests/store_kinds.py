"""The stores under test, each new one empty and gone afterwards."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg import sql

from triage.stores import MemoryStore, PostgresStore, SQLiteStore, Store

if TYPE_CHECKING:
    import pytest

KINDS = ("memory", "sqlite", "postgres")
DURABLE = KINDS[1:]
POSTGRES = os.environ.get("TRIAGE_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
EXAMPLES = int(os.environ.get("TRIAGE_EXAMPLES", "1"))
"""How many times the usual number of examples a property draws."""


def missing(service: str, error: Exception) -> None:
    """Skip a test whose service does not run; fail it where all must."""
    import pytest  # which processes that only use a store do without

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
        }

    def __enter__(self) -> Self:
        try:
            if self.kind == "postgres":
                psycopg.connect(POSTGRES, connect_timeout=2).close()
        except psycopg.Error as error:
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
        return PostgresStore(POSTGRES, schema=name, **options)

    def _sqlite(self, **options: Any) -> Store:
        return self._named(str(self._folder / f"{next(self._count)}.db"), options)

    def _postgres(self, **options: Any) -> Store:
        return self._named(f"t_{uuid.uuid4().hex}", options)

    def _named(self, name: str, options: dict[str, Any]) -> Store:
        self._names.append(name)
        store: Store = self.at(name, **options)
        return store


def opening(*kinds: str) -> Any:
    """A fixture for `opened` in a file of tests: stores of each of these kinds."""
    import pytest

    @pytest.fixture(params=kinds)
    def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
        with Opened(request.param, tmp_path) as made:
            yield made

    return opened
