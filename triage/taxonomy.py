"""The words a diagnosis is made of: what went wrong, why, what to do, who must know.

Three things other systems call "severity" are kept apart here: `FailureType` and `Cause` say what
went wrong, `Severity` says what may be done next, `Level` says who must hear of it. `Effect` says
whether a tool may be called again. `Category` and `Recovery` are what failing code says of itself.
"""

from __future__ import annotations

from enum import StrEnum


class FailureType(StrEnum):
    """What went wrong, in ten kinds. Each has its own way back; anything finer is a `Cause`."""

    WRONG_TOOL_CALLED = "wrong_tool_called"
    CONSTRAINT_IGNORED = "constraint_ignored"
    LOOP_DETECTED = "loop_detected"
    HALLUCINATED_STATE = "hallucinated_state"
    PLAN_INCOMPLETE = "plan_incomplete"
    SCHEMA_MISMATCH = "schema_mismatch"
    CONTEXT_OVERFLOW = "context_overflow"
    GOAL_DRIFT = "goal_drift"
    EXTERNAL_FAULT = "external_fault"
    UNKNOWN = "unknown"


class Severity(StrEnum):
    """The route: what the run may do next.

    RETRIABLE: the same call would succeed later. REPLANNING: the agent can make it succeed by
    doing otherwise. RECLASSIFICATION: the cause is not known, or the wrong tools are at hand.
    CRITICAL: a person must act, nothing is repeated. FATAL: the run cannot go on.
    """

    RETRIABLE = "retriable"
    REPLANNING = "replanning"
    RECLASSIFICATION = "reclassification"
    CRITICAL = "critical"
    FATAL = "fatal"


