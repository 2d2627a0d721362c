"""Asking a classifier from code that is not asynchronous: one that is asynchronous is waited for."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from triage.diagnosis import Diagnosis
from triage.steps import Trajectory

from .base import Answer, Classifier
from .diagnose import as_diagnosis, classifier_name

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal


class Asker:
    """Waits for what is asynchronous. An event loop runs in a thread of its own, once one is needed.

    All that is asked of one asker is awaited in the same loop. What runs when it is left by an
    exception, such as the user's interrupt, is cancelled.
    """

    def __init__(self) -> None:
        self._portal: BlockingPortal | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def wait(self, awaitable: Awaitable[Any]) -> Any:
        """The outcome of an awaitable; raises what it raises."""
        if self._portal is None:
            from anyio.from_thread import start_blocking_portal

            self._portal = self._stack.enter_context(start_blocking_portal())
        return self._portal.call(_waited, awaitable)

    def answer(self, classifier: Classifier, trajectory: Trajectory, task: Any) -> Answer:
        """What the classifier answers; raises what it raises."""
        answer = classifier.classify(trajectory, task)
        return self.wait(answer) if inspect.isawaitable(answer) else answer

    def ask(self, classifier: Classifier, trajectory: Trajectory) -> Diagnosis:
        """The answer as a diagnosis; raises TypeError for one that is none."""
        answer = self.answer(classifier, trajectory, trajectory.task)
        return as_diagnosis(answer, classifier_name(classifier))


async def _waited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
