"""What the desk's operations answer: plain dicts, JSON as they stand. `severity` is our level."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ._acting import Begun, action_of, message_for
from ._model import Incident, RecoveryStrategy
from ._texts import iso

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


def detected(found: int, incidents: Iterable[Incident]) -> dict[str, Any]:
    """The answer of `detect`."""
    return {
        "success": True,
        "action": "detect",
        "errors_found": found,
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


def handled(begun: Begun, error: str, now: float) -> dict[str, Any]:
    """The answer of `handle`. error: why the recovery failed; only then the key is there."""
    one = begun.incident
    scheduled = begun.plan.kind == "wait"
    answer = {
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
            "timestamp": iso(now),
        },
    }
    return {**answer, "error": error} if error else answer


def recovered(
    task_id: str, strategy: RecoveryStrategy, new_agent_id: str | None, error: str, now: float
) -> dict[str, Any]:
    """The answer of `recover`."""
    return {
        "success": not error,
        "action": "recover",
        "task_id": task_id,
        "recovery_strategy": str(strategy),
        "new_agent_id": new_agent_id,
        "recovery_timestamp": iso(now),
        "message": f"Recovery failed: {error}" if error else _DONE[strategy],
    }


def escalated(one: Incident, told: int, now: float) -> dict[str, Any]:
    """The answer of `escalate`."""
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
            "timestamp": iso(now),
        },
    }


def closed(one: Incident, action: str, now: float) -> dict[str, Any]:
    """The answer of `acknowledge` and `resolve`."""
    return {
        "success": True,
        "action": action,
        "error_id": one.error_id,
        "status": str(one.status),
        "timestamp": iso(now),
    }
