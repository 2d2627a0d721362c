"""Asking a classifier about a recording, with no run around it: one that is asynchronous is waited for."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from .classifiers import Classifier, as_diagnosis
from .classifiers.diagnose import classifier_name
from .diagnosis import Diagnosis
from .steps import Trajectory

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal


class Asker:
    """Asks from synchronous code. An event loop runs in a thread of its own, once one is needed."""

    def __init__(self) -> None:
        self._portal: BlockingPortal | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def wait(self, awaitable: Awaitable[Any]) -> Any:
        """The outcome of an awaitable; raises what it raises."""
        if self._portal is None:
            from anyio.from_thread import start_blocking_portal

            self._portal = self._stack.enter_context(start_blocking_portal())
        return self._portal.call(_waited, awaitable)

    def ask(self, classifier: Classifier, trajectory: Trajectory) -> Diagnosis:
        """What the classifier says; raises what it raises, and TypeError for an answer that is none."""
        answer: object = classifier.classify(trajectory, trajectory.task)
        if inspect.isawaitable(answer):
            answer = self.wait(answer)
        return as_diagnosis(answer, classifier_name(classifier))


async def _waited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
