"""triage-recovery, from this checkout."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triage import FailureContext, Retry

    from .measure import Body, Run

package = "triage"


def clean() -> Run:
    """As in `Peer`."""
    from triage import Agent, FailurePolicy

    async def agent(task: str) -> str:
        return task

    return Agent(agent, FailurePolicy(default=FailurePolicy.escalate_by_default())).run


def stepping(outputs: list[str], *, checkpoints: bool) -> Run:  # noqa: ARG001 - every step is one
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


def creation() -> str:
    """As in `Peer`."""
    return "from triage import Agent, FailurePolicy, Step\nAgent(f, FailurePolicy())"
