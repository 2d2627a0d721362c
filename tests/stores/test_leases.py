"""A run and its lease: how a store that answers late, or not at all, is dealt with."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from support import RETRY, on_both_backends

import triage
from triage import Agent, Durability
from triage.core import CallStarted, Event, StaleWriter, StoreUnavailable
from triage.stores import SQLiteStore, Store

pytestmark = pytest.mark.anyio
anyio_backend = on_both_backends()
Mode = Literal["step", "attempt", "exit"]


class Wrapped:
    """A store that passes on what it does not do itself."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class Hanging(Wrapped):
    """Does not answer the first renewal. left: how long the lease still lasted at each try."""

    def __init__(self, store: Store, *, hangs: bool = True) -> None:
        super().__init__(store)
        self.left: list[float] = []
        self.again = threading.Event()
        self._hangs = hangs

    async def renew(self, run_id: str, *, epoch: int, lease_s: float) -> None:
        info = await self.store.info(run_id)
        assert info is not None
        assert info.lease_until is not None
        self.left.append(info.lease_until - await self.store.now())
        if len(self.left) > 1:
            self.again.set()
        elif self._hangs:
            await anyio.sleep_forever()
        await self.store.renew(run_id, epoch=epoch, lease_s=lease_s)


async def test_a_renewal_that_hangs_is_tried_again_before_the_lease_ends(
    tmp_path: Path,
) -> None:
    lease_s = 3.0
    store = Hanging(SQLiteStore(tmp_path / "runs.db"))

    async def works(task: str, *, run: triage.Run) -> str:
        await run.flush()
        await anyio.to_thread.run_sync(store.again.wait)
        return task

    agent = Agent(works, store=store, durability=Durability(lease_s=lease_s))
    assert await agent.run("task") == "task"
    assert store.left[1] > 0
    await store.close()


async def test_a_store_that_hangs_for_one_run_does_not_keep_the_lease_of_another_waiting(
    tmp_path: Path,
) -> None:
    hangs = Hanging(SQLiteStore(tmp_path / "hangs.db"))
    answers = Hanging(SQLiteStore(tmp_path / "answers.db"), hangs=False)

    async def works(task: str, *, run: triage.Run) -> None:
        await run.flush()
        await anyio.to_thread.run_sync(hangs.again.wait)

    async with anyio.create_task_group() as group:
        for store, lease_s in ((hangs, 6.0), (answers, 2.4)):
            agent = Agent(works, store=store, durability=Durability(lease_s=lease_s))
            group.start_soon(agent.run, "task")
    assert len(answers.left) > 1
    assert min(answers.left) > 0
    await hangs.close()
    await answers.close()


class CutOff(Wrapped):
    """A store that renews nothing once it is cut off, and then says late what it has appended."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.cut = False

    async def renew(self, run_id: str, *, epoch: int, lease_s: float) -> None:
        if self.cut:
            raise StoreUnavailable("cut off")
        await self.store.renew(run_id, epoch=epoch, lease_s=lease_s)

    async def until_its_lease_has_ended(self, run_id: str) -> None:
        while True:
            info = await self.store.info(run_id)
            assert info is not None
            if info.lease_until is not None and info.lease_until < await self.store.now():
                return
            await anyio.sleep(0.01)

    def submit(self, run_id: str, events: list[Event], *, done: Any, **options: Any) -> None:
        def told(error: BaseException | None) -> None:
            if self.cut and isinstance(events[0], CallStarted):
                # The reply is late: the lease that was written has ended by now.
                threading.Thread(target=late, args=(error,)).start()
            else:
                done(error)

        def late(error: BaseException | None) -> None:
            anyio.run(self.until_its_lease_has_ended, run_id)
            done(error)

        self.store.submit(run_id, events, done=told, **options)


def pays(store: CutOff, tool: Any, mode: Mode, on_error: Any) -> Agent[str]:
    """An agent whose store is cut off between two payments, until its lease has ended."""

    async def works(task: str, *, run: triage.Run) -> str:
        await run.flush()
        await tool(1)
        store.cut = True
        await store.until_its_lease_has_ended(run.run_id)
        await tool(2)
        return task

    durability = Durability(mode=mode, lease_s=0.3, on_store_error=on_error)
    kept: Any = store
    return Agent(works, RETRY, store=kept, durability=durability)


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("mode", ["step", "attempt"])
async def test_no_effect_begins_once_the_lease_may_have_ended(
    tmp_path: Path, mode: Mode, kind: str
) -> None:
    paid: list[int] = []

    @triage.tool(effect="once")
    async def pay(number: int) -> None:
        paid.append(number)

    @triage.tool(effect="once")
    def pay_sync(number: int) -> None:
        paid.append(number)

    async def pay_in_thread(number: int) -> None:
        await anyio.to_thread.run_sync(pay_sync, number)

    store: Any = CutOff(SQLiteStore(tmp_path / "runs.db"))
    agent = pays(store, pay_in_thread if kind == "sync" else pay, mode, "fail")
    with pytest.raises(StoreUnavailable, match="cut off"):
        await agent.run("task", run_id="run-1")
    assert paid == [1]
    await store.close()


async def test_a_run_that_may_do_without_its_store_may_do_without_its_lease(tmp_path: Path) -> None:
    paid: list[int] = []

    @triage.tool(effect="once")
    async def pay(number: int) -> None:
        paid.append(number)

    store: Any = CutOff(SQLiteStore(tmp_path / "runs.db"))
    assert await pays(store, pay, "step", "continue").run("task") == "task"
    assert paid == [1, 2]
    await store.close()


async def test_a_lease_that_ended_and_that_nobody_took_is_renewed_before_the_next_effect(
    tmp_path: Path,
) -> None:
    paid: list[int] = []
    store: Any = CutOff(SQLiteStore(tmp_path / "runs.db"))

    @triage.tool(effect="once")
    async def pay(number: int) -> None:
        store.cut = False
        paid.append(number)

    async def works(task: str, *, run: triage.Run) -> str:
        await run.flush()
        await pay(1)
        store.cut = True
        await store.until_its_lease_has_ended(run.run_id)
        store.cut = False
        await pay(2)
        return task

    durability = Durability(mode="attempt", lease_s=0.3)
    assert await Agent(works, RETRY, store=store, durability=durability).run("task") == "task"
    assert paid == [1, 2]
    await store.close()


async def test_a_lease_that_ended_and_that_somebody_took_stops_the_next_effect(
    tmp_path: Path,
) -> None:
    paid: list[int] = []
    store: Any = CutOff(SQLiteStore(tmp_path / "runs.db"))

    @triage.tool(effect="once")
    async def pay(number: int) -> None:
        paid.append(number)

    async def works(task: str, *, run: triage.Run) -> str:
        await run.flush()
        await pay(1)
        store.cut = True
        await store.until_its_lease_has_ended(run.run_id)
        await store.claim(run.run_id, lease_s=60)
        store.cut = False
        await pay(2)
        return task

    durability = Durability(mode="attempt", lease_s=0.3)
    with pytest.raises(StaleWriter):
        await Agent(works, RETRY, store=store, durability=durability).run("task")
    assert paid == [1]
    await store.close()
