"""Clients of models as plain loops use them: each with the form of its conversations."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import anthropic
import anyio.from_thread
import httpx2
import openai
from google import genai
from google.genai import types
from openai.lib.streaming.chat import ChatCompletionStreamState

from adapters.recorded_clients import ANSWERS

assert ANSWERS  # its module has the clients read what machine they are on
TURNS = 10
LOOKED_UP: dict[str, Any] = {"query": {"type": "string"}}
CHARGED: dict[str, Any] = {"cents": {"type": "integer"}}
SENT: dict[str, Any] = {"to": {"type": "string"}}
PARAMETERS = {
    "search": {"type": "object", "properties": LOOKED_UP, "required": ["query"]},
    "charge": {"type": "object", "properties": CHARGED, "required": ["cents"]},
    "send": {"type": "object", "properties": SENT, "required": ["to"]},
}


class Called(NamedTuple):
    id: str | None
    name: str
    arguments: dict[str, Any]


# Conversations, as the wire of each provider has them -----------------------------------------------


class Chat:
    """OpenAI's chat completions."""

    tools: ClassVar[list[Any]] = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in PARAMETERS.items()
    ]

    def __init__(self, task: str) -> None:
        self.messages: list[Any] = [{"role": "user", "content": task}]
        self.text = ""

    def take(self, completion: Any) -> list[Called]:
        """Add an answer; gives its calls."""
        message = completion.choices[0].message
        self.messages.append(message.model_dump(exclude_none=True))
        self.text = message.content or ""
        return [
            Called(one.id, one.function.name, json.loads(one.function.arguments))
            for one in message.tool_calls or ()
        ]

    def give(self, results: list[tuple[Called, str]]) -> None:
        """Add results."""
        self.messages += [
            {"role": "tool", "tool_call_id": call.id, "content": text} for call, text in results
        ]


class Responses:
    """OpenAI's responses."""

    tools: ClassVar[list[Any]] = [
        {"type": "function", "name": name, "parameters": schema, "strict": False}
        for name, schema in PARAMETERS.items()
    ]

    def __init__(self, task: str) -> None:
        self.messages: list[Any] = [{"role": "user", "content": task}]
        self.text = ""

    def take(self, response: Any) -> list[Called]:
        self.messages += [item.model_dump(exclude_none=True) for item in response.output]
        self.text = response.output_text
        return [
            Called(one.call_id, one.name, json.loads(one.arguments))
            for one in response.output
            if one.type == "function_call"
        ]

    def give(self, results: list[tuple[Called, str]]) -> None:
        self.messages += [
            {"type": "function_call_output", "call_id": call.id, "output": text}
            for call, text in results
        ]


class Messages:
    """Anthropic's messages."""

    tools: ClassVar[list[Any]] = [
        {"name": name, "input_schema": schema} for name, schema in PARAMETERS.items()
    ]

    def __init__(self, task: str) -> None:
        self.messages: list[Any] = [{"role": "user", "content": task}]
        self.text = ""

    def take(self, message: Any) -> list[Called]:
        content = [block.model_dump(exclude_none=True) for block in message.content]
        self.messages.append({"role": "assistant", "content": content})
        self.text = "".join(block.get("text", "") for block in content)
        return [
            Called(block["id"], block["name"], block["input"])
            for block in content
            if block["type"] == "tool_use"
        ]

    def give(self, results: list[tuple[Called, str]]) -> None:
        content = [
            {"type": "tool_result", "tool_use_id": call.id, "content": text}
            for call, text in results
        ]
        self.messages.append({"role": "user", "content": content})


class Contents:
    """Gemini's contents."""

    tools: ClassVar[list[Any]] = [
        {
            "function_declarations": [
                {"name": name, "parameters_json_schema": schema}
                for name, schema in PARAMETERS.items()
            ]
        }
    ]

    def __init__(self, task: str) -> None:
        self.messages: list[Any] = [types.UserContent(task)]
        self.text = ""

    def take(self, parts: list[types.Part]) -> list[Called]:
        self.messages.append(types.ModelContent(parts))
        self.text = "".join(part.text or "" for part in parts)
        found = [part.function_call for part in parts if part.function_call]
        return [Called(one.id, one.name or "", one.args or {}) for one in found]

    def give(self, results: list[tuple[Called, str]]) -> None:
        parts = [
            types.Part.from_function_response(name=call.name, response={"result": text})
            for call, text in results
        ]
        self.messages.append(types.UserContent(parts))


# Clients --------------------------------------------------------------------------------------------

Ask = Callable[[Any], Any]
"""Asks the model with messages, and gives its answer."""


