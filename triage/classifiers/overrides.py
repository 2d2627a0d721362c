"""`Override`: another severity or level for diagnoses that fit its conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from triage.classifiers.tables.rule import Rule
from triage.core.errors import refuse
from triage.core.observers import logger
from triage.core.steps import Trajectory
from triage.core.taxonomy import Cause, FailureType, Level, Severity


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


class Overrides:
    """Overrides in their order: for each of severity and level the first that fits decides."""

    def __init__(self, overrides: object) -> None:
        field = "RulesClassifier.overrides"
        if isinstance(overrides, str | Override) or not isinstance(overrides, Iterable):
            raise refuse(field, overrides, "an iterable of Override")
        self._all = tuple(_checked(f"{field}[{at}]", item) for at, item in enumerate(overrides))
        self.by_run = any(one.tool is not None or one.when is not None for one in self._all)
        """Whether equal errors may be judged differently, by what was called or by the run."""

    def applied(self, rule: Rule, name: str, tool: str | None, trajectory: Trajectory) -> Rule:
        """The rule with the severity and the level for this case. name: of the rule that decided."""
        severity: Severity | None = None
        level: Level | None = None
        cause = None if rule.cause is None else str(rule.cause)
        for one in self._all:
            wanted = (one.severity and severity is None) or (one.level and level is None)
            if (
                wanted
                and one.rule in (None, name)
                and one.failure_type in (None, rule.failure_type)
                and one.cause in (None, cause)
                and one.tool in (None, tool)
                and _is_meant(one, trajectory)
            ):
                severity = severity or one.severity
                level = level or one.level
        return rule._replace(severity=severity or rule.severity, level=level or rule.level)


def _is_meant(override: Override, trajectory: Trajectory) -> bool:
    if override.when is None:
        return True
    try:
        return bool(override.when(trajectory))
    except Exception:  # the user's function may fail; the diagnosis stays
        logger.exception("Override.when failed; it is taken to say no")
        return False


def _checked(field: str, item: object) -> Override:
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
    return item._replace(**members(item, f"{field}."))


_ENUMS: dict[str, type[FailureType | Severity | Level]] = {
    "failure_type": FailureType,
    "severity": Severity,
    "level": Level,
}


def members(item: Override | Rule, field: str) -> dict[str, Any]:
    """The fields of a rule or an override that name a member of an enum, as that member.

    Raises ValueError naming the field, after `field`, and the choices. None may stand where it is the
    default.
    """
    found: dict[str, Any] = {}
    for name, enum in _ENUMS.items():
        value: Any = getattr(item, name)
        if value is None and name in item._field_defaults:
            continue
        try:
            found[name] = enum(value)
        except ValueError:
            known = ", ".join(enum)
            raise ValueError(f"{field}{name} must be one of {known}, not {value!r}") from None
    return found
