"""Anthropic's own client in a plain loop: bare, with the client's retries, and recorded."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import anthropic

from bench.adapters import TRIES, Task, client_framework
from triage.adapters.anthropic import record

TURNS = 60


def _loop(client: Any, task: Task) -> Callable[[str], Coroutine[Any, Any, str]]:
    tools = {tool.__name__: tool for tool in task.tools}
    named = [{"name": name, "input_schema": {"type": "object"}} for name in tools]

    async def ask(given: str) -> str:
        messages: list[Any] = [{"role": "user", "content": given}]
        for _ in range(TURNS):
            message = await client.messages.create(
                model="m", max_tokens=100, messages=messages, tools=named
            )
            said = [block.model_dump(exclude_unset=True) for block in message.content]
            messages.append({"role": "assistant", "content": said})
            calls = [block for block in message.content if block.type == "tool_use"]
            if not calls:
                return "".join(block.text for block in message.content)
            results: list[dict[str, Any]] = []
            for call in calls:
                found = str(await tools[call.name](**call.input))
                results.append({"type": "tool_result", "tool_use_id": call.id, "content": found})
            messages.append({"role": "user", "content": results})
        raise RuntimeError("no end")

    return ask


FRAMEWORK = client_framework(
    "anthropic client",
    lambda url: anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0),
    lambda url: anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=TRIES),
    record,
    _loop,
)
