"""A diagnosis that was wrong, and what is right: `report_misclassification` writes it to a file.

Each line of the file is a record of plain steps with its label, so `triage diagnose`
reads it as it is. `read_corrections` gives the records back, `Correction.rule` a rule to
begin with, and `CorrectedClassifier` answers what was corrected where the same happens again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from triage.classifiers.tables.rule import Rule
from triage.core.diagnosis import Diagnosis, Evidence, known_cause
from triage.core.errors import StoreError, UsageError, misuse
from triage.core.failures import Attempt, ErrorInfo, FailureContext
from triage.core.redaction import redact
from triage.core.secret_shapes import HIDDEN
from triage.core.steps import Step, Trajectory
from triage.core.taxonomy import Cause, FailureType
from triage.core.wire import from_json, to_json

from .base import Classifier
from .rules import RulesClassifier

DEFAULT_PATH = "triage-corrections.jsonl"
"""Where corrections are kept when no path is given: in the current directory."""
MAX_RECORD = 64 * 1024
"""Bytes of one record; texts are cut, and the oldest steps left out, until it fits."""
_BUDGETS = ((4_000, 200), (1_000, 100), (300, 50), (100, 20), (40, 5), (20, 0))
"""Characters of a text and number of steps, tried in turn."""
_MOST_READ = 65_536
_LIKE_A_SECRET = "0123456789abcdefghij"  # noqa: S105 - none, but any field named for one holds one
_MOST_ITEMS = 200
_DEEPEST = 24
_GENERAL = frozenset(
    {"Exception", "BaseException", "Error", "RuntimeError", "ValueError", "OSError"}
)
"""Classes of errors that say too little to make a rule of."""
_STANDARD = re.compile(r"[0-9A-Z]{5}|E[A-Z0-9]{2,20}|[A-Z][A-Z_]{2,40}|-?\d{1,6}")
"""SQLSTATE, errno, gRPC and numbers: codes that rules compare as they are."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_LEAST_WORDS = 8
"""Characters without which words say nothing of their own."""
_VARYING = re.compile(r"0x[0-9a-f]{1,32}|[0-9a-f]{8,64}(?:-[0-9a-f]{4,12}){0,4}|\d{1,40}")


class Correction(NamedTuple):
    """One line of a corrections file.

    said: the type that was diagnosed. correct, cause: what is right. note: of who corrected it.
    trajectory: steps, task and error, redacted and cut. fingerprint: what the failure is known again
    by. line: where it stands, from 1.
    """

    said: FailureType
    correct: FailureType
    cause: Cause | str | None
    note: str
    trajectory: Trajectory
    fingerprint: str
    line: int

    def rule(self) -> Rule | None:
        """A rule that tells this failure by its error: by its code, its class, or its words.

        Something to begin with: read it, widen it, and put it in front of `RULES`. None where there
        was no error, or one that says too little.
        """
        error = self.trajectory.error
        if error is None:
            return None
        name = f"corrected.{self.line}"
        if error.code and _STANDARD.fullmatch(error.code):
            return Rule(name, self.correct, self.cause, "code", (error.code,))
        if error.code and _worded(error.code):
            return Rule(name, self.correct, self.cause, "name", (_worded(error.code),))
        full = error.mro[0] if error.mro else ""
        if error.type_name not in _GENERAL and not full.startswith("builtins."):
            key = full if "." in full else _worded(error.type_name)
            if key:
                return Rule(name, self.correct, self.cause, "name", (key,))
        text = error.message.lower().replace(HIDDEN, "0")[:400]
        parts = _VARYING.split(text.replace("_", " ").replace("-", " "))
        longest = max((" ".join(part.split()) for part in parts), key=len)[:120].strip()
        if len(longest) < _LEAST_WORDS:
            return None
        key = re.escape(longest).replace("\\ ", " ")
        return Rule(name, self.correct, self.cause, "text", (key,))


def _worded(name: str) -> str:
    """A class or a code in the words that rules compare: `RateLimitError` is `rate limit`."""
    words = _WORD.findall(name[:200])
    return " ".join(word.lower() for word in words if word.lower() not in {"error", "exception"})


