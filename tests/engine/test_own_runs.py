"""A run and its tokens belong to the agent that started it, by its name."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import anyio
import pytest
from store_kinds import Opened, opening
from support import Says, always
from tables import table

import triage
from engine.durable_runs import RUN
from triage import Agent, Retry, Suspend
from triage.core import AlreadyResumed, RunStarted, TriageSuspendedError, UsageError
from triage.stores import Store

pytestmark = pytest.mark.anyio

opened = opening("sqlite")


async def work(task: str, *, run: triage.Run) -> str:
    if run.attempt == 1 and task == "ask":
        raise ConnectionError("gone")
    return f"{task} done"


def named(name: str, store: Store, *aliases: str) -> Agent[Any]:
    policy = always(lambda _context: Suspend("go on?"))
    return Agent(work, policy, classifier=Says(), store=store, name=name, aliases=aliases)


async def left_behind(agent: Agent[Any], run_id: str = RUN) -> None:
    """A run of an agent whose process has died at once."""
    started = RunStarted(run_id=run_id, seq=0, time=0.0, agent=agent.name, task="task")
    await agent.store.append(run_id, [started], at=0, epoch=0, lease_s=0.001)
    await anyio.sleep(0.01)


async def token_of(agent: Agent[Any]) -> str:
    with pytest.raises(TriageSuspendedError) as caught:
        await agent.run("ask", run_id=RUN)
    return caught.value.token


async def test_a_token_answers_only_for_the_agent_that_asked(store: Store) -> None:
    token = await token_of(named("billing", store))
    before = await store.read(RUN)
    with pytest.raises(UsageError, match=r"billing.*shipping"):
        await named("shipping", store).resume(token, Retry())
    assert await store.read(RUN) == before
    assert await named("billing", store).resume(token, Retry()) == "ask done"
    with pytest.raises(UsageError, match=r"billing.*shipping"):
        await named("shipping", store).resume(token, Retry())


async def test_a_run_is_recovered_only_by_the_agent_that_started_it(store: Store) -> None:
    billing, shipping = named("billing", store), named("shipping", store)
    await left_behind(billing)
    for force in (False, True):
        with pytest.raises(UsageError, match=r"billing.*shipping"):
            await shipping.recover(RUN, force=force)
    assert await shipping.recover_all() == []
    assert len(await store.read(RUN)) == 1
    assert await billing.recover(RUN) == "task done"
    with pytest.raises(UsageError, match=r"billing.*shipping"):
        await shipping.recover(RUN)


async def test_an_agent_that_was_renamed_takes_over_what_it_left_under_its_old_names(
    store: Store,
) -> None:
    for number, name in enumerate(("clerk", "desk", "other")):
        await left_behind(named(name, store), f"run-{number}")
    office = named("office", store, "clerk", "desk")
    assert office.aliases == ("clerk", "desk")
    found = await office.recover_all()
    assert sorted((each.run_id, each.result) for each in found) == [
        ("run-0", "task done"),
        ("run-1", "task done"),
    ]
    with pytest.raises(UsageError, match=r"other.*office"):
        await office.recover("run-2")


async def test_an_agent_that_was_renamed_answers_the_tokens_of_its_old_name(store: Store) -> None:
    token = await token_of(named("clerk", store))
    assert await named("office", store, "clerk").resume(token, Retry()) == "ask done"


async def test_a_renamed_agent_goes_on_with_its_runs_inside_others(store: Store) -> None:
    done: list[str] = []

    @triage.tool(effect="once")
    async def pay(cents: int) -> int:
        done.append(f"pay {cents}")
        return cents

    async def inner(task: str, *, run: triage.Run) -> int:
        return await pay(5)

    def outer(agent: Agent[Any]) -> Agent[Any]:
        async def outside(task: str, *, run: triage.Run) -> int:
            paid: int = await agent.run(task)
            if run.attempt == 1:
                raise ConnectionError("gone")
            return paid

        policy = always(lambda _context: Suspend("go on?"))
        return Agent(outside, policy, classifier=Says(), store=store, name="outer")

    old = outer(Agent(inner, name="clerk"))
    with pytest.raises(TriageSuspendedError) as caught:
        await old.run("task", run_id=RUN)
    new = outer(Agent(inner, name="office", aliases=("clerk",)))
    assert await new.resume(caught.value.token, Retry()) == 5
    assert done == ["pay 5"]


@table("aliases", ["clerk", ("",), (3,), 5])
def test_aliases_are_a_tuple_of_names(aliases: Any) -> None:
    with pytest.raises(UsageError, match="aliases"):
        Agent(work, name="office", aliases=aliases)


async def test_everybody_who_loses_the_race_for_a_token_is_told_so(
    opened: Opened, store: Store
) -> None:
    asked = named("billing", store)
    token = await token_of(asked)
    other = opened.another()
    ended: list[Any] = []

    async def answer(agent: Agent[Any]) -> None:
        try:
            ended.append(await agent.resume(token, Retry()))
        except Exception as error:
            ended.append(type(error))

    async with anyio.create_task_group() as group:
        for agent in (asked, named("billing", store), named("billing", other), asked):
            group.start_soon(answer, agent)
    await other.close()
    assert sorted(ended, key=str) == [AlreadyResumed] * 3 + ["ask done"]


async def shout(task: str, end: str = "!") -> str:
    return task.upper() + end


# Names that Python makes up -----------------------------------------------------------------------


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "triage.engine"]


def test_a_generated_name_is_warned_of_once_where_the_run_is_durable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def local(task: str) -> str:
        return task

    store = f"sqlite:///{tmp_path}/runs.db"
    Agent(local).run_sync("in memory")
    Agent(local, store=store, name="mail").run_sync("kept under a name")
    assert warnings(caplog) == []
    for _ in range(3):
        Agent(local, store=store).run_sync("kept")
    (said,) = warnings(caplog)
    assert "<locals>.local" in said
    assert "name=" in said


def test_partials_and_lambdas_have_generated_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = f"sqlite:///{tmp_path}/runs.db"
    Agent(functools.partial(shout, end="?"), store=store).run_sync("kept")
    Agent(lambda task: task, store=store).run_sync("kept")
    Agent(shout, store=store).run_sync("kept under its own name")
    first, second = warnings(caplog)
    assert "partial" in first
    assert "<lambda>" in second
