"""What happened in a run: one value per event, and `RunState`, which is read from them.

Every event begins with the run's id, its position `seq` (from 0, without gaps) and the time (seconds
since the epoch, for people: order is `seq`), and ends with `v`, the version of its form. The journal
is these events and nothing else; trajectory, state, checkpoints, limits and reports are folds of it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from .actions import Action
from .diagnosis import Diagnosis
from .failures import ErrorInfo
from .steps import Step, Usage


class RunStarted(NamedTuple):
    """agent: its name. task, args: as given, as JSON; `unstored` names arguments without a JSON form.

    parent: id of the run this one was started in, None at the top. code: fingerprint of the agent's
    code, empty where the run is not kept beyond its process.
    """

    run_id: str
    seq: int
    time: float
    agent: str
    task: Any = None
    args: Mapping[str, Any] = {}
    unstored: tuple[str, ...] = ()
    parent: str | None = None
    code: str = ""
    v: int = 1


class AttemptStarted(NamedTuple):
    """attempt: its number, from 1. base: position whose steps and state it starts with; None: empty.

    hint, subgoal: what it is told. keep_state: the state goes on although the steps do not.
    inject: names of parameters injected for this attempt.
    """

    run_id: str
    seq: int
    time: float
    attempt: int
    base: int | None = None
    hint: str | None = None
    subgoal: str | None = None
    keep_state: bool = False
    inject: tuple[str, ...] = ()
    v: int = 1


class StepRecorded(NamedTuple):
    """A step of the attempt, hand-written or of a recorded call. index: its position, from 0."""

    run_id: str
    seq: int
    time: float
    attempt: int
    index: int  # type: ignore[assignment] # as in Step
    step: Step
    v: int = 1


class StateUpdated(NamedTuple):
    """values: merged into the state, top-level key by key."""

    run_id: str
    seq: int
    time: float
    attempt: int
    values: Mapping[str, Any]
    v: int = 1


class UsageRecorded(NamedTuple):
    """usage: consumed since the last one. run: id of the run inside this one that did; None: this one."""

    run_id: str
    seq: int
    time: float
    attempt: int
    usage: Usage
    run: str | None = None
    v: int = 1


class CallStarted(NamedTuple):
    """A recorded call is about to run. key: tool, digest and occurrence. arguments: for people.

    idempotency_key: given to the tool, the same in every attempt and process. keyed: the call runs
    already, and its tool has taken that key: a repeat is safe on the other side. run: id of the run
    inside this one that the call is, None for a call of a tool.
    """

    run_id: str
    seq: int
    time: float
    attempt: int
    key: str
    tool: str
    effect: str
    arguments: Any = None
    idempotency_key: str = ""
    keyed: bool = False
    run: str | None = None
    v: int = 1


class CallFinished(NamedTuple):
    """A recorded call ended. outcome: `done`, `not_attempted`, `failed` or `in_doubt`.

    result: as JSON. exact: the JSON says all of it. typed: it does, read as what the tool's return
    annotation says. replayed: reused, nothing ran. step: index of its
    step in the attempt. keyed: the tool took the idempotency key, so a repeat is safe. effect: what
    the call turned out to have, where that was not known before; empty: as it was said to have.
    """

    run_id: str
    seq: int
    time: float
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
    v: int = 1


class WatchNoticed(NamedTuple):
    """What was seen in a running attempt. response: `note`, `hint` (the agent was told), `interrupt` or
    `unstopped` (it goes on although interrupted). rule, text: as in `Evidence`. step: its index.
    """

    run_id: str
    seq: int
    time: float
    attempt: int
    response: str
    rule: str
    text: str
    step: int | None = None
    v: int = 1


class SubgoalsDeclared(NamedTuple):
    """names: what the agent means to do, in order; added to those declared before."""

    run_id: str
    seq: int
    time: float
    attempt: int
    names: tuple[str, ...]
    v: int = 1


class SubgoalCompleted(NamedTuple):
    """name: a declared subgoal that is done."""

    run_id: str
    seq: int
    time: float
    attempt: int
    name: str
    v: int = 1


class CompensatorRegistered(NamedTuple):
    """name: of the compensator. key: of the call it undoes, or `step@` and a step's position."""

    run_id: str
    seq: int
    time: float
    attempt: int
    name: str
    key: str
    v: int = 1


class CompensatorRan(NamedTuple):
    """registered: position of its registration. error: None when it undid its call. begins: it is about
    to run, and nothing is said of its end.
    """

    run_id: str
    seq: int
    time: float
    attempt: int
    registered: int
    name: str
    key: str
    error: ErrorInfo | None = None
    begins: bool = False
    v: int = 1


