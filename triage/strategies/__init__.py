"""Ready-made answers to a failure. A strategy declares what to do and does nothing itself.

Any function of a `FailureContext` that returns an action is a strategy, async or not. These are
values: frozen, comparable, and printed as they are written.
"""

from __future__ import annotations

from triage.core.constructors import check_constructors

from .asking import ask_again, break_loop, repair_arguments, shrink_context
from .base import Strategy, always, shown_strategy
from .gates import (
    Breaker,
    Budget,
    CircuitBreaker,
    Gate,
    RateGate,
    RetryBudget,
    behind_gate,
    circuit_breaker,
    within_budget,
)
from .layers import (
    RetryLayer,
    retry_layers,
    single_retry_layer,
    warn_of_retries,
    warn_of_retries_in,
)
from .limits import Limits, delay_of, limit_of
from .passage import Passage
from .policy import FailurePolicy, Policy, as_policy
from .prices import Price, Prices
from .ready_made import (
    Backoff,
    Preset,
    backoff_and_retry,
    by_severity,
    chain,
    compensating_rollback,
    replan,
    resume_from_subgoal,
    retry_expired_credential,
    retry_with_tool_manifest,
    rollback_to_checkpoint,
    sequence,
    substitute,
    switch_model,
)

__all__ = [
    "Backoff",
    "Breaker",
    "Budget",
    "CircuitBreaker",
    "FailurePolicy",
    "Gate",
    "Limits",
    "Passage",
    "Policy",
    "Preset",
    "Price",
    "Prices",
    "RateGate",
    "RetryBudget",
    "RetryLayer",
    "Strategy",
    "always",
    "as_policy",
    "ask_again",
    "backoff_and_retry",
    "behind_gate",
    "break_loop",
    "by_severity",
    "chain",
    "circuit_breaker",
    "compensating_rollback",
    "delay_of",
    "limit_of",
    "repair_arguments",
    "replan",
    "resume_from_subgoal",
    "retry_expired_credential",
    "retry_layers",
    "retry_with_tool_manifest",
    "rollback_to_checkpoint",
    "sequence",
    "shown_strategy",
    "shrink_context",
    "single_retry_layer",
    "substitute",
    "switch_model",
    "warn_of_retries",
    "warn_of_retries_in",
    "within_budget",
]

check_constructors(globals())
