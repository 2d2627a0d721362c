"""One attempt: its guidance, its recordings, and how it is stopped."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, cast
from weakref import WeakSet, WeakValueDictionary, ref

import anyio
import anyio.lowlevel
from msgspec.structs import replace

from triage.core import events
from triage.core.actions import Action
from triage.core.asking import scheduler
from triage.core.constructors import Struct, construct
from triage.core.diagnosis import Diagnosis
from triage.core.errors import AttemptInterrupted, AttemptOver, UsageError, refuse
from triage.core.failures import Attempt, ErrorInfo
from triage.core.json_values import exact, plain, plain_noting
from triage.core.messages.receipts import with_receipts
from triage.core.observers import logger
from triage.core.state import Call, is_call, is_reused
from triage.core.steps import Step, Trajectory, Usage
from triage.strategies.limits import Limits

from .event_loop import Cancellations, current_caller, current_task
from .journal import Session
from .returning import Reach
from .tools import Tool, Undoing, calling, module_of, name_of
from .watching import LoopsBefore, Watcher, watcher_of

if TYPE_CHECKING:
    from .call_keys import Tally

# The guidance of an attempt, and the recorded calls it may reuse.


class Guidance(Struct, frozen=True):
    """Instructions for an attempt, built from the last action; all None in the first attempt.

    hint, subgoal, state: as `_triage_hint`, `_triage_subgoal`, `_triage_state`. diagnosis, action: of
    the previous attempt. inject: keyword arguments for this attempt.

    The other fields change requests to models, and last until an action sets them again. model: the model
    to ask. keep_last: number of last messages that keep the outputs of tools. summary: replaces the rest,
    with a line for each call that must not be repeated. max_characters: bound on a conversation.
    output_factor: multiplies the request's own limit on the answer.
    """

    hint: str | None = None
    subgoal: str | None = None
    state: Mapping[str, Any] | None = None
    diagnosis: Diagnosis | None = None
    action: Action | None = None
    inject: Mapping[str, Any] | None = None
    model: str | None = None
    keep_last: int | None = None
    summary: str | None = None
    max_characters: int | None = None
    output_factor: int | None = None


class Replay(Struct, frozen=True):
    """Recorded calls that an attempt may reuse.

    kind: of the action before it. kept: keys of the calls whose steps a rollback kept. unmatched: by tool,
    keys of earlier unsafe calls that this attempt has not repeated yet. reach: which earlier reads and
    model calls are reused. begun: number of the attempt that this one continues after an answer or a crash;
    else its own number.
    """

    kind: str
    kept: frozenset[str]
    unmatched: dict[str, set[str]]
    reach: Reach
    begun: int

    def meet(self, tool: str, key: str) -> None:
        """Note that the attempt has made this call."""
        self.unmatched.get(tool, set()).discard(key)


NO_GUIDANCE = Guidance()


SEAM = "triage.seam"
"""Module that sees requests leave. By name, as the engine knows no transport."""

GRACE = 5.0
"""Seconds for an interrupted attempt to stop before it is reported and cancelled again."""

UNSTOPPABLE_GRACE = 10.0
"""Seconds to wait for running unsafe calls without a timeout before they are cut off."""


def sees_requests(session: Session) -> bool:
    """Whether the seam records the run's requests to models."""
    return session.config.seam == "on" and not import_module(SEAM).is_off()


