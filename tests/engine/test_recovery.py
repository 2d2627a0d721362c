"""What happens after a failure: each action, the errors that end a run, and faults in our own parts."""

from __future__ import annotations

import functools
import pickle
import threading
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest
from msgspec.structs import replace
from support import RETRY, FakeEnvironment, Says, always, escalation_of, in_turn, question_of
from tables import table

import triage
from engine.recordings import Recording
from triage import (
    Abort,
    Agent,
    Diagnosis,
    Escalate,
    FailurePolicy,
    FailureType,
    Limits,
    Replan,
    Resume,
    Retry,
    Rollback,
    Run,
    Severity,
    Step,
    Suspend,
    TriageAbortError,
    TriageError,
    TriageEscalationError,
    TriageSuspendedError,
    Usage,
)
from triage.core import Attempt, Cause, TriageFatalError, faults
from triage.testing import VirtualTime

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


async def test_what_a_resume_or_a_rollback_told_lives_for_one_attempt() -> None:
    fn = Recording(4)
    strategy = in_turn(Resume("go"), Rollback(), Retry())
    await Agent(fn, always(strategy), classifier=Says()).run("t")
    assert [told["subgoal"] for told in fn.told] == [None, "go", None, None]
    assert [told["state"] is not None for told in fn.told] == [False, True, True, False]
    assert [bool(told["hint"]) for told in fn.told] == [False, False, True, False]


