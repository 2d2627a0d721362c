"""Incidents as values: what is stored, what is configured, and the moves an incident may make."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import partial
from typing import Any, Literal, NamedTuple, cast

from triage.core.errors import TriageError, check_count, check_number, check_word, misuse
from triage.core.taxonomy import Cause, FailureType, Level, Severity
from triage.strategies.ready_made import Backoff


class Status(StrEnum):
    """The status of an incident.

    DETECTED: nothing has been done yet. WAITING: the next attempt is at `next_attempt_at`. RECOVERING:
    its owner runs a hook, under a lease. ESCALATED: a person was told. ACKNOWLEDGED: a person has taken
    it. RECOVERED, FAILED and IGNORED are final.
    """

    DETECTED = "detected"
    WAITING = "waiting"
    RECOVERING = "recovering"
    ESCALATED = "escalated"
    ACKNOWLEDGED = "acknowledged"
    RECOVERED = "recovered"
    FAILED = "failed"
    IGNORED = "ignored"


CLOSED = frozenset({Status.RECOVERED, Status.FAILED, Status.IGNORED})
"""The final statuses."""


class RecoveryStrategy(StrEnum):
    """What to do about an incident. A hook of the user carries out each of them but MANUAL."""

    RESTART = "restart"
    RETRY = "retry"
    INCREASE_TIMEOUT = "increase_timeout"
    WAIT_AND_RETRY = "wait_and_retry"
    CLEAR_CACHE = "clear_cache"
    FALLBACK = "fallback"
    MANUAL = "manual"
    CUSTOM = "custom"


RECOVERY_ACTION: dict[RecoveryStrategy, str] = {
    RecoveryStrategy.RESTART: "auto_restart",
    RecoveryStrategy.RETRY: "auto_retry",
    RecoveryStrategy.MANUAL: "manual_intervention",
}
"""Names of strategies in the desk's JSON, where they differ."""


class Incident(NamedTuple):
    """A failure as operations sees it. The fields are the columns of its row.

    id: its number; people and programs use `error_id`. fingerprint: the same for all failures of one kind
    in one task, run or line of agents. source: who found it: `runs`, `agents`, `tasks`, `reports`, `desk`,
    or the table it was read from. agent_type: the type of the agent; for a run, the agent's name. cause:
    the finer name, None if unknown. action: the recommended action, as a word. strategy: what carries it
    out. alternative: another way to get the task done, in a sentence. attempt: recoveries begun.
    escalation_level: the role that was told last. ack_due: when the next role is told, unless somebody
    acknowledges. owner, lease_until: who is recovering it, and until when nobody else may. stamp: names
    the call that claimed it. version: rises with each change. Times are seconds since the epoch on the
    store's clock, None where something has not happened.
    """

    id: int
    fingerprint: str
    source: str
    agent_id: str | None
    agent_type: str
    task_id: str | None
    run_id: str | None
    message: str
    failure_type: FailureType
    cause: str | None
    severity: Severity
    level: Level
    retryable: bool
    action: str
    strategy: RecoveryStrategy
    status: Status = Status.DETECTED
    attempt: int = 0
    max_retries: int = 0
    retry_after_s: float | None = None
    next_attempt_at: float | None = None
    escalation_level: str | None = None
    ack_due: float | None = None
    acknowledged_by: str | None = None
    owner: str | None = None
    lease_until: float | None = None
    stamp: str = ""
    files: tuple[str, ...] = ()
    stack_trace: str | None = None
    recovery_action: str | None = None
    alternative: str = ""
    first_seen: float = 0.0
    last_seen: float = 0.0
    occurrences: int = 1
    resolved_at: float | None = None
    version: int = 0

    @property
    def error_id(self) -> str:
        """`err-001` and on."""
        return f"err-{self.id:03d}"

    @property
    def closed(self) -> bool:
        """Whether its status is final."""
        return self.status in CLOSED


