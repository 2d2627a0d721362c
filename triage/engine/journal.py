"""One run while it lives: its journal in memory, and its way to the store and the observers."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property, lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import anyio

from triage.core import (
    NO_USAGE,
    ActionChosen,
    Attempt,
    CallFinished,
    CallStarted,
    CompensatorRegistered,
    Diagnosis,
    Event,
    FailureType,
    Redactor,
    RunFinished,
    RunStarted,
    RunState,
    RunSuspended,
    StaleWriter,
    StateUpdated,
    StoreUnavailable,
    Usage,
    active_seconds,
    catch_up,
    child_logger,
    digest,
    lasting,
    leaves,
    logger,
    notify,
    plain_noting,
    redacted,
    redacting,
    traceparent_of,
)
from triage.core.large_values import fitting
from triage.core.waiting import Waits
from triage.stores import Outgoing, Store, ThreadWaiter, Waiter, slow_store, ticks
from triage.strategies import Limits

from .config import Config, outlives, patience_of, silent, soon
from .options import Durability

if TYPE_CHECKING:
    from .questions import Question
    from .run import Recorder


# State of inner runs that is not in the journal.


class Inside:
    """State of a run's inner runs that only this process has.

    asked: the errors by which inner runs said that they wait for an answer, and their questions. answers:
    answers given to this run that are meant for an inner run, by the digest of its question's token. left:
    sessions of inner runs that were cut off, by id, for what only they have: results without a JSON form,
    compensators, and their own inner runs.
    """

    __slots__ = ("answers", "asked", "left")

    def __init__(self) -> None:
        self.asked: list[tuple[BaseException, Question]] = []
        self.answers: dict[str, Any] = {}
        self.left: dict[str, Session] = {}


def inside(session: Session) -> Inside:
    """Return the `Inside` of a run, made at first use."""
    if session.inner is None:
        session.inner = Inside()
    return session.inner


def inner_id(session: Session, key: str, bound: dict[str, Any]) -> str:
    """Return the id of a call's inner run: the one the caller chose, or one kept until that run ends."""
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


# Keeping a living run in a durable store: its events go there by themselves, and its lease is renewed.
#
# One batch of a run is on its way at a time. Events recorded meanwhile go with the next, so a burst of
# steps is one commit. Secrets are removed and events encoded on the store's side.


W = TypeVar("W", Waiter, ThreadWaiter)
BEATS = 3
"""A lease is renewed so many times in its length."""
TRIES = 6
"""A renewal is given up after this fraction of the lease."""
PAUSES = 30
"""A renewal that failed is tried again after this fraction of the lease."""


