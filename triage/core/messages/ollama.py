"""Messages of Ollama's chat: OpenAI's form, with arguments as objects and results by tool name."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from msgspec.structs import replace

from .chat import ChatWire
from .neutral import Answer, Asked, Message, Result, Tell, tell_nobody
from .reading import as_data, listed, mapping, text_or_none, usage_of


class OllamaWire(ChatWire):
    """A result belongs to the first call of its tool without one; without a name, to the first call."""

    ends_at_once = True

    def read(self, message: Any, tell: Tell = tell_nobody) -> Message:
        found = mapping(as_data(message))
        if "tool_name" in found:
            found = {**found, "name": found["tool_name"]}
        return super().read(found, tell)

    def key(self, one: Asked | Result) -> Hashable:
        return one.name

    def pairs(self, read: list[Message]) -> dict[tuple[int, int], tuple[int, int]]:
        named: list[Message] = []
        waiting: list[str] = []
        for said in read:
            waiting = [call.name for call in said.calls] or waiting
            results: list[Result] = []
            for result in said.results:
                name = result.name or next(iter(waiting), "")
                if name in waiting:
                    waiting.remove(name)
                results.append(replace(result, name=name))
            named.append(replace(said, results=tuple(results)))
        return super().pairs(named)

    def result(self, asked: Asked, text: str, *, failed: bool) -> Any:
        made = {"role": "tool", "tool_name": asked.name, "content": text}
        return {**made, "tool_call_id": asked.id} if asked.id else made

    def answer(self, response: Any) -> Answer:
        found = mapping(response)
        said = self.read({**mapping(found.get("message")), "role": "assistant"})
        used = {
            "input_tokens": found.get("prompt_eval_count"),
            "output_tokens": found.get("eval_count"),
        }
        usage = usage_of(used, found.get("model"))
        return replace(said.answer, usage=usage, ended=text_or_none(found.get("done_reason")))

    def whole(self, pieces: list[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        words: list[str] = []
        calls: list[Any] = []
        for piece in map(mapping, pieces):
            found |= piece
            message = mapping(piece.get("message"))
            words += filter(None, (text_or_none(message.get("content")),))
            calls += listed(message.get("tool_calls"))
        made: dict[str, Any] = {"role": "assistant", "content": "".join(words)}
        return {**found, "message": {**made, "tool_calls": calls} if calls else made}

    def is_whole(self, pieces: list[Any]) -> bool:
        return any(mapping(piece).get("done") is True for piece in pieces[-1:])

    def turn(self, response: Any) -> list[Any]:
        return [response["message"]]


OLLAMA = OllamaWire()
