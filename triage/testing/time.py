"""Virtual time: it passes only when somebody waits for it."""

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

from triage.core.asking import at_work
from triage.core.environment import SYSTEM
from triage.core.errors import check_number
from triage.engine.run import Recorder, current


def root_of(run: Recorder | None) -> str | None:
    """Return the id of the outermost run, because an inner run gets a new id in each attempt."""
    if run is None:
        return None
    while run.session.parent is not None:
        run = run.session.parent
    return run.run_id


EPOCH = 1_767_225_600.0
"""The default start: 2026-01-01 00:00 UTC."""
_MOST_ROUNDS = 200
"""Turns given to tasks that never wait before time moves anyway."""


class VirtualTime:
    """An `Environment` whose clock stands still until all tasks wait, then jumps to the next sleeper.

    Sleeping takes no real time, and sleepers wake in the order of their times, however many runs share
    the clock. The deadlines of attempts (`Limits(seconds=…, attempt_seconds=…)`) count this time. Works
    under asyncio and trio.

    seed: of the random source, used for jitter; a number or text. start: the initial `time()`, in seconds
    since the epoch. slept: every requested sleep, in seconds, in order.

    It does not move the clock of the event loop: timeouts of your own code (`asyncio.timeout`, a
    client's) count real time.
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
        """Virtual seconds that have passed."""
        return self._now

    def new_id(self) -> str:
        """Make a run id, a random one so that tests can share a store."""
        return SYSTEM.new_id()

    def new_token(self) -> str:
        """Make a random token."""
        return SYSTEM.new_token()

    def random(self) -> float:
        """Return a number from 0 to 1; the same sequence for the same seed."""
        with self._lock:
            return self._chance.random()

    def advance(self, seconds: float) -> None:
        """Move the clock, as sync code does to wait; wakes no sleeper. seconds: from 0, finite."""
        check_number("VirtualTime.advance(seconds)", seconds, "seconds")
        with self._lock:
            before = self._now
            self._now += seconds
            self.slept.append(seconds)
        self._elapse(current.get(), before)

    async def sleep(self, seconds: float) -> None:
        """Wait without taking real time; infinite waits until the attempt's deadline, or for ever.

        The wait can be cancelled. An attempt whose deadline comes sooner is stopped then.
        """
        self.slept.append(seconds)
        run = current.get()
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
        """Move the deadline of the attempt's scope, which counts real time, by the virtual time waited.

        before: when the wait began. If several tasks waited meanwhile, only one moves it.
        """
        # The scope belongs to the thread of its run.
        if run is None or run.scope is None or threading.get_ident() != run._thread:
            return
        seconds = self._now - max(before, self._moved.get(run, before))
        self._moved[run] = self._now
        if run._held_deadline:
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
    """A sleeper. event: set when it may be the next to wake."""

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
        """Return the same sleeper with a fresh event."""
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
    """Wait until all other tasks of this event loop wait and no classifier is working."""
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
"""Tasks that check whether all others wait, which count as waiting themselves."""


def _ready(task: Any) -> bool:
    waiting_for = task._fut_waiter  # there is no other way to ask
    return waiting_for is None or waiting_for.done()


def _left(run: Recorder | None) -> float | None:
    """Return the seconds until the attempt's deadline, or None without one.

    A call with an effect is never cut off, so the deadline is suspended while one runs.
    """
    if run is None or run.scope is None or run.calls_open:
        return None
    return run.session.attempt_seconds_left()
