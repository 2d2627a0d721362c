"""The values of incidents: what is stored, what is configured, and which moves an incident may make."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import partial
from typing import Any, Literal, NamedTuple, cast

from triage.core import (
    Cause,
    FailureType,
    Level,
    Severity,
    TriageError,
    check_count,
    check_number,
    check_word,
    misuse,
)
from triage.strategies import Backoff


class Status(StrEnum):
    """Where an incident stands.

    DETECTED: nothing was done yet. WAITING: it is tried again at `next_attempt_at`. RECOVERING: its
    owner runs a hook, under a lease. ESCALATED: a person was told. ACKNOWLEDGED: a person has it.
    RECOVERED, FAILED and IGNORED are its end.
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
"""The ends of an incident."""


class RecoveryStrategy(StrEnum):
    """What is done about an incident; all but MANUAL are carried out by a hook of the user's."""

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
"""How a strategy is called in the desk's JSON, where otherwise than by its own name."""


class Incident(NamedTuple):
    """A failure as operations sees it: the columns of its row.

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
        """Whether it has come to an end."""
        return self.status in CLOSED


class Sighting(NamedTuple):
    """One failure as a source reports it, before it is known which incident it belongs to.

    key: names this failure within its source; seen again, it is no other one. status: the word of the
    source (`failed`, `killed`, `timeout`, …), used where there is no message. at: seconds since the
    epoch, None for now. scope: what its agents have in common where it has neither task nor run. trace:
    a stack trace. diagnosed: a diagnosis, or what is known of an exception; a word is the cause; None: the
    message is all there is. priority, estimated_hours: of the task, where the source knows them.
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
    """One thing the desk did, in the log that is only ever added to.

    verb: what was done. by: the owner of the desk that did it, or a person. text: for people. status:
    of the incident afterwards. attempt: its number then.
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
    """A message to a role, as the outbox keeps it and a sink gets it.

    key: the same however often it is delivered, so that a receiver can drop what it has. kind:
    `detected`, `handling`, `escalated` or `recovered`. text: one line. body: JSON object with the
    incident. attempts: deliveries begun.
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
        """Of its incident."""
        return f"err-{self.incident:03d}"


class AgentRecord(NamedTuple):
    """The life of one agent. A restarted one is another agent that `replaces` it.

    root: the first of its line. status: `running`, `done`, `failed`, `killed`, `timeout`, `dead` (it fell
    silent) or `replaced`. due: when its next heartbeat is missed, None without one. attempt: from 1.
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
    """A task of agents. status: `open`, `done` or `failed`. timeout_s: what an agent is given for it."""

    task_id: str
    title: str
    status: str
    priority: int | None
    estimated_hours: float | None
    timeout_s: float | None


class Recovery(NamedTuple):
    """What a hook is told.

    strategy: what it is to do. attempt: from 1. key: the same for all attempts at one occurrence of the
    failure; a hook that starts something under this name starts it once. timeout_s: what the agent is to
    be given now, None where nothing is known. task: its row, None for an unknown task.
    """

    incident: Incident
    strategy: RecoveryStrategy
    attempt: int
    key: str
    timeout_s: float | None
    task: TaskRecord | None


# What the desk raises when an incident is not as its caller thinks.


class IncidentError(TriageError):
    """The desk cannot do this with the incident; nothing was changed."""


class UnknownIncident(IncidentError, LookupError):
    """The store knows no incident of this id, or none that is open for this task."""


class IncidentBusy(IncidentError):
    """Somebody else has it, or its time has not come.

    wait_s: seconds until it may be tried again, None where a person has it.
    """

    wait_s: float | None

    def __init__(self, message: str, *, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class IncidentClosed(IncidentError):
    """It is recovered, failed or ignored already."""


class OutcomeLost(IncidentError):
    """A hook has run, and the store failed before it could be written down how that ended.

    The recovery stays as it is until its lease ends; then it is in doubt.
    """


# Texts and times of the room: cleaned, capped, compared, and found in messages.


MAX_MESSAGE = 4_000
MAX_TRACE = 20_000
MAX_ID = 256
MAX_FILES = 20
MILLIS = 1e11
"""Times beyond are milliseconds."""

_NUMBERS = re.compile(r"\d+")
_ID = re.compile(r"err-(\d{1,18})")
# A path has a folder or an ending that source and data files have; nothing here repeats without bound.
_FILE = re.compile(
    r"(?<![\w/.:-])(?:(?:\.{1,2}|[\w@+-]{1,64}(?:\.[\w@+-]{1,32}){0,3})?/){0,12}"
    r"[\w@+-]{1,64}(?:\.[\w@+-]{1,32}){0,3}\."
    r"(?:py|pyi|js|ts|tsx|jsx|java|go|rs|c|h|cc|cpp|hpp|cs|rb|php|sh|sql|md|rst|txt|json|ya?ml|toml|"
    r"ini|cfg|csv|db|sqlite3?|lock|log|html|css|xml|ipynb|proto)(?![\w/])"
)


def clean(text: str, most: int) -> str:
    """A text that every database keeps: without NUL and lone surrogates, of at most so many characters."""
    if len(text) > most:
        text = f"{text[: most - 1]}…"
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def check_id(field: str, value: object) -> str:
    """An id as it is kept. Raises UsageError for one that cannot be."""
    if not isinstance(value, str) or not value.strip():
        raise misuse(field, value, "text that is not empty")
    if len(value) > MAX_ID or value != clean(value, MAX_ID):
        raise misuse(field, value[:40], f"at most {MAX_ID} printable characters")
    return value


def number_of(error_id: object) -> int:
    """The number of an incident's id. Raises UnknownIncident for what cannot be one."""
    if not isinstance(error_id, str):
        raise misuse("error_id", error_id, "text such as 'err-001'")
    match = _ID.fullmatch(error_id)
    if match is None:
        raise UnknownIncident(
            f"{clean(error_id, 80)!r} is no incident's id; they look like err-001"
        )
    return int(match[1])


