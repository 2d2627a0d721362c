"""Going on with a suspended run: the answer is checked, the token used up, the answer carried out."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, NoReturn

from ._answers import answered, check, question_of, waits_for
from ._attempts import Next
from ._decide import Decision, infeasible
from ._function import Function
from ._inside import inside
from ._loop import go_on, let_go, unbroken
from ._questions import question_at
from ._recover import kept, perform
from ._reopen import UNSET, context_at, opened
from ._session import Config, Session
from ._suspensions import digest_of, time_of
from .actions import Action
from .errors import AlreadyResumed, RunBusy, RunOver, StaleWriter, TokenExpired, UsageError
from .events import CallStarted, Event, RunResumed, RunSuspended

_OLD = "this token was used before; a token answers one question once"
SHORTEST_S, LONGEST_S = 0.01, 0.5
"""Seconds between two looks at a run that somebody else is answering."""
PATIENCE_S = 2.0
"""Seconds such a run is looked at. To answer takes milliseconds: who has not by then has died of it."""


async def resume(
    config: Config, function: Function, token: str, answer: Any, kwargs: Mapping[str, Any]
) -> Any:
    """Carry out a person's answer, whichever process asked; the run's result, as `run` gives it."""
    digest = digest_of(token)
    events = await config.store.read(token.partition("~")[0])
    asked = _asked(events, digest)
    session, start = await answer_to(config, function, events, asked, answer, kwargs)
    return await go_on(session, function, start)


async def answer_to(
    config: Config,
    function: Function,
    events: Sequence[Event],
    asked: RunSuspended,
    answer: Any,
    kwargs: Mapping[str, Any],
    task: Any = UNSET,
) -> tuple[Session, Awaitable[Next]]:
    """Take an answer to what a run has asked last: its session, and what is to be done first.

    Raises TokenExpired, AlreadyResumed, and UsageError for an answer that does not fit.
    """
    digest = asked.token_digest
    if asked.expires is not None and await time_of(config) >= asked.expires:
        raise TokenExpired(
            f"the answer to run {asked.run_id} came after its time; the run still waits"
        )
    waiting = config.suspensions.find(digest)
    if waiting is not None:
        # It waits here: what only this process has (results without a JSON form) is still at hand.
        session, context = waiting.session, waiting.context
    else:
        session = opened(config, function, events, kwargs, task)
        session.question = question_at(events) or question_of(session.state, asked)
        context = context_at(session)
    _check(session, answer)
    cancelled = await _own(session, digest, len(events))
    # What is in memory may not be what the store has, if it fails now: who comes again reads the store.
    config.suspensions.drop(digest)
    if waiting is not None:
        session.started += config.env.monotonic() - waiting.since

    async def start() -> Next:
        if cancelled is not None:
            raise cancelled
        action = _carry_out(session, answer)
        session.add(RunResumed, context.attempt, kept(action))
        try:
            await session.flush()
        except StaleWriter as error:
            raise AlreadyResumed(_OLD) from error
        if session.keeper is not None and session.keeper.error is not None:
            raise session.keeper.error  # an answer that is not durable could be given twice
        return await perform(session, context, Decision(action, "person"))

    return session, start()


async def _own(session: Session, digest: str, length: int) -> BaseException | None:
    """Become the owner of a run that waits with a journal so long; a cancellation that came meanwhile.

    Raises AlreadyResumed where somebody else has answered, and RunBusy where somebody else seems to
    have died of it: then the token is still good, and is taken once the lease has ended.
    """
    config, run_id = session.config, session.run_id

    async def take() -> None:
        claim = await config.store.claim(run_id, lease_s=config.durability.lease_s)
        if claim.events != length:
            await let_go(config.store, run_id, claim.epoch)
            raise AlreadyResumed(_OLD)
        session.flushed = length
        session.keep(claim.epoch)

    pause, waited = SHORTEST_S, 0.0
    while True:
        try:
            return await unbroken(take())
        except RunOver as error:
            raise AlreadyResumed(_OLD) from error
        except RunBusy as error:
            _asked(await config.store.read(run_id), digest)
            if waited >= PATIENCE_S and error.wait_s > LONGEST_S:
                raise
        await config.env.sleep(pause)
        waited += pause
        pause = min(2 * pause, LONGEST_S)


def _asked(events: Sequence[Event], digest: str) -> RunSuspended:
    """The question this token answers. Raises UsageError for no such token, AlreadyResumed for an old
    one.
    """
    asked = [event for event in events if isinstance(event, RunSuspended)]
    if all(event.token_digest != digest for event in asked):
        _unknown()
    last = waits_for(events)
    if last is None or last.token_digest != digest:
        raise AlreadyResumed(_OLD)
    return last


def _unknown() -> NoReturn:
    raise UsageError(
        "no run of this agent waits with this token; give the token of the "
        "TriageSuspendedError to an agent with the same store"
    )


def _check(session: Session, answer: Any) -> None:
    action = check(session.question, answer)
    refused = None if action is None else infeasible(session, action)
    if refused is not None:
        raise UsageError(refused)


def _carry_out(session: Session, answer: Any) -> Action:
    """Journal the answer to a question about a call; the action that follows from any answer."""
    action, entries, live, inner = answered(session.state, session.question, answer)
    if live is not None:
        session.live = {**(session.live or {}), **live}
    if inner is not None:
        inside(session).answers.update(inner)
    for kind, *fields in entries:
        session.add(kind, *fields)
        session.has_calls = session.has_calls or kind is CallStarted
    return action
