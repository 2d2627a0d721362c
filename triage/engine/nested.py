"""Runs inside runs: every attempt of the outer run finds them, continues them, and repeats none.

An inner run is a recorded call of the attempt that starts it. It has its own journal, so it can continue
after an interruption, and its effects are known once it has ended.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing, closing
from typing import Any

from msgspec.structs import replace

from triage.core import errors
from triage.core.events import Event, RunFinished, RunStarted
from triage.core.observers import logger
from triage.core.redaction import joined
from triage.core.state import RunState, fold
from triage.core.taxonomy import UNSAFE, Effect

from .answering import waits_for
from .calls import Begun, Reused, Undo, fail, finish, settle_beside
from .calls import begin as begin_call
from .config import Config, moved
from .event_loop import unbroken
from .journal import Session, inner_runs
from .loop import Restarted, claim_run_id, run_loop, stream_loop
from .models import is_judging
from .outside import asks_of
from .questions import ANSWER, APPROVAL, Question
from .recovery import Next
from .resume import answer_to, opened, outcome, own, taken_over
from .rulings import Guarded
from .run import Recorder
from .tools import STREAMED, Function, Nested


class _Taken(Exception):
    """A run of this id exists already."""


class Inner:
    """An inner run that an attempt starts or finds."""

    def __init__(
        self,
        run: Recorder,
        config: Config,
        function: Function,
        task: Any,
        kwargs: Mapping[str, Any],
        begun: Begun,
    ) -> None:
        assert begun.run is not None
        self.id = begun.run
        self.session: Session | None = None
        self._run = run
        self._config = config
        self._function = function
        self._task = task
        self._kwargs = kwargs
        self._begun = begun

    async def result(self) -> Any:
        """Return its result, recorded or reached now. Raises the error that it ends with."""
        chosen = "run_id" in self._begun.bound
        # In a first attempt, only a run with a chosen id can exist already.
        events = await self._read() if chosen or self._run.replay is not None else []
        while True:
            try:
                if not events:
                    return await self._start(alone=not chosen and self._run.replay is None)
                return await self._continue(events)
            except (_Taken, errors.RunOver, errors.AlreadyResumed):
                # Another process has, or had, the run: its store tells the outcome.
                found = await self._read()
                if len(found) <= len(events) and not self._lost:
                    raise
                events = found
            except Exception:
                if not self._lost:
                    raise
                # Another process has called the run too. The owner of the outer run owns this one.
                await self._run.session.confirm()
                events = await self._read()

    @property
    def _lost(self) -> bool:
        return self.session is not None and self.session.lost

    async def _read(self) -> list[Event]:
        """Read the journal of the run; empty for a new run. Raises UsageError if the id is taken."""
        events = await self._config.read(self.id)
        if events:
            started = events[0]
            if not isinstance(started, RunStarted) or started.parent != self._run.run_id:
                raise errors.UsageError(f"run_id {self.id} is taken; choose another")
            self._config.check_owns(self.id, started.agent)
        return events

    async def _start(self, *, alone: bool) -> Any:
        """Start a new run; return its result. alone: no other process can have started it."""
        session = self._begin_session()
        if alone and not self._run.session.durable:
            return await run_loop(session, self._function)
        return await run_loop(session, self._function, self._claimed(session))

    async def _claimed(self, session: Session) -> None:
        """Store the start of a new run. Raises _Taken if the run exists already."""
        # The next owner of the outer run has to know of this one.
        await self._run.session.barrier()
        try:
            await claim_run_id(session)
        except errors.UsageError as error:
            raise _Taken from error
        await self._confirm_outer(session)

    async def _confirm_outer(self, session: Session) -> None:
        """Check that we still own the outer run; else release the inner one.

        After the inner run was claimed: a later owner of the outer run claims it later too.
        """
        try:
            await self._run.session.confirm()
        except errors.StaleWriter:
            await session.give_back()
            raise

    def _begin_session(self) -> Session:
        session = Session(self._config, self._task, self._kwargs, self.id, self._run)
        session.comes_back = True
        if self._run.session.state.calls[self._begun.key].ended:
            session.first_hint = self._run.told.hint
        self.session = session
        return session

    async def _continue(self, events: Sequence[Event]) -> Any:
        """Continue a stored run; return its result."""
        if isinstance(events[-1], RunFinished):
            self.session = Session(
                self._config, self._task, self._kwargs, self.id, self._run, events
            )
            self.session.count_in_parent()
            return await outcome(self._config, events)
        # A process that has lost the outer run must not disturb its owner.
        await self._run.session.confirm()
        answers = inner_runs(self._run.session).answers
        asked = waits_for(events)
        if asked is not None and asked.token_digest in answers:
            answer = answers[asked.token_digest]
            try:
                session, start = await answer_to(
                    self._config,
                    self._function,
                    events,
                    answer,
                    self._kwargs,
                    self._task,
                    given_by="run(task",
                    at_once=True,
                )
            except (errors.UsageError, errors.TokenExpired) as error:
                logger.warning("run %s: the answer was not taken: %s", self.id, error)
            else:
                return await self._run_from(session, start)
        session = opened(
            self._config, self._function, events, self._kwargs, self._task, None, "run(task"
        )
        # Deaths of processes are counted for the outer run.
        cancelled = await unbroken(own(session, events, at_once=True, asks_anew=True, force=True))
        return await self._run_from(session, taken_over(session, cancelled))

    async def _run_from(self, session: Session, start: Coroutine[Any, Any, Next]) -> Any:
        session.parent = self._run
        session.nested = session.comes_back = True
        sessions = inner_runs(self._run.session).left
        left = sessions.get(self.id)
        if left is not None and left is not session:
            session.live, session.undo = left.live, left.undo
            session.inner = left.inner or session.inner
        self.session = sessions[self.id] = session

        async def first() -> Next:
            with closing(start):
                await self._confirm_outer(session)
                return await start

        return await run_loop(session, self._function, first())

    async def items(self) -> AsyncGenerator[Any]:
        """Yield the items of its stream; those of a recorded or continued run come at its end."""
        if self._run.replay is not None and await self._read():
            for item in await self.result():
                yield item
            return
        session = self._begin_session()
        first = self._claimed(session) if self._run.session.durable else None
        try:
            async with aclosing(stream_loop(session, self._function, first)) as stream:
                async for item in stream:
                    yield item
        except _Taken:
            for item in await self.result():
                yield item

    # The end ----------------------------------------------------------------------------------

    async def finished(self, result: Any) -> Any:
        """Record its success; return the result."""
        run = self._run
        self._end()
        finish(run, self._begun, result)
        if run.session.durable and not run.over:
            await run.session.barrier()
        return result

    def failed(self, error: BaseException) -> None:
        """Record its failure, or keep it for a later attempt to continue."""
        session = self.session
        if session is None or not session.events:
            return
        if isinstance(error, Exception) and isinstance(session.events[-1], RunFinished):
            self._end()
            fail(self._run, self._begun, error)
            return
        session.count_in_parent()
        kept = inner_runs(self._run.session)
        if self._run.over:
            return  # kept when the attempt ended; the next one may have continued it meanwhile
        kept.left[self.id] = session
        if isinstance(error, errors.TriageSuspendedError):
            kept.asked.append((error, self._asks(session, error.question)))

    def _end(self) -> None:
        """Set the effect of the call, and whether it asked a model, from the ended run."""
        assert self.session is not None
        sessions = inner_runs(self._run.session).left
        if sessions.get(self.id) is self.session:
            del sessions[self.id]
        state = self.session.state
        self._begun.effect = Effect.UNKNOWN if had_effect(state) else Effect.IDEMPOTENT
        self._begun.asked_model = state.has_asked_model() and not is_judging()

    def _asks(self, session: Session, text: str) -> Question:
        """Return its question as one of the outer run."""
        asked = waits_for(session.events)
        assert asked is not None
        own = session.question
        kind = APPROVAL if asks_of(session.events) == "approval" else ANSWER
        return Question(
            self._begun.key,
            self._begun.tool.name,
            self._begun.effect.value,
            self._begun.arguments,
            text,
            doubt=asked.doubt,
            inner="action" if own is None or own.inner == "action" else "call",
            asks=asked.token_digest,
            kind=kind if own is None else own.kind,
            editable=() if own is None else own.editable,
            calls=() if own is None else own.calls,
            parts=() if own is None else own.parts,
        )


def had_effect(state: RunState) -> bool:
    """Whether a run has, or may have, an effect that must not happen twice."""
    if state.effects:
        return True
    calls = state.calls.values()
    return any(
        call.effect in UNSAFE and call.outcome != "not_attempted" and not call.undone
        for call in calls
    )


async def run_inside(
    run: Recorder,
    config: Config,
    function: Function,
    task: Any,
    kwargs: Mapping[str, Any],
    run_id: str | None,
) -> Any:
    """Do as `Agent.run` inside an attempt of another run; return the result, recorded or reached now."""
    config = at_least_as_safe(config, function, run)
    begun = await _begin(run, config, task, kwargs, run_id)
    if begun is None:
        session = Session(config, task, kwargs, run_id, run)
        first = None if run_id is None else claim_run_id(session)
        return await run_loop(session, function, first)
    if isinstance(begun, Reused):
        return begun.result
    inner = Inner(run, config, function, task, kwargs, begun)
    try:
        result = await inner.result()
    except BaseException as error:
        inner.failed(error)
        if isinstance(error, errors.TriageSuspendedError | errors.AttemptInterrupted):
            await settle_beside(run)
        raise
    return await inner.finished(result)


async def stream_inside(
    run: Recorder, config: Config, function: Function, task: Any, kwargs: Mapping[str, Any]
) -> AsyncGenerator[Any]:
    """Do as `Agent.stream` inside an attempt; a continued run yields its items at its end."""
    if function.kind not in STREAMED:
        yield await run_inside(run, config, function, task, kwargs, None)
        return
    config = at_least_as_safe(config, function, run)
    begun = await _begin(run, config, task, kwargs, None)
    if isinstance(begun, Reused):
        for item in begun.result:
            yield item
        return
    inner = None if begun is None else Inner(run, config, function, task, kwargs, begun)
    items: list[Any] = []
    try:
        if inner is None:
            stream = stream_loop(Session(config, task, kwargs, None, run), function)
        else:
            stream = inner.items()
        async with aclosing(stream):
            async for item in stream:
                if isinstance(item, Restarted):
                    items.clear()
                else:
                    items.append(item)
                yield item
    except BaseException as error:
        if inner is not None:
            inner.failed(error)
        raise
    if inner is not None:
        await inner.finished(items)


def at_least_as_safe(config: Config, function: Function, run: Recorder) -> Config:
    """Return the config of an inner run: as durable, and redacted as strictly, as the outer run's."""
    outer = run.session.config
    if outer.redactor is not None and config.durability.redact is not False:
        own = config.redactor
        redactor = outer.redactor if own is None else joined(outer.redactor, own)
        durability = replace(config.durability, redact=redactor)
        config = replace(config, durability=durability, redactor=redactor)
    if config.durability.key is None and outer.durability.key is not None:
        durability = replace(config.durability, key=outer.durability.key)
        config = replace(config, durability=durability)
    if config.durable or not outer.durable:
        return config
    return moved(config, function, outer.store)


