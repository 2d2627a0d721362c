"""What a classifier is, and how its answer is taken."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol, TypeAlias, runtime_checkable

from triage.diagnosis import Diagnosis
from triage.steps import Trajectory
from triage.taxonomy import FailureType

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
