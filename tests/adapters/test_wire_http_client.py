"""A client of httpx of ours, given to whoever takes one: recorded with nothing replaced in the process."""

from __future__ import annotations

from typing import Any

import httpx
import httpx2
import openai
import pytest
from blockbuster import BlockBuster
from support import on_both_backends

from triage import Agent, UsageError
from triage.adapters.wire import recorded_client
from triage.core import CallStarted, Event

pytestmark = pytest.mark.anyio
anyio_backend = on_both_backends()
SAID = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant"}}]}
LIBRARIES = (httpx, httpx2)


def answer(library: Any) -> Any:
    return library.MockTransport(lambda _: library.Response(200, json=SAID))


async def asked(client: Any, *, seam: Any) -> list[str]:
    """The kinds of the calls of a run that asks a model once with this client."""
    events: list[Event] = []

    async def asks(task: str) -> str:
        made = client.post("http://model/v1/chat/completions", json={"messages": [], "model": "m"})
        made = await made if hasattr(made, "__await__") else made
        made.raise_for_status()
        return task

    agent = Agent(asks, seam=seam, observers=[events.append])
    assert await agent.run("t") == "t"
    return [event.kind for event in events if isinstance(event, CallStarted)]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: str(one.__name__))
@pytest.mark.parametrize("seam", ["on", "off"])
async def test_its_model_requests_are_recorded_once_whether_the_seam_is_on_or_not(
    library: Any, seam: str, never_blocked: BlockBuster
) -> None:
    never_blocked.deactivate()
    async with library.AsyncClient(transport=answer(library)) as plain:
        client = recorded_client(plain)
        assert isinstance(client, library.AsyncClient)
        assert recorded_client(client) is client
        assert await asked(client, seam=seam) == ["model"]
        assert await asked(plain, seam=seam) == (["model"] if seam == "on" else [])
    with library.Client(transport=answer(library)) as plain:
        assert await asked(recorded_client(plain), seam=seam) == ["model"]


async def test_a_client_of_a_provider_takes_it(never_blocked: BlockBuster) -> None:
    never_blocked.deactivate()
    events: list[Event] = []
    client = openai.AsyncOpenAI(
        api_key="x",
        base_url="http://model/v1",
        http_client=recorded_client(httpx2.AsyncClient(transport=answer(httpx2))),
    )

    async def asks(task: str) -> str:
        await client.chat.completions.create(model="m", messages=[])
        return task

    assert await Agent(asks, seam="off", observers=[events.append]).run("t") == "t"
    assert [event.kind for event in events if isinstance(event, CallStarted)] == ["model"]
    await client.close()


@pytest.mark.parametrize("client", [None, 7, openai.AsyncOpenAI(api_key="x"), httpx.AsyncClient])
def test_anything_else_is_refused(client: Any) -> None:
    with pytest.raises(UsageError, match=r"recorded_client\(client\)"):
        recorded_client(client)
