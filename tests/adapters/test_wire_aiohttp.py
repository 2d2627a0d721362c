"""Model calls through aiohttp: whatever is read of an answer is what a session without us gives."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import aiohttp
import anyio
import httpx
import pytest
from llm_server import Handler, Reply, Request, Server, cut_off, fails, serving
from support import always
from tables import table

import triage
from adapters.recorded_clients import Twice
from triage import Agent, Step
from triage.adapters.calls import UnfinishedStream
from triage.core import CallStarted, StepRecorded
from triage.testing import VirtualTime

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "héllo"}]}
LENGTH = str(len(json.dumps(BODY)))
WORDS = ("Hel", "lo ", "thére")


def _chunk(text: str, ended: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": ended}
    return f"data: {json.dumps({'id': 'c', 'choices': [choice]}, ensure_ascii=False)}\n\n".encode()


PIECES = (*map(_chunk, WORDS), _chunk("", "stop"), b"data: [DONE]\n\n")
MESSAGE = {"role": "assistant", "content": "".join(WORDS)}
WHOLE = json.dumps({"choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]})


def whole(handler: Handler, _request: Request) -> None:
    """An answer in one piece."""
    handler.answer(200, WHOLE.encode(), {"x-request-id": "r1", "set-cookie": "a=b"})


def _begin(handler: Handler) -> None:
    handler.send_response(200)
    for name, value in (("content-type", "text/event-stream"), ("transfer-encoding", "chunked")):
        handler.send_header(name, value)
    handler.end_headers()


def _pass(handler: Handler, *pieces: bytes) -> None:
    for piece in pieces:
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        handler.wfile.flush()


def streamed(handler: Handler, _request: Request) -> None:
    """An answer in pieces."""
    _begin(handler)
    _pass(handler, *PIECES)
    handler.wfile.write(b"0\r\n\r\n")


def ends_early(handler: Handler, _request: Request) -> None:
    """A stream that ends in the middle, as if that was all."""
    _begin(handler)
    _pass(handler, *PIECES[:2])
    handler.wfile.write(b"0\r\n\r\n")


def breaks_off(handler: Handler, _request: Request) -> None:
    """A stream whose connection breaks in the middle."""
    _begin(handler)
    _pass(handler, *PIECES[:2])
    handler.close_connection = True


def waits_behind(pieces: int) -> tuple[Reply, asyncio.Event]:
    """A stream that goes on behind so many pieces when the event is set, or when the client is gone."""
    told, loop = asyncio.Event(), asyncio.get_running_loop()

    def reply(handler: Handler, _request: Request) -> None:
        _begin(handler)
        _pass(handler, *PIECES[:pieces])
        asyncio.run_coroutine_threadsafe(told.wait(), loop).result(10)
        with suppress(OSError):
            _pass(handler, *PIECES[pieces:])
            handler.wfile.write(b"0\r\n\r\n")

    return reply, told


Ask = Callable[[aiohttp.ClientSession], Any]
Read = Callable[[aiohttp.ClientResponse], Awaitable[Any]]


def post(server: Server, **options: Any) -> Ask:
    given = options or {"json": BODY}
    return lambda session: session.post(f"{server.url}/v1/chat/completions", **given)


async def outcome(ask: Ask, read: Read, **session: Any) -> Any:
    """What is read, or the error."""
    async with aiohttp.ClientSession(**session) as made:
        try:
            async with ask(made) as response:
                return await read(response)
        except aiohttp.ClientError as error:
            return type(error), getattr(error, "status", None), getattr(error, "message", None)


def _plain(headers: Any) -> list[tuple[str, str]]:
    names = ("content-type", "x-request-id")
    return [(name.lower(), value) for name, value in headers.items() if name.lower() in names]


async def _joined(pieces: AsyncIterator[Any]) -> bytes:
    return b"".join([one[0] if isinstance(one, tuple) else one async for one in pieces])


async def _until_eof(response: aiohttp.ClientResponse) -> bytes:
    await response.content.wait_eof()
    return response.content.read_nowait()


async def _by_line(response: aiohttp.ClientResponse) -> list[bytes]:
    lines = []
    while line := await response.content.readline():
        lines.append(line)
    return lines


async def _exactly(response: aiohttp.ClientResponse) -> tuple[bytes, bytes]:
    return await response.content.readexactly(5), await response.content.read()


async def _twice(response: aiohttp.ClientResponse) -> tuple[bytes, str]:
    return await response.read(), await response.text()


async def _about(response: aiohttp.ClientResponse) -> tuple[Any, ...]:
    await response.read()
    about = (response.method, response.url, response.status, response.reason, response.ok)
    return (
        *about,
        response.version,
        response.content_type,
        response.charset,
        _plain(response.headers),
    )


READS: dict[str, Read] = {
    "about it": _about,
    "read": lambda response: response.read(),
    "text": lambda response: response.text(),
    "read, then text": _twice,
    "content": lambda response: response.content.read(),
    "lines": _by_line,
    "iteration": lambda response: _joined(response.content.__aiter__()),
    "iter_any": lambda response: _joined(response.content.iter_any()),
    "iter_chunked": lambda response: _joined(response.content.iter_chunked(7)),
    "iter_chunks": lambda response: _joined(response.content.iter_chunks()),
    "readexactly": _exactly,
    "readuntil": lambda response: response.content.readuntil(b"[DONE]"),
    "wait_eof": _until_eof,
}


@table(("reply", "read"), [(reply, read) for reply in (whole, streamed) for read in READS])
async def test_each_way_to_read_gives_the_same_bare_recorded_and_reused(
    reply: Reply, read: str
) -> None:
    with serving(reply) as server:
        bare = await outcome(post(server), READS[read])
        twice = Twice(lambda: outcome(post(server), READS[read]))
        await twice.run()
        assert twice.results == [bare, bare]
        first, second = server.requests
        assert first.body == second.body
        assert first.headers == second.headers


BODIES: list[dict[str, Any]] = [
    {"json": BODY},
    {"data": json.dumps(BODY)},
    {"data": json.dumps(BODY).encode()},
    {"data": bytearray(json.dumps(BODY).encode())},
    {"data": json.dumps(BODY), "headers": [("content-type", "application/json"), ("x-a", "1")]},
    {"json": BODY, "headers": {"Content-Length": LENGTH}},
]


@table("options", BODIES)
async def test_a_hint_is_written_into_each_form_of_a_body(options: dict[str, Any]) -> None:
    async def work(task: str) -> str:
        answers.append(await outcome(post(server, **options), lambda response: response.json()))
        if len(answers) == 1:
            raise ValueError("no good")
        return "end"

    answers: list[Any] = []
    with serving(whole) as server:
        agent = Agent(work, always(triage.Replan("Answer in French.")))
        assert await agent.run("t") == "end"
    first, second = server.requests
    assert second.body["messages"][:1] == first.body["messages"] == BODY["messages"]
    assert "Answer in French." in str(second.body["messages"][1:])
    lengths = ("content-length", "accept")
    for request in (first, second):
        assert int(request.headers["content-length"]) >= len(json.dumps(BODY))
    assert {k: v for k, v in first.headers.items() if k not in lengths} == {
        k: v for k, v in second.headers.items() if k not in lengths
    }


# Failures -------------------------------------------------------------------------------------------


async def ended(ask: Callable[[], Awaitable[Any]], **options: Any) -> tuple[Any, list[Step]]:
    """The result of one attempt, and its steps."""
    events: list[Any] = []

    async def work(task: str) -> Any:
        attempts.append(task)
        return await ask()

    attempts: list[str] = []
    agent = Agent(work, observers=[events.append], environment=VirtualTime(), **options)
    result = await agent.run("t")
    assert len(attempts) == 1
    return result, [event.step for event in events if isinstance(event, StepRecorded)]


@table("reply", [fails(503, "Overloaded"), fails(429, "Slow down"), cut_off])
@table("answer", [whole, streamed])
@table("checked", [None, True])
async def test_a_request_that_failed_is_made_again_in_its_place(
    reply: Reply, answer: Reply, checked: Any
) -> None:
    with serving(reply, answer) as server:
        ask = post(server, json=BODY, raise_for_status=checked)
        result, steps = await ended(lambda: outcome(ask, READS["text"]))
        assert "lo " in result
        assert len(server.requests) == 2
    assert [step.error is None for step in steps if step.action == "model"] == [False, True]


async def test_a_server_that_is_not_there_is_asked_again_in_its_place() -> None:
    async def began(*_: Any) -> None:
        begun.append("request")

    begun: list[str] = []
    config = aiohttp.TraceConfig()
    config.on_request_start.append(began)
    with serving(whole) as server:
        ask = post(server)
    result, _ = await ended(
        lambda: outcome(ask, READS["text"], trace_configs=[config]),
        limits=triage.Limits(outage_seconds=60),
    )
    assert issubclass(result[0], aiohttp.ClientConnectorError)
    assert len(begun) > 2


async def _refuse(response: aiohttp.ClientResponse) -> None:
    if response.status >= 400:
        raise aiohttp.ClientPayloadError(await response.text())


@table("checked", [None, False, True, _refuse])
@table("ours", [True, False])
async def test_a_refusal_reaches_the_reader_as_the_session_says(checked: Any, ours: Any) -> None:
    with serving(fails(400, "No such model", "model_not_found")) as server:
        ask = post(server, json=BODY, **({"raise_for_status": checked} if ours else {}))
        session = {} if ours else {"raise_for_status": checked or False}
        read = READS["about it"]
        bare = await outcome(ask, read, **session)
        result, steps = await ended(lambda: outcome(ask, read, **session))
        assert result == bare
        assert len(server.requests) == 2
    assert "No such model" in str(steps[0].error)


# Streams --------------------------------------------------------------------------------------------


async def test_the_first_piece_is_not_held_back() -> None:
    reply, go_on = waits_behind(1)
    with serving(reply) as server:

        async def work(response: aiohttp.ClientResponse) -> list[bytes]:
            first = await response.content.readany()
            go_on.set()
            return [first, await response.content.read()]

        result, steps = await ended(lambda: outcome(post(server), work))
    assert result == [PIECES[0], b"".join(PIECES[1:])]
    assert [step.llm_output for step in steps] == ["".join(WORDS)]


async def test_an_answer_is_recorded_before_its_last_event_is_given_on() -> None:
    recorded: list[int] = []
    events: list[Any] = []

    async def work(response: aiohttp.ClientResponse) -> None:
        while b"[DONE]" not in await response.content.readline():
            pass
        recorded.append(sum(isinstance(event, StepRecorded) for event in events))

    with serving(streamed) as server:
        await Agent(lambda task: outcome(post(server), work), observers=[events.append]).run("t")
    assert recorded == [1]


async def test_an_answer_that_was_given_whole_is_kept_though_the_server_hangs() -> None:
    reply, go_on = waits_behind(len(PIECES))

    async def work(response: aiohttp.ClientResponse) -> str:
        while b"[DONE]" not in await response.content.readline():
            pass
        return "read"

    with serving(reply) as server:
        twice = Twice(lambda: outcome(post(server), work))
        await twice.run()
        go_on.set()
        assert twice.results == ["read", "read"]
        assert len(server.requests) == 1


@table(
    ("reply", "error"), [(ends_early, UnfinishedStream), (breaks_off, aiohttp.ClientPayloadError)]
)
@table("read", ["text", "lines", "iter_any", "iter_chunked", "content", "wait_eof"])
async def test_a_stream_that_ends_early_raises_to_its_reader(
    reply: Reply, error: type[Exception], read: str
) -> None:
    async def work(response: aiohttp.ClientResponse) -> Any:
        with pytest.raises(error):
            await READS[read](response)
        with pytest.raises(error):
            await response.content.read()
        return "seen"

    with serving(reply) as server:
        result, steps = await ended(lambda: outcome(post(server), work))
    assert result == "seen"
    assert [bool(step.error) for step in steps] == [True]


@table("leave", ["close", "release", "context", "nothing"])
async def test_a_stream_that_was_left_is_asked_for_again(leave: str) -> None:
    async def work() -> None:
        async with aiohttp.ClientSession() as session:
            request = session.post(f"{server.url}/v1/chat/completions", json=BODY)
            if leave == "context":
                async with request as response:
                    await response.content.readline()
                return
            response = await request
            left.append(response)
            await response.content.readline()
            if leave != "nothing":
                getattr(response, leave)()
                with pytest.raises(aiohttp.ClientConnectionError, match="Connection closed"):
                    await response.content.readline()

    def reply(handler: Handler, request: Request) -> None:
        _begin(handler)
        _pass(handler, PIECES[0])
        with suppress(OSError):
            handler.connection.recv(1)

    left: list[aiohttp.ClientResponse] = []
    with serving(reply) as server:
        twice = Twice(work)
        await twice.run()
        assert len(server.requests) == 2
    for response in left:
        response.close()
    assert [step.error for step in twice.steps if step.action == "model"] == [
        "the stream was left before its end"
    ] * 2


async def test_a_reader_that_gave_up_waiting_may_read_on() -> None:
    reply, go_on = waits_behind(1)

    async def work(response: aiohttp.ClientResponse) -> str:
        while True:
            try:
                async with asyncio.timeout(0.001):
                    await response.content.readuntil(b"never")
            except TimeoutError:
                break
        go_on.set()
        return (await response.content.read()).decode()

    with serving(reply) as server:
        result, steps = await ended(lambda: outcome(post(server), work))
    assert result.endswith("data: [DONE]\n\n")
    assert [step.llm_output for step in steps] == ["".join(WORDS)]


# What passes untouched ------------------------------------------------------------------------------


async def _in_pieces() -> AsyncIterator[bytes]:
    yield json.dumps(BODY).encode()


@table(
    "options",
    [
        {"data": io.BytesIO(json.dumps(BODY).encode())},
        {"data": _in_pieces(), "headers": {"content-length": LENGTH}},
        {"json": {"prompt": "no chat"}},
        {"json": ["no", "object"]},
        {"json": BODY, "auto_decompress": False},
    ],
)
async def test_what_cannot_be_read_passes_untouched(options: dict[str, Any]) -> None:
    with serving(whole) as server:
        result, steps = await ended(lambda: outcome(post(server, **options), READS["text"]))
    assert (result, steps) == (WHOLE, [])


UNREAD = """
import asyncio, logging, sys
import aiohttp, httpx
from triage import Agent

