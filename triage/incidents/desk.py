"""`IncidentDesk`: failures as operations sees them, and what is done about them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from triage._env import SYSTEM, Environment
from triage._options import check_count, check_number, check_word, misuse
from triage.classifiers import Classifier
from triage.redact import Redactor
from triage.stores import Store, open_store

from . import _acting as acting
from . import _json as answers
from . import _outbox as outbox
from . import _pruning as pruning
from . import _rows as rows
from ._asking import invoke
from ._lanes import lanes_of
from ._model import CLOSED, Incident, LogEntry, Message, RecoveryStrategy, Status
from ._reporting import Reporting
from ._rounds import ELSE, Rounds
from ._seeing import Judge, Rules
from ._settings import Hooks, NotificationPolicy, Retries, Threshold, Watch, expect
from ._texts import check_id, number_of
from .lifecycle import Lifecycle
from .sinks import LogSink, Sink

OUTCOMES = tuple(sorted(str(status) for status in CLOSED))


class IncidentDesk(Rounds, Reporting):
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
        self._hooks = _given("hooks", hooks, Hooks)
        self._watch = _given("watch", watch, Watch)
        self._sources = _sources(sources)
        if owner is None:
            owner = f"desk-{self._env.new_id()[:12]}"
        self._rules = Rules(
            check_id("IncidentDesk.owner", owner),
            _given("threshold", threshold, Threshold),
            _given("retries", retries, Retries),
            _given("notifications", notifications, NotificationPolicy),
        )
        self._sinks = _sinks(sinks)
        hides = Redactor() if redactor is None else redactor
        expect("IncidentDesk.redactor", hides, Redactor)
        self._judge = Judge(_classifier(classifier), hides, self._rules.retries)

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

    async def handle(self, error_id: str) -> dict[str, Any]:
        """Do what the rules say about one incident: recover, try later, fall back, or escalate.

        The JSON of the operation; `success` is False, with the key `error`, where a hook failed.
        """
        begun, outcome = await self._carried_out(number_of(error_id), None, None)
        error = "" if outcome is None or outcome.ok else outcome.error
        return answers.handled(begun, error, await self._now())

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
        number = await self._lanes.read(lambda db: acting.number_of_task(db, task))
        _, outcome = await self._carried_out(number, chosen, by)
        error = "" if outcome is None or outcome.ok else outcome.error
        new = None if outcome is None else outcome.new_agent_id
        return answers.recovered(task, chosen, new, error, await self._now())

    async def escalate(self, error_id: str, level: str, *, by: str | None = None) -> dict[str, Any]:
        """Hand an incident to a role, with a message in the same commit. level: a role that is known."""
        number = number_of(error_id)
        known = tuple(dict.fromkeys((*self._rules.notifications.known, *self._sinks)))
        check_word("level", level, tuple(role for role in known if role != ELSE))
        who = self.owner if by is None else check_id("by", by)
        incident, told = await self._lanes.write(
            lambda db: acting.escalate_by_order(db, self._rules, number, level, who)
        )
        return answers.escalated(incident, told, await self._now())

    async def acknowledge(self, error_id: str, *, by: str, note: str = "") -> dict[str, Any]:
        """Say that somebody has it: no further role is told."""
        number, who, text = number_of(error_id), check_id("by", by), self._note(note)
        incident = await self._lanes.write(lambda db: acting.acknowledge(db, number, who, text))
        return answers.closed(incident, "acknowledge", await self._now())

    async def resolve(
        self, error_id: str, *, by: str, outcome: str = "recovered", note: str = ""
    ) -> dict[str, Any]:
        """Bring an incident to its end. outcome: `recovered`, `failed` or `ignored`."""
        number, who, text = number_of(error_id), check_id("by", by), self._note(note)
        check_word("outcome", outcome, OUTCOMES)
        incident = await self._lanes.write(lambda db: acting.close(db, number, outcome, who, text))
        return answers.closed(incident, "resolve", await self._now())

    async def invoke(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """An operation from its parameters: ACTION, with ERROR_ID, TASK_ID and so on where it needs them.

        Raises UsageError for a parameter that is missing, not known, or wrong.
        """
        return await invoke(self, parameters)

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
        statement = f"SELECT {rows.LOG} FROM incident_log {where}ORDER BY id DESC LIMIT :most"  # noqa: S608
        values = {"id": number, "most": limit}
        found = await self._lanes.read(lambda db: db.rows(statement, values))
        return [rows.log_of(row) for row in reversed(found)]

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
        statement = f"SELECT {rows.MESSAGE} FROM messages {where}ORDER BY id DESC LIMIT :most"  # noqa: S608
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
            count = await self._lanes.read(partial(pruning.prunable, older_than=older_than))
            return pruning.Pruned(count)._asdict()
        prune_some = partial(pruning.prune_some, older_than=older_than)
        removed = some = await self._lanes.write(prune_some)
        while some.incidents:
            some = await self._lanes.write(prune_some)
            removed = removed.and_(some)
        rest = await self._lanes.write(partial(pruning.prune_rest, older_than=older_than))
        return removed.and_(rest)._asdict()

    async def close(self) -> None:
        """Let go of connections and threads; a desk that is used again opens again."""
        await self._lanes.close()

    # Inside ---------------------------------------------------------------------------------------

    async def _now(self) -> float:
        return await self._lanes.read(lambda db: db.now)

    def _note(self, note: object) -> str:
        if not isinstance(note, str):
            raise misuse("note", note, "text")
        return self._judge.text(note)


def _given(name: str, value: Any, kind: Callable[..., Any]) -> Any:
    if value is None:
        return kind()
    expect(f"IncidentDesk.{name}", value, cast("type", kind))
    return value


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
