"""Each gate against a model of a few lines, through any order of events."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support import FakeEnvironment

from triage.core import CircuitOpen
from triage.strategies import CircuitBreaker, RateGate, RetryBudget

seconds = st.sampled_from([0.0, 0.25, 1.0, 4.0, 15.0, 30.0])


class Refused(Exception):
    status_code = 429
    retry_after = 4.0


class Loop(FakeEnvironment):
    """Time that moves when it is told to; one event loop that is run by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.sleepers: list[tuple[float, asyncio.Event]] = []

    async def sleep(self, seconds: float) -> None:
        event = asyncio.Event()
        self.sleepers.append((self.now + seconds, event))
        await event.wait()

    def settle(self) -> None:
        async def nothing() -> None:
            for _ in range(8):
                await asyncio.sleep(0)

        self.loop.run_until_complete(nothing())

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [at for at, _ in self.sleepers if at <= end]:
            self.now = max(self.now, min(due))
            for entry in [entry for entry in self.sleepers if entry[0] <= self.now]:
                self.sleepers.remove(entry)
                entry[1].set()
            self.settle()
        self.now = end
        self.settle()


class GateMachine(RuleBasedStateMachine):
    """Who is inside, and in which order they came in."""

    @initialize(
        concurrency=st.none() | st.integers(1, 3), per_second=st.none() | st.sampled_from([1.0, 4])
    )
    def begin(self, concurrency: int | None, per_second: float | None) -> None:
        self.time = Loop()
        self.gate = RateGate(concurrency, per_second=per_second, environment=self.time)
        self.most = math.inf if concurrency is None else concurrency
        self.gap = 0.0 if per_second is None else 1 / per_second
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.ends: dict[int, asyncio.Event] = {}
        self.errors: dict[int, Exception] = {}
        self.entered: list[int] = []
        self.count = 0
        # the model
        self.waiting: list[int] = []
        self.inside: list[int] = []
        self.expected: list[int] = []
        self.until = -math.inf
        self.starts: list[float] | None = None  # since the last hold
        self.pace = 0  # before it
        self.all_starts: list[float] = []
        self.last = -math.inf

    async def _call(self, number: int) -> None:
        async with self.gate.through("x"):
            self.entered.append(number)
            await self.ends[number].wait()
            if number in self.errors:
                raise self.errors[number]

    def _due(self) -> float:
        """When the next call may start."""
        due = max(self.until, self.last + self.gap)
        if self.starts:
            due = max(due, self._ramp(self.starts))
        return due

    def _ramp(self, starts: list[float]) -> float:
        if self.pace < 8:
            return starts[0] + math.log2(len(starts) + 1)
        begins_with = self.pace / 2 * 10 / math.log(2)
        return starts[0] + 10 * math.log2(1 + len(starts) / begins_with)

    def _model(self) -> None:
        while self.waiting and len(self.inside) < self.most and self._due() <= self.time.now + 1e-6:
            self._start()

    def _start(self) -> None:
        number = self.waiting.pop(0)
        self.inside.append(number)
        self.expected.append(number)
        now = self.time.now
        self.all_starts.append(now)
        self.last = max(now, self.last + self.gap) if self.gap else now
        if self.starts is not None:
            self.starts.append(now)
            if now - self.starts[0] >= 10:
                # The pace is over; the start that ended it still had its gap.
                self.last = max(self.last, self._ramp(self.starts) - self.gap)
                self.starts = None

    @rule(count=st.sampled_from([1, 1, 1, 10]))
    def arrive(self, count: int) -> None:
        for _ in range(count):
            self._arrive()

    def _arrive(self) -> None:
        number = self.count = self.count + 1
        self.ends[number] = asyncio.Event()
        self.tasks[number] = self.time.loop.create_task(self._call(number))
        self.time.settle()
        self.waiting.append(number)
        self._model()

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), refused=st.booleans())
    def end(self, *, data: st.DataObject, refused: bool) -> None:
        number = data.draw(st.sampled_from(self.inside))
        if refused:
            self.errors[number] = Refused()
        self.ends[number].set()
        self.time.settle()
        self.inside.remove(number)
        if refused:
            self.until = max(self.until, self.time.now + 4.0)
            if self.starts != []:
                seconds = [math.floor(at) for at in self.all_starts]
                second = math.floor(self.time.now)
                self.pace = max(seconds.count(second), seconds.count(second - 1))
            self.starts = []
        self._model()

    @precondition(lambda self: self.waiting or self.inside)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.waiting + self.inside))
        self.tasks[number].cancel()
        self.time.settle()
        for there in (self.waiting, self.inside):
            if number in there:
                there.remove(number)
        self._model()

    @rule(seconds=seconds)
    def wait(self, seconds: float) -> None:
        end = self.time.now + seconds
        start = self.time.now
        self.time.advance(seconds)
        # The model goes through the same seconds, from one start to the next.
        self.time.now = start
        while self.waiting and len(self.inside) < self.most and self._due() <= end + 1e-6:
            self.time.now = max(self.time.now, self._due())
            self._start()
        self.time.now = end

    @invariant()
    def same_order(self) -> None:
        if hasattr(self, "gate"):
            assert self.entered == self.expected
            assert self.gate.waiting("x") == len(self.waiting)

    def teardown(self) -> None:
        if hasattr(self, "time"):
            for task in self.tasks.values():
                task.cancel()
            self.time.settle()
            for task in self.tasks.values():
                assert task.done()
                assert task.cancelled() or isinstance(task.exception(), Refused | None)
            self.time.loop.close()