class AttemptFailed(NamedTuple):
    """error: None when a check or a limit failed the attempt."""

    run_id: str
    seq: int
    time: float
    attempt: int
    error: ErrorInfo | None
    diagnosis: Diagnosis
    v: int = 1


class ActionChosen(NamedTuple):
    """action: what will be done. by: who decided. reason: why, where it is not the policy's answer."""

    run_id: str
    seq: int
    time: float
    attempt: int
    action: Action
    by: str = ""
    reason: str = ""
    v: int = 1


class CapabilitiesSelected(NamedTuple):
    """names: of the capabilities a plan may use from now on."""

    run_id: str
    seq: int
    time: float
    names: tuple[str, ...]
    v: int = 1


class PlanMade(NamedTuple):
    """plan: as JSON. version: from 1. subject: digest of exactly this plan, empty where nobody asks."""

    run_id: str
    seq: int
    time: float
    plan: Any
    version: int = 1
    subject: str = ""
    v: int = 1


class PlanRouted(NamedTuple):
    """What a plan-first run enters next, written before it is entered.

    target: `selector`, `planner`, `approver`, `step`, `report`, `stop` or `end`. step: its key. counter:
    what entering it has used up one of, empty for nothing. delay_s: seconds that are waited first.
    """

    run_id: str
    seq: int
    time: float
    target: str
    step: str = ""
    counter: str = ""
    reason: str = ""
    delay_s: float = 0.0
    v: int = 1


class PlanFailed(NamedTuple):
    """What a plan-first run had entered has failed. doubt: it has an effect that may have happened."""

    run_id: str
    seq: int
    time: float
    target: str
    diagnosis: Diagnosis
    step: str = ""
    error: ErrorInfo | None = None
    doubt: bool = False
    v: int = 1


class PlanStepMoved(NamedTuple):
    """step: its key. status: `started`, `done` or `skipped`; that it failed is told by `PlanFailed`."""

    run_id: str
    seq: int
    time: float
    step: str
    status: str
    detail: str = ""
    v: int = 1


class ApprovalAsked(NamedTuple):
    """kind: what is to be approved. subject: digest of exactly what.

    expires: seconds since the epoch until which it may be answered, None for ever.
    """

    run_id: str
    seq: int
    time: float
    kind: str
    subject: str
    question: str = ""
    payload: Any = None
    expires: float | None = None
    v: int = 1


class ApprovalGiven(NamedTuple):
    """decision: `approved`, `rejected` or `edited`. by: who, as they named themselves."""

    run_id: str
    seq: int
    time: float
    kind: str
    subject: str
    decision: str
    by: str = ""
    reason: str = ""
    payload: Any = None
    v: int = 1


class RunSuspended(NamedTuple):
    """token_digest: SHA-256 of the token; the token itself is never stored. question: what is asked.

    call: key of the call that is asked about, None where none is. doubt: it was started and may have
    happened. expires: seconds since the epoch until which it may be answered, None for ever.
    """

    run_id: str
    seq: int
    time: float
    attempt: int
    token_digest: str
    question: str
    metadata: Mapping[str, Any] = {}
    call: str | None = None
    doubt: bool = False
    expires: float | None = None
    v: int = 1


class RunResumed(NamedTuple):
    """action: the answer, taken in place of the suspension."""

    run_id: str
    seq: int
    time: float
    attempt: int
    action: Action
    v: int = 1


class RunRecovered(NamedTuple):
    """A process took the run over from one that is gone. epoch: its own. changed: the agent's code is not
    the one the run was started with.
    """

    run_id: str
    seq: int
    time: float
    attempt: int
    epoch: int
    changed: bool = False
    v: int = 1


class RunFinished(NamedTuple):
    """status: `done`, `escalated`, `aborted`, `fatal`, `cancelled` or `error`. result: as JSON.

    exact: the JSON says all of it. typed: it does, read as what the agent declares its result to be.
    """

    run_id: str
    seq: int
    time: float
    status: str
    result: Any = None
    exact: bool = True
    error: ErrorInfo | None = None
    typed: bool = False
    v: int = 1


EXACT = True
"""For `exact` where there is no result: nothing was lost."""
Event: TypeAlias = (
    RunStarted | AttemptStarted | StepRecorded | StateUpdated | UsageRecorded | CallStarted
    | CallFinished | WatchNoticed | SubgoalsDeclared | SubgoalCompleted | CompensatorRegistered
    | CompensatorRan | AttemptFailed | ActionChosen | CapabilitiesSelected | PlanMade | PlanRouted
    | PlanFailed | PlanStepMoved | ApprovalAsked | ApprovalGiven | RunSuspended | RunResumed
    | RunRecovered | RunFinished
)  # fmt: skip
