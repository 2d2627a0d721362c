"""Runs in a SQLite file: what is refused at opening, what faults do, and what survives them."""

from __future__ import annotations

import random
import shutil
import sqlite3
import stat
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from tables import table

from stores.store_runs import add, created, run_of, steps
from triage import UsageError
from triage.core import (
    RunStarted,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreTooNew,
    StoreUnavailable,
)
from triage.stores import SQLiteStore, sqlite

pytestmark = pytest.mark.anyio


async def written(path: Path, runs: int = 3, count: int = 20) -> list[str]:
    """Runs with so many events each in a file that is closed again."""
    store = SQLiteStore(path)
    ids = [f"run-{number}" for number in range(runs)]
    for run_id in ids:
        await created(store, run_id)
        await add(store, run_id, 1, count)
    await store.close()
    return ids


# Opening ------------------------------------------------------------------------------------------


async def test_only_its_owner_may_read_a_new_file(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    await created(store, "r")
    for file in files(tmp_path):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name
    assert {file.name for file in files(tmp_path)} == {"runs.db", "runs.db-wal", "runs.db-shm"}
    await store.close()


def content(path: Path) -> bytes:
    return path.read_bytes()


def files(folder: Path, pattern: str = "*") -> list[Path]:
    return list(folder.glob(pattern))


async def refused(path: Path, kind: type[StoreError], match: str) -> None:
    """The file is refused by every first use, and left as it was."""
    before = content(path)
    uses: list[Callable[[SQLiteStore], Awaitable[Any]]] = [
        SQLiteStore.open,
        SQLiteStore.runs,
        lambda store: created(store, "r"),
    ]
    for use in uses:
        store = SQLiteStore(path)
        with pytest.raises(kind, match=match):
            await use(store)
        await store.close()
    assert content(path) == before


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    path.write_text("To be, or not to be" * 1000)
    await refused(path, StoreCorrupt, "no store")


async def test_a_file_with_a_damaged_head_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await written(path)
    damaged = bytearray(path.read_bytes())
    damaged[:8] = b"XXXXXXXX"
    path.write_bytes(damaged)
    await refused(path, StoreCorrupt, "damaged")


async def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await written(path, count=200)
    path.write_bytes(path.read_bytes()[:9000])
    await refused(path, StoreCorrupt, "damaged")


async def test_the_file_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE recipes (name TEXT)")
    db.close()
    await refused(path, StoreCorrupt, "another program")


async def test_the_file_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await written(path)
    db = sqlite3.connect(path)
    (version,) = db.execute("PRAGMA user_version").fetchone()
    db.execute(f"PRAGMA user_version = {version + 1}")
    db.close()
    await refused(path, StoreTooNew, f"version {version + 1}")


async def test_a_file_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await written(path)
    path.chmod(0o444)
    await refused(path, StoreReadOnly, "may not be written")


async def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "none" / "runs.db")
    with pytest.raises(StoreUnavailable, match=r"runs\.db cannot be made: No such file"):
        await store.open()
    (tmp_path / "none").mkdir()
    await store.open()  # as soon as it is there
    await store.close()


