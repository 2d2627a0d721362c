"""`diagnose`: why did this exception happen? With no agent, no run and no store."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from triage._capture import capture
from triage._refuse import refuse
from triage.diagnosis import Diagnosis
from triage.failures import ErrorInfo
from triage.steps import Step, Trajectory
from triage.taxonomy import FailureType

from .base import Classifier
from .rules import RulesClassifier, _manifest


def diagnose(
    error: BaseException | ErrorInfo | None,
    steps: Iterable[Step] = (),
    *,
    task: Any = "",
    tools: Mapping[str, Any] | Iterable[str] | None = None,
    classifier: Classifier | None = None,
) -> Diagnosis:
    """Why `error` was raised, or, without one, what is wrong with `steps`.

    error: any exception, or what `capture` made of one. steps: what was done before it, oldest
    first. task: as it would be given to a run. tools: those that exist, name to JSON Schema or
    None, or only the names. classifier: a synchronous one, `RulesClassifier()` by default; what it
    raises is not caught.

    Raises TypeError for an argument of the wrong type, and for a classifier that is asynchronous or
    answers with anything but a `Diagnosis` or `FailureType`.
    """
    if isinstance(error, BaseException):
        error = capture(error)
    elif error is not None and not isinstance(error, ErrorInfo):
        raise refuse("diagnose() error", error, "an exception, an ErrorInfo or None")
    taken = tuple(steps)
    for step in taken:
        if not isinstance(step, Step):
            raise refuse("diagnose() steps item", step, "a Step")
    chosen = RulesClassifier() if classifier is None else classifier
    trajectory = Trajectory(taken, error=error, task=task, tools=_manifest(tools))
    answer = chosen.classify(trajectory, task)
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError(
            f"diagnose() was given the asynchronous classifier {type(chosen).__name__}; "
            "pass a synchronous one, or give this one to an Agent"
        )
    return as_diagnosis(answer, classifier_name(chosen))


def classifier_name(classifier: object) -> str:
    """The classifier's `name` where it has one as text, else the name of its class."""
    name = getattr(classifier, "name", None)
    return name if isinstance(name, str) and name else type(classifier).__name__


def as_diagnosis(answer: object, classifier_name: str) -> Diagnosis:
    """A classifier's answer as a `Diagnosis`: one as it is, a `FailureType` (or its value) with
    defaults.

    `classifier_name` is put into `Diagnosis.classifier` where that is empty. Raises TypeError
    saying what was answered instead.
    """
    if isinstance(answer, Diagnosis):
        if answer.classifier or not classifier_name:
            return answer
        from dataclasses import replace

        return replace(answer, classifier=classifier_name)
    if isinstance(answer, FailureType):
        return Diagnosis(answer, classifier=classifier_name)
    raise TypeError(
        f"classifier {classifier_name or '?'} must answer with a Diagnosis or a FailureType, not "
        f"{type(answer).__name__} ({_short(answer)})"
    )


def _short(value: object) -> str:
    try:
        return repr(value)[:80]
    except Exception:  # noqa: BLE001 - a broken __repr__ must not hide what was wrong
        return "no repr"
