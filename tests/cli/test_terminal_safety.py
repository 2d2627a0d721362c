"""Nothing from outside steers a terminal, a log or a page, through whichever channel it is read."""

from __future__ import annotations

import io
import json
import logging
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from cli_incidents import Room, room_of_file
from core.hostile_texts import STEERING, steers, styled_by_us
from rich.console import Console
from support import FakeEnvironment
from tables import covering

import triage
from cli.cli_runs import Office
from triage import (
    Agent,
    Diagnosis,
    Escalate,
    FailurePolicy,
    FailureType,
    Limits,
    Retry,
    Run,
    Step,
    Suspend,
    TriageError,
)
from triage.cli import Progress, main
from triage.core import (
    ActionChosen,
    AttemptFailed,
    AttemptStarted,
    CallFinished,
    CallStarted,
    ErrorInfo,
    Event,
    Evidence,
    LoggingObserver,
    Observer,
    RunFinished,
    RunStarted,
    RunSuspended,
    StepRecorded,
    UsageError,
    dumps,
)
from triage.core.observers import child_logger, logger
from triage.stores import SQLiteStore

__all__ = ["room_of_file"]


@triage.tool(effect="once")
async def act(order: Any) -> Any:
    return {"receipt": order}


@triage.tool(effect="once")
async def doubtful(order: Any) -> Any:
    raise TimeoutError(f"no answer: {order}")


class ForeignError(Exception):
    """Its repr is raw, as those of many libraries are."""

    def __repr__(self) -> str:
        return f"<ForeignError {self.args[0]}>"


async def acting(task: str, *, run: Run, _triage_hint: str | None = None) -> None:
    """Says, calls, records and raises what it is given as its task."""
    TOLD.append(_triage_hint or "")
    run.subgoals([task])
    run.record_step(Step(action=task, tool_called=task, tool_input={task: task}, tool_output=task))
    run.record_step(Step(action="model", llm_output=task))
    run.record_step(Step(tool_called="search", tool_input=task, error=task))
    run.update_state({"found": task})
    await act(task)
    inner = ValueError(task)
    inner.add_note(task)
    hinted = triage.hint(
        ForeignError(f"the page says {task}"),
        failure_type="schema_mismatch",
        cause=task,
        user_message=task,
        hint=f"do not answer {task}",
    )
    raise hinted from inner


async def doubting(task: str) -> None:
    await doubtful(task)


CLOCK = FakeEnvironment()
TOLD: list[str] = []
"""The hints that were received."""


def refusing(observed: Any) -> None:
    """An observer that fails at every event, with what the event says."""
    raise ForeignError(str(observed))


ENDS = ("escalated", "asked", "diagnosis asked", "reason", "in doubt")


def _ends_in(name: str, text: str) -> tuple[Any, FailurePolicy]:
    """A function and the policy by which its run comes to this end."""
    policies = {
        "asked": FailurePolicy(default=Suspend(f"the tool says {text}; go on?")),
        "diagnosis asked": FailurePolicy(default=Suspend()),
        "reason": FailurePolicy(default=Escalate(f"it said {text}")),
    }
    function = doubting if name == "in doubt" else acting
    return function, policies.get(name) or FailurePolicy.recommended()


def of_a_run(text: str, store: SQLiteStore, ends: Sequence[str]) -> dict[str, str]:
    """What runs in which `text` is everything show their program, by channel."""
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    progress = io.StringIO()
    shown: dict[str, str] = {}
    logger.addHandler(handler)
    level, logger.level, logger.propagate = logger.level, logging.DEBUG, False
    observers: list[Observer] = [
        LoggingObserver(), Progress(Console(file=progress, width=300)), refusing,
    ]  # fmt: skip
    try:
        for name in ends:
            function, policy = _ends_in(name, text)
            agent = Agent(
                function, policy, name=text, store=store, observers=observers,
                limits=Limits(attempts=2), environment=CLOCK,
            )  # fmt: skip
            try:
                agent.run_sync(text)
            except TriageError as error:
                shown |= {f"{name}: {way}": made for way, made in _of_an_error(error).items()}
        logger.error("a tool said %s", text, exc_info=ForeignError(text))
        logger.warning("%r", ForeignError(text))
        child_logger("adapters").warning("a child's record: %s", text)
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = level, True
    shown |= {f"hint {at}": told for at, told in enumerate(filter(None, TOLD))}
    TOLD.clear()
    return {**shown, "log": log.getvalue(), "progress": progress.getvalue(), **_of_values(text)}


