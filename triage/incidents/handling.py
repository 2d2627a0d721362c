"""The moves of incidents in the tables. Each is one transaction, with its log and its messages."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import anyio
from anyio.abc import TaskGroup

from triage.core.errors import TriageSuspendedError, UsageError
from triage.core.observers import logger
from triage.core.redaction import redact
from triage.core.taxonomy import Level
from triage.engine.agents import Agent, AgentLike, underlying_agent
from triage.stores.base import OPEN

from . import agents, model
from . import database as rows
from .database import Db
from .detection import Rules, errors_in_window, title_of

DUE = 500
"""Incidents one round takes up."""
DONE = {
    model.RecoveryStrategy.RESTART: "Agent restarted to recover from error",
    model.RecoveryStrategy.RETRY: "Task retried to recover from error",
    model.RecoveryStrategy.INCREASE_TIMEOUT: "Timeout increased and agent restarted to recover from error",
    model.RecoveryStrategy.WAIT_AND_RETRY: "Task retried after waiting to recover from error",
    model.RecoveryStrategy.CLEAR_CACHE: "Cache cleared to recover from error",
    model.RecoveryStrategy.FALLBACK: "Task marked as failed, another way is needed",
    model.RecoveryStrategy.MANUAL: "Handed over for manual intervention",
    model.RecoveryStrategy.CUSTOM: "Custom recovery carried out",
}
"""What a recovery that succeeded says of itself."""
_HELD = (model.Status.ESCALATED, model.Status.ACKNOWLEDGED)
_OPEN_OF_TASK = "(task_id = :task OR run_id = :task) AND resolved_at IS NULL"


class Order(NamedTuple):
    """A call of the desk. stamp: identifies it. by: a person's name, None for the desk itself.

    retry_max: the most attempts at the incident, None for those it was given when found.
    """

    stamp: str
    hooks: model.Hooks
    strategy: model.RecoveryStrategy | None = None
    by: str | None = None
    retry_max: int | None = None


class Begun(NamedTuple):
    """What was decided and written. recovery: for the hook, None if no hook runs."""

    incident: model.Incident
    plan: model.Plan
    recovery: model.Recovery | None
    told: int
    by_person: bool


class HookOutcome(NamedTuple):
    """How a hook ended.

    error: why it failed. doubt: it may have done its work. final: retrying is useless. stopped: its desk
    was stopped, before or while it ran.
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
    """Decide what to do about an incident, and claim it under a lease."""
    incident = rows.load(db, number)
    if incident.stamp == order.stamp and incident.status is model.Status.RECOVERING:
        # The same call again: the reply to its commit was lost.
        return Begun(
            incident=incident,
            plan=model.Plan("recover", incident.strategy),
            recovery=_recovery(db, rules, incident),
            told=0,
            by_person=order.strategy is not None,
        )
    model.untouched(incident, db.now)
    if order.retry_max is not None:
        allowed = incident._replace(max_retries=order.retry_max)
        incident = rows.save(db, incident, allowed)
    if order.strategy is None:
        plan = _decided(db, rules, order, incident)
    else:  # a fallback works without a hook: the desk marks the task itself
        missing = order.hooks.of(order.strategy) is None
        plan = model.Plan("escalate" if missing else "recover", order.strategy)
    action = action_of(plan.strategy)
    by_person = order.strategy is not None
    if plan.kind == "wait":
        due = db.now + plan.delay_s
        after = model.moved(
            incident, "postpone", db.now, next_attempt_at=due, recovery_action=action
        )
        after = rows.save(db, incident, after)
        rows.log(db, "postponed", rules.owner, f"tried again in {plan.delay_s:g} s", after)
        told = _tell_handling(db, rules, after, f"in {plan.delay_s:g} s")
        return Begun(incident=after, plan=plan, recovery=None, told=told, by_person=False)
    if plan.kind == "escalate":
        incident = incident._replace(recovery_action=action)
        if plan.strategy is model.RecoveryStrategy.FALLBACK:
            _fallen_back(db, rules, incident)
        after, told = escalate(db, rules, incident, None, plan.reason, order.by or rules.owner)
        return Begun(incident=after, plan=plan, recovery=None, told=told, by_person=by_person)
    after = model.claimed(
        incident,
        db.now,
        plan.strategy,
        owner=rules.owner,
        stamp=order.stamp,
        lease_s=order.hooks.lease_s,
    )
    after = rows.save(db, incident, after._replace(recovery_action=action))
    text = f"{plan.strategy}, attempt {after.attempt}"
    rows.log(db, "recovering", order.by or rules.owner, text, after)
    return Begun(
        incident=after,
        plan=plan,
        recovery=_recovery(db, rules, after),
        told=_tell_handling(db, rules, after, retry_of(after)),
        by_person=by_person,
    )


