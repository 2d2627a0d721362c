"""Choose the strategy for a failure: `FailurePolicy`."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias, TypedDict, Unpack, cast

from msgspec import Struct

from triage.core.actions import ACTIONS, Abort, Action, Escalate, Suspend
from triage.core.asking import TooSlow, ask, deadline_of
from triage.core.diagnosis import Diagnosis
from triage.core.errors import UsageError, closest, misuse, nearest
from triage.core.failures import FailureContext
from triage.core.taxonomy import Cause, FailureType, Recovery

from . import ready_made
from .asking import ask_again, break_loop, repair_arguments, shrink_context
from .base import Strategy, always, answer_of, as_strategy, read_toml, takes_no_time
from .gates import CircuitBreaker, RetryBudget, behind_gate, circuit_breaker, within_budget
from .limits import Limits


class Dispatches(Protocol):
    """A policy of your own: an object that decides what to do about a failure, sync or async."""

    def dispatch(self, context: FailureContext, /) -> Action | Awaitable[Action]:
        """The action for this failure."""
        ...


Policy: TypeAlias = Dispatches | Callable[[FailureContext], Action | Awaitable[Action]]
"""What `Agent(policy=…)` takes: a `FailurePolicy`, an object with `dispatch`, or a function."""
Answering: TypeAlias = Strategy | Action | None
"""What a policy accepts for a failure type: a strategy, an action that is always taken, or None."""


class ByType(TypedDict, total=False):
    """The ten failure types as keywords."""

    WRONG_TOOL_CALLED: Answering
    CONSTRAINT_IGNORED: Answering
    LOOP_DETECTED: Answering
    HALLUCINATED_STATE: Answering
    PLAN_INCOMPLETE: Answering
    SCHEMA_MISMATCH: Answering
    CONTEXT_OVERFLOW: Answering
    GOAL_DRIFT: Answering
    EXTERNAL_FAULT: Answering
    UNKNOWN: Answering


_LONGEST_REASON = 200


@dataclass(frozen=True, init=False, repr=False)
class FailurePolicy:
    """Which strategy answers which failure.

    Each of the ten failure types is a keyword: a strategy (a function of the `FailureContext` that
    returns an action, sync or async), an action that is always taken, or None. default: for the types
    that have none; None escalates them. causes: strategies by `Cause`, or by an application's own
    cause, looked up first. recoveries: strategies by what the exception says would help
    (`triage.core.faults`, `triage.hint(recovery=…)`), looked up before the failure type. None under
    either is no strategy.

    Raises UsageError for an unknown failure type, naming the closest known one, and for a value that is
    not a strategy.

    >>> FailurePolicy(LOOP_DETECTED=replan("Try another source."), default=Escalate())
    FailurePolicy(LOOP_DETECTED=replan(hint='Try another source.', max_replans=3), \
default=Escalate(reason=None))
    """

    strategies: Mapping[FailureType, Strategy]
    causes: Mapping[str, Strategy]
    recoveries: Mapping[Recovery, Strategy]
    default: Strategy | None

    def __init__(
        self,
        *,
        default: Answering = None,
        causes: Mapping[Cause | str, Answering] | None = None,
        recoveries: Mapping[Recovery | str, Answering] | None = None,
        **strategies: Unpack[ByType],
    ) -> None:
        by_type: dict[FailureType, Strategy] = {}
        for name, value in cast("Mapping[str, Any]", strategies).items():
            if name not in FailureType.__members__:
                raise UsageError(f"FailurePolicy has no failure type {name!r}{_known(name)}")
            if value is not None:
                by_type[FailureType[name]] = as_strategy(f"FailurePolicy.{name}", value)
        by_cause = {
            _cause(key): as_strategy(f"FailurePolicy.causes[{str(key)!r}]", value)
            for key, value in _mapping("causes", causes).items()
            if value is not None
        }
        by_recovery = {
            _recovery(key): as_strategy(f"FailurePolicy.recoveries[{str(key)!r}]", value)
            for key, value in _mapping("recoveries", recoveries).items()
            if value is not None
        }
        set_ = object.__setattr__
        ordered = {kind: by_type[kind] for kind in FailureType if kind in by_type}
        set_(self, "strategies", ordered)
        set_(self, "causes", by_cause)
        set_(self, "recoveries", by_recovery)
        fallback = None if default is None else as_strategy("FailurePolicy.default", default)
        set_(self, "default", fallback)

    def __repr__(self) -> str:
        parts = [f"{kind.name}={strategy!r}" for kind, strategy in self.strategies.items()]
        if self.default is not None:
            parts.append(f"default={self.default!r}")
        for name, table in (("causes", self.causes), ("recoveries", self.recoveries)):
            if table:
                inner = ", ".join(f"{str(key)!r}: {value!r}" for key, value in table.items())
                parts.append(f"{name}={{{inner}}}")
        return f"FailurePolicy({', '.join(parts)})"

    def __hash__(self) -> int:
        return hash((tuple(self.strategies), frozenset(self.causes)))

    def strategy_for(self, diagnosis: Diagnosis) -> Strategy | None:
        """Return the strategy for the cause, else the recovery, else the failure type, else the default.

        None if there is none of these.
        """
        return self._found(diagnosis)[1]

    def _found(self, diagnosis: Diagnosis) -> tuple[str, Strategy | None]:
        """The strategy for a diagnosis, and the key under which it stands."""
        cause, recovery, kind = diagnosis.cause, diagnosis.recovery, diagnosis.failure_type
        if cause is not None and cause in self.causes:
            return f"causes.{cause}", self.causes[cause]
        if recovery is not None and recovery in self.recoveries:
            return f"recoveries.{recovery}", self.recoveries[recovery]
        if kind in self.strategies:
            return kind.name, self.strategies[kind]
        return "default", self.default

    async def dispatch(self, context: FailureContext) -> Action:
        """Decide what to do about this failure. Always returns an action and raises no Exception.

        If a strategy raises, returns something else than an action, or takes longer than its `deadline`
        (an attribute, in seconds; 30 without one) or the run's, the result is an Escalate whose reason
        names the strategy and what it did; a failure type without a strategy escalates, too. A sync
        strategy of the user's is called in a worker thread.
        Cancellation and other BaseExceptions propagate.
        """
        key, strategy = self._found(context.diagnosis)
        context.note("key", key)
        if strategy is None:
            kind = context.failure_type
            remedy = f"give the policy {kind.name}=… or default=…"
            return Escalate(f"the policy has no strategy for {kind}; {remedy}")
        try:
            answer: object
            if takes_no_time(strategy):
                answer = answer_of(strategy, context)
                if not isinstance(answer, ACTIONS) and isawaitable(answer):
                    answer = await answer
            else:
                seconds = deadline_of(strategy)
                left = context.seconds_left
                asked = partial(
                    _answer_awaited if iscoroutinefunction(strategy) else answer_of, strategy
                )
                answer = await ask(asked, context, seconds=seconds, seconds_left=left)
            if isinstance(answer, ACTIONS):
                return answer
        except TooSlow as slow:
            return Escalate(f"the strategy {_named(strategy)} {slow}")
        except Exception as error:
            return Escalate(f"the strategy {_named(strategy)} raised {_told(error)}")
        return Escalate(f"the strategy {_named(strategy)} answered {no_action(answer)}")

    def replace(
        self,
        *,
        causes: Mapping[Cause | str, Answering] | None = None,
        recoveries: Mapping[Recovery | str, Answering] | None = None,
        **changes: Unpack[_Changes],
    ) -> FailurePolicy:
        """Copy this policy with other strategies for some types; None removes the strategy of a type.

        causes, recoveries: added to the present ones; None removes one. Raises as the constructor does.
        """
        merged: dict[str, Any] = {kind.name: value for kind, value in self.strategies.items()}
        merged["default"] = self.default
        merged.update(changes)
        all_causes = (*self.causes.items(), *_mapping("causes", causes).items())
        all_recoveries = (*self.recoveries.items(), *_mapping("recoveries", recoveries).items())
        return FailurePolicy(
            causes={_cause(key): value for key, value in all_causes},
            recoveries={_recovery(key): value for key, value in all_recoveries},
            **merged,
        )

    @staticmethod
    def escalate_by_default() -> Strategy:
        """For `default=`: escalate whatever has no strategy of its own."""
        return always(Escalate("no strategy of the policy is for this failure"))

    @classmethod
    def recommended(
        cls,
        *,
        models: Iterable[str] = (),
        substitutes: Mapping[str, Iterable[str]] | None = None,
    ) -> Self:
        """Make the policy of an agent that is given none.

        | failure type | answer, counted per type and run |
        |---|---|
        | EXTERNAL_FAULT that may pass | wait and try again for `Limits.outage_seconds`, for 20 s where a \
