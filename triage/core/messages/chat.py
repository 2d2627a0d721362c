"""OpenAI chat messages and completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from . import reading
from .neutral import Answer, Asked, Message, Result, Role, Tell, tell_nobody
from .wires import ProviderWire

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "model",
    "tool": "tool",
    "function": "tool",
}
_LEGACY = "function:"
"""Prefix of the id, made from the function's name, of calls in the old form without ids."""


class ChatWire(ProviderWire):
    """Each result is a message of its own after the assistant's message that asked for it."""

    ends_at_once = False  # the usage follows the finish reason

    def read(self, message: Any, tell: Tell = tell_nobody) -> Message:
        found = reading.mapping(reading.as_data(message))
        role, content = reading.as_text(found.get("role")), found.get("content")
        if role not in _ROLES:
            known = ", ".join(_ROLES)
            tell(f"a message has the role {role[:40]!r}", f"the roles are {known}")
        speaker = _ROLES.get(role, "system")
        if speaker == "tool":
            name = reading.as_text(found.get("name"))
            id_ = (
                f"{_LEGACY}{name}"
                if role == "function"
                else reading.as_text(found.get("tool_call_id"))
            )
            failed = found.get("status") == "error" or found.get("is_error") is True
            return Message(
                "tool", results=(Result(id_, reading.result_value(content), name, failed),)
            )
        refusal = reading.text_or_none(found.get("refusal"))
        calls = [_asked(call) for call in reading.listed(found.get("tool_calls"))]
        legacy = reading.mapping(found.get("function_call"))
        if legacy:
            name = reading.as_text(legacy.get("name"))
            calls.append(Asked(_LEGACY + name, name, reading.arguments(legacy.get("arguments"))))
        return Message(
            speaker,
            refusal or reading.content_text(content),
            tuple(calls),
            usage=reading.usage_of(found.get("usage"), found.get("model")),
            ended="refusal" if refusal else reading.text_or_none(found.get("finish_reason")),
        )

    def result(self, asked: Asked, text: str, *, failed: bool) -> Any:
        if asked.id.startswith(_LEGACY):
            return {"role": "function", "name": asked.name, "content": text}
        return {"role": "tool", "tool_call_id": asked.id, "content": text}

    def masked(self, message: Any, outputs: Mapping[int, str]) -> Any:
        return {**reading.as_data(message), "content": outputs[0]}

    def answer(self, response: Any) -> Answer:
        return self.choice(reading.mapping(response)).answer

    def choice(self, response: Mapping[str, Any]) -> Message:
        """Read the first choice of a completion."""
        choices = reading.listed(response.get("choices"))
        choice = reading.mapping(choices[0]) if choices else {}
        said = self.read({**reading.mapping(choice.get("message")), "role": "assistant"})
        return replace(
            said,
            usage=reading.usage_of(response.get("usage"), response.get("model")),
            ended=said.ended or reading.text_or_none(choice.get("finish_reason")),
        )

    def whole(self, pieces: list[Any]) -> dict[str, Any]:
        """Assemble the first choice of a completion from its chunks."""
        found: dict[str, Any] = {}
        message: dict[str, Any] = {"role": "assistant", "content": None}
        calls: dict[int, dict[str, Any]] = {}
        ended: Any = None
        for piece in map(reading.mapping, pieces):
            found |= {key: piece[key] for key in ("id", "model", "created") if key in piece}
            if piece.get("usage"):
                found["usage"] = piece["usage"]
            for choice in map(reading.mapping, reading.listed(piece.get("choices"))[:1]):
                ended = choice.get("finish_reason") or ended
                delta = reading.mapping(choice.get("delta"))
                for name in ("content", "refusal"):
                    if delta.get(name):
                        message[name] = (message.get(name) or "") + delta[name]
                for part in map(reading.mapping, reading.listed(delta.get("tool_calls"))):
                    empty = {"name": "", "arguments": ""}
                    call = calls.setdefault(
                        part.get("index", len(calls)),
                        {"id": "", "type": "function", "function": empty},
                    )
                    call["id"] = part.get("id") or call["id"]
                    for name, text in reading.mapping(part.get("function")).items():
                        if name in empty:
                            call["function"][name] += text or ""
        if calls:
            message["tool_calls"] = list(calls.values())
        return {**found, "choices": [{"index": 0, "message": message, "finish_reason": ended}]}

    def is_whole(self, pieces: list[Any]) -> bool:
        ended: dict[Any, bool] = {}
        for piece in pieces:
            for choice in map(
                reading.mapping, reading.listed(reading.mapping(piece).get("choices"))
            ):
                at = choice.get("index", 0)
                ended[at] = ended.get(at, False) or bool(choice.get("finish_reason"))
        return bool(ended) and all(ended.values())

    def turn(self, response: Any) -> list[Any]:
        message = response["choices"][0]["message"]
        names = ("role", "content", "tool_calls", "refusal")
        kept = {name: message[name] for name in names if message.get(name)}
        return [{"content": None, **kept}]

    def declared(self, name: str, description: str | None, schema: Any) -> dict[str, Any]:
        function: dict[str, Any] = {"name": name}
        if description:
            function["description"] = description
        if schema is not None:
            function["parameters"] = schema
        return {"type": "function", "function": function}


def _asked(call: Any) -> Asked:
    outer = reading.mapping(reading.as_data(call))
    inner = reading.mapping(outer.get("function")) or reading.mapping(outer.get("custom"))
    given = inner.get("arguments", inner.get("input"))
    return Asked(
        reading.as_text(outer.get("id")),
        reading.as_text(inner.get("name")),
        reading.arguments(given),
    )


CHAT = ChatWire()