logging.basicConfig(level=logging.DEBUG)

async def pieces():
    yield b"{}"

async def agent(task):
    async with aiohttp.ClientSession() as session, httpx.AsyncClient() as client:
        for _ in range(2):
            await session.post(sys.argv[1], data=pieces(), headers={"content-length": "2"})
            await client.post(sys.argv[1], content=pieces(), headers={"content-length": "2"})

Agent(agent).run_sync("t")
"""


async def test_the_log_says_once_why_a_request_is_not_recorded() -> None:
    with serving(whole) as server:
        url = f"{server.url}/v1/chat/completions"
        done = await anyio.run_process([sys.executable, "-c", UNREAD, url])
        assert len(server.requests) == 4
    for library in ("aiohttp", "httpx"):
        assert done.stderr.decode().count(f"a request by {library} is not recorded") == 1


# Others that stand at the same place ----------------------------------------------------------------


async def test_a_real_request_is_traced_once_and_a_reused_one_never() -> None:
    async def began(*_: Any) -> None:
        spans.append("begun")

    async def over(*_: Any) -> None:
        spans.append("over")

    spans: list[str] = []
    config = aiohttp.TraceConfig()
    config.on_request_start.append(began)
    config.on_request_end.append(over)
    with serving(whole) as server:
        twice = Twice(lambda: outcome(post(server), READS["text"], trace_configs=[config]))
        await twice.run()
        assert twice.results == [WHOLE, WHOLE]
    assert spans == ["begun", "over"]


async def test_one_who_replaces_the_method_later_sees_real_requests_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    ours = aiohttp.ClientSession._request

    async def theirs(self: Any, *args: Any, **options: Any) -> Any:
        response = await ours(self, *args, **options)
        seen.append(response.status)
        return response

    with serving(whole) as server:
        await Agent(lambda task: outcome(post(server), READS["text"])).run("t")
        monkeypatch.setattr(aiohttp.ClientSession, "_request", theirs)
        server.requests.clear()
        await Twice(lambda: outcome(post(server), READS["text"])).run()
        assert len(server.requests) == 1
    assert seen == [200]


class ByAiohttp(httpx.AsyncBaseTransport):
    """A transport of httpx that sends by aiohttp, as litellm's does."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        async with aiohttp.ClientSession() as session:
            given: dict[str, Any] = {"data": request.content, "headers": dict(request.headers)}
            async with session.post(str(request.url), **given) as response:
                headers = {"content-type": response.headers["content-type"]}
                content = await response.read()
                return httpx.Response(response.status, headers=headers, content=content)


@table("reply", [whole, streamed])
async def test_a_request_that_passes_two_libraries_is_one_call(reply: Reply) -> None:
    async def work() -> str:
        async with httpx.AsyncClient(transport=ByAiohttp()) as client:
            return (await client.post(f"{server.url}/v1/chat/completions", json=BODY)).text

    with serving(reply) as server:
        twice = Twice(work)
        await twice.run()
        assert twice.results[0] == twice.results[1]
        assert len(server.requests) == 1
    assert sum(isinstance(event, CallStarted) for event in twice.events) == 1