def _of_an_error(error: TriageError) -> dict[str, str]:
    context, diagnosis, report = error.context, error.diagnosis, error.report
    assert context is not None
    assert diagnosis is not None
    assert report is not None
    ways: dict[str, Callable[[], str]] = {
        "str": lambda: str(error),
        "repr": lambda: repr(error),
        "notes": lambda: "\n".join(getattr(error, "__notes__", ())),
        "traceback": lambda: "".join(traceback.format_exception_only(error)),
        "question": lambda: getattr(error, "question", ""),
        "str of its diagnosis": lambda: str(diagnosis),
        "repr of its diagnosis": lambda: repr(diagnosis),
        "for a model": diagnosis.format_for_llm,
        "for a person": diagnosis.format_for_person,
        "repr of its context": lambda: repr(context),
        "context by rich": lambda: _by_rich(context),
        "str of its error": lambda: str(context.error),
        "str of its trajectory": lambda: str(context.trajectory),
        "str of its steps": lambda: " ".join(map(str, context.trajectory)),
        "Markdown for a person": lambda: report.to_markdown("person"),
        "Markdown for a developer": lambda: report.to_markdown("developer"),
        "text for a person": lambda: report.to_text("person"),
        "text for a developer": lambda: report.to_text("developer"),
        "JSON": report.to_json,
    }
    shown: dict[str, str] = {}
    for name, way in ways.items():
        try:
            shown[name] = way()
        except Exception as raised:
            shown[name] = f"FORGED, as it raised {raised!a}"
    return shown


def _by_rich(value: object) -> str:
    """What rich prints of a value on a terminal, without its colours."""
    made = io.StringIO()
    Console(file=made, force_terminal=True, width=10_000).print(value)
    return styled_by_us(made.getvalue())


def _of_values(text: str) -> dict[str, str]:
    """What our own complaints about a value say."""
    shown: dict[str, str] = {}
    wrong: Mapping[str, Callable[[], Any]] = {
        "a wrong type": lambda: Step(action=ForeignError(text)),  # type: ignore[arg-type]
        "a wrong word": lambda: Diagnosis(text),  # type: ignore[arg-type]
        "a wrong hint": lambda: triage.hint(ValueError(), failure_type=text),
        "a wrong limit": lambda: Limits(attempts=ForeignError(text)),  # type: ignore[arg-type]
        "a wrong name": lambda: FailurePolicy(**{text: Escalate()}),  # type: ignore[arg-type]
        "a wrong id": lambda: Agent(doubting).run_sync("t", run_id=text),
        "an unstorable state": lambda: triage.core.json_values.exact({text: {1}}, "state"),
    }
    for name, make in wrong.items():
        try:
            make()
        except (TypeError, ValueError, UsageError) as error:
            shown[name] = str(error)
    return shown


def found_in(channels: Mapping[str, str]) -> list[str]:
    """What steers. The lines of a question or hint are those of the application that words it."""
    return [
        f"{name}: {wrong}"
        for name, made in channels.items()
        for wrong in steers(made)
        if not (name.startswith("hint") or name == "asked: question") or "forged" not in wrong
    ]


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("theirs_may_block")
def test_nothing_steers_what_a_program_reads_of_a_run(tmp_path: Path) -> None:
    failures: list[str] = []
    rows = covering(STEERING, ENDS, times=2)
    for name, text in STEERING.items():
        store = SQLiteStore(str(tmp_path / "runs.db"))
        channels = of_a_run(text, store, [end for other, end in rows if other == name])
        failures += [f"{name}: {wrong}" for wrong in found_in(channels)]
    assert not failures, "\n".join([str(len(failures)), *failures])


# The command line -----------------------------------------------------------------------------------

AGENTS = '''
"""Agents of the tests."""
from triage import Agent, FailurePolicy, Step, Suspend


async def acting(task, *, record_step):
    print(ascii(task))
    record_step(Step(action=task, tool_called=task, tool_input=task, tool_output=task))
    raise ConnectionError(task)


async def returning(task):
    return task


class Asks:
    def __call__(self, context):
        return Suspend(f"the tool says {context.task}; go on?")


asking = Agent(acting, FailurePolicy(default=Asks()))
escalating = Agent(acting, FailurePolicy())


def hook(recovery):
    raise ConnectionError(recovery.incident.message)
'''


