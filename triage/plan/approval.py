"""Approval by a person: what needs it, and the question that the engine puts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from triage.core.errors import check_number, check_word, misuse
from triage.core.taxonomy import Effect
from triage.engine.questions import Question, about_content

from .capabilities import Registry
from .plans import ExecutionPlan, PlannedStep, content_hash, quoted

Evaluator: TypeAlias = Callable[[ExecutionPlan | PlannedStep], tuple[bool, str] | bool]
"""Says whether a plan or a step needs approval by a person, and why."""
_MAX_QUESTION = 300


class ApprovalMode(StrEnum):
    """What a person must approve: OFF nothing, SELECTIVE what an evaluator says, ALL everything."""

    OFF = "off"
    SELECTIVE = "selective"
    ALL = "all"


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
            raise misuse("Approval.mode", self.mode, "off, selective or all")
        if self.evaluator is not None and not callable(self.evaluator):
            raise misuse("Approval.evaluator", self.evaluator, "a function of the plan or the step")
        check_word("Approval.of", self.of, ("plan", "step"))
        if self.expires_s is not None:
            check_number("Approval.expires_s", self.expires_s, "seconds", above=True)

    def why(self, content: ExecutionPlan | PlannedStep) -> str | None:
        """Why a person must approve this plan or step before it runs; None if nobody need.

        Approval is also required in the mode `selective` if there is no evaluator, if it raises, or if it
        answers anything but True, False or either with a reason. Never raises.
        """
        if self.mode == ApprovalMode.OFF:
            return None
        if self.mode == ApprovalMode.ALL:
            return "everything is approved by a person"
        if self.mode != ApprovalMode.SELECTIVE:
            return f"there is no mode {quoted(self.mode)}"
        if self.evaluator is None:
            return "there is no evaluator"
        try:
            answer: Any = self.evaluator(content)
        except Exception as error:  # an evaluator that fails approves nothing
            return f"the evaluator raised {type(error).__name__}"
        needed, why = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, "")
        if not isinstance(needed, bool) or not isinstance(why, str):
            close = getattr(answer, "close", None)
            if close is not None:
                close()
            return f"the evaluator answered {type(answer).__name__}"
        return (why or "the evaluator says so") if needed else None

    def question(self, run_id: str, content: ExecutionPlan | PlannedStep) -> Question | None:
        """The question to be answered before this plan or step runs in this run; None if it needs none."""
        why = self.why(content)
        if why is None:
            return None
        steps = content.steps if isinstance(content, ExecutionPlan) else (content,)
        what = ", ".join(
            f"{quoted(step.context_key)} by {quoted(step.capability)}" for step in steps
        )
        text = f"May this {self.of} be run ({why[:_MAX_QUESTION]}): {what}?"
        shown = content.to_json()
        return about_content(
            self.of,
            subject_of(run_id, self.of, content),
            {"steps": shown["steps"]} if "steps" in shown else shown,
            text[: 2 * _MAX_QUESTION],
            expires_s=self.expires_s,
        )


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


def subject_of(run_id: str, kind: str, content: ExecutionPlan | PlannedStep) -> str:
    """What an approval is bound to: SHA-256 over the run, the kind and exactly this content.

    content: a plan, whose version does not count, or a step. Returns 64 hexadecimal digits.
    """
    said = content.hash if isinstance(content, ExecutionPlan) else content_hash(content.to_json())
    return content_hash([run_id, kind, said])
