"""Ready-made answers to a failure. A strategy declares what to do and does nothing itself.

Any function of a `FailureContext` that returns an action is a strategy, async or not. These are
values: frozen, comparable, and printed as they are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from triage._lazy import lazily as _lazily

from ._base import Strategy, always

if TYPE_CHECKING:
    from .backoff import Backoff, Preset
    from .breaker import CircuitBreaker, circuit_breaker
    from .combining import by_severity, chain, sequence
    from .gated import behind_gate, within_budget
    from .replanning import (
        compensating_rollback,
        replan,
        resume_from_subgoal,
        rollback_to_checkpoint,
    )
    from .retrying import backoff_and_retry, retry_with_tool_manifest

_HOMES = {
    "backoff": ("Backoff", "Preset"),
    "breaker": ("CircuitBreaker", "circuit_breaker"),
    "combining": ("by_severity", "chain", "sequence"),
    "gated": ("behind_gate", "within_budget"),
    "replanning": (
        "compensating_rollback", "replan", "resume_from_subgoal", "rollback_to_checkpoint",
    ),
    "retrying": ("backoff_and_retry", "retry_with_tool_manifest"),
}  # fmt: skip

__all__ = [
    "Backoff",
    "CircuitBreaker",
    "Preset",
    "Strategy",
    "always",
    "backoff_and_retry",
    "behind_gate",
    "by_severity",
    "chain",
    "circuit_breaker",
    "compensating_rollback",
    "replan",
    "resume_from_subgoal",
    "retry_with_tool_manifest",
    "rollback_to_checkpoint",
    "sequence",
    "within_budget",
]

__getattr__, __dir__ = _lazily(__name__, _HOMES)