def action_of(strategy: model.RecoveryStrategy) -> str:
    """The name of a strategy in the desk's JSON."""
    return model.RECOVERY_ACTION.get(strategy, str(strategy))


def _decided(db: Db, rules: Rules, order: Order, incident: model.Incident) -> model.Plan:
    if incident.status in _HELD:
        raise model.busy(incident, db.now)
    if incident.status is model.Status.WAITING and (incident.next_attempt_at or 0.0) > db.now:
        raise model.busy(incident, db.now)
    if incident.status is model.Status.RECOVERING and order.hooks.on_in_doubt == "escalate":
        reason = f"{incident.owner} went silent while recovering it; whether it did is not known"
        return model.Plan("escalate", model.RecoveryStrategy.MANUAL, reason)
    errors = errors_in_window(db, incident, rules.threshold)
    return model.decide(incident, errors, rules.threshold, rules.retries, order.hooks)


def _recovery(db: Db, rules: Rules, incident: model.Incident) -> model.Recovery:
    task = agents.task(db, incident.task_id)
    timeout = None if task is None else task.timeout_s
    if incident.strategy is model.RecoveryStrategy.INCREASE_TIMEOUT:
        timeout = rules.retries.raised(timeout)
    key = f"{incident.fingerprint[:12]}-{incident.error_id}-{incident.occurrences}"
    return model.Recovery(
        incident=incident,
        strategy=incident.strategy,
        attempt=incident.attempt,
        key=key,
        timeout_s=timeout,
        task=task,
    )


def _tell_handling(db: Db, rules: Rules, incident: model.Incident, when: str) -> int:
    """Tell the roles of a medium incident what the desk does by itself. when: in words."""
    if incident.level is not Level.MEDIUM:
        return 0
    roles = rules.notifications.roles.get(incident.level, ())
    text = f"{incident.error_id}: {incident.recovery_action} for {where(incident)} {when}"
    return rows.enqueue(
        db, incident, roles, "handling", text, f"{incident.occurrences}.{incident.attempt}"
    )


def retry_of(incident: model.Incident) -> str:
    """Which of its retries an incident is at; a person may order more than it has."""
    most = f" of {incident.max_retries}" if incident.attempt <= incident.max_retries else ""
    return f"(retry {incident.attempt}{most})"


def where(incident: model.Incident) -> str:
    """What an incident is about: its task, run or agent."""
    return incident.task_id or incident.run_id or incident.agent_id or incident.error_id


