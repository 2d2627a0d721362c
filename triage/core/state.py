"""The state of a run, computed from its events: `RunState.apply(event)` and `fold(events)`.

The running process and a later reader use the same fold, so a strategy sees the journal's state.
Applying an event is O(1), except for a rollback and for the end of an attempt, which copies its steps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from msgspec.structs import replace

from .actions import PROCEEDING, Action
from .constructors import Value
from .events import (
    ActionChosen,
    ApprovalGiven,
    AttemptFailed,
    AttemptStarted,
    CallFinished,
    CallStarted,
    CompensatorRan,
    CompensatorRegistered,
    Event,
    Origin,
    RunFinished,
    RunRecovered,
    RunResumed,
    RunStarted,
    RunSuspended,
    StateUpdated,
    StepRecorded,
    SubgoalCompleted,
    SubgoalsDeclared,
    UsageRecorded,
)
from .failures import Attempt, ErrorInfo
from .notebook import table
from .steps import NO_USAGE, Step, Trajectory, Usage
from .taxonomy import UNSAFE

NOTHING: Mapping[str, Any] = {}
LINE = "line"
"""Key in the metadata of a step whose call may be matched by position. The value is the number, within the
attempt and from 0, of the task or thread that made the call."""
WITHIN = "within"
"""Key in the metadata of a step. The value is the label of the recorded call around it, made of the tool
and the beginning of the idempotency key (`research 3f2a9c01`)."""


def label_of(tool: str, idempotency_key: str) -> str:
    """Return the label of a recorded call, in the metadata of the steps inside."""
    return f"{tool} {idempotency_key[:8]}"


def is_call(step: Step) -> bool:
    """Whether the step records a call."""
    return step.metadata is not None and "call" in step.metadata


def is_reused(metadata: Mapping[str, Any] | None) -> bool:
    """Whether a step reused a recorded result, so that nothing ran or was consumed."""
    return metadata is not None and bool(metadata.get("replayed"))


class Call(Value, frozen=True):
    """A recorded call in the journal.

    key: tool, digest and occurrence. outcome: None while it runs, then as in `CallFinished`. seq:
    position of its start. done_at: position of its step, which is a checkpoint. step: index of that
    step in `attempt`. undone: a compensator has undone it, so it counts as never made. typed,
    asked_model: as in `CallFinished`. keyed: its tool took the idempotency key. answered: a person stated
    that it happened, with this result. run: id of the nested run it started, None for a tool call.
    ended: how often it has ended. kind: `model`, `judge`, `tool` or `run`. line: number of the task that
    made it (see `LINE`), None if it may not be matched by position. within: label of the recorded call
    around it, None for none. began: seconds since the epoch. idempotency_key: as in `CallStarted`.
    """

    key: str
    tool: str
    effect: str
    arguments: Any
    attempt: int
    seq: int
    outcome: str | None = None
    result: Any = None
    exact: bool = True
    error: ErrorInfo | None = None
    step: int | None = None
    done_at: int | None = None
    undone: bool = False
    typed: bool = False
    keyed: bool = False
    answered: bool = False
    run: str | None = None
    ended: int = 0
    kind: str = "tool"
    asked_model: bool = False
    line: int | None = None
    within: str | None = None
    began: float = 0.0
    idempotency_key: str = ""

    @property
    def may_have_happened(self) -> bool:
        """Whether it took effect, or may have: an unsafe call that took its key fails without a doubt."""
        failed_with_key = self.outcome == "failed" and self.keyed
        return failed_with_key or self.outcome in (None, "in_doubt", "done")


class HandWritten(Value, frozen=True):
    """A step with an effect, recorded by hand and not undone. key: `step@` and its position."""

    key: str
    seq: int
    action: str
    effect: str


class Compensation(Value, frozen=True):
    """A registered compensator. key, at: key and position of the call or step it undoes.

    seq: position of the registration, which identifies it. ran: it succeeded. begun: it started, and its
    outcome is not known. args, module: as in `CompensatorRegistered`. tries: number of starts. error: its
    latest error.
    """

    name: str
    key: str
    seq: int
    at: int
    ran: bool = False
    begun: bool = False
    args: tuple[Any, ...] | None = None
    tries: int = 0
    error: ErrorInfo | None = None
    module: str | None = None


class Ledger:
    """The entries of an attempt with their positions, for rollbacks. began: position of its start."""

    __slots__ = ("began", "completed", "positions", "state", "steps", "subgoals", "updates")

    def __init__(self) -> None:
        self.began = 0
        self.steps: list[Step] = []
        self.positions: list[int] = []
        self.updates: list[tuple[int, Mapping[str, Any]]] = []
        self.state: dict[str, Any] = {}
        self.subgoals: list[tuple[int, str]] = []
        self.completed: list[tuple[int, str]] = []

    def update(self, seq: int, values: Mapping[str, Any]) -> None:
        """Merge the state update recorded at a position."""
        self.updates.append((seq, values))
        self.state.update(values)

    def knows(self, seq: int) -> bool:
        """Whether this position is that of a step or a state update."""
        at = bisect_left(self.positions, seq)
        if at < len(self.positions) and self.positions[at] == seq:
            return True
        return any(position == seq for position, _ in self.updates)

    def last_position(self) -> int | None:
        """Return the newest checkpoint, None if nothing was recorded."""
        newest = self.positions[-1:] + [seq for seq, _ in self.updates[-1:]]
        return max(newest, default=None)

    def position_before(self, step: int) -> int | None:
        """Return the newest checkpoint before the step with this index, None without one."""
        if step >= len(self.positions):
            return self.last_position()
        border = self.positions[step]
        earlier = [seq for seq, _ in self.updates if seq < border] + self.positions[:step]
        return max(earlier, default=None)

    def cut(self, seq: int) -> Ledger:
        """Copy the entries up to and including a position."""
        part = Ledger()
        kept = bisect_right(self.positions, seq)
        part.steps, part.positions = self.steps[:kept], self.positions[:kept]
        for at, values in self.updates:
            if at <= seq:
                part.update(at, values)
        part.subgoals = [entry for entry in self.subgoals if entry[0] <= seq]
        part.completed = [entry for entry in self.completed if entry[0] <= seq]
        return part

    def carried(self, seq: int) -> Ledger:
        """Copy the state and subgoals without the steps, for a resumption."""
        part = Ledger()
        if self.state:
            part.update(seq, dict(self.state))
        part.subgoals, part.completed = list(self.subgoals), list(self.completed)
        return part


AT_LIMIT = "limit:"
"""Prefix of `ActionChosen.by` before the name of the limit that the run has reached."""


class RunState:
    """The state of a run so far, for reading; only `apply` changes it.

    edits: arguments changed by a person, by key of the call. grants: number of times that the amount of
    a limit was granted again, by its name. price: fills in the cost of a usage without one; None leaves
    the cost unknown. returns: position before which an attempt reuses recorded reads and model calls of
    earlier attempts, by attempt. starts: position of an attempt's latest start, by attempt. carried:
    attempts that continue the conversation of the attempt before. taken_over: another process started the
    run. origin: the run it was forked from; None if it is no fork.
    """

    __slots__ = (
        "_at_limit", "_attempt_started", "agent", "all_steps", "approved", "attempt", "attempt_usage",
        "calls", "calls_per_tool", "carried", "compensations", "edits", "effects", "error", "grants",
        "history",
        "last_seq", "ledger", "ledgers", "origin", "parent", "price", "question", "result", "returns",
        "run_id", "started", "starts", "status", "taken_over", "task", "tool_calls", "usage", "used_inside",
    )  # fmt: skip

    def __init__(self) -> None:
        self.run_id = ""
        self.agent = ""
        self.task: Any = None
        self.parent: str | None = None
        self.origin: Origin | None = None
        self.status = "new"
        self.taken_over = False
        self.started = 0.0
        self.last_seq = -1
        self.attempt = 0
        self.usage: Usage = NO_USAGE
        self.attempt_usage: Usage = NO_USAGE
        self.all_steps = 0
        self.tool_calls = 0
        self.result: Any = None
        self.error: ErrorInfo | None = None
        self.question: str | None = None
        self.used_inside: Mapping[str, Usage] = NOTHING
        self.grants: Mapping[str, int] = NOTHING
        self.price: Callable[[Usage], Usage] | None = None
        self._at_limit = ""
        self._attempt_started = 0.0
        self.ledger = Ledger()
        self.ledgers: list[Ledger] = []
        self.history: list[Attempt] = []
        self.calls: dict[str, Call] = {}
        self.approved: set[str] = set()
        self.edits: dict[str, Any] = {}
        self.compensations: list[Compensation] = []
        self.effects: list[HandWritten] = []
        self.calls_per_tool: dict[str, int] = {}
        self.returns: dict[int, int] = {}
        self.starts: dict[int, int] = {}
        self.carried: set[int] = set()

    @property
    def steps(self) -> list[Step]:
        """The steps of the running or last attempt."""
        return self.ledger.steps

    @property
    def state(self) -> dict[str, Any]:
        """The merged state of the running or last attempt."""
        return self.ledger.state

    @property
    def open_subgoals(self) -> tuple[str, ...]:
        """The declared subgoals that are not completed, in declared order."""
        if not self.ledger.subgoals:
            return ()
        done = {name for _, name in self.ledger.completed}
        return tuple(name for _, name in self.ledger.subgoals if name not in done)

    @property
    def salt(self) -> str:
        """The salt of the digests of calls: the run's id, or for a fork the id of the first run."""
        return self.run_id if self.origin is None else self.origin.salt

    def inherits(self, seq: int) -> bool:
        """Whether the event at this position was copied from the origin of this fork."""
        return self.origin is not None and seq < self.origin.events

    @property
    def started_at(self) -> int:
        """The position of the start of the running or last attempt."""
        return self.starts.get(self.attempt, -1)

    def has_asked_model(self) -> bool:
        """Whether the run has asked a model, by a recorded call, in a nested run, or by a hand-written step
        with a model's words or usage.
        """
        if self.usage.calls or self.usage.total_tokens:
            return True
        if any(call.kind in ("model", "judge") or call.asked_model for call in self.calls.values()):
            return True
        return any(step.llm_output is not None for ledger in self.ledgers for step in ledger.steps)

    def ledger_at(self, seq: int) -> Ledger | None:
        """Return the newest ledger with a checkpoint at this position, None without one.

        After a takeover, steps are recorded again at other positions. Any position of the journal then
        stands for the entries up to it, so that a checkpoint in a policy stays valid.
        """
        for ledger in reversed(self.ledgers):
            if ledger.knows(seq):
                return ledger
        if not self.taken_over or not self.ledgers or not 0 <= seq <= self.last_seq:
            return None
        return next((one for one in reversed(self.ledgers) if one.began <= seq), self.ledgers[0])

    def _repr_html_(self) -> str:
        """Render the run as HTML for notebooks."""
        rows: list[tuple[str, object]] = [("agent", self.agent), ("task", self.task)]
        rows += [
            (
                f"attempt {past.number}",
                f"{past.diagnosis} → {past.action.kind if past.action else 'undecided'}",
            )
            for past in self.history
        ]
        rows += [
            ("steps", str(self.all_steps)),
            ("tokens", str(self.usage.total_tokens or "")),
            ("question", self.question),
            ("error", None if self.error is None else str(self.error)),
            ("result", self.result),
        ]
        return table(f"run {self.run_id}: {self.status}", rows)

    def apply(self, event: Event) -> None:
        """Apply the next event. Events must come in order, without gaps."""
        apply = self._APPLY.get(type(event))
        if apply is not None:
            apply(self, event)
        self.last_seq = event.seq

    def _apply_run_started(self, event: RunStarted) -> None:
        self.run_id, self.agent, self.task = event.run_id, event.agent, event.task
        self.parent, self.started, self.origin = event.parent, event.time, event.origin
        self.status = "running"

    def _apply_attempt_started(self, event: AttemptStarted) -> None:
        self.attempt = event.attempt
        self.starts[event.attempt] = event.seq
        self.returns[event.attempt] = event.returns_to or 0
        if event.carries:
            self.carried.add(event.attempt)
        self.attempt_usage = NO_USAGE
        self._attempt_started = event.time
        source = None if event.base is None else self.ledger_at(event.base)
        if source is not None and event.base is not None:
            self.ledger = source.cut(event.base)
        elif event.keep_state:
            self.ledger = self.ledger.carried(event.seq)
        elif self.ledgers:
            self.ledger = Ledger()
        self.ledger.began = event.seq
        self.ledgers.append(self.ledger)

    def _apply_step(self, event: StepRecorded) -> None:
        step = event.step.recorded(event.index, event.time)
        self.ledger.steps.append(step)
        self.ledger.positions.append(event.seq)
        if is_reused(step.metadata):
            return
        if step.effect is not None and step.effect in UNSAFE and not is_call(step):
            key = f"step@{event.seq}"
            name = step.action or step.tool_called or "without a name"
            self.effects.append(HandWritten(key, event.seq, name, step.effect))
        self.all_steps += 1
        if step.tool_called is not None:
            self.tool_calls += 1
            self.calls_per_tool[step.tool_called] = self.calls_per_tool.get(step.tool_called, 0) + 1
        if step.usage is not None:
            self._use(step.usage)

    def _apply_state(self, event: StateUpdated) -> None:
        self.ledger.update(event.seq, event.values)

    def _apply_usage(self, event: UsageRecorded) -> None:
        self._use(event.usage)
        if event.run is not None:
            before = self.used_inside.get(event.run, NO_USAGE)
            self.used_inside = {**self.used_inside, event.run: before.plus(event.usage)}

    def _use(self, usage: Usage) -> None:
        if self.price is not None:
            usage = self.price(usage)
        self.usage = self.usage.plus(usage)
        self.attempt_usage = self.attempt_usage.plus(usage)

    def _apply_approval(self, event: ApprovalGiven) -> None:
        if event.kind == "call" and event.decision in ("approved", "edited"):
            self.approved.add(event.subject)
            if event.decision == "edited":
                self.edits[event.subject] = event.payload

    def _apply_call_started(self, event: CallStarted) -> None:
        if event.keyed and event.key in self.calls:
            self.calls[event.key] = replace(self.calls[event.key], keyed=True)
            return
        if event.effect in UNSAFE:
            self.approved.discard(event.key)
        before = self.calls.get(event.key)
        self.calls[event.key] = Call(
            event.key,
            event.tool,
            event.effect,
            event.arguments,
            event.attempt,
            event.seq,
            run=event.run,
            ended=0 if before is None else before.ended,
            kind=event.kind or ("tool" if event.run is None else "run"),
            began=event.time,
            idempotency_key=event.idempotency_key,
        )

    def _apply_call_finished(self, event: CallFinished) -> None:
        call = self.calls[event.key]
        if event.step is not None and event.step < len(self.ledger.steps):
            metadata = self.ledger.steps[event.step].metadata or NOTHING
            call = replace(call, line=metadata.get(LINE), within=metadata.get(WITHIN))
            if call.kind == "tool" and call.line is not None:
                call = replace(call, kind="model")  # as in journals of 0.1.0
        if event.replayed:
            call = replace(call, attempt=event.attempt, step=event.step)
            if event.step is not None and event.step < len(self.ledger.positions):
                call = replace(call, done_at=self.ledger.positions[event.step])
            self.calls[event.key] = call
            return
        if event.outcome == "done":  # until then a call that may be repeated keeps its approval
            self.approved.discard(event.key)
        self.calls[event.key] = replace(
            call,
            outcome=event.outcome,
            result=event.result,
            exact=event.exact,
            error=event.error,
            attempt=event.attempt,
            step=event.step,
            done_at=event.seq if event.step is None else self.ledger.positions[event.step],
            undone=False,
            typed=event.typed,
            keyed=call.keyed or event.keyed,
            answered=event.step is None and not self.inherits(event.seq),
            effect=event.effect or call.effect,
            ended=call.ended + 1,
            asked_model=event.asked_model,
        )

    def _apply_subgoals(self, event: SubgoalsDeclared) -> None:
        known = {name for _, name in self.ledger.subgoals}
        new = [name for name in dict.fromkeys(event.names) if name not in known]
        self.ledger.subgoals += [(event.seq, name) for name in new]

    def _apply_subgoal_completed(self, event: SubgoalCompleted) -> None:
        self.ledger.completed.append((event.seq, event.name))

    def _apply_compensator(self, event: CompensatorRegistered) -> None:
        if self.inherits(event.seq):
            return  # all forks share these effects of their origin, so no fork may undo them
        call = self.calls.get(event.key)
        position = event.key.removeprefix("step@")
        at = event.seq
        if call is not None and call.done_at is not None:
            at = call.done_at
        elif position != event.key and position.isdecimal():
            at = int(position)
        self.compensations.append(
            Compensation(event.name, event.key, event.seq, at, args=event.args, module=event.module)
        )

    def _apply_compensated(self, event: CompensatorRan) -> None:
        done = event.error is None and not event.begins
        for at, entry in enumerate(self.compensations):
            if entry.seq == event.registered:
                self.compensations[at] = replace(
                    entry,
                    ran=done,
                    begun=event.begins,
                    tries=entry.tries + event.begins,
                    error=entry.error if event.begins else event.error,
                )
        if not done:
            return
        self.effects = [effect for effect in self.effects if effect.key != event.key]
        if event.key in self.calls:
            self.calls[event.key] = replace(self.calls[event.key], undone=True)

    def _apply_failed(self, event: AttemptFailed) -> None:
        trajectory = Trajectory(
            self.ledger.steps, error=event.error, attempt=event.attempt, task=self.task
        )
        attempt = Attempt(
            number=event.attempt,
            trajectory=trajectory,
            state=self.ledger.state.copy(),
            error=event.error,
            diagnosis=event.diagnosis,
            action=None,
            usage=self.attempt_usage,
            started=self._attempt_started,
            ended=event.time,
        )
        self.history.append(attempt)

    def _decide(self, action: Action) -> None:
        if self.history:
            self.history[-1] = replace(self.history[-1], action=action)

    def _apply_action(self, event: ActionChosen) -> None:
        self._decide(event.action)
        self._at_limit = event.by.removeprefix(AT_LIMIT) if event.by.startswith(AT_LIMIT) else ""
        self._grant(event.action)

    def granted(self, action: Action) -> Mapping[str, int]:
        """Return the grants after this action: a run that proceeds at a limit gets its amount again."""
        name = self._at_limit
        if not name or not isinstance(action, PROCEEDING):
            return self.grants
        return {**self.grants, name: self.grants.get(name, 0) + 1}

    def _grant(self, action: Action) -> None:
        self.grants = self.granted(action)
        if isinstance(action, PROCEEDING):
            self._at_limit = ""

    def _apply_recovered(self, event: RunRecovered) -> None:
        self.taken_over = True

    def _apply_suspended(self, event: RunSuspended) -> None:
        self.status, self.question = "suspended", event.question

    def _apply_resumed(self, event: RunResumed) -> None:
        self.status, self.question = "running", None
        self._decide(event.action)
        self._grant(event.action)

    def _apply_finished(self, event: RunFinished) -> None:
        self.status, self.result, self.error = event.status, event.result, event.error

    # `triage.plan` folds plan events.
    _APPLY: ClassVar[dict[type, Any]] = {
        RunStarted: _apply_run_started,
        AttemptStarted: _apply_attempt_started,
        StepRecorded: _apply_step,
        StateUpdated: _apply_state,
        UsageRecorded: _apply_usage,
        ApprovalGiven: _apply_approval,
        CallStarted: _apply_call_started,
        CallFinished: _apply_call_finished,
        SubgoalsDeclared: _apply_subgoals,
        SubgoalCompleted: _apply_subgoal_completed,
        CompensatorRegistered: _apply_compensator,
        CompensatorRan: _apply_compensated,
        AttemptFailed: _apply_failed,
        ActionChosen: _apply_action,
        RunRecovered: _apply_recovered,
        RunSuspended: _apply_suspended,
        RunResumed: _apply_resumed,
        RunFinished: _apply_finished,
    }


def fold(events: Iterable[Event]) -> RunState:
    """Return the state of a run after these events."""
    state = RunState()
    for event in events:
        state.apply(event)
    return state


class ActiveTime:
    """The seconds that a run has worked, without waits for a person or a new process.

    Measured by the times of the events; an interval in which a clock was set back counts as 0.
    """

    __slots__ = ("_before", "_copied", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self._before: Event | None = None
        self._copied = 0
        """The number of events that a fork copied; 0 in any other run."""

    def apply(self, event: Event) -> None:
        """Apply the next event."""
        if isinstance(event, RunStarted) and event.origin is not None:
            self._copied = event.origin.events
        before, self._before = self._before, event
        # After a question the run waits for a person, whatever event follows.
        waited = isinstance(event, RunRecovered) or isinstance(before, RunSuspended)
        if before is not None and not waited and (not self._copied or event.seq != self._copied):
            self.seconds += max(0.0, event.time - before.time)


def active_seconds(events: Iterable[Event]) -> float:
    """Return the `ActiveTime` in seconds of the events of a run from its beginning; 0 for none."""
    active = ActiveTime()
    for event in events:
        active.apply(event)
    return active.seconds
