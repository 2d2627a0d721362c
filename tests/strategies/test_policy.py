from __future__ import annotations

import asyncio
import pickle
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st
from tables import table

from triage.core import (
    Abort,
    Action,
    Attempt,
    Cause,
    Diagnosis,
    Escalate,
    FailureContext,
    FailureType,
    RecoveryAction,
    Replan,
    Retry,
    Severity,
    Suspend,
    Trajectory,
    UsageError,
)
from triage.core.actions import ACTIONS
from triage.core.steps import NO_USAGE
from triage.strategies import FailurePolicy, chain, replan, sequence

LOOP = Diagnosis(FailureType.LOOP_DETECTED, cause=Cause.CYCLE)


def failed(diagnosis: Diagnosis = LOOP, *past: Action, **changes: Any) -> FailureContext:
    """A failure after attempts that failed in the same way and ended with these actions."""
    history = tuple(
        Attempt(n, Trajectory(), {}, None, diagnosis, action, NO_USAGE, 0.0, 0.0)
        for n, action in enumerate(past, start=1)
    )
    return FailureContext("run", "t", len(past) + 1, diagnosis, attempt_history=history, **changes)


def reason_of(action: Action) -> str:
    assert isinstance(action, Escalate)
    return action.reason or ""


# which strategy


@table("kind", FailureType)
@pytest.mark.anyio
async def test_each_failure_type_has_its_strategy(kind: FailureType) -> None:
    strategies: dict[str, Any] = {other.name: Abort(other.name) for other in FailureType}
    policy = FailurePolicy(**strategies)
    assert await policy.dispatch(failed(Diagnosis(kind))) == Abort(kind.name)


@pytest.mark.anyio
async def test_a_type_without_a_strategy_takes_the_default() -> None:
    policy = FailurePolicy(UNKNOWN=Abort(), default=Replan("default"))
    assert await policy.dispatch(failed()) == Replan("default")


@pytest.mark.anyio
async def test_without_a_default_it_escalates_and_says_what_to_write() -> None:
    reason = reason_of(await FailurePolicy(UNKNOWN=Abort()).dispatch(failed()))
    assert "no strategy for loop_detected" in reason
    assert "LOOP_DETECTED=… or default=…" in reason


@table("key", [Cause.CYCLE, "cycle", "CYCLE"])
def test_a_cause_comes_before_the_failure_type(key: str) -> None:
    policy = FailurePolicy(LOOP_DETECTED=Abort(), causes={key: replan("by cause")})
    assert policy.strategy_for(LOOP) == replan("by cause")
    other = Diagnosis(FailureType.LOOP_DETECTED, cause=Cause.REPETITION)
    assert policy.strategy_for(other) == FailurePolicy(LOOP_DETECTED=Abort()).strategy_for(other)


def test_an_application_has_causes_of_its_own() -> None:
    policy = FailurePolicy(causes={"sold_out": replan("Another date.")})
    sold_out = Diagnosis(FailureType.EXTERNAL_FAULT, cause="sold_out")
    assert policy.strategy_for(sold_out) == replan("Another date.")
    assert policy.strategy_for(LOOP) is None


def test_a_policy_can_be_replaced_in_part() -> None:
    policy = FailurePolicy(LOOP_DETECTED=replan(), UNKNOWN=Retry(), causes={"a": Abort()})
    changed = policy.replace(LOOP_DETECTED=None, GOAL_DRIFT=Abort(), causes={"b": Abort()})
    assert changed == FailurePolicy(
        UNKNOWN=Retry(), GOAL_DRIFT=Abort(), causes={"a": Abort(), "b": Abort()}
    )
    assert policy == FailurePolicy(LOOP_DETECTED=replan(), UNKNOWN=Retry(), causes={"a": Abort()})
    assert policy.replace(default=Abort()).default == FailurePolicy(default=Abort()).default


# the value


def test_none_is_no_strategy_for_a_cause_or_a_recovery_either() -> None:
    policy = FailurePolicy.recommended().replace(
        causes={"CONTENT_FILTER": None}, recoveries={"ASK": None}
    )
    assert list(policy.causes) == ["guardrail", "omitted_failure"]
    assert "ask" not in policy.recoveries
    described = FailurePolicy.from_dict({"causes": {"auth": None}, "recoveries": {"ask": None}})
    assert described == FailurePolicy(causes={"b": None}, recoveries={"retry": None})


def test_a_policy_is_a_frozen_value_printed_as_it_is_written() -> None:
    policy = FailurePolicy(
        default=FailurePolicy.escalate_by_default(),
        causes={Cause.AUTH: Suspend("Which key?")},
        LOOP_DETECTED=replan("Try another source."),
        WRONG_TOOL_CALLED=Retry(),
    )
    assert repr(policy) == (
        "FailurePolicy(WRONG_TOOL_CALLED=Retry(hint=None, delay=0.0, inject={}), "
        "LOOP_DETECTED=replan(hint='Try another source.', max_replans=3), "
        "default=Escalate(reason='no strategy of the policy is for this failure'), "
        "causes={'auth': Suspend(question='Which key?', metadata={}, expires_s=None)})"
    )
    copy = pickle.loads(pickle.dumps(policy))
    assert copy == policy
    assert hash(copy) == hash(policy)
    with pytest.raises(AttributeError):
        policy.default = None  # type: ignore[misc] # frozen, on purpose


