"""Why an attempt failed: what the strategies are told, and the classifier that says it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from ._plain import plain
from ._run import Run
from ._session import Session
from .diagnosis import Diagnosis
from .events import UsageRecorded
from .failures import FailureContext
from .state import RunState
from .steps import Trajectory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .classifiers.base import Classifier


async def diagnose(session: Session, trajectory: Trajectory) -> Diagnosis:
    """Ask the classifier, and count what it consumed; UNKNOWN if it does not answer."""
    classifier = session.config.classifier or _rules()
    diagnosis = await _consult()(classifier, trajectory, session.task)
    if diagnosis.usage is not None:
        session.add(UsageRecorded, trajectory.attempt, diagnosis.usage)
    return diagnosis


@cache
def _consult() -> Callable[[Classifier, Trajectory, Any], Awaitable[Diagnosis]]:
    """Imported with the first failure, which most processes never see."""
    from .classifiers._consult import consult

    return consult


@cache
def _rules() -> Classifier:
    """The classifier of agents that have none of their own; it has no state, so one serves all."""
    from .classifiers import RulesClassifier

    return RulesClassifier()


def context_of(
    session: Session,
    run: Run,
    error: BaseException | None,
    trajectory: Trajectory,
    diagnosis: Diagnosis,
) -> FailureContext:
    """What a strategy is told about this failure."""
    state = session.state
    env = session.config.env
    # All fields in their order: what is made of a tuple costs a third of a call with them.
    return _made(FailureContext, (
        session.run_id,
        session.task,
        run.number,
        diagnosis,
        trajectory.error,
        error,
        trajectory,
        plain(state.state) if state.state else {},
        state.usage,
        tuple(state.history[:-1]),
        _position(state, diagnosis),
        state.open_subgoals,
        tuple(trajectory.tools),
        env.monotonic() - session.started,
        session.seconds_left(),
        env.random(),
    ))  # fmt: skip


_made = tuple.__new__


def _position(state: RunState, diagnosis: Diagnosis) -> int | None:
    """Where `Rollback()` goes: before the critical step, to the last position without one.

    None is the start.
    """
    ledger = state.ledger
    if not ledger.positions and not ledger.updates:
        return None
    if diagnosis.critical_step is not None:
        return ledger.position_before(diagnosis.critical_step)
    return ledger.last_position()
