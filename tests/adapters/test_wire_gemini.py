"""Streams of Gemini, as events and as a JSON array: what google's own client reads is what is recorded."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any, NamedTuple

import aiohttp
import pytest
from google import genai
from google.genai import types
from llm_server import Handler, Request, Server, serving
from support import always
from tables import table

import triage
from adapters.recorded_clients import Twice
from triage import Abort, Agent, Step
from triage.adapters.calls import UnfinishedStream

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]


def _piece(*parts: Any, ended: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": index}
    if parts:
        candidate["content"] = {"role": "model", "parts": list(parts)}
    if ended:
        candidate["finishReason"] = ended
    return {"candidates": [candidate], **ABOUT, **more}


def _text(text: str, **more: Any) -> dict[str, Any]:
    return {"text": text, **more}


def _call(name: str, **args: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": args}}


def _used(made: int, thought: int = 0) -> dict[str, Any]:
    usage = {"promptTokenCount": 8, "candidatesTokenCount": made, "totalTokenCount": 8 + made}
    return {"usageMetadata": {**usage, "thoughtsTokenCount": thought} if thought else usage}


STOP = always(Abort())
ABOUT = {"modelVersion": "gemini-2.5-flash", "responseId": "r1"}


class Body(NamedTuple):
    """pieces: of the stream. whole: how many of them an answer needs. The rest is what it says."""

    pieces: list[dict[str, Any]]
    text: str | None = None
    calls: tuple[Any, ...] = ()
    tokens: int | None = None
    error: str | None = None
    whole: int = 0


BODIES = {
    "words": Body(
        [_piece(_text("The "), **_used(1)), _piece(_text("ánswer"), ended="STOP", **_used(3))],
        text="The ánswer",
        tokens=3,
    ),
    "words, and an end of its own": Body(
        [_piece(_text("The "), **_used(1)), _piece(_text(""), ended="STOP", **_used(3))],
        text="The ",
        tokens=3,
    ),
    "thoughts": Body(
        [
            _piece(_text("Let me think.", thought=True), **_used(0, 4)),
            _piece(_text("17"), **_used(1, 4)),
            _piece(_text("", thoughtSignature="c2ln"), ended="STOP", **_used(1, 4)),
        ],
        text="17",
        tokens=5,
    ),
    "a call": Body(
        [
            _piece({**_call("look", q="x"), "thoughtSignature": "c2ln"}, **_used(2)),
            _piece(_text(""), ended="STOP", **_used(2)),
        ],
        calls=({"tool": "look", "arguments": {"q": "x"}},),
        tokens=2,
    ),
    "calls whose pieces all have an end": Body(
        [
            _piece(_call("look", q="x"), ended="STOP", **_used(2)),
            _piece(_call("find", id=3), ended="STOP", **_used(4)),
        ],
        calls=({"tool": "look", "arguments": {"q": "x"}}, {"tool": "find", "arguments": {"id": 3}}),
        tokens=4,
        whole=1,
    ),
    "several answers": Body(
        [
            _piece(_text("one "), **_used(1)),
            _piece(_text("two "), index=1, **_used(2)),
            _piece(_text("other"), index=1, ended="STOP", **_used(3)),
            _piece(_text("more"), ended="STOP", **_used(4)),
        ],
        text="one more",
        tokens=4,
    ),
    "a count at the end": Body(
        [_piece(_text("yes"), ended="STOP"), {**ABOUT, **_used(1)}], text="yes", tokens=1, whole=1
    ),
    "a blocked request": Body(
        [{"promptFeedback": {"blockReason": "SAFETY"}, **ABOUT, **_used(0)}],
        error="safety",
        tokens=0,
    ),
    "cut at the limit": Body(
        [_piece(_text("half of i"), **_used(3)), _piece(ended="MAX_TOKENS", **_used(3))],
        text="half of i",
        error="max_tokens",
        tokens=3,
    ),
}


def _events(pieces: list[dict[str, Any]]) -> tuple[str, list[str]]:
    lines = [f"data: {json.dumps(one, ensure_ascii=False)}\r\n\r\n" for one in pieces]
    return "text/event-stream", lines


def _array(pieces: list[dict[str, Any]]) -> tuple[str, list[str]]:
    lines = [json.dumps(one, indent=2, ensure_ascii=False) for one in pieces]
    return "application/json; charset=UTF-8", ["[", ",\r\n".join(lines), "]"]


def reply(handler: Handler, request: Request) -> None:
    """So many pieces of a body as the model's name says, in the form that is asked for."""
    path, _, query = request.path.partition("?")
    name, _, count = path.rpartition("/")[2].partition(":")[0].partition("-")
    pieces = list(BODIES.values())[int(name)].pieces[: int(count)]
    kind, texts = (_events if "alt=sse" in query else _array)(pieces)
    handler.send_response(200)
    handler.send_header("content-type", kind)
    handler.send_header("transfer-encoding", "chunked")
    handler.end_headers()
    for text in texts:
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(text.encode()), text.encode()))
    handler.wfile.write(b"0\r\n\r\n")


class Provider(NamedTuple):
    server: Server
    client: genai.Client

    async def asynchronous(self, model: str) -> Any:
        models = self.client.aio.models
        stream = await models.generate_content_stream(model=model, contents="hello")
        return [piece.model_dump(exclude={"sdk_http_response"}) async for piece in stream]

    async def synchronous(self, model: str) -> Any:
        stream = self.client.models.generate_content_stream(model=model, contents="hello")
        return [piece.model_dump(exclude={"sdk_http_response"}) for piece in stream]

    async def as_array(self, model: str) -> Any:
        url = f"{self.server.url}/v1beta/models/{model}:streamGenerateContent"
        body = {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
            return await response.json()


@pytest.fixture
async def provider() -> AsyncGenerator[Provider]:
    with serving(reply) as server:
        options = types.HttpOptions(base_url=server.url)
        with genai.Client(api_key="x", http_options=options) as client:
            async with client.aio:
                yield Provider(server, client)


def _model(name: str, count: int) -> str:
    return f"{list(BODIES).index(name)}-{count}"


def _said(step: Step) -> tuple[Any, ...]:
    usage = step.usage
    return (
        step.llm_output or None,
        tuple(step.tool_output or ()),
        None if usage is None else usage.output_tokens,
    )


@table("ask", [Provider.asynchronous, Provider.synchronous, Provider.as_array])
@table("name", BODIES)
async def test_a_stream_is_recorded_as_it_is_read_and_given_again(
    ask: Callable[[Provider, str], Any], name: str, provider: Provider
) -> None:
    body = BODIES[name]
    model = _model(name, len(body.pieces))
    bare = await ask(provider, model)
    provider.server.requests.clear()
    twice = Twice(lambda: ask(provider, model))
    await twice.run()
    assert twice.results == [bare, bare]
    assert len(provider.server.requests) == (1 if body.error is None else 2)
    first = next(step for step in twice.steps if step.action == "model")
    assert _said(first) == (body.text, body.calls, body.tokens)
    assert body.error is None or body.error in str(first.error)


@table("ask", [Provider.asynchronous, Provider.synchronous])
@table("name", BODIES)
async def test_a_stream_that_ends_before_its_answer_raises(
    ask: Callable[[Provider, str], Any], name: str, provider: Provider
) -> None:
    for count in range(BODIES[name].whole or len(BODIES[name].pieces)):
        with pytest.raises(triage.TriageError) as raised:
            await Agent(partial(ask, provider), STOP).run(_model(name, count))
        assert isinstance(raised.value.__cause__, UnfinishedStream)