class Keeper:
    """Hands one run's events to its store and renews its lease, from any thread and event loop.

    flushed: how many events the store has. error: the store's failure, after which nothing more is handed
    over. detached: the run goes on without the store, unless another process has taken it over. since:
    when the lease began. held_until: until when the lease certainly lasts. due: when it should be renewed.
    All three are on the clock `ticks`. secret_ok: keys of the state that may hold a secret without a word.
    """

    def __init__(
        self,
        store: Store,
        run_id: str,
        events: list[Event],
        durability: Durability,
        *,
        epoch: int,
        flushed: int,
        since: float,
    ) -> None:
        self.store = store
        self.run_id = run_id
        self.epoch = epoch
        self.flushed = flushed
        self.lease_s = durability.lease_s
        self.secret_ok: set[str] = set()
        self._warned = False
        self._slow = slow_store(f"run {run_id[:8]}", Waits())
        self.error: BaseException | None = None
        self.detached = False
        self.over = False
        self.held_until = since + self.lease_s
        self.due = since + self.lease_s / BEATS
        self._troubled = False
        self._events = events
        self._durability = durability
        self._lock = threading.Lock()
        self._on_its_way = False
        self._wanted = 0
        self._waiting: list[tuple[int, Waiter | ThreadWaiter]] = []
        self._attempt: weakref.ref[Recorder] | None = None
        _heart.add(self)

    def attend(self, attempt: Recorder) -> None:
        """Stop this attempt once the run is lost. Raises StaleWriter where it is already."""
        self._attempt = weakref.ref(attempt)
        if self.lost:
            self.check()

    def _stop(self) -> None:
        attempt = None if self._attempt is None else self._attempt()
        if attempt is not None:
            attempt.stop(_LOST)

    # --- handing over ---

    def pump(self) -> None:
        """Hand new events to the store; while a batch is on its way, `_batch_ended` sends the next."""
        with self._lock:
            start, stop = self.flushed, len(self._events)
            self._wanted = stop
            if self._on_its_way or start >= stop:
                return
            going = self._on_its_way = self.error is None
        # A run that waits or has ended has no lease to be renewed.
        self.over = isinstance(self._events[stop - 1], RunFinished | RunSuspended)
        if not going:
            return
        events = Outgoing(self._events[start:stop], self._kept)
        done = partial(self._batch_ended, stop, ticks())
        try:
            self.store.submit(
                self.run_id, events, at=start, epoch=self.epoch, lease_s=self.lease_s, done=done
            )
        except Exception as error:
            done(error)

    def _kept(self, event: Event) -> Event:
        """Return what the store may keep of an event; called in the store's thread."""
        if not outlives(self.store):
            return event
        redactor = self._durability.redactor
        event = fitting(event, self._durability.max_value, redactor, self._effect_of)
        if redactor is None:
            return event
        shown = redacted(event, redactor, self._durability.keys)
        if shown is not event and isinstance(event, StateUpdated):
            self._warn_of_secrets(redactor, event.values)
        return shown

    def _effect_of(self, finished: CallFinished) -> str:
        """Find the effect of the call that has ended."""
        begun = (event for event in reversed(self._events) if isinstance(event, CallStarted))
        return finished.effect or next(
            (event.effect for event in begun if event.key == finished.key), ""
        )

    def _batch_ended(self, stop: int, sent: float, error: BaseException | None) -> None:
        """Note that a batch was stored or has failed; called in the store's thread."""
        with self._lock:
            self._on_its_way = False
            if error is None:
                self.flushed = stop
                self._extended(sent)
            else:
                self._fail(error)
            waiting = self._waiting
            if waiting:
                self._waiting = []
                for entry in waiting:
                    if error is None and entry[0] > stop:
                        self._waiting.append(entry)
                    else:
                        entry[1].wake()
            more = self._wanted > stop
        if self.lost:
            self._stop()
        if error is not None and self.detached:
            logger.error("run %s goes on without its store", self.run_id, exc_info=error)
        if more:
            self.pump()

    def _fail(self, error: BaseException) -> None:
        # In this order, since a thread that sees the error then reads `detached`.
        self.detached = self._durability.on_store_error == "continue" and not isinstance(
            error, StaleWriter
        )
        self.error = error

    def _awaited(self, new: Callable[[], W]) -> W | None:
        """Return a waiter that wakes when the store has all events so far; None if it already has them."""
        target = len(self._events)
        if self._wanted < target:
            self.pump()
        with self._lock:
            if self.flushed >= target or self.error is not None:
                return None
            waiting = new()
            self._waiting.append((target, waiting))
            return waiting

    async def barrier(self) -> None:
        """Wait until all events so far are durable and the lease certainly lasts. Raises the store's error.

        A store that says nothing for the length of a lease is StoreUnavailable. Cancelling the wait does
        not keep the events from being stored.
        """
        waiting = self._awaited(partial(Waiter, self._slow))
        if waiting is not None:
            patience = patience_of(self.lease_s)
            with anyio.move_on_after(patience) as limit:
                await waiting
            if limit.cancelled_caught:
                self._fail(silent(patience))
        await self.hold()

    def barrier_sync(self) -> None:
        """`barrier` for a thread that may block. The store has threads of its own."""
        waiting = self._awaited(partial(ThreadWaiter, self._slow))
        patience = patience_of(self.lease_s)
        if waiting is not None and not waiting.wait(patience):
            self._fail(silent(patience))
        self.hold_sync()

    def check(self) -> None:
        """Raise the store's error if the run must not go on without the store."""
        if self.error is not None and not self.detached:
            raise self.error

    async def confirm(self) -> None:
        """Renew the lease. Raises StaleWriter, and stops writing, if another process owns the run now."""
        self.check()
        # A run of which nothing is stored yet has no owner, nor has one that goes on without its store.
        if self.flushed == 0 or self.error is not None:
            return
        sent = ticks()
        try:
            renewing = self.store.renew(self.run_id, epoch=self.epoch, lease_s=self.lease_s)
            await soon(renewing, self.lease_s)
        except StaleWriter as error:
            self._fail(error)
            raise
        self._extended(sent)

    @property
    def lost(self) -> bool:
        """Whether another process is known to have taken over the run."""
        return isinstance(self.error, StaleWriter)

    def _warn_of_secrets(self, redactor: Redactor, values: Mapping[str, Any]) -> None:
        """Log once for each run that its state holds a secret, which will not survive this process."""
        if self._durability.keys is not None or self._warned:
            return
        looked_at = {key: value for key, value in values.items() if key not in self.secret_ok}
        places = redactor.fields_of(looked_at, "state")
        if places:
            self._warned = True
            logger.warning(
                "run %s: %s holds what looks like a secret, which no store keeps; give it again with "
                "recover(run_id, state={…}), or have it kept encrypted by Durability(key=…)",
                self.run_id,
                places[0],
            )

    # --- the lease ---

    def _extended(self, since: float) -> None:
        """Note that the lease was extended by what was sent at `since`, so not before that moment."""
        self.held_until = max(self.held_until, since + self.lease_s)
        self.due = max(self.due, since + self.lease_s / BEATS)

    @property
    def _is_held(self) -> bool:
        """Whether nobody else can own the run now. A run without a working store does not ask."""
        return self.flushed == 0 or self.error is not None or ticks() < self.held_until

    async def hold(self) -> None:
        """Renew a lease that may have ended, within the length of a lease. Raises the store's error."""
        if not self._is_held:
            try:
                with anyio.fail_after(self.lease_s):
                    await self.confirm()
            except TimeoutError:
                self._fail(
                    StoreUnavailable(
                        f"run {self.run_id}: its lease may have ended, and the store has not renewed it "
                        f"in {self.lease_s:g} s"
                    )
                )
            except Exception as error:
                self._fail(error)
        self.check()

    def hold_sync(self) -> None:
        """`hold` for a thread that may block."""
        if not self._is_held:
            thread = threading.Thread(target=self._hold_in_a_thread, name="triage-hold")
            thread.start()
            thread.join()
        self.check()

    def _hold_in_a_thread(self) -> None:
        with suppress(Exception):  # `check` raises it where it is waited for
            asyncio.run(self.hold())

    async def renew(self, patience: float) -> None:
        """Renew the lease. A run that was taken over learns it here at the latest.

        patience: seconds after which this try is given up.
        """
        sent = ticks()
        try:
            # A run of which nothing is stored yet has no lease.
            if self.flushed:
                renewing = self.store.renew(self.run_id, epoch=self.epoch, lease_s=self.lease_s)
                await asyncio.wait_for(renewing, patience)
        except StaleWriter as error:
            self._fail(error)
            self._stop()
        except Exception as error:
            if not self._troubled:
                logger.warning("run %s: its lease was not renewed: %r", self.run_id, error)
            self._troubled = True
            self.due = ticks() + self.lease_s / PAUSES
        else:
            self._troubled = False
            self._extended(sent)


