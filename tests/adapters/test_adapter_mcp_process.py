"""A session with an MCP server that is a process of its own."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from support import always

from triage import Agent, Effect, Retry, UsageError
from triage.adapters.mcp import record
from triage.core import Event, StepRecorded
from triage.core.capture import capture

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]

# The first exception that is read looks where packages are installed, which no test's loop may do.
capture(UsageError())


SERVER = """
    from mcp.server.mcpserver import MCPServer
    from mcp.types import ToolAnnotations

    server = MCPServer("files")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def read(path: str) -> str:
        return f"contents of {path}"

    server.run()
"""


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_server_of_its_own_process_is_recorded(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(textwrap.dedent(SERVER), encoding="utf-8")
    events: list[Event] = []
    failures = [ConnectionError("reset")]
    async with Client(StdioServerParameters(command=sys.executable, args=[str(script)])) as plain:
        client = record(plain)

        async def agent(task: str) -> str:
            result = await client.call_tool("read", {"path": "a.txt"})
            if failures:
                raise failures.pop()
            return str(getattr(result.content[0], "text", ""))

        policy = always(Retry())
        result = await Agent(agent, policy, observers=[events.append]).run("go")
    assert result == "contents of a.txt"
    steps = [event.step for event in events if isinstance(event, StepRecorded)]
    assert [(step.tool_called, step.effect) for step in steps] == [("read", Effect.READ)] * 2
    assert (steps[1].metadata or {})["replayed"]
