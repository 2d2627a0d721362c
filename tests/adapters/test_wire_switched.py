"""Another model is asked wherever a request names the one that it asks: in its body, or in its path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from google import genai
from google.genai import types
from llm_server import Handler, Request, Server, fails, says, serving
from tables import table

from triage import Agent, FailurePolicy, TriageEscalationError
from triage.core import StepRecorded
from triage.strategies import switch_model
from triage.testing import VirtualTime

from .posts import POSTS, Post, by_httpx

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]

MESSAGES: list[Any] = [{"role": "user", "content": "go"}]
CONTENTS: list[Any] = [{"role": "user", "parts": [{"text": "go"}]}]
VERTEX = "/v1/projects/p/locations/l/publishers"
CLAUDE = {"messages": MESSAGES, "anthropic_version": "x"}
OTHER = "other-2.5:1"
NAMED: dict[str, tuple[str, dict[str, Any], str]] = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "model": "m"}, "/v1/chat/completions"),
    "azure": (
        "/openai/deployments/m.1/chat/completions?api-version=1",
        {"messages": MESSAGES},
        "/openai/deployments/other-2.5%3A1/chat/completions?api-version=1",
    ),
    "gemini": (
        "/v1beta/models/m:generateContent?alt=json",
        {"contents": CONTENTS},
        "/v1beta/models/other-2.5%3A1:generateContent?alt=json",
    ),
    "gemini on vertex": (
        f"{VERTEX}/google/models/m:generateContent",
        {"contents": CONTENTS},
        f"{VERTEX}/google/models/other-2.5%3A1:generateContent",
    ),
    "claude on vertex": (
        f"{VERTEX}/anthropic/models/m@1:rawPredict",
        CLAUDE,
        f"{VERTEX}/anthropic/models/other-2.5%3A1:rawPredict",
    ),
    "converse": ("/model/us.m:1/converse", {"messages": MESSAGES}, "/model/other-2.5%3A1/converse"),
    "claude on bedrock": (
        "/model/us.m%3A1%2Fx/invoke", CLAUDE, "/model/other-2.5%3A1/invoke"
    ),
}  # fmt: skip
"""A path and a body of each provider, and the path that names the other model."""


async def switched(server: Server, ask: Callable[[], Awaitable[Any]]) -> tuple[Request, list[Any]]:
    """The last request of a run that asks another model behind its first failure, and its steps' models."""
    models: list[Any] = []

    def observe(event: Any) -> None:
        if isinstance(event, StepRecorded) and event.step.action == "model":
            models.append((event.step.metadata or {})["model"])

    async def agent(task: str) -> str:
        await ask()
        return "done"

    policy = FailurePolicy(default=switch_model([OTHER]))
    made = Agent(agent, policy, environment=VirtualTime(), observers=[observe])
    assert await made.run("t") == "done"
    return server.requests[-1], models


@table("name", NAMED)
@table("post", POSTS)
async def test_the_other_model_is_asked(name: str, post: Post) -> None:
    path, body, wanted = NAMED[name]
    with serving(fails(404, "no such model"), says("hello")) as server:
        last, models = await switched(server, lambda: post(server.url + path, body, {}))
    assert last.path == wanted
    assert last.body.get("model") == (OTHER if "model" in body else None)
    assert models[-1] == OTHER


async def test_so_it_is_by_googles_client() -> None:
    def answers(handler: Handler, _request: Request) -> None:
        handler.answer(200, b'{"candidates": [{"content": {"parts": [{"text": "hello"}]}}]}')

    async def ask() -> None:
        options = types.HttpOptions(base_url=server.url)
        async with genai.Client(api_key="k", http_options=options).aio as client:
            await client.models.generate_content(model="m", contents="go")

    with serving(fails(404, "no such model"), answers) as server:
        last, models = await switched(server, ask)
    assert last.path.startswith("/v1beta/models/other-2.5%3A1:generateContent")
    assert models[-1] == OTHER


async def test_a_signed_request_asks_the_model_it_was_signed_for() -> None:
    signed = {"authorization": "AWS4-HMAC-SHA256 Credential=a, Signature=b"}

    async def ask() -> None:
        await by_httpx(f"{server.url}/model/m/converse", {"messages": MESSAGES}, signed)

    with serving(fails(404, "no such model")) as server:
        with pytest.raises(TriageEscalationError):
            await switched(server, ask)
        assert {request.path for request in server.requests} == {"/model/m/converse"}