async def _begin(
    run: Recorder, config: Config, task: Any, kwargs: Mapping[str, Any], run_id: str | None
) -> Begun | Reused | None:
    """Begin the recorded call for this inner run; None if its task has no exact JSON form."""
    try:
        return await _call_of(run, config, task, kwargs, run_id)
    except errors.AttemptInterrupted:
        await settle_beside(run)
        raise


async def _call_of(
    run: Recorder, config: Config, task: Any, kwargs: Mapping[str, Any], run_id: str | None
) -> Begun | Reused | None:
    run.check_open()
    tool = Nested(_recorded_name(run, config), config.returns)
    try:
        tool.digest({"task": task}, "")
    except errors.UsageError:
        return None
    await _pass_over_harmless(run, tool, config)
    named = kwargs if run_id is None else {**kwargs, "run_id": run_id}
    begun = begin_call(run, tool, (task,), named)
    assert not isinstance(begun, Undo | Guarded)  # inner runs have neither compensators nor guards
    return begun


def _recorded_name(run: Recorder, config: Config) -> str:
    """Return the agent's name in this run's journal: an alias if it was renamed since."""
    if run.replay is None or not config.aliases:
        return config.name
    calls = run.session.state.calls.values()
    recorded = [call.tool for call in calls if call.run is not None]
    return next((name for name in (config.name, *config.aliases) if name in recorded), config.name)


async def _pass_over_harmless(run: Recorder, tool: Nested, config: Config) -> None:
    """Count interrupted inner runs without an effect as repeated, so that no person is asked about them."""
    if run.replay is None:
        return
    calls = run.session.state.calls
    for key in list(run.replay.unmatched.get(tool.name, ())):
        call = calls[key]
        if call.run is not None and call.outcome is None:
            events = await config.read(call.run)
            if not had_effect(fold(events)):
                run.replay.meet(tool.name, key)
