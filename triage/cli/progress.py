"""A run as it happens, in a terminal: `Progress`, an observer. All it is told is data, never markup."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from triage.core import events
from triage.core.actions import Action
from triage.core.quoting import action_text, counted, json_text, one_line
from triage.core.state import is_reused
from triage.core.steps import Step
from triage.engine.digest import Digest

if TYPE_CHECKING:
    from rich.console import Console  # Progress is of use without it


_MOST_EVIDENCE = 5


class Line(NamedTuple):
    """One line of progress. label: what it is. style: as rich names it. text: anything, not cleaned."""

    label: str
    style: str
    text: str


class Progress:
    """Shows runs as they happen: an observer, as in `Agent(book, observers=[Progress(console)])`.

    console: a rich Console; None prints plain lines on standard error and needs no rich. Each line
    has the seconds since the run began. Texts are redacted, stripped of controls and cut at 200
    characters. May be shared by concurrent runs and called from any thread.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self._runs: dict[str, tuple[Digest, float]] = {}
        self._lock = threading.Lock()

    def __call__(self, event: events.Event) -> None:
        with self._lock:
            digest, started = self._runs.setdefault(event.run_id, (Digest(), event.time))
            digest.apply(event)
            seconds = max(0.0, event.time - started)
            for line in _lines(event, digest, seconds):
                self._print(seconds, line)
            if isinstance(event, events.RunFinished):
                del self._runs[event.run_id]

    def _print(self, seconds: float, line: Line) -> None:
        label, text = one_line(line.label, 12), one_line(line.text)
        if self._console is None:
            print(f"{seconds:7.2f} s  {label:>9}  {text}", file=sys.stderr, flush=True)
            return
        from rich.table import Table
        from rich.text import Text

        if not self._console.is_terminal:  # a log: one line each, whatever its length
            shown = f"{seconds:7.2f} s  {label:>9}  {text}"
            self._console.print(Text(shown), soft_wrap=True)
            return
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(justify="right", width=9, style="dim")
        grid.add_column(justify="right", width=9, style=line.style)
        grid.add_column(overflow="fold")
        grid.add_row(Text(f"{seconds:.2f} s"), Text(label), Text(text))
        self._console.print(grid)


# What is said of an event -------------------------------------------------------------------------


def used(digest: Digest, *, calls: bool) -> list[str]:
    """Say what a run has used: steps, model calls if wanted, tokens, dollars."""
    parts = [counted(digest.steps, "step")]
    if calls and digest.usage.calls:
        parts.append(counted(digest.usage.calls, "model call"))
    if digest.usage.total_tokens:
        parts.append(counted(digest.usage.total_tokens, "token"))
    if digest.usage.cost_usd is not None:
        parts.append(f"${digest.usage.cost_usd:.4f}")
    return parts


def _lines(event: events.Event, digest: Digest, seconds: float) -> Iterator[Line]:
    match event:
        case events.RunStarted(run_id=run_id, agent=agent):
            yield Line("run", "bold", f"{agent} ({run_id[:8]})")
        case events.AttemptStarted(attempt=attempt) if attempt > 1:
            goal = f", from {event.subgoal}" if event.subgoal else ""
            yield Line("attempt", "cyan", f"{attempt}{goal}, told: {event.hint or 'nothing'}")
        case events.AttemptFailed():
            yield from failure_lines(event)
        case events.ActionChosen(action=action, by=by, reason=reason):
            yield from _choice(action, by, reason)
        case events.RunResumed(action=action):
            yield from _choice(action, "a person", "")
        case events.RunSuspended(question=question):
            yield Line("waits", "yellow", question)
        case events.RunFinished(status=status):
            style = "bold green" if status == "done" else "bold red"
            attempts = counted(digest.attempts, "attempt")
            yield Line(
                status, style, ", ".join([attempts, *used(digest, calls=False), f"{seconds:.2f} s"])
            )
        case _:
            yield from _recorded(event)


def _recorded(event: events.Event) -> Iterator[Line]:
    match event:
        case events.StepRecorded(step=step):
            yield step_line(step)
        case events.StateUpdated(values=values):
            yield Line("state", "dim", json_text(values))
        case events.SubgoalsDeclared(names=names):
            yield Line("goals", "dim", ", ".join(names))
        case events.SubgoalCompleted(name=name):
            yield Line("reached", "green", name)
        case events.CompensatorRan(name=name, error=None):
            yield Line("undone", "magenta", name)
        case events.CompensatorRan(name=name, error=error):
            yield Line("not undone", "red", f"{name} failed: {error}")
        case _:
            pass


def step_line(step: Step) -> Line:
    reused = is_reused(step.metadata)
    label, style = ("reused", "magenta") if reused else ("step", "green")
    if step.error is not None:
        style = "red"
    parts = [step.action] if step.action and step.action not in {"call", step.tool_called} else []
    if step.tool_called is not None:
        given = "" if step.tool_input is None else json_text(step.tool_input)
        parts.append(f"{step.tool_called}({one_line(given, 80)})")
    if step.error is not None:
        parts.append(f"failed: {step.error}")
    elif step.tool_output is not None:
        parts.append(f"→ {one_line(json_text(step.tool_output), 80)}")
    elif step.llm_output is not None:
        parts.append(f"→ {step.llm_output}")
    return Line(label, style, " ".join(parts))


def failure_lines(event: events.AttemptFailed) -> Iterator[Line]:
    diagnosis = event.diagnosis
    error = "a check or a limit said no" if event.error is None else str(event.error)
    yield Line("failed", "red", f"attempt {event.attempt}: {error}")
    yield Line("diagnosis", "bold red", str(diagnosis))
    for evidence in diagnosis.evidence[:_MOST_EVIDENCE]:
        where = "" if evidence.step is None else f" (step {evidence.step})"
        yield Line("because", "red", f"{evidence.rule}{where}: {evidence.text}")


def _choice(action: Action, by: str, reason: str) -> Iterator[Line]:
    yield Line("action", "yellow", f"{action_text(action)}{f' ({by})' if by else ''}")
    told = getattr(action, "hint", None) or getattr(action, "reason", None)
    if reason and reason != told:
        yield Line("because", "yellow", reason)
