"""What a model may consume: `Budget`, and the counts it is held against."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from triage._options import check_count, check_number
from triage.steps import NO_USAGE, Usage

MAX_RUNS = 4096
"""Runs whose counts are remembered; a new one beyond drops the one not counted for longest."""

_OPEN = "None for no limit"

N = TypeVar("N")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much diagnoses may consume. None leaves that field open.

    calls: requests, repeated ones included. tokens: input and output together. cost_usd: US dollars.
    All are looked at before a request, so the last one allowed may go over tokens and cost. Raises
    UsageError for anything but a count from 1, or for cost_usd a finite number above 0.
    """

    calls: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None

    def __post_init__(self) -> None:
        for name, count in (("calls", self.calls), ("tokens", self.tokens)):
            if count is not None:
                check_count(f"Budget.{name}", count, 1, _OPEN)
        if self.cost_usd is not None:
            field = "Budget.cost_usd"
            check_number(field, self.cost_usd, "US dollars", above=True, remedy=_OPEN)

    def used_up(self, used: Usage) -> str | None:
        """Which field allows no further request, in words; None if one may be made."""
        cost = used.cost_usd or 0.0
        for name, amount, allowed in (
            ("calls", used.calls, self.calls),
            ("tokens", used.total_tokens, self.tokens),
            ("cost_usd", cost, self.cost_usd),
        ):
            if allowed is not None and amount >= allowed:
                return f"{amount:.6g} of {allowed:.6g} {name} used"
        return None


class ByRun(Generic[N]):
    """A value for each of the last `MAX_RUNS` runs. Not locked: its user does that."""

    def __init__(self, start: N) -> None:
        self._start = start
        self._values: OrderedDict[str, N] = OrderedDict()

    def get(self, run_id: str) -> N:
        """The value of a run, the start where there is none."""
        return self._values.get(run_id, self._start)

    def put(self, run_id: str, value: N) -> None:
        """Set the value of a run, and forget the oldest where there are too many."""
        self._values[run_id] = value
        self._values.move_to_end(run_id)
        if len(self._values) > MAX_RUNS:
            self._values.popitem(last=False)


class Meter:
    """What one classifier has consumed, in all and by run. Safe to use from any thread."""

    def __init__(self, budget: Budget | None, run_budget: Budget | None) -> None:
        self._budget = budget or Budget()
        self._run_budget = run_budget or Budget()
        self._lock = threading.Lock()
        self._used = NO_USAGE
        self._by_run = ByRun(NO_USAGE)

    @property
    def used(self) -> Usage:
        """By all requests so far."""
        return self._used

    def begin(self, run_id: str | None) -> str | None:
        """Count a request that is about to be made; in words why it must not be, where that is so."""
        with self._lock:
            why = self._budget.used_up(self._used)
            if why is not None:
                return f"the budget is used up: {why}"
            if run_id is not None:
                why = self._run_budget.used_up(self._by_run.get(run_id))
                if why is not None:
                    return f"the budget of the run is used up: {why}"
            self._count(run_id, Usage(calls=1))
            return None

    def add(self, run_id: str | None, usage: Usage) -> None:
        """Count what a request consumed; its call was counted when it began."""
        with self._lock:
            self._count(run_id, usage)

    def _count(self, run_id: str | None, usage: Usage) -> None:
        self._used = self._used.plus(usage)
        if run_id is not None:
            self._by_run.put(run_id, self._by_run.get(run_id).plus(usage))
