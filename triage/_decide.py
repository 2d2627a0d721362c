"""What will be done about a failure: limits, open questions, the policy, and what cannot be performed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ._recorded import Question
from ._session import Session
from ._undo import available, calls_kept
from .actions import DELAYED, Abort, Action, Escalate, Resume, Retry, Rollback, Suspend
from .diagnosis import Diagnosis
from .failures import FailureContext
from .limits import limit_of
from .state import AT_LIMIT, RunState
from .taxonomy import UNSAFE, Cause, Severity

if TYPE_CHECKING:
    from .policy import FailurePolicy


class Decision(NamedTuple):
    """What will be done and who says so. diagnosis: why the run ends, where the attempt did for less."""

    action: Action
    by: str
    reason: str = ""
    fatal: bool = False
    diagnosis: Diagnosis | None = None


# A member of an enumeration costs a call wherever it is asked for by name.
_FATAL, _LIMIT = Severity.FATAL, Cause.LIMIT


@cache
def _recommended() -> FailurePolicy:
    """The policy of agents that have none of their own, made once."""
    from .policy import FailurePolicy

    return FailurePolicy.recommended()


async def decide(session: Session, context: FailureContext) -> Decision:
    """What will be done. No I/O of ours: limits and gates are pure, a strategy may be async."""
    diagnosis = context.diagnosis
    limits = session.limits
    if diagnosis.severity is _FATAL:
        return Decision(
            Abort(str(diagnosis)), "severity", "a fatal failure allows nothing", fatal=True
        )
    if context.error is not None and context.error.refused:
        # Whatever a classifier makes of it: a refusal is not gone around.
        reason = "the error says that it must never be tried again"
        return Decision(Abort(f"{diagnosis}; {reason}"), "severity", reason, fatal=True)
    if session.question is not None:
        return _ask(session, session.question)
    state = session.state
    breach: Diagnosis | None = diagnosis
    if diagnosis.cause is not _LIMIT or diagnosis.classifier != "limits":
        breach = limits.exceeded(
            context,
            steps=state.all_steps,
            tool_calls=state.tool_calls,
            per_tool=state.calls_per_tool,
        )
    if breach is not None:
        return await _at_limit(session, context, breach)
    policy = session.config.policy or _recommended()
    action = await policy.dispatch(context)
    breach = limits.allows(action, context)
    if breach is not None:
        return await _at_limit(session, context, breach)
    return _gated(session, context, action, "policy")


def _gated(session: Session, context: FailureContext, action: Action, by: str) -> Decision:
    refused = infeasible(session, action) or unsafe(session, context, action)
    if refused is not None:
        return Decision(Escalate(refused), "gate", refused)
    # All fields in their order: what is made of a tuple costs a third of a call with them.
    return tuple.__new__(Decision, (action, by, "", False, None))


async def _at_limit(session: Session, context: FailureContext, breach: Diagnosis) -> Decision:
    """What is done when a limit is reached: as `Limits.on_limit` says, by default the run ends."""
    reason = f"limit reached: {breach.evidence[0].text}"
    wanted = session.limits.on_limit
    name = limit_of(breach)
    by = f"{AT_LIMIT}{name}"
    if wanted == "suspend":
        field = name.partition(":")[0]
        question = f"{reason} (Limits.{field}). May the run use as much once more?"
        return Decision(Suspend(question, {"limit": name}), by, reason)
    if wanted == "escalate" or session.state.grants.get(name):
        return Decision(Escalate(reason), "limits", reason, diagnosis=breach)
    from .policy import FailurePolicy

    action = await FailurePolicy(default=wanted).dispatch(context._replace(diagnosis=breach))
    # It goes beyond this limit, and beyond no other.
    beyond = session.limits.raised({name: 1})
    other = beyond.allows(action, context._replace(diagnosis=breach, seconds_left=None))
    if other is not None:
        reason = f"{reason}; {action.kind} refused: {other.evidence[0].text}"
        return Decision(Escalate(reason), "limits", reason, diagnosis=breach)
    decision = _gated(session, context, action, by)
    ends = isinstance(decision.action, Escalate | Abort)
    return decision._replace(diagnosis=breach) if ends else decision


def _ask(session: Session, question: Question) -> Decision:
    if session.config.durability.on_in_doubt == "fail" and not question.inner:
        return Decision(Escalate(question.text), "calls", question.text)
    return Decision(Suspend(question.text, {"call": question.key}), "calls", question.text)


def infeasible(session: Session, action: Action) -> str | None:
    """Why an action cannot be performed whoever asks for it; None if it can."""
    if isinstance(action, Retry):  # what most are, and most inject nothing
        return _uninjectable(session, action.inject) if action.inject else None
    match action:
        case Rollback(checkpoint_id=int(at)) if session.state.ledger_at(at) is None:
            return (
                f"Rollback.checkpoint_id {at} is no checkpoint of this run; use what "
                "record_step or update_state returned, or None for the last one"
            )
        case Resume(subgoal=None) if not session.state.open_subgoals:
            return "Resume() needs a subgoal, and none is declared and open"
        case _:
            return None


def unsafe(session: Session, context: FailureContext, action: Action) -> str | None:
    """Why an action would repeat what must not be repeated; None if it would not."""
    state = session.state
    if isinstance(action, DELAYED):
        return _unrepeatable(session, state) if state.effects else None
    if isinstance(action, Rollback):
        chosen = context.checkpoint_id if action.checkpoint_id is None else action.checkpoint_id
        return _undoable(session, state, -1 if chosen is None else chosen)
    return None


def _uninjectable(session: Session, inject: Mapping[str, Any]) -> str | None:
    known = session.config.parameters
    unknown = [] if known is None else [name for name in inject if name not in known]
    if unknown:
        return f"Retry.inject names {', '.join(unknown)}, which the agent function does not take"
    return None


def _unrepeatable(session: Session, state: RunState) -> str | None:
    """A hand-written step with an effect cannot be replayed; a compensator must undo it first."""
    for effect in state.effects:
        if not available(session, effect.key):
            return (
                f"the step {effect.action} had the effect {effect.effect} and was recorded by hand: it "
                "cannot be repeated; make it a @triage.tool, or register a compensator"
            )
    return None


def _undoable(session: Session, state: RunState, position: int) -> str | None:
    """Why what was done after a position, in any attempt, cannot be undone; None if it can."""
    done = [(effect.key, effect.action, effect.effect, effect.seq) for effect in state.effects]
    done += [
        (call.key, call.tool, call.effect, call.done_at)
        for call in state.calls.values()
        if call.outcome == "done" and not call.undone and call.effect in UNSAFE
        if call.done_at is not None
    ]
    kept = calls_kept(state.ledger_at(position), position)
    for key, name, effect, seq in done:
        if seq > position and key not in kept and not available(session, key):
            return (
                f"{name} had the effect {effect} after the checkpoint and has no compensator; give its "
                "tool compensate=…, or register one"
            )
    return None
