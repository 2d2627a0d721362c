"""Anthropic messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from triage.core.steps import Usage

from . import reading
from .neutral import Answer, Asked, Message, Result, Role, Tell, tell_nobody
from .wires import BlockWire

_SERVER_CALLS = ("server_tool_use", "mcp_tool_use")
_THOUGHTS = ("thinking", "redacted_thinking")


class AnthropicWire(BlockWire):
    """Results are blocks at the start of the user's turn after the one that calls tools."""

    def read(self, message: Any, tell: Tell = tell_nobody) -> Message:
        found = reading.mapping(reading.as_data(message))
        role = reading.as_text(found.get("role"))
        if role not in ("user", "assistant", "system"):
            tell(f"a message has the role {role[:40]!r}", "the roles are user and assistant")
        words: list[Any] = []
        calls: list[Asked] = []
        results: list[Result] = []
        server_calls: list[Asked] = []
        server_results: list[Result] = []
        for block in _blocks(found):
            kind = reading.as_text(reading.mapping(block).get("type"))
            if kind == "tool_use" or kind in _SERVER_CALLS:
                name = reading.as_text(block.get("name"))
                asked = Asked(reading.as_text(block.get("id")), name, block.get("input"))
                (calls if kind == "tool_use" else server_calls).append(asked)
            elif kind == "tool_result" and role == "user":
                results.append(_result(block))
            elif kind.endswith("tool_result"):
                server_results.append(_result(block))
            elif kind not in _THOUGHTS or role == "user":
                words.append(block)
        speaker: Role = "model" if role == "assistant" else "user" if role == "user" else "system"
        return Message(
            "tool" if results else speaker,
            reading.content_text(words),
            tuple(calls),
            tuple(results),
            reading.usage_of(found.get("usage"), found.get("model")),
            reading.text_or_none(found.get("stop_reason")),
            tuple(server_calls),
            tuple(server_results),
        )

    def result(self, asked: Asked, text: str, *, failed: bool) -> Any:
        block = {"type": "tool_result", "tool_use_id": asked.id, "content": text}
        return {**block, "is_error": True} if failed else block

    def blocks(self, message: Any) -> list[Any]:
        return _content(message)

    def is_result(self, block: Any) -> bool:
        return _is_result(block)

    def masked(self, message: Any, outputs: Mapping[int, str]) -> Any:
        blocks = _content(message)
        places = [at for at, block in enumerate(blocks) if _is_result(block)]
        for place, text in outputs.items():
            blocks[places[place]] = {**reading.as_data(blocks[places[place]]), "content": text}
        return {**reading.as_data(message), "content": blocks}

    def ending_with(self, messages: list[Any], text: str) -> list[Any]:
        """Append to the user's last turn, or add one, since two user turns in a row are refused."""
        last = messages[-1] if messages else None
        block = {"type": "text", "text": text}
        if reading.mapping(reading.as_data(last)).get("role") != "user":
            return [*messages, {"role": "user", "content": [block]}]
        return [*messages[:-1], {**reading.as_data(last), "content": [*_content(last), block]}]

    def answer(self, response: Any) -> Answer:
        found = reading.mapping(response)
        said = self.read({**found, "role": "assistant"})
        usage, used = reading.mapping(found.get("usage")), said.usage
        # Tokens read from and written to the cache were sent, too.
        cached = (usage.get("cache_read_input_tokens") or 0) + (
            usage.get("cache_creation_input_tokens") or 0
        )
        if used is not None and cached:
            used = Usage(
                input_tokens=used.input_tokens + cached,
                output_tokens=used.output_tokens,
                cost_usd=used.cost_usd,
                calls=used.calls,
                model=used.model,
            )
        return replace(said.answer, usage=used)

    def whole(self, pieces: list[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        blocks: dict[int, dict[str, Any]] = {}
        inputs: dict[int, str] = {}
        for piece in map(reading.mapping, pieces):
            at = piece.get("index", 0)
            delta = reading.mapping(piece.get("delta"))
            match piece.get("type"):
                case "message_start":
                    found = dict(reading.mapping(piece.get("message")))
                case "content_block_start":
                    blocks[at] = dict(reading.mapping(piece.get("content_block")))
                case "content_block_delta" if at in blocks:
                    if delta.get("type") == "input_json_delta":
                        inputs[at] = inputs.get(at, "") + (delta.get("partial_json") or "")
                    for name in ("text", "thinking", "signature"):
                        if isinstance(delta.get(name), str):
                            blocks[at][name] = (blocks[at].get(name) or "") + delta[name]
                case "message_delta":
                    found |= {key: value for key, value in delta.items() if value is not None}
                    usage = {
                        **reading.mapping(found.get("usage")),
                        **reading.mapping(piece.get("usage")),
                    }
                    found["usage"] = usage
                case _:
                    pass
        for at, text in inputs.items():
            try:
                blocks[at]["input"] = json.loads(text) if text else {}
            except (ValueError, RecursionError):
                blocks[at]["input"] = text
        return {**found, "content": list(blocks.values())}

    def is_whole(self, pieces: list[Any]) -> bool:
        return any(
            reading.mapping(piece).get("type") in ("message_stop", "error") for piece in pieces[-2:]
        )

    def turn(self, response: Any) -> list[Any]:
        return [{"role": "assistant", "content": response["content"]}]

    def declared(self, name: str, description: str | None, schema: Any) -> dict[str, Any]:
        made = {"name": name, "input_schema": schema or {"type": "object"}}
        return {**made, "description": description} if description else made


def _content(message: Any) -> list[Any]:
    """Return the blocks of a message; plain text becomes one block."""
    content = reading.mapping(reading.as_data(message)).get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(content) if isinstance(content, list | tuple) else []


def _blocks(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    return [reading.as_data(block) for block in content] if isinstance(content, list) else [content]


def _is_result(block: Any) -> bool:
    return reading.mapping(reading.as_data(block)).get("type") == "tool_result"


def _result(block: Mapping[str, Any]) -> Result:
    content = block.get("content")
    inner = [reading.mapping(content), *(reading.mapping(part) for part in reading.listed(content))]
    failed = block.get("is_error") is True or any("error_code" in part for part in inner)
    return Result(
        reading.as_text(block.get("tool_use_id")), reading.result_value(content), failed=failed
    )


ANTHROPIC = AnthropicWire()