class _Heart:
    """Renews the leases of this process' runs, in one thread for all, made with the first of them."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all runs: a forked child keeps none of its parent's."""
        self._keepers: WeakSet[Keeper] = WeakSet()
        self._lock = threading.Lock()
        self._new = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, keeper: Keeper) -> None:
        """Renew this run's lease from now on, until the run is over."""
        with self._lock:
            self._keepers.add(keeper)
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, name="triage-heart", daemon=True)
                self._thread.start()
        self._new.set()

    def hurry(self, run_id: str) -> None:
        """Renew the lease of a run at once, if it is this process': it may have lost the run."""
        with self._lock:
            for keeper in self._keepers:
                if keeper.run_id == run_id:
                    keeper.due = 0.0
        self._new.set()

    def _beat(self) -> None:
        while True:
            with self._lock:
                living = [
                    keeper
                    for keeper in self._keepers
                    if not keeper.over and (keeper.error is None or keeper.detached)
                ]
                self._keepers = WeakSet(living)
                if not living:
                    self._thread = None
                    return
            now = ticks()
            due = [keeper for keeper in living if keeper.due <= now]
            if due:
                # A store that hangs must not keep the others' leases waiting.
                patience = min(keeper.lease_s for keeper in living) / TRIES
                asyncio.run(_renew(due, patience))
            pause = max(0.0, min(keeper.due for keeper in living) - ticks())
            del living, due
            self._new.wait(pause)
            self._new.clear()


