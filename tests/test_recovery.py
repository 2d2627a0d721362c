"""What happens after a failure: each action, the errors that end a run, and faults in our own parts."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest
from recordings import Recording
from support import FakeEnvironment, Says, always, in_turn

import triage
from triage import (
    Abort,
    Agent,
    Attempt,
    Diagnosis,
    Escalate,
    FailureType,
    Replan,
    Resume,
    Retry,
    Rollback,
    Run,
    Severity,
    Step,
    Suspend,
    TriageAbortError,
    TriageEscalationError,
    TriageFatalError,
    TriageSuspendedError,
    Usage,
)

pytestmark = pytest.mark.anyio


async def test_retry_tells_its_hint_waits_and_injects_for_one_attempt_alone() -> None:
    fn, env = Recording(3), FakeEnvironment()
    strategy = in_turn(Retry("use the other door", delay=4.0, inject={"extra": "once"}), Retry())
    agent = Agent(fn, always(strategy), classifier=Says(), environment=env)
    assert await agent.run("t") == "done"
    nothing: dict[str, Any] = {
        "hint": None,
        "subgoal": None,
        "state": None,
        "extra": "none",
        "steps": [],
    }
    assert fn.told == [
        nothing,
        nothing | {"hint": "use the other door", "extra": "once"},
        nothing,
    ]
    assert env.slept == [4.0]


async def test_replan_always_asks_for_another_plan() -> None:
    fn = Recording()
    await Agent(fn, always(Replan()), classifier=Says()).run("t")
    assert "new plan" in fn.told[1]["hint"]


async def test_rollback_restores_trajectory_and_state_to_a_named_checkpoint() -> None:
    checkpoints: list[int] = []
    told: list[Any] = []

    async def works(task: str, *, run: Run, _triage_state: Any, _triage_hint: Any) -> str:
        if run.attempt == 1:
            run.record_step(Step(action="one"))
            run.update_state({"a": {"deep": [1]}})
            checkpoints.append(run.record_step(Step(action="two")))
            run.record_step(Step(action="three"))
            run.update_state({"a": "gone", "b": 2})
            raise ConnectionError("down")
        told.extend((_triage_state, _triage_hint))
        assert [step.action for step in run.trajectory] == ["one", "two"]
        assert run.state == {"a": {"deep": [1]}}
        _triage_state["a"]["deep"].append("mine")  # a copy: it changes nothing that is kept
        assert run.state == {"a": {"deep": [1]}}
        run.record_step(Step(action="again"))
        assert run.trajectory[2].index == 2
        return "done"

    policy = always(lambda _context: Rollback(checkpoints[0]))
    assert await Agent(works, policy, classifier=Says()).run("t") == "done"
    assert told[0] == {"a": {"deep": [1, "mine"]}}
    assert told[1]


async def test_rollback_without_a_name_goes_before_the_critical_step() -> None:
    kept: list[list[str]] = []

    async def works(task: str, *, run: Run) -> str:
        kept.append([step.action for step in run.trajectory])
        if run.attempt == 1:
            for action in ("good", "decisive", "late"):
                run.record_step(Step(action=action))
            raise ConnectionError("down")
        return "done"

    says = Says(Diagnosis(FailureType.EXTERNAL_FAULT, critical_step=1))
    await Agent(works, always(Rollback()), classifier=says).run("t")
    assert kept == [[], ["good"]]


async def test_rollback_can_reach_a_checkpoint_of_an_earlier_attempt() -> None:
    first: list[int] = []
    seen: list[list[str]] = []

    async def works(task: str, *, run: Run) -> str:
        seen.append([step.action for step in run.trajectory])
        checkpoint = run.record_step(Step(action=f"in {run.attempt}"))
        first.append(checkpoint)
        if run.attempt < 3:
            raise ConnectionError("down")
        return "done"

    strategy = in_turn(Retry(), Rollback(2))
    await Agent(works, always(strategy), classifier=Says()).run("t")
    assert first[0] == 2
    assert seen == [[], [], ["in 1"]]


async def test_an_unknown_checkpoint_escalates_and_names_it() -> None:
    with pytest.raises(TriageEscalationError, match="404 is no checkpoint"):
        await Agent(Recording(), always(Rollback(404)), classifier=Says()).run("t")


async def test_resume_gives_the_first_open_subgoal_and_keeps_the_state() -> None:
    told: list[tuple[Any, Any]] = []

    async def works(task: str, *, run: Run, _triage_subgoal: Any, _triage_state: Any) -> str:
        told.append((_triage_subgoal, _triage_state))
        if run.attempt == 1:
            run.subgoals(["search", "book", "pay"])
            run.complete("search")
            run.update_state({"found": "F1"})
            raise ConnectionError("down")
        assert run.state == {"found": "F1"}
        assert len(run.trajectory) == 0
        run.complete("book")
        run.complete("pay")
        return "done"

    await Agent(works, always(Resume()), classifier=Says()).run("t")
    assert told == [(None, None), ("book", {"found": "F1"})]


@pytest.mark.parametrize(
    ("action", "kind"),
    [(Escalate("look"), TriageEscalationError), (Abort("stop"), TriageAbortError)],
)
async def test_a_stop_is_raised_from_the_original_and_carries_everything(
    action: Any, kind: type[triage.TriageError]
) -> None:
    original = ConnectionError("down")

    async def fails(task: str, *, record_step: Any, update_state: Any, record_usage: Any) -> None:
        record_step(Step(action="search", tool_output="half"))
        update_state({"k": 1})
        record_usage(Usage(input_tokens=5))
        raise original

    with pytest.raises(kind) as caught:
        await Agent(fails, always(action), classifier=Says()).run("t")
    context = caught.value.context
    assert caught.value.__cause__ is original
    assert context is not None
    assert context.exception is original
    assert context.error is not None
    assert context.error.type_name == "ConnectionError"
    assert context.partial.state == {"k": 1}
    assert context.partial.last_output == "half"
    assert context.partial.usage.input_tokens == 5
    assert context.attempt_history == ()


class Unpicklable(Exception):
    """Has a lock, and an __init__ that unpickling cannot call."""

    def __init__(self, lock: Any, *, required: int) -> None:
        super().__init__("cannot travel")
        self.lock = lock
        self.required = required


@pytest.mark.parametrize("action", [Escalate(), Abort(), Suspend("may I?")])
async def test_the_errors_pickle_whatever_the_original_was(action: Any) -> None:
    async def fails(task: Any, *, record_step: Any) -> None:
        record_step(Step(action="try", tool_input={"lock": threading.Lock()}))
        raise Unpicklable(threading.Lock(), required=1)

    with pytest.raises(triage.TriageError) as caught:
        await Agent(fails, always(action), classifier=Says()).run(threading.Lock())
    travelled = pickle.loads(pickle.dumps(caught.value))
    assert type(travelled) is type(caught.value)
    assert str(travelled) == str(caught.value)
    assert travelled.context is not None
    assert travelled.context.exception is None
    assert travelled.context.error is not None
    assert travelled.context.error.message == "cannot travel"
    assert travelled.context.trajectory[0].action == "try"
    if isinstance(travelled, TriageSuspendedError):
        assert travelled.token == caught.value.token  # type: ignore[attr-defined] # the same class


async def test_a_fatal_diagnosis_stops_before_the_policy_is_asked() -> None:
    asked: list[Any] = []
    says = Says(Diagnosis(FailureType.UNKNOWN, severity=Severity.FATAL))
    with pytest.raises(TriageFatalError):
        await Agent(Recording(), always(asked.append), classifier=says).run("t")
    assert asked == []


async def test_history_holds_every_failed_attempt_with_its_action() -> None:
    seen: list[tuple[Attempt, ...]] = []

    async def fails_twice(task: str, *, run: Run) -> str:
        run.record_step(Step(action=f"try {run.attempt}"))
        seen.append(run.history)
        if run.attempt < 3:
            raise ConnectionError(f"down {run.attempt}")
        return "done"

    strategy = in_turn(Retry("a"), Replan("b"))
    await Agent(fails_twice, always(strategy), classifier=Says()).run("t")
    last = seen[-1]
    assert [past.number for past in last] == [1, 2]
    assert [past.action for past in last] == [Retry("a"), Replan("b")]
    assert [past.trajectory[0].action for past in last] == ["try 1", "try 2"]
    assert [past.error and past.error.message for past in last] == ["down 1", "down 2"]


async def test_a_strategy_counts_what_it_tried_for_its_own_failure_type() -> None:
    types = iter(
        [FailureType.EXTERNAL_FAULT, FailureType.SCHEMA_MISMATCH, FailureType.EXTERNAL_FAULT]
    )

    class Alternates:
        def classify(self, trajectory: Any, task: Any) -> FailureType:
            return next(types)

    counted: list[tuple[str, int]] = []

    def strategy(context: triage.FailureContext) -> Retry:
        counted.append((context.failure_type.value, context.tried(Retry)))
        return Retry()

    await Agent(Recording(4), always(strategy), classifier=Alternates()).run("t")
    assert counted == [("external_fault", 0), ("schema_mismatch", 0), ("external_fault", 1)]
