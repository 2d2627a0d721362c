"""MCP sessions in a run: recorded, reused, with the server's own word for what may be repeated."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import anyio
import pytest
from mcp import Client, ClientSession, MCPError
from mcp.client.session_group import ClientSessionGroup
from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations
from support import always, cancelled_once, on_both_backends
from tables import table

import triage
from triage import Agent, Effect, Retry, Step, TriageSuspendedError, UsageError, happened
from triage.adapters.mcp import effect_of_tool, record
from triage.core import Event, StepRecorded

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]
anyio_backend = on_both_backends()


class Bank:
    """A real server. did: the tool calls whose bodies began."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.slow_begun = anyio.Event()
        self.server = MCPServer("bank")
        self.fails = 0
        say = ToolAnnotations

        @self.server.tool(annotations=say(read_only_hint=True))
        async def look(what: str) -> str:
            self.did.append(f"look {what}")
            return f"saw {what}"

        @self.server.tool(annotations=say(idempotent_hint=True))
        async def note(text: str) -> str:
            self.did.append(f"note {text}")
            return "noted"

        @self.server.tool(annotations=say(destructive_hint=True))
        async def charge(cents: int) -> dict[str, int]:
            self.did.append(f"charge {cents}")
            return {"receipt": cents}

        @self.server.tool()
        async def broken(what: str) -> str:
            self.did.append(f"broken {what}")
            raise ValueError("the disk is full")

        @self.server.tool()
        async def slow() -> str:
            self.did.append("slow")
            self.slow_begun.set()
            await anyio.sleep_forever()
            return ""

    def fail(self) -> None:
        self.fails -= 1
        if self.fails >= 0:
            raise ConnectionError("reset")


def steps_of(events: list[Event]) -> list[Step]:
    steps = [event.step for event in events if isinstance(event, StepRecorded)]
    return [step for step in steps if not (step.metadata or {}).get("replayed")]


async def played(bank: Bank, agent: Any, action: Any = None, **options: Any) -> list[Event]:
    events: list[Event] = []
    policy = always(Retry() if action is None else action)
    await Agent(agent, policy, observers=[events.append], **options).run("go")
    return events


@asynccontextmanager
async def sessions(bank: Bank, kind: str) -> AsyncGenerator[Any]:
    """A recorded session of each kind."""
    async with Client(bank.server) as client:
        if kind == "Client":
            yield record(client, trusted=True)
        elif kind == "ClientSession":
            yield record(client.session, trusted=True)
        else:
            group = ClientSessionGroup()
            for tool in (await client.list_tools()).tools:
                group.tools[tool.name] = tool
                group._tool_to_session[tool.name] = client.session
            yield record(group, trusted=True)


KINDS = ["Client", "ClientSession", "ClientSessionGroup"]


@table("kind", KINDS)
async def test_a_call_is_a_step_and_is_reused_by_the_next_attempt(kind: str) -> None:
    bank = Bank()
    bank.fails = 1
    found: list[Any] = []
    async with sessions(bank, kind) as session:

        async def agent(task: str) -> str:
            found.append(await session.call_tool("look", {"what": "bees"}))
            found.append(await session.call_tool("charge", {"cents": 300}))
            bank.fail()
            return "done"

        events = await played(bank, agent)
    assert bank.did == ["look bees", "charge 300"]
    assert found[:2] == found[2:], "what is given again is not what was given"
    assert found[3].structured_content == {"receipt": 300}
    first, second = steps_of(events)
    assert (first.tool_called, first.tool_input) == ("look", {"what": "bees"})
    assert first.tool_output["content"][0]["text"] == "saw bees"
    assert (first.effect, second.effect) == (Effect.READ, Effect.ONCE)
    assert first.duration_s is not None
    assert first.error is None


