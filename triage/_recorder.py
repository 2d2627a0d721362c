"""What one attempt records, and what it is told."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from ._guidance import NO_GUIDANCE, Guidance, Replay
from ._interrupt import Interruptible
from ._journal import STEP, WIDTH
from ._plain import plain
from ._refuse import refuse
from ._serde import exact
from ._session import FIRST_LOOK
from .diagnosis import Diagnosis
from .errors import UsageError
from .events import (
    CompensatorRegistered,
    StateUpdated,
    SubgoalCompleted,
    SubgoalsDeclared,
    UsageRecorded,
)
from .steps import ERROR, INPUT, OUTPUT, SAID, TOOL, Row, Step, Trajectory, Usage

if TYPE_CHECKING:
    from ._session import Session
    from ._watching import Watcher
    from .failures import Attempt, ErrorInfo


LOOK_EVERY = 6
"""Steps of an attempt between two looks at them, while nothing was seen."""
WHOLE_FROM = 16
"""The step from which on each one goes through the detectors."""


class Recorder(Interruptible):
    """One attempt of a run as it records itself. Safe to use from tasks and threads of the attempt.

    After the attempt every recording raises `AttemptOver`; after an interrupt, `AttemptInterrupted`.
    """

    # Most attempts never set these: as class attributes they cost an attempt nothing. What every attempt
    # or step reads is set in each, as a class attribute is found four times as slowly.
    # Occurrences of equal calls in this attempt, made when the first call is made.
    occurrences: dict[str, int] | None = None
    # What watching found and the agent is to know while it goes on.
    live: Diagnosis | None = None
    _watcher: Watcher | None = None
    # Index of the first step; of the next that is looked at; of the next at which anything is to be done.
    first = 0
    _look_at: float = FIRST_LOOK
    _whole_from = WHOLE_FROM

    def __init__(
        self, session: Session, number: int, guidance: Guidance, replay: Replay | None, count: int
    ) -> None:
        self.session = session
        self.number = number
        self.told: Guidance = guidance
        self.replay = replay
        self._count = count
        self._due: float = FIRST_LOOK
        self.alert = False
        self.interrupt = None
        self.calls_open = 0
        self.has_subgoals = False
        config = session.config
        usual = config.first_look == FIRST_LOOK and config.checks is None
        if session.busy or count or not usual or session.parent is not None:
            self._arrange(session, count)

    def _arrange(self, session: Session, count: int) -> None:
        """What is otherwise than in most attempts."""
        self.first = count
        self._watch = session.watch
        config = session.config
        self._look_at = count + config.first_look
        checks = config.checks
        if config.watching and checks is not None and (checks.constraints or checks.manifest):
            # One step may be wrong by itself.
            self._look_at = self._whole_from = 0
        self._due = 0 if session.busy else self._look_at
        if session.parent is not None:
            session.parent.has_inside(self)

    @property
    def guidance(self) -> Guidance:
        """What this attempt is told; empty while calls are given again by their position.

        While the attempt is seen to go round in a loop, `hint` says so first, and `diagnosis` what it is.
        """
        told = self.told
        if self.replay is not None and self.session.has_calls:
            from ._tally import tally

            if tally(self).replaying:
                return NO_GUIDANCE
        live = self.live
        if live is None:
            return told
        hints = [hint for hint in (live.hint, told.hint) if hint]
        return told._replace(hint="\n".join(hints) or None, diagnosis=live)

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
        now = session.time
        # Not `with`: taken with every step, and a third of the time this way.
        lock = session.lock
        lock.acquire()
        try:
            seq = len(records) // WIDTH
            index = self._count
            self._count = index + 1
            records += (STEP, now(), self.number, index, step.row)
        finally:
            lock.release()
        if index >= self._due:
            self._attend(seq, index)
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
        """Count what model calls consumed; a cost that is not given is taken from the prices.

        Raises UsageError for anything but a `Usage`.
        """
        self.check_open()
        if not isinstance(usage, Usage):
            raise UsageError(str(refuse("record_usage()", usage, "a Usage")))
        self._record(UsageRecorded, self.session.limits.priced(usage))

    def count(self, usage: Usage, run_id: str) -> None:
        """As `record_usage` for a run inside this one, which must not be disturbed."""
        self._record(UsageRecorded, usage, run_id, raising=False)

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
        usage = step.usage
        if usage is not None:
            priced = session.limits.priced(usage)
            if priced is not usage:
                step = step._replace(usage=priced)
        records = session.records
        session.lock.acquire()  # as in `record_step`
        try:
            seq = len(records) // WIDTH
            index = self._count
            self._count = index + 1
            records += (STEP, session.time(), self.number, index, step.row)
            if self._running is not None:
                self.count_off(step)
        finally:
            session.lock.release()
        if index >= self._due:
            self._attend(seq, index, raising=False)
        return index

    def notice(self, kind: Callable[..., Any], *fields: Any) -> None:
        """Record what watching has found, whatever becomes of the attempt."""
        seq = self.session.put(kind, (self.number, *fields))
        if self.session.busy:
            self._attend(seq, raising=False)

    def _attend(self, seq: int, index: int = -1, *, raising: bool = True) -> None:
        """Tell the observers of an event, hold it against the limits, and look at a step."""
        session = self.session
        if session.busy:
            self._tell(seq, raising=raising)
            if index < self._look_at:
                return
        if self.over:
            return
        if self._watcher is None:
            last = self._whole_from - 1
            if index < last and not _comes_back(session.records, seq):
                self._look_next(min(last, index + LOOK_EVERY))
                return
        self._look()
        if raising and self.alert:
            self.refuse()

    def _tell(self, seq: int, *, raising: bool) -> None:
        session = self.session
        if session.config.observers:
            session.tell(seq)
        if session.durable and session.keeper is not None:
            session.keeper.pump()
            if raising:
                session.keeper.check()
        if self._watch is not None:
            self._enforce(raising=raising)

    def _look(self) -> None:
        """Have the detectors look at what is new, and from now on at every step."""
        if self._watcher is not None:
            self._watcher.look()
            return
        with self.session.lock:
            if self._look_at == math.inf:
                return  # somebody else begins to watch: what is recorded meanwhile is seen then
            self._look_at = math.inf
        from ._watching import begin

        self._watcher = begin(self)
        if self._watcher is not None:
            self._look_next(0)
            self._watcher.look()

    def _look_next(self, index: float) -> None:
        """Look at the steps from this one on. math.inf: at no further one of this attempt."""
        self._look_at = index
        self._due = 0 if self.session.busy else index

    def unwatched(self) -> None:
        """Look at no further step of this attempt."""
        self.live = None
        self._look_next(math.inf)

    def _record(self, kind: Callable[..., Any], *fields: Any, raising: bool = True) -> int:
        seq = self.session.put(kind, (self.number, *fields))
        if self.session.busy:
            self._attend(seq, raising=raising)
        return seq

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


def _comes_back(records: list[Any], seq: int) -> bool:
    """Whether a step does what one of the three before it did, or its tool has failed there too."""
    at = seq * WIDTH + WIDTH - 1
    last: Row = records[at]
    tool, given, failed = last[TOOL], last[INPUT], last[ERROR]
    # Other events have no step there: a later look sees what stands behind them.
    for row in (records[at - WIDTH], records[at - 2 * WIDTH], records[at - 3 * WIDTH]):
        if row is None or row[TOOL] != tool:
            continue
        if failed is not None and row[ERROR] is not None:
            return True  # whatever the arguments were
        # Metadata, usage and the like tell equal calls apart; what a model says, where no tool is.
        if (
            row[INPUT] == given
            and row[OUTPUT] == last[OUTPUT]
            and (tool or row[SAID] == last[SAID])
        ):
            return True
    return False


current: ContextVar[Recorder | None] = ContextVar("triage_run", default=None)
"""The attempt the running code belongs to."""
