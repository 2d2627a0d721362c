"""Stores between processes, threads and event loops: one winner, nothing lost, nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
from store_kinds import DURABLE, EXAMPLES, Opened, opening
from support import ENVIRONMENT, program

from stores.store_runs import add, created, started
from triage.core import RunSuspended
from triage.stores import SQLiteStore

opened = opening(*DURABLE)


def child(what: str, opened: Opened, *words: str) -> subprocess.Popen[str]:
    """Another process, which does something to the last store."""
    command = program("stores.store_child", what, opened.kind, opened.name, *words)
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


def told(children: list[subprocess.Popen[str]]) -> list[list[str]]:
    """Let all go on at once, and what each of them says."""
    for each in children:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    said = []
    for each in children:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    for each in children:
        lines, _ = each.communicate(timeout=60)
        assert each.returncode == 0
        said.append(lines.splitlines())
    return said


def test_of_several_processes_one_answers_each_question(opened: Opened) -> None:
    store = opened.new()
    tokens = [f"token-{number}" for number in range(25)]

    async def ask() -> None:
        for number, token in enumerate(tokens):
            run_id = f"run-{number}"
            asked = RunSuspended(run_id, 1, 1.0, 1, token, "Go on?")
            await store.append(run_id, [started(run_id), asked], at=0, epoch=0)

    anyio.run(ask)
    said = told([child("answer", opened, *tokens) for _ in range(8 if EXAMPLES > 1 else 3)])
    assert sorted(line for lines in said for line in lines) == sorted(f"won {t}" for t in tokens)

    async def check() -> None:
        for number, token in enumerate(tokens):
            assert await store.find(token) is None
            assert len(await store.read(f"run-{number}")) == 3
        assert len(await store.runs("running")) == 25
        await store.close()

    anyio.run(check)


def test_four_processes_write_into_one_store(opened: Opened) -> None:
    store = opened.new()
    anyio.run(created, store, "shared")
    names = [f"mine-{number}" for number in range(4)]
    said = told([child("write", opened, name, "shared") for name in names])
    won = [int(line.split()[1]) for lines in said for line in lines]
    assert sorted(won) == list(range(1, len(won) + 1)), "each position was written once"

    async def check() -> None:
        for name in names:
            assert len(await store.read(name)) == 51
        shared = await store.read("shared")
        assert [event.seq for event in shared] == list(range(len(won) + 1))
        await store.close()

    anyio.run(check)


def test_what_was_acknowledged_survives_a_kill(opened: Opened) -> None:
    store = opened.new()
    anyio.run(store.open)
    for number, count in enumerate((1, 5, 40)):
        run_id = f"run-{number}"
        killed = child("acknowledge", opened, run_id)
        assert killed.stdout is not None
        last = [killed.stdout.readline() for _ in range(count)][-1]
        killed.kill()
        rest, _ = killed.communicate()
        acknowledged = int((last + rest).splitlines()[-1]) if rest.endswith("\n") else int(last)
        # A server may still be committing what it got last: only a claim says that nothing follows.
        claim = anyio.run(partial(store.claim, run_id, lease_s=60.0))
        events = anyio.run(store.read, run_id)
        assert len(events) >= acknowledged + 1
        anyio.run(add, store, run_id, len(events), 1, claim.epoch)
    anyio.run(store.close)


def test_what_was_submitted_is_written_before_the_interpreter_ends(opened: Opened) -> None:
    store = opened.new()
    leaving = child("leave", opened, "r")
    leaving.communicate(timeout=60)
    assert leaving.returncode == 0
    assert len(anyio.run(store.read, "r")) == 501
    anyio.run(store.close)


def test_a_store_outlives_a_fork(opened: Opened) -> None:
    store = opened.new()
    forking = child("fork", opened, "busy", "ours", "theirs")
    said, _ = forking.communicate(timeout=60)
    assert said == "[0, 0, 0, 0, 0] 51\n"

    async def check() -> None:
        for number in range(5):
            assert len(await store.read(f"theirs-{number}")) == 11
        assert len(await store.read("busy")) > 1
        await store.close()

    anyio.run(check)


def test_one_store_serves_many_event_loops_and_threads(opened: Opened) -> None:
    store = opened.new()
    failed: list[BaseException] = []

    async def live(name: str) -> None:
        await created(store, name)
        for at in range(1, 20):
            await add(store, name, at, 1)
        assert len(await store.read(name)) == 20

    async def crowd(name: str) -> None:
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(live, f"{name}-{number}")

    def loop(number: int) -> None:
        try:
            anyio.run(crowd, str(number), backend="trio" if number % 2 else "asyncio")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=loop, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(anyio.run(store.runs)) == 30
    anyio.run(store.close)


@pytest.mark.parametrize("kind", ["scope", "native"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_append_that_is_cancelled_happens_all_the_same(
    tmp_path: Path, kind: str, backend: Any
) -> None:
    store = SQLiteStore(tmp_path / "runs.db")

    async def run() -> None:
        await created(store, "r")
        for at in range(1, 30):
            if kind == "native" and backend == "asyncio":
                task = asyncio.create_task(add(store, "r", at, 1))
                await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            else:
                with anyio.CancelScope() as scope:
                    scope.cancel()
                    await add(store, "r", at, 1)
        await store.close()

    anyio.run(run, backend=backend)
    assert len(anyio.run(store.read, "r")) == 30
    anyio.run(store.close)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_loop_that_ends_while_appends_wait_disturbs_nobody(tmp_path: Path, backend: Any) -> None:
    store = SQLiteStore(tmp_path / "runs.db")

    async def leave() -> None:
        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(created, store, f"r-{number}")
            await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()

    anyio.run(leave, backend=backend)
    anyio.run(created, store, "after")
    infos = anyio.run(store.runs)
    assert infos[0].run_id == "after"
    assert {info.events for info in infos} == {1}
    anyio.run(store.close)


def own_threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("SQLiteStore")}


def open_files(path: Path) -> int:
    """How often this process has the file or one beside it open."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(entry.readlink()).startswith(str(path))
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system has no /proc")
def test_no_thread_and_no_file_stays_behind_a_store(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    before = own_threads()
    store = SQLiteStore(path)
    trio.run(created, store, "r")
    trio.run(store.read, "r")
    made = own_threads() - before
    assert {each.name for each in made} == {"SQLiteStore-writer", "SQLiteStore-reader"}
    assert all(each.daemon for each in made)
    assert open_files(path) > 0
    trio.run(store.close)
    assert open_files(path) == 0
    for thread in made:
        thread.join(10)
    assert own_threads() <= before

    store = SQLiteStore(path)  # one that is not closed, only forgotten
    trio.run(created, store, "s")
    made = own_threads() - before
    assert open_files(path) > 0
    del store
    for thread in made:
        thread.join(10)
    assert own_threads() <= before
    assert open_files(path) == 0
