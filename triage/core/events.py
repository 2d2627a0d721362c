"""The events of a run, one type for each thing that can happen.

Every event begins with the run's id, its position `seq` (from 0, without gaps) and the time (seconds
since the epoch, for people: `seq` gives the order), and ends with `v`, the version of its form. The
journal holds these events and nothing else; trajectory, state, checkpoints, limits and reports are
folded from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from .actions import Action
from .constructors import Value
from .diagnosis import Diagnosis
from .failures import ErrorInfo
from .steps import Step, Usage


def _version(number: int) -> Any:
    """Make a field with this default that is written even if it has its default value."""
    return msgspec.field(default_factory=lambda: number)


class _Placed(Value, frozen=True):
    """The position of an event, which comes first."""

    run_id: str
    seq: int
    time: float


class Recorded(_Placed, frozen=True, kw_only=True, tag=True, tag_field="event"):
    """Base class of the events: the fields that all begin and end with.

    sealed: the original event, encrypted, where this one is redacted; empty where nothing is hidden.
    """

    v: int = _version(1)
    sealed: str = ""


class Origin(Value, frozen=True):
    """Where a forked run comes from.

    run_id: id of the run it was forked from. at: position of the event it was forked at. events: how many
    events at the start of the fork are copies: those up to `at`, then the later calls that must not be
    repeated. salt: the salt of the digests of calls: the id of the first run in a chain of forks.
    """

    run_id: str
    at: int
    events: int
    salt: str


class RunStarted(Recorded, frozen=True):
    """The run began. agent: its name. task, args: as given, in JSON.

    unstored: names of arguments without a JSON form. parent: id of the enclosing run, None at the top.
    code: fingerprint of the agent's code, empty if the run does not outlive its process. origin: the run
    it was forked from; None if it is no fork. trace: the tracing span that the run was started in, as a
    W3C `traceparent`; empty for none.
    """

    agent: str
    task: Any = None
    args: Mapping[str, Any] = {}
    unstored: tuple[str, ...] = ()
    parent: str | None = None
    code: str = ""
    origin: Origin | None = None
    trace: str = ""


class AttemptStarted(Recorded, frozen=True):
    """An attempt began. attempt: its number, from 1.

    base: position whose steps and state it starts with; None starts empty. hint, subgoal: what it is
    told. keep_state: it keeps the state, but not the steps. inject: names of parameters injected for
    this attempt. returns_to: position before which recorded reads and model calls of earlier attempts
    are reused; None reuses none. carries: its conversation goes on with the turns of the attempt before.
    """

    attempt: int
    base: int | None = None
    hint: str | None = None
    subgoal: str | None = None
    keep_state: bool = False
    inject: tuple[str, ...] = ()
    returns_to: int | None = None
    carries: bool = False


class StepRecorded(Recorded, frozen=True, gc=False):
    """A step of the attempt, recorded by hand or by a call. index: its position, from 0."""

    attempt: int
    index: int
    step: Step


class StateUpdated(Recorded, frozen=True):
    """The state changed. values: merged into it by top-level key.

    unstored: keys whose values held a secret, which no store keeps.
    """

    attempt: int
    values: Mapping[str, Any]
    unstored: tuple[str, ...] = ()


class UsageRecorded(Recorded, frozen=True, gc=False):
    """usage: consumed since the last record. run: id of the nested run that used it, None for this one."""

    attempt: int
    usage: Usage
    run: str | None = None


class CallStarted(Recorded, frozen=True):
    """A recorded call is about to run. key: tool, digest and occurrence. arguments: for people.

    idempotency_key: offered to the tool, the same in every attempt and process until the call is
    undone. keyed: the call is already running and its tool has taken that key, so a repeat is safe. run:
    id of the nested run that the call starts, None for a tool call. kind: `model`, `judge` (a model that
    judges another's answer), `tool` or `run`; empty in journals of 0.1.0.
    """

    attempt: int
    key: str
    tool: str
    effect: str
    arguments: Any = None
    idempotency_key: str = ""
    keyed: bool = False
    run: str | None = None
    kind: str = ""


class CallFinished(Recorded, frozen=True):
    """A recorded call ended. outcome: `done`, `not_attempted`, `failed` or `in_doubt`.

    result: as JSON. exact: the JSON loses nothing. typed: it loses nothing if read as the tool's return
    annotation. replayed: an earlier result was reused, nothing ran. step: index of its step in the
    attempt. keyed: the tool took the idempotency key, so a repeat is safe. effect: the effect that the
    call turned out to have; empty if it is the one in `CallStarted`. asked_model: the nested run
    that the call started asked a model.
    """

    attempt: int
    key: str
    outcome: str
    result: Any = None
    exact: bool = True
    error: ErrorInfo | None = None
    replayed: bool = False
    step: int | None = None
    keyed: bool = False
    typed: bool = False
    effect: str = ""
    asked_model: bool = False


class WatchNoticed(Recorded, frozen=True, gc=False):
    """A detector noticed something in a running attempt. rule, text: as in `Evidence`. step: its index.

    response: `note`, `hint` (the agent was told), `interrupt` or `unstopped` (it continues although it
    was interrupted).
    """

    attempt: int
    response: str
    rule: str
    text: str
    step: int | None = None


class SubgoalsDeclared(Recorded, frozen=True, gc=False):
    """names: what the agent intends to do, in order; added to those declared before."""

    attempt: int
    names: tuple[str, ...]


class SubgoalCompleted(Recorded, frozen=True, gc=False):
    """name: a declared subgoal that is done."""

    attempt: int
    name: str


class CompensatorRegistered(Recorded, frozen=True, gc=False):
    """name: of the compensator. key: of the call it undoes, or `step@` and a step's position.

    args: for a step, the arguments to call it with; None where JSON cannot hold them exactly. module: where
    its function is found under that name; None for a closure, a bound method or another object.
    """

    attempt: int
    name: str
    key: str
    args: tuple[Any, ...] | None = None
    module: str | None = None


class CompensatorRan(Recorded, frozen=True):
    """registered: position of its registration. error: None when it undid its call.

    begins: it is about to run, so there is no outcome yet.
    """

    attempt: int
    registered: int
    name: str
    key: str
    error: ErrorInfo | None = None
    begins: bool = False


class AttemptFailed(Recorded, frozen=True):
    """An attempt failed. error: None where a check or a limit failed it."""

    attempt: int
    error: ErrorInfo | None
    diagnosis: Diagnosis


class Try(Value, frozen=True):
    """A request to a model that failed and was made again in its place, after a delay in seconds.

    failure_type, cause, severity: of its diagnosis. started, ended: seconds since the epoch.
    """

    failure_type: str
    cause: str | None = None
    severity: str = ""
    delay: float = 0.0
    started: float = 0.0
    ended: float = 0.0


class Basis(Value, frozen=True):
    """What a decision was made of, beside the failure itself.

    policy: digest of the texts of policy and limits. text: these texts, with the first decision of the run
    that they were made for. key: under which the policy has its strategy, as in `EXTERNAL_FAULT`. strategy:
    the one that answered; empty where none did. draw: the random number. probability: with which the
    strategy has chosen by chance; None where it has not. saw: what limits, gates, breakers and strategies
    answered, in their order, as pairs. tries: requests to models that failed and were made again in their
    place since the last decision. elapsed_s, seconds_left, hint_read, tools: as in the `FailureContext`.
    """

    policy: str = ""
    text: str = ""
    key: str = ""
    strategy: str = ""
    draw: float = 1.0
    probability: float | None = None
    saw: tuple[Any, ...] = ()
    tries: tuple[Try, ...] = ()
    elapsed_s: float = 0.0
    seconds_left: float | None = None
    hint_read: bool = False
    tools: tuple[str, ...] = ()


class ActionChosen(Recorded, frozen=True):
    """action: what will be done. by: who decided. reason: why, where the policy did not decide.

    basis: what the decision was made of; None in journals before 0.3.0, and of a person's decision.
    """

    attempt: int
    action: Action
    by: str = ""
    reason: str = ""
    basis: Basis | None = None


class CapabilitiesSelected(Recorded, frozen=True, gc=False):
    """names: of the capabilities a plan may use from now on."""

    names: tuple[str, ...]


class PlanMade(Recorded, frozen=True):
    """plan: as JSON. version: from 1. subject: digest of this plan, empty if it needs no approval."""

    plan: Any
    version: int = 1
    subject: str = ""


class PlanRouted(Recorded, frozen=True, gc=False):
    """The next stage of a plan-first run, written before it is entered.

    target: `selector`, `planner`, `approver`, `step`, `report`, `stop` or `end`. step: its key.
    counter: the counter that entering it increments, empty for none. delay_s: seconds to wait first.
    """

    target: str
    step: str = ""
    counter: str = ""
    reason: str = ""
    delay_s: float = 0.0


class PlanFailed(Recorded, frozen=True):
    """A stage of a plan-first run failed. doubt: it has an effect that may have happened."""

    target: str
    diagnosis: Diagnosis
    step: str = ""
    error: ErrorInfo | None = None
    doubt: bool = False


class PlanStepMoved(Recorded, frozen=True, gc=False):
    """step: its key. status: `started`, `done` or `skipped`; `PlanFailed` records a failure."""

    step: str
    status: str
    detail: str = ""


class ApprovalAsked(Recorded, frozen=True):
    """kind: what needs approval. subject: digest of exactly that.

    expires: seconds since the epoch after which no answer counts, None for no limit.
    """

    kind: str
    subject: str
    question: str = ""
    payload: Any = None
    expires: float | None = None


class ApprovalGiven(Recorded, frozen=True):
    """decision: `approved`, `rejected` or `edited`. by: the name that the person gave.

    ask_again: after a rejection, whether a person is asked again about the same call.
    """

    kind: str
    subject: str
    decision: str
    by: str = ""
    reason: str = ""
    payload: Any = None
    ask_again: bool = False


class RunSuspended(Recorded, frozen=True):
    """token_digest: SHA-256 of the token; the token itself is never stored. question: what is asked.

    call: key of the call in question, None without one. doubt: that call was started and may have
    happened. expires: seconds since the epoch after which no answer counts, None for no limit.
    """

    attempt: int
    token_digest: str
    question: str
    metadata: Mapping[str, Any] = {}
    call: str | None = None
    doubt: bool = False
    expires: float | None = None


class RunResumed(Recorded, frozen=True):
    """action: the answer, which replaces the suspension. by: who gave it; empty if unknown."""

    attempt: int
    action: Action
    by: str = ""


class RunRecovered(Recorded, frozen=True, gc=False):
    """A process took the run over from one that died. epoch: that of the new process.

    changed: the agent's code differs from the code the run was started with.
    """

    attempt: int
    epoch: int
    changed: bool = False


class RunFinished(Recorded, frozen=True):
    """status: `done`, `escalated`, `aborted`, `fatal`, `cancelled` or `error`. result: as JSON.

    exact: the JSON loses nothing. typed: it loses nothing if read as the agent's declared result type.
    by: who cancelled it; empty if unknown or not cancelled.
    """

    status: str
    result: Any = None
    exact: bool = True
    error: ErrorInfo | None = None
    typed: bool = False
    by: str = ""


Event: TypeAlias = (
    RunStarted | AttemptStarted | StepRecorded | StateUpdated | UsageRecorded | CallStarted
    | CallFinished | WatchNoticed | SubgoalsDeclared | SubgoalCompleted | CompensatorRegistered
    | CompensatorRan | AttemptFailed | ActionChosen | CapabilitiesSelected | PlanMade | PlanRouted
    | PlanFailed | PlanStepMoved | ApprovalAsked | ApprovalGiven | RunSuspended | RunResumed
    | RunRecovered | RunFinished
)  # fmt: skip


_MILESTONES = (AttemptStarted, AttemptFailed, ActionChosen, RunSuspended, RunResumed, RunFinished)


def is_milestone(event: Event) -> bool:
    """Whether the event marks the progress of a run: a start, a failure, an action or an end."""
    return isinstance(event, _MILESTONES)
