"""OpenAI's own clients, recorded: every way to ask, against a provider on this machine."""

from __future__ import annotations

import json
import logging
from typing import Any

import openai
import pydantic
import pytest
from llm_server import Handler, Reply, Request, serving
from recorded_clients import ANSWERS, USER, Twice, openai_line
from support import always
from tables import table

import triage
from triage import Agent, Replan, Retry, Run, UsageError
from triage.adapters.openai import record, run_tools
from triage.core import StepRecorded
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

# The client itself leaves its generators behind at the end of a stream, which trio says.
LEFT_BEHIND = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Greeting(pydantic.BaseModel):
    text: str


# The client itself ----------------------------------------------------------------------------------


async def test_outside_of_a_run_the_client_does_what_it_did() -> None:
    async with openai_line() as line:
        made = await line.client.chat.completions.create(model="m", messages=USER)
        same = await line.plain.chat.completions.create(model="m", messages=USER)
        assert made.choices[0].message == same.choices[0].message
        assert line.world.requests[0].body == line.world.requests[1].body


async def test_it_stays_a_client_of_its_class_and_so_do_its_copies() -> None:
    async with openai_line() as line:
        assert isinstance(line.client, openai.AsyncOpenAI)
        assert type(line.plain) is openai.AsyncOpenAI
        assert record(line.client) is line.client
        copied = line.client.with_options(timeout=5)
        twice = Twice(lambda: copied.chat.completions.create(model="m", messages=USER))
        await twice.run()
        assert len(line.world.requests) == 1
        assert copied.timeout == 5


class Own(openai.AsyncOpenAI):
    def __init__(self, url: str, team: str) -> None:
        super().__init__(base_url=f"{url}/v1", api_key="x")
        self.team = team


async def test_a_class_of_ones_own_keeps_what_it_has() -> None:
    world = World(ANSWERS)
    async with provider(world) as url, Own(url, "blue") as plain:
        await plain.chat.completions.create(model="m", messages=USER)
        client = record(plain)
        assert client.team == "blue"
        await Twice(lambda: client.chat.completions.create(model="m", messages=USER)).run()
        assert len(world.requests) == 2
        bare = Twice(lambda: plain.chat.completions.create(model="m", messages=USER), seam="off")
        await bare.run()
        assert len(world.requests) == 4


@table("client", [None, "sk-…", object(), openai.OpenAI])
def test_what_is_no_client_is_refused(client: Any) -> None:
    with pytest.raises(UsageError, match=r"openai.record\(client\).*AsyncOpenAI or OpenAI"):
        record(client)


def test_retries_of_the_client_itself_are_said(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(openai.AsyncOpenAI):
        """A class of its own, as each class is said once in a process."""

    with caplog.at_level(logging.WARNING, "triage.retries"):
        record(Odd(api_key="x"))
    assert "retries up to 2 times by itself" in caplog.text


# Every way to ask -----------------------------------------------------------------------------------


async def whole(client: Any) -> Any:
    made = await client.chat.completions.create(model="m", messages=USER)
    assert made._request_id is None  # public, in spite of its name; the provider here sends none
    return made.choices[0].message.content


async def streamed(client: Any) -> Any:
    options = {"stream_options": {"include_usage": True}}
    stream = await client.chat.completions.create(model="m", messages=USER, stream=True, **options)
    async with stream:
        return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])


async def streamed_to_the_reason(client: Any) -> Any:
    words = ""
    async for chunk in await client.chat.completions.create(model="m", messages=USER, stream=True):
        words += chunk.choices[0].delta.content or ""
        if chunk.choices[0].finish_reason:
            break
    return words


async def helped(client: Any) -> Any:
    async with client.chat.completions.stream(model="m", messages=USER) as stream:
        async for _ in stream:
            pass
        return (await stream.get_final_completion()).choices[0].message.content


async def parsed(client: Any) -> Any:
    made = await client.chat.completions.parse(model="m", messages=USER, response_format=Greeting)
    return made.choices[0].message.parsed


async def response(client: Any) -> Any:
    return (await client.responses.create(model="m", input="hello")).output_text


async def response_streamed(client: Any) -> Any:
    stream = await client.responses.create(model="m", input="hello", stream=True)
    async for event in stream:
        last = event
    return last.response.output_text


async def response_streamed_to_the_last_event(client: Any) -> Any:
    async with client.responses.stream(model="m", input="hello") as stream:
        async for event in stream:
            if event.type == "response.completed":
                break
    return event.response.output_text


async def response_parsed(client: Any) -> Any:
    made = await client.responses.parse(model="m", input="hello", text_format=Greeting)
    return made.output_parsed


