"""Faults in our own parts: classifiers, strategies, observers and stores that fail."""

from __future__ import annotations

import functools
import threading
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest
from recordings import Recording
from support import RETRY, Says, always

import triage
from triage import (
    Agent,
    Escalate,
    FailureType,
    TriageEscalationError,
)

pytestmark = pytest.mark.anyio
KEY = "sk-aB3dE5gH7jK9mN1pQ3sT5vW7"


class Broken:
    def classify(self, trajectory: Any, task: Any) -> Any:
        raise LookupError(f"broken classifier, asked with {KEY}")


class Junk:
    def classify(self, trajectory: Any, task: Any) -> Any:
        return "external_fault, probably"


@pytest.mark.parametrize(("classifier", "said"), [(Broken(), "LookupError"), (Junk(), "str")])
async def test_a_classifier_that_fails_makes_the_diagnosis_unknown(
    classifier: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TriageEscalationError) as caught:
        await Agent(Recording(), always(Escalate()), classifier=classifier).run("t")
    diagnosis = caught.value.diagnosis
    assert diagnosis is not None
    assert diagnosis.failure_type is FailureType.UNKNOWN
    assert said in diagnosis.evidence[0].text
    assert KEY not in repr(diagnosis)
    assert isinstance(caught.value.__cause__, ConnectionError)


async def test_a_classifier_that_hangs_is_left_behind() -> None:
    release = threading.Event()

    class Hangs:
        deadline = 0.05

        def classify(self, trajectory: Any, task: Any) -> FailureType:
            release.wait(30)
            return FailureType.EXTERNAL_FAULT

    try:
        with pytest.raises(TriageEscalationError) as caught:
            await Agent(Recording(), always(Escalate()), classifier=Hangs()).run("t")
    finally:
        release.set()
    assert "longer than 0.05 s" in str(caught.value.diagnosis and caught.value.diagnosis.evidence)


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
        with pytest.raises(TriageEscalationError) as caught:
            await Agent(Recording(), always(Escalate()), classifier=Hangs(deadline)).run("t")
        diagnosis = caught.value.diagnosis
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


async def test_what_is_async_without_saying_so_is_awaited_in_the_loop() -> None:
    thread = threading.get_ident()

    async def looks(kind: FailureType, trajectory: Any, task: Any) -> FailureType:
        assert threading.get_ident() == thread
        return kind

    class Async:
        classify = staticmethod(functools.partial(looks, FailureType.GOAL_DRIFT))

    with pytest.raises(TriageEscalationError) as caught:
        await Agent(Recording(), always(Escalate()), classifier=Async()).run("t")
    assert caught.value.context is not None
    assert caught.value.context.failure_type is FailureType.GOAL_DRIFT


async def test_an_async_classifier_is_awaited_in_the_loop() -> None:
    thread = threading.get_ident()

    class Async:
        async def classify(self, trajectory: Any, task: Any) -> FailureType:
            assert threading.get_ident() == thread
            return FailureType.GOAL_DRIFT

    with pytest.raises(TriageEscalationError) as caught:
        await Agent(Recording(), always(Escalate()), classifier=Async()).run("t")
    assert caught.value.context is not None
    assert caught.value.context.failure_type is FailureType.GOAL_DRIFT


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


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (lambda _context: None, "NoneType"),
        (lambda _context: "retry", "str"),
        (lambda _context: 1 / 0, "ZeroDivisionError"),
    ],
)
async def test_a_strategy_that_fails_escalates_with_the_diagnosis_kept(
    strategy: Any, said: str
) -> None:
    with pytest.raises(TriageEscalationError, match=said) as caught:
        await Agent(Recording(), always(strategy), classifier=Says()).run("t")
    assert caught.value.context is not None
    assert caught.value.context.failure_type is FailureType.EXTERNAL_FAULT
    assert isinstance(caught.value.__cause__, ConnectionError)


async def test_an_observer_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def bad(event: Any) -> None:
        raise LookupError("bad observer")

    assert await Agent(Recording(), RETRY, classifier=Says(), observers=[bad]).run("t") == "done"
    assert "bad observer" in caplog.text


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


class BrokenStore(triage.MemoryStore):
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


async def test_a_store_that_fails_never_hides_the_users_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = Agent(Recording(), always(Escalate()), classifier=Says(), store=BrokenStore())
    with pytest.raises(TriageEscalationError) as caught:
        await agent.run("t")
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert "no space" in caught.value.__notes__[0]
