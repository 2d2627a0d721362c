"""Messages of Cohere's chat, version 2: OpenAI's form, with a plan and results as documents."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from .chat import ChatWire
from .neutral import Answer, Message, Tell, tell_nobody
from .reading import as_data, as_text, listed, mapping, text_or_none, usage_of


class CohereWire(ChatWire):
    """The words beside calls are the model's plan."""

    ends_at_once = True

    def read(self, message: Any, tell: Tell = tell_nobody) -> Message:
        found = mapping(as_data(message))
        if found.get("role") == "tool":
            found = {**found, "content": _documents(found.get("content"))}
        else:
            said = [part for part in listed(found.get("content")) if not _is_thought(part)]
            found = {**found, "content": said or text_or_none(found.get("content"))}
            if found["content"] is None:
                found["content"] = text_or_none(found.get("tool_plan"))
        return super().read(found, tell)

    def shown(self, message: Any) -> Any:
        found = mapping(as_data(message))
        return super().shown({**found, "content": _documents(found.get("content"))})

    def answer(self, response: Any) -> Answer:
        found = mapping(response)
        said = self.read({**mapping(found.get("message")), "role": "assistant"})
        usage = mapping(found.get("usage"))
        used = usage_of(usage.get("tokens")) or usage_of(usage.get("billed_units"))
        ended = as_text(found.get("finish_reason")).lower() or None
        return replace(said.answer, usage=used, ended=ended)

    def whole(self, pieces: list[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        words: dict[Any, str] = {}
        calls: dict[Any, dict[str, Any]] = {}
        plan = ""
        for piece in map(mapping, pieces):
            at = piece.get("index", 0)
            delta = mapping(piece.get("delta"))
            message = mapping(delta.get("message"))
            match piece.get("type"):
                case "content-start" | "content-delta":
                    said = mapping(message.get("content")).get("text")
                    words[at] = words.get(at, "") + as_text(said)
                case "tool-plan-delta":
                    plan += as_text(message.get("tool_plan"))
                case "tool-call-start":
                    calls[at] = dict(mapping(message.get("tool_calls")))
                case "tool-call-delta" if at in calls:
                    function = mapping(calls[at].get("function"))
                    more = mapping(mapping(message.get("tool_calls")).get("function"))
                    text = as_text(function.get("arguments")) + as_text(more.get("arguments"))
                    calls[at]["function"] = {**function, "arguments": text}
                case "message-end":
                    found |= delta
                case _:
                    pass
        content = [{"type": "text", "text": text} for text in words.values()]
        made: dict[str, Any] = {"role": "assistant", "content": content}
        if calls:
            made |= {"tool_plan": plan, "tool_calls": list(calls.values())}
        return {**found, "message": made}

    def is_whole(self, pieces: list[Any]) -> bool:
        return any(mapping(piece).get("type") == "message-end" for piece in pieces[-2:])

    def turn(self, response: Any) -> list[Any]:
        message = response["message"]
        names = ("role", "content", "tool_plan", "tool_calls")
        return [{name: message[name] for name in names if message.get(name)}]


def _is_thought(part: Any) -> bool:
    return mapping(part).get("type") == "thinking"


def _documents(content: Any) -> Any:
    """Return a result's content with the text of its documents, whose data are JSON or text."""
    texts: list[Any] = []
    for part in listed(content):
        data = mapping(mapping(part).get("document")).get("data")
        if data is None:
            texts.append(part)
            continue
        alone = mapping(data).get("data") if len(mapping(data)) == 1 else None
        texts.append({"type": "text", "text": as_text(data if alone is None else alone)})
    return texts or content


COHERE = CohereWire()
