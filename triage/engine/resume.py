"""Continue runs from their store: runs that a process has left, and suspended runs that are answered."""

from __future__ import annotations

import json
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import anyio
from msgspec.structs import replace

from triage.core import errors
from triage.core.actions import Action, Escalate, Reply, Retry, Suspend
from triage.core.diagnosis import Diagnosis, Evidence
from triage.core.events import (
    ActionChosen,
    AttemptFailed,
    AttemptStarted,
    Event,
    RunFinished,
    RunRecovered,
    RunResumed,
    RunStarted,
    RunSuspended,
    StateUpdated,
    is_milestone,
)
from triage.core.failures import FailureContext
from triage.core.json_values import exact, plain
from triage.core.observers import logger
from triage.core.secret_shapes import HIDDEN
from triage.core.state import RunState, active_seconds, fold
from triage.core.taxonomy import Cause, FailureType, Severity
from triage.core.waiting import LONG_WAIT_S
from triage.reports.analysis import report_of
from triage.stores.base import Store
from triage.stores.clock import ticks
from triage.strategies.limits import delay_of

from . import recovery
from .answering import answered, check, digest_of, forget_questions, question_of, time_of, waits_for
from .calls import Run
from .compensation import restore_compensators
from .config import Config, soon
from .event_loop import unbroken
from .journal import TASK, Session, inner_runs
from .keeper import release
from .loop import run_loop
from .options import validate_result
from .outside import first_to_answer, late, not_asked, open_inside, resolve
from .questions import question_at
from .refusals import standing
from .run import NO_GUIDANCE, Guidance
from .tools import Function
from .undeclared import carries_turns, repeats_changes

# Recovery: take a run over, read its journal, and continue from its end.


UNSET: Any = object()


class MissingArguments(errors.UsageError):
    """Unstorable arguments of a run were not given again. names: of these arguments."""

    def __init__(self, run_id: str, names: Sequence[str], remedy: str) -> None:
        super().__init__(
            f"{', '.join(names)} could not be stored with run {run_id}; give it again: {remedy}"
        )
        self.run_id = run_id
        self.names = tuple(names)


def _lost_state(events: Sequence[Event]) -> list[str]:
    """Return keys of the state whose values held a secret, were not stored, and were not set again."""
    lost: dict[str, None] = {}
    for event in events:
        if isinstance(event, AttemptStarted) and event.base is None and not event.keep_state:
            lost.clear()
        elif isinstance(event, StateUpdated):
            for name in event.values:
                lost.pop(name, None)
            lost.update(dict.fromkeys(event.unstored))
    return list(lost)


def _with_injected(
    events: Sequence[Event], values: dict[str, Any]
) -> tuple[list[Event], list[str]]:
    """Return the events with the last action's unstored `inject` values filled in, and the missing names.

    values: by name; a value that is only injected, and no argument of the run, is removed.
    """
    events = list(events)
    missing: list[str] = []
    started = events[0]
    arguments = {*started.args, *started.unstored} if isinstance(started, RunStarted) else set()
    for at in range(len(events) - 1, -1, -1):
        event = events[at]
        if not isinstance(event, ActionChosen | RunResumed):
            continue
        if isinstance(event.action, Suspend) or event.action == Retry():
            continue  # an attempt that a question stopped keeps the values injected before
        inject = dict(getattr(event.action, "inject", None) or {})
        lost = [name for name, value in inject.items() if HIDDEN in json.dumps(plain(value))]
        missing = [name for name in lost if name not in values]
        inject.update({name: values[name] for name in lost if name in values})
        for name in lost:
            if name not in arguments:
                values.pop(name, None)
        if lost:
            events[at] = replace(event, action=replace(event.action, inject=inject))
        break
    return events, missing


