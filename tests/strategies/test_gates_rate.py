from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import trio
from support import FakeEnvironment, on_both_backends
from tables import table

import triage
from strategies.virtual import VirtualEnvironment, grown, settle
from triage import UsageError
from triage.strategies import Gate, RateGate

pytestmark = pytest.mark.anyio
anyio_backend = on_both_backends()


class Refused(Exception):
    """A provider's answer."""

    def __init__(self, status: int = 429, retry_after: float | None = None) -> None:
        super().__init__("slow down")
        self.status_code = status
        if retry_after is not None:
            self.retry_after = retry_after


class Callers:
    """Calls that stay inside until they are told how to end; the order in which they came in."""

    def __init__(self, gate: RateGate, key: str = "") -> None:
        self.gate = gate
        self.key = key
        self.entered: list[str] = []
        self.failed: list[str] = []
        self.ends: dict[str, anyio.Event] = {}
        self.scopes: dict[str, anyio.CancelScope] = {}
        self.how: dict[str, Exception] = {}

    async def call(self, name: str) -> None:
        self.ends[name] = anyio.Event()
        with anyio.CancelScope() as self.scopes[name]:
            try:
                async with self.gate.through(self.key):
                    self.entered.append(name)
                    await self.ends[name].wait()
                    if name in self.how:
                        raise self.how[name]
            except Refused:
                self.failed.append(name)

    async def end(self, name: str, error: Exception | None = None) -> None:
        if error is not None:
            self.how[name] = error
        self.ends[name].set()
        await settle()


@asynccontextmanager
async def calling(callers: Callers, names: str) -> AsyncGenerator[anyio.abc.TaskGroup]:
    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(callers.call, name)
            await settle()
        yield group
        group.cancel_scope.cancel()


async def test_a_retry_after_heard_by_one_call_holds_the_others_back() -> None:
    time = VirtualEnvironment()
    callers = Callers(RateGate(environment=time))
    async with calling(callers, "a") as group:
        await callers.end("a", Refused(retry_after=20))
        group.start_soon(callers.call, "b")
        await time.advance(19.9)
        assert (callers.entered, callers.failed) == (["a"], ["a"])
        assert callers.gate.wait_s() == pytest.approx(0.1)
        await time.advance(0.2)
        assert callers.entered == ["a", "b"]


@table(
    ("error", "seconds"),
    [
        (triage.hint(ValueError("x"), retry_after_s=7), 7.0),
        (Refused(503, 7), 7.0),
        (Refused(429), 1.0),
        (Refused(529), 1.0),
        (Refused(500), 0.0),
        (ValueError("x"), 0.0),
        (Refused(429, 86_400), 300.0),
    ],
)
async def test_what_holds_and_for_how_long(error: Exception, seconds: float) -> None:
    gate = RateGate(environment=FakeEnvironment())
    with pytest.raises(type(error)):
        async with gate.through("x"):
            raise error
    assert (gate.wait_s("x"), gate.wait_s("y")) == (seconds, 0.0)


async def test_a_delay_of_what_caused_the_error_is_heard() -> None:
    gate = RateGate(environment=FakeEnvironment())
    with pytest.raises(RuntimeError):
        async with gate.through():
            raise RuntimeError("wrapped") from Refused(429, 9)
    assert gate.wait_s() == 9


async def test_after_a_hold_calls_start_at_a_growing_pace() -> None:
    time = VirtualEnvironment()
    gate = RateGate(environment=time)
    callers = Callers(gate)
    gate.hold("", 10)
    async with calling(callers, "abcdefghijklmno"):
        counts: list[int] = []
        for seconds in (9.99, 0.02, 1.0, 1.0, 1.0):
            await time.advance(seconds)
            counts.append(len(callers.entered))
        assert counts == [0, 1, 2, 4, 8]
        assert callers.entered == list("abcdefgh")


async def test_one_cancelled_while_it_waits_for_a_hold_hands_on_the_first_place() -> None:
    time = VirtualEnvironment()
    callers = Callers(RateGate(environment=time))
    callers.gate.hold("", 5)
    async with calling(callers, "ab"):
        callers.scopes["a"].cancel()
        await time.advance(6)
        assert callers.entered == ["b"]


async def test_one_cancelled_as_it_is_woken_hands_on_its_turn() -> None:
    callers = Callers(RateGate(1))
    async with calling(callers, "abc"):
        callers.ends["a"].set()
        callers.scopes["b"].cancel()
        await settle()
        assert callers.entered[-1] == "c"


async def test_keys_do_not_know_of_each_other() -> None:
    gate = RateGate(1)
    async with gate.through("a"), gate.through("b"):
        assert (gate.waiting("a"), gate.waiting("b")) == (0, 0)


