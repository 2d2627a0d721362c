"""A wrong value given inside of a run is refused at once, in words that name it, and loses nothing.

What an agent function gives its handles ends the run as the caller's mistake: it is never diagnosed and
never tried again. What a strategy or a classifier gives becomes an escalation or an unknown diagnosis.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from support import Says
from test_bad_input import NAN, any_, does

import triage
from triage import (
    Agent,
    Cause,
    Diagnosis,
    Durability,
    Escalate,
    FailurePolicy,
    FailureType,
    MemoryStore,
    Replan,
    Resume,
    Retry,
    Rollback,
    Run,
    Step,
    Suspend,
    TriageEscalationError,
    TriageSuspendedError,
    UsageError,
    fold,
)
from triage.events import AttemptStarted, RunFinished, StepRecorded

pytestmark = pytest.mark.anyio

DOWN = Diagnosis(FailureType.EXTERNAL_FAULT, cause=Cause.CONNECTION, classifier="Says")


class Unasked:
    """A classifier that must not be asked: a caller's mistake is no failure of the agent."""

    def classify(self, trajectory: Any, task: Any) -> Diagnosis:
        raise AssertionError("asked")


@triage.tool(effect="once")
async def pay(card: Any, cents: int = 1) -> None:
    raise AssertionError("ran")


# Inside of the agent function ---------------------------------------------------------------------


@does(
    (lambda run: run.record_step("search"), "record_step()", "a Step, not str", "Step(action=…)"),
    (lambda run: run.record_step({"action": "a"}), "record_step()", "not dict", "Step(action=…)"),
    (lambda run: run.record_step(None), "record_step()", "NoneType", "Step(action=…)"),
    (lambda run: run.update_state([1]), "update_state()", "a mapping, not list", '{"key": …}'),
    (lambda run: run.update_state("fare"), "update_state()", "not str ('fare')", '{"key": …}'),
    (lambda run: run.record_usage({"tokens": 1}), "record_usage()", "a Usage, not dict"),
    (lambda run: run.record_usage(12), "record_usage()", "a Usage, not int (12)"),
    (lambda run: run.subgoals("book"), "subgoals()", "list of names", "[name]"),
    (lambda run: run.subgoals(["a", 2]), "subgoals()", "text", "2"),
    (lambda run: run.subgoals([""]), "subgoals()", "text", "''"),
    (lambda run: run.subgoals(3), "subgoals()", "int"),
    (lambda run: run.complete("pay"), "complete('pay')", "no such subgoal", "declared are: book"),
    (lambda run: run.complete(["book"]), "complete(['book'])", "no such subgoal"),
    (lambda run: run.compensator("refund"), "compensator()", "a function, not str"),
    (lambda run: run.call("pay"), "run.call()", "a function, not str"),
    (lambda run: run.call(pay, object()), "card of type object", 'ignore=("card",)', "key="),
    (lambda run: pay({"at": [object()]}), "card['at'][0] of type object", 'ignore=("card",)'),
    (lambda run: Agent(good).run("t", town=1), "no parameter town", "none but the task"),
)
async def test_a_handle_used_wrongly_ends_the_run_at_once(do: Any, words: list[str]) -> None:
    await ended_by(do, words)


async def good(task: Any, *, run: Run) -> None:
    raise AssertionError("called")


def _ring() -> dict[str, Any]:
    ring: dict[str, Any] = {}
    ring["ring"] = ring
    return ring


class Odd:
    """No JSON value."""


@does(
    (lambda: {"a": {"b": {1, 2}}}, "state['a']['b']", "type set", "lists and dicts"),
    (lambda: {"raw": b"x"}, "state['raw']", "type bytes", "keep text"),
    (lambda: {"list": [1, {"n": NAN}]}, "state['list'][1]['n']", "type float"),
    (lambda: {"n": float("inf")}, "state['n']", "type float"),
    (lambda: {"a": {"keys": {1: "one"}}}, "state['a']['keys']", "type dict", "keys are text"),
    (lambda: {2: "b"}, "state", "type dict", "keys are text"),
    (lambda: {"a": [Odd()]}, "state['a'][0]", "type Odd"),
    (lambda: {"at": dt.date(2024, 1, 1)}, "state['at']", "type date"),
    (lambda: {"t": ({"s": {1}},)}, "state['t'][0]['s']", "type set"),
    (lambda: {"f": len}, "state['f']", "type builtin_function_or_method"),
    (lambda: {"kind": FailureType.UNKNOWN}, "state['kind']", "type FailureType", "keep text"),
    (lambda: {"ok": 1, "first": {1}, "second": b""}, "state['first']", "type set"),
    (_ring, "type dict", "cannot be restored"),
)  # fmt: skip
async def test_state_that_cannot_be_restored_is_refused_with_its_place(
    do: Any, words: list[str]
) -> None:
    state = await ended_by(lambda run: run.update_state(do()), ["cannot be restored", *words])
    assert state.state == {"fare": "f1"}


