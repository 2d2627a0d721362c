"""What is done about an incident: the plan, the hooks that carry it out, and how they end."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import anyio
from anyio.abc import TaskGroup
from msgspec.structs import replace

from triage.core.errors import TriageSuspendedError, UsageError
from triage.core.observers import logger
from triage.core.redaction import redact
from triage.core.taxonomy import Level
from triage.engine.agents import Agent, AgentLike, underlying_agent
from triage.stores.base import OPEN

from . import model
from .journal import Incident, entry_of
from .ledger import Entry
from .playbook import PLAYS

DESK = "desk"
"""The source of failures of a desk itself, about which nobody is told by messages."""
Asked = dict[str, str]
"""A message to be, as a journal keeps it: role, kind and text."""
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


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to do. reason: why it is escalated, if not for its kind. delay_s: for `wait`."""

    kind: Literal["recover", "wait", "escalate"]
    strategy: model.RecoveryStrategy
    reason: str = ""
    delay_s: float = 0.0


_LATER = (model.RecoveryStrategy.RETRY, model.RecoveryStrategy.WAIT_AND_RETRY)
"""Strategies that wait before their first attempt; the others wait before the second."""
_FALLBACK, _MANUAL = model.RecoveryStrategy.FALLBACK, model.RecoveryStrategy.MANUAL


def decide(
    incident: Incident,
    errors: int,
    threshold: model.Threshold,
    retries: model.Retries,
    hooks: model.Hooks,
) -> Plan:
    """Fall back if it is critical, recover if it may be retried, else ask a person.

    errors: the number seen in the threshold's scope and window.
    """
    strategy = incident.strategy
    if incident.level is Level.CRITICAL or strategy is _FALLBACK:
        return Plan(kind="recover" if hooks.fallback else "escalate", strategy=_FALLBACK)
    reason = _reason_to_ask(incident, errors, threshold, hooks)
    if reason is not None:
        return Plan(kind="escalate", strategy=_MANUAL, reason=reason)
    if incident.status is model.Status.DETECTED:
        delay = _first_delay(incident, retries)
        if delay > 0:
            return Plan(kind="wait", strategy=strategy, delay_s=delay)
    return Plan(kind="recover", strategy=strategy)


def _reason_to_ask(
    incident: Incident, errors: int, threshold: model.Threshold, hooks: model.Hooks
) -> str | None:
    """Return why a person is asked, empty if for the kind of failure; None if nobody is."""
    if not incident.retryable or incident.strategy is _MANUAL:
        return ""
    if errors > threshold.errors:
        return f"{errors} errors within {threshold.window_s:g} s are more than {threshold.errors}"
    if incident.attempt >= incident.max_retries:
        times = "retry" if incident.max_retries == 1 else "retries"
        return f"{incident.max_retries} {times} did not help"
    if hooks.of(incident.strategy) is None:
        return f"no hook carries out {incident.strategy}"
    return None


def _first_delay(incident: Incident, retries: model.Retries) -> float:
    """Seconds before the first attempt at one occurrence of the failure."""
    if incident.strategy is model.RecoveryStrategy.WAIT_AND_RETRY:
        return max(retries.wait_s, incident.retry_after_s or 0.0)
    if incident.strategy is model.RecoveryStrategy.RETRY:
        return retries.backoff.delay(incident.attempt + 1, retry_after_s=incident.retry_after_s)
    return retries.backoff.delay(incident.attempt) if incident.attempt else 0.0


def next_delay(incident: Incident, retries: model.Retries) -> float:
    """Seconds before another attempt, after one that failed."""
    if incident.strategy is model.RecoveryStrategy.WAIT_AND_RETRY:
        return max(retries.wait_s, incident.retry_after_s or 0.0)
    number = incident.attempt + (incident.strategy in _LATER)
    return retries.backoff.delay(max(1, number), retry_after_s=incident.retry_after_s)


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What a hook is given.

    strategy: what to do. attempt: from 1. key: the same for all attempts at one occurrence of the failure;
    use it as an idempotency key. timeout_s: seconds the agent has from now on, None if unknown. task: None
    for an unknown task.
    """

    incident: Incident
    strategy: model.RecoveryStrategy
    attempt: int
    key: str
    timeout_s: float | None
    task: model.TaskRecord | None


def action_of(strategy: model.RecoveryStrategy) -> str:
    """The name of a strategy in the desk's JSON."""
    return model.RECOVERY_ACTION.get(strategy, str(strategy))


