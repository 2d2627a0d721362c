"""Which strategy answers which failure: `FailurePolicy`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypedDict, cast

from ._options import misuse, nearest
from ._written import Written
from .actions import ACTIONS, Abort, Action, Escalate, RecoveryAction
from .errors import UsageError
from .strategies._base import Strategy, always, as_strategy
from .taxonomy import Cause, FailureType, Recovery

if TYPE_CHECKING:
    from typing import Unpack

    from .diagnosis import Diagnosis
    from .failures import FailureContext
    from .strategies.combining import chain, sequence

Answering: TypeAlias = Strategy | Action | None
"""What a policy takes for a failure type: a strategy, an action that is always taken, or None."""


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


@dataclass(frozen=True, init=False, eq=False, repr=False)
class FailurePolicy(Written):
    """Which strategy answers which failure.

    Each of the ten failure types is a keyword: a strategy (a function of the `FailureContext` that
    returns an action, sync or async), an action instance that is always taken, or None. default:
    for the types that have none; None escalates them. causes: strategies for a `Cause`, or for an
    application's own cause, looked up first. recoveries: strategies for what an exception says would
    help (`triage.faults`, `triage.hint(recovery=…)`), looked up before the failure type.

    Raises UsageError for a keyword that is no failure type, with the closest one that is, and for
    a value that is no strategy.

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
        causes: Mapping[Cause | str, Strategy | Action] | None = None,
        recoveries: Mapping[Recovery | str, Strategy | Action] | None = None,
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
        }
        by_recovery = {
            _recovery(key): as_strategy(f"FailurePolicy.recoveries[{str(key)!r}]", value)
            for key, value in _mapping("recoveries", recoveries).items()
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
        """The strategy for its cause, else for its recovery, else for its failure type, else the default;
        None without.
        """
        if diagnosis.cause is not None and diagnosis.cause in self.causes:
            return self.causes[diagnosis.cause]
        if diagnosis.recovery is not None and diagnosis.recovery in self.recoveries:
            return self.recoveries[diagnosis.recovery]
        return self.strategies.get(diagnosis.failure_type, self.default)

    async def dispatch(self, context: FailureContext) -> Action:
        """What to do about this failure. Always answers an action and raises no Exception.

        A strategy that raises, or answers something that is no action, gives an Escalate whose
        reason names the strategy and what it did; so does a failure type without a strategy.
        Cancellation and other BaseExceptions pass.
        """
        strategy = self.strategy_for(context.diagnosis)
        if strategy is None:
            kind = context.failure_type
            remedy = f"give the policy {kind.name}=… or default=…"
            return Escalate(f"the policy has no strategy for {kind}; {remedy}")
        try:
            answer: object = strategy(context)
            if not isinstance(answer, ACTIONS) and isawaitable(answer):
                answer = await answer
            if isinstance(answer, ACTIONS):
                return answer
        except Exception as error:  # noqa: BLE001 - a strategy may raise anything
            return Escalate(f"the strategy {_named(strategy)} raised {_told(error)}")
        return Escalate(
            f"the strategy {_named(strategy)} answered {type(answer).__name__}, which is no action"
        )

    def replace(
        self,
        *,
        causes: Mapping[Cause | str, Strategy | Action] | None = None,
        recoveries: Mapping[Recovery | str, Strategy | Action] | None = None,
        **changes: Unpack[_Changes],
    ) -> FailurePolicy:
        """This policy with other strategies for some types; None takes a type's strategy away.

        causes, recoveries: added to those there are. Raises as the constructor does.
        """
        merged: dict[str, Any] = {kind.name: value for kind, value in self.strategies.items()}
        merged["default"] = self.default
        merged.update(changes)
        by_cause = {**self.causes, **_mapping("causes", causes)}
        by_recovery = {**self.recoveries, **_mapping("recoveries", recoveries)}
        return FailurePolicy(causes=by_cause, recoveries=by_recovery, **merged)

    @staticmethod
    def sequence(*strategies: Strategy | Action) -> sequence:
        """The n-th failure of a type in a run gets the n-th strategy; after the last, Escalate."""
        from .strategies.combining import sequence

        return sequence(*strategies)

    @staticmethod
    def chain(
        primary: Strategy | Action,
        fallback: Strategy | Action,
        after: tuple[type[RecoveryAction], ...] = (Escalate,),
    ) -> chain:
        """`primary`, and `fallback` whenever primary answers one of `after`."""
        from .strategies.combining import chain

        return chain(primary, fallback, after)

    @staticmethod
    def escalate_by_default() -> Strategy:
        """For `default=`: hand over whatever has no strategy of its own."""
        return always(Escalate("no strategy of the policy is for this failure"))

    @staticmethod
    def abort_by_default() -> Strategy:
        """For `default=`: stop the run for good at whatever has no strategy of its own."""
        return always(Abort("no strategy of the policy is for this failure"))

    @classmethod
    def recommended(cls) -> Self:
        """What an agent without a policy of its own gets.

        | failure type | answer, counted per type and run |
        |---|---|
        | WRONG_TOOL_CALLED | retry up to 3 times, told which tools exist |
        | CONSTRAINT_IGNORED | replan up to 2 times |
        | LOOP_DETECTED | replan up to 2 times: the same again would loop again |
        | HALLUCINATED_STATE | roll back up to 2 times, then (or with no checkpoint) replan once |
        | PLAN_INCOMPLETE | resume up to 3 times, then (or with no open subgoal) replan up to 2 |
        | SCHEMA_MISMATCH | retry up to 3 times at once, told what did not fit |
        | CONTEXT_OVERFLOW | replan up to 2 times |
        | GOAL_DRIFT | replan up to 2 times |
        | EXTERNAL_FAULT | back off and retry up to 5 times; not found (404): replan up to 2 |
        | UNKNOWN | one retry after about a second |

        Then it escalates. At once escalate: every diagnosis that is CRITICAL (a wrong key, a spent
        quota, a bug), as no repetition cures it, and the causes CONTENT_FILTER and GUARDRAIL, as a
        refusal on grounds of safety must not be worked around.

        What an exception says would help comes before its type: retry as EXTERNAL_FAULT, regenerate up
        to 3 times at once, told what was wrong, replan and reclassify up to 2 times (each by another plan),
        and ask, configure and never by escalating.
        """
        from .strategies.backoff import Backoff
        from .strategies.combining import by_severity, chain
        from .strategies.replanning import replan, resume_from_subgoal, rollback_to_checkpoint
        from .strategies.retrying import backoff_and_retry, retry_with_tool_manifest

        again = by_severity(replan(max_replans=2))
        refused = Escalate("refused on grounds of safety, which must not be worked around")
        return cls(
            WRONG_TOOL_CALLED=retry_with_tool_manifest(3),
            CONSTRAINT_IGNORED=again,
            LOOP_DETECTED=again,
            HALLUCINATED_STATE=by_severity(
                chain(rollback_to_checkpoint(max_rollbacks=2), replan(max_replans=1))
            ),
            PLAN_INCOMPLETE=by_severity(chain(resume_from_subgoal(3), replan(max_replans=2))),
            SCHEMA_MISMATCH=backoff_and_retry(3, Backoff(base=0.0)),
            CONTEXT_OVERFLOW=again,
            GOAL_DRIFT=again,
            EXTERNAL_FAULT=by_severity(
                backoff_and_retry(5),
                replanning=replan(max_replans=2),
                reclassification=replan(max_replans=2),
            ),
            UNKNOWN=backoff_and_retry(1, Backoff(jitter=False)),
            causes={Cause.CONTENT_FILTER: refused, Cause.GUARDRAIL: refused},
            recoveries={
                Recovery.RETRY: backoff_and_retry(5),
                Recovery.REGENERATE: backoff_and_retry(3, Backoff(base=0.0)),
                Recovery.REPLAN: again,
                Recovery.RECLASSIFY: again,
                Recovery.ASK: Escalate("the failing code asks for a person"),
                Recovery.CONFIGURE: Escalate("a setting must be changed"),
                Recovery.NEVER: refused,
            },
        )

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """The policy a TOML file describes.

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
        import tomllib

        name = os.fspath(path)
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - pathlib would cost its import
                data = tomllib.load(file)
        except OSError as error:
            raise UsageError(f"{name}: cannot be read: {error.strerror or error}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{name}: is not TOML: {error}") from error
        return cls._described(data, name)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The policy that a mapping of the form of `from_file` describes.

        Values may also be strategies and actions. Raises UsageError as `from_file` does.
        """
        if not isinstance(cast("object", data), Mapping):
            raise misuse(
                "FailurePolicy.from_dict", data, "a mapping of failure types to strategies"
            )
        return cls._described(data, "FailurePolicy.from_dict")

    @classmethod
    def _described(cls, data: Mapping[str, Any], where: str) -> Self:
        from .strategies._spec import strategy_from

        given: dict[str, Any] = {}
        for key, value in data.items():
            if key in ("causes", "recoveries"):
                if not isinstance(value, Mapping):
                    raise misuse(f"{where}: {key}", value, f"a table of {key} to strategies")
                table = cast("Mapping[str, Any]", value)
                given[key] = {
                    word: strategy_from(spec, f"{where}: {key}.{word}")
                    for word, spec in table.items()
                }
            elif key == "default" or key in FailureType.__members__:
                given[key] = strategy_from(value, f"{where}: {key}")
            else:
                raise UsageError(f"{where}: {key!r} is no failure type{_known(key)}")
        return cls(**given)


class _Changes(ByType, total=False):
    default: Answering


def _known(name: str) -> str:
    keys = (*FailureType.__members__, "default", "causes", "recoveries")
    return f"; {nearest(str(name), keys) or 'the keys are ' + ', '.join(keys)}"


def _cause(key: object) -> str:
    """A key of `causes`; the name of a Cause in upper case stands for it."""
    if not isinstance(key, str) or not key:
        raise misuse("FailurePolicy.causes key", key, "a Cause or a text")
    return Cause.__members__.get(key, key)


def _recovery(key: object) -> Recovery:
    """A key of `recoveries`, by its value or its name in upper case."""
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


def _named(strategy: object) -> str:
    name = getattr(strategy, "__qualname__", None)
    return name if isinstance(name, str) else type(strategy).__name__


def _told(error: Exception) -> str:
    """The error and where it was raised, as the run raises its own error and not this one."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    code = None if trace is None else trace.tb_frame.f_code
    where = "" if code is None or trace is None else f" at {code.co_filename}:{trace.tb_lineno}"
    try:
        text = repr(error)
    except Exception:  # noqa: BLE001 - an error that cannot be printed is told by its class
        text = type(error).__name__
    return f"{text[:_LONGEST_REASON]}{where}"
