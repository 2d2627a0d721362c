"""What is done about an incident: decided from values alone."""

from __future__ import annotations

from typing import Literal, NamedTuple

from triage.taxonomy import Level

from ._model import Incident, RecoveryStrategy, Status
from ._settings import Hooks, Retries, Threshold


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
