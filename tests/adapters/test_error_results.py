"""Calls that return an error as their result are failures, and asked about before they are made again."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from mcp import Client
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import ModelRetry, ToolFailed
from pydantic_ai.exceptions import ModelHTTPError
from support import RETRY, Killed, always, on_both_backends
from tables import table

import triage
from adapters.pydantic_agents import Scripted, call, staged
from triage import (
    Agent,
    Durability,
    Escalate,
    Replan,
    Retry,
    TriageEscalationError,
    TriageSuspendedError,
    current_run,
    happened,
    rerun,
)
from triage.adapters import shrunk_chat
from triage.adapters.mcp import record
from triage.core import CallFinished, Event
from triage.core.messages.receipts import Shrink
from triage.stores import MemoryStore
from triage.testing.adapter_contract import Fails, Rule, Script, asks
from triage.testing.adapter_contract import call as wanted

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]
anyio_backend = on_both_backends()

PLACES = ("same", "other", "next", "process")
"""Where the call would be made again: in its attempt, with other arguments there, in the next attempt, and
in another process."""
REFUSED = {
    "status": "404 Not Found",
    "framed status": "Error executing tool charge: 422 Unprocessable Entity",
    "status of a client": "Client error '403 Forbidden' for url 'https://bank/charges'",
    "status of another client": "Error code: 401 - {'error': {'message': 'no such key'}}",
    "busy, with a time": "503 Service Unavailable\nRetry-After: 5",
    "body": '{"error": {"code": 404, "message": "no such account"}}',
    "body, busy": '{"status": 503, "message": "busy", "retry_after": 5}',
    "errno": "Error executing tool charge: [Errno 111] Connection refused",
    "code": "connect ECONNREFUSED 127.0.0.1:5432",
    "class": "httpx.ConnectError: All connection attempts failed",
}
DOUBTFUL = {
    "words": "the ledger is closed",
    "frame": "Error executing tool charge",
    "busy": "503 Service Unavailable",
    "busy, with a time in words": "503 Service Unavailable: please try again in 5 seconds",
    "server's status": "HTTP 500 Internal Server Error",
    "status told behind other words": "charged 300, but the mail server answered: 404 Not Found",
    "code behind other words": "charged; no receipt: ECONNREFUSED",
    "reset": "[Errno 104] Connection reset by peer",
    "class": "httpx.ReadTimeout: timed out",
    "a form that is not of the arguments": "1 validation error for Receipt\nid\n  Field required",
    "output": "MCP error -32602: Output validation error: 'id' is a required property",
    "promise": "nothing was charged, this is safe to retry",
}


class Bank:
    """Tools that answer with an error first. did: the arguments of each call whose body began."""

    def __init__(self, text: str, raised: type[Exception] = ToolFailed) -> None:
        self.did: list[int] = []
        self.text = text
        self.raised = raised
        self.error: Exception | None = None
        self.told: list[bool] = []

    def charge(self, cents: int) -> str | None:
        """A receipt, or None where the error is to be told."""
        self.did.append(cents)
        return None if len(self.did) == 1 else f"receipt {len(self.did)}"


@asynccontextmanager
async def session(bank: Bank, effect: str) -> AsyncGenerator[Any]:
    """A recorded session with an MCP server."""
    server = MCPServer("bank")

    @server.tool()
    async def charge(cents: int) -> CallToolResult:
        told = bank.charge(cents)
        text = TextContent(text=bank.text if told is None else told)
        return CallToolResult(content=[text], is_error=told is None)

    async with Client(server) as plain:
        yield record(plain, effects={"charge": effect})


@asynccontextmanager
async def own_loop(bank: Bank, effect: str, place: str) -> AsyncGenerator[Any]:
    """An agent's own loop over a recorded session."""
    async with session(bank, effect) as client:
        failures = _failures(place)

        async def agent(task: str) -> str:
            first = await client.call_tool("charge", {"cents": 300})
            if failures:
                raise failures.pop()
            bank.told.append(first.is_error)
            if place in ("same", "other") and first.is_error:
                again = {"cents": 300 if place == "same" else 500}
                first = await client.call_tool("charge", again)
            return f"it came to: {first.content[0].text}"

        yield lambda policy=RETRY, **options: Agent(agent, policy, **options)


def _failures(place: str) -> list[BaseException]:
    if place == "next":
        return [ConnectionError("reset")]
    return [Killed()] if place == "process" else []


@asynccontextmanager
async def framework(bank: Bank, effect: str, place: str) -> AsyncGenerator[Any]:
    """An agent of Pydantic AI."""

    def charge(cents: int) -> str:
        told = bank.charge(cents)
        if told is None:
            raise bank.error or bank.raised(bank.text)
        return told

    again = call("charge", cents=500 if place == "other" else 300)
    turns: dict[str, Any] = {
        "same": again,
        "other": again,
        "next": ModelHTTPError(503, "m"),
        "process": Killed(),
    }
    model = Scripted(call("charge", cents=300), turns[place], "done")
    agent = PydanticAgent(model.model, tools=[charge])
    yield lambda policy=RETRY, **options: triage.wrap(
        agent, policy, effects={"charge": effect}, **options
    )