class Recovered(NamedTuple):
    """The end of a run that `recover_all` has taken over. error: None if it has a result."""

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
    state: Mapping[str, Any] | None = None,
    at_once: bool = True,
    force: bool = False,
) -> Any:
    """Take a run over and continue it; return its result, as `run` does.

    state: merged into the recorded state. at_once: despite a live lease. force: even a dead letter. Raises
    as `Agent.recover` does.
    """
    events = await config.read(run_id)
    if not events:
        raise errors.UnknownRun(f"the store knows no run {run_id}")
    check_owner(config, events)
    if isinstance(events[-1], RunFinished):
        return await outcome(config, events)
    check_waiting(events, force=force)
    try:
        session = opened(config, function, events, kwargs, task, state, "recover(run_id")
    except errors.UsageError:
        if not at_once:  # RunBusy, for a live lease, takes precedence over missing arguments
            claim = await soon(
                config.store.claim(run_id, lease_s=config.durability.lease_s),
                config.durability.lease_s,
            )
            await release(config.store, run_id, claim.epoch, config.durability.lease_s)
        raise
    try:
        cancelled = await unbroken(
            own(session, events, at_once=at_once, asks_anew=force, force=force)
        )
    except errors.RunOver:  # ended meanwhile
        return await outcome(config, await config.read(run_id))
    try:
        return await run_loop(session, function, taken_over(session, cancelled, state))
    except Exception as error:
        if not session.lost:
            raise
        # Another process owns the run, so an error raised here does not count.
        raise await _taken_away(config, run_id) from error


async def _taken_away(config: Config, run_id: str) -> errors.RunBusy:
    """Return the error for a recovery that has lost its run to another process."""
    info = await soon(config.store.info(run_id), config.durability.lease_s)
    until = None if info is None else info.lease_until
    left = (
        0.0
        if until is None
        else max(0.0, until - await soon(config.store.now(), config.durability.lease_s))
    )
    return errors.RunBusy(
        f"run {run_id} was taken over by somebody else while it was recovered here", wait_s=left
    )


def check_owner(config: Config, events: Sequence[Event]) -> None:
    """Raise UsageError for a run of another agent, and for a journal without its start."""
    started = events[0]
    if not isinstance(started, RunStarted):
        raise errors.UsageError(
            f"the journal of run {started.run_id} does not begin with its start"
        )
    config.check_owns(started.run_id, started.agent)


