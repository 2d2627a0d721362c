"""Anthropic's own client in a plain loop: bare, with the client's retries, and recorded."""

from __future__ import annotations

from typing import Any

import anthropic

from bench.frameworks._client import TURNS, framework
from triage.adapters.anthropic import record


def _client(url: str, tries: int) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=tries)


async def _loop(client: Any, tools: dict[str, Any], messages: list[Any]) -> str:
    named = [{"name": name, "input_schema": {"type": "object"}} for name in tools]
    for _ in range(TURNS):
        message = await client.messages.create(
            model="m", max_tokens=100, messages=messages, tools=named
        )
        messages.append(
            {
                "role": "assistant",
                "content": [block.model_dump(exclude_unset=True) for block in message.content],
            }
        )
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in message.content)
        results: list[dict[str, Any]] = []
        for call in calls:
            found = await tools[call.name](**call.input)
            results.append({"type": "tool_result", "tool_use_id": call.id, "content": str(found)})
        messages.append({"role": "user", "content": results})
    raise RuntimeError("no end")


FRAMEWORK = framework("anthropic client", _client, record, _loop)
