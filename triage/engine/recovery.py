"""The path of a failure: diagnose, decide, perform. Only this module acts on failures."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, NoReturn

from msgspec import Struct
from msgspec.structs import asdict, replace

from triage.classifiers.base import consult
from triage.core import actions, errors, events
from triage.core.capture import capture
from triage.core.diagnosis import Diagnosis, Evidence
from triage.core.escaping import escaped
from triage.core.failures import Attempt, ErrorInfo, FailureContext, words_of
from triage.core.json_values import plain
from triage.core.observers import logger
from triage.core.quoting import quote
from triage.core.redaction import redact
from triage.core.state import AT_LIMIT, Compensation, Ledger, RunState
from triage.core.steps import Trajectory
from triage.core.taxonomy import UNSAFE, Cause, FailureType, Severity
from triage.core.waiting import LONG_WAIT_S
from triage.reports.analysis import report_of
from triage.reports.effects import not_undone, tried
from triage.strategies.layers import warn_of_retries_in
from triage.strategies.limits import delay_of, limit_of
from triage.strategies.policy import FailurePolicy

from . import returning, undeclared
from .answering import Waiting, digest_of, time_of
from .basis import basis_of
from .compensation import available, behind, calls_kept, undo, undo_all, undone_before
from .journal import Session
from .outside import end_inner
from .questions import CALL, Question
from .refusals import refusal_hint, refused_before, standing
from .run import Guidance, Recorder
from .watching import standard_rules


class Failure(Struct, frozen=True):
    """A failed attempt.

    error: the live exception, if any. diagnosis: known from an interrupt or a check; None asks the
    classifier. refused: a check made the diagnosis; it knows that the result is wrong, perhaps not why.
    """

    error: BaseException | None
    diagnosis: Diagnosis | None = None
    refused: bool = False


class Next(Struct, frozen=True):
    """The start of the next attempt.

    base: position it is restored to. keep_state, returns_to, carries: as in `AttemptStarted`. begun: number
    of the attempt it continues; None starts a new one.
    """

    attempt: int
    guidance: Guidance
    kind: str
    base: int | None = None
    keep_state: bool = False
    returns_to: int | None = None
    begun: int | None = None
    carries: bool = False


async def recover(session: Session, run: Recorder, failure: Failure) -> Next:
    """Return the start of the attempt after a failed one, or raise the error that ends the run."""
    # A classifier or a strategy may take minutes: a new owner of the run must find the work so far.
    session.hand_over()
    info = None if failure.error is None else capture(failure.error, session.handled)
    trajectory = run.ended_by(info)
    diagnosis = failure.diagnosis
    if diagnosis is None or failure.refused:
        diagnosis = await diagnose(session, trajectory, refused=diagnosis)
    diagnosis = over_attempts(session.state.history, trajectory, diagnosis)
    if session.question is not None and _is_refused(session, session.question):
        # No person is asked, so the attempt counts as failed.
        diagnosis = replace(diagnosis, classifier="refusals", user_message=_REFUSED)
    if diagnosis.failure_type is FailureType.EXTERNAL_FAULT:
        warn_of_retries_in(session.config.function, session.kwargs.values())
    if session.question is not None:
        # Journalled, so that a new owner asks the same question.
        session.add(events.ApprovalAsked, **asked_of(session.question, session.config.env.time()))
    session.add(events.AttemptFailed, attempt=run.number, error=info, diagnosis=diagnosis)
    session.hand_over()
    session.raise_held()
    context = await context_of(session, run, failure.error, trajectory, diagnosis)
    decision = await decide(session, context)
    choose(session, context, decision)
    session.raise_held()
    return await perform(session, context, decision)


# Diagnose: the cause, and the context for strategies.


async def diagnose(
    session: Session, trajectory: Trajectory, *, refused: Diagnosis | None = None
) -> Diagnosis:
    """Ask the classifier, and count its usage; UNKNOWN if it does not answer.

    refused: the diagnosis of a check. It stands, unless the classifier has a method `after_check`, as
    `HybridClassifier` has, which returns another classifier to ask.
    """
    classifier = session.config.classifier
    if refused is not None:
        after_check = getattr(classifier, "after_check", None)
        if after_check is None:
            return refused
        classifier = after_check(refused)
    if classifier is None:  # rules take milliseconds, so ask them even at the deadline
        diagnosis = await consult(standard_rules(), trajectory, session.task)
    else:
        left = session.seconds_left()
        diagnosis = await consult(classifier, trajectory, session.task, seconds_left=left)
    if diagnosis.usage is not None:
        session.add(events.UsageRecorded, attempt=trajectory.attempt, usage=diagnosis.usage)
    if refused is not None and diagnosis.failure_type is FailureType.UNKNOWN:
        return replace(refused, evidence=(*refused.evidence, *diagnosis.evidence))
    return diagnosis


IDENTICAL = 6
"""Number of identical failed attempts in a row that make a loop."""


def over_attempts(
    history: Sequence[Attempt], trajectory: Trajectory, diagnosis: Diagnosis
) -> Diagnosis:
    """Return LOOP_DETECTED if this attempt and the five before it are identical, else `diagnosis`.

    An external fault is no round of a loop, as waiting cures it. A failure that only a person can cure
    keeps its diagnosis.
    """
    if len(history) < IDENTICAL - 1 or diagnosis.failure_type is FailureType.EXTERNAL_FAULT:
        return diagnosis
    if diagnosis.severity in (Severity.CRITICAL, Severity.FATAL):
        return diagnosis
    failed_with, work = _identity(trajectory.error, diagnosis), _work_of(trajectory)
    for past in history[1 - IDENTICAL :]:
        if (
            # The loop is reported once; later failures keep their own types, for counts by type.
            past.diagnosis.classifier == "attempts"
            or past.failure_type is FailureType.EXTERNAL_FAULT
            or _identity(past.error, past.diagnosis) != failed_with
            or _work_of(past.trajectory) != work
        ):
            return diagnosis
    seen = escaped(redact(str(trajectory.error or diagnosis.technical_details)))[:300]
    text = f"{IDENTICAL} attempts in a row did the same and failed alike: {seen}"
    return Diagnosis(
        FailureType.LOOP_DETECTED,
        cause=Cause.REPETITION,
        confidence=1.0,
        evidence=(Evidence("attempts:repetition", text), *diagnosis.evidence),
        user_message="The work failed in the same way again and again.",
        technical_details=f"{text}; each one by itself: {diagnosis}",
        hint="The last attempts all did the same and failed in the same way. Do it in another way.",
        classifier="attempts",
    )


def _identity(error: ErrorInfo | None, diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return the identity of a failure: its exception, or else its finding."""
    if error is not None:
        return error.type_name, error.message
    return (diagnosis.evidence[0].text if diagnosis.evidence else "",)


