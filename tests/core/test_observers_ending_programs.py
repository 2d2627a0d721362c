"""What an observer raises takes no result away, whatever it is."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from support import RETRY, Says
from tables import table

import triage
from triage import Agent, Step
from triage.core import AttemptStarted, CallStarted, Event, RunFinished
from triage.stores import MemoryStore, Store, open_store

pytestmark = pytest.mark.anyio


class Stops(BaseException):
    """One of the program's own, as test runners and event loops have them."""


ENDING = (KeyboardInterrupt, SystemExit, Stops)
PASSING = (asyncio.CancelledError, GeneratorExit, OSError)
RECORDED = (
    "RunStarted",
    "AttemptStarted",
    "StepRecorded",
    "StateUpdated",
    "CallStarted",
    "CallFinished",
    "AttemptFailed",
    "ActionChosen",
    "RunFinished",
)


class Raises:
    """An observer, of some kind, that raises once: at the first event of a type."""

    def __init__(self, at: str, error: type[BaseException]) -> None:
        self.at = at
        self.error = error
        self.raised = False

    def once(self) -> None:
        if not self.raised:
            self.raised = True
            raise self.error

    def __call__(self, event: Event) -> Any:
        if type(event).__name__ == self.at:
            self.once()
        if isinstance(event, (AttemptStarted, CallStarted)):
            kind = "call" if isinstance(event, CallStarted) else "attempt"
            return self.around(kind)
        return None

    @contextlib.contextmanager
    def around(self, kind: str) -> Iterator[None]:
        if self.at == f"enter {kind}":
            self.once()
        try:
            yield
        finally:
            if self.at == f"exit {kind}":
                self.once()

    def traceparent(self) -> str:
        if self.at == "traceparent":
            self.once()
        return ""


def function_of(raises: Raises) -> Callable[[Event], Any]:
    def observer(event: Event) -> Any:
        return raises(event)

    return observer


PLACES = (
    *RECORDED,
    "traceparent",
    *(f"{way} {kind}" for way in ("enter", "exit") for kind in ("attempt", "call")),
)


def store_in(kind: str, folder: Path) -> Store:
    return MemoryStore() if kind == "memory" else open_store(f"sqlite:///{folder}/runs.db")


def agent_with(store: Store, paid: list[int], *observers: Any) -> Agent[str]:
    @triage.tool(effect="once")
    async def pay(cents: int) -> str:
        paid.append(cents)
        return f"paid {cents}"

    async def buys(task: str, *, run: Any) -> str:
        run.update_state({"at": 1})
        run.record_step(Step(action="look"))
        done = await pay(5)
        if run.attempt == 1:
            raise ConnectionError("gone")
        return done

    return Agent(buys, RETRY, classifier=Says(), store=store, observers=observers, name="buys")


async def statuses(store: Store) -> list[str]:
    return [event.status for event in await store.read("r1") if isinstance(event, RunFinished)]


@table(("kind", "at"), itertools.product(("memory", "sqlite"), PLACES))
@pytest.mark.parametrize("error", ENDING)
async def test_what_ends_a_program_is_raised_again_once_the_result_is_stored(
    kind: str, at: str, error: type[BaseException], tmp_path: Path
) -> None:
    store = store_in(kind, tmp_path)
    paid: list[int] = []
    raises = Raises(at, error)
    agent = agent_with(store, paid, function_of(raises) if at in RECORDED else raises)
    with anyio.fail_after(20), pytest.raises(error) as caught:
        await agent.run("x", run_id="r1")
    assert raises.raised
    if at == "RunFinished":
        assert getattr(caught.value, "result", None) == "paid 5"
        assert await statuses(store) == ["done"]
    elif kind == "memory":
        assert await statuses(store) == ["cancelled"]
    else:
        assert await agent_with(store, paid).recover("r1") == "paid 5"
    assert paid in ([5], []) if kind == "memory" else paid == [5]


@table(("kind", "at"), itertools.product(("memory", "sqlite"), PLACES))
@pytest.mark.parametrize("error", PASSING)
async def test_what_ends_no_program_is_logged_and_changes_nothing(
    kind: str,
    at: str,
    error: type[BaseException],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = store_in(kind, tmp_path)
    paid: list[int] = []
    raises = Raises(at, error)
    with caplog.at_level(logging.ERROR, "triage"), anyio.fail_after(20):
        result = await agent_with(store, paid, raises).run("x", run_id="r1")
    assert (result, paid, raises.raised) == ("paid 5", [5], True)
    assert await statuses(store) == ["done"]
    assert [record for record in caplog.records if "observer" in record.message]


@table("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancelled_error_counts_where_the_task_is_being_cancelled(
    kind: str, tmp_path: Path
) -> None:
    store = store_in(kind, tmp_path)

    def cancels(event: Event) -> None:
        if isinstance(event, RunFinished):
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            raise asyncio.CancelledError

    running = asyncio.ensure_future(agent_with(store, [], cancels).run("x", run_id="r1"))
    await asyncio.wait([running])
    assert running.cancelled()
    assert await statuses(store) == ["done"]


async def test_the_manager_of_an_attempt_that_returned_takes_no_result_away() -> None:
    store = MemoryStore()

    class Late(Raises):
        def __call__(self, event: Event) -> Any:
            last = isinstance(event, AttemptStarted) and event.attempt == 2
            return self.around("attempt") if last else None

    with pytest.raises(SystemExit) as caught:
        await agent_with(store, [], Late("exit attempt", SystemExit)).run("x", run_id="r1")
    assert getattr(caught.value, "result", None) == "paid 5"
    assert await statuses(store) == ["done"]


async def test_other_observers_are_told_all_the_same() -> None:
    heard: list[str] = []
    agent = agent_with(
        MemoryStore(),
        [],
        Raises("RunFinished", KeyboardInterrupt),
        lambda event: heard.append(type(event).__name__),
    )
    with pytest.raises(KeyboardInterrupt):
        await agent.run("x", run_id="r1")
    assert heard[-1] == "RunFinished"


@table("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("end", ["escalated", "suspended"])
async def test_a_run_that_failed_has_its_end_in_the_journal_too(
    end: str, error: type[BaseException]
) -> None:
    store = MemoryStore()
    answer: Any = triage.Escalate() if end == "escalated" else triage.Suspend("go on?")

    async def fails(task: str) -> None:
        raise ConnectionError("gone")

    at = "RunFinished" if end == "escalated" else "RunSuspended"
    policy = triage.FailurePolicy(default=answer)
    agent = Agent(fails, policy, store=store, observers=[Raises(at, error)])
    with pytest.raises(error) as caught:
        await agent.run("x", run_id="r1")
    assert isinstance(caught.value.__cause__, triage.TriageError)
    info = await store.info("r1")
    assert info is not None
    assert info.status == end


async def test_a_stream_that_ended_has_its_end_in_the_journal() -> None:
    store = MemoryStore()

    async def items(task: str) -> Any:
        yield 1
        yield 2

    agent = Agent(items, store=store, observers=[Raises("RunFinished", SystemExit)])

    async def taken() -> list[Any]:
        return [item async for item in agent.stream("x")]

    with pytest.raises(SystemExit):
        await taken()
    (info,) = await store.runs()
    assert info.status == "done"
