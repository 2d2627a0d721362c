"""Pydantic AI's agent: bare, with retries of its transport and of its tools, and wrapped."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import openai
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import triage
from bench.adapters import Framework, Task, policy

TRIES = 3


def _agent(task: Task, url: str, *, tries: int = 0, **options: Any) -> Agent[None, str]:
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=tries)
    model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))
    return Agent(model, **{"tools": task.tools, **options})


def _bare(task: Task, url: str) -> Callable[[], Awaitable[str]]:
    return _asked(_agent(task, url))


def _own(task: Task, url: str) -> Callable[[], Awaitable[str]]:
    """As its pages say: the client's retries, and `ModelRetry` from tools that fail."""
    tools = [_told(tool) for tool in task.tools]
    return _asked(_agent(task, url, tries=TRIES, tools=tools, retries=TRIES))


def _told(tool: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(tool)
    async def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return await tool(*args, **kwargs)
        except (ConnectionError, TimeoutError) as error:
            raise ModelRetry(str(error)) from error

    return called


def _wrapped(task: Task, url: str) -> Callable[[], Awaitable[str]]:
    agent = triage.wrap(_agent(task, url), policy(), effects=task.effects)

    async def run() -> str:
        return str((await agent.run("go")).output)

    return run


def _asked(agent: Agent[None, str]) -> Callable[[], Awaitable[str]]:
    async def run() -> str:
        return (await agent.run("go")).output

    return run


FRAMEWORK = Framework(
    "pydantic_ai", _bare, _wrapped, {"Agent": _bare, "with its retries": _own, "wrapped": _wrapped}
)
