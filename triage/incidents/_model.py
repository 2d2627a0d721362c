"""The facts of the incidents room: immutable values, read from and written to the store."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from triage.taxonomy import FailureType, Level, Severity


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

    id: its number; `error_id` is how it is spoken of. fingerprint: equal for failures of one kind in
    one task, run or line of agents. source: who found it: `runs`, `agents`, `tasks`, `reports`, `desk`
    or the table it was read from. agent_type: of an agent, the agent's name for a run. cause: the finer
    name, None if not known. attempt: recoveries begun. action: the recommended one, as a word.
    strategy: what carries it out. escalation_level: the role that was told last. ack_due: when the next
    role is told, unless somebody acknowledges. owner, lease_until: who recovers it and how long nobody
    else may. stamp: of the call that claimed it. version: rises with each change. All times are seconds
    since the epoch on the store's clock; None where something has not happened.
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
    status: Status
    attempt: int
    max_retries: int
    retry_after_s: float | None
    next_attempt_at: float | None
    escalation_level: str | None
    ack_due: float | None
    acknowledged_by: str | None
    owner: str | None
    lease_until: float | None
    stamp: str
    files: tuple[str, ...]
    stack_trace: str | None
    recovery_action: str | None
    first_seen: float
    last_seen: float
    occurrences: int
    resolved_at: float | None
    version: int

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
