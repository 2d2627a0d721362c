"""Large values: what a store keeps of them, how a run goes on with them, and that nothing is paid twice."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import anyio
import pytest
from store_kinds import opening
from support import RETRY
from tables import table

import triage
from triage import Agent, Durability, Step
from triage.core.errors import ResultLost, StoreError, TriageEscalationError
from triage.core.events import CallFinished, CallStarted, RunStarted, StateUpdated, StepRecorded
from triage.stores import SQLiteStore, Store

pytestmark = pytest.mark.anyio

opened = opening("sqlite")


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of a result is kept at most."""
    monkeypatch.setattr("triage.core.large_values.MOST_RESULT_MB", 1)


MB = 2**20
SMALL, BELOW, ABOVE, HUGE = 10, MB // 8 - 2, MB // 8 - 1, MB - 1
"""Characters of texts. In JSON each has two quotes more: the bounds are an eighth of a megabyte and one."""
UNSAFE = ("once", "unknown")
EFFECTS = (*UNSAFE, "read", "idempotent", "model")
NARROW = Durability(redact=False, max_value_mb=1 / 8)


def caller(effect: str, function: Any) -> Any:
    """Call a function as one with this effect."""
    if effect == "model":
        return lambda *args: triage.current_run().model(function, *args)
    return triage.tool(effect=effect)(function)


class World:
    """An agent with one call, whose result is paid for. size, given: of its result and its argument."""

    def __init__(self, effect: str, *, size: int = SMALL, given: int = SMALL) -> None:
        self.paid: list[int] = []
        self._size = size
        self._given = given

        async def work(text: str) -> str:
            self.paid.append(len(text))
            return "x" * size

        self._call = caller(effect, work)

    def agent(self, store: Store, ending: Any, durability: Durability = NARROW) -> Agent[int]:
        """ending: awaited behind the call, with the run."""

        async def pays(task: str, *, run: triage.Run) -> int:
            found = await self._call("y" * self._given)
            assert found == "x" * self._size
            await ending(run)
            return len(found)

        return Agent(pays, RETRY, store=store, durability=durability, name="pays")


async def ends(run: triage.Run) -> None:
    """The agent returns."""


async def fails_once(run: triage.Run) -> None:
    if run.attempt == 1:
        raise ConnectionError("late")


async def crashed(world: World, store: Store, durability: Durability = NARROW) -> None:
    """A run that is cut off behind its call."""
    with anyio.CancelScope() as scope:

        async def stop(run: triage.Run) -> None:
            scope.cancel()
            await anyio.sleep_forever()

        await world.agent(store, stop, durability).run("task", run_id="r")


async def kept(store: Store, kind: type[Any]) -> Any:
    """The first event of this kind that the store has of the run."""
    return next(event for event in await store.read("r") if isinstance(event, kind))


def mark(value: Any) -> dict[str, Any]:
    """What is kept in place of a large value."""
    body = json.dumps(value, separators=(",", ":"))
    return {
        "$triage": "cut",
        "type": type(value).__name__,
        "bytes": len(body),
        "sha256": hashlib.sha256(body.encode()).hexdigest(),
        "head": (value if isinstance(value, str) else body)[:2000],
    }


# Results ------------------------------------------------------------------------------------------


@table("effect", EFFECTS)
@table("size", (BELOW, ABOVE, HUGE))
async def test_a_run_goes_on_with_a_result_of_any_size(
    store: Store, effect: str, size: int
) -> None:
    small, large = World(effect), World(effect, size=size)
    await small.agent(store, fails_once).run("task", run_id=f"small-{effect}-{size}")
    agent = large.agent(store, fails_once)
    assert await agent.run("task", run_id=f"large-{effect}-{size}") == size
    assert large.paid == small.paid


@table("effect", EFFECTS)
@table("size", (BELOW, ABOVE, HUGE))
async def test_a_run_recovers_with_what_is_kept_of_a_result(
    tmp_path: Any, effect: str, size: int
) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    world = World(effect, size=size)
    await crashed(world, store)
    again = world.agent(store, ends)
    finished = await kept(store, CallFinished)
    whole = size <= BELOW or (effect in UNSAFE and size < HUGE)
    assert finished.result == ("x" * size if whole else mark("x" * size))
    assert (finished.outcome, finished.exact) == ("done", whole)
    if whole:
        assert await again.recover("r") == size
        assert len(world.paid) == 1
    elif effect in UNSAFE:
        with pytest.raises((ResultLost, TriageEscalationError), match="too large"):
            await again.recover("r")
        assert len(world.paid) == 1
    else:
        assert await again.recover("r") == size
        assert len(world.paid) == 2
    await store.close()


@table(("effect", "size", "whole"), [("read", 9, False), ("once", 9, True), ("once", 65, False)])
async def test_the_bounds_are_8_mb_and_64_mb(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, effect: str, size: int, *, whole: bool
) -> None:
    monkeypatch.undo()
    store = SQLiteStore(tmp_path / "runs.db")
    world = World(effect, size=size * MB)
    await crashed(world, store, Durability())
    assert (await kept(store, CallFinished)).exact is whole
    await store.close()


@table("value", [0, -1, 65, "8", None, float("nan")])
def test_a_bound_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(triage.UsageError, match=r"Durability\.max_value_mb"):
        Durability(max_value_mb=value)


# Arguments ----------------------------------------------------------------------------------------