def files_in(*texts: str | None) -> tuple[str, ...]:
    """The files that texts name, each once, in order; at most 20."""
    found: dict[str, None] = {}
    for text in texts:
        for match in _FILE.finditer((text or "")[:MAX_MESSAGE]):
            found.setdefault(match[0])
    return tuple(found)[:MAX_FILES]


def fingerprint(scope: str, agent_type: str, kind: str, cause: str | None, message: str) -> str:
    """Equal for failures that are one trouble: case, numbers and spaces in the message do not count."""
    words = " ".join(_NUMBERS.sub("#", message.casefold()).split())[:300]
    text = "\x1f".join((scope, agent_type, kind, cause or "", words))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def iso(seconds: float) -> str:
    """A time as the desk's JSON has it: `2025-10-26T10:30:00Z`, to the second."""
    when = dt.datetime.fromtimestamp(seconds, dt.UTC)
    return f"{when:%Y-%m-%dT%H:%M:%S}Z"


def seconds_of(value: object) -> float | None:
    """Seconds since the epoch of a time from a foreign table, None for what is none.

    Numbers are seconds, or milliseconds where they would be a year beyond 5000; texts are ISO 8601,
    UTC where they name no zone.
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


# What users configure of a desk: small frozen values.


Hook = Callable[..., Any]
"""`hook(recovery)`, sync or async: the id of the agent that goes on, None or True for done, False for
not. What it raises is the outcome of the attempt."""

_FALL_BACK_ON_RESTART = frozenset({"retry", "increase_timeout", "wait_and_retry"})


@dataclass(frozen=True)
class Hooks:
    """What carries strategies out, one function each; triage itself starts and kills nothing.

    restart, retry, increase_timeout, wait_and_retry, clear_cache, fallback, custom: as the strategies
    are named. Without a hook of their own, retry, increase_timeout and wait_and_retry call restart.
    deadline_s: seconds, 300 by default, after which a hook counts as hung: an async one is cancelled, a
    sync one is left to its thread. lease_s: seconds, 60 by default, after which another desk takes up
    what one that fell silent was recovering; renewed while a hook runs. on_in_doubt: what is done where
    nobody knows whether a recovery happened, as its hook hung, or its desk died or was stopped:
    `"escalate"` (default) or `"rerun"`, for hooks that may be repeated.

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
        """The hook that carries a strategy out, None if there is none."""
        own = cast("Hook | None", getattr(self, strategy, None))
        return self.restart if own is None and strategy in _FALL_BACK_ON_RESTART else own


