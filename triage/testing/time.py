"""Time that passes only when somebody waits for it: `VirtualTime`."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
import threading
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import RunVar

from triage.classifiers import at_work
from triage.core import SYSTEM, check_number
from triage.engine import Recorder, current


def here() -> Recorder | None:
    """The attempt the calling code runs in, None outside of one."""
    return current.get()


def root_of(run: Recorder | None) -> str | None:
    """The id of the outermost run: a run inside another's attempt has a new id each time."""
    if run is None:
        return None
    while run.session.parent is not None:
        run = run.session.parent
    return run.run_id


EPOCH = 1_767_225_600.0
"""2026-01-01 00:00 UTC: when virtual time begins."""
_MOST_ROUNDS = 200
"""Turns that others get before time moves although one of them is never done."""


class VirtualTime:
    """An `Environment` whose time stands still until every task waits, and then jumps to the next waker.

    Sleeping costs no real time, and sleepers wake in the order of their times, however many runs
    share it. Each attempt's deadline (`Limits(seconds=…, attempt_seconds=…)`) is held against this time.
    Works under asyncio and trio.

    seed: of the randomness, which backoff uses for its jitter; a number or text. start: what `time()`
    says at the beginning, in seconds since the epoch. slept: every sleep that was asked for, in
    seconds, in order.

    What it does not move is the clock of the event loop: a timeout of your own code
    (`asyncio.timeout`, a client's) passes in real time.
    """

    def __init__(self, seed: int | str = 0, *, start: float = EPOCH) -> None:
        check_number("VirtualTime(start=…)", start, "seconds since the epoch")
        self.slept: list[float] = []
        self._start = start
        self._now = 0.0
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._lanes: Any = None
        # Up to which virtual time the deadline of an attempt was moved.
        self._moved: WeakKeyDictionary[Recorder, float] = WeakKeyDictionary()

    def time(self) -> float:
        """Seconds since the epoch."""
        return self._start + self._now

    def monotonic(self) -> float:
        """Seconds that have passed since this time began."""
        return self._now

    def new_id(self) -> str:
        """A run id as any other, so that tests can share a store."""
        return SYSTEM.new_id()

    def new_token(self) -> str:
        """A token as any other."""
        return SYSTEM.new_token()

    def random(self) -> float:
        """From 0 to 1; the same numbers in the same order for the same seed."""
        with self._lock:
            return self._chance.random()

    def advance(self, seconds: float) -> None:
        """Let time pass at once. Sync code waits so; wakes nobody by itself. seconds: from 0, finite."""
        check_number("VirtualTime.advance(seconds)", seconds, "seconds")
        with self._lock:
            before = self._now
            self._now += seconds
            self.slept.append(seconds)
        self._elapse(here(), before)

    async def sleep(self, seconds: float) -> None:
        """Wait, cancellably, in no real time. Infinite: until the attempt's deadline, or for ever.

        Inside an attempt whose deadline comes sooner, the attempt is stopped then.
        """
        self.slept.append(seconds)
        run = here()
        left = _left(run)
        nap = seconds if left is None else min(seconds, left)
        before = self._now
        if nap == math.inf:
            await anyio.sleep_forever()
        if nap > 0:
            await self._lane().until(self._now + nap)
        self._elapse(run, before)
        if nap < seconds and run is not None and run.scope is not None:
            run.scope.cancel()
            await anyio.sleep_forever()
        await anyio.lowlevel.checkpoint()

    def _elapse(self, run: Recorder | None, before: float) -> None:
        """Bring the deadline of the attempt's scope, which counts real time, nearer by virtual time.

        before: when the waiting began. Of several tasks that waited meanwhile one moves it.
        """
        # The scope belongs to the thread of its run.
        if run is None or run.scope is None or threading.get_ident() != run._thread:
            return
        seconds = self._now - max(before, self._moved.get(run, before))
        self._moved[run] = self._now
        if run.calls_open:
            run._held_deadline -= seconds  # what the scope gets back when the call has ended
        else:
            run.scope.deadline -= seconds

    def _lane(self) -> _Lane:
        with self._lock:
            if self._lanes is None:
                self._lanes = RunVar(f"triage_virtual_time_{id(self)}")
        lane: _Lane | None = self._lanes.get(None)
        if lane is None:
            lane = _Lane(self)
            self._lanes.set(lane)
        return lane

    def _reach(self, when: float) -> None:
        with self._lock:
            self._now = max(self._now, when)

    def __repr__(self) -> str:
        return f"<VirtualTime {self._now:g} s>"


class _Place(NamedTuple):
    """A sleeper. event: tells it that it may be the next to wake."""

    due: float
    order: int
    event: anyio.Event


class _Lane:
    """The sleepers of one event loop, the next to wake first."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._places: list[_Place] = []
        self._turn = 0  # how many have left
        self._order = itertools.count()

    async def until(self, due: float) -> None:
        """Sleep until then."""
        place = _Place(due, next(self._order), anyio.Event())
        heapq.heappush(self._places, place)
        try:
            while True:
                if self._places[0] is not place:
                    place = self._again(place)
                    await place.event.wait()
                    continue
                # Meanwhile an earlier one may come, or have woken and not have begun its work.
                turn = self._turn
                await _all_wait()
                if self._places[0] is place and self._turn == turn:
                    break
            self._time._reach(due)
        finally:
            self._leave(place)

    def _again(self, place: _Place) -> _Place:
        """The same sleeper, with an event that nobody has set yet."""
        fresh = place._replace(event=anyio.Event())
        self._places[self._places.index(place)] = fresh  # equal in due and order: still a heap
        return fresh

    def _leave(self, place: _Place) -> None:
        self._turn += 1
        if self._places[0] is place:
            heapq.heappop(self._places)
        else:
            self._places.remove(place)
            heapq.heapify(self._places)
        if self._places:
            self._places[0].event.set()


async def _all_wait() -> None:
    """Until every other task of this event loop waits for something, and no classifier is at work."""
    for _ in range(_MOST_ROUNDS):
        await _others_wait()
        if not at_work:  # a run that is being diagnosed is neither ready nor waiting for time
            return
        await anyio.sleep(0.001)


async def _others_wait() -> None:
    try:
        this = asyncio.current_task()
    except RuntimeError:
        await anyio.wait_all_tasks_blocked()
        return
    _watching.add(this)
    try:
        for _ in range(_MOST_ROUNDS):
            await asyncio.sleep(0)
            if not any(_ready(task) for task in asyncio.all_tasks() if task not in _watching):
                return
    finally:
        _watching.discard(this)


_watching: set[Any] = set()
"""Tasks that look whether all others wait; each of them waits, too."""


def _ready(task: Any) -> bool:
    waiting_for = task._fut_waiter  # there is no other way to ask
    return waiting_for is None or waiting_for.done()


def _left(run: Recorder | None) -> float | None:
    """Seconds until the attempt would be stopped; None where nothing would.

    A call with an effect is never cut off, so while one runs its attempt's deadline waits.
    """
    if run is None or run.scope is None or run.calls_open:
        return None
    return run.session.attempt_seconds_left()
