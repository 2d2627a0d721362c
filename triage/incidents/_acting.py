"""The moves of incidents in the tables: each is one transaction, with its log and its messages."""

from __future__ import annotations

from typing import NamedTuple

from triage.taxonomy import Level

from . import _rows as rows
from ._db import Db
from ._deciding import Plan, decide, next_delay
from ._errors import UnknownIncident
from ._machine import busy, claimed, leased, moved, untouched
from ._model import RECOVERY_ACTION, Incident, Recovery, RecoveryStrategy, Status
from ._seeing import Rules, errors_in_window, title_of
from ._settings import Hooks

DUE = 500
"""Incidents one round looks at."""
_HELD = (Status.ESCALATED, Status.ACKNOWLEDGED)
_OPEN_OF_TASK = "(task_id = :task OR run_id = :task) AND resolved_at IS NULL"


class Order(NamedTuple):
    """What is asked of the desk. stamp: names this call. by: a person's name, None for the desk itself."""

    stamp: str
    hooks: Hooks
    strategy: RecoveryStrategy | None = None
    by: str | None = None


class Begun(NamedTuple):
    """What was decided and written. recovery: what the hook is told, None where no hook runs."""

    incident: Incident
    plan: Plan
    recovery: Recovery | None
    told: int
    by_person: bool


class HookOutcome(NamedTuple):
    """How a hook ended.

    error: why it failed. doubt: nobody knows whether it did its work. final: to try again is of no use.
    stopped: its desk was, in the middle of it or before.
    """

    ok: bool
    new_agent_id: str | None = None
    error: str = ""
    doubt: bool = False
    final: bool = False
    stopped: bool = False


STOPPED = HookOutcome(ok=False, error="the desk was stopped before it", stopped=True)
CUT_OFF = HookOutcome(ok=False, error="the desk was stopped during it", doubt=True, stopped=True)


def begin(db: Db, rules: Rules, order: Order, number: int) -> Begun:
    """Decide what is done about an incident, and begin it: nobody else will, while the lease lasts."""
    incident = rows.load(db, number)
    if incident.stamp == order.stamp and incident.status is Status.RECOVERING:
        plan = Plan("recover", incident.strategy)  # our own call, come again after a lost reply
        return Begun(incident, plan, _recovery(db, rules, incident), 0, order.strategy is not None)
    untouched(incident, db.now)
    if order.strategy is not None:
        plan = _ordered(order.strategy, order.hooks)
    else:
        plan = _own(db, rules, order, incident)
    if plan.kind == "wait":
        after = moved(
            incident, "postpone", db.now, next_attempt_at=db.now + plan.delay_s,
            recovery_action=action_of(plan.strategy),
        )  # fmt: skip
        after = rows.save(db, incident, after)
        rows.log(db, "postponed", rules.owner, f"tried again in {plan.delay_s:g} s", after)
        return Begun(after, plan, None, _tell_handling(db, rules, after), by_person=False)
    if plan.kind == "escalate":
        incident = incident._replace(recovery_action=action_of(plan.strategy))
        if plan.strategy is RecoveryStrategy.FALLBACK:
            _task_failed(db, rules, incident)
        after, told = escalate(db, rules, incident, None, plan.reason, order.by or rules.owner)
        return Begun(after, plan, None, told, order.strategy is not None)
    after = claimed(
        incident, db.now, plan.strategy, owner=rules.owner, stamp=order.stamp,
        lease_s=order.hooks.lease_s,
    )._replace(recovery_action=action_of(plan.strategy))  # fmt: skip
    after = rows.save(db, incident, after)
    rows.log(
        db,
        "recovering",
        order.by or rules.owner,
        f"{plan.strategy}, attempt {after.attempt}",
        after,
    )
    told = _tell_handling(db, rules, after)
    return Begun(after, plan, _recovery(db, rules, after), told, order.strategy is not None)


def action_of(strategy: RecoveryStrategy) -> str:
    """A strategy as the desk's JSON calls it."""
    return RECOVERY_ACTION.get(strategy, str(strategy))


def _ordered(strategy: RecoveryStrategy, hooks: Hooks) -> Plan:
    """What a person has ordered; fallback needs no hook, as its task is marked by ourselves."""
    none = hooks.of(strategy) is None
    return Plan("escalate" if none else "recover", strategy)


def _own(db: Db, rules: Rules, order: Order, incident: Incident) -> Plan:
    if incident.status in _HELD:
        raise busy(incident, db.now)
    if incident.status is Status.WAITING and (incident.next_attempt_at or 0.0) > db.now:
        raise busy(incident, db.now)
    if incident.status is Status.RECOVERING and order.hooks.on_in_doubt == "escalate":
        reason = f"{incident.owner} went silent while recovering it; whether it did is not known"
        return Plan("escalate", RecoveryStrategy.MANUAL, reason)
    errors = errors_in_window(db, incident, rules.threshold)
    return decide(incident, errors, rules.threshold, rules.retries, order.hooks)