async def test_an_async_function_passes_with_each_call() -> None:
    time = FakeEnvironment()
    gate = RateGate(environment=time)

    @gate.through("x")
    async def ask(text: str, *, fail: bool = False) -> str:
        """Ask."""
        if fail:
            raise Refused(retry_after=3)
        return text.upper()

    assert (await ask("a"), ask.__doc__) == ("A", "Ask.")
    with pytest.raises(Refused):
        await ask("b", fail=True)
    assert await ask("c") == "C"
    assert time.slept == [3.0]


def test_a_sync_function_waits_by_the_same_clock() -> None:
    time = FakeEnvironment()
    gate = RateGate(environment=time)

    @gate.through("x")
    def ask(*, fail: bool) -> str:
        if fail:
            raise Refused(retry_after=3)
        return "yes"

    with pytest.raises(Refused):
        ask(fail=True)
    assert ask(fail=False) == "yes"
    assert time.slept == [3.0]


async def test_a_sync_wait_inside_an_event_loop_is_refused() -> None:
    gate = RateGate(environment=FakeEnvironment())
    with gate.through():
        pass  # nothing to wait for: harmless
    gate.hold("", 5)
    with pytest.raises(UsageError, match="write `async with`"), gate.through():
        pytest.fail("it must not come in")
    assert gate.waiting() == 0


def test_generators_are_refused_as_their_bodies_run_later() -> None:
    def items() -> Any:
        yield 1

    with pytest.raises(UsageError, match="no generator"):
        RateGate().through("x")(items)


async def test_a_passage_is_for_one_call_at_a_time() -> None:
    passage = RateGate().through("x")
    async with passage:
        with pytest.raises(UsageError, match="one call at a time"):
            async with passage:
                pytest.fail("it must not come in")
    async with passage:
        pass


def test_one_gate_serves_threads_and_loops_of_both_kinds() -> None:
    gate = RateGate(2)
    inside, most, done = 0, 0, 0
    lock = threading.Lock()

    def enter() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)

    def leave() -> None:
        nonlocal inside, done
        with lock:
            inside -= 1
            done += 1

    async def task() -> None:
        for _ in range(20):
            async with gate.through("x"):
                enter()
                await anyio.lowlevel.checkpoint()
                leave()

    async def tasks() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(task)

    def thread() -> None:
        for _ in range(20):
            with gate.through("x"):
                enter()
                leave()

    programs: list[Callable[[], Any]] = [
        lambda: asyncio.run(tasks()),
        lambda: asyncio.run(tasks()),
        lambda: trio.run(tasks),
        thread,
        thread,
    ]
    threads = [threading.Thread(target=program, daemon=True) for program in programs]
    for started in threads:
        started.start()
    for started in threads:
        started.join(30)
    assert (done, most, gate.waiting("x")) == (340, 2, 0)


async def test_the_turn_of_a_loop_that_is_gone_goes_to_the_next() -> None:
    gate = RateGate(1)
    loop = asyncio.new_event_loop()

    async def wait() -> None:
        async with gate.through():
            pytest.fail("it must not come in")

    def abandon() -> Any:
        task = loop.create_task(wait())
        loop.call_soon(loop.stop)
        loop.run_forever()
        loop.close()
        return task

    async with gate.through():
        task = await anyio.to_thread.run_sync(abandon)
        assert gate.waiting() == 1
    with anyio.fail_after(60):
        async with gate.through():
            assert gate.waiting() == 0
    task.get_coro().close()
    task._log_destroy_pending = False


def test_many_keys_are_forgotten_when_nobody_uses_them() -> None:
    time = FakeEnvironment()
    gate = RateGate(environment=time)

    def use(number: int) -> None:
        gate.hold(f"tenant-{number}", 1)
        time.now += 2

    assert grown(use) < 2_000_000


def test_a_gate_is_one_by_its_protocol_and_printed_as_written() -> None:
    assert isinstance(RateGate(), Gate)
    assert repr(RateGate(3, per_second=2.5)) == "RateGate(concurrency=3, per_second=2.5)"


@table(
    ("do", "said"),
    [
        (lambda: RateGate(0), r"RateGate\.concurrency .* None for any number"),
        (lambda: RateGate(per_second=0), r"RateGate\.per_second"),
        (lambda: RateGate(longest_s=-1), r"RateGate\.longest_s"),
        (lambda: RateGate(environment=5), r"RateGate\.environment must be an Environment"),  # type: ignore[arg-type]
        (lambda: RateGate().through(5), r"RateGate\.through key must be text"),  # type: ignore[arg-type]
        (lambda: RateGate().hold("x", float("inf")), r"RateGate\.hold seconds"),
        (lambda: RateGate().wait_s(None), r"RateGate\.wait_s key"),  # type: ignore[arg-type]
        (lambda: RateGate().through()(5), "a function"),  # type: ignore[type-var]
    ],
)
def test_a_wrong_value_is_named(do: Callable[[], Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        do()


def test_the_errors_of_gates_travel_between_processes() -> None:
    error = triage.core.CircuitOpen("open", name="x", retry_after_s=3.0)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.name, copy.retry_after_s, str(copy)) == ("x", 3.0, "open")
