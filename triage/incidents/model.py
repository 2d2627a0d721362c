"""Incidents as values: what is configured, what a desk is told, and what it tells."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import partial
from typing import Any, Literal, cast

from triage.core.constructors import Value
from triage.core.errors import TriageError, check_count, check_number, check_word, misuse
from triage.core.taxonomy import Cause, Level
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


class LogEntry(Value, frozen=True):
    """An entry of an incident's log. verb: what was done. by: the desk that did it, or a person.

    text: details, for people. status, attempt: those of the incident afterwards. at: seconds since the
    epoch.
    """

    error_id: str
    at: float
    verb: str
    by: str
    status: Status
    attempt: int
    text: str = ""


class Message(Value, frozen=True):
    """A message to a role, as a sink receives it.

    key: the same for every delivery, so that a receiver can drop duplicates. kind: `detected`,
    `handling`, `escalated` or `recovered`. text: one line. status: `pending`, `sent`, or `failed` for one
    that was given up. attempts: deliveries that ended. body: the incident as a JSON object when it is
    delivered, else empty. Times are seconds since the epoch; due: of the next delivery.
    """

    error_id: str
    role: str
    level: Level
    kind: str
    key: str
    text: str
    created_at: float
    due: float
    status: str = "pending"
    attempts: int = 0
    sent_at: float | None = None
    body: Mapping[str, Any] = {}


class TaskRecord(Value, frozen=True):
    """A task of agents. status: `open`, `done` or `failed`. timeout_s: seconds an agent has for it.

    waits_for: ids of the tasks that must be done first.
    """

    task_id: str
    title: str = ""
    status: str = "open"
    priority: int | None = None
    estimated_hours: float | None = None
    timeout_s: float | None = None
    waits_for: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A failure as a source reports it.

    source: names the source, such as a table. key: identifies this failure within its source. status: the
    word of the source (`failed`, `killed`, `timeout`, …), used without a message. at: seconds since the
    epoch, None for now. scope: groups failures that have neither task nor run. trace: a stack trace.
    diagnosed: a Diagnosis, an ErrorInfo, or a cause as text; None if the message is all there is.
    priority, estimated_hours: of the task, if known. lasting: it is a condition that is still there, and
    is found again when its incident is closed.
    """

    source: str
    key: str
    message: str = ""
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
    lasting: bool = False


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
MAX_TRACE = 8_000
MAX_ID = 256
MAX_FILES = 20
MILLIS = 1e11
"""Larger times are milliseconds."""

_NUMBERS = re.compile(r"\d+")
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


def error_id_of(fingerprint: str, occurrence: int) -> str:
    """Return the id of an incident, the same for every desk. occurrence: from 1."""
    return f"err-{hashlib.sha256(f'{fingerprint}/{occurrence}'.encode()).hexdigest()[:12]}"


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


Sink = Callable[[Message], Any]
"""Delivers a message, sync (in a thread) or async. An exception means that it was not delivered."""
Source = Callable[[float], Iterable[Failure]]
"""Returns the failures of another system since a time, in seconds since the epoch. Runs in a thread."""
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
    of the store. look_back_s: age of the oldest failures that a look finds, 30 days.

    Raises UsageError, which names the field.
    """

    lease_lost_s: float = 60.0
    suspended_s: float | None = 86_400.0
    runs: bool = True
    look_back_s: float = 30 * 86_400.0

    def __post_init__(self) -> None:
        check_number("Watch.lease_lost_s", self.lease_lost_s, "seconds")
        check_number("Watch.look_back_s", self.look_back_s, "seconds")
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
    next role. rate, window_s: the most messages from one desk to one role (30) within so many seconds
    (60); others wait, except critical ones. tries: deliveries before a message is given up, 8. backoff: seconds
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