def report_misclassification(
    wrong: FailureContext | Attempt | Diagnosis,
    *,
    correct: FailureType | str,
    cause: Cause | str | None = None,
    note: str = "",
    path: str | os.PathLike[str] = DEFAULT_PATH,
    trajectory: Trajectory | None = None,
) -> None:
    """Write down that a diagnosis was wrong, and what is right, as one line of a corrections file.

    wrong: the context of the error that ended a run (`error.context`), an attempt of its history, or
    a diagnosis alone. correct: the right failure type; cause: the right cause, None if it is not
    known. note: for whoever reads it. path: the file, made readable by its owner alone if it is not
    there. trajectory: the steps and the error, for a diagnosis alone.

    The record has the task, the steps, the facts of the error, what was said and what is right; without
    what looks like a credential, and at most 64 KiB of it. Raises UsageError for an argument of the
    wrong type or value, StoreError if the file cannot be written.
    """
    if not isinstance(cast("object", trajectory), Trajectory | None):
        raise misuse("report_misclassification() trajectory", trajectory, "a Trajectory or None")
    for name, text in (("cause", cause), ("note", note)):
        if not isinstance(cast("object", text), str | None):
            raise misuse(f"report_misclassification() {name}", text, "text")
    if isinstance(wrong, FailureContext | Attempt):
        diagnosis = wrong.diagnosis
        known = wrong.trajectory if trajectory is None else trajectory
        error = known.error or wrong.error
    elif isinstance(cast("object", wrong), Diagnosis):
        diagnosis, known = wrong, Trajectory() if trajectory is None else trajectory
        error = known.error
    else:
        wanted = "a FailureContext, an Attempt or a Diagnosis"
        raise misuse("report_misclassification() wrong", wrong, wanted)
    task = wrong.task if isinstance(wrong, FailureContext) else known.task
    record = {
        "v": 1,
        "time": round(time.time(), 3),
        "failure_type": _failure_type(correct).value,
        "cause": cause,
        "note": note,
        "said": to_json(diagnosis),
        "task": task if isinstance(task, str | None) else to_json(task),
        "error": None if error is None else to_json(error),
        "steps": [to_json(step) for step in known.steps],
        "tools": dict.fromkeys(list(known.tools)[:_MOST_ITEMS]),
        "fingerprint": fingerprint(known, error),
    }
    _append(path, _fitting(record))


def _failure_type(value: object) -> FailureType:
    try:
        return FailureType(cast("str", value))
    except ValueError:
        words = ", ".join(FailureType)
        raise UsageError(
            f"report_misclassification() correct must be one of {words}, not {value!r}"
        ) from None