async def _renew(keepers: list[Keeper], patience: float) -> None:
    await asyncio.gather(*(keeper.renew(patience) for keeper in keepers))


_LOST = Diagnosis(
    FailureType.UNKNOWN,
    technical_details="the run was cancelled, or taken over by another process",
    user_message="The work was ended or goes on elsewhere.",
    classifier="lease",
)
"""Why an attempt is stopped whose run is somebody else's."""


_heart = _Heart()


def hurry(run_id: str) -> None:
    """Have this process notice at once that it has lost a run."""
    _heart.hurry(run_id)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_heart.reset)


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

    `state` is folded when it is asked for.
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
    # What the caller handles while the run goes on: no context of the run's own errors.
    handled: BaseException | None = None
    # Run when the run ends in a failure, by the adapter that registered it in the last attempt.
    at_failure: dict[str, Callable[[], Awaitable[object]]] | None = None
    # Requests to models that failed and were made again in their place, as attempts.
    tries: tuple[Attempt, ...] = ()
    tries_told = 0
    # Names of tools that are known to record their calls, beside those that the function refers to.
    recorded_tools: frozenset[str] = frozenset()
    has_calls = False
    # inner: state of this run's inner runs, if it has any. nested: this is an inner run, which an attempt
    # waits for. comes_back: and its outer run may go on with it.
    inner: Inside | None = None
    nested = False
    comes_back = False
    # The hint for the first attempt of an inner run that replaces one that has ended.
    first_hint: str | None = None
    # The keeper of a run in a durable store, and whether each call waits until it is durable.
    keeper: Keeper | None = None
    durable = False
    # Fields of past Retry actions that hold until the run ends, by name.
    lasting: Mapping[str, Any] = MappingProxyType({})
    # What observers have raised to end the program: see `raise_held`.
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
        task, args, unstored = _given(self.task, self.kwargs)
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
        """Continue the journal that its last owner left."""
        self.events = list(events)
        started = events[0]
        if isinstance(started, RunStarted) and started.origin is not None:
            self.salt = started.origin.salt
        self.started = self.config.env.monotonic() - active_seconds(events)
        calls = [event for event in events if isinstance(event, CallStarted)]
        self.has_calls = bool(calls)
        if any(call.run is not None for call in calls):
            inside(self)
        if any(isinstance(event, CompensatorRegistered) for event in events):
            self.undo = {}  # their calls must be undone, although the callables are not known yet
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
        """How many events have been recorded."""
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
        """As `put`, for a caller that holds the lock."""
        event = kind(run_id=self.run_id, seq=len(self.events), time=self.time(), **fields)
        self.events.append(event)
        return event

    def tell(self, event: Event) -> Sequence[AbstractContextManager[Any]]:
        """Tell the observers of an event; return the context managers they gave for it."""
        with self.redacting():
            return notify(self.config.observers, event, self.held)

    def raise_held(self, ended: BaseException | None = None, **given: Any) -> None:
        """Raise what an observer has raised to end the program, now that its event is recorded.

        ended: the error that the run ends with instead. given: attributes that the exception gets.
        """
        if not self.held:
            return
        error = self.held[0]
        self.held.clear()
        for name, value in given.items():
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
        """Held while a sync guard decides, so that calls made at once are ruled on in their order."""
        return anyio.Lock()

    @cached_property
    def waits(self) -> Waits:
        """What has been said of the waits of this run."""
        return Waits()

    @property
    def named(self) -> str:
        """The run as log records call it: its agent and the beginning of its id."""
        return f"{self.config.name} (run {self.run_id[:8]})"

    def begin(self, event: Event) -> None:
        """Tell the observers and the store of the event with which an attempt begins."""
        if self.config.observers:
            self.entered = self.tell(event)
        self.hand_over()

    def hand_over(self) -> None:
        """Hand new events to the store, unless the run is kept only when it ends or waits."""
        if self.keeper is not None and self.config.durability.mode != "exit":
            self.keeper.pump()

    def attend(self, attempt: Recorder) -> None:
        """Stop this attempt once another process owns the run.

        Raises StaleWriter where one does already.
        """
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
        """The limits in force: the agent's, raised by what a person allowed on top."""
        return self._raised or self.config.limits

    @property
    def watch(self) -> Limits | None:
        """The limits, if one of them must be checked at each event."""
        return None if self.config.watch is None else self.limits

    def raise_limits(self) -> None:
        """Raise the agent's limits by what a person allowed on top."""
        grants = self.state.grants
        if grants:
            self._raised = self.config.limits.raised(grants)

    def attempt_seconds_left(self) -> float | None:
        """Seconds until the earlier of the run's and the attempt's deadlines; None without either."""
        left = self.seconds_left()
        allowed = self.limits.attempt_seconds
        if allowed is None:
            return left
        since = self.started if self.attempt_started is None else self.attempt_started
        own = max(0.0, allowed - (self.config.env.monotonic() - since))
        return own if left is None else min(own, left)

    def seconds_left(self) -> float | None:
        """Seconds until the run's deadline; None without one."""
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
        """Store all events so far. Raises the store's error; may be called again."""
        if self.keeper is not None:
            await self.keeper.barrier()
            return
        new = self.events[self.flushed :]
        if new:
            lease_s = self.config.durability.lease_s
            append = self.config.store.append(self.run_id, new, at=self.flushed, epoch=self.epoch)
            await soon(append, lease_s)
            self.flushed += len(new)

    async def flush_attempt(self) -> None:
        """Flush between two attempts, unless the run is kept only when it ends or waits."""
        if self.keeper is not None and self.config.durability.mode != "exit":
            await self.flush()

    async def barrier(self) -> None:
        """Wait until all events so far are durable, in the mode where each call must be (`durable`).

        In every mode, make sure that the run is still ours. Raises the store's error, unless the run goes
        on without its store.
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
        """Return whether `error` is the store's failure and must end the run."""
        keeper = self.keeper
        if keeper is None or keeper.error is None or keeper.detached:
            return False
        failed = keeper.error
        return any(failed in (one, one.__cause__, one.__context__) for one in leaves(error))

    @property
    def lost(self) -> bool:
        """Whether another process is known to own the run, so that nothing said here counts."""
        return self.keeper is not None and self.keeper.lost

    @property
    def has_ended(self) -> bool:
        """Whether the run has its end in the journal."""
        return bool(self.events) and isinstance(self.events[-1], RunFinished)

    @property
    def left_behind(self) -> bool:
        """Whether the attempt that waited for this inner run has ended. Its next one goes on with it."""
        outer = self.parent if self.nested else None
        return outer is not None and (outer.ending or outer.over or outer.session.left_behind)

    @property
    def is_stored(self) -> bool:
        """Whether the store has all events so far."""
        flushed = self.flushed if self.keeper is None else self.keeper.flushed
        return flushed == len(self.events)

    async def confirm(self) -> None:
        """Make sure that this process still owns a durable run. Raises StaleWriter where it does not.

        Any other failure of the store is raised too, unless the run goes on without it.
        """
        if self.keeper is None:
            return
        try:
            await self.keeper.confirm()
        except Exception as error:
            if not self.does_without_store(error):
                raise

    async def give_back(self) -> None:
        """Give a durable run back to its store, where `recover` finds it."""
        if self.keeper is not None:
            self.keeper.over = True
            if not isinstance(self.keeper.error, StoreUnavailable):
                await release(
                    self.keeper.store, self.run_id, self.keeper.epoch, self.keeper.lease_s
                )

    def does_without_store(self, error: Exception) -> bool:
        """Return whether the run goes on although its store failed; log the failure if it does.

        It never does where another process owns the run now.
        """
        if self.config.durability.on_store_error != "continue" or isinstance(error, StaleWriter):
            return False
        logger.error("run %s: the store failed", self.run_id, exc_info=error)
        return True

    async def flush_beside(self, error: BaseException) -> None:
        """Flush while `error` is being raised. A failure of the store is logged and noted on `error`."""
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


async def release(store: Store, run_id: str, epoch: int, lease_s: float = 0.0) -> None:
    """Give a run back to its store. Errors are logged only, since the lease ends by itself."""
    try:
        await soon(store.release(run_id, epoch=epoch), lease_s)
    except Exception as error:
        logger.warning("run %s: not released: %s", run_id, error)


def _given(task: Any, kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any], tuple[str, ...]]:
    """A run's task and arguments as JSON, and the names of those that JSON does not hold exactly."""
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
