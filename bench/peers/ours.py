"""triage-recovery, from this checkout."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from triage import FailureContext, Retry

    from .measure import Body, Run

package = "triage"


def clean() -> Run:
    """As in `Peer`."""
    from triage import Agent, FailurePolicy

    async def agent(task: str) -> str:
        return task

    return Agent(agent, FailurePolicy(default=FailurePolicy.escalate_by_default())).run


def stepping(outputs: list[str]) -> Run:
    """As in `Peer`."""
    from triage import Agent, FailurePolicy, Step

    async def agent(task: str, *, record_step: Any) -> str:
        for at, output in enumerate(outputs):
            record_step(
                Step(
                    index=at,
                    action="search",
                    tool_called="search",
                    tool_input={"page": at},
                    tool_output=output,
                )
            )
        return task

    return Agent(agent, FailurePolicy(default=FailurePolicy.escalate_by_default())).run


def recovering(body: Body, steps: int) -> Run:
    """As in `Peer`."""
    from triage import Agent, FailurePolicy, Retry, Step

    async def agent(task: str, *, record_step: Any) -> None:
        body.enter(task)
        for at in range(steps):
            record_step(
                Step(
                    index=at,
                    action="search",
                    tool_called="search",
                    tool_input={"page": at},
                    tool_output="found",
                )
            )
            await asyncio.sleep(0)
        body.leave(task)

    async def again(context: FailureContext) -> Retry:
        # A strategy that raises ends the run: what was not diagnosed is not measured either.
        assert context.failure_type.value == "external_fault"
        return Retry()

    return Agent(agent, FailurePolicy(default=again)).run


def classifying(steps: int) -> Callable[[], object]:
    """As in `Peer`."""
    from triage import RulesClassifier, Step, Trajectory
    from triage.core import ErrorInfo

    made = [
        Step(
            index=at,
            action="search",
            tool_called="search",
            tool_input={"page": at},
            tool_output=f"{at:08d}" * 16,
        )
        for at in range(steps)
    ]
    numbers = itertools.count()

    def look() -> object:
        # Each time other words, so that nothing is known from before.
        error = ErrorInfo("RuntimeError", message=f"the total of {next(numbers)} is missing")
        return RulesClassifier().classify(Trajectory(steps=made, error=error), "find the total")

    return look


def creation() -> str:
    """As in `Peer`."""
    return "from triage import Agent, FailurePolicy, Step\nAgent(f, FailurePolicy())"
