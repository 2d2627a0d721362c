"""MCP servers that die, and sessions that are opened anew."""

from __future__ import annotations

import socket
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.server.mcpserver import MCPServer
from support import RETRY, on_both_backends
from tables import covering, table

from triage import Agent, TriageSuspendedError, UsageError, happened
from triage.adapters.mcp import record
from triage.testing import VirtualTime

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("theirs_may_block"),
    # Under trio, the generators that the package mcp leaves open.
    pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning"),
]
anyio_backend = on_both_backends()

SERVER = """
import os, sys
from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

server, folder, how = MCPServer("shop"), sys.argv[1], sys.argv[2]

def die(tool):
    with open(os.path.join(folder, "ledger"), "a") as ledger:
        ledger.write(tool + " ")
    flag = os.path.join(folder, "died")
    if how == "during" and not os.path.exists(flag):
        open(flag, "w").close()
        os._exit(3)

@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def look(what: str) -> str:
    die("look")
    return "saw " + what

@server.tool(annotations=ToolAnnotations(destructive_hint=True))
async def pay(cents: int) -> str:
    die("pay")
    return "receipt"

@server.tool()
async def handle(what: str) -> str:
    die("handle")
    return "handled"

if len(sys.argv) > 3:
    server.run(sys.argv[3], port=int(sys.argv[4]))
else:
    server.run("stdio")
"""
CALLS: dict[str, dict[str, Any]] = {
    "look": {"what": "bees"}, "pay": {"cents": 300}, "handle": {"what": "it"}
}  # fmt: skip


class Shop:
    """A server of its own process, over any transport, that can be started again."""

    def __init__(self, folder: Path, transport: str, how: str) -> None:
        self.folder, self.transport = folder, transport
        self.script = folder / "server.py"
        self.script.write_text(SERVER, encoding="utf-8")
        self.arguments = [str(self.script), str(folder), how]
        self.opened = 0
        self.process: Any = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    @property
    def ledger(self) -> list[str]:
        path = self.folder / "ledger"
        return path.read_text(encoding="utf-8").split() if path.exists() else []

    async def start(self) -> None:
        """Start an HTTP server, and wait until it takes connections."""
        command = [sys.executable, *self.arguments, self.transport, str(self.port)]
        self.process = await anyio.open_process(command, stdout=None, stderr=None)
        while True:
            try:
                async with await anyio.connect_tcp("127.0.0.1", self.port):
                    return
            except OSError:
                await anyio.sleep(0.05)

    async def stop(self) -> None:
        if self.process is not None:
            if self.process.returncode is None:
                self.process.kill()
            await self.process.aclose()
            self.process = None

    async def ensure(self) -> None:
        """Start an HTTP server that has died again."""
        if self.transport != "stdio" and (self.process is None or await _ended(self.process)):
            await self.stop()
            await self.start()

    def client(self) -> Client:
        self.opened += 1
        if self.transport == "streamable-http":
            return Client(f"http://127.0.0.1:{self.port}/mcp", mode="legacy")
        if self.transport == "sse":
            return Client(sse_client(f"http://127.0.0.1:{self.port}/sse"))
        return Client(StdioServerParameters(command=sys.executable, args=self.arguments))


async def _ended(process: Any) -> bool:
    with anyio.move_on_after(0.2):
        await process.wait()
        return True
    return False


def may_die(_backend: str, transport: str, how: str, _tool: str) -> bool:
    """Whether a server can: a process that has ended is met as one that ends during the call."""
    return (transport, how) != ("stdio", "before")


