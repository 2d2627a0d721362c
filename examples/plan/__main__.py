"""`python -m examples.plan`: plan, be corrected, wait for a person, go on in another process' place."""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
from rich.console import Console
from rich.text import Text

from triage import TriageError, TriageSuspendedError, approve
from triage.core import ApprovalAsked, Event, PlanFailed, PlanMade, PlanRouted, PlanStepMoved
from triage.plan import Approval, Orchestrator, PlanState, fold_plan, unsafe_effects

from .analyst import TASK, Desk
from .planner import planner

_QUESTIONS = 5
_COLOURS = {"failed": "red", "waiting": "yellow", "done": "green", "decided": "dim"}


def main(console: Console | None = None) -> int:
    """Run the demonstration; 0 if the task was done and published once.

    console: where it is told; None is the terminal.
    """
    told = Told(console or Console(highlight=False))
    with tempfile.TemporaryDirectory() as folder:
        return anyio.run(run, Path(folder), told)


class Told:
    """Tells what happens, each failure with its cause."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.state = PlanState()

    def line(self, *parts: str | tuple[str, str]) -> None:
        """Print a line of styled parts; in a file it is not wrapped, so that it can be searched."""
        wrapped = self.console.is_terminal or self.console.record
        self.console.print(Text.assemble(*parts), soft_wrap=not wrapped)

    def event(self, event: Event) -> None:
        """One thing that happened."""
        step, self.state = self.state.next_step, self.state.apply(event)
        capability = "" if step is None else step.capability
        match event:
            case PlanRouted(target=target, reason=reason):
                self.said("router", "decided", f"{target}: {reason}")
            case PlanMade(version=version):
                self.said("planner", "done", f"plan {version}")
            case PlanStepMoved(step=key):
                self.said(capability, "done", key)
            case ApprovalAsked(question=question):
                self.said("approver", "waiting", question)
            case PlanFailed():
                failed = capability if event.step else str(event.target)
                self.said(failed, "failed", event.diagnosis.user_message or "")
                error = "" if event.error is None else f"{event.error}: "
                self.line(("  because ", "dim"), (f"{error}{event.diagnosis}", "red"))
            case _:
                pass

    def said(self, who: str, phase: str, message: str) -> None:
        """Print who did what."""
        style = _COLOURS[phase]
        self.line((who, "cyan"), "  ", (phase, f"bold {style}"), (f": {message}", style))

    def failure(self, ended: TriageError) -> None:
        """A run that could not be done."""
        self.line("" if ended.report is None else ended.report.to_text("developer"))


async def run(folder: Path, told: Told) -> int:
    """Do one task, from its plan to its answer; then print one JSON line with the figures."""
    desk = await anyio.to_thread.run_sync(Desk, folder)
    store = f"sqlite:///{folder / 'runs.db'}"
    with desk.locked() as other:

        def released(event: Event) -> None:
            """Whoever has the database is done with it when the step is tried again."""
            if isinstance(event, PlanRouted) and event.counter == "retries":
                other.rollback()

        token = await first(desk, store, released, told)
    answer: Any = None
    for _ in range(_QUESTIONS):
        if token is None:
            break
        answer, token = await second(desk, store, token, told)
    return await ended(desk, store, answer, told)


def orchestrator(desk: Desk, store: str, *observers: Any) -> Orchestrator:
    """The analyst. What cannot be undone needs a person's approval."""
    registry = desk.registry()
    return Orchestrator(
        registry,
        planner(),
        approval=Approval("selective", unsafe_effects(registry), of="step"),
        store=store,
        observers=observers,
        name="analyst",
    )


async def first(desk: Desk, store: str, released: Any, told: Told) -> str | None:
    """Plan and act until a person is asked: the token for the answer."""
    analyst = orchestrator(desk, store, released)
    told.line(("task  ", "bold"), TASK, "\n")
    try:
        async with aclosing(analyst.events(TASK)) as events:  # type: ignore[type-var] # a generator
            async for event in events:
                told.event(event)
    except TriageSuspendedError as asked:
        told.line(("\nasked  ", "bold yellow"), asked.question)
        return asked.token
    except TriageError as error:
        told.failure(error)
    finally:
        await analyst.store.close()
    return None


async def second(desk: Desk, store: str, token: str, told: Told) -> tuple[Any, str | None]:
    """Go on with a yes, by another analyst, as in another process: the answer, or the next question."""
    told.line(("yes   ", "bold green"), "approve()\n")
    analyst = orchestrator(desk, store)
    try:
        return await analyst.resume(token, approve(), by="demo"), None
    except TriageSuspendedError as asked:
        told.line(("asked  ", "bold yellow"), asked.question)
        return None, asked.token
    except TriageError as error:
        told.failure(error)
        return None, None
    finally:
        await analyst.store.close()


async def ended(desk: Desk, store: str, answer: Any, told: Told) -> int:
    """Say what has come of it; the exit code."""
    analyst = orchestrator(desk, store)
    (info,) = await analyst.store.runs()
    state = fold_plan(await analyst.store.read(info.run_id))
    await analyst.store.close()
    published = await anyio.to_thread.run_sync(desk.published)
    told.line(("answer  ", "bold green"), str(answer), "\n")
    figures = {
        "done": info.status == "done",
        "plans": state.version,
        "replans": state.replans,
        "retries": state.total_retries,
        "steps": len(state.done),
        "published": len(published),
    }
    print(json.dumps(figures))
    return 0 if figures["done"] and figures["published"] == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
