"""What ends or stops a run from inside: its limits, and questions to a person."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import pytest
from recordings import Recording
from support import RETRY, FakeEnvironment, Says, always, in_turn

import triage
from triage import (
    Abort,
    Agent,
    Cause,
    Diagnosis,
    FailurePolicy,
    FailureType,
    Limits,
    Resume,
    Retry,
    Rollback,
    Run,
    Step,
    Suspend,
    TriageAbortError,
    TriageEscalationError,
    TriageSuspendedError,
    Usage,
)

pytestmark = pytest.mark.anyio


async def test_attempts_are_limited() -> None:
    fn = Recording(100)
    with pytest.raises(TriageEscalationError, match="attempts"):
        await Agent(fn, RETRY, classifier=Says(), limits=Limits(attempts=4)).run("t")
    assert len(fn.told) == 4


async def test_a_delay_beyond_the_deadline_is_not_slept() -> None:
    env = FakeEnvironment()
    agent = Agent(
        Recording(),
        always(Retry(delay=60)),
        classifier=Says(),
        limits=Limits(seconds=30),
        environment=env,
    )
    with pytest.raises(TriageEscalationError, match="seconds"):
        await agent.run("t")
    assert env.slept == []


async def test_a_step_over_the_limit_interrupts_whatever_the_agent_catches() -> None:
    recorded: list[int] = []

    async def stubborn(task: str, *, record_step: Any) -> str:
        for number in range(100):
            try:
                record_step(Step(action="again"))
                recorded.append(number)
            except Exception:  # noqa: BLE001 - an agent that swallows everything
                continue
        return "never"

    with pytest.raises(TriageEscalationError) as caught:
        await Agent(stubborn, limits=Limits(steps=5)).run("t")
    assert recorded == [0, 1, 2, 3, 4]
    assert caught.value.diagnosis is not None
    assert caught.value.diagnosis.cause is Cause.LIMIT


async def test_tokens_over_the_limit_interrupt_a_parallel_branch_too() -> None:
    async def branch(name: str, run: Run) -> None:
        if name == "spender":
            run.record_usage(Usage(input_tokens=1000))
        await anyio.sleep_forever()

    async def parallel(task: str, *, run: Run) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(branch, "sleeper", run)
            group.start_soon(branch, "spender", run)

    with pytest.raises(TriageEscalationError) as caught:
        await Agent(parallel, limits=Limits(tokens=999)).run("t")
    assert caught.value.context is not None
    assert caught.value.context.usage.input_tokens == 1000


async def test_an_attempt_out_of_time_has_failed_although_it_returns() -> None:
    attempts: list[int] = []

    async def slow_once(task: str, *, run: Run) -> str:
        attempts.append(run.attempt)
        if run.attempt == 1:
            try:
                await anyio.sleep_forever()
            finally:
                return "swallowed the cancellation"  # noqa: B012 - an agent that does not let go
        return "done"

    agent = Agent(slow_once, RETRY, limits=Limits(attempt_seconds=0.05))
    assert await agent.run("t") == "done"
    assert attempts == [1, 2]


async def test_the_deadline_of_the_run_ends_it() -> None:
    async def slow(task: str) -> None:
        await anyio.sleep_forever()

    with pytest.raises(TriageEscalationError) as caught:
        await Agent(slow, RETRY, limits=Limits(seconds=0.05)).run("t")
    assert caught.value.diagnosis is not None
    assert caught.value.diagnosis.cause is Cause.LIMIT
    assert "seconds" in caught.value.diagnosis.technical_details


# Suspend ------------------------------------------------------------------------------------------


async def suspended(agent: Agent[Any]) -> TriageSuspendedError:
    with pytest.raises(TriageSuspendedError) as caught:
        await agent.run("t")
    return caught.value


async def test_a_token_resumes_exactly_once() -> None:
    fn = Recording()
    agent = Agent(fn, always(Suspend("how?", {"channel": "ops"})), classifier=Says())
    error = await suspended(agent)
    assert error.question == "how?"
    assert isinstance(error.__cause__, ConnectionError)
    assert [info.status for info in await agent.store.runs()] == ["suspended"]
    assert await agent.resume(error.token, Retry("by a person")) == "done"
    assert fn.told[1]["hint"] == "by a person"
    with pytest.raises(triage.AlreadyResumed):
        await agent.resume(error.token, Retry())
    assert len(fn.told) == 2


async def test_of_two_concurrent_answers_one_wins() -> None:
    fn = Recording()
    agent = Agent(fn, always(Suspend()), classifier=Says())
    error = await suspended(agent)
    outcomes: list[str] = []

    async def answer() -> None:
        try:
            outcomes.append(await agent.resume(error.token, Retry()))
        except triage.AlreadyResumed:
            outcomes.append("late")

    async with anyio.create_task_group() as group:
        group.start_soon(answer)
        group.start_soon(answer)
    assert sorted(outcomes) == ["done", "late"]


async def test_an_answer_that_does_not_fit_leaves_the_token_good() -> None:
    agent = Agent(Recording(), always(Suspend()), classifier=Says())
    error = await suspended(agent)
    for wrong in (Suspend(), "retry", None, triage.happened(1), Rollback(404), Resume()):
        with pytest.raises(triage.UsageError):
            await agent.resume(error.token, wrong)  # type: ignore[arg-type] # on purpose
    with pytest.raises(triage.UsageError, match="no run"):
        await agent.resume("other", Retry())
    assert await agent.resume(error.token, Retry()) == "done"


async def test_a_person_may_abort() -> None:
    agent = Agent(Recording(), always(Suspend()), classifier=Says())
    error = await suspended(agent)
    with pytest.raises(TriageAbortError, match="no more"):
        await agent.resume(error.token, Abort("no more"))
    assert [info.status for info in await agent.store.runs()] == ["aborted"]


async def test_waiting_for_a_person_uses_none_of_the_runs_time() -> None:
    env = FakeEnvironment()
    agent = Agent(
        Recording(3),
        always(in_turn(Suspend(), Retry())),
        classifier=Says(),
        environment=env,
        limits=Limits(seconds=10),
    )
    error = await suspended(agent)
    env.now += 100_000
    assert await agent.resume(error.token, Retry(delay=1)) == "done"


async def test_a_policy_may_answer_by_cause() -> None:
    says = Says(replace(Diagnosis(FailureType.EXTERNAL_FAULT), cause=Cause.QUOTA_EXHAUSTED))
    policy = FailurePolicy(default=Retry(), causes={Cause.QUOTA_EXHAUSTED: Abort("no money")})
    with pytest.raises(TriageAbortError, match="no money"):
        await Agent(Recording(), policy, classifier=says).run("t")
