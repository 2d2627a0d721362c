"""LangChain: any runnable. Its model calls and tool calls are recorded wherever in it they are made.

    agent = triage.wrap(prompt | model | parser, policy)
    await agent.run({"topic": "bees"}, config={"tags": ["x"]})

Graphs, and so the agents of `langchain.agents.create_agent`, have an adapter of their own that knows
their checkpoints: triage.adapters.langgraph.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from triage._capture import hint
from triage.taxonomy import Cause, Effect, FailureType
from triage.traces._values import content_text

from ._langchain_hooks import entered
from ._langchain_parts import clients_in, layers_in, tools_in
from ._langchain_scope import Scope
from .base import Adapter, Seam, SoftFailure

__all__ = ["LangChainAdapter"]

_log = logging.getLogger("triage.retries")

_LIMITS = re.compile(
    r"Sorry, need more steps to process this request\.\Z"
    r"|Model call limits exceeded: "
    r"|(?:Tool|'[^']*' tool) call limit reached: "
)
"""What `create_react_agent` and the limiting middlewares of LangChain say in the model's place."""
_OUT_OF_STEPS = ("ModelCallLimitExceededError", "ToolCallLimitExceededError")
_GAVE_UP = re.compile(r"Model call failed after \d+ attempts? with (\w+)")
"""What `ModelRetryMiddleware` says in the model's place."""


class LangChainAdapter(Adapter):
    """Runs any runnable of LangChain: `run(input, config=…, **options)` is its `ainvoke`."""

    name = "langchain"

    def __init__(self, target: Any, *, effects: Mapping[str, Effect | str] | None = None) -> None:
        super().__init__(target, effects=effects)
        for layer in layers_in(target):
            _log.warning("%s. Each retry of triage's is multiplied by these.", layer)

    async def attempt(self, seam: Seam, task: Any, *, config: Any = None, **options: Any) -> Any:
        """One `ainvoke` of the runnable."""
        with entered(Scope(seam)), named():
            return await self.target.ainvoke(task, config, **options)

    def soft_failure(self, result: Any) -> BaseException | None:
        """The last message where it stands for a failure: of a tool, or said in the model's place."""
        message = last_message(result)
        if isinstance(message, ToolMessage) and message.status == "error":
            return SoftFailure(f"it ended with a failed tool call: {_words(message)}")
        if not isinstance(message, AIMessage) or message.tool_calls:
            return None
        if message.invalid_tool_calls:
            name = message.invalid_tool_calls[0]["name"]
            text = f"it ended with a call of {name} whose arguments cannot be read"
            return SoftFailure(text, failure_type=FailureType.SCHEMA_MISMATCH)
        text = _words(message)
        if _GAVE_UP.match(text):
            return SoftFailure(text)
        if _LIMITS.match(text):
            return SoftFailure(
                text, failure_type=FailureType.PLAN_INCOMPLETE, cause=Cause.STEP_BUDGET
            )
        return None

    def tools(self) -> Mapping[str, Any] | None:
        """The tools that nodes of the graph run, with their schemas."""
        return tools_in(self.target) or None

    def clients(self) -> Iterable[object]:
        """The models, and the middleware that retries."""
        return clients_in(self.target)


@contextmanager
def named() -> Generator[None]:
    """Say of errors whose names tell it what went wrong, as their words do not."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ in _OUT_OF_STEPS:
            hint(error, failure_type=FailureType.PLAN_INCOMPLETE, cause=Cause.STEP_BUDGET)
        raise


def last_message(result: Any) -> BaseMessage | None:
    """The message that a result is, or ends with."""
    messages: Any = result
    if isinstance(result, Mapping):
        messages = result.get("messages")
    if isinstance(messages, list) and messages:
        messages = messages[-1]
    return messages if isinstance(messages, BaseMessage) else None


def _words(message: BaseMessage) -> str:
    return content_text(message.content)
