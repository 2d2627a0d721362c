"""`RateGate`: a delay that one call was told holds all of them back; first come, first served."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from threading import RLock
from typing import TYPE_CHECKING

from triage._options import check_count, check_number

from ._heard import refusal_of
from ._passage import Passage, environment_of, key_of

if TYPE_CHECKING:
    from triage._env import Environment

    from ._turn import Turn

_MANY_KEYS = 1_024
_NOW = 1e-6
"""Seconds too short to wait for; less than that may be lost in rounding."""
_RAMP_S = 10.0
"""Seconds after a hold for which calls start at a growing pace."""
_SLOWLY_S = 10.0
"""Seconds in which the pace doubles where it was known before."""
_KNOWN = 8
"""Starts in a second that say something of the pace the service takes."""
_REFUSED_S = 1.0
"""Seconds of the hold after a refusal that names none."""


class _Line:
    """What is known of one key.

    active: calls inside. queue: who waits, oldest first. until: when the hold ends. next_at: when the
    pace allows the next call. ramp: how calls start after a hold, None long after it.
    """

    __slots__ = ("_before", "_count", "_second", "active", "next_at", "queue", "ramp", "until")

    def __init__(self) -> None:
        self.active = 0
        self.queue: deque[_Call] = deque()
        self.until = -math.inf
        self.next_at = -math.inf
        self.ramp: _Ramp | None = None
        # Starts in the second that is running, and in the one before.
        self._second = 0
        self._count = 0
        self._before = 0

    def wake(self) -> None:
        """Have the first in the queue ask again."""
        while self.queue:
            turn = self.queue[0].turn
            if turn is None or turn.wake():  # without a turn it asks by itself, when its time comes
                return
            self.queue.popleft().queued = False  # its event loop is gone

    def hold(self, now: float, seconds: float) -> None:
        """No start for so many seconds."""
        self.until = max(self.until, now + seconds)
        if self.ramp is None or self.ramp.opened is not None:
            self._roll(now)
            self.ramp = _Ramp(max(self._count, self._before))

    def start(self, now: float, gap: float) -> None:
        """A call starts; the next may after `gap` seconds, or later where a hold has just ended."""
        self.active += 1
        self._roll(now)
        self._count += 1
        self.next_at = max(self.next_at, now) + gap if gap else now
        if self.ramp is not None:
            self.next_at = max(self.next_at, self.ramp.next_at(now))
            if self.ramp.over:
                self.ramp = None

    def _roll(self, now: float) -> None:
        second = math.floor(now)
        if second != self._second:
            self._before = self._count if second == self._second + 1 else 0
            self._second, self._count = second, 0


class _Ramp:
    """The pace after a hold, which grows until the old one is found again.

    pace: starts a second before the hold. Where that was known, it begins at half of it and doubles in
    ten seconds; else with one start in the first second, two in the second, four in the third.
    """

    __slots__ = ("_doubles_s", "_first", "_started", "opened", "over")

    def __init__(self, pace: int) -> None:
        known = pace >= _KNOWN
        self._doubles_s = _SLOWLY_S if known else 1.0
        self._first = pace / 2 * _SLOWLY_S / math.log(2) if known else 1.0
        self._started = 0
        self.opened: float | None = None
        self.over = False

    def next_at(self, now: float) -> float:
        """A call starts now: when the next may."""
        if self.opened is None:
            self.opened = now
        self._started += 1
        doublings = math.log2(1 + self._started / self._first)
        self.over = now - self.opened >= _RAMP_S
        return self.opened + self._doubles_s * doublings


class RateGate:
    """Lets calls of one service start when it can take them, over all runs of this process.

    A call that is refused with a delay (`Retry-After` and its like) holds back all others of its key
    for as long, one refused with 429 or 529 and no delay for a second. After a hold calls start at
    half the pace they had, or one by one where few had, and faster from second to second, so that
    those who waited do not all come back at once. Who waits is served in the order of coming; one
    that is cancelled leaves no gap. Works under asyncio, trio and in threads, with one gate for all
    of them.

    concurrency: calls of one key at a time, None for any number. per_second: calls of one key that
    may start in a second, evenly spaced; None for any number. longest_s: seconds that a hold may
    last, 300 by default; longer ones are cut. environment: clock and sleep; None: the machine's.
    Raises UsageError for a wrong value.
    """

    def __init__(
        self,
        concurrency: int | None = None,
        *,
        per_second: float | None = None,
        longest_s: float = 300.0,
        environment: Environment | None = None,
    ) -> None:
        if concurrency is not None:
            check_count("RateGate.concurrency", concurrency, 1, "None for any number")
        if per_second is not None:
            remedy = "None for any number"
            check_number("RateGate.per_second", per_second, "calls", above=True, remedy=remedy)
        check_number("RateGate.longest_s", longest_s, "seconds")
        self.concurrency = concurrency
        self.per_second = per_second
        self.longest_s = longest_s
        self._env = environment_of("RateGate.environment", environment)
        self._lock = RLock()
        self._lines: dict[str, _Line] = {}

    def through(self, key: str = "") -> Passage:
        """One call's way through: `async with`, `with` or a decorator. Waits its turn on entering.

        What the call raises is looked at: a delay it names holds the key.
        """
        return _Call(self, self._env, key_of("RateGate.through key", key))

    def hold(self, key: str, seconds: float) -> None:
        """Let no call of this key start for so many seconds, cut to `longest_s`. A longer hold stays.

        Those inside are not disturbed. Raises UsageError for a negative or infinite number.
        """
        key_of("RateGate.hold key", key)
        check_number("RateGate.hold seconds", seconds, "seconds")
        with self._lock:
            self._line(key).hold(self._env.monotonic(), min(seconds, self.longest_s))

    def wait_s(self, key: str = "") -> float:
        """Seconds for which calls of this key are held back, 0 for none; turns are not counted."""
        with self._lock:
            line = self._lines.get(key_of("RateGate.wait_s key", key))
            return 0.0 if line is None else max(0.0, line.until - self._env.monotonic())

    def waiting(self, key: str = "") -> int:
        """How many calls wait for their turn."""
        with self._lock:
            line = self._lines.get(key_of("RateGate.waiting key", key))
            return 0 if line is None else len(line.queue)

    # What a call does -----------------------------------------------------------------------------

    def ask(self, call: _Call, turn: Callable[[], Turn]) -> float | Turn | None:
        """None: the call is inside. Else what it waits for before it asks again."""
        with self._lock:
            line = self._line(call.key)
            first = not line.queue or line.queue[0] is call
            wait = 0.0
            if first:
                now = self._env.monotonic()
                wait = float(max(line.until, line.next_at) - now)
                if wait <= _NOW and (self.concurrency is None or line.active < self.concurrency):
                    self._enter(line, call, now)
                    return None
            if not call.queued:
                call.queued = True
                line.queue.append(call)
            if wait > _NOW:
                call.turn = None
                return wait
            call.turn = turn()
            return call.turn

    def withdraw(self, call: _Call) -> None:
        """A call waits no more."""
        with self._lock:
            line = self._lines.get(call.key)
            if line is None or not call.queued:
                return
            call.queued = False
            first = line.queue[0] is call
            line.queue.remove(call)
            if first:
                line.wake()
            self._forget_idle(call.key, line)

    def leave(self, call: _Call, error: BaseException | None) -> None:
        """A call that was inside has ended."""
        refused, delay = (False, None) if error is None else refusal_of(error)
        with self._lock:
            line = self._line(call.key)
            line.active -= 1
            if delay is not None or refused:
                seconds = _REFUSED_S if delay is None else max(0.0, delay)
                line.hold(self._env.monotonic(), min(seconds, self.longest_s))
            line.wake()
            self._forget_idle(call.key, line)

    # Under the lock -------------------------------------------------------------------------------

    def _enter(self, line: _Line, call: _Call, now: float) -> None:
        line.start(now, 1.0 / self.per_second if self.per_second is not None else 0.0)
        if call.queued:
            call.queued = False
            line.queue.popleft()
            line.wake()

    def _line(self, key: str) -> _Line:
        line = self._lines.get(key)
        if line is None:
            if len(self._lines) >= _MANY_KEYS:
                self._forget_old()
            line = self._lines[key] = _Line()
        return line

    def _forget_idle(self, key: str, line: _Line) -> None:
        if line.ramp is None and self._idle(line):
            self._lines.pop(key, None)

    def _forget_old(self) -> None:
        for key, line in list(self._lines.items()):
            if self._idle(line):
                del self._lines[key]

    def _idle(self, line: _Line) -> bool:
        busy = line.active or line.queue
        return not busy and max(line.until, line.next_at) <= self._env.monotonic()

    def __repr__(self) -> str:
        return f"RateGate(concurrency={self.concurrency}, per_second={self.per_second})"


class _Call(Passage):
    def __init__(self, gate: RateGate, environment: Environment, key: str) -> None:
        super().__init__(environment)
        self.gate = gate
        self.key = key
        self.queued = False
        self.turn: Turn | None = None

    def _ask(self, turn: Callable[[], Turn]) -> float | Turn | None:
        return self.gate.ask(self, turn)

    def _withdraw(self) -> None:
        self.gate.withdraw(self)

    def _left(self, error: BaseException | None) -> None:
        self.gate.leave(self, error)

    def _another(self) -> Passage:
        return self.gate.through(self.key)
