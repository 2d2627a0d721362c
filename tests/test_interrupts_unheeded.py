"""Interrupts that are not heeded: reported, repeated, and waited for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextvars import Context
from typing import Any

import anyio
import pytest
from test_interrupts import MODES, asked_of_the_task, interrupt
from watched import ONCE_MORE, call

import triage
import triage._interrupt
from triage import Agent, Limits, Run
from triage.errors import AttemptInterrupted, AttemptOver
from triage.events import Event, WatchNoticed
from triage.testing import VirtualTime

pytestmark = pytest.mark.anyio
RUN = "run-1"
TOOK_TOO_LONG = 10.0


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> dict[str, Any]:
    return MODES[request.param]([])


class Told(logging.Handler):
    """Hears that an attempt has not stopped."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard = threading.Event()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "not stopped" in record.getMessage():
            self.messages.append(record.getMessage())
            self.heard.set()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    monkeypatch.setattr(triage._interrupt, "GRACE", 0.02)
    handler = Told()
    logging.getLogger("triage").addHandler(handler)
    yield handler
    logging.getLogger("triage").removeHandler(handler)


def blocks(told: Told) -> None:
    while not told.heard.is_set():
        pass


async def never_awaits(run: Run, told: Told) -> None:
    interrupt(run)
    blocks(told)


async def swallows_every_cancellation(run: Run, told: Told) -> None:
    interrupt(run)
    while not told.heard.is_set():
        try:
            await anyio.sleep(0.001)
        except BaseException:  # noqa: BLE001 - on purpose
            continue


@pytest.mark.parametrize("deaf", [never_awaits, swallows_every_cancellation])
async def test_what_does_not_stop_is_reported_once_and_awaited(
    deaf: Any, told: Told, mode: dict[str, Any]
) -> None:
    ended: list[int] = []

    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            await deaf(run, told)
            ended.append(1)
            return "at last"
        assert ended == [1], "the next attempt began beside it"
        return "done"

    agent = Agent(works, ONCE_MORE, **mode)
    assert await agent.run("t", run_id=RUN) == "done"
    assert len(told.messages) == 1
    noticed = [one for one in await agent.store.read(RUN) if isinstance(one, WatchNoticed)]
    [unstopped] = [one for one in noticed if one.response == "unstopped"]
    assert (unstopped.attempt, unstopped.rule, unstopped.step) == (1, "watch.interrupt", None)
    assert unstopped.text == "not stopped 0.02 seconds after its interrupt"


async def test_a_sync_agent_that_does_not_stop_is_reported_and_awaited(told: Told) -> None:
    def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            interrupt(run)
            assert told.heard.wait(TOOK_TOO_LONG)
        return "done"

    assert await Agent(works, ONCE_MORE).run("t") == "done"
    assert len(told.messages) == 1


async def test_a_slow_payment_is_named_as_the_reason(told: Told) -> None:
    @triage.tool(effect="once")
    async def pay() -> str:
        run = triage.current_run()
        if run.attempt == 1:
            Context().run(interrupt, run)
            await anyio.to_thread.run_sync(told.heard.wait, TOOK_TOO_LONG)
        return "paid"

    async def works(task: str, *, run: Run) -> str:
        return await pay()

    assert await Agent(works, ONCE_MORE).run("t") == "paid"
    assert told.messages[0].endswith("a call with an effect is finished first; it is waited for")


async def test_one_that_swallows_its_cancellation_and_sleeps_again_is_cancelled_again(
    told: Told, anyio_backend_name: str
) -> None:
    async def works(task: str, *, run: Run) -> str:
        if run.attempt > 1:
            return "done"
        interrupt(run)
        for _ in range(3):
            try:
                await anyio.sleep_forever()
            except BaseException:  # noqa: BLE001 - on purpose
                continue
        return "in vain"

    with anyio.fail_after(TOOK_TOO_LONG):
        assert await Agent(works, ONCE_MORE).run("t") == "done"
    assert asked_of_the_task() == 0


async def test_one_that_stops_in_time_is_not_reported(told: Told, mode: dict[str, Any]) -> None:
    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            interrupt(run)
        return "done"

    agent = Agent(works, ONCE_MORE, **mode)
    assert await agent.run("t") == "done"
    timers = [one for one in threading.enumerate() if isinstance(one, threading.Timer)]
    assert all(timer.finished.is_set() for timer in timers)
    assert told.messages == []


async def test_a_deadline_that_is_not_heeded_is_reported_when_it_records(told: Told) -> None:
    env = VirtualTime()

    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            try:
                await env.sleep(100)
            except BaseException:  # noqa: BLE001 - on purpose
                with pytest.raises(AttemptInterrupted):
                    run.record_step(call())
                blocks(told)
        return "done"

    agent = Agent(works, ONCE_MORE, limits=Limits(attempt_seconds=5), environment=env)
    assert await agent.run("t") == "done"
    assert len(told.messages) == 1


def test_what_was_left_behind_records_nothing() -> None:
    late: list[Any] = []
    events: list[Event] = []

    async def works(task: str, *, run: Run) -> str:
        late.append(run)
        if run.attempt == 1:
            interrupt(run)
        return "done"

    assert Agent(works, ONCE_MORE, observers=[events.append]).run_sync("t") == "done"
    count = len(events)
    for run in late:
        with pytest.raises(AttemptOver):
            run.record_step(call())
    assert len(events) == count
