"""In a durable store a call's start is durable before it runs, and its result before it returns."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from calls import Killed, in_two_processes, recovers

import triage
from triage import (
    Agent,
    Durability,
    Escalate,
    Event,
    MemoryStore,
    Retry,
    Run,
    StoreError,
    TriageEscalationError,
    TriageSuspendedError,
)
from triage.events import CallFinished, CallStarted
from triage.stores import SQLiteStore

pytestmark = pytest.mark.anyio


class Kept(MemoryStore):
    """Keeps what another process would find; refuses what it is told to."""

    durable = True

    def __init__(self) -> None:
        super().__init__()
        self.stored: list[Event] = []
        self.refuses: type[Any] | None = None

    def submit(
        self,
        run_id: str,
        events: Sequence[Event],
        *,
        at: int,
        epoch: int,
        lease_s: float | None,
        done: Callable[[BaseException | None], None],
    ) -> None:
        new = list(events)
        if self.refuses is not None and any(isinstance(event, self.refuses) for event in new):
            done(triage.StoreError("disk is gone"))
            return
        self.stored += new
        super().submit(run_id, new, at=at, epoch=epoch, lease_s=lease_s, done=done)

    def has(self, kind: type[Any], outcome: str | None = None) -> bool:
        return any(
            isinstance(event, kind) and (outcome is None or event.outcome == outcome)
            for event in self.stored
        )


@pytest.mark.parametrize("effect", ["once", "unknown", "read"])
@pytest.mark.parametrize("way", ["async", "thread", "sync agent"])
async def test_the_start_is_durable_before_the_body_and_the_result_before_the_return(
    effect: str, way: str
) -> None:
    store = Kept()
    started: list[bool] = []

    def note() -> None:
        started.append(store.has(CallStarted))

    async def note_async() -> None:
        note()

    act: Any = triage.tool(effect=effect)(note_async if way == "async" else note)

    async def works(task: str, *, run: Run) -> None:
        await (act() if way == "async" else run.call(act))
        assert store.has(CallFinished, "done")

    def works_sync(task: str) -> None:
        act()
        assert store.has(CallFinished, "done")

    await Agent(works_sync if way == "sync agent" else works, store=store).run("t")
    assert started == [True] or effect == "read"


@pytest.mark.parametrize("mode", ["attempt", "exit"])
async def test_other_modes_do_not_wait_for_the_store(mode: Any) -> None:
    store = Kept()
    seen: list[bool] = []

    @triage.tool(effect="once")
    async def act() -> None:
        pass

    async def works(task: str) -> None:
        await act()
        seen.append(store.has(CallFinished))

    await Agent(works, store=store, durability=Durability(mode=mode)).run("t")
    assert seen == [False]


async def test_what_cannot_be_written_down_first_does_not_run() -> None:
    store = Kept()
    store.refuses = CallStarted
    did: list[str] = []

    @triage.tool(effect="once")
    async def act() -> None:
        did.append("act")

    async def works(task: str, *, run: Run) -> None:
        try:
            await act()
        except StoreError:
            did.append("refused")
            raise

    with pytest.raises(StoreError, match="disk is gone"):
        await Agent(works, store=store).run("t")
    assert did == ["refused"]


async def test_a_run_that_may_go_on_without_its_store_does() -> None:
    store = Kept()
    store.refuses = CallStarted
    did: list[str] = []

    @triage.tool(effect="once")
    async def act() -> str:
        did.append("act")
        return "done"

    async def works(task: str) -> str:
        return await act()

    durability = Durability(on_store_error="continue")
    assert await Agent(works, store=store, durability=durability).run("t") == "done"
    assert did == ["act"]


class Slow(Kept):
    """Keeps the first events of a kind when it is told to."""

    def __init__(self, kind: type[Any]) -> None:
        super().__init__()
        self.kind = kind
        self.held: list[Callable[[], None]] = []

    def submit(self, run_id: str, events: Sequence[Event], **options: Any) -> None:
        new = list(events)
        if not any(isinstance(event, self.kind) for event in new) or self.held:
            super().submit(run_id, new, **options)
            return
        self.held.append(lambda: super(Slow, self).submit(run_id, new, **options))


@pytest.mark.parametrize("effect", ["once", "read"])
async def test_no_call_returns_before_its_result_is_durable(effect: str) -> None:
    store = Slow(CallFinished)
    returned: list[str] = []

    @triage.tool(effect=effect)
    async def act() -> str:
        return "done"

    async def works(task: str) -> None:
        returned.append(await act())

    async with anyio.create_task_group() as group:
        group.start_soon(Agent(works, store=store).run, "t")
        while not store.held:
            await anyio.lowlevel.checkpoint()
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        before = list(returned)
        store.held[0]()
    assert (before, returned) == ([], ["done"])


async def test_a_call_that_is_cancelled_before_it_runs_is_in_no_doubt() -> None:
    store = Slow(CallStarted)
    did: list[str] = []

    @triage.tool(effect="once")
    async def act() -> str:
        did.append("act")
        return "done"

    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            async with anyio.create_task_group() as group:
                group.start_soon(act)
                while not store.held:
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            store.held[0]()
            raise ConnectionError("late")
        return await act()

    assert await Agent(works, store=store, **recovers(Retry())).run("t") == "done"
    assert did == ["act"]
    assert store.has(CallFinished, "not_attempted")


# What a process that went away has left -----------------------------------------------------------


async def test_what_has_completed_is_reused_by_the_next_process(tmp_path: Path) -> None:
    did: list[str] = []

    @triage.tool(effect="once")
    async def act(what: str) -> str:
        did.append(what)
        return f"result of {what}"

    async def works(task: str) -> list[str]:
        results = [await act("a"), await act("b")]
        if "cut" not in did:
            did.append("cut")
            raise Killed
        return results

    assert await in_two_processes(works, tmp_path) == ["result of a", "result of b"]
    assert did == ["a", "b", "cut"]


def left(database: Path, copy: Path) -> None:
    """Keep what a crash would leave now."""
    copy.parent.mkdir()
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


class Bank:
    """Is left in the middle of its first payment: what the store holds then is what a crash leaves."""

    def __init__(self, folder: Path, *, keyed: bool) -> None:
        self.paid: list[str] = []
        self.folder = folder
        self.keyed = keyed
        self.pay: Any = triage.tool(effect="once", name="pay")(self._pay)

    async def _pay(self, cents: int) -> str:
        first = not self.paid
        self.paid.append(triage.current_call().idempotency_key if self.keyed else "paid")
        if first:
            await triage.current_run().flush()
            database, copy = (self.folder / name / "runs.db" for name in ("first", "left"))
            await anyio.to_thread.run_sync(left, database, copy)
        return "receipt"

    async def works(self, task: str) -> str:
        result: str = await self.pay(100)
        return result

    async def recovered(self, **options: Any) -> Any:
        """The run in the process that finds what was left."""
        for folder in ("first", "left"):
            (self.folder / folder).mkdir(exist_ok=True)
            store = SQLiteStore(self.folder / folder / "runs.db")
            agent = Agent(self.works, store=store, **options)
            try:
                if folder == "left":
                    return await agent.recover("run")
                assert await agent.run("t", run_id="run") == "receipt"
            finally:
                await store.close()
        raise AssertionError


async def test_a_call_that_was_cut_off_is_asked_about(tmp_path: Path) -> None:
    bank = Bank(tmp_path, keyed=False)
    with pytest.raises(TriageSuspendedError, match=r'did pay with \{"cents": 100\} happen'):
        await bank.recovered()
    assert bank.paid == ["paid"]


async def test_a_call_that_was_cut_off_may_be_repeated_where_its_tool_had_taken_the_key(
    tmp_path: Path,
) -> None:
    bank = Bank(tmp_path, keyed=True)
    assert await bank.recovered() == "receipt"
    assert len(bank.paid) == 2
    assert len(set(bank.paid)) == 1


async def test_a_call_that_was_cut_off_follows_the_choice_made(tmp_path: Path) -> None:
    bank = Bank(tmp_path, keyed=False)
    assert await bank.recovered(durability=Durability(on_in_doubt="rerun")) == "receipt"
    assert bank.paid == ["paid", "paid"]

    bank = Bank(tmp_path / "other", keyed=False)
    bank.folder.mkdir()
    with pytest.raises(TriageEscalationError, match="did pay with"):
        await bank.recovered(durability=Durability(on_in_doubt="fail"))
    assert bank.paid == ["paid"]


async def test_a_sync_read_in_the_event_loop_holds_nobody_up(tmp_path: Path) -> None:
    @triage.tool(effect="read")
    def look() -> int:
        return 1

    async def works(task: str) -> int:
        return look()

    assert await Agent(works, store=Kept(), **recovers(Escalate())).run("t") == 1
