"""Recorded calls: what is reused, what a call is known by, and how its result comes back."""

from __future__ import annotations

import contextvars
import datetime as dt
import functools
import json
import math
import threading
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter
from support import (
    LOST,
    Killed,
    World,
    escalation_of,
    fails_after,
    in_two_processes,
    question_of,
    recovers,
)
from tables import table

import triage
from triage import (
    Agent,
    Escalate,
    Replan,
    Resume,
    Retry,
    Rollback,
    Run,
    Step,
)
from triage.core import CallStarted, ResultLost
from triage.stores import MemoryStore

pytestmark = pytest.mark.anyio


@table(
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


@table("effect", ["read", "idempotent", "once"])
@table("beside", [1, 3])
async def test_a_call_that_was_refused_and_tried_again_is_found_again(
    beside: int, effect: str
) -> None:
    world = World()
    world.raises = [ConnectionRefusedError("refused")]
    act = world.tool(effect)

    async def works(task: str, *, run: Run) -> list[str]:
        found: list[str] = []

        async def tries() -> None:
            for _ in range(2):
                try:
                    found.append(await act("x"))
                except ConnectionRefusedError:
                    continue
                return

        async with anyio.create_task_group() as group:
            for _ in range(beside):
                group.start_soon(tries)
        if run.attempt == 1:
            raise ConnectionError("late")
        return found

    assert await Agent(works, **recovers(Retry())).run("t") == ["result of x"] * beside
    assert len(world.did) == beside + 1


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


@table(
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


async def test_a_key_without_an_exact_form_is_refused_with_what_it_may_be() -> None:
    @triage.tool(effect="once", key=lambda order: [order, object()])
    async def act(order: dict[str, Any]) -> None:
        raise AssertionError

    async def works(task: str) -> None:
        await act({})

    with pytest.raises(
        triage.UsageError, match=r"tool\(key=…\) of act returned .*; return text or"
    ):
        await Agent(works).run("t")


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


# Results ------------------------------------------------------------------------------------------
class Ticket(BaseModel):
    city: str


async def test_a_reused_result_has_its_declared_type_and_is_nobody_elses() -> None:
    @triage.tool(effect="once")
    async def typed() -> list[Ticket]:
        return [Ticket(city="Rome")]

    @triage.tool(effect="once")
    async def tuple_(n: int) -> tuple[int, int]:
        return (n, n)

    @triage.tool(effect="once")
    async def untyped():  # type: ignore[no-untyped-def] # noqa: ANN202 - without an annotation on purpose
        return {"list": [1]}

    seen: list[Any] = []

    async def works(task: str, *, run: Run) -> None:
        values = [await typed(), await tuple_(1), await untyped()]  # type: ignore[no-untyped-call] # as above
        seen.append(values)
        if run.attempt == 1:
            values[0].append("spoiled")
            values[2]["list"].append("spoiled")
            raise ConnectionError("late")

    await Agent(works, **recovers(Retry())).run("t")
    assert seen[1] == [[Ticket(city="Rome")], (1, 1), {"list": [1]}]


# In another process -------------------------------------------------------------------------------
class Suit(Enum):
    HEARTS = "h"


class Point(NamedTuple):
    x: int
    y: int = 0


@dataclass
class Parcel:
    raw: bytes
    sent: dt.datetime
    suits: frozenset[Suit] = frozenset()


KINDS: list[tuple[Any, Any]] = [
    (Ticket, Ticket(city="Rome")),
    (list[Ticket], [Ticket(city="Rome"), Ticket(city="Oslo")]),
    (Parcel, Parcel(b"\x00\xff", dt.datetime(2026, 1, 2, tzinfo=dt.UTC), frozenset({Suit.HEARTS}))),
    (Point, Point(1, 2)),
    (dt.datetime, dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)),
    (dt.timedelta, dt.timedelta(days=-1, microseconds=1)),
    (PurePosixPath, PurePosixPath("a/b")),
    (bytes, b"\x00\xff"),
    (Suit, Suit.HEARTS),
    (tuple[int, str], (1, "a")),
    (set[int], {1, 2}),
    (frozenset[bytes], frozenset({b"\xff"})),
    (dict[int, str], {1: "a"}),
    (float, math.inf),
    (uuid.UUID, uuid.UUID(int=7)),
    (Decimal, Decimal("1.10")),
    (Ticket | None, None),
    (str | dt.datetime, "2026-01-02T00:00:00"),
    (dict[str, Any], {"a": [1, None, "x"]}),
]


@given(st.timedeltas(min_value=dt.timedelta(days=-999_999_998)))
def test_a_length_of_time_is_read_back_to_the_microsecond(length: dt.timedelta) -> None:
    text = Step(action="call", tool_output=length).tool_output
    assert text.lstrip("-").startswith("P")
    assert TypeAdapter(dt.timedelta).validate_json(json.dumps(text)) == length


@table(("kind", "value"), KINDS)
async def test_a_result_comes_back_in_another_process_as_it_was(
    kind: Any, value: Any, tmp_path: Path
) -> None:
    made: list[str] = []

    async def make() -> Any:
        made.append("made")
        return value

    make.__annotations__["return"] = kind
    tool = triage.tool(effect="once")(make)

    async def works(task: str, *, run: Run) -> bool:
        result = await tool()
        assert type(result) is type(value)
        assert result == value
        if "cut" not in made:
            made.append("cut")
            raise Killed
        return True

    assert await in_two_processes(works, tmp_path)
    assert made == ["made", "cut"]


class Opaque:
    pass


class Special(Ticket):
    extra: int = 0


def no_annotation() -> Any:
    return (1, 2)


def opaque() -> Opaque:
    return Opaque()


def ambiguous() -> str | dt.date:
    return dt.date(2026, 1, 2)


def more_than_declared() -> list[Ticket]:
    return [Special(city="Rome", extra=1)]


LOST_ONES = [no_annotation, opaque, ambiguous, more_than_declared]


@table("make", LOST_ONES)
async def test_a_result_that_would_come_back_as_another_is_lost_and_said_so(
    make: Any, tmp_path: Path
) -> None:
    made: list[Any] = []

    @triage.tool(effect="once")
    @functools.wraps(make)
    def once() -> Any:
        made.append(make())
        return made[-1]

    async def works(task: str, *, run: Run) -> None:
        await run.call(once)
        if len(made) == 1 and not run.history:
            made.append("cut")
            raise Killed

    caught = await escalation_of(in_two_processes(works, tmp_path, **recovers(Escalate())))
    lost = caught.__cause__
    assert isinstance(lost, ResultLost)
    assert "return annotation" in str(lost)
    assert lost.tool == make.__name__
    assert len(made) == 2


@table("make", LOST_ONES)
async def test_it_is_the_same_object_in_its_own_process(make: Any) -> None:
    made: list[Any] = []

    @triage.tool(effect="once")
    @functools.wraps(make)
    def once() -> Any:
        made.append(make())
        return made[-1]

    async def works(task: str, *, run: Run) -> bool:
        result = once()
        if run.attempt == 1:
            raise ConnectionError("late")
        return result is made[0]

    assert await Agent(works, **recovers(Retry())).run("t")
    assert len(made) == 1


async def test_a_read_whose_result_is_lost_is_made_again(tmp_path: Path) -> None:
    made: list[Opaque] = []

    @triage.tool(effect="read")
    def look() -> Opaque:
        made.append(Opaque())
        return made[-1]

    async def works(task: str, *, run: Run) -> bool:
        result = look()
        if len(made) == 1:
            raise Killed
        return result is made[1]

    assert await in_two_processes(works, tmp_path)
    assert len(made) == 2


async def test_an_annotation_of_a_nested_class_is_found(tmp_path: Path) -> None:
    class Inner(BaseModel):
        n: int

    made: list[Inner] = []

    @triage.tool(effect="once")
    async def make() -> Inner:
        made.append(Inner(n=1))
        return made[-1]

    async def works(task: str, *, run: Run) -> int:
        result = await make()
        if len(made) == 1 and made[0] is result:
            raise Killed
        return result.n

    assert await in_two_processes(works, tmp_path) == 1
    assert len(made) == 1


async def test_what_a_person_says_has_happened_is_of_the_declared_type(tmp_path: Path) -> None:
    @triage.tool(effect="once")
    async def book() -> Ticket:
        raise LOST

    async def works(task: str, *, run: Run) -> str:
        return (await book()).city

    agent = Agent(works, **recovers(Retry()))
    caught = await question_of(agent.run("t"))
    assert await agent.resume(caught.token, triage.happened({"city": "Rome"})) == "Rome"


# Calls side by side -------------------------------------------------------------------------------
BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])


