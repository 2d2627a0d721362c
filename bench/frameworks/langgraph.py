"""LangChain's `create_agent`: bare, with its own middleware for retries, and wrapped."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware, ToolRetryMiddleware
from langchain_core.messages import HumanMessage
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import SecretStr

import triage
from bench.adapters import Framework, Task, policy

TRIES = 3


def _agent(task: Task, url: str, **options: Any) -> Any:
    model = ChatOpenAI(model="m", base_url=f"{url}/v1", api_key=SecretStr("x"), max_retries=0)
    tools = [StructuredTool.from_function(coroutine=tool) for tool in task.tools]
    return create_agent(model, tools, **options)


def _bare(task: Task, url: str) -> Callable[[], Awaitable[str]]:
    return _asked(_agent(task, url))


def _own(task: Task, url: str) -> Callable[[], Awaitable[str]]:
    retries = [
        ModelRetryMiddleware(max_retries=TRIES, initial_delay=0.0),
        ToolRetryMiddleware(max_retries=TRIES, initial_delay=0.0),
    ]
    return _asked(_agent(task, url, middleware=retries))


def _wrapped(task: Task, url: str) -> Callable[[], Awaitable[str]]:
    agent = triage.wrap(_agent(task, url), policy(), effects=task.effects)

    async def run() -> str:
        return _text(await agent.run("go"))

    return run


def _wrapped_with_checkpoints(task: Task, url: str) -> Callable[[], Awaitable[str]]:
    graph = _agent(task, url, checkpointer=InMemorySaver())
    agent = triage.wrap(graph, policy(), effects=task.effects)

    async def run() -> str:
        return _text(await agent.run("go"))

    return run


def _asked(agent: Any) -> Callable[[], Awaitable[str]]:
    async def run() -> str:
        asked = {"messages": [HumanMessage("go")]}
        return _text(await agent.ainvoke(asked, {"recursion_limit": 60}))

    return run


def _text(result: Any) -> str:
    return str(result["messages"][-1].text)


FRAMEWORK = Framework(
    "langgraph",
    _bare,
    _wrapped,
    {
        "create_agent": _bare,
        "with its retry middleware": _own,
        "wrapped": _wrapped,
        "wrapped, with a checkpointer": _wrapped_with_checkpoints,
    },
)
