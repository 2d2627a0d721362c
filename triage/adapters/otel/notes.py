"""Log events for the events that neither begin nor end a span."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from triage.core import (
    ApprovalGiven,
    CompensatorRegistered,
    StateUpdated,
    SubgoalCompleted,
    SubgoalsDeclared,
    WatchNoticed,
)

from . import names
from .content import Shown


class Note(NamedTuple):
    """A log event. Attributes that are None are left out."""

    name: str
    attributes: Mapping[str, Any]
    severity: str = "INFO"


def _state_updated(event: StateUpdated, shown: Shown) -> Note:
    given = {
        "triage.state.keys": [shown.line(str(name)) for name in event.values],
        "triage.state.values": shown.json(event.values),
    }
    return Note("triage.state.updated", given)


def _watch_noticed(event: WatchNoticed, shown: Shown) -> Note:
    given = {
        "triage.watch.rule": shown.line(event.rule),
        "triage.watch.response": shown.line(event.response),
        "triage.watch.step": event.step,
        "triage.watch.text": shown.text(event.text),
    }
    return Note("triage.watch.noticed", given, "WARN")


def _subgoals_declared(event: SubgoalsDeclared, shown: Shown) -> Note:
    given: dict[str, Any] = {"triage.subgoal.count": len(event.names)}
    if shown.content:
        given["triage.subgoal.names"] = [shown.line(name) for name in event.names]
    return Note("triage.subgoals.declared", given)


def _subgoal_completed(event: SubgoalCompleted, shown: Shown) -> Note:
    return Note("triage.subgoal.completed", {"triage.subgoal.name": shown.text(event.name)})


def _compensator_registered(event: CompensatorRegistered, shown: Shown) -> Note:
    given = {names.COMPENSATOR: shown.line(event.name), names.CALL_KEY: shown.line(event.key)}
    return Note("triage.compensator.registered", given)


def _approval_given(event: ApprovalGiven, shown: Shown) -> Note:
    given = {
        "triage.approval.kind": shown.line(event.kind),
        "triage.approval.subject": shown.line(event.subject),
        "triage.approval.decision": shown.line(event.decision),
        "triage.approval.by": shown.line(event.by) or None,
        "triage.approval.reason": shown.text(event.reason),
    }
    return Note("triage.approval.given", given)


NOTES: Mapping[type, Callable[[Any, Shown], Note]] = {
    ApprovalGiven: _approval_given,
    CompensatorRegistered: _compensator_registered,
    StateUpdated: _state_updated,
    SubgoalCompleted: _subgoal_completed,
    SubgoalsDeclared: _subgoals_declared,
    WatchNoticed: _watch_noticed,
}
