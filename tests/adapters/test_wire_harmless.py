"""Whatever fails of ours on the way of a request, it is sent and answered as without us."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import sys
import threading
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import aiohttp
import anyio
import httpx
import httpx2
import pytest
from llm_server import Handler, Reply, Request, cut_off, serving
from support import always
from tables import covering

import triage.seam
from triage import Agent, Escalate
from triage.testing import VirtualTime

from .hosted_models import bedrock

pytestmark = [pytest.mark.usefixtures("theirs_may_block")]

assert triage.seam  # imported before anything is broken
WIRE = "triage.adapters.wire"
SHARED = [
    f"{WIRE}.requests", f"{WIRE}.conversations", f"{WIRE}.bodies", f"{WIRE}.endpoints", f"{WIRE}.carrying",
    "triage.adapters.calls", "triage.adapters.conversations", "triage.engine.mending",
]  # fmt: skip
"""Modules that each request passes."""


class Broken(Exception):
    """A mistake of ours."""


THEIRS = ("_AsyncTeed", "_Offline", "_SyncTeed", "_Teed", "_Whole")
"""Streams and their like, whose methods a library calls in place of its own."""


# What is broken: each function of a module, one after the other.


def functions(module: ModuleType) -> Iterator[tuple[Any, str, Any]]:
    """The functions that a module defines, and those of its classes: owner, name, as it stands there."""
    for name, value in list(vars(module).items()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(inspect.unwrap(value) if callable(value) else value, FunctionType):
            yield module, name, value
        elif (
            isinstance(value, type) and not issubclass(value, BaseException) and name not in THEIRS
        ):
            for attribute, member in list(vars(value).items()):
                if isinstance(member, FunctionType | property | staticmethod | classmethod):
                    yield value, attribute, member


def broken(original: Any, called: list[Any]) -> Any:
    """What raises in place of a function, when it is called or awaited."""
    if isinstance(original, property):
        return property(broken(original.fget, called))
    if isinstance(original, staticmethod | classmethod):
        return type(original)(broken(original.__func__, called))

    def fails(*_: Any, **__: Any) -> Any:
        called.append(original)
        raise Broken(f"{original} is broken")

    async def fails_later(*_: Any, **__: Any) -> Any:
        return fails()

    return fails_later if inspect.iscoroutinefunction(original) else fails


class Breaking:
    """Puts what raises in the place of a function, in every module that has it by its name."""

    def __init__(self, owner: Any, name: str, original: Any) -> None:
        self.called: list[Any] = []
        self._original = original
        self._made = broken(original, self.called)
        self._places = [(owner, name)]
        if isinstance(owner, ModuleType):
            self._places += [
                (module, other)
                for module in list(sys.modules.values())
                if module is not owner and getattr(module, "__name__", "").startswith("triage.")
                for other, value in list(vars(module).items())
                if value is original
            ]

    def __enter__(self) -> list[Any]:
        for owner, name in self._places:
            setattr(owner, name, self._made)
        return self.called

    def __exit__(self, *_: object) -> None:
        for owner, name in self._places:
            setattr(owner, name, self._original)


# Requests: what the caller has of each.


BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
PATH = "/v1/chat/completions"
Ask = Callable[[str], Any]


def outcome(ask: Ask, url: str) -> Any:
    """What a request gives, or what it raises."""
    try:
        return ask(url)
    except Exception as error:
        return type(error), str(error).replace(url, "")


def by_httpx(library: Any) -> Ask:
    def ask(url: str) -> Any:
        with library.Client(verify=False) as client:
            answer = client.post(url + PATH, json=BODY)
            return answer.status_code, answer.text

    return ask


def by_httpx_async(library: Any) -> Ask:
    async def ask(url: str) -> Any:
        async with library.AsyncClient(verify=False) as client:
            answer = await client.post(url + PATH, json=BODY)
            async with client.stream("POST", url + PATH, json=BODY) as streamed:
                text = "".join([piece async for piece in streamed.aiter_text()])
            return answer.raise_for_status().text, text

    return lambda url: asyncio.run(ask(url))


def by_aiohttp(url: str) -> Any:
    async def ask() -> Any:
        async with aiohttp.ClientSession(raise_for_status=True) as session:
            answer = await session.post(url + PATH, json=BODY)
            async with session.post(url + PATH, json=BODY) as streamed:
                pieces = [piece async for piece in streamed.content.iter_any()]
            return await answer.text(), b"".join(pieces)

    return asyncio.run(ask())


def by_botocore(url: str) -> Any:
    messages = [{"role": "user", "content": [{"text": "go"}]}]
    answer = bedrock(url).converse(modelId="m", messages=messages)
    return answer["output"], answer["stopReason"]


CLIENTS: dict[str, tuple[str, Ask]] = {
    "httpx": ("httpx_clients", by_httpx(httpx)),
    "httpx async": ("httpx_clients", by_httpx_async(httpx)),
    "httpx2": ("httpx_clients", by_httpx(httpx2)),
    "aiohttp": ("aiohttp_clients", by_aiohttp),
    "botocore": ("botocore_clients", by_botocore),
}
SAID = {"choices": [{"index": 0, "delta": {"content": "hello"}, "finish_reason": "stop"}]}
MESSAGE = {
    "index": 0,
    "message": {"role": "assistant", "content": "hello"},
    "finish_reason": "stop",
}


def whole(handler: Handler, request: Request) -> None:
    """An answer in one piece, as each client reads it."""
    said: dict[str, Any] = {"choices": [MESSAGE]}
    if "converse" in request.path:
        said = {"output": {"message": {"role": "assistant", "content": [{"text": "hello"}]}}}
        said |= {
            "stopReason": "end_turn",
            "usage": dict.fromkeys(TOKENS, 1),
            "metrics": {"latencyMs": 1},
        }
    handler.answer(200, json.dumps(said).encode())


TOKENS = ("inputTokens", "outputTokens", "totalTokens")


def streamed(handler: Handler, request: Request) -> None:
    """An answer as events; whole for the client that takes none."""
    if "converse" in request.path:
        whole(handler, request)
        return
    text = f"data: {json.dumps(SAID)}\n\ndata: [DONE]\n\n"
    handler.answer(200, text.encode(), {"content-type": "text/event-stream"})


def refused(handler: Handler, _request: Request) -> None:
    handler.answer(400, b'{"error": {"message": "no"}}')


def asked_in_a_run(ask: Ask, url: str) -> Any:
    """What the request gives in an agent that takes it as it comes."""
    policy = always(Escalate("not by us"))
    made = Agent(lambda _task: [outcome(ask, url)], policy, environment=VirtualTime())
    (found,) = made.run_sync("t")
    return found


def called_in(work: Callable[[], Any]) -> set[Any]:
    """The code that runs while this is done, in whatever thread."""
    found: set[Any] = set()

    def note(frame: Any, event: str, _arg: Any) -> None:
        if event == "call":
            found.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def code_of(original: Any) -> Any:
    """The code of what `functions` gives."""
    inner = getattr(original, "fget", None) or getattr(original, "__func__", original)
    return inspect.unwrap(inner).__code__


@pytest.mark.parametrize(
    ("client", "reply"), covering(CLIENTS, [whole, streamed, refused, cut_off])
)
def test_a_request_is_answered_as_bare_whatever_of_ours_is_broken(
    client: str, reply: Reply
) -> None:
    reader, ask = CLIENTS[client]
    wrong: list[str] = []
    met = 0
    with serving(reply) as server:
        bare = outcome(ask, server.url)
        # What botocore takes for an answer although it ends early is an error in a run.
        wanted = (bare, asked_in_a_run(ask, server.url))
        called = called_in(lambda: asked_in_a_run(ask, server.url))
        for name in [*SHARED, f"{WIRE}.{reader}"]:
            for owner, attribute, original in functions(importlib.import_module(name)):
                if code_of(original) not in called:
                    continue
                server.requests.clear()
                with Breaking(owner, attribute, original) as met_here:
                    found = asked_in_a_run(ask, server.url)
                met += bool(met_here)
                if found not in wanted or not server.requests:
                    where = f"{name}.{getattr(owner, '__qualname__', '')}.{attribute}"
                    wrong.append(f"{where}: {str(found)[:80]}, asked {len(server.requests)} times")
    assert met > 20
    assert not wrong, f"{len(wrong)} of {met}: " + "; ".join(wrong)


WITHOUT = """
import sys
from triage import Agent
sys.modules["triage.adapters.wire.httpx_clients"] = None
import anyio, httpx

def ask():
    return httpx.post(sys.argv[1], json={"model": "m", "messages": []}).status_code

async def ask_async(task):
    async with httpx.AsyncClient() as client:
        body = {"model": "m", "messages": []}
        return (await client.post(sys.argv[1], json=body)).status_code

print(Agent(lambda task: ask()).run_sync("t"), Agent(ask_async).run_sync("t"))
"""


@pytest.mark.anyio
async def test_without_what_reads_requests_they_are_sent_as_they_are() -> None:
    with serving(whole) as server:
        done = await anyio.run_process([sys.executable, "-c", WITHOUT, server.url + PATH])
        assert len(server.requests) == 2
    assert done.stdout.decode().split() == ["200", "200"]
