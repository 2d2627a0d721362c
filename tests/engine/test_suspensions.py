"""Answers to suspended runs: each is taken once, for the question it was asked, by the store's clock."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from store_kinds import Opened, opening
from support import FakeEnvironment, Says, always, question_of

import triage
from engine.durable_runs import RUN
from triage import Agent, Limits, Replan, Retry, Suspend
from triage.core import (
    AlreadyResumed,
    RunBusy,
    RunSuspended,
    TokenExpired,
    TriageAbortError,
    UsageError,
)
from triage.stores import Store

pytestmark = pytest.mark.anyio


opened = opening("sqlite", "postgres")


def asking(
    store: Store,
    questions: int = 1,
    env: Any = None,
    limits: Limits | None = None,
    **options: Any,
) -> Agent[Any]:
    """An agent that fails so many times and asks each time."""

    async def works(task: str, *, run: triage.Run, extra: int = 0) -> Any:
        if run.attempt <= questions:
            raise ConnectionError("gone")
        return [task, extra]

    suspend = Suspend("go on?", **options)
    policy = always(lambda _context: suspend)
    return Agent(works, policy, classifier=Says(), store=store, environment=env, limits=limits)


async def token_of(agent: Agent[Any]) -> str:
    raised = await question_of(agent.run("task", run_id=RUN))
    return raised.token


async def test_of_two_answers_one_wins(opened: Opened, store: Store) -> None:
    token = await token_of(asking(store))
    other = opened.another()
    outcomes: list[Any] = []

    async def answer(agent: Agent[Any], reply: Any) -> None:
        try:
            outcomes.append(await agent.resume(token, reply))
        except AlreadyResumed as error:
            outcomes.append(type(error))

    async with anyio.create_task_group() as group:
        group.start_soon(answer, asking(store), triage.approve())
        group.start_soon(answer, asking(other), triage.approve())
    await other.close()
    assert sorted(outcomes, key=str) == [AlreadyResumed, ["task", 0]]
    with pytest.raises(AlreadyResumed):
        await asking(store).resume(token, triage.approve())


async def test_an_old_answer_never_meets_a_new_question(store: Store) -> None:
    agent = asking(store, questions=2)
    first = await token_of(agent)
    raised = await question_of(agent.resume(first, triage.approve()))
    for someone in (agent, asking(store, questions=2)):
        with pytest.raises(AlreadyResumed):
            await someone.resume(first, triage.approve())
    assert await asking(store, questions=2).resume(raised.token, Retry()) == ["task", 0]


async def test_an_answer_may_end_the_run_or_change_its_input(store: Store) -> None:
    token = await token_of(asking(store))
    with pytest.raises(UsageError, match="no_such"):
        await asking(store).resume(token, triage.edit({"no_such": 1}))
    assert await asking(store).resume(token, triage.edit({"extra": 3})) == ["task", 3]


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_an_answer_that_would_wait_past_the_deadline_is_refused_at_once(
    where: str, store: Store
) -> None:
    env = FakeEnvironment()
    limits = Limits(seconds=60, on_limit="suspend")
    agent = asking(store, env=env, limits=limits)
    token = await token_of(agent)
    if where == "elsewhere":
        agent = asking(store, env=env, limits=limits)
    env.now += 1000  # the time in which a person thinks does not count
    for reply in (Retry(delay=61), Replan(delay=61)):
        for answered in (agent.resume(token, reply), agent.answer(token, reply)):
            with pytest.raises(UsageError, match=r"delay of 61 s would pass the run's deadline"):
                await answered
    assert await agent.resume(token, Retry(delay=59)) == ["task", 0]
    assert env.slept == [59]


async def test_an_answer_at_the_deadline_may_wait_as_long_as_it_grants(store: Store) -> None:
    env = FakeEnvironment()
    limits = Limits(seconds=60, on_limit="suspend")

    async def works(task: str, *, run: triage.Run) -> str:
        if run.attempt == 1:
            env.now += 60
            raise ConnectionError("gone")
        return task

    agent = Agent(works, always(Retry()), limits=limits, store=store, environment=env)
    token = await token_of(agent)
    with pytest.raises(UsageError, match="60 s away"):
        await agent.resume(token, Retry(delay=61))
    assert await agent.resume(token, Retry(delay=50)) == "task"


async def test_a_refusal_ends_the_run_with_its_reason(store: Store) -> None:
    token = await token_of(asking(store))
    with pytest.raises(TriageAbortError, match="too dear"):
        await asking(store).resume(token, triage.reject("too dear"))


async def test_a_question_that_came_too_late_is_asked_anew(store: Store) -> None:
    agent = asking(store, expires_s=0)
    token = await token_of(agent)
    with pytest.raises(TokenExpired):
        await agent.resume(token, triage.approve())
    assert (await store.runs())[0].status == "suspended"
    with pytest.raises(UsageError, match="force=True"):
        await agent.recover(RUN)
    raised = await question_of(asking(store).recover(RUN, force=True))
    with pytest.raises(AlreadyResumed):
        await agent.resume(token, triage.approve())
    questions = [event for event in await store.read(RUN) if isinstance(event, RunSuspended)]
    assert len(questions) == 2
    assert raised.token != token


async def test_who_dies_while_answering_has_not_used_the_token_up(store: Store) -> None:
    token = await token_of(asking(store))
    await store.claim(RUN, lease_s=0.05)  # and no more is heard of that process
    assert await asking(store).resume(token, triage.approve()) == ["task", 0]


async def test_who_comes_after_one_that_died_while_answering_is_told_how_long_to_wait(
    store: Store,
) -> None:
    token = await token_of(asking(store))
    claim = await store.claim(RUN, lease_s=60)  # and no more is heard of that process
    env = FakeEnvironment()
    with pytest.raises(RunBusy) as busy:
        await asking(store, env=env).resume(token, triage.approve())
    assert 50 < busy.value.wait_s <= 60
    assert 1 < sum(env.slept) < 5
    await store.release(RUN, epoch=claim.epoch)
    assert await asking(store).resume(token, triage.approve()) == ["task", 0]


@pytest.mark.parametrize("hours", [-24, 24])
async def test_a_question_expires_by_the_clock_of_its_store(hours: int, store: Store) -> None:
    """Whatever the clocks of those say who ask and who answer."""
    env = FakeEnvironment()
    env.now += hours * 3600
    token = await token_of(asking(store, env=env, expires_s=60))
    env.now -= 2 * hours * 3600
    assert await asking(store, env=env).resume(token, triage.approve()) == ["task", 0]
    await store.prune(keep=0)
    token = await token_of(asking(store, env=env, expires_s=0))
    with pytest.raises(TokenExpired):
        await asking(store, env=env).resume(token, triage.approve())
