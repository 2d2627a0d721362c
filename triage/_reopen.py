"""A run that was left in its store: taken over, read, and gone on with from where its journal ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import anyio

from ._attempts import Next, is_milestone
from ._decide import Decision, decide, unsafe
from ._diagnose import context_of
from ._function import Function
from ._guidance import NO_GUIDANCE, Guidance
from ._loop import go_on, let_go, unbroken
from ._plain import plain
from ._questions import question_at
from ._recover import kept, perform
from ._run import Run
from ._session import TASK, Config, Session
from .actions import Escalate, Suspend
from .checks import validate_result
from .diagnosis import Diagnosis, Evidence
from .errors import (
    ResultLost,
    RunBusy,
    RunOver,
    TriageAbortError,
    TriageError,
    TriageEscalationError,
    TriageFatalError,
    UnknownRun,
    UsageError,
)
from .events import (
    ActionChosen,
    AttemptFailed,
    AttemptStarted,
    Event,
    RunFinished,
    RunRecovered,
    RunResumed,
    RunStarted,
    RunSuspended,
)
from .failures import FailureContext
from .observers import logger
from .reports import report_of
from .taxonomy import Cause, FailureType, Severity

UNSET: Any = object()


class Recovered(NamedTuple):
    """How a run ended that `recover_all` has taken over. error: None where it has a result."""

    run_id: str
    result: Any
    error: Exception | None


async def reopen(
    config: Config,
    function: Function,
    run_id: str,
    kwargs: Mapping[str, Any],
    *,
    task: Any = UNSET,
    at_once: bool = True,
    force: bool = False,
) -> Any:
    """Take a run over and go on with it: its result, as `run` gives it.

    at_once: although its owner's lease may live. force: although it is a dead letter. Raises as
    `Agent.recover` says.
    """
    events = await config.store.read(run_id)
    if not events:
        raise UnknownRun(f"the store knows no run {run_id}")
    if isinstance(events[-1], RunFinished):
        return outcome(config, events)
    check_waiting(events, force=force)
    try:
        session = opened(config, function, events, kwargs, task)
    except UsageError:
        if not at_once:  # one that lives is left alone, whatever it would need
            claim = await config.store.claim(run_id, lease_s=config.durability.lease_s)
            await let_go(config.store, run_id, claim.epoch)
        raise
    try:
        cancelled = await unbroken(
            own(session, events, at_once=at_once, asks_anew=force, force=force)
        )
    except RunOver:  # it has ended meanwhile
        return outcome(config, await config.store.read(run_id))
    return await go_on(session, function, taken_over(session, cancelled))


def check_waiting(events: Sequence[Event], *, force: bool) -> None:
    """Raise UsageError for a run that waits for an answer, unless it is to ask anew."""
    asked = next(filter(is_milestone, reversed(events)), None)
    if isinstance(asked, RunSuspended) and not force:
        raise UsageError(
            f"run {asked.run_id} waits for an answer; give it with resume(token, answer), or have it ask "
            "anew, with a new token, by recover(run_id, force=True)"
        )


async def own(
    session: Session,
    events: Sequence[Event],
    *,
    at_once: bool,
    asks_anew: bool = False,
    force: bool = False,
) -> None:
    """Become the run's owner, with all that the one before has written.

    at_once, force: as for `reopen`. asks_anew: although it waits for an answer.
    """
    config, run_id = session.config, session.run_id
    lease_s = config.durability.lease_s
    claim = await config.store.claim(run_id, lease_s=lease_s, force=at_once, revive=force)
    try:
        more = await config.store.read(run_id, after=len(events) - 1)
        if more:
            check_waiting(more, force=asks_anew)
            session.take_in([*events, *more])
    except BaseException:
        await let_go(config.store, run_id, claim.epoch)
        raise
    session.keep(claim.epoch)


def opened(
    config: Config,
    function: Function,
    events: Sequence[Event],
    kwargs: Mapping[str, Any],
    task: Any,
) -> Session:
    """The session of a run from its journal. Raises UsageError for arguments that must be given again."""
    started = events[0]
    if not isinstance(started, RunStarted):
        raise UsageError(f"the journal of run {started.run_id} does not begin with its start")
    missing = [name for name in started.unstored if name not in kwargs and name != TASK]
    if TASK in started.unstored and task is UNSET:
        missing.insert(0, TASK)
    if missing:
        names = ", ".join(missing)
        raise UsageError(
            f"{names} could not be stored with run {started.run_id}; give it again: "
            f"recover(run_id, {', '.join(f'{name}=…' for name in missing)})"
        )
    given = {**started.args, **kwargs}
    function.check(given)
    return Session.restored(config, events, given, started.task if task is UNSET else task)


async def taken_over(session: Session, cancelled: BaseException | None) -> Next:
    """Journal that the run has a new owner; how it goes on. Raises the error it ends with instead."""
    if cancelled is not None:
        raise cancelled
    events = session.events
    started = events[0]
    assert isinstance(started, RunStarted)
    changed = bool(started.code) and started.code != session.config.code
    if changed:
        logger.warning(
            "run %s: the code of %s is not the one it was started with",
            session.run_id,
            session.config.name,
        )
    last = next(filter(is_milestone, reversed(events)), None)
    session.question = question_at(events)
    session.add(RunRecovered, session.state.attempt, session.epoch, changed)
    match last:
        case AttemptStarted():
            lost = _unrepeatable(session, last)
            if lost is None:
                return _again(session, last)
            session.add(AttemptFailed, last.attempt, None, lost)
            return await _decided(session)
        case AttemptFailed():
            return await _decided(session)
        case ActionChosen(action=action, by=by):
            context = context_at(session)
            refused = unsafe(session, context, action)
            if refused is None:
                decision = Decision(action, "journal", fatal=by == "severity")
            else:
                reason = f"{refused}; the process that could undo it is gone"
                decision = Decision(Escalate(reason), "gate", reason)
                _choose(session, context, decision)
            return await perform(session, context, decision)
        case RunResumed(action=action):
            return await perform(session, context_at(session), Decision(action, "journal"))
        case RunSuspended():
            asked = session.state.history[-1].action
            assert isinstance(asked, Suspend)
            return await perform(session, context_at(session), Decision(asked, "journal"))
        case _:
            return Next(1, NO_GUIDANCE, "retry")


async def _decided(session: Session) -> Next:
    context = context_at(session)
    decision = await decide(session, context)
    _choose(session, context, decision)
    return await perform(session, context, decision)


def _choose(session: Session, context: FailureContext, decision: Decision) -> None:
    action = kept(decision.action)
    session.add(ActionChosen, context.attempt, action, decision.by, decision.reason)


def _unrepeatable(session: Session, started: AttemptStarted) -> Diagnosis | None:
    """Why an attempt that was cut off cannot be begun again; None if it can."""
    done = [effect for effect in session.state.effects if effect.seq > started.seq]
    if not done:
        return None
    text = f"the step {done[0].action} was recorded by hand with the effect {done[0].effect}"
    return Diagnosis(
        FailureType.EXTERNAL_FAULT,
        cause=Cause.IN_DOUBT,
        severity=Severity.CRITICAL,
        evidence=(Evidence("crash:effect", f"{text}, and the process died after it"),),
        technical_details=f"the process of attempt {started.attempt} is gone; {text}",
        user_message="The work was cut off after a step that must not be repeated.",
        classifier="crash",
    )


def _again(session: Session, started: AttemptStarted) -> Next:
    """The attempt that was cut off, once more under its number: nothing of it had failed."""
    state = session.state
    past = state.history[-1] if state.history else None
    action = None if past is None else past.action
    base = None if started.base is None else state.ledger_at(started.base)
    left = state.state if base is None or started.base is None else base.cut(started.base).state
    guidance = Guidance(
        started.hint,
        started.subgoal,
        plain(left) or None,
        None if past is None else past.diagnosis,
        action,
        getattr(action, "inject", None) or None,
    )
    return Next(started.attempt, guidance, "crash", started.base, keep_state=started.base is None)


def context_at(session: Session) -> FailureContext:
    """What was known of the last failure, read from the journal; the live exception is gone."""
    past = session.state.history[-1]
    run = Run(session, past.number, NO_GUIDANCE, None, len(past.trajectory))
    checks = session.config.checks
    trajectory = past.trajectory
    if checks is not None:
        trajectory.tools = checks.manifest
    return context_of(session, run, None, trajectory, past.diagnosis)


_RAISED: dict[str, type[TriageError]] = {
    "escalated": TriageEscalationError,
    "aborted": TriageAbortError,
    "fatal": TriageFatalError,
}


def outcome(config: Config, events: Sequence[Event]) -> Any:
    """What a finished run has come to: its recorded result, or the error it ended with, raised."""
    finished = events[-1]
    assert isinstance(finished, RunFinished)
    run_id, status = finished.run_id, finished.status
    if status == "done":
        return _result(config, finished)
    kind = _RAISED.get(status)
    if kind is None:
        raise RunOver(
            f"run {run_id} has ended: {status}; {finished.error or 'no error is recorded'}"
        )
    session = Session.restored(config, events, {}, None)
    context = context_at(session) if session.state.history else None
    error = kind(f"run {run_id[:8]} {status}: {finished.error or 'no exception'}", context)
    error.reporter = report_of
    raise error


def _result(config: Config, finished: RunFinished) -> Any:
    """A recorded result as what it was. Raises ResultLost where the journal does not say that."""
    if finished.typed and config.returns.type is not Any:
        try:
            return config.returns.read(finished.result)
        except Exception as error:  # noqa: BLE001 - the user's types may raise anything
            logger.debug("run %s: its result is not what is declared: %s", finished.run_id, error)
    if not finished.exact:
        raise ResultLost(
            f"run {finished.run_id} has finished, and its result cannot be read back from JSON here; "
            "return a value of JSON types, or set result_type, or annotate what the function returns",
            tool=config.name,
            key=finished.run_id,
        )
    if config.checks is not None and config.checks.result_type is not None:
        return validate_result(config.checks.result_type, finished.result)
    return finished.result


async def reopen_all(config: Config, function: Function, concurrency: int) -> list[Recovered]:
    """`reopen` for every run of this agent whose lease has ended."""
    limiter = anyio.CapacityLimiter(concurrency)
    found: list[Recovered] = []

    async def one(run_id: str) -> None:
        async with limiter:
            try:
                result = await reopen(config, function, run_id, {}, at_once=False)
            except RunBusy:
                return
            except Exception as error:  # noqa: BLE001 - told to the caller, run by run
                found.append(Recovered(run_id, None, error))
            else:
                found.append(Recovered(run_id, result, None))

    async with anyio.create_task_group() as group:
        for info in await config.store.runs("running", agent=config.name):
            # A run inside another is gone on with when the outer one comes to it.
            if info.parent is None:
                group.start_soon(one, info.run_id)
    return found
