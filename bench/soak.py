"""Ten thousand runs at once under faults, cancellations and limits: does anything get lost or left behind?

    python -m bench.soak --runs 10000 --rounds 3

Every run is one of the kinds below, drawn from a seed. After each round it is checked that every run
came to an end that its kind allows, that its journal is whole and says so, that no task and no thread is
left, and that memory has stopped growing. Prints one line of JSON a round; exits with 1 if a check fails.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import anyio.lowlevel

from triage import (
    Agent,
    FailurePolicy,
    Limits,
    Retry,
    Step,
    TriageError,
    TriageSuspendedError,
    Usage,
    current_run,
    tool,
)
from triage.core import events
from triage.stores import MemoryStore

if TYPE_CHECKING:
    from triage import Run

THREADED = 0.01
"""Share of the runs that are sync functions: they queue for forty threads."""
GROWTH = 1.15
"""How much more memory a later round may hold than the second one."""
POLICY = FailurePolicy(default=Retry())


class Kind(NamedTuple):
    """A kind of run. ends: the statuses its journal may end with. cancelled: it is, from outside."""

    agent: Agent[Any]
    ends: tuple[str, ...]
    cancelled: bool = False


def _step(page: int) -> Step:
    return Step(
        action="search", tool_called="search", tool_input={"page": page}, tool_output=f"page {page}"
    )


async def fine(task: str, *, record_step: Callable[[Step], int]) -> str:
    """Does some steps and answers."""
    for page in range(5):
        record_step(_step(page))
        await anyio.lowlevel.checkpoint()
    return task


async def fails_once(task: str, *, run: Run) -> str:
    """Is refused at first."""
    run.record_step(_step(run.attempt))
    await anyio.sleep(0.001)
    if run.attempt == 1:
        raise ConnectionError(f"connection refused for {task}")
    return task


async def fails_always(_task: str) -> str:
    """Has a bug."""
    await anyio.lowlevel.checkpoint()
    raise ValueError("no")


async def loops(task: str, *, run: Run) -> str:
    """Goes round until it is interrupted, and learns from it."""
    if run.attempt > 1:
        return task
    while True:
        run.record_step(_step(0))
        await anyio.lowlevel.checkpoint()


async def swallows(task: str, *, run: Run) -> str:
    """Goes round, catches whatever would stop it for a while, and answers as if nothing had happened."""
    if run.attempt > 1:
        return task
    for _ in range(30):
        try:
            run.record_step(_step(0))
            await anyio.lowlevel.checkpoint()
        except BaseException:
            continue
    return "never said"


async def hangs(task: str, *, run: Run) -> str:
    """Waits for something that never comes."""
    if run.attempt > 1:
        return task
    await anyio.sleep_forever()
    raise AssertionError


async def spends(_task: str, *, run: Run) -> str:
    """Uses more than it may."""
    for page in range(100):
        run.record_step(_step(page))
        run.record_usage(Usage(10, 10))
        await anyio.lowlevel.checkpoint()
    return "too much"


async def splits(task: str, *, run: Run) -> str:
    """Works in two tasks at once."""

    async def part(start: int) -> None:
        for page in range(start, start + 3):
            run.record_step(_step(page))
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(part, 0)
        group.start_soon(part, 100)
    return task


@tool(effect="once")
async def charge(account: str) -> str:
    """Takes effect, and now and then nobody knows whether it has."""
    await anyio.lowlevel.checkpoint()
    if account.endswith("3"):
        raise TimeoutError("read timed out")
    return f"charged {account}"


async def pays(task: str, *, run: Run) -> str:
    """Calls what must not happen twice, and fails after it."""
    paid: str = await charge(task)
    if run.attempt == 1:
        raise ConnectionError("connection reset")
    return paid


def threaded(task: str, *, run: Run) -> str:
    """A sync function."""
    run.record_step(_step(run.attempt))
    if run.attempt == 1:
        raise OSError("disk is busy")
    return task


async def nests(task: str) -> str:
    """Runs another agent inside."""
    inner = Agent(fine, POLICY, store=current_run().session.config.store)
    found: str = await inner.run(task)
    return found


def kinds(store: MemoryStore) -> dict[str, Kind]:
    """Every kind of run by name, on one store."""

    def agent(function: Callable[..., Any], limits: Limits | None = None) -> Agent[Any]:
        return Agent(function, POLICY, limits=limits or Limits(attempts=3), store=store)

    return {
        "fine": Kind(agent(fine), ("done",)),
        "fails_once": Kind(agent(fails_once), ("done",)),
        "fails_always": Kind(agent(fails_always), ("escalated",)),
        "loops": Kind(agent(loops), ("done",)),
        "swallows": Kind(agent(swallows), ("done",)),
        "hangs": Kind(agent(hangs, Limits(attempts=6, attempt_seconds=2.0)), ("done",)),
        "stalls": Kind(agent(hangs, Limits(attempts=6, stall_seconds=2.0)), ("done",)),
        "spends": Kind(agent(spends, Limits(steps=20)), ("escalated",)),
        "tokens": Kind(agent(spends, Limits(tokens=100)), ("escalated",)),
        "splits": Kind(agent(splits), ("done",)),
        "pays": Kind(agent(pays), ("done", "suspended")),
        "nests": Kind(agent(nests), ("done",)),
        "cancelled": Kind(agent(hangs), ("cancelled",), cancelled=True),
        "cancelled early": Kind(agent(splits), ("cancelled", "done"), cancelled=True),
    }


async def one(kind: Kind, run_id: str, random_: random.Random) -> None:
    """One run to its end, whatever that is."""
    with anyio.move_on_after(random_.uniform(0, 0.3) if kind.cancelled else None):
        try:
            await kind.agent.run(run_id.rpartition("-")[2], run_id=run_id)
        except (TriageError, TriageSuspendedError):
            return


async def round_of(runs: int, seed: int, store: MemoryStore) -> tuple[dict[str, str], Counter[str]]:
    """That many runs at once: the kind of each by id, and how often each kind was drawn."""
    random_ = random.Random(seed)
    known = kinds(store)
    names = list(known)
    sync = Kind(Agent(threaded, POLICY, limits=Limits(attempts=3), store=store), ("done",))
    drawn: dict[str, str] = {}
    async with anyio.create_task_group() as group:
        for number in range(runs):
            name = "threaded" if random_.random() < THREADED else random_.choice(names)
            run_id = f"soak-{seed}-{number}"
            drawn[run_id] = name
            group.start_soon(one, known.get(name, sync), run_id, random_)
    return drawn, Counter(drawn.values())


async def wrong(drawn: dict[str, str], store: MemoryStore) -> list[str]:
    """What is not as it must be in the journals of these runs."""
    known = kinds(store)
    problems: list[str] = []
    for run_id, name in drawn.items():
        journal = await store.read(run_id)
        problems += [
            f"{name} {run_id}: {problem}"
            for problem in _problems(journal, ("done",) if name == "threaded" else known[name].ends)
        ]
    return problems


def _problems(journal: Sequence[events.Event], ends: tuple[str, ...]) -> list[str]:
    if not journal:
        # Cancelled before its first line ran: it has never begun.
        return [] if "cancelled" in ends else ["has no journal"]
    found: list[str] = []
    if [event.seq for event in journal] != list(range(len(journal))):
        found.append("its positions have gaps")
    last = journal[-1]
    if isinstance(last, events.RunSuspended):
        status = "suspended"
    else:
        status = last.status if isinstance(last, events.RunFinished) else type(last).__name__
    if status not in ends:
        found.append(f"ended as {status}, not as {' or '.join(ends)}")
    charged = [
        event
        for event in journal
        if isinstance(event, events.CallFinished) and event.outcome == "done" and not event.replayed
    ]
    if len({event.key for event in charged}) < len(charged):
        found.append("a call was made twice")
    return found


def resident() -> int:
    """KB of memory this process has now; its peak where the system does not say."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _is_set(thread: threading.Thread) -> bool:
    """Whether it is a timer that would still act; one that was cancelled takes a moment to end."""
    return isinstance(thread, threading.Timer) and not thread.finished.is_set()