def retry_of(incident: Incident) -> str:
    """Which of its retries an incident is at; a person may order more than it has."""
    most = f" of {incident.max_retries}" if incident.attempt <= incident.max_retries else ""
    return f"(retry {incident.attempt}{most})"


def place_of(incident: Incident) -> str:
    """What an incident is about: its task, run or agent."""
    return incident.task_id or incident.run_id or incident.agent_id or incident.error_id


def first_line(text: str) -> str:
    """The first line of a text, of at most 160 characters."""
    line = " ".join(text.partition("\n")[0].split())
    return line if len(line) <= 160 else f"{line[:159]}…"


def escalation_text(incident: Incident, reason: str = "") -> str:
    """What the role that an incident is escalated to is told."""
    play = PLAYS.get(incident.cause or "")
    title = first_line(incident.message) if play is None or not play.title else play.title
    need = "manual review" if play is None else play.need
    return f"{title} in {place_of(incident)} requires {need}{reason and f': {reason}'}"


@dataclass(frozen=True, kw_only=True)
class HookOutcome:
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


# Entries ------------------------------------------------------------------------------------------

ON_DETECTION = (Level.CRITICAL, Level.HIGH)
"""Levels whose roles are told on detection; for lower ones, when something is done."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The part of a desk's configuration that decides about incidents."""

    owner: str
    threshold: model.Threshold
    retries: model.Retries
    notifications: model.NotificationPolicy


@dataclass(frozen=True, kw_only=True)
class Begun:
    """What was decided and written. recovery: for the hook, None if no hook runs."""

    incident: Incident
    plan: Plan
    recovery: Recovery | None = None
    told: int = 0
    by_person: bool = False


def sighting(
    before: Incident | None,
    draft: Incident,
    failure: model.Failure,
    key: str,
    rules: Rules,
    now: float,
) -> Entry:
    """Make the entry of a failure. before: the newest incident of its kind, None for none.

    A failure belongs to an open incident, and reopens one that was recovered within the threshold's window.
    """
    if before is not None and not before.closed:
        agent_id = draft.agent_id or before.agent_id
        return entry_of(
            before,
            "seen again",
            by=rules.owner,
            now=now,
            text=draft.message,
            key=key,
            agent_id=agent_id,
        )
    border = now - rules.threshold.window_s
    if (
        before is not None
        and before.status is model.Status.RECOVERED
        and (before.resolved_at or 0.0) > border
    ):
        agent_id = draft.agent_id or before.agent_id
        asked = _detected(before, rules)
        return entry_of(
            before, "reopened", by=rules.owner, now=now, text=draft.message, key=key, asked=asked,
            agent_id=agent_id,
        )  # fmt: skip
    occurrence = 1 if before is None else before.occurrence + 1
    found = replace(
        draft,
        error_id=model.error_id_of(draft.fingerprint, occurrence),
        occurrence=occurrence,
        first_seen=now if failure.at is None else min(now, failure.at),
    )
    asked = _detected(found, rules)
    return entry_of(
        None,
        "detected",
        by=rules.owner,
        now=now,
        text=found.message,
        draft=found,
        key=key,
        asked=asked,
    )


def _detected(incident: Incident, rules: Rules) -> list[Asked]:
    if incident.level not in ON_DETECTION or incident.source == DESK:
        return []
    roles = rules.notifications.roles.get(incident.level, ())
    text = f"{incident.level} incident {incident.error_id}: {first_line(incident.message)}"
    return [{"role": role, "kind": "detected", "text": text} for role in roles]


def _to_medium(incident: Incident, rules: Rules, kind: str, text: str) -> list[Asked]:
    """Tell the roles of a medium incident what the desk does by itself."""
    if incident.level is not Level.MEDIUM:
        return []
    roles = rules.notifications.roles.get(incident.level, ())
    return [{"role": role, "kind": kind, "text": f"{incident.error_id}: {text}"} for role in roles]


