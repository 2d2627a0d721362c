"""`triage run`: import the function, run it, show what happens, say how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import anyio
from cyclopts import App, Parameter

from triage.core import errors
from triage.core.escaping import escaped
from triage.core.events import Event
from triage.core.quoting import one_line
from triage.core.state import fold
from triage.engine.agents import Agent
from triage.engine.outside import answers_to, asks_of
from triage.plan.orchestrator import Orchestrator
from triage.reports.analysis import report_of
from triage.reports.report import Report
from triage.stores.base import Store

from .options import (
    AGENT_OPTIONS,
    VARIABLE,
    AgentOptions,
    AsJson,
    Audience,
    Form,
    Function,
    StoreText,
    agent_of,
    arguments_of,
    durable,
    epilogue,
    load,
    store_of,
    suggested,
)
from .output import console, note, write
from .progress import Progress

DONE, FAILED, SUSPENDED = 0, 1, 3
_CODES = """\
exit codes:
  0    the run is done; its result is on standard output
  1    the run ended with an error of its own: escalated, aborted or fatal
  2    it was never started: no such function, a bad policy, bad arguments
  3    it waits for an answer: the question and the token are on standard error
  130  interrupted

The result goes to standard output, everything else to standard error,
what the function prints included.
"""

app = App(
    name="run",
    help_epilogue=epilogue(
        _CODES,
        'run agents:book "Lisbon on Monday"',
        'run agents:book "Lisbon on Monday" --policy policy.toml --arg days=2',
        "run agents:book Lisbon --store sqlite:///runs.db --run-id trip-1",
    ),
)


class Follower:
    """Keeps the events of a run, and shows them on standard error unless it is quiet."""

    def __init__(self, *, quiet: bool) -> None:
        self.events: list[Event] = []
        self._progress = None if quiet else Progress(console(error=True))

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if self._progress is not None:
            self._progress(event)


@app.default
def run(
    function: Function,
    task: Annotated[str, Parameter(help="The function's first argument.")],
    /,
    *,
    options: AgentOptions = AGENT_OPTIONS,
    store: StoreText = None,
    run_id: Annotated[
        str | None, Parameter(metavar="ID", help="The id it is kept under (one is made).")
    ] = None,
    json: AsJson = False,
    quiet: Annotated[bool, Parameter(help="Show no progress.")] = False,
    report: Form = None,
    audience: Audience = "developer",
) -> int:
    """Run an agent function of the current directory on a task, with recovery."""
    arguments = arguments_of(options.arg, reserved=("task", "run_id"))
    follower = Follower(quiet=quiet)
    # What the function prints must not get between a program and the result it reads.
    with contextlib.redirect_stdout(sys.stderr):
        agent = agent_of(function, options)
        planned = load(function)
        kept = _store(agent, store, needed=run_id is not None)
        if kept is not None:
            agent = agent.stored_in(kept)
        agent = agent.observed_by(follower)
        error: Exception | None = None

        async def work() -> None:
            try:
                await agent.run(task, run_id=run_id, **arguments)
            except errors.TriageError as ended:
                if report is not None and isinstance(planned, Orchestrator) and ended.reporter:
                    await planned.report(ended, store=agent.store)
                raise
            finally:
                if kept is not None:
                    with anyio.CancelScope(shield=True):
                        await kept.close()

        try:
            anyio.run(work)
        except KeyboardInterrupt:
            if kept is not None and follower.events:
                recover = ("runs", "recover", follower.events[0].run_id, function)
                note(f"the run is kept: {suggested(*recover, store=store)} goes on")
            raise
        except Exception as failed:
            # Its start alone is no run: it was not taken.
            if isinstance(failed, errors.UsageError) and len(follower.events) <= 1:
                raise
            error = failed
    code = conclude(
        follower.events, error, function, store=store, as_json=json, kept=kept is not None
    )
    if code == FAILED and report is not None:
        made = error.report if isinstance(error, errors.TriageError) else None
        assert error is not None
        print_report(report_of(error) if made is None else made, report, audience)
    return code


def _store(agent: Agent[Any], text: str | None, *, needed: bool) -> Store | None:
    """`--store`, else the agent's own, else the environment's; None for none where none is needed."""
    if text is None and durable(agent.store):
        return agent.store
    if text is None and not needed and not os.environ.get(VARIABLE):
        return None
    return store_of(text, new=True)


# How it ended -------------------------------------------------------------------------------------


def conclude(
    events: Sequence[Event],
    error: Exception | None,
    function: str,
    *,
    store: str | None,
    as_json: bool,
    kept: bool = True,
) -> int:
    """Print the result, or say why there is none; the exit code. kept: the run outlives this command."""
    state = fold(events)
    if as_json:
        write(json.dumps(_summary(events, error), allow_nan=False))
    elif error is None and state.result is not None:
        result = state.result
        text = (
            result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, indent=2)
        )
        write(escaped(text, lines=True))
    if error is None:
        return DONE
    if isinstance(error, errors.TriageSuspendedError):
        note(f"the run waits for an answer: {error.question}")
        if kept:
            answer, *others = answers_to(events)
            resume = suggested("runs", "resume", error.token, function, answer, store=store)
            note(f"token {error.token}: it goes on, once, by: {resume}")
            note(f"or, in place of {answer}: {', '.join(others)}")
            if asks_of(events) == "approval":
                approve = suggested("approve", state.run_id, store=store)
                note(f"what there is to approve, and an answer without the token: {approve}")
        else:
            note(
                f"token {error.token}: agent.resume(token, action) goes on with it, once, where the run "
                "is kept; one that is kept in memory only has ended with this command"
            )
        return SUSPENDED
    note(
        explained(error)
        if isinstance(error, errors.TriageError)
        else f"{type(error).__name__}: {error}"
    )
    run_id = state.run_id
    if isinstance(error, errors.RunBusy):
        note(f"wait for that, or see who has it: {suggested('runs', 'show', run_id, store=store)}")
    elif isinstance(error, errors.DeadLetter):
        force = suggested("runs", "recover", run_id, function, "--force", store=store)
        note(f"once what kills it is mended: {force}")
    return FAILED


def explained(error: errors.TriageError) -> str:
    """What went wrong; of a store with the name of the error."""
    if isinstance(error, errors.StoreError) and not isinstance(
        error, errors.RunBusy | errors.DeadLetter
    ):
        return f"{type(error).__name__}: {error}"
    return str(error)


def print_report(report: Report, form: str, audience: Literal["person", "developer"]) -> None:
    forms = {"markdown": report.to_markdown, "text": report.to_text, "json": report.to_json}
    write(escaped(forms[form](audience).rstrip("\n"), lines=True))


def _summary(events: Sequence[Event], error: Exception | None) -> dict[str, Any]:
    state = fold(events)
    seconds = events[-1].time - events[0].time if events else 0.0
    summary: dict[str, Any] = {
        "status": state.status,
        "result": state.result,
        "attempts": state.attempt,
        "steps": state.all_steps,
        "usage": {
            "input_tokens": state.usage.input_tokens,
            "output_tokens": state.usage.output_tokens,
            "cost_usd": state.usage.cost_usd,
            "calls": state.usage.calls,
        },
        "seconds": round(max(0.0, seconds), 3),
        "run_id": state.run_id,
    }
    if error is not None:
        summary["error"] = one_line(f"{type(error).__name__}: {error}", 2000)
    if state.history and state.status != "done":
        summary["failure_type"] = state.history[-1].failure_type.value
    if isinstance(error, errors.TriageSuspendedError):
        summary |= {"question": error.question, "token": error.token}
    return summary
