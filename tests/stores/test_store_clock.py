"""The clock of a store in a file: processes share it, and it does not follow when the wall clock jumps."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from support import ENVIRONMENT, program

from stores.store_runs import add, created, edit_sqlite
from triage.cli import main
from triage.core import RunBusy, StoreCorrupt
from triage.incidents import IncidentDesk, Watch
from triage.stores import SQLiteStore, clock
from triage.stores.clock import ticks

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(clock.boot_id() is None, reason="this system does not name its starts"),
]
HOUR = 3600.0
LEASE = 30.0
OVER = 1e-6


def jump(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the wall clock of this process be off by so much from now on."""
    real = time.clock_gettime
    monkeypatch.setattr(time, "time", lambda: real(time.CLOCK_REALTIME) + seconds)


def restart(path: Path) -> None:
    """Make the clock of the file that of an earlier start of the machine."""
    edit_sqlite(
        path,
        "UPDATE clock SET boot = 'earlier'",
        "UPDATE clock SET crc = row_crc(boot, zero, seen)",
    )


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
async def test_a_jump_of_the_wall_clock_ends_no_lease_and_extends_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    owner, other = SQLiteStore(tmp_path / "runs.db"), SQLiteStore(tmp_path / "runs.db")
    await created(owner, "lives", lease_s=LEASE)
    await created(owner, "left", lease_s=OVER)
    before = await owner.now()
    jump(monkeypatch, seconds)
    with pytest.raises(RunBusy) as busy:
        await other.claim("lives", lease_s=LEASE)
    assert busy.value.wait_s <= LEASE
    assert (await other.claim("left", lease_s=LEASE)).epoch == 1
    await owner.renew("lives", epoch=0, lease_s=LEASE)
    await add(owner, "lives", 1, 1)
    after = await owner.now()
    assert before <= after < before + HOUR / 2
    (left, lives) = await owner.runs("running")
    for info in (left, lives):
        assert info.lease_until is not None
        assert before < info.lease_until < before + HOUR / 2
    assert await owner.prune(older_than=60) == 0
    await owner.close()
    await other.close()


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
async def test_processes_whose_wall_clocks_differ_share_one_clock(
    tmp_path: Path, seconds: float
) -> None:
    path = tmp_path / "runs.db"
    store = SQLiteStore(path)
    await created(store, "lives", lease_s=LEASE)
    await created(store, "left", lease_s=OVER)
    before = await store.now()
    words = ("take", "sqlite", str(path), str(seconds), "lives", "left")
    said = await anyio.run_process(program("stores.store_child", *words), env=ENVIRONMENT)
    now, *claims = said.stdout.decode().split()
    assert claims == ["busy", "won"]
    assert before <= float(now) <= await store.now()
    with pytest.raises(RunBusy) as busy:
        await store.claim("left", lease_s=LEASE)  # the other process holds it now
    assert busy.value.wait_s <= LEASE
    await store.renew("lives", epoch=0, lease_s=LEASE)
    await store.close()


async def test_no_desk_takes_a_run_for_lost_whose_lease_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.db"
    store = SQLiteStore(path)
    await created(store, "lives", lease_s=LEASE)
    await created(store, "left", lease_s=OVER)
    jump(monkeypatch, HOUR)
    desk = IncidentDesk(SQLiteStore(path), watch=Watch(lease_lost_s=0.0))
    await desk.detect()
    assert [incident.run_id for incident in await desk.incidents()] == ["left"]
    await desk.close()
    await store.close()


async def test_how_long_a_lease_lasts_is_listed_by_the_clock_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.db"
    store = SQLiteStore(path)
    await created(store, "lives", lease_s=LEASE)
    await store.close()
    jump(monkeypatch, HOUR)
    where = ("--store", f"sqlite:///{path}")
    for words in (("runs", "list", *where), ("runs", "show", "lives", *where)):
        assert await anyio.to_thread.run_sync(main, words) == 0
        out = capsys.readouterr().out
        assert " left" in out
        assert "ago" not in out.partition("lease")[2]
        assert "no process has it" not in out


async def test_after_a_restart_leases_end_by_the_wall_clock_which_does_not_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.db"
    for seconds in (-HOUR, HOUR):
        store = SQLiteStore(path)
        run_id = f"run{seconds:+.0f}"
        await created(store, run_id, lease_s=LEASE)
        await store.close()
        before = await store.now()
        await store.close()
        restart(path)
        jump(monkeypatch, seconds)
        if seconds < 0:
            assert before - clock.NOTED <= await store.now() < before + LEASE
            with pytest.raises(RunBusy) as busy:
                await store.claim(run_id, lease_s=LEASE)
            assert busy.value.wait_s <= LEASE + clock.NOTED
        else:
            assert await store.now() > before + HOUR - 60
            await store.claim(run_id, lease_s=LEASE)
        now = await store.now()
        jump(monkeypatch, 0)
        assert now <= await store.now() < now + 60
        await store.close()
        path.unlink()


async def test_how_late_it_is_is_noted_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.db"
    store = SQLiteStore(path)
    await created(store, "r")
    seen: list[float] = []
    for later in (0.0, clock.NOTED / 2, clock.NOTED * 2, clock.NOTED * 2.5):
        monkeypatch.setattr("triage.stores.clock.ticks", lambda later=later: ticks() + later)
        await add(store, "r", 1 + len(seen), 1)
        with closing(sqlite3.connect(path)) as db:
            seen += db.execute("SELECT seen FROM clock").fetchone()
    assert seen[0] == seen[1] < seen[2] == seen[3]
    await store.close()


async def test_a_clock_that_is_damaged_is_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = SQLiteStore(path)
    await created(store, "r")
    await store.close()
    edit_sqlite(path, "UPDATE clock SET zero = zero + 3600")
    with pytest.raises(StoreCorrupt, match=r"the clock in .*runs\.db is damaged"):
        await store.claim("r", lease_s=LEASE)
    assert len(await store.read("r")) == 1
    await store.close()


async def test_where_no_start_has_a_name_the_clock_is_the_wall_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "boot_id", lambda: None)
    store = SQLiteStore(tmp_path / "runs.db")
    await created(store, "r", lease_s=LEASE)
    jump(monkeypatch, HOUR)
    assert abs(await store.now() - time.time()) < 60
    assert (await store.claim("r", lease_s=LEASE)).epoch == 1
    await store.close()
