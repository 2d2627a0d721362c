"""See and answer a waiting run at its store alone, without its agent and its token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from triage.core.actions import Edited, Reply
from triage.core.errors import UnknownRun, UsageError
from triage.core.events import Event
from triage.engine.answering import waits_for
from triage.engine.outside import asked_inside_by, resolve
from triage.engine.questions import PLAN, Question, question_at
from triage.stores.base import Store

from .capabilities import Capability, Registry
from .routing import PlanLimits, PlanState, fold_plan
from .validation import Validation, validate

MAX_WRONGS = 2_000


def check_edit(
    events: Sequence[Event], answer: object, check: Callable[[Any, PlanState], Validation]
) -> None:
    """Raise UsageError for an edit that leaves a waiting run without a plan that can be run.

    check: validates the edited plan, given the run's state.
    """
    question = question_at(events)
    if question is None or question.of != PLAN or not isinstance(answer, Edited):
        return
    found = check(answer.payload, fold_plan(events))
    if not found.ok:
        wrong = "; ".join(issue.message for issue in found.issues)[:MAX_WRONGS]
        raise UsageError(f"the edited plan cannot be run, and the run still waits: {wrong}")


def validated_by_journal(plan: Any, state: PlanState) -> Validation:
    """Validate a plan against nothing but its run's journal.

    The journal has the names of the capabilities, and the keys and planned types of results. What
    capabilities take and provide is checked by the process that continues the run.
    """

    def takes_anything(**_parameters: Any) -> None: ...

    registry = Registry(
        Capability(name, "known by its name alone", takes_anything, responds=False)
        for name in state.active or ()
    )
    limits = PlanLimits(steps=10_000)
    return validate(plan, registry, state.context(registry), limits=limits)


async def asked_in(
    store: Store, run_id: str, events: Sequence[Event] | None = None
) -> Question | None:
    """The question about a call, a plan or a step that a run waits with, or a run inside it.

    events: its journal; None reads it. None if it waits for none, or for an action. Raises UnknownRun for a
    run the store does not know.
    """
    found = await _asking(store, run_id, events)
    return None if waits_for(found) is None else question_at(found)


async def answer_in(
    store: Store, run_id: str, answer: Reply, *, by: str = "", question: str | None = None
) -> None:
    """Answer the question a run waits with at its store; the process that recovers the run continues it.

    answer: as for `Agent.resume`; an edited plan is checked by the names in the journal. by: who answers.
    question: the digest of its token, if another question must not be answered. Raises UnknownRun;
    UsageError for a run that waits for no answer, an answer that does not fit, and an edit that cannot be
    run or seems to hold a secret; TokenExpired; AlreadyResumed, which names the first answer; RunBusy for
    up to 30 seconds if somebody has died while answering; StoreError. After all but AlreadyResumed the
    run still waits.
    """
    check_edit(await _asking(store, run_id), answer, validated_by_journal)
    await resolve(store, run_id, answer, now=await store.now(), by=by, question=question)


async def _asking(
    store: Store, run_id: str, events: Sequence[Event] | None = None
) -> Sequence[Event]:
    """The journal of the run that asks: this one, or one inside it in the same store."""
    found = await store.read(run_id) if events is None else events
    if not found:
        raise UnknownRun(f"the store knows no run {run_id}")
    inner = asked_inside_by(found)
    within = [] if inner is None else await store.read(inner)
    return await _asking(store, run_id, within) if within else found