def check_waiting(events: Sequence[Event], *, force: bool) -> None:
    """Raise UsageError for a run that waits for an answer, unless `force` lets it ask again."""
    asked = next(filter(is_milestone, reversed(events)), None)
    if isinstance(asked, RunSuspended) and not force:
        raise errors.UsageError(
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
    """Claim the run, and read the events that its previous owner has added.

    at_once, force: as for `reopen`. asks_anew: even if the run waits for an answer.
    """
    config, run_id = session.config, session.run_id
    lease_s = config.durability.lease_s
    since = ticks()
    claim = await soon(
        config.store.claim(run_id, lease_s=lease_s, force=at_once, revive=force), lease_s
    )
    try:
        more = await config.read(run_id, after=len(events) - 1)
        if more:
            check_waiting(more, force=asks_anew)
            session.take_in([*session.events, *more])
        await _fence_inner(config.store, session.run_id, session.state, lease_s)
    except BaseException:
        await release(config.store, run_id, claim.epoch, config.durability.lease_s)
        raise
    forget_questions(config, events)
    session.keep(claim.epoch, since=since)


async def _fence_inner(store: Store, run_id: str, state: RunState, lease_s: float) -> None:
    """Fence the previous owner off from the inner runs too, as it may be working in one.

    An inner run in another store is fenced when the outer run calls it again.
    """
    for inner in open_inside(state):
        info = await soon(store.info(inner), lease_s)
        if info is None or info.parent != run_id:
            continue
        try:
            claim = await soon(
                store.claim(inner, lease_s=lease_s, force=True, revive=True), lease_s
            )
        except errors.RunOver:
            continue
        await release(store, inner, claim.epoch, lease_s)
        await _fence_inner(store, inner, fold(await soon(store.read(inner), lease_s)), lease_s)


def opened(
    config: Config,
    function: Function,
    events: Sequence[Event],
    kwargs: Mapping[str, Any],
    task: Any,
    state: Mapping[str, Any] | None,
    asked: str,
) -> Session:
    """Open the session of a run from its journal.

    asked: the beginning of the user's call, as MissingArguments shows it, which is raised for arguments
    that must be given again.
    """
    started = events[0]
    assert isinstance(started, RunStarted)  # `check_owner` has seen it
    arguments = dict(kwargs)
    events, missing = _with_injected(events, arguments)
    missing += [name for name in started.unstored if name not in arguments and name != TASK]
    if TASK in started.unstored and task is UNSET:
        missing.insert(0, TASK)
    lost = [name for name in _lost_state(events) if name not in (state or {})]
    if missing or lost:
        entries = ", ".join(f"{name!r}: …" for name in lost)
        again = [f"{name}=…" for name in missing] + [f"state={{{entries}}}"] * bool(lost)
        names = [*missing, *(f"state[{name!r}]" for name in lost)]
        raise MissingArguments(started.run_id, names, f"{', '.join([asked, *again])})")
    arguments = {**started.args, **arguments}
    function.check(arguments)
    task = started.task if task is UNSET else task
    return Session(config, task, arguments, started.run_id, None, events)


async def taken_over(
    session: Session,
    cancelled: BaseException | None,
    state: Mapping[str, Any] | None = None,
) -> recovery.Next:
    """Journal the new owner; return the start of its attempt, or raise the error that ends the run.

    cancelled: raised first. state: given again by the new owner, merged into the recorded state.
    """
    if cancelled is not None:
        raise cancelled
    restore_compensators(session)
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
    attempt = session.state.attempt
    session.add(RunRecovered, attempt=attempt, epoch=session.epoch, changed=changed)
    if state:
        session.add(StateUpdated, attempt=attempt, values=exact(dict(state), "state"))
    match last:
        case AttemptStarted():
            return await _restart(session, last, state or {})
        case AttemptFailed():
            return await _decide(session)
        case ActionChosen(action=action, by=by):
            context = await context_at(session)
            refused = recovery.unsafe(session, context, action)
            if refused is None:
                decision = recovery.Decision(action, "journal", fatal=by == "severity")
            else:
                reason = f"{refused}; the process that did it is gone"
                decision = recovery.Decision(Escalate(reason), "gate", reason)
                recovery.choose(session, context, decision)
            return await recovery.perform(session, context, decision)
        case RunResumed(action=action):
            return await recovery.perform(
                session, await context_at(session), recovery.Decision(action, "journal")
            )
        case RunSuspended():
            asked = session.state.history[-1].action
            assert isinstance(asked, Suspend)
            return await recovery.perform(
                session, await context_at(session), recovery.Decision(asked, "journal")
            )
        case _:
            return recovery.Next(1, NO_GUIDANCE, "retry")


async def _restart(
    session: Session, started: AttemptStarted, state: Mapping[str, Any]
) -> recovery.Next:
    """Restart an interrupted attempt, unless that would repeat an effect."""
    lost = _unrepeatable(session, started)
    repeats = None if lost is not None else repeats_changes(session)
    if lost is None and repeats is None:
        return await _same_attempt(session, started, state)
    diagnosis = lost or _cut_off(started, repeats or "")
    session.add(AttemptFailed, attempt=started.attempt, error=None, diagnosis=diagnosis)
    if repeats is None:
        return await _decide(session)
    context = await context_at(session)
    carries = carries_turns(session)
    decision = (
        recovery.Decision(Retry(), "gate", repeats)
        if carries
        else recovery.asks_before(session, repeats)
    )
    recovery.choose(session, context, decision)
    return await recovery.perform(session, context, decision)


async def _decide(session: Session) -> recovery.Next:
    context = await context_at(session)
    decision = await recovery.decide(session, context)
    recovery.choose(session, context, decision)
    return await recovery.perform(session, context, decision)


def _unrepeatable(session: Session, started: AttemptStarted) -> Diagnosis | None:
    """Return the diagnosis of an interrupted attempt that cannot restart; None if it can."""
    done = [effect for effect in session.state.effects if effect.seq > started.seq]
    if not done:
        return None
    return _cut_off(
        started, f"the step {done[0].action} was recorded by hand with the effect {done[0].effect}"
    )


def _cut_off(started: AttemptStarted, text: str) -> Diagnosis:
    """Return the diagnosis of an attempt whose process died, and that cannot restart."""
    return Diagnosis(
        FailureType.EXTERNAL_FAULT,
        cause=Cause.IN_DOUBT,
        severity=Severity.CRITICAL,
        evidence=(Evidence("crash:effect", f"{text}, and the process died after it"),),
        technical_details=f"the process of attempt {started.attempt} is gone; {text}",
        user_message="The work was cut off after a step that must not be repeated.",
        classifier="crash",
    )


async def _same_attempt(
    session: Session, started: AttemptStarted, restored: Mapping[str, Any]
) -> recovery.Next:
    """Restart an interrupted attempt under its number, as it has not failed.

    restored: state that was given again.
    """
    state = session.state
    past = state.history[-1] if state.history else None
    action = None if past is None else past.action
    base = None if started.base is None else state.ledger_at(started.base)
    left = state.state if base is None or started.base is None else base.cut(started.base).state
    guidance = Guidance(
        started.hint,
        started.subgoal,
        plain({**left, **restored}) or None,
        None if past is None else past.diagnosis,
        action,
        getattr(action, "inject", None) or None,
    )
    return recovery.Next(
        started.attempt,
        guidance,
        "crash",
        started.base,
        keep_state=started.base is None,
        returns_to=started.returns_to,
        begun=recovery.begun_as(state.history),
    )


async def context_at(session: Session) -> FailureContext:
    """Return the context of the last failure, from the journal; it lacks the live exception."""
    past = session.state.history[-1]
    run = Run(session, past.number, NO_GUIDANCE, None, len(past.trajectory))
    checks = session.config.checks
    trajectory = past.trajectory
    if checks is not None:
        trajectory.tools = checks.manifest
    return await recovery.context_of(session, run, None, trajectory, past.diagnosis)


async def outcome(config: Config, events: Sequence[Event]) -> Any:
    """Return the recorded result of a finished run, or raise the error that it ended with."""
    finished = events[-1]
    assert isinstance(finished, RunFinished)
    run_id, status = finished.run_id, finished.status
    if status == "done":
        return _result(config, finished)
    kind = recovery.STATUSES.get(status)
    if kind is None:
        raise errors.RunOver(
            f"run {run_id} has ended: {status}; {finished.error or 'no error is recorded'}"
        )
    session = Session(config, None, {}, run_id, None, events)
    context = await context_at(session) if session.state.history else None
    error = kind(f"run {run_id[:8]} {status}: {finished.error or 'no exception'}", context)
    error.reporter = report_of
    recovery.tell_not_undone(session, error)
    raise error


def _result(config: Config, finished: RunFinished) -> Any:
    """Restore a recorded result. Raises ResultLost if the journal does not hold all of it."""
    if finished.typed and config.returns.type is not Any:
        try:
            return config.returns.read(finished.result)
        except Exception as error:
            logger.debug("run %s: its result is not what is declared: %s", finished.run_id, error)
    if not finished.exact:
        raise errors.ResultLost(
            f"run {finished.run_id} has finished, and its result cannot be read back from JSON here; "
            "return a value of JSON types, or set result_type, or annotate what the function returns",
            tool=config.name,
            key=finished.run_id,
        )
    if config.checks is not None and config.checks.result_type is not None:
        return validate_result(config.checks.result_type, finished.result)
    return finished.result


async def reopen_all(config: Config, function: Function, concurrency: int) -> list[Recovered]:
    """Reopen every run of this agent whose lease has ended."""
    limiter = anyio.CapacityLimiter(concurrency)
    found: list[Recovered] = []

    async def one(run_id: str) -> None:
        async with limiter:
            try:
                result = await reopen(config, function, run_id, {}, at_once=False)
            except errors.RunBusy:
                return
            except Exception as error:
                found.append(Recovered(run_id, None, error))
            else:
                found.append(Recovered(run_id, result, None))

    async with anyio.create_task_group() as group:
        for name in dict.fromkeys((config.name, *config.aliases)):
            for info in await soon(
                config.store.runs("running", agent=name), config.durability.lease_s
            ):
                # An outer run continues its inner runs.
                if info.parent is None:
                    group.start_soon(one, info.run_id)
    return found


async def answer_only(config: Config, asked: str, answer: Reply, *, by: str) -> Action:
    """Record an answer without continuing the run; return the resulting action.

    asked: the question's token, or the run's id for its current question. Raises as `Agent.answer` does.
    """
    run_id, is_token, _ = asked.partition("~")
    events = await config.read(run_id)
    if events:
        check_owner(config, events)
    digest = None
    if is_token:
        digest = digest_of(asked)
        await _check_time(config, _asked(events, digest))

    def refuses(events: Sequence[Event], action: Action) -> str | None:
        return _unfit(Session(config, None, {}, run_id, None, events), action)

    now = await time_of(config)
    action = await resolve(
        config.store, run_id, answer, now=now, by=by, question=digest, refuses=refuses
    )
    if digest is not None:
        config.suspensions.pop(digest, None)
    return action


def _unfit(session: Session, action: Action) -> str | None:
    """Return why the action of an answer is infeasible, or would end the run; None if it is fine."""
    delay = delay_of(action)
    seconds = session.config.limits.raised(session.state.granted(action)).seconds
    if delay and seconds is not None:
        left = max(0.0, seconds - active_seconds(session.events))
        if delay > left:
            return (
                f"{type(action).__name__}.delay of {delay:g} s would pass the run's deadline, which is "
                f"{left:.6g} s away (Limits.seconds)"
            )
    return recovery.infeasible(session, action)


async def _check_time(config: Config, asked: RunSuspended) -> None:
    """Raise TokenExpired for an expired question."""
    if asked.expires is not None and await time_of(config) >= asked.expires:
        raise late(asked.run_id)


async def resume(
    config: Config,
    function: Function,
    token: str,
    answer: Any,
    kwargs: Mapping[str, Any],
    task: Any = UNSET,
    state: Mapping[str, Any] | None = None,
    by: str = "",
) -> Any:
    """Carry out a person's answer, whichever process asked; return the run's result, as `run` does."""
    digest = digest_of(token)
    events = await config.read(token.partition("~")[0])
    if events:
        check_owner(config, events)
    _asked(events, digest)
    session, start = await answer_to(config, function, events, answer, kwargs, task, state, by=by)
    return await run_loop(session, function, start)


async def answer_to(
    config: Config,
    function: Function,
    events: Sequence[Event],
    answer: Any,
    kwargs: Mapping[str, Any],
    task: Any = UNSET,
    state: Mapping[str, Any] | None = None,
    given_by: str = "resume(token, answer",
    *,
    at_once: bool = False,
    by: str = "",
) -> tuple[Session, Coroutine[Any, Any, recovery.Next]]:
    """Take an answer to a run's last question; return its session, and a coroutine that starts it.

    given_by: the beginning of the user's call, as MissingArguments shows it. at_once: despite a live lease.
    Raises TokenExpired, AlreadyResumed, and UsageError for an answer that does not fit.
    """
    asked = waits_for(events)
    assert asked is not None  # the caller has seen it
    digest = asked.token_digest
    await _check_time(config, asked)
    waiting = config.suspensions.get(digest)
    if waiting is not None:
        # The run waits in this process, which still has its results without a JSON form.
        session, context = waiting.session, waiting.context
    else:
        session = opened(config, function, events, kwargs, task, state, given_by)
        session.question = question_at(events) or question_of(session.state, asked)
        restore_compensators(session)
        context = await context_at(session)
    action = check(session.question, answer)
    refused = None if action is None else _unfit(session, action)
    if refused is not None:
        raise errors.UsageError(refused)
    cancelled = await _own(session, asked, len(events), at_once=at_once)
    # If this fails, memory may differ from the store, so a further answer reads the store.
    config.suspensions.pop(digest, None)
    if waiting is not None:
        session.started += config.env.monotonic() - waiting.since
        # Nobody waits for an inner run whose outer attempt is over.
        session.nested = session.parent is not None and not session.parent.over

    async def start() -> recovery.Next:
        if cancelled is not None:
            raise cancelled
        action = _carry_out(session, answer, by)
        if state:
            session.add(StateUpdated, attempt=context.attempt, values=exact(dict(state), "state"))
        session.add(RunResumed, attempt=context.attempt, action=recovery.kept(action), by=by)
        try:
            await session.flush()
        except errors.StaleWriter as error:
            raise not_asked(asked.run_id, await config.read(asked.run_id), digest) from error
        if session.keeper is not None and session.keeper.error is not None:
            raise session.keeper.error  # an answer that was not stored could be given twice
        return await recovery.perform(session, context, recovery.Decision(action, "person"))

    return session, start()


async def _own(
    session: Session, asked: RunSuspended, length: int, *, at_once: bool
) -> BaseException | None:
    """Claim a waiting run whose journal has `length` events; return a cancellation that came meanwhile.

    Raises as `first_to_answer` does.
    """
    config, run_id = session.config, session.run_id

    async def take() -> None:
        lease_s = config.durability.lease_s
        since = ticks()
        claim = await soon(config.store.claim(run_id, lease_s=lease_s, force=at_once), lease_s)
        if claim.events != length:
            await release(config.store, run_id, claim.epoch, config.durability.lease_s)
            raise not_asked(run_id, await config.read(run_id), asked.token_digest)
        session.flushed = length
        session.keep(claim.epoch, since=since)

    waited = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal waited
        await config.env.sleep(seconds)
        waited += seconds
        if waited > LONG_WAIT_S:
            session.waits.say(
                "lease",
                session.named,
                None,
                "another process holds the lease of the run",
                f"at most {config.durability.lease_s:g} s, unless that process renews it",
                "Durability(lease_s=…)",
            )

    return await first_to_answer(
        lambda: unbroken(take()), partial(config.read, run_id), asked, sleep
    )


def _asked(events: Sequence[Event], digest: str) -> RunSuspended:
    """Return the question of a token. Raises UsageError for an unknown token, AlreadyResumed for an old."""
    asked = [event for event in events if isinstance(event, RunSuspended)]
    if all(event.token_digest != digest for event in asked):
        raise errors.UsageError(
            "no run of this agent waits with this token; give the token of the "
            "TriageSuspendedError to an agent with the same store"
        )
    last = waits_for(events)
    if last is None or last.token_digest != digest:
        raise not_asked(asked[-1].run_id, events, digest)
    return last


def _carry_out(session: Session, answer: Any, by: str) -> Action:
    """Journal an answer to a question about a call; return the resulting action of any answer."""
    result = answered(session.state, session.question, answer, by=by, before=standing(session))
    if result.live is not None:
        session.live = {**(session.live or {}), **result.live}
    if result.inner is not None:
        inner_runs(session).answers.update(result.inner)
    for make in result.entries:
        session.add(make)
    session.has_calls = session.has_calls or bool(session.state.calls)
    return result.action