@asynccontextmanager
async def openai_chat(url: str, *, stream: bool) -> AsyncGenerator[Ask]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:

        async def ask(messages: Any) -> Any:
            create: Any = client.chat.completions.create
            if not stream:
                return await create(model="m", messages=messages, tools=Chat.tools)
            state: Any = ChatCompletionStreamState()
            pieces = await create(model="m", messages=messages, tools=Chat.tools, stream=True)
            async for piece in pieces:
                state.handle_chunk(piece)
            return state.get_final_completion()

        yield ask


@contextmanager
def openai_chat_sync(url: str, *, stream: bool) -> Generator[Ask]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:

        def ask(messages: Any) -> Any:
            create: Any = client.chat.completions.create
            if not stream:
                return create(model="m", messages=messages, tools=Chat.tools)
            state: Any = ChatCompletionStreamState()
            for piece in create(model="m", messages=messages, tools=Chat.tools, stream=True):
                state.handle_chunk(piece)
            return state.get_final_completion()

        yield ask


@asynccontextmanager
async def openai_responses(url: str, *, stream: bool) -> AsyncGenerator[Ask]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        given: dict[str, Any] = {"model": "m", "tools": Responses.tools}

        async def ask(messages: Any) -> Any:
            if not stream:
                return await client.responses.create(input=messages, **given)
            async with client.responses.stream(input=messages, **given) as events:
                async for _ in events:
                    pass
                return await events.get_final_response()

        yield ask


@asynccontextmanager
async def anthropic_messages(url: str, *, stream: bool) -> AsyncGenerator[Ask]:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0) as client:
        given: dict[str, Any] = {"model": "m", "max_tokens": 900, "tools": Messages.tools}

        async def ask(messages: Any) -> Any:
            if not stream:
                return await client.messages.create(messages=messages, **given)
            async with client.messages.stream(messages=messages, **given) as events:
                return await events.get_final_message()

        yield ask


@contextmanager
def anthropic_messages_sync(url: str, *, stream: bool) -> Generator[Ask]:
    with anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as client:
        given: dict[str, Any] = {"model": "m", "max_tokens": 900, "tools": Messages.tools}

        def ask(messages: Any) -> Any:
            if not stream:
                return client.messages.create(messages=messages, **given)
            with client.messages.stream(messages=messages, **given) as events:
                return events.get_final_message()

        yield ask


def genai_client(url: str, **options: Any) -> genai.Client:
    return genai.Client(api_key="x", http_options=types.HttpOptions(base_url=url, **options))


CONFIG = types.GenerateContentConfig(
    tools=Contents.tools,
    automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
)
"""Without the client's own loop."""


def _parts(pieces: list[types.GenerateContentResponse]) -> list[types.Part]:
    found = [part for piece in pieces for part in piece.parts or ()]
    words = "".join(part.text or "" for part in found)
    return [types.Part(text=words)] if words else [part for part in found if part.function_call]


@asynccontextmanager
async def google_aiohttp(url: str, *, stream: bool) -> AsyncGenerator[Ask]:
    async with _google(genai_client(url), stream=stream) as ask:
        yield ask


@asynccontextmanager
async def google_httpx(url: str, *, stream: bool) -> AsyncGenerator[Ask]:
    async with (
        httpx2.AsyncClient() as client,
        _google(genai_client(url, httpx_async_client=client), stream=stream) as ask,
    ):
        yield ask


@asynccontextmanager
async def _google(client: genai.Client, *, stream: bool) -> AsyncGenerator[Ask]:
    async with client.aio as made:

        async def ask(contents: Any) -> Any:
            given: dict[str, Any] = {"model": "m", "contents": contents, "config": CONFIG}
            if not stream:
                return _parts([await made.models.generate_content(**given)])
            pieces = await made.models.generate_content_stream(**given)
            return _parts([piece async for piece in pieces])

        yield ask


@contextmanager
def google_sync(url: str, *, stream: bool) -> Generator[Ask]:
    with genai_client(url) as client:

        def ask(contents: Any) -> Any:
            given: dict[str, Any] = {"model": "m", "contents": contents, "config": CONFIG}
            if not stream:
                return _parts([client.models.generate_content(**given)])
            return _parts(list(client.models.generate_content_stream(**given)))

        yield ask


@functools.cache
def litellm() -> Any:
    """The library, imported when it is needed: that takes seconds, of every process that collects tests."""
    # Without it the library asks the network for prices.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    return import_module("litellm")


def _litellm(url: str, provider: str) -> dict[str, Any]:
    base = f"{url}/v1" if provider == "openai" else url
    return {"model": f"{provider}/m", "api_base": base, "api_key": "x", "max_retries": 0}


