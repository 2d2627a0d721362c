from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import table

from strategies.strategy_contexts import TIMED_OUT, answer, context, delay_of, reason_of
from triage.classifiers import diagnose
from triage.core import (
    Action,
    Cause,
    Diagnosis,
    FailureType,
    Replan,
    Resume,
    Retry,
    Rollback,
    Severity,
    Step,
    Trajectory,
    UsageError,
)
from triage.strategies import (
    Backoff,
    Preset,
    Strategy,
    backoff_and_retry,
    compensating_rollback,
    replan,
    resume_from_subgoal,
    retry_with_tool_manifest,
    rollback_to_checkpoint,
)

PRESETS = {
    "CAPABILITY": (3, 0.5, 1.5),
    "INFRA": (2, 0.2, 1.2),
    "EXTRACT": (3, 1.0, 1.5),
    "CLASSIFY": (4, 1.0, 1.8),
    "LLM": (4, 2.0, 2.0),
    "WRITE": (1, 2.0, 2.0),
}


# Backoff


def test_a_delay_doubles_up_to_the_cap() -> None:
    backoff = Backoff(jitter=False)
    assert [backoff.delay(n) for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_jitter_takes_a_part_of_half_the_delay() -> None:
    assert Backoff(base=4).delay(2, draw=0.25) == 5.0
    assert Backoff(base=4).delay(2, draw=0.0) == 4.0
    assert Backoff(base=4).delay(2, draw=1.0) == 8.0
    assert Backoff(base=4, jitter=False).delay(2, draw=0.25) == 8.0


def test_a_server_retry_after_is_the_floor() -> None:
    assert Backoff(cap=10).delay(1, draw=0.1, retry_after_s=90) == 90.0
    assert Backoff(base=8, jitter=False).delay(1, retry_after_s=3) == 8.0


floats = st.floats(min_value=0, max_value=1e300)


@given(
    base=floats,
    factor=st.floats(min_value=1, max_value=1e300),
    cap=floats,
    jitter=st.booleans(),
    n=st.integers(min_value=1, max_value=10**400),
    draw=st.floats(min_value=0, max_value=1),
    retry_after_s=st.none() | floats,
)
def test_every_delay_is_finite_between_floor_and_cap(
    *, base: float, factor: float, cap: float, jitter: bool, n: int, draw: float,
    retry_after_s: float | None,
) -> None:  # fmt: skip
    delay = Backoff(base, factor, cap, jitter).delay(n, draw, retry_after_s)
    floor = retry_after_s or 0.0
    assert math.isfinite(delay)
    assert floor <= delay <= max(cap, floor)


@given(backoff=st.builds(Backoff, base=floats, cap=floats), n=st.integers(1, 100))
def test_a_later_retry_never_waits_less(backoff: Backoff, n: int) -> None:
    assert backoff.delay(n) <= backoff.delay(n + 1)


@table(("name", "numbers"), PRESETS.items())
def test_presets_pair_attempts_with_a_backoff(name: str, numbers: tuple[int, float, float]) -> None:
    preset: Preset = getattr(Backoff, name)
    assert (preset.attempts, preset.backoff.base, preset.backoff.factor) == numbers
    assert preset.retries == numbers[0] - 1
    assert backoff_and_retry.preset(preset).max_attempts == preset.retries


def test_a_write_is_never_retried_by_its_preset() -> None:
    strategy = backoff_and_retry.preset(Backoff.WRITE)
    assert reason_of(answer(strategy, context())) == "external_fault (timeout): never allowed"


@table(
    ("field", "value"),
    [("base", -1), ("base", "1"), ("factor", 0.5), ("cap", float("inf")), ("jitter", 1)],
)
def test_a_backoff_refuses_a_wrong_number_by_name(field: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"Backoff\.{field} must be"):
        Backoff(**{field: value})


@table("arguments", [(0,), (-1,), (1.5,), (1, 1.5), (1, -0.1)])
def test_a_delay_refuses_a_number_outside(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError, match=r"Backoff\.delay"):
        Backoff().delay(*arguments)


# retrying


def test_each_retry_waits_longer_and_then_it_escalates() -> None:
    strategy = backoff_and_retry(max_attempts=3, backoff=Backoff(jitter=False))
    past: list[Action] = []
    for seconds in (1.0, 2.0, 4.0):
        action = answer(strategy, context(*past))
        assert action == Retry(hint="Ask for less.", delay=seconds)
        past.append(action)
    reason = reason_of(answer(strategy, context(*past)))
    assert reason == "external_fault (timeout): already retried 3 times (the most is 3)"


def test_other_failure_types_and_other_actions_are_not_counted() -> None:
    strategy = backoff_and_retry(max_attempts=1, backoff=Backoff(jitter=False))
    drifted = Diagnosis(FailureType.GOAL_DRIFT)
    history = context(Retry(), Retry(), diagnosis=drifted).attempt_history
    assert delay_of(answer(strategy, context(attempt_history=history))) == 1.0
    assert delay_of(answer(strategy, context(Replan(), Replan()))) == 1.0


def test_the_draw_of_the_failure_is_the_jitter() -> None:
    strategy = backoff_and_retry(backoff=Backoff(base=8))
    assert delay_of(answer(strategy, context(draw=0.5))) == 6.0


def test_what_the_server_asks_for_is_waited() -> None:
    limited = Diagnosis(FailureType.EXTERNAL_FAULT, cause=Cause.RATE_LIMITED, retry_after_s=70)
    assert delay_of(answer(backoff_and_retry(), context(diagnosis=limited, draw=0.0))) == 70.0


def test_a_delay_past_the_deadline_escalates_now() -> None:
    limited = Diagnosis(FailureType.EXTERNAL_FAULT, cause=Cause.RATE_LIMITED, retry_after_s=70)
    strategy = backoff_and_retry()
    reason = reason_of(answer(strategy, context(diagnosis=limited, seconds_left=12.5)))
    assert reason == "the next retry would wait 70 s, and 12.5 s are left to the deadline"
    assert delay_of(answer(strategy, context(diagnosis=limited, seconds_left=71.0))) == 70.0


@table("severity", [Severity.CRITICAL, Severity.FATAL])
@table("strategy", [backoff_and_retry(), retry_with_tool_manifest()])
def test_what_needs_a_person_is_never_retried(strategy: Strategy, severity: Severity) -> None:
    diagnosis = Diagnosis(FailureType.EXTERNAL_FAULT, cause="billing", severity=severity)
    reason = reason_of(answer(strategy, context(diagnosis=diagnosis)))
    assert reason.startswith(f"external_fault (billing): {severity}, a person must act")


def test_the_hint_names_the_tools_that_exist() -> None:
    action = answer(retry_with_tool_manifest(), context())
    assert action == Retry(
        "Call only these tools, by their exact names: search, book. Ask for less."
    )


@table("tools", [(), ("search",), tuple(f"tool_{n}" for n in range(500))])
def test_the_tool_hint_is_never_empty_and_bounded(tools: tuple[str, ...]) -> None:
    silent = Diagnosis(FailureType.WRONG_TOOL_CALLED)
    action = answer(retry_with_tool_manifest(), context(diagnosis=silent, tools=tools))
    assert isinstance(action, Retry)
    assert action.hint
    assert len(action.hint) < 1000


def test_the_tools_are_named_once() -> None:
    steps = [Step(tool_called="serch")]
    told = diagnose(None, steps, tools=["search", "book"])
    action = answer(retry_with_tool_manifest(), context(diagnosis=told))
    assert isinstance(action, Retry)
    assert action.hint == (
        "Call only tools that exist, by their exact names. "
        'There is no tool "serch". The tools are: search (the closest name), book.'
    )
    some = Diagnosis(FailureType.WRONG_TOOL_CALLED, hint="There is no research; rebook.")
    named = answer(retry_with_tool_manifest(), context(diagnosis=some))
    assert isinstance(named, Retry)
    assert "names: search, book. There is" in (named.hint or "")


def test_many_tools_are_named_once() -> None:
    tools = tuple(f"tool_{n:03}" for n in range(64))
    told = diagnose(None, [Step(tool_called="tool_63")], tools=tools)
    action = answer(retry_with_tool_manifest(), context(diagnosis=told, tools=tools))
    assert isinstance(action, Retry)
    assert [(action.hint or "").count(name) for name in tools] == [1] * 64


def test_a_fault_that_passes_is_retried_without_a_hint() -> None:
    action = answer(backoff_and_retry(), context(diagnosis=diagnose(TimeoutError("slow"))))
    assert isinstance(action, Retry)
    assert action.hint is None


# replanning


def test_a_replan_tells_its_own_hint_or_leaves_it_to_the_diagnosis() -> None:
    assert answer(replan("Try another source."), context()) == Replan("Try another source.")
    assert answer(replan(), context()) == Replan(None)


def test_a_rollback_goes_to_the_named_or_the_last_good_position() -> None:
    named = answer(rollback_to_checkpoint(2), context(checkpoint_id=None))
    last = answer(rollback_to_checkpoint(), context())
    assert isinstance(named, Rollback)
    assert isinstance(last, Rollback)
    assert (named.checkpoint_id, last.checkpoint_id) == (2, None)


@table("strategy", [rollback_to_checkpoint(), compensating_rollback()])
@table("diagnosis", [TIMED_OUT, Diagnosis(FailureType.UNKNOWN)])
def test_a_rollback_hint_is_never_empty(strategy: Strategy, diagnosis: Diagnosis) -> None:
    action = answer(strategy, context(diagnosis=diagnosis))
    assert isinstance(action, Rollback)
    assert action.hint
    assert action.hint.endswith(diagnosis.hint or ".")


def test_a_rollback_tells_the_hint_it_was_given() -> None:
    action = answer(rollback_to_checkpoint(hint="Book another date."), context())
    assert action == Rollback(None, "Book another date.")


def test_nothing_recorded_is_nothing_to_roll_back() -> None:
    reason = reason_of(answer(rollback_to_checkpoint(), context(checkpoint_id=None)))
    assert "nothing was recorded that could be rolled back" in reason


@table("recorded", [{"trajectory": Trajectory([Step(action="charge")])}, {"state": {"paid": True}}])
def test_what_was_recorded_without_a_checkpoint_is_taken_back_to_the_start(
    recorded: dict[str, Any],
) -> None:
    action = answer(compensating_rollback(), context(checkpoint_id=None, **recorded))
    assert isinstance(action, Rollback)
    assert action.checkpoint_id is None


def test_a_compensating_rollback_says_that_effects_were_undone_and_runs_once() -> None:
    action = answer(compensating_rollback(), context())
    assert isinstance(action, Rollback)
    assert "was undone" in (action.hint or "")
    assert "already rolled back once" in reason_of(answer(compensating_rollback(), context(action)))


def test_a_resume_takes_the_first_open_subgoal() -> None:
    assert answer(resume_from_subgoal(), context()) == Resume("pay", "Ask for less.")
    closed = answer(resume_from_subgoal(), context(open_subgoals=()))
    assert "no open subgoal" in reason_of(closed)


@table(
    ("strategy", "action", "verb"),
    [
        (retry_with_tool_manifest(2), Retry(), "retried"),
        (replan(max_replans=2), Replan(), "replanned"),
        (rollback_to_checkpoint(max_rollbacks=2), Rollback(), "rolled back"),
        (compensating_rollback(max_rollbacks=2), Rollback(), "rolled back"),
        (resume_from_subgoal(2), Resume(), "resumed"),
    ],
)
def test_a_used_up_strategy_says_how_often_it_was_tried(
    strategy: Strategy, action: Action, verb: str
) -> None:
    assert isinstance(answer(strategy, context(action)), type(action))
    reason = reason_of(answer(strategy, context(action, action)))
    assert reason == f"external_fault (timeout): already {verb} twice (the most is 2)"
