"""What can go wrong in the demonstration's service, and when: a plan per task."""

from __future__ import annotations

import threading
import time
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Kind(StrEnum):
    """How the service misbehaves.

    RATE_LIMIT: 429 with Retry-After. OVERLOADED: 503. SERVER_ERROR: 500. CUT: the connection is
    closed in the middle of the answer. HANG: the work is done, but the answer comes too late.
    MALFORMED: the answer is cut JSON with status 200.
    """

    RATE_LIMIT = "rate_limit"
    OVERLOADED = "overloaded"
    SERVER_ERROR = "server_error"
    CUT = "cut"
    HANG = "hang"
    MALFORMED = "malformed"


class Fault(NamedTuple):
    """One fault of a task.

    kind: what happens. where: `"chat"`, or the tool whose requests it meets. first: number of the
    first request it meets, from 1, counted per task and place. times: how many requests it meets.
    seconds: for RATE_LIMIT, how long every request is refused, counted from the first refused one,
    which is also what Retry-After says; for HANG, how late the answer is.
    """

    kind: Kind
    where: str = "chat"
    first: int = 1
    times: int = 1
    seconds: float = 1.0


class FaultPlan:
    """The faults of every task and the requests counted so far; safe to share between threads."""

    def __init__(self) -> None:
        self._faults: dict[str, tuple[Fault, ...]] = {}
        self._requests: dict[tuple[str, str], int] = {}
        self._closed_until: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def set(self, task: str, faults: Sequence[Fault]) -> None:
        """Plan the faults of a task and count its requests from 1 again."""
        with self._lock:
            self._faults[task] = tuple(faults)
            for counted in (self._requests, self._closed_until):
                for key in [key for key in counted if key[0] == task]:
                    del counted[key]

    def meet(self, task: str, where: str) -> Fault | None:
        """Count one request and say which fault it meets, None for none."""
        key = (task, where)
        with self._lock:
            number = self._requests[key] = self._requests.get(key, 0) + 1
            for fault in self._faults.get(task, ()):
                if fault.where == where and self._strikes(fault, key, number):
                    return fault
        return None

    def requests(self, task: str, where: str = "chat") -> int:
        """How many requests this place has had for the task."""
        with self._lock:
            return self._requests.get((task, where), 0)

    def _strikes(self, fault: Fault, key: tuple[str, str], number: int) -> bool:
        if fault.kind is not Kind.RATE_LIMIT:
            return fault.first <= number < fault.first + fault.times
        if number < fault.first:
            return False
        now = time.monotonic()
        return now < self._closed_until.setdefault(key, now + fault.seconds)