@asynccontextmanager
async def litellm_openai(url: str, *, stream: bool) -> AsyncGenerator[Ask]:
    yield _completing(litellm().acompletion, stream=stream, **_litellm(url, "openai"))


@asynccontextmanager
async def litellm_anthropic(url: str, *, stream: bool) -> AsyncGenerator[Ask]:
    yield _completing(litellm().acompletion, stream=stream, **_litellm(url, "anthropic"))


@asynccontextmanager
async def litellm_gemini(url: str, *, stream: bool) -> AsyncGenerator[Ask]:
    yield _completing(litellm().acompletion, stream=stream, **_litellm(url, "gemini"))


@asynccontextmanager
async def litellm_router(url: str, *, stream: bool) -> AsyncGenerator[Ask]:
    deployment = {"model_name": "m", "litellm_params": _litellm(url, "openai")}
    router = litellm().Router(model_list=[deployment])
    yield _completing(router.acompletion, stream=stream, model="m")


@contextmanager
def litellm_sync(url: str, *, stream: bool) -> Generator[Ask]:
    given = {**_litellm(url, "openai"), "tools": Chat.tools}

    def ask(messages: Any) -> Any:
        if not stream:
            return litellm().completion(messages=messages, **given)
        pieces = list(litellm().completion(messages=messages, stream=True, **given))
        return litellm().stream_chunk_builder(pieces)

    yield ask


def _completing(completion: Any, *, stream: bool, **given: Any) -> Ask:
    async def ask(messages: Any) -> Any:
        given["tools"] = Chat.tools
        if not stream:
            return await completion(messages=messages, **given)
        pieces = [
            piece async for piece in await completion(messages=messages, stream=True, **given)
        ]
        return litellm().stream_chunk_builder(pieces)

    return ask


class Client(NamedTuple):
    """talk: the form of its conversations. open: a context manager of what asks. backends: its loops."""

    talk: Any
    open: Any
    backends: tuple[str, ...] = ("asyncio",)


BOTH: tuple[str, ...] = ("asyncio", "trio")
CLIENTS = {
    "openai": Client(Chat, openai_chat, BOTH),
    "openai, sync": Client(Chat, openai_chat_sync, BOTH),
    "openai, responses": Client(Responses, openai_responses, BOTH),
    "anthropic": Client(Messages, anthropic_messages, BOTH),
    "anthropic, sync": Client(Messages, anthropic_messages_sync, BOTH),
    "google-genai, aiohttp": Client(Contents, google_aiohttp),
    "google-genai, httpx": Client(Contents, google_httpx),
    "google-genai, sync": Client(Contents, google_sync),
    "litellm": Client(Chat, litellm_openai),
    "litellm, anthropic": Client(Chat, litellm_anthropic),
    "litellm, gemini": Client(Chat, litellm_gemini),
    "litellm, Router": Client(Chat, litellm_router),
    "litellm, sync": Client(Chat, litellm_sync),
}


def by_table(tools: Mapping[str, Any], one: Called) -> Any:
    return tools[one.name](**one.arguments)


@asynccontextmanager
async def own_loop(
    name: str,
    url: str,
    tools: Mapping[str, Any],
    *,
    stream: bool,
    read: Callable[[str], Any] = str,
    call: Callable[[Any, Called], Any] = by_table,
) -> AsyncGenerator[Callable[[str], Any]]:
    """Thirty lines around a client, sync around a sync one.

    tools: async functions by name. read: makes the result of the last words. call: calls a tool.
    """
    talk = CLIENTS[name].talk
    opened = CLIENTS[name].open(url, stream=stream)
    async with AsyncExitStack() as stack:
        if hasattr(opened, "__aenter__"):
            ask = await stack.enter_async_context(opened)

            async def agent(task: str) -> Any:
                said = talk(task)
                for _ in range(TURNS):
                    calls = said.take(await ask(said.messages))
                    if not calls:
                        return read(said.text)
                    said.give([(one, await call(tools, one)) for one in calls])
                raise RuntimeError(f"no answer after {TURNS} turns")

            yield agent
            return
        ask = stack.enter_context(opened)

        def agent_sync(task: str) -> Any:
            said = talk(task)
            for _ in range(TURNS):
                calls = said.take(ask(said.messages))
                if not calls:
                    return read(said.text)
                run = anyio.from_thread.run
                said.give([(one, run(functools.partial(call, tools, one))) for one in calls])
            raise RuntimeError(f"no answer after {TURNS} turns")

        yield agent_sync
