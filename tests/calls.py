"""What the tests of recorded calls share: tools that note what they did, and agents that recover."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from support import Says, always

import triage
from triage import (
    Agent,
    Diagnosis,
    FailureType,
    Run,
    TriageEscalationError,
    TriageSuspendedError,
)
from triage.stores import SQLiteStore

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
