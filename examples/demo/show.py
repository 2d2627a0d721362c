"""The demonstration in the terminal: a table of tasks, and an observer that tells of each."""

from __future__ import annotations

import json
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from triage import Abort, Escalate, Replan, Retry
from triage.core import ActionChosen, AttemptFailed, AttemptStarted, Event, StepRecorded

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from triage import Step
    from triage.core import Action

    from .modes import Outcome
    from .tasks import Task

_INTRO = {
    "bare": "the agent alone",
    "tenacity": "blind retry, three attempts",
    "triage": "diagnose, decide, recover",
}
_LONGEST = 150
_WIDTHS = {"task": 16, "trouble": 31, "bare": 4, "tenacity": 12, "triage": 6}
"""Columns of the table: 77 characters with the gaps between them."""
INVITATION = """\
Try it on a function of your own: async, from any framework or none.

    import asyncio
    from triage import Agent
    print(asyncio.run(Agent(your_function).run("your task")))
"""


class Rows:
    """The table, printed a row at a time, with what happened under each row where that is wanted."""

    def __init__(self, console: Console, modes: Sequence[str], *, verbose: bool = False) -> None:
        self.console = console
        self.modes = modes
        self.verbose = verbose

    def heading(self, model: str) -> None:
        """Say what is run, by which model, and name the columns."""
        self.console.print(
            Text(f"\nOne agent, {len(self.modes)} ways, against a failing service (model: {model})")
        )
        for mode in self.modes:
            self.console.print(Text(f"  {mode:8}  {_INTRO[mode]}", "dim"))
        self.console.print()
        names = [Text(name, "bold") for name in ("task", "what goes wrong", *self.modes)]
        self._line(*names)

    @contextmanager
    def running(self, task: Task) -> Generator[None]:
        """While a task runs, a terminal shows which."""
        if self.console.is_terminal:
            with self.console.status(Text(task.id, "dim")):
                yield
        else:
            yield

    def show(self, mode: str) -> Show:
        """What tells of one task in one mode; it is kept until the row is printed."""
        console = Console(
            file=StringIO(),
            force_terminal=self.console.is_terminal,
            color_system=self.console.color_system,  # type: ignore[arg-type] # a name it gave itself
            no_color=self.console.no_color,
            width=self.console.width,
            highlight=False,
        )
        return Show(console, mode, plain=not self.console.is_terminal)

    def row(self, task: Task, outcomes: dict[str, Outcome], shows: dict[str, Show]) -> None:
        """One task in all modes."""
        marks = [_mark(outcome) for outcome in outcomes.values()]
        self._line(Text(task.id, "cyan"), Text(task.trouble), *marks)
        if self.verbose:
            self.console.print(Text(f"  {task.prompt}", "dim"))
            for show in shows.values():
                self.console.file.write(show.text())

    def total(self, ended: dict[str, list[Outcome]]) -> None:
        """Add the rows up."""
        done = [sum(outcome.done for outcome in outcomes) for outcomes in ended.values()]
        tasks = len(next(iter(ended.values())))
        counts = [Text(str(count), "bold green" if count == tasks else "bold") for count in done]
        self._line(Text("done", "bold"), Text(f"of {tasks}"), *counts)
        self.console.print()

    def invitation(self) -> None:
        """Say how it is done with a function of one's own."""
        self.console.print(Text(INVITATION), soft_wrap=True)

    def _line(self, task: Text, trouble: Text, *marks: Text) -> None:
        grid = Table.grid(padding=(0, 2, 0, 0))
        for name in ("task", "trouble", *self.modes):
            grid.add_column(width=_WIDTHS[name], overflow="fold")
        grid.add_row(task, trouble, *marks)
        self.console.print(grid)


