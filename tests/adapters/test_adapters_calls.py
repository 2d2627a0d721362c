"""Calls that a model asks for: checked against the tools there are, and finished beside one that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

import anyio
import pytest
from support import always, on_both_backends

import triage
from adapters.own_framework import Framework, Theirs, recording, steps_of
from triage import Escalate, Replan, Retry, TriageEscalationError, TriageSuspendedError
from triage.adapters import CallRefused, Form, Seam
from triage.core import AttemptFailed, CallFinished, CallStarted, Step
from triage.core.messages.neutral import Answer, Asked

pytestmark = pytest.mark.anyio
anyio_backend = on_both_backends()

CHARGE = {
    "type": "object",
    "properties": {"cents": {"type": "integer"}},
    "required": ["cents"],
    "additionalProperties": False,
}


def read(data: Any) -> Answer:
    calls = (
        Asked(call.get("id", ""), call["name"], call["with"]) for call in data.get("calls", ())
    )
    return Answer(data.get("text", ""), tuple(calls))


ASKING = Form(read=read)


def calls(*asked: tuple[str, Any]) -> dict[str, Any]:
    return {"calls": [{"name": name, "with": given} for name, given in asked]}


class Checked(Theirs):
    def tools(self) -> Mapping[str, Any]:
        return {"charge": CHARGE, "look": None}


class Validating(Checked):
    validates: ClassVar[bool] = True


class Shop:
    """What a course of these tests does: it asks a model that says what it is told to, and calls tools."""

    def __init__(self, seam: Seam, *answers: Any) -> None:
        self.seam = seam
        self.answers = list(answers)
        self.charged: list[Any] = []

    async def ask(self, **options: Any) -> Any:
        async def send(hint: str | None) -> Any:
            return self.answers.pop(0)

        request = [len(self.answers), self.seam.run.attempt]
        return await self.seam.model(send, form=ASKING, request=request, **options)

    async def charge(self, given: Any, **options: Any) -> Any:
        async def do() -> str:
            self.charged.append(given)
            return "receipt 5"

        return await self.seam.tool("charge", given, do, effect="once", **options)


def refusals(events: list[Any]) -> list[tuple[Any, ...]]:
    return [
        (step.tool_called, step.tool_input, step.exception_type)
        for step in steps_of(events)
        if step.exception_type in ("UnknownTool", "InvalidArguments")
    ]


def kinds(events: list[Any]) -> list[str]:
    return [_kind(step) for step in steps_of(events)]


def _kind(step: Step) -> str:
    return f"{step.tool_called or step.action}{' refused' if step.error else ''}"


# Names ----------------------------------------------------------------------------------------------


async def test_a_tool_that_does_not_exist_is_recorded_though_the_framework_says_nothing_of_it() -> (
    None
):
    async def course(framework: Framework, seam: Seam) -> Any:
        shop = Shop(seam, calls(("pay", {"cents": 3})), {"text": "end"})
        await shop.ask()
        return (await shop.ask())["text"]

    agent, events = recording(Framework(course), Checked)
    assert await agent.run("t") == "end"
    assert kinds(events) == ["model", "pay refused", "model"]
    (wrong,) = [step for step in steps_of(events) if step.error]
    assert "no tool 'pay'" in str(wrong.error)
    assert "charge, look" in str(wrong.error)
    assert not [event for event in events if isinstance(event, CallStarted) and event.tool == "pay"]


async def test_a_framework_that_fails_for_it_has_failed_for_it() -> None:
    async def course(framework: Framework, seam: Seam) -> Any:
        shop = Shop(seam, calls(("pay", {"cents": 3})))
        await shop.ask()
        raise RuntimeError("something is wrong with this agent")

    agent, events = recording(Framework(course), Checked, policy=always(Escalate("enough")))
    with pytest.raises(TriageEscalationError):
        await agent.run("t")
    (failed,) = [event for event in events if isinstance(event, AttemptFailed)]
    assert failed.diagnosis.failure_type == "wrong_tool_called"
    assert failed.diagnosis.cause == "unknown_tool"


async def test_a_call_that_the_framework_makes_was_no_mistake() -> None:
    async def course(framework: Framework, seam: Seam) -> Any:
        shop = Shop(seam, calls(("CHARGE", {"cents": 3})), {"text": "end"})
        await shop.ask()
        await seam.tool("CHARGE", {"cents": 3}, lambda: _gives("receipt"), effect="once")
        return (await shop.ask())["text"]

    agent, events = recording(Framework(course), Checked)
    assert await agent.run("t") == "end"
    assert kinds(events) == ["model", "CHARGE", "model"]


async def _gives(value: Any) -> Any:
    return value


async def test_the_tools_of_the_request_are_those_that_count() -> None:
    async def course(framework: Framework, seam: Seam) -> Any:
        shop = Shop(
            seam, calls(("transfer_to_ann", {})), calls(("charge", {"cents": 3})), {"text": "end"}
        )
        await shop.ask(tools={"transfer_to_ann": None})
        await shop.ask(tools=[{"name": "look"}, {"type": "web_search"}])
        return (await shop.ask())["text"]

    agent, events = recording(Framework(course), Checked)
    assert await agent.run("t") == "end"
    assert refusals(events) == [("charge", {"cents": 3}, "UnknownTool")]


async def test_where_no_tool_is_declared_nothing_is_checked() -> None:
    async def course(framework: Framework, seam: Seam) -> Any:
        shop = Shop(seam, calls(("pay", 7)), calls(("pay", {"x": 1})), {"text": "end"})
        await shop.ask()
        await shop.ask(tools=())
        return (await shop.ask())["text"]

    agent, events = recording(Framework(course))
    assert await agent.run("t") == "end"
    assert refusals(events) == []


async def test_agents_side_by_side_are_told_apart() -> None:
    async def course(framework: Framework, seam: Seam) -> Any:
        shop = Shop(seam, calls(("pay", {})), {"text": "bob"}, {"text": "ann"})
        await shop.ask(who="ann")
        await shop.ask(who="bob")
        seen.append(kinds(events))
        return (await shop.ask(who="ann"))["text"]

    seen: list[list[str]] = []
    agent, events = recording(Framework(course), Checked)
    assert await agent.run("t") == "ann"
    assert seen == [["model", "model"]], "bob's turn says nothing of what ann's framework does"
    assert kinds(events) == ["model", "model", "pay refused", "model"]


async def test_what_an_adapter_says_itself_is_said_once() -> None:
    async def course(framework: Framework, seam: Seam) -> Any:
        asked = [{"id": "a", "name": "pay", "with": {}}, {"id": "b", "name": "pay", "with": {}}]
        shop = Shop(seam, {"calls": asked}, {"text": "end"})
        await shop.ask()
        seam.refused("pay", {}, "we have no pay", kind="UnknownTool", id="a")
        return (await shop.ask())["text"]

    agent, events = recording(Framework(course), Checked)
    assert await agent.run("t") == "end"
    texts = [str(step.error)[:10] for step in steps_of(events) if step.error]
    assert texts == ["we have no", "there is n"]


# Arguments ------------------------------------------------------------------------------------------

WRONG: tuple[Any, ...] = (
    {"cents": "many"},
    {"cents": 3, "tip": 1},
    {},
    '{"cents": "many"}',
    '{"cents": ',
    [3],
)


async def test_a_tool_is_not_called_with_arguments_that_do_not_fit() -> None:
    for given in WRONG:

        async def course(framework: Framework, seam: Seam, given: Any = given) -> Any:
            shop = Shop(seam, calls(("charge", given)), {"text": "end"})
            await shop.ask()
            with pytest.raises(CallRefused, match=r"charge|cents|argument") as refused:
                await shop.charge(given)
            await shop.ask()
            return str(refused.value), shop.charged

        agent, events = recording(Framework(course), Checked)
        told, charged = await agent.run("t")
        assert charged == []
        assert kinds(events) == ["model", "charge refused", "model"]
        (wrong,) = [step for step in steps_of(events) if step.error]
        assert (wrong.exception_type, wrong.error) == ("InvalidArguments", told)
        assert not [one for one in events if isinstance(one, CallStarted) and one.tool == "charge"]


async def test_a_call_that_was_refused_is_in_no_doubt_and_no_question_stands_before_the_right_one() -> (
    None
):
    async def course(framework: Framework, seam: Seam) -> Any:
        given = {"cents": "many"} if seam.run.attempt == 1 else {"cents": 300}
        shop = Shop(seam, calls(("charge", given)), {"text": "end"})
        shops.append(shop)
        await shop.ask()
        await shop.charge(given)
        return (await shop.ask())["text"]

    shops: list[Shop] = []
    for action in (Retry(), Replan("Cents is a number.")):
        shops.clear()
        agent, events = recording(Framework(course), Checked, policy=always(action))
        assert await agent.run("t") == "end"
        assert [shop.charged for shop in shops] == [[], [{"cents": 300}]]
        (failed,) = [event for event in events if isinstance(event, AttemptFailed)]
        assert failed.diagnosis.failure_type == "schema_mismatch"
        assert failed.diagnosis.cause == "invalid_arguments"


async def test_a_framework_that_looks_at_arguments_itself_has_the_say() -> None:
    async def course(framework: Framework, seam: Seam) -> Any:
        shop = Shop(
            seam, calls(("charge", {"cents": "300"})), calls(("charge", {})), {"text": "end"}
        )
        await shop.ask()
        assert await shop.charge({"cents": "300"}) == "receipt 5"
        await shop.ask()
        return (await shop.ask())["text"]

    agent, events = recording(Framework(course), Validating)
    assert await agent.run("t") == "end"
    assert refusals(events) == [("charge", {}, "InvalidArguments")]


async def test_what_code_calls_by_itself_is_not_checked() -> None:
    async def course(framework: Framework, seam: Seam) -> Any:
        shop = Shop(seam)
        return await shop.charge({"cents": "300"})

    agent, events = recording(Framework(course), Checked)
    assert await agent.run("t") == "receipt 5"
    assert refusals(events) == []


async def test_sync_hooks_are_checked_in_the_same_way() -> None:
    def work(seam: Seam) -> Any:
        answer = calls(("charge", {"cents": "many"}))
        seam.model_sync(lambda hint: answer, form=ASKING, request=1)
        with pytest.raises(CallRefused):
            seam.tool_sync("charge", {"cents": "many"}, lambda: done.append(1), effect="once")
        return "end"

    async def course(framework: Framework, seam: Seam) -> Any:
        return await anyio.to_thread.run_sync(work, seam)

    done: list[int] = []
    agent, events = recording(Framework(course), Checked)
    assert await agent.run("t") == "end"
    assert done == []
    assert refusals(events) == [("charge", {"cents": "many"}, "InvalidArguments")]


async def test_a_tool_that_records_itself_is_checked_too() -> None:
    @triage.tool(effect="once")
    async def charge(cents: int) -> str:
        ran.append(cents)
        return "receipt 5"

    async def course(framework: Framework, seam: Seam) -> Any:
        shop = Shop(seam, calls(("charge", {"cents": "many"})), {"text": "end"})
        await shop.ask()
        with pytest.raises(CallRefused):
            await seam.tool("charge", {"cents": "many"}, lambda: charge(cents=0), function=charge)
        return (await shop.ask())["text"]

    ran: list[Any] = []
    agent, events = recording(Framework(course), Checked)
    assert await agent.run("t") == "end"
    assert ran == []
    assert kinds(events) == ["model", "charge refused", "model"]


# Side by side ---------------------------------------------------------------------------------------

SideBySide = Callable[..., Awaitable[list[Any]]]


async def in_a_group(*works: Callable[[], Awaitable[Any]]) -> list[Any]:
    results: list[Any] = [None] * len(works)

    async def one(at: int) -> None:
        results[at] = await works[at]()

    try:
        async with anyio.create_task_group() as group:
            for at in range(len(works)):
                group.start_soon(one, at)
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
    return results


async def in_tasks(*works: Callable[[], Awaitable[Any]]) -> list[Any]:
    """As frameworks on asyncio have it: the others are cancelled, and waited for."""
    tasks = [asyncio.ensure_future(work()) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


class Counter:
    """Two tools side by side, of which one fails as soon as the other has begun."""

    def __init__(self) -> None:
        self.began = anyio.Event()
        self.failed = anyio.Event()
        self.done: list[str] = []
        self.cut: list[str] = []

    async def charges(self) -> str:
        self.began.set()
        try:
            await self.failed.wait()
            for _ in range(20):  # as long as a framework may take to hear of the failure
                await anyio.lowlevel.checkpoint()
        except BaseException:
            self.cut.append("charge")
            raise
        self.done.append("charge")
        return "receipt 5"

    async def fails(self) -> str:
        await self.began.wait()
        self.failed.set()
        raise ConnectionError("search is down")

    async def course(self, framework: Framework, seam: Seam, *, beside: SideBySide) -> Any:
        if seam.run.attempt > 1:
            return await seam.tool("charge", {"cents": 3}, self.charges, effect="once")
        return await beside(
            lambda: seam.tool("charge", {"cents": 3}, self.charges, effect=self.effect),
            lambda: seam.tool("search", {}, self.fails, effect="read"),
        )

    effect = "once"

    def framework(self) -> Framework:
        course: Any = self.course
        return Framework(course)


@pytest.fixture(params=["group", "tasks"])
def beside(request: pytest.FixtureRequest, anyio_backend_name: str) -> SideBySide:
    if request.param == "tasks" and anyio_backend_name == "trio":
        pytest.skip("tasks of asyncio")
    return in_a_group if request.param == "group" else in_tasks


async def test_a_call_with_an_effect_is_finished_beside_one_that_fails(beside: SideBySide) -> None:
    counter = Counter()
    agent, events = recording(counter.framework(), policy=always(Retry()))
    assert await agent.run("t", beside=beside) == "receipt 5"
    assert (counter.done, counter.cut) == (["charge"], [])
    ended = [one for one in events if isinstance(one, CallFinished) and one.outcome == "done"]
    assert [(one.result, one.replayed) for one in ended] == [("receipt 5", False), (None, True)]
    (failed,) = [event for event in events if isinstance(event, AttemptFailed)]
    assert failed.diagnosis.cause == "connection"


async def test_one_that_only_reads_is_cut_off_as_the_framework_has_it(beside: SideBySide) -> None:
    counter = Counter()
    counter.effect = "read"
    agent, _ = recording(counter.framework(), policy=always(Escalate("enough")))
    with pytest.raises(TriageEscalationError):
        await agent.run("t", beside=beside)
    assert (counter.done, counter.cut) == ([], ["charge"])


async def test_an_adapter_may_let_calls_be_cut_off_at_once(beside: SideBySide) -> None:
    class Hasty(Theirs):
        finishing: ClassVar[float] = 0.0

    counter = Counter()
    agent, _ = recording(counter.framework(), Hasty, policy=always(Retry()))
    with pytest.raises(TriageSuspendedError, match="charge"):
        await agent.run("t", beside=beside)
    assert (counter.done, counter.cut) == ([], ["charge"])


async def test_one_that_does_not_end_is_cut_off_after_a_while_and_asked_about(
    beside: SideBySide,
) -> None:
    class Soon(Theirs):
        finishing: ClassVar[float] = 0.01

    class Hangs(Counter):
        async def charges(self) -> str:
            self.began.set()
            try:
                await anyio.sleep_forever()
            finally:
                self.cut.append("charge")
            return "receipt 5"

    counter = Hangs()
    agent, _ = recording(counter.framework(), Soon, policy=always(Retry()))
    with pytest.raises(TriageSuspendedError, match="charge"):
        await agent.run("t", beside=beside)
    assert counter.cut == ["charge"]


async def test_a_caller_who_gives_up_cuts_it_off(beside: SideBySide) -> None:
    class Hangs(Counter):
        async def charges(self) -> str:
            self.began.set()
            try:
                await anyio.sleep_forever()
            finally:
                self.cut.append("charge")
            return "receipt 5"

        async def fails(self) -> str:
            await self.began.wait()
            scope.cancel()
            await anyio.sleep_forever()
            return ""

    counter = Hangs()
    agent, _ = recording(counter.framework(), policy=always(Retry()))
    with anyio.CancelScope() as scope:
        await agent.run("t", beside=beside)
    assert scope.cancelled_caught
    assert counter.cut == ["charge"]


async def test_what_runs_in_an_effect_sees_what_its_framework_has_set() -> None:
    async def course(framework: Framework, seam: Seam) -> Any:
        shop = Shop(seam)

        async def do() -> str:
            found.append((triage.current_call().tool, await _gives(1)))
            return "receipt 5"

        return await shop.seam.tool("charge", {}, do, effect="once")

    found: list[Any] = []
    agent, _ = recording(Framework(course))
    assert await agent.run("t") == "receipt 5"
    assert found == [("charge", 1)]
