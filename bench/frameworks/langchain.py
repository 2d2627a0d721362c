"""A chain of LangChain's that calls a model and tools in a loop of its own: bare, and wrapped."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from bench.adapters import TRIES, Framework, Task

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


async def _ask(chain: Any, given: str) -> str:
    return str(await chain.ainvoke(given))


FRAMEWORK = Framework(
    "langchain", _chain, _ask, str,
    own={"with the client's retries": lambda task, url: _chain(task, url, TRIES)},
)  # fmt: skip
