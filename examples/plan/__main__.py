"""`python -m examples.plan`: plan, be corrected, wait for a person, go on in another process' place."""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio

from triage import TriageError, TriageSuspendedError, approve
from triage.core import Event, PlanRouted
from triage.plan import Approval, Orchestrator, fold_plan, unsafe_effects

from .analyst import TASK, Desk
from .planner import planner

_QUESTIONS = 5


def main() -> int:
    """Run the demonstration; 0 if the task was done and published once."""
    with tempfile.TemporaryDirectory() as folder:
        return anyio.run(run, Path(folder))


async def run(folder: Path) -> int:
    """One task, from its plan to its answer; then one JSON line with the figures."""
    desk = await anyio.to_thread.run_sync(Desk, folder)
    store = f"sqlite:///{folder / 'runs.db'}"
    with desk.locked() as other:

        def released(event: Event) -> None:
            """Whoever has the database is done with it when the step is tried again."""
            if isinstance(event, PlanRouted) and event.counter == "retries":
                other.rollback()

        token = await first(desk, store, released)
    answer: Any = None
    for _ in range(_QUESTIONS):
        if token is None:
            break
        answer, token = await second(desk, store, token)
    return await told(desk, store, answer)


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


async def first(desk: Desk, store: str, released: Any) -> str | None:
    """Plan and act until a person is asked: the token for the answer."""
    analyst = orchestrator(desk, store, released)
    show(f"task  {TASK}\n")
    try:
        async with aclosing(analyst.events(TASK)) as events:  # type: ignore[type-var] # a generator
            async for told in events:
                show(f"{told.progress:4.0%}  {told.component}  {told.phase}: {told.message}")
    except TriageSuspendedError as asked:
        show(f"\nasked  {asked.question}")
        return asked.token
    except TriageError as ended:
        show("" if ended.report is None else ended.report.to_text("developer"))
    finally:
        await analyst.store.close()
    return None


async def second(desk: Desk, store: str, token: str) -> tuple[Any, str | None]:
    """Another analyst, as in another process, goes on with a yes: the answer, or the next question."""
    show("yes   approve()\n")
    analyst = orchestrator(desk, store)
    try:
        return await analyst.resume(token, approve(), by="demo"), None
    except TriageSuspendedError as asked:
        show(f"asked  {asked.question}")
        return None, asked.token
    except TriageError as ended:
        show("" if ended.report is None else ended.report.to_text("developer"))
        return None, None
    finally:
        await analyst.store.close()


async def told(desk: Desk, store: str, answer: Any) -> int:
    """Say what has come of it; the exit code."""
    analyst = orchestrator(desk, store)
    (info,) = await analyst.store.runs()
    state = fold_plan(await analyst.store.read(info.run_id))
    await analyst.store.close()
    published = await anyio.to_thread.run_sync(desk.published)
    show(f"answer  {answer}\n")
    figures = {
        "done": info.status == "done",
        "plans": state.version,
        "replans": state.replans,
        "retries": state.total_retries,
        "steps": len(state.done),
        "published": len(published),
    }
    show(json.dumps(figures))
    return 0 if figures["done"] and figures["published"] == 1 else 1


def show(text: str) -> None:
    """Print it."""
    print(text)


if __name__ == "__main__":
    sys.exit(main())
