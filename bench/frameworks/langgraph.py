"""LangChain's `create_agent`: bare, with its own middleware for retries, and wrapped."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware, ToolRetryMiddleware
from langchain_core.messages import HumanMessage
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import SecretStr

from bench.adapters import TRIES, Framework, Task


def _agent(task: Task, url: str, **options: Any) -> Any:
    model = ChatOpenAI(model="m", base_url=f"{url}/v1", api_key=SecretStr("x"), max_retries=0)
    tools = [StructuredTool.from_function(coroutine=tool) for tool in task.tools]
    return create_agent(model, tools, **options)


def _own(task: Task, url: str) -> Any:
    retries = (
        ModelRetryMiddleware(max_retries=TRIES, initial_delay=0.0),
        ToolRetryMiddleware(max_retries=TRIES, initial_delay=0.0),
    )
    return _agent(task, url, middleware=retries)


async def _ask(agent: Any, given: str) -> str:
    return _text(await agent.ainvoke({"messages": [HumanMessage(given)]}, {"recursion_limit": 60}))


def _text(result: Any) -> str:
    return str(result["messages"][-1].text)


FRAMEWORK = Framework(
    "langgraph", _agent, _ask, _text,
    own={"with its retry middleware": _own},
    also={
        "wrapped, with a checkpointer": lambda task, url: _agent(
            task, url, checkpointer=InMemorySaver()
        )
    },
)  # fmt: skip
