"""The deadline of a run holds while its classifier is asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from triage import Agent, FailureType, Limits, Trajectory
from triage.core import Cause, TriageEscalationError

pytestmark = pytest.mark.anyio


class Hangs:
    """An async classifier that never answers."""

    async def classify(self, trajectory: Trajectory, task: Any) -> FailureType:
        await anyio.sleep_forever()
        raise AssertionError


class Blocks:
    """A sync one."""

    def __init__(self, released: threading.Event) -> None:
        self.released = released

    def classify(self, trajectory: Trajectory, task: Any) -> FailureType:
        self.released.wait()
        return FailureType.UNKNOWN


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


async def fails(task: str) -> None:
    raise ConnectionError("gone")


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_run_ends_at_its_deadline_although_its_classifier_hangs(
    kind: str, released: threading.Event
) -> None:
    classifier: Any = Hangs() if kind == "async" else Blocks(released)
    agent = Agent(fails, classifier=classifier, limits=Limits(seconds=0.05))
    with anyio.fail_after(60), pytest.raises(TriageEscalationError, match="seconds") as caught:
        await agent.run("task")
    context = caught.value.context
    assert context is not None
    assert context.diagnosis.cause is Cause.LIMIT
    assert context.error is not None
    assert "gone" in context.error.message


async def test_a_failure_at_the_deadline_is_still_diagnosed_by_rules() -> None:
    class Late:
        """A clock at which the attempt takes longer than the run may."""

        now = 0.0

        def time(self) -> float:
            return self.now

        def monotonic(self) -> float:
            return self.now

        def random(self) -> float:
            return 0.5

        def new_id(self) -> str:
            return "run-1"

        def new_token(self) -> str:
            return "token-1"

        async def sleep(self, seconds: float) -> None:
            self.now += seconds

    late = Late()

    async def fails_late(task: str) -> None:
        late.now += 60
        raise ConnectionError("gone")

    agent = Agent(fails_late, limits=Limits(seconds=30), environment=late)
    with pytest.raises(TriageEscalationError) as caught:
        await agent.run("task")
    assert caught.value.context is not None
    assert caught.value.context.failure_type is FailureType.EXTERNAL_FAULT
