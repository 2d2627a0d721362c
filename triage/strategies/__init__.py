"""Ready-made answers to a failure. A strategy declares what to do and does nothing itself.

Any function of a `FailureContext` that returns an action is a strategy, async or not. These are
values: frozen, comparable, and printed as they are written.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

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


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used, as in `triage` itself."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'triage.strategies' has no attribute {name!r}")
    value = getattr(import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
