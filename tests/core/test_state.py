"""The fold of a run's events: a machine drives them at random against a simple model of the run."""

from __future__ import annotations

import copy
from typing import Any

import hypothesis.strategies as st
import pytest
from event_values import actions, causes, diagnoses, errors, json_values, told, usages
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from msgspec.structs import replace
from tables import table

from triage import Diagnosis, ErrorInfo, FailureType, Retry, Step, Suspend, Usage, UsageError
from triage.core import (
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
    RunState,
    RunSuspended,
    StateUpdated,
    StepRecorded,
    SubgoalCompleted,
    SubgoalsDeclared,
    UsageRecorded,
    fold,
)
from triage.core.json_values import exact

keys = st.sampled_from("abc")
goals = st.sampled_from(["search", "book", "pay"])


class Model:
    """What an attempt has, kept in the simplest way: a copy of all of it at every checkpoint."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.state: dict[str, Any] = {}
        self.declared: list[str] = []
        self.done: set[str] = set()

    @property
    def open_subgoals(self) -> tuple[str, ...]:
        return tuple(name for name in self.declared if name not in self.done)


class Machine(RuleBasedStateMachine):
    """Events of a run, one at a time, into the fold and into the model."""

    def __init__(self) -> None:
        super().__init__()
        self.journal: list[Event] = []
        self.live = RunState()
        self.model = Model()
        self.checkpoints: dict[int, Model] = {}
        self.newest: int | None = None
        self.failed: list[tuple[int, list[str], dict[str, Any], Any]] = []
        self.attempt = 0
        self.running = False
        self.spent = Usage(calls=0)
        self.spent_now = Usage(calls=0)
        self.counted = [0, 0]

    def add(self, cls: Any, *fields: Any) -> int:
        seq = len(self.journal)
        event = cls("run", seq, float(seq), *fields)
        self.journal.append(event)
        self.live.apply(event)
        return seq

    def start(self, model: Model, **fields: Any) -> int:
        self.attempt += 1
        self.running = True
        self.model = copy.deepcopy(model)
        self.newest = None
        self.spent_now = Usage(calls=0)
        started = AttemptStarted("", 0, 0.0, self.attempt, **fields)
        return self.add(
            lambda run_id, seq, time: replace(started, run_id=run_id, seq=seq, time=time)
        )

    def checkpoint(self, seq: int) -> None:
        self.checkpoints[seq] = copy.deepcopy(self.model)
        self.newest = seq

    def spend(self, usage: Usage) -> None:
        self.spent, self.spent_now = self.spent.plus(usage), self.spent_now.plus(usage)

    @initialize(task=json_values)
    def begin(self, task: Any) -> None:
        self.add(RunStarted, "agent", task)
        self.start(Model())

    # Recording

    @precondition(lambda self: self.running)
    @rule(
        action=st.text(max_size=3),
        tool=st.none() | keys,
        usage=st.none() | usages,
        replayed=st.booleans(),
    )
    def record_step(
        self, *, action: str, tool: str | None, usage: Usage | None, replayed: bool
    ) -> None:
        metadata = {"replayed": True} if replayed else None
        step = Step(action=action, tool_called=tool, usage=usage, metadata=metadata)
        seq = self.add(StepRecorded, self.attempt, len(self.model.steps), step)
        self.model.steps.append(action)
        self.checkpoint(seq)
        if not replayed:
            self.counted[0] += 1
            self.counted[1] += tool is not None
            if usage is not None:
                self.spend(usage)

    @precondition(lambda self: self.running)
    @rule(values=st.dictionaries(keys, json_values, max_size=2))
    def update_state(self, values: dict[str, Any]) -> None:
        seq = self.add(StateUpdated, self.attempt, values)
        self.model.state.update(values)
        self.checkpoint(seq)

    @precondition(lambda self: self.running)
    @rule(usage=usages)
    def record_usage(self, usage: Usage) -> None:
        self.add(UsageRecorded, self.attempt, usage)
        self.spend(usage)

    @precondition(lambda self: self.running)
    @rule(names=st.lists(goals, max_size=2, unique=True))
    def declare(self, names: list[str]) -> None:
        self.add(SubgoalsDeclared, self.attempt, tuple(names))
        self.model.declared += [name for name in names if name not in self.model.declared]

    @precondition(lambda self: self.running)
    @rule(name=goals)
    def complete(self, name: str) -> None:
        if name in self.model.declared:
            self.add(SubgoalCompleted, self.attempt, name)
            self.model.done.add(name)

    # Failing and going on

    @precondition(lambda self: self.running)
    @rule(error=st.none() | errors, diagnosis=diagnoses)
    def fail(self, error: Any, diagnosis: Diagnosis) -> None:
        self.add(AttemptFailed, self.attempt, error, diagnosis)
        state = copy.deepcopy(self.model.state)
        self.failed.append((self.attempt, list(self.model.steps), state, None))
        self.running = False

    def choose(self, cls: Any, action: Any) -> None:
        self.add(cls, self.attempt, action)
        self.failed[-1] = (*self.failed[-1][:3], action)

    @precondition(lambda self: not self.running)
    @rule(action=actions, cause=causes)
    def decide_and_start_anew(self, action: Any, cause: str) -> None:
        self.choose(ActionChosen, action)
        self.start(Model(), hint=cause)

    @precondition(lambda self: not self.running)
    @rule(data=st.data())
    def roll_back(self, data: Any) -> None:
        if self.checkpoints:
            base = data.draw(st.sampled_from(sorted(self.checkpoints)))
            self.start(self.checkpoints[base], base=base)
            self.newest = base

    @precondition(lambda self: not self.running)
    @rule()
    def resume(self) -> None:
        carried = copy.deepcopy(self.model)
        carried.steps = []
        seq = self.start(carried, keep_state=True)
        if carried.state:
            self.checkpoint(seq)  # the state it began with can be gone back to

    @precondition(lambda self: not self.running)
    @rule(action=actions)
    def suspend_and_answer(self, action: Any) -> None:
        self.choose(ActionChosen, Suspend("what now?"))
        self.add(RunSuspended, self.attempt, "digest", "what now?")
        assert (self.live.status, self.live.question) == ("suspended", "what now?")
        self.choose(RunResumed, action)
        assert (self.live.status, self.live.question) == ("running", None)

    # What must hold after every event

    @invariant()
    def the_trajectory_and_the_state_are_the_models(self) -> None:
        assert [step.action for step in self.live.steps] == self.model.steps
        assert [step.index for step in self.live.steps] == list(range(len(self.model.steps)))
        assert self.live.state == self.model.state
        assert self.live.open_subgoals == self.model.open_subgoals
        assert self.live.attempt == self.attempt

    @invariant()
    def the_last_position_is_the_newest_checkpoint(self) -> None:
        assert self.live.ledger.last_position() == self.newest

    @invariant()
    def every_checkpoint_is_known_and_cut_to_what_it_was(self) -> None:
        for seq, model in self.checkpoints.items():
            ledger = self.live.ledger_at(seq)
            assert ledger is not None
            cut = ledger.cut(seq)
            assert [step.action for step in cut.steps] == model.steps
            assert cut.state == model.state
        assert self.live.ledger_at(len(self.journal)) is None

    @invariant()
    def the_past_is_kept_as_it_was(self) -> None:
        past = [
            (old.number, [step.action for step in old.trajectory], old.state, old.action)
            for old in self.live.history
        ]
        assert past == self.failed

    @invariant()
    def what_was_used_is_the_sum_of_what_was_recorded(self) -> None:
        assert self.live.usage == self.spent
        assert self.live.attempt_usage == self.spent_now
        assert [self.live.all_steps, self.live.tool_calls] == self.counted

    @invariant()
    def folding_at_once_says_the_same_as_folding_as_it_happens(self) -> None:
        assert told(fold(self.journal)) == told(self.live)


TestAnyRun = Machine.TestCase


# What the machine does not drive ------------------------------------------------------------------


BROKEN = ErrorInfo("ValueError")


def run_of(*tail: Any) -> RunState:
    """A run with one attempt and then these events, each given as a type and its fields."""
    journal: list[Event] = [RunStarted("run", 0, 0.0, "agent"), AttemptStarted("run", 1, 1.0, 1)]
    for cls, *fields in tail:
        journal.append(cls("run", len(journal), float(len(journal)), *fields))
    return fold(journal)


def test_a_subgoal_named_twice_in_one_breath_is_declared_once() -> None:
    assert run_of((SubgoalsDeclared, 1, ("book", "pay", "book"))).open_subgoals == ("book", "pay")


def test_a_run_of_no_events_is_new_and_empty() -> None:
    state = fold([])
    assert (state.status, state.attempt, state.steps, state.last_seq) == ("new", 0, [], -1)


def test_a_step_gets_its_index_and_its_time_from_the_run_where_it_has_none() -> None:
    mine, other = Step(index=7, action="a", timestamp=5.0), Step(action="b")
    steps = run_of((StepRecorded, 1, 0, mine), (StepRecorded, 1, 1, other)).steps
    assert [(step.index, step.timestamp) for step in steps] == [(0, 5.0), (1, 3.0)]


PAID: tuple[Any, ...] = (
    (CallStarted, 1, "k", "pay", "once", {"cents": 1}),
    (StepRecorded, 1, 0, Step(action="call")),
    (CallFinished, 1, "k", "done", 42, True, None, False, 0),
)


def test_a_call_has_the_outcome_of_its_end() -> None:
    assert run_of(PAID[0]).calls["k"].outcome is None
    call = run_of(*PAID).calls["k"]
    assert (call.tool, call.arguments, call.outcome) == ("pay", {"cents": 1}, "done")
    assert (call.result, call.step, call.seq) == (42, 0, 2)


def test_a_reused_call_keeps_its_result_and_takes_the_new_place() -> None:
    call = run_of(*PAID, (CallFinished, 2, "k", "done", None, True, None, True, 5)).calls["k"]
    assert (call.result, call.attempt, call.step) == (42, 2, 5)
    assert call.done_at == run_of(*PAID).calls["k"].done_at


@table("worked", [True, False])
def test_a_compensated_call_counts_as_never_made(*, worked: bool) -> None:
    error = None if worked else BROKEN
    state = run_of(
        (CallStarted, 1, "k", "pay", "once"),
        (CallFinished, 1, "k", "done", 42),
        (CompensatorRegistered, 1, "refund", "k"),
        (CompensatorRegistered, 1, "refund", "k"),
        (CompensatorRan, 1, 5, "refund", "k", error),
    )
    assert state.calls["k"].undone is worked
    assert [entry.ran for entry in state.compensations] == [False, worked]


def test_an_approved_call_is_approved_until_it_starts() -> None:
    approval = (ApprovalGiven, "call", "k", "approved")
    assert run_of(approval).approved == {"k"}
    assert run_of(approval, (CallStarted, 1, "k", "pay", "once")).approved == set()
    assert run_of((ApprovalGiven, "call", "k", "rejected")).approved == set()
    assert run_of((ApprovalGiven, "plan", "k", "approved")).approved == set()


def test_a_finished_run_has_its_status_result_and_error() -> None:
    state = run_of((RunFinished, "escalated", {"partial": 1}, True, BROKEN))
    assert (state.status, state.result, state.error) == ("escalated", {"partial": 1}, BROKEN)


def test_an_attempt_knows_when_it_began_and_ended() -> None:
    state = run_of(
        (AttemptFailed, 1, None, Diagnosis(FailureType.UNKNOWN)), (ActionChosen, 1, Retry())
    )
    (past,) = state.history
    assert (past.started, past.ended, past.action) == (1.0, 2.0, Retry())


def test_state_that_is_too_large_too_deep_or_contains_itself_is_refused_for_that_reason() -> None:
    deep: list[Any] = []
    for _ in range(70):
        deep = [deep]
    around: dict[str, Any] = {}
    around["around"] = around
    for value, place, why in (
        ({"rows": [[]] * 1_000_000}, "state['rows'][999997]", "at most 1,000,000 lists and dicts"),
        ({"deep": deep}, "state['deep']" + "[0]" * 63, "nested more than 64 levels deep"),
        (around, "state['around']", "it contains itself"),
        ({"seen": {1}}, "state['seen']", "it is of type set"),
    ):
        with pytest.raises(UsageError) as refused:
            exact(value, "state")
        assert str(refused.value).startswith(f"{place} cannot be restored from JSON: ")
        assert why in str(refused.value)
