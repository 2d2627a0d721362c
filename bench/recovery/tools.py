"""The tools of a play: HTTP, SQLite and files, as somebody would write them in an afternoon."""

from __future__ import annotations

import asyncio
import inspect
import json
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx

from .server import TOOL_SECONDS, Play

Tool = Callable[..., Awaitable[Any]]


@dataclass(frozen=True)
class Kit:
    """One tool: the function, and what it does to the world."""

    function: Tool
    effect: str

    @property
    def name(self) -> str:
        """As the model calls it."""
        return str(self.function.__name__)

    def schema(self) -> dict[str, Any]:
        """As a provider is told of it."""
        kinds = {"str": "string", "int": "integer"}
        signature = inspect.signature(self.function)
        properties = {
            n: {"type": kinds[str(p.annotation)]} for n, p in signature.parameters.items()
        }
        needed = [n for n, p in signature.parameters.items() if p.default is p.empty]
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.function.__doc__,
                "parameters": {"type": "object", "properties": properties, "required": needed},
            },
        }


def tools_of(play: Play, url: str, closed: str, http: httpx.AsyncClient) -> list[Kit]:  # noqa: C901, PLR0915 - the tools, one after the other
    """The tools, which speak to this play of the service at `url`; nobody listens at `closed`."""
    world, domain = play.world, play.world.domain
    base = f"{url}/{play.id}"

    async def get(tool: str, **given: Any) -> Any:
        response = await http.get(f"{base}/{tool}", params=given)
        response.raise_for_status()
        return response.json()

    async def search(place: str, limit: int = 10) -> list[dict[str, Any]]:
        return list(await get(domain.search, place=place, limit=limit))

    async def backup(place: str, limit: int = 10) -> list[dict[str, Any]]:
        return list(await get(domain.backup, place=place, limit=limit))

    async def status(job: str) -> dict[str, Any]:
        return dict(await get(domain.status, job=job))

    def look_up(item_id: str) -> sqlite3.Row | None:
        reader = world.connect()
        try:
            reader.row_factory = sqlite3.Row
            found: sqlite3.Row | None = reader.execute(
                "select * from items where id = ?", (item_id,)
            ).fetchone()
        finally:
            reader.close()
        return found

    async def detail(item_id: str) -> dict[str, Any]:
        world.clock.now += TOOL_SECONDS
        fault = play.broken(domain.detail)
        play.calls.append(f"{domain.detail} {item_id}" + (f" !{fault.how}" if fault else ""))
        if fault:
            world.lock()
        try:
            row = await asyncio.to_thread(look_up, item_id)
        finally:
            world.unlock()
        if row is None:
            raise LookupError(f"there is no {domain.noun} {item_id}")
        return dict(row)

    async def note(file_name: str) -> dict[str, Any]:
        world.clock.now += TOOL_SECONDS
        fault = play.broken(domain.note)
        play.calls.append(f"{domain.note} {file_name}" + (f" !{fault.how}" if fault else ""))
        if fault:
            (world.folder / file_name).unlink(missing_ok=True)
        text = await asyncio.to_thread((world.folder / file_name).read_text, encoding="utf-8")
        return dict(json.loads(text))

    async def act(item_id: str, price: int, memo: str = "") -> dict[str, Any]:
        given = {"item_id": item_id, "price": price, "memo": memo}
        if (
            play.asks_first
            and "allowed" in play.task.options
            and not play.allows(f"buy {item_id}?")
        ):
            raise PermissionError(f"a person refused to buy {item_id}")
        refused = any(
            b.tool == "connect" and play.faulty and play.fails(b) for b in play.task.breakages
        )
        address = f"{closed}/{play.id}" if refused else base
        response = await http.post(f"{address}/{domain.act}", json=given)
        response.raise_for_status()
        return dict(response.json())

    async def order_all(item_ids: str) -> dict[str, Any]:
        response = await http.post(f"{base}/order_all", json={"item_ids": item_ids})
        response.raise_for_status()
        return dict(response.json())

    texts: dict[Any, tuple[str, str, str]] = {
        search: (domain.search, f"List the {domain.noun}s of a place.", "read"),
        backup: (
            domain.backup,
            f"List the {domain.noun}s of a place, from a second source.",
            "read",
        ),
        detail: (domain.detail, f"Give what is known of a {domain.noun}.", "read"),
        note: (domain.note, f"Read the note that belongs to a {domain.noun}.", "read"),
        act: (domain.act, f"Pay for a {domain.noun} and take it.", "once"),
        order_all: ("order_all", f"Take several {domain.noun}s, by ids with commas.", "once"),
        status: (domain.status, "Say how far a job is.", "read"),
    }
    kits = []
    for function, (name, text, effect) in texts.items():
        function.__name__ = function.__qualname__ = name
        function.__code__ = function.__code__.replace(co_name=name)  # a traceback shows it so
        function.__doc__ = text
        kits.append(Kit(function, effect))
    return kits
