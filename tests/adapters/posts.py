"""Requests by each HTTP library, which raise what it raises for a refusal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import anyio.to_thread
import httpx
import httpx2
from yarl import URL

Post = Callable[[str, dict[str, Any], dict[str, str]], Awaitable[None]]
"""Posts a body with headers."""


async def by_httpx(url: str, body: dict[str, Any], headers: dict[str, str]) -> None:
    async with httpx.AsyncClient() as client:
        (await client.post(url, json=body, headers=headers)).raise_for_status()


async def by_httpx2_sync(url: str, body: dict[str, Any], headers: dict[str, str]) -> None:
    def post() -> None:
        with httpx2.Client() as client:
            client.post(url, json=body, headers=headers).raise_for_status()

    await anyio.to_thread.run_sync(post)


async def by_aiohttp(url: str, body: dict[str, Any], headers: dict[str, str]) -> None:
    async with (
        aiohttp.ClientSession(raise_for_status=True, headers=headers) as session,
        session.post(URL(url, encoded=True), json=body) as answer,
    ):
        await answer.read()


POSTS: list[Post] = [by_httpx, by_httpx2_sync, by_aiohttp]
