"""Durable runs from the outside: taking over, giving back, leases, tokens, and stores that fail."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from durable_runs import RUN, Kept, agent_of
from store_kinds import opening
from support import RETRY, Says

import triage
from triage import Agent, Limits, MemoryStore, Step, Usage
from triage.errors import (
    DeadLetter,
    ResultLost,
    TriageAbortError,
    TriageEscalationError,
    UnknownRun,
    UsageError,
)
from triage.events import AttemptStarted, RunRecovered
from triage.stores import Store

pytestmark = pytest.mark.anyio


opened = opening("sqlite", "postgres")


def agent_on(store: Store | str, function: Any, policy: Any = RETRY, **options: Any) -> Agent[Any]:
    return Agent(function, policy, classifier=Says(), store=store, **options)


async def left_running(store: Store, agent: Agent[Any], events: int) -> None:
    """A run of this agent whose process is gone, with so many events."""
    kept = MemoryStore()
    source = Agent(agent.__wrapped__, RETRY, classifier=Says(), store=kept, name=agent.name)  # type: ignore[attr-defined]
    await source.run("task", run_id=RUN)
    await store.append(RUN, (await kept.read(RUN))[:events], at=0, epoch=0)


# Recover ------------------------------------------------------------------------------------------


async def test_a_finished_run_gives_its_result_and_runs_nothing(store: Store) -> None:
    world = Kept()
    agent = agent_of("retry", store, world)
    result = await agent.run("task", run_id=RUN)
    before = list(world.effects)
    assert await agent_of("retry", store, world).recover(RUN) == result
    assert world.effects == before


@pytest.mark.parametrize(
    ("scenario", "error"), [("abort", TriageAbortError), ("escalate", TriageEscalationError)]
)
async def test_a_finished_run_raises_the_error_it_ended_with(
    scenario: str, error: type[Exception], store: Store
) -> None:
    agent = agent_of(scenario, store, Kept())
    with pytest.raises(error):
        await agent.run("task", run_id=RUN)
    with pytest.raises(error, match="the service is gone") as raised:
        await agent_of(scenario, store, Kept()).recover(RUN)
    context: Any = raised.value
    assert context.context.diagnosis.failure_type is triage.FailureType.EXTERNAL_FAULT


async def test_a_result_without_a_json_form_is_said_to_be_lost(store: Store) -> None:
    async def works(task: str) -> object:
        return object()

    await agent_on(store, works).run("task", run_id=RUN)
    with pytest.raises(ResultLost, match="result_type"):
        await agent_on(store, works).recover(RUN)


async def test_what_could_not_be_stored_is_asked_for_by_name(store: Store) -> None:
    session_lost = object()

    async def works(task: object, *, client: Any, size: int) -> str:
        if task is session_lost:
            await anyio.sleep_forever()
        return f"{task} {client} {size}"

    agent = agent_on(store, works)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await agent.run(session_lost, run_id=RUN, client=object(), size=3)
    asked = r"task, client could not be stored.*recover\(run_id, task=…, client=…\)"
    with pytest.raises(UsageError, match=asked):
        await agent.recover(RUN)
    assert await agent.recover(RUN, task="t", client="c") == "t c 3"


async def test_an_unknown_run_is_said_to_be_unknown(store: Store) -> None:
    with pytest.raises(UnknownRun, match="run-1"):
        await agent_of("retry", store, Kept()).recover(RUN)


async def test_changed_code_is_said_and_journalled(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    async def works(task: str) -> str:  # pyright: ignore[reportRedeclaration] # as it was before
        await anyio.Event().wait()
        return "old"

    before = agent_on(store, works)

    async def works(task: str) -> str:  # type: ignore[no-redef] # the same agent, released anew
        return "new" + task

    await left_running_of(store, before)
    with caplog.at_level(logging.WARNING, "triage"):
        assert await agent_on(store, works).recover(RUN) == "newtask"
    assert "not the one it was started with" in caplog.text
    events = await store.read(RUN)
    assert [event.changed for event in events if isinstance(event, RunRecovered)] == [True]


async def left_running_of(store: Store, agent: Agent[Any]) -> None:
    """A run that was cancelled as it began: given back to the store."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        await agent.run("task", run_id=RUN)


async def test_three_deaths_make_a_dead_letter_and_force_takes_it_over(store: Store) -> None:
    agent = agent_of("retry", store, Kept())
    await left_running(store, agent, 3)
    for _ in range(3):
        await store.claim(RUN, lease_s=60, force=True)
    with pytest.raises(DeadLetter):
        await agent.recover(RUN)
    assert [info.run_id for info in await store.runs("dead_letter")] == [RUN]
    with pytest.raises(DeadLetter):
        await agent.recover(RUN)
    assert (await agent.recover(RUN, force=True))[0] == "task"


async def test_recover_all_leaves_living_runs_alone_and_tells_of_the_others(store: Store) -> None:
    begun: list[object] = []

    async def works(task: object, *, client: Any = None) -> str:
        if len(begun) < 4:
            await anyio.sleep_forever()
        return f"done {task}"

    agent = agent_on(store, works)
    for name in "abcd":
        arguments = {"client": object()} if name in "bd" else {}
        with anyio.CancelScope() as scope:
            scope.cancel()
            await agent.run(name, run_id=name, **arguments)
        begun.append(name)
    for name in "cd":
        await store.claim(name, lease_s=60)
    found = {ended.run_id: ended for ended in await agent.recover_all()}
    assert set(found) == {"a", "b"}
    assert found["a"].result == "done a"
    assert "client" in str(found["b"].error)
    for name in "bcd":
        info = await store.info(name)
        assert info is not None
        assert (info.status, info.claims) == ("running", int(name != "b"))


async def test_a_hand_written_effect_is_not_repeated_after_a_death(store: Store) -> None:
    paid: list[str] = []

    async def works(task: str, *, run: triage.Run, record_step: Callable[[Step], int]) -> str:
        paid.append(task)
        record_step(Step(action="pay", effect="once"))
        await run.flush()
        await anyio.sleep_forever()
        return "never"

    agent = agent_on(store, works)
    with anyio.move_on_after(0.5):
        await agent.run("task", run_id=RUN)
    with pytest.raises(TriageEscalationError, match="recorded by hand"):
        await agent.recover(RUN)
    assert paid == ["task"]


async def test_what_limits_count_is_restored(store: Store) -> None:
    async def works(
        task: str,
        *,
        run: triage.Run,
        record_usage: Callable[[Usage], None],
        _triage_state: Any,
    ) -> str:
        record_usage(Usage(input_tokens=60))
        raise ConnectionError("gone")

    agent = agent_on(store, works, limits=Limits(attempts=4, tokens=130))
    kept = MemoryStore()
    with pytest.raises(TriageEscalationError):
        await agent_on(kept, works, limits=Limits(attempts=2)).run("task", run_id=RUN)
    events = await kept.read(RUN)
    second = [event.seq for event in events if isinstance(event, AttemptStarted)][1]
    await store.append(RUN, events[: second + 1], at=0, epoch=0)
    with pytest.raises(TriageEscalationError) as raised:
        await agent.recover(RUN)
    assert raised.value.context is not None
    # 60 in the first process and 60 in the second attempt: the third may not go over 130.
    assert raised.value.context.usage.total_tokens == 180
    assert raised.value.context.attempt == 3
