"""One run while it lives: its journal in memory, and the way to the store and the observers."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

from ._env import Environment
from ._inside import inside
from ._journal import CODES, STARTED, WIDTH, Journal, active_seconds, advance, event_at, record_from
from ._plain import plain_noting
from .errors import StaleWriter
from .events import CallStarted, CompensatorRegistered, Event
from .observers import Observer, logger, notify
from .redact import redacting
from .state import RunState

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._inside import Inside
    from ._keeper import Keeper
    from ._recorded import Question
    from ._recorder import Recorder
    from ._redactor import Redactor
    from ._results import Returns
    from ._suspensions import Suspensions
    from .checks import Checks, Durability
    from .classifiers.base import Classifier
    from .limits import Limits
    from .policy import FailurePolicy
    from .stores.base import Store
    from .watching import Watching


FIRST_LOOK = 4
"""Index of the step of an attempt at which its steps are first looked at."""


@dataclass(frozen=True, eq=False, repr=False)
class Config:
    """What an `Agent` was made with. policy, classifier: None means the recommended ones.

    parameters: what the function takes by keyword, None for anything. plain: no limit needs a scope
    around the attempts and no observer listens. watch: the limits, where one must be looked at with
    each event. busy: there are observers or there is a limit to watch. watching: what is done about
    loops, as `Checks.watch`. first_look: steps of an attempt before they are looked at. durable: the
    store outlives this process. code: fingerprint of the function where it does, else empty.
    suspensions: the runs that wait in this process. returns: what a result is declared to be.
    function: what is run. redactor: the run's own, None for the usual one.
    """

    name: str
    policy: FailurePolicy | None
    classifier: Classifier | None
    limits: Limits
    store: Store
    checks: Checks | None
    durability: Durability
    observers: tuple[Observer, ...]
    env: Environment
    parameters: frozenset[str] | None
    plain: bool
    watch: Limits | None
    busy: bool
    watching: bool | Watching
    first_look: float
    durable: bool
    code: str
    suspensions: Suspensions
    returns: Returns
    function: Callable[..., Any]
    redactor: Redactor | None


class Session:
    """The journal of a living run. Recording is safe from any thread.

    `state` is folded when it is asked for, so that recording costs the same whatever has happened.
    """

    # Most runs never set these: as class attributes they cost a run nothing. What every run reads is set
    # in each, as a class attribute is found four times as slowly.
    entered: Sequence[AbstractContextManager[Any]] = ()
    epoch = 0
    flushed = 0
    attempt_started: float | None = None
    # What only this process has: results without a JSON form by call key, and the callables of
    # compensators by the position of their registration.
    live: dict[str, Any] | None = None
    undo: dict[int, Callable[[], Any]] | None = None
    question: Question | None = None
    has_calls = False
    # Of the runs inside this one, where there are any; of one inside another: that one may go on with it.
    inner: Inside | None = None
    comes_back = False
    # Of a run in a durable store, and whether each call waits until it is durable.
    keeper: Keeper | None = None
    durable = False
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
    ) -> None:
        env = config.env
        self.config = config
        self.task = task
        self.kwargs = kwargs
        self.run_id = env.new_id() if run_id is None else run_id
        self.parent = parent
        self.lock = next(_locks)
        self.time = env.time
        self.busy = config.busy
        self.started = env.monotonic()
        self.inner = self.keeper = None
        self.epoch = self.flushed = 0
        # What most runs do not have is left to the defaults: a tuple of texts costs the collector nothing.
        fields: tuple[Any, ...] = (config.name, task)
        if kwargs or parent is not None or config.code or type(task) is not str:
            args, unstored = _stored(kwargs)
            shown, exact = plain_noting(task)
            above = None if parent is None else parent.run_id
            unstored = unstored if exact else (TASK, *unstored)
            fields = (config.name, shown, args, unstored, above, config.code)
        self.records: list[Any] = [STARTED, env.time(), fields, None, None]
        if config.observers:
            self.tell(0)
        if config.durable:
            self.keep(0)

    @classmethod
    def restored(
        cls, config: Config, events: Sequence[Event], kwargs: Mapping[str, Any], task: Any
    ) -> Session:
        """The session of a run that another process, or an earlier one, has left in the store."""
        session = cls.__new__(cls)
        session.config = config
        session.task = task
        session.kwargs = kwargs
        session.run_id = events[0].run_id
        session.parent = None
        session.lock = next(_locks)
        session.time = config.env.time
        session.busy = config.busy
        session.take_in(events)
        return session

    def take_in(self, events: Sequence[Event]) -> None:
        """Begin with the journal as its last owner has left it."""
        self.records = [place for event in events for place in record_from(event)]
        self.started = self.config.env.monotonic() - active_seconds(events)
        calls = [event for event in events if isinstance(event, CallStarted)]
        self.has_calls = bool(calls)
        if any(call.run is not None for call in calls):
            inside(self)
        if any(isinstance(event, CompensatorRegistered) for event in events):
            self.undo = {}  # what they undo must not be passed over, although nothing is at hand yet
        self.flushed = len(events)
        self._state = None
        self._folded = 0
        if self.config.limits.on_limit != "escalate":
            self.raise_limits()

    def keep(self, epoch: int) -> None:
        """Hand over what is recorded to the store from now on, as its owner of this epoch."""
        from ._keeper import Keeper

        durability = self.config.durability
        self.epoch = epoch
        self.durable = durability.mode == "step"
        self.busy = True
        self.keeper = Keeper(
            self.config.store,
            self.run_id,
            self.records,
            epoch=epoch,
            flushed=self.flushed,
            lease_s=durability.lease_s,
            redactor=durability.redactor if self.config.durable else None,
            required=durability.on_store_error == "fail",
        )

    @property
    def events(self) -> Journal:
        """What has been recorded up to now."""
        return Journal(self.run_id, self.records, 0, self.position)

    @property
    def position(self) -> int:
        """How many events have been recorded."""
        return len(self.records) // WIDTH

    def add(
        self, kind: Callable[..., Event], *fields: Any
    ) -> Sequence[AbstractContextManager[Any]]:
        """Record an event; the context managers that observers gave for it."""
        seq = self.put(kind, fields)
        return self.tell(seq) if self.config.observers else ()

    def put(self, kind: Callable[..., Event], fields: tuple[Any, ...]) -> int:
        """Record an event that nobody is told of; its position."""
        records = self.records
        self.lock.acquire()  # not `with`, which takes three times as long
        try:
            seq = len(records) // WIDTH
            records += (CODES[kind], self.time(), fields, None, None)
        finally:
            self.lock.release()
        return seq

    def tell(self, seq: int) -> Sequence[AbstractContextManager[Any]]:
        """Tell the observers of the event at a position; the context managers they gave for it."""
        event = event_at(self.run_id, self.records, seq)
        if self.config.redactor is None:
            return notify(self.config.observers, event)
        with redacting(self.config.redactor):
            return notify(self.config.observers, event)

    def begin(self, seq: int) -> None:
        """An attempt begins with the event at this position: tell the observers, and the store."""
        if self.config.observers:
            self.entered = self.tell(seq)
        if self.keeper is not None and self.config.durability.mode != "exit":
            self.keeper.pump()

    @property
    def state(self) -> RunState:
        """The run as its events tell it up to now."""
        state = self._state
        if state is not None and self._folded == len(self.records) // WIDTH:
            return state
        self.lock.acquire()  # as in `put`
        try:
            state = self._state
            if state is None:
                state = self._state = RunState()
                state.price = self.config.limits.priced
            end = len(self.records) // WIDTH
            advance(state, self.run_id, self.records, self._folded, end)
            self._folded = end
        finally:
            self.lock.release()
        return state

    @property
    def limits(self) -> Limits:
        """What the run may use: the agent's limits, and what was allowed beyond them."""
        return self._raised or self.config.limits

    @property
    def watch(self) -> Limits | None:
        """The limits, where one must be looked at with each event."""
        return None if self.config.watch is None else self.limits

    def raise_limits(self) -> None:
        """Take in what was allowed beyond the agent's limits."""
        grants = self.state.grants
        if grants:
            self._raised = self.config.limits.raised(grants)

    def attempt_seconds_left(self) -> float | None:
        """Until the first of the run's and the attempt's deadlines; None without either."""
        left = self.seconds_left()
        allowed = self.limits.attempt_seconds
        if allowed is None:
            return left
        since = self.started if self.attempt_started is None else self.attempt_started
        own = max(0.0, allowed - (self.config.env.monotonic() - since))
        return own if left is None else min(own, left)

    def seconds_left(self) -> float | None:
        """Until the run's deadline; None without one."""
        seconds = self.limits.seconds
        if seconds is None:
            return None
        return max(0.0, seconds - (self.config.env.monotonic() - self.started))

    async def flush(self) -> None:
        """Have all that is recorded stored. Raises what the store raises, and may be called again."""
        if self.keeper is not None:
            await self.keeper.barrier()
            return
        at, end = self.flushed, len(self.records) // WIDTH
        if at < end:
            new = Journal(self.run_id, self.records, at, end)
            await self.config.store.append(self.run_id, new, at=at, epoch=self.epoch)
            self.flushed = end

    async def flush_attempt(self) -> None:
        """`flush` between two attempts, unless nothing need be kept before the run ends or waits."""
        if self.keeper is not None and self.config.durability.mode != "exit":
            await self.flush()

    async def barrier(self) -> None:
        """Wait until all that is recorded is durable, where each call must be; see `durable`.

        Raises what the store failed with, unless the run goes on without it.
        """
        if self.keeper is not None and self.durable:
            await self.keeper.barrier()

    def barrier_sync(self) -> None:
        """`barrier` for a call that stands in a thread or in sync code."""
        if self.keeper is not None and self.durable:
            self.keeper.barrier_sync()

    def failed_with(self, error: BaseException) -> bool:
        """Whether the run must end because its store failed, and this says so."""
        keeper = self.keeper
        if keeper is None or keeper.error is None or keeper.detached:
            return False
        return keeper.error in (error, error.__cause__, error.__context__)

    def does_without_store(self, error: Exception) -> bool:
        """Whether the run goes on although its store failed so; logs the failure if it does.

        Never where another process owns the run now: this one must stop.
        """
        if self.config.durability.on_store_error != "continue" or isinstance(error, StaleWriter):
            return False
        logger.error("run %s: the store failed", self.run_id, exc_info=error)
        return True

    async def flush_beside(self, error: BaseException) -> None:
        """Flush while `error` is on its way: a store that fails is logged and noted on it."""
        try:
            await self.flush()
        except Exception as store_error:  # noqa: BLE001 - logged and noted
            logger.exception("run %s: the store failed", self.run_id)
            error.add_note(
                f"the journal was not stored: {type(store_error).__name__}: {store_error}"
            )


NOTHING: Mapping[str, Any] = {}

# Runs share a few locks, held while an event is written down or the journal is read, and never while
# code of others runs: one a run would be an object more that the collector must look at. A forked
# child takes new ones, as another thread may have held these.
_locks: Iterator[threading.Lock] = cycle([threading.Lock() for _ in range(16)])


def _take_new_locks() -> None:
    global _locks  # noqa: PLW0603 - what a fork leaves behind cannot be mended in place
    _locks = cycle([threading.Lock() for _ in range(16)])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_take_new_locks)
TASK = "task"
"""Among the names of what could not be stored: the task."""


def _stored(kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The arguments as JSON, and the names of those that have no exact form."""
    args: dict[str, Any] = {}
    unstored: list[str] = []
    for name, value in kwargs.items():
        data, exact = plain_noting(value)
        if exact:
            args[name] = data
        else:
            unstored.append(name)
    return args, tuple(unstored)