def finish(
    db: Db, rules: Rules, hooks: model.Hooks, begun: Begun, outcome: HookOutcome
) -> model.Incident:
    """Write how a recovery ended, unless somebody else has taken it over."""
    incident = rows.load(db, begun.incident.id)
    said = f"{begun.plan.strategy}: {'done' if outcome.ok else outcome.error}"
    if incident.stamp != begun.incident.stamp or incident.status is not model.Status.RECOVERING:
        rows.log(db, "came too late", rules.owner, said, incident)
        return incident
    rows.log(db, "hook done" if outcome.ok else "hook failed", rules.owner, said, incident)
    if begun.plan.strategy is model.RecoveryStrategy.FALLBACK:
        _fallen_back(db, rules, incident)
        reason = "" if outcome.ok else f"the fallback failed: {outcome.error}"
        return escalate(db, rules, incident, None, reason, rules.owner)[0]
    if outcome.ok:
        return _recovered(db, rules, begun, incident, outcome)
    if outcome.doubt and hooks.on_in_doubt == "escalate":
        reason = f"{outcome.error}; whether it has happened is not known"
    elif outcome.stopped:  # for the next desk, at once; the attempt does not count
        attempt = incident.attempt - 1
        after = model.moved(incident, "postpone", db.now, next_attempt_at=db.now, attempt=attempt)
        after = rows.save(db, incident, after)
        rows.log(db, "given back", rules.owner, "the desk was stopped", after)
        return after
    elif begun.by_person or outcome.final:
        reason = f"{begun.plan.strategy} failed: {outcome.error}"
    elif incident.attempt >= incident.max_retries:
        reason = f"{incident.attempt} of {incident.max_retries} retries failed, the last: {outcome.error}"
    else:
        delay = model.next_delay(incident, rules.retries)
        after = model.moved(incident, "postpone", db.now, next_attempt_at=db.now + delay)
        after = rows.save(db, incident, after)
        rows.log(db, "postponed", rules.owner, f"tried again in {delay:g} s", after)
        return after
    return escalate(db, rules, incident, None, reason, rules.owner)[0]


def renew(db: Db, begun: Begun, lease_s: float) -> bool:
    """Renew the lease of a recovery; False if somebody else has taken it over."""
    changed = db.run(
        "UPDATE incidents SET lease_until = :until "
        "WHERE id = :id AND stamp = :stamp AND status = 'recovering'",
        {"until": db.now + lease_s, "id": begun.incident.id, "stamp": begun.incident.stamp},
    )
    return changed == 1


def _recovered(
    db: Db, rules: Rules, begun: Begun, incident: model.Incident, outcome: HookOutcome
) -> model.Incident:
    after = rows.save(db, incident, model.moved(incident, "recover", db.now))
    if outcome.new_agent_id is not None:
        agents.successor(db, incident, outcome.new_agent_id)
    timeout = begun.recovery.timeout_s if begun.recovery is not None else None
    if (
        begun.plan.strategy is model.RecoveryStrategy.INCREASE_TIMEOUT
        and incident.task_id is not None
    ):
        agents.ensure_task(db, incident.task_id)
        db.run(
            "UPDATE tasks SET timeout_s = :timeout WHERE task_id = :task_id",
            {"timeout": timeout, "task_id": incident.task_id},
        )
    kind = "Task" if incident.task_id is not None else "Run" if incident.run_id else "Agent"
    text = f"{kind} resumed {retry_of(after)}"
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


def _fallen_back(db: Db, rules: Rules, incident: model.Incident) -> None:
    """Mark the task as failed, and suggest another way."""
    if incident.task_id is not None:
        agents.ensure_task(db, incident.task_id)
        db.run(
            "UPDATE tasks SET status = 'failed' WHERE task_id = :task_id",
            {"task_id": incident.task_id},
        )
        rows.log(db, "task failed", rules.owner, incident.task_id, incident)
    if incident.alternative:
        rows.log(db, "suggested", rules.owner, incident.alternative, incident)


def message_for(incident: model.Incident, reason: str = "") -> str:
    title, need = title_of(incident)
    return f"{title} in {where(incident)} requires {need}{reason and f': {reason}'}"