def _work_of(trajectory: Trajectory) -> list[list[Any]]:
    return [
        [s.action, s.tool_called, s.tool_input, s.tool_output, s.llm_output, s.error]
        for s in trajectory
    ]


async def context_of(
    session: Session,
    run: Recorder,
    error: BaseException | None,
    trajectory: Trajectory,
    diagnosis: Diagnosis,
) -> FailureContext:
    """Return the context of this failure for a strategy."""
    state = session.state
    env = session.config.env
    last = state.history[-1] if state.history else None
    failed = [one for one in state.history if one.number < run.number]
    before = tuple(sorted([*failed, *session.tries], key=lambda one: one.ended))
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
        attempt_history=before,
        checkpoint_id=position_of(state, diagnosis),
        open_subgoals=state.open_subgoals,
        tools=tuple(trajectory.tools),
        elapsed_s=env.monotonic() - session.started,
        seconds_left=session.seconds_left(),
        draw=env.random(),
        attempt_s=0.0 if last is None else max(0.0, last.ended - last.started),
        outage_seconds=session.limits.outage_seconds,
        longest_wait=session.limits.longest_wait,
        hint_read=run.hint_read,
    )


def position_of(state: RunState, diagnosis: Diagnosis) -> int | None:
    """Return the target of `Rollback()`: the position before the critical step, or the last one without.

    None is the start.
    """
    ledger = state.ledger
    if not ledger.positions and not ledger.updates:
        return None
    if diagnosis.critical_step is not None:
        return ledger.position_before(diagnosis.critical_step)
    return ledger.last_position()