class BreakerMachine(RuleBasedStateMachine):
    """States, and who may call."""

    @initialize(failures=st.integers(1, 3))
    def begin(self, failures: int) -> None:
        self.time = FakeEnvironment()
        self.breaker = CircuitBreaker(failures, 15.0, environment=self.time)
        self.failures = failures
        self.row: list[float] = []
        self.opened: float | None = None  # or when the probe went
        self.probe: object = None
        self.calls: dict[int, object] = {}
        self.count = 0

    def _admitted(self, call: object, *, takes: bool) -> bool:
        if self.opened is None:
            return True
        if takes and isinstance(self.probe, str):
            self.probe, self.opened = call, self.time.now
            return True
        if self.probe == call:
            return True
        if self.time.now < self.opened + 15.0:
            return False
        self.probe, self.opened = call, self.time.now
        return True

    def _failed(self) -> None:
        now = self.time.now
        if self.row and now - self.row[-1] >= 15.0:
            self.row = []
        self.row.append(now)
        if len(self.row) >= self.failures:
            self.opened, self.probe = now, None

    @rule()
    def call(self) -> None:
        passage = self.breaker.through()
        allowed = self._admitted(passage, takes=True)
        if not allowed:
            with pytest.raises(CircuitOpen):
                passage.__enter__()
            return
        passage.__enter__()
        self.count += 1
        self.calls[self.count] = passage

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), how=st.sampled_from(["up", "down", "unknown"]))
    def end(self, data: st.DataObject, how: str) -> None:
        number = data.draw(st.sampled_from(sorted(self.calls)))
        passage = self.calls.pop(number)
        errors = {"up": None, "down": ConnectionError("x"), "unknown": ValueError("x")}
        passage.__exit__(None, errors[how], None)  # type: ignore[attr-defined]
        if self.opened is None:
            if how == "down":
                self._failed()
            elif how == "up":
                self.row = []
        elif self.probe is passage:
            self.probe = None
            if how == "up":
                self.opened, self.row = None, []
            elif how == "down":
                self.opened = self.time.now
            else:
                self.opened = self.time.now - 15.0

    @rule(by=st.sampled_from(["a", "b"]), counted=st.booleans())
    def ask(self, *, by: str, counted: bool) -> None:
        wait = self.breaker.failure(by) if counted else self.breaker.ask(by)
        if counted and self.opened is None:
            self._failed()
            assert (wait is None) == (self.opened is None)
        elif counted and self.probe == by:
            self.opened, self.probe = self.time.now, None
            assert wait == 15.0
        else:
            assert (wait is None) == self._admitted(by, takes=False)

    @rule()
    def answered(self) -> None:
        self.breaker.success()
        self.opened, self.probe, self.row = None, None, []

    @rule(by=st.sampled_from(["a", "b"]))
    def give_up(self, by: str) -> None:
        self.breaker.give_up(by)
        if self.opened is not None and self.probe == by:
            self.probe, self.opened = None, self.time.now - 15.0

    @rule(seconds=seconds)
    def wait(self, seconds: float) -> None:
        self.time.now += seconds

    @invariant()
    def same_state(self) -> None:
        if not hasattr(self, "breaker"):
            return
        if self.opened is None:
            assert self.breaker.state == "closed"
        else:
            half = self.probe is not None or self.time.now >= self.opened + 15.0
            assert self.breaker.state == ("half_open" if half else "open")


class BudgetMachine(RuleBasedStateMachine):
    """Tokens of two keys, counted in whole quarters."""

    @initialize(
        retries=st.integers(1, 4), per_success=st.integers(0, 4), per_second=st.integers(0, 4)
    )
    def begin(self, retries: int, per_success: int, per_second: int) -> None:
        self.time = FakeEnvironment()
        self.budget = RetryBudget(
            retries,
            per_success=per_success / 4,
            per_second=per_second / 4,
            environment=self.time,
        )
        self.full = retries * 16
        self.earned = per_success * 4
        self.rate = per_second
        self.tokens = {"a": self.full, "b": self.full}

    @rule(key=st.sampled_from("ab"))
    def take(self, key: str) -> None:
        wait = self.budget.take(key)
        if self.tokens[key] >= 16:
            assert wait is None
            self.tokens[key] -= 16
        elif self.rate == 0:
            assert wait == math.inf
        else:
            assert wait == pytest.approx((16 - self.tokens[key]) / 16 / (self.rate / 4))

    @rule(key=st.sampled_from("ab"))
    def succeed(self, key: str) -> None:
        with self.budget.through(key):
            pass
        self.tokens[key] = min(self.full, self.tokens[key] + self.earned)

    @rule(quarters=st.integers(0, 40))
    def wait(self, quarters: int) -> None:
        self.time.now += quarters / 4
        for key, tokens in self.tokens.items():
            self.tokens[key] = min(self.full, tokens + quarters * self.rate)

    @invariant()
    def same_tokens(self) -> None:
        if hasattr(self, "budget"):
            for key, tokens in self.tokens.items():
                assert self.budget.left(key) == pytest.approx(tokens / 16)


for machine in (GateMachine, BreakerMachine, BudgetMachine):
    machine.TestCase.settings = settings(stateful_step_count=30)

TestRateGate = GateMachine.TestCase
TestCircuitBreaker = BreakerMachine.TestCase
TestRetryBudget = BudgetMachine.TestCase