@table(
    ("options", "named"),
    [
        ({"path": 3}, "SQLiteStore.path"),
        ({"path": ""}, "SQLiteStore.path"),
        ({"path": "a\0b"}, "SQLiteStore.path"),
        ({"path": b"runs.db"}, "SQLiteStore.path"),
        ({"path": "x", "synchronous": "off"}, "SQLiteStore.synchronous"),
        ({"path": "x", "timeout": 0}, "SQLiteStore.timeout"),
        ({"path": "x", "timeout": "3"}, "SQLiteStore.timeout"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        SQLiteStore(**options)


def test_a_file_is_found_wherever_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = SQLiteStore("runs.db")
    monkeypatch.chdir(tmp_path / "elsewhere")
    anyio.run(created, store, "r")
    anyio.run(store.close)
    assert (tmp_path / "runs.db").exists()
    assert not list((tmp_path / "elsewhere").iterdir())


async def test_names_with_signs_of_urls_are_names(tmp_path: Path) -> None:
    path = tmp_path / "a b?mode=memory#%41'.db"
    await written(path, runs=1)
    assert path.exists()


# Faults -------------------------------------------------------------------------------------------


async def test_a_flipped_bit_is_found_or_changes_no_journal(tmp_path: Path) -> None:
    """Whatever byte of the file is damaged, a journal is read as it was written, or not at all."""
    path = tmp_path / "runs.db"
    ids = await written(path)
    store = SQLiteStore(path)
    right = {run_id: await store.read(run_id) for run_id in ids}
    await store.close()
    whole = path.read_bytes()
    chance = random.Random(7)
    found = 0
    for number in range(150):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        copy = tmp_path / f"{number}.db"
        copy.write_bytes(damaged)
        store = SQLiteStore(copy)
        for run_id in ids:
            try:
                assert await store.read(run_id) == right[run_id]
                assert await store.info(run_id) is not None
            except (StoreCorrupt, StoreUnavailable):
                found += 1
        await store.close()
        for file in files(tmp_path, f"{number}.db*"):
            # SQLite removes its own when the last statement is collected.
            file.unlink(missing_ok=True)
    assert found > 30


async def test_a_run_that_an_index_does_not_know_any_more_is_not_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sqlite, "CHECKED", 0
    )  # as in a file that is too large to be checked through
    path = tmp_path / "runs.db"
    await written(path)
    db = sqlite3.connect(path)
    (root,) = db.execute(
        "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_runs_1'"
    ).fetchone()
    db.close()
    content_ = bytearray(path.read_bytes())
    # The index by run id is left as an empty leaf.
    start = (root - 1) * 4096
    content_[start : start + 8] = b"\x0a\0\0\0\0\x10\0\0"
    path.write_bytes(content_)
    store = SQLiteStore(path)
    for use in (
        lambda: store.read("run-1"),
        lambda: store.info("run-1"),
        lambda: store.claim("run-1", lease_s=1),
        lambda: created(store, "run-1"),
    ):
        with pytest.raises(StoreCorrupt, match="run-1"):
            await use()
    assert await store.read("another") == []
    await store.close()


@pytest.mark.parametrize("how", ["replaced", "removed"])
async def test_a_file_that_is_gone_while_it_is_open_is_noticed(tmp_path: Path, how: str) -> None:
    path = tmp_path / "runs.db"
    await written(path)
    store = SQLiteStore(path)
    assert await store.read("run-1")
    path.unlink()
    if how == "replaced":
        await written(path, runs=1)
    for use in (lambda: store.read("run-1"), lambda: add(store, "run-1", 21, 1), store.runs):
        with pytest.raises(StoreUnavailable, match="replaced or removed"):
            await use()
    await store.close()


async def test_a_row_that_was_changed_by_another_hand_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await written(path)
    db = sqlite3.connect(path)
    db.execute("UPDATE runs SET status = 'success', agent = 'another' WHERE run_id = 'run-1'")
    db.commit()
    db.close()
    store = SQLiteStore(path)
    for use in (lambda: store.read("run-1"), store.runs, lambda: add(store, "run-1", 21, 1)):
        with pytest.raises(StoreCorrupt, match="run-1"):
            await use()
    assert await store.read("run-2")
    await store.close()


async def test_a_torn_log_loses_its_end_only(tmp_path: Path) -> None:
    """Wherever the log is cut off, what stood before is there, without a gap."""
    path = tmp_path / "runs.db"
    store = SQLiteStore(path)
    await created(store, "r")
    for at in range(1, 60):
        await add(store, "r", at, 1)
    right = await store.read("r")
    log = (tmp_path / "runs.db-wal").read_bytes()
    file = path.read_bytes()
    await store.close()
    lengths: set[int] = set()
    for cut in range(0, len(log), len(log) // 40):
        copy = tmp_path / "copy.db"
        copy.write_bytes(file)
        (tmp_path / "copy.db-wal").write_bytes(log[:cut])
        torn = SQLiteStore(copy)
        events = await torn.read("r")
        assert events == right[: len(events)]
        lengths.add(len(events))
        if events:
            await add(torn, "r", len(events), 1)  # it goes on from there
        await torn.close()
    assert len(lengths) > 20


async def test_a_full_disk_is_said_so_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect
    opened: list[sqlite3.Connection] = []

    def small(*args: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*args, **options))
        opened[-1].execute("PRAGMA max_page_count = 40")
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", small)
    store = SQLiteStore(tmp_path / "runs.db")
    await created(store, "r")
    at = 1

    async def fill() -> None:
        nonlocal at
        while True:
            await add(store, "r", at, 1)
            at += 1

    with pytest.raises(StoreFull, match="no room left"):
        await fill()
    assert at > 10
    right = await store.read("r")
    assert len(right) == at
    with pytest.raises(StoreFull):
        await created(store, "another")
    for db in opened:
        db.execute("PRAGMA max_page_count = 4000")
    await add(store, "r", at, 1)  # as soon as there is room
    assert (await store.read("r"))[:-1] == right
    await store.close()


async def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = SQLiteStore(path)
    await created(store, "r")
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.2, lambda: other.execute("ROLLBACK"))
    timer.start()
    await add(store, "r", 1, 1)
    timer.join()
    other.close()
    await store.close()


async def test_a_lock_that_stays_is_given_up_and_what_stood_behind_fails_alike(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.db"
    store = SQLiteStore(path, timeout=0.1)
    await created(store, "r")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    told: list[BaseException | None] = []
    done = threading.Event()

    def tell(error: BaseException | None) -> None:
        told.append(error)
        if len(told) == 4:
            done.set()

    for at in (1, 2):
        store.submit("r", steps("r", at, 1), at=at, epoch=0, lease_s=None, done=tell)
    with pytest.raises(StoreUnavailable, match="locked by another process"):
        await store.claim("r", lease_s=1)
    other.execute("ROLLBACK")
    other.close()
    for at in (3, 4):  # not stale: what they follow was never written
        store.submit("r", steps("r", at, 1), at=at, epoch=0, lease_s=None, done=tell)
    await anyio.to_thread.run_sync(done.wait)
    assert [type(error) for error in told] == [StoreUnavailable] * 4
    assert len(set(map(id, told))) == 4, "each has an error of its own, for its notes"
    await add(store, "r", 1, 4)
    assert len(await store.read("r")) == 5
    await store.close()


async def test_a_store_that_is_slow_makes_who_submits_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triage.stores.writer.QUEUE", 20)
    path = tmp_path / "runs.db"
    store = SQLiteStore(path)
    await created(store, "r")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    submitted = 0
    told: list[BaseException | None] = []
    half, done = threading.Event(), threading.Event()

    def tell(error: BaseException | None) -> None:
        told.append(error)
        if len(told) == 200:
            done.set()

    def submit_all() -> None:
        nonlocal submitted
        for at in range(1, 201):
            if at == 20:
                half.set()
            store.submit("r", steps("r", at, 1), at=at, epoch=0, lease_s=None, done=tell)
            submitted += 1

    thread = threading.Thread(target=submit_all)
    thread.start()
    await anyio.to_thread.run_sync(half.wait)
    await anyio.to_thread.run_sync(thread.join, 0.1)
    assert thread.is_alive()
    assert submitted < 50
    other.execute("ROLLBACK")
    other.close()
    await anyio.to_thread.run_sync(done.wait)
    assert told == [None] * 200
    assert len(await store.read("r")) == 201
    await store.close()


async def test_bytes_a_step_do_not_grow_with_the_run(tmp_path: Path) -> None:
    sizes: dict[int, float] = {}
    for count in (100, 1_000, 10_000):
        path = tmp_path / f"{count}.db"
        store = SQLiteStore(path, synchronous="normal")
        await created(store, "r")
        for at in range(1, count + 1, 10):
            await add(store, "r", at, 10)
        await store.close()
        sizes[count] = path.stat().st_size / count
    assert sizes[10_000] < sizes[1_000] * 1.05 < sizes[100] * 1.05


@pytest.mark.parametrize("runs", [2, 7, 8, 9, 13, 100, 107, 108, 109, 230])
async def test_however_many_runs_go_on_at_once_each_gets_its_own(tmp_path: Path, runs: int) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    ids = [f"run-{number}" for number in range(runs)]
    for run_id in ids:
        await created(store, run_id)
    async with anyio.create_task_group() as group:
        for run_id in ids:
            group.start_soon(add, store, run_id, 1, 1)
    for run_id in ids:
        assert [event.run_id for event in await store.read(run_id)] == [run_id] * 2
    await store.close()


async def test_pruning_gives_the_room_back(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = SQLiteStore(path)
    sizes: list[int] = []
    for number in range(6):
        for each in range(20):
            await store.append(f"{number}-{each}", run_of(f"{number}-{each}", 30), at=0, epoch=0)
        await store.prune(keep=5)
        await store.close()
        sizes.append(path.stat().st_size)
        store = SQLiteStore(path)
    assert sizes[-1] <= sizes[1] * 1.2
    assert len(await store.runs()) == 5
    await store.close()


async def test_a_copy_of_the_closed_file_is_a_backup(tmp_path: Path) -> None:
    ids = await written(tmp_path / "runs.db")
    shutil.copy(tmp_path / "runs.db", tmp_path / "backup.db")
    store = SQLiteStore(tmp_path / "backup.db")
    assert [info.run_id for info in await store.runs()] == ids[::-1]
    assert all(info.updated <= time.time() for info in await store.runs())
    await store.close()


async def test_a_run_that_cannot_be_kept_fails_none_beside_it(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    told: dict[str, BaseException | None] = {}
    done = threading.Event()

    def tell(run_id: str, error: BaseException | None) -> None:
        told[run_id] = error
        if len(told) == 9:
            done.set()

    for number in range(9):
        run_id = f"run-{number}"
        time_ = float("nan") if number == 4 else 1.0  # which SQLite takes for NULL
        events = [RunStarted(run_id, 0, time_, "agent", "task")]
        store.submit(run_id, events, at=0, epoch=0, lease_s=None, done=partial(tell, run_id))
    await anyio.to_thread.run_sync(done.wait)
    assert [run_id for run_id, error in told.items() if error is not None] == ["run-4"]
    with pytest.raises(StoreError, match="run-4"):
        raise told["run-4"] or AssertionError
    assert len(await store.runs()) == 8
    await store.close()