# Decide: limits, open questions, the policy, and infeasible actions.


class Decision(Struct, frozen=True):
    """The chosen action. by: who chose it. diagnosis: why the run ends, if not for the failure itself."""

    action: actions.Action
    by: str
    reason: str = ""
    fatal: bool = False
    diagnosis: Diagnosis | None = None


@cache
def _recommended() -> FailurePolicy:
    """Return the policy of agents without their own, made once."""
    return FailurePolicy.recommended()


async def decide(session: Session, context: FailureContext) -> Decision:
    """Choose the action. Does no I/O: limits and gates are pure, though a strategy may be async."""
    diagnosis = context.diagnosis
    if diagnosis.severity is Severity.FATAL:
        return Decision(
            actions.Abort(str(diagnosis)), "severity", "a fatal failure allows nothing", fatal=True
        )
    if context.error is not None and context.error.refused:
        # A refusal is final, whatever the diagnosis.
        reason = "the error says that it must never be tried again"
        return Decision(actions.Abort(f"{diagnosis}; {reason}"), "severity", reason, fatal=True)
    question = session.question
    if question is not None:
        fails = session.config.durability.on_in_doubt == "fail"
        if fails and question.guesses and not question.inner:
            return Decision(actions.Escalate(question.text), "calls", question.text)
        return await _asked(session, context, question)
    chosen = await within_limits(session, context)
    if isinstance(chosen, Diagnosis):
        return await _at_limit(session, context, chosen)
    return _gated(session, context, chosen, "policy")


async def within_limits(session: Session, context: FailureContext) -> actions.Action | Diagnosis:
    """Return the policy's action, or the breach if a limit is reached or would be exceeded."""
    diagnosis, limits, state = context.diagnosis, session.limits, session.state
    breach: Diagnosis | None = diagnosis
    if diagnosis.cause is not Cause.LIMIT or diagnosis.classifier != "limits":
        breach = limits.exceeded(
            context,
            steps=state.all_steps,
            tool_calls=state.tool_calls,
            per_tool=state.calls_per_tool,
        )
    if breach is not None:
        context.note("limit", limit_of(breach))
        return breach
    action = await _policy_of(session).dispatch(context)
    breach = limits.allows(action, context)
    if breach is not None:
        context.note("limit", limit_of(breach))
    return breach or action


def _policy_of(session: Session) -> FailurePolicy:
    return session.config.policy or _recommended()


_REFUSED = "A step was tried again that a person has refused."


def _is_refused(session: Session, question: Question) -> bool:
    """Whether an earlier answer refuses all calls of a question."""
    return not (question.inner or question.doubt) and bool(refused_before(session, question.calls))


async def _asked(session: Session, context: FailureContext, question: Question) -> Decision:
    """Ask a person; calls refused before are refused again, within a limit."""
    repeats = None if undeclared.carries_turns(session) else undeclared.repeats_changes(session)
    text = question.text if repeats is None else f"{question.text} Mind that {repeats}"
    about = {"call": question.key} if question.of == CALL else {}
    ask = Decision(actions.Suspend(text, about, question.expires_s), "calls", text)
    if not _is_refused(session, question):
        return ask
    refused = refused_before(session, question.calls)
    limits = session.limits
    breach = limits.refused(max(one.times for one in refused), context.diagnosis)
    if breach is not None and limits.on_limit == "suspend":
        return ask
    breach = breach or limits.exceeded(context)
    if breach is not None:
        return await _at_limit(session, context, breach)
    action = actions.Replan(refusal_hint(refused, standing(session)))
    decision = _gated(session, context, action, "calls")
    return replace(decision, reason=decision.reason or "a person has refused this call before")


