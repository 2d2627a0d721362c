"""Stores given as text: `"sqlite:///runs.db"` and the like."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from tables import table

from stores.store_runs import created
from triage import Agent, UsageError
from triage.stores import MemoryStore, PostgresStore, SQLiteStore, open_store


def test_a_file_is_named_from_here_or_from_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("sqlite:///runs.db", f"sqlite:///{tmp_path}/runs.db"):
        store = open_store(text)
        assert isinstance(store, SQLiteStore)
        assert store.path == str(tmp_path / "runs.db")
    spaced = open_store("sqlite:///a%20b.db?synchronous=normal&timeout=2.5")
    assert isinstance(spaced, SQLiteStore)
    assert spaced.path == str(tmp_path / "a b.db")


@pytest.mark.parametrize(("options", "level"), [("", 2), ("?synchronous=normal", 1)])
def test_commits_are_on_the_disk_unless_one_says_otherwise(
    options: str, level: int, tmp_path: Path
) -> None:
    store = open_store(f"sqlite:///{tmp_path}/runs.db{options}")
    assert isinstance(store, SQLiteStore)
    connection = store.connect(writes=True)
    assert connection.raw.execute("PRAGMA synchronous").fetchone() == (level,)
    connection.close()


class Wrapped:
    """A store that passes everything on to another, but for what it does not have."""

    def __init__(self, store: Any, lacks: str = "") -> None:
        self._store = store
        self._lacks = lacks

    def __getattr__(self, name: str) -> Any:
        if name == self._lacks:
            raise AttributeError(name)
        return getattr(self._store, name)


def test_what_passes_everything_on_to_a_store_is_one() -> None:
    wrapped: Any = Wrapped(MemoryStore())
    assert open_store(wrapped) is wrapped


@table("name", ["append", "submit", "now", "close"])
def test_what_lacks_a_method_of_a_store_is_refused_by_its_name(name: str) -> None:
    wrapped: Any = Wrapped(MemoryStore(), name)
    with pytest.raises(UsageError, match=rf"not Wrapped, which has no {name}\n"):
        open_store(wrapped)


def test_equal_texts_give_one_store_while_it_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one, same = open_store("sqlite:///runs.db"), open_store("sqlite:///runs.db")
    assert one is same
    assert open_store("sqlite:///other.db") is not one
    assert open_store("memory:") is not open_store("memory:")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert open_store("sqlite:///runs.db") is not one


def test_a_store_may_be_closed_while_others_use_it(tmp_path: Path) -> None:
    text = f"sqlite:///{tmp_path}/runs.db"
    one, same = open_store(text), open_store(text)
    anyio.run(created, one, "r")
    anyio.run(one.close)
    anyio.run(created, same, "s")
    assert len(anyio.run(same.runs)) == 2
    anyio.run(same.close)


def test_services_are_named_by_their_urls() -> None:
    postgres = open_store("postgresql://me@db:5433/runs?schema=mine&timeout=3&sslmode=disable")
    assert isinstance(postgres, PostgresStore)
    assert repr(postgres) == "PostgresStore(db/runs, schema='mine')"


@table(
    ("text", "match"),
    [
        ("", "not known"),
        ("runs.db", "not known"),
        ("sqlit:///runs.db", "did you mean 'sqlite'"),
        ("mysql://db/runs", "not known"),
        ("sqlite://runs.db", "names no file.*sqlite:///runs.db"),
        ("sqlite:runs.db", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", r"SQLiteStore.path.*in memory is MemoryStore\(\)"),
        ("sqlite:///x?synchronous=off", "SQLiteStore.synchronous"),
        ("sqlite:///x?timeout=soon", "timeout must be a number"),
        ("sqlite:///x?mode=memory", "options not known: mode=memory"),
        ("postgresql://db/x?schema=A-B", "PostgresStore.schema"),
        ("postgresql://db/x?colour=red", "PostgresStore.url"),
    ],
)
def test_a_text_that_names_no_store_is_refused(text: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        open_store(text)


def test_a_password_is_not_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        open_store("mysql://me:hunter22@db/runs")
    assert "hunter22" not in str(caught.value)


def test_what_is_no_store_is_told_what_it_lacks() -> None:
    class Half:
        async def append(self) -> None: ...
        async def read(self) -> None: ...

    given: Any = Half()
    with pytest.raises(UsageError, match="not Half, which has no submit, runs, info, claim"):
        open_store(given)


def test_a_missing_package_is_named_with_its_extra() -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from triage.core.errors import UsageError\n"
        "from triage.stores import *\n"
        "try: open_store('postgresql://db/x')\n"
        "except UsageError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'triage-recovery[postgres]'" in done.stdout


async def _agent(task: str) -> str:
    return task.upper()


def test_an_agent_keeps_its_runs_where_a_text_says(tmp_path: Path) -> None:
    text = f"sqlite:///{tmp_path}/runs.db"
    assert anyio.run(Agent(_agent, store=text).run, "x") == "X"
    (info,) = anyio.run(open_store(text).runs)
    assert (info.agent, info.status) == ("_agent", "done")
    anyio.run(open_store(text).close)


def test_a_memory_store_is_still_given_as_it_is() -> None:
    store = MemoryStore()
    assert open_store(store) is store
    assert isinstance(open_store(None), MemoryStore)
