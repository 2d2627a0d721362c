"""A run as it is told while it goes on: `Progress`, read from the events of its journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from triage.events import (
    ApprovalAsked,
    ApprovalGiven,
    CapabilitiesSelected,
    Event,
    PlanFailed,
    PlanMade,
    PlanRouted,
    PlanStepMoved,
    RunFinished,
    RunRecovered,
    RunStarted,
    RunSuspended,
)

from ._registry import Registry
from ._state import PlanState, Target
from ._words import quoted, shortened

if TYPE_CHECKING:
    from triage.reports import Report

_SELECTED, _PLANNED, _REPORTED = 0.05, 0.1, 0.99


class Progress(NamedTuple):
    """One thing that happened in a plan-first run.

    run_id: of the run. seq: from 0, one more each time. time: seconds since the epoch. component:
    `orchestrator`, `router`, `selector`, `planner`, `approver`, `report`, or the name of a capability.
    phase: `started`, `decided`, `waiting`, `done` or `failed`. message: in words, without credentials.
    progress: from 0 to 1, never less than before. complete: it is done, or told why not. step: the key
    of the step, empty where it is none's. report: of a run that has failed, its facts first, then with
    an analysis.
    """

    run_id: str
    seq: int
    time: float
    component: str
    phase: str
    message: str
    progress: float
    complete: bool = False
    step: str = ""
    report: Report | None = None


class Narrator:
    """Tells one run."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._state = PlanState()
        self._seq = 0
        self._reached = 0.0
        self._time = 0.0
        self._run_id = ""

    def tell(self, event: Event) -> Iterator[Progress]:
        """What is told of an event; nothing of most."""
        before, self._state = self._state, self._state.apply(event)
        self._run_id, self._time = event.run_id, event.time
        tell = _TOLD.get(type(event))
        if tell is None:
            return
        component, phase, message, reached = tell(event, before)
        step = getattr(event, "step", "")
        made = self._made(component, phase, message, reached(self._state), step)
        complete = isinstance(event, RunFinished) and event.status == "done"
        yield made._replace(progress=1.0, complete=True) if complete else made
        if isinstance(event, PlanRouted) and event.target == Target.STEP:
            said = _objective(before, event.step)
            name = _capability(before, event.step)
            yield self._made(name, "started", said, _through(self._state), event.step)

    def report(self, report: Report, *, last: bool) -> Progress:
        """What is told of the report of a run that has failed, of its facts or, at last, of all."""
        message = shortened(report.facts.user_message or report.facts.reason or "it has failed")
        phase = "done" if last else "started"
        made = self._made("report", phase, message, _REPORTED)
        return made._replace(progress=1.0 if last else _REPORTED, complete=last, report=report)

    def _made(
        self, component: str, phase: str, message: str, reached: float, step: str = ""
    ) -> Progress:
        self._reached = max(self._reached, min(reached, _REPORTED))
        seq, self._seq = self._seq, self._seq + 1
        return Progress(
            self._run_id, seq, self._time, component, phase, message, self._reached, step=step
        )


def _through(state: PlanState) -> float:
    """How far the steps are, as a part of the whole."""
    if state.plan is None or not state.plan.steps:
        return _SELECTED
    return _PLANNED + (1 - _PLANNED) * state.position / len(state.plan.steps)


_Told = tuple[str, str, str, Callable[[PlanState], float]]


def _started(event: RunStarted, _: PlanState) -> _Told:
    return "orchestrator", "started", f"{event.agent} begins", lambda _: 0.0


def _recovered(_event: RunRecovered, _: PlanState) -> _Told:
    return "orchestrator", "started", "another process goes on", _through


def _routed(event: PlanRouted, _: PlanState) -> _Told:
    where = f"{event.target} {quoted(event.step)}" if event.step else str(event.target)
    waits = f", in {event.delay_s:.3g} s" if event.delay_s else ""
    return "router", "decided", f"{where}{waits}: {shortened(event.reason)}", _through


def _selected(event: CapabilitiesSelected, _: PlanState) -> _Told:
    return "selector", "done", f"{len(event.names)} capabilities", lambda _: _SELECTED


def _planned(event: PlanMade, _: PlanState) -> _Told:
    return "planner", "done", f"plan {event.version} is made", lambda _: _PLANNED


def _failed(event: PlanFailed, before: PlanState) -> _Told:
    component = (
        _capability(before, event.step) if event.target == Target.STEP else str(event.target)
    )
    said = event.diagnosis.user_message or str(event.diagnosis)
    if event.target != Target.STEP and event.diagnosis.evidence:
        said += f" {event.diagnosis.evidence[0].text}"  # of ours: what was wrong with a plan
    return component, "failed", shortened(said), _through


def _moved(event: PlanStepMoved, before: PlanState) -> _Told:
    said = _objective(before, event.step)
    return _capability(before, event.step), event.status, said, _through


def _objective(state: PlanState, key: str) -> str:
    step = state.next_step
    return shortened(key if step is None else step.task_objective or key)


def _capability(state: PlanState, key: str) -> str:
    step = state.next_step
    return step.capability if step is not None and step.context_key == key else key


def _asked(event: ApprovalAsked, _: PlanState) -> _Told:
    return "approver", "waiting", shortened(event.question), _through


def _answered(event: ApprovalGiven, _: PlanState) -> _Told:
    who = f" by {shortened(event.by, 80)}" if event.by else ""
    return "approver", "done", f"{event.decision}{who}", _through


def _suspended(event: RunSuspended, _: PlanState) -> _Told:
    return "orchestrator", "waiting", shortened(event.question), _through


def _finished(event: RunFinished, _: PlanState) -> _Told:
    good = event.status == "done"
    return "orchestrator", "done" if good else "failed", event.status, _through


_TOLD: dict[type, Callable[[Any, PlanState], _Told]] = {
    RunStarted: _started,
    RunRecovered: _recovered,
    PlanRouted: _routed,
    CapabilitiesSelected: _selected,
    PlanMade: _planned,
    PlanFailed: _failed,
    PlanStepMoved: _moved,
    ApprovalAsked: _asked,
    ApprovalGiven: _answered,
    RunSuspended: _suspended,
    RunFinished: _finished,
}
