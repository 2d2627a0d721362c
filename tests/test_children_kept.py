"""Runs inside runs that were cut off go on; what they are, and where they are kept."""

from __future__ import annotations

from typing import Any, NamedTuple

import anyio
import pytest
from calls import recovers
from hypothesis import given
from hypothesis import strategies as st
from inner_runs import OUTER, Office
from store_kinds import Opened, opening

import triage
from triage import Agent, Limits, Retry, Run, Usage
from triage.errors import (
    ResultLost,
    UsageError,
)
from triage.events import CallFinished, CallStarted, Event, RunStarted
from triage.stores import MemoryStore, Store

pytestmark = pytest.mark.anyio


opened = opening("memory", "sqlite")


# Cut off ------------------------------------------------------------------------------------------


async def test_one_that_a_failed_attempt_cut_off_goes_on(store: Store) -> None:
    did: list[str] = []
    attempts: list[int] = []

    @triage.tool(effect="once")
    async def act(what: str) -> object:
        did.append(what)
        return object()  # at hand in this process alone

    async def clerk(task: str, *, run: Run, update_state: Any, _triage_state: Any) -> Any:
        attempts.append(run.attempt)
        await act("first")
        if _triage_state is None:
            update_state({"half": "done"})
            await anyio.sleep_forever()
        await act("second")
        return _triage_state

    inner = Agent(clerk, store=store)

    async def works(task: str) -> Any:
        return await inner.run("a")

    limits = Limits(attempts=2, attempt_seconds=0.3)
    agent = Agent(works, **recovers(lambda _context: Retry()), store=store, limits=limits)
    assert await agent.run("t", run_id=OUTER) == {"half": "done"}
    assert did == ["first", "second"]
    assert attempts == [1, 1]
    (info,) = await store.runs(parent=OUTER)
    assert info.status == "done"


async def test_one_that_nothing_comes_to_again_ends_with_the_outer_run(store: Store) -> None:
    async def clerk(task: str) -> None:
        await anyio.sleep_forever()

    inner = Agent(clerk, store=store)

    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            await inner.run("a")
        return "without it"

    limits = Limits(attempts=2, attempt_seconds=0.2)
    agent = Agent(works, **recovers(lambda _context: Retry()), store=store, limits=limits)
    assert await agent.run("t", run_id=OUTER) == "without it"
    assert [info.status for info in await store.runs(parent=OUTER)] == ["cancelled"]


async def test_what_one_used_counts_once_in_the_outer_run(store: Store) -> None:
    async def clerk(task: str, *, run: Run, record_usage: Any) -> str:
        record_usage(Usage(input_tokens=10))
        if not again:
            again.append(1)
            await anyio.sleep_forever()
        return "done"

    again: list[int] = []
    inner = Agent(clerk, store=store)
    used: list[int] = []

    async def works(task: str, *, run: Run) -> str:
        found = await inner.run("a")
        used.append(run.usage.input_tokens)
        if len(used) == 1:
            raise ConnectionError("late")
        return str(found)

    limits = Limits(attempts=3, attempt_seconds=0.3)
    agent = Agent(works, **recovers(lambda _context: Retry()), store=store, limits=limits)
    await agent.run("t", run_id=OUTER)
    assert used == [20, 20]


# What it is ---------------------------------------------------------------------------------------


async def test_it_is_a_call_of_the_attempt_with_a_journal_of_its_own(store: Store) -> None:
    office = Office(store, "read")

    async def works(task: str, *, run: Run) -> None:
        for start in (office.clerk, office.clerk.run):
            await run.call(start, "a")
        await office.clerk("b")
        (first, *_) = run.trajectory
        assert (first.tool_called, first.tool_input, first.tool_output) == (
            "clerk",
            {"task": "a"},
            "did a",
        )

    await Agent(works, store=store).run("t", run_id=OUTER)
    events: list[Event] = await store.read(OUTER)
    begun = [event for event in events if isinstance(event, CallStarted)]
    ended = [event for event in events if isinstance(event, CallFinished)]
    assert [event.effect for event in ended] == ["idempotent"] * 3
    for event in begun:
        assert event.run is not None
        (started, *_rest) = await store.read(event.run)
        assert isinstance(started, RunStarted)
        assert started.parent == OUTER
    assert len({event.run for event in begun}) == 3


async def test_an_id_may_be_chosen_and_must_be_free(store: Store) -> None:
    office = Office(store)
    await office.clerk.run("stranger", run_id="taken")

    async def works(task: str, *, run: Run) -> str:
        found = await office.clerk.run("a", run_id="mine")
        if run.attempt == 1:
            raise ConnectionError("late")
        return str(found)

    assert await office.boss(works, Retry()).run("t", run_id=OUTER) == "did a"
    assert office.did == ["stranger", "a"]
    assert (await store.info("mine")).parent == OUTER  # type: ignore[union-attr] # it is there

    async def takes(task: str) -> None:
        await office.clerk.run("a", run_id="taken")

    with pytest.raises(UsageError, match="taken"):
        await office.boss(takes, Retry()).run("t")
    assert (await store.info("taken")).status == "done"  # type: ignore[union-attr] # as above


