"""A request that is signed leaves as it was signed, and not when its signature is too old."""

from __future__ import annotations

import itertools
import json
import logging
from contextlib import suppress
from typing import Any

import openai
import pytest
from anthropic import AnthropicBedrock
from llm_server import Handler, Request, fails, says, send, serving
from support import always
from tables import table

from triage import Agent, Replan, Retry
from triage.core import CallStarted
from triage.strategies import Limits
from triage.testing import VirtualTime

from .posts import POSTS, Post

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
PATH = "/v1/chat/completions"
VALID = 300.0
"""Seconds for which servers take a signature."""


class Signer:
    """Signs each request anew, in the style of one of the providers."""

    def __init__(self, style: str) -> None:
        self.style = style
        self._numbers = itertools.count()

    def headers(self) -> dict[str, str]:
        signature = f"s{next(self._numbers)}"
        return {
            "aws": {"Authorization": f"AWS4-HMAC-SHA256 Credential=a, Signature={signature}"},
            "http signature": {"Authorization": f'Signature keyId="a",signature="{signature}"'},
            "message signature": {"Signature": signature, "Signature-Input": "a"},
            "header of its own": {"X-Acme-Signature": signature},
        }[self.style]


STYLES = ["aws", "http signature", "message signature", "header of its own"]


async def by_openai(url: str, signer: Signer) -> None:
    """A client of the package's with a signature of one's own, as its subclasses for clouds have it."""

    class Signed(openai.AsyncOpenAI):
        async def _prepare_request(self, request: Any) -> None:
            request.headers.update(signer.headers())

    async with Signed(base_url=f"{url}/v1", api_key="k") as client:
        await client.chat.completions.create(**BODY)


CLIENTS = [*POSTS, None]
"""None: OpenAI's."""


@table("style", STYLES)
@table("client", CLIENTS)
async def test_no_signature_is_sent_when_it_is_too_old(
    style: str, client: Post | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("INITIAL_RETRY_DELAY", "MAX_RETRY_DELAY"):
        monkeypatch.setattr(f"openai._base_client.{name}", 0.0)
    time, signer = VirtualTime(), Signer(style)
    limits = Limits(attempts=30, outage_seconds=None)
    options: Any = {"environment": time, "limits": limits}
    first: dict[str, float] = {}
    ages: list[float] = []

    def down(handler: Handler, request: Request) -> None:
        signature = json.dumps(
            [value for name, value in request.headers.items() if name in _SIGNED]
        )
        ages.append(time.monotonic() - first.setdefault(signature, time.monotonic()))
        handler.answer(503, b"{}")

    async def agent(task: str) -> str:
        if client is None:
            await by_openai(server.url, signer)
        else:
            await client(server.url + PATH, BODY, signer.headers())
        return "done"

    with serving(*[down] * 7, says("hello")) as server:
        assert await Agent(agent, always(Retry(delay=80.0)), **options).run("t") == "done"
        assert len(server.requests) == 8
    assert time.monotonic() > VALID
    assert max(ages) < VALID / 2
    assert len(first) > 1
    if client is not None:
        assert 80 in ages  # one wait is made in the request's place


_SIGNED = ("authorization", "signature", "x-acme-signature")


async def test_a_bedrock_client_signs_what_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    events: list[Any] = []
    with serving(fails(503, "down"), answers, answers) as server:

        def agent(task: str) -> str:
            keys: Any = {"aws_access_key": "a", "aws_secret_key": "b", "aws_region": "us-east-1"}
            with AnthropicBedrock(base_url=server.url, **keys) as client:
                client.messages.create(**BODY, max_tokens=5)
            if len(server.requests) == 2:
                raise ValueError("this is no answer")
            return "done"

        policy = always(Replan("Answer in French."))
        with caplog.at_level(logging.WARNING, "triage"):
            made = Agent(agent, policy, environment=VirtualTime(), observers=[events.append])
            with suppress(ValueError):
                assert await made.run("t") == "done"
        assert [one.body for one in server.requests] == [server.requests[0].body] * 3
    assert "it cannot carry the hint, which waits for a request that can" in caplog.text
    assert len({one.key for one in events if isinstance(one, CallStarted)}) == 1


def answers(handler: Handler, _request: Request) -> None:
    block = {"type": "text", "text": "hello"}
    body = {"content": [block], "role": "assistant", "id": "m", "type": "message", "model": "m"}
    send(handler, {**body, "usage": {"input_tokens": 1, "output_tokens": 1}})
