"""`IncidentDesk`: failures as operations sees them, and what is done about them."""

from __future__ import annotations

import copy
import inspect
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import anyio
import anyio.lowlevel

from triage.classifiers import Classifier
from triage.core import (
    SYSTEM,
    Environment,
    Event,
    Redactor,
    StoreError,
    UsageError,
    capture,
    check_count,
    check_number,
    check_word,
    logger,
    misuse,
    nearest,
)
from triage.stores import MemoryStore, Store, open_store

from . import agents, handling
from . import database as rows
from . import notifications as outbox
from .database import Db, lanes_of
from .detection import (
    RUNS,
    TAIL,
    FoundRun,
    Judge,
    Rules,
    is_known,
    of_journal,
    of_listing,
    of_runs,
    own_tables,
    see,
    see_all,
)
from .handling import action_of, call, error_line, message_for, run_hook
from .lifecycle import Lifecycle
from .model import (
    CLOSED,
    MAX_FILES,
    MAX_MESSAGE,
    AgentRecord,
    Hooks,
    Incident,
    IncidentError,
    LogEntry,
    Message,
    NotificationPolicy,
    OutcomeLost,
    RecoveryStrategy,
    Retries,
    Sighting,
    Status,
    TaskRecord,
    Threshold,
    Watch,
    check_id,
    clean,
    expect,
    iso,
    number_of,
)
from .notifications import LogSink, Sink

_DONE = {
    RecoveryStrategy.RESTART: "Agent restarted to recover from error",
    RecoveryStrategy.RETRY: "Task retried to recover from error",
    RecoveryStrategy.INCREASE_TIMEOUT: "Timeout increased and agent restarted to recover from error",
    RecoveryStrategy.WAIT_AND_RETRY: "Task retried after waiting to recover from error",
    RecoveryStrategy.CLEAR_CACHE: "Cache cleared to recover from error",
    RecoveryStrategy.FALLBACK: "Task marked as failed, another way is needed",
    RecoveryStrategy.MANUAL: "Handed over for manual intervention",
    RecoveryStrategy.CUSTOM: "Custom recovery carried out",
}


T = TypeVar("T")
ELSE = "*"
"""The sink of roles that have none of their own."""
BEATS = 3
"""How often a lease is renewed while it lasts."""

SHOWN = 100
"""Incidents that `detect` lists by default."""
AT_ONCE = 100
"""Failures written in one commit: others may write in between."""

_NEEDS = {
    "detect": (),
    "handle": ("ERROR_ID",),
    "recover": ("TASK_ID", "RECOVERY_STRATEGY"),
    "escalate": ("ERROR_ID", "ESCALATION_LEVEL"),
}
_ALWAYS = ("ACTION", "ERROR_THRESHOLD", "RETRY_MAX", "ORCHESTRATOR_INSTANCE_ID")
OUTCOMES = tuple(sorted(str(status) for status in CLOSED))


