"""Approval by a person: what needs it, the question, the answer, and whether they fit."""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Any, Literal, NamedTuple, TypeAlias

from triage.core.errors import check_number, check_word, misuse
from triage.core.json_values import exact

from .plans import ExecutionPlan, PlannedStep, content_hash, name_of, quoted

Evaluator: TypeAlias = Callable[[ExecutionPlan | PlannedStep], tuple[bool, str] | bool]
"""Says whether a plan or a step needs approval by a person, and why."""

_DECISIONS = ("approved", "rejected", "edited")


class ApprovalMode(StrEnum):
    """What a person must approve: OFF nothing, SELECTIVE what an evaluator says, ALL everything."""

    OFF = "off"
    SELECTIVE = "selective"
    ALL = "all"


class Need(NamedTuple):
    """Whether approval is needed, and why. Its truth value is `needed`."""

    needed: bool
    why: str

    def __bool__(self) -> bool:
        return self.needed


def needs_approval(
    mode: ApprovalMode | str,
    content: ExecutionPlan | PlannedStep,
    evaluator: Evaluator | None = None,
) -> Need:
    """Say whether a person must approve this plan or step before it runs.

    mode: `off`, `selective` or `all`; any other value requires approval. evaluator: asked in the mode
    `selective`. Approval is also required if there is no evaluator, if it raises, or if it answers
    anything but True, False or either with a reason. Never raises.
    """
    if mode == ApprovalMode.OFF:
        return Need(needed=False, why="approval is off")
    if mode == ApprovalMode.ALL:
        return Need(needed=True, why="everything is approved by a person")
    if mode != ApprovalMode.SELECTIVE:
        return Need(needed=True, why=f"there is no mode {quoted(mode)}")
    if evaluator is None:
        return Need(needed=True, why="there is no evaluator")
    try:
        answer: Any = evaluator(content)
    except Exception as error:  # an evaluator that fails approves nothing
        return Need(needed=True, why=f"the evaluator raised {type(error).__name__}")
    verdict, why = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, "")
    if not isinstance(verdict, bool) or not isinstance(why, str):
        close = getattr(answer, "close", None)
        if close is not None:
            close()
        return Need(needed=True, why=f"the evaluator answered {type(answer).__name__}")
    return Need(needed=verdict, why=why or "the evaluator says so")


def subject_of(run_id: str, kind: str, content: object) -> str:
    """What an approval is bound to: SHA-256 over the run, the kind and exactly this content.

    content: a plan (its version does not count), a step, or a JSON value. Returns 64 hexadecimal digits.
    Raises UsageError for content without an exact JSON form.
    """
    if isinstance(content, ExecutionPlan):
        said = content.hash
    elif isinstance(content, PlannedStep):
        said = content_hash(content.to_json())
    else:
        said = content_hash(exact({"content": content}, "subject_of() content"))
    return content_hash([run_id, kind, said])


class ApprovalRequest(NamedTuple):
    """A question to a person, bound to one run, one kind and exactly one content.

    id: identifies this question; its answer repeats it. kind: `plan`, `step` or a word of your own.
    subject: from `subject_of`. payload: the content as JSON. expires: seconds since the epoch until which
    it may be answered, None for ever.
    """

    id: str
    run_id: str
    kind: str
    subject: str
    question: str = ""
    payload: Any = None
    expires: float | None = None

    def answer(
        self,
        decision: Literal["approved", "rejected", "edited"],
        *,
        by: str = "",
        reason: str = "",
        payload: Any = None,
    ) -> ApprovalAnswer:
        """Answer this question. payload: what to run instead; for `edited` only.

        Raises UsageError for another decision, an edit without a payload, and a payload without an edit.
        """
        check_word("ApprovalRequest.answer() decision", decision, _DECISIONS)
        if (payload is None) is (decision == "edited"):
            wanted = "what is to be run instead with edited, and None with the others"
            raise misuse("ApprovalRequest.answer() payload", payload, wanted)
        return ApprovalAnswer(
            id=self.id,
            run_id=self.run_id,
            kind=self.kind,
            subject=self.subject,
            decision=decision,
            by=by,
            reason=reason,
            payload=payload,
        )


class ApprovalAnswer(NamedTuple):
    """A person's answer. The first four fields repeat those of the question.

    decision: `approved`, `rejected` or `edited`. by: who answered, in their own words. reason: told to the
    planner. payload: what to run instead.
    """

    id: str
    run_id: str
    kind: str
    subject: str
    decision: str
    by: str = ""
    reason: str = ""
    payload: Any = None


def ask(
    id: str,
    run_id: str,
    kind: str,
    content: ExecutionPlan | PlannedStep | Any,
    *,
    question: str = "",
    now: float = 0.0,
    expires_s: float | None = None,
) -> ApprovalRequest:
    """Ask whether exactly this content may be run, in this run.

    id: new for each question. now: seconds since the epoch. expires_s: seconds an answer is accepted for,
    None for ever. Raises UsageError naming the field.
    """
    name_of("ask() kind", kind)
    if expires_s is not None:
        check_number("ask() expires_s", expires_s, "seconds", above=True)
    shown = content.to_json() if isinstance(content, ExecutionPlan | PlannedStep) else content
    expires = None if expires_s is None else now + expires_s
    return ApprovalRequest(
        id=name_of("ask() id", id),
        run_id=run_id,
        kind=kind,
        subject=subject_of(run_id, kind, content),
        question=question or f"May this {kind} be run?",
        payload=shown,
        expires=expires,
    )


def mismatch(
    request: ApprovalRequest,
    answer: ApprovalAnswer,
    *,
    now: float,
    used: Collection[str] = (),
) -> str | None:
    """Why this answer does not count for this question; None if it does.

    now: seconds since the epoch. used: ids of questions that have been answered already.
    """
    for name, what in (
        ("id", "another question"),
        ("run_id", "another run"),
        ("kind", "something of another kind"),
        ("subject", "other content"),
    ):
        if getattr(request, name) != getattr(answer, name):
            return f"it answers {what}"
    if answer.decision not in _DECISIONS:
        return f"{quoted(answer.decision)} is no decision"
    if request.id in used:
        return "the question has been answered"
    if request.expires is not None and now > request.expires:
        return "the question had to be answered sooner"
    return None


def matches(
    request: ApprovalRequest,
    answer: ApprovalAnswer,
    *,
    now: float,
    used: Collection[str] = (),
) -> bool:
    """True if this answer counts for this question; `mismatch` says why it does not."""
    return mismatch(request, answer, now=now, used=used) is None