class Recorder:
    """Records one attempt of a run. Safe to use from tasks and threads of the attempt.

    After the attempt every recording raises `AttemptOver`; after an interrupt, `AttemptInterrupted`.
    """

    session: Session
    number: int
    # alert: a recording may have to be refused; one flag keeps the usual path short. calls_open: number of
    # running unsafe calls. ending: the function has ended, and no unsafe call may begin.
    alert: bool
    interrupt: Diagnosis | None
    calls_open: int
    ending = False
    over = False
    scope: anyio.CancelScope | None = None
    # Under asyncio: cancellations of the attempt's task. owner: that task, if there is no scope; cancelled:
    # how often this attempt cancelled it.
    cancellations: Cancellations | None = None
    owner: asyncio.Task[Any] | None = None
    cancelled = 0
    # The task of the agent function, or the thread of a sync one.
    caller = 0
    # Set when the last unsafe call has ended.
    _settled: threading.Event | None = None
    _held_deadline = 0.0
    # cut: an unsafe call ran on too long after the interrupt, and was cut off. alarm: stops the attempt at
    # its deadline while an unsafe call runs. patience: end of the running calls' timeouts. stopped: time of
    # the interrupt. Both in monotonic seconds. threads: scopes that shield the waits for threads.
    cut = False
    _alarm: threading.Timer | None = None
    _patience = 0.0
    _stopped = 0.0
    _threads: set[anyio.CancelScope] | None = None
    _thread = 0
    _in_loop: Callable[[Callable[[], object]], None]
    # Limits checked at each recording; running calls not counted yet, by tool.
    _watch: Limits | None = None
    _running: dict[str, int] | None = None
    _inner_attempts: WeakSet[Recorder] | None = None
    # Reports an attempt that does not stop.
    _unstopped: threading.Timer | None = None
    _reported = False
    # Counts the calls; None until the first call, unless earlier attempts made some.
    tally: Tally | None = None
    # The agent took an earlier attempt's state, so it may start in the middle.
    took_state = False
    _updated = False
    # Diagnosis of a loop that watching has found, for the running agent.
    live: Diagnosis | None = None
    hint_read = False
    # Loops of earlier attempts; None if none of them may interrupt this attempt.
    loops_before: LoopsBefore | None = None
    _watcher: Watcher | None = None
    # Called with the function's error once it has ended, while recording is still open.
    at_end: tuple[Callable[[BaseException | None], object], ...] = ()
    # Called with a tool and its named arguments before an unsafe call; raise to refuse the call.
    before_calls: tuple[Callable[[Tool, Mapping[str, Any]], object], ...] = ()

    def __init__(
        self, session: Session, number: int, guidance: Guidance, replay: Replay | None, count: int
    ) -> None:
        self.session = session
        self.number = number
        self.told: Guidance = guidance
        self.replay = replay
        # Position of the first event of this attempt.
        self.position = session.position
        # Index of the first step of this attempt, and of the next one.
        self.first = self._count = count
        self.alert = False
        self.interrupt = None
        self.calls_open = 0
        self.has_subgoals = False
        self._watch = session.watch
        watching = session.config.watching
        self._watched = watching is not None
        if watching is not None and number > 1 and watching.interrupt_after is not None:
            self.loops_before = LoopsBefore(session.state.history)
        if session.parent is not None:
            session.parent.add_inner(self)
        if session.config.seam == "on":
            import_module(SEAM).install(current)
            open_attempts[id(self)] = self

    @property
    def guidance(self) -> Guidance:
        """The guidance of this attempt; while calls are replayed by position, that of their attempt.

        During a loop that watching has found, `hint` begins with its hint, and `diagnosis` is the loop's.
        """
        self.hint_read = True
        told, calls = self.telling
        live = self.live if told is self.told else None
        if told.summary is not None:
            told = replace(told, summary=with_receipts(told.summary, calls))
        if live is None:
            return told
        hints = [hint for hint in (live.hint, told.hint) if hint]
        return replace(told, hint="\n".join(hints) or None, diagnosis=live)

    @property
    def telling(self) -> tuple[Guidance, Iterable[Call]]:
        """The guidance before receipts and watching add to it, and the calls whose receipts are added."""
        if self.tally is not None and self.tally.replaying and not self.took_state:
            return self.tally.told_before(self)
        return self.told, self.session.state.calls.values()

    # Reading ----------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The run's id, the same in all attempts."""
        return self.session.run_id

    @property
    def salt(self) -> str:
        """Salt of the digests of this run's calls: its id; in a fork, the id of the first run."""
        return self.session.salt

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.number

    @property
    def task(self) -> Any:
        """The run's task."""
        return self.session.task

    @property
    def trajectory(self) -> Trajectory:
        """The trajectory recorded so far."""
        return self.ended_by(None)

    def ended_by(self, error: ErrorInfo | None) -> Trajectory:
        """Return the trajectory recorded so far, with the error that ended the attempt."""
        checks = self.session.config.checks
        return Trajectory(
            self.session.state.steps,
            error=error,
            attempt=self.number,
            task=self.session.task,
            tools=None if checks is None else checks.manifest,
            constraints=() if checks is None else tuple(checks.constraints),
            run_id=self.session.run_id,
        )

    def take_state(self) -> Mapping[str, Any] | None:
        """Return an earlier attempt's state for the agent, and note that the agent has it; None without."""
        if self.told.state:
            self.took_state = True
        return self.told.state

    def take_context(self) -> Guidance | None:
        """Return the guidance for the agent; None in the first attempt."""
        if self.number == 1:
            return None
        self.take_state()
        return self.told

    @property
    def state(self) -> dict[str, Any]:
        """A copy of the state merged so far."""
        if not self._updated:
            self.take_state()
        return cast("dict[str, Any]", plain(self.session.state.state))

    @property
    def history(self) -> tuple[Attempt, ...]:
        """The failed attempts before this one, oldest first."""
        return tuple(self.session.state.history)

    @property
    def usage(self) -> Usage:
        """The run's usage so far, of all attempts."""
        return self.session.state.usage

    # Recording --------------------------------------------------------------------------------

    def record_step(self, step: Step) -> int:
        """Record a step of the agent; return the id of the resulting checkpoint.

        The run sets `index` and a missing `timestamp`. Raises UsageError for anything but a `Step`.
        """
        if not isinstance(step, Step):
            raise UsageError(str(refuse("record_step()", step, "a Step", "write Step(action=…)")))
        if self.alert:
            self.check_open()
        with self.session.lock:
            event = self._put_step(step)
        self._attend(event)
        return event.seq

    def _put_step(self, step: Step) -> events.StepRecorded:
        """Record the next step, for a caller that holds the lock."""
        session, index = self.session, self._count
        self._count += 1
        event: events.StepRecorded = construct(
            events.StepRecorded,
            run_id=session.run_id,
            seq=len(session.events),
            time=session.time(),
            attempt=self.number,
            index=index,
            step=step,
        )
        session.events.append(event)
        return event

    def update_state(self, values: Mapping[str, Any], *, secret_ok: Iterable[str] = ()) -> int:
        """Merge top-level keys into the state; return the id of the resulting checkpoint.

        Values must be restorable from JSON: otherwise nothing is recorded, and UsageError names the first
        bad value, its type and the remedy. A store keeps a secret only encrypted, under
        `Durability(key=…)`; without a key the secret stays in this process, which is logged once.
        secret_ok: keys whose secrets are not logged.
        """
        self.check_open()
        if not isinstance(values, Mapping):
            raise UsageError(
                str(refuse("update_state()", values, "a mapping", 'write update_state({"key": …})'))
            )
        merged = exact(dict(values), "state")
        self._updated = True
        if self.session.keeper is not None:
            self.session.keeper.secret_ok.update(secret_ok)
        return self._record(events.StateUpdated, values=merged)

    def record_usage(self, usage: Usage) -> None:
        """Count the usage of model calls; a missing cost is computed from `Limits.prices`.

        Raises UsageError for anything but a `Usage`.
        """
        self.check_open()
        if not isinstance(usage, Usage):
            raise UsageError(str(refuse("record_usage()", usage, "a Usage")))
        self._record(events.UsageRecorded, usage=self.session.limits.priced(usage))

    def count(self, usage: Usage, run_id: str) -> None:
        """Count the usage of an inner run, without raising in it."""
        self._record(events.UsageRecorded, raising=False, usage=usage, run=run_id)

    def subgoals(self, names: Iterable[str]) -> None:
        """Declare subgoals, in order. Names already declared keep their places."""
        self.check_open()
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise UsageError(
                f"subgoals() takes a list of names, not {type(names).__name__}; "
                "write run.subgoals([name])"
            )
        declared = tuple(names)
        for name in declared:
            if not isinstance(name, str) or not name:
                raise UsageError(f"subgoals() takes names that are text, not {name!r}")
        self.has_subgoals = True
        self._record(events.SubgoalsDeclared, names=declared)

    def complete(self, name: str) -> None:
        """Record a subgoal as done. Raises UsageError for an undeclared one."""
        self.check_open()
        declared = [known for _, known in self.session.state.ledger.subgoals]
        if name not in declared:
            known = ", ".join(declared) or "none"
            raise UsageError(f"complete({name!r}): no such subgoal; declared are: {known}")
        self._record(events.SubgoalCompleted, name=name)

    def compensator(
        self, function: Callable[..., Any], *args: Any, name: str | None = None
    ) -> None:
        """Register `function(*args)`, sync or async, to undo the last step recorded by hand.

        A rollback past that step runs its compensators, newest first. name: in the journal; None takes the
        function's. Raises UsageError before the first such step.
        """
        self.check_open()
        if not callable(function):
            raise UsageError(str(refuse("compensator()", function, "a function")))
        ledger = self.session.state.ledger
        steps = zip(reversed(ledger.steps), reversed(ledger.positions), strict=True)
        at = next((position for step, position in steps if not is_call(step)), None)
        if at is None:
            raise UsageError(
                "compensator() undoes the last step recorded by hand, and none is recorded yet"
            )
        key = f"step@{at}"
        self.register_undo(key, Undoing(function, args, {}), name=name, args=args)

    async def flush(self) -> None:
        """Wait until everything recorded so far is durable. Raises the store's error."""
        self.check_open()
        await self.session.flush()

    # Machinery for recorded calls and interrupts ------------------------------------------------

    def register_undo(
        self,
        key: str,
        undo: Undoing,
        *,
        name: str | None = None,
        args: tuple[Any, ...] | None = None,
    ) -> None:
        """Register a compensator under the key of a call or of a step recorded by hand.

        name: None takes the function's. args: of a step's compensator.
        """
        session = self.session
        if session.undo is None:
            session.undo = {}
        recorded = None
        if args is not None:
            shown, exact = plain_noting(list(args))
            recorded = tuple(shown) if exact else None
        seq = self._record(
            events.CompensatorRegistered,
            name=name or name_of(undo.function),
            key=key,
            args=recorded,
            module=module_of(undo.function) if name is None else None,
        )
        session.undo[seq] = undo

    def record_call_step(self, step: Step) -> int:
        """Record a call's step even while the attempt is ending; return the step's index."""
        session = self.session
        usage = step.usage
        if usage is not None:
            priced = session.limits.priced(usage)
            if priced is not usage:
                step = replace(step, usage=priced)
        with session.lock:
            event = self._put_step(step)
            if self._running is not None:
                self.count_off(step)
        # The store gets the step together with the end of the call.
        self._attend(event, raising=False, pump=False)
        return event.index

    def notice(self, kind: Callable[..., events.Event], /, **fields: Any) -> None:
        """Record a finding of watching, without raising in the attempt."""
        self._record(kind, raising=False, **fields)

    def _attend(self, event: events.Event, *, raising: bool = True, pump: bool = True) -> None:
        """Tell observers of an event, check the limits, and let the watcher see a step."""
        if self.session.busy:
            self._tell(event, raising=raising, pump=pump)
        if not self._watched or self.over or not isinstance(event, events.StepRecorded):
            return
        watcher = self._watcher or self._begin_to_watch()
        if watcher is not None:
            watcher.look()
        if raising and self.alert:
            self.refuse()

    def _tell(self, event: events.Event, *, raising: bool, pump: bool = True) -> None:
        session = self.session
        if session.config.observers:
            session.tell(event)
        if session.durable and session.keeper is not None:
            if pump:
                session.keeper.pump()
            if raising:
                session.keeper.check()
        if raising:
            session.raise_held()
        if self._watch is not None:
            self._enforce(raising=raising)

    def _begin_to_watch(self) -> Watcher | None:
        made = watcher_of(self)
        with self.session.lock:
            if self._watcher is None:  # another thread may have begun
                self._watcher = made
            return self._watcher

    def unwatched(self) -> None:
        """Stop watching this attempt."""
        self.live = None
        self._watched = False
        self._watcher = None

    def _record(
        self, kind: Callable[..., events.Event], /, *, raising: bool = True, **fields: Any
    ) -> int:
        event = self.session.put(kind, attempt=self.number, **fields)
        if self.session.busy:
            self._attend(event, raising=raising)
        return event.seq

    def _enforce(self, *, raising: bool) -> None:
        session = self.session
        assert self._watch is not None
        state = session.state
        breach = self._watch.watch(
            state.all_steps, state.tool_calls, state.usage, state.calls_per_tool
        )
        if breach is not None:
            self.stop(breach)
            if raising:
                self.refuse()

    # Being stopped ------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise `AttemptOver` or `AttemptInterrupted` if nothing may be recorded any more."""
        if not self.alert:
            return
        if self.over:
            self.refuse_late()
        if self.interrupt is None:
            if not self._expired():
                return
            self.stop(out_of_time(self.session))
        elif self.owner is not None and not self.calls_open:
            self._cancel()  # the exception raised before did not end the attempt
        self.refuse()

    def refuse_late(self) -> NoReturn:
        """Raise `AttemptOver`."""
        raise AttemptOver(
            f"attempt {self.number} of run {self.session.run_id} is over: a task or thread it left "
            "behind tried to record; await it before the agent function returns"
        )

    def refuse(self) -> None:
        """Raise `AttemptInterrupted` after an interrupt.

        Within a call, first let running unsafe calls finish.
        """
        if self.interrupt is not None and (not self.calls_open or calling.get() is None):
            raise AttemptInterrupted(self.interrupt)

    def _expired(self) -> bool:
        """Whether the attempt's time is over. Safe from any thread."""
        if self.scope is None:
            return False
        if threading.get_ident() == self._thread:
            return self.scope.cancel_called
        left = self.session.attempt_seconds_left()
        return left is not None and left <= 0 and not self.calls_open

    def stop(self, diagnosis: Diagnosis) -> None:
        """Interrupt the attempt: it has failed, whatever its function still does.

        Running unsafe calls may finish before anything is cancelled, within their timeouts or else
        `UNSTOPPABLE_GRACE` seconds. An attempt that does not stop is reported after `GRACE` seconds, and
        still awaited.
        """
        with self.session.lock:
            if self.interrupt is not None or self.over:
                return
            self.interrupt = diagnosis
            self.alert = True
            self._stopped = time.monotonic()
            reminder = self._reminder()
        reminder.start()
        if not self.calls_open:
            self._cancel()

    def enter_task(self, task: asyncio.Task[Any] | None) -> None:
        """Set the asyncio task that the attempt runs in; None under trio."""
        self.cancellations = None if task is None else Cancellations(task)
        self.caller = current_caller()

    def watched(self, work: Any, root: Any = None) -> Any:
        """Wrap the user's awaitable: ignore cancel counts that a TaskGroup leaves behind (before 3.13).

        root: the async generator that the awaitable comes from.
        """
        return work if self.cancellations is None else self.cancellations.watched(work, root)

    def enter_scope(self, scope: anyio.CancelScope) -> None:
        """Set the scope that an interrupt cancels; called in the event loop's thread."""
        self.scope = scope
        self.alert = True
        self._thread = threading.get_ident()
        self._in_loop = scheduler()
        self.enter_task(current_task())
        if self.interrupt is not None and not self.calls_open:
            scope.cancel()  # interrupted between two steps of a stream

    def _cancel(self) -> None:
        """Cancel the attempt, unless it is over or in an unsafe call when the event loop gets to it."""
        # A scope may only be touched in its own thread.
        if self.scope is not None and threading.get_ident() == self._thread:
            self.scope.cancel()
        else:
            # Later: the exception raised here usually ends the attempt, which leaves nothing to cancel.
            self._schedule(self._cancel_here)

    def _schedule(self, work: Callable[[], object]) -> None:
        """Run `work` in the event loop, unless nothing there can be cancelled."""
        if self.scope is not None:
            self._in_loop(work)
        elif self.owner is not None:
            with suppress(RuntimeError):  # its loop has ended
                self.owner.get_loop().call_soon_threadsafe(work)

    def _cancel_here(self) -> None:
        if self.over or (self.calls_open and not self.cut):
            return
        for scope in tuple(self._threads or ()) if self.cut else ():
            scope.cancel()
        if self.scope is not None:
            self.scope.cancel()
        elif self.owner is not None:
            self.cancelled += 1
            self.owner.cancel()

    def _cut_off(self) -> None:
        """Cancel the attempt despite running unsafe calls; calls of inner runs there, so that those ask."""
        if self.over:
            return
        assert self.interrupt is not None
        self.cut = True
        if self._settled is not None:
            self._settled.set()
        calling_inside = [
            inner
            for inner in self.inner_attempts
            if inner.calls_open and not (inner.over or inner.cut)
        ]
        for inner in calling_inside:
            inner.stop(self.interrupt)
            inner._cut_off()
        if not calling_inside:
            self._cancel_here()

    @contextmanager
    def thread_awaited(self) -> Generator[None]:
        """Shield the wait for a thread from every cancellation except that of `_cut_off`."""
        with anyio.CancelScope(shield=True) as scope:
            if self._threads is None:
                self._threads = set()
            self._threads.add(scope)
            try:
                yield
            finally:
                self._threads.discard(scope)

    def check_call(self, tool: str) -> None:
        """Raise `AttemptInterrupted` before a call that would exceed a limit, or after an interrupt.

        Running calls count.
        """
        if self.interrupt is not None:
            raise AttemptInterrupted(self.interrupt)
        if self._watch is None:
            return
        session = self.session
        state = session.state
        with session.lock:
            running = {} if self._running is None else self._running
            breach = self._watch.before_call(
                tool,
                state.tool_calls + sum(running.values()),
                state.calls_per_tool.get(tool, 0) + running.get(tool, 0),
            )
            if breach is None:
                running[tool] = running.get(tool, 0) + 1
                self._running = running
        if breach is not None:
            self.stop(breach)
            raise AttemptInterrupted(breach)

    def add_inner(self, inner: Recorder) -> None:
        """Register an attempt of an inner run that begins."""
        with self.session.lock:
            if self._inner_attempts is None:
                self._inner_attempts = WeakSet()
            self._inner_attempts.add(inner)

    @property
    def recorded(self) -> int:
        """A number that changes with each recording of this run or an inner run."""
        return self.session.position + sum(inner.recorded for inner in self.inner_attempts)

    def count_off(self, step: Step) -> None:
        """Remove a call that `check_call` admitted from the running ones; the state counts it now."""
        began = is_call(step) and not is_reused(step.metadata)
        if began and self._running is not None and step.tool_called is not None:
            self._running[step.tool_called] -= 1

    def unsafe_begun(self, timeout: float | None = None) -> None:
        """Note that an unsafe call begins: the attempt's deadline waits for its end.

        timeout: of the call, seconds. Raises AttemptOver if the function has ended, as nobody would wait
        for the call; AttemptInterrupted if this attempt, or an outer one, is being stopped.
        """
        session = self.session
        outer = session.parent if session.nested else None
        if outer is not None:
            outer.unsafe_begun(timeout)
        with session.lock:
            late, interrupt = self.ending or self.over, self.interrupt
            refused = late or interrupt is not None
            if not refused:
                self.calls_open += 1
            first = self.calls_open == 1
        if refused and outer is not None:
            outer.unsafe_ended()
        if late:
            self.refuse_late()
        if interrupt is not None:
            raise AttemptInterrupted(interrupt)
        if timeout is not None:
            self._patience = max(self._patience, time.monotonic() + timeout)
        if first and self.scope is not None:
            # A scope may only be touched in its own thread.
            if threading.get_ident() == self._thread:
                self._hold_deadline()
            else:
                self._in_loop(self._hold_deadline)
            self._set_alarm()

    def _set_alarm(self) -> None:
        left = self.session.attempt_seconds_left()
        if left is not None:
            self._alarm = threading.Timer(left, self._time_passed)
            self._alarm.daemon = True
            self._alarm.start()

    def _time_passed(self) -> None:
        if self.over or not self.calls_open:
            return
        if self.session.attempt_seconds_left():
            self._set_alarm()  # the run's clock is behind the timer's
        else:
            self.stop(out_of_time(self.session))

    def _hold_deadline(self) -> None:
        # A call in a thread schedules this: the call may have ended by now.
        if self.scope is not None and self.calls_open and not self._held_deadline:
            self._held_deadline, self.scope.deadline = self.scope.deadline, math.inf

    def unsafe_ended(self) -> None:
        """Note that an unsafe call has ended and is recorded; release its waiters."""
        session = self.session
        if session.nested and session.parent is not None:
            session.parent.unsafe_ended()
        with session.lock:
            self.calls_open -= 1
            last = not self.calls_open
        if not last:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        if self.cut:  # every waiter was cancelled, or an inner run is about to ask
            return
        if self._held_deadline:
            # A scope may only be touched in its own thread.
            if threading.get_ident() == self._thread:
                self._release_deadline()
            else:
                self._in_loop(self._release_deadline)
        if self.interrupt is not None:
            self._cancel()
        if self._settled is not None:
            self._settled.set()

    def _release_deadline(self) -> None:
        # A call in a thread schedules this: another call may have released the deadline by now.
        if self.scope is None or self.calls_open or not self._held_deadline:
            return
        self.scope.deadline, self._held_deadline = self._held_deadline, 0.0
        # Trio notices a deadline that has passed only when `cancel_called` is read.
        if self.scope.cancel_called:
            self.stop(out_of_time(self.session))

    def close(self) -> None:
        """Close the attempt to recordings, and the attempts of its inner runs too."""
        open_attempts.pop(id(self), None)
        with self.session.lock:
            self.over = self.alert = True
            self._watcher = None  # it holds the attempt, in a cycle that would outlive the run
            for timer in (self._unstopped, self._alarm):
                if timer is not None:
                    timer.cancel()
        for inner in self.inner_attempts:
            inner.close()

    @property
    def inner_attempts(self) -> tuple[Recorder, ...]:
        """The attempts of inner runs; some may have ended."""
        with self.session.lock:
            return () if self._inner_attempts is None else tuple(self._inner_attempts)

    def leave(self, error: BaseException | None = None) -> None:
        """Note that the function has ended: allow no unsafe call, and take back our cancellations.

        error: raised by the function.
        """
        for ended in self.at_end:
            # A refused recording changes nothing here: the function has ended already.
            with suppress(AttemptInterrupted, Exception):
                ended(error)
        with self.session.lock:
            self.ending = True
        owner, self.owner = self.owner, None
        if owner is not None:
            for _ in range(self.cancelled):
                owner.uncancel()

    async def raise_cancellation(self) -> None:
        """Raise a cancellation from outside that came together with an interrupt.

        It has precedence, although the agent or the event loop may have taken it for ours.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()
        if self.cancellations is not None and await self.cancelled_outside():
            raise anyio.get_cancelled_exc_class()

    async def cancelled_outside(self) -> bool:
        """Whether other code has cancelled the attempt's task or scope, and not taken that back."""
        if self.cancellations is not None:
            return self.cancellations.count() > 0
        try:
            await anyio.lowlevel.checkpoint_if_cancelled()
        except anyio.get_cancelled_exc_class():
            return True  # trio raises it again at the task's next checkpoint
        return False

    async def settle(self) -> None:
        """Wait at most `UNSTOPPABLE_GRACE` seconds for the attempt's running unsafe calls."""
        with self.session.lock:
            if not self.calls_open or self.cut:
                return
            if self._settled is None or self._settled.is_set():
                self._settled = threading.Event()
            settled = self._settled
        await anyio.to_thread.run_sync(settled.wait, UNSTOPPABLE_GRACE, abandon_on_cancel=True)

    def _reminder(self) -> threading.Timer:
        # In a thread, as the agent may be blocking the event loop.
        reminder = self._unstopped = threading.Timer(GRACE, self._remind)
        reminder.daemon = True
        return reminder

    def _remind(self) -> None:
        """Report once that the attempt runs on after its interrupt; cancel it again, until it ends."""
        session = self.session
        event, text = None, ""
        with session.lock:
            if self.over:
                return
            reminder = self._reminder()
            if not self._reported:
                self._reported = True
                text = f"not stopped {GRACE:g} seconds after its interrupt"
                if self.calls_open:
                    text += ": a call with an effect is finished first"
                event = session.put_locked(
                    events.WatchNoticed,
                    attempt=self.number,
                    response="unstopped",
                    rule="watch.interrupt",
                    text=text,
                )
        reminder.start()
        if self.calls_open and not self.cut:
            if time.monotonic() >= max(self._stopped + UNSTOPPABLE_GRACE, self._patience):
                self._schedule(self._cut_off)
        else:
            self._cancel()
        if event is not None:
            logger.warning(
                "run %s: attempt %d has %s; it is waited for", session.run_id, self.number, text
            )
            session.tell(event)


