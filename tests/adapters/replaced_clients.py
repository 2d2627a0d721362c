"""A program whose clients are replaced in part by somebody else, before or after this package does.

Arguments: what replaces them, `before` or `after`, the server's address, a folder. Prints JSON: by client,
what is said bare and in a run, the model calls of the run, how often the other one saw a request in it, and
the model calls of a run when the other one is gone.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import pytest_httpx
import respx
from opentelemetry.instrumentation.httpx import HTTPX2ClientInstrumentor, HTTPXClientInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from triage import Agent, FailurePolicy, Retry
from triage.core import StepRecorded
from triage.testing import VirtualTime

PATH = "/v1/chat/completions"
MESSAGE = {"role": "assistant", "content": "hello"}
ANSWER = {"choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]}
Ask = Callable[[str, dict[str, Any]], dict[str, Any]]
Count = Callable[[], int]


# Clients --------------------------------------------------------------------------------------------


def plain(library: Any) -> Ask:
    def ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
        with library.Client(verify=False) as client:
            found: dict[str, Any] = client.post(url, json=body).raise_for_status().json()
        return found

    return ask


def streaming(library: Any) -> Ask:
    async def ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
        async with (
            library.AsyncClient(verify=False) as client,
            client.stream("POST", url, json=body) as response,
        ):
            found: dict[str, Any] = json.loads(await response.aread())
        return found

    return lambda url, body: asyncio.run(ask(url, body))


def session(url: str, body: dict[str, Any]) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        async with aiohttp.ClientSession() as client, client.post(url, json=body) as response:
            found: dict[str, Any] = await response.json()
        return found

    return asyncio.run(ask())


CLIENTS: dict[str, Ask] = {
    "httpx": plain(httpx),
    "httpx async": streaming(httpx),
    "httpx2": plain(httpx2),
    "httpx2 async": streaming(httpx2),
    "aiohttp": session,
}


# Who replaces them: for as long as the block runs, and how many requests it has seen.


@contextmanager
def by_respx(_folder: Path) -> Generator[Count]:
    with respx.mock:
        route = respx.post(url__regex=f".*{PATH}").mock(
            return_value=httpx.Response(200, json=ANSWER)
        )
        yield lambda: route.call_count


@contextmanager
def by_pytest_httpx(_folder: Path) -> Generator[Count]:
    with pytest.MonkeyPatch.context() as patch:
        asked = SimpleNamespace(node=SimpleNamespace(iter_markers=lambda _name: ()))
        fixture = inspect.unwrap(pytest_httpx.httpx_mock)(patch, asked)
        mock = next(fixture)
        mock.add_response(json=ANSWER, is_reusable=True)
        yield lambda: len(mock.get_requests())


@contextmanager
def by_vcr(folder: Path) -> Generator[Count]:
    vcr = import_module("vcr")  # it keeps what it finds where it is imported
    with vcr.use_cassette(str(folder / "cassette.yaml"), match_on=["method", "body"]) as cassette:
        yield lambda: cassette.play_count or len(cassette)


@contextmanager
def by_opentelemetry(_folder: Path) -> Generator[Count]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    made = HTTPXClientInstrumentor(), HTTPX2ClientInstrumentor()
    for one in made:
        one.instrument(tracer_provider=provider)
    try:
        yield lambda: len(exporter.get_finished_spans())
    finally:
        for one in made:
            one.uninstrument()


REPLACED: dict[str, tuple[Callable[[Path], AbstractContextManager[Count]], list[str]]] = {
    "respx": (by_respx, ["httpx", "httpx async"]),
    "pytest-httpx": (by_pytest_httpx, ["httpx", "httpx async"]),
    "vcr": (by_vcr, list(CLIENTS)),
    "opentelemetry": (by_opentelemetry, ["httpx", "httpx async", "httpx2", "httpx2 async"]),
}


MOCKS = ["respx", "pytest-httpx"]
"""Behind these there is no server."""


def words(ask: Ask, url: str, times: int = 2) -> list[str]:
    """What a model says to some questions."""
    asked = [[{"role": "user", "content": f"{number}?"}] for number in range(times)]
    found = [ask(url, {"model": "m", "messages": messages}) for messages in asked]
    return [one["choices"][0]["message"]["content"] for one in found]


def run(ask: Ask, url: str) -> tuple[list[str], int]:
    """An agent that asks, and fails once behind it: what is said, and how many calls are recorded."""
    events: list[Any] = []
    attempts: list[int] = []

    def agent(task: str) -> list[str]:
        attempts.append(len(attempts))
        said = words(ask, url)
        if len(attempts) == 1:
            raise ConnectionError("down")
        return said

    policy = FailurePolicy(default=Retry())
    made = Agent(agent, policy, environment=VirtualTime(), observers=[events.append])
    said = made.run_sync("t")
    models = [one for one in events if isinstance(one, StepRecorded) and one.step.action == "model"]
    return said, len(models)


def main(name: str, order: str, url: str, folder: str) -> None:
    replaced, clients = REPLACED[name]
    found: dict[str, Any] = {}
    if order == "after":
        Agent(lambda _task: None).run_sync("t")
    for client in clients:
        own = Path(folder) / client
        with replaced(own) as count:
            said, models = run(CLIENTS[client], url + PATH)
            asked = count()
            bare = words(CLIENTS[client], url + PATH)
        later = models if name in MOCKS else run(CLIENTS[client], url + PATH)[1]
        found[client] = {
            "run": said,
            "models": models,
            "asked": asked,
            "bare": bare,
            "later": later,
        }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
