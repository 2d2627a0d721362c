"""Recorded calls: what is reused, what runs again, and what a call is known by."""

from __future__ import annotations

import datetime as dt
import threading
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from calls import World, fails_after, recovers
from support import RETRY

import triage
from triage import (
    Agent,
    MemoryStore,
    Replan,
    Resume,
    Retry,
    Rollback,
    Run,
    UsageError,
)
from triage.events import CallStarted

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("action", "critical", "expected"),
    [
        (Retry(), None, ["read(x)", "idempotent(x)", "once(x)", "unknown(x)"]),
        (Retry(), 1, ["read(x)", "idempotent(x)", "once(x)", "unknown(x)", "idempotent(x)"]),
        (
            Retry(),
            0,
            ["read(x)", "idempotent(x)", "once(x)", "unknown(x)", "read(x)", "idempotent(x)"],
        ),
        (Resume("go"), None, ["read(x)", "idempotent(x)", "once(x)", "unknown(x)"]),
        (
            Replan(),
            None,
            ["read(x)", "idempotent(x)", "once(x)", "unknown(x)", "read(x)", "idempotent(x)"],
        ),
        (Rollback(), None, ["read(x)", "idempotent(x)", "once(x)", "unknown(x)"]),
    ],
)
async def test_what_is_reused_follows_the_action_and_the_effect(
    action: Any, critical: int | None, expected: list[str]
) -> None:
    world = World()
    tools = [world.tool(effect) for effect in ("read", "idempotent", "once", "unknown")]

    async def works(task: str, *, run: Run) -> list[str]:
        return await fails_after(tools, run)

    results = await Agent(works, **recovers(action, critical)).run("t")
    assert results == ["result of x"] * 4
    assert world.did == expected


async def test_reused_calls_are_marked_and_cost_nothing() -> None:
    world = World()
    once = world.tool("once")
    seen: list[triage.Trajectory] = []

    async def works(task: str, *, run: Run) -> None:
        await once("x")
        seen.append(run.trajectory)
        if run.attempt == 1:
            raise ConnectionError("late")

    agent = Agent(works, limits=triage.Limits(tool_calls=1), **recovers(Retry()))
    await agent.run("t")
    first, second = seen
    assert (first[0].metadata or {}).get("replayed") is None
    assert (second[0].metadata or {})["replayed"] is True
    assert second[0].tool_output == first[0].tool_output == "result of x"


async def test_a_rollback_does_not_record_a_kept_call_twice() -> None:
    world = World()
    read, once = world.tool("read"), world.tool("once")
    lengths: list[int] = []

    async def works(task: str, *, run: Run) -> None:
        await read("x")
        await once("x")
        lengths.append(len(run.trajectory))
        if run.attempt == 1:
            raise ConnectionError("late")

    await Agent(works, **recovers(Rollback())).run("t")
    assert lengths == [2, 2]
    assert world.did == ["read(x)", "once(x)"]


async def test_equal_calls_are_told_apart_by_their_occurrence() -> None:
    world = World()
    once = world.tool("once")

    async def works(task: str, *, run: Run) -> int:
        for _ in range(3 if run.attempt > 1 else 2):
            await once("x")
        if run.attempt == 1:
            raise ConnectionError("late")
        return len(world.did)

    assert await Agent(works, **recovers(Resume("go"))).run("t") == 3


async def test_concurrent_equal_calls_match_whatever_the_timing() -> None:
    calls: list[str] = []

    @triage.tool(effect="once")
    async def act(what: str) -> str:
        calls.append(what)
        await anyio.lowlevel.checkpoint()
        return what

    async def works(task: str, *, run: Run) -> None:
        order = ["a", "b", "a", "c"] if run.attempt == 1 else ["c", "a", "b", "a"]
        async with anyio.create_task_group() as group:
            for what in order:
                group.start_soon(act, what)
        if run.attempt == 1:
            raise ConnectionError("late")

    await Agent(works, **recovers(Retry())).run("t")
    assert sorted(calls) == ["a", "a", "b", "c"]


