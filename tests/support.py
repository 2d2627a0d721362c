"""Classifiers, tools that count, an environment and second processes, for tests of several rooms."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest

import triage
from triage import (
    Agent,
    Diagnosis,
    FailurePolicy,
    FailureType,
    Retry,
    Run,
    Trajectory,
    TriageEscalationError,
    TriageSuspendedError,
)
from triage.stores import SQLiteStore

PATHS = (str(Path(triage.__file__).parents[1]), str(Path(__file__).parent))
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}
"""Of a process that runs a program of the tests."""


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


def program(module: str, *words: str) -> list[str]:
    """The command of a program of the tests, to be started in ENVIRONMENT."""
    return [sys.executable, "-m", module, *words]


# Recorded calls -----------------------------------------------------------------------------------
LOST = ConnectionResetError("reset by peer")


class World:
    """Counts what really happened, and makes tools of every effect that note it."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.raises: list[BaseException] = []

    def tool(self, effect: str, **options: Any) -> Any:
        @triage.tool(effect=effect, name=effect, **options)
        async def act(what: str) -> str:
            self.did.append(f"{effect}({what})")
            if self.raises:
                raise self.raises.pop(0)
            return f"result of {what}"

        return act


def recovers(action: Any, critical_step: int | None = None, **options: Any) -> dict[str, Any]:
    """The options of an agent that always answers a failure so."""
    diagnosis = Diagnosis(FailureType.EXTERNAL_FAULT, critical_step=critical_step)
    return {"policy": always(action), "classifier": Says(diagnosis), **options}


async def fails_after(tools: list[Any], run: Run) -> list[str]:
    results = [await tool("x") for tool in tools]
    if run.attempt == 1:
        raise ConnectionError("late")
    return results


class Killed(BaseException):
    """Takes a process away in the middle of its run."""


async def in_two_processes(function: Any, path: Path, **options: Any) -> Any:
    """The result of a run whose first process goes away with `Killed`, and a second one recovers it."""
    for process in ("first", "second"):
        store = SQLiteStore(path / "runs.db")
        agent: Agent[Any] = Agent(function, store=store, **options)
        try:
            if process == "first":
                with pytest.raises(Killed):
                    await agent.run("t", run_id="run")
            else:
                return await agent.recover("run")
        finally:
            await store.close()
    raise AssertionError


async def question_of(work: Awaitable[Any], match: str | None = None) -> TriageSuspendedError:
    """The question that a run is suspended with."""
    with pytest.raises(TriageSuspendedError, match=match) as caught:
        await work
    return caught.value


async def escalation_of(work: Awaitable[Any], match: str | None = None) -> TriageEscalationError:
    """The escalation that a run ends with."""
    with pytest.raises(TriageEscalationError, match=match) as caught:
        await work
    return caught.value
