"""The events of a run.

Every event begins with the run's id, its position `seq` (from 0, without gaps) and the time (seconds
since the epoch, for people: `seq` gives the order), and ends with `v`, the version of its form. The
journal holds only these events; trajectory, state, checkpoints, limits and reports are folded from it.
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
    """Make a field with this default that is always written."""
    return msgspec.field(default_factory=lambda: number)


class _Placed(Value, frozen=True):
    """The position of an event, which comes first."""

    run_id: str
    seq: int
    time: float


class Recorded(_Placed, frozen=True, kw_only=True, tag=True, tag_field="event"):
    """Base class of the events: the first and last fields of each.

    sealed: the original event, encrypted, if this one is redacted; empty if nothing is hidden.
    """

    v: int = _version(1)
    sealed: str = ""


class Origin(Value, frozen=True):
    """The origin of a forked run.

    run_id: id of the run it was forked from. at: position of the event it was forked at. events: number
    of copied events at the start of the fork: all events up to `at`, then later calls that must not be
    repeated. salt: for the digests of calls; the id of the first run in a chain of forks.
    """

    run_id: str
    at: int
    events: int
    salt: str


class RunStarted(Recorded, frozen=True):
    """The run began. agent: its name. task, args: as given, in JSON.

    unstored: names of arguments without a JSON form. parent: id of the enclosing run, None at the top.
    code: fingerprint of the agent's code, empty if the run does not outlive its process. origin: the run
    it was forked from; None if it is no fork. trace: the enclosing tracing span, as a W3C `traceparent`;
    empty for none.
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

    base: position whose steps and state it starts with; None starts empty. hint, subgoal: passed to the
    agent. keep_state: it keeps the state, but not the steps. inject: names of parameters injected for
    this attempt. returns_to: position before which recorded reads and model calls of earlier attempts
    are reused; None reuses none. carries: it continues the conversation of the attempt before.
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
    """The state changed. values: merged into the state by top-level key.

    unstored: keys with a secret in their values, which no store keeps.
    """

    attempt: int
    values: Mapping[str, Any]
    unstored: tuple[str, ...] = ()


class UsageRecorded(Recorded, frozen=True, gc=False):
    """usage: consumed since the last record. run: id of the nested run that used it, None for this run."""

    attempt: int
    usage: Usage
    run: str | None = None


class CallStarted(Recorded, frozen=True):
    """A recorded call is about to run. key: tool, digest and occurrence. arguments: for people.

    idempotency_key: offered to the tool, the same in every attempt and process until the call is
    undone. keyed: the call is already running and its tool has taken the key, so a repeat is safe. run:
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
    attempt. keyed: the tool took the idempotency key, so a repeat is safe. effect: the actual effect of
    the call, empty if that is the effect in `CallStarted`. asked_model: the nested run that the call
    started asked a model.
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

    response: `note`, `hint` (passed to the agent), `interrupt` or `unstopped` (the agent continues after
    an interrupt).
    """

    attempt: int
    response: str
    rule: str
    text: str
    step: int | None = None


class SubgoalsDeclared(Recorded, frozen=True, gc=False):
    """names: subgoals in the order of the agent's work, added to earlier ones."""

    attempt: int
    names: tuple[str, ...]


class SubgoalCompleted(Recorded, frozen=True, gc=False):
    """name: of a declared subgoal."""

    attempt: int
    name: str


class CompensatorRegistered(Recorded, frozen=True, gc=False):
    """name: of the compensator. key: of the call it undoes, or `step@` and a step's position.

    args: the compensator's arguments for a step; None if JSON cannot hold them exactly. module: of the
    function with this name; None for a closure, a bound method or another object.
    """

    attempt: int
    name: str
    key: str
    args: tuple[Any, ...] | None = None
    module: str | None = None


class CompensatorRan(Recorded, frozen=True):
    """registered: position of its registration. error: None when it undid its call.

    begins: it is about to run, without an outcome yet.
    """

    attempt: int
    registered: int
    name: str
    key: str
    error: ErrorInfo | None = None
    begins: bool = False


class AttemptFailed(Recorded, frozen=True):
    """An attempt failed. error: None if a check or a limit failed it."""

    attempt: int
    error: ErrorInfo | None
    diagnosis: Diagnosis


class Try(Value, frozen=True):
    """A request to a model that failed and was retried in place. delay: seconds before the retry.

    failure_type, cause, severity: of its diagnosis. started, ended: seconds since the epoch.
    """

    failure_type: str
    cause: str | None = None
    severity: str = ""
    delay: float = 0.0
    started: float = 0.0
    ended: float = 0.0


