"""Anthropic's own clients, recorded: every way to ask, against a provider on this machine."""

from __future__ import annotations

from typing import Any

import anthropic
import pydantic
import pytest
from recorded_clients import ANSWERS, USER, Twice, anthropic_line
from support import always
from tables import table

import triage
from triage import Agent, Replan, Retry, Run, UsageError
from triage.adapters.anthropic import record, run_tools
from triage.testing.adapter_contract import (
    Fails,
    Rule,
    Script,
    World,
    asks,
    call,
    check_wire,
    provider,
    says,
)

pytestmark = pytest.mark.anyio

# The client itself leaves its generators behind at the end of a stream, which trio says.
LEFT_BEHIND = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ASKED: dict[str, Any] = {"model": "m", "max_tokens": 100, "messages": USER}


class Greeting(pydantic.BaseModel):
    text: str


async def test_outside_of_a_run_the_client_does_what_it_did() -> None:
    async with anthropic_line() as line:
        assert isinstance(line.client, anthropic.AsyncAnthropic)
        made = await line.client.messages.create(**ASKED)
        same = await line.plain.messages.create(**ASKED)
        assert made.content == same.content
        assert line.world.requests[0].body == line.world.requests[1].body


@table("client", [None, object()])
def test_what_is_no_client_is_refused(client: Any) -> None:
    with pytest.raises(UsageError, match=r"anthropic.record\(client\).*AsyncAnthropic"):
        record(client)


async def whole(client: Any) -> Any:
    return (await client.messages.create(**ASKED)).content[0].text


async def streamed(client: Any) -> Any:
    stream = await client.messages.create(**ASKED, stream=True)
    deltas = [event.delta async for event in stream if event.type == "content_block_delta"]
    return "".join(delta.text for delta in deltas)


async def helped(client: Any) -> Any:
    async with client.messages.stream(**ASKED) as stream:
        assert stream.request_id is None  # the provider here sends none
        return "".join([text async for text in stream.text_stream])


async def helped_to_the_last_event(client: Any) -> Any:
    async with client.messages.stream(**ASKED) as stream:
        async for event in stream:
            if event.type == "message_stop":
                break
    return event.message.content[0].text


async def parsed(client: Any) -> Any:
    return (await client.messages.parse(**ASKED, output_format=Greeting)).parsed_output


@LEFT_BEHIND
@table(
    ("ask", "result"),
    [
        (whole, "hello there"),
        (streamed, "hello there"),
        (helped, "hello there"),
        (helped_to_the_last_event, "hello there"),
        (parsed, Greeting(text="hi")),
    ],
)
async def test_a_call_is_recorded_with_its_words_and_tokens_and_a_retry_does_not_pay_again(
    ask: Any, result: Any
) -> None:
    typed = isinstance(result, Greeting)
    script = Script((Rule(says('{"text": "hi"}')),)) if typed else ANSWERS
    async with anthropic_line(script) as line:
        twice = Twice(lambda: ask(line.client))
        await twice.run()
    assert twice.results == [result, result]
    assert len(line.world.requests) == 1
    first, again = twice.steps
    assert first.llm_output == ('{"text": "hi"}' if typed else "hello there")
    assert first.usage is not None
    assert (first.usage.input_tokens, first.usage.output_tokens) == (10, 5)
    assert again.metadata is not None
    assert again.metadata["replayed"]


async def test_tool_calls_of_a_stream_are_put_together() -> None:
    both = asks(call("look", query="a b c"), call("count", cents=300))

    async def ask() -> Any:
        return [
            event.type async for event in await line.client.messages.create(**ASKED, stream=True)
        ]

    async with anthropic_line(Script((Rule(both),))) as line:
        twice = Twice(ask)
        await twice.run()
    assert twice.results[0] == twice.results[1]
    assert twice.steps[0].tool_output == [
        {"tool": "look", "arguments": {"query": "a b c"}},
        {"tool": "count", "arguments": {"cents": 300}},
    ]


async def test_what_an_agent_changes_in_an_answer_changes_no_record_of_it() -> None:
    async def ask() -> Any:
        message = await line.client.messages.create(**ASKED)
        (block,) = message.content
        found = block.input["query"]
        block.input["query"] = "changed"
        message.usage.output_tokens = -1
        return found

    async with anthropic_line(Script((Rule(asks(call("look", query="a"))),))) as line:
        twice = Twice(ask)
        await twice.run()
    assert twice.results == ["a", "a"]
    assert len(line.world.requests) == 1
    assert twice.steps[0].tool_output == [{"tool": "look", "arguments": {"query": "a"}}]


async def test_a_sync_client_in_a_sync_agent_is_recorded_the_same() -> None:
    world = World(ANSWERS)

    def agent(task: str, *, run: Run) -> Any:
        with anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as plain:
            client = record(plain)
            made: Any = client.messages.create(**ASKED)
            with client.messages.stream(**ASKED) as stream:
                words = "".join(stream.text_stream)
            if run.attempt == 1:
                raise ConnectionError("reset")
            return made.content[0].text, words

    async with provider(world) as url:
        found = await Agent(agent, always(Retry())).run("t")
    assert found == ("hello there", "hello there")
    assert len(world.requests) == 2


@table("streamed", [False, True])
async def test_the_tool_runner_runs_as_bare_and_goes_on_where_it_failed(*, streamed: bool) -> None:
    """It sends only what is new: the provider holds the conversation."""

    @triage.tool(effect="once")
    async def pay(cents: int) -> str:
        """Pay."""
        return f"receipt for {cents}"

    async def agent(task: str, client: Any) -> str:
        tools = [anthropic.beta_async_tool(pay)]
        runner = client.beta.messages.tool_runner(**ASKED, tools=tools, stream=streamed)
        return str((await runner.until_done()).content[0].text)

    rules = (Rule(says("done"), "receipt"), Rule(asks(call("pay", cents=300))))
    sent: list[list[Any]] = []
    for recorded, faults in ((False, {}), (True, {}), (True, {2: Fails(500, "broken")})):
        async with anthropic_line(Script(rules, faults)) as line:
            client = line.client if recorded else line.plain
            policy = always(Retry())
            assert await Agent(agent, policy).run("t", client=client) == "done"
        sent.append([request.body for request in line.world.requests])
    bare, healthy, failed = sent
    assert healthy == bare
    assert failed == [*bare, bare[-1]]


async def test_after_a_new_plan_the_loop_goes_on_where_it_was() -> None:
    @triage.tool(effect="once")
    async def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return "receipt 5"

    paid: list[int] = []
    script = Script(
        (Rule(says("done"), "be brief"), Rule(asks(call("pay", cents=300)))),
        faults={2: Fails(500, "broken")},
    )
    async with anthropic_line(script) as line:

        async def agent(task: str) -> str:
            ended = await run_tools(line.client, task, model="m", max_tokens=9, tools=[pay])
            return ended.text

        assert await Agent(agent, always(Replan("be brief"))).run("t") == "done"
    assert paid == [300]
    check_wire(line.world.requests)
    last = line.world.requests[-1].body["messages"]
    assert [message["role"] for message in last] == ["user", "assistant", "user"]
    assert [block["type"] for block in last[-1]["content"]] == ["tool_result", "text"]
