"""For each limit an agent that uses more and more of it, whatever it is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from support import Says, always

import triage
from triage import (
    Agent,
    Diagnosis,
    FailureType,
    Limits,
    Replan,
    Resume,
    Retry,
    Rollback,
    Run,
    Severity,
    Step,
    Usage,
)
from triage.strategies import Prices
from triage.testing import VirtualTime

Uses = Callable[[Run, VirtualTime], Awaitable[None]]


@triage.tool(effect="read")
async def search(q: int) -> str:
    """A tool whose calls count."""
    return f"row {q}"


class Scenario(NamedTuple):
    """limits: as it is set. uses: one attempt, which fails at its end if nothing stops it. details: how
    the diagnosis begins. action: what is done about a failure. after: how much of it the run had used
    when it was stopped, as its context says.
    """

    limits: dict[str, Any]
    uses: Uses
    details: str
    action: Any = Retry()
    says: Any = FailureType.EXTERNAL_FAULT
    name: str = ""

    def agent(
        self, env: VirtualTime, *, fails: Callable[[Run], bool] = lambda _run: True, **options: Any
    ) -> Agent[str]:
        """An agent that goes on for as long as `fails` says."""
        given: dict[str, Any] = {"attempts": None, **self.limits, **options.pop("more", {})}
        limits = Limits(**given)

        async def works(task: str, *, run: Run) -> str:
            if not fails(run):
                return "done"
            await self.uses(run, env)
            raise ConnectionError("gone")

        return Agent(
            works,
            always(self.action),
            classifier=Says(self.says),
            limits=limits,
            environment=env,
            **options,
        )


async def fails(run: Run, env: VirtualTime) -> None:
    run.subgoals(["first", "second"])
    run.record_step(Step(action="look"))


async def waits(run: Run, env: VirtualTime) -> None:
    await env.sleep(6)


async def steps(run: Run, env: VirtualTime) -> None:
    for at in range(100):
        run.record_step(Step(action=f"step {at}"))


async def calls(run: Run, env: VirtualTime) -> None:
    for at in range(100):
        await search(at + 100 * run.attempt)


def spends(usage: Usage) -> Uses:
    async def use(run: Run, env: VirtualTime) -> None:
        for _ in range(100):
            run.record_usage(usage)

    return use


SORRY = Diagnosis(FailureType.UNKNOWN, severity=Severity.RECLASSIFICATION)
SCENARIOS: dict[str, Scenario] = {
    "attempts": Scenario({"attempts": 3}, fails, "used 3, allowed 3"),
    "attempts_per_type": Scenario({"attempts_per_type": 2}, fails, "used 2, allowed 2"),
    "retries": Scenario({"retries": 2}, fails, "used 2, allowed 2"),
    "replans": Scenario({"replans": 2}, fails, "used 2, allowed 2", Replan()),
    "reclassifications": Scenario(
        {"reclassifications": 2}, fails, "used 2, allowed 2", Replan(), SORRY
    ),
    "rollbacks": Scenario({"rollbacks": 2}, fails, "used 2, allowed 2", Rollback()),
    "resumes": Scenario({"resumes": 2}, fails, "used 2, allowed 2", Resume()),
    "seconds": Scenario({"seconds": 10}, waits, "allowed 10 s, all of them used"),
    "slept_seconds": Scenario(
        {"slept_seconds": 10}, fails, "used 6, allowed 10", Retry(delay=6.0)
    ),
    "steps": Scenario({"steps": 3}, steps, "used 4, allowed 3"),
    "tool_calls": Scenario({"tool_calls": 3}, calls, "used 3, allowed 3"),
    "calls_per_tool": Scenario(
        {"calls_per_tool": {"search": 3, "other": 1}}, calls, "used 3, allowed 3",
        name="calls_per_tool:search",
    ),
    "input_tokens": Scenario({"input_tokens": 25}, spends(Usage(10, 1)), "used 30, allowed 25"),
    "output_tokens": Scenario({"output_tokens": 25}, spends(Usage(1, 10)), "used 30, allowed 25"),
    "tokens": Scenario({"tokens": 25}, spends(Usage(5, 5)), "used 30, allowed 25"),
    "cost_usd": Scenario({"cost_usd": 0.5}, spends(Usage(1, 1, 0.25)), "used 0.75, allowed 0.5"),
}  # fmt: skip
"""Those that end the run."""

PRICED = Scenario(
    {"cost_usd": 0.5, "prices": Prices({"mine": (250_000, 0)})},
    spends(Usage(1, 0, model="mine")),
    "used 0.75, allowed 0.5",
)
"""One whose cost nobody says."""