async def ended_by(do: Callable[[Any], Any], words: list[str]) -> triage.RunState:
    """The run that this mistake ended: its journal has all that came before, and nothing after."""
    calls = 0

    async def agent(_task: Any, *, run: Run) -> None:
        nonlocal calls
        calls += 1
        run.subgoals(["book"])
        run.record_step(Step(action="before"))
        run.update_state({"fare": "f1"})
        answer = do(run)
        if hasattr(answer, "__await__"):
            await answer
        raise AssertionError("went on")

    store = MemoryStore()
    policy = FailurePolicy(default=Retry())
    with pytest.raises(UsageError) as error:
        await Agent(agent, policy, classifier=Unasked(), store=store).run("t", run_id="r")
    for word in words:
        assert word in str(error.value)
    journal = await store.read("r")
    state = fold(journal)
    assert calls == 1
    assert [step.action for step in state.steps] == ["before"]
    assert state.status == "error"
    assert state.error is not None
    assert state.error.type_name == "UsageError"
    assert isinstance(journal[-1], RunFinished)
    return state


async def test_a_mistake_that_the_agent_catches_itself_ends_nothing() -> None:
    async def agent(_task: Any, *, run: Run, update_state: Any) -> dict[str, Any]:
        try:
            update_state({"a": {1}})
        except UsageError:
            update_state({"a": [1]})
        return run.state

    assert await Agent(agent).run("t") == {"a": [1]}


async def test_a_run_id_that_is_taken_is_refused_before_the_function_is_called() -> None:
    calls: list[Any] = []
    store = MemoryStore()

    async def agent(task: Any) -> None:
        calls.append(task)

    wrapped = Agent(agent, store=store)
    await wrapped.run("first", run_id="r")
    journal = await store.read("r")
    with pytest.raises(UsageError, match="run_id r is taken; choose another"):
        await wrapped.run("second", run_id="r")
    assert calls == ["first"]
    assert await store.read("r") == journal


# Strategies ---------------------------------------------------------------------------------------


def no_answer(_context: Any) -> Any:
    return None


def says_retry(_context: Any) -> Any:
    return "retry"


def a_class(_context: Any) -> Any:
    return Retry


async def awaits_nothing(_context: Any) -> Any:
    return None


def breaks(_context: Any) -> Any:
    raise LookupError("no plan")


class Chooser:
    """A strategy with a name of its own."""

    def __call__(self, _context: Any) -> Any:
        return 3


@does(
    (lambda: no_answer, "the strategy no_answer answered NoneType", "no action"),
    (lambda: says_retry, "the strategy says_retry answered str", "no action"),
    (lambda: a_class, "the strategy a_class answered type", "no action"),
    (lambda: awaits_nothing, "the strategy awaits_nothing answered NoneType"),
    (Chooser, "the strategy Chooser answered int", "no action"),
    (lambda: breaks, "the strategy breaks raised LookupError('no plan')", "test_bad_input_runs.py"),
    (lambda: None, "no strategy for external_fault", "EXTERNAL_FAULT=… or default=…"),
    (lambda: Rollback(0), "Rollback.checkpoint_id 0", "no checkpoint", "record_step"),
    (lambda: Rollback(99), "Rollback.checkpoint_id 99", "no checkpoint", "None"),
    (lambda: Rollback(10**30), "Rollback.checkpoint_id 1000", "no checkpoint"),
    (lambda: Retry(inject={"model": 1}), "Retry.inject names model", "does not take"),
    (lambda: Retry(inject={"task": 1}), "Retry.inject names task", "does not take"),
    (Resume, "Resume() needs a subgoal", "none is declared"),
)
async def test_an_answer_that_cannot_be_performed_escalates_and_says_whose_it_was(
    do: Any, words: list[str]
) -> None:
    attempts: list[int] = []

    async def agent(_task: Any, *, run: Run) -> None:
        attempts.append(run.attempt)
        run.record_step(Step(action="before"))
        raise ConnectionError("down")

    store = MemoryStore()
    policy = FailurePolicy(default=do())
    with pytest.raises(TriageEscalationError) as error:
        await Agent(agent, policy, classifier=Says(DOWN), store=store).run("t", run_id="r")
    for word in words:
        assert word in str(error.value)
    assert error.value.diagnosis == DOWN
    assert isinstance(error.value.__cause__, ConnectionError)
    assert error.value.context is not None
    assert [step.action for step in error.value.context.trajectory] == ["before"]
    assert attempts == [1]
    state = fold(await store.read("r"))
    assert state.status == "escalated"
    assert isinstance(state.history[0].action, Escalate)


# Classifiers --------------------------------------------------------------------------------------


