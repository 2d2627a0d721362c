"""A chain of LangChain's that calls a model and tools in a loop of its own: bare, and wrapped."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

import triage
from bench.adapters import Framework, Task, policy

TRIES = 3
TURNS = 60


def _chain(task: Task, url: str, tries: int = 0) -> Any:
    model = ChatOpenAI(model="m", base_url=f"{url}/v1", api_key=SecretStr("x"), max_retries=tries)
    tools = {
        tool.__name__: StructuredTool.from_function(coroutine=tool, name=tool.__name__)
        for tool in task.tools
    }
    bound = model.bind_tools(list(tools.values()))

    async def loop(given: str) -> str:
        messages: list[BaseMessage] = [HumanMessage(given)]
        for _ in range(TURNS):
            answer = await bound.ainvoke(messages)
            assert isinstance(answer, AIMessage)
            messages.append(answer)
            if not answer.tool_calls:
                return str(answer.text)
            messages += [
                await tools[call["name"]].ainvoke({**call, "type": "tool_call"})
                for call in answer.tool_calls
            ]
        raise RuntimeError("no end")

    return RunnableLambda(loop)


def _bare(task: Task, url: str) -> Callable[[], Awaitable[str]]:
    return _asked(_chain(task, url))


def _own(task: Task, url: str) -> Callable[[], Awaitable[str]]:
    return _asked(_chain(task, url, TRIES))


def _asked(chain: Any) -> Callable[[], Awaitable[str]]:
    async def run() -> str:
        return str(await chain.ainvoke("go"))

    return run


def _wrapped(task: Task, url: str) -> Callable[[], Awaitable[str]]:
    agent = triage.wrap(_chain(task, url), policy(), effects=task.effects)

    async def run() -> str:
        return str(await agent.run("go"))

    return run


FRAMEWORK = Framework(
    "langchain",
    _bare,
    _wrapped,
    {"a chain": _bare, "with the client's retries": _own, "wrapped": _wrapped},
)
