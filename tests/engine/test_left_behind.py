"""What an attempt leaves running when it ends does nothing behind the back of the next one."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from support import in_turn, recovers

import triage
from triage import Agent, Limits, Retry, Run
from triage.core import AttemptOver
from triage.stores import MemoryStore, SQLiteStore, Store


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # a task of trio is waited for by whoever has started it


pytestmark = pytest.mark.anyio


class Payments:
    """A payment that takes a moment, and what has been paid."""

    def __init__(self) -> None:
        self.made: list[str] = []

        @triage.tool(effect="once")
        async def pay(what: str) -> str:
            await asyncio.sleep(0)
            self.made.append(what)
            return f"paid {what}"

        self.pay = pay


async def ended(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    """What has become of the tasks that were left behind."""
    return await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("kept", ["memory", "sqlite"])
@pytest.mark.parametrize("fails", ["before it pays", "after it has paid"])
@pytest.mark.parametrize("at", range(4))
async def test_a_run_inside_is_gone_on_with_by_the_next_attempt_alone(
    kept: str, fails: str, at: int, tmp_path: Path
) -> None:
    payments, tasks = Payments(), list[asyncio.Task[Any]]()
    begun: list[int] = []

    async def clerk(task: str) -> str:
        begun.append(len(payments.made))
        if fails == "before it pays" and len(begun) == 1:
            raise ValueError("the clerk fails once, too")
        first = await payments.pay("first")
        if fails == "after it has paid" and len(begun) == 1:
            raise ValueError("the clerk fails once, too")
        await payments.pay("second")
        return str(first)

    inner = Agent(clerk, name="clerk", **recovers(Retry()))

    async def fails_once(run: Run) -> None:
        for _ in range(at):
            await asyncio.sleep(0)
        if run.attempt == 1:
            raise ConnectionError("down")

    async def works(task: str, *, run: Run) -> str:
        tasks.append(asyncio.ensure_future(inner.run("x")))
        _, found = await asyncio.gather(fails_once(run), tasks[-1])
        return str(found)

    store: Store = MemoryStore() if kept == "memory" else SQLiteStore(tmp_path / "runs.db")
    agent = Agent(works, store=store, name="works", **recovers(Retry()))
    assert await agent.run("t", run_id="outer") == "paid first"
    await ended(tasks)
    assert payments.made == ["first", "second"]
    await store.close()


async def test_a_run_inside_uses_up_no_attempts_while_the_one_around_it_waits_for_an_effect() -> (
    None
):
    tasks, made = list[asyncio.Task[Any]](), list[str]()
    down, begun = asyncio.Event(), list[int]()

    @triage.tool(effect="once")
    async def pay(what: str) -> str:
        await down.wait()
        await asyncio.sleep(0)
        made.append(what)
        return f"paid {what}"

    @triage.tool(effect="once")
    async def send() -> None:
        while len(begun) < 2 and not tasks[0].done():
            await asyncio.sleep(0)

    async def clerk(task: str) -> str:
        begun.append(len(made))
        return f"{await pay('first')}, {await pay('second')}"

    inner = Agent(clerk, name="clerk", **recovers(Retry()))

    async def works(task: str, *, run: Run) -> str:
        tasks.extend(map(asyncio.ensure_future, (inner.run("x"), send())))
        if run.attempt == 1:
            await asyncio.sleep(0)
            down.set()
            raise ConnectionError("down")
        await tasks[-1]
        return str(await tasks[-2])

    assert await Agent(works, **recovers(Retry())).run("t") == "paid first, paid second"
    await ended(tasks)
    assert made == ["first", "second"]
    assert begun == [0, 1]


async def test_cut_off_again_before_it_goes_on_it_keeps_results_that_have_no_form() -> None:
    tickets: list[object] = []

    @triage.tool(effect="once")
    async def buy() -> object:
        tickets.append(object())
        return tickets[-1]

    async def clerk(task: str) -> bool:
        ticket = await buy()
        if len(begun) == 1:
            await asyncio.sleep(60)
        return ticket is tickets[0]

    inner = Agent(clerk, name="clerk")

    async def fails(run: Run) -> None:
        while not tickets:
            await asyncio.sleep(0)
        for _ in range(len(begun) - 2):
            await asyncio.sleep(0)
        if len(begun) < 12:
            raise ConnectionError("down")

    async def works(task: str, *, run: Run) -> bool:
        begun.append(run.attempt)
        found, _ = await asyncio.gather(inner.run(task), fails(run))
        return bool(found)

    begun: list[int] = []
    agent = Agent(works, **recovers(Retry()), limits=Limits(attempts=20))
    assert await agent.run("t")
    assert len(tickets) == 1


async def test_it_begins_no_run_inside() -> None:
    payments, late = Payments(), list[asyncio.Task[Any]]()

    async def clerk(task: str) -> str:
        return str(await payments.pay(task))

    inner = Agent(clerk, name="clerk")
    failed = asyncio.Event()

    async def gives_work(run: Run) -> str:
        if run.attempt == 1:
            await failed.wait()
        return await inner.run("bill")

    async def works(task: str, *, run: Run) -> str:
        late.append(asyncio.ensure_future(gives_work(run)))
        if run.attempt == 1:
            raise ConnectionError("down")
        failed.set()
        return str(await late[-1])

    assert await Agent(works, **recovers(Retry())).run("t") == "paid bill"
    first, _ = await ended(late)
    assert isinstance(first, AttemptOver)
    assert payments.made == ["bill"]


async def test_what_a_run_that_has_ended_left_running_may_run_agents_of_its_own() -> None:
    payments, service = Payments(), list[asyncio.Task[Any]]()
    asked = asyncio.Event()

    async def clerk(task: str) -> str:
        return str(await payments.pay(task))

    inner = Agent(clerk, name="clerk")

    async def serves() -> str:
        await asked.wait()
        return await inner.run("bill")

    async def works(task: str) -> str:
        service.append(asyncio.ensure_future(serves()))
        return "served from now on"

    await Agent(works).run("t")
    asked.set()
    assert await ended(service) == ["paid bill"]


async def test_no_call_with_an_effect_begins_while_the_last_one_is_waited_for() -> None:
    payments, tasks = Payments(), list[asyncio.Task[Any]]()

    async def pays_bills() -> None:
        for n in range(5):
            await payments.pay(f"bill {n}")

    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            tasks.append(asyncio.ensure_future(pays_bills()))
            await asyncio.sleep(0)
            raise ConnectionError("down")
        await pays_bills()
        return "all paid"

    assert await Agent(works, **recovers(in_turn(Retry()))).run("t") == "all paid"
    (late,) = await ended(tasks)
    assert isinstance(late, AttemptOver)
    assert payments.made == [f"bill {n}" for n in range(5)]


async def test_nor_does_one_in_a_thread_that_is_just_about_to() -> None:
    made, refused = list[str](), list[BaseException]()
    begins, is_over = threading.Event(), threading.Event()

    def key(what: str) -> str:
        # Between the look whether the attempt still goes on and the beginning of the call.
        if not begins.is_set():
            begins.set()
            is_over.wait(5)
        return what

    @triage.tool(effect="once", key=key)
    def pay(what: str) -> str:
        made.append(what)
        return f"paid {what}"

    def in_thread() -> None:
        try:
            pay("bill")
        except AttemptOver as error:
            refused.append(error)

    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            asyncio.ensure_future(asyncio.to_thread(in_thread))  # noqa: RUF006 - left behind
            await anyio.to_thread.run_sync(begins.wait)
            raise ConnectionError("down")
        is_over.set()
        while not refused:
            await asyncio.sleep(0.001)
        return await anyio.to_thread.run_sync(pay, "bill")

    assert await Agent(works, **recovers(Retry())).run("t") == "paid bill"
    assert made == ["bill"]