class IncidentDesk:
    """Detects, handles, recovers and escalates failures, in the database of a store's runs.

    store: as an agent's: text, or a store in SQLite or Postgres; None and a memory store keep incidents
    in memory. owner: names this desk in leases and in the log; made up by default. hooks: what carries
    strategies out. sources: tables of somebody else that failures are read from. threshold, retries,
    watch, notifications: when, how often, what and whom. sinks: by role, `"*"` for all others; the log by
    default. classifier: a synchronous one; triage's rules, with those for operational texts, by default.
    redactor: hides secrets in what is kept; None for `Redactor()`. environment: clock, ids and chance.

    Any number of desks may work on one store: each move is a compare-and-set, each recovery has a lease on
    the store's clock, so no incident is recovered twice. All methods may be used under asyncio and trio.
    They raise UsageError for wrong arguments, UnknownIncident, IncidentBusy and IncidentClosed for what
    cannot be done with an incident, and StoreError for a store that fails; nothing is changed then.
    """

    def __init__(  # noqa: PLR0913 - the options of a desk, grouped in values as far as they belong together
        self,
        store: Store | str | None = None,
        *,
        owner: str | None = None,
        hooks: Hooks | None = None,
        sources: Sequence[Lifecycle] = (),
        threshold: Threshold | None = None,
        retries: Retries | None = None,
        watch: Watch | None = None,
        notifications: NotificationPolicy | None = None,
        sinks: Mapping[str, Sink] | None = None,
        classifier: Classifier | None = None,
        redactor: Redactor | None = None,
        environment: Environment | None = None,
    ) -> None:
        self._env: Environment = SYSTEM if environment is None else environment
        self._store = open_store(store)
        self._lanes = lanes_of(self._store, self._env.time)
        self._hooks = Hooks() if hooks is None else hooks
        self._watch = Watch() if watch is None else watch
        self._sources = _sources(sources)
        if owner is None:
            owner = f"desk-{self._env.new_id()[:12]}"
        self._rules = Rules(
            owner=check_id("IncidentDesk.owner", owner),
            threshold=Threshold() if threshold is None else threshold,
            retries=Retries() if retries is None else retries,
            notifications=NotificationPolicy() if notifications is None else notifications,
        )
        self._sinks = _sinks(sinks)
        self._retry_max: int | None = None
        self._judge = Judge(
            classifier=_classifier(classifier),
            redactor=Redactor() if redactor is None else redactor,
            retries=self._rules.retries,
        )
        expect("IncidentDesk.hooks", self._hooks, Hooks)
        expect("IncidentDesk.watch", self._watch, Watch)
        expect("IncidentDesk.threshold", self._rules.threshold, Threshold)
        expect("IncidentDesk.retries", self._rules.retries, Retries)
        expect("IncidentDesk.notifications", self._rules.notifications, NotificationPolicy)
        expect("IncidentDesk.redactor", self._judge.redactor, Redactor)

    def __repr__(self) -> str:
        return f"<IncidentDesk {self._rules.owner} on {self._store!r}>"

    @property
    def owner(self) -> str:
        """What this desk is called."""
        return self._rules.owner

    @property
    def store(self) -> Store:
        """Where the runs are."""
        return self._store

    # The four operations --------------------------------------------------------------------------

    async def detect(self, *, full: bool = False, limit: int = SHOWN) -> dict[str, Any]:
        """Find what has failed since the last look, and list what nobody has handled yet, oldest first.

        Done again, it finds nothing twice: a failure belongs to one incident, however often it is seen.
        full: read all of every source again, not only what is new; for rows that were written very late.
        limit: incidents listed at most, the newest; `errors_found` counts all that wait.
        """
        check_count("limit", limit, 1)
        while await self.look(full=full):
            continue

        def unhandled(db: Db) -> tuple[int, list[Incident]]:
            row = db.one("SELECT count(*) FROM incidents WHERE status = 'detected'")
            order = "last_seen DESC, id DESC"
            found = rows.find(db, "status = 'detected'", {}, order=order, limit=limit)
            return (0 if row is None else int(row[0])), found[::-1]

        count, incidents = await self._lanes.read(unhandled)
        return {
            "success": True,
            "action": "detect",
            "errors_found": count,
            "errors": [
                {
                    "error_id": one.error_id,
                    "agent_id": one.agent_id,
                    "task_id": one.task_id,
                    "error_message": one.message,
                    "severity": str(one.level),
                    "retryable": one.retryable,
                    "timestamp": iso(one.first_seen),
                }
                for one in incidents
            ],
        }

    async def handle(self, error_id: str) -> dict[str, Any]:
        """Do what the rules say about one incident: recover, try later, fall back, or escalate.

        The JSON of the operation; `success` is False, with the key `error`, where a hook failed.
        """
        begun, outcome = await self._carried_out(number_of(error_id), None, None)
        error = "" if outcome is None or outcome.ok else outcome.error
        one = begun.incident
        scheduled = begun.plan.kind == "wait"
        answer: dict[str, Any] = {
            "success": not error,
            "action": "handle",
            "error_id": one.error_id,
            "error_message": one.message,
            "severity": str(one.level),
            "recovery_action": one.recovery_action or action_of(begun.plan.strategy),
            "details": {
                "agent_id": one.agent_id,
                "task_id": one.task_id,
                "retry_attempt": one.attempt + scheduled,
                "max_retries": one.max_retries,
                "message_sent": begun.told > 0,
                "timestamp": iso(await self._now()),
            },
        }
        if begun.plan.strategy is RecoveryStrategy.FALLBACK:
            answer["details"]["suggested_alternative"] = one.alternative
        return {**answer, "error": error} if error else answer

    async def recover(self, task: str, strategy: str, *, by: str | None = None) -> dict[str, Any]:
        """Carry a strategy out for the newest open incident of a task or run, as somebody has ordered.

        strategy: one of `RecoveryStrategy`. It is done whatever the threshold says, and counts as an
        attempt. by: who ordered it, for the log. Raises UsageError where no hook carries it out, and
        UnknownIncident where nothing of the task is open.
        """
        task = check_id("task", task)
        check_word("strategy", strategy, tuple(map(str, RecoveryStrategy)))
        chosen = RecoveryStrategy(strategy)
        free = (RecoveryStrategy.MANUAL, RecoveryStrategy.FALLBACK)
        if chosen not in free and self._hooks.of(chosen) is None:
            raise misuse(
                "strategy", strategy, "one that a hook carries out", f"give Hooks({chosen}=…)"
            )
        number = await self._lanes.read(lambda db: handling.number_of_task(db, task))
        _, outcome = await self._carried_out(number, chosen, by)
        error = "" if outcome is None or outcome.ok else outcome.error
        return {
            "success": not error,
            "action": "recover",
            "task_id": task,
            "recovery_strategy": str(chosen),
            "new_agent_id": None if outcome is None else outcome.new_agent_id,
            "recovery_timestamp": iso(await self._now()),
            "message": f"Recovery failed: {error}" if error else _DONE[chosen],
        }

    async def escalate(self, error_id: str, level: str, *, by: str | None = None) -> dict[str, Any]:
        """Hand an incident to a role, with a message in the same commit. level: a role that is known."""
        number = number_of(error_id)
        known = tuple(dict.fromkeys((*self._rules.notifications.known, *self._sinks)))
        check_word("level", level, tuple(role for role in known if role != ELSE))
        who = self.owner if by is None else check_id("by", by)
        one, told = await self._lanes.write(
            lambda db: handling.escalate_by_order(db, self._rules, number, level, who)
        )
        return {
            "success": True,
            "action": "escalate",
            "error_id": one.error_id,
            "escalation_level": one.escalation_level,
            "escalation_message": message_for(one),
            "details": {
                "agent_id": one.agent_id,
                "task_id": one.task_id,
                "severity": str(one.level),
                "files_affected": list(one.files),
                "message_sent": told > 0,
                "timestamp": iso(await self._now()),
            },
        }

    async def acknowledge(self, error_id: str, *, by: str, note: str = "") -> dict[str, Any]:
        """Say that somebody has it: no further role is told."""
        number, who, text = number_of(error_id), check_id("by", by), self._note(note)
        incident = await self._lanes.write(lambda db: handling.acknowledge(db, number, who, text))
        return await self._status_answer("acknowledge", incident)

    async def resolve(
        self, error_id: str, *, by: str, outcome: str = "recovered", note: str = ""
    ) -> dict[str, Any]:
        """Bring an incident to its end. outcome: `recovered`, `failed` or `ignored`."""
        number, who, text = number_of(error_id), check_id("by", by), self._note(note)
        check_word("outcome", outcome, OUTCOMES)
        incident = await self._lanes.write(
            lambda db: handling.close(db, number, outcome, who, text)
        )
        return await self._status_answer("resolve", incident)

    async def invoke(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """An operation from its parameters: ACTION, with ERROR_ID, TASK_ID and so on where it needs them.

        ERROR_THRESHOLD and RETRY_MAX hold for this operation in place of `Threshold.errors` and
        `Retries.most`; an incident that it finds or handles keeps RETRY_MAX.
        ORCHESTRATOR_INSTANCE_ID may be given, and must be the desk's owner.

        Raises UsageError for a parameter that is missing, not known to the action, or wrong.
        """
        if not isinstance(parameters, Mapping):
            raise misuse("parameters", parameters, "a mapping")
        action = parameters.get("ACTION")
        check_word("ACTION", action, tuple(_NEEDS))
        needs = _NEEDS[str(action)]
        for name in needs:
            if name not in parameters:
                raise UsageError(f"{action} needs the parameter {name}")
        for name in parameters:
            if name not in (*_ALWAYS, *needs):
                guess = nearest(str(name), (*_ALWAYS, *needs))
                raise UsageError(f"{action} knows no parameter {name!r}{guess and f'; {guess}'}")
        owner = parameters.get("ORCHESTRATOR_INSTANCE_ID", self.owner)
        if owner != self.owner:
            raise misuse("ORCHESTRATOR_INSTANCE_ID", owner, f"the desk's owner, {self.owner}")
        desk = self.limited(parameters.get("ERROR_THRESHOLD"), parameters.get("RETRY_MAX"))
        operations: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
            "detect": desk.detect,
            "handle": desk.handle,
            "recover": desk.recover,
            "escalate": desk.escalate,
        }
        return await operations[str(action)](*(parameters[name] for name in needs))

    def limited(
        self, error_threshold: int | None = None, retry_max: int | None = None
    ) -> IncidentDesk:
        """The same desk, on the same connections, with other limits; None leaves one as it is.

        error_threshold: in place of `Threshold.errors`. retry_max: in place of `Retries.most`; no cause
        has more, and an incident that this desk finds or handles keeps it. Raises UsageError.
        """
        rules, judge = self._rules, self._judge
        if error_threshold is not None:
            check_count("ERROR_THRESHOLD", error_threshold, 1)
            rules = rules._replace(threshold=replace(rules.threshold, errors=error_threshold))
        if retry_max is not None:
            check_count("RETRY_MAX", retry_max, 0)
            by_cause = {cause: min(n, retry_max) for cause, n in rules.retries.by_cause.items()}
            retries = replace(rules.retries, most=retry_max, by_cause=by_cause)
            rules, judge = rules._replace(retries=retries), judge._replace(retries=retries)
        desk = copy.copy(self)
        desk._rules, desk._judge = rules, judge
        desk._retry_max = self._retry_max if retry_max is None else retry_max
        return desk

    # What other systems tell ------------------------------------------------------------------------

    async def report(
        self,
        message: str = "",
        *,
        error: BaseException | None = None,
        agent_id: str | None = None,
        agent_type: str = "",
        task_id: str | None = None,
        run_id: str | None = None,
        stack_trace: str | None = None,
        files: Iterable[str] = (),
        key: str | None = None,
    ) -> Incident:
        """A failure of another system; its incident.

        message: what went wrong; may be left out where `error`, an exception, is given. agent_id,
        agent_type, task_id, run_id: whose. stack_trace: the error's own by default. files: those that are
        affected, beside the ones the message names. key: names this failure; reported again under it,
        it is the same one, None for a new one each time.

        Raises UsageError for a report that says nothing or is malformed.
        """
        if not isinstance(message, str):
            raise misuse("report.message", message, "text")
        if error is not None and not isinstance(error, BaseException):
            raise misuse("report.error", error, "an exception or None")
        if not message.strip() and error is None:
            raise UsageError("report.message must say what went wrong, or give error=")
        if not isinstance(agent_type, str):
            raise misuse("report.agent_type", agent_type, "text")
        for name, value in (("agent_id", agent_id), ("task_id", task_id), ("run_id", run_id)):
            if value is not None:
                check_id(f"report.{name}", value)
        if stack_trace is not None and not isinstance(stack_trace, str):
            raise misuse("report.stack_trace", stack_trace, "text or None")
        info = None if error is None else capture(error)
        sighting = Sighting(
            source="reports",
            key=self._env.new_token() if key is None else check_id("report.key", key),
            message=message.strip() or str(info),
            agent_id=agent_id,
            agent_type=agent_type,
            task_id=task_id,
            run_id=run_id,
            scope=agent_id,
            trace=stack_trace,
            files=_paths("report.files", files)[:MAX_FILES],
            diagnosed=info,
        )

        def draft() -> Incident:
            trace = stack_trace
            if error is not None and trace is None:
                trace = "".join(traceback.format_exception(error))
            return self._judge.draft(sighting._replace(trace=trace))

        drafted = await anyio.to_thread.run_sync(draft)

        def write(db: Db) -> Incident:
            incident = see(db, self._rules, sighting, drafted)
            if incident is not None:
                return incident
            known = "SELECT incident FROM sightings WHERE source = 'reports' AND key = :key"
            row = db.one(known, {"key": sighting.key})
            return rows.load(db, int((row or (0,))[0]))

        return await self._lanes.write(write)

    # The lives of agents --------------------------------------------------------------------------

    async def agent_started(
        self,
        agent_id: str,
        agent_type: str,
        *,
        task_id: str | None = None,
        heartbeat_s: float | None = None,
        replaces: str | None = None,
    ) -> AgentRecord:
        """An agent lives. heartbeat_s: seconds within which it promises each sign of life, None for none.

        replaces: the agent it was started in place of. Told twice, it is the same agent. Raises
        UsageError for an id that another agent has.
        """
        check_id("agent_id", agent_id)
        check_id("agent_type", agent_type)
        if task_id is not None:
            check_id("task_id", task_id)
        if heartbeat_s is not None:
            check_number("heartbeat_s", heartbeat_s, "seconds", above=True)
        return await self._lanes.write(
            lambda db: agents.start(
                db, agent_id, agent_type, task_id, heartbeat_s, replaces, self.owner
            )
        )

    async def heartbeat(self, agent_id: str) -> AgentRecord:
        """A sign of life; one that was taken for dead lives again.

        Raises UnknownIncident for an agent that is not known.
        """
        check_id("agent_id", agent_id)
        return await self._lanes.write(lambda db: agents.beat(db, agent_id, self.owner))

    async def agent_ended(
        self, agent_id: str, status: str = "done", message: str = ""
    ) -> AgentRecord:
        """An agent's end: `done`, or `failed`, `killed` or `timeout`, which the next look detects."""
        check_id("agent_id", agent_id)
        check_word("status", status, ("done", "failed", "killed", "timeout"))
        if not isinstance(message, str):
            raise misuse("message", message, "text")
        text = self._judge.text(message.strip())
        return await self._lanes.write(
            lambda db: agents.end(db, agent_id, status, text, self.owner)
        )

    async def agent(self, agent_id: str) -> AgentRecord | None:
        """What is known of an agent, None if nothing is."""
        check_id("agent_id", agent_id)
        return await self._lanes.read(lambda db: agents.agent(db, agent_id))

    async def put_task(
        self,
        task_id: str,
        *,
        title: str = "",
        status: str = "open",
        priority: int | None = None,
        estimated_hours: float | None = None,
        timeout_s: float | None = None,
        waits_for: Iterable[str] | None = None,
    ) -> TaskRecord:
        """Write down a task, as it is now. waits_for: other tasks; None leaves them as they were.

        Open tasks that wait for each other in a circle are a deadlock, which the next look detects.
        """
        check_id("task_id", task_id)
        check_word("status", status, ("open", "done", "failed"))
        if not isinstance(title, str):
            raise misuse("title", title, "text")
        if priority is not None:
            check_count("priority", priority, 0)
        if estimated_hours is not None:
            check_number("estimated_hours", estimated_hours, "hours")
        if timeout_s is not None:
            check_number("timeout_s", timeout_s, "seconds", above=True)
        waits = None
        if waits_for is not None:
            if isinstance(waits_for, str) or not isinstance(waits_for, Iterable):
                raise misuse("waits_for", waits_for, "a list of ids")
            waits = tuple(check_id("waits_for item", other) for other in waits_for)
        record = TaskRecord(
            task_id=task_id,
            title=clean(title, MAX_MESSAGE),
            status=status,
            priority=priority,
            estimated_hours=estimated_hours,
            timeout_s=timeout_s,
        )
        await self._lanes.write(lambda db: agents.put_task(db, record, waits))
        return record

    async def task(self, task_id: str) -> TaskRecord | None:
        """What is known of a task, None if nothing is."""
        check_id("task_id", task_id)
        return await self._lanes.read(lambda db: agents.task(db, task_id))

    # Rounds ---------------------------------------------------------------------------------------

    async def look(self, *, full: bool = False, limit: int = 1000) -> int:
        """Read every source once, at most so many failures of each; how many were new."""
        check_count("limit", limit, 1)
        sightings = await self._lanes.read(partial(own_tables, most=limit))
        found = await self._failed_runs(limit, full=full) if self._watch.runs else []
        sightings += [await self._of_run(run) for run in found]
        for source in self._sources:
            sightings += await self._lanes.read(
                partial(source.sightings, most=limit, full=full), before=source.prepare
            )
        new = 0
        for start in range(0, len(sightings), AT_ONCE):
            some = sightings[start : start + AT_ONCE]
            drafts = await anyio.to_thread.run_sync(self._judge.drafts, some)
            new += await self._lanes.write(partial(see_all, rules=self._rules, drafts=drafts))
        await self._lanes.write(
            partial(_mark, sources=self._sources, seen=sightings, all_runs=len(found) < limit)
        )
        return new

    async def _failed_runs(self, limit: int, *, full: bool) -> list[FoundRun]:
        watch = self._watch
        if not isinstance(self._store, MemoryStore):
            return await self._lanes.read(partial(of_runs, watch=watch, most=limit, full=full))
        infos = await self._store.runs()

        def unseen(db: Db) -> list[FoundRun]:
            found = of_listing(infos, watch, db.now)
            return [run for run in found if not is_known(db, RUNS, run.key)][:limit]

        return await self._lanes.read(unseen)

    async def _of_run(self, run: FoundRun) -> Sighting:
        """What the end of its journal says; one that cannot be read is a failure all the same."""
        events: list[Event] = []
        try:
            events = await self._store.read(run.run_id, after=max(-1, run.events - TAIL))
        except StoreError as error:
            logger.warning("incidents: the journal of run %s cannot be read: %s", run.run_id, error)
        return of_journal(run, events, await self._now())

    async def tick(self, *, limit: int = 1000, at_once: int = 10) -> dict[str, int]:
        """One round: detect, handle what is due, tell the next role of what nobody heard, deliver.

        limit: failures and messages taken up at most. at_once: hooks that may run at the same time.
        How many of each; what a single incident raises is logged and counted under `failed`.
        """
        check_count("at_once", at_once, 1)
        seen = await self.look(limit=limit)
        counted = {"detected": seen, "handled": 0, "failed": 0}
        limiter = anyio.CapacityLimiter(at_once)
        async with anyio.create_task_group() as group:
            for error_id in await self.due(limit=limit):
                group.start_soon(self._one_due, error_id, limiter, counted)
        unheard = await self.remind()
        return {**counted, "unheard": unheard, "delivered": await self.deliver(limit=limit)}

    async def _one_due(
        self, error_id: str, limiter: anyio.CapacityLimiter, counted: dict[str, int]
    ) -> None:
        async with limiter:
            try:
                _, outcome = await self._carried_out(number_of(error_id), None, None)
            except (StoreError, OutcomeLost) as error:
                # One error for the whole round comes from what it does next, if the store is gone.
                logger.warning("incidents: %s could not be handled: %s", error_id, error)
                counted["failed"] += 1
            except IncidentError:
                return  # another desk was faster
            else:
                counted["handled" if outcome is None or outcome.ok else "failed"] += 1

    async def due(self, *, limit: int = 1000) -> list[str]:
        """The ids of incidents that something is to be done about now: new ones, waiting ones whose time
        has come, and those a desk that died has left. In no order, so that two desks begin apart.
        """
        check_count("limit", limit, 1)
        numbers = await self._lanes.read(partial(handling.due, most=limit))
        return [f"err-{one:03d}" for one in sorted(numbers, key=lambda _: self._env.random())]

    async def remind(self) -> int:
        """Tell the next role of what nobody has acknowledged in time; how many."""
        return await self._lanes.write(partial(handling.remind, rules=self._rules))

    async def deliver(self, *, limit: int = 1000) -> int:
        """Give the messages that are due to their sinks; how many were taken. A sink never raises here."""
        check_count("limit", limit, 1)
        taken = await self._lanes.write(partial(outbox.take, rules=self._rules, most=limit))
        if not taken:
            return 0
        ended: list[outbox.Delivery] = []
        limiter = anyio.CapacityLimiter(outbox.AT_ONCE)
        unbegun = {message.id: message for message in taken}
        try:
            async with anyio.create_task_group() as group:
                for message in taken:
                    group.start_soon(self._one_message, message, limiter, unbegun, ended)
        finally:
            # Who is stopped in the middle writes down what was delivered, so that it is so once.
            settle = partial(
                outbox.settle,
                rules=self._rules,
                judge=self._judge,
                ended=ended,
                unbegun=list(unbegun.values()),
            )
            count = await self._surely(settle)
        return count

    async def _one_message(
        self,
        message: Message,
        limiter: anyio.CapacityLimiter,
        unbegun: dict[int, Message],
        ended: list[outbox.Delivery],
    ) -> None:
        sink = self._sinks.get(message.role, self._sinks[ELSE])
        async with limiter:
            del unbegun[message.id]
            try:
                await call(sink, message, self._rules.notifications.deadline_s)
            except Exception as error:  # it is written down, and is an incident of its own
                ended.append(outbox.Delivery(message, error_line(error)))
            else:
                ended.append(outbox.Delivery(message, None))

    # Looking --------------------------------------------------------------------------------------

    async def incident(self, error_id: str) -> Incident:
        """One incident."""
        number = number_of(error_id)
        return await self._lanes.read(lambda db: rows.load(db, number))

    async def incidents(self, status: str | None = None, *, limit: int = 100) -> list[Incident]:
        """Incidents, those seen last first: of a status, or all that are open."""
        check_count("limit", limit, 1)
        where, values = "resolved_at IS NULL", {}
        if status is not None:
            check_word("status", status, tuple(map(str, Status)))
            where, values = "status = :status", {"status": status}
        order = "last_seen DESC, id DESC"
        return await self._lanes.read(
            lambda db: rows.find(db, where, values, order=order, limit=limit)
        )

    async def log(self, error_id: str | None = None, *, limit: int = 1000) -> list[LogEntry]:
        """What was done, oldest first: about one incident, or the newest entries of all."""
        check_count("limit", limit, 1)
        number = None if error_id is None else number_of(error_id)
        where = "" if number is None else "WHERE incident = :id "
        statement = f"SELECT {rows.LOG} FROM incident_log {where}ORDER BY id DESC LIMIT :most"
        values = {"id": number, "most": limit}
        found = await self._lanes.read(lambda db: db.rows(statement, values))
        return [LogEntry._make(row) for row in reversed(found)]

    async def messages(
        self, status: str | None = None, *, of: str | None = None, limit: int = 100
    ) -> list[Message]:
        """Messages of the outbox, newest first. status: `pending`, `sent` or `failed`. of: an incident."""
        check_count("limit", limit, 1)
        if status is not None:
            check_word("status", status, ("pending", "sent", "failed"))
        given = {"status": status, "incident": None if of is None else number_of(of)}
        given = {name: value for name, value in given.items() if value is not None}
        where = " AND ".join(f"{name} = :{name}" for name in given)
        where = f"WHERE {where} " if where else ""
        statement = f"SELECT {rows.MESSAGE} FROM messages {where}ORDER BY id DESC LIMIT :most"
        values = {**given, "most": limit}
        found = await self._lanes.read(lambda db: db.rows(statement, values))
        return [rows.message_of(row) for row in found]

    async def stats(self) -> dict[str, Any]:
        """What there is, in numbers: incidents by status and severity, messages, agents."""
        return await self._lanes.read(outbox.counts)

    # Ending ---------------------------------------------------------------------------------------

    async def prune(self, *, older_than: float, dry_run: bool = False) -> dict[str, int]:
        """Remove incidents that ended so many seconds ago, with their log and messages; how many of each.

        Sent messages, ended agents and lines of the log that old go as well. What is open stays, and so
        does what has a message that waits. A failure that its source still shows is not found anew.
        dry_run: only counts the incidents.
        """
        check_number("prune.older_than", older_than, "seconds")
        if dry_run:
            count = await self._lanes.read(partial(rows.prunable, older_than=older_than))
            return rows.Pruned(count)._asdict()
        prune_some = partial(rows.prune_some, older_than=older_than)
        removed = some = await self._lanes.write(prune_some)
        while some.incidents:
            some = await self._lanes.write(prune_some)
            removed = removed.and_(some)
        rest = await self._lanes.write(partial(rows.prune_rest, older_than=older_than))
        return removed.and_(rest)._asdict()

    async def close(self) -> None:
        """Let go of connections and threads; a desk that is used again opens again."""
        await self._lanes.close()

    # One recovery ---------------------------------------------------------------------------------

    async def _carried_out(
        self, number: int, strategy: RecoveryStrategy | None, by: str | None
    ) -> tuple[handling.Begun, handling.HookOutcome | None]:
        """Begin, run the hook where there is one to run, and write down how it ended.

        Cancelled at any point, it gives back what it has begun before it ends.
        """
        who = None if by is None else check_id("by", by)
        order = handling.Order(self._env.new_token(), self._hooks, strategy, who, self._retry_max)
        begin = partial(handling.begin, rules=self._rules, order=order, number=number)
        begun = await self._surely(begin)
        if begun.recovery is None:
            return begun, None
        hook = self._hooks.of(begun.plan.strategy)
        assert hook is not None
        outcome = handling.STOPPED
        try:
            await anyio.lowlevel.checkpoint_if_cancelled()
            outcome = handling.CUT_OFF
            async with self._held(begun):
                outcome = await run_hook(hook, begun.recovery, self._hooks.deadline_s)
        finally:
            finish = partial(
                handling.finish, rules=self._rules, hooks=self._hooks, begun=begun, outcome=outcome
            )
            try:
                await self._surely(finish)
            except StoreError as error:
                did = f"{begun.incident.error_id}: {begun.plan.strategy}"
                raise OutcomeLost(f"{did} has run, how it ended is not kept: {error}") from error
        return begun, outcome

    async def _surely(self, work: Callable[[Db], T]) -> T:
        """Write it, and know the answer, although the caller is being cancelled."""
        found: list[T] = []
        with anyio.CancelScope(shield=True):
            found.append(await self._lanes.write(work))
        return found[0]

    @asynccontextmanager
    async def _held(self, begun: handling.Begun) -> AsyncGenerator[None]:
        """Keep the lease of a recovery; what is inside is stopped where another desk has taken it."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._renew, begun, group.cancel_scope)
            yield
            group.cancel_scope.cancel()

    async def _renew(self, begun: handling.Begun, scope: anyio.CancelScope) -> None:
        lease_s = self._hooks.lease_s
        renew = partial(handling.renew, begun=begun, lease_s=lease_s)
        while True:
            await anyio.sleep(lease_s / BEATS)
            try:
                kept = await self._lanes.write(renew)
            except StoreError as error:
                # Others may take it once the lease is over; that is found out when the store is back.
                logger.warning("incidents: a lease could not be renewed: %s", error)
                continue
            if not kept:
                scope.cancel()

    # Inside ---------------------------------------------------------------------------------------

    async def _status_answer(self, action: str, incident: Incident) -> dict[str, Any]:
        return {
            "success": True,
            "action": action,
            "error_id": incident.error_id,
            "status": str(incident.status),
            "timestamp": iso(await self._now()),
        }

    async def _now(self) -> float:
        return await self._lanes.read(lambda db: db.now)

    def _note(self, note: object) -> str:
        if not isinstance(note, str):
            raise misuse("note", note, "text")
        return self._judge.text(note)


_MARK = """
INSERT INTO cursors (source, mark) VALUES (:source, :mark)
ON CONFLICT (source) DO UPDATE SET mark = excluded.mark
WHERE CAST(excluded.mark AS double precision) > CAST(cursors.mark AS double precision)"""


def _mark(db: Db, sources: Iterable[Lifecycle], seen: list[Sighting], *, all_runs: bool) -> None:
    """Note how far each source has been read; never back, nor beyond now, whatever its clock says."""
    if all_runs:
        db.run(_MARK, {"source": RUNS, "mark": repr(db.now)})
    for source in sources:
        for word in source.failed:
            times = [
                one.at
                for one in seen
                if one.source == source.name and one.status == word and one.at is not None
            ]
            if times:
                db.run(
                    _MARK, {"source": source.cursor(word), "mark": repr(min(max(times), db.now))}
                )


def _paths(field: str, files: object) -> tuple[str, ...]:
    if isinstance(files, str) or not isinstance(files, Iterable):
        raise misuse(field, files, "a list of paths")
    paths = tuple(files)
    for path in paths:
        if not isinstance(path, str) or not path:
            raise misuse(f"{field} item", path, "text that is not empty")
    return paths


def _sources(sources: object) -> tuple[Lifecycle, ...]:
    if not isinstance(sources, Sequence) or isinstance(sources, str):
        raise misuse("IncidentDesk.sources", sources, "a list of Lifecycle")
    for source in sources:
        expect("IncidentDesk.sources item", source, Lifecycle)
    names = [source.name for source in sources]
    taken = {"runs", "agents", "tasks", "reports", "desk"}
    for at, name in enumerate(names):
        if name in taken or name in names[:at]:
            raise misuse(
                "IncidentDesk.sources", name, "tables of different names, none of them ours"
            )
    return tuple(sources)


def _sinks(sinks: object) -> dict[str, Sink]:
    if sinks is None:
        return {ELSE: LogSink()}
    if not isinstance(sinks, Mapping):
        raise misuse("IncidentDesk.sinks", sinks, "a mapping from roles to sinks")
    for role, sink in sinks.items():
        check_id("IncidentDesk.sinks key", role)
        if not callable(sink):
            raise misuse(f"IncidentDesk.sinks[{role!r}]", sink, "a function of one argument")
    return {ELSE: LogSink(), **sinks}


def _classifier(classifier: Any) -> Classifier | None:
    method = getattr(classifier, "classify", None)
    if classifier is None or (callable(method) and not inspect.iscoroutinefunction(method)):
        return cast("Classifier | None", classifier)
    raise misuse("IncidentDesk.classifier", classifier, "a synchronous classifier, or None")
