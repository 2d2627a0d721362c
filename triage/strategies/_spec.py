"""Strategies by name, as a policy file writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, cast

from triage._options import misuse, nearest
from triage.actions import ACTIONS, Abort, Escalate, Suspend
from triage.errors import UsageError
from triage.gates import CircuitBreaker, RetryBudget

from ._base import Strategy, as_strategy
from .backoff import Backoff, Preset
from .breaker import circuit_breaker
from .combining import by_severity, chain, sequence
from .gated import behind_gate, within_budget
from .replanning import (
    compensating_rollback,
    replan,
    resume_from_subgoal,
    rollback_to_checkpoint,
)
from .retrying import backoff_and_retry, retry_with_tool_manifest

_NAMED: dict[str, type[Any]] = {
    made.__name__: made
    for made in (
        backoff_and_retry,
        retry_with_tool_manifest,
        replan,
        rollback_to_checkpoint,
        compensating_rollback,
        resume_from_subgoal,
        circuit_breaker,
        within_budget,
        behind_gate,
        chain,
        by_severity,
    )
} | {"escalate": Escalate, "abort": Abort, "suspend": Suspend}

_PRESETS = ("CAPABILITY", "INFRA", "EXTRACT", "CLASSIFY", "LLM", "WRITE")
_OF_A_BREAKER = ("failures", "cooldown_s")
_OF_A_BUDGET = ("retries", "per_success", "per_second")
_NESTED = ("inner", "primary", "fallback", "otherwise", "retriable", "replanning",
           "reclassification", "critical")  # fmt: skip


def strategy_from(spec: object, where: str) -> Strategy:
    """The strategy that a name, a table or a list describes; UsageError begins with `where`."""
    if isinstance(spec, str):
        return _made(spec, {}, where)
    if isinstance(spec, Mapping):
        table = dict(cast("Mapping[str, Any]", spec))
        name = table.pop("strategy", None)
        if not isinstance(name, str):
            wanted = "the name of a strategy"
            raise misuse(f"{where}.strategy", name, wanted, 'write { strategy = "replan" }')
        return _made(name, table, where)
    if isinstance(spec, list | tuple):
        items = cast("list[object]", spec)
        if not items:
            raise UsageError(f"{where} is an empty list; name at least one strategy")
        return sequence(*(strategy_from(item, f"{where}[{n}]") for n, item in enumerate(items)))
    if isinstance(spec, ACTIONS) or callable(spec):
        return as_strategy(where, spec)
    raise misuse(where, spec, "the name of a strategy, a table or a list of them")


def _made(name: str, arguments: dict[str, Any], where: str) -> Strategy:
    if name not in _NAMED:
        known = ", ".join(_NAMED)
        guess = nearest(name, _NAMED) or f"the strategies are {known}"
        raise UsageError(f"{where}: there is no strategy {name!r}; {guess}")
    kind = _NAMED[name]
    if kind is circuit_breaker:
        arguments = _with_own(arguments, where, "breaker", CircuitBreaker, _OF_A_BREAKER)
    if kind is within_budget:
        arguments = _with_own(arguments, where, "budget", RetryBudget, _OF_A_BUDGET)
    if kind is behind_gate:
        arguments.setdefault("inner", "backoff_and_retry")
    arguments = {
        key: strategy_from(value, f"{where}.{key}") if key in _NESTED else value
        for key, value in arguments.items()
    }
    if kind is backoff_and_retry and "backoff" in arguments:
        arguments["backoff"] = _backoff(arguments["backoff"], f"{where}.backoff")
    if kind is chain and "after" in arguments:
        arguments["after"] = _after(arguments["after"], f"{where}.after")
    return as_strategy(where, _build(kind, name, arguments, where))


def _build(kind: Callable[..., Any], name: str, arguments: Mapping[str, Any], where: str) -> Any:
    known = [field.name for field in fields(cast("Any", kind)) if field.init]
    for key in arguments:
        if key not in known:
            guess = nearest(key, known) or f"it takes {', '.join(known)}"
            raise UsageError(f"{where}: {name} has no argument {key!r}; {guess}")
    try:
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: {error}") from error


def _backoff(value: object, where: str) -> Backoff:
    if isinstance(value, str):
        if value not in _PRESETS:
            guess = nearest(value, _PRESETS) or f"the presets are {', '.join(_PRESETS)}"
            raise UsageError(f"{where}: there is no preset {value!r}; {guess}")
        return cast("Preset", getattr(Backoff, value)).backoff
    if isinstance(value, Mapping):
        table = cast("Mapping[str, Any]", value)
        return cast("Backoff", _build(Backoff, "backoff", table, where))
    if isinstance(value, Backoff):
        return value
    raise misuse(where, value, "the name of a preset or a table with base, factor, cap, jitter")


def _with_own(
    arguments: Mapping[str, Any],
    where: str,
    field: str,
    make: Callable[..., Any],
    of: tuple[str, ...],
) -> dict[str, Any]:
    """The arguments with a breaker or a budget of this entry's own, unless there is one."""
    rest = dict(arguments)
    if field not in rest:
        own = {key: rest.pop(key) for key in of if key in rest}
        try:
            rest[field] = make(**own)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from error
    rest.setdefault("inner", "backoff_and_retry")
    return rest


def _after(value: object, where: str) -> tuple[type[Any], ...]:
    kinds = {action.kind: action for action in ACTIONS}
    names = cast("list[object]", value) if isinstance(value, list | tuple) else [value]
    for name in names:
        if not isinstance(name, str) or name not in kinds:
            guess = nearest(name, kinds) if isinstance(name, str) else ""
            raise misuse(where, name, "one of " + ", ".join(kinds), guess)
    return tuple(kinds[cast("str", name)] for name in names)
