"""`BlockingClassifier`: an async classifier for code that is not."""

from __future__ import annotations

from typing import Any

from triage.errors import UsageError
from triage.steps import Trajectory

from ._ask import Asker
from ._consult import check_classifier, deadline_of
from .base import Answer, Classifier


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
        import anyio

        try:
            anyio.get_cancelled_exc_class()
        except RuntimeError:  # no event loop: that is where this belongs
            with Asker() as asker:
                return asker.answer(self._classifier, trajectory, task)
        raise UsageError(
            "BlockingClassifier cannot be used in async code; await the classify() of the classifier "
            "it was made of"
        )