class Show:
    """Tells what happens in one task and mode, as it happens.

    console: where to. plain: one line for each event, whatever its length, for logs.
    """

    def __init__(self, console: Console, mode: str, *, plain: bool = False) -> None:
        self.console = console
        self.plain = plain
        self.console.print(Text(f"  {mode}", "bold"))

    def text(self) -> str:
        """All that was told, where the console writes into a `StringIO`."""
        file = self.console.file
        return file.getvalue() if isinstance(file, StringIO) else ""

    def call(self, name: str, arguments: Any, output: Any) -> None:
        """A tool answered, in a run without triage."""
        self._line("tool", "green", f"{name}({_short(arguments)}) → {_short(output)}")

    def retry(self, attempt: int, error: BaseException | None, delay: float) -> None:
        """Blind retry goes on."""
        self._line("failed", "red", f"attempt {attempt}: {describe(error)}")
        self._line("retry", "yellow", f"the same again, after {delay:.2f} s")

    def event(self, event: Event) -> None:
        """An event of a run under triage: an observer for `Agent(observers=[…])`."""
        match event:
            case AttemptStarted(attempt=attempt, hint=hint) if attempt > 1:
                self._line("again", "cyan", f"attempt {attempt}, told: {hint or 'nothing'}")
            case StepRecorded(step=step):
                self._step(step)
            case AttemptFailed():
                self._failure(event)
            case ActionChosen(action=action, by=by, reason=reason):
                who = f"  ({by})" if by else ""
                self._line("action", "yellow", f"{_action(action)}{who}")
                if reason:
                    self._line("because", "dim", reason)
            case _:
                pass

    def result(self, outcome: Outcome, answer: object) -> None:
        """A task ended."""
        mark = ("✓ done", "bold green") if outcome.done else ("✗ not done", "bold red")
        said = outcome.error or _cut(str(answer))
        but = ""
        if outcome.repeated:
            but = f", paid {outcome.repeated + 1} times"
        elif not outcome.done and outcome.error is None:
            but = ", though the agent says so"
        calls = "1 model call" if outcome.model_calls == 1 else f"{outcome.model_calls} model calls"
        waited = f" ({outcome.waited:.2f} s waited)" if outcome.waited else ""
        facts = f"{calls}, {outcome.tokens} tokens, {outcome.seconds:.2f} s{waited}"
        ending = Text.assemble(mark, (but, "bold red"), "  ", said)
        if self.plain:
            self.console.print(Text.assemble("  ", ending), soft_wrap=True)
        else:
            self.console.print(Padding(ending, (0, 0, 0, 2), expand=False))
        self.console.print(Text(f"  {facts}", "dim"))

    def _step(self, step: Step) -> None:
        if step.tool_called is None:
            if step.error:
                self._line("failed", "red", f"a request: {_cut(step.error)}")
            else:
                self._line(step.action, "green", _short(step.llm_output))
            return
        ending = f"✗ {_cut(step.error)}" if step.error else f"→ {_short(step.tool_output)}"
        text = f"{step.tool_called}({_short(step.tool_input)}) {ending}"
        if (step.metadata or {}).get("replayed"):
            self._line("kept", "magenta", f"{text}  (not called again)")
        else:
            self._line("step", "green", text)

    def _failure(self, event: AttemptFailed) -> None:
        error = "a check said no" if event.error is None else _cut(str(event.error))
        self._line("failed", "red", f"attempt {event.attempt}: {error}")
        self._line("diagnosis", "red", str(event.diagnosis))
        for evidence in event.diagnosis.evidence:
            where = "" if evidence.step is None else f" (step {evidence.step})"
            self._line("evidence", "red", f"{evidence.rule}{where}: {_cut(evidence.text)}")

    def _line(self, label: str, style: str, text: str) -> None:
        if self.plain:
            self.console.print(f"  {label:>9}  {text}", markup=False, soft_wrap=True)
            return
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=11, justify="right", style=style)
        grid.add_column(overflow="fold")
        grid.add_row(label, Text(text))
        self.console.print(grid)


def describe(error: BaseException | None) -> str:
    """An exception in one line: its type and message."""
    if error is None:
        return "no error"
    name, text = type(error).__name__, str(error)
    return _cut(f"{name}: {text}") if text else name


def _action(action: Action) -> str:
    match action:
        case Retry(delay=delay) | Replan(delay=delay) if delay:
            return f"{action.kind} after {delay:.2f} s"
        case Escalate(reason=str(reason)) | Abort(reason=str(reason)):
            return f"{action.kind}: {reason}"
        case _:
            return action.kind


def _mark(outcome: Outcome) -> Text:
    mark = Text("✓", "green") if outcome.done else Text("✗", "red")
    return mark.append(" paid again", "red") if outcome.repeated else mark


def _short(value: object) -> str:
    if isinstance(value, str):
        return _cut(value)
    try:
        return _cut(json.dumps(value, ensure_ascii=False, default=str))
    except (TypeError, ValueError):
        return _cut(repr(value))


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