@pytest.mark.parametrize(
    ("anyio_backend", "transport", "how", "tool"),
    covering(
        ("asyncio", "trio"), ("stdio", "streamable-http", "sse"), ("during", "before"), CALLS,
        together=2, where=may_die,
    ),
)  # fmt: skip
async def test_reads_go_on_with_a_new_session_and_effects_in_doubt_are_asked(
    tmp_path: Path, transport: str, how: str, tool: str
) -> None:
    shop = Shop(tmp_path, transport, how)
    await shop.ensure()
    answers: list[str] = []

    async def agent(task: str) -> str:
        await shop.ensure()
        result = await client.call_tool(tool, CALLS[tool])
        answers.append(str(getattr(result.content[0], "text", "")))
        return answers[-1]

    try:
        async with record(shop.client, trusted=True) as client:
            if how == "before":
                await client.call_tool("look", {"what": "nothing"})
                await shop.stop()
                await shop.start()
            wrapped = Agent(agent, environment=VirtualTime())
            if how == "during" and tool != "look":
                with pytest.raises(TriageSuspendedError) as caught:
                    await wrapped.run("go")
                assert await wrapped.resume(caught.value.token, happened("receipt")) == "receipt"
            else:
                await wrapped.run("go")
    finally:
        await shop.stop()
    assert shop.opened == 2 or (how == "during" and tool != "look")
    twice = how == "during" and tool == "look"
    assert shop.ledger[-2 if twice else -1 :] == [tool] * (2 if twice else 1)
    assert shop.ledger.count(tool) == 1 + twice + (how == "before" and tool == "look")


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_factory_that_fails_is_an_outage_like_another(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "stdio", "never")
    failures = [ConnectionRefusedError("refused"), OSError("no route")]

    def factory() -> Client:
        if failures:
            raise failures.pop()
        return shop.client()

    async with record(factory) as client:

        async def agent(task: str) -> str:
            result = await client.call_tool("pay", CALLS["pay"])
            return str(getattr(result.content[0], "text", ""))

        assert await Agent(agent, environment=VirtualTime()).run("go") == "receipt"
    assert shop.ledger == ["pay"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_session_that_was_given_says_once_gone_what_would_open_it_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(tmp_path, "stdio", "during")
    async with shop.client() as plain:
        client = record(plain, trusted=True)

        async def agent(task: str) -> Any:
            return await client.call_tool("pay", CALLS["pay"])

        with pytest.raises(TriageSuspendedError):
            await Agent(agent, environment=VirtualTime()).run("go")
    assert "the MCP session is gone" in caplog.text
    assert shop.ledger == ["pay"]


@table(
    ("code", "message", "opened", "asks"),
    [
        (-32600, "Session terminated", 2, False),
        (-32600, "Session not found", 2, False),
        (-32001, "Session not found", 2, False),
        (-32600, "Sitzung abgelaufen", 2, True),
        (-32001, "unknown Mcp-Id", 2, True),
        (-32000, "Bad Request: Server not initialized", 2, True),
        (-32600, "server answered a request with 202 Accepted", 2, True),
        (-32700, "Failed to parse JSON response: 1 validation error", 1, True),
        (-32602, "no such tool", 1, False),
        (-32603, "boom", 1, True),
    ],
)
async def test_a_session_is_gone_by_its_code_and_only_a_refusal_of_it_never_ran(
    code: int, message: str, opened: int, *, asks: bool
) -> None:
    server = MCPServer("shop")
    errors = [MCPError(code, message)]
    count: list[int] = []

    @server.tool()
    async def pay(cents: int) -> str:
        if errors:
            raise errors.pop()
        return "receipt"

    def opens() -> Client:
        count.append(1)
        return Client(server)

    async with record(opens, effects={"pay": "once"}) as client:

        async def agent(task: str) -> Any:
            return await client.call_tool("pay", {"cents": 300})

        wrapped = Agent(agent, RETRY, environment=VirtualTime())
        with pytest.raises(TriageSuspendedError) if asks else nullcontext():
            await wrapped.run("go")
        await client.call_tool("pay", {"cents": 300})
    assert len(count) == opened


async def test_what_opens_sessions_has_to_be_entered_first() -> None:
    def never() -> Client:
        raise AssertionError("nothing is opened")

    client = record(never)
    assert record(client) is client
    with pytest.raises(UsageError, match="enter the session first"):
        await client.call_tool("look", {})
