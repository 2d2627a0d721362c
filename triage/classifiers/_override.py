"""Severity and level otherwise than by the rules: for a rule, a type, a cause, a tool or a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from triage._refuse import refuse
from triage.steps import Trajectory
from triage.taxonomy import Cause, FailureType, Level, Severity

E = TypeVar("E", FailureType, Severity, Level)


class Override(NamedTuple):
    """A severity, a level or both, for the diagnoses that fit all the conditions that are given.

    severity, level: what the diagnosis gets; None leaves it as it is. rule: the name of the rule
    that decided, as evidence shows it (`"http.forbidden"`). failure_type: one of ten, as member or
    value. cause: a `Cause` or a word of one's own. tool: the tool whose call failed. when: told the
    attempt's trajectory, says whether this run is meant; runs differ by their `task`.
    """

    severity: Severity | None = None
    level: Level | None = None
    rule: str | None = None
    failure_type: FailureType | None = None
    cause: Cause | str | None = None
    tool: str | None = None
    when: Callable[[Trajectory], bool] | None = None


class Case(NamedTuple):
    """What an override is compared with."""

    rule: str
    failure_type: FailureType
    cause: str | None
    tool: str | None
    trajectory: Trajectory


class Overrides:
    """Overrides in their order: for each of severity and level the first that fits decides."""

    def __init__(self, overrides: Iterable[Override]) -> None:
        self._all = _checked(overrides)
        self.by_run = any(one.tool is not None or one.when is not None for one in self._all)
        """Whether equal errors may be judged differently, by what was called or by the run."""

    def __bool__(self) -> bool:
        return bool(self._all)

    def of(self, case: Case) -> tuple[Severity | None, Level | None]:
        """The severity and the level for this case, None for what stays as it is."""
        severity: Severity | None = None
        level: Level | None = None
        for one in self._all:
            wanted = (one.severity and severity is None) or (one.level and level is None)
            if wanted and _fits(one, case):
                severity = severity or one.severity
                level = level or one.level
        return severity, level


def _fits(one: Override, case: Case) -> bool:
    return (
        one.rule in (None, case.rule)
        and one.failure_type in (None, case.failure_type)
        and one.cause in (None, case.cause)
        and one.tool in (None, case.tool)
        and (one.when is None or _says(one.when, case.trajectory))
    )


def _says(when: Callable[[Trajectory], bool], trajectory: Trajectory) -> bool:
    try:
        return bool(when(trajectory))
    except Exception:  # noqa: BLE001 - a condition of somebody else's, and no reason to lose the diagnosis
        from triage.observers import logger

        logger.exception("Override.when failed; it is taken to say no")
        return False


def _checked(overrides: object) -> tuple[Override, ...]:
    field = "RulesClassifier.overrides"
    if isinstance(overrides, str | Override) or not isinstance(overrides, Iterable):
        raise refuse(field, overrides, "an iterable of Override")
    return tuple(_one(f"{field}[{index}]", item) for index, item in enumerate(overrides))


def _one(field: str, item: object) -> Override:
    if not isinstance(item, Override):
        raise refuse(field, item, "an Override")
    if item.severity is None and item.level is None:
        raise ValueError(f"{field} changes nothing: give it a severity, a level or both")
    for name in ("rule", "cause", "tool"):
        value: Any = getattr(item, name)
        if value is not None and not isinstance(value, str):
            raise refuse(f"{field}.{name}", value, "text or None")
    if item.when is not None and not callable(item.when):
        raise refuse(f"{field}.when", item.when, "a function of a Trajectory, or None")
    return item._replace(
        severity=_member(Severity, f"{field}.severity", item.severity),
        level=_member(Level, f"{field}.level", item.level),
        failure_type=_member(FailureType, f"{field}.failure_type", item.failure_type),
    )


def _member(enum: type[E], field: str, value: Any) -> E | None:
    if value is None:
        return None
    try:
        return enum(value)
    except ValueError:
        known = ", ".join(member.value for member in enum)
        raise ValueError(f"{field} must be one of {known}, not {value!r}") from None
