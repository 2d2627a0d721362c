"""Consulting a classifier: under its deadline, in a thread if it is sync, and always with an answer."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any

from triage._worker import in_worker
from triage.diagnosis import Diagnosis, Evidence
from triage.errors import UsageError
from triage.observers import logger
from triage.redact import redact
from triage.steps import Trajectory
from triage.taxonomy import FailureType

from .base import Classifier
from .diagnose import as_diagnosis

CLASSIFIER_SECONDS = 30.0
"""Deadline of a classifier that names none of its own as `deadline`; counted from when it starts."""


async def consult(classifier: Classifier, trajectory: Trajectory, task: Any) -> Diagnosis:
    """What the classifier says; UNKNOWN, with the reason as evidence, where it fails to say anything.

    Raises nothing but a cancellation.
    """
    name = type(classifier).__name__
    seconds = deadline_of(classifier)
    try:
        answer: Any
        remembered = getattr(classifier, "remembered", None)
        if remembered is not None:
            answer = remembered(trajectory, task)
            if isinstance(answer, Diagnosis):
                return answer
        # What is async without its code saying so gives its awaitable in a thread: no harm is done.
        code = getattr(classifier.classify, "__code__", None)
        if code is not None and code.co_flags & inspect.CO_COROUTINE:
            answer = classifier.classify(trajectory, task)
        else:
            answer = await in_worker(classifier.classify, trajectory, task, seconds=seconds)
        if not isinstance(answer, Diagnosis) and inspect.isawaitable(answer):
            answer = await _within(seconds, answer)
        if isinstance(answer, Diagnosis):
            return answer
        return as_diagnosis(answer, name)
    except TimeoutError:
        return _undiagnosed(name, f"{name} took longer than {seconds} s")
    except Exception as error:  # noqa: BLE001 - any classifier may fail in any way; it is logged
        logger.exception("classifier %s failed", name)
        return _undiagnosed(name, f"{name} failed with {type(error).__name__}: {error}"[:300])


def deadline_of(classifier: object) -> float:
    """The seconds a classifier has: its own `deadline`, 30 where it has none."""
    seconds: float = getattr(classifier, "deadline", CLASSIFIER_SECONDS)
    return seconds


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


async def _within(seconds: float, answer: Awaitable[Any]) -> Any:
    import anyio

    with anyio.fail_after(seconds):
        return await answer


def _undiagnosed(name: str, why: str) -> Diagnosis:
    return Diagnosis(
        FailureType.UNKNOWN,
        confidence=0.0,
        evidence=(Evidence("classifier:failed", redact(why)),),
        technical_details=redact(why),
        classifier=name,
    )