def postponed(
    incident: Incident, rules: Rules, now: float, delay_s: float, reason: str = "", **values: Any
) -> Entry:
    """Make the entry of an attempt that is made later."""
    action = values.get("recovery_action")
    asked: list[Asked] = []
    if action is not None:
        text = f"{action} for {place_of(incident)} in {delay_s:g} s"
        asked = _to_medium(incident, rules, "handling", text)
    return entry_of(
        incident, "postponed", by=rules.owner, now=now, next_attempt_at=now + delay_s, asked=asked,
        text=f"{reason and f'{reason}; '}tried again in {delay_s:g} s", **values,
    )  # fmt: skip


def recovering(incident: Incident, plan: Plan, rules: Rules, by: str, now: float) -> Entry:
    """Make the entry of a recovery that begins."""
    attempt, action = incident.attempt + 1, action_of(plan.strategy)
    retry = retry_of(replace(incident, attempt=attempt))
    asked = _to_medium(incident, rules, "handling", f"{action} for {place_of(incident)} {retry}")
    return entry_of(
        incident, "recovering", by=by, now=now, text=f"{plan.strategy}, attempt {attempt}", asked=asked,
        owner=rules.owner, strategy=plan.strategy, recovery_action=action, max_retries=incident.max_retries,
    )  # fmt: skip


def escalated(
    incident: Incident, rules: Rules, by: str, now: float, *, role: str | None = None, reason: str = "",
    **values: Any,
) -> Entry:  # fmt: skip
    """Make the entry of an escalation to a role, None for the first of the incident's level."""
    chosen = rules.notifications.start(incident.level) if role is None else role
    seconds = rules.notifications.ack_s.get(incident.level)
    text = escalation_text(incident, reason)
    asked = [{"role": chosen, "kind": "escalated", "text": text}]
    return entry_of(
        incident, "escalated", by=by, now=now, text=f"to {chosen}: {text}",
        asked=[] if incident.source == DESK else asked, escalation_level=chosen,
        ack_due=None if seconds is None else now + seconds, **values,
    )  # fmt: skip


def unheard(incident: Incident, rules: Rules, now: float) -> Entry:
    """Make the entry of an escalation that nobody has acknowledged: it goes to the next role."""
    role = rules.notifications.after(incident.escalation_level or "")
    if role is None:
        text = "nobody acknowledged it, and the chain ends"
        return entry_of(incident, "unheard", by=rules.owner, now=now, text=text, ack_due=None)
    reason = f"{incident.escalation_level} did not acknowledge it"
    return escalated(incident, rules, rules.owner, now, role=role, reason=reason)


def ended(
    incident: Incident,
    begun: Begun,
    outcome: HookOutcome,
    rules: Rules,
    hooks: model.Hooks,
    now: float,
) -> Entry:
    """Make the entry of how a recovery ended."""
    strategy = begun.plan.strategy
    if strategy is _FALLBACK:
        reason = "" if outcome.ok else f"the fallback failed: {outcome.error}"
        return escalated(incident, rules, rules.owner, now, reason=reason)
    if outcome.ok:
        kind = "Task" if incident.task_id is not None else "Run" if incident.run_id else "Agent"
        text = f"{kind} resumed {retry_of(incident)}"
        asked = _to_medium(incident, rules, "recovered", f"{text}, {place_of(incident)}")
        return entry_of(
            incident, "recovered", by=rules.owner, now=now, text=text, asked=asked,
            new_agent_id=outcome.new_agent_id,
        )  # fmt: skip
    said = f"{strategy} failed: {outcome.error}"
    if outcome.doubt and hooks.on_in_doubt == "escalate":
        said = f"{outcome.error}; whether it has happened is not known"
    elif outcome.stopped:  # for the next desk, at once; the attempt does not count
        text = "the desk was stopped"
        return entry_of(
            incident, "given back", by=rules.owner, now=now, text=text, next_attempt_at=now
        )
    elif incident.attempt >= incident.max_retries and not begun.by_person and not outcome.final:
        times = f"{incident.attempt} of {incident.max_retries}"
        said = f"{times} retries failed, the last: {outcome.error}"
    elif not begun.by_person and not outcome.final:
        return postponed(incident, rules, now, next_delay(incident, rules.retries), said)
    return escalated(incident, rules, rules.owner, now, reason=said)


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


async def run_hook(hook: model.Hook, recovery: Recovery, deadline_s: float) -> HookOutcome:
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

    async def recover_run(recovery: Recovery) -> bool | None:
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