@LEFT_BEHIND
@table(
    ("ask", "result"),
    [
        (whole, "hello there"),
        (streamed, "hello there"),
        (streamed_to_the_reason, "hello there"),
        (helped, "hello there"),
        (parsed, Greeting(text="hi")),
        (response, "hello there"),
        (response_streamed, "hello there"),
        (response_streamed_to_the_last_event, "hello there"),
        (response_parsed, Greeting(text="hi")),
    ],
)
async def test_a_call_is_recorded_with_its_words_and_tokens_and_a_retry_does_not_pay_again(
    ask: Any, result: Any
) -> None:
    typed = isinstance(result, Greeting)
    script = Script((Rule(says('{"text": "hi"}')),)) if typed else ANSWERS
    async with openai_line(script) as line:
        twice = Twice(lambda: ask(line.client))
        await twice.run()
    assert twice.results == [result, result]
    assert len(line.world.requests) == 1
    first, again = twice.steps
    assert first.llm_output == ('{"text": "hi"}' if typed else "hello there")
    assert first.tool_input == USER
    assert again.metadata is not None
    assert again.metadata["replayed"]
    # The request of one asks for no tokens, and another's reader stops before they come.
    if ask not in (helped, streamed_to_the_reason):
        assert first.usage is not None
        assert (first.usage.input_tokens, first.usage.output_tokens) == (10, 5)


@LEFT_BEHIND
async def test_tool_calls_of_a_stream_are_put_together() -> None:
    both = asks(call("look", query="a b c"), Call("count", '{"cents": 300}'))
    async with openai_line(Script((Rule(both),))) as line:
        twice = Twice(lambda: streamed(line.client))
        await twice.run()
    assert twice.steps[0].tool_output == [
        {"tool": "look", "arguments": {"query": "a b c"}},
        {"tool": "count", "arguments": {"cents": 300}},
    ]


async def test_an_answer_that_cannot_be_parsed_is_recorded_and_alone_asked_anew() -> None:
    script = Script(
        (Rule(says('{"text": "hi"}'), "found"), Rule(asks(call("look")))), {2: says("no JSON")}
    )
    attempts: list[int] = []
    steps: list[triage.Step] = []

    def note(event: Any) -> None:
        if isinstance(event, StepRecorded):
            steps.append(event.step)

    async with openai_line(script) as line:

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


async def test_a_raw_response_is_recorded_like_any_other() -> None:
    async with openai_line() as line:
        raw = line.client.chat.completions.with_raw_response

        async def ask() -> Any:
            response = await raw.create(model="m", messages=USER)
            return response.http_response.status_code, response.parse().choices[0].message.content

        twice = Twice(ask)
        await twice.run()
    assert twice.results == [(200, "hello there")] * 2
    assert len(line.world.requests) == 1
    assert [step.action for step in twice.steps] == ["model", "model"]


@LEFT_BEHIND
async def test_a_stream_that_is_left_is_asked_again() -> None:
    async with openai_line() as line:

        async def ask() -> Any:
            stream = await line.client.chat.completions.create(
                model="m", messages=USER, stream=True
            )
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

        async def agent(task: str) -> Any:
            return await whole(line.client)

        assert await Agent(agent, triage.FailurePolicy(default=strategy)).run("t") == "x"
    assert [(cause, wait) for _, cause, wait in seen] == [("rate_limited", 3.0)] * len(seen)
    assert all("slow down" in str(error) for error, _, _ in seen)
    raised = [error for error, _, _ in seen if isinstance(error, openai.RateLimitError)]
    assert len(raised) == (1 if goes_on.hint else 0)


async def test_a_sync_client_in_a_sync_agent_is_recorded_the_same() -> None:
    world = World(ANSWERS)
    attempts: list[int] = []

    def agent(task: str, *, run: Run) -> Any:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as plain:
            client: Any = record(plain)
            attempts.append(run.attempt)
            made = client.chat.completions.create(model="m", messages=USER)
            stream = client.chat.completions.create(model="m", messages=USER, stream=True)
            words = "".join(
                piece.choices[0].delta.content or "" for piece in stream if piece.choices
            )
            if run.attempt == 1:
                raise ConnectionError("reset")
            return made.choices[0].message.content, words

    async with provider(world) as url:
        found = await Agent(agent, always(Retry())).run("t")
    assert found == ("hello there", "hello there")
    assert (attempts, len(world.requests)) == ([1, 2], 2)


# Hints and histories --------------------------------------------------------------------------------