async def _at_limit(session: Session, context: FailureContext, breach: Diagnosis) -> Decision:
    """Return the action at a limit, by `Limits.on_limit`; by default the run ends."""
    reason = f"limit reached: {breach.evidence[0].text}"
    wanted = session.limits.on_limit
    name = limit_of(breach)
    by = f"{AT_LIMIT}{name}"
    if wanted == "suspend":
        field = name.partition(":")[0]
        question = f"{reason} (Limits.{field}). May the run use as much once more?"
        return Decision(actions.Suspend(question, {"limit": name}), by, reason)
    if wanted == "escalate" or session.state.grants.get(name):
        return Decision(actions.Escalate(reason), "limits", reason, diagnosis=breach)
    # At the run's deadline the strategy still has its own timeout.
    left = context.seconds_left or None
    at_limit = replace(context, diagnosis=breach, seconds_left=left)
    action = await FailurePolicy(default=wanted).dispatch(at_limit)
    # The action may exceed this limit, but no other.
    beyond = session.limits.raised({name: 1})
    other = beyond.allows(action, replace(context, diagnosis=breach, seconds_left=None))
    if other is not None:
        reason = f"{reason}; {action.kind} refused: {other.evidence[0].text}"
        return Decision(actions.Escalate(reason), "limits", reason, diagnosis=breach)
    decision = _gated(session, context, action, by)
    ends = isinstance(decision.action, actions.Escalate | actions.Abort)
    return replace(decision, diagnosis=breach) if ends else decision


