"""Approvals of a run that waits: what is asked, and an answer given where the run is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from triage._answers import resolve, waits_for
from triage._options import check_number, check_word, misuse
from triage.actions import Retry
from triage.answers import Approved, Edited, Rejected
from triage.errors import TokenExpired, UnknownRun, UsageError
from triage.events import ApprovalAsked, Event
from triage.redact import Redactor

from ._approval import (
    ApprovalAnswer,
    ApprovalMode,
    ApprovalRequest,
    Evaluator,
    mismatch,
    needs_approval,
    subject_of,
)
from ._plan import ExecutionPlan, PlannedStep, content_hash
from ._state import fold_plan
from ._words import quoted

if TYPE_CHECKING:
    from triage.stores.base import Store

ANSWER = "approval"
"""The parameter by which an attempt is told of an answer."""
_MAX_QUESTION = 300


@dataclass(frozen=True)
class Approval:
    """What a person must approve before it is run.

    mode: `off`, `selective` or `all`; any other text means that everything needs it. evaluator: says
    what does in the mode `selective`; without one everything does. of: `plan` asks once for each plan,
    before its first step; `step` asks before each step. expires_s: seconds until which an answer
    counts, None for ever.

    Raises UsageError naming the field.
    """

    mode: ApprovalMode | str = ApprovalMode.ALL
    evaluator: Evaluator | None = None
    of: Literal["plan", "step"] = "plan"
    expires_s: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.mode, str):
            raise misuse("Approval.mode", self.mode, "off, selective or all")
        if self.evaluator is not None and not callable(self.evaluator):
            raise misuse("Approval.evaluator", self.evaluator, "a function of the plan or the step")
        check_word("Approval.of", self.of, ("plan", "step"))
        if self.expires_s is not None:
            check_number("Approval.expires_s", self.expires_s, "seconds", above=True)


OFF = Approval(ApprovalMode.OFF)


def request_for(
    approval: Approval, run_id: str, content: ExecutionPlan | PlannedStep
) -> ApprovalRequest | None:
    """What must be approved before a plan or a step is run; None for nothing.

    Its id comes with the token.
    """
    need = needs_approval(approval.mode, content, approval.evaluator)
    if not need:
        return None
    steps = content.steps if isinstance(content, ExecutionPlan) else (content,)
    what = ", ".join(f"{quoted(step.context_key)} by {quoted(step.capability)}" for step in steps)
    question = f"May this {approval.of} be run ({need.why[:_MAX_QUESTION]}): {what}?"
    subject = subject_of(run_id, approval.of, content)
    return ApprovalRequest(
        "", run_id, approval.of, subject, question[: 2 * _MAX_QUESTION], content.to_json()
    )


def request_in(events: Sequence[Event]) -> ApprovalRequest | None:
    """What a run waits to have approved, by its journal; None if it waits for nothing of that kind."""
    waits = waits_for(events)
    asked = fold_plan(events).asked
    if waits is None or waits.call is not None or asked is None:
        return None
    # The token's digest names this very question, so that an answer to an equal earlier one is too late.
    return ApprovalRequest(
        waits.token_digest,
        waits.run_id,
        asked.kind,
        asked.subject,
        asked.question,
        asked.payload,
        waits.expires,
    )


def read_answer(request: ApprovalRequest, reply: Any, by: str = "") -> ApprovalAnswer | None:
    """A reply to a run that waits for approval as the answer to what it asks; None for any other.

    Raises UsageError for an edit of anything but a plan, and for a payload that is none.
    """
    match reply:
        case ApprovalAnswer():
            return reply
        case Approved():
            return request.answer("approved", by=by)
        case Rejected(reason=reason):
            return request.answer("rejected", by=by, reason=reason or "")
        case Edited(payload=payload):
            return request.answer("edited", by=by, payload=payload)
        case _:
            return None


def carried(request: ApprovalRequest, answer: ApprovalAnswer, now: float) -> Retry:
    """The action by which the next attempt is told of an answer.

    Raises UsageError for an answer that does not fit the question, TokenExpired for a late one.
    """
    if request.expires is not None and now >= request.expires:
        raise TokenExpired(
            f"the answer to run {request.run_id} came after its time; the run still waits"
        )
    why = mismatch(request, answer, now=now)
    if why is not None:
        raise UsageError(f"this answer does not count: {why}")
    data: dict[str, Any] = answer._asdict()
    if answer.decision == "edited":
        if request.kind != "plan":
            raise UsageError(f"a {request.kind} cannot be edited; reject it, and say what is wrong")
        plan = answer.payload
        if not isinstance(plan, ExecutionPlan):
            plan = ExecutionPlan.from_json(plan)
        data["payload"] = plan.to_json()
        data["hash"] = content_hash(data["payload"])
    return Retry(inject={ANSWER: data})


def told(asked: ApprovalAsked, data: Any) -> tuple[ApprovalAnswer | None, str]:
    """The answer an attempt was told of, if it counts for what is asked; else why it does not."""
    fields = {name: data.get(name) for name in ApprovalAnswer._fields}
    answer = ApprovalAnswer(**fields)
    request = ApprovalRequest(answer.id, asked.run_id, asked.kind, asked.subject)
    why = mismatch(request, answer, now=0.0)
    if why is None and answer.decision == "edited" and content_hash(answer.payload) != data["hash"]:
        why = "the plan held a secret, which no store keeps; resume it in the process that runs it"
    return (None, why) if why is not None else (answer, "")


# At the store -------------------------------------------------------------------------------------


async def asked_in(store: Store, run_id: str) -> ApprovalRequest | None:
    """What a run waits to have approved; None if it waits for nothing of that kind.

    Raises UnknownRun for a run that the store does not know.
    """
    events = await store.read(run_id)
    if not events:
        raise UnknownRun(f"the store knows no run {run_id}")
    return request_in(events)


async def answer_in(store: Store, answer: ApprovalAnswer) -> None:
    """Answer what a run waits to have approved, where it is kept; whoever recovers it goes on.

    answer: made by `ApprovalRequest.answer` of what `asked_in` gave. It counts once, for that very
    question, and before its time is over. Raises UnknownRun, UsageError for a run that does not wait
    for it, an answer that does not fit and a plan with what looks like a secret, TokenExpired,
    AlreadyResumed if somebody else has just answered, RunBusy while somebody else is answering (or has
    died of it, for at most 30 seconds), and StoreError.
    """
    request = await asked_in(store, answer.run_id)
    if request is None:
        raise UsageError(f"run {answer.run_id} does not wait for an approval")
    now = await store.now()
    action = carried(request, answer, now)
    places = Redactor().fields_of(action.inject[ANSWER].get("payload"), "plan")
    if places:
        raise UsageError(
            f"{', '.join(places)} holds what looks like a secret, which no store keeps; resume the run "
            "by its token, in the process that goes on with it"
        )
    await resolve(store, answer.run_id, action, now=now)
