"""A run as its events tell it: `RunState.apply(event)` and `fold(events)`.

The running process and a later reader use the same fold, so what a strategy sees is what the journal
says. Applying an event is O(1), but for an attempt's end (its steps are kept) and a rollback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from ._ledger import Ledger
from .actions import PROCEEDING, Action
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
    RunFinished,
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
from .steps import NO_USAGE, Row, Step, Trajectory, Usage, step_of
from .taxonomy import UNSAFE

NOTHING: Mapping[str, Any] = {}
_new = tuple.__new__
_ACTION = Attempt._fields.index("action")


def is_call(step: Step) -> bool:
    """True for the step of a recorded call."""
    return step.metadata is not None and "call" in step.metadata


def is_reused(metadata: Mapping[str, Any] | None) -> bool:
    """True for what the step of a reused call has as metadata: nothing ran, so it cost nothing."""
    return metadata is not None and bool(metadata.get("replayed"))


class Call(NamedTuple):
    """A recorded call as the journal knows it.

    key: tool, digest and occurrence. outcome: None while it runs, then as in `CallFinished`.
    seq: position of its start. done_at: position of the step it left, which is a checkpoint. step:
    index of that step in `attempt`. undone: a compensator has undone it, so it counts as never made.
    typed: as in `CallFinished`. keyed: its tool has taken the idempotency key. answered: a person said
    that it happened, with this result. run: id of the run inside this one that it is, None for a call
    of a tool. ended: how often it has come to an end.
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


class HandWritten(NamedTuple):
    """A step with an effect that was recorded by hand and not undone. key: `step@` and its position."""

    key: str
    seq: int
    action: str
    effect: str


class Compensation(NamedTuple):
    """A registered compensator. key: of what it undoes. at: position of that. ran: it has undone it.

    seq: position of its registration, which names it. begun: it was started, its end is not known.
    """

    name: str
    key: str
    seq: int
    at: int
    ran: bool = False
    begun: bool = False


AT_LIMIT = "limit:"
"""`ActionChosen.by` begins with it, and then names the limit, where an answer to that limit is meant."""


