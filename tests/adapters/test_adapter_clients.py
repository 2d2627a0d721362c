"""The recorded clients of OpenAI and Anthropic: every way to ask, against a provider on this machine."""

from __future__ import annotations

import json
import logging
from typing import Any

import anthropic
import openai
import pydantic
import pytest
from llm_server import Handler, Reply, Request, serving
from support import always, on_both_backends
from tables import table

import triage
from adapters.recorded_clients import ANSWERS, USER, Twice, anthropic_line, openai_line
from triage import Agent, Replan, Retry, Run, UsageError
from triage.adapters.anthropic import record as record_anthropic
from triage.adapters.anthropic import run_tools as run_anthropic
from triage.adapters.openai import record, run_tools
from triage.core.events import StepRecorded
from triage.testing.adapter_contract import (
    Call,
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
anyio_backend = on_both_backends()

ASKED: dict[str, Any] = {"model": "m", "messages": USER}
CLAUDE: dict[str, Any] = {**ASKED, "max_tokens": 100}
INPUT: dict[str, Any] = {"model": "m", "input": "hello"}


class Greeting(pydantic.BaseModel):
    text: str


# The client itself ----------------------------------------------------------------------------------


@table(
    ("kind", "recorder"),
    [(openai.AsyncOpenAI, record), (anthropic.AsyncAnthropic, record_anthropic)],
)
async def test_it_stays_a_client_of_its_class_and_outside_of_a_run_does_what_it_did(
    kind: Any, recorder: Any
) -> None:
    ask = whole if recorder is record else message
    async with (openai_line if recorder is record else anthropic_line)() as line:
        assert isinstance(line.client, kind)
        assert type(line.plain) is kind
        assert recorder(line.client) is line.client
        assert await ask(line.client) == await ask(line.plain) == "hello there"
        assert line.world.requests[0].body == line.world.requests[1].body


async def test_a_copy_of_the_client_is_recorded_too() -> None:
    async with openai_line() as line:
        copied = line.client.with_options(timeout=5)
        await Twice(lambda: whole(copied)).run()
        assert len(line.world.requests) == 1
        assert copied.timeout == 5


class Own(openai.AsyncOpenAI):
    def __init__(self, url: str, team: str) -> None:
        super().__init__(base_url=f"{url}/v1", api_key="x")
        self.team = team


async def test_a_class_of_ones_own_keeps_what_it_has() -> None:
    world = World(ANSWERS)
    async with provider(world) as url, Own(url, "blue") as plain:
        await whole(plain)
        client = record(plain)
        assert client.team == "blue"
        await Twice(lambda: whole(client)).run()
        assert len(world.requests) == 2
        await Twice(lambda: whole(plain), seam="off").run()
        assert len(world.requests) == 4


@table("client", [None, "sk-…", object(), openai.OpenAI])
def test_what_is_no_client_is_refused(client: Any) -> None:
    with pytest.raises(UsageError, match=r"openai.record\(client\).*AsyncOpenAI or OpenAI"):
        record(client)
    with pytest.raises(UsageError, match=r"anthropic.record\(client\).*AsyncAnthropic"):
        record_anthropic(client)


def test_retries_of_the_client_itself_are_said(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(openai.AsyncOpenAI):
        """A class of its own, as each class is said once in a process."""

    with caplog.at_level(logging.WARNING, "triage.retries"):
        record(Odd(api_key="x"))
    assert "retries up to 2 times by itself" in caplog.text


# Every way to ask -----------------------------------------------------------------------------------


async def whole(client: Any) -> Any:
    made = await client.chat.completions.create(**ASKED)
    assert made._request_id is None  # public, in spite of its name; the provider here sends none
    return made.choices[0].message.content


async def streamed(client: Any) -> Any:
    options = {"stream_options": {"include_usage": True}}
    stream = await client.chat.completions.create(**ASKED, stream=True, **options)
    async with stream:
        return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])


async def streamed_to_the_reason(client: Any) -> Any:
    words = ""
    async for chunk in await client.chat.completions.create(**ASKED, stream=True):
        words += chunk.choices[0].delta.content or ""
        if chunk.choices[0].finish_reason:
            break
    return words


async def helped(client: Any) -> Any:
    async with client.chat.completions.stream(**ASKED) as stream:
        async for _ in stream:
            pass
        return (await stream.get_final_completion()).choices[0].message.content