async def test_a_stream_gives_its_items_to_every_attempt(store: Store) -> None:
    given: list[int] = []

    async def counts(task: str) -> Any:
        for number in range(3):
            given.append(number)
            yield number

    inner = Agent(counts, store=store)

    async def works(task: str, *, run: Run) -> list[Any]:
        found = [item async for item in inner.stream("a")]
        if run.attempt == 1:
            raise ConnectionError("late")
        return found

    agent = Agent(works, **recovers(lambda _context: Retry()), store=store)
    assert await agent.run("t") == [0, 1, 2]
    assert given == [0, 1, 2]


def test_sync_agents_have_runs_inside_them_too(tmp_path: Any) -> None:
    office = Office(MemoryStore())

    def works(task: str, *, run: Run) -> str:
        found = office.clerk.run_sync("a")
        if run.attempt == 1:
            raise ConnectionError("late")
        return str(found)

    assert office.boss(works, Retry()).run_sync("t", run_id=OUTER) == "did a"
    assert office.did == ["a"]


async def test_an_agent_says_that_it_is_one() -> None:
    @triage.agent
    async def works(task: str) -> None: ...

    assert works.__triage_agent__ is True


async def test_a_task_that_outlives_the_attempt_may_start_runs(store: Store) -> None:
    office = Office(store)
    go, over = anyio.Event(), anyio.Event()

    async def later() -> None:
        await go.wait()
        assert await office.clerk.run("a") == "did a"
        over.set()

    async with anyio.create_task_group() as group:

        async def works(task: str) -> None:
            group.start_soon(later)

        await Agent(works, store=store).run("t")
        go.set()
        await over.wait()


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(st.tuples(values, values), st.tuples(values, values))
def test_one_is_known_by_all_that_it_was_given(one: Any, other: Any) -> None:
    made: list[Any] = []

    async def clerk(task: Any, *, extra: Any) -> None:
        made.append((task, extra))

    inner = Agent(clerk)

    async def works(_task: str, *, run: Run) -> None:
        task, extra = one if run.attempt == 1 else other
        await inner.run(task, extra=extra)
        if run.attempt == 1:
            raise ConnectionError("late")

    Agent(works, **recovers(lambda _context: Retry())).run_sync("t")
    same = repr(sorted_all(one)) == repr(sorted_all(other))
    assert len(made) == (1 if same else 2)


def sorted_all(value: Any) -> Any:
    """The value with its mappings in one order."""
    if isinstance(value, dict):
        return {key: sorted_all(value[key]) for key in sorted(value)}
    return [sorted_all(item) for item in value] if isinstance(value, list | tuple) else value


async def test_one_is_kept_as_safely_as_the_outer_run(tmp_path: Any) -> None:
    """An agent with no store of its own would lose with its process what it has paid."""
    paid: list[str] = []

    @triage.tool(effect="once")
    async def pay(what: str) -> str:
        paid.append(what)
        return f"paid {what}"

    async def clerk(task: str, *, run: Run) -> str:
        found = await pay(task)
        await run.flush()
        if len(paid) == 1 and not died:
            died.append(True)
            raise KeyboardInterrupt
        return str(found)

    async def works(task: str) -> str:
        return str(await Agent(clerk, name="clerk").run("a"))

    died: list[bool] = []
    with Opened("sqlite", tmp_path) as opened:
        first, second = opened.new(), opened.another()
        with pytest.raises(KeyboardInterrupt):
            await Agent(works, store=first, name="works").run("t", run_id=OUTER)
        assert await Agent(works, store=second, name="works").recover(OUTER) == "paid a"
        await first.close()
        await second.close()
    assert paid == ["a"]


@pytest.mark.parametrize("declares", ["result_type", "annotation"])
async def test_a_result_comes_back_in_another_process_as_what_is_declared(
    declares: str, tmp_path: Any
) -> None:
    async def annotated(task: str) -> Ticket:
        return Ticket(7)

    async def bare(task: str) -> Any:
        return Ticket(7)

    function = annotated if declares == "annotation" else bare
    options: dict[str, Any] = {"result_type": Ticket} if declares == "result_type" else {}
    with Opened("sqlite", tmp_path) as opened:
        store = opened.new()
        await Agent(function, store=store, name="clerk", **options).run("t", run_id="r")
        assert await Agent(function, store=store, name="clerk", **options).recover("r") == Ticket(7)
        with pytest.raises(ResultLost, match="annotate"):
            await Agent(bare, store=store, name="clerk").recover("r")
        await store.close()


class Ticket(NamedTuple):
    number: int