def escalate(
    db: Db, rules: Rules, incident: model.Incident, role: str | None, reason: str, by: str
) -> tuple[model.Incident, int]:
    """Hand an incident to a role, None for the first of its level; also returns the new messages."""
    policy = rules.notifications
    chosen = policy.start(incident.level) if role is None else role
    seconds = policy.ack_s.get(incident.level)
    before = rows.load(db, incident.id)
    after = model.moved(
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
) -> tuple[model.Incident, int]:
    incident = rows.load(db, number)
    model.untouched(incident, db.now)
    return escalate(db, rules, incident, role, "", by)


def acknowledge(db: Db, number: int, by: str, note: str) -> model.Incident:
    incident = rows.load(db, number)
    model.untouched(incident, db.now)
    after = rows.save(
        db, incident, model.moved(incident, "acknowledge", db.now, acknowledged_by=by)
    )
    rows.log(db, "acknowledged", by, note, after)
    return after


def note(db: Db, number: int, by: str, text: str) -> model.Incident:
    incident = rows.load(db, number)
    rows.log(db, "noted", by, text, incident)
    return incident


def close(db: Db, number: int, outcome: str, by: str, note: str) -> model.Incident:
    incident = rows.load(db, number)
    model.untouched(incident, db.now)
    if (
        incident.status is model.Status.RECOVERING
    ):  # its owner is gone, and a person knows the outcome
        incident = rows.save(db, incident, model.moved(incident, "escalate", db.now))
    after = rows.save(db, incident, model.moved(incident, outcome, db.now))
    rows.log(db, "resolved", by, f"{outcome}{note and f': {note}'}", after)
    # If the deadlock or the failing sink persists, it becomes a new incident.
    db.run(
        "DELETE FROM sightings WHERE incident = :id AND source IN ('tasks', 'desk')", {"id": number}
    )
    return after


def number_of_task(db: Db, task_id: str) -> int:
    """The number of the newest open incident of a task or run. Raises UnknownIncident, IncidentBusy."""
    found = rows.find(db, _OPEN_OF_TASK, {"task": task_id}, order="id DESC", limit=20)
    if not found:
        raise model.UnknownIncident(f"no incident of {task_id} is open")
    free = [incident for incident in found if not model.leased(incident, db.now)]
    if not free:
        raise model.busy(found[0], db.now)
    return free[0].id


DUE_QUERIES = {
    "detected": ("status = 'detected' AND last_seen <= :now", "last_seen"),
    "waiting": ("next_attempt_at <= :now AND next_attempt_at IS NOT NULL", "next_attempt_at"),
    "left": ("lease_until <= :now AND lease_until IS NOT NULL", "lease_until"),
}
"""What a round handles: new incidents, due ones, and those a dead desk has left."""


def due(db: Db, most: int = DUE) -> list[int]:
    """The numbers of the incidents to handle now."""
    found: list[int] = []
    for where_, order in DUE_QUERIES.values():
        statement = f"SELECT id FROM incidents WHERE {where_} ORDER BY {order} LIMIT :most"
        found += [row[0] for row in db.rows(statement, {"now": db.now, "most": most})]
    return found


UNHEARD = "ack_due <= :now AND ack_due IS NOT NULL"


def remind(db: Db, rules: Rules) -> int:
    """Escalate to the next role what nobody has acknowledged in time; returns how many."""
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


# Functions of the user, sync or async, under a deadline.


async def call(function: Callable[..., Any], argument: Any, deadline_s: float) -> Any:
    """Call a function, a sync one in a thread. Raises TimeoutError at the deadline.

    A thread that does not return is left behind.
    """
    plain: Any = function
    while isinstance(plain, partial):
        plain = plain.func
    with anyio.fail_after(deadline_s):
        if any(map(inspect.iscoroutinefunction, (plain, plain.__call__))):
            return await function(argument)
        # A limiter of its own: a function that hangs must not block others.
        found = await anyio.to_thread.run_sync(
            partial(function, argument), abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
        )
        return await found if inspect.isawaitable(found) else found


