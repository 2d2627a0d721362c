"""What runs do about exceptions that say what would help."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import FakeEnvironment, Says

import triage
from triage import (
    Agent,
    Diagnosis,
    Escalate,
    FailurePolicy,
    FailureType,
    Replan,
    Retry,
    Trajectory,
    TriageError,
    TriageEscalationError,
    UsageError,
)
from triage.classifiers import HybridClassifier
from triage.core import Category, Cause, Recovery, TriageFatalError, faults
from triage.core.capture import capture
from triage.strategies import replan

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Failing:
    """An agent that raises these errors, one an attempt, then answers; keeps what it was told."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.told: list[str | None] = []

    async def __call__(self, task: str, *, _triage_hint: str | None = None) -> str:
        self.told.append(_triage_hint)
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def wrapped(fault: BaseException) -> BaseException:
    error = RuntimeError("the step failed")
    error.__cause__ = fault
    return error


async def test_infrastructure_is_tried_again_as_it_is_after_a_while() -> None:
    env, fn = FakeEnvironment(), Failing(*(faults.ConnectivityFault(host="db") for _ in range(3)))
    assert await Agent(fn, environment=env).run("x") == "done"
    assert fn.told == [None, None, None, None]
    assert env.slept == [0.75, 1.5, 3.0]


async def test_the_wait_that_a_fault_asks_for_is_kept() -> None:
    env, fn = FakeEnvironment(), Failing(faults.RateLimited("slow down", retry_after_s=40))
    await Agent(fn, environment=env).run("x")
    assert env.slept == [40]


async def test_generated_code_is_generated_anew_told_what_was_wrong() -> None:
    fault = faults.CodeSyntaxInvalid("line 3: '(' was never closed", details=["3: x = (1"])
    env, fn = FakeEnvironment(), Failing(fault)
    assert await Agent(fn, environment=env).run("x") == "done"
    assert env.slept == []
    hint = fn.told[1] or ""
    assert "line 3: '(' was never closed" in hint
    assert "3: x = (1" in hint
    assert "anew" in hint


async def test_data_that_is_not_there_asks_for_another_plan() -> None:
    fault = faults.InvalidContextKey(key="wether", available=["weather", "prices"])
    fn = Failing(fault)
    actions: list[Any] = []
    agent = Agent(fn, observers=[actions.append], environment=FakeEnvironment())
    assert await agent.run("x") == "done"
    assert any(isinstance(getattr(event, "action", None), Replan) for event in actions)
    assert "There is: weather, prices." in (fn.told[1] or "")


async def test_other_means_are_asked_for_by_another_plan_in_a_plain_run() -> None:
    fn = Failing(faults.ReclassificationRequired("no tool for maps"))
    assert await Agent(fn, environment=FakeEnvironment()).run("x") == "done"
    assert "no tool for maps" in (fn.told[1] or "")


async def test_what_needs_a_person_is_not_tried_again() -> None:
    ending: list[tuple[faults.Fault, type[TriageError]]] = [
        (faults.WorkflowFault("two budgets fit"), TriageEscalationError),
        (faults.AmbiguousInput("which Paris?"), TriageEscalationError),
        (faults.EffectUnverified("paid?"), TriageEscalationError),
        (faults.ConfigurationFault(setting="API_URL"), TriageEscalationError),
        (faults.PolicyRefused(rule="R7"), TriageFatalError),
    ]
    for fault, ends in ending:
        for raised in (fault, wrapped(fault)):
            fn = Failing(raised, raised)
            with pytest.raises(ends) as caught:
                await Agent(fn, environment=FakeEnvironment()).run("x")
            assert len(fn.told) == 1
            assert caught.value.diagnosis is not None
            assert caught.value.diagnosis.user_message == fault.user_message


async def test_no_policy_and_no_classifier_gets_around_a_refusal() -> None:
    strategies: list[Any] = [Retry(), Replan(), replan("Find another way.")]
    says = [None, Says(FailureType.EXTERNAL_FAULT), Says(Diagnosis(FailureType.GOAL_DRIFT))]
    for strategy, classifier in itertools.product(strategies, says):
        fn = Failing(*(wrapped(faults.PolicyRefused("no write access")) for _ in range(3)))
        policy = FailurePolicy(default=strategy, causes={Cause.GUARDRAIL: strategy})
        agent = Agent(fn, policy, classifier=classifier, environment=FakeEnvironment())
        with pytest.raises(TriageFatalError):
            await agent.run("x")
        assert fn.told == [None]