async def soak(runs: int, rounds: int, seed: int, show: Callable[[str], object]) -> list[str]:
    """All rounds; what was wrong."""
    problems: list[str] = []
    sizes: list[int] = []
    threads, tasks = threading.active_count(), _tasks()
    for number in range(rounds):
        store = MemoryStore(keep=3 * runs)
        start = time.perf_counter()
        drawn, counts = await round_of(runs, seed + number, store)
        seconds = time.perf_counter() - start
        found = await wrong(drawn, store)
        left = _tasks() - tasks
        # The pools of the classifiers and of sync functions keep their threads for the next.
        extra = [t.name for t in threading.enumerate() if _is_set(t)]
        if left:
            found.append(f"{left} tasks are left")
        if extra:
            found.append(f"timers are left: {extra}")
        del store, drawn
        gc.collect()
        sizes.append(resident())
        problems += found
        told = {
            "round": number + 1, "runs": runs, "seconds": round(seconds, 1), "kinds": dict(counts),
            "resident_kb": sizes[-1], "threads": threading.active_count() - threads,
            "tasks_left": left, "problems": len(found),
        }  # fmt: skip
        show(json.dumps(told))
    if len(sizes) > 2 and max(sizes[2:]) > GROWTH * sizes[1]:
        problems.append(f"memory grows from round to round: {sizes} KB")
    return problems


def _tasks() -> int:
    """Tasks of this event loop; none counts under trio, which ends those of a nursery with it."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000, help="at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", choices=("asyncio", "trio"), default="asyncio")
    options = parser.parse_args(arguments)
    # What fails on purpose is logged as it should be, twenty thousand times.
    logging.getLogger("triage").setLevel(logging.CRITICAL)
    found: list[str] = anyio.run(
        soak, options.runs, options.rounds, options.seed, print, backend=options.backend
    )
    for problem in found[:20]:
        print(problem)
    print(f"{options.rounds} rounds of {options.runs} runs: {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