model can choose another tool; another model, a substitute; one new plan that names the failed call |
        | EXTERNAL_FAULT, not there (404) | the same without waiting |
        | EXTERNAL_FAULT that never passes | a credential that expired is fetched again once |
        | SCHEMA_MISMATCH | ask again up to 3 times, told each wrong field |
        | WRONG_TOOL_CALLED | ask again up to 3 times, told which tools exist |
        | LOOP_DETECTED | go back before the loop once, told what was repeated; one new plan |
        | CONTEXT_OVERFLOW | leave old outputs of tools out, summarize; after a cut answer, ask again \
up to 2 times; one new plan |
        | HALLUCINATED_STATE | ask again up to 2 times with the evidence; roll back once; one new plan |
        | CONSTRAINT_IGNORED, GOAL_DRIFT | ask again up to 2 times with the evidence; one new plan |
        | PLAN_INCOMPLETE | the first open subgoal, up to 3 times; else as CONSTRAINT_IGNORED |
        | UNKNOWN | try again twice |

        Then it escalates. At once escalate: every diagnosis that is CRITICAL (a wrong key, a spent
        quota, a bug), as no repetition cures it, and the causes CONTENT_FILTER and GUARDRAIL, as a
        refusal on grounds of safety must not be worked around. The cause OMITTED_FAILURE is asked again up
        to 2 times.

        What an exception says would help comes before its type: retry as EXTERNAL_FAULT, regenerate up
        to 3 times at once, told what was wrong, replan and reclassify up to 2 times (each by another plan),
        and ask, configure and never by escalating.

        models: other models to use, in this order, when the current one is down, refuses the key or no
        longer exists. substitutes: by the name of a tool, names of tools that do the same. Raises
        UsageError for invalid names.
        """
        again = ready_made.by_severity(ready_made.replan(max_replans=2))
        plan_once = ready_made.replan(max_replans=1)
        shown = ready_made.chain(ask_again(2), plan_once)
        refused = Escalate("refused on grounds of safety, which must not be worked around")
        others = _others(models, substitutes)
        held_out = _chained(
            ready_made.backoff_and_retry(None, ready_made.Backoff(cap=30.0)), *others, plan_once
        )
        return cls(
            WRONG_TOOL_CALLED=ready_made.retry_with_tool_manifest(3),
            CONSTRAINT_IGNORED=ready_made.by_severity(shown),
            LOOP_DETECTED=ready_made.by_severity(ready_made.chain(break_loop(1), plan_once)),
            HALLUCINATED_STATE=ready_made.by_severity(
                ready_made.chain(
                    ask_again(2),
                    ready_made.chain(ready_made.rollback_to_checkpoint(max_rollbacks=1), plan_once),
                )
            ),
            PLAN_INCOMPLETE=ready_made.by_severity(
                ready_made.chain(ready_made.resume_from_subgoal(3), shown)
            ),
            SCHEMA_MISMATCH=repair_arguments(3),
            CONTEXT_OVERFLOW=ready_made.by_severity(
                ready_made.chain(shrink_context(keep_last=10), plan_once)
            ),
            GOAL_DRIFT=ready_made.by_severity(shown),
            EXTERNAL_FAULT=ready_made.by_severity(
                held_out, critical=_chained(ready_made.retry_expired_credential(1), *others)
            ),
            UNKNOWN=ready_made.backoff_and_retry(2, ready_made.Backoff(jitter=False)),
            causes={
                Cause.CONTENT_FILTER: refused,
                Cause.GUARDRAIL: refused,
                Cause.OMITTED_FAILURE: ask_again(2),
            },
            recoveries={
                Recovery.RETRY: held_out,
                Recovery.REGENERATE: ready_made.backoff_and_retry(3, ready_made.Backoff(base=0.0)),
                Recovery.REPLAN: again,
                Recovery.RECLASSIFY: again,
                Recovery.ASK: Escalate("the failing code asks for a person"),
                Recovery.CONFIGURE: Escalate("a setting must be changed"),
                Recovery.NEVER: refused,
            },
        )

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Read a policy from a TOML file.

            LOOP_DETECTED = "replan"
            EXTERNAL_FAULT = { strategy = "backoff_and_retry", max_attempts = 5, backoff = "LLM" }
            UNKNOWN = ["backoff_and_retry", { strategy = "abort", reason = "twice" }]
            default = "escalate"

            [causes]
            auth = "abort"

            [recoveries]
            ask = "suspend"

        A value is the name of a strategy, a table with its name and arguments, or a list of these
        for a `sequence`. The names are those of `triage.strategies`, and `escalate`, `abort` and
        `suspend`. A `backoff` is a table (`base`, `factor`, `cap`, `jitter`) or the name of a
        preset. Raises UsageError, which names the file, the key and the closest valid name.
        """
        name = os.fspath(path)
        return cls._described(read_toml(Path(path), name), name)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a policy from a mapping of the same form as the file of `from_file`.

        Keys may also be `FailureType` members or their names in any case; values may also be
        strategies, actions or None. Raises UsageError as `from_file` does.
        """
        if not isinstance(data, Mapping):
            raise misuse(
                "FailurePolicy.from_dict", data, "a mapping of failure types to strategies"
            )
        return cls._described(data, "FailurePolicy.from_dict")

    @classmethod
    def _described(cls, data: Mapping[str, Any], where: str) -> Self:
        given: dict[str, Any] = {}
        for key, value in data.items():
            if key in ("causes", "recoveries"):
                if not isinstance(value, Mapping):
                    raise misuse(f"{where}: {key}", value, f"a table of {key} to strategies")
                table = cast("Mapping[str, Any]", value)
                given[key] = {
                    word: None if spec is None else strategy_from(spec, f"{where}: {key}.{word}")
                    for word, spec in table.items()
                }
                continue
            name = _named_type(key)
            if name is None:
                raise UsageError(f"{where}: {_misplaced(key)}")
            if name in given:
                raise UsageError(f"{where}: {name} is given twice; give it one strategy")
            given[name] = None if value is None else strategy_from(value, f"{where}: {name}")
        return cls(**given)


async def _answer_awaited(strategy: Strategy, context: FailureContext) -> object:
    """Ask an async strategy, in the event loop."""
    return await cast("Awaitable[object]", answer_of(strategy, context))


def _chained(first: Strategy, *rest: Strategy) -> Strategy:
    return ready_made.chain(first, _chained(*rest)) if rest else first


def _others(models: object, substitutes: object) -> list[Strategy]:
    """Make the strategies that replace a model or a tool that is down."""
    others: list[Strategy] = []
    field = "FailurePolicy.recommended"
    if isinstance(models, str) or not isinstance(models, Iterable):
        raise misuse(f"{field}(models=…)", models, "a list of names", "write models=[name]")
    named = tuple(models)
    if named:
        others.append(ready_made.switch_model(named))
    if substitutes is not None:
        if not isinstance(substitutes, Mapping):
            wanted = "a mapping of a tool's name to those of its substitutes"
            raise misuse(f"{field}(substitutes=…)", substitutes, wanted)
        others += [ready_made.substitute(tool, by=by) for tool, by in substitutes.items()]
    return others


def as_policy(value: object) -> FailurePolicy:
    """Return `value` as a policy: an object with `dispatch(context)` or a function of the context answers
    every failure. Raises UsageError for anything else.
    """
    if isinstance(value, FailurePolicy):
        return value
    field = "Agent(policy=…)"
    if isinstance(value, type):
        remedy = f"make one: {value.__name__}(…)"
        raise UsageError(f"{field} must be a policy, not the class {value.__name__}; {remedy}")
    answering = getattr(value, "dispatch", value)
    if isinstance(value, ACTIONS) or not callable(answering):
        wanted = "a FailurePolicy, an object with dispatch(context) or a function of the context"
        raise misuse(field, value, wanted, "write FailurePolicy(default=…)")
    return FailurePolicy(default=as_strategy(field, answering))


class _Changes(ByType, total=False):
    default: Answering


def _misplaced(key: object) -> str:
    """What is wrong with a key that a policy does not have."""
    if key == "limits":
        return "limits are no part of a policy; write Agent(limits=Limits(…)), or give --limit NAME=VALUE"
    if key in Limits.__struct_fields__:
        return (
            f"{key!r} is a limit, which is no part of a policy; write Agent(limits=Limits({key}=…)), or "
            f"give --limit {key}=VALUE"
        )
    return f"{key!r} is no failure type{_known(key)}"


def _known(name: object) -> str:
    keys = (*FailureType.__members__, "default", "causes", "recoveries")
    return f"; {nearest(str(name), keys) or 'the keys are ' + ', '.join(keys)}"


def _named_type(key: object) -> str | None:
    """Return a key of a policy file as the name of a failure type, in any case, or `default`."""
    if not isinstance(key, str):
        return None
    name = key.name if isinstance(key, FailureType) else key.upper()
    if name in FailureType.__members__:
        return name
    return key if key == "default" else None


_ALMOST = 0.85
"""Similarity from which an application's own cause is refused as a misspelt `Cause`."""