@table(
    ("tool", "arguments", "told"),
    [
        ("broken", {"what": "x"}, "Error executing tool broken"),
        ("nope", {}, "Unknown tool: nope"),
        ("look", {"where": 1}, "what"),
    ],
)
async def test_a_result_that_is_an_error_is_a_step_with_it_and_no_result_to_reuse(
    tool: str, arguments: Any, told: str
) -> None:
    asks = tool == "broken"
    bank = Bank()
    bank.fails = 1
    found: list[Any] = []
    async with Client(bank.server) as plain:
        client = record(plain)

        async def agent(task: str) -> str:
            found.append(await client.call_tool(tool, arguments))
            bank.fail()
            return "done"

        events: list[Event] = []
        wrapped = Agent(agent, always(Retry()), observers=[events.append])
        with pytest.raises(TriageSuspendedError) if asks else nullcontext():
            await wrapped.run("go")
    step = steps_of(events)[0]
    assert step.error is not None
    assert told in step.error
    assert step.exception_type == "ToolError"
    assert step.tool_output is None
    assert found[0].is_error
    assert found[1:] == ([] if asks else found[:1])
    assert bank.did == (["broken x"] if asks else []), "what may have happened was called again"


async def test_a_tool_that_may_be_repeated_is_asked_again_where_it_answered_with_an_error() -> None:
    bank = Bank()
    answers: list[bool] = []

    @bank.server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def shaky() -> str:
        bank.did.append("shaky")
        if len(bank.did) == 1:
            raise ValueError("overloaded")
        return "fine"

    async with Client(bank.server) as plain:
        client = record(plain, trusted=True)

        async def agent(task: str) -> None:
            answers.append((await client.call_tool("shaky")).is_error)
            if answers[-1]:
                raise ConnectionError("no answer")

        events = await played(bank, agent)
    assert answers == [True, False]
    assert [step.exception_type for step in steps_of(events)] == ["ToolError", None]


async def test_what_a_server_says_of_its_tools_is_what_may_be_repeated() -> None:
    bank = Bank()
    async with Client(bank.server) as plain:
        client = record(plain, trusted=True)

        async def agent(task: str) -> None:
            for name, given in [("look", "what"), ("note", "text"), ("broken", "what")]:
                await client.call_tool(name, {given: "x"})

        events = await played(bank, agent)
    effects = [step.effect for step in steps_of(events)]
    assert effects == [Effect.READ, Effect.IDEMPOTENT, Effect.UNKNOWN]


async def test_what_the_user_says_wins_and_an_untrusted_server_says_nothing() -> None:
    bank = Bank()
    async with Client(bank.server) as plain:
        named = record(plain, effects={"look": "once"}, prefix="bank")
        doubted = record(plain)

        async def agent(task: str) -> None:
            for client in (named, doubted):
                await client.list_tools()
                await client.call_tool("look", {"what": "x"})

        events = await played(bank, agent)
    found = [(step.tool_called, step.effect) for step in steps_of(events)]
    assert found == [("bank.look", Effect.ONCE), ("look", Effect.UNKNOWN)]


@table(
    ("hints", "effect"),
    [
        (None, Effect.UNKNOWN),
        (ToolAnnotations(), Effect.UNKNOWN),
        (ToolAnnotations(read_only_hint=True, destructive_hint=True), Effect.READ),
        (ToolAnnotations(idempotent_hint=True, destructive_hint=True), Effect.IDEMPOTENT),
        (ToolAnnotations(destructive_hint=True), Effect.ONCE),
        (ToolAnnotations(read_only_hint=False, destructive_hint=False), Effect.UNKNOWN),
    ],
)
def test_hints_are_effects(hints: ToolAnnotations | None, effect: Effect) -> None:
    assert effect_of_tool(hints) is effect


async def test_a_charge_whose_answer_did_not_come_is_asked_about_and_not_made_again() -> None:
    bank = Bank()
    async with Client(bank.server) as plain:
        client = record(plain, effects={"slow": "once"})

        async def agent(task: str) -> Any:
            result = await client.call_tool("slow", {}, read_timeout_seconds=0.5)
            return getattr(result.content[0], "text", "")

        wrapped = Agent(agent, always(Retry()))
        with pytest.raises(TriageSuspendedError) as caught:
            await wrapped.run("go")
        assert caught.value.context is not None
        assert caught.value.context.diagnosis.failure_type is triage.FailureType.EXTERNAL_FAULT
        assert await wrapped.resume(caught.value.token, happened("receipt 5")) == "receipt 5"
    assert bank.did == ["slow"]


