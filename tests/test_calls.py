"""Recorded calls: what is reused, what runs again, what is asked, what is undone."""

from __future__ import annotations

import datetime as dt
import functools
import threading
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from pydantic import BaseModel
from support import RETRY, Says, always, in_turn

import triage
from triage import (
    Abort,
    Agent,
    Diagnosis,
    Durability,
    Escalate,
    FailureType,
    Replan,
    Resume,
    Retry,
    Rollback,
    Run,
    Step,
    TriageEscalationError,
    TriageSuspendedError,
    UsageError,
)

pytestmark = pytest.mark.anyio

LOST = ConnectionResetError("reset by peer")


class World:
    """Counts what really happened, and makes tools of every effect that note it."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.raises: list[BaseException] = []

    def tool(self, effect: str, **options: Any) -> Any:
        @triage.tool(effect=effect, name=effect, **options)
        async def act(what: str) -> str:
            self.did.append(f"{effect}({what})")
            if self.raises:
                raise self.raises.pop(0)
            return f"result of {what}"

        return act


def recovers(action: Any, critical_step: int | None = None, **options: Any) -> dict[str, Any]:
    """The options of an agent that always answers a failure so."""
    diagnosis = Diagnosis(FailureType.EXTERNAL_FAULT, critical_step=critical_step)
    return {"policy": always(action), "classifier": Says(diagnosis), **options}


async def fails_after(tools: list[Any], run: Run) -> list[str]:
    results = [await tool("x") for tool in tools]
    if run.attempt == 1:
        raise ConnectionError("late")
    return results


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


async def test_a_result_without_a_json_form_is_reused_in_this_process() -> None:
    class Opaque:
        pass

    made: list[Opaque] = []

    @triage.tool(effect="once")
    async def make() -> Opaque:
        made.append(Opaque())
        return made[-1]

    async def works(task: str, *, run: Run) -> bool:
        value = await make()
        if run.attempt == 1:
            raise ConnectionError("late")
        return value is made[0]

    assert await Agent(works, **recovers(Retry())).run("t")
    assert len(made) == 1


# Calls that raised --------------------------------------------------------------------------------


async def works_with(tool: Any, run: Run) -> str:
    result: str = await tool("x")
    if run.attempt == 0:
        raise ConnectionError("late")
    return result


class Refused(Exception):
    status_code = 429


@pytest.mark.parametrize("error", [Refused("slow down"), ConnectionRefusedError("refused")])
async def test_a_call_that_was_not_attempted_may_run_again(error: Exception) -> None:
    world = World()
    world.raises = [error]
    once = world.tool("once")

    async def works(task: str) -> str:
        result: str = await once("x")
        return result

    assert await Agent(works, **recovers(Retry())).run("t") == "result of x"
    assert world.did == ["once(x)", "once(x)"]


async def test_a_tool_may_say_that_it_was_not_attempted() -> None:
    world = World()
    world.raises = [triage.not_attempted(ValueError("checked before sending"))]
    once = world.tool("once")

    async def works(task: str) -> str:
        result: str = await once("x")
        return result

    assert await Agent(works, **recovers(Retry())).run("t") == "result of x"


async def doubtful(**options: Any) -> tuple[World, Agent[str], list[str]]:
    world = World()
    world.raises = [LOST]
    once = world.tool("once")
    log: list[str] = []

    async def works(task: str, *, run: Run) -> str:
        try:
            result: str = await once("x")
        except ConnectionResetError:
            log.append("swallowed")
            result = "guessed"
        try:
            run.record_step(Step(action="next"))
            await once("y")
        except Exception:  # noqa: BLE001 - nothing may be done here, whatever is caught
            log.append("went on")
        return result

    return world, Agent(works, **recovers(Retry(), **options)), log


async def test_a_call_in_doubt_stops_the_run_whatever_the_agent_does() -> None:
    world, agent, log = await doubtful()
    with pytest.raises(TriageSuspendedError, match="did once with") as caught:
        await agent.run("t")
    assert world.did == ["once(x)"]
    assert log == ["swallowed"]
    assert caught.value.context is not None
    assert caught.value.context.diagnosis.cause is triage.Cause.IN_DOUBT


async def test_in_doubt_answered_happened_gives_the_result_and_runs_nothing_again() -> None:
    world, agent, _ = await doubtful()
    with pytest.raises(TriageSuspendedError) as caught:
        await agent.run("t")
    assert await agent.resume(caught.value.token, triage.happened("it did")) == "it did"
    assert world.did == ["once(x)", "once(y)"]


async def test_in_doubt_answered_rerun_runs_it_once_more() -> None:
    world, agent, _ = await doubtful()
    with pytest.raises(TriageSuspendedError) as caught:
        await agent.run("t")
    with pytest.raises(UsageError, match="happened"):
        await agent.resume(caught.value.token, Retry())
    assert await agent.resume(caught.value.token, triage.rerun()) == "result of x"
    assert world.did == ["once(x)", "once(x)", "once(y)"]


async def test_in_doubt_answered_rerun_is_asked_again_when_it_fails_again() -> None:
    world, agent, _ = await doubtful()
    world.raises = [LOST, LOST]
    with pytest.raises(TriageSuspendedError) as first:
        await agent.run("t")
    with pytest.raises(TriageSuspendedError) as second:
        await agent.resume(first.value.token, triage.rerun())
    assert second.value.token != first.value.token
    with pytest.raises(triage.TriageAbortError):
        await agent.resume(second.value.token, Abort())
    assert world.did == ["once(x)", "once(x)"]


@pytest.mark.parametrize(("choice", "kind"), [("fail", TriageEscalationError), ("rerun", None)])
async def test_in_doubt_follows_the_choice_made(choice: Any, kind: Any) -> None:
    world, agent, log = await doubtful(durability=Durability(on_in_doubt=choice))
    if kind is None:
        assert await agent.run("t") == "guessed"
        assert world.did == ["once(x)", "once(y)"]
        assert log == ["swallowed"]
    else:
        with pytest.raises(kind):
            await agent.run("t")
        assert world.did == ["once(x)"]


async def test_a_tool_that_took_its_idempotency_key_may_run_again() -> None:
    keys: list[str] = []

    @triage.tool(effect="once")
    async def act(what: str) -> str:
        keys.append(triage.current_call().idempotency_key)
        if len(keys) == 1:
            raise LOST
        return what

    async def works(task: str) -> str:
        return await act("x")

    assert await Agent(works, **recovers(Retry())).run("t") == "x"
    assert keys[0] == keys[1]


async def test_a_read_that_raised_is_a_plain_failure() -> None:
    world = World()
    world.raises = [LOST]
    read = world.tool("read")

    async def works(task: str) -> str:
        result: str = await read("x")
        return result

    assert await Agent(works, **recovers(Retry())).run("t") == "result of x"


async def test_a_timeout_of_an_unsafe_call_leaves_it_in_doubt() -> None:
    @triage.tool(effect="once", timeout=0.02)
    async def act() -> None:
        await anyio.sleep_forever()

    async def works(task: str) -> None:
        await act()

    with pytest.raises(TriageSuspendedError) as caught:
        await Agent(works, **recovers(Retry())).run("t")
    assert isinstance(caught.value.__cause__, TimeoutError)


async def test_a_sync_tool_times_out_too() -> None:
    release = threading.Event()

    @triage.tool(effect="read", timeout=0.02)
    def act() -> None:
        release.wait(30)

    def works(task: str) -> None:
        act()

    try:
        with pytest.raises(TriageEscalationError) as caught:
            await Agent(works, **recovers(Escalate())).run("t")
    finally:
        release.set()
    assert isinstance(caught.value.__cause__, TimeoutError)


async def test_a_timeout_that_the_tool_raised_itself_is_its_own() -> None:
    @triage.tool(effect="read", timeout=30)
    def act() -> None:
        raise TimeoutError("the bank did not answer")

    def works(task: str) -> None:
        act()

    with pytest.raises(TriageEscalationError) as caught:
        await Agent(works, **recovers(Escalate())).run("t")
    assert str(caught.value.__cause__) == "the bank did not answer"


async def test_arguments_that_do_not_fit_are_no_call() -> None:
    world = World()
    once = world.tool("once")

    async def works(task: str) -> None:
        await once("x", "y")

    with pytest.raises(TriageEscalationError) as caught:
        await Agent(works, **recovers(Escalate())).run("t")
    assert isinstance(caught.value.__cause__, TypeError)
    assert world.did == []


# The same tool with other arguments ---------------------------------------------------------------


async def changes_its_mind(tool: Any, run: Run) -> str:
    result: str = await tool(f"amount {run.attempt}")
    if run.attempt == 1:
        raise ConnectionError("late")
    return result


@pytest.mark.parametrize("action", [Retry(), Replan()])
async def test_an_unsafe_tool_with_other_arguments_is_asked_about(action: Any) -> None:
    world = World()
    once = world.tool("once")

    async def works(task: str, *, run: Run) -> str:
        return await changes_its_mind(once, run)

    agent = Agent(works, **recovers(action))
    with pytest.raises(TriageSuspendedError, match="has completed in this run") as caught:
        await agent.run("t")
    assert world.did == ["once(amount 1)"]
    # Its answer allows exactly that call: in the next attempt the arguments are others again.
    with pytest.raises(TriageSuspendedError):
        await agent.resume(caught.value.token, triage.rerun())


async def test_an_unsafe_tool_with_other_arguments_runs_once_it_is_allowed() -> None:
    world = World()
    once = world.tool("once")

    async def works(task: str, *, run: Run) -> str:
        result: str = await once("first" if run.attempt == 1 else "second")
        if run.attempt == 1:
            raise ConnectionError("late")
        return result

    agent = Agent(works, **recovers(Replan()))
    with pytest.raises(TriageSuspendedError) as caught:
        await agent.run("t")
    assert await agent.resume(caught.value.token, triage.rerun()) == "result of second"
    assert world.did == ["once(first)", "once(second)"]


async def test_a_new_plan_undoes_the_call_it_replaces() -> None:
    log: list[str] = []

    async def refund(result: str) -> None:
        log.append(f"refund {result}")

    @triage.tool(effect="once", compensate=refund)
    async def charge(what: str) -> str:
        log.append(f"charge {what}")
        return what

    async def works(task: str, *, run: Run) -> None:
        await charge("first" if run.attempt == 1 else "second")
        if run.attempt == 1:
            raise ConnectionError("late")

    await Agent(works, **recovers(Replan())).run("t")
    assert log == ["charge first", "refund first", "charge second"]


async def test_parallel_calls_of_a_new_plan_undo_what_they_replace_once() -> None:
    log: list[str] = []

    async def refund(result: str) -> None:
        log.append(f"refund {result}")
        await anyio.lowlevel.checkpoint()

    @triage.tool(effect="once", compensate=refund)
    async def charge(what: str) -> str:
        log.append(f"charge {what}")
        return what

    async def works(task: str, *, run: Run) -> None:
        if run.attempt == 1:
            await charge("first")
            raise ConnectionError("late")
        async with anyio.create_task_group() as group:
            group.start_soon(charge, "second")
            group.start_soon(charge, "third")

    with pytest.raises(TriageSuspendedError):
        await Agent(works, **recovers(Replan())).run("t")
    assert log.count("refund first") == 1


async def test_a_compensator_that_failed_may_be_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[str] = []

    def refund(result: str) -> None:
        log.append("refund")
        if len(log) == 1:
            raise LookupError("bank is closed")

    @triage.tool(effect="once", compensate=refund)
    async def charge(what: str) -> str:
        return what

    async def works(task: str, *, run: Run) -> str:
        result: str = await charge("first" if run.attempt == 1 else "second")
        if run.attempt == 1:
            raise ConnectionError("late")
        return result

    assert await Agent(works, **recovers(Replan())).run("t") == "second"
    assert log == ["refund", "refund"]


async def test_a_sync_tool_is_asked_about_where_it_cannot_be_undone() -> None:
    log: list[str] = []

    @triage.tool(effect="once", compensate=log.append)
    def charge(what: str) -> str:
        log.append(what)
        return what

    async def works(task: str, *, run: Run) -> None:
        charge("first" if run.attempt == 1 else "second")
        if run.attempt == 1:
            raise ConnectionError("late")

    with pytest.raises(TriageSuspendedError):
        await Agent(works, **recovers(Replan())).run("t")
    assert log == ["first"]


async def test_a_loop_over_items_goes_on_where_it_stopped() -> None:
    world = World()
    once = world.tool("once")

    async def works(task: str, *, run: Run) -> int:
        for item in range(5):
            await once(str(item))
            if run.attempt == 1 and item == 2:
                raise ConnectionError("late")
        return len(world.did)

    assert await Agent(works, **recovers(Retry())).run("t") == 5


async def test_a_tool_never_called_before_runs_freely_after_a_new_plan() -> None:
    world = World()
    once = world.tool("once")

    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            raise ConnectionError("early")
        result: str = await once("x")
        return result

    assert await Agent(works, **recovers(Replan())).run("t") == "result of x"


# Undoing ------------------------------------------------------------------------------------------


async def test_a_rollback_undoes_newest_first_and_then_runs_again() -> None:
    log: list[str] = []

    async def refund(charge: str, what: str) -> None:
        log.append(f"refund {charge} of {what}")

    @triage.tool(effect="once", compensate=refund)
    async def charge(what: str) -> str:
        log.append(f"charge {what}")
        return f"c-{what}"

    async def works(task: str, *, run: Run) -> None:
        run.record_step(Step(action="begin"))
        await charge("a")
        await charge("b")
        if run.attempt == 1:
            raise ConnectionError("late")

    agent = Agent(works, **recovers(Rollback(2)))
    await agent.run("t")
    assert log == [
        "charge a", "charge b", "refund c-b of b", "refund c-a of a", "charge a", "charge b",
    ]  # fmt: skip


async def test_a_rollback_undoes_nothing_of_what_it_keeps() -> None:
    log: list[str] = []

    @triage.tool(effect="once", compensate=lambda result: log.append(f"refund {result}"))
    async def charge(what: str) -> str:
        log.append(f"charge {what}")
        return what

    async def works(task: str, *, run: Run) -> None:
        await charge("a")
        if run.attempt == 1:
            raise ConnectionError("late")

    await Agent(works, **recovers(Rollback())).run("t")
    assert log == ["charge a"]


async def test_a_rollback_over_an_effect_without_compensator_escalates() -> None:
    world = World()
    once = world.tool("once")

    async def works(task: str, *, run: Run) -> None:
        run.record_step(Step(action="begin"))
        await once("x")
        raise ConnectionError("late")

    with pytest.raises(TriageEscalationError, match="compensate="):
        await Agent(works, **recovers(Rollback(2))).run("t")


async def test_a_compensator_that_fails_ends_the_run_and_is_not_hidden(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refund(charge: str) -> None:
        raise LookupError("bank is closed")

    @triage.tool(effect="once", compensate=refund)
    async def charge(what: str) -> str:
        return what

    async def works(task: str, *, run: Run) -> None:
        run.record_step(Step(action="begin"))
        await charge("a")
        raise ConnectionError("late")

    with pytest.raises(TriageEscalationError, match="refund failed") as caught:
        await Agent(works, **recovers(Rollback(2))).run("t")
    assert "bank is closed" in str(caught.value.__cause__.__notes__)  # type: ignore[union-attr] # set


async def test_every_compensator_of_a_step_runs_newest_first() -> None:
    log: list[str] = []

    async def works(task: str, *, run: Run) -> None:
        run.record_step(Step(action="book", effect="once"))
        run.compensator(log.append, "undo flight")
        run.compensator(log.append, "undo hotel")
        if run.attempt == 1:
            raise ConnectionError("late")

    await Agent(works, **recovers(Retry())).run("t")
    assert log == ["undo hotel", "undo flight"]


async def test_an_effect_of_an_earlier_attempt_is_not_forgotten() -> None:
    async def works(task: str, *, run: Run) -> None:
        if run.attempt == 1:
            run.subgoals(["rest"])
            run.record_step(Step(action="send mail", effect="once"))
        raise ConnectionError("late")

    options = recovers(in_turn(Resume(), Retry()))
    with pytest.raises(TriageEscalationError, match="send mail"):
        await Agent(works, **options).run("t")


async def test_a_rollback_does_not_pass_over_an_effect_of_an_earlier_attempt() -> None:
    world = World()
    once = world.tool("once")

    async def works(task: str, *, run: Run) -> None:
        if run.attempt == 1:
            run.record_step(Step(action="begin"))
            await once("a")
        if run.attempt == 3:
            await once("b")
        raise ConnectionError("late")

    with pytest.raises(TriageEscalationError, match="compensate="):
        await Agent(works, **recovers(in_turn(Retry(), Rollback(2), Retry()))).run("t")
    assert world.did == ["once(a)"]


async def test_a_compensator_needs_a_step_to_undo() -> None:
    async def works(task: str, *, run: Run) -> None:
        run.compensator(len_of, "x")

    with pytest.raises(UsageError, match="none is recorded"):
        await Agent(works, RETRY).run("t")


async def test_a_rollback_before_the_first_step_starts_over() -> None:
    kept: list[int] = []

    async def works(task: str, *, run: Run) -> None:
        kept.append(len(run.trajectory))
        if run.attempt == 1:
            run.record_step(Step(action="wrong from the start"))
            raise ConnectionError("late")

    await Agent(works, **recovers(Rollback(), critical_step=0)).run("t")
    assert kept == [0, 0]


@pytest.mark.parametrize("action", [Retry(), Replan()])
async def test_a_hand_written_effect_is_never_repeated(action: Any) -> None:
    async def works(task: str, *, run: Run) -> None:
        run.record_step(Step(action="send mail", effect="once"))
        raise ConnectionError("late")

    with pytest.raises(TriageEscalationError, match=r"send mail.*recorded by hand"):
        await Agent(works, **recovers(action)).run("t")


async def test_a_hand_written_effect_is_undone_before_it_is_repeated() -> None:
    log: list[str] = []

    async def works(task: str, *, run: Run) -> None:
        log.append("book")
        run.record_step(Step(action="book", effect="once"))
        run.compensator(log.append, "cancel")
        if run.attempt == 1:
            raise ConnectionError("late")

    await Agent(works, **recovers(Retry())).run("t")
    assert log == ["book", "cancel", "book"]


async def test_an_unsafe_call_left_running_is_waited_for() -> None:
    finished: list[str] = []
    begun = anyio.Event()

    @triage.tool(effect="once")
    async def slow() -> str:
        begun.set()
        await anyio.sleep(0.02)
        finished.append("slow")
        return "slow"

    async with anyio.create_task_group() as outside:

        async def works(task: str, *, run: Run) -> str:
            if run.attempt == 1:
                outside.start_soon(slow)  # left behind when the attempt fails
                await begun.wait()
                raise ConnectionError("late")
            return await slow()

        # The leaked task inherits no attempt unless it is started inside: call through the handle.
        async def works_inside(task: str, *, run: Run) -> str:
            if run.attempt == 1:
                outside.start_soon(functools.partial(run.call, slow))
                await begun.wait()
                raise ConnectionError("late")
            return await slow()

        del works
        assert await Agent(works_inside, **recovers(Retry())).run("t") == "slow"
    assert finished == ["slow"]


async def test_an_interrupt_lets_an_unsafe_call_finish_and_starts_no_other() -> None:
    log: list[str] = []

    @triage.tool(effect="once")
    async def charge(what: str) -> str:
        log.append(f"begin {what}")
        await anyio.sleep(0.05)
        log.append(f"end {what}")
        return what

    async def works(task: str, *, run: Run) -> str:
        first = await charge("a")
        await charge("b")
        return first

    agent = Agent(
        works, limits=triage.Limits(attempt_seconds=0.02, attempts=2), **recovers(Retry())
    )
    with pytest.raises(TriageEscalationError):
        await agent.run("t")
    assert log[:2] == ["begin a", "end a"]
    assert log.count("begin a") == 1


async def test_a_tool_is_refused_for_what_it_cannot_be() -> None:
    with pytest.raises(UsageError, match="generator"):

        @triage.tool
        def yields() -> Any:
            yield 1

    with pytest.raises(UsageError, match="already"):
        triage.tool(triage.tool(len_of))


def len_of(text: str) -> int:
    return len(text)