class Sighting(NamedTuple):
    """A failure as a source reports it, not yet assigned to an incident.

    key: identifies this failure within its source. status: the word of the source (`failed`, `killed`,
    `timeout`, …), used without a message. at: seconds since the epoch, None for now. scope: groups
    failures that have neither task nor run. trace: a stack trace. diagnosed: a Diagnosis, an ErrorInfo, or
    a cause as text; None if the message is all there is. priority, estimated_hours: of the task, if known.
    """

    source: str
    key: str
    message: str
    agent_id: str | None = None
    agent_type: str = ""
    task_id: str | None = None
    run_id: str | None = None
    status: str = "failed"
    at: float | None = None
    scope: str | None = None
    trace: str | None = None
    files: tuple[str, ...] = ()
    diagnosed: Any = None
    priority: int | None = None
    estimated_hours: float | None = None


class LogEntry(NamedTuple):
    """An entry of the append-only log.

    verb: what was done. by: the owner of the desk that did it, or a person. text: details, for people.
    status, attempt: those of the incident afterwards.
    """

    id: int
    incident: int | None
    at: float
    verb: str
    by: str
    status: str | None
    attempt: int | None
    text: str


class Message(NamedTuple):
    """A message to a role, as the outbox keeps it and a sink receives it.

    key: the same for every delivery, so that a receiver can drop duplicates. kind: `detected`,
    `handling`, `escalated` or `recovered`. text: one line. body: the incident as a JSON object. attempts:
    deliveries begun.
    """

    id: int
    incident: int
    role: str
    level: Level
    kind: str
    key: str
    text: str
    body: dict[str, Any]
    status: str
    attempts: int
    created_at: float
    due: float
    sent_at: float | None

    @property
    def error_id(self) -> str:
        """The id of its incident."""
        return f"err-{self.incident:03d}"


class AgentRecord(NamedTuple):
    """An agent. Its restart is another agent, which `replaces` it.

    root: the first agent of the line. status: `running`, `done`, `failed`, `killed`, `timeout`, `dead` (no
    heartbeat) or `replaced`. due: when its next heartbeat is late, None without any. attempt: from 1.
    """

    agent_id: str
    agent_type: str
    task_id: str | None
    status: str
    started: float
    heartbeat: float | None
    heartbeat_s: float | None
    due: float | None
    ended: float | None
    message: str | None
    replaces: str | None
    root: str
    attempt: int


class TaskRecord(NamedTuple):
    """A task of agents. status: `open`, `done` or `failed`. timeout_s: seconds an agent has for it."""

    task_id: str
    title: str
    status: str
    priority: int | None
    estimated_hours: float | None
    timeout_s: float | None


class Recovery(NamedTuple):
    """What a hook is given.

    strategy: what to do. attempt: from 1. key: the same for all attempts at one occurrence of the failure;
    use it as an idempotency key. timeout_s: seconds the agent has from now on, None if unknown. task: None
    for an unknown task.
    """

    incident: Incident
    strategy: RecoveryStrategy
    attempt: int
    key: str
    timeout_s: float | None
    task: TaskRecord | None


# Errors.


class IncidentError(TriageError):
    """The desk cannot do this with the incident; nothing has changed."""


class UnknownIncident(IncidentError, LookupError):
    """The store has no incident of this id, or no open one of this task."""


