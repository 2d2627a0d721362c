"""Events for the tests of stores."""

from __future__ import annotations

import time

from triage import Step
from triage.events import Event, RunFinished, RunStarted, StepRecorded
from triage.stores import Store


def started(run_id: str) -> RunStarted:
    return RunStarted(run_id, 0, time.time(), "agent", "task")


def steps(run_id: str, at: int, count: int) -> list[Event]:
    """So many steps from a position on."""
    now = time.time()
    return [
        StepRecorded(
            run_id, seq, now, 1, seq, Step(action="look", tool_output=f"found {seq} " * 20)
        )
        for seq in range(at, at + count)
    ]


def run_of(run_id: str, count: int) -> list[Event]:
    """A whole run with so many steps."""
    end = RunFinished(run_id, count + 1, time.time(), "done", "result")
    return [started(run_id), *steps(run_id, 1, count), end]


async def created(store: Store, run_id: str, *, lease_s: float | None = None) -> None:
    """Begin a run."""
    await store.append(run_id, [started(run_id)], at=0, epoch=0, lease_s=lease_s)


async def add(store: Store, run_id: str, at: int, count: int, epoch: int = 0) -> None:
    """Append so many steps at a position."""
    await store.append(run_id, steps(run_id, at, count), at=at, epoch=epoch)