def _recovery(db: Db, rules: Rules, incident: Incident) -> Recovery:
    task = rows.task(db, incident.task_id)
    timeout = None if task is None else task.timeout_s
    if incident.strategy is RecoveryStrategy.INCREASE_TIMEOUT:
        timeout = rules.retries.raised(timeout)
    key = f"{incident.fingerprint[:12]}-{incident.error_id}-{incident.occurrences}"
    return Recovery(incident, incident.strategy, incident.attempt, key, timeout, task)


def _tell_handling(db: Db, rules: Rules, incident: Incident) -> int:
    """Tell those who hear of what the desk does by itself."""
    if incident.level is not Level.MEDIUM:
        return 0
    roles = rules.notifications.roles.get(incident.level, ())
    text = f"{incident.error_id}: {incident.recovery_action} for {where(incident)}"
    return rows.enqueue(
        db, incident, roles, "handling", text, f"{incident.occurrences}.{incident.attempt}"
    )


def where(incident: Incident) -> str:
    """What an incident is about, in a word."""
    return incident.task_id or incident.run_id or incident.agent_id or incident.error_id


def finish(db: Db, rules: Rules, hooks: Hooks, begun: Begun, outcome: HookOutcome) -> Incident:
    """Write down how a recovery ended. Raises IncidentBusy where it is somebody else's by now."""
    incident = rows.load(db, begun.incident.id)
    said = f"{begun.plan.strategy}: {'done' if outcome.ok else outcome.error}"
    if incident.stamp != begun.incident.stamp or incident.status is not Status.RECOVERING:
        rows.log(db, "came too late", rules.owner, said, incident)
        return incident
    rows.log(db, "hook done" if outcome.ok else "hook failed", rules.owner, said, incident)
    if begun.plan.strategy is RecoveryStrategy.FALLBACK:
        _task_failed(db, rules, incident)
        reason = "" if outcome.ok else f"the fallback failed: {outcome.error}"
        return escalate(db, rules, incident, None, reason, rules.owner)[0]
    if outcome.ok:
        return _recovered(db, rules, begun, incident, outcome)
    if outcome.doubt and hooks.on_in_doubt == "escalate":
        reason = f"{outcome.error}; whether it has happened is not known"
    elif outcome.stopped:
        return _given_back(db, rules, incident)
    elif begun.by_person or outcome.final:
        reason = f"{begun.plan.strategy} failed: {outcome.error}"
    elif incident.attempt >= incident.max_retries:
        reason = f"{incident.attempt} of {incident.max_retries} retries failed, the last: {outcome.error}"
    else:
        delay = next_delay(incident, rules.retries)
        after = moved(incident, "postpone", db.now, next_attempt_at=db.now + delay)
        after = rows.save(db, incident, after)
        rows.log(db, "postponed", rules.owner, f"tried again in {delay:g} s", after)
        return after
    return escalate(db, rules, incident, None, reason, rules.owner)[0]


def _given_back(db: Db, rules: Rules, incident: Incident) -> Incident:
    """For the next desk, at once; an attempt that a stop has cut off is none."""
    after = moved(
        incident, "postpone", db.now, next_attempt_at=db.now, attempt=incident.attempt - 1
    )
    after = rows.save(db, incident, after)
    rows.log(db, "given back", rules.owner, "the desk was stopped", after)
    return after


def renew(db: Db, begun: Begun, lease_s: float) -> bool:
    """Keep a recovery for as long again; False where it is somebody else's by now."""
    changed = db.run(
        "UPDATE incidents SET lease_until = :until "
        "WHERE id = :id AND stamp = :stamp AND status = 'recovering'",
        {
            "until": db.now + lease_s,
            "id": begun.incident.id,
            "stamp": begun.incident.stamp,
        },
    )
    return changed == 1


def _recovered(
    db: Db, rules: Rules, begun: Begun, incident: Incident, outcome: HookOutcome
) -> Incident:
    after = rows.save(db, incident, moved(incident, "recover", db.now))
    if outcome.new_agent_id is not None:
        rows.successor(db, incident, outcome.new_agent_id)
    timeout = begun.recovery.timeout_s if begun.recovery is not None else None
    if begun.plan.strategy is RecoveryStrategy.INCREASE_TIMEOUT and incident.task_id is not None:
        rows.ensure_task(db, incident.task_id)
        db.run(
            "UPDATE tasks SET timeout_s = :timeout WHERE task_id = :task_id",
            {"timeout": timeout, "task_id": incident.task_id},
        )
    kind = "Task" if incident.task_id is not None else "Run" if incident.run_id else "Agent"
    text = f"{kind} resumed (retry {after.attempt} of {after.max_retries})"
    rows.log(db, "recovered", rules.owner, text, after)
    if after.level is Level.MEDIUM:
        roles = rules.notifications.roles.get(after.level, ())
        rows.enqueue(
            db,
            after,
            roles,
            "recovered",
            f"{after.error_id}: {text}, {where(after)}",
            after.occurrences,
        )
    return after


