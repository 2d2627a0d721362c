"""Measure how long large values hold the event loop, wherever a run meets them.

    python -m bench.held [--rows 300000] [--store memory sqlite] [--only task result]

Each place is a run of its own, with rows of three values each. A task beside it wakes every millisecond and
reads the CPU time of the loop's thread and of the process; the longest stretches between two wakes are
printed in milliseconds, so that other programs on the machine do not count. What other threads did without
giving the interpreter away counts in the time of the process.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import anyio.to_thread
from pydantic import BaseModel

import triage
from triage import Agent, FailureContext, FailurePolicy, Limits, Retry, Rollback, Run, Step
from triage.engine import Checks
from triage.stores import MemoryStore, SQLiteStore, Store


class Customer(BaseModel):
    """A row as a model."""

    id: int
    name: str
    balance: float


Row = dict[str, Any]
ROWS: list[Row] = []
CUSTOMERS: list[Customer] = []


class Watched:
    """Notes the longest stretches of CPU time between two wakes of its task, in milliseconds."""

    def __init__(self) -> None:
        self.loop_ms = self.process_ms = 0.0
        self._last = (time.thread_time(), time.process_time())

    def note(self) -> None:
        """Note what was spent since the last time."""
        loop, process = time.thread_time(), time.process_time()
        self.loop_ms = max(self.loop_ms, 1000 * (loop - self._last[0]))
        self.process_ms = max(self.process_ms, 1000 * (process - self._last[1]))
        self._last = (time.thread_time(), time.process_time())

    async def watch(self) -> None:
        """Wake every millisecond until cancelled."""
        self._last = (time.thread_time(), time.process_time())
        while True:
            await anyio.sleep(0.001)
            self.note()


# Agents and tools that give, take and record the rows; each fails once, and goes on with what it had.


def fail_once(run: Run) -> None:
    """Raise in the first attempt."""
    if run.attempt == 1:
        raise ConnectionError("late")


@triage.tool(effect="read")
async def read() -> list[Row]:
    """Give the rows, which may be asked for again."""
    return ROWS


@triage.tool(effect="once")
async def take() -> list[Row]:
    """Give the rows, once."""
    return ROWS


@triage.tool(effect="read")
async def read_models() -> list[Customer]:
    """Give the rows as models."""
    return CUSTOMERS


@triage.tool(effect="read")
async def count(rows: list[Row]) -> int:
    """Take the rows."""
    return len(rows)


async def ignores(task: Any, *, run: Run, rows: Any = ()) -> int:
    """The rows are its task, or an argument."""
    fail_once(run)
    return len(task) + len(rows)


async def gives(_task: Any) -> list[Row]:
    """The rows are its result."""
    return ROWS


async def gives_models(_task: Any) -> list[Customer]:
    """The rows are its result, as models."""
    return CUSTOMERS


async def calls(_task: Any, *, run: Run) -> int:
    """The rows are results of its calls."""
    found = len(await read()) + len(await take())
    fail_once(run)
    return found


async def calls_for_models(_task: Any, *, run: Run) -> int:
    """The rows are the result of a call, as models."""
    found = len(await read_models())
    fail_once(run)
    return found


async def calls_with_rows(_task: Any, *, run: Run) -> int:
    """The rows are an argument of a call."""
    found: int = await count(ROWS)
    fail_once(run)
    return found


async def asks(_task: Any, *, run: Run) -> int:
    """The rows are the result of a run inside."""
    found = len(await Agent(gives, name="inner").run("rows"))
    fail_once(run)
    return found


async def gives_on(_task: Any, *, run: Run) -> int:
    """The rows are the task of a run inside."""
    found: int = await Agent(ignores, name="inner").run(ROWS)
    fail_once(run)
    return found


async def records(_task: Any, *, run: Run) -> None:
    """The rows are a step's output, which is copied where it stands."""
    run.record_step(Step(action="rows", tool_called="rows", tool_output=ROWS))
    await anyio.sleep(0.01)
    fail_once(run)


