"""What one attempt records, what it is told, and how it is interrupted."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ._journal import STEP, WIDTH
from ._plain import plain
from ._serde import exact
from .diagnosis import Diagnosis
from .errors import AttemptInterrupted, AttemptOver, UsageError
from .events import (
    CompensatorRegistered,
    StateUpdated,
    SubgoalCompleted,
    SubgoalsDeclared,
    UsageRecorded,
)
from .steps import Step, Trajectory, Usage, refuse

if TYPE_CHECKING:
    import anyio

    from ._session import Session
    from .actions import Action
    from .failures import Attempt, ErrorInfo


class Guidance(NamedTuple):
    """What an attempt is told, built from the last action alone; all None in the first attempt.

    hint, subgoal, state: as `_triage_hint`, `_triage_subgoal`, `_triage_state`. diagnosis, action: of
    the attempt before. inject: keyword arguments for this attempt.
    """

    hint: str | None = None
    subgoal: str | None = None
    state: Mapping[str, Any] | None = None
    diagnosis: Diagnosis | None = None
    action: Action | None = None
    inject: Mapping[str, Any] | None = None


class Replay(NamedTuple):
    """Which recorded calls an attempt may reuse, by the action before it.

    kind: the action's. critical_step: reads from this step index on run again; None: none has to.
    kept: keys of the calls whose steps a rollback kept. unmatched: by tool, keys of the unsafe calls
    of earlier attempts that this one has not come to yet.
    """

    kind: str
    critical_step: int | None
    kept: frozenset[str]
    unmatched: dict[str, set[str]]

    def meet(self, tool: str, key: str) -> None:
        """The attempt has come to this call."""
        self.unmatched.get(tool, set()).discard(key)


NO_GUIDANCE = Guidance()


class Recorder:
    """One attempt of a run as it records itself. Safe to use from tasks and threads of the attempt.

    After the attempt every recording raises `AttemptOver`; after an interrupt, `AttemptInterrupted`.
    """

    # Most attempts never set these: as class attributes they cost an attempt nothing.
    over = False
    interrupt: Diagnosis | None = None
    scope: anyio.CancelScope | None = None
    # Occurrences of equal calls in this attempt, made when the first call is made.
    occurrences: dict[str, int] | None = None
    # Unsafe calls now running, and who waits for the last of them.
    calls_open = 0
    has_subgoals = False
    _settled: threading.Event | None = None
    _held_deadline = 0.0
    _thread = 0

    def __init__(
        self, session: Session, number: int, guidance: Guidance, replay: Replay | None, count: int
    ) -> None:
        self.session = session
        # Set as soon as a recording may have to be refused: one look on the way in.
        self.alert = False
        self.number = number
        self.told = guidance
        self.replay = replay
        self._count = count
        self._watch = session.config.watch

    @property
    def guidance(self) -> Guidance:
        """What this attempt is told; empty while calls are given again by their position."""
        if self.replay is None or not self.session.has_calls:
            return self.told
        from ._tally import tally

        return NO_GUIDANCE if tally(self).replaying else self.told

    # What is known ----------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The run's id, the same in all its attempts."""
        return self.session.run_id

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

    @property
    def state(self) -> dict[str, Any]:
        """A copy of the state as merged so far."""
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

    def check_open(self) -> None:
        """Raise `AttemptOver` or `AttemptInterrupted` when nothing may be recorded any more."""
        if not self.alert:
            return
        if self.over:
            raise AttemptOver(
                f"attempt {self.number} of run {self.run_id} is over: a task or thread it left "
                "behind tried to record; await it before the agent function returns"
            )
        if self.interrupt is None:
            if self.scope is None or not self.scope.cancel_called:
                return
            self.interrupt = out_of_time(self.session)
        raise AttemptInterrupted(self.interrupt)

    def record_step(self, step: Step) -> int:
        """Record what the agent did; the id of the checkpoint made by it.

        The run sets `index` and, where it is None, `timestamp`. Raises UsageError for anything but a
        `Step`.
        """
        if step.__class__ is not Step:
            raise UsageError(str(refuse("record_step()", step, "a Step", "write Step(action=…)")))
        if self.alert:
            self.check_open()
        session = self.session
        records = session.records
        # Not `with`: taken with every step, and a third of the time this way.
        lock = session.lock
        lock.acquire()
        try:
            seq = len(records) // WIDTH
            index = self._count
            self._count = index + 1
            records += (STEP, session.time(), self.number, index, step)
        finally:
            lock.release()
        if session.busy:
            self._attend(seq)
        return seq

    def update_state(self, values: Mapping[str, Any], *, secret_ok: Iterable[str] = ()) -> int:
        """Merge top-level keys into the state; the id of the checkpoint made by it.

        Values must be restorable from JSON, and hold no secret where a store keeps the run: UsageError
        names the first that is not, its type and the remedy, and nothing is recorded. secret_ok: keys
        that may hold one, which stays in this process.
        """
        self.check_open()
        if not isinstance(values, Mapping):
            raise UsageError(
                str(refuse("update_state()", values, "a mapping", 'write update_state({"key": …})'))
            )
        kept = exact(dict(values), "state")
        if self.session.keeper is not None:
            self.session.keeper.refuse_secrets(kept, frozenset(secret_ok))
        return self._record(StateUpdated, kept)

    def record_usage(self, usage: Usage) -> None:
        """Count what model calls consumed. Raises UsageError for anything but a `Usage`."""
        self.check_open()
        if not isinstance(usage, Usage):
            raise UsageError(str(refuse("record_usage()", usage, "a Usage")))
        self._record(UsageRecorded, usage)

    def count(self, usage: Usage) -> None:
        """As `record_usage` for a run inside this one, which has ended and must not be disturbed."""
        self._record(UsageRecorded, usage, raising=False)

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
        self._record(SubgoalsDeclared, declared)

    def complete(self, name: str) -> None:
        """Note a declared subgoal as done. Raises UsageError for one that was not declared."""
        self.check_open()
        declared = [known for _, known in self.session.state.ledger.subgoals]
        if name not in declared:
            known = ", ".join(declared) or "none"
            raise UsageError(f"complete({name!r}): no such subgoal; declared are: {known}")
        self._record(SubgoalCompleted, name)

    def compensator(
        self, function: Callable[..., Any], *args: Any, name: str | None = None
    ) -> None:
        """Register what undoes the last hand-written step: `function(*args)`, sync or async.

        A rollback past that step runs it, newest first. name: as the journal shows it; None takes the
        function's own. Raises UsageError before the first step.
        """
        self.check_open()
        if not callable(function):
            raise UsageError(str(refuse("compensator()", function, "a function")))
        positions = self.session.state.ledger.positions
        if not positions:
            raise UsageError("compensator() undoes the last step, and none is recorded yet")
        key = f"step@{positions[-1]}"
        from ._tool import Undoing, name_of

        self.register_undo(name or name_of(function), key, Undoing(function, args, {}))

    async def flush(self) -> None:
        """Wait until all that was recorded so far is durable. Raises what the store raises."""
        self.check_open()
        await self.session.flush()

    # Machinery for recorded calls and interrupts ------------------------------------------------

    def register_undo(self, name: str, key: str, undo: Callable[[], Any]) -> None:
        """Register a compensator under a key: a call's, or that of a hand-written step."""
        session = self.session
        if session.undo is None:
            session.undo = {}
        session.undo[self._record(CompensatorRegistered, name, key)] = undo

    def record_call_step(self, step: Step) -> int:
        """Record a call's step although the attempt may be ending; its index."""
        session = self.session
        with session.lock:
            seq = session.position
            index = self._count
            self._count = index + 1
            session.records += (STEP, session.time(), self.number, index, step)
        if session.busy:
            self._attend(seq, raising=False)
        return index

    def _attend(self, seq: int, *, raising: bool = True) -> None:
        """Tell the observers of an event, and hold it against the limits."""
        session = self.session
        if session.config.observers:
            session.tell(seq)
        if session.durable and session.keeper is not None:
            session.keeper.pump()
            if raising:
                session.keeper.check()
        if self._watch is not None:
            self._enforce(raising=raising)

    def stop(self, diagnosis: Diagnosis) -> None:
        """Interrupt the attempt: it has failed, whatever it does from now on.

        Unsafe calls that are running are waited for before anything is cancelled.
        """
        if self.interrupt is None:
            self.interrupt = diagnosis
            self.alert = True
            if not self.calls_open:
                self._cancel()

    def enter_scope(self, scope: anyio.CancelScope) -> None:
        """Tell the attempt which scope an interrupt cancels; called in the event loop's thread."""
        self.scope = scope
        self.alert = True
        self._thread = threading.get_ident()

    def _cancel(self) -> None:
        # A scope may only be touched in its own thread. Elsewhere the flag has to do: the next
        # recording raises.
        if self.scope is not None and threading.get_ident() == self._thread:
            self.scope.cancel()

    def unsafe_begun(self) -> None:
        """An unsafe call begins: the attempt's deadline waits until it has ended."""
        with self.session.lock:
            self.calls_open += 1
            first = self.calls_open == 1
        if first and self.scope is not None and threading.get_ident() == self._thread:
            self._held_deadline, self.scope.deadline = self.scope.deadline, math.inf

    def unsafe_ended(self) -> None:
        """An unsafe call has ended and is recorded: what waited for it goes on."""
        with self.session.lock:
            self.calls_open -= 1
            last = not self.calls_open
        if not last:
            return
        if self._held_deadline and self.scope is not None:
            self.scope.deadline, self._held_deadline = self._held_deadline, 0.0
            # Asked for, because trio looks at a deadline that has passed only when it is asked.
            if self.interrupt is None and self.scope.cancel_called:
                self.interrupt = out_of_time(self.session)
        if self.interrupt is not None:
            self._cancel()
        if self._settled is not None:
            self._settled.set()

    def close(self) -> None:
        """The attempt is over: nothing is recorded from now on."""
        self.over = self.alert = True

    async def settle(self, grace: float) -> None:
        """Wait, at most `grace` seconds, until no unsafe call is running that the agent left behind."""
        if not self.calls_open:
            return
        import anyio

        self._settled = threading.Event()
        if self.calls_open:
            await anyio.to_thread.run_sync(self._settled.wait, grace, abandon_on_cancel=True)

    def _record(self, kind: Callable[..., Any], *fields: Any, raising: bool = True) -> int:
        seq = self.session.put(kind, (self.number, *fields))
        if self.session.busy:
            self._attend(seq, raising=raising)
        return seq

    def _enforce(self, *, raising: bool) -> None:
        session = self.session
        assert self._watch is not None
        state = session.state
        breach = self._watch.watch(state.all_steps, state.tool_calls, state.usage)
        if breach is not None:
            self.stop(breach)
            if raising:
                raise AttemptInterrupted(breach)


def out_of_time(session: Session) -> Diagnosis:
    """Why an attempt whose scope ran out of time has failed."""
    left = session.seconds_left()
    return session.config.limits.time_is_up(whole=left is not None and left <= 0)


current: ContextVar[Recorder | None] = ContextVar("triage_run", default=None)
"""The attempt the running code belongs to."""
