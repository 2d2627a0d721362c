"""No run ever sees another's steps, state, ids or hints."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextvars import copy_context
from types import coroutine
from typing import Any

import anyio
import pytest
from support import RETRY, Says

import triage
from triage import Agent, Checks, FailurePolicy, Retry, Run, Step, Usage

pytestmark = pytest.mark.anyio


async def checks_itself(task: int, *, run: Run, _triage_hint: str | None) -> tuple[int, str]:
    for number in range(5):
        run.record_step(Step(action=f"{task}.{number}"))
        run.update_state({"task": task, f"only{task}": number})
        await anyio.lowlevel.checkpoint()
        assert triage.current_run() is run
    assert [step.action for step in run.trajectory] == [f"{task}.{n}" for n in range(5)]
    assert run.state == {"task": task, f"only{task}": 4}
    assert len(run.history) == run.attempt - 1
    if run.attempt == 1:
        assert _triage_hint is None
        if task % 3 == 0:
            raise ConnectionError(str(task))
    else:
        assert _triage_hint == f"hint {task}"
        assert run.history[0].error is not None
        assert run.history[0].error.message == str(task)
    return task, run.run_id


AGENT = Agent(
    checks_itself,
    FailurePolicy(default=lambda context: Retry(f"hint {context.task}")),
    classifier=Says(),
)


async def test_a_thousand_concurrent_runs_are_apart() -> None:
    ids: dict[int, str] = {}

    async def one(task: int) -> None:
        number, run_id = await AGENT.run(task)
        ids[number] = run_id

    async with anyio.create_task_group() as group:
        for task in range(1000):
            group.start_soon(one, task)
    assert sorted(ids) == list(range(1000))
    assert len(set(ids.values())) == 1000


async def test_a_run_that_is_thrown_away_in_another_leaves_that_one_alone() -> None:
    @coroutine
    def never() -> Generator[None]:
        yield

    async def waits(task: str) -> None:
        await never()

    # Unwatched: a scope, which trio puts around what is watched, cannot be left in another task.
    left = Agent(waits, checks=Checks(watch=False)).run("left")
    copy_context().run(left.send, None)

    async def throws_it_away(task: str, *, run: Run) -> None:
        left.close()  # as the garbage collector does, at any time
        assert triage.current_run() is run

    await Agent(throws_it_away).run("task")


async def test_after_a_run_its_task_is_in_none() -> None:
    with pytest.raises(triage.UsageError, match="run"):
        triage.current_run()
    await AGENT.run(0)
    with pytest.raises(triage.UsageError, match="run"):
        triage.current_run()


async def test_runs_after_a_warm_up_run_in_the_same_task_are_apart() -> None:
    await AGENT.run(0)
    results: list[int] = []

    async def one(task: int) -> None:
        results.append((await AGENT.run(task))[0])

    async with anyio.create_task_group() as group:
        for task in (1, 2, 3):
            group.start_soon(one, task)
    assert sorted(results) == [1, 2, 3]


def test_runs_from_several_threads_are_apart() -> None:
    failures: list[BaseException] = []

    def many(first: int) -> None:
        async def all_of_them() -> None:
            async with anyio.create_task_group() as group:
                for task in range(first, first + 50):
                    group.start_soon(AGENT.run, task)

        try:
            anyio.run(all_of_them)
        except BaseException as error:
            failures.append(error)

    many(1000)  # the first failure imports its path, for which several threads would wait
    threads = [threading.Thread(target=many, args=(start,)) for start in range(0, 400, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


async def test_a_run_inside_a_run_is_its_own_and_counts_in_the_outer_one() -> None:
    inner_runs: list[Run] = []

    async def inner(task: str, *, run: Run) -> str:
        assert len(run.trajectory) == 0
        run.record_step(Step(action="inner"))
        run.record_usage(Usage(input_tokens=7))
        inner_runs.append(run)
        if run.attempt == 1:
            raise ConnectionError("inner fault")
        return task

    inner_agent = Agent(inner, RETRY, classifier=Says())

    async def outer(task: str, *, run: Run) -> str:
        run.record_step(Step(action="outer"))
        result = await inner_agent.run(task + "!")
        assert triage.current_run() is run
        assert [step.action for step in run.trajectory] == ["outer", "call"]
        assert run.usage.input_tokens == 14
        return result

    agent = Agent(outer)
    assert await agent.run("t", run_id="outer-run") == "t!"
    assert [run.attempt for run in inner_runs] == [1, 2]
    (started, *_rest) = await inner_agent.store.read(inner_runs[0].run_id)
    assert started.parent == "outer-run"  # type: ignore[union-attr] # the first event is RunStarted


async def test_an_inner_run_that_gave_up_is_not_tried_again_by_the_outer_one() -> None:
    calls: list[str] = []

    async def inner(task: str) -> None:
        calls.append(task)
        raise ConnectionError("down")

    inner_agent = Agent(inner, FailurePolicy(default=triage.Escalate("look")))

    async def outer(task: str) -> None:
        await inner_agent.run(task)

    with pytest.raises(triage.TriageEscalationError) as caught:
        await Agent(outer).run("t")
    assert calls == ["t"]
    assert caught.value.diagnosis is not None
    assert caught.value.diagnosis.failure_type is triage.FailureType.EXTERNAL_FAULT
    assert caught.value.diagnosis.severity is triage.Severity.CRITICAL


async def test_ids_of_one_process_differ_in_their_first_eight_digits() -> None:
    async def names_itself(task: str, *, run: Run) -> str:
        return run.run_id

    agent = Agent(names_itself)
    ids = [await agent.run("t") for _ in range(100)]
    assert len({run_id[:8] for run_id in ids}) == 100


async def test_threads_of_one_attempt_record_without_losing_a_step() -> None:
    def many(run: Run) -> None:
        for _ in range(500):
            run.record_step(Step(action="t"))

    async def works(task: str, *, run: Run) -> list[int | None]:
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(anyio.to_thread.run_sync, many, run)
        return [step.index for step in run.trajectory]

    agent = Agent(works)
    assert await agent.run("t", run_id="threads") == list(range(2000))
    events = await agent.store.read("threads")
    assert [event.seq for event in events] == list(range(len(events)))


async def test_a_recorded_value_is_not_changed_by_its_owner_afterwards() -> None:
    async def works(task: str, *, run: Run) -> None:
        payload: dict[str, Any] = {"list": [1]}
        run.record_step(Step(action="a", tool_input=payload, tool_output=payload["list"]))
        run.update_state({"kept": payload})
        payload["list"].append("changed")
        assert run.trajectory[0].tool_input == {"list": [1]}
        assert run.trajectory[0].tool_output == [1]
        assert run.state == {"kept": {"list": [1]}}

    await Agent(works).run("t")


async def test_finished_runs_beyond_those_to_keep_leave_memory() -> None:
    async def works(task: int) -> int:
        return task

    agent = Agent(works, store=triage.stores.MemoryStore(keep=10))
    for task in range(15):
        await agent.run(task)
    assert len(await agent.store.runs()) == 10
