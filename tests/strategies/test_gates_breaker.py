from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from support import FakeEnvironment, Says, on_both_backends
from tables import table

from triage import (
    Agent,
    FailurePolicy,
    FailureType,
    Retry,
    Severity,
    TriageEscalationError,
    UsageError,
    diagnose,
    hint,
)
from triage.core import Cause, CircuitOpen
from triage.strategies import Breaker, CircuitBreaker, circuit_breaker

pytestmark = pytest.mark.anyio
anyio_backend = on_both_backends()


class Answered(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"answered {status}")
        self.status_code = status


async def call(breaker: CircuitBreaker, error: Exception | None = None) -> None:
    """One call, which ends so; nothing of the breaker's may hide what it raises."""

    @breaker.through()
    async def called() -> None:
        if error is not None:
            raise error

    if error is None:
        await called()
        return
    with pytest.raises(type(error)) as caught:
        await called()
    assert caught.value is error


async def opened(time: FakeEnvironment, failures: int = 2, **options: Any) -> CircuitBreaker:
    breaker = CircuitBreaker(failures, 30.0, environment=time, **options)
    for _ in range(failures):
        await call(breaker, ConnectionError("down"))
    assert breaker.state == "open"
    return breaker


async def test_an_open_breaker_stops_the_call_itself() -> None:
    time = FakeEnvironment()
    breaker = await opened(time, name="search")
    time.now += 10
    with pytest.raises(CircuitOpen, match="search is open; a probe is allowed in 20 s") as caught:
        async with breaker.through():
            pytest.fail("the call was made")
    assert (caught.value.name, caught.value.retry_after_s) == ("search", 20.0)


async def test_what_an_open_breaker_raises_is_known_for_what_it_is() -> None:
    breaker = await opened(FakeEnvironment())
    with pytest.raises(CircuitOpen) as caught:
        await call(breaker)
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        found = diagnose(error)
        assert (found.failure_type, found.cause) == (
            FailureType.EXTERNAL_FAULT,
            Cause.CIRCUIT_OPEN,
        )
        assert (found.severity, found.retry_after_s) == (Severity.RETRIABLE, 30.0)


async def test_nothing_was_sent_so_the_call_may_be_made_again() -> None:
    time = FakeEnvironment()
    breaker = await opened(time)
    seen: list[bool | None] = []

    async def agent(task: str, *, _triage_context: Any = None) -> str:
        if _triage_context is not None:
            time.now += 30
        async with breaker.through():
            return task

    def look(context: Any) -> Retry:
        seen.append(context.error.not_attempted)
        return Retry()

    wrapped = Agent(agent, FailurePolicy(default=look), environment=time)
    assert await wrapped.run("x") == "x"
    assert seen == [True]


@table("error", [ValueError("ours"), hint(KeyError("x"), cause="own")])
async def test_a_probe_that_says_nothing_of_the_service_leaves_its_place(error: Exception) -> None:
    time = FakeEnvironment()
    breaker = await opened(time)
    time.now += 30
    await call(breaker, error)
    assert breaker.state == "half_open"
    await call(breaker)
    assert breaker.state == "closed"


async def test_a_cancelled_probe_leaves_its_place() -> None:
    time = FakeEnvironment()
    breaker = await opened(time)
    time.now += 30
    with anyio.CancelScope() as scope:
        async with breaker.through():
            scope.cancel()
            await anyio.sleep_forever()
    assert breaker.state == "half_open"


@table(
    ("error", "counts"),
    [
        (Answered(500), True),
        (Answered(503), True),
        (Answered(408), True),
        (TimeoutError("slow"), True),
        (ConnectionRefusedError("no"), True),
        (Answered(429), False),
        (Answered(404), False),
        (ValueError("ours"), False),
        (CircuitOpen("another", retry_after_s=1), False),
    ],
)
async def test_only_what_says_that_the_service_is_down_counts(
    *, error: Exception, counts: bool
) -> None:
    breaker = CircuitBreaker(1, environment=FakeEnvironment())
    with pytest.raises(type(error)):
        async with breaker.through():
            raise error
    assert breaker.state == ("open" if counts else "closed")


async def test_an_outage_seen_through_another_error_counts() -> None:
    breaker = CircuitBreaker(1, environment=FakeEnvironment())
    with pytest.raises(RuntimeError):
        async with breaker.through():
            raise RuntimeError("wrapped") from Answered(502)
    assert breaker.state == "open"


async def test_what_counts_can_be_said() -> None:
    time = FakeEnvironment()
    breaker = CircuitBreaker(
        1, environment=time, counts=lambda error: isinstance(error, ValueError)
    )
    await call(breaker, ConnectionError("down"))
    assert breaker.state == "closed"
    await call(breaker, ValueError("down"))
    assert breaker.state == "open"


async def test_a_broken_counts_never_hides_the_error_of_the_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(error: BaseException) -> bool:
        raise ZeroDivisionError

    breaker = CircuitBreaker(1, counts=broken, environment=FakeEnvironment())
    await call(breaker, ConnectionError("down"))
    assert breaker.state == "closed"
    assert "CircuitBreaker.counts raised ZeroDivisionError" in caplog.text


async def test_a_failure_heard_at_the_call_is_not_counted_again_by_the_policy() -> None:
    time = FakeEnvironment()
    breaker = CircuitBreaker(3, 30.0, environment=time)

    @breaker.through()
    async def connect() -> str:
        raise ConnectionError("down")

    async def agent(task: str) -> str:
        try:
            return await connect()
        except ConnectionError as error:
            raise RuntimeError("the tool failed") from error

    policy = FailurePolicy(default=circuit_breaker(breaker, Retry()))
    with pytest.raises(TriageEscalationError, match="the circuit is open") as caught:
        await Agent(agent, policy, classifier=Says(), environment=time).run("x")
    assert caught.value.context is not None
    assert caught.value.context.attempt == 3


async def test_the_probe_that_a_policy_allowed_is_the_next_call() -> None:
    time = FakeEnvironment()
    breaker = await opened(time)
    time.now += 30
    assert breaker.ask("run") is None
    await call(breaker)
    assert breaker.state == "closed"


async def test_as_a_decorator_it_guards_async_and_sync_functions() -> None:
    breaker = CircuitBreaker(1, environment=FakeEnvironment())

    @breaker.through()
    async def ask(number: int) -> float:
        return 1 / number

    @breaker.through()
    def connect() -> None:
        raise ConnectionRefusedError

    assert await ask(2) == 0.5
    with pytest.raises(ConnectionRefusedError):
        connect()
    with pytest.raises(CircuitOpen):
        await ask(2)


def test_a_breaker_is_one_by_its_protocol() -> None:
    assert isinstance(CircuitBreaker(), Breaker)


@table(
    ("do", "said"),
    [
        (lambda: CircuitBreaker(name=5), r"CircuitBreaker\.name must be text"),  # type: ignore[arg-type]
        (lambda: CircuitBreaker(counts=5), r"CircuitBreaker\.counts"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_value_is_named(do: Callable[[], Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        do()