@table(("own", "hint", "times"), [(False, True, 1), (True, True, 1), (False, False, 0)])
async def test_a_hint_stands_once_in_the_request_and_never_in_the_agents_messages(
    own: bool,  # noqa: FBT001 - a case
    hint: bool,  # noqa: FBT001 - a case
    times: int,
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
    assert [request.text.count("be brief") for request in line.world.requests] == [
        0,
        0,
        times,
        times,
    ]
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
    assert [message["role"] for message in done.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    defined = line.world.requests[0].body["tools"][1]["function"]
    assert (defined["name"], defined["description"]) == ("search", "Look something up.")
    assert defined["parameters"]["required"] == ["query"]


async def test_a_model_that_never_comes_to_an_end_is_stopped_after_its_turns() -> None:
    script = Script((Rule(asks(call("search", query="x"))),))
    async with openai_line(script) as line:
        with pytest.raises(RuntimeError, match="no answer after 3 turns"):
            await run_tools(line.client, "hello", model="m", tools=[search], turns=3)


async def test_after_a_new_plan_the_loop_goes_on_where_it_was() -> None:
    @triage.tool(effect="once")
    async def pay(cents: int) -> str:
        paid.append(cents)
        return "receipt 5"

    paid: list[int] = []
    script = Script(
        (
            Rule(says("done"), "be brief"),
            Rule(asks(call("search", query="x")), "receipt 5"),
            Rule(asks(call("pay", cents=300))),
        ),
        faults={3: Fails(500, "broken")},
    )
    async with openai_line(script) as line:

        async def agent(task: str) -> str:
            return (await run_tools(line.client, task, model="m", tools=[pay, search])).text

        assert await Agent(agent, always(Replan("be brief"))).run("t") == "done"
    assert paid == [300]
    check_wire(line.world.requests)
    roles = [message["role"] for message in line.world.requests[-1].body["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "user"]


async def test_arguments_that_are_no_json_are_told_to_the_model() -> None:
    script = Script(
        (
            Rule(says("done"), '{"found": "x"}'),
            Rule(asks(call("search", query="x")), "no JSON object"),
            Rule(asks(Call("search", '{"query": '))),
        )
    )
    async with openai_line(script) as line:
        done = await run_tools(line.client, "hello", model="m", tools=[search])
    assert done.text == "done"


# A provider that fails in the middle of its answer ----------------------------------------------------


def sent(*events: dict[str, Any]) -> Reply:
    lines = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events)
    form = {"content-type": "text/event-stream"}
    return lambda handler, _request: handler.answer(200, lines.encode(), form)


@LEFT_BEHIND
async def test_a_streamed_response_that_ends_in_an_error_is_asked_for_anew() -> None:
    created: dict[str, Any] = {"type": "response.created", "response": {"output": []}}
    said = {"type": "response.output_text.delta", "delta": "The first ha"}
    failed = {"type": "error", "code": "server_error", "message": "overloaded"}
    done = {"type": "response.completed", "response": {"output": [], "status": "completed"}}
    replies = [sent(created, said, failed), sent(created, {**said, "delta": "All"}, done)]
    with serving(*replies) as server:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x") as plain:
            client = record(plain)

            async def agent(task: str) -> str:
                stream: Any = await client.responses.create(model="m", input=task, stream=True)
                events = [event async for event in stream]
                return "".join(one.delta for one in events if one.type == said["type"])

            assert await Agent(agent, always(Retry())).run("go") == "All"
    assert len(server.requests) == 2


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


@LEFT_BEHIND
@table("to_the_reason", [True, False])
async def test_an_answer_is_kept_whose_connection_breaks_behind_its_end(
    *, to_the_reason: bool
) -> None:
    with serving(broken_off(chunk(0, "hello "), chunk(0, "there", "stop"))) as server:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x") as plain:
            client = record(plain)
            failed: list[int] = []

            async def agent(task: str, *, run: Run) -> str:
                words = ""
                stream: Any = await client.chat.completions.create(
                    model="m", messages=USER, stream=True
                )
                try:
                    async for one in stream:
                        words += one.choices[0].delta.content
                        if to_the_reason and one.choices[0].finish_reason:
                            break
                except openai.APIConnectionError:
                    failed.append(run.attempt)
                    raise
                return words

            assert await Agent(agent, always(Retry())).run("go") == "hello there"
    assert len(server.requests) == 1
    assert failed == ([] if to_the_reason else [1])


@LEFT_BEHIND
async def test_a_stream_of_several_answers_is_whole_with_the_end_of_the_last() -> None:
    ends = [chunk(0, "one", "stop"), chunk(1, "two")]
    replies = [
        broken_off(chunk(0, ""), chunk(1, ""), *ends),
        broken_off(chunk(0, ""), chunk(1, ""), *ends, chunk(1, ".", "stop")),
    ]
    with serving(*replies) as server:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x") as plain:
            client = record(plain)

            async def agent(task: str) -> str:
                words = ["", ""]
                ended = 0
                stream: Any = await client.chat.completions.create(
                    model="m", messages=USER, stream=True, n=2
                )
                async for one in stream:
                    words[one.choices[0].index] += one.choices[0].delta.content
                    ended += one.choices[0].finish_reason is not None
                    if ended == len(words):
                        break
                return " ".join(words)

            assert await Agent(agent, always(Retry())).run("go") == "one two."
    assert len(server.requests) == 2
