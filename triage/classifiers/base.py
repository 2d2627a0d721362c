"""What a classifier is, and how its answer is taken."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

from msgspec.structs import replace

from triage.core.asking import TooSlow, ask, deadline_of
from triage.core.diagnosis import Diagnosis, Evidence
from triage.core.errors import UsageError
from triage.core.observers import logger
from triage.core.redaction import redact
from triage.core.steps import Trajectory
from triage.core.taxonomy import FailureType

Answer: TypeAlias = Diagnosis | FailureType


@runtime_checkable
class Classifier(Protocol):
    """Says why an attempt failed.

    `classify` is called in a worker thread with the attempt's trajectory (its `error` is what is
    known of the exception, None when there was none) and the task. It returns a `Diagnosis`, or a
    `FailureType` from which one is made; it may be async, and is then awaited in the event loop. One
    that raises, takes longer than its deadline or returns anything else makes the diagnosis UNKNOWN.

    A classifier may have an attribute `deadline`, in seconds; one that has none is given 30. What it
    consumed goes into `Diagnosis.usage`, and is counted with that of the run.

    It may also have a method `remembered(trajectory, task)`, which a run asks before `classify`, where
    it stands: in the event loop. It answers with the `Diagnosis` that `classify` would give, or with
    None, after which `classify` is asked. It must take microseconds: no I/O, no waiting, and none of
    the functions that a user handed in.
    """

    def classify(self, trajectory: Trajectory, task: Any) -> Answer | Awaitable[Answer]:
        """Why the attempt failed."""
        ...


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
        return replace(answer, classifier=classifier_name)
    if isinstance(answer, FailureType):
        return Diagnosis(answer, classifier=classifier_name)
    try:
        shown = repr(answer)[:80]
    except Exception:  # a broken __repr__ must not hide what was wrong
        shown = "no repr"
    raise TypeError(
        f"classifier {classifier_name or '?'} must answer with a Diagnosis or a FailureType, not "
        f"{type(answer).__name__} ({shown})"
    )


# Consulting a classifier: under its deadline, in a thread if it is sync, and always with an answer.


async def consult(
    classifier: Classifier, trajectory: Trajectory, task: Any, *, seconds_left: float | None = None
) -> Diagnosis:
    """What the classifier says; UNKNOWN, with the reason as evidence, where it fails to say anything.

    seconds_left: until the run's deadline, which cuts the classifier short; None without one. Raises
    nothing but a cancellation.
    """
    name = type(classifier).__name__
    try:
        remembered = getattr(classifier, "remembered", None)
        if remembered is not None:
            answer = remembered(trajectory, task)
            if isinstance(answer, Diagnosis):
                return answer
        answer = await ask(
            classifier.classify,
            trajectory,
            task,
            seconds=deadline_of(classifier),
            seconds_left=seconds_left,
        )
        if isinstance(answer, Diagnosis):
            return answer
        return as_diagnosis(answer, name)
    except TooSlow as slow:
        logger.warning("classifier %s %s", name, slow)
        return _undiagnosed(name, f"{name} {slow}")
    except Exception as error:  # any classifier may fail in any way; it is logged
        logger.exception("classifier %s failed", name)
        return _undiagnosed(name, f"{name} failed with {type(error).__name__}: {error}"[:300])


def check_classifier(field: str, classifier: object) -> None:
    """Raise UsageError for what has no method `classify`, and for a class in place of an object."""
    if isinstance(classifier, type):
        raise UsageError(
            f"{field} must be an object, not the class {classifier.__name__}; "
            f"write {classifier.__name__}()"
        )
    if not callable(getattr(classifier, "classify", None)):
        raise UsageError(
            f"{field} must have a method classify(trajectory, task), and "
            f"{type(classifier).__name__} has none"
        )
    try:
        accepted = inspect.signature(cast("Any", classifier).classify)
    except (TypeError, ValueError):  # one without a signature is believed
        return
    try:
        accepted.bind(None, None)
    except TypeError as error:
        raise UsageError(
            f"{field} must have a method classify(trajectory, task), and that of "
            f"{type(classifier).__name__} takes {accepted}: {error}"
        ) from None


def _undiagnosed(name: str, why: str) -> Diagnosis:
    return Diagnosis(
        FailureType.UNKNOWN,
        confidence=0.0,
        evidence=(Evidence("classifier:failed", redact(why)),),
        technical_details=redact(why),
        classifier=name,
    )