async def run_hook(hook: model.Hook, recovery: model.Recovery, deadline_s: float) -> HookOutcome:
    """Run a hook; never raises but for cancellation."""
    began = anyio.current_time()
    try:
        answer = await call(hook, recovery, deadline_s)
    except TimeoutError as error:
        if anyio.current_time() - began >= deadline_s:
            return HookOutcome(ok=False, error=f"the hook hung for {deadline_s:g} s", doubt=True)
        return HookOutcome(ok=False, error=error_line(error))
    except Exception as error:  # the outcome of the attempt
        # A UsageError says that the hook cannot do this at all.
        final = isinstance(error, UsageError)
        if not final:
            logger.warning(
                "incident %s: the hook failed", recovery.incident.error_id, exc_info=True
            )
        return HookOutcome(ok=False, error=error_line(error), final=final)
    if answer is None or answer is True:
        return HookOutcome(ok=True)
    if answer is False:
        return HookOutcome(ok=False, error="the hook said it could not")
    try:
        return HookOutcome(ok=True, new_agent_id=model.check_id("the hook's answer", answer))
    except UsageError as error:
        # It returned, so something was started, under an unknown name.
        return HookOutcome(ok=False, error=error_line(error), doubt=True)


def error_line(error: BaseException) -> str:
    """An error on one line, without secrets."""
    text = " ".join(str(error).split())[:300]
    return redact(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def recovers(*runners: AgentLike, group: TaskGroup | None = None) -> model.Hook:
    """Make a hook that takes over a recorded run with `agent.recover`.

    runners: the agents or orchestrators of the store's runs, by name. group: a task group in which the
    run continues after the hook has returned; without one, the hook returns when the run has ended, so
    its deadline must be longer than a run. A run that has found another owner is left alone. A dead
    letter is taken over by force. A run that is suspended again counts as recovered. A run of another
    agent, or one that has ended, raises UsageError, so that a person is asked at once.

    Raises UsageError for anything but agents, and for two with the same name.
    """
    found: list[Agent[Any]] = []
    for runner in runners:
        one = underlying_agent(runner)
        if one is None:
            raise UsageError(f"recovers() takes agents, not {type(runner).__name__}")
        found.append(one)
    own = {one.name: one for one in found}
    if not found or len(own) < len(found):
        raise UsageError("recovers() takes one or more agents, each with a name of its own")
    known = {alias: one for one in found for alias in one.aliases} | own

    async def recover_run(recovery: model.Recovery) -> bool | None:
        incident = recovery.incident
        chosen = known.get(incident.agent_type)
        if incident.run_id is None or chosen is None:
            names = ", ".join(known)
            raise UsageError(
                f"{incident.error_id} is of no run of {names}, but of {incident.agent_type or 'no agent'}"
            )
        if await _is_seen_to(chosen, incident.run_id):
            return None
        force = incident.cause == "dead_letter"
        take_over = partial(_take_over, chosen, incident.run_id, force=force)
        if group is None:
            await take_over(quiet=False)
        else:
            group.start_soon(partial(take_over, quiet=True))
        return None

    return recover_run


async def _is_seen_to(agent: Agent[Any], run_id: str) -> bool:
    """Whether a run is done or has a live owner. Raises UsageError for one that has failed."""
    store = agent.store
    info = await store.info(run_id)
    if info is None:
        raise UsageError(f"the store of {agent.name} knows no run {run_id}")
    if info.status not in (*OPEN, "done"):
        raise UsageError(f"run {run_id} has ended as {info.status}; start a new one in its place")
    alive = info.lease_until is not None and info.lease_until > await store.now()
    return info.status == "done" or alive


async def _take_over(agent: Agent[Any], run_id: str, *, force: bool, quiet: bool) -> None:
    try:
        await agent.recover(run_id, force=force)
    except TriageSuspendedError:
        return
    except Exception:
        if not quiet:
            raise
        logger.warning("run %s was taken over and has failed", run_id, exc_info=True)