@table(
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


@table("action", [Escalate(), Abort(), Suspend("may I?")])
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


async def test_a_refusal_is_not_gone_around_whatever_a_classifier_makes_of_it() -> None:
    calls: list[str] = []

    async def refused(task: str) -> None:
        calls.append(task)
        raise faults.PolicyRefused(rule="R7")

    with pytest.raises(TriageError, match="never be tried again"):
        await Agent(refused, always(Retry()), classifier=Says()).run("t")
    assert calls == ["t"]


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


async def test_a_strategy_is_given_the_failure_its_steps_what_was_tried_and_the_checkpoint() -> (
    None
):
    given: list[triage.FailureContext] = []

    def strategy(context: triage.FailureContext) -> Retry:
        given.append(context)
        return Retry(f"after {context.attempt}")

    await Agent(Recording(3), always(strategy), classifier=Says()).run("the task")
    first, second = given
    assert (first.task, first.attempt, first.attempt_history) == ("the task", 1, ())
    assert first.failure_type is FailureType.EXTERNAL_FAULT
    assert [step.action for step in first.trajectory] == ["1.0", "1.1", "1.2"]
    assert [step.action for step in second.trajectory] == ["2.0", "2.1", "2.2"]
    assert [past.action for past in second.attempt_history] == [Retry("after 1")]
    assert first.checkpoint_id is not None
    assert second.checkpoint_id is not None
    assert second.checkpoint_id > first.checkpoint_id


async def test_a_classifier_that_hangs_is_left_behind() -> None:
    release = threading.Event()

    class Hangs:
        deadline = 0.05

        def classify(self, trajectory: Any, task: Any) -> FailureType:
            release.wait(30)
            return FailureType.EXTERNAL_FAULT

    try:
        caught = await escalation_of(
            Agent(Recording(), always(Escalate()), classifier=Hangs()).run("t")
        )
    finally:
        release.set()
    assert "longer than 0.05 s" in str(caught.diagnosis and caught.diagnosis.evidence)


async def test_hung_classifiers_do_not_use_up_the_threads() -> None:
    release = threading.Event()

    class Hangs:
        deadline = 0.01

        def classify(self, trajectory: Any, task: Any) -> FailureType:
            release.wait(30)
            return FailureType.EXTERNAL_FAULT

    hanging = Agent(Recording(), always(Escalate()), classifier=Hangs())
    try:
        for _ in range(12):
            with pytest.raises(TriageEscalationError):
                await hanging.run("t")
        assert await Agent(Recording(), RETRY, classifier=Says()).run("t") == "done"
    finally:
        release.set()


async def test_classifiers_at_work_at_once_have_each_their_own_deadline() -> None:
    begun, release = threading.Event(), threading.Event()

    class Hangs:
        def __init__(self, deadline: float) -> None:
            self.deadline = deadline

        def classify(self, trajectory: Any, task: Any) -> FailureType:
            begun.set()
            release.wait(30)
            return FailureType.EXTERNAL_FAULT

    async def escalated(deadline: float) -> None:
        caught = await escalation_of(
            Agent(Recording(), always(Escalate()), classifier=Hangs(deadline)).run("t")
        )
        diagnosis = caught.diagnosis
        assert diagnosis is not None
        said[deadline] = diagnosis

    said: dict[float, triage.Diagnosis] = {}
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(escalated, 25.0)
            await anyio.to_thread.run_sync(begun.wait)
            for deadline in (0.05, 0.02, 0.06):
                await escalated(deadline)
                assert f"longer than {deadline} s" in said[deadline].evidence[0].text
            assert 25.0 not in said
            release.set()
    finally:
        release.set()
    assert said[25.0].failure_type is FailureType.EXTERNAL_FAULT


@table("says_so", [True, False])
async def test_an_async_classifier_is_awaited_in_the_loop(*, says_so: bool) -> None:
    thread = threading.get_ident()

    async def looks(kind: FailureType, trajectory: Any, task: Any) -> FailureType:
        assert threading.get_ident() == thread
        return kind

    async def looks_for_drift(trajectory: Any, task: Any) -> FailureType:
        return await looks(FailureType.GOAL_DRIFT, trajectory, task)

    partial = functools.partial(looks, FailureType.GOAL_DRIFT)

    class Async:
        classify = staticmethod(looks_for_drift if says_so else partial)

    caught = await escalation_of(
        Agent(Recording(), always(Escalate()), classifier=Async()).run("t")
    )
    assert caught.context is not None
    assert caught.context.failure_type is FailureType.GOAL_DRIFT


async def test_the_classifier_sees_the_trajectory_the_error_and_the_task() -> None:
    seen: list[Any] = []

    class Looks:
        def classify(self, trajectory: triage.Trajectory, task: Any) -> FailureType:
            seen.append((len(trajectory), trajectory.error, task, threading.get_ident()))
            return FailureType.EXTERNAL_FAULT

    await Agent(Recording(), RETRY, classifier=Looks()).run("the task")
    steps, error, task, thread = seen[0]
    assert (steps, error.type_name, task) == (3, "ConnectionError", "the task")
    assert thread != threading.get_ident()


async def test_an_observer_may_surround_the_attempt() -> None:
    entered: list[str] = []

    def observer(event: Any) -> Any:
        @contextmanager
        def around() -> Any:
            entered.append(f"in {event.attempt}")
            try:
                yield
            except ConnectionError:
                entered.append("failed")
                raise
            finally:
                entered.append(f"out {event.attempt}")

        return around() if type(event).__name__ == "AttemptStarted" else None

    await Agent(Recording(), RETRY, classifier=Says(), observers=[observer]).run("t")
    assert entered == ["in 1", "failed", "out 1", "in 2", "out 2"]


class BrokenStore(triage.stores.MemoryStore):
    async def append(self, run_id: str, events: Any, **_: Any) -> None:
        raise OSError("no space")


async def test_a_store_that_fails_never_loses_the_result(caplog: pytest.LogCaptureFixture) -> None:
    async def works(task: str) -> str:
        return "precious"

    with pytest.raises(OSError, match="no space") as caught:
        await Agent(works, store=BrokenStore()).run("t")
    assert caught.value.result == "precious"  # type: ignore[attr-defined] # put there by the run
    goes_on = triage.Durability(on_store_error="continue")
    assert await Agent(works, store=BrokenStore(), durability=goes_on).run("t") == "precious"


async def test_the_error_of_a_store_pickles_without_a_result_that_does_not() -> None:
    class Full(triage.stores.MemoryStore):
        async def append(self, run_id: str, events: Any, **_: Any) -> None:
            raise triage.core.StoreFull("no space")

    async def works(task: Any) -> Any:
        return task

    agent = Agent(works, store=Full())
    for given, kept in (("precious", "precious"), (threading.Lock(), None)):
        with pytest.raises(triage.core.StoreFull) as caught:
            await agent.run(given)
        travelled = pickle.loads(pickle.dumps(caught.value))
        assert getattr(travelled, "result", None) == kept
        assert caught.value.result is given  # type: ignore[attr-defined] # put there by the run


async def test_a_store_that_fails_never_hides_the_users_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = Agent(Recording(), always(Escalate()), classifier=Says(), store=BrokenStore())
    caught = await escalation_of(agent.run("t"))
    assert isinstance(caught.__cause__, ConnectionError)
    assert "no space" in str(caught.__notes__)


# Limits and questions to a person -----------------------------------------------------------------
async def test_tokens_over_the_limit_interrupt_a_parallel_branch_too() -> None:
    async def branch(name: str, run: Run) -> None:
        if name == "spender":
            run.record_usage(Usage(input_tokens=1000))
        await anyio.sleep_forever()

    async def parallel(task: str, *, run: Run) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(branch, "sleeper", run)
            group.start_soon(branch, "spender", run)

    caught = await escalation_of(Agent(parallel, limits=Limits(tokens=999)).run("t"))
    assert caught.context is not None
    assert caught.context.usage.input_tokens == 1000


async def test_an_attempt_out_of_time_has_failed_although_it_returns() -> None:
    attempts: list[int] = []

    env = VirtualTime()

    async def slow_once(task: str, *, run: Run) -> str:
        attempts.append(run.attempt)
        if run.attempt == 1:
            try:
                await env.sleep(60)
            finally:
                return "swallowed the cancellation"  # noqa: B012 - an agent that does not let go
        return "done"

    agent = Agent(slow_once, RETRY, limits=Limits(attempt_seconds=30), environment=env)
    assert await agent.run("t") == "done"
    assert attempts == [1, 2]


async def test_a_token_resumes_exactly_once() -> None:
    fn = Recording()
    agent = Agent(fn, always(Suspend("how?", {"channel": "ops"})), classifier=Says())
    error = await question_of(agent.run("t"))
    assert error.question == "how?"
    assert isinstance(error.__cause__, ConnectionError)
    assert [info.status for info in await agent.store.runs()] == ["suspended"]
    assert await agent.resume(error.token, Retry("by a person")) == "done"
    assert fn.told[1]["hint"] == "by a person"
    with pytest.raises(triage.core.AlreadyResumed):
        await agent.resume(error.token, Retry())
    assert len(fn.told) == 2


async def test_a_person_may_abort() -> None:
    agent = Agent(Recording(), always(Suspend()), classifier=Says())
    error = await question_of(agent.run("t"))
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
    error = await question_of(agent.run("t"))
    env.now += 100_000
    assert await agent.resume(error.token, Retry(delay=1)) == "done"


async def test_a_policy_may_answer_by_cause() -> None:
    says = Says(replace(Diagnosis(FailureType.EXTERNAL_FAULT), cause=Cause.QUOTA_EXHAUSTED))
    policy = FailurePolicy(default=Retry(), causes={Cause.QUOTA_EXHAUSTED: Abort("no money")})
    with pytest.raises(TriageAbortError, match="no money"):
        await Agent(Recording(), policy, classifier=says).run("t")