def _task_failed(db: Db, rules: Rules, incident: Incident) -> None:
    if incident.task_id is None:
        return
    rows.ensure_task(db, incident.task_id)
    db.run(
        "UPDATE tasks SET status = 'failed' WHERE task_id = :task_id", {"task_id": incident.task_id}
    )
    rows.log(db, "task failed", rules.owner, incident.task_id, incident)


def message_for(incident: Incident, reason: str = "") -> str:
    """How an escalation is worded."""
    title, need = title_of(incident)
    return f"{title} in {where(incident)} requires {need}{reason and f': {reason}'}"


def escalate(
    db: Db, rules: Rules, incident: Incident, role: str | None, reason: str, by: str
) -> tuple[Incident, int]:
    """Hand it to a role, the one its level begins with by default; how many messages were new."""
    policy = rules.notifications
    chosen = policy.start(incident.level) if role is None else role
    seconds = policy.ack_s.get(incident.level)
    before = rows.load(db, incident.id)
    after = moved(
        incident, "escalate", db.now, escalation_level=chosen, acknowledged_by=None,
        ack_due=None if seconds is None else db.now + seconds,
    )  # fmt: skip
    after = rows.save(db, before, after)
    text = message_for(after, reason)
    rows.log(db, "escalated", by, f"to {chosen}: {text}", after)
    told = 0
    if after.source != "desk":
        told = rows.enqueue(db, after, (chosen,), "escalated", text, after.version)
    return after, told


def escalate_by_order(
    db: Db, rules: Rules, number: int, role: str, by: str
) -> tuple[Incident, int]:
    """As a person says, whatever the desk would do."""
    incident = rows.load(db, number)
    untouched(incident, db.now)
    return escalate(db, rules, incident, role, "", by)


def acknowledge(db: Db, number: int, by: str, note: str) -> Incident:
    """Somebody has it: no further role is told."""
    incident = rows.load(db, number)
    untouched(incident, db.now)
    after = rows.save(db, incident, moved(incident, "acknowledge", db.now, acknowledged_by=by))
    rows.log(db, "acknowledged", by, note, after)
    return after


def close(db: Db, number: int, outcome: str, by: str, note: str) -> Incident:
    """Bring it to its end, as a person says."""
    incident = rows.load(db, number)
    untouched(incident, db.now)
    if incident.status is Status.RECOVERING:  # its owner is gone, and a person knows how it went
        incident = rows.save(db, incident, moved(incident, "escalate", db.now))
    after = rows.save(db, incident, moved(incident, outcome, db.now))
    rows.log(db, "resolved", by, f"{outcome}{note and f': {note}'}", after)
    # A circle of tasks or a sink that is still so is a new incident then.
    db.run(
        "DELETE FROM sightings WHERE incident = :id AND source IN ('tasks', 'desk')", {"id": number}
    )
    return after


def number_of_task(db: Db, task_id: str) -> int:
    """The newest open incident of a task or run. Raises UnknownIncident, or IncidentBusy."""
    found = rows.find(db, _OPEN_OF_TASK, {"task": task_id}, order="id DESC", limit=20)
    if not found:
        raise UnknownIncident(f"no incident of {task_id} is open")
    free = [incident for incident in found if not leased(incident, db.now)]
    if not free:
        raise busy(found[0], db.now)
    return free[0].id


DUE_QUERIES = {
    "detected": ("status = 'detected' AND last_seen <= :now", "last_seen"),
    "waiting": ("next_attempt_at <= :now AND next_attempt_at IS NOT NULL", "next_attempt_at"),
    "left": ("lease_until <= :now AND lease_until IS NOT NULL", "lease_until"),
}
"""What one round handles: what is new, what is due, and what a desk that died has left."""


def due(db: Db, most: int = DUE) -> list[int]:
    """The numbers of incidents that something is to be done about now."""
    found: list[int] = []
    for where_, order in DUE_QUERIES.values():
        statement = f"SELECT id FROM incidents WHERE {where_} ORDER BY {order} LIMIT :most"  # noqa: S608
        found += [row[0] for row in db.rows(statement, {"now": db.now, "most": most})]
    return found


UNHEARD = "ack_due <= :now AND ack_due IS NOT NULL"


def remind(db: Db, rules: Rules) -> int:
    """Tell the next role of what nobody has acknowledged in time; how many."""
    late = rows.find(db, UNHEARD, {"now": db.now}, order="ack_due", limit=DUE)
    for incident in late:
        role = rules.notifications.after(incident.escalation_level or "")
        if role is None:
            after = incident._replace(ack_due=None, version=incident.version + 1)
            rows.save(db, incident, after)
            rows.log(
                db, "unheard", rules.owner, "nobody acknowledged it, and the chain ends", after
            )
        else:
            reason = f"{incident.escalation_level} did not acknowledge it"
            escalate(db, rules, incident, role, reason, rules.owner)
    return len(late)
