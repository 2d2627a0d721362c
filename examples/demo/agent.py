"""The agent: a plain tool-calling loop against `openai.AsyncOpenAI`. It handles no failure at all.

The same function body runs bare, under tenacity and under triage: what triage would inject has a
default that does nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from triage import Step, Usage

from .tools import TOOLS, definitions

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx
    from openai import AsyncOpenAI, AsyncStream
    from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam
    from openai.types.chat import ChatCompletionMessageFunctionToolCallParam as ToolCall
    from openai.types.chat.chat_completion_chunk import ChoiceDelta

MAX_TURNS = 6
"""Model calls of one attempt before the agent gives up."""

SYSTEM = (
    "You are the travel desk. Use the tools; all amounts are in cents. When you are done, answer"
    ' with one JSON object and nothing else: {"order_id": integer or null, "fare_id": string,'
    ' "cents": integer (the total), "receipt": string or null}.'
)


class Answer(BaseModel):
    """What the agent returns: the fare, the total in cents, and the receipt if it paid."""

    order_id: int | None
    fare_id: str
    cents: int
    receipt: str | None


class Turn:
    """One assistant message, put together from the pieces of its stream."""

    def __init__(self) -> None:
        self.content = ""
        self.calls: list[ToolCall] = []
        self.usage: Usage | None = None
        self.finish_reason: str | None = None

    async def read(self, stream: AsyncStream[ChatCompletionChunk]) -> None:
        """Take the stream to its end. Raises what the client raises, EOFError for an early end."""
        async for chunk in stream:
            if chunk.usage is not None:
                counts = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
                self.usage = Usage(*counts, model=chunk.model)
            for choice in chunk.choices:
                self._add(choice.delta)
                self.finish_reason = choice.finish_reason or self.finish_reason
        if self.finish_reason is None:
            raise EOFError("the model's stream ended before its answer did")

    def _add(self, delta: ChoiceDelta) -> None:
        self.content += delta.content or ""
        for piece in delta.tool_calls or ():
            if piece.index == len(self.calls):
                empty: ToolCall = {
                    "id": piece.id or "",
                    "type": "function",
                    "function": {"name": "", "arguments": ""},
                }
                self.calls.append(empty)
            if piece.function is not None:
                function = self.calls[piece.index]["function"]
                function["name"] += piece.function.name or ""
                function["arguments"] += piece.function.arguments or ""

    def message(self) -> ChatCompletionMessageParam:
        """The turn as the next request repeats it."""
        if not self.calls:
            return {"role": "assistant", "content": self.content}
        return {"role": "assistant", "content": self.content or None, "tool_calls": self.calls}


def _ignore(*_: object) -> None:
    """What a bare run does with steps and usage."""


@dataclass
class TravelDesk:
    """An agent and what it works with: the model's client, the tools' client, the model's name.

    on_call: told each tool call that was answered: name, arguments, output. model_calls, tokens:
    counted over all attempts, however they end.
    """

    client: AsyncOpenAI
    http: httpx.AsyncClient
    model: str
    on_call: Callable[[str, Any, Any], object] = _ignore
    model_calls: int = 0
    tokens: int = 0

    async def book(
        self,
        task: str,
        *,
        record_step: Callable[[Step], object] = _ignore,
        record_usage: Callable[[Usage], object] = _ignore,
        _triage_hint: str | None = None,
    ) -> Answer:
        """Do the task. Raises RuntimeError after `MAX_TURNS`, and whatever went wrong otherwise."""
        messages: list[ChatCompletionMessageParam] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": task},
        ]
        if _triage_hint is not None:
            messages.append({"role": "system", "content": _triage_hint})
        for _ in range(MAX_TURNS):
            turn = await self._ask(messages)
            if turn.usage is not None:
                self.tokens += turn.usage.total_tokens
                record_usage(turn.usage)
            messages.append(turn.message())
            if not turn.calls:
                record_step(Step(action="answer", llm_output=turn.content))
                return Answer.model_validate_json(turn.content)
            for call in turn.calls:
                output = await self._use(call, record_step)
                messages.append(
                    {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(output)}
                )
        raise RuntimeError(f"no answer after {MAX_TURNS} turns")

    async def _ask(self, messages: list[ChatCompletionMessageParam]) -> Turn:
        self.model_calls += 1
        turn = Turn()
        stream = await self.client.chat.completions.create(
            model=self.model,
            messages=messages,
            tools=definitions(),
            stream=True,
            stream_options={"include_usage": True},
        )
        async with stream:
            await turn.read(stream)
        return turn

    async def _use(self, call: ToolCall, record_step: Callable[[Step], object]) -> Any:
        name, text = call["function"]["name"], call["function"]["arguments"]
        try:
            tool = TOOLS[name]
        except KeyError:
            error = f"unknown tool {name!r}"
            record_step(Step(action=name, tool_called=name, tool_input=_loads(text), error=error))
            raise LookupError(error) from None
        try:
            arguments = tool.arguments.model_validate_json(text).model_dump()
        except ValueError as problem:
            step = Step(action=name, tool_called=name, tool_input=_loads(text), error=str(problem))
            record_step(step)
            raise
        output = await tool.call(self.http, **arguments)
        self.on_call(name, arguments, output)
        return output


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
