"""The inputs of a decision, journalled so that another policy can be tried on them later."""

from __future__ import annotations

from triage.core.actions import Action
from triage.core.events import ActionChosen, Basis, Try
from triage.core.failures import Attempt, FailureContext
from triage.core.json_values import digest, plain
from triage.strategies.base import shown_strategy
from triage.strategies.limits import delay_of
from triage.strategies.policy import FailurePolicy

from .journal import Session

__all__ = ["basis_of"]


def basis_of(
    session: Session, policy: FailurePolicy, context: FailureContext, action: Action
) -> Basis:
    """Return the inputs of the choice of this action, from the notes of the policy and its strategies."""
    text = f"{shown_strategy(policy)}\n{session.limits!r}"
    known = digest("", text)
    is_recorded = any(
        isinstance(event, ActionChosen) and event.basis is not None and event.basis.policy == known
        for event in session.events
    )
    notes = list(context.notes)
    answered = [value[0] for what, value in notes if what == "strategy" and value[1] == action.kind]
    keys = [value for what, value in notes if what == "key"]
    chances = [value for what, value in notes if what == "probability"]
    since, session.tries_told = session.tries_told, len(session.tries)
    return Basis(
        policy=known,
        text="" if is_recorded else text,
        key=keys[-1] if keys else "",
        strategy=answered[-1] if answered else "",
        draw=context.draw,
        probability=float(chances[-1]) if chances else None,
        saw=tuple([what, plain(value)] for what, value in notes),
        tries=tuple(map(_try, session.tries[since:])),
        elapsed_s=context.elapsed_s,
        seconds_left=context.seconds_left,
        hint_read=context.hint_read,
        tools=context.tools,
    )


def _try(one: Attempt) -> Try:
    diagnosis, action = one.diagnosis, one.action
    return Try(
        diagnosis.failure_type,
        diagnosis.cause,
        "" if diagnosis.severity is None else diagnosis.severity,
        0.0 if action is None else delay_of(action),
        one.started,
        one.ended,
    )