class Answers:
    """A classifier that gives what it is told to make."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def classify(self, trajectory: Any, task: Any) -> Any:
        return self.make()


class Unprintable:
    """Its repr raises."""

    def __repr__(self) -> str:
        raise RuntimeError


async def later(value: Any) -> Any:
    return value


@does(
    (lambda: None, "NoneType", "Diagnosis or a FailureType"),
    (lambda: "rate limited", "str", "'rate limited'", "Diagnosis or a FailureType"),
    (lambda: 3, "int", "3"),
    (lambda: {"failure_type": "unknown"}, "dict"),
    (lambda: (DOWN,), "tuple"),
    (lambda: FailureType, "EnumType", "FailureType"),
    (Unprintable, "Unprintable", "no repr"),
    (lambda: later(None), "NoneType", "Diagnosis"),
    (lambda: Diagnosis(any_("tired")), "ValueError", "Diagnosis.failure_type", "'tired'"),
    (lambda: 1 / 0, "ZeroDivisionError", "division by zero"),
)
async def test_an_answer_that_is_no_diagnosis_makes_it_unknown_and_says_why(
    do: Any, words: list[str]
) -> None:
    async def agent(_task: Any, *, record_step: Any) -> None:
        record_step(Step(action="before"))
        raise ConnectionError("down")

    store = MemoryStore()
    policy = FailurePolicy(default=Escalate())
    with pytest.raises(TriageEscalationError) as error:
        await Agent(agent, policy, classifier=Answers(do), store=store).run("t", run_id="r")
    diagnosis = error.value.diagnosis
    assert diagnosis is not None
    assert diagnosis.failure_type is FailureType.UNKNOWN
    assert (diagnosis.confidence, diagnosis.classifier) == (0.0, "Answers")
    (evidence,) = diagnosis.evidence
    for word in ("Answers", *words):
        assert word in evidence.text
    assert isinstance(error.value.__cause__, ConnectionError)
    events = [type(event) for event in await store.read("r")]
    assert events[1:3] == [AttemptStarted, StepRecorded]


# Answers to a suspended run -----------------------------------------------------------------------


async def suspended(*, doubt: bool) -> tuple[Agent[Any], str, list[int]]:
    """An agent whose run waits, its token, and the attempts so far."""
    attempts: list[int] = []

    @triage.tool(effect="once")
    async def charge() -> None:
        raise TimeoutError

    async def agent(_task: Any, *, run: Run) -> str:
        attempts.append(run.attempt)
        if run.attempt == 1:
            if doubt:
                await charge()
            raise ConnectionError
        return "done"

    policy = FailurePolicy(default=Suspend("go on?"))
    wrapped = Agent(agent, policy, classifier=Says(DOWN), durability=Durability())
    with pytest.raises(TriageSuspendedError) as error:
        await wrapped.run("t")
    return wrapped, error.value.token, attempts


@does(
    (lambda: None, "resume()", "Retry, Replan", "not NoneType"),
    (lambda: "yes", "resume()", "an action", "not str"),
    (lambda: Retry, "resume()", "an action", "not type"),
    (Suspend, "resume()", "an action", "not Suspend"),
    (triage.happened, "waits for an action", "no call of it is in doubt"),
    (triage.rerun, "waits for an action", "no call of it is in doubt"),
    (lambda: Rollback(99), "Rollback.checkpoint_id 99", "no checkpoint"),
    (lambda: Retry(inject={"model": 1}), "Retry.inject names model", "does not take"),
    (Resume, "Resume() needs a subgoal"),
)
async def test_an_answer_that_does_not_fit_is_refused_and_the_token_stays_good(
    do: Any, words: list[str]
) -> None:
    agent, token, attempts = await suspended(doubt=False)
    with pytest.raises(UsageError) as error:
        await agent.resume(token, do())
    for word in words:
        assert word in str(error.value)
    assert attempts == [1]
    assert await agent.resume(token, Retry()) == "done"


@does(
    (Retry, "did charge", "happened(result)", "not Retry"),
    (Replan, "did charge", "rerun()", "not Replan"),
    (Rollback, "did charge", "Escalate()", "not Rollback"),
    (lambda: True, "resume()", "happened(result)", "not bool"),
)  # fmt: skip
async def test_a_call_in_doubt_takes_an_answer_about_the_call_only(
    do: Any, words: list[str]
) -> None:
    agent, token, attempts = await suspended(doubt=True)
    with pytest.raises(UsageError) as error:
        await agent.resume(token, do())
    for word in words:
        assert word in str(error.value)
    assert attempts == [1]
    assert await agent.resume(token, triage.happened()) == "done"


@does(
    (lambda: "0" * 32, "no run of this agent waits", "TriageSuspendedError"),
    (lambda: "", "no run of this agent waits"),
    (lambda: "\ud800", "no run of this agent waits"),
    (lambda: 3, "a token is text", "not int"),
    (lambda: None, "a token is text", "not NoneType"),
)
async def test_a_token_that_is_none_is_refused(do: Any, words: list[str]) -> None:
    agent, token, attempts = await suspended(doubt=False)
    with pytest.raises(UsageError) as error:
        await agent.resume(do(), Retry())
    for word in words:
        assert word in str(error.value)
    assert attempts == [1]
    assert await agent.resume(token, Retry()) == "done"
