"""`triage diagnose`: read recordings, say why each attempt failed, and what a policy would do."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from triage import (
    Abort,
    Action,
    Diagnosis,
    FailureContext,
    FailurePolicy,
    FailureType,
    RulesClassifier,
    Severity,
    Step,
    Trajectory,
    Usage,
    UsageError,
)
from triage._wire import to_json
from triage.classifiers._ask import Asker
from triage.classifiers.diagnose import classifier_name
from triage.traces import Problem, Trace, stream, tools_of

from ._run import _console, _found, _write
from ._show import Line, _action, _step, clean

if TYPE_CHECKING:
    from rich.console import Console

DONE, MALFORMED = 0, 1
_STDIN = "-"
_STDIN_NAME = "standard input"
_MOST_EVIDENCE = 5
_LONGEST = 2_000
_VERSION = 1
_TOLD = (
    "failure_type",
    "cause",
    "severity",
    "level",
    "confidence",
    "critical_step",
    "user_message",
    "technical_details",
    "hint",
    "suggestions",
    "retry_after_s",
    "candidates",
    "classifier",
)
"""Fields of a diagnosis that are given as they are."""


class Finding(NamedTuple):
    """A trace with what is said about it. action: None where there is nothing to act on."""

    file: str
    trace: Trace
    diagnosis: Diagnosis
    action: Action | None
    by: str


class Desk:
    """What the options ask for: who diagnoses, who decides, and what is known beforehand."""

    def __init__(self, options: argparse.Namespace, asker: Asker) -> None:
        self._asker = asker
        self.classifier = classifier_of(options.classifier, grounding=options.ground)
        self.by = options.policy or "the recommended policy"
        self.policy = (
            FailurePolicy.recommended()
            if options.policy is None
            else FailurePolicy.from_file(options.policy)
        )
        self.task: str | None = options.task
        self.tools = None if options.tools is None else _tools(options.tools)

    def find(self, file: str, trace: Trace) -> Finding:
        """Diagnose a trace and ask the policy. Raises UsageError for a classifier that fails."""
        given = trace.trajectory
        trajectory = Trajectory(
            given.steps,
            error=given.error,
            attempt=given.attempt,
            task=given.task if self.task is None else self.task,
            tools=given.tools if self.tools is None else self.tools,
        )
        trace = trace._replace(trajectory=trajectory)
        try:
            diagnosis = self._asker.ask(self.classifier, trajectory)
        except Exception as error:
            name = classifier_name(self.classifier)
            told = f"{type(error).__name__}: {error}"
            raise UsageError(
                f"{file}, line {trace.line}: the classifier {name} failed: {told}"
            ) from error
        if trace.outcome == "success" and diagnosis.failure_type is FailureType.UNKNOWN:
            return Finding(file, trace, diagnosis, None, self.by)
        return Finding(file, trace, diagnosis, self._decided(trace, diagnosis), self.by)

    def _decided(self, trace: Trace, diagnosis: Diagnosis) -> Action:
        if diagnosis.severity is Severity.FATAL:
            return Abort("a fatal failure allows nothing")
        trajectory, attempt = trace.trajectory, trace.attempt
        usage = Usage(calls=0)
        for step in trajectory:
            usage = usage if step.usage is None else usage.plus(step.usage)
        context = FailureContext(
            run_id=trace.id,
            task=trajectory.task,
            attempt=trajectory.attempt,
            diagnosis=diagnosis,
            error=trajectory.error,
            trajectory=trajectory,
            state={} if attempt is None else attempt.state,
            usage=usage,
            attempt_history=trace.earlier,
            tools=tuple(trajectory.tools),
        )
        action: Action = self._asker.wait(self.policy.dispatch(context))
        return action


def run(options: argparse.Namespace) -> int:
    """Carry out the command; its exit code. Raises UsageError for what cannot be begun."""
    code = DONE
    shown = None if options.json else Page(_console(error=False))
    with Asker() as asker:
        desk = Desk(options, asker)
        for file in options.files:
            for found in stream(source_of(file), options.format):
                if isinstance(found, Problem):
                    code = MALFORMED
                    complain(name_of(file), found, as_json=options.json)
                    continue
                finding = desk.find(name_of(file), found)
                if shown is None:
                    _write(json.dumps(report(finding), allow_nan=False))
                else:
                    shown.show(finding)
    return code


# What is given ------------------------------------------------------------------------------------


def source_of(file: str) -> Any:
    """What to read: standard input for `-`."""
    return sys.stdin.buffer if file == _STDIN else Path(file)


def name_of(file: str) -> str:
    """What a file is called in what is said of it."""
    return _STDIN_NAME if file == _STDIN else file


def classifier_of(place: str, *, grounding: bool = False) -> Any:
    """The classifier a place names: `rules`, or an object, class or function as `module:name`.

    grounding: of the rules. Raises UsageError for one that is not there, is no classifier, or is
    another that should look at grounding.
    """
    if place == "rules":
        return RulesClassifier(grounding=grounding)
    if grounding:
        raise UsageError(
            f"--ground is for the rules, not for {place}; make that one with "
            "RulesClassifier(grounding=True)"
        )
    found = _found(place)
    if inspect.isclass(found):
        try:
            found = found()
        except Exception as error:
            raise UsageError(
                f"{place} cannot be made without arguments ({error}); name one that is made already"
            ) from error
    if callable(getattr(found, "classify", None)):
        return found
    if callable(found):
        return _Function(found)
    raise UsageError(
        f"{place} is no classifier; name an object with classify(trajectory, task), or a function"
    )


class _Function:
    """A function of trajectory and task, as a classifier."""

    def __init__(self, function: Any) -> None:
        self.name = getattr(function, "__name__", type(function).__name__)
        self.classify = function


def _tools(file: str) -> dict[str, Any]:
    try:
        found = tools_of(json.loads(Path(file).read_bytes()))
    except OSError as error:
        raise UsageError(f"--tools {file}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--tools {file}: is not JSON: {error}") from error
    if not found:
        raise UsageError(
            f"--tools {file}: holds no tools; give a list of names or declarations, or an object of "
            "names and schemas"
        )
    return found


# What is said -------------------------------------------------------------------------------------


def complain(file: str, problem: Problem, *, as_json: bool) -> None:
    """Say what could not be read: as JSON among the results, else on standard error."""
    if as_json:
        told = {"v": _VERSION, "kind": "problem", "file": file, **problem._asdict()}
        _write(json.dumps(_clean(told), allow_nan=False))
    else:
        print(f"triage: {clean(f'{file}: {problem}', _LONGEST)}", file=sys.stderr)  # noqa: T201


def report(finding: Finding) -> dict[str, Any]:
    """A finding as a JSON object; every field is always there."""
    trace, diagnosis = finding.trace, finding.diagnosis
    trajectory, error = trace.trajectory, trace.trajectory.error
    recorded = trace.attempt
    return {
        "v": _VERSION,
        "kind": "diagnosis",
        "file": _clean(finding.file),
        "line": trace.line,
        "id": _clean(trace.id),
        "format": trace.format,
        "task": _clean(to_json(trajectory.task)),
        "attempt": trajectory.attempt,
        "outcome": _clean(trace.outcome),
        "steps": len(trajectory),
        "error": None
        if error is None
        else {"type": _clean(error.type_name), "message": _clean(error.message)},
        "diagnosis": _told(diagnosis, trajectory),
        "action": None if finding.action is None else _clean(to_json(finding.action)),
        "policy": _clean(finding.by),
        "recorded": None
        if recorded is None
        else {
            "diagnosis": _told(recorded.diagnosis, trajectory),
            "action": None if recorded.action is None else _clean(to_json(recorded.action)),
        },
    }


def _told(diagnosis: Diagnosis, trajectory: Trajectory) -> dict[str, Any]:
    told = {name: _clean(getattr(diagnosis, name)) for name in _TOLD}
    told["evidence"] = [
        {
            "rule": _clean(entry.rule),
            "text": _clean(entry.text),
            "step": entry.step,
            "quoted": _quoted(trajectory, entry.step),
        }
        for entry in diagnosis.evidence
    ]
    return told


def _clean(value: Any) -> Any:
    """A JSON value whose texts may be printed and hold no credential."""
    if isinstance(value, str):
        return clean(value, _LONGEST)
    if isinstance(value, Mapping):
        return {clean(str(key)): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value


def _quoted(trajectory: Trajectory, index: int | None) -> str | None:
    """A step in one line, None where there is none with this index."""
    if index is None or not 0 <= index < len(trajectory):
        return None
    return clean(_step(trajectory[index]).text) or "nothing is recorded of it"


class Page:
    """Findings for a reader: in colour with a rich console that is a terminal, else as plain lines."""

    def __init__(self, console: Console | None) -> None:
        self._console = console if console is not None and console.is_terminal else None
        self._first = True

    def show(self, finding: Finding) -> None:
        """Print a finding under its title."""
        title, *lines = _lines(finding)
        if not self._first:
            _write("")
        self._first = False
        if self._console is None:
            _write(title.text)
            for line in lines:
                _write(f"{line.label:>11}  {clean(line.text)}")
            return
        from rich.table import Table
        from rich.text import Text

        self._console.print(Text(title.text, style=title.style))
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(justify="right", width=11)
        grid.add_column(overflow="fold")
        for line in lines:
            grid.add_row(Text(line.label, style=line.style), Text(clean(line.text)))
        self._console.print(grid)


def _lines(finding: Finding) -> Iterator[Line]:
    trace, diagnosis = finding.trace, finding.diagnosis
    trajectory = trace.trajectory
    where = f"{finding.file}, line {trace.line}" + (f" ({trace.id})" if trace.id else "")
    yield Line("", "bold", clean(where))
    if trajectory.task is not None and trajectory.task != "":
        task = (
            trajectory.task
            if isinstance(trajectory.task, str)
            else json.dumps(to_json(trajectory.task))
        )
        yield Line("task", "dim", task)
    if trace.outcome is not None:
        yield Line("outcome", "dim", trace.outcome)
    error = trajectory.error
    counted = f"{len(trajectory)} step{'' if len(trajectory) == 1 else 's'}"
    yield Line("recorded", "dim", counted if error is None else f"{counted}, then {error}")
    told = f"level {diagnosis.level}, confidence {diagnosis.confidence:.2f}"
    cause = f" ({diagnosis.cause})" if diagnosis.cause else ""
    kind = f"{diagnosis.failure_type}{cause}"
    yield Line("diagnosis", "bold red", f"{kind}, {diagnosis.severity}, {told}")
    shown: set[int] = set()
    for evidence in diagnosis.evidence[:_MOST_EVIDENCE]:
        yield Line("because", "red", f"{evidence.rule}: {evidence.text}")
        yield from _steps(trajectory, evidence.step, shown)
    yield from _steps(trajectory, diagnosis.critical_step, shown)
    if diagnosis.hint:
        yield Line("hint", "yellow", diagnosis.hint)
    for suggestion in diagnosis.suggestions:
        yield Line("suggestion", "yellow", suggestion)
    if finding.action is None:
        yield Line("policy", "cyan", "nothing: the recording says that it went well")
    else:
        yield Line("policy", "cyan", f"{_action(finding.action)} ({finding.by})")
    if trace.attempt is not None:
        yield Line("then", "dim", f"diagnosed as {trace.attempt.diagnosis}")
        if trace.attempt.action is not None:
            yield Line("then", "dim", _action(trace.attempt.action))


def _steps(trajectory: Trajectory, index: int | None, shown: set[int]) -> Iterator[Line]:
    """The step a piece of evidence is about, once."""
    quoted = _quoted(trajectory, index)
    if quoted is not None and index is not None and index not in shown:
        shown.add(index)
        step: Step = trajectory[index]
        yield Line(f"step {index}", "red" if step.error else "green", quoted)