def out_of_time(session: Session) -> Diagnosis:
    """Return the diagnosis of an attempt whose scope ran out of time."""
    left = session.seconds_left()
    over = left is not None and left <= 0
    return session.limits.time_is_up("seconds" if over else "attempt_seconds")


class Carried:
    """Weak reference to an attempt, for a thread that may outlive it."""

    def __init__(self, run: Recorder) -> None:
        self._run = ref(run)

    @classmethod
    def of(cls, value: Any) -> Any:
        """Return the value of a context variable for a thread: an attempt is wrapped."""
        return cls(value) if isinstance(value, Recorder) else value

    @property
    def run(self) -> Recorder | None:
        """The attempt; None once its run has ended, as the thread may serve other runs then."""
        run = self._run()
        return None if run is None or (run.over and run.session.has_ended) else run


class Current:
    """The running code's attempt, in a context variable."""

    def __init__(self) -> None:
        self._variable: ContextVar[Recorder | Carried | None] = ContextVar("triage_run")

    def get(self) -> Recorder | None:
        """Return the attempt; None outside of any."""
        found = self._variable.get(None)
        return found.run if type(found) is Carried else cast("Recorder | None", found)

    def set(self, run: Recorder | None) -> Token[Any]:
        """Set the running code's attempt; None: no attempt."""
        return self._variable.set(run)

    def reset(self, token: Token[Any]) -> None:
        """Undo a `set`."""
        self._variable.reset(token)

    @property
    def is_unknown(self) -> bool:
        """Whether the running code was not begun in a run, and has run none."""
        return self._variable.get(_NEVER) is _NEVER

    @property
    def is_left_behind(self) -> bool:
        """Whether the running code is in a thread whose attempt is over."""
        found = self._variable.get(None)
        return type(found) is Carried and (found.run is None or found.run.over)


_NEVER: Any = object()
current = Current()
"""The running code's attempt."""
open_attempts: WeakValueDictionary[int, Recorder] = WeakValueDictionary()
"""Running attempts of this process whose requests the seam records, by `id`."""


def surrounding() -> Recorder | None:
    """Return the outer attempt for a run that begins here; None outside of any.

    Code that a finished run has left running is outside.
    """
    run = current.get()
    return None if run is None or (run.over and run.session.has_ended) else run
