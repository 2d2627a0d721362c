"""Hints, mistakes and repeated failures are not lost in silence: they are refused or said once."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from support import FakeEnvironment, always, escalation_of
from tables import table

import triage
from triage import (
    Agent,
    Checks,
    Escalate,
    FailureContext,
    FailurePolicy,
    FailureType,
    Limits,
    Retry,
    Step,
    TriageError,
    UsageError,
)
from triage.core import Cause

pytestmark = pytest.mark.anyio


def context_of(error: TriageError) -> FailureContext:
    assert error.context is not None
    return error.context


class Failed(Exception):
    """The agent's own."""


# Hints ----------------------------------------------------------------------------------------------
async def test_a_hint_reaches_a_function_that_takes_any_keyword() -> None:
    seen: list[dict[str, Any]] = []

    async def agent(task: str, **options: Any) -> str:
        seen.append(options)
        if len(seen) == 1:
            raise Failed
        return "done"

    run = Agent(agent, always(Retry(hint="Look again.")))
    assert await run.run("task", depth=3) == "done"
    assert seen == [{"depth": 3}, {"depth": 3, "_triage_hint": "Look again."}]


async def test_a_function_of_any_keyword_may_give_them_on_to_one_that_names_its_own() -> None:
    tries: list[int] = []

    async def inner(task: str, *, depth: int) -> str:
        tries.append(depth)
        if len(tries) == 1:
            raise Failed
        return "done"

    async def agent(task: str, *, _triage_hint: str | None = None, **options: Any) -> str:
        return await inner(task, **options)

    assert await Agent(agent, always(Retry(hint="Again."))).run("task", depth=2) == "done"


async def test_a_hint_that_nobody_can_receive_is_said_once(caplog: Any) -> None:
    tries: list[str] = []

    async def deaf(task: str) -> str:
        tries.append(task)
        if len(tries) < 4:
            raise Failed(str(len(tries)))
        return "done"

    with caplog.at_level(logging.WARNING, "triage"):
        assert await Agent(deaf, always(Retry(hint="Look again."))).run("task") == "done"
    said = [r.getMessage() for r in caplog.records if "_triage_hint" in r.getMessage()]
    assert len(said) == 1
    assert "deaf" in said[0]


@table("way", ["parameter", "guidance", "run parameter"])
async def test_a_hint_that_is_received_is_not_said_to_be_lost(way: str, caplog: Any) -> None:
    tries: list[str | None] = []

    def work(hint: str | None) -> str:
        tries.append(hint)
        if len(tries) == 1:
            raise Failed
        return "done"

    async def parameter(task: str, *, _triage_hint: str | None = None) -> str:
        return work(_triage_hint)

    async def guidance(task: str) -> str:
        told = triage.current_run().guidance
        return work(None if told is None else told.hint)

    async def handle(task: str, *, run: Any) -> str:
        return work(run.guidance and run.guidance.hint)

    ways: dict[str, Any] = {"parameter": parameter, "guidance": guidance, "run parameter": handle}
    agent = ways[way]
    with caplog.at_level(logging.WARNING, "triage"):
        assert await Agent(agent, always(Retry(hint="Look again."))).run("task") == "done"
    assert tries == [None, "Look again."]
    assert not [r for r in caplog.records if "_triage_hint" in r.getMessage()]


# Mistakes in what is given ----------------------------------------------------------------------------
@table("written", ["rate_limitd", "Time_outs", "not_fond", "timout"])
def test_a_misspelt_cause_is_refused_with_the_one_that_is_meant(written: str) -> None:
    with pytest.raises(UsageError, match=r"causes.*did you mean"):
        FailurePolicy(causes={written: Retry()})


@table("own", ["out_of_stock", "acme.seat_taken", "kyc", "limit_of_customer"])
def test_a_cause_of_ones_own_is_taken(own: str) -> None:
    assert own in FailurePolicy(causes={own: Retry()}).causes


@table("name", ["TIMEOUT", "timeout", "TimeOut", Cause.TIMEOUT])
def test_a_cause_is_taken_by_its_name_in_any_case(name: str) -> None:
    assert FailurePolicy(causes={name: Retry()}).causes.keys() == {Cause.TIMEOUT}


async def test_an_observer_that_raises_at_every_event_is_said_once(caplog: Any) -> None:
    calls: list[Any] = []

    def broken(event: Any) -> None:
        calls.append(event)
        raise KeyError("gone")

    async def agent(task: str, *, record_step: Any) -> str:
        for n in range(20):
            record_step(Step(action=f"step {n}"))
        return "done"

    with caplog.at_level(logging.WARNING, "triage"):
        assert await Agent(agent, observers=[broken]).run("task") == "done"
    said = [r for r in caplog.records if "broken" in r.getMessage()]
    assert len(said) == 1
    assert len(calls) > 20


async def test_observers_and_their_errors_are_told_apart(caplog: Any) -> None:
    def odd(event: Any) -> None:
        raise KeyError("gone")

    def other(event: Any) -> None:
        raise (ValueError if type(event).__name__ == "RunStarted" else TypeError)("bad")

    async def agent(task: str) -> str:
        return "done"

    with caplog.at_level(logging.WARNING, "triage"):
        await Agent(agent, observers=[odd, other]).run("task")
    assert len([r for r in caplog.records if "observer" in r.getMessage()]) == 3