async def test_a_tool_outside_of_a_run_is_the_function() -> None:
    world = World()
    assert await world.tool("once")("x") == "result of x"

    @triage.tool
    def add(a: int, b: int = 2) -> int:
        return a + b

    assert add(1) == 3


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name
        self.sold: list[str] = []

    @triage.tool(effect="once")
    async def sell(self, item: str) -> str:
        self.sold.append(item)
        return f"{self.name} sold {item}"

    @triage.tool(effect="once")
    def sell_now(self, item: str) -> str:
        self.sold.append(item)
        return f"{self.name} sold {item} now"

    @classmethod
    @triage.tool(effect="read")
    async def kinds(cls, of: str) -> list[str]:
        return [of]


async def test_methods_are_tools_and_self_is_no_part_of_the_call() -> None:
    shop = Shop("corner")

    async def works(task: str, *, run: Run) -> list[Any]:
        results: list[Any] = [await shop.sell("bread"), shop.sell_now("milk")]
        results.append(await run.call(shop.sell, "eggs"))
        results.append(await Shop.kinds("tea"))
        if run.attempt == 1:
            raise ConnectionError("late")
        return results

    assert await Agent(works, **recovers(Retry())).run("t") == [
        "corner sold bread", "corner sold milk now", "corner sold eggs", ["tea"],
    ]  # fmt: skip
    assert shop.sold == ["bread", "milk", "eggs"]


async def test_a_sync_agent_uses_its_sync_tools_from_its_thread() -> None:
    sold: list[str] = []

    @triage.tool(effect="once")
    def sell(item: str) -> int:
        sold.append(item)
        return threading.get_ident()

    def works(task: str, *, run: Run) -> bool:
        thread = sell("bread")
        if run.attempt == 1:
            raise ConnectionError("late")
        return thread != threading.get_ident() or len(sold) == 1

    assert await Agent(works, **recovers(Retry())).run("t")
    assert sold == ["bread"]


async def test_run_call_records_any_function_as_unsafe_to_repeat() -> None:
    done: list[str] = []

    def act(what: str) -> str:
        done.append(threading.current_thread().name)
        return what

    async def works(task: str, *, run: Run) -> str:
        result: str = await run.call(act, what="x")
        if run.attempt == 1:
            raise ConnectionError("late")
        assert run.trajectory[0].effect is triage.Effect.UNKNOWN
        return result

    assert await Agent(works, **recovers(Retry())).run("t") == "x"
    assert len(done) == 1
    assert done[0] != threading.current_thread().name


# The key of a call --------------------------------------------------------------------------------


@dataclass
class Money:
    cents: int


async def test_arguments_of_many_kinds_make_equal_keys() -> None:
    did: list[Any] = []

    @triage.tool(effect="once")
    async def act(*args: Any, **kwargs: Any) -> int:
        did.append((args, kwargs))
        return len(did)

    def arguments() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (1, "a", (2, [3]), {"b": {4, 5}}, b"raw"), {
            "when": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
            "money": Money(5),
            "effect": triage.Effect.READ,
        }

    async def works(task: str, *, run: Run) -> int:
        args, kwargs = arguments()
        result: int = await act(*args, **kwargs)
        if run.attempt == 1:
            raise ConnectionError("late")
        return result

    assert await Agent(works, **recovers(Retry())).run("t") == 1


async def test_calls_have_the_keys_that_earlier_versions_gave_them() -> None:
    """A version that gave others would call again what a run of one before has done."""

    @triage.tool(effect="once")
    async def pay(
        to: str, cents: int = 3, *more: int, a_b: Any = None, ab: bool = True, **rest: Any
    ) -> None: ...

    @triage.tool(effect="read", match="position", ignore=("client",))
    async def ask(prompt: str, client: object = None) -> None: ...

    async def works(task: str, *, run: Run) -> None:
        await pay('é"', 5)
        await pay(to='é"', cents=5)
        await pay("\ud800", -1, a_b=[1.5, {"k": None}], why=10**30)
        await ask("what?", object())
        await run.call(sorted, [2, 1])

    store = MemoryStore()
    await Agent(works, store=store).run("t", run_id="run-1")
    calls = [event for event in await store.read("run-1") if isinstance(event, CallStarted)]
    assert [(call.key, call.idempotency_key) for call in calls] == KEYS


