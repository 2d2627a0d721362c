"""What an attempt is told stays out of its prompts until the replayed calls are done."""

from __future__ import annotations

import anyio
import pytest
from calls import recovers

import triage
from triage import Agent, Guidance, Replan, Retry, Run

pytestmark = pytest.mark.anyio


async def test_guidance_is_empty_until_the_last_replayed_call() -> None:
    asked: list[str] = []
    hints: list[str | None] = []

    @triage.tool(effect="read", match="position")
    async def ask(prompt: str) -> str:
        asked.append(prompt)
        if len(asked) == 4:
            raise ConnectionError("overloaded")
        return prompt

    async def works(task: str, *, run: Run) -> None:
        for n in range(5):
            hint = run.guidance.hint
            hints.append(hint)
            await ask(f"prompt {n}{'' if hint is None else f' ({hint})'}")

    await Agent(works, **recovers(Retry(hint="be brief"))).run("t")
    assert hints == [None] * 4 + [None] * 3 + ["be brief"] * 2
    assert asked == [
        *(f"prompt {n}" for n in range(4)),
        "prompt 3 (be brief)",
        "prompt 4 (be brief)",
    ]


async def test_equal_prompts_of_a_task_group_are_found_and_then_the_hint_is_told() -> None:
    asked: list[str] = []

    @triage.tool(effect="read", match="position")
    async def ask(prompt: str) -> str:
        asked.append(prompt)
        await anyio.lowlevel.checkpoint()
        return prompt

    async def works(task: str, *, run: Run) -> str | None:
        async def one(name: str) -> None:
            await ask(f"{name} {run.guidance.hint}")

        async with anyio.create_task_group() as group:
            for name in "abc":
                group.start_soon(one, name)
        if run.attempt == 1:
            raise ConnectionError("late")
        return run.guidance.hint

    assert await Agent(works, **recovers(Retry(hint="h"))).run("t") == "h"
    assert sorted(asked) == ["a None", "b None", "c None"]


async def test_guidance_is_told_at_once_where_nothing_is_matched_by_position() -> None:
    @triage.tool(effect="read")
    async def look() -> int:
        return 1

    told: list[Guidance] = []

    async def works(task: str, *, run: Run) -> None:
        told.append(run.guidance)
        await look()
        if run.attempt == 1:
            raise ConnectionError("late")

    await Agent(works, **recovers(Replan("another way"))).run("t")
    assert [guidance.hint for guidance in told] == [None, "another way"]
