"""The journal of a living run: adding events, and waiting until the store has them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import anyio

from triage.core.actions import lasting
from triage.core.errors import StaleWriter, StoreUnavailable, leaves
from triage.core.events import (
    ActionChosen,
    CallStarted,
    CompensatorRegistered,
    Event,
    RunFinished,
    RunStarted,
)
from triage.core.failures import Attempt
from triage.core.json_values import digest, plain_noting
from triage.core.observers import catch_up, child_logger, logger, notify, traceparent_of
from triage.core.redaction import redacting
from triage.core.state import RunState, active_seconds
from triage.core.steps import NO_USAGE, Usage
from triage.core.waiting import Waits
from triage.stores.clock import ticks
from triage.strategies.limits import Limits

from .config import Config
from .keeper import Keeper, release

if TYPE_CHECKING:
    from .questions import Question
    from .run import Recorder


class InnerRuns:
    """State of a run's inner runs that only this process has.

    asked: errors by which inner runs asked for an answer, with their questions. answers: answers to inner
    runs that this run was given, by the digest of the question's token. left: sessions of inner runs that
    were cut off, by id; only they hold results without a JSON form, compensators, and their inner runs.
    """

    __slots__ = ("answers", "asked", "left")

    def __init__(self) -> None:
        self.asked: list[tuple[BaseException, Question]] = []
        self.answers: dict[str, Any] = {}
        self.left: dict[str, Session] = {}


def inner_runs(session: Session) -> InnerRuns:
    """Return the `InnerRuns` of a run, made at first use."""
    if session.inner is None:
        session.inner = InnerRuns()
    return session.inner


def inner_id(session: Session, key: str, bound: dict[str, Any]) -> str:
    """Return the id of a call's inner run: the caller's choice, or an id kept until that run ends."""
    known = session.state.calls.get(key)
    chosen = bound.get("run_id")
    if chosen is None:
        return digest(session.run_id, f"{key}:{1 if known is None else known.ended + 1}")
    if known is not None and known.run is not None and known.outcome is None:
        return known.run  # it was cut off
    begun = [event for event in session.events if isinstance(event, CallStarted) and event.run]
    equal = [event for event in begun if event.key.rpartition(":")[0] == key.rpartition(":")[0]]
    if known is None and equal:
        return str(equal[-1].run)  # the same task under the same id is the same run
    taken = {event.run for event in begun}
    numbered = (f"{chosen}.{n}" if n > 1 else str(chosen) for n in itertools.count(1))
    return next(one for one in numbered if one not in taken)


_log = child_logger("engine")


@lru_cache(maxsize=1_000)
def _warn_of_generated_name(name: str, _code: str) -> None:
    """Warn once for each function whose runs are kept under a generated name."""
    _log.warning(
        "runs are kept under the generated name %s; a run is recovered and answered only by an agent of "
        "its name, so give one that stays: Agent(…, name=…)",
        name,
    )


class Session:
    """The journal of a living run. Recording is safe from any thread.

    `state` is folded on demand.
    """

    entered: Sequence[AbstractContextManager[Any]] = ()
    epoch = 0
    flushed = 0
    attempt_started: float | None = None
    # Only this process has these: results without a JSON form, by call key, and the callables of
    # compensators, by the position of their registration.
    live: dict[str, Any] | None = None
    undo: dict[int, Callable[[], Any]] | None = None
    question: Question | None = None
    # The exception that the caller is handling: not part of the context of the run's own errors.
    handled: BaseException | None = None
    # Called if the run fails; by the adapter that registered it in the last attempt.
    at_failure: dict[str, Callable[[], Awaitable[object]]] | None = None
    # Failed tries of requests to models that were repeated in place, as attempts.
    tries: tuple[Attempt, ...] = ()
    tries_told = 0
    # Names of further tools known to record their calls, beside the ones that the function refers to.
    recorded_tools: frozenset[str] = frozenset()
    has_calls = False
    # inner: state of this run's inner runs, if any. nested: this is an inner run that an attempt waits for.
    # comes_back: the outer run may continue this inner run.
    inner: InnerRuns | None = None
    nested = False
    comes_back = False
    # The hint for the first attempt of an inner run that replaces one that has ended.
    first_hint: str | None = None
    # The keeper of a run in a durable store, and whether each call waits until it is durable.
    keeper: Keeper | None = None
    durable = False
    # Fields of past Retry actions that hold until the run ends, by name.
    lasting: Mapping[str, Any] = MappingProxyType({})
    # Exceptions by which observers end the program; see `raise_held`.
    held: list[BaseException]
    _state: RunState | None = None
    _folded = 0
    _raised: Limits | None = None

    def __init__(
        self,
        config: Config,
        task: Any,
        kwargs: Mapping[str, Any],
        run_id: str | None,
        parent: Recorder | None,
        events: Sequence[Event] = (),
    ) -> None:
        """Begin a journal, or continue one with the events an earlier owner left."""
        env = config.env
        self.config = config
        self.task = task
        self.kwargs = kwargs
        self.run_id = env.new_id() if run_id is None else run_id
        self.salt = self.run_id
        self.parent = parent
        self.nested = parent is not None and not parent.over
        self.lock = threading.Lock()
        self.time = env.time
        self.busy = config.busy
        self.started = env.monotonic()
        self.held = []
        self.events: list[Event] = []
        if events:
            self.take_in(events)
        else:
            self._begin()

    def _begin(self) -> None:
        """Record the start of the run."""
        config = self.config
        task, args, unstored = _arguments_as_json(self.task, self.kwargs)
        started = RunStarted(
            run_id=self.run_id,
            seq=0,
            time=self.time(),
            agent=config.name,
            task=task,
            args=args,
            unstored=unstored,
            parent=None if self.parent is None else self.parent.run_id,
            code=config.code,
            trace=traceparent_of(config.observers, self.held) if config.observers else "",
        )
        self.events.append(started)
        if config.observers:
            self.tell(started)
        if config.durable:
            if config.generated:
                _warn_of_generated_name(config.name, config.code)
            self.keep(0, since=ticks())

    def take_in(self, events: Sequence[Event]) -> None:
        """Continue the journal of an earlier owner."""
        self.events = list(events)
        started = events[0]
        if isinstance(started, RunStarted) and started.origin is not None:
            self.salt = started.origin.salt
        self.started = self.config.env.monotonic() - active_seconds(events)
        calls = [event for event in events if isinstance(event, CallStarted)]
        self.has_calls = bool(calls)
        if any(call.run is not None for call in calls):
            inner_runs(self)
        if any(isinstance(event, CompensatorRegistered) for event in events):
            self.undo = {}  # their calls must be undone; the callables are found later
        self.lasting = lasting(event.action for event in events if isinstance(event, ActionChosen))
        self.flushed = len(events)
        self._state = None
        self._folded = 0
        if self.config.limits.on_limit != "escalate":
            self.raise_limits()

    def keep(self, epoch: int, *, since: float) -> None:
        """Hand events to the store from now on, as the owner of this epoch.

        since: when ownership was requested, on the clock `ticks`.
        """
        durability = self.config.durability
        if self.flushed and self.config.observers:
            with self.redacting():
                catch_up(self.config.observers, self.events, self.held)
        self.epoch = epoch
        self.durable = durability.mode == "step"
        self.busy = True
        self.keeper = Keeper(
            self.config.store,
            self.run_id,
            self.events,
            durability,
            epoch=epoch,
            flushed=self.flushed,
            since=since,
        )

    @property
    def position(self) -> int:
        """Number of recorded events."""
        return len(self.events)

    def add(
        self, kind: Callable[..., Event], /, **fields: Any
    ) -> Sequence[AbstractContextManager[Any]]:
        """Record an event; return the context managers that observers gave for it."""
        event = self.put(kind, **fields)
        return self.tell(event) if self.config.observers else ()

    def put(self, kind: Callable[..., Event], /, **fields: Any) -> Event:
        """Record an event without telling observers or the store yet."""
        with self.lock:
            return self.put_locked(kind, **fields)

    def put_locked(self, kind: Callable[..., Event], /, **fields: Any) -> Event:
        """Do as `put`, for a caller that holds the lock."""
        event = kind(run_id=self.run_id, seq=len(self.events), time=self.time(), **fields)
        self.events.append(event)
        return event

    def tell(self, event: Event) -> Sequence[AbstractContextManager[Any]]:
        """Tell the observers of an event; return the context managers they gave for it."""
        with self.redacting():
            return notify(self.config.observers, event, self.held)

    def raise_held(self, ended: BaseException | None = None, **attributes: Any) -> None:
        """Raise an observer's exception that ends the program, now that its event is recorded.

        ended: the error that the run would have ended with. attributes: set on the exception.
        """
        if not self.held:
            return
        error = self.held[0]
        self.held.clear()
        for name, value in attributes.items():
            setattr(error, name, value)
            error.add_note(
                f"the agent had finished: its {name} is the attribute `{name}` of this error"
            )
        raise error from ended

    def redacting(self) -> AbstractContextManager[object]:
        """Apply the run's own redactor inside this context, if it has one."""
        redactor = self.config.redactor
        return nullcontext() if redactor is None else redacting(redactor)

    @cached_property
    def guard_turn(self) -> anyio.Lock:
        """Lock of deciding guards, so that concurrent calls are ruled on in their order."""
        return anyio.Lock()

    @cached_property
    def waits(self) -> Waits:
        """The waits of this run that were logged already."""
        return Waits()

    @property
    def named(self) -> str:
        """The run's name in log records: its agent and the beginning of its id."""
        return f"{self.config.name} (run {self.run_id[:8]})"

    def begin(self, event: Event) -> None:
        """Tell the observers and the store that an attempt begins."""
        if self.config.observers:
            self.entered = self.tell(event)
        self.hand_over()

    def hand_over(self) -> None:
        """Hand new events to the store, unless the run is kept only when it ends or waits."""
        if self.keeper is not None and self.config.durability.mode != "exit":
            self.keeper.pump()

    def attend(self, attempt: Recorder) -> None:
        """Stop this attempt once another process owns the run. Raises StaleWriter if one does already."""
        if self.keeper is not None:
            self.keeper.attend(attempt)

    @property
    def state(self) -> RunState:
        """The run's state, folded from the events so far."""
        with self.lock:
            state = self._state
            if state is None:
                state = self._state = RunState()
                state.price = self.config.limits.priced
            for event in self.events[self._folded :]:
                state.apply(event)
            self._folded = len(self.events)
        return state

    @property
    def limits(self) -> Limits:
        """The limits in force: the agent's, raised by a person's grants."""
        return self._raised or self.config.limits

    @property
    def watch(self) -> Limits | None:
        """The limits, if one of them must be checked at each event."""
        return None if self.config.watch is None else self.limits

    def raise_limits(self) -> None:
        """Raise the agent's limits by a person's grants."""
        grants = self.state.grants
        if grants:
            self._raised = self.config.limits.raised(grants)

    def attempt_seconds_left(self) -> float | None:
        """Return the seconds until the run's or the attempt's deadline, the earlier one; None without."""
        left = self.seconds_left()
        allowed = self.limits.attempt_seconds
        if allowed is None:
            return left
        since = self.started if self.attempt_started is None else self.attempt_started
        own = max(0.0, allowed - (self.config.env.monotonic() - since))
        return own if left is None else min(own, left)

    def seconds_left(self) -> float | None:
        """Return the seconds until the run's deadline; None without one."""
        seconds = self.limits.seconds
        if seconds is None:
            return None
        return max(0.0, seconds - (self.config.env.monotonic() - self.started))

    def count_in_parent(self) -> None:
        """Add this inner run's usage to its parent's, each part once."""
        if self.parent is None or self.parent.over:
            return
        used = self.state.usage
        counted = self.parent.session.state.used_inside.get(self.run_id, NO_USAGE)
        cost = used.cost_usd
        if cost is not None:
            cost = max(0.0, cost - (counted.cost_usd or 0.0)) or None
        more = Usage(
            input_tokens=max(0, used.input_tokens - counted.input_tokens),
            output_tokens=max(0, used.output_tokens - counted.output_tokens),
            cost_usd=cost,
            calls=max(0, used.calls - counted.calls),
            model=used.model,
        )
        if more.calls or more.total_tokens or more.cost_usd is not None:
            self.parent.count(more, self.run_id)

    async def flush(self) -> None:
        """Store all events so far. Raises the store's error; may be repeated."""
        if self.keeper is not None:
            await self.keeper.barrier()
            return
        new = self.events[self.flushed :]
        if new:
            # A store without a keeper ends with this process, so that there is nobody to wait for.
            await self.config.store.append(self.run_id, new, at=self.flushed, epoch=self.epoch)
            self.flushed += len(new)

    async def flush_attempt(self) -> None:
        """Flush between two attempts, unless the run is kept only when it ends or waits."""
        if self.keeper is not None and self.config.durability.mode != "exit":
            await self.flush()

    async def barrier(self) -> None:
        """Wait until all events so far are durable, if each call must be (`durable`).

        In every mode, check that this process still owns the run. Raises the store's error, unless the run
        continues without its store.
        """
        if self.keeper is None:
            return
        if self.durable:
            await self.keeper.barrier()
        else:
            await self.keeper.hold()

    def barrier_sync(self) -> None:
        """Do as `barrier` does, for a call in a thread or in sync code."""
        if self.keeper is None:
            return
        if self.durable:
            self.keeper.barrier_sync()
        else:
            self.keeper.hold_sync()

    def failed_with(self, error: BaseException) -> bool:
        """Whether `error` is the store's failure and must end the run."""
        keeper = self.keeper
        if keeper is None or keeper.error is None or keeper.detached:
            return False
        failed = keeper.error
        return any(failed in (one, one.__cause__, one.__context__) for one in leaves(error))

    @property
    def lost(self) -> bool:
        """Whether another process is known to own the run, so that nothing recorded here counts."""
        return self.keeper is not None and self.keeper.lost

    @property
    def has_ended(self) -> bool:
        """Whether the journal holds the run's end."""
        return bool(self.events) and isinstance(self.events[-1], RunFinished)

    @property
    def left_behind(self) -> bool:
        """Whether the attempt that waited for this inner run has ended; the next one continues the run."""
        outer = self.parent if self.nested else None
        return outer is not None and (outer.ending or outer.over or outer.session.left_behind)

    @property
    def is_stored(self) -> bool:
        """Whether the store has all events so far."""
        flushed = self.flushed if self.keeper is None else self.keeper.flushed
        return flushed == len(self.events)

    async def confirm(self) -> None:
        """Check that this process still owns a durable run. Raises StaleWriter if not.

        Raises the store's other errors too, unless the run continues without its store.
        """
        if self.keeper is None:
            return
        try:
            await self.keeper.confirm()
        except Exception as error:
            if not self.does_without_store(error):
                raise

    async def give_back(self) -> None:
        """Release the lease of a durable run, so that `recover` finds it."""
        if self.keeper is not None:
            self.keeper.over = True
            if not isinstance(self.keeper.error, StoreUnavailable):
                await release(
                    self.keeper.store, self.run_id, self.keeper.epoch, self.keeper.lease_s
                )

    def does_without_store(self, error: Exception) -> bool:
        """Whether the run continues although its store failed; log the failure if so.

        False if another process owns the run now.
        """
        if self.config.durability.on_store_error != "continue" or isinstance(error, StaleWriter):
            return False
        logger.error("run %s: the store failed", self.run_id, exc_info=error)
        return True

    async def flush_beside(self, error: BaseException) -> None:
        """Flush while `error` is being raised; log a failure of the store, and note it on `error`."""
        failure: BaseException | None = None
        try:
            await self.flush()
        except Exception as store_error:
            logger.exception("run %s: the store failed", self.run_id)
            failure = store_error
        if self.keeper is not None and self.keeper.detached:
            failure = self.keeper.error  # logged when it happened
        if failure is not None:
            error.add_note(f"the journal was not stored: {type(failure).__name__}: {failure}")


def _arguments_as_json(
    task: Any, kwargs: Mapping[str, Any]
) -> tuple[Any, dict[str, Any], tuple[str, ...]]:
    """Return a run's task and arguments as JSON, and the names of values without an exact JSON form."""
    shown, exact = plain_noting(task)
    unstored = [] if exact else [TASK]
    args: dict[str, Any] = {}
    for name, value in kwargs.items():
        data, exact = plain_noting(value)
        if exact:
            args[name] = data
        else:
            unstored.append(name)
    return shown, args, tuple(unstored)


TASK = "task"
"""The task's name among the arguments that could not be stored."""
