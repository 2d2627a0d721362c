"""One SQLite file and several processes: none takes what another still writes for left behind."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stores.store_runs import created
from triage.core import StoreCorrupt
from triage.stores import SQLiteStore

COMES_AND_GOES = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
print(*[row[0] for row in db.execute("SELECT run_id FROM runs ORDER BY id")])
db.execute("PRAGMA user_version = 1")
db.close()
"""


def another_process(path: Path) -> list[str]:
    """The runs it sees; it writes as well, and is gone."""
    command = [sys.executable, "-c", COMES_AND_GOES, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.split()


@pytest.mark.anyio
async def test_a_process_that_comes_and_goes_takes_nothing_with_it(tmp_path: Path) -> None:
    """The last one to close a file removes its log: that must not be somebody who thinks he is."""
    path = tmp_path / "runs.db"
    store, second = SQLiteStore(path), SQLiteStore(path)
    await created(store, "before")
    assert len(await store.read("before")) > 0  # its reader is a connection of its own
    await second.runs()
    assert another_process(path) == ["before"]
    assert path.with_name("runs.db-wal").exists()
    await created(store, "after")
    assert another_process(path) == ["before", "after"]
    assert {info.run_id for info in await second.runs()} == {"before", "after"}
    await store.close()
    await second.close()


def test_many_connections_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    wrong: list[BaseException] = []

    def opens(path: str, *, writes: bool) -> None:
        try:
            SQLiteStore(path).connect(writes=writes).close()
        except StoreCorrupt as error:
            wrong.append(error)

    for number in range(8):
        path = str(tmp_path / f"{number}.db")
        threads = [
            threading.Thread(target=opens, args=(path,), kwargs={"writes": at % 2 == 0})
            for at in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
