"""OpenAI's own client in a plain loop: bare, with the client's retries, and recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

import openai

from bench.adapters import TRIES, Task, client_framework
from triage.adapters.openai import record

TURNS = 60


def _loop(client: Any, task: Task) -> Callable[[str], Coroutine[Any, Any, str]]:
    tools = {tool.__name__: tool for tool in task.tools}
    named = [{"type": "function", "function": {"name": name}} for name in tools]

    async def ask(given: str) -> str:
        messages: list[Any] = [{"role": "user", "content": given}]
        for _ in range(TURNS):
            create = client.chat.completions.create
            message = (await create(model="m", messages=messages, tools=named)).choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return str(message.content)
            for call in message.tool_calls:
                found = str(await tools[call.function.name](**json.loads(call.function.arguments)))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": found})
        raise RuntimeError("no end")

    return ask


FRAMEWORK = client_framework(
    "openai client",
    lambda url: openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0),
    lambda url: openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=TRIES),
    record,
    _loop,
)