async def parsed(client: Any) -> Any:
    made = await client.chat.completions.parse(**ASKED, response_format=Greeting)
    return made.choices[0].message.parsed


async def raw(client: Any) -> Any:
    answer = await client.chat.completions.with_raw_response.create(**ASKED)
    assert answer.http_response.status_code == 200
    return answer.parse().choices[0].message.content


async def response(client: Any) -> Any:
    return (await client.responses.create(**INPUT)).output_text


async def response_streamed(client: Any) -> Any:
    async for event in await client.responses.create(**INPUT, stream=True):
        last = event
    return last.response.output_text


async def response_streamed_to_the_last_event(client: Any) -> Any:
    async with client.responses.stream(**INPUT) as stream:
        async for event in stream:
            if event.type == "response.completed":
                break
    return event.response.output_text


async def response_parsed(client: Any) -> Any:
    return (await client.responses.parse(**INPUT, text_format=Greeting)).output_parsed


async def message(client: Any) -> Any:
    return (await client.messages.create(**CLAUDE)).content[0].text


async def message_streamed(client: Any) -> Any:
    stream = await client.messages.create(**CLAUDE, stream=True)
    deltas = [event.delta async for event in stream if event.type == "content_block_delta"]
    return "".join(delta.text for delta in deltas)


async def message_helped(client: Any) -> Any:
    async with client.messages.stream(**CLAUDE) as stream:
        assert stream.request_id is None  # the provider here sends none
        return "".join([text async for text in stream.text_stream])


async def message_helped_to_the_last_event(client: Any) -> Any:
    async with client.messages.stream(**CLAUDE) as stream:
        async for event in stream:
            if event.type == "message_stop":
                break
    return event.message.content[0].text


async def message_parsed(client: Any) -> Any:
    return (await client.messages.parse(**CLAUDE, output_format=Greeting)).parsed_output


WAYS = [
    whole, streamed, streamed_to_the_reason, helped, parsed, raw, response, response_streamed,
    response_streamed_to_the_last_event, response_parsed, message, message_streamed, message_helped,
    message_helped_to_the_last_event, message_parsed,
]  # fmt: skip


@table("ask", WAYS)
async def test_a_call_is_recorded_with_its_words_and_tokens_and_a_retry_does_not_pay_again(
    ask: Any,
) -> None:
    typed = ask in (parsed, response_parsed, message_parsed)
    words = '{"text": "hi"}' if typed else "hello there"
    line_of = anthropic_line if ask.__name__.startswith("message") else openai_line
    async with line_of(Script((Rule(says(words)),))) as line:
        twice = Twice(lambda: ask(line.client))
        await twice.run()
    assert twice.results == [Greeting(text="hi") if typed else words] * 2
    assert len(line.world.requests) == 1
    first, again = twice.steps
    assert (first.action, first.llm_output, first.tool_input) == ("model", words, USER)
    assert again.metadata is not None
    assert again.metadata["replayed"]
    # The request of one asks for no tokens, and another's reader stops before they come.
    if ask not in (helped, streamed_to_the_reason):
        assert first.usage is not None
        assert (first.usage.input_tokens, first.usage.output_tokens) == (10, 5)


@table(("line_of", "ask"), [(openai_line, streamed), (anthropic_line, message_streamed)])
async def test_tool_calls_of_a_stream_are_put_together(line_of: Any, ask: Any) -> None:
    both = asks(call("look", query="a b c"), Call("count", '{"cents": 300}'))

    async def events() -> Any:
        if ask is streamed:
            return await streamed(line.client)
        stream = await line.client.messages.create(**CLAUDE, stream=True)
        return [event.type async for event in stream]

    async with line_of(Script((Rule(both),))) as line:
        twice = Twice(events)
        await twice.run()
    assert twice.results[0] == twice.results[1]
    assert twice.steps[0].tool_output == [
        {"tool": "look", "arguments": {"query": "a b c"}},
        {"tool": "count", "arguments": {"cents": 300}},
    ]


async def test_what_an_agent_changes_in_an_answer_changes_no_record_of_it() -> None:
    async def ask() -> Any:
        made = await line.client.messages.create(**CLAUDE)
        (block,) = made.content
        found = block.input["query"]
        block.input["query"] = "changed"
        made.usage.output_tokens = -1
        return found

    async with anthropic_line(Script((Rule(asks(call("look", query="a"))),))) as line:
        twice = Twice(ask)
        await twice.run()
    assert twice.results == ["a", "a"]
    assert len(line.world.requests) == 1
    assert twice.steps[0].tool_output == [{"tool": "look", "arguments": {"query": "a"}}]


