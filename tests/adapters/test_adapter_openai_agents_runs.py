"""Whole runs of the OpenAI Agents SDK: approvals, sessions, streams, cancellation, what errors mean."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import agents
import anyio
import openai
import pytest
from pydantic import BaseModel
from tables import table

import triage
from adapters.sdk_agents import Desk, Refused, calls, model, over_http, says, told
from triage import (
    Escalate,
    FailurePolicy,
    FailureType,
    Replan,
    TriageEscalationError,
    TriageSuspendedError,
    approve,
    edit,
    happened,
    reject,
)
from triage.core import Cause
from triage.strategies import Backoff, backoff_and_retry
from triage.testing.adapter_contract import (
    Rule,
    Script,
    World,
    asks,
    call,
)
from triage.testing.adapter_contract import says as answers

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]


# Approvals ------------------------------------------------------------------------------------------


class Guarded(Desk):
    """A desk whose charges need approval."""

    def __init__(self, *steps: Any) -> None:
        super().__init__(*steps)
        tool = agents.function_tool(self.charge, needs_approval=True)
        self.clerk.tools = [tool, *self.clerk.tools[1:]]


async def suspended(run: Any) -> TriageSuspendedError:
    with pytest.raises(TriageSuspendedError) as raised:
        await run
    return raised.value


def new_class(url: str, client: openai.AsyncOpenAI) -> agents.Model:
    """A model of a class that this process has not seen, as a new process has seen none."""
    made: agents.Model = type("Own", (agents.OpenAIResponsesModel,), {})("m", client)
    return made


async def test_a_process_that_has_asked_no_model_tells_the_hint_last_and_once(
    tmp_path: Path,
) -> None:
    rules = (Rule(answers("in cash"), "too much"), Rule(asks(call("charge", cents=300))))
    world = World(Script(rules, approvals=("charge",)))
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    async with over_http(world, new_class) as clerk:
        agent = triage.wrap(clerk, effects=world.effects, store=store)
        waits = await suspended(agent.run("Pay."))
        await agent.store.close()
    async with over_http(world, new_class) as clerk:
        other = triage.wrap(clerk, effects=world.effects, store=store)
        assert (await other.resume(waits.token, reject("too much"))).final_output == "in cash"
        await other.store.close()
    told = world.requests[-1].body["input"]
    assert [item.get("type", "message") for item in told] == [
        "message", "function_call", "function_call_output", "message",
    ]  # fmt: skip
    assert "too much" in told[-1]["content"]


async def test_a_call_that_waits_for_an_approval_cannot_have_happened() -> None:
    desk = Guarded(calls("charge 1", cents=300), says("paid"))
    agent = desk.agent()
    waits = await suspended(agent.run("Pay."))
    assert waits.context is not None
    assert waits.context.diagnosis.cause is triage.core.Cause.NEEDS_APPROVAL
    with pytest.raises(triage.UsageError, match="not begun"):
        await agent.resume(waits.token, happened("paid in cash"))
    assert (await agent.resume(waits.token, approve())).final_output == "paid"
    assert desk.did == ["charge 300"]


async def test_other_arguments_than_those_that_wait_are_asked_for_from_the_model() -> None:
    desk = Guarded(calls("charge 1", cents=300), calls("charge 2", cents=200), says("paid"))
    agent = desk.agent()
    waits = await suspended(agent.run("Pay."))
    again = await suspended(agent.resume(waits.token, edit({"cents": 200})))
    assert '"cents": 200' in again.question
    assert '{"cents": 200}' in told(desk.asked(1))[-1]
    assert (await agent.resume(again.token, approve())).final_output == "paid"
    assert desk.did == ["charge 200"]


async def test_an_approval_inside_of_an_agent_as_a_tool_suspends_the_whole() -> None:
    desk = Guarded(calls("charge 1", cents=5), says("helped"))
    boss: agents.Agent[Any] = agents.Agent(
        name="boss",
        model=model(calls("help 9", input="a"), says("done")),
        tools=[desk.clerk.as_tool("help", "Help.")],
    )
    agent = triage.wrap(boss, effects={"charge": "once"})
    waits = await suspended(agent.run("Pay."))
    result = await agent.resume(waits.token, approve())
    assert result.final_output == "done"
    assert desk.did == ["charge 5"]


async def test_an_approved_call_is_made_by_another_process(tmp_path: Path) -> None:
    script = [calls("charge 1", cents=300), says("paid")]
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    first = Guarded(*script[:1])
    agent = first.agent(store=store)
    waits = await suspended(agent.run("Pay."))
    await agent.store.close()
    second = Guarded(*script[1:])
    other = second.agent(store=store)
    result = await other.resume(waits.token, approve())
    await other.store.close()
    assert result.final_output == "paid"
    assert (first.did, second.did) == ([], ["charge 300"])


async def test_a_state_can_be_gone_on_from() -> None:
    desk = Guarded(calls("charge 1", cents=300), Refused(), says("paid"))
    plain = await agents.Runner.run(desk.clerk, "Pay.")
    state = plain.to_state()
    state.approve(plain.interruptions[0])
    result = await desk.agent().run(state)
    assert result.final_output == "paid"
    assert desk.did == ["charge 300"]
    assert [step.tool_called for step in desk.steps if step.tool_called] == ["charge"]


# Sessions and input ---------------------------------------------------------------------------------


@pytest.fixture
def session() -> Iterator[agents.SQLiteSession]:
    """A session that is closed after the test."""
    with closing(agents.SQLiteSession("one")) as made:
        yield made


async def test_a_session_keeps_only_the_attempt_that_succeeded(
    session: agents.SQLiteSession,
) -> None:
    await session.add_items([{"role": "user", "content": "Hello."}])
    desk = Desk(calls("charge 1", cents=300), Refused(), says("paid"), says("again"))
    agent = desk.agent()
    await agent.run("Pay.", session=session)
    kept = told(list(await session.get_items()))
    assert kept[:4] == ["Hello.", "Pay.", "charge", "receipt 300"]
    assert len(kept) == 5
    await agent.run("More.", session=session)
    assert told(desk.asked())[:2] == ["Hello.", "Pay."]
    assert len(await session.get_items()) == 7


class Tenants(agents.SessionABC):
    """A session that keeps tenants apart, by the context of the run that asks."""

    session_id = "all"
    session_settings = None

    def __init__(self) -> None:
        self.kept: dict[str, list[Any]] = {}

    def _of(self, wrapper: Any) -> list[Any]:
        return self.kept.setdefault(wrapper.context, [])

    async def get_items(self, limit: int | None = None, *, wrapper: Any = None) -> list[Any]:
        items = self._of(wrapper)
        return list(items if limit is None else items[-limit:])

    async def add_items(self, items: list[Any], *, wrapper: Any = None) -> None:
        self._of(wrapper).extend(items)

    async def pop_item(self, *, wrapper: Any = None) -> Any:
        items = self._of(wrapper)
        return items.pop() if items else None

    async def clear_session(self, *, wrapper: Any = None) -> None:
        self._of(wrapper).clear()


async def test_a_session_that_keeps_tenants_apart_knows_whose_run_it_is() -> None:
    session = Tenants()
    for tenant in ("alice", "bob"):
        desk = Desk(says(f"hello {tenant}"))
        await desk.agent().run("Hi.", session=session, context=tenant)
    assert [("alice" in str(items), "bob" in str(items)) for items in session.kept.values()] == [
        (True, False),
        (False, True),
    ]
    assert [len(items) for items in session.kept.values()] == [2, 2]


class Oldest:
    """A session as it was before there were limits."""

    session_id = "old"
    session_settings = None

    def __init__(self) -> None:
        self.items: list[Any] = []

    async def get_items(self) -> list[Any]:
        return list(self.items)

    async def add_items(self, items: list[Any]) -> None:
        self.items += items

    async def pop_item(self) -> Any:
        return self.items.pop() if self.items else None

    async def clear_session(self) -> None:
        self.items.clear()


async def test_a_session_without_limits_is_read_whole() -> None:
    session: Any = Oldest()
    for words in ("one", "two"):
        await Desk(says(words)).agent().run("Hi.", session=session)
    assert len(session.items) == 4


async def test_a_provider_that_does_not_close_hides_no_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fails(_provider: Any) -> None:
        raise RuntimeError("close failed")

    monkeypatch.setattr(agents.MultiProvider, "aclose", fails)
    result = await Desk(says("done")).agent().run("Go.")
    assert result.final_output == "done"


async def test_an_error_that_cannot_be_told_is_the_one_that_is_raised() -> None:
    class Mute(RuntimeError):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    with pytest.raises(TriageEscalationError) as raised:
        await Desk(Mute()).agent(Escalate()).run("Go.")
    assert isinstance(raised.value.__cause__, Mute)


async def test_what_a_filter_leaves_of_the_input_is_sent_as_it_is() -> None:
    alone: Any = {"type": "function_call_output", "call_id": "kept elsewhere", "output": "5"}

    def filtered(data: Any) -> Any:
        return agents.run.ModelInputData(
            input=[alone, *data.model_data.input], instructions=data.model_data.instructions
        )

    desk = Desk(says("done"))
    await desk.agent().run("Go.", run_config=agents.RunConfig(call_model_input_filter=filtered))
    assert desk.asked()[0] == alone


async def test_a_run_that_failed_leaves_what_it_did_in_the_session(
    session: agents.SQLiteSession,
) -> None:
    desk = Desk(calls("charge 1", cents=300), Refused(), Refused())
    policy = FailurePolicy(default=backoff_and_retry(1, Backoff(base=0.0)))
    agent = triage.wrap(desk.clerk, policy, effects={"charge": "once", "look": "read"})
    with pytest.raises(TriageEscalationError):
        await agent.run("Pay.", session=session)
    assert told([dict(item) for item in await session.get_items()]) == [
        "Pay.",
        "charge",
        "receipt 300",
    ]


async def test_a_session_has_an_approved_call_once(session: agents.SQLiteSession) -> None:
    desk = Guarded(calls("charge 1", cents=300), says("paid"))
    agent = desk.agent()
    waits = await suspended(agent.run("Pay.", session=session))
    assert await session.get_items() == []
    await agent.resume(waits.token, approve())
    kinds = [item.get("type") or item["role"] for item in map(dict, await session.get_items())]
    assert kinds == ["user", "function_call", "function_call_output", "message"]


async def test_a_session_forgets_an_answer_that_a_check_refused(
    session: agents.SQLiteSession,
) -> None:

    def good(result: Any) -> None:
        if result.final_output != "good":
            raise ValueError("not good")

    desk = Desk(says("bad"), says("good"))
    agent = desk.agent(Replan("Be good."), verify=good)
    await agent.run("Answer.", session=session)
    kept = str(await session.get_items())
    assert kept.count("Answer.") == 1
    assert "Be good." not in kept


# Cancellation ---------------------------------------------------------------------------------------


async def a_while() -> None:
    for _ in range(500):
        await anyio.lowlevel.checkpoint()


@table("streamed", [False, True])
async def test_a_cancelled_run_leaves_no_tool_behind(*, streamed: bool) -> None:
    began, log = anyio.Event(), list[str]()

    async def wait(what: str) -> str:
        """Wait."""
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await a_while()
            log.append("tool ended")
        return what

    desk = Desk(calls("wait 1", what="x"), tools=[agents.function_tool(wait)])
    agent = desk.agent(effects={"wait": "read"})
    more: dict[str, Any] = {"on_event": log.append} if streamed else {}

    async def run() -> None:
        try:
            await agent.run("Wait.", **more)
        finally:
            log.append("run ended")

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await began.wait()
        group.cancel_scope.cancel()
    ended = [entry for entry in log if isinstance(entry, str)]
    assert ended == ["tool ended", "run ended"]
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not [task for task in others if "agents" in repr(task.get_coro())]


# What errors mean -----------------------------------------------------------------------------------


class Bill(BaseModel):
    cents: int


@agents.input_guardrail
def no_input(context: Any, agent: Any, given: Any) -> agents.GuardrailFunctionOutput:
    return agents.GuardrailFunctionOutput("rude", tripwire_triggered=True)


@agents.output_guardrail
def no_output(context: Any, agent: Any, given: Any) -> agents.GuardrailFunctionOutput:
    return agents.GuardrailFunctionOutput("rude", tripwire_triggered=True)


async def _late(what: str) -> str:
    """Wait."""
    await anyio.sleep_forever()
    return what


async def _find(what: str) -> str:
    """Find."""
    raise Refused(503, "Overloaded")


LATE = agents.function_tool(_late, name_override="find", timeout=0.01)
FIND = agents.function_tool(_find, name_override="find", failure_error_function=None)
TOLD = agents.function_tool(_find, name_override="find")
ONE_CALL: dict[str, Any] = {"tool_use_behavior": "stop_on_first_tool"}
FINDS = calls("find 1", what="x")
LOOKS = [calls(f"look {at}", what=f"part {at}") for at in range(4)]
EXTERNAL, CONSTRAINT = FailureType.EXTERNAL_FAULT, FailureType.CONSTRAINT_IGNORED
FAILURES = [
    (Desk(calls("find 1")), FailureType.WRONG_TOOL_CALLED, Cause.UNKNOWN_TOOL),
    (Desk(*LOOKS), FailureType.PLAN_INCOMPLETE, Cause.STEP_BUDGET),
    (Desk(Refused(429, "Rate limit reached")), EXTERNAL, Cause.RATE_LIMITED),
    (
        Desk(Refused(400, "maximum context length is 8192 tokens")),
        FailureType.CONTEXT_OVERFLOW,
        Cause.CONTEXT_LENGTH,
    ),
    (Desk(says("no JSON"), output_type=Bill), FailureType.SCHEMA_MISMATCH, None),
    (Desk(says("x"), input_guardrails=[no_input]), CONSTRAINT, Cause.GUARDRAIL),
    (Desk(says("x"), output_guardrails=[no_output]), CONSTRAINT, Cause.FORBIDDEN_OUTPUT),
    (Desk(FINDS, tools=[LATE], **ONE_CALL), EXTERNAL, Cause.TIMEOUT),
    (Desk(FINDS, tools=[FIND]), EXTERNAL, None),
    (Desk(FINDS, tools=[TOLD], **ONE_CALL), EXTERNAL, None),
]


@table(("desk", "kind", "cause"), FAILURES)
async def test_errors_of_the_sdk_are_diagnosed(
    desk: Desk, kind: FailureType, cause: Cause | None
) -> None:
    with pytest.raises(TriageEscalationError) as raised:
        await desk.agent(Escalate(), effects={"find": "read"}).run("Look.", max_turns=3)
    found = raised.value.diagnosis
    assert found is not None
    assert found.failure_type is kind, found
    assert cause is None or found.cause == cause, found