KEYS = [
    ("pay:5725c8f01bc5e970a254273390e51ecf:1", "bca2ff3424252528ecf35029d71830a7"),
    ("pay:5725c8f01bc5e970a254273390e51ecf:2", "e1229fc6b1e7d921f982cf72a3b20640"),
    ("pay:66551fad3eddfcd2e420b130dc96e26c:1", "25b122f046ba368983194d2db15c29e1"),
    ("ask:8dbec118d1bf26ceac595d62ef9ba269:1", "fc52c16c260d68f5e1c2f5691e8f7d79"),
    ("sorted:891d0fe7922a8c09ca5ec6fb184276a3:1", "06289edf999d01d4f63ed0747cd88cd7"),
]


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (("bread",), {}),
        ((), {"query": "bread"}),
        (("bread",), {"tags": ()}),
        ((), {"tags": (), "page": 1, "query": "bread"}),
    ],
)
async def test_a_call_is_known_by_what_it_is_given_and_by_the_defaults_it_leaves_out(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    @triage.tool(effect="read")
    async def search(query: str, page: int = 1, tags: tuple[str, ...] = ()) -> None: ...

    async def works(task: str) -> None:
        await search("bread", 1, ())
        await search(*args, **kwargs)

    store = MemoryStore()
    await Agent(works, store=store).run("t", run_id="r")
    first, again = [event for event in await store.read("r") if isinstance(event, CallStarted)]
    assert again.arguments == {"query": "bread", "page": 1, "tags": []}
    assert list(again.arguments) == list(first.arguments) == ["query", "page", "tags"]
    assert (first.key[:-2], again.key[-2:]) == (again.key[:-2], ":2")


async def test_arguments_that_do_not_fit_are_no_call() -> None:
    @triage.tool(effect="once")
    async def search(query: str, page: int = 1) -> None: ...

    async def works(task: str) -> None:
        act: Any = search
        with pytest.raises(TypeError, match=r"search\(\) too many"):
            await act("bread", 1, 2)
        for args, wrong in ((("bread",), "query"), (("bread",), "pages"), ((), "page")):
            with pytest.raises(TypeError):
                await act(*args, **{wrong: 2})

    store = MemoryStore()
    await Agent(works, store=store).run("t", run_id="r")
    assert not any(isinstance(event, CallStarted) for event in await store.read("r"))


async def test_an_argument_without_a_form_is_refused_with_its_name_and_the_remedy() -> None:
    @triage.tool(effect="once")
    async def act(client: object, what: str) -> None: ...

    async def works(task: str) -> None:
        await act(object(), "x")

    with pytest.raises(UsageError, match=r"client.*ignore=\(\"client\",\)"):
        await Agent(works, RETRY).run("t")


async def test_ignored_parameters_and_a_key_of_ones_own_make_the_call() -> None:
    did: list[str] = []

    @triage.tool(effect="once", ignore=("client",))
    async def ignoring(client: object, what: str) -> None:
        did.append(what)

    @triage.tool(effect="once", key=lambda order: order["id"])
    async def keyed(client: object, order: dict[str, Any]) -> None:
        did.append(order["id"])

    async def works(task: str, *, run: Run) -> None:
        await ignoring(object(), "x")
        await keyed(object(), {"id": "o1", "noise": run.attempt})
        if run.attempt == 1:
            raise ConnectionError("late")

    await Agent(works, **recovers(Retry())).run("t")
    assert did == ["x", "o1"]


async def test_the_idempotency_key_is_the_same_in_every_attempt_and_different_for_each_call() -> (
    None
):
    keys: list[str] = []

    @triage.tool(effect="idempotent")
    async def act(what: str) -> None:
        keys.append(triage.current_call().idempotency_key)

    async def works(task: str, *, run: Run) -> None:
        await act("x")
        await act("x")
        await act("y")
        if run.attempt == 1:
            raise ConnectionError("late")

    await Agent(works, **recovers(Replan())).run("t")
    assert keys[:3] == keys[3:]
    assert len(set(keys)) == 3


async def test_another_payment_after_a_rollback_is_asked_about() -> None:
    paid: list[int] = []

    @triage.tool(effect="once")
    async def pay(cents: int) -> str:
        paid.append(cents)
        return "paid"

    async def works(task: str, *, run: triage.Run) -> str:
        await pay(run.attempt)
        if run.attempt == 1:
            raise ValueError("odd")
        return task

    with pytest.raises(triage.TriageSuspendedError, match="may it run again"):
        await Agent(works, **recovers(Rollback())).run("t")
    assert paid == [1]
