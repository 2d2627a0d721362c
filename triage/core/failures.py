"""The values of a failure: `ErrorInfo` (the exception), `Attempt` (a past one) and `FailureContext`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import msgspec
from msgspec.structs import asdict, astuple, replace

from .actions import Action, RecoveryAction
from .constructors import Value
from .diagnosis import Diagnosis
from .escaping import escaped
from .patterns import Pattern
from .redaction import redact
from .steps import NO_USAGE, Trajectory, Usage
from .taxonomy import Category, FailureType, Recovery, Severity, severity_of

NOT_ATTEMPTED_STATUSES = frozenset({401, 403, 404, 409, 412, 422, 429})
"""HTTP statuses of requests refused before they took effect."""
BUSY = 503
"""HTTP status with the same meaning if the answer asks for a delay (Retry-After)."""


class ErrorInfo(Value, frozen=True):
    """An exception as plain data, read when it was caught.

    type_name, module: of its class. mro: `module.QualName` of the class and its bases, most derived
    first, without `object`. message: `str(exc)`, or the class name if that is empty; bounded.
    status_code: HTTP or RPC status. code: the provider's own code (`"insufficient_quota"`, SQLSTATE,
    an errno name). retry_after_s: seconds the other side asked to wait; for a group the longest of its
    members. phase: progress of the request: `"not_sent"` (nothing left this machine, or the other side
    was never reached), `"sent"` (the request, or one of several, was on its way), `"answered"`, None if
    unknown. body: the decoded answer, if it is small JSON. hint: the diagnosis that the exception states
    (`triage.core.faults`, `triage.hint`), as plain fields. relation: to the exception that holds it:
    `""` for the outermost, `"cause"`, `"context"` or `"group"`. related: the causes, contexts and group
    members, bounded and without cycles.
    """

    type_name: str
    module: str = ""
    mro: tuple[str, ...] = ()
    message: str = ""
    status_code: int | None = None
    code: str | None = None
    retry_after_s: float | None = None
    phase: str | None = None
    body: Any = None
    hint: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    relation: str = ""
    related: tuple[ErrorInfo, ...] = ()

    @property
    def not_attempted(self) -> bool:
        """Whether the failing call cannot have taken effect, because it was not sent or was refused.

        For a group, whether that holds for all members. Causes do not matter.
        """
        if self.phase in ("not_sent", "sent"):
            return self.phase == "not_sent"
        if self.status_code is not None:
            refused = self.status_code in NOT_ATTEMPTED_STATUSES
            return refused or (self.status_code == BUSY and self.retry_after_s is not None)
        members = [info for info in self.related if info.relation == "group"]
        return self.phase is None and bool(members) and all(one.not_attempted for one in members)

    @property
    def decisive(self) -> ErrorInfo | None:
        """The error whose hint counts: this error or a more serious related one; None without a hint.

        An error that was being handled when this one was raised (`"context"`) counts only if this one has
        no hint.
        """
        own, behind = self.hint or None, None
        if not self.related:
            return None if own is None else self
        for info in self.related:
            if own is None or info.relation != "context":
                found = info.decisive
                if found is not None and (behind is None or _weight(found) > _weight(behind)):
                    behind = found
        if own is None:
            return behind
        return behind if behind is not None and _weight(behind) > _weight(self) else self

    @property
    def refused(self) -> bool:
        """Whether this error or a related one states that the work must never be retried."""
        if self.hint and self.hint.get("recovery") == Recovery.NEVER:
            return True
        return bool(self.related) and any(info.refused for info in self.related)

    def walk(self) -> Iterator[ErrorInfo]:
        """This error and all related ones, outermost first."""
        yield self
        for info in self.related:
            yield from info.walk()

    def is_a(self, *names: str) -> bool:
        """Whether a class of the MRO has one of these names, with or without the module."""
        return any(entry in names or entry.rpartition(".")[2] in names for entry in self.mro)

    def __str__(self) -> str:
        return escaped(f"{self.type_name}: {self.message}")


def words_of(error: ErrorInfo) -> str:
    """Return the message of an error; for the error of a nested run, the message of its cause."""
    if not error.is_a("TriageError"):
        return error.message
    behind = next((one.message for one in error.walk() if not one.is_a("TriageError")), None)
    return behind or str((error.hint or {}).get("user_message") or "") or error.message


_WEIGHTS: dict[str, int] = {kind.value: weight for weight, kind in enumerate(Category, 1)}
_OF_SEVERITY = {
    Severity.RETRIABLE: Category.INFRASTRUCTURE,
    Severity.REPLANNING: Category.DATA,
    Severity.RECLASSIFICATION: Category.DATA,
    Severity.CRITICAL: Category.WORKFLOW,
    Severity.FATAL: Category.SAFETY,
}
"""The category that gives its weight to a hint without a category."""


def _weight(info: ErrorInfo) -> int:
    """Return how serious an error is by its stated category, or else its severity; 0 without both."""
    said = info.hint or {}
    try:
        if said.get("category") is not None:
            return _WEIGHTS[said["category"]]
        severity, kind = said.get("severity"), said.get("failure_type")
        if severity is None and kind is not None:
            severity = severity_of(FailureType(kind), said.get("cause"))
        return 0 if severity is None else _WEIGHTS[_OF_SEVERITY[Severity(severity)]]
    except (KeyError, TypeError, ValueError):  # unknown words, such as a newer release's
        return 0


ASKING = "calls"
"""`Diagnosis.classifier` of an attempt that ended with a question about a call."""


class Attempt(Value, frozen=True):
    """One finished attempt of a run.

    number: from 1. state: at its end. error: the exception that ended it, None without one. action: the
    decision, None until it is made. started, ended: seconds since the epoch.
    """

    number: int
    trajectory: Trajectory
    state: Mapping[str, Any]
    error: ErrorInfo | None
    diagnosis: Diagnosis
    action: Action | None
    usage: Usage
    started: float
    ended: float

    @property
    def failure_type(self) -> FailureType:
        """The diagnosis' failure type."""
        return self.diagnosis.failure_type

    @property
    def asked(self) -> bool:
        """Whether it was stopped by a question about a call, instead of failing."""
        return self.diagnosis.classifier == ASKING


