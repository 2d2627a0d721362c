"""What the tests of the loop share: classifiers that always say the same, and an environment."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest

from triage import Diagnosis, FailurePolicy, FailureType, Retry, Trajectory


class Says:
    """A classifier with one answer."""

    def __init__(self, answer: Diagnosis | FailureType = FailureType.EXTERNAL_FAULT) -> None:
        self.answer = answer

    def classify(self, trajectory: Trajectory, task: Any) -> Diagnosis | FailureType:
        return self.answer


class FakeEnvironment:
    """Time that stands still but for sleep, ids that count, chance that is always one half."""

    def __init__(self, random: float = 0.5) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self._ids = itertools.count(1)
        self._random = random

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def new_id(self) -> str:
        return f"run-{next(self._ids)}"

    def new_token(self) -> str:
        return f"token-{next(self._ids)}"

    def random(self) -> float:
        return self._random

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def on_both_backends() -> Any:
    """A fixture for `anyio_backend` in a file of tests that wait, in a room where one is enough."""

    @pytest.fixture(params=["asyncio", "trio"])
    def anyio_backend(request: pytest.FixtureRequest) -> str:
        return str(request.param)

    return anyio_backend


def always(strategy: Any) -> FailurePolicy:
    """A policy that answers everything in one way."""
    return FailurePolicy(default=strategy)


def in_turn(*actions: Any) -> Callable[[Any], Any]:
    """A strategy that takes these actions one after the other, the last one for ever."""

    def strategy(context: Any) -> Any:
        return actions[min(context.attempt, len(actions)) - 1]

    return strategy


RETRY = always(lambda _context: Retry())


async def cancelled_once(begun: anyio.Event, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Do this until it sets the event, however long that takes, and cancel it then."""
    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await begun.wait()
        group.cancel_scope.cancel()
