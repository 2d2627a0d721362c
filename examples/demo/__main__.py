"""`python -m examples.demo`: a row for each task, run in every mode, then a JSON line for each mode."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from .modes import MODES, Outcome, Runner, desk, endpoint
from .service import Service
from .show import Rows, Show, describe
from .tasks import TASKS, Task

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence


class Report(NamedTuple):
    """One mode in numbers; the fields of the JSON line.

    tasks, done: how many there were and how many really ended well. model_calls: requests to the
    model, refused ones included. repeated_effects: charges beyond the first of an order.
    seconds_waited: slept between attempts.
    """

    mode: str
    tasks: int
    done: int
    model_calls: int
    repeated_effects: int
    seconds_waited: float


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> int:
    """Run the demonstration; 0 if every task was done under triage, or triage was not asked for.

    console: where the table is printed; None is the terminal.
    """
    options = _options(arguments)
    tasks = [task for task in TASKS if not options.task or task.id in options.task]
    modes = [mode for mode in MODES if not options.mode or mode in options.mode]
    table = Rows(console or _console(plain=options.plain), modes, verbose=options.verbose)
    reports = asyncio.run(run_all(modes, tasks, table))
    if "triage" in modes:
        table.invitation()
    for report in reports:
        sys.stdout.write(f"{json.dumps(report._asdict())}\n")
    return 0 if all(r.done == r.tasks for r in reports if r.mode == "triage") else 1


async def run_all(modes: Sequence[str], tasks: Sequence[Task], table: Rows) -> list[Report]:
    """Every task in all modes at once, each mode on its own copy of the shop; a row a task."""
    with ExitStack() as stack:
        services = {mode: stack.enter_context(_service()) for mode in modes}
        table.heading(endpoint(next(iter(services.values())).url).model)
        ended: dict[str, list[Outcome]] = {mode: [] for mode in modes}
        for task in tasks:
            shows = {mode: table.show(mode) for mode in modes}
            runs = (run_task(mode, task, services[mode], shows[mode]) for mode in modes)
            with table.running(task):
                outcomes = dict(zip(modes, await asyncio.gather(*runs), strict=True))
            table.row(task, outcomes, shows)
            for mode, outcome in outcomes.items():
                ended[mode].append(outcome)
        table.total(ended)
        return [_report(mode, ended[mode], services[mode]) for mode in modes]


@contextmanager
def _service() -> Generator[Service]:
    with tempfile.TemporaryDirectory() as directory, Service(Path(directory)) as service:
        yield service


def _report(mode: str, outcomes: Sequence[Outcome], service: Service) -> Report:
    return Report(
        mode=mode,
        tasks=len(outcomes),
        done=sum(outcome.done for outcome in outcomes),
        model_calls=sum(outcome.model_calls for outcome in outcomes),
        repeated_effects=service.shop.repeated_charges(),
        seconds_waited=round(sum(outcome.waited for outcome in outcomes), 2),
    )


async def run_task(mode: str, task: Task, service: Service, show: Show) -> Outcome:
    """Run one task in one mode. Whatever the agent raises is its outcome."""
    service.faults.set(task.id, task.faults)
    runner = Runner(mode, service, show)
    answer, error = None, None
    started = time.monotonic()
    async with desk(service, task.id) as agent:
        try:
            answer = await runner.run(agent, task)
        except Exception as problem:
            error = describe(problem)
    seconds = time.monotonic() - started
    outcome = Outcome(
        task=task.id,
        done=await asyncio.to_thread(task.check, answer, service.shop),
        error=error,
        model_calls=agent.model_calls,
        tokens=agent.tokens,
        seconds=seconds,
        waited=runner.waited,
        repeated=await asyncio.to_thread(task.repeated, service.shop),
    )
    show.result(outcome, answer)
    return outcome


def _console(*, plain: bool) -> Console:
    if plain:
        return Console(no_color=True, highlight=False, force_terminal=False, width=120)
    return Console(highlight=False)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    ids = [task.id for task in TASKS]
    parser.add_argument("--mode", action="append", choices=MODES, help="this mode only; repeatable")
    parser.add_argument("--task", action="append", choices=ids, help="this task only; repeatable")
    parser.add_argument("--verbose", action="store_true", help="what happened, under each row")
    parser.add_argument("--plain", action="store_true", help="no colours, one line per event")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
