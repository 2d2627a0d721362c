"""Others that replace parts of HTTP clients see each request once, and answer it as without us."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from llm_server import says, serving
from tables import table

from . import replaced_clients
from .replaced_clients import MOCKS, REPLACED

pytestmark = pytest.mark.anyio

ORDERS = ["before", "after"]
HELLO = ["hello", "hello"]
WANTED = {"run": HELLO, "models": 4, "asked": 2, "bare": HELLO, "later": 4}
"""Two questions, in a run of two attempts."""


async def replaced(name: str, order: str, url: str, folder: Path) -> Any:
    """What came of the program in a process of its own, by client."""
    arguments = [sys.executable, replaced_clients.__file__, name, order, url, str(folder)]
    return json.loads((await anyio.run_process(arguments, stderr=None)).stdout)


@table("order", ORDERS, at_once=True)
@table("name", MOCKS)
async def test_mocks_answer_and_are_asked_once(name: str, order: str, tmp_path: Path) -> None:
    found = await replaced(name, order, "http://model", tmp_path)
    assert found == dict.fromkeys(REPLACED[name][1], WANTED)


@table("order", ORDERS, at_once=True)
async def test_there_is_a_span_of_each_request_and_none_of_a_reused_answer(
    order: str, tmp_path: Path
) -> None:
    with serving(says("hello")) as server:
        found = await replaced("opentelemetry", order, server.url, tmp_path)
        clients = REPLACED["opentelemetry"][1]
        assert len(server.requests) == 6 * len(clients)
    assert found == dict.fromkeys(clients, WANTED)


@table("order", ORDERS, at_once=True)
async def test_cassettes_record_and_replay(order: str, tmp_path: Path) -> None:
    clients, folder = REPLACED["vcr"][1], tmp_path / order
    with serving(says("hello")) as server:
        for requests in (6, 8):  # bare and in a run the second time none, later two
            found = await replaced("vcr", order, server.url, folder)
            assert found == dict.fromkeys(clients, WANTED)
            assert len(server.requests) == requests * len(clients)
