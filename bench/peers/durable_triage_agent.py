"""Seconds that triage-agent takes for a run of so many steps that it keeps in SQLite: argv: steps, file."""

from __future__ import annotations

import asyncio
import sys
import time
from importlib import import_module
from typing import Any


def main(steps: int, file: str) -> None:
    """Print the seconds."""
    triage: Any = import_module("triage")
    store = import_module("triage.checkpoint.sqlite").SQLiteCheckpointStore(file)

    async def agent(task: str, *, record_step: Any, **_: Any) -> str:
        for at in range(steps):
            record_step(
                triage.Step(
                    index=at,
                    action="search",
                    tool_called="search",
                    tool_input={"page": at},
                    tool_output="found " * 80,
                )
            )
            await asyncio.sleep(0)
        return task

    policy = triage.FailurePolicy(default=triage.FailurePolicy.escalate_by_default())
    made = triage.Agent(agent, policy, checkpoint_store=store, auto_checkpoint=True)
    began = time.perf_counter()
    asyncio.run(made.run("task"))
    print(time.perf_counter() - began)


main(int(sys.argv[1]), sys.argv[2])
