"""An agent without a framework whose tools are an MCP server's, one of which fails in the middle.

    python examples/mcp_tools.py

The server runs in this process; a URL or StdioServerParameters in its place is all that another one
needs. What it says of its tools decides what is called again after the failure. Needs the extra mcp.
"""

from __future__ import annotations

import asyncio
from typing import Any

from mcp import Client
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from triage import Agent, FailurePolicy
from triage.adapters.mcp import record
from triage.strategies import Backoff, backoff_and_retry

server = MCPServer("shop")
outages = iter([1])


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def bill(customer: int) -> int:
    """The open bill of a customer, in cents."""
    print(f"  bill of customer {customer}")
    return 300


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
async def charge(customer: int, cents: int) -> str:
    """Charge a customer's card."""
    print(f"  charging customer {customer}: {cents} cents")
    return "receipt 5"


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
async def file(receipt: str) -> str:
    """Put a receipt where it belongs."""
    print(f"  filing {receipt}")
    if next(outages, None):
        raise ToolError("the archive is overloaded")
    return "filed"


async def used(client: Client, tool: str, **arguments: Any) -> Any:
    """What a tool gave. Raises RuntimeError for a result that is an error."""
    result = await client.call_tool(tool, arguments)
    text = " ".join(getattr(part, "text", "") for part in result.content)
    if result.is_error:
        raise RuntimeError(text)
    return text


async def main() -> None:
    """Pay a bill and file the receipt."""
    async with Client(server) as plain:
        client = record(plain, trusted=True)

        async def pays(customer: int) -> str:
            cents = await used(client, "bill", customer=customer)
            receipt = await used(client, "charge", customer=customer, cents=int(cents))
            return f"{receipt} is {await used(client, 'file', receipt=receipt)}"

        retry = backoff_and_retry(max_attempts=3, backoff=Backoff(base=0.1))
        agent = Agent(pays, FailurePolicy(default=retry))
        print(await agent.run(7))


if __name__ == "__main__":
    asyncio.run(main())