async def test_an_answer_that_cannot_be_parsed_is_recorded_and_alone_asked_anew() -> None:
    rules = (Rule(says('{"text": "hi"}'), "found"), Rule(asks(call("look"))))
    attempts: list[int] = []
    steps: list[triage.Step] = []

    def note(event: Any) -> None:
        if isinstance(event, StepRecorded):
            steps.append(event.step)

    async with openai_line(Script(rules, {2: says("no JSON")})) as line:

        async def agent(task: str, *, run: Run) -> Any:
            attempts.append(run.attempt)
            items: list[Any] = [*USER]
            first = await line.client.responses.create(model="m", input=items)
            items += first.output
            asked = first.output[0].call_id
            items.append({"type": "function_call_output", "call_id": asked, "output": "found"})
            return await line.client.responses.parse(model="m", input=items, text_format=Greeting)

        done = await Agent(agent, observers=[note]).run("t")
    assert done.output_parsed == Greeting(text="hi")
    assert (attempts, len(line.world.requests)) == ([1, 2], 3)
    said = [step.llm_output for step in steps if step.action == "model"]
    assert said == [None, "no JSON", None, '{"text": "hi"}']


async def test_a_stream_that_is_left_is_asked_again() -> None:
    async with openai_line() as line:

        async def ask() -> Any:
            stream = await line.client.chat.completions.create(**ASKED, stream=True)
            async with stream:
                async for _ in stream:
                    break

        twice = Twice(ask)
        await twice.run()
    assert len(line.world.requests) == 2
    assert [step.exception_type for step in twice.steps] == ["StreamLeft", "StreamLeft"]


@pytest.mark.parametrize("goes_on", [Retry("once more"), Retry()])
async def test_an_error_is_a_step_and_is_raised_as_the_client_raises_it(goes_on: Retry) -> None:
    """A retry that changes nothing is made where the request failed, before the client knows."""
    script = Script((Rule(says("x")),), faults={1: Fails(429, "slow down", 3.0)})
    seen: list[Any] = []

    def strategy(context: Any) -> Any:
        seen.append((context.exception, context.diagnosis.cause, context.diagnosis.retry_after_s))
        return goes_on

    async with openai_line(script) as line:
        assert await Agent(lambda _: whole(line.client), always(strategy)).run("t") == "x"
    assert [(cause, wait) for _, cause, wait in seen] == [("rate_limited", 3.0)] * len(seen)
    assert all("slow down" in str(error) for error, _, _ in seen)
    raised = [error for error, _, _ in seen if isinstance(error, openai.RateLimitError)]
    assert len(raised) == (1 if goes_on.hint else 0)


def openai_sync(url: str) -> Any:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as plain:
        create: Any = record(plain).chat.completions.create
        pieces = [piece.choices for piece in create(**ASKED, stream=True)]
        words = "".join(choices[0].delta.content or "" for choices in pieces if choices)
        return create(**ASKED).choices[0].message.content, words


def anthropic_sync(url: str) -> Any:
    with anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as plain:
        client: Any = record_anthropic(plain)
        with client.messages.stream(**CLAUDE) as stream:
            words = "".join(stream.text_stream)
        return client.messages.create(**CLAUDE).content[0].text, words


@table("ask", [openai_sync, anthropic_sync])
async def test_a_sync_client_in_a_sync_agent_is_recorded_the_same(ask: Any) -> None:
    world = World(ANSWERS)

    def agent(task: str, *, run: Run) -> Any:
        found = ask(url)
        if run.attempt == 1:
            raise ConnectionError("reset")
        return found

    async with provider(world) as url:
        found = await Agent(agent, always(Retry())).run("t")
    assert found == ("hello there", "hello there")
    assert len(world.requests) == 2


# Hints and histories --------------------------------------------------------------------------------


