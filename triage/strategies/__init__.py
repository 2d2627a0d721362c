"""Ready-made answers to a failure. A strategy declares what to do and does nothing itself.

Any function of a `FailureContext` that returns an action is a strategy, async or not. These are
values: frozen, comparable, and printed as they are written.
"""

from __future__ import annotations

from ._base import Strategy, always
from .backoff import Backoff, Preset
from .breaker import CircuitBreaker, circuit_breaker
from .combining import by_severity, chain, sequence
from .replanning import (
    compensating_rollback,
    replan,
    resume_from_subgoal,
    rollback_to_checkpoint,
)
from .retrying import backoff_and_retry, retry_with_tool_manifest

__all__ = [
    "Backoff",
    "CircuitBreaker",
    "Preset",
    "Strategy",
    "always",
    "backoff_and_retry",
    "by_severity",
    "chain",
    "circuit_breaker",
    "compensating_rollback",
    "replan",
    "resume_from_subgoal",
    "retry_with_tool_manifest",
    "rollback_to_checkpoint",
    "sequence",
]