def fingerprint(trajectory: Trajectory, error: ErrorInfo | None = None) -> str:
    """What a failure is known again by, as 32 hexadecimal digits.

    Of the error: its class, code, status and words without numbers and ids, and the tool of the last
    step. Without an error: what the last six steps did. Credentials are left out before. Empty where
    there is neither an error nor a step.
    """
    error = error or trajectory.error
    last = trajectory.steps[-6:]
    if error is None and not last:
        return ""
    if error is not None:
        words = _VARYING.sub("#", redact(error.message[:_MOST_READ]).lower()[:2_000])
        tool = last[-1].tool_called if last else None
        facts: list[Any] = [error.type_name, error.code, error.status_code, words, tool]
    else:
        facts = [_safe([step.tool_called, step.tool_input, step.action], 2_000) for step in last]
    text = json.dumps(facts, ensure_ascii=True, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


# The record ---------------------------------------------------------------------------------------


def _safe(value: Any, longest: int, depth: int = _DEEPEST) -> Any:
    """A JSON value without credentials, with its texts cut; what is too deep or too wide is left out."""
    if isinstance(value, str):
        text = redact(value[:_MOST_READ])
        return text if len(text) <= longest else f"{text[: longest - 1]}…"
    if isinstance(value, list):
        return [_safe(item, longest, depth - 1) for item in value[:_MOST_ITEMS]] if depth else "…"
    if not isinstance(value, dict):
        return value
    if not depth:
        return "…"
    safe: dict[str, Any] = {}
    for key, item in list(value.items())[:_MOST_ITEMS]:
        name = _safe(key, longest)
        # A field named for a secret holds one, however it looks.
        named = isinstance(item, str) and HIDDEN in redact(f"{key[:200]}={_LIKE_A_SECRET}")
        safe[name] = HIDDEN if named else _safe(item, longest, depth - 1)
    return safe


def _fitting(record: dict[str, Any]) -> bytes:
    """The record as one line of JSON that is not too long."""
    steps = record["steps"]
    line = b""
    for longest, count in _BUDGETS:
        kept = steps[len(steps) - count :] if len(steps) > count else steps
        safe = {**_safe({**record, "steps": []}, longest), "fingerprint": record["fingerprint"]}
        safe["steps"] = [_safe(step, longest) for step in kept]
        if len(kept) < len(steps):
            safe["steps_left_out"] = len(steps) - len(kept)
        line = json.dumps(safe, ensure_ascii=True, allow_nan=False).encode() + b"\n"
        if len(line) <= MAX_RECORD:
            return line
    bare = ("v", "time", "failure_type", "fingerprint")
    smallest = {name: record[name] for name in bare} | {"steps": []}
    smallest["said"] = {"failure_type": record["said"]["failure_type"]}
    return json.dumps(smallest).encode() + b"\n"


def _append(path: str | os.PathLike[str], line: bytes) -> None:
    """One write at the end of the file, so that lines of several writers do not mix."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(handle).st_size
            # A line that was cut by a full disk must not swallow the next one.
            torn = size > 0 and _last_byte(handle, size) != b"\n"
            whole = b"\n" + line if torn else line
            if os.write(handle, whole) != len(whole):
                raise OSError("the disk is full")
        finally:
            os.close(handle)
    except (OSError, ValueError) as error:
        name = os.fspath(path)
        why = getattr(error, "strerror", None) or error
        raise StoreError(f"{name}: the correction cannot be written: {why}") from error
    except TypeError:
        raise misuse("report_misclassification() path", path, "the path of a file") from None


def _last_byte(handle: int, size: int) -> bytes:
    os.lseek(handle, size - 1, os.SEEK_SET)
    return os.read(handle, 1)


# Reading them back --------------------------------------------------------------------------------


def read_corrections(path: str | os.PathLike[str] = DEFAULT_PATH) -> list[Correction]:
    """The corrections of a file, oldest first; lines that are none are left out.

    Raises UsageError if the file cannot be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise UsageError(f"{path}: cannot be read: {why}; give the path of a file") from error
    lines = enumerate(text.split("\n"), 1)
    return [correction for number, line in lines for correction in _corrections(number, line)]


def _corrections(number: int, line: str) -> Iterator[Correction]:
    """The correction of a line, if it holds one."""
    try:
        fields = json.loads(line)
    except ValueError:
        return
    if not isinstance(fields, dict):
        return
    trajectory = _trajectory(fields)
    if trajectory is None:
        return
    said, cause = fields.get("said"), fields.get("cause")
    try:
        correct = FailureType(cast("str", fields.get("failure_type")))
        diagnosed = FailureType(cast("str", cast("Mapping[str, Any]", said)["failure_type"]))
    except (ValueError, TypeError, LookupError):
        return
    yield Correction(
        diagnosed,
        correct,
        known_cause(cause) if isinstance(cause, str) else None,
        str(fields.get("note") or ""),
        trajectory,
        str(fields.get("fingerprint") or ""),
        number,
    )


def _trajectory(fields: Mapping[str, Any]) -> Trajectory | None:
    """The steps and the error of a record; None where they are not what was written."""
    try:
        steps = [from_json(Step, step, "step") for step in fields["steps"]]
        error = fields.get("error")
        error = None if error is None else from_json(ErrorInfo, error, "error")
    except (StoreError, LookupError, TypeError):
        return None
    return Trajectory(steps, error=error, task=fields.get("task"), tools=fields.get("tools") or {})


class CorrectedClassifier:
    """Answers what was corrected where exactly the same fails again; asks another one otherwise.

    path: the corrections file, read once, here; one that is not there holds nothing yet. classifier:
    the other one, `RulesClassifier()` by default. The same is what has the same `fingerprint`; the
    newest correction of it counts. Raises UsageError if the file is there and cannot be read.
    """

    name = "corrected"

    def __init__(
        self,
        path: str | os.PathLike[str] = DEFAULT_PATH,
        classifier: Classifier | None = None,
    ) -> None:
        self._inner = RulesClassifier() if classifier is None else classifier
        known = read_corrections(path) if Path(path).exists() else []
        self._known = {entry.fingerprint: entry for entry in known if entry.fingerprint}

    def classify(self, trajectory: Trajectory, task: Any = None) -> Any:
        """The corrected diagnosis, or what the other classifier answers, which may be awaitable."""
        found = self._known.get(fingerprint(trajectory))
        if found is None:
            return self._inner.classify(trajectory, task)
        told = f"corrected from {found.said} (line {found.line} of the corrections)"
        return Diagnosis(
            found.correct,
            found.cause,
            confidence=1.0,
            evidence=(Evidence("corrected", told),),
            classifier=self.name,
        )