@table(("own", "hint", "times"), [(False, True, 1), (True, True, 1), (False, False, 0)])
async def test_a_hint_stands_once_in_the_request_and_never_in_the_agents_messages(
    *, own: bool, hint: bool, times: int
) -> None:
    messages: list[Any] = []

    async with openai_line(hint=hint) as line:

        async def agent(task: str, *, run: Run, _triage_hint: str | None = None) -> str:
            messages[:] = [*USER]
            if own and _triage_hint:
                messages.append({"role": "system", "content": f"Note: {_triage_hint}"})
            for n in range(2):
                await line.client.chat.completions.create(model=f"m{n}", messages=messages)
            if run.attempt == 1:
                raise ConnectionError("reset")
            return "end"

        await Agent(agent, always(Replan("be brief"))).run("t")
    told = [request.text.count("be brief") for request in line.world.requests]
    assert told == [0, 0, times, times]
    assert len(messages) == (2 if own else 1)


@table("held", ["previous_response_id", "conversation"])
async def test_a_result_is_sent_whose_call_the_provider_alone_has(held: str) -> None:
    result = {"type": "function_call_output", "call_id": "call_1", "output": "receipt 5"}
    async with openai_line() as line:

        async def agent(task: str) -> str:
            made = await line.client.responses.create(model="m", input=[result], **{held: "id_1"})
            return str(made.output_text)

        assert await Agent(agent).run("t") == "hello there"
    assert line.world.requests[0].body["input"] == [result]


# The loop -------------------------------------------------------------------------------------------


@triage.tool(effect="read")
async def search(query: str) -> dict[str, Any]:
    """Look something up."""
    return {"found": query}


async def test_the_loop_works_outside_of_a_run_and_with_sync_tools() -> None:
    def add(one: int, two: int) -> int:
        return one + two

    script = Script((Rule(says("3"), "\n3"), Rule(asks(call("add", one=1, two=2)))))
    async with openai_line(script) as line:
        done = await run_tools(line.plain, USER, model="m", tools=[add, search])
    assert done.text == "3"
    roles = [message["role"] for message in done.messages]
    assert roles == ["user", "assistant", "tool", "assistant"]
    defined = line.world.requests[0].body["tools"][1]["function"]
    assert (defined["name"], defined["description"]) == ("search", "Look something up.")
    assert defined["parameters"]["required"] == ["query"]


async def test_a_model_that_never_comes_to_an_end_is_stopped_after_its_turns() -> None:
    async with openai_line(Script((Rule(asks(call("search", query="x"))),))) as line:
        with pytest.raises(RuntimeError, match="no answer after 3 turns"):
            await run_tools(line.client, "hello", model="m", tools=[search], turns=3)


OPENAI_ROLES = ["user", "assistant", "tool", "assistant", "tool", "user"]
ANTHROPIC_ROLES = ["user", "assistant", "user", "assistant", "user"]


@table(
    ("line_of", "loop", "roles"),
    [(openai_line, run_tools, OPENAI_ROLES), (anthropic_line, run_anthropic, ANTHROPIC_ROLES)],
)
async def test_after_a_new_plan_the_loop_goes_on_where_it_was(
    line_of: Any, loop: Any, roles: list[str]
) -> None:
    @triage.tool(effect="once")
    async def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return "receipt 5"

    paid: list[int] = []
    look, charge = asks(call("search", query="x")), asks(call("pay", cents=300))
    rules = (Rule(says("done"), "be brief"), Rule(look, "receipt 5"), Rule(charge))
    async with line_of(Script(rules, faults={3: Fails(500, "broken")})) as line:

        async def agent(task: str) -> str:
            more = {} if loop is run_tools else {"max_tokens": 9}
            return str((await loop(line.client, task, model="m", tools=[pay, search], **more)).text)

        assert await Agent(agent, always(Replan("be brief"))).run("t") == "done"
    assert paid == [300]
    check_wire(line.world.requests)
    last = line.world.requests[-1].body["messages"]
    assert [message["role"] for message in last] == roles
    if loop is run_anthropic:
        assert [block["type"] for block in last[-1]["content"]] == ["tool_result", "text"]


async def test_arguments_that_are_no_json_are_told_to_the_model() -> None:
    rules = (
        Rule(says("done"), '{"found": "x"}'),
        Rule(asks(call("search", query="x")), "no JSON object"),
        Rule(asks(Call("search", '{"query": '))),
    )
    async with openai_line(Script(rules)) as line:
        done = await run_tools(line.client, "hello", model="m", tools=[search])
    assert done.text == "done"