def journal(run_id: str, text: str, *, over: bool) -> list[Event]:
    """A run whose every text is this one, as other hands may store it; one that waits, or has ended."""
    now = time.time()
    step = Step(
        action=text, tool_called=text, tool_input={text: text}, tool_output=text, error=text
    )
    error = ErrorInfo(text, message=text, code=text, notes=(text,))
    diagnosis = Diagnosis(
        FailureType.UNKNOWN, text, evidence=(Evidence(text, text),), user_message=text,
        technical_details=text, hint=text, suggestions=(text,), classifier=text,
    )  # fmt: skip
    events: list[Event] = [
        RunStarted(run_id, 0, now, text, text, {text: text}, (text,), parent=text),
        AttemptStarted(run_id, 1, now, 1, hint=text, subgoal=text),
        StepRecorded(run_id, 2, now, 1, 0, step),
        CallStarted(run_id, 3, now, 1, "key", text, "once", {text: text}, kind="tool"),
        CallFinished(
            run_id, 4, now, 1, "key", "in_doubt" if not over else "done", text, error=error
        ),
        AttemptFailed(run_id, 5, now, 1, error, diagnosis),
        ActionChosen(run_id, 6, now, 1, Retry(hint=text), by=text, reason=text),
        AttemptStarted(run_id, 7, now, 2, hint=text),
    ]
    end: Event = RunSuspended(
        run_id, 8, now, 2, "digest", text, {text: text}, call="key", doubt=True
    )
    if over:
        end = RunFinished(run_id, 8, now, "escalated", error=error)
    return [*events, end]


class Terminal:
    """Runs commands, and keeps what of their output steers, or is no JSON."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.failures: list[str] = []

    def __call__(self, name: str, *arguments: str, shows: str = "") -> int:
        """Run one; its exit code. shows: what it must say as it is."""
        self._capsys.readouterr()
        code = -1
        arguments = tuple(word.replace("\0", "") for word in arguments)  # no shell can give one
        shows = shows.replace("\0", "")
        try:
            code = main(arguments)
        except Exception as error:
            self.failures.append(f"{arguments[:2]} {name}: raised {error!a:.150}")
        sys.modules.pop("agents", None)
        out, err = self._capsys.readouterr()
        command = " ".join(word for word in arguments if word.isascii() and word.isprintable())[:60]
        wrong = list(steers(f"{styled_by_us(out)}\n{styled_by_us(err)}"))
        if "--json" in arguments or "--events" in arguments:
            wrong += [f"no JSON: {line[:80]!a}" for line in out.splitlines() if not _is_json(line)]
            if shows and not any(shows in _texts(json.loads(line)) for line in out.splitlines()):
                wrong.append(f"does not hold {shows!a}")
        elif shows and shows not in out + err:
            wrong.append(f"does not show {shows!a}")
        self.failures += [f"{command}: {name}: {one}" for one in wrong]
        return code


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _texts(value: Any) -> list[str]:
    """All texts of a JSON value."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in (*value, *value.values()) for text in _texts(item)]
    return [text for item in value for text in _texts(item)] if isinstance(value, list) else []


@pytest.mark.parametrize("terminal", [False, True], ids=["piped", "terminal"])
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("theirs_may_block")
def test_no_command_lets_a_text_steer_its_terminal(
    room: Room,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    terminal: bool,
) -> None:
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "400")
    Path("agents.py").write_text(AGENTS, encoding="utf-8")
    office, run = Office(room.text, room.folder), Terminal(capsys)
    texts = list(STEERING.items())
    if terminal:
        texts = texts[3::6]
    looks = covering([name for name, _ in texts], LOOKS, times=2)
    for at, (name, text) in enumerate(texts):
        office.write(f"asks-{at}", journal(f"asks-{at}", text, over=False))
        office.write(f"over-{at}", journal(f"over-{at}", text, over=True))
        office.write(text, journal(text, text, over=True))
        run(name, "incidents", "report", f"it says {text}", "--agent-id", f"A {text}")
        error = room.report(f"it said {text}", agent_id=f"B {at}").error_id
        for _, look in (row for row in looks if row[0] == name):
            words = [word.format(at=at, error=error, text=text) for word in LOOKS[look]]
            run(name, *words, shows=text if text.isprintable() else "")
        if at % 9 == 0:
            _look_at_all(run, name, text, at, error)
    for form in ((), ("--json",)):
        for command in ("runs list", "incidents list", "incidents detect", "incidents log",
                        "incidents stats", "supervise --once"):  # fmt: skip
            run("all", *command.split(), *(() if "supervise" in command else form))
    assert not run.failures, "\n".join([str(len(run.failures)), *run.failures])


