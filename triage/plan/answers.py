"""The approvals that a run asks for, and the answers given at its store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from triage.core import errors
from triage.core.actions import Approved, Edited, Rejected, Retry
from triage.core.events import ApprovalAsked, Event
from triage.core.redaction import Redactor
from triage.core.taxonomy import Effect
from triage.engine.answering import waits_for
from triage.engine.outside import asked_inside_by, first_answer, not_asked, resolve
from triage.stores.base import Store

from .approval import (
    ApprovalAnswer,
    ApprovalMode,
    ApprovalRequest,
    Evaluator,
    mismatch,
    needs_approval,
    subject_of,
)
from .capabilities import Capability, Registry
from .plans import ExecutionPlan, PlannedStep, content_hash, quoted
from .routing import PlanLimits, PlanState, fold_plan
from .validation import Validation, validate

ANSWER = "approval"
"""The parameter through which an attempt receives an answer."""
_MAX_QUESTION = 300
MAX_WRONGS = 2_000


@dataclass(frozen=True)
class Approval:
    """What a person must approve before it is run.

    mode: `off`, `selective` or `all`; any other text counts as `all`. evaluator: decides in the mode
    `selective`; without one, everything needs approval. of: `plan` asks once per plan, before its first
    step; `step` asks before each step. expires_s: seconds an answer is accepted for, None for ever.

    Raises UsageError naming the field.
    """

    mode: ApprovalMode | str = ApprovalMode.ALL
    evaluator: Evaluator | None = None
    of: Literal["plan", "step"] = "plan"
    expires_s: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.mode, str):
            raise errors.misuse("Approval.mode", self.mode, "off, selective or all")
        if self.evaluator is not None and not callable(self.evaluator):
            raise errors.misuse(
                "Approval.evaluator", self.evaluator, "a function of the plan or the step"
            )
        errors.check_word("Approval.of", self.of, ("plan", "step"))
        if self.expires_s is not None:
            errors.check_number("Approval.expires_s", self.expires_s, "seconds", above=True)


OFF = Approval(ApprovalMode.OFF)


def unsafe_effects(registry: Registry) -> Evaluator:
    """Make an evaluator that requires approval for effects that must not happen twice.

    These are capabilities whose effect is `once` or `unknown`, and those `registry` does not know.
    """

    def evaluate(content: ExecutionPlan | PlannedStep) -> tuple[bool, str]:
        steps = content.steps if isinstance(content, ExecutionPlan) else (content,)
        for step in steps:
            found = registry.get(step.capability)
            if found is None or not found.repeatable:
                effect = Effect.UNKNOWN if found is None else found.effect
                return True, f"{quoted(step.context_key)} has the effect {effect}"
        return False, "every effect may happen twice"

    return evaluate


def request_for(
    approval: Approval, run_id: str, content: ExecutionPlan | PlannedStep
) -> ApprovalRequest | None:
    """The approval a plan or a step needs before it runs, still without an id; None if it needs none."""
    need = needs_approval(approval.mode, content, approval.evaluator)
    if not need:
        return None
    steps = content.steps if isinstance(content, ExecutionPlan) else (content,)
    what = ", ".join(f"{quoted(step.context_key)} by {quoted(step.capability)}" for step in steps)
    question = f"May this {approval.of} be run ({need.why[:_MAX_QUESTION]}): {what}?"
    return ApprovalRequest(
        id="",
        run_id=run_id,
        kind=approval.of,
        subject=subject_of(run_id, approval.of, content),
        question=question[: 2 * _MAX_QUESTION],
        payload=content.to_json(),
    )


def request_in(events: Sequence[Event]) -> ApprovalRequest | None:
    """The approval a run waits for, according to its journal; None if it waits for none."""
    waits = waits_for(events)
    asked = None if waits is None or waits.call is not None else fold_plan(events).asked
    if waits is None or asked is None:
        return None
    # The token's digest identifies this very question: an answer to an earlier, equal one does not fit.
    return ApprovalRequest(
        id=waits.token_digest,
        run_id=waits.run_id,
        kind=asked.kind,
        subject=asked.subject,
        question=asked.question,
        payload=asked.payload,
        expires=waits.expires,
    )


def read_answer(request: ApprovalRequest, reply: Any, by: str = "") -> ApprovalAnswer | None:
    """Read a reply to a waiting run as the answer to its question; None if it is no such answer.

    Raises UsageError for an edit without a payload.
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


