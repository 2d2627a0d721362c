"""Clients that fail as planned: anybody's, and the real ones with their own errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anthropic
import openai
import pytest
from tables import table

import triage
from triage.testing import FaultPlan, faults

pytestmark = pytest.mark.anyio


class Completions:
    async def create(self, prompt: str) -> Any:
        function = SimpleNamespace(name="search", arguments='{"q": 1}')
        return SimpleNamespace(content=prompt, tool_calls=[SimpleNamespace(function=function)])


class Client:
    key = "k"

    def __init__(self) -> None:
        self.chat = SimpleNamespace(completions=Completions())

    async def ask(self, prompt: str) -> str:
        return prompt.upper()

    def with_options(self) -> Client:
        return Client()


async def test_a_clients_methods_fail_by_their_path() -> None:
    plan = FaultPlan({
        ("chat.completions.create", 1): faults.rate_limit(retry_after=3),
        ("chat.completions.create", 2): faults.malformed_json("{"),
        ("chat.completions.create", 3): faults.wrong_tool("serch"),
        ("ask", 1): faults.loop(3),
    })  # fmt: skip
    client = plan.wrap_client(Client())
    create = client.chat.completions.create
    with pytest.raises(Exception, match="429") as raised:
        await create("hi")
    assert triage.diagnose(raised.value).retry_after_s == 3
    damaged = await create("hi")
    assert (damaged.content, damaged.tool_calls[0].function.arguments) == ("{", "{")
    wrong = await create("hi")
    assert (wrong.content, wrong.tool_calls[0].function.name) == ("hi", "serch")
    assert [await client.with_options().ask(text) for text in "abcd"] == ["A", "A", "A", "D"]
    assert (client.key, plan.unreached) == ("k", ())


@table("package", [openai, anthropic])
@table(
    ("fault", "name"),
    [
        (faults.rate_limit(retry_after=2), "RateLimitError"),
        (faults.timeout(), "APITimeoutError"),
        (faults.server_error(529), "InternalServerError"),
        (faults.connection_refused(), "APIConnectionError"),
        (faults.auth(), "AuthenticationError"),
        (faults.context_length(), "BadRequestError"),
    ],
)
async def test_a_real_client_raises_its_own_errors(package: Any, fault: Any, name: str) -> None:
    path = "chat.completions.create" if package is openai else "messages.create"
    plan = FaultPlan({path: fault})
    kind = package.AsyncOpenAI if package is openai else package.AsyncAnthropic
    method: Any = plan.wrap_client(kind(api_key="none")).with_options(timeout=3)
    for part in path.split("."):
        method = getattr(method, part)
    with pytest.raises(getattr(package, name)) as real:
        await method(model="m", messages=[])
    alike = fault.error(None)
    found, expected = triage.diagnose(real.value), triage.diagnose(alike)
    assert (found.failure_type, found.cause) == (expected.failure_type, expected.cause)
    assert found.retry_after_s == expected.retry_after_s


def test_a_sync_client_fails_in_plain_code() -> None:
    plan = FaultPlan({("messages.create", 1): faults.server_error(503)})
    client = plan.wrap_client(anthropic.Anthropic(api_key="none"))
    with pytest.raises(anthropic.InternalServerError):
        client.messages.create(model="m", max_tokens=1, messages=[])
