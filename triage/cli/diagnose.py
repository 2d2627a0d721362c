"""`triage diagnose`: read recordings, say why each attempt failed, and what a policy would do."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

from cyclopts import App, Parameter
from msgspec.structs import replace

from triage.adapters.recordings.reading import stream
from triage.adapters.recordings.trajectories import Problem, Trace
from triage.classifiers.base import classifier_name
from triage.classifiers.blocking import Asker
from triage.classifiers.rules import RulesClassifier
from triage.core.actions import Abort, Action
from triage.core.diagnosis import Diagnosis
from triage.core.errors import UsageError
from triage.core.failures import FailureContext
from triage.core.messages.reading import tools_of
from triage.core.quoting import action_text, counted, json_text, one_line
from triage.core.redaction import redact
from triage.core.steps import Step, Trajectory, Usage
from triage.core.taxonomy import FailureType, Severity
from triage.core.wire import to_json
from triage.strategies.policy import FailurePolicy

from .options import Classifier, Files, Format, JsonLines, epilogue, load
from .output import json_line, note, paged, print_page, print_text, write
from .progress import Line, step_line

DONE, MALFORMED = 0, 1
_STDIN = "-"
_MOST_EVIDENCE = 5
_LONGEST = 2_000
_MOST_READ = 65_536
_VERSION = 1
CODES = """\
exit codes:
  0    all of it was read
  1    some of it could not be read, or not in full; the rest was
  2    it was never begun: no such file, format, classifier or policy,
       bad arguments
  130  interrupted