def carried(
    request: ApprovalRequest,
    answer: ApprovalAnswer,
    now: float,
    check: Callable[[ExecutionPlan], Validation],
) -> Retry:
    """The action that carries an answer into the next attempt.

    check: validates an edited plan. Raises UsageError for an answer to another question and for a plan
    that cannot be run, TokenExpired for a late answer.
    """
    if request.expires is not None and now >= request.expires:
        raise errors.TokenExpired(
            f"the answer to run {request.run_id} came after its time; the run still waits"
        )
    why = mismatch(request, answer, now=now)
    if why is not None:
        raise errors.UsageError(f"this answer does not count: {why}")
    data: dict[str, Any] = answer._asdict()
    if answer.decision == "edited":
        if request.kind != "plan":
            raise errors.UsageError(
                f"a {request.kind} cannot be edited; reject it, and say what is wrong"
            )
        plan = answer.payload
        if not isinstance(plan, ExecutionPlan):
            plan = ExecutionPlan.from_json(plan)
        found = check(plan)
        if not found.ok:
            wrong = "; ".join(issue.message for issue in found.issues)[:MAX_WRONGS]
            raise errors.UsageError(
                f"the edited plan cannot be run, and the run still waits: {wrong}"
            )
        data["payload"] = plan.to_json()
        data["hash"] = content_hash(data["payload"])
    return Retry(inject={ANSWER: data})


def validated_by_journal(plan: ExecutionPlan, state: PlanState) -> Validation:
    """Validate a plan against nothing but its run's journal.

    The journal has the names of the capabilities, and the keys and planned types of results. What
    capabilities take and provide is checked by the process that continues the run.
    """

    def takes_anything(**_parameters: Any) -> None: ...

    registry = Registry(
        Capability(name, "known by its name alone", takes_anything, responds=False)
        for name in state.active or {step.capability.strip(): None for step in plan.steps}
        if name
    )
    limits = PlanLimits(steps=max(1, len(plan.steps)))
    return validate(plan, registry, state.context(registry), limits=limits)


def accepted(asked: ApprovalAsked, data: Any) -> tuple[ApprovalAnswer | None, str]:
    """The answer an attempt received if it fits what was asked, else None and why it does not."""
    answer = ApprovalAnswer(**{name: data.get(name) for name in ApprovalAnswer._fields})
    request = ApprovalRequest(answer.id, asked.run_id, asked.kind, asked.subject)
    why = mismatch(request, answer, now=0.0)
    if why is None and answer.decision == "edited" and content_hash(answer.payload) != data["hash"]:
        why = "the plan held a secret, which no store keeps; resume it in the process that runs it"
    return (None, why) if why is not None else (answer, "")


async def asked_in(store: Store, run_id: str) -> ApprovalRequest | None:
    """The approval a run waits for, or a run inside it in the same store; None if it waits for none.

    Raises UnknownRun for a run the store does not know.
    """
    events = await store.read(run_id)
    if not events:
        raise errors.UnknownRun(f"the store knows no run {run_id}")
    while (inner := asked_inside_by(events)) is not None:
        events = await store.read(inner)
    return request_in(events)


async def answer_in(
    store: Store,
    answer: ApprovalAnswer,
    *,
    check: Callable[[ExecutionPlan, PlanState], Validation] = validated_by_journal,
) -> None:
    """Answer the approval a run waits for, at its store; the process that recovers the run continues it.

    answer: made by `ApprovalRequest.answer` from the result of `asked_in`. It counts once, for that very
    question, until it expires. check: validates an edited plan; by default against the names in the
    journal. Raises UnknownRun; UsageError for a run that waits for no approval, an answer that does not
    fit, and a plan that cannot be run or seems to hold a secret; TokenExpired; AlreadyResumed, which names
    the first answer, if somebody else has answered; RunBusy for up to 30 seconds if somebody has died
    while answering; StoreError. After all but AlreadyResumed the run still waits.
    """
    events = await store.read(answer.run_id)
    if not events:
        raise errors.UnknownRun(f"the store knows no run {answer.run_id}")
    request = request_in(events)
    if first_answer(events, answer.id) is not None:
        raise not_asked(answer.run_id, events, answer.id)
    if request is None:
        raise errors.UsageError(f"run {answer.run_id} does not wait for an approval")
    now = await store.now()
    state = fold_plan(events)
    action = carried(request, answer, now, lambda plan: check(plan, state))
    places = Redactor().fields_of(action.inject[ANSWER].get("payload"), "plan")
    if places:
        raise errors.UsageError(
            f"{', '.join(places)} holds what looks like a secret, which no store keeps; resume the run "
            "by its token, in the process that continues it"
        )
    await resolve(store, answer.run_id, action, now=now, by=answer.by, question=request.id)