# Policies -------------------------------------------------------------------------------------------
@table("key", ["LOOP_DETECTED", "loop_detected", "Loop_Detected", FailureType.LOOP_DETECTED])
def test_a_failure_type_is_taken_from_a_dict_by_member_and_by_name_in_any_case(key: Any) -> None:
    policy = FailurePolicy.from_dict({key: "replan"})
    assert list(policy.strategies) == [FailureType.LOOP_DETECTED]


def test_one_failure_type_twice_in_a_dict_is_refused() -> None:
    with pytest.raises(UsageError, match=r"LOOP_DETECTED.*twice"):
        FailurePolicy.from_dict({"LOOP_DETECTED": "replan", "loop_detected": "abort"})


def test_none_in_a_dict_is_no_strategy() -> None:
    policy = FailurePolicy.from_dict({"UNKNOWN": None, "default": "escalate"})
    assert policy.strategies == {}


def decide(context: Any) -> Any:
    return Retry() if context.attempt < 3 else Escalate("enough")


async def decide_later(context: Any) -> Any:
    return decide(context)


@table("decides", [decide, decide_later])
@table("is_object", [True, False])
async def test_a_policy_may_be_a_function_or_any_object_with_dispatch(
    decides: Any, *, is_object: bool
) -> None:
    class Mine:
        dispatch = staticmethod(decides)

    async def agent(task: str) -> str:
        raise Failed

    caught = await escalation_of(
        Agent(agent, Mine() if is_object else decides).run("task"), match="enough"
    )
    assert context_of(caught).attempt == 3


@table("answer", ["raises", "junk", "class"])
async def test_a_policy_of_ones_own_that_fails_escalates_with_the_error_kept(answer: str) -> None:
    class Mine:
        def dispatch(self, context: Any) -> Any:
            if answer == "raises":
                raise KeyError("gone")
            return Retry if answer == "class" else 7

    async def agent(task: str) -> str:
        raise Failed("the first")

    caught = await escalation_of(Agent(agent, Mine()).run("task"))
    assert isinstance(caught.__cause__, Failed)


# Loops over attempts -----------------------------------------------------------------------------------
@table("attempts", [10, None, 100])
async def test_six_identical_failed_attempts_are_a_loop(attempts: int | None) -> None:
    tries: list[str] = []

    async def agent(task: str) -> str:
        tries.append(task)
        raise Failed("the same again")

    seen: list[FailureType] = []

    def strategy(context: Any) -> Any:
        seen.append(context.failure_type)
        return Escalate("a loop") if context.failure_type is FailureType.LOOP_DETECTED else Retry()

    caught = await escalation_of(
        Agent(agent, always(strategy), limits=Limits(attempts=attempts)).run("task"), match="a loop"
    )
    assert len(tries) == 6
    assert context_of(caught).diagnosis.failure_type is FailureType.LOOP_DETECTED
    assert "the same again" in str(caught)


async def test_a_limit_of_six_attempts_names_the_loop_too() -> None:
    async def agent(task: str) -> str:
        raise Failed("the same again")

    caught = await escalation_of(
        Agent(agent, always(Retry()), limits=Limits(attempts=6)).run("task")
    )
    assert context_of(caught).diagnosis.failure_type is FailureType.LOOP_DETECTED


async def test_failures_that_differ_are_no_loop() -> None:
    tries: list[str] = []

    async def agent(task: str, *, record_step: Any) -> str:
        tries.append(task)
        record_step(
            Step(
                action="look",
                tool_called="search",
                tool_input={"page": len(tries)},
                tool_output=len(tries),
            )
        )
        if len(tries) < 9:
            raise Failed("the same again")
        return "done"

    assert await Agent(agent, always(Retry())).run("task") == "done"


async def test_an_outage_that_is_waited_for_is_no_loop() -> None:
    tries: list[str] = []

    async def agent(task: str) -> str:
        tries.append(task)
        if len(tries) < 9:
            raise ConnectionError("refused")
        return "done"

    policy = always(lambda context: Retry(delay=1.0))
    assert await Agent(agent, policy, environment=FakeEnvironment()).run("task") == "done"


# A limit keeps the failure under it ---------------------------------------------------------------------
async def test_a_breached_limit_says_what_failed_under_it() -> None:
    async def agent(task: str) -> str:
        raise Failed("the receipt is missing")

    caught = await escalation_of(
        Agent(agent, always(Retry()), limits=Limits(attempts=2)).run("task")
    )
    assert "the receipt is missing" in str(caught)
    assert "unknown" in str(caught)


async def test_a_breached_limit_keeps_the_words_of_a_refused_result() -> None:
    async def agent(task: str) -> str:
        return "answer"

    checks = Checks(verify=lambda result: "no total given")
    caught = await escalation_of(
        Agent(agent, always(Retry()), limits=Limits(attempts=2), checks=checks).run("task")
    )
    assert "2 of 2 attempts" in str(caught)
    assert "no total given" in str(caught)