WAYS = {"mcp": own_loop, "pydantic_ai": framework}


async def played(
    way: str, bank: Bank, effect: str, place: str, *answers: Any, **durability: Any
) -> list[str]:
    """What became of a run: `asked` for each question, each answered with the next of these, and `done`."""
    store = MemoryStore()
    options: dict[str, Any] = {"store": store, "durability": Durability(**durability)}
    came: list[str] = []
    left = list(answers)
    async with WAYS[way](bank, effect, place) as make:
        work = partial(make(**options).run, "go", run_id="r")
        while True:
            try:
                await work()
            except Killed:
                options["store"] = await left_by_a_kill(store)
                work = partial(make(**options).recover, "r")
            except TriageSuspendedError as question:
                came.append("asked")
                if not left:
                    return came
                work = partial(make(**options).resume, question.token, left.pop(0))
            else:
                return [*came, "done"]


async def left_by_a_kill(store: MemoryStore) -> MemoryStore:
    """What a process leaves that is killed behind the call."""
    events = await store.read("r")
    end = max(
        at
        for at, event in enumerate(events)
        if isinstance(event, CallFinished) and event.key.startswith("charge:")
    )
    left = MemoryStore()
    await left.append("r", events[: end + 1], at=0, epoch=0)
    return left


CASES = [
    (place, effect, text)
    for place in PLACES
    for effect in ("once", "unknown")
    for text in (DOUBTFUL["words"], REFUSED["status"])
]


def _raised_from(behind: Exception, error: Exception) -> Exception:
    error.__cause__ = error.__context__ = behind
    return error


ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])


async def check_place(way: str, place: str, effect: str, text: str) -> None:
    bank = Bank(text)
    asks = text in DOUBTFUL.values() and (place != "other" or effect == "once")
    assert await played(way, bank, effect, place) == ["asked" if asks else "done"]
    assert bank.did == [300, *([] if asks else [500 if place == "other" else 300])]


@table(("place", "effect", "text"), CASES)
async def test_a_call_in_doubt_is_asked_about_where_it_would_be_made_again(
    place: str, effect: str, text: str
) -> None:
    await check_place("mcp", place, effect, text)


@ON_ASYNCIO
@table(("place", "effect", "text"), CASES)
async def test_a_framework_s_call_in_doubt_is_asked_about_where_it_would_be_made_again(
    place: str, effect: str, text: str
) -> None:
    await check_place("pydantic_ai", place, effect, text)


@table("text", [*DOUBTFUL.values(), *REFUSED.values()])
async def test_only_facts_that_a_text_begins_with_say_that_a_call_never_ran(text: str) -> None:
    await check_place("mcp", "same", "once", text)


@ON_ASYNCIO
async def test_a_call_in_doubt_is_asked_about_after_a_new_plan_that_goes_on_from_its_error() -> (
    None
):
    text = DOUBTFUL["words"]
    script = Script(
        (Rule(asks(wanted("charge", cents=300))),),
        faults={2: Fails(400, "bad request")},
        tools={"charge": (ToolFailed(text),)},
    )
    async with staged(script) as stage:
        agent = triage.wrap(stage.agent, always(Replan()), effects={"charge": "once"})
        with pytest.raises(TriageSuspendedError, match="did charge with"):
            await agent.run("go")
    assert stage.world.deeds == ["charge(300)"]
    assert len(stage.world.requests) == 3
    assert text in stage.world.requests[-1].text, "the model was not told what had failed"


@ON_ASYNCIO
@table("raised", [ModelRetry, ToolFailed])
@table("text", [DOUBTFUL["server's status"], REFUSED["framed status"]])
async def test_a_framework_s_error_is_judged_alike(raised: type[Exception], text: str) -> None:
    bank = Bank(text, raised)
    doubt = text in DOUBTFUL.values()
    assert await played("pydantic_ai", bank, "once", "same") == ["asked" if doubt else "done"]


@ON_ASYNCIO
@table(
    ("error", "came"),
    [
        (triage.not_attempted(ModelRetry("four at most")), "done"),
        (ModelRetry("four at most"), "asked"),
        (_raised_from(TimeoutError("404 Not Found"), ModelRetry("404 Not Found")), "asked"),
    ],
)
async def test_what_a_framework_s_own_exception_says_comes_first(
    error: Exception, came: str
) -> None:
    bank = Bank("")
    bank.error = error
    assert await played("pydantic_ai", bank, "once", "same") == [came]


@table("effect", ["read", "idempotent"])
@table("place", PLACES)
async def test_what_may_be_repeated_is_called_again(effect: str, place: str) -> None:
    bank = Bank(DOUBTFUL["words"])
    assert await played("mcp", bank, effect, place) == ["done"]
    assert bank.did == [300, 500 if place == "other" else 300]


