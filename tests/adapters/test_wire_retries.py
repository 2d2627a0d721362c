"""What a client repeats by itself is a try of one recorded call, and does not multiply with our retries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import aiohttp
import anthropic
import anyio.to_thread
import httpx
import openai
import pytest
from google import genai
from google.genai import types
from llm_server import Handler, Reply, Request, cut_off, fails, send, serving
from support import always
from tables import table

from triage import Agent, Escalate, Retry, TriageEscalationError
from triage.core import CallStarted, StepRecorded
from triage.strategies import Limits
from triage.testing import VirtualTime

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]

MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]
RETRIES = 2
"""That each client makes by itself."""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients wait between their tries."""
    for module in ("openai", "anthropic"):
        for name in ("INITIAL_RETRY_DELAY", "MAX_RETRY_DELAY"):
            monkeypatch.setattr(f"{module}._base_client.{name}", 0.0)


Ask = Callable[..., Awaitable[Any]]


async def openai_async(url: str, retries: int = RETRIES) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=retries) as client:
        await client.chat.completions.create(model="m", messages=MESSAGES)


async def openai_sync(url: str, retries: int = RETRIES) -> None:
    def ask() -> None:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=retries) as client:
            client.chat.completions.create(model="m", messages=MESSAGES)

    await anyio.to_thread.run_sync(ask)


async def anthropic_async(url: str, retries: int = RETRIES) -> None:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=retries) as client:
        await client.messages.create(model="m", messages=MESSAGES, max_tokens=50)


async def gemini(url: str, retries: int = RETRIES) -> None:
    repeated = types.HttpRetryOptions(
        attempts=retries + 1, initial_delay=0, jitter=0, http_status_codes=[409, 503]
    )
    options = types.HttpOptions(base_url=url, retry_options=repeated)
    async with genai.Client(api_key="k", http_options=options).aio as client:
        await client.models.generate_content(model="m", contents="hello")


async def by_hand(ask: Callable[[], Awaitable[None]], retries: int) -> None:
    for _ in range(retries):
        with suppress(httpx.HTTPError, aiohttp.ClientError):
            return await ask()
    return await ask()


async def by_hand_httpx(url: str, retries: int = RETRIES) -> None:
    async def ask() -> None:
        made = await client.post(f"{url}/v1/chat/completions", json={"messages": MESSAGES})
        made.raise_for_status()

    async with httpx.AsyncClient() as client:
        await by_hand(ask, retries)


async def by_hand_aiohttp(url: str, retries: int = RETRIES) -> None:
    async def ask() -> None:
        path, body = f"{url}/v1/chat/completions", {"messages": MESSAGES}
        async with session.post(path, json=body) as answer:
            await answer.read()

    async with aiohttp.ClientSession(raise_for_status=True) as session:
        await by_hand(ask, retries)


WAYS = [openai_async, openai_sync, anthropic_async, gemini, by_hand_httpx, by_hand_aiohttp]
EXCEPTIONS = [way for way in WAYS if way is not gemini]
"""The ways that repeat a request whose connection broke."""


def answers(handler: Handler, request: Request) -> None:
    """A model of each provider says hello."""
    if request.path.endswith("/messages"):
        block = {"type": "text", "text": "hello"}
        body: dict[str, Any] = {"content": [block], "stop_reason": "end_turn", "role": "assistant"}
    elif "generateContent" in request.path:
        content = {"role": "model", "parts": [{"text": "hello"}]}
        body = {"candidates": [{"content": content, "finishReason": "STOP"}]}
    else:
        message = {"role": "assistant", "content": "hello"}
        body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    send(handler, body)


class Watched:
    """An agent whose first attempt fails behind its work, and what was recorded."""

    def __init__(self, work: Callable[[], Awaitable[Any]], policy: Any, **options: Any) -> None:
        self.attempts = 0
        self.keys: list[str] = []
        self.models: list[Any] = []
        self._work = work
        environment = VirtualTime()
        self.agent = Agent(
            self._attempt, policy, environment=environment, observers=[self._observe], **options
        )

    def _observe(self, event: Any) -> None:
        if isinstance(event, CallStarted):
            self.keys.append(event.key)
        elif isinstance(event, StepRecorded) and event.step.action == "model":
            self.models.append(event.step)

    async def _attempt(self, task: str) -> str:
        self.attempts += 1
        await self._work()
        if self.attempts == 1:
            raise ConnectionError("no such thing")
        return "done"


def once_escalated(context: Any) -> Any:
    """Retries what the agent itself raises, and nothing that a request fails with."""
    return Retry() if "no such thing" in str(context.error) else Escalate("not by us")


@table("refusal", [fails(409, "conflict"), fails(503, "overloaded")])
@table("way", WAYS)
async def test_a_clients_own_retries_are_tries_of_one_call(way: Ask, refusal: Reply) -> None:
    with serving(refusal, refusal, answers) as server:
        watched = Watched(lambda: way(server.url), always(once_escalated))
        assert await watched.agent.run("t") == "done"
        assert len(server.requests) == 3
    assert len(set(watched.keys)) == 1
    assert [step.error is None for step in watched.models] == [False, False, True, True]


@table("way", EXCEPTIONS)
async def test_so_are_those_of_a_connection_that_broke(way: Ask) -> None:
    with serving(cut_off, cut_off, answers) as server:
        watched = Watched(lambda: way(server.url), always(once_escalated))
        assert await watched.agent.run("t") == "done"
        assert len(server.requests) == 3
    assert len(set(watched.keys)) == 1


@table("way", WAYS, at_once=True)
async def test_our_retries_and_theirs_do_not_multiply(way: Ask) -> None:
    async def asked(retries: int) -> tuple[int, int]:
        with serving(fails(503, "overloaded")) as server:
            watched = Watched(lambda: way(server.url, retries), None, limits=Limits(attempts=5))
            with pytest.raises(TriageEscalationError):
                await watched.agent.run("t")
            return len(server.requests), watched.attempts

    # Where ours have not helped, theirs are left.
    (ours, attempts), (both, same) = await asked(0), await asked(RETRIES)
    assert attempts == same
    assert ours < both <= ours + RETRIES * attempts


async def test_what_is_asked_again_later_or_elsewhere_is_a_call_of_its_own() -> None:
    async def ask(url: str, text: str) -> None:
        body = {"messages": [{"role": "user", "content": text}]}
        async with httpx.AsyncClient() as client:
            await client.post(f"{url}/v1/chat/completions", json=body)

    async def work() -> None:
        url = server.url
        await ask(url, "a")
        await ask(url, "a")  # the first one was answered
        await ask(url, "b")  # fails
        await ask(url, "c")
        await ask(url, "b")  # another was between
        await ask(url, "d")  # fails
        await asyncio.create_task(ask(url, "d"))
        await ask(url, "e")  # fails in a way that nobody repeats
        await ask(url, "e")

    down = fails(503, "overloaded")
    replies = answers, answers, down, answers, answers, down, answers, fails(400, "bad"), answers
    with serving(*replies) as server:
        watched = Watched(work, always(Escalate("not by us")))
        with pytest.raises(TriageEscalationError):
            await watched.agent.run("t")
        assert len(server.requests) == len(set(watched.keys)) == 9