async def repeats(_task: Any, *, run: Run) -> None:
    """The rows are the output of three equal steps, made in a thread."""
    make = partial(Step, action="rows", tool_called="rows", tool_output=ROWS)
    for _ in range(3):
        run.record_step(await anyio.to_thread.run_sync(make))
        await anyio.sleep(0.01)


async def updates(_task: Any, *, run: Run, _triage_state: Any = None) -> None:
    """The rows are the state, which is copied where it stands."""
    if run.attempt == 1:
        run.update_state({"rows": ROWS})
        await anyio.sleep(0.01)
    fail_once(run)


async def updates_apart(_task: Any, *, run: Run, _triage_state: Any = None) -> None:
    """The rows are the state, copied in a thread."""
    if run.attempt == 1:
        await anyio.to_thread.run_sync(run.update_state, {"rows": ROWS})
    fail_once(run)


TYPED = {"result_type": list[Customer]}
CONSTRAINED = {"checks": Checks(constraints=("in no row",))}
PLACES: dict[str, tuple[Any, Any, dict[str, Any], dict[str, Any]]] = {
    "task": (ignores, ROWS, {}, {}),
    "argument": (ignores, "task", {"rows": ROWS}, {}),
    "result": (gives, "task", {}, {}),
    "result of a type": (gives, "task", {}, TYPED),
    "result of models": (gives_models, "task", {}, {}),
    "result held against constraints": (gives, "task", {}, CONSTRAINED),
    "result of a tool": (calls, "task", {}, {}),
    "result of a tool, models": (calls_for_models, "task", {}, {}),
    "argument of a tool": (calls_with_rows, "task", {}, {}),
    "result of a run inside": (asks, "task", {}, {}),
    "task of a run inside": (gives_on, "task", {}, {}),
    "equal steps, made in a thread": (repeats, "task", {}, {}),
    "state, given in a thread": (updates_apart, "task", {}, {}),
    "step, made in the loop": (records, "task", {}, {}),
    "state, given in the loop": (updates, "task", {}, {}),
}
"""Where a run meets the rows: its function, task, arguments and the options of its agent."""


def once_more(context: FailureContext) -> Rollback | Retry:
    """Keep the state where there is one."""
    return Rollback() if context.state else Retry()


POLICY = FailurePolicy(EXTERNAL_FAULT=once_more, default=once_more)


async def measure(kinds: list[str], only: list[str]) -> None:
    """Print the longest hold of each place in each store."""
    print(f"{len(ROWS):,} rows: longest hold in ms of CPU, of the loop's thread and of the process")
    await Agent(gives, store=MemoryStore()).run("imports what a first run needs")
    for kind in kinds:
        for name, (function, task, given, options) in PLACES.items():
            if only and name not in only:
                continue
            with TemporaryDirectory() as folder:
                path = Path(folder, "runs.db")
                store: Store = SQLiteStore(path) if kind == "sqlite" else MemoryStore()
                agent: Any = Agent(
                    function, POLICY, store=store, limits=Limits(attempts=3), **options
                )
                watched = Watched()
                async with anyio.create_task_group() as group:
                    group.start_soon(watched.watch)
                    await anyio.sleep(0.01)
                    found = await agent.run(task, **given)
                    watched.note()
                    group.cancel_scope.cancel()
                del found  # which takes a while, too
                await store.close()
            line = f"{kind:8}{name:34}{watched.loop_ms:8.1f}{watched.process_ms:8.1f}"
            print(line, flush=True)


def main() -> None:
    """Measure, as the options say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    kinds = ["memory", "sqlite"]
    parser.add_argument("--store", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--only", nargs="+", default=[])
    options = parser.parse_args()
    for number in range(options.rows):
        row: Row = {"id": number, "name": f"customer {number}", "balance": number * 1.5}
        ROWS.append(row)
        CUSTOMERS.append(Customer(**row))
    anyio.run(measure, options.store, options.only)


if __name__ == "__main__":
    main()
