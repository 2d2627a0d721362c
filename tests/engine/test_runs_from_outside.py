"""What others may do with a run: take it over once its lease is free, answer it, cancel it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from store_kinds import Opened, opening
from support import Says, always, question_of

import triage
from engine.durable_runs import RUN, check_journal
from triage import Agent, Durability, Resume, Retry, Rollback, Step, Suspend
from triage.core import (
    AlreadyResumed,
    RunBusy,
    RunFinished,
    RunOver,
    RunResumed,
    StaleWriter,
    TokenExpired,
    UnknownRun,
    UsageError,
)
from triage.engine import cancel
from triage.stores import Store

pytestmark = pytest.mark.anyio


opened = opening("sqlite", "postgres")
LEASE_S = 0.6


class Worker:
    """An agent that tells when it has begun, and whether it was cancelled while it waited."""

    def __init__(self, store: Store, **options: Any) -> None:
        self.begun = anyio.Event()
        self.cancelled = anyio.Event()
        self.raised: BaseException | None = None
        durability = Durability(lease_s=LEASE_S)
        self.agent = Agent(self._work, store=store, name="worker", durability=durability, **options)

    async def _work(self, task: str) -> str:
        self.begun.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            self.cancelled.set()
            raise
        return task

    async def run(self) -> None:
        try:
            await self.agent.run("task", run_id=RUN)
        except StaleWriter as error:
            self.raised = error


async def quick(task: str) -> str:
    return f"{task} done"


def plain(store: Store, name: str = "worker") -> Agent[str]:
    return Agent(quick, store=store, name=name, durability=Durability(lease_s=LEASE_S))


# Recover ------------------------------------------------------------------------------------------
async def test_a_run_whose_lease_lives_is_busy_for_who_would_not_take_it_over(
    opened: Opened, store: Store
) -> None:
    worker, other = Worker(store), opened.another()
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run)
        await worker.begun.wait()
        with pytest.raises(RunBusy) as busy:
            await plain(other).recover(RUN, at_once=False)
        assert 0 < busy.value.wait_s <= LEASE_S
        info = await other.info(RUN)
        assert info is not None
        assert info.epoch == 0
        assert await plain(other).recover(RUN) == "task done"
    assert worker.raised is not None
    await other.close()


async def test_a_run_whose_lease_is_over_is_taken_over_by_who_waits(store: Store) -> None:
    worker = Worker(store)
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run)
        await worker.begun.wait()
        group.cancel_scope.cancel()
    assert await plain(store).recover(RUN, at_once=False) == "task done"


# Cancel -------------------------------------------------------------------------------------------
async def test_a_run_that_is_cancelled_here_stops_its_function_long_before_the_next_renewal(
    store: Store,
) -> None:
    worker = Worker(store)
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run)
        await worker.begun.wait()
        # Nothing but `cancel` itself can renew so early.
        worker.agent = worker.agent.stored_in(store, lease_s=600)
        await worker.agent.cancel(RUN)
        with anyio.fail_after(60):
            await worker.cancelled.wait()
    assert isinstance(worker.raised, StaleWriter)
    events = await store.read(RUN)
    check_journal(events)
    assert isinstance(events[-1], RunFinished)
    assert events[-1].status == "cancelled"


async def test_a_run_that_is_cancelled_elsewhere_stops_at_its_next_renewal(
    opened: Opened, store: Store
) -> None:
    worker, other = Worker(store), opened.another()
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run)
        await worker.begun.wait()
        # As another process does: nobody here hears of it.
        claim = await other.claim(RUN, lease_s=LEASE_S, force=True)
        end = RunFinished(run_id=RUN, seq=claim.events, time=0.0, status="cancelled")
        await other.append(RUN, [end], at=claim.events, epoch=claim.epoch)
        with anyio.fail_after(60):
            await worker.cancelled.wait()
    assert isinstance(worker.raised, StaleWriter)
    await other.close()


@pytest.mark.parametrize("by", ["agent", "store"])
async def test_nobody_goes_on_with_a_run_that_was_cancelled(by: str, store: Store) -> None:
    worker = Worker(store)
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run)
        await worker.begun.wait()
        group.cancel_scope.cancel()
    agent = plain(store)
    if by == "agent":
        await agent.cancel(RUN)
    else:
        await cancel(store, RUN, now=0.0)
    assert await agent.recover_all() == []
    for again in (agent.recover(RUN), agent.recover(RUN, force=True), agent.cancel(RUN)):
        with pytest.raises(RunOver):
            await again


async def test_a_suspended_run_that_is_cancelled_takes_no_answer(store: Store) -> None:
    agent = asking(store)
    token = await token_of(agent)
    await agent.cancel(RUN)
    with pytest.raises(AlreadyResumed):
        await agent.resume(token, Retry())
    with pytest.raises(RunOver):
        await agent.answer(RUN, Retry())


async def test_only_a_run_of_its_own_is_cancelled_by_an_agent(store: Store) -> None:
    await token_of(asking(store))
    with pytest.raises(UsageError, match=r"belongs to the agent.*not to other"):
        await plain(store, "other").cancel(RUN)
    with pytest.raises(UnknownRun):
        await plain(store).cancel("nobody")


async def test_an_effect_that_runs_is_finished_and_recorded_nowhere_when_its_run_is_cancelled(
    store: Store,
) -> None:
    begun, go_on = anyio.Event(), anyio.Event()
    done: list[str] = []

    @triage.tool(effect="once")
    async def pay(cents: int) -> str:
        begun.set()
        await go_on.wait()
        done.append("paid")
        return "paid"

    async def works(task: str) -> str:
        return await pay(5) + await pay(6)

    agent = Agent(works, store=store, name="payer", durability=Durability(lease_s=LEASE_S))

    async def run() -> None:
        with pytest.raises(StaleWriter):
            await agent.run("task", run_id=RUN)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await begun.wait()
        await agent.cancel(RUN)
        length = len(await store.read(RUN))
        go_on.set()
    assert done == ["paid"]
    assert len(await store.read(RUN)) == length


async def test_a_run_inside_another_ends_with_it(opened: Opened, store: Store) -> None:
    inner = Worker(store)

    async def works(task: str) -> str:
        return str(await inner.agent.run(task, run_id="inner"))

    outer = Agent(works, store=store, name="outer", durability=Durability(lease_s=LEASE_S))

    async def run() -> None:
        with pytest.raises(StaleWriter):
            await outer.run("task", run_id=RUN)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await inner.begun.wait()
        await outer.cancel(RUN)
        with anyio.fail_after(60):
            await inner.cancelled.wait()
    for name in (RUN, "inner"):
        info = await store.info(name)
        assert info is not None
        assert info.status == "cancelled"


# Answer -------------------------------------------------------------------------------------------
def asking(store: Store, questions: int = 1, **options: Any) -> Agent[Any]:
    """An agent that fails so many times, and each time asks."""

    async def works(task: str, *, run: triage.Run, extra: int = 0) -> Any:
        if run.attempt <= questions:
            run.record_step(Step(action="look"))
            raise ConnectionError("gone")
        return [task, extra]

    suspend = Suspend("go on?", **options)
    policy = always(lambda _context: suspend)
    return Agent(works, policy, classifier=Says(), store=store)


async def token_of(agent: Agent[Any]) -> str:
    raised = await question_of(agent.run("task", run_id=RUN))
    return raised.token


@pytest.mark.parametrize("asked_by", ["token", "run id"])
async def test_an_answer_is_written_down_and_whoever_recovers_goes_on(
    asked_by: str, opened: Opened, store: Store
) -> None:
    agent = asking(store)
    token = await token_of(agent)
    action = await agent.answer(
        token if asked_by == "token" else RUN, Retry(inject={"extra": 7}), by="ann"
    )
    assert action == Retry(inject={"extra": 7})
    events = await store.read(RUN)
    assert isinstance(events[-1], RunResumed)
    info = await store.info(RUN)
    assert info is not None
    assert (info.status, info.lease_until) == ("running", None)
    other = opened.another()
    assert await asking(other).recover(RUN, at_once=False) == ["task", 7]
    await other.close()


async def test_an_answer_is_written_down_once(store: Store) -> None:
    agent = asking(store)
    token = await token_of(agent)
    await agent.answer(token, Retry())
    again = (agent.answer(token, Retry()), agent.resume(token, Retry()), agent.answer(RUN, Retry()))
    for late in again:
        with pytest.raises(AlreadyResumed):
            await late


async def test_an_answer_that_is_late_or_old_or_of_another_agent_changes_nothing(
    store: Store,
) -> None:
    agent = asking(store, 2, expires_s=0.01)
    first = await token_of(agent)
    await anyio.sleep(0.02)
    with pytest.raises(TokenExpired):
        await agent.answer(first, Retry())
    await agent.answer(RUN, Retry())  # who sees the question now may answer it all the same
    await question_of(agent.recover(RUN))
    before = await store.read(RUN)
    with pytest.raises(AlreadyResumed):
        await agent.answer(first, Retry())
    with pytest.raises(UsageError, match="not to worker"):
        await plain(store).answer(RUN, Retry())
    assert await store.read(RUN) == before


@pytest.mark.parametrize("action", [Rollback(99), Resume(), Retry(inject={"other": 1})])
async def test_an_action_the_agent_cannot_carry_out_is_refused_at_once(
    action: Any, store: Store
) -> None:
    agent = asking(store)
    token = await token_of(agent)
    with pytest.raises(UsageError):
        await agent.answer(token, action)
    await agent.answer(token, Rollback())
    assert await agent.recover(RUN) == ["task", 0]


# Elsewhere ----------------------------------------------------------------------------------------
async def test_an_agent_may_be_given_another_store_and_keeps_the_rest(
    opened: Opened, store: Store
) -> None:
    agent = Agent(quick, name="worker", aliases=("clerk",))
    moved = agent.stored_in(store, lease_s=3)
    assert await moved.run("task", run_id=RUN) == "task done"
    assert (moved.name, moved.aliases, moved.store) == ("worker", ("clerk",), store)
    assert await store.info(RUN) is not None
    assert await agent.store.info(RUN) is None
    with pytest.raises(UsageError, match="lease_s"):
        agent.stored_in(store, lease_s=0)