def _cause(key: object) -> str:
    """Return a key of `causes`; the name of a Cause, in any case, becomes that Cause."""
    if not isinstance(key, str) or not key:
        raise misuse("FailurePolicy.causes key", key, "a Cause or a text")
    known = Cause.__members__.get(key.upper())
    if known is not None:
        return known
    close = closest(key, map(str, Cause), _ALMOST)
    if close not in (None, key):
        raise misuse(
            "FailurePolicy.causes key",
            key,
            "a Cause, or a cause of your own",
            f"did you mean {close!r}?",
        )
    return key


def _recovery(key: object) -> Recovery:
    """Return a key of `recoveries`, given by its value or its name in upper case."""
    try:
        return Recovery(Recovery.__members__.get(cast("str", key), cast("str", key)))
    except (TypeError, ValueError):
        raise misuse("FailurePolicy.recoveries key", key, "one of " + ", ".join(Recovery)) from None


def _mapping(name: str, value: object) -> Mapping[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise misuse(f"FailurePolicy.{name}", value, f"a mapping of {name} to strategies")
    return value


def no_action(answer: object) -> str:
    """Describe what was returned instead of an action, and what to write instead."""
    if isinstance(answer, type):
        return f"the class {answer.__name__}, which is no action; write {answer.__name__}()"
    return f"{type(answer).__name__}, which is no action"


def _named(strategy: object) -> str:
    name = getattr(strategy, "__qualname__", None)
    return name if isinstance(name, str) else type(strategy).__name__


def _told(error: Exception) -> str:
    """Describe the error and where it was raised, since the run does not raise it itself."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    code = None if trace is None else trace.tb_frame.f_code
    where = "" if code is None or trace is None else f" at {code.co_filename}:{trace.tb_lineno}"
    try:
        text = repr(error)
    except Exception:
        text = type(error).__name__
    return f"{text[:_LONGEST_REASON]}{where}"


# Strategies by name, as a policy file writes them.


_NAMED: Mapping[str, type[Struct]] = {
    made.__name__: made
    for made in (
        ready_made.backoff_and_retry,
        ready_made.retry_expired_credential,
        ready_made.retry_with_tool_manifest,
        ask_again,
        break_loop,
        repair_arguments,
        shrink_context,
        ready_made.switch_model,
        ready_made.substitute,
        ready_made.replan,
        ready_made.rollback_to_checkpoint,
        ready_made.compensating_rollback,
        ready_made.resume_from_subgoal,
        circuit_breaker,
        within_budget,
        behind_gate,
        ready_made.chain,
        ready_made.by_severity,
    )
} | {"escalate": Escalate, "abort": Abort, "suspend": Suspend}

_PRESETS = ("CAPABILITY", "INFRA", "EXTRACT", "CLASSIFY", "LLM", "WRITE")
_OF_A_BREAKER = ("failures", "cooldown_s")
_OF_A_BUDGET = ("retries", "per_success", "per_second")
_NESTED = ("inner", "primary", "fallback", "otherwise", "retriable", "replanning",
           "reclassification", "critical")  # fmt: skip


def strategy_from(spec: object, where: str) -> Strategy:
    """Read a strategy from a name, a table or a list. Raises UsageError beginning with `where`."""
    if isinstance(spec, str):
        return _strategy_named(spec, {}, where)
    if isinstance(spec, Mapping):
        table = dict(cast("Mapping[str, Any]", spec))
        name = table.pop("strategy", None)
        if not isinstance(name, str):
            wanted = "the name of a strategy"
            raise misuse(f"{where}.strategy", name, wanted, 'write { strategy = "replan" }')
        return _strategy_named(name, table, where)
    if isinstance(spec, list | tuple):
        items = cast("list[object]", spec)
        if not items:
            raise UsageError(f"{where} is an empty list; name at least one strategy")
        return ready_made.sequence(
            *(strategy_from(item, f"{where}[{n}]") for n, item in enumerate(items))
        )
    if isinstance(spec, ACTIONS) or callable(spec):
        return as_strategy(where, spec)
    raise misuse(where, spec, "the name of a strategy, a table or a list of them")


def _strategy_named(name: str, arguments: dict[str, Any], where: str) -> Strategy:
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
    if kind is ready_made.backoff_and_retry and "backoff" in arguments:
        arguments["backoff"] = _backoff(arguments["backoff"], f"{where}.backoff")
    if kind is ready_made.chain and "after" in arguments:
        arguments["after"] = _after(arguments["after"], f"{where}.after")
    return as_strategy(where, _build(kind, name, arguments, where))


def _build(kind: type[Struct], name: str, arguments: Mapping[str, Any], where: str) -> Any:
    known = kind.__struct_fields__
    for key in arguments:
        if key not in known:
            guess = nearest(key, known) or f"it takes {', '.join(known)}"
            raise UsageError(f"{where}: {name} has no argument {key!r}; {guess}")
    try:
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: {error}") from error


def _backoff(value: object, where: str) -> ready_made.Backoff:
    if isinstance(value, str):
        if value not in _PRESETS:
            guess = nearest(value, _PRESETS) or f"the presets are {', '.join(_PRESETS)}"
            raise UsageError(f"{where}: there is no preset {value!r}; {guess}")
        return cast("ready_made.Preset", getattr(ready_made.Backoff, value)).backoff
    if isinstance(value, Mapping):
        table = cast("Mapping[str, Any]", value)
        return cast("ready_made.Backoff", _build(ready_made.Backoff, "backoff", table, where))
    if isinstance(value, ready_made.Backoff):
        return value
    raise misuse(where, value, "the name of a preset or a table with base, factor, cap, jitter")


def _with_own(
    arguments: Mapping[str, Any],
    where: str,
    field: str,
    make: Callable[..., Any],
    of: tuple[str, ...],
) -> dict[str, Any]:
    """Add a breaker or budget of its own to the arguments, unless one is given."""
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