@dataclass(frozen=True)
class Threshold:
    """When trouble is too much for automatic recovery.

    errors: so many are recovered from, 3 by default; one more within `window_s` seconds (3,600)
    escalates, even if it could be retried. scope: what is counted together: the `"task"` (default; of a
    failure without a task: its run or its line of agents), the `"agent_type"`, or `"all"`. A failure
    that comes back within the window reopens its incident, whose attempts go on counting.

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

    most: attempts, 3 by default. by_cause: otherwise for these causes; 2 for exhausted resources and
    task timeouts by default. backoff: seconds before a retry, and before a second restart: 2, 4, 8, up to
    120. wait_s: seconds before wait_and_retry, 60. timeout_factor: what increase_timeout multiplies a
    task's timeout by, 1.5. timeout_cap_s: never beyond, 14,400. timeout_s: of a task that has none, 3,600.

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
        """The timeout after `increase_timeout`; one beyond the cap stays as it is."""
        before = timeout_s or self.timeout_s
        return max(before, min(self.timeout_cap_s, before * self.timeout_factor))


@dataclass(frozen=True)
class Watch:
    """What counts as a failure although nobody said so.

    lease_lost_s: seconds, 60 by default, since a run's lease has ended, or it was given back, and nobody
    took it over.
    suspended_s: seconds a run may wait for an answer, 86,400 by default; None for ever. runs: False reads
    no runs at all, for stores whose agents look after themselves.

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

    roles: who hears of an incident of a level: critical and high when it is detected, medium when it is
    being recovered; low is only logged. chain: the roles incidents are escalated along. starts: where in
    the chain an escalation of a level begins. ack_s: seconds, by level, until somebody must have
    acknowledged it; then the next role in the chain is told. rate, window_s: at most so many messages to
    one role in so many seconds (30 in 60); further ones wait, critical ones never. tries: deliveries of a
    message before it is given up (8); backoff: seconds between them. deadline_s: seconds a sink has for
    one message (15).

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
        """Every role there is, those of the chain first."""
        return tuple(
            dict.fromkeys((*self.chain, *(r for told in self.roles.values() for r in told)))
        )

    def start(self, level: Level) -> str:
        """The role an escalation of this level begins with."""
        return self.starts.get(level, self.chain[-1])

    def after(self, role: str) -> str | None:
        """The next role of the chain, None after the last one and for a role outside of it."""
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


# What is done about an incident: decided from values alone.


class Plan(NamedTuple):
    """What will be done. reason: why it is escalated, empty where its kind says so. delay_s: for `wait`."""

    kind: Literal["recover", "wait", "escalate"]
    strategy: RecoveryStrategy
    reason: str = ""
    delay_s: float = 0.0


_LATER = (RecoveryStrategy.RETRY, RecoveryStrategy.WAIT_AND_RETRY)
"""What waits before its first attempt already; the others do so before their second."""


def decide(
    incident: Incident, errors: int, threshold: Threshold, retries: Retries, hooks: Hooks
) -> Plan:
    """The three ways: fall back from what is critical, retry what may be retried, else ask a person.

    errors: seen in the incident's scope within the threshold's window.
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


# What may become of an incident: one table of moves, and each move as a pure function.


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
"""From each verb and the status before to the status after; what is not here cannot happen."""


def moved(incident: Incident, verb: str, now: float, **changes: Any) -> Incident:
    """The incident after a move, with these fields changed too.

    Raises IncidentClosed or IncidentBusy for a move that its status does not allow.
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
    """Why nobody may touch it at the moment."""
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
    """Whether a desk that lives is recovering it."""
    return (
        incident.status is _S.RECOVERING
        and incident.lease_until is not None
        and incident.lease_until > now
    )


def seen(incident: Incident, now: float) -> Incident:
    """After one more occurrence; one that had recovered is open again, its attempts kept."""
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
    """After `owner` has begun to recover it: the attempt counts from here, however it ends."""
    if leased(incident, now):
        raise busy(incident, now)
    return moved(
        incident, "claim", now, owner=owner, stamp=stamp, lease_until=now + lease_s,
        attempt=incident.attempt + 1, strategy=strategy,
    )  # fmt: skip


def untouched(incident: Incident, now: float) -> None:
    """Raise for an incident that is closed, or whose owner lives: only that one may change it."""
    if incident.closed:
        raise IncidentClosed(f"{incident.error_id} is {incident.status} already")
    if leased(incident, now):
        raise busy(incident, now)
