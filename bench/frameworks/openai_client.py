"""OpenAI's own client in a plain loop: bare, with the client's retries, and recorded."""

from __future__ import annotations

import json
from typing import Any

import openai

from bench.frameworks._client import TURNS, framework
from triage.adapters.openai import record


def _client(url: str, tries: int) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=tries)


async def _loop(client: Any, tools: dict[str, Any], messages: list[Any]) -> str:
    named = [{"type": "function", "function": {"name": name}} for name in tools]
    for _ in range(TURNS):
        response = await client.chat.completions.create(model="m", messages=messages, tools=named)
        message = response.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return str(message.content)
        for call in message.tool_calls:
            found = await tools[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(found)})
    raise RuntimeError("no end")


FRAMEWORK = framework("openai client", _client, record, _loop)