class RunState:
    """Everything the journal says about a run so far. Read it; only `apply` changes it.

    grants: by the name of a limit, how often its amount was allowed once more. price: gives a usage
    without a cost the cost it has; None leaves it unknown.
    """

    __slots__ = (
        "_at_limit", "_attempt_started", "agent", "all_steps", "approved", "attempt", "attempt_usage",
        "calls", "calls_per_tool", "compensations", "effects", "error", "grants", "history", "last_seq",
        "ledger", "ledgers", "parent", "price", "question", "result", "run_id", "started", "status",
        "task", "tool_calls", "usage", "used_inside",
    )  # fmt: skip

    def __init__(self) -> None:
        self.run_id = ""
        self.agent = ""
        self.task: Any = None
        self.parent: str | None = None
        self.status = "new"
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
        self.compensations: list[Compensation] = []
        self.effects: list[HandWritten] = []
        self.calls_per_tool: dict[str, int] = {}

    @property
    def steps(self) -> list[Step]:
        """The running or last attempt's steps."""
        return self.ledger.steps

    @property
    def state(self) -> dict[str, Any]:
        """The merged state of the running or last attempt."""
        return self.ledger.state

    @property
    def open_subgoals(self) -> tuple[str, ...]:
        """Declared and not completed, in order of declaration."""
        if not self.ledger.subgoals:
            return ()
        done = {name for _, name in self.ledger.completed}
        return tuple(name for _, name in self.ledger.subgoals if name not in done)

    def ledger_at(self, seq: int) -> Ledger | None:
        """The newest attempt's ledger that has a checkpoint at this position, None if none has."""
        for ledger in reversed(self.ledgers):
            if ledger.knows(seq):
                return ledger
        return None

    def apply(self, event: Event) -> None:
        """Take the next event in. Events must come in order, without gaps."""
        apply = self._APPLY.get(type(event))
        if apply is not None:
            apply(self, event)
        self.last_seq = event.seq

    def _apply_run_started(self, event: RunStarted) -> None:
        self.run_id, self.agent, self.task = event.run_id, event.agent, event.task
        self.parent, self.started = event.parent, event.time
        self.status = "running"

    def _apply_attempt_started(self, event: AttemptStarted) -> None:
        self.attempt = event.attempt
        self.attempt_usage = NO_USAGE
        self._attempt_started = event.time
        source = None if event.base is None else self.ledger_at(event.base)
        if source is not None and event.base is not None:
            self.ledger = source.cut(event.base)
        elif event.keep_state:
            self.ledger = self.ledger.carried(event.seq)
        elif self.ledgers:
            self.ledger = Ledger()
        self.ledgers.append(self.ledger)

    def _apply_step(self, event: StepRecorded) -> None:
        self.take_step(event.seq, event.time, event.index, event.step.row)

    def take_step(self, seq: int, time: float, index: int, row: Row) -> None:
        """Take in a step that was recorded at a position; what `apply` does with its event."""
        (
            _, action, tool, given, output, said, error, kind, effect, usage, metadata, at, seconds,
        ) = row  # fmt: skip
        taken = step_of((
            index, action, tool, given, output, said, error, kind, effect, usage, metadata,
            time if at is None else at, seconds,
        ))  # fmt: skip
        ledger = self.ledger
        ledger.steps.append(taken)
        ledger.positions.append(seq)
        self.last_seq = seq
        if metadata is not None and is_reused(metadata):
            return
        if effect is not None and effect in UNSAFE and not is_call(taken):
            self.effects.append(HandWritten(f"step@{seq}", seq, action, effect.value))
        self.all_steps += 1
        if tool is not None:
            self.tool_calls += 1
            self.calls_per_tool[tool] = self.calls_per_tool.get(tool, 0) + 1
        if usage is not None:
            self._use(usage)

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
        if event.kind == "call" and event.decision == "approved":
            self.approved.add(event.subject)

    def _apply_call_started(self, event: CallStarted) -> None:
        if event.keyed and event.key in self.calls:
            self.calls[event.key] = self.calls[event.key]._replace(keyed=True)
            return
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
        )

    def _apply_call_finished(self, event: CallFinished) -> None:
        call = self.calls[event.key]
        if event.replayed:
            call = call._replace(attempt=event.attempt, step=event.step)
            if event.step is not None and event.step < len(self.ledger.positions):
                call = call._replace(done_at=self.ledger.positions[event.step])
            self.calls[event.key] = call
            return
        self.calls[event.key] = call._replace(
            outcome=event.outcome,
            result=event.result,
            exact=event.exact,
            error=event.error,
            attempt=event.attempt,
            step=event.step,
            done_at=event.seq if event.step is None else self.ledger.positions[event.step],
            undone=False,
            typed=event.typed,
            answered=event.step is None,
            effect=event.effect or call.effect,
            ended=call.ended + 1,
        )

    def _apply_subgoals(self, event: SubgoalsDeclared) -> None:
        known = {name for _, name in self.ledger.subgoals}
        new = [name for name in dict.fromkeys(event.names) if name not in known]
        self.ledger.subgoals += [(event.seq, name) for name in new]

    def _apply_subgoal_completed(self, event: SubgoalCompleted) -> None:
        self.ledger.completed.append((event.seq, event.name))

    def _apply_compensator(self, event: CompensatorRegistered) -> None:
        call = self.calls.get(event.key)
        position = event.key.removeprefix("step@")
        at = event.seq
        if call is not None and call.done_at is not None:
            at = call.done_at
        elif position != event.key and position.isdecimal():
            at = int(position)
        self.compensations.append(Compensation(event.name, event.key, event.seq, at))

    def _apply_compensated(self, event: CompensatorRan) -> None:
        done = event.error is None and not event.begins
        for at, entry in enumerate(self.compensations):
            if entry.seq == event.registered:
                self.compensations[at] = entry._replace(ran=done, begun=event.begins)
        if not done:
            return
        self.effects = [effect for effect in self.effects if effect.key != event.key]
        if event.key in self.calls:
            self.calls[event.key] = self.calls[event.key]._replace(undone=True)

    def _apply_failed(self, event: AttemptFailed) -> None:
        trajectory = Trajectory(
            self.ledger.steps, error=event.error, attempt=event.attempt, task=self.task
        )
        # All fields in their order: what is made of a tuple costs a third of a call with them.
        self.history.append(_new(Attempt, (
            event.attempt,
            trajectory,
            self.ledger.state.copy(),
            event.error,
            event.diagnosis,
            None,
            self.attempt_usage,
            self._attempt_started,
            event.time,
        )))  # fmt: skip

    def _decide(self, action: Action) -> None:
        if self.history:
            past = self.history[-1]
            self.history[-1] = _new(Attempt, (*past[:_ACTION], action, *past[_ACTION + 1 :]))

    def _apply_action(self, event: ActionChosen) -> None:
        self._decide(event.action)
        self._at_limit = event.by.removeprefix(AT_LIMIT) if event.by.startswith(AT_LIMIT) else ""
        self._grant(event.action)

    def _grant(self, action: Action) -> None:
        """A run that goes on although a limit was reached may use the same amount once more."""
        name = self._at_limit
        if name and isinstance(action, PROCEEDING):
            self.grants = {**self.grants, name: self.grants.get(name, 0) + 1}
            self._at_limit = ""

    def _apply_suspended(self, event: RunSuspended) -> None:
        self.status, self.question = "suspended", event.question

    def _apply_resumed(self, event: RunResumed) -> None:
        self.status, self.question = "running", None
        self._decide(event.action)
        self._grant(event.action)

    def _apply_finished(self, event: RunFinished) -> None:
        self.status, self.result, self.error = event.status, event.result, event.error

    # One entry an event type that the state is read from. Plans are not among them: their room folds them.
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
        RunSuspended: _apply_suspended,
        RunResumed: _apply_resumed,
        RunFinished: _apply_finished,
    }


def fold(events: Iterable[Event]) -> RunState:
    """The state of a run after these events, in order."""
    state = RunState()
    for event in events:
        state.apply(event)
    return state