class Basis(Value, frozen=True):
    """The inputs of a decision, beside the failure itself.

    policy: digest of the texts of policy and limits. text: these texts, in the first decision under them.
    key: of the strategy in the policy, such as `EXTERNAL_FAULT`. strategy: that answered; empty for none.
    draw: the random number. probability: of the strategy's choice, if it chose by chance; else None. saw:
    answers of limits, gates, breakers and strategies, in order, as pairs. tries: requests to models that
    failed and were retried in place since the last decision. elapsed_s, seconds_left, hint_read, tools: as
    in the `FailureContext`.
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
    """action: the decision. by: who decided. reason: why, if the policy did not decide.

    basis: the inputs of the decision; None in journals before 0.3.0, and for a person's decision.
    """

    attempt: int
    action: Action
    by: str = ""
    reason: str = ""
    basis: Basis | None = None


class CapabilitiesSelected(Recorded, frozen=True, gc=False):
    """names: of the capabilities that a plan may use from now on."""

    names: tuple[str, ...]


class PlanMade(Recorded, frozen=True):
    """plan: as JSON. version: from 1. subject: digest of this plan, empty if it needs no approval."""

    plan: Any
    version: int = 1
    subject: str = ""


class PlanRouted(Recorded, frozen=True, gc=False):
    """The next stage of a plan-first run, written before the stage begins.

    target: `selector`, `planner`, `approver`, `step`, `report`, `stop` or `end`. step: its key.
    counter: incremented when the stage begins, empty for none. delay_s: seconds to wait first.
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
    """kind: of the subject: `call`, `plan` or `step`. subject: its digest.

    expires: seconds since the epoch after which no answer counts, None for no limit.
    """

    kind: str
    subject: str
    question: str = ""
    payload: Any = None
    expires: float | None = None


class ApprovalGiven(Recorded, frozen=True):
    """decision: `approved`, `rejected` or `edited`. by: the person's stated name.

    ask_again: ask a person again about the same call after a rejection.
    """

    kind: str
    subject: str
    decision: str
    by: str = ""
    reason: str = ""
    payload: Any = None
    ask_again: bool = False


class RunSuspended(Recorded, frozen=True):
    """token_digest: SHA-256 of the token; the token itself is never stored. question: for the person.

    call: key of the call in question, None without one. doubt: the call was started and may have
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
    """A process took over the run of a dead one. epoch: of the new process.

    changed: the agent's code differs from the code at the start of the run.
    """

    attempt: int
    epoch: int
    changed: bool = False


class RunFinished(Recorded, frozen=True):
    """status: `done`, `escalated`, `aborted`, `fatal`, `cancelled` or `error`. result: as JSON.

    exact: the JSON loses nothing. typed: it loses nothing if read as the agent's declared result type.
    by: who cancelled the run; empty if unknown or not cancelled.
    """

    status: str
    result: Any = None
    exact: bool = True
    error: ErrorInfo | None = None
    typed: bool = False
    by: str = ""


class Noted(Recorded, frozen=True):
    """An entry in a journal that is no run's, such as an incident's.

    kind: of the journal. subject: finds the journal in a store; None keeps it. verb, by, text: what was
    done, by whom, and details for people. values: fields by name, as the kind defines them. status: of the
    journal from now on. due: seconds since the epoch at which it needs attention, None for never. leased:
    its writer keeps its lease; any other entry ends it. ended: it is finished.
    """

    kind: str
    verb: str
    status: str
    by: str = ""
    text: str = ""
    values: Mapping[str, Any] = {}
    subject: str | None = None
    due: float | None = None
    leased: bool = False
    ended: bool = False


Event: TypeAlias = (
    RunStarted | AttemptStarted | StepRecorded | StateUpdated | UsageRecorded | CallStarted
    | CallFinished | WatchNoticed | SubgoalsDeclared | SubgoalCompleted | CompensatorRegistered
    | CompensatorRan | AttemptFailed | ActionChosen | CapabilitiesSelected | PlanMade | PlanRouted
    | PlanFailed | PlanStepMoved | ApprovalAsked | ApprovalGiven | RunSuspended | RunResumed
    | RunRecovered | RunFinished | Noted
)  # fmt: skip


_MILESTONES = (AttemptStarted, AttemptFailed, ActionChosen, RunSuspended, RunResumed, RunFinished)


def is_milestone(event: Event) -> bool:
    """Whether the event marks progress of a run: a start, a failure, an action or an end."""
    return isinstance(event, _MILESTONES)
