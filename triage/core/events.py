"""What happened in a run: one value per event, and `RunState`, which is read from them.

Every event begins with the run's id, its position `seq` (from 0, without gaps) and the time (seconds
since the epoch, for people: order is `seq`), and ends with `v`, the version of its form. The journal
is these events and nothing else; trajectory, state, checkpoints, limits and reports are folds of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from .actions import Action
from .diagnosis import Diagnosis
from .errors import Value
from .failures import ErrorInfo
from .steps import Step, Usage


def _version(number: int) -> Any:
    """A field with this default that is written all the same."""
    return msgspec.field(default_factory=lambda: number)


class _Placed(Value, frozen=True):
    """Where an event stands."""

    run_id: str
    seq: int
    time: float


class Recorded(_Placed, frozen=True, kw_only=True, tag=True, tag_field="event"):
    """Base of the events: what all of them begin and end with.

    sealed: the event as it was, encrypted, where the rest of it is redacted; empty where it is whole.
    """

    v: int = _version(1)
    sealed: str = ""


class RunStarted(Recorded, frozen=True):
    """agent: its name. task, args: as given, as JSON; `unstored` names arguments without a JSON form.

    parent: id of the run this one was started in, None at the top. code: fingerprint of the agent's
    code, empty where the run is not kept beyond its process.
    """

    agent: str
    task: Any = None
    args: Mapping[str, Any] = {}
    unstored: tuple[str, ...] = ()
    parent: str | None = None
    code: str = ""


class AttemptStarted(Recorded, frozen=True):
    """attempt: its number, from 1. base: position whose steps and state it starts with; None: empty.

    hint, subgoal: what it is told. keep_state: the state goes on although the steps do not.
    inject: names of parameters injected for this attempt. returns_to: position before which recorded
    reads and model calls of earlier attempts are reused; None: none of them is.
    """

    attempt: int
    base: int | None = None
    hint: str | None = None
    subgoal: str | None = None
    keep_state: bool = False
    inject: tuple[str, ...] = ()
    returns_to: int | None = None


class StepRecorded(Recorded, frozen=True, gc=False):
    """A step of the attempt, hand-written or of a recorded call. index: its position, from 0."""

    attempt: int
    index: int
    step: Step


class StateUpdated(Recorded, frozen=True):
    """values: merged into the state, top-level key by key. unstored: keys whose values held a secret,
    which no store keeps.
    """

    attempt: int
    values: Mapping[str, Any]
    unstored: tuple[str, ...] = ()


class UsageRecorded(Recorded, frozen=True, gc=False):
    """usage: consumed since the last one. run: id of the run inside this one that did; None: this one."""

    attempt: int
    usage: Usage
    run: str | None = None


class CallStarted(Recorded, frozen=True):
    """A recorded call is about to run. key: tool, digest and occurrence. arguments: for people.

    idempotency_key: given to the tool, the same in every attempt and process. keyed: the call runs
    already, and its tool has taken that key: a repeat is safe on the other side. run: id of the run
    inside this one that the call is, None for a call of a tool. kind: `model`, `judge` (a model that
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

    result: as JSON. exact: the JSON says all of it. typed: it does, read as what the tool's return
    annotation says. replayed: reused, nothing ran. step: index of its
    step in the attempt. keyed: the tool took the idempotency key, so a repeat is safe. effect: what
    the call turned out to have, where that was not known before; empty: as it was said to have.
    asked_model: the run inside this one that the call is has asked a model.
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
    """What was seen in a running attempt. response: `note`, `hint` (the agent was told), `interrupt` or
    `unstopped` (it goes on although interrupted). rule, text: as in `Evidence`. step: its index.
    """

    attempt: int
    response: str
    rule: str
    text: str
    step: int | None = None


class SubgoalsDeclared(Recorded, frozen=True, gc=False):
    """names: what the agent means to do, in order; added to those declared before."""

    attempt: int
    names: tuple[str, ...]


class SubgoalCompleted(Recorded, frozen=True, gc=False):
    """name: a declared subgoal that is done."""

    attempt: int
    name: str


class CompensatorRegistered(Recorded, frozen=True, gc=False):
    """name: of the compensator. key: of the call it undoes, or `step@` and a step's position. args: of
    one for a step, what it is called with; None where JSON does not say all of it.
    """

    attempt: int
    name: str
    key: str
    args: tuple[Any, ...] | None = None


class CompensatorRan(Recorded, frozen=True):
    """registered: position of its registration. error: None when it undid its call. begins: it is about
    to run, and nothing is said of its end.
    """

    attempt: int
    registered: int
    name: str
    key: str
    error: ErrorInfo | None = None
    begins: bool = False


class AttemptFailed(Recorded, frozen=True):
    """error: None when a check or a limit failed the attempt."""

    attempt: int
    error: ErrorInfo | None
    diagnosis: Diagnosis


class ActionChosen(Recorded, frozen=True):
    """action: what will be done. by: who decided. reason: why, where it is not the policy's answer."""

    attempt: int
    action: Action
    by: str = ""
    reason: str = ""


class CapabilitiesSelected(Recorded, frozen=True, gc=False):
    """names: of the capabilities a plan may use from now on."""

    names: tuple[str, ...]


class PlanMade(Recorded, frozen=True):
    """plan: as JSON. version: from 1. subject: digest of exactly this plan, empty where nobody asks."""

    plan: Any
    version: int = 1
    subject: str = ""


class PlanRouted(Recorded, frozen=True, gc=False):
    """What a plan-first run enters next, written before it is entered.

    target: `selector`, `planner`, `approver`, `step`, `report`, `stop` or `end`. step: its key. counter:
    what entering it has used up one of, empty for nothing. delay_s: seconds that are waited first.
    """

    target: str
    step: str = ""
    counter: str = ""
    reason: str = ""
    delay_s: float = 0.0


class PlanFailed(Recorded, frozen=True):
    """What a plan-first run had entered has failed. doubt: it has an effect that may have happened."""

    target: str
    diagnosis: Diagnosis
    step: str = ""
    error: ErrorInfo | None = None
    doubt: bool = False


class PlanStepMoved(Recorded, frozen=True, gc=False):
    """step: its key. status: `started`, `done` or `skipped`; that it failed is told by `PlanFailed`."""

    step: str
    status: str
    detail: str = ""


class ApprovalAsked(Recorded, frozen=True):
    """kind: what is to be approved. subject: digest of exactly what.

    expires: seconds since the epoch until which it may be answered, None for ever.
    """

    kind: str
    subject: str
    question: str = ""
    payload: Any = None
    expires: float | None = None


class ApprovalGiven(Recorded, frozen=True):
    """decision: `approved`, `rejected` or `edited`. by: who, as they named themselves."""

    kind: str
    subject: str
    decision: str
    by: str = ""
    reason: str = ""
    payload: Any = None


class RunSuspended(Recorded, frozen=True):
    """token_digest: SHA-256 of the token; the token itself is never stored. question: what is asked.

    call: key of the call that is asked about, None where none is. doubt: it was started and may have
    happened. expires: seconds since the epoch until which it may be answered, None for ever.
    """

    attempt: int
    token_digest: str
    question: str
    metadata: Mapping[str, Any] = {}
    call: str | None = None
    doubt: bool = False
    expires: float | None = None


class RunResumed(Recorded, frozen=True):
    """action: the answer, taken in place of the suspension."""

    attempt: int
    action: Action


class RunRecovered(Recorded, frozen=True, gc=False):
    """A process took the run over from one that is gone. epoch: its own. changed: the agent's code is not
    the one the run was started with.
    """

    attempt: int
    epoch: int
    changed: bool = False


class RunFinished(Recorded, frozen=True):
    """status: `done`, `escalated`, `aborted`, `fatal`, `cancelled` or `error`. result: as JSON.

    exact: the JSON says all of it. typed: it does, read as what the agent declares its result to be.
    """

    status: str
    result: Any = None
    exact: bool = True
    error: ErrorInfo | None = None
    typed: bool = False


EXACT = True
"""For `exact` where there is no result: nothing was lost."""
Event: TypeAlias = (
    RunStarted | AttemptStarted | StepRecorded | StateUpdated | UsageRecorded | CallStarted
    | CallFinished | WatchNoticed | SubgoalsDeclared | SubgoalCompleted | CompensatorRegistered
    | CompensatorRan | AttemptFailed | ActionChosen | CapabilitiesSelected | PlanMade | PlanRouted
    | PlanFailed | PlanStepMoved | ApprovalAsked | ApprovalGiven | RunSuspended | RunResumed
    | RunRecovered | RunFinished
)  # fmt: skip


# Moved.


_MILESTONES = (AttemptStarted, AttemptFailed, ActionChosen, RunSuspended, RunResumed, RunFinished)


def is_milestone(event: Event) -> bool:
    """True for the events that say where a run stands."""
    return isinstance(event, _MILESTONES)
