"""Live pages: one look for all readers, what a message holds, and stores that fail meanwhile."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.testclient import TestClient
from web.page_runs import journals, long_run

from triage.core import StoreUnavailable
from triage.stores import MemoryStore, RunInfo, SQLiteStore
from triage.web import app
from triage.web.digest import Digests
from triage.web.live import Feed, ListWatch, Live, RunWatch, message
from triage.web.pages import Places

pytestmark = pytest.mark.anyio


class Source:
    """Gives what is put into it, and counts how often it is asked."""

    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        self.looks = 0

    async def look(self) -> bytes | None:
        self.looks += 1
        return self.waiting.pop(0) if self.waiting else None


async def test_one_look_serves_all_readers_and_nobody_looks_where_nobody_reads() -> None:
    source, got = Source(), dict[int, list[bytes]]()
    feed = Feed(source.look, 0.001)
    all_there = anyio.Event()

    async def reader(number: int) -> None:
        async with aclosing(feed.read(0)) as messages:
            async for told in messages:
                got.setdefault(number, []).append(told)
                if len(got) == 50 and all(b"".join(parts) == b"onetwo" for parts in got.values()):
                    all_there.set()

    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(reader, number)
        source.waiting += [b"one", b"two"]
        with anyio.fail_after(60):
            await all_there.wait()
        group.cancel_scope.cancel()
    looks = source.looks
    await anyio.sleep(0.02)
    assert source.looks == looks


async def test_where_the_reader_that_looks_leaves_another_one_looks() -> None:
    source = Source()
    feed = Feed(source.look, 0.001)
    got: list[bytes] = []
    seen = anyio.Event()

    async def leaves(scope: anyio.CancelScope) -> None:
        with scope:
            async with aclosing(feed.read(0)) as messages:
                await anext(messages)

    async def stays() -> None:
        async with aclosing(feed.read(0)) as messages:
            got.append(await anext(messages))
            seen.set()

    async with anyio.create_task_group() as group:
        scope = anyio.CancelScope()
        group.start_soon(leaves, scope)
        while not source.looks:
            await anyio.lowlevel.checkpoint()
        group.start_soon(stays)
        await anyio.sleep(0.01)
        scope.cancel()
        await anyio.sleep(0.01)
        source.waiting.append(b"still here")
        with anyio.fail_after(60):
            await seen.wait()
    assert got == [b"still here"]


async def test_a_reader_that_missed_messages_is_told_to_load_the_page_anew() -> None:
    source = Source()
    feed = Feed(source.look, 0)
    source.waiting += [b"%d" % number for number in range(200)]
    async with aclosing(feed.read(0)) as quick:
        while feed.told < 200:
            await anext(quick)
    async with aclosing(feed.read(0)) as slow, aclosing(feed.read(198)) as other:
        assert await anext(slow) == b"event: stale\ndata: {}\n\n"
        assert await anext(other) == b"198199"


# Runs ---------------------------------------------------------------------------------------------


def told(raw: bytes | None) -> dict[str, Any]:
    """The data of a message."""
    assert raw is not None
    found: dict[str, Any] = json.loads(raw.partition(b"data: ")[2])
    return found


async def test_a_message_holds_the_moments_that_changed_and_the_figures() -> None:
    events = long_run(3, "run", ends=False)
    store = MemoryStore()
    await store.append("run", events[:6], at=0, epoch=0)
    watch = RunWatch(store, "run")
    await watch.start()
    assert await watch.look() is None
    await store.append("run", events[6:8], at=6, epoch=0)
    news = told(await watch.look())
    # The call that was open and has ended has the address of its start.
    assert [(one["seq"], one["last"], one["tone"]) for one in news["entries"]] == [(5, 7, "ok")]
    assert news["figures"]["steps"] == "2"
    assert news["figures"]["cost"] == "$0.0020"
    assert news["seq"] == 7
    assert news["refresh"] is False
    assert await watch.look() is None


@pytest.mark.parametrize("run", ["order-1002", "order-1003", "order-1007"])
async def test_a_page_that_was_followed_from_the_start_says_what_one_loaded_later_says(
    run: str,
) -> None:
    events = journals()[run]
    store = MemoryStore()
    await store.append(run, events[:1], at=0, epoch=0)
    watch = RunWatch(store, run)
    followed = {0: told(await watch.look())["entries"][0]}
    for event in events[1:]:
        await store.append(run, [event], at=event.seq, epoch=0)
        followed |= {one["seq"]: one for one in told(await watch.look())["entries"]}
    whole = RunWatch(store, run)
    loaded = {one["seq"]: one for one in told(await whole.look())["entries"]}
    assert followed == loaded


async def test_milestones_and_a_run_taken_over_make_the_page_turn() -> None:
    events = journals()["order-1002"]
    failed = next(e.seq for e in events if type(e).__name__ == "AttemptFailed")
    store = MemoryStore()
    await store.append("order-1002", events[:failed], at=0, epoch=0)
    watch = RunWatch(store, "order-1002")
    await watch.start()
    await store.append("order-1002", events[failed : failed + 1], at=failed, epoch=0)
    assert told(await watch.look())["refresh"] is True
    await store.claim("order-1002", lease_s=10, force=True)
    assert told(await watch.look())["refresh"] is True
    assert await watch.look() is None


async def test_a_page_that_is_behind_is_told_so_and_one_watch_serves_all(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    await store.append("run", long_run(2, "run", ends=False), at=0, epoch=0)
    live = Live(store, Digests(store), Places(None))
    request: Any = None
    current = (await live.run(request, "run", 7)).body_iterator
    behind = (await live.run(request, "run", 3)).body_iterator
    assert await anext(aiter(current)) == b":\n\n"
    assert await anext(aiter(behind)) == b"event: stale\ndata: {}\n\n"
    assert live.watched == 1
    for stream in (current, behind):
        assert isinstance(stream, AsyncIterator)
        await stream.aclose()  # type: ignore[attr-defined] # a generator
    assert live.watched == 0
    await store.close()


async def test_a_reader_misses_nothing_that_is_told_before_its_stream_begins() -> None:
    store = MemoryStore()
    events = long_run(2, "run")
    await store.append("run", events[:-1], at=0, epoch=0)
    live = Live(store, Digests(store), Places(None))
    request: Any = None
    seq = len(events) - 2
    first = aiter((await live.run(request, "run", seq)).body_iterator)
    second = aiter((await live.run(request, "run", seq)).body_iterator)
    assert await anext(first) == b":\n\n"
    await store.append("run", events[-1:], at=seq + 1, epoch=0)
    news = await anext(first)
    assert told(str(news).encode() if isinstance(news, str) else bytes(news))["seq"] == seq + 1
    assert [await anext(second), await anext(second)] == [b":\n\n", news]
    for stream in (first, second):
        await stream.aclose()  # type: ignore[attr-defined] # a generator


async def test_following_a_long_run_holds_little_of_it(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    await store.append("run", long_run(800, "run", ends=False), at=0, epoch=0)
    watch = RunWatch(store, "run")
    await store.info("run")
    gc.collect()
    tracemalloc.start()
    await watch.start()
    gc.collect()
    held, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    await store.close()
    assert watch.seen == 2_402
    assert held < 200_000 < most


# Lists --------------------------------------------------------------------------------------------


async def test_a_list_is_told_of_runs_that_are_new_or_changed_and_of_no_lease() -> None:
    store = MemoryStore()
    events = journals()["order-1006"]
    await store.append("order-1006", events[:3], at=0, epoch=0, lease_s=10)
    watch = ListWatch(store, Digests(store), Places(None))
    await watch.start()
    assert await watch.look() is None
    await store.renew("order-1006", epoch=0, lease_s=50)
    assert await watch.look() is None
    await store.append("order-1006", events[3:], at=3, epoch=0)
    await store.append("order-1001", journals()["order-1001"], at=0, epoch=0)
    found = json.loads(((await watch.look()) or b"").partition(b"data: ")[2])
    assert {row["run_id"]: row["status"] for row in found} == {
        "order-1001": "done",
        "order-1006": "suspended",
    }


class Moody(MemoryStore):
    """A store that may be away."""

    away = False

    async def info(self, run_id: str) -> RunInfo | None:
        if self.away:
            raise StoreUnavailable("the disk is away")
        return await super().info(run_id)


async def test_a_store_that_is_away_is_told_of_once_and_what_it_has_afterwards_is_told() -> None:
    store = Moody()
    events = long_run(2, "run", ends=False)
    await store.append("run", events[:3], at=0, epoch=0)
    watch = RunWatch(store, "run")
    await watch.start()
    store.away = True
    assert await watch.look() == message("trouble", {"text": "the disk is away"})
    assert await watch.look() is None
    store.away = False
    await store.append("run", events[3:], at=3, epoch=0)
    assert told(await watch.look())["seq"] == len(events) - 1


# Stores that cannot be read -----------------------------------------------------------------------


def broken(kind: str, folder: Path) -> str:
    """A store that cannot be read, as text."""
    import sqlite3

    path = folder / "runs.db"
    if kind == "of another program":
        path.write_bytes(b"no database " * 1_000)
    elif kind == "gone":
        path = folder / "nowhere" / "runs.db"
    elif kind == "too new":
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA application_id = 1414678337")
            db.execute("PRAGMA user_version = 99")
    return f"sqlite:///{path}"


@pytest.mark.parametrize(
    ("kind", "says", "remedy"),
    [
        (
            "too new",
            "The store was written by a newer release",
            "Update triage where this page runs",
        ),
        ("gone", "The store cannot be reached", "See whether its file, server or network is there"),
        ("of another program", "The store is damaged", "Restore it from a copy"),
    ],
)
@pytest.mark.parametrize("address", ["/", "/runs/order-17", "/runs/order-17/events/1"])
def test_a_store_that_cannot_be_read_gets_a_page_that_says_what_to_do(
    kind: str, says: str, remedy: str, address: str, tmp_path: Path
) -> None:
    with TestClient(app(broken(kind, tmp_path)), base_url="http://localhost") as client:
        page = client.get(address)
    assert page.status_code == 503
    assert says in page.text
    assert remedy in page.text
