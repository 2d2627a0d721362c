"""Ask a classifier from code that is not asynchronous: one that is asynchronous is waited for."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from anyio.from_thread import BlockingPortal, start_blocking_portal

from triage.core.asking import deadline_of
from triage.core.diagnosis import Diagnosis
from triage.core.environment import in_event_loop
from triage.core.errors import UsageError
from triage.core.steps import Trajectory

from .base import Answer, Classifier, as_diagnosis, check_classifier, classifier_name


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


class BlockingClassifier:
    """A classifier whose `classify` may be async, with one that is not: for `triage.diagnose`.

    Each call runs in an event loop of its own. An `Agent` takes async classifiers as they are and
    needs none of this. Raises UsageError for what is no classifier, and in `classify` where an event
    loop is running in this thread: await the other one's `classify` there.
    """

    def __init__(self, classifier: Classifier) -> None:
        check_classifier("BlockingClassifier.classifier", classifier)
        self._classifier = classifier
        self.name: str = getattr(classifier, "name", type(classifier).__name__)

    @property
    def deadline(self) -> float:
        """Seconds, as the other one has them."""
        return deadline_of(self._classifier)

    def classify(self, trajectory: Trajectory, task: Any = None) -> Answer:
        """What the other one answers. Raises what it raises."""
        if in_event_loop():
            raise UsageError(
                "BlockingClassifier cannot be used in async code; await the classify() of the classifier "
                "it was made of"
            )
        with Asker() as asker:
            return asker.answer(self._classifier, trajectory, task)
