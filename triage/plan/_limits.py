"""How much a plan-first run may use: `PlanLimits`."""

from __future__ import annotations

from dataclasses import dataclass

from triage._options import check_count, check_number, misuse


@dataclass(frozen=True, kw_only=True)
class PlanLimits:
    """How much one plan-first run may use. Each count is of what comes after the first time.

    retries: of one step, of one selection or of one making of a plan, 3 by default; a capability's
    `retry` may allow fewer. total_retries: of all of them in the run, 10. replans: new plans after a
    failure, 2; the first plan is none. reclassifications: new selections of capabilities after a
    failure, 1. rejections: new plans after a person has refused one, 3; then the run ends, and nothing
    is run unasked. steps: of one plan, 50. entries: of the selector, the planner, the approver and of
    steps in the run, 200: whatever goes round in circles ends there. seconds: from the start of the
    run, waiting included; None is no limit. climb: False ends the run where retries, replans or
    reclassifications are used up; True tries the next of the three first.

    Every count is a whole number from 0 (steps and entries from 1), seconds a finite number above 0.
    Raises UsageError, which names the field, for anything else.
    """

    retries: int = 3
    total_retries: int = 10
    replans: int = 2
    reclassifications: int = 1
    rejections: int = 3
    steps: int = 50
    entries: int = 200
    seconds: float | None = None
    climb: bool = False

    def __post_init__(self) -> None:
        for name in ("retries", "total_retries", "replans", "reclassifications", "rejections"):
            check_count(f"PlanLimits.{name}", getattr(self, name), 0, "0 forbids them")
        for name in ("steps", "entries"):
            check_count(f"PlanLimits.{name}", getattr(self, name), 1)
        if self.seconds is not None:
            remedy = "None for no limit"
            check_number("PlanLimits.seconds", self.seconds, "seconds", above=True, remedy=remedy)
        if not isinstance(self.climb, bool):
            raise misuse("PlanLimits.climb", self.climb, "True or False")


LIMITS = PlanLimits()
"""Those that hold where nobody says otherwise."""