class Level(StrEnum):
    """The impact: who must know. LOW is logged, CRITICAL wakes somebody."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


class Effect(StrEnum):
    """What a tool does to the world, and so whether it may be called again.

    READ changes nothing. IDEMPOTENT may be repeated with the same arguments. ONCE must not happen
    twice. UNKNOWN has not been declared and is treated as unsafe to repeat.
    """

    READ = "read"
    IDEMPOTENT = "idempotent"
    ONCE = "once"
    UNKNOWN = "unknown"

    @property
    def repeatable(self) -> bool:
        """True for READ and IDEMPOTENT."""
        return self is Effect.READ or self is Effect.IDEMPOTENT


UNSAFE = frozenset({Effect.ONCE, Effect.UNKNOWN})
"""Effects that must not be repeated."""


class Cause(StrEnum):
    """The finer name of what went wrong. Fields take `Cause | str`, so an application adds its own."""

    # the other side
    RATE_LIMITED = "rate_limited"
    QUOTA_EXHAUSTED = "quota_exhausted"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    SERVER_ERROR = "server_error"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    DNS = "dns"
    TLS = "tls"
    AUTH = "auth"
    PERMISSION = "permission"
    NOT_FOUND = "not_found"
    MODEL_MISSING = "model_missing"
    CONFLICT = "conflict"
    CIRCUIT_OPEN = "circuit_open"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    PROCESS_DIED = "process_died"
    DEADLOCK = "deadlock"
    MISSING_CONFIG = "missing_config"
    # the form of data
    BAD_REQUEST = "bad_request"
    BAD_RESPONSE = "bad_response"
    MALFORMED_OUTPUT = "malformed_output"
    INVALID_ARGUMENTS = "invalid_arguments"
    INVALID_RESULT = "invalid_result"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    # the agent's own doing
    UNKNOWN_TOOL = "unknown_tool"
    REPETITION = "repetition"
    CYCLE = "cycle"
    STEP_BUDGET = "step_budget"
    CONTEXT_LENGTH = "context_length"
    OUTPUT_CUT = "output_cut"
    CONTENT_FILTER = "content_filter"
    FORBIDDEN_OUTPUT = "forbidden_output"
    GUARDRAIL = "guardrail"
    INCOMPLETE = "incomplete"
    UNGROUNDED = "ungrounded"
    MISSING_RESOURCE = "missing_resource"
    CHECK_FAILED = "check_failed"
    # ours and the code around the agent
    LIMIT = "limit"
    IN_DOUBT = "in_doubt"
    CANCELLED = "cancelled"
    DEPLOYMENT = "deployment"
    CODE_ERROR = "code_error"
    OUT_OF_MEMORY = "out_of_memory"


class Category(StrEnum):
    """What kind of thing failed, as the code that raised the error knows it.

    In this order: where one error was raised from another, the later category counts, so that an error
    put around another can make it graver and never lighter.

    CODE: what was generated is wrong. DATA: what was needed is not there, or is not what it must be.
    INFRASTRUCTURE: what the work stands on failed, and the work itself may be right. WORKFLOW: the work
    cannot go on without a person. CONFIGURATION: something is set up wrongly. SAFETY: it was refused.
    """

    CODE = "code"
    DATA = "data"
    INFRASTRUCTURE = "infrastructure"
    WORKFLOW = "workflow"
    CONFIGURATION = "configuration"
    SAFETY = "safety"


class Recovery(StrEnum):
    """What would help, as the code that raised the error knows it.

    RETRY: the same again, after a while. REGENERATE: the same step, told what was wrong. REPLAN: another
    way to the goal. RECLASSIFY: other tools or capabilities. ASK: a person. CONFIGURE: a person who
    changes a setting. NEVER: nothing; the run ends, whatever a policy says.
    """

    RETRY = "retry"
    REGENERATE = "regenerate"
    REPLAN = "replan"
    RECLASSIFY = "reclassify"
    ASK = "ask"
    CONFIGURE = "configure"
    NEVER = "never"


CATEGORY_RECOVERY: dict[Category, Recovery] = {
    Category.CODE: Recovery.REGENERATE,
    Category.DATA: Recovery.REPLAN,
    Category.INFRASTRUCTURE: Recovery.RETRY,
    Category.WORKFLOW: Recovery.ASK,
    Category.CONFIGURATION: Recovery.CONFIGURE,
    Category.SAFETY: Recovery.NEVER,
}
"""What helps against a category of which nothing else is said."""

RECOVERY_SEVERITY: dict[Recovery, Severity] = {
    Recovery.RETRY: Severity.RETRIABLE,
    Recovery.REGENERATE: Severity.REPLANNING,
    Recovery.REPLAN: Severity.REPLANNING,
    Recovery.RECLASSIFY: Severity.RECLASSIFICATION,
    Recovery.ASK: Severity.CRITICAL,
    Recovery.CONFIGURE: Severity.CRITICAL,
    Recovery.NEVER: Severity.FATAL,
}
"""The severity of a failure of which only the recovery is said."""

DEFAULT_SEVERITY: dict[FailureType, Severity] = {
    FailureType.WRONG_TOOL_CALLED: Severity.REPLANNING,
    FailureType.CONSTRAINT_IGNORED: Severity.REPLANNING,
    FailureType.LOOP_DETECTED: Severity.REPLANNING,
    FailureType.HALLUCINATED_STATE: Severity.REPLANNING,
    FailureType.PLAN_INCOMPLETE: Severity.REPLANNING,
    FailureType.SCHEMA_MISMATCH: Severity.REPLANNING,
    FailureType.CONTEXT_OVERFLOW: Severity.REPLANNING,
    FailureType.GOAL_DRIFT: Severity.REPLANNING,
    FailureType.EXTERNAL_FAULT: Severity.RETRIABLE,
    FailureType.UNKNOWN: Severity.RECLASSIFICATION,
}
"""The severity of a failure type whose cause says nothing else."""

CAUSE_SEVERITY: dict[str, Severity] = {
    Cause.QUOTA_EXHAUSTED: Severity.CRITICAL,
    Cause.TLS: Severity.CRITICAL,
    Cause.AUTH: Severity.CRITICAL,
    Cause.PERMISSION: Severity.CRITICAL,
    Cause.MODEL_MISSING: Severity.CRITICAL,
    Cause.NOT_FOUND: Severity.REPLANNING,
    Cause.MISSING_CONFIG: Severity.CRITICAL,
    Cause.RESOURCE_EXHAUSTED: Severity.CRITICAL,
    Cause.IN_DOUBT: Severity.CRITICAL,
    Cause.LIMIT: Severity.CRITICAL,
    Cause.DEPLOYMENT: Severity.CRITICAL,
    Cause.CODE_ERROR: Severity.CRITICAL,
    Cause.CANCELLED: Severity.FATAL,
    Cause.OUT_OF_MEMORY: Severity.FATAL,
}
"""The severity of a cause, where it differs from that of its failure type."""

DEFAULT_LEVEL: dict[Severity, Level] = {
    Severity.RETRIABLE: Level.LOW,
    Severity.REPLANNING: Level.MEDIUM,
    Severity.RECLASSIFICATION: Level.MEDIUM,
    Severity.CRITICAL: Level.HIGH,
    Severity.FATAL: Level.CRITICAL,
}
"""The level of a severity when a diagnosis names none."""


def severity_of(failure_type: FailureType, cause: Cause | str | None) -> Severity:
    """The default severity: the cause's own where it has one, else the failure type's."""
    if cause is not None and cause in CAUSE_SEVERITY:
        return CAUSE_SEVERITY[cause]
    return DEFAULT_SEVERITY[failure_type]