LOOKS = {
    "a question": ("runs", "show", "asks-{at}"),
    "a run": ("runs", "show", "over-{at}"),
    "an incident": ("incidents", "show", "{error}"),
    "a run that asks": ("run", "agents:asking", "{text}"),
}
"""Commands that show any text, by what they show."""


def _look_at_all(run: Terminal, name: str, text: str, at: int, error: str) -> None:
    """Every command that shows, or refuses, this text."""
    asks, over = f"asks-{at}", f"over-{at}"
    plain = text if text.isprintable() else ""
    stored = json.loads(dumps(RunStarted("r", 0, 0.0, text)))["agent"]
    run(name, "runs", "show", asks, "--json", shows="" if "\0" in stored else stored)
    run(name, "runs", "show", over, "--events", shows="" if "\0" in stored else stored)
    run(name, "runs", "show", over, "--would", "retry")
    for form in ("markdown", "text", "json"):
        run(name, "runs", "show", over, "--report", form)
        run(name, "runs", "show", over, "--report", form, "--audience", "person")
    run(name, "runs", "show", f"no {text}")
    run(name, "runs", "cancel", f"no {text}")
    run(name, "runs", "resume", f"{text}~1", "agents:acting", "approve")
    run(name, "runs", "recover", over, "agents:acting")
    run(name, "runs", "recover", asks, "agents:acting")
    run(name, "runs", "resolve", asks, "happened", "--result", text)
    run(name, "runs", "prune", "--older-than", text)
    run(name, "approve", asks)
    run(name, "runs", "resolve", asks, "rerun")
    run(name, "run", "agents:escalating", text, "--json")
    run(name, "run", "agents:escalating", text, "--report", "text")
    if "FORGED" not in text:  # the result is the function's own, with its lines
        run(name, "run", "agents:returning", text, shows=plain)
    run(name, "run", "agents:returning", text, "--json", shows=text)
    run(name, "run", f"agents:{text}", "task")
    run(name, "run", f"{text}:{text}", "task")
    run(name, "run", "agents:acting", "task", "--arg", text)
    run(name, "run", "agents:acting", "task", text)
    run(name, "run", "agents:acting", "task", "--policy", text)
    run(name, text)
    run(name, "runs", "list", f"--{text}")
    run(name, "incidents", "show", error, "--json")
    run(name, "incidents", "show", text)
    run(name, "incidents", "handle", error, "--hook", "restart=agents:hook")
    run(name, "incidents", "handle", error, "--hook", text)
    run(name, "incidents", "escalate", error, text)
    run(name, "incidents", "ack", error, "--by", f"I {text}", "--note", f"N {text}")
    run(name, "incidents", "resolve", error, "--by", f"I {text}", "--note", f"N {text}")
    run(name, "incidents", "log", error)
    run(name, "doctor", "--store", text)
    run(name, "supervise", "--status", text)
    Path("health.json").write_text(
        json.dumps({"written": 1.0, "state": text, "error": text}), encoding="utf-8"
    )
    run(name, "supervise", "--status", "health.json")
    _look_at_recordings(run, name, text)


def _look_at_recordings(run: Terminal, name: str, text: str) -> None:
    step = {"tool_called": text, "tool_input": {text: text}, "tool_output": text}
    talk = {"task": text, "steps": [step] * 3, "id": text, "error": f"ValueError: {text}"}
    Path("talk.json").write_text(json.dumps(talk), encoding="utf-8")
    run(name, "diagnose", "talk.json", shows=text if text.isprintable() else "")
    run(name, "diagnose", "talk.json", "--json", shows="" if "\0" in text else text)
    run(name, "diagnose", "talk.json", "--task", text, "--json", shows=text)
    run(name, "diagnose", text)
    run(name, "diagnose", text, "--json")
    run(name, "diagnose", "talk.json", "--policy", text)
    run(name, "diagnose", "talk.json", "--tools", text)
    run(name, "diagnose", "talk.json", "--format", text)
    run(name, "diagnose", "talk.json", "--classifier", text)
