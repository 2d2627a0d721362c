"""Strategies made of strategies: in turn, one instead of another, one for each severity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from triage._options import misuse
from triage._written import Written
from triage.actions import ACTIONS, Action, Escalate, RecoveryAction
from triage.errors import UsageError
from triage.taxonomy import Severity

from ._base import Answer, Strategy, as_strategy, counted, named, needs_a_person, then

if TYPE_CHECKING:
    from triage.failures import FailureContext


@dataclass(frozen=True, eq=False, repr=False, init=False)
class sequence(Written):  # noqa: N801 - strategies are written like functions
    """The n-th failure of this type in this run gets the n-th strategy; after the last, Escalate.

    `sequence(backoff_and_retry(), replan())` retries once, replans once and then escalates.
    Raises UsageError without strategies, or for a value that is neither a strategy nor an action.
    """

    strategies: tuple[Strategy, ...]

    def __init__(self, *strategies: Strategy | Action) -> None:
        if not strategies:
            raise UsageError("sequence needs at least one strategy; write sequence(replan(), …)")
        made = (as_strategy(f"sequence[{n}]", value) for n, value in enumerate(strategies))
        object.__setattr__(self, "strategies", tuple(made))

    def __call__(self, context: FailureContext) -> Answer:
        """What to do about this failure."""
        n, most = context.failures(), len(self.strategies)
        if n <= most:
            return self.strategies[n - 1](context)
        what = "the only strategy has" if most == 1 else f"all {most} strategies have"
        return Escalate(f"{named(context)}: failed {counted(n)}, and {what} had a turn")

    def __repr__(self) -> str:
        return f"sequence({', '.join(map(repr, self.strategies))})"


@dataclass(frozen=True, eq=False, repr=False)
class chain(Written):  # noqa: N801 - strategies are written like functions
    """`primary`, and `fallback` whenever primary answers one of `after`, Escalate by default.

    `chain(rollback_to_checkpoint(), replan())` rolls back as long as that strategy does, then
    replans. A primary that raises is a bug and not an answer: fallback is not asked.
    """

    primary: Strategy | Action
    fallback: Strategy | Action
    after: tuple[type[RecoveryAction], ...] = (Escalate,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "primary", as_strategy("chain.primary", self.primary))
        object.__setattr__(self, "fallback", as_strategy("chain.fallback", self.fallback))
        object.__setattr__(self, "after", _kinds(self.after))

    def __call__(self, context: FailureContext) -> Answer:
        """What to do about this failure."""

        def go_on(action: Action) -> Answer:
            if isinstance(action, self.after):
                return cast("Strategy", self.fallback)(context)
            return action

        return then(cast("Strategy", self.primary)(context), go_on)

    def __repr__(self) -> str:
        after = ", ".join(kind.__name__ for kind in self.after)
        shown = "" if self.after == (Escalate,) else f", after=({after},)"
        return f"chain({self.primary!r}, {self.fallback!r}{shown})"


@dataclass(frozen=True, eq=False, repr=False)
class by_severity(Written):  # noqa: N801 - strategies are written like functions
    """One strategy for each severity of the diagnosis.

    otherwise: for the severities that have none of their own. retriable, replanning,
    reclassification: None takes `otherwise`. critical: for CRITICAL and FATAL; None escalates,
    as these need a person, whatever `otherwise` is.

    `by_severity(replan(), retriable=backoff_and_retry())` waits for what passes by itself, replans
    for the rest, and hands over what needs a person.
    """

    otherwise: Strategy | Action
    retriable: Strategy | Action | None = None
    replanning: Strategy | Action | None = None
    reclassification: Strategy | Action | None = None
    critical: Strategy | Action | None = None

    def __post_init__(self) -> None:
        for name in ("otherwise", "retriable", "replanning", "reclassification", "critical"):
            value = getattr(self, name)
            if value is not None or name == "otherwise":
                object.__setattr__(self, name, as_strategy(f"by_severity.{name}", value))

    def __call__(self, context: FailureContext) -> Answer:
        """What to do about this failure."""
        match context.diagnosis.severity:
            case Severity.RETRIABLE:
                chosen = self.retriable
            case Severity.REPLANNING:
                chosen = self.replanning
            case Severity.RECLASSIFICATION:
                chosen = self.reclassification
            case Severity.CRITICAL | Severity.FATAL:
                stop = needs_a_person(context)
                chosen = stop if self.critical is None else self.critical
                if isinstance(chosen, Escalate):
                    return chosen
        return cast("Strategy", self.otherwise if chosen is None else chosen)(context)

    def __repr__(self) -> str:
        given = (
            f", {name}={getattr(self, name)!r}"
            for name in ("retriable", "replanning", "reclassification", "critical")
            if getattr(self, name) is not None
        )
        return f"by_severity({self.otherwise!r}{''.join(given)})"


def _kinds(after: Any) -> tuple[type[Action], ...]:
    kinds: list[Any] = list(after) if hasattr(after, "__iter__") else [after]
    for kind in kinds:
        if kind not in ACTIONS:
            wanted = "a tuple of action classes"
            raise misuse("chain.after item", kind, wanted, "write after=(Escalate, Abort)")
    return tuple(kinds)