@table("streamed", [False, True])
async def test_the_tool_runner_runs_as_bare_and_goes_on_where_it_failed(*, streamed: bool) -> None:
    """It sends only what is new: the provider holds the conversation."""

    @triage.tool(effect="once")
    async def pay(cents: int) -> str:
        """Pay."""
        return f"receipt for {cents}"

    async def agent(task: str, client: Any) -> str:
        tools = [anthropic.beta_async_tool(pay)]
        runner = client.beta.messages.tool_runner(**CLAUDE, tools=tools, stream=streamed)
        return str((await runner.until_done()).content[0].text)

    rules = (Rule(says("done"), "receipt"), Rule(asks(call("pay", cents=300))))
    sent: list[list[Any]] = []
    for recorded, faults in ((False, {}), (True, {}), (True, {2: Fails(500, "broken")})):
        async with anthropic_line(Script(rules, faults)) as line:
            client = line.client if recorded else line.plain
            assert await Agent(agent, always(Retry())).run("t", client=client) == "done"
        sent.append([request.body for request in line.world.requests])
    bare, healthy, failed = sent
    assert healthy == bare
    assert failed == [*bare, bare[-1]]


# A provider that fails in the middle of its answer ----------------------------------------------------


async def asked(*replies: Reply, agent: Any) -> tuple[Any, int]:
    """What an agent gives that asks OpenAI's recorded client, and how many requests the server had."""
    with serving(*replies) as server:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x") as plain:
            client = record(plain)

            async def attempt(task: str, *, run: Run) -> Any:
                return await agent(client, run)

            return await Agent(attempt, always(Retry())).run("go"), len(server.requests)


def sent(*events: dict[str, Any]) -> Reply:
    lines = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events)
    form = {"content-type": "text/event-stream"}
    return lambda handler, _request: handler.answer(200, lines.encode(), form)


async def test_a_streamed_response_that_ends_in_an_error_is_asked_for_anew() -> None:
    created: dict[str, Any] = {"type": "response.created", "response": {"output": []}}
    said = {"type": "response.output_text.delta", "delta": "The first ha"}
    failed = {"type": "error", "code": "server_error", "message": "overloaded"}
    done = {"type": "response.completed", "response": {"output": [], "status": "completed"}}

    async def agent(client: Any, run: Run) -> str:
        stream = await client.responses.create(model="m", input="go", stream=True)
        return "".join([one.delta async for one in stream if one.type == said["type"]])

    replies = [sent(created, said, failed), sent(created, {**said, "delta": "All"}, done)]
    assert await asked(*replies, agent=agent) == ("All", 2)


def chunk(index: int, words: str, ended: str | None = None) -> dict[str, Any]:
    choice = {"index": index, "delta": {"content": words}, "finish_reason": ended}
    return {"object": "chat.completion.chunk", "choices": [choice]}


def broken_off(*chunks: dict[str, Any]) -> Reply:
    """A stream whose connection breaks after these chunks."""
    lines = "".join(f"data: {json.dumps(one)}\n\n" for one in chunks).encode()

    def reply(handler: Handler, _request: Request) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("content-length", str(len(lines) + 1))
        handler.end_headers()
        handler.wfile.write(lines)
        handler.close_connection = True

    return reply


@table("to_the_reason", [True, False])
async def test_an_answer_is_kept_whose_connection_breaks_behind_its_end(
    *, to_the_reason: bool
) -> None:
    failed: list[int] = []

    async def agent(client: Any, run: Run) -> str:
        words = ""
        try:
            async for one in await client.chat.completions.create(**ASKED, stream=True):
                words += one.choices[0].delta.content
                if to_the_reason and one.choices[0].finish_reason:
                    break
        except openai.APIConnectionError:
            failed.append(run.attempt)
            raise
        return words

    reply = broken_off(chunk(0, "hello "), chunk(0, "there", "stop"))
    assert await asked(reply, agent=agent) == ("hello there", 1)
    assert failed == ([] if to_the_reason else [1])


async def test_a_stream_of_several_answers_is_whole_with_the_end_of_the_last() -> None:
    ends = [chunk(0, ""), chunk(1, ""), chunk(0, "one", "stop"), chunk(1, "two")]

    async def agent(client: Any, run: Run) -> str:
        words = ["", ""]
        ended = 0
        async for one in await client.chat.completions.create(**ASKED, stream=True, n=2):
            words[one.choices[0].index] += one.choices[0].delta.content
            ended += one.choices[0].finish_reason is not None
            if ended == len(words):
                break
        return " ".join(words)

    replies = [broken_off(*ends), broken_off(*ends, chunk(1, ".", "stop"))]
    assert await asked(*replies, agent=agent) == ("one two.", 2)