def _gated(session: Session, context: FailureContext, action: actions.Action, by: str) -> Decision:
    """Return the action as a decision, unless it is infeasible, unsafe or waits longer than allowed."""
    refused = infeasible(session, action) or unsafe(session, context, action)
    if refused is not None:
        return Decision(actions.Escalate(refused), "gate", refused)
    repeats = (
        undeclared.repeats_changes(session) if isinstance(action, actions.PROCEEDING) else None
    )
    if repeats is not None and not undeclared.carries_turns(session):
        return asks_before(session, repeats)
    if not session.limits.too_long(action, context.diagnosis.retry_after_s):
        return Decision(action, by)
    delay = delay_of(action)
    due = session.config.env.time() + delay
    until = datetime.fromtimestamp(due, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    reason = (
        f"the other side asks to wait {delay:g} s, until {until}, and one wait may take "
        f"{session.limits.longest_wait:g} s (Limits.longest_wait)"
    )
    if not session.config.durable:
        return Decision(actions.Escalate(reason), "limits", reason)
    question = f"{reason[0].upper()}{reason[1:]}. Approve to go on, then or now."
    return Decision(actions.Suspend(question, {"until": due, "wait_s": delay}), "limits", reason)


def infeasible(session: Session, action: actions.Action) -> str | None:
    """Return why an action is infeasible; None if it can be performed."""
    match action:
        case actions.Retry(inject=inject) if inject:
            filled, known = session.config.filled, session.config.parameters
            taken = [name for name in inject if name in filled]
            if taken:
                return f"Retry.inject names {', '.join(taken)}, which the run fills itself"
            unknown = [name for name in inject if known is not None and name not in known]
            if unknown:
                names = ", ".join(unknown)
                return f"Retry.inject names {names}, which the agent function does not take"
        case actions.Rollback(checkpoint_id=int(at)) if session.state.ledger_at(at) is None:
            return (
                f"Rollback.checkpoint_id {at} is no checkpoint of this run; use what "
                "record_step or update_state returned, or None for the last one"
            )
        case actions.Resume(subgoal=None) if not session.state.open_subgoals:
            return "Resume() needs a subgoal, and none is declared and open"
        case _:
            pass
    return None


def unsafe(session: Session, context: FailureContext, action: actions.Action) -> str | None:
    """Return why an action would repeat or undo an effect that it must not; None if it is safe."""
    state = session.state
    if isinstance(action, actions.Rollback):
        chosen = context.checkpoint_id if action.checkpoint_id is None else action.checkpoint_id
        return _undoable(session, state, -1 if chosen is None else chosen)
    if not isinstance(action, actions.DELAYED):
        return None
    for effect in state.effects:
        if not available(session, effect.key):
            return (
                f"the step {effect.action} had the effect {effect.effect} and was recorded by hand: it "
                "cannot be repeated; make it a @triage.tool, or register a compensator"
            )
    if not session.has_calls or not isinstance(action, actions.Retry):
        return None
    point = returning.point_of_return(state, action)
    if isinstance(point, returning.Impasse):
        return point.why
    if returning.repeats_itself(state) and not returning.asks_anew(state, point):
        return (
            "the last attempt was given all its calls from the record and failed with the same words; "
            "another one would do the same"
        )
    return None


def asks_before(session: Session, repeats: str) -> Decision:
    """Ask whether to call the function again; escalate if no store keeps the run for the answer."""
    if session.config.durable:
        return Decision(actions.Suspend(f"{repeats}. {undeclared.HOW_TO_GO_ON}"), "gate", repeats)
    return Decision(actions.Escalate(repeats), "gate", repeats)


def _undoable(session: Session, state: RunState, position: int) -> str | None:
    """Return why the run cannot go back to a position; None if it can.

    An effect before the position that has been undone since, or an effect after it that has no compensator,
    prevents that.
    """
    undone = undone_before(state, position)
    if undone is not None:
        return (
            f"checkpoint {position} does not hold any more: {undone} was done before it, and has been "
            "undone since"
        )
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


def asked_of(question: Question, now: float) -> dict[str, Any]:
    """Return a question as the fields of an `ApprovalAsked`. now: in seconds since the epoch."""
    if question.of != CALL:
        return {
            "kind": question.of,
            "subject": question.key,
            "question": question.text,
            "payload": question.arguments,
            "expires": None if question.expires_s is None else now + question.expires_s,
        }
    about = {
        "tool": question.tool,
        "effect": question.effect,
        "arguments": question.arguments,
        "doubt": question.doubt,
    }
    if question.kind:
        about |= {"kind": question.kind, "editable": list(question.editable)}
    if question.inner:
        about |= {"inner": question.inner, "asks": question.asks}
    if question.calls:
        about["calls"] = [asdict(each) for each in question.calls]
    if question.parts:
        about["parts"] = list(question.parts)
    return {
        "kind": CALL,
        "subject": question.key,
        "question": question.text,
        "payload": about,
    }


def choose(session: Session, context: FailureContext, decision: Decision) -> None:
    """Journal the chosen action."""
    session.add(
        events.ActionChosen,
        attempt=context.attempt,
        action=kept(decision.action),
        by=decision.by,
        reason=decision.reason,
        basis=basis_of(session, _policy_of(session), context, decision.action),
    )


def kept(action: actions.Action) -> actions.Action:
    """Return the action for the journal, with copies of its values."""
    if isinstance(action, actions.Retry) and action.inject:
        return replace(action, inject=plain(dict(action.inject)))
    if isinstance(action, actions.Suspend) and action.metadata:
        return replace(action, metadata=plain(dict(action.metadata)))
    return action


# Perform: the next attempt, or the end.


async def perform(session: Session, context: FailureContext, decision: Decision) -> Next:
    """Carry out the action: return the start of the next attempt, or raise the error that ends the run."""
    action = decision.action
    if decision.diagnosis is not None:
        context = replace(context, diagnosis=decision.diagnosis)
    if isinstance(action, actions.PROCEEDING):
        return await _proceed(session, context, action)
    if isinstance(action, actions.Suspend):
        return await _suspend(session, context, action)
    if decision.fatal:
        return await _stop(session, context, errors.TriageFatalError, action.reason)
    kind = (
        errors.TriageAbortError
        if isinstance(action, actions.Abort)
        else errors.TriageEscalationError
    )
    return await _stop(session, context, kind, action.reason, compensate=action.compensate)


async def _proceed(session: Session, context: FailureContext, action: actions.Proceed) -> Next:
    """Flush, compensate and wait; return the start of the next attempt."""
    if session.keeper is not None:
        try:
            await session.flush_attempt()
        except Exception as error:
            if not session.does_without_store(error):
                if context.exception is None:
                    raise
                error.add_note(f"raised while recovering from: {context.error}")
                raise error from context.exception
    following = await _plan_next(session, context, action)
    told = following.guidance
    if told.hint is not None:
        told = replace(told, hint=escaped(told.hint, lines=True))
        following = replace(following, guidance=told)
    if session.undo is not None and not isinstance(action, actions.Resume):
        # Undo what the next attempt would otherwise repeat, newest first.
        for entry in behind(session.state, following.base):
            # A retry reuses recorded calls, and a new plan checks them when it makes them again; for both,
            # only steps recorded by hand have to be undone.
            if not isinstance(action, actions.Rollback) and not entry.key.startswith("step@"):
                continue
            failed = await undo(session, context.attempt, entry)
            if failed is not None:
                reason = _compensation_failed(session, entry, failed)
                await _stop(session, context, errors.TriageEscalationError, reason)
    delay = delay_of(action)
    if delay > LONG_WAIT_S:
        _log_wait(session, context, action, delay)
    if delay > 0:
        await session.config.env.sleep(delay)
    return following


def _log_wait(
    session: Session, context: FailureContext, action: actions.Proceed, delay: float
) -> None:
    """Log the reason for the wait before the next attempt, its bound, and how to change it."""
    diagnosis, limits = context.diagnosis, session.limits
    cause = f" ({diagnosis.cause})" if diagnosis.cause else ""
    failed = f"{diagnosis.failure_type}{cause}"
    error = context.error
    said = "" if error is None else f", {error.type_name} {quote(words_of(error))}"
    why = f"attempt {context.attempt} ended with {failed}{said}, and is followed by a {action.kind}"
    if diagnosis.retry_after_s is not None:
        why += f"; the other side asks to wait {diagnosis.retry_after_s:.3g} s"
    if isinstance(action, actions.Retry) and action.outage:
        most = limits.outage_seconds
        ends = "without end" if most is None else f"at most {most:g} s for one outage"
        remedy = "Agent(limits=Limits(outage_seconds=…)), or a policy that does not wait"
    else:
        most = limits.attempts
        ends = "without end" if most is None else f"at most {most} attempts in all"
        remedy = "Agent(policy=…), or Agent(limits=Limits(attempts=…, slept_seconds=…))"
    if context.seconds_left is not None:
        ends += f", and {max(0.0, context.seconds_left):.3g} s to the deadline"
    session.waits.say(f"retry {failed}", session.named, delay, why, ends, remedy)


async def _plan_next(session: Session, context: FailureContext, action: actions.Proceed) -> Next:
    """Return the start of the attempt after this action; a conversation may have to carry its turns."""
    following = await _next_by(session, context, action)
    if not undeclared.carries_turns(session) or undeclared.repeats_changes(session) is None:
        undeclared.log_called_again(session)
        return following
    logger.info(
        "%s: the conversation goes on with its earlier turns, as calls that no tool has recorded would "
        "be made again otherwise", session.named,
    )  # fmt: skip
    told = following.guidance
    hint = (
        undeclared.approved_again(session) or told.hint or _BROKE_OFF.format(_what_failed(context))
    )
    return replace(
        following,
        guidance=replace(told, hint=hint),
        returns_to=returning.START,
        begun=None,
        carries=True,
    )


async def _next_by(session: Session, context: FailureContext, action: actions.Proceed) -> Next:
    diagnosis, state = context.diagnosis, session.state
    if (
        isinstance(action, actions.Retry)
        and action == actions.Retry()
        and returning.was_stopped(state.history[-1])
    ):
        return await _continued(session, context, action)
    told = Guidance(diagnosis=diagnosis, action=action)
    following = Next(context.attempt + 1, told, action.kind)
    match action:
        case actions.Retry(hint=hint, inject=inject):
            told = replace(told, hint=hint, inject=inject or None)
            return replace(following, guidance=told, returns_to=_returns_to(state, action))
        case actions.Replan(hint=hint):
            told = replace(told, hint=hint or diagnosis.hint or _REPLAN_HINT)
            return replace(following, guidance=told, returns_to=returning.START)
        case actions.Resume(subgoal=subgoal, hint=hint):
            subgoal = subgoal or state.open_subgoals[0]
            told = replace(told, hint=hint, subgoal=subgoal, state=context.state)
            return replace(
                following, guidance=told, keep_state=True, returns_to=_returns_to(state, action)
            )
        case actions.Rollback(checkpoint_id=checkpoint, hint=hint):
            base = checkpoint if checkpoint is not None else context.checkpoint_id
            ledger = None if base is None else state.ledger_at(base)
            kept_part = Ledger() if ledger is None or base is None else ledger.cut(base)
            rolled_back = _ROLLBACK_HINT.format(len(kept_part.steps))
            hint = hint or f"{rolled_back} {diagnosis.hint or ''}".strip()
            told = replace(told, hint=hint, state=plain(kept_part.state))
            returns_to = _returns_to(state, replace(action, checkpoint_id=base))
            return replace(following, guidance=told, base=base, returns_to=returns_to)


async def _continued(session: Session, context: FailureContext, action: actions.Retry) -> Next:
    """Continue an attempt that a question stopped, with the guidance and state it began with.

    It has not failed, so both stay in force.
    """
    state = session.state
    attempts = (
        event for event in reversed(session.events) if isinstance(event, events.AttemptStarted)
    )
    started = next(event for event in attempts if event.attempt == context.attempt)
    begun = begun_as(state.history)
    diagnosis = context.diagnosis
    led_here: actions.Action = action
    if begun > 1:
        before = state.history[begun - 2]
        diagnosis, led_here = before.diagnosis, before.action or action
    values: Mapping[str, Any] | None = state.state if started.keep_state else None
    if started.base is not None and (ledger := state.ledger_at(started.base)) is not None:
        values = ledger.cut(started.base).state
    told = Guidance(
        hint=started.hint,
        subgoal=started.subgoal,
        state=None if values is None else plain(values),
        diagnosis=diagnosis,
        action=led_here,
        inject=getattr(led_here, "inject", None) or None,
    )
    return Next(
        context.attempt + 1,
        told,
        led_here.kind,
        started.base,
        keep_state=started.keep_state,
        returns_to=_returns_to(state, action),
        begun=begun,
    )


def begun_as(history: Sequence[Attempt]) -> int:
    """Return the number of the attempt that the next one continues, if only questions stopped it; else the
    next one's own.
    """
    failed = len(history)
    while (
        failed
        and returning.was_stopped(history[failed - 1])
        and history[failed - 1].action == actions.Retry()
    ):
        failed -= 1
    return failed + 1


def _returns_to(state: RunState, action: actions.Proceed) -> int:
    """Return the position before which the next attempt reuses recorded calls."""
    point = returning.point_of_return(state, action)
    # At an impasse only a person can have chosen to go on: reuse everything recorded.
    return point.at if isinstance(point, returning.Point) else state.last_seq


_BROKE_OFF = "The work broke off here{} Go on from here: what has a result is not to be done again."


def _what_failed(context: FailureContext) -> str:
    """Return the last failure as the end of a sentence, quoted."""
    error = context.error
    return "." if error is None else f", with {error.type_name}: {quote(words_of(error))}."


_REPLAN_HINT = "The approach so far has failed. Make a new plan and do not repeat the last one."
_ROLLBACK_HINT = (
    "The work was rolled back: the first {} recorded steps and their state are kept, what came after "
    "is undone. Go on from there in another way."
)
STATUSES: dict[str, type[errors.TriageError]] = {
    "escalated": errors.TriageEscalationError,
    "aborted": errors.TriageAbortError,
    "fatal": errors.TriageFatalError,
}
"""Error raised for each status of a failed run."""


async def _stop(
    session: Session,
    context: FailureContext,
    kind: type[errors.TriageError],
    reason: str | None,
    *,
    compensate: bool = False,
) -> NoReturn:
    """End the run: journal and store its end, and raise `kind` from the original error.

    compensate: run all compensators first. Notes and the report name the effects that stay.
    """
    status = next(name for name, raised in STATUSES.items() if raised is kind)
    if compensate:
        await undo_all(session, context.attempt)
    session.add(events.RunFinished, status=status, error=context.error)
    session.count_in_parent()
    for adapter, leave in (session.at_failure or {}).items():
        try:
            await leave()
        except Exception as late:
            logger.warning(
                "run %s: %s was not left as it should be: %r", session.run_id, adapter, late
            )
    error = kind(_message(context, status, reason), context)
    error.reporter = report_of
    tell_not_undone(session, error, context.exception)
    await session.flush_beside(error)
    await end_inner(session)
    raise error from context.exception


def _compensation_failed(session: Session, entry: Compensation, failed: Exception) -> str:
    """Return why a rollback ends a run: the failed compensator, its tries, and the effects that stay."""
    now = next(one for one in session.state.compensations if one.seq == entry.seq)
    stays = "; ".join(not_undone(session.state))
    kind = type(failed).__name__
    return f"the compensator {entry.name} failed with {kind} after {tried(now)}; {stays}"


def tell_not_undone(
    session: Session, error: errors.TriageError, original: BaseException | None = None
) -> None:
    """Note the effects that could not be undone on the error that ends a run, and on the original one."""
    error.not_undone = not_undone(session.state)
    for noted in (error, original):
        if noted is not None:
            for note in error.not_undone:
                noted.add_note(escaped(note))


def _message(context: FailureContext, status: str, reason: str | None) -> str:
    diagnosis = str(context.diagnosis)
    because = f"; {context.error}" if context.error is not None else ""
    if not because and context.diagnosis.evidence:
        # Without an exception, prefer evidence of the failure itself to evidence of a limit.
        seen = context.diagnosis.evidence
        own = next((item for item in seen if not item.rule.startswith("limit:")), seen[0])
        because = f"; {own.text}"
    why = f": {reason}" if reason and reason != diagnosis else ""
    text = f"run {context.run_id[:8]} {status} after attempt {context.attempt}: {diagnosis}"
    return escaped(redact(f"{text}{why}{because}"[:2000]))


async def _suspend(session: Session, context: FailureContext, action: actions.Suspend) -> NoReturn:
    """Stop until a person answers: journal the question, and raise the error with the token."""
    # The token names its run, so that any process with the store can find it.
    token = f"{session.run_id}~{session.config.env.new_token()}"
    question = action.question or f"{context.diagnosis}; how should the run go on?"
    question = escaped(redact(question), lines=True)
    asked = session.question
    expires = None
    if action.expires_s is not None:
        try:
            expires = await time_of(session.config) + action.expires_s
        except Exception as silent:
            logger.warning("run %s: its store gives no time: %r", session.run_id, silent)
            expires = session.config.env.time() + action.expires_s
    session.add(
        events.RunSuspended,
        attempt=context.attempt,
        token_digest=digest_of(token),
        question=question,
        metadata=plain(dict(action.metadata)),
        call=None if asked is None or asked.of != CALL else asked.key,
        doubt=asked is not None and asked.doubt,
        expires=expires,
    )
    error = errors.TriageSuspendedError(
        f"run {session.run_id[:8]} is suspended: {question}; answer with "
        "await agent.resume(error.token, triage.approve())"
        + (f", or: triage approve {shlex.quote(session.run_id)}" if session.config.durable else ""),
        context,
        token=token,
        question=question,
    )
    error.reporter = report_of
    since = session.config.env.monotonic()
    session.config.suspensions[digest_of(token)] = Waiting(session, context, since)
    await session.flush_beside(error)
    if session.lost or session.left_behind:
        # Another process asks the question, with its own token.
        del session.config.suspensions[digest_of(token)]
    if session.lost:
        await session.flush()
    raise error from context.exception