@table(
    ("name", "closest"),
    [
        ("LOOP_DETECTD", "LOOP_DETECTED"),
        ("loop_detected", "LOOP_DETECTED"),
        ("EXTERNAL_FAULTS", "EXTERNAL_FAULT"),
        ("defaults", "default"),
    ],
)
def test_a_misspelt_failure_type_names_the_closest(name: str, closest: str) -> None:
    arguments: dict[str, Any] = {name: Retry()}
    with pytest.raises(UsageError, match=f"{name}.*did you mean '{closest}'"):
        FailurePolicy(**arguments)


def no_arguments() -> Action:
    return Retry()


@table(
    ("value", "said"),
    [
        ("retry", "must be a strategy .* or an action, not str"),
        (5, "not int"),
        (Retry, r"not the class Retry; make one: Retry\(…\)"),
        (replan, r"make one: replan\(…\)"),
        (no_arguments, "it must take one argument"),
        (FailurePolicy.escalate_by_default, "it must take one argument"),
    ],
)
def test_what_is_no_strategy_is_refused_when_the_policy_is_made(value: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        FailurePolicy(UNKNOWN=value)
    with pytest.raises(UsageError, match=said):
        FailurePolicy(default=value)
    with pytest.raises(UsageError, match=said):
        FailurePolicy(causes={"mine": value})


class Opaque:
    """A callable whose signature cannot be read, as with some builtins."""

    __signature__ = 5

    def __call__(self, context: FailureContext) -> Action:
        return Abort(context.run_id)


@pytest.mark.anyio
async def test_a_callable_without_a_signature_is_believed() -> None:
    assert await FailurePolicy(default=Opaque()).dispatch(failed()) == Abort("run")


@table("causes", [["auth"], {5: Retry()}, {"": Retry()}])
def test_causes_are_a_mapping_of_names(causes: Any) -> None:
    with pytest.raises(UsageError, match=r"FailurePolicy\.causes"):
        FailurePolicy(causes=causes)


# dispatch answers


@pytest.mark.anyio
async def test_a_strategy_may_be_sync_or_async() -> None:
    async def later(context: FailureContext) -> Retry:
        await checkpoint()
        return Retry(f"attempt {context.attempt}")

    assert await FailurePolicy(LOOP_DETECTED=later).dispatch(failed()) == Retry("attempt 1")
    sync = FailurePolicy(LOOP_DETECTED=lambda context: Retry(context.run_id))
    assert await sync.dispatch(failed()) == Retry("run")


@pytest.mark.anyio
async def test_a_strategy_that_raises_is_named_with_what_it_raised() -> None:
    async def broken(_: FailureContext) -> Action:
        raise KeyError("seat")

    reason = reason_of(await FailurePolicy(default=broken).dispatch(failed()))
    assert "broken raised KeyError('seat') at " in reason
    assert "test_policy.py:" in reason


@table("junk", [None, "retry", RecoveryAction(), 5, {"action": "retry"}])
@pytest.mark.anyio
async def test_a_strategy_that_answers_junk_is_named_with_what_it_answered(junk: Any) -> None:
    def confused(_: FailureContext) -> Any:
        return junk

    reason = reason_of(await FailurePolicy(default=confused).dispatch(failed()))
    assert reason.endswith(f"confused answered {type(junk).__name__}, which is no action")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


class UnknownAction(RecoveryAction, frozen=True):
    pass


class Liar:
    def __getattribute__(self, name: str) -> Any:
        raise UnprintableError


anything = (
    st.none() | st.integers() | st.text() | st.sampled_from([*ACTIONS, RecoveryAction, Action])
    | st.builds(UnknownAction) | st.builds(Liar) | st.builds(Retry, hint=st.none() | st.text())
    | st.builds(Escalate) | st.lists(st.integers())
)  # fmt: skip
errors = st.sampled_from(
    [
        ValueError("x"),
        UnprintableError(),
        StopIteration(),
        ExceptionGroup("g", [OSError()]),
        UsageError(),
    ]
)


@given(
    answers=anything,
    error=st.none() | errors,
    later=st.booleans(),
    kind=st.sampled_from(FailureType),
)
def test_whatever_a_strategy_does_dispatch_answers_an_action(
    *, answers: Any, error: Exception | None, later: bool, kind: FailureType
) -> None:
    def strategy(_: FailureContext) -> Any:
        if error is not None:
            raise error
        return answers

    async def async_strategy(context: FailureContext) -> Any:
        return strategy(context)

    policy = FailurePolicy(default=async_strategy if later else strategy)
    found = asyncio.run(policy.dispatch(failed(Diagnosis(kind))))
    assert isinstance(found, ACTIONS)
    if error is None and type(answers) in ACTIONS:
        assert found == answers


@pytest.mark.anyio
async def test_cancellation_passes_through_a_strategy() -> None:
    async def waits(_: FailureContext) -> Action:
        await anyio.sleep_forever()
        raise AssertionError

    policy = FailurePolicy(default=waits)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await policy.dispatch(failed())
        pytest.fail("the strategy was cancelled, so dispatch must not answer")
    assert scope.cancelled_caught


@pytest.mark.anyio
async def test_a_keyboard_interrupt_passes_through_a_strategy() -> None:
    def interrupted(_: FailureContext) -> Action:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await FailurePolicy(default=interrupted).dispatch(failed())


# ready-made parts


@pytest.mark.anyio
async def test_a_policy_takes_sequences_and_chains() -> None:
    policy = FailurePolicy(
        LOOP_DETECTED=sequence(replan(), Abort()),
        UNKNOWN=chain(Escalate(), replan()),
    )
    assert await policy.dispatch(failed()) == Replan()
    assert await policy.dispatch(failed(LOOP, Replan())) == Abort()
    assert await policy.dispatch(failed(Diagnosis(FailureType.UNKNOWN))) == Replan()


@pytest.mark.anyio
async def test_the_default_says_why() -> None:
    escalating = FailurePolicy(default=FailurePolicy.escalate_by_default())
    assert "no strategy" in reason_of(await escalating.dispatch(failed()))


LADDERS: dict[FailureType, list[str]] = {
    FailureType.WRONG_TOOL_CALLED: ["retry"] * 3,
    FailureType.CONSTRAINT_IGNORED: ["retry"] * 2 + ["replan"],
    FailureType.LOOP_DETECTED: ["retry", "replan"],
    FailureType.HALLUCINATED_STATE: ["retry"] * 2 + ["rollback", "replan"],
    FailureType.PLAN_INCOMPLETE: ["resume"] * 3 + ["retry"] * 2 + ["replan"],
    FailureType.SCHEMA_MISMATCH: ["retry"] * 3,
    FailureType.CONTEXT_OVERFLOW: ["retry", "replan"],  # nothing was done that could be summarized
    FailureType.GOAL_DRIFT: ["retry"] * 2 + ["replan"],
    # 1, 2, 4, 8, 16 and eight times 30 seconds, and the 29 that are left of the 300.
    FailureType.EXTERNAL_FAULT: ["retry"] * 14 + ["replan"],
    FailureType.UNKNOWN: ["retry"] * 2,
}


@table("kind", FailureType)
@pytest.mark.anyio
async def test_the_recommended_policy_climbs_its_ladder_and_escalates(kind: FailureType) -> None:
    policy, past = FailurePolicy.recommended(), list[Action]()
    while not past or past[-1].kind != "escalate":
        context = failed(Diagnosis(kind), *past, checkpoint_id=1, open_subgoals=("pay",))
        past.append(await policy.dispatch(context))
    assert [action.kind for action in past] == [*LADDERS[kind], "escalate"]


@table("kind", FailureType)
@pytest.mark.anyio
async def test_the_recommended_policy_repeats_nothing_that_needs_a_person(
    kind: FailureType,
) -> None:
    diagnosis = Diagnosis(kind, severity=Severity.CRITICAL)
    action = await FailurePolicy.recommended().dispatch(failed(diagnosis, checkpoint_id=1))
    assert "a person must act" in reason_of(action)


@table(
    ("diagnosis", "kind"),
    [
        (Diagnosis(FailureType.EXTERNAL_FAULT, cause=Cause.NOT_FOUND), "replan"),
        (Diagnosis(FailureType.EXTERNAL_FAULT, cause=Cause.OVERLOADED), "retry"),
        (Diagnosis(FailureType.EXTERNAL_FAULT, cause=Cause.QUOTA_EXHAUSTED), "escalate"),
        (Diagnosis(FailureType.CONSTRAINT_IGNORED, cause=Cause.CONTENT_FILTER), "escalate"),
        (Diagnosis(FailureType.CONSTRAINT_IGNORED, cause=Cause.GUARDRAIL), "escalate"),
        (Diagnosis(FailureType.CONSTRAINT_IGNORED, cause=Cause.FORBIDDEN_OUTPUT), "retry"),
        (Diagnosis(FailureType.HALLUCINATED_STATE), "retry"),
        (Diagnosis(FailureType.PLAN_INCOMPLETE), "retry"),
    ],
)
@pytest.mark.anyio
async def test_the_recommended_policy_knows_the_causes(diagnosis: Diagnosis, kind: str) -> None:
    """With nothing recorded and no subgoals declared."""
    assert (await FailurePolicy.recommended().dispatch(failed(diagnosis))).kind == kind
