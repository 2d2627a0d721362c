"""Pydantic AI's agent: bare, with retries of its transport and of its tools, and wrapped."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import openai
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from bench.adapters import TRIES, Framework, Task


def _agent(task: Task, url: str, *, tries: int = 0, **options: Any) -> Agent[None, str]:
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=tries)
    model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))
    return Agent(model, **{"tools": task.tools, **options})


def _own(task: Task, url: str) -> Agent[None, str]:
    """As its pages say: the client's retries, and `ModelRetry` from tools that fail."""
    tools = [_told(tool) for tool in task.tools]
    return _agent(task, url, tries=TRIES, tools=tools, retries=TRIES)


def _told(tool: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(tool)
    async def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return await tool(*args, **kwargs)
        except (ConnectionError, TimeoutError) as error:
            raise ModelRetry(str(error)) from error

    return called


async def _ask(agent: Agent[None, str], given: str) -> str:
    return (await agent.run(given)).output


FRAMEWORK = Framework(
    "pydantic_ai", _agent, _ask, lambda result: str(result.output), own={"with its retries": _own}
)