class Partial(Value, frozen=True):
    """The partial result of an unfinished run: its state, last output and usage."""

    state: Mapping[str, Any]
    last_output: Any
    usage: Usage


_NOTHING = Trajectory()


class FailureContext(Value, frozen=True):
    """Everything a strategy knows about a failure; errors that end a run carry it as `.context`.

    run_id; task: as given to `run`. attempt: the number of the failed attempt, from 1. diagnosis: why
    it failed. error: the exception as data, None when a check or a limit failed it. exception: the live
    exception, None after pickling or when there was none. trajectory: the attempt's steps. state: as the
    attempt left it. usage: of the whole run. attempt_history: the earlier attempts, oldest first.
    checkpoint_id: the checkpoint that `Rollback()` would restore, None if nothing was recorded.
    open_subgoals: declared but not completed. tools: names of the known tools. elapsed_s: seconds the run
    has worked, without waits for a person. seconds_left: until its deadline, None without one. draw: a
    random number from 0 to 1, drawn for this failure from the run's source, for jitter. attempt_s:
    seconds the failed attempt took. outage_seconds, longest_wait: as in the run's `Limits`. hint_read:
    whether the agent reads its hint, so that a model may hear of the failure. notes: added by `note`.
    """

    run_id: str
    task: Any
    attempt: int
    diagnosis: Diagnosis
    error: ErrorInfo | None = None
    exception: BaseException | None = None
    trajectory: Trajectory = _NOTHING
    state: Mapping[str, Any] = {}
    usage: Usage = NO_USAGE
    attempt_history: tuple[Attempt, ...] = ()
    checkpoint_id: int | None = None
    open_subgoals: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    seconds_left: float | None = None
    draw: float = 1.0
    attempt_s: float = 0.0
    outage_seconds: float | None = 300.0
    longest_wait: float | None = 120.0
    hint_read: bool = False
    notes: list[tuple[str, Any]] = msgspec.field(default_factory=list)

    def note(self, what: str, value: object) -> None:
        """Note a value, beside the failure, that the decision depends on; the journal keeps it.

        what: the source of the value, as in `"gate:openai"`. A strategy that chooses by chance notes
        `"probability"`, that of its choice, so that other policies can be compared with it later.
        """
        self.notes.append((what, value))

    @property
    def failure_type(self) -> FailureType:
        """The diagnosis' failure type."""
        return self.diagnosis.failure_type

    @property
    def partial(self) -> Partial:
        """The partial result of the attempt."""
        output: Any = None
        for step in reversed(self.trajectory.steps):
            output = step.tool_output if step.tool_output is not None else step.llm_output
            if output is not None:
                break
        return Partial(self.state, output, self.usage)

    def tried(self, action: type[RecoveryAction]) -> int:
        """Count how often this run took this action after an earlier failure of this failure type.

        Attempts that were stopped by a question about a call do not count.
        """
        return sum(
            1
            for past in self.attempt_history
            if past.failure_type is self.failure_type
            and isinstance(past.action, action)
            and not past.asked
        )

    def failures(self) -> int:
        """Count the attempts of this run that ended with this failure type, including this one."""
        past = [attempt for attempt in self.attempt_history if not attempt.asked]
        return 1 + sum(1 for attempt in past if attempt.failure_type is self.failure_type)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out the live exception and secrets; replace a task that cannot be pickled by its repr."""
        travelling: FailureContext = _without_secrets(replace(self, exception=None))
        task = _picklable(travelling.task)
        if task is not travelling.task:
            trajectory = travelling.trajectory.replace(travelling.trajectory.steps, task=task)
            history = tuple(
                replace(past, trajectory=past.trajectory.replace(past.trajectory.steps, task=task))
                for past in travelling.attempt_history
            )
            travelling = replace(
                travelling, task=task, trajectory=trajectory, attempt_history=history
            )
        return (FailureContext, astuple(travelling))

    def __repr__(self) -> str:
        """Show the fields without their secrets."""
        fields = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__)
        return escaped(redact(f"{type(self).__name__}({', '.join(fields)})"))

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return the fields for rich, without their secrets."""
        clean: FailureContext = _without_secrets(replace(self, exception=None))
        return list(asdict(clean).items())