"""
_DIAGNOSIS_FIELDS = (
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

app = App(
    name="diagnose",
    help_epilogue=epilogue(
        CODES,
        "diagnose conversation.json",
        "diagnose spans.jsonl.gz --policy policy.toml --json",
        "diagnose - --tools tools.json < conversation.json",
    ),
)


class Finding(NamedTuple):
    """A trace with what is said about it. action: None where there is nothing to act on."""

    file: str
    trace: Trace
    diagnosis: Diagnosis
    action: Action | None
    by: str


@app.default
def diagnose(
    first: Annotated[Files, Parameter(name="FILE")],
    /,
    *files: Files,
    format: Format = None,
    classifier: Classifier = "rules",
    policy: Annotated[
        str | None, Parameter(metavar="FILE", help="What to do about which failure.")
    ] = None,
    tools: Annotated[
        str | None,
        Parameter(metavar="FILE", help="The tools that exist, as JSON: names, or declarations."),
    ] = None,
    task: Annotated[
        str | None, Parameter(metavar="TEXT", help="The task, in place of the recorded one.")
    ] = None,
    ground: Annotated[
        bool,
        Parameter(
            help="Look for facts in the last answer that no result holds (by the rules only)."
        ),
    ] = False,
    failed: Annotated[
        bool,
        Parameter(
            help="These runs failed: name the likeliest type, however unsure (by the rules only)."
        ),
    ] = False,
    json: JsonLines = False,
) -> int:
    """Read recorded conversations, spans, journals or steps; say why each failed."""
    code, printed = DONE, False
    with Asker() as asker, paged() as out:
        chosen = classifier_of(classifier, grounding=ground, failed=failed)
        desk = _Desk(asker, chosen, policy, task, tools)
        for file in (first, *files):
            for found in stream(source_of(file), format):
                if isinstance(found, Problem):
                    code = MALFORMED
                    complain(name_of(file), found, as_json=json)
                    continue
                finding = desk.find(name_of(file), found)
                if json:
                    _write_json(_as_json(finding))
                    continue
                if printed:
                    print_text(out, "")
                print_page(
                    out, [line._replace(text=one_line(line.text)) for line in _lines(finding)]
                )
                printed = True
    return code


class _Desk:
    """Who diagnoses, who decides, and what is known beforehand."""

    def __init__(
        self, asker: Asker, classifier: Any, policy: str | None, task: str | None, tools: str | None
    ) -> None:
        self._asker = asker
        self._classifier = classifier
        self._post_mortem = (
            RulesClassifier(failed=True) if isinstance(classifier, RulesClassifier) else classifier
        )
        self._by = policy or "the recommended policy"
        self._policy = (
            FailurePolicy.recommended() if policy is None else FailurePolicy.from_file(policy)
        )
        self._task = task
        self._tools = None if tools is None else _tools(tools)

    def find(self, file: str, trace: Trace) -> Finding:
        """Diagnose a trace and ask the policy. Raises UsageError for a classifier that fails."""
        given = trace.trajectory
        trajectory = Trajectory(
            given.steps,
            error=given.error,
            attempt=given.attempt,
            task=given.task if self._task is None else self._task,
            tools=given.tools if self._tools is None else self._tools,
        )
        trace = trace._replace(trajectory=trajectory)
        ended_badly = trace.outcome == "failure"
        try:
            diagnosis = self._asker.ask(
                self._post_mortem if ended_badly else self._classifier, trajectory
            )
        except Exception as error:
            name = classifier_name(self._classifier)
            said = f"{type(error).__name__}: {error}"
            raise UsageError(
                f"{file}, line {trace.line}: the classifier {name} failed: {said}"
            ) from error
        well = trace.outcome == "success" and diagnosis.failure_type is FailureType.UNKNOWN
        action = None if well else self._decided(trace, diagnosis)
        return Finding(file, trace, diagnosis, action, self._by)

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
        action: Action = self._asker.wait(self._policy.dispatch(context))
        return action


# What is given ------------------------------------------------------------------------------------


def source_of(file: str) -> Any:
    """What to read: standard input for `-`."""
    return sys.stdin.buffer if file == _STDIN else Path(file)


def name_of(file: str) -> str:
    """What a file is called in what is said of it."""
    return "standard input" if file == _STDIN else file


def classifier_of(place: str, *, grounding: bool = False, failed: bool = False) -> Any:
    """The classifier a place names: `rules`, or an object, class or function as `module:name`.

    grounding, failed: of the rules. Raises UsageError for one that is not there, is no classifier, or
    is another and one of the two was asked for.
    """
    if place == "rules":
        return RulesClassifier(grounding=grounding, failed=failed)
    for flag, name, asked in (("--ground", "grounding", grounding), ("--failed", "failed", failed)):
        if asked:
            raise UsageError(
                f"{flag} is for the rules, not for {place}; make that one with "
                f"RulesClassifier({name}=True)"
            )
    found = load(place)
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
        _write_json({"v": _VERSION, "kind": "problem", "file": file, **problem._asdict()})
    else:
        note(f"{file}: {problem}")


def _write_json(value: dict[str, Any]) -> None:
    write(json_line(_cut(value)))


def _as_json(finding: Finding) -> dict[str, Any]:
    """A finding as a JSON object; every field is always there."""
    trace = finding.trace
    trajectory, error, recorded = trace.trajectory, trace.trajectory.error, trace.attempt
    return {
        "v": _VERSION,
        "kind": "diagnosis",
        "file": finding.file,
        "line": trace.line,
        "id": trace.id,
        "format": trace.format,
        "task": to_json(trajectory.task),
        "attempt": trajectory.attempt,
        "outcome": trace.outcome,
        "steps": len(trajectory),
        "error": None if error is None else {"type": error.type_name, "message": error.message},
        "diagnosis": _diagnosis_as_json(finding.diagnosis, trajectory),
        "action": None if finding.action is None else to_json(finding.action),
        "policy": finding.by,
        "recorded": None
        if recorded is None
        else {
            "diagnosis": _diagnosis_as_json(recorded.diagnosis, trajectory),
            "action": None if recorded.action is None else to_json(recorded.action),
        },
    }


def _diagnosis_as_json(diagnosis: Diagnosis, trajectory: Trajectory) -> dict[str, Any]:
    told = {name: getattr(diagnosis, name) for name in _DIAGNOSIS_FIELDS}
    told["evidence"] = [
        {
            "rule": entry.rule,
            "text": entry.text,
            "step": entry.step,
            "quoted": _quoted(trajectory, entry.step),
        }
        for entry in diagnosis.evidence
    ]
    return told


def _cut(value: Any) -> Any:
    """A JSON value whose texts are cut, and hold no credential that the cut would hide."""
    if isinstance(value, str):
        return redact(value[:_MOST_READ])[:_LONGEST]
    if isinstance(value, Mapping):
        return {_cut(str(key)): _cut(item) for key, item in value.items()}
    return [_cut(item) for item in value] if isinstance(value, list | tuple) else value


def _quoted(trajectory: Trajectory, index: int | None) -> str | None:
    """A step in one line, None where there is none with this index."""
    if index is None or not 0 <= index < len(trajectory):
        return None
    return one_line(step_line(trajectory[index]).text) or "nothing is recorded of it"


def _lines(finding: Finding) -> Iterator[Line]:
    trace, diagnosis = finding.trace, finding.diagnosis
    trajectory = trace.trajectory
    where = f"{finding.file}, line {trace.line}" + (f" ({trace.id})" if trace.id else "")
    yield Line("", "bold", where)
    if trajectory.task is not None and trajectory.task != "":
        yield Line("task", "dim", json_text(to_json(trajectory.task)))
    if trace.outcome is not None:
        yield Line("outcome", "dim", trace.outcome)
    error = trajectory.error
    steps = counted(len(trajectory), "step")
    yield Line("recorded", "dim", steps if error is None else f"{steps}, then {error}")
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
        action = finding.action
        hint = getattr(action, "hint", None)
        if hint is not None and hint == diagnosis.hint:  # which stands above already
            action = cast("Action", replace(cast("Any", action), hint=None))
        yield Line("policy", "cyan", f"{action_text(action)} ({finding.by})")
    if trace.attempt is not None:
        yield Line("then", "dim", f"diagnosed as {trace.attempt.diagnosis}")
        if trace.attempt.action is not None:
            yield Line("then", "dim", action_text(trace.attempt.action))


def _steps(trajectory: Trajectory, index: int | None, shown: set[int]) -> Iterator[Line]:
    """The step a piece of evidence is about, once."""
    quoted = _quoted(trajectory, index)
    if quoted is not None and index is not None and index not in shown:
        shown.add(index)
        step: Step = trajectory[index]
        yield Line(f"step {index}", "red" if step.error else "green", quoted)