@given(chain=st.lists(st.sampled_from(list(Category)), min_size=1, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_what_is_done_follows_the_gravest_of_a_chain(chain: list[Category]) -> None:
    import anyio

    error: BaseException | None = None
    for category in reversed(chain):
        fault = type("Some", (faults.Fault,), {"category": category})("x")
        fault.__cause__ = error
        error = fault
    assert error is not None
    fn = Failing(error)
    gravest = max(chain, key=list(Category).index)
    agent = Agent(fn, environment=FakeEnvironment())
    if gravest in (Category.CODE, Category.DATA, Category.INFRASTRUCTURE):
        assert anyio.run(agent.run, "x") == "done"
        assert (fn.told[1] is None) == (gravest is Category.INFRASTRUCTURE)
    else:
        with pytest.raises(TriageError):
            anyio.run(agent.run, "x")
        assert len(fn.told) == 1


# --- policies -------------------------------------------------------------------------------------


async def test_a_policy_may_have_its_own_answer_to_what_would_help() -> None:
    policy = FailurePolicy.recommended().replace(
        recoveries={"regenerate": Escalate("no more code")}
    )
    with pytest.raises(TriageEscalationError, match="no more code"):
        await Agent(Failing(faults.CodeFault("x")), policy).run("x")
    assert policy.recoveries.keys() == set(Recovery)


def test_a_cause_is_looked_up_before_a_recovery_and_a_recovery_before_a_type() -> None:
    policy = FailurePolicy(
        EXTERNAL_FAULT=Replan("type"),
        causes={"beam": Replan("cause")},
        recoveries={Recovery.RETRY: Replan("recovery")},
    )

    def chosen(**fields: Any) -> str:
        diagnosis = Diagnosis(FailureType.EXTERNAL_FAULT, **fields)
        return repr(policy.strategy_for(diagnosis))

    assert "'cause'" in chosen(cause="beam", recovery=Recovery.RETRY)
    assert "'recovery'" in chosen(cause="other", recovery=Recovery.RETRY)
    assert "'type'" in chosen(cause="other", recovery=Recovery.ASK)


def test_recoveries_are_read_from_a_file_and_refused_by_name() -> None:
    policy = FailurePolicy.from_dict({"recoveries": {"ask": "suspend", "RETRY": "replan"}})
    assert set(policy.recoveries) == {Recovery.ASK, Recovery.RETRY}
    assert "recoveries={'ask': Suspend(" in repr(policy)
    assert policy == policy.replace()
    assert hash(policy) == hash(policy.replace())
    with pytest.raises(UsageError, match="recoveries key must be one of retry, regenerate"):
        FailurePolicy(recoveries={"retyr": Retry()})
    with pytest.raises(UsageError, match="a mapping of recoveries"):
        FailurePolicy(recoveries=[1])  # type: ignore[arg-type] # what is tested


# --- tools ----------------------------------------------------------------------------------------


async def test_a_tool_is_called_again_at_once_for_infrastructure_alone() -> None:
    calls: list[str] = []

    async def ask(kind: str) -> str:
        calls.append(kind)
        raise {
            "net": faults.ConnectivityFault(host="db"),
            "code": faults.CodeFault("bad"),
            "refused": wrapped(faults.PolicyRefused("no")),
            "beside": beside,
        }[kind]

    tool = triage.tool(effect="read", retries=2)(ask)
    beside = faults.ConnectivityFault("lost while it was refused")
    beside.__context__ = faults.PolicyRefused("no")
    for kind, times in (("net", 3), ("code", 1), ("refused", 1), ("beside", 1)):
        calls.clear()

        async def agent(task: str) -> Any:
            return await tool(task)

        wrapping = Agent(agent, FailurePolicy(default=Escalate()), environment=FakeEnvironment())
        with pytest.raises(TriageError):
            await wrapping.run(kind)
        assert len(calls) == times, kind


async def test_a_refused_payment_is_known_not_to_have_happened() -> None:
    @triage.tool(effect="once")
    async def pay(cents: int) -> str:
        raise faults.RateLimited("later", retry_after_s=1) if not paid else RuntimeError("twice")

    paid: list[int] = []

    async def agent(task: str) -> str:
        try:
            return str(await pay(5))
        except faults.RateLimited:
            paid.append(5)
            return "not paid"

    assert await Agent(agent, environment=FakeEnvironment()).run("x") == "not paid"
    assert capture(faults.PolicyRefused("no")).not_attempted
    assert not capture(faults.EffectUnverified("maybe")).not_attempted


async def test_a_hybrid_classifier_believes_a_fault_and_asks_no_model() -> None:
    class Model:
        async def classify(self, trajectory: Trajectory, task: Any) -> Diagnosis:
            raise AssertionError("asked")

    fn = Failing(faults.CodeSyntaxInvalid("bad"))
    agent = Agent(fn, classifier=HybridClassifier(Model()), environment=FakeEnvironment())
    assert await agent.run("x") == "done"
    assert "bad" in (fn.told[1] or "")