def _without_secrets(value: Any) -> Any:
    """Redact a value of a run; return the same object if it holds no secrets."""
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        clean = {name: _without_secrets(field) for name, field in fields.items()}
        changed = {name: field for name, field in clean.items() if field is not fields[name]}
        return replace(value, **changed) if changed else value
    if isinstance(value, Trajectory):
        copy = value.replace(map(_without_secrets, value.steps), task=_without_secrets(value.task))
        copy.error = _without_secrets(value.error)
        return copy
    if isinstance(value, tuple) and any(isinstance(item, msgspec.Struct) for item in value):
        return tuple(map(_without_secrets, value))
    return value if isinstance(value, Enum) else redact(value)


def _picklable(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    import pickle  # already imported when a context is pickled

    try:
        pickle.loads(pickle.dumps(value))  # noqa: S301 - bytes we have just made
    except Exception:
        try:
            return repr(value)
        except Exception:
            return f"<{type(value).__name__}>"
    return value


# The fields that failed, and the values expected, read from validation errors and their messages.


MAX_FIELDS = 6


class Field(msgspec.Struct, frozen=True):
    """A field that failed. name: its path, with dots. problem: in the words of the error."""

    name: str
    problem: str


def fields_of(error: ErrorInfo) -> tuple[Field, ...]:
    """Return the fields that failed, most informative first; empty if no error names one."""
    for info in error.walk():
        found = _from_body(info.body)
        if found:
            return found[:MAX_FIELDS]
    for info in error.walk():
        found = _from_message(info.message[:4_000])
        if found:
            return found[:MAX_FIELDS]
        found = _from_notes(info)
        if found:
            return found[:MAX_FIELDS]
    return ()


def not_json(error: ErrorInfo) -> str | None:
    """Return a parser's message about a text that is not JSON at all; None without one."""
    if error.is_a("YAMLError", "TOMLDecodeError"):  # JSON may have been tried first
        return None
    for info in error.walk():
        said = _invalid_json(info)
        if said is None and info.is_a("JSONDecodeError"):
            said = info.message
        if said is not None:
            return said
    return None


def is_invalid_json(info: ErrorInfo) -> bool:
    """Whether a validation error is about text that is not JSON, rather than about its fields."""
    return _invalid_json(info) is not None


def _invalid_json(info: ErrorInfo) -> str | None:
    detail = info.body.get("detail") if isinstance(info.body, dict) else None
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):
        item = detail[0]
        # With a path, only one field should have held JSON; the rest was read.
        if item.get("type") != "json_invalid" or item.get("loc"):
            return None
        return str(item.get("msg") or info.message)
    hit = re.match(
        r"1 validation error for [^\n]{1,200}\n {2}(?P<problem>Invalid JSON: [^\n]{1,300}?)"
        r"(?: \[type=json_invalid[^\n]{0,300})?(?:\n|$)",
        info.message[:2_000],
    )
    return hit["problem"] if hit else None


