"""A guard over calls that matter: allowed, denied with a reason, or asked about, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from calls import World, recovers

import triage
from triage import (
    Agent,
    CallDenied,
    Checks,
    FailureType,
    Guard,
    GuardedCall,
    Retry,
    Run,
    Suspend,
    TriageError,
    TriageSuspendedError,
    UsageError,
    approve,
    reject,
)
from triage.stores import SQLiteStore

pytestmark = pytest.mark.anyio


def guarding(decide: Any, **rules: Any) -> Checks:
    return Checks(guard=Guard(decide, **rules) if rules else decide)


async def test_a_guard_sees_the_call_before_it_runs_and_may_let_it() -> None:
    world, seen = World(), []
    charge = world.tool("once")

    def guard(call: GuardedCall) -> bool:
        assert world.did == []
        seen.append(call)
        return True

    async def agent(_task: str) -> str:
        result: str = await charge("x")
        return result

    assert await Agent(agent, checks=guarding(guard)).run("buy") == "result of x"
    (call,) = seen
    assert (call.tool, call.arguments, call.effect, call.attempt) == (
        "once", {"what": "x"}, "once", 1,
    )  # fmt: skip
    assert call.task == "buy"


@pytest.mark.parametrize("effect", ["read", "idempotent", "unknown"])
async def test_other_effects_are_looked_at_by_rule_alone(effect: str) -> None:
    world, seen = World(), []
    tool = world.tool(effect)

    def guard(call: GuardedCall) -> None:
        seen.append(call.tool)

    async def agent(_task: str) -> str:
        result: str = await tool("x")
        return result

    await Agent(agent, checks=guarding(guard)).run("t")
    assert seen == []
    await Agent(agent, checks=guarding(guard, tools=(f"{effect[:3]}*",))).run("t")
    await Agent(agent, checks=guarding(guard, effects=(effect,))).run("t")
    assert seen == [effect, effect]


@pytest.mark.parametrize("ruling", [False, "not on a Sunday"])
async def test_a_denied_call_does_not_run_and_the_agent_may_go_on(ruling: Any) -> None:
    world = World()
    charge = world.tool("once")
    steps: list[Any] = []

    async def agent(_task: str, *, run: Run) -> str:
        try:
            await charge("x")
        except CallDenied as denied:
            steps.extend(run.trajectory.steps)
            return denied.reason
        return "charged"

    answer = await Agent(agent, checks=guarding(lambda _: ruling)).run("t")
    assert answer == (ruling or "no reason was given")
    assert world.did == []
    (step,) = steps
    assert (step.tool_called, step.exception_type) == ("once", "CallDenied")
    assert answer in step.error


async def test_an_agent_that_lets_the_denial_through_is_told_and_makes_another_plan() -> None:
    world = World()
    charge, hints = world.tool("once"), []

    async def agent(_task: str, *, _triage_hint: str | None = None) -> str:
        hints.append(_triage_hint)
        if _triage_hint is None:
            await charge("x")
        return "done without"

    failures: list[Any] = []
    agent_ = Agent(agent, checks=guarding(lambda _: "over budget"), observers=[failures.append])
    assert await agent_.run("t") == "done without"
    (failed,) = [event for event in failures if isinstance(event, triage.events.AttemptFailed)]
    assert failed.diagnosis.failure_type is FailureType.CONSTRAINT_IGNORED
    assert "over budget" in str(hints[1])
    assert world.did == []


async def ends(agent: Agent[Any], task: str = "t") -> TriageSuspendedError:
    with pytest.raises(TriageSuspendedError) as caught:
        await agent.run(task)
    return caught.value


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_an_approval_is_for_exactly_that_call_once(store: str, tmp_path: Path) -> None:
    world = World()
    charge = world.tool("once")
    asked: list[Any] = []

    async def guard(call: GuardedCall) -> Suspend | None:
        await anyio.lowlevel.checkpoint()
        asked.append(call.arguments["what"])
        return Suspend("is that right?")

    async def agent(_task: str) -> list[str]:
        return [await charge("x"), await charge("x"), await charge("y")]

    options: dict[str, Any] = {"store": SQLiteStore(tmp_path / "r.db")} if store == "sqlite" else {}
    wrapped = Agent(agent, checks=guarding(guard), **options)
    error = await ends(wrapped)
    assert 'may once run with {"what": "x"}?' in error.question
    assert "is that right?" in error.question
    assert world.did == []
    with pytest.raises(TriageSuspendedError) as second:
        await wrapped.resume(error.token, approve())
    assert world.did == ["once(x)"]  # the same arguments once more are another call
    with pytest.raises(TriageSuspendedError) as third:
        await wrapped.resume(second.value.token, approve())
    assert world.did == ["once(x)", "once(x)"]
    result = await wrapped.resume(third.value.token, approve())
    assert result == ["result of x", "result of x", "result of y"]
    assert asked == ["x", "x", "y"]
    for kept in options.values():
        await kept.close()


async def test_a_refusal_is_told_to_the_agent() -> None:
    world = World()
    charge, hints = world.tool("once"), []

    async def agent(_task: str, *, _triage_hint: str | None = None) -> str:
        hints.append(_triage_hint)
        if _triage_hint is None:
            await charge("x")
        return "another way"

    wrapped = Agent(agent, checks=guarding(lambda _: Suspend("")))
    error = await ends(wrapped)
    assert await wrapped.resume(error.token, reject("too dear")) == "another way"
    assert "too dear" in str(hints[1])
    assert world.did == []


async def test_a_call_whose_result_is_known_is_not_looked_at_again() -> None:
    world, seen = World(), []
    charge = world.tool("once")

    def guard(call: GuardedCall) -> None:
        seen.append(call.attempt)

    async def agent(_task: str, *, run: Run) -> str:
        result: str = await charge("x")
        if run.attempt == 1:
            raise ConnectionError("late")
        return result

    await Agent(agent, checks=guarding(guard), **recovers(Retry())).run("t")
    assert (seen, world.did) == ([1], ["once(x)"])


def broken(_call: GuardedCall) -> bool:
    raise LookupError("no such rule")


@pytest.mark.parametrize(
    ("guard", "said"),
    [(broken, "LookupError"), (lambda _: 5, "int"), (lambda _: {"allow": True}, "dict")],
)
async def test_a_guard_that_fails_lets_nothing_run(
    guard: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    charge = world.tool("once")

    async def agent(_task: str) -> str:
        result: str = await charge("x")
        return result

    wrapped = Agent(agent, checks=guarding(guard))
    error = await ends(wrapped)
    assert said in error.question
    assert world.did == []
    assert await wrapped.resume(error.token, approve()) == "result of x"
    assert ("the guard of once failed" in caplog.text) == (guard is broken)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_sync_tool_in_a_thread_waits_for_either_kind_of_guard(kind: str) -> None:
    did: list[str] = []

    @triage.tool(effect="once")
    def send(text: str) -> str:
        did.append(text)
        return text

    async def waits(call: GuardedCall) -> str | None:
        await anyio.lowlevel.checkpoint()
        return decides(call)

    def decides(call: GuardedCall) -> str | None:
        return "spam" if call.arguments["text"] == "buy!" else None

    def agent(_task: str) -> str:
        try:
            send("buy!")
        except CallDenied as denied:
            return f"{send('hello')}, not {denied.reason}"
        return "sent all"

    checks = guarding(waits if kind == "async" else decides)
    assert await Agent(agent, checks=checks).run("t") == "hello, not spam"
    assert did == ["hello"]


async def test_where_nobody_can_wait_for_an_async_guard_a_person_is_asked() -> None:
    did: list[str] = []

    @triage.tool(effect="once")
    def send(text: str) -> str:
        did.append(text)
        return text

    async def waits(_call: GuardedCall) -> bool:
        return True

    async def agent(_task: str) -> str:
        return str(send("hello"))  # in the event loop's own thread

    wrapped = Agent(agent, checks=guarding(waits))
    error = await ends(wrapped)
    assert "async" in error.question
    assert did == []
    assert await wrapped.resume(error.token, approve()) == "hello"


async def test_parallel_calls_are_asked_about_each() -> None:
    world, seen = World(), []
    charge = world.tool("once")

    async def guard(call: GuardedCall) -> str | None:
        await anyio.lowlevel.checkpoint()
        seen.append(call.arguments["what"])
        return "odd" if call.arguments["what"] in "13" else None

    async def agent(_task: str) -> list[str]:
        results: dict[str, str] = {}

        async def one(what: str) -> None:
            try:
                results[what] = await charge(what)
            except CallDenied as denied:
                results[what] = denied.reason

        async with anyio.create_task_group() as group:
            for what in "0123":
                group.start_soon(one, what)
        return [results[what] for what in "0123"]

    answer = await Agent(agent, checks=guarding(guard)).run("t")
    assert answer == ["result of 0", "odd", "result of 2", "odd"]
    assert sorted(seen) == ["0", "1", "2", "3"]
    assert sorted(world.did) == ["once(0)", "once(2)"]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Checks(guard=5), "Checks.guard"),  # type: ignore[arg-type]
        (lambda: Guard("no"), "Guard.decide"),  # type: ignore[arg-type]
        (lambda: Guard(print, effects=("twice",)), "Guard.effects"),
        (lambda: Guard(print, effects="once"), "Guard.effects"),  # type: ignore[arg-type]
        (lambda: Guard(print, tools="send"), "Guard.tools"),  # type: ignore[arg-type]
        (lambda: Guard(print, tools=("",)), "Guard.tools"),
    ],
)
def test_what_is_no_guard_is_refused(make: Any, field: str) -> None:
    with pytest.raises(UsageError, match=field.replace(".", r"\.")):
        make()


async def test_a_denial_never_becomes_a_call_in_doubt() -> None:
    world = World()
    charge = world.tool("once")

    async def agent(_task: str) -> str:
        result: str = await charge("x")
        return result

    with pytest.raises(TriageError) as caught:
        await Agent(
            agent, checks=guarding(lambda _: "never"), limits=triage.Limits(attempts=2)
        ).run("t")
    assert not isinstance(caught.value, TriageSuspendedError)
    assert world.did == []
