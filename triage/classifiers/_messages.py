"""What an end user is told, and what a person could do about it: fixed words."""

from __future__ import annotations

from triage.taxonomy import Cause, FailureType, Severity

_FOR_USERS: dict[str, str] = {
    Cause.RATE_LIMITED: "A service gets too many requests right now. Please try again in a while.",
    Cause.QUOTA_EXHAUSTED: "The usage allowance for a service is used up.",
    Cause.OVERLOADED: "A service is overloaded right now. Please try again in a while.",
    Cause.TIMEOUT: "A service took too long to answer. Please try again.",
    Cause.AUTH: "Signing in to a service failed. The operator has to look at it.",
    Cause.PERMISSION: "A service refused access. The operator has to look at it.",
    Cause.CONTENT_FILTER: "The request was refused by a content policy. Please put it differently.",
    Cause.BAD_RESPONSE: "A service gave an answer that could not be read.",
    Cause.CANCELLED: "The task was cancelled.",
    Cause.UNGROUNDED: "The assistant said something it has no source for.",
}
_FOR_USERS_BY_TYPE: dict[FailureType, str] = {
    FailureType.WRONG_TOOL_CALLED: "The assistant tried something it cannot do.",
    FailureType.CONSTRAINT_IGNORED: "The assistant could not do this within its rules.",
    FailureType.LOOP_DETECTED: "The assistant got stuck repeating the same step.",
    FailureType.HALLUCINATED_STATE: "Something the assistant looked for does not exist.",
    FailureType.PLAN_INCOMPLETE: "The task was not finished.",
    FailureType.SCHEMA_MISMATCH: "Some data did not have the expected form.",
    FailureType.CONTEXT_OVERFLOW: "The task is too long to be handled in one go.",
    FailureType.GOAL_DRIFT: "The assistant lost track of the task.",
    FailureType.EXTERNAL_FAULT: "A service the task needs is not available right now.",
    FailureType.UNKNOWN: "Something went wrong.",
}
_FOR_PEOPLE: dict[str, tuple[str, ...]] = {
    Cause.RATE_LIMITED: ("Lower the request rate, or ask the provider for a higher limit.",),
    Cause.QUOTA_EXHAUSTED: ("Check plan, credit and billing at the provider.",),
    Cause.AUTH: ("Check the credentials: missing, wrong, expired or revoked.",),
    Cause.PERMISSION: ("Grant the identity the right it lacks, or give the agent another way.",),
    Cause.TLS: ("Check certificate, host name and protocol of the other side.",),
    Cause.DNS: ("Check the host name and the resolver.",),
    Cause.MODEL_MISSING: (
        "Check the configured model or deployment name, and that the account may use it.",
    ),
    Cause.MISSING_CONFIG: ("Set the missing setting, key, region or profile.",),
    Cause.RESOURCE_EXHAUSTED: ("Free or add disk space, memory or handles.",),
    Cause.DEPLOYMENT: ("Install what is missing.",),
    Cause.CODE_ERROR: ("Look at the traceback: this is a defect in code.",),
    Cause.OUT_OF_MEMORY: ("Give the process more memory, or less to hold.",),
    Cause.UNKNOWN_TOOL: ("Offer the tool, or name the tools more clearly in the prompt.",),
    Cause.CONTEXT_LENGTH: ("Trim or summarise the history, or use a model with a larger window.",),
    Cause.STEP_BUDGET: ("Raise the step limit, or split the task.",),
}


def user_message(failure_type: FailureType, cause: str | None) -> str:
    """A sentence for an end user: fixed words, so that no address, path or secret can be in it."""
    return _FOR_USERS.get(cause or "") or _FOR_USERS_BY_TYPE[failure_type]


def suggestions(
    failure_type: FailureType,
    cause: str | None,
    severity: Severity,
    retry_after_s: float | None,
) -> tuple[str, ...]:
    """What a person could do about it; for a fault that passes, that is to wait."""
    known = _FOR_PEOPLE.get(cause or "", ())
    if failure_type is not FailureType.EXTERNAL_FAULT or severity is not Severity.RETRIABLE:
        return known
    if retry_after_s is None:
        return (_LATER.format("a pause"), *known)
    delay = f"{retry_after_s:g} {'second' if retry_after_s == 1 else 'seconds'}"
    return (_LATER.format(delay), *known)


_LATER = "The same call may succeed after {}; make fewer calls until then."
