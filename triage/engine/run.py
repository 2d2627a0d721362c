"""What one attempt records, and what it is told."""

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
from triage.core.constructors import Struct
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

# What an attempt is told, and which recorded calls it may reuse.


class Guidance(Struct, frozen=True):
    """What an attempt is told, built from the last action alone; all None in the first attempt.

    hint, subgoal, state: as `_triage_hint`, `_triage_subgoal`, `_triage_state`. diagnosis, action: of
    the attempt before. inject: keyword arguments for this attempt. model, keep_last, summary,
    max_characters, output_factor: what requests to models are to be made of, from the last actions of the
    run that said it: which model is asked, how many messages at their end keep the outputs of tools, what
    stands for the rest, with a line for each call that must not be made again, how long a conversation may
    be, and how many times as long an answer as the request's own limit allows.
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
    """Which recorded calls an attempt may reuse, by the action before it.

    kind: the action's. kept: keys of the calls whose steps a rollback kept. unmatched: by tool, keys of
    the unsafe calls of earlier attempts that this one has not come to yet. reach: which reads and model
    calls of theirs are reused. begun: number of the attempt that this one goes on with, after an answer
    or a crash; its own number where it begins.
    """

    kind: str
    kept: frozenset[str]
    unmatched: dict[str, set[str]]
    reach: Reach
    begun: int

    def meet(self, tool: str, key: str) -> None:
        """The attempt has come to this call."""
        self.unmatched.get(tool, set()).discard(key)


NO_GUIDANCE = Guidance()


SEAM = "triage.seam"
"""The module that stands where requests leave. By name, as the engine knows no transport."""

GRACE = 5.0
"""Seconds an interrupted attempt has to stop before it is reported and cancelled again."""

UNSTOPPABLE_GRACE = 10.0
"""Seconds waited for running unsafe calls without a timeout, where what comes next cuts them off."""


def sees_requests(session: Session) -> bool:
    """Whether the requests of a run are seen where they leave."""
    return session.config.seam == "on" and not import_module(SEAM).is_off()


class Recorder:
    """One attempt of a run as it records itself. Safe to use from tasks and threads of the attempt.

    After the attempt every recording raises `AttemptOver`; after an interrupt, `AttemptInterrupted`.
    """

    session: Session
    number: int
    # alert: set as soon as a recording may have to be refused, so that one look suffices on the way in.
    # calls_open: unsafe calls now running. ending: the function has ended, and no other one begins.
    alert: bool
    interrupt: Diagnosis | None
    calls_open: int
    ending = False
    over = False
    scope: anyio.CancelScope | None = None
    # Under asyncio: how often the task was cancelled that the attempt runs in. owner: that task where
    # there is no scope; cancelled: how often it was cancelled from here.
    cancellations: Cancellations | None = None
    owner: asyncio.Task[Any] | None = None
    cancelled = 0
    # The task in which the agent function runs, or the thread of a sync one.
    caller = 0
    # Set when the last unsafe call has ended.
    _settled: threading.Event | None = None
    _held_deadline = 0.0
    # Stops the attempt at its deadline while an unsafe call runs. patience: when the timeouts of running
    # calls end. stopped: when the attempt was interrupted. Both in monotonic seconds. cut: an unsafe call
    # went on for too long after that, and was cut off. threads: scopes that keep threads waited for.
    cut = False
    _alarm: threading.Timer | None = None
    _patience = 0.0
    _stopped = 0.0
    _threads: set[anyio.CancelScope] | None = None
    _thread = 0
    _in_loop: Callable[[Callable[[], object]], None]
    # The limits that a recording is held against; calls that run and are not counted yet, by tool.
    _watch: Limits | None = None
    _running: dict[str, int] | None = None
    # The attempts of runs inside this one.
    _inside: WeakSet[Recorder] | None = None
    # Reports an attempt that does not stop.
    _unstopped: threading.Timer | None = None
    _reported = False
    # The calls of this attempt as they are counted, made when the first one is made, or there are some
    # of earlier attempts.
    tally: Tally | None = None
    # The agent was given the state of an earlier attempt: it may go on from there, and not from the start.
    took_state = False
    _updated = False
    # What watching found and the agent is to know while it goes on.
    live: Diagnosis | None = None
    hint_read = False
    # The loops of earlier attempts, None where nothing is to be stopped for them.
    loops_before: LoopsBefore | None = None
    _watcher: Watcher | None = None
    # Called once the function has ended, while its last words can still be recorded.
    at_end: tuple[Callable[[BaseException | None], object], ...] = ()
    # Called with a tool and its arguments by name before an unsafe call begins, and raises to refuse it.
    before_calls: tuple[Callable[[Tool, Mapping[str, Any]], object], ...] = ()

    def __init__(
        self, session: Session, number: int, guidance: Guidance, replay: Replay | None, count: int
    ) -> None:
        self.session = session
        self.number = number
        self.told: Guidance = guidance
        self.replay = replay
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
            session.parent.has_inside(self)
        if session.config.seam == "on":
            import_module(SEAM).install(current)
            open_attempts[id(self)] = self

    @property
    def guidance(self) -> Guidance:
        """What this attempt is told; before a call that is given again by its position, what was told then.

        While the attempt is seen to go round in a loop, `hint` says so first, and `diagnosis` what it is.
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
        """The guidance without what receipts and watching add, and the calls whose receipts it adds."""
        if self.tally is not None and self.tally.replaying and not self.took_state:
            return self.tally.told_before(self)
        return self.told, self.session.state.calls.values()

    # What is known ----------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The run's id, the same in all its attempts."""
        return self.session.run_id

    @property
    def salt(self) -> str:
        """What digests of this run's calls are salted with: its id, or of a fork that of the first run."""
        return self.session.salt

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.number

    @property
    def task(self) -> Any:
        """The task as given to the run."""
        return self.session.task

    @property
    def trajectory(self) -> Trajectory:
        """What this attempt has recorded so far."""
        return self.ended_by(None)

    def ended_by(self, error: ErrorInfo | None) -> Trajectory:
        """What this attempt has recorded, with the error that ended it."""
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
        """The state that an earlier attempt left, which the agent is given; None for none."""
        if self.told.state:
            self.took_state = True
        return self.told.state

    def take_context(self) -> Guidance | None:
        """All that this attempt is told, which the agent is given; None in the first attempt."""
        if self.number == 1:
            return None
        self.take_state()
        return self.told

    @property
    def state(self) -> dict[str, Any]:
        """A copy of the state as merged so far."""
        if not self._updated:
            self.take_state()
        return cast("dict[str, Any]", plain(self.session.state.state))

    @property
    def history(self) -> tuple[Attempt, ...]:
        """The failed attempts before this one, oldest first."""
        return tuple(self.session.state.history)

    @property
    def usage(self) -> Usage:
        """What the run has used so far, all attempts together."""
        return self.session.state.usage

    # Recording --------------------------------------------------------------------------------

    def record_step(self, step: Step) -> int:
        """Record what the agent did; the id of the checkpoint made by it.

        The run sets `index` and, where it is None, `timestamp`. Raises UsageError for anything but a
        `Step`.
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
        index = self._count
        self._count += 1
        event = self.session.put_locked(
            events.StepRecorded, attempt=self.number, index=index, step=step
        )
        return cast("events.StepRecorded", event)

    def update_state(self, values: Mapping[str, Any], *, secret_ok: Iterable[str] = ()) -> int:
        """Merge top-level keys into the state; the id of the checkpoint made by it.

        Values must be restorable from JSON: UsageError names the first that is not, its type and the
        remedy, and nothing is recorded. A secret is kept by the store under `Durability(key=…)` alone,
        encrypted; without a key it stays in this process, which is logged once. secret_ok: keys that may
        hold one without a word.
        """
        self.check_open()
        if not isinstance(values, Mapping):
            raise UsageError(
                str(refuse("update_state()", values, "a mapping", 'write update_state({"key": …})'))
            )
        kept = exact(dict(values), "state")
        self._updated = True
        if self.session.keeper is not None:
            self.session.keeper.secret_ok.update(secret_ok)
        return self._record(events.StateUpdated, values=kept)

    def record_usage(self, usage: Usage) -> None:
        """Count what model calls consumed; a cost that is not given is taken from the prices.

        Raises UsageError for anything but a `Usage`.
        """
        self.check_open()
        if not isinstance(usage, Usage):
            raise UsageError(str(refuse("record_usage()", usage, "a Usage")))
        self._record(events.UsageRecorded, usage=self.session.limits.priced(usage))

    def count(self, usage: Usage, run_id: str) -> None:
        """As `record_usage` for a run inside this one, which must not be disturbed."""
        self._record(events.UsageRecorded, raising=False, usage=usage, run=run_id)

    def subgoals(self, names: Iterable[str]) -> None:
        """Declare what is to be done, in order. Names already declared are left where they are."""
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
        """Note a declared subgoal as done. Raises UsageError for one that was not declared."""
        self.check_open()
        declared = [known for _, known in self.session.state.ledger.subgoals]
        if name not in declared:
            known = ", ".join(declared) or "none"
            raise UsageError(f"complete({name!r}): no such subgoal; declared are: {known}")
        self._record(events.SubgoalCompleted, name=name)

    def compensator(
        self, function: Callable[..., Any], *args: Any, name: str | None = None
    ) -> None:
        """Register what undoes the last hand-written step: `function(*args)`, sync or async.

        A rollback past that step runs it, newest first. name: as the journal shows it; None takes the
        function's own. Raises UsageError before the first such step.
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
        """Wait until all that was recorded so far is durable. Raises what the store raises."""
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
        """Register a compensator under a key: a call's, or that of a hand-written step.

        name: None takes the function's own. args: those of a step's compensator.
        """
        session = self.session
        if session.undo is None:
            session.undo = {}
        told = None
        if args is not None:
            shown, exact = plain_noting(list(args))
            told = tuple(shown) if exact else None
        seq = self._record(
            events.CompensatorRegistered,
            name=name or name_of(undo.function),
            key=key,
            args=told,
            module=module_of(undo.function) if name is None else None,
        )
        session.undo[seq] = undo

    def record_call_step(self, step: Step) -> int:
        """Record a call's step although the attempt may be ending; its index."""
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
        # The end of the call goes to the store with it.
        self._attend(event, raising=False, pump=False)
        return event.index

    def notice(self, kind: Callable[..., events.Event], /, **fields: Any) -> None:
        """Record what watching has found, whatever becomes of the attempt."""
        self._record(kind, raising=False, **fields)

    def _attend(self, event: events.Event, *, raising: bool = True, pump: bool = True) -> None:
        """Tell the observers of an event, hold it against the limits, and have a step watched."""
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
            if self._watcher is None:  # of two threads that record at once, one has begun
                self._watcher = made
            return self._watcher

    def unwatched(self) -> None:
        """Watch no further step of this attempt."""
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
        """Raise `AttemptOver` or `AttemptInterrupted` when nothing may be recorded any more."""
        if not self.alert:
            return
        if self.over:
            self.refuse_late()
        if self.interrupt is None:
            if not self._expired():
                return
            self.stop(out_of_time(self.session))
        elif self.owner is not None and not self.calls_open:
            self._cancel()  # what was raised before did not end it
        self.refuse()

    def refuse_late(self) -> NoReturn:
        """Raise `AttemptOver`."""
        raise AttemptOver(
            f"attempt {self.number} of run {self.session.run_id} is over: a task or thread it left "
            "behind tried to record; await it before the agent function returns"
        )

    def refuse(self) -> None:
        """Raise `AttemptInterrupted` after an interrupt.

        Not within a call while one with an effect runs, as that one is finished first.
        """
        if self.interrupt is not None and (not self.calls_open or calling.get() is None):
            raise AttemptInterrupted(self.interrupt)

    def _expired(self) -> bool:
        """Whether the attempt's time is over, asked from any thread."""
        if self.scope is None:
            return False
        if threading.get_ident() == self._thread:
            return self.scope.cancel_called
        left = self.session.attempt_seconds_left()
        return left is not None and left <= 0 and not self.calls_open

    def stop(self, diagnosis: Diagnosis) -> None:
        """Interrupt the attempt: it has failed, whatever it does from now on.

        Unsafe calls that are running are waited for before anything is cancelled, for as long as their
        timeouts say, else `UNSTOPPABLE_GRACE` seconds. An attempt that goes on all the same is reported
        after `GRACE` seconds, and waited for.
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
        """Tell the attempt in which task of asyncio it runs, None for trio."""
        self.cancellations = None if task is None else Cancellations(task)
        self.caller = current_caller()

    def watched(self, work: Any, root: Any = None) -> Any:
        """What the function gave to be awaited, so that no group inside it is taken for a cancellation.

        root: the async generator that gave it.
        """
        return work if self.cancellations is None else self.cancellations.watched(work, root)

    def enter_scope(self, scope: anyio.CancelScope) -> None:
        """Tell the attempt which scope an interrupt cancels; called in the event loop's thread."""
        self.scope = scope
        self.alert = True
        self._thread = threading.get_ident()
        self._in_loop = scheduler()
        self.enter_task(current_task())
        if self.interrupt is not None and not self.calls_open:
            scope.cancel()  # it came between two steps of a stream

    def _cancel(self) -> None:
        """Cancel the attempt where it waits, unless it is over, or in an unsafe call, by then."""
        # A scope may only be touched in its own thread.
        if self.scope is not None and threading.get_ident() == self._thread:
            self.scope.cancel()
        else:
            # Not at once: mostly what is raised here ends it, and then nothing is left to cancel.
            self._later(self._cancel_here)

    def _later(self, work: Callable[[], object]) -> None:
        """Have something done in the event loop, unless nothing there can be cancelled."""
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
        """Cancel the attempt although an unsafe call runs; those of runs inside it there, as they ask."""
        if self.over:
            return
        assert self.interrupt is not None
        self.cut = True
        if self._settled is not None:
            self._settled.set()
        inside = [one for one in self.inside if one.calls_open and not (one.over or one.cut)]
        for one in inside:
            one.stop(self.interrupt)
            one._cut_off()
        if not inside:
            self._cancel_here()

    @contextmanager
    def thread_awaited(self) -> Generator[None]:
        """Around the wait for a thread: nothing but `_cut_off` ends it before the thread has ended."""
        with anyio.CancelScope(shield=True) as scope:
            if self._threads is None:
                self._threads = set()
            self._threads.add(scope)
            try:
                yield
            finally:
                self._threads.discard(scope)

    def check_call(self, tool: str) -> None:
        """Before a call runs: raise `AttemptInterrupted` where it would go over a limit.

        Those that run at the same time count. No call begins within one after an interrupt.
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

    def has_inside(self, inner: Recorder) -> None:
        """Register an attempt of an inner run that begins."""
        with self.session.lock:
            if self._inside is None:
                self._inside = WeakSet()
            self._inside.add(inner)

    @property
    def recorded(self) -> int:
        """How much was recorded, by the runs inside this one too: another number after each recording."""
        return self.session.position + sum(inner.recorded for inner in self.inside)

    def count_off(self, step: Step) -> None:
        """Stop counting a call that `check_call` admitted: it is recorded now."""
        began = is_call(step) and not is_reused(step.metadata)
        if began and self._running is not None and step.tool_called is not None:
            self._running[step.tool_called] -= 1

    def unsafe_begun(self, timeout: float | None = None) -> None:
        """An unsafe call begins: the attempt's deadline waits until it has ended.

        timeout: the call's own, seconds. Raises AttemptOver where the function has ended: nobody would
        wait for the call. Raises AttemptInterrupted where this attempt, or one around it, is being stopped.
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
            self._set_alarm()  # the run's clock is slower than the timer's
        else:
            self.stop(out_of_time(self.session))

    def _hold_deadline(self) -> None:
        # A call that began in a thread asks for it late: it may have ended by then.
        if self.scope is not None and self.calls_open and not self._held_deadline:
            self._held_deadline, self.scope.deadline = self.scope.deadline, math.inf

    def unsafe_ended(self) -> None:
        """An unsafe call has ended and is recorded: what waited for it goes on."""
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
        if self.cut:  # all that waits was cancelled, or a run inside comes to ask
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
        # A call that ended in a thread asks for it late: another may have released it by then.
        if self.scope is None or self.calls_open or not self._held_deadline:
            return
        self.scope.deadline, self._held_deadline = self._held_deadline, 0.0
        # Asked for, because trio looks at a deadline that has passed only when it is asked.
        if self.scope.cancel_called:
            self.stop(out_of_time(self.session))

    def close(self) -> None:
        """The attempt is over: nothing is recorded from now on, nor by the runs that it left behind."""
        open_attempts.pop(id(self), None)
        with self.session.lock:
            self.over = self.alert = True
            for timer in (self._unstopped, self._alarm):
                if timer is not None:
                    timer.cancel()
        for inner in self.inside:
            inner.close()

    @property
    def inside(self) -> tuple[Recorder, ...]:
        """The attempts of runs inside this one, some of which have ended."""
        with self.session.lock:
            return () if self._inside is None else tuple(self._inside)

    def leave(self, error: BaseException | None = None) -> None:
        """The function has ended: no unsafe call begins, and what its task was sent is taken back.

        error: what it raised.
        """
        for ended in self.at_end:
            # What is recorded now may be refused, which ends nothing that has not ended.
            with suppress(AttemptInterrupted, Exception):
                ended(error)
        with self.session.lock:
            self.ending = True
        owner, self.owner = self.owner, None
        if owner is not None:
            for _ in range(self.cancelled):
                owner.uncancel()

    async def give_way(self) -> None:
        """Raise the cancellation from outside that came together with an interrupt.

        The agent or the event loop may have taken it for ours, and it has the last word.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()
        if self.cancellations is not None and await self.cancelled_outside():
            raise anyio.get_cancelled_exc_class()

    async def cancelled_outside(self) -> bool:
        """Whether somebody else has cancelled what the attempt runs in, and still means it."""
        if self.cancellations is not None:
            return self.cancellations.count() > 0
        try:
            await anyio.lowlevel.checkpoint_if_cancelled()
        except anyio.get_cancelled_exc_class():
            return True  # trio raises it again wherever the task waits next
        return False

    async def settle(self) -> None:
        """Wait, at most `UNSTOPPABLE_GRACE` seconds, until no unsafe call of the attempt is running."""
        with self.session.lock:
            if not self.calls_open or self.cut:
                return
            if self._settled is None or self._settled.is_set():
                self._settled = threading.Event()
            settled = self._settled
        await anyio.to_thread.run_sync(settled.wait, UNSTOPPABLE_GRACE, abandon_on_cancel=True)

    def _reminder(self) -> threading.Timer:
        # A thread's, as the event loop may be what the agent holds up.
        reminder = self._unstopped = threading.Timer(GRACE, self._remind)
        reminder.daemon = True
        return reminder

    def _remind(self) -> None:
        """It goes on although interrupted: say so once, and cancel it again; it is never abandoned."""
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
                self._later(self._cut_off)
        else:
            self._cancel()
        if event is not None:
            logger.warning(
                "run %s: attempt %d has %s; it is waited for", session.run_id, self.number, text
            )
            session.tell(event)


def out_of_time(session: Session) -> Diagnosis:
    """Why an attempt whose scope ran out of time has failed."""
    left = session.seconds_left()
    over = left is not None and left <= 0
    return session.limits.time_is_up("seconds" if over else "attempt_seconds")


class Carried:
    """An attempt as a thread has it that was started in it, and that may outlive it."""

    def __init__(self, run: Recorder) -> None:
        self._run = ref(run)

    @classmethod
    def of(cls, value: Any) -> Any:
        """The value of a context variable as a thread has it."""
        return cls(value) if isinstance(value, Recorder) else value

    @property
    def run(self) -> Recorder | None:
        """The attempt; None once its run has ended, as the thread may serve others then."""
        run = self._run()
        return None if run is None or (run.over and run.session.has_ended) else run


class Current:
    """Which attempt the running code belongs to, as a context variable says it."""

    def __init__(self) -> None:
        self._variable: ContextVar[Recorder | Carried | None] = ContextVar("triage_run")

    def get(self) -> Recorder | None:
        """The attempt; None outside of any."""
        found = self._variable.get(None)
        return found.run if type(found) is Carried else cast("Recorder | None", found)

    def set(self, run: Recorder | None) -> Token[Any]:
        """Make the running code part of an attempt, or of none."""
        return self._variable.set(run)

    def reset(self, token: Token[Any]) -> None:
        """Take a `set` back."""
        self._variable.reset(token)

    @property
    def is_unknown(self) -> bool:
        """Whether the running code was neither begun in a run nor has run one."""
        return self._variable.get(_NEVER) is _NEVER

    @property
    def is_left_behind(self) -> bool:
        """Whether the running code is in a thread whose attempt is over."""
        found = self._variable.get(None)
        return type(found) is Carried and (found.run is None or found.run.over)


_NEVER: Any = object()
current = Current()
"""The attempt the running code belongs to."""
open_attempts: WeakValueDictionary[int, Recorder] = WeakValueDictionary()
"""Attempts whose requests are seen and that go on, in this process."""


def surrounding() -> Recorder | None:
    """The attempt that a run which begins here is inside of; None outside of any.

    What a run that has ended has left running is outside.
    """
    run = current.get()
    return None if run is None or (run.over and run.session.has_ended) else run