@table("effect", EFFECTS)
@table("given", (BELOW, ABOVE))
async def test_a_call_is_known_by_all_of_its_argument(
    tmp_path: Any, effect: str, given: int
) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    world = World(effect, given=given)
    await crashed(world, store)
    assert await world.agent(store, ends).recover("r") == SMALL
    assert world.paid == [given]
    text = "y" * given
    begun, recorded = await kept(store, CallStarted), await kept(store, StepRecorded)
    assert begun.arguments == {"text": text if given == BELOW else mark(text)}
    assert "y" * 10 in json.dumps(recorded.step.tool_input)
    await store.close()


async def test_each_argument_has_the_bound_to_itself(store: Store) -> None:
    @triage.tool(effect="once")
    async def send(to: str, text: str) -> int:
        return len(text)

    async def works(task: str) -> int:
        return await send("ann", "y" * ABOVE)

    assert await Agent(works, RETRY, store=store, durability=NARROW).run("t", run_id="r") == ABOVE
    assert (await kept(store, CallStarted)).arguments == {"to": "ann", "text": mark("y" * ABOVE)}


# Steps, tasks and state ---------------------------------------------------------------------------


@table("size", (BELOW, ABOVE))
async def test_a_step_keeps_its_values_up_to_the_bound(tmp_path: Any, size: int) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    rows = ["z" * 1000] * (size // 1003 + 1)
    value = "x" * size

    async def works(task: str, *, run: triage.Run) -> None:
        run.record_step(Step(action="dump", tool_input=value, tool_output=rows, llm_output=value))

    await Agent(works, RETRY, store=store, durability=NARROW).run("task", run_id="r")
    step = (await kept(store, StepRecorded)).step
    assert step.action == "dump"
    assert step.tool_output == mark(rows)
    if size == BELOW:
        assert (step.tool_input, step.llm_output) == (value, value)
    else:
        said = mark(value)
        assert step.tool_input == said
        assert step.llm_output == (
            f"{said['head']}… [cut: {said['bytes']} bytes of JSON, SHA-256 {said['sha256']}]"
        )
    await store.close()


async def test_a_task_and_a_state_are_kept_whole(store: Store) -> None:
    text = "x" * ABOVE
    told: list[Any] = []

    async def works(task: str, *, run: triage.Run, _triage_state: Any = None) -> int:
        if _triage_state is None:
            run.update_state({"text": text})
            await run.flush()
            scope.cancel()
            await anyio.sleep_forever()
        told.append(_triage_state["text"])
        return len(task)

    agent = Agent(works, RETRY, store=store, durability=NARROW)
    with anyio.CancelScope() as scope:
        await agent.run(text, run_id="r")
    assert await agent.recover("r") == ABOVE
    assert told == [text]
    assert (await kept(store, RunStarted)).task == text
    assert (await kept(store, StateUpdated)).values == {"text": text}


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores that keep 500,000 characters of an event at most."""
    monkeypatch.setattr("triage.stores.rows.MOST_CHARACTERS", 500_000)


@pytest.mark.usefixtures("full")
async def test_a_store_refuses_a_result_by_the_name_of_its_tool(store: Store) -> None:
    world = World("once", size=600_000)
    with pytest.raises(StoreError, match="result of tool work of run r takes 600,"):
        await world.agent(store, ends).run("task", run_id="r")
    kinds = [type(event) for event in await store.read("r")]
    assert CallStarted in kinds
    assert CallFinished not in kinds  # in doubt
    assert await World("once").agent(store, ends).run("task", run_id="another") == SMALL


@pytest.mark.usefixtures("full")
async def test_a_run_that_may_do_without_its_store_goes_on(store: Store) -> None:
    world = World("once", size=600_000)
    durability = Durability(redact=False, on_store_error="continue", max_value_mb=1 / 8)
    assert await world.agent(store, ends, durability).run("task", run_id="r") == 600_000


# Secrets ------------------------------------------------------------------------------------------


async def test_no_secret_is_known_by_the_half_that_is_kept(store: Store) -> None:
    key = "AKIA" + "Q" * 16
    durability = Durability(max_value_mb=0.1)

    async def works(task: str, *, run: triage.Run) -> None:
        for back in (1, 8, 12, 19):
            text = "x " * ((2000 - back) // 2) + key + " y" * 100_000
            run.record_step(Step(tool_output=text, metadata={"x": [text]}, llm_output=text))

    await Agent(works, RETRY, store=store, durability=durability).run("task", run_id="r")
    steps = [e.step for e in await store.read("r") if isinstance(e, StepRecorded)]
    assert len(steps) == 4
    for step in steps:
        for value in (step.tool_output, step.metadata, step.llm_output):
            assert "cut" in json.dumps(value)
            assert "AKIA" not in json.dumps(value)


async def test_no_secret_in_a_large_result_is_kept(store: Store) -> None:
    key = "sk-" + "Qx7" * 12
    text = f"{'prose ' * 50_000} {key} {'prose ' * 50_000}"

    @triage.tool(effect="once")
    async def fetch() -> str:
        return text

    async def works(task: str, *, run: triage.Run) -> int:
        found = await fetch()
        await fails_once(run)
        assert found == text
        return len(found)

    assert await Agent(works, RETRY, store=store).run("task", run_id="r") == len(text)
    finished = await kept(store, CallFinished)
    assert finished.result == text.replace(key, "[redacted]")
    assert not finished.exact
