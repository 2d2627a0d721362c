"""A scripted provider, and the ways in which an agent's requests to it are recorded."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import openai
from openai.types.chat import ChatCompletion

import triage
from triage import Agent, Run
from triage.adapters import Adapter, Form, Seam, hinted_chat, read_chat
from triage.adapters.openai import record

KINDS = ("client", "model", "position", "seam")
HINT = "HINT"
Message = dict[str, Any]
Ask = Callable[[list[Message]], Awaitable[str]]
Work = Callable[[Ask, Run], Awaitable[Any]]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


class Provider:
    """Answers by what the last words of a request are, the n-th time with the n-th answer.

    answers: by those words; the last one for ever; other words are answered with `re: words`. An answer
    that is an int is an HTTP status, a dict is the body. requests: the last words of each request, with
    `+` behind them where the hint stood at its end, once.
    """

    def __init__(self, answers: dict[str, list[Any]] | None = None) -> None:
        self.answers = answers or {}
        self.requests: list[str] = []
        self.sent: list[list[Message]] = []
        self._times: dict[str, int] = defaultdict(int)

    def answer(self, messages: list[Message]) -> tuple[int, dict[str, Any]]:
        hints = [message for message in messages if message["content"] == HINT]
        assert len(hints) <= 1
        assert not hints or messages[-1] == hints[0]
        words = str([message for message in messages if message not in hints][-1]["content"])
        self.sent.append(messages)
        self.requests.append(f"{words}+" if hints else words)
        known = self.answers.get(words, [f"re: {words}"])
        found = known[min(self._times[words], len(known) - 1)]
        self._times[words] += 1
        if isinstance(found, int):
            return found, {"error": {"message": "the server is overloaded", "type": "overloaded"}}
        if isinstance(found, dict):
            return 200, found
        return 200, completion(found)

    def client(self) -> openai.AsyncOpenAI:
        def handle(request: httpx2.Request) -> httpx2.Response:
            body = json.loads(request.content)
            status, data = self.answer(body["messages"])
            if body.get("stream"):
                return httpx2.Response(200, content=_pieces(data), headers=_STREAM)
            return httpx2.Response(status, json=data)

        http = httpx2.AsyncClient(transport=httpx2.MockTransport(handle))
        return openai.AsyncOpenAI(
            base_url="http://provider/v1", api_key="x", max_retries=0, http_client=http
        )


def asking(tool: str, **arguments: Any) -> dict[str, Any]:
    """An answer that asks for a tool."""
    function = {"name": tool, "arguments": json.dumps(arguments)}
    body = completion("")
    body["choices"][0]["message"]["tool_calls"] = [
        {"id": "call_1", "type": "function", "function": function}
    ]
    return body


_STREAM = {"content-type": "text/event-stream"}


def completion(text: str) -> dict[str, Any]:
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": said(text)}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3},
    }


def _pieces(data: dict[str, Any]) -> bytes:
    text = data["choices"][0]["message"]["content"]
    parts = [{"content": piece} for piece in text]
    events = [
        {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [
            {"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in parts
    ]  # fmt: skip
    events.append({**events[-1], "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events) + (
        b"data: [DONE]\n\n"
    )


def text_of(answer: Any) -> str:
    text: str = answer.choices[0].message.content
    return text


async def answer(client: Any, words: str) -> str:
    """What the model of a client answers to these words."""
    return text_of(await client.chat.completions.create(model="m", messages=[user(words)]))


class _Theirs(Adapter):
    """An adapter of somebody's own, which sends each request through the seam."""

    name = "theirs"

    async def attempt(self, seam: Seam, task: Any, **kwargs: Any) -> Any:
        work, provider = self.target

        async def ask(messages: list[Message]) -> str:
            async def send(hint: str | None) -> Any:
                client = provider.client()
                answer = await client.chat.completions.create(
                    model="m", messages=hinted_chat(messages, hint)
                )
                return answer.to_dict()

            answer = await seam.model(
                send, form=Form(read=read_chat), request=messages, said=messages[-1:], model="m"
            )
            return str(answer["choices"][0]["message"]["content"])

        return await work(ask, seam.run)


def agent_of(kind: str, work: Work, provider: Provider, **options: Any) -> Agent[Any]:
    """An agent that does this work, its requests recorded in one of `KINDS`."""
    if kind == "seam":
        wrapped: Agent[Any] = triage.wrap((work, provider), adapter=_Theirs, **options)
        return wrapped
    plain = provider.client()
    client = record(plain) if kind == "client" else plain

    async def create(messages: list[Message]) -> ChatCompletion:
        return await client.chat.completions.create(model="m", messages=messages)  # type: ignore[arg-type]

    by_position = triage.tool(effect="read", match="position")(create)

    async def works(task: Any, *, run: Run, _triage_hint: str | None = None) -> Any:
        async def ask(messages: list[Message]) -> str:
            told = [user(_triage_hint)] if _triage_hint and kind != "client" else []
            if kind == "model":
                return text_of(await run.model(create, [*messages, *told]))
            if kind == "position":
                return text_of(await by_position([*messages, *told]))
            return text_of(await create(messages))

        return await work(ask, run)

    return Agent(works, **options)