@table("place", PLACES)
async def test_a_run_that_reruns_what_is_in_doubt_asks_nothing(place: str) -> None:
    bank = Bank(DOUBTFUL["words"])
    assert await played("mcp", bank, "once", place, on_in_doubt="rerun") == ["done"]
    assert bank.did == [300, 500 if place == "other" else 300]


@table("place", ["same", "next", "process"])
@table(("answer", "did"), [(happened({"receipt": 5}), [300]), (rerun(), [300, 300])])
async def test_an_answer_settles_the_doubt(place: str, answer: Any, did: list[int]) -> None:
    bank = Bank(DOUBTFUL["words"])
    assert await played("mcp", bank, "once", place, answer) == ["asked", "done"]
    assert bank.did == did


async def test_an_agent_that_goes_on_is_not_stopped() -> None:
    bank = Bank(DOUBTFUL["words"])
    assert await played("mcp", bank, "once", "never") == ["done"]
    assert bank.did == [300]
    assert bank.told == [True], "the error was not told"


@table(
    ("tool", "arguments", "outcome"),
    [
        ("charge", {"cents": "many"}, "not_attempted"),
        ("charge", {}, "not_attempted"),
        ("refund", {}, "not_attempted"),
        ("charge", {"cents": 300}, "in_doubt"),
        ("crash", {}, "in_doubt"),
    ],
)
async def test_a_server_s_own_refusal_never_ran(tool: str, arguments: Any, outcome: str) -> None:
    server = MCPServer("bank")
    did: list[str] = []

    @server.tool()
    async def charge(cents: int) -> str:
        did.append("charge")
        raise ToolError("1 validation error for Receipt\ncents\n  Field required")

    @server.tool()
    async def crash() -> str:
        did.append("crash")
        raise ValueError("404 Not Found")

    events: list[Event] = []
    async with Client(server) as plain:
        client = record(plain, effects={"charge": "once", "refund": "once"})

        async def agent(task: str) -> None:
            assert (await client.call_tool(tool, arguments)).is_error

        await Agent(agent, always(Retry()), observers=[events.append]).run("go")
    (ended,) = [event for event in events if isinstance(event, CallFinished)]
    assert ended.outcome == outcome
    assert did == ([] if outcome == "not_attempted" else [tool])


async def test_a_run_that_escalates_names_what_may_have_happened() -> None:
    bank = Bank(DOUBTFUL["words"])
    async with own_loop(bank, "once", "next") as make:
        agent = make(policy=always(Escalate("enough")))
        with pytest.raises(TriageEscalationError) as caught:
            await agent.run("go")
    assert caught.value.not_undone == (
        'charge({"cents": 300}) may have happened: its outcome is not known',
    )


@table(
    ("effect", "text", "title"),
    [
        ("once", DOUBTFUL["words"], "may have taken effect all the same"),
        ("once", REFUSED["status"], "Called before"),
        ("idempotent", DOUBTFUL["words"], "Called before"),
    ],
)
async def test_a_request_without_its_old_messages_never_says_that_the_call_is_done(
    effect: str, text: str, title: str
) -> None:
    bank = Bank(text)
    asked = {"name": "charge", "arguments": '{"cents": 300}'}
    old = [
        {"role": "user", "content": "pay"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": asked}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": text},
        {"role": "assistant", "content": "hm"},
        {"role": "user", "content": "and?"},
    ]
    told: list[str] = []
    summaries: list[str] = []
    async with session(bank, effect) as client:

        async def agent(task: str) -> None:
            run = current_run()
            if run.attempt == 1:
                await client.call_tool("charge", {"cents": 300})
                raise ConnectionError("reset")
            summaries.append(run.guidance.summary or "")
            shrink = Shrink.of(run.guidance, run)
            told.append(json.dumps(shrunk_chat(old, shrink), ensure_ascii=False))

        await Agent(agent, always(Retry(keep_last=1, summary="It was begun."))).run("go")
    (request,) = told
    assert "Done" not in request
    assert title in request
    assert text in request
    assert "Done" not in summaries[0]
    assert ("may have taken effect" in summaries[0]) == (title != "Called before")


async def test_arguments_that_were_refused_and_put_right_are_not_asked_about_again() -> None:
    server = MCPServer("bank")
    did: list[int] = []

    @server.tool()
    async def charge(cents: int) -> str:
        did.append(cents)
        return "receipt"

    failures = [ConnectionError("reset")]
    async with Client(server) as plain:
        client = record(plain, effects={"charge": "once"})

        async def agent(task: str) -> None:
            for cents in ("three hundred", 300):
                await client.call_tool("charge", {"cents": cents})
            if failures:
                raise failures.pop()

        await Agent(agent, RETRY).run("go")
    assert did == [300]