class Task(NamedTuple):
    """A task of the agent. waits: checkpoints before each call. calls: their arguments, in order."""

    waits: int
    calls: tuple[str, ...]


tasks = st.builds(
    Task,
    st.integers(0, 3),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(tuple),
)


async def checkpoints(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


class Agency:
    """An agent of several tasks, which are in another order and wait otherwise in each attempt."""

    def __init__(self, effect: str, schedules: list[list[Task]], body_waits: list[int]) -> None:
        self.schedules = schedules
        self.body_waits = body_waits
        self.ran: list[str] = []
        self.seen: list[list[tuple[str, str]]] = []
        self.act: Any = triage.tool(effect=effect, name="act")(self._act)

    async def _act(self, what: str) -> str:
        self.ran.append(what)
        result = f"{what}{self.ran.count(what)}"
        await checkpoints(self.body_waits[len(self.ran) % len(self.body_waits)])
        return result

    async def works(self, task: str, *, run: Run) -> None:
        seen: list[tuple[str, str]] = []
        self.seen.append(seen)

        async def one(mine: Task) -> None:
            for what in mine.calls:
                await checkpoints(mine.waits)
                seen.append((what, await self.act(what)))

        async with anyio.create_task_group() as group:
            for mine in self.schedules[run.attempt - 1]:
                group.start_soon(one, mine)
        if run.attempt < len(self.schedules):
            raise ConnectionError("late")


@st.composite
def agencies(draw: st.DrawFn) -> tuple[str, list[list[Task]], list[int]]:
    first = draw(st.lists(tasks, min_size=1, max_size=5))
    schedules = [first]
    for _ in range(draw(st.integers(1, 2))):
        order = draw(st.permutations(first))
        schedules.append([task._replace(waits=draw(st.integers(0, 3))) for task in order])
    effect = draw(st.sampled_from(["read", "idempotent", "once", "unknown"]))
    return effect, schedules, draw(st.lists(st.integers(0, 3), min_size=1, max_size=5))


@BACKENDS
@given(agency=agencies())
def test_every_call_is_made_once_and_each_result_belongs_to_its_arguments(
    backend: str, agency: tuple[str, list[list[Task]], list[int]]
) -> None:
    world = Agency(*agency)
    anyio.run(functools.partial(Agent(world.works, **recovers(Retry())).run, "t"), backend=backend)
    wanted = Counter(what for task in world.schedules[0] for what in task.calls)
    assert Counter(world.ran) == wanted
    for seen in world.seen:
        assert all(result.startswith(what) for what, result in seen)
        # Equal calls may change places; nothing is given twice, and nothing is left out.
        assert Counter(seen) == Counter(world.seen[0])
        assert len(set(seen)) == sum(wanted.values())


@BACKENDS
@given(agency=agencies(), cut=st.integers(1, 12))
def test_what_a_cancelled_group_had_finished_is_not_made_again(
    backend: str, agency: tuple[str, list[list[Task]], list[int]], cut: int
) -> None:
    _, schedules, waits = agency
    world = Agency("idempotent", [schedules[0], schedules[-1]], waits)
    finished: list[str] = []

    async def works(task: str, *, run: Run) -> None:
        with anyio.CancelScope() as scope:
            ending = world.act

            async def act(what: str) -> str:
                result: str = await ending(what)
                if run.attempt == 1:
                    finished.append(result)
                    if len(finished) == cut:
                        scope.cancel()
                return result

            world.act = act
            try:
                await world.works(task, run=run)
            finally:
                world.act = ending
        raise ConnectionError("cancelled")

    async def first_cut(task: str, *, run: Run) -> None:
        await (works(task, run=run) if run.attempt == 1 else world.works(task, run=run))

    anyio.run(functools.partial(Agent(first_cut, **recovers(Retry())).run, "t"), backend=backend)
    assert set(finished) <= {result for _, result in world.seen[1]}


@BACKENDS
def test_calls_of_many_threads_are_told_apart(backend: str) -> None:
    made: list[str] = []
    lock = threading.Lock()

    @triage.tool(effect="once")
    def act(what: str) -> str:
        with lock:
            made.append(what)
            return f"{what}{made.count(what)}"

    seen: list[list[str]] = []

    def works(task: str, *, run: Run) -> None:
        results: list[str] = []
        threads = [
            threading.Thread(
                target=contextvars.copy_context().run,
                args=(lambda what=what: results.append(act(what)),),
            )
            for what in "aabbccaabbcc"
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seen.append(sorted(results))
        if run.attempt == 1:
            raise ConnectionError("late")

    anyio.run(functools.partial(Agent(works, **recovers(Retry())).run, "t"), backend=backend)
    assert seen[0] == seen[1] == sorted(f"{what}{n}" for what in "abc" for n in range(1, 5))
    assert len(made) == 12


async def test_what_can_be_read_only_once_is_asked_for_anew() -> None:
    asked: list[str] = []

    @triage.tool(effect="read")
    async def pages(query: str) -> AsyncIterator[str]:
        asked.append(query)
        return texts()

    async def texts() -> AsyncIterator[str]:
        yield "one"
        yield "two"

    async def reads(task: str, *, run: Run) -> list[str]:
        found = [text async for text in await pages(task)]
        if run.attempt == 1:
            raise ConnectionError("late")
        return found

    assert await Agent(reads, **recovers(Retry())).run("bees") == ["one", "two"]
    assert asked == ["bees", "bees"]


async def test_what_a_sync_tool_raises_reaches_its_caller_as_it_is() -> None:
    @triage.tool(effect="read")
    def following(items: list[int]) -> int:
        return next(iter(items))

    async def works(task: str) -> str:
        with pytest.raises(StopIteration):
            following([])
        return "done"

    assert await Agent(works).run("t") == "done"