def _from_body(body: Any) -> tuple[Field, ...]:
    if not isinstance(body, dict):
        return ()
    for name in ("detail", "details", "errors", "fieldViolations"):
        listed = body.get(name)
        if isinstance(listed, list):
            found = tuple(field for item in listed if (field := _item(item)) is not None)
            if found:
                return found
    inner = body.get("error")
    if isinstance(inner, dict):
        found = _from_body(inner)
        if found:
            return found
        body = inner
    name = body.get("param")
    message = body.get("message")
    if isinstance(name, str) and name and isinstance(message, str):
        return (Field(name, message),)
    return ()


def _item(item: Any) -> Field | None:
    if not isinstance(item, dict):
        return None
    violations = item.get("fieldViolations") or item.get("field_violations")
    if isinstance(violations, list) and violations:
        return _item(violations[0])
    loc = item.get("loc", item.get("field", item.get("path", item.get("name"))))
    if isinstance(loc, list | tuple):
        parts = [str(part) for part in loc]
        name = ".".join(
            parts[1:] if len(parts) > 1 and parts[0] in ("body", "query", "path") else parts
        )
    else:
        name = loc if isinstance(loc, str) else ""
    problem = next(
        (
            found
            for key in ("msg", "message", "description", "code")
            if isinstance(found := item.get(key), str)
        ),
        "",
    )
    if item.get("type") == "missing":
        problem = "Field required"
    return Field(name, problem) if name or problem else None


_LISTED = Pattern(
    r"^(?P<path>[\w.\[\]-]{1,120})\n {2}(?P<problem>[^\n]{1,200}?)(?: \[type=[^\n]{0,300})?$",
    re.MULTILINE,
)
"""An error as pydantic prints it: the field on its own line, the problem indented below."""
_COLONS = Pattern(
    r"^ ?(?P<path>\w[\w.]{0,80}): "
    r"(?P<problem>(?:Input should|Field required|Value error)[^\n]{0,160})$",
    re.MULTILINE,
)
_SENTENCES = tuple(
    map(
        Pattern,
        (
            r"missing \d{1,3} required (?:[\w-]{1,20} )?arguments?: (?P<names>.{1,200})",
            r"unexpected keyword argument '(?P<extra>[^']{1,80})'",
            r"missing required field `(?P<required>[^`]{1,80})`",
            r"contains unknown field `(?P<extra>[^`]{1,80})`",
            r"(?P<problem>Expected `[^`]{1,40}`, got `[^`]{1,40}`) - at `\$\.?(?P<path>[^`]+)`",
            r"'(?P<required>[^']{1,80})' is a required property",
            r"Argument (?P<extra>\w{1,80}) is not in the tool",
            r"failed to parse field \[(?P<path>[^\]]{1,80})\] of type \[(?P<kind>[^\]]{1,40})\]",
            r"(?:constraint failed: \w{1,80}\.|column \")(?P<path>\w{1,80})",
            r"Invalid (?:type|value|parameter) for '(?P<path>[^']{1,99})': (?P<problem>.{1,200})",
            r"Field [`'\"](?P<path>[^`'\"]{1,80})[`'\"] (?P<problem>[^\n]{1,200})",
        ),
    )
)
"""Sentences in which libraries name one field."""


def _from_message(message: str) -> tuple[Field, ...]:
    for pattern in (_LISTED, _COLONS):
        found = tuple(Field(hit["path"], hit["problem"]) for hit in pattern.finditer(message))
        if found:
            return found
    for pattern in _SENTENCES:
        hit = pattern.search(message)
        if hit is not None:
            return _from_hit(hit)
    return ()


def _from_hit(hit: re.Match[str]) -> tuple[Field, ...]:
    groups = {name: value for name, value in hit.groupdict().items() if value}
    if "names" in groups:
        names = re.findall(r"'([^']{1,80})'", groups["names"])
        return tuple(Field(name, "required, and missing") for name in names)
    if "required" in groups:
        return (Field(groups["required"], "required, and missing"),)
    if "extra" in groups:
        return (Field(groups["extra"], "not known, must not be given"),)
    problem = groups.get("problem") or (
        f"must be of type {groups['kind']}" if "kind" in groups else "not accepted"
    )
    return (Field(groups["path"], problem),)


def _from_notes(info: ErrorInfo) -> tuple[Field, ...]:
    for note in info.notes:
        hit = re.search(r"@ attribute (\w{1,80})", note[:300])
        if hit is not None:
            missing = info.type_name == "KeyError"
            return (Field(hit.group(1), "required, and missing" if missing else info.message),)
    return ()