class IncidentBusy(IncidentError):
    """Somebody else has the incident, or its next attempt is not due.

    wait_s: seconds until it may be tried again, None if a person has it.
    """

    wait_s: float | None

    def __init__(self, message: str, *, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class IncidentClosed(IncidentError):
    """The incident is recovered, failed or ignored already."""


class OutcomeLost(IncidentError):
    """A hook has run, and the store failed before its outcome was written.

    When the lease of the recovery ends, it is in doubt.
    """


# Texts, ids and times.


MAX_MESSAGE = 4_000
MAX_TRACE = 20_000
MAX_ID = 256
MAX_FILES = 20
MILLIS = 1e11
"""Larger times are milliseconds."""

_NUMBERS = re.compile(r"\d+")
_ID = re.compile(r"err-(\d{1,18})")
# A path ends as source and data files do. All repetitions are bounded.
_FILE = re.compile(
    r"(?<![\w/.:-])(?:(?:\.{1,2}|[\w@+-]{1,64}(?:\.[\w@+-]{1,32}){0,3})?/){0,12}"
    r"[\w@+-]{1,64}(?:\.[\w@+-]{1,32}){0,3}\."
    r"(?:py|pyi|js|ts|tsx|jsx|java|go|rs|c|h|cc|cpp|hpp|cs|rb|php|sh|sql|md|rst|txt|json|ya?ml|toml|"
    r"ini|cfg|csv|db|sqlite3?|lock|log|html|css|xml|ipynb|proto)(?![\w/])"
)


def clean(text: str, most: int) -> str:
    """The text without NUL and lone surrogates, cut to `most` characters."""
    if len(text) > most:
        text = f"{text[: most - 1]}…"
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def check_id(field: str, value: object) -> str:
    """Check an id. Raises UsageError naming the field."""
    if not isinstance(value, str) or not value.strip():
        raise misuse(field, value, "text that is not empty")
    if len(value) > MAX_ID or value != clean(value, MAX_ID):
        raise misuse(field, value[:40], f"at most {MAX_ID} printable characters")
    return value


def paths_of(field: str, files: object) -> tuple[str, ...]:
    """Check paths. Raises UsageError naming the field."""
    if isinstance(files, str) or not isinstance(files, Iterable):
        raise misuse(field, files, "a list of paths")
    paths = tuple(files)
    for path in paths:
        if not isinstance(path, str) or not path:
            raise misuse(f"{field} item", path, "text that is not empty")
    return paths


def number_of(error_id: object) -> int:
    """The number in an incident's id. Raises UnknownIncident for any other text."""
    if not isinstance(error_id, str):
        raise misuse("error_id", error_id, "text such as 'err-001'")
    match = _ID.fullmatch(error_id)
    if match is None:
        raise UnknownIncident(
            f"{clean(error_id, 80)!r} is no incident's id; they look like err-001"
        )
    return int(match[1])


def files_in(*texts: str | None) -> tuple[str, ...]:
    """The files named in texts, in order, without duplicates; at most 20."""
    found: dict[str, None] = {}
    for text in texts:
        for match in _FILE.finditer((text or "")[:MAX_MESSAGE]):
            found.setdefault(match[0])
    return tuple(found)[:MAX_FILES]


def fingerprint(scope: str, agent_type: str, kind: str, cause: str | None, message: str) -> str:
    """Identify a kind of failure. Case, numbers and spaces in the message do not count."""
    words = " ".join(_NUMBERS.sub("#", message.casefold()).split())[:300]
    text = "\x1f".join((scope, agent_type, kind, cause or "", words))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def iso(seconds: float) -> str:
    """A time in the desk's JSON, to the second: `2025-10-26T10:30:00Z`."""
    when = dt.datetime.fromtimestamp(seconds, dt.UTC)
    return f"{when:%Y-%m-%dT%H:%M:%S}Z"


def seconds_of(value: object) -> float | None:
    """A time from a foreign table as seconds since the epoch; None for anything else.

    Numbers are seconds, or milliseconds where seconds would lie beyond the year 5000. Texts are ISO 8601,
    in UTC if they name no zone.
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value) / 1000 if value > MILLIS else float(value)
    if isinstance(value, str):
        try:
            value = dt.datetime.fromisoformat(value.strip())
        except ValueError:
            return None
    if not isinstance(value, dt.datetime):
        return None
    return (value if value.tzinfo else value.replace(tzinfo=dt.UTC)).timestamp()


# Configuration.


Hook = Callable[..., Any]
"""`hook(recovery)`, sync or async: returns the id of the new agent, None or True for success, False for
failure. An exception is a failure, too."""

_FALL_BACK_ON_RESTART = frozenset({"retry", "increase_timeout", "wait_and_retry"})


@dataclass(frozen=True)
class Hooks:
    """The functions that carry out strategies; triage itself starts and kills nothing.

    restart, retry, increase_timeout, wait_and_retry, clear_cache, fallback, custom: one per strategy.
    Without hooks of their own, retry, increase_timeout and wait_and_retry use restart. deadline_s: seconds
    after which a hook counts as hung, 300; an async one is cancelled, a sync one is left in its thread.
    lease_s: seconds after which another desk may take over from one that fell silent, 60; renewed while
    a hook runs. on_in_doubt: what to do if it is unknown whether a recovery happened, because its hook
    hung or its desk died or was stopped: `"escalate"` (default), or `"rerun"` for hooks that may be
    repeated.

    Raises UsageError, which names the field.
    """

    restart: Hook | None = None
    retry: Hook | None = None
    increase_timeout: Hook | None = None
    wait_and_retry: Hook | None = None
    clear_cache: Hook | None = None
    fallback: Hook | None = None
    custom: Hook | None = None
    deadline_s: float = 300.0
    lease_s: float = 60.0
    on_in_doubt: Literal["escalate", "rerun"] = "escalate"

    def __post_init__(self) -> None:
        for strategy in RecoveryStrategy:
            hook = getattr(self, strategy, None)
            if hook is not None and not callable(hook):
                raise misuse(f"Hooks.{strategy}", hook, "a function of one argument, or None")
        check_number("Hooks.deadline_s", self.deadline_s, "seconds", above=True)
        check_number("Hooks.lease_s", self.lease_s, "seconds", above=True)
        check_word("Hooks.on_in_doubt", self.on_in_doubt, ("escalate", "rerun"))

    def of(self, strategy: RecoveryStrategy) -> Hook | None:
        """The hook for a strategy, None without one."""
        own = cast("Hook | None", getattr(self, strategy, None))
        return self.restart if own is None and strategy in _FALL_BACK_ON_RESTART else own


@dataclass(frozen=True)
class Threshold:
    """When there are too many errors to recover automatically.

    errors: this many within `window_s` seconds (3,600) are recovered, 3 by default; one more escalates,
    even if it could be retried. scope: what is counted together: the `"task"` (default; without a task,
    the run or the line of agents), the `"agent_type"`, or `"all"`. A failure that returns within the
    window reopens its incident, which keeps its attempts.

    Raises UsageError, which names the field.
    """

    errors: int = 3
    window_s: float = 3600.0
    scope: Literal["task", "agent_type", "all"] = "task"

    def __post_init__(self) -> None:
        check_count("Threshold.errors", self.errors, 1)
        check_number("Threshold.window_s", self.window_s, "seconds", above=True)
        check_word("Threshold.scope", self.scope, ("task", "agent_type", "all"))


@dataclass(frozen=True)
class Retries:
    """How often and when an incident is recovered automatically.

    most: attempts, 3. by_cause: attempts for certain causes; 2 for exhausted resources and task timeouts.
    backoff: seconds before a retry, and before a second restart: 2, 4, 8 … 120. wait_s: seconds before
    wait_and_retry, 60. timeout_factor: by which increase_timeout multiplies a task's timeout, 1.5.
    timeout_cap_s: the largest timeout, 14,400. timeout_s: the timeout of a task without one, 3,600.

    Raises UsageError, which names the field.
    """

    most: int = 3
    by_cause: Mapping[str, int] = field(
        default_factory=lambda: {Cause.RESOURCE_EXHAUSTED.value: 2, "task_timeout": 2}
    )
    backoff: Backoff = field(default_factory=partial(Backoff, 2.0, 2.0, 120.0, jitter=False))
    wait_s: float = 60.0
    timeout_factor: float = 1.5
    timeout_cap_s: float = 14_400.0
    timeout_s: float = 3600.0

    def __post_init__(self) -> None:
        check_count("Retries.most", self.most, 0)
        for cause, most in _mapping("Retries.by_cause", self.by_cause).items():
            check_count(f"Retries.by_cause[{cause!r}]", most, 0)
        if not isinstance(cast("object", self.backoff), Backoff):
            raise misuse("Retries.backoff", self.backoff, "a Backoff")
        check_number("Retries.wait_s", self.wait_s, "seconds")
        check_number("Retries.timeout_factor", self.timeout_factor, "", least=1.0)
        check_number("Retries.timeout_cap_s", self.timeout_cap_s, "seconds", above=True)
        check_number("Retries.timeout_s", self.timeout_s, "seconds", above=True)

    def most_for(self, cause: str | None) -> int:
        """Attempts for an incident of this cause."""
        return self.by_cause.get(cause or "", self.most)

    def raised(self, timeout_s: float | None) -> float:
        """The timeout after `increase_timeout`. A timeout beyond the cap stays."""
        before = timeout_s or self.timeout_s
        return max(before, min(self.timeout_cap_s, before * self.timeout_factor))


@dataclass(frozen=True)
class Watch:
    """What counts as a failure that nobody has reported.

    lease_lost_s: seconds a run may stay without an owner after its lease ended or it was given back, 60.
    suspended_s: seconds a run may wait for an answer, 86,400; None for ever. runs: False ignores the runs
    of the store.

    Raises UsageError, which names the field.
    """

    lease_lost_s: float = 60.0
    suspended_s: float | None = 86_400.0
    runs: bool = True

    def __post_init__(self) -> None:
        check_number("Watch.lease_lost_s", self.lease_lost_s, "seconds")
        if self.suspended_s is not None:
            check_number("Watch.suspended_s", self.suspended_s, "seconds", above=True)
        if not isinstance(cast("object", self.runs), bool):
            raise misuse("Watch.runs", self.runs, "True or False")


@dataclass(frozen=True)
class NotificationPolicy:
    """Who is told, by level.

    roles: by level; critical and high incidents are told when detected, medium ones when they are
    recovered, low ones are only logged. chain: the roles an escalation goes through. starts: where in the
    chain each level starts. ack_s: seconds, by level, after which an unacknowledged escalation goes to the
    next role. rate, window_s: the most messages to one role (30) within so many seconds (60); others
    wait, except critical ones. tries: deliveries before a message is given up, 8. backoff: seconds
    between them. deadline_s: seconds a sink has for one message, 15.

    Raises UsageError, which names the field.
    """

    roles: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {
            "critical": ("project_manager", "architect"),
            "high": ("architect", "code_developer"),
            "medium": ("code_developer",),
            "low": (),
        }
    )
    chain: tuple[str, ...] = ("code_developer", "architect", "project_manager")
    starts: Mapping[str, str] = field(
        default_factory=lambda: {
            "critical": "project_manager",
            "high": "architect",
            "medium": "architect",
            "low": "code_developer",
        }
    )
    ack_s: Mapping[str, float] = field(
        default_factory=lambda: {
            "critical": 300.0,
            "high": 900.0,
            "medium": 3600.0,
            "low": 14_400.0,
        }
    )
    rate: int = 30
    window_s: float = 60.0
    tries: int = 8
    deadline_s: float = 15.0
    backoff: Backoff = field(default_factory=partial(Backoff, 5.0, 2.0, 600.0, jitter=False))

    def __post_init__(self) -> None:
        if not isinstance(cast("object", self.chain), tuple) or not self.chain:
            raise misuse("NotificationPolicy.chain", self.chain, "a tuple of roles, not empty")
        for role in self.chain:
            check_id("NotificationPolicy.chain item", role)
        for name in ("roles", "starts", "ack_s"):
            for level in _mapping(f"NotificationPolicy.{name}", getattr(self, name)):
                check_word(f"NotificationPolicy.{name} key", level, tuple(map(str, Level)))
        for level, told in self.roles.items():
            if not isinstance(cast("object", told), tuple):
                raise misuse(f"NotificationPolicy.roles[{level!r}]", told, "a tuple of roles")
            for role in told:
                check_id(f"NotificationPolicy.roles[{level!r}] item", role)
        for level, role in self.starts.items():
            check_word(f"NotificationPolicy.starts[{level!r}]", role, self.chain)
        for level, seconds in self.ack_s.items():
            check_number(f"NotificationPolicy.ack_s[{level!r}]", seconds, "seconds", above=True)
        check_count("NotificationPolicy.rate", self.rate, 1)
        check_number("NotificationPolicy.window_s", self.window_s, "seconds", above=True)
        check_count("NotificationPolicy.tries", self.tries, 1)
        check_number("NotificationPolicy.deadline_s", self.deadline_s, "seconds", above=True)
        if not isinstance(cast("object", self.backoff), Backoff):
            raise misuse("NotificationPolicy.backoff", self.backoff, "a Backoff")

    @property
    def known(self) -> tuple[str, ...]:
        """All roles, those of the chain first."""
        return tuple(
            dict.fromkeys((*self.chain, *(r for told in self.roles.values() for r in told)))
        )

    def start(self, level: Level) -> str:
        """The role an escalation of this level starts with."""
        return self.starts.get(level, self.chain[-1])

    def after(self, role: str) -> str | None:
        """The next role in the chain; None after the last one and for a role outside it."""
        if role not in self.chain or role == self.chain[-1]:
            return None
        return self.chain[self.chain.index(role) + 1]


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise misuse(name, value, "a mapping")
    return value


def expect(name: str, value: object, kind: type) -> None:
    """Raise UsageError unless the value is of this kind."""
    if not isinstance(value, kind):
        names = ", ".join(entry.name for entry in fields(kind)[:3])
        raise misuse(name, value, f"a {kind.__name__}", f"write {kind.__name__}({names}, …)")


# What to do about an incident.


class Plan(NamedTuple):
    """What to do. reason: why it is escalated, if not for its kind. delay_s: for `wait`."""

    kind: Literal["recover", "wait", "escalate"]
    strategy: RecoveryStrategy
    reason: str = ""
    delay_s: float = 0.0


_LATER = (RecoveryStrategy.RETRY, RecoveryStrategy.WAIT_AND_RETRY)
"""Strategies that wait before their first attempt; the others wait before the second."""


def decide(
    incident: Incident, errors: int, threshold: Threshold, retries: Retries, hooks: Hooks
) -> Plan:
    """Fall back if it is critical, recover if it may be retried, else ask a person.

    errors: the number seen in the threshold's scope and window.
    """
    strategy = incident.strategy
    if incident.level is Level.CRITICAL or strategy is RecoveryStrategy.FALLBACK:
        kind: Literal["recover", "escalate"] = "recover" if hooks.fallback else "escalate"
        return Plan(kind, RecoveryStrategy.FALLBACK)
    manual = Plan("escalate", RecoveryStrategy.MANUAL)
    if not incident.retryable or strategy is RecoveryStrategy.MANUAL:
        return manual
    if errors > threshold.errors:
        reason = f"{errors} errors within {threshold.window_s:g} s are more than {threshold.errors}"
        return manual._replace(reason=reason)
    if incident.attempt >= incident.max_retries:
        times = "retry" if incident.max_retries == 1 else "retries"
        return manual._replace(reason=f"{incident.max_retries} {times} did not help")
    if hooks.of(strategy) is None:
        return manual._replace(reason=f"no hook carries out {strategy}")
    delay = 0.0 if incident.status is not Status.DETECTED else first_delay(incident, retries)
    return Plan("wait", strategy, delay_s=delay) if delay > 0 else Plan("recover", strategy)


def first_delay(incident: Incident, retries: Retries) -> float:
    """Seconds before the first attempt at one occurrence of the failure."""
    if incident.strategy is RecoveryStrategy.WAIT_AND_RETRY:
        return max(retries.wait_s, incident.retry_after_s or 0.0)
    if incident.strategy is RecoveryStrategy.RETRY:
        return retries.backoff.delay(incident.attempt + 1, retry_after_s=incident.retry_after_s)
    return retries.backoff.delay(incident.attempt) if incident.attempt else 0.0


def next_delay(incident: Incident, retries: Retries) -> float:
    """Seconds before another attempt, after one that failed."""
    if incident.strategy is RecoveryStrategy.WAIT_AND_RETRY:
        return max(retries.wait_s, incident.retry_after_s or 0.0)
    number = incident.attempt + (incident.strategy in _LATER)
    return retries.backoff.delay(max(1, number), retry_after_s=incident.retry_after_s)


# The moves of an incident.

_S = Status
_WITH_A_PERSON = (_S.ESCALATED, _S.ACKNOWLEDGED)
_OPEN = tuple(status for status in _S if status not in CLOSED)
_FREE = tuple(status for status in _OPEN if status is not _S.RECOVERING)

MOVES: dict[str, dict[Status, Status]] = {
    "see": {**{s: s for s in _OPEN}, _S.RECOVERED: _S.DETECTED},
    "postpone": {_S.DETECTED: _S.WAITING, _S.RECOVERING: _S.WAITING},
    "claim": dict.fromkeys(_OPEN, _S.RECOVERING),
    "recover": {_S.RECOVERING: _S.RECOVERED},
    "escalate": dict.fromkeys(_OPEN, _S.ESCALATED),
    "acknowledge": dict.fromkeys((_S.DETECTED, _S.WAITING, *_WITH_A_PERSON), _S.ACKNOWLEDGED),
    "recovered": dict.fromkeys(_FREE, _S.RECOVERED),
    "failed": dict.fromkeys(_FREE, _S.FAILED),
    "ignored": dict.fromkeys(_FREE, _S.IGNORED),
}
"""For each verb, the status after by the status before. Other moves are impossible."""


def moved(incident: Incident, verb: str, now: float, **changes: Any) -> Incident:
    """The incident after a move, with other changes.

    Raises IncidentClosed or IncidentBusy if its status does not allow the move.
    """
    status = MOVES[verb].get(incident.status)
    if status is None:
        if incident.closed:
            raise IncidentClosed(f"{incident.error_id} is {incident.status} already")
        raise busy(incident, now)
    fields_of_status: dict[str, Any] = {"resolved_at": now if status in CLOSED else None}
    if status is not _S.RECOVERING:
        fields_of_status |= {"owner": None, "lease_until": None}
    if status is not _S.WAITING:
        fields_of_status["next_attempt_at"] = None
    if status is not _S.ESCALATED:
        fields_of_status["ack_due"] = None
    changes = {**fields_of_status, **changes}
    return incident._replace(status=status, version=incident.version + 1, **changes)


def busy(incident: Incident, now: float) -> IncidentBusy:
    """The error for an incident that nobody may change now."""
    if incident.status is _S.RECOVERING and incident.lease_until is not None:
        left = max(0.0, incident.lease_until - now)
        return IncidentBusy(
            f"{incident.error_id} is being recovered by {incident.owner}, whose lease lasts "
            f"{left:.1f} s more",
            wait_s=left,
        )
    if incident.status is _S.WAITING and incident.next_attempt_at is not None:
        left = max(0.0, incident.next_attempt_at - now)
        return IncidentBusy(f"{incident.error_id} is tried again in {left:.1f} s", wait_s=left)
    who = incident.acknowledged_by or incident.escalation_level or "a person"
    return IncidentBusy(
        f"{incident.error_id} is {incident.status}: {who} has it; recover it by a strategy or resolve it"
    )


def leased(incident: Incident, now: float) -> bool:
    """Whether a live desk is recovering it."""
    return (
        incident.status is _S.RECOVERING
        and incident.lease_until is not None
        and incident.lease_until > now
    )


def seen(incident: Incident, now: float) -> Incident:
    """The incident after one more occurrence. A recovered one opens again and keeps its attempts."""
    if incident.status is _S.RECOVERED:
        return moved(
            incident, "see", now, last_seen=now, occurrences=incident.occurrences + 1,
            escalation_level=None, acknowledged_by=None,
        )  # fmt: skip
    return incident._replace(
        last_seen=now, occurrences=incident.occurrences + 1, version=incident.version + 1
    )


def claimed(
    incident: Incident,
    now: float,
    strategy: RecoveryStrategy,
    *,
    owner: str,
    stamp: str,
    lease_s: float,
) -> Incident:
    """The incident after `owner` has begun to recover it. The attempt counts from here."""
    if leased(incident, now):
        raise busy(incident, now)
    return moved(
        incident, "claim", now, owner=owner, stamp=stamp, lease_until=now + lease_s,
        attempt=incident.attempt + 1, strategy=strategy,
    )  # fmt: skip


def untouched(incident: Incident, now: float) -> None:
    """Raise if the incident is closed, or if a live owner is recovering it."""
    if incident.closed:
        raise IncidentClosed(f"{incident.error_id} is {incident.status} already")
    if leased(incident, now):
        raise busy(incident, now)
