"""Why an attempt failed: what the strategies are told, and the classifier that says it."""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING

from ._plain import plain
from ._run import Run
from ._session import Session
from ._worker import in_worker
from .diagnosis import Diagnosis, Evidence
from .failures import FailureContext
from .observers import logger
from .redact import redact
from .state import RunState
from .steps import Trajectory
from .taxonomy import FailureType

if TYPE_CHECKING:
    from .classifiers.base import Classifier

CLASSIFIER_SECONDS = 30.0
"""Deadline of a classifier that names none of its own as `deadline`; counted from when it starts."""


async def diagnose(session: Session, trajectory: Trajectory) -> Diagnosis:
    """Ask the classifier, in its thread and under its deadline; UNKNOWN if it does not answer."""
    classifier = session.config.classifier or _rules()
    name = type(classifier).__name__
    seconds = getattr(classifier, "deadline", CLASSIFIER_SECONDS)
    try:
        if inspect.iscoroutinefunction(classifier.classify):
            import anyio

            with anyio.fail_after(seconds):
                answer = await classifier.classify(trajectory, session.task)
        else:
            answer = await in_worker(classifier.classify, trajectory, session.task, seconds=seconds)
            if inspect.isawaitable(answer):
                answer = await answer
        if isinstance(answer, Diagnosis):
            return answer
        from .classifiers import as_diagnosis

        return as_diagnosis(answer, name)
    except TimeoutError:
        return _undiagnosed(name, f"{name} took longer than {seconds} s")
    except Exception as error:  # noqa: BLE001 - any classifier may fail in any way; it is logged
        logger.exception("classifier %s failed", name)
        return _undiagnosed(name, f"{name} failed with {type(error).__name__}: {error}"[:300])


@cache
def _rules() -> Classifier:
    """The classifier of agents that have none of their own; it has no state, so one serves all."""
    from .classifiers import RulesClassifier

    return RulesClassifier()


def _undiagnosed(name: str, why: str) -> Diagnosis:
    return Diagnosis(
        FailureType.UNKNOWN,
        confidence=0.0,
        evidence=(Evidence("classifier:failed", redact(why)),),
        technical_details=redact(why),
        classifier=name,
    )


def context_of(
    session: Session,
    run: Run,
    error: BaseException | None,
    trajectory: Trajectory,
    diagnosis: Diagnosis,
) -> FailureContext:
    """What a strategy is told about this failure."""
    state = session.state
    position = _position(state, diagnosis)
    return FailureContext(
        run_id=session.run_id,
        task=session.task,
        attempt=run.number,
        diagnosis=diagnosis,
        error=trajectory.error,
        exception=error,
        trajectory=trajectory,
        state=plain(state.state),
        usage=state.usage,
        attempt_history=tuple(state.history[:-1]),
        checkpoint_id=position,
        open_subgoals=state.open_subgoals,
        tools=tuple(trajectory.tools),
        elapsed_s=session.config.env.monotonic() - session.started,
        seconds_left=session.seconds_left(),
        draw=session.config.env.random(),
    )


def _position(state: RunState, diagnosis: Diagnosis) -> int | None:
    """Where `Rollback()` goes: before the critical step, to the last position without one.

    None is the start.
    """
    ledger = state.ledger
    if diagnosis.critical_step is not None:
        return ledger.position_before(diagnosis.critical_step)
    return ledger.last_position()
