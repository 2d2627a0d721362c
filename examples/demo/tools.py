"""The three tools of the agent, each an HTTP call, and what the model is told of them.

Outside a run they are plain functions; inside one, triage records each call by itself.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, Field

import triage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import httpx
    from openai.types.chat import ChatCompletionToolParam


class FareQuery(BaseModel):
    """Find the fares to a city that have enough free seats."""

    city: str
    passengers: int = Field(ge=1)


class OrderQuery(BaseModel):
    """Look up an order: customer, city and budget."""

    order_id: int


class ChargeRequest(BaseModel):
    """Take the money for an order. Not to be done twice."""

    order_id: int
    cents: int = Field(gt=0)


@triage.tool(effect="read", ignore=("http",))
async def search_fares(http: httpx.AsyncClient, city: str, passengers: int) -> Any:
    """The fares to a city, cheapest or not."""
    query: dict[str, str | int] = {"city": city, "passengers": passengers}
    return _body(await http.get("/tools/fares", params=query))


@triage.tool(effect="read", ignore=("http",))
async def get_order(http: httpx.AsyncClient, order_id: int) -> Any:
    """An order of the shop's database."""
    return _body(await http.post("/tools/orders", json={"order_id": order_id}))


@triage.tool(effect="once", ignore=("http",))
async def charge_card(http: httpx.AsyncClient, order_id: int, cents: int) -> Any:
    """Take the money."""
    request = {"order_id": order_id, "cents": cents}
    headers = {"Idempotency-Key": _idempotency_key()}
    return _body(await http.post("/tools/charge", json=request, headers=headers))


class Tool(NamedTuple):
    """A tool: what is called, and the form of its arguments."""

    call: Callable[..., Awaitable[Any]]
    arguments: type[BaseModel]


TOOLS = {
    "search_fares": Tool(search_fares, FareQuery),
    "get_order": Tool(get_order, OrderQuery),
    "charge_card": Tool(charge_card, ChargeRequest),
}
"""The agent's tools by the name the model calls them."""

MANIFEST: dict[str, Any] = {
    name: tool.arguments.model_json_schema() for name, tool in TOOLS.items()
}
"""Name to JSON Schema of the arguments: told to the model and to triage's checks."""


def definitions() -> list[ChatCompletionToolParam]:
    """The tools as a chat-completions request lists them."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": (tool.arguments.__doc__ or "").strip(),
                "parameters": MANIFEST[name],
            },
        }
        for name, tool in TOOLS.items()
    ]


def _idempotency_key() -> str:
    """In a run the key of this call, the same in every attempt; outside of one, a new one."""
    try:
        return triage.current_call().idempotency_key
    except triage.UsageError:
        return uuid.uuid4().hex


def _body(response: httpx.Response) -> Any:
    response.raise_for_status()
    return response.json()