async def test_a_timeout_is_one_and_a_tool_that_may_be_repeated_is_called_again() -> None:
    bank = Bank()
    failures: list[Any] = []
    async with Client(bank.server) as plain:
        client = record(plain, effects={"slow": "read"})

        async def agent(task: str) -> None:
            if len(failures) < 2:
                await client.call_tool("slow", {}, read_timeout_seconds=0.5)

        def again(context: Any) -> Any:
            failures.append(context.diagnosis.cause)
            return Retry()

        await Agent(agent, always(again)).run("go")
    assert bank.did == ["slow", "slow"]
    assert failures == ["timeout", "timeout"]


async def test_a_request_that_the_server_refused_is_not_in_doubt() -> None:
    bank = Bank()

    @bank.server.tool()
    async def pay() -> str:
        bank.did.append("pay")
        if len(bank.did) == 1:
            raise MCPError(-32602, "not so")
        return "paid"

    async with Client(bank.server) as plain:
        client = record(plain, effects={"pay": "once"})

        async def agent(task: str) -> None:
            await client.call_tool("pay")

        events = await played(bank, agent)
    assert [step.error for step in steps_of(events)] == ["not so", None]


async def test_a_caller_that_gives_up_stops_the_tool_and_the_session_can_be_used() -> None:
    bank = Bank()
    events: list[Event] = []
    async with Client(bank.server) as plain:
        client = record(plain)

        async def agent(task: str) -> Any:
            return await client.call_tool("slow", {})

        wrapped = Agent(agent, always(Retry()), observers=[events.append])
        await cancelled_once(bank.slow_begun, lambda: wrapped.run("go"))
        assert (await client.call_tool("look", {"what": "x"})).is_error is False
    assert bank.did == ["slow", "look x"]


async def test_outside_of_a_run_and_of_the_given_session_nothing_changes() -> None:
    bank = Bank()
    async with Client(bank.server) as plain:
        client = record(plain)
        assert isinstance(client, Client)
        assert record(client) is client
        assert type(plain) is Client
        assert "triage" not in vars(plain)
        one = await client.call_tool("look", {"what": "x"})
        assert one == await plain.call_tool("look", {"what": "x"})
        assert client.session is plain.session


async def test_a_client_can_be_recorded_before_it_is_entered() -> None:
    bank = Bank()
    async with record(Client(bank.server)) as client:

        async def agent(task: str) -> None:
            await client.call_tool("note", {"text": "x"})

        events = await played(bank, agent)
    assert [step.tool_called for step in steps_of(events)] == ["note"]


async def test_a_tool_is_told_of_once_however_often_it_is_called() -> None:
    bank = Bank()
    listed: list[int] = []

    class Counting(ClientSession):
        async def list_tools(self, **options: Any) -> Any:
            listed.append(1)
            return await super().list_tools(**options)

    async with Client(bank.server, cache=None) as plain:
        counting = object.__new__(Counting)
        counting.__dict__ = plain.session.__dict__
        session = record(counting)

        async def agent(task: str) -> None:
            for what in ("a", "b", "c"):
                await session.call_tool("look", {"what": what})

        await played(bank, agent)
    assert bank.did == ["look a", "look b", "look c"]
    assert len(listed) == 1


def test_what_is_no_session_is_refused() -> None:
    with pytest.raises(UsageError, match="a Client, ClientSession or ClientSessionGroup"):
        record("http://localhost:8000/mcp")  # type: ignore[call-overload] # the wrong type is the test
    bank = Bank()
    with pytest.raises(UsageError, match=r"record\(effects=\{'look': …\}\)"):
        record(Client(bank.server), effects={"look": "safe"})
    with pytest.raises(UsageError, match=r"triage\.adapters\.mcp\.record\(client\)"):
        triage.wrap(Client(bank.server))
