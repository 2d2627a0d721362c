"""triage-agent, which is imported by the same name as ours: nothing of ours is loaded here."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .measure import Body, Run

package = "triage"


def clean() -> Run:
    """As in `Peer`."""
    triage: Any = import_module(package)

    async def agent(task: str, **_: Any) -> str:
        return task

    policy = triage.FailurePolicy(default=triage.FailurePolicy.escalate_by_default())
    run: Run = triage.Agent(agent, policy).run
    return run


def stepping(outputs: list[str]) -> Run:
    """As in `Peer`."""
    triage: Any = import_module(package)
    step = triage.Step

    async def agent(task: str, *, record_step: Any, **_: Any) -> str:
        for at, output in enumerate(outputs):
            record_step(
                step(
                    index=at,
                    action="search",
                    tool_called="search",
                    tool_input={"page": at},
                    tool_output=output,
                )
            )
        return task

    policy = triage.FailurePolicy(default=triage.FailurePolicy.escalate_by_default())
    run: Run = triage.Agent(agent, policy).run
    return run


def recovering(body: Body, steps: int) -> Run:
    """As in `Peer`."""
    triage: Any = import_module(package)
    step = triage.Step

    async def agent(task: str, *, record_step: Any, **_: Any) -> None:
        body.enter(task)
        for at in range(steps):
            record_step(
                step(
                    index=at,
                    action="search",
                    tool_called="search",
                    tool_input={"page": at},
                    tool_output="found",
                )
            )
            await asyncio.sleep(0)
        body.leave(task)

    async def again(_context: Any) -> Any:
        return triage.RecoveryAction.RETRY()

    run: Run = triage.Agent(agent, triage.FailurePolicy(default=again)).run
    return run


def classifying(_steps: int) -> None:
    """As in `Peer`."""
    return


def creation() -> str:
    """As in `Peer`."""
    return "from triage import Agent, FailurePolicy, Step\nAgent(f, FailurePolicy())"
