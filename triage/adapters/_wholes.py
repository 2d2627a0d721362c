"""Whole answers from the pieces of a stream, as the provider would have sent them at once."""

from __future__ import annotations

import json
from typing import Any

from triage.traces._values import listed, mapping


def whole_chat(pieces: list[Any]) -> dict[str, Any]:
    """A chat completion from its chunks; of several choices the first."""
    found: dict[str, Any] = {}
    message: dict[str, Any] = {"role": "assistant", "content": None}
    calls: dict[int, dict[str, Any]] = {}
    ended: Any = None
    for piece in map(mapping, pieces):
        found |= {key: piece[key] for key in ("id", "model", "created") if key in piece}
        if piece.get("usage"):
            found["usage"] = piece["usage"]
        for choice in map(mapping, listed(piece.get("choices"))[:1]):
            ended = choice.get("finish_reason") or ended
            delta = mapping(choice.get("delta"))
            for name in ("content", "refusal"):
                if delta.get(name):
                    message[name] = (message.get(name) or "") + delta[name]
            for part in map(mapping, listed(delta.get("tool_calls"))):
                _add_call(calls, part)
    if calls:
        message["tool_calls"] = list(calls.values())
    return {**found, "choices": [{"index": 0, "message": message, "finish_reason": ended}]}


def _add_call(calls: dict[int, dict[str, Any]], part: Any) -> None:
    empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
    call = calls.setdefault(part.get("index", len(calls)), empty)
    function = mapping(part.get("function"))
    call["id"] = part.get("id") or call["id"]
    for name in ("name", "arguments"):
        call["function"][name] += function.get(name) or ""


def chat_ended(pieces: list[Any]) -> bool:
    """Whether chunks came to the end of their answer: a choice says why it ended."""
    choices = (mapping(one) for piece in pieces for one in listed(mapping(piece).get("choices")))
    return any(choice.get("finish_reason") for choice in choices)


def response_ended(pieces: list[Any]) -> bool:
    """Whether events of the Responses API came to the end of their answer, well or not."""
    return any(mapping(piece).get("type") in _LAST for piece in pieces[-2:])


_LAST = ("response.completed", "response.incomplete", "response.failed", "error")


def message_ended(pieces: list[Any]) -> bool:
    """Whether events of Anthropic's came to the end of their answer."""
    return any(mapping(piece).get("type") in ("message_stop", "error") for piece in pieces[-2:])


def whole_response(pieces: list[Any]) -> Any:
    """A response of the Responses API: the last event that holds one."""
    for piece in reversed(pieces):
        response = mapping(piece).get("response")
        if response is not None:
            return response
    return {}


def whole_message(pieces: list[Any]) -> dict[str, Any]:
    """A message of Anthropic's from its events."""
    found: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    inputs: dict[int, str] = {}
    for piece in map(mapping, pieces):
        at = piece.get("index", 0)
        delta = mapping(piece.get("delta"))
        match piece.get("type"):
            case "message_start":
                found = dict(mapping(piece.get("message")))
            case "content_block_start":
                blocks[at] = dict(mapping(piece.get("content_block")))
            case "content_block_delta" if at in blocks:
                _add_delta(blocks[at], inputs, at, delta)
            case "message_delta":
                found |= {key: value for key, value in delta.items() if value is not None}
                usage = {**mapping(found.get("usage")), **mapping(piece.get("usage"))}
                found["usage"] = usage
            case _:
                pass
    for at, text in inputs.items():
        blocks[at]["input"] = _read(text)
    return {**found, "content": list(blocks.values())}


def _add_delta(block: dict[str, Any], inputs: dict[int, str], at: int, delta: Any) -> None:
    if delta.get("type") == "input_json_delta":
        inputs[at] = inputs.get(at, "") + (delta.get("partial_json") or "")
    for name in ("text", "thinking", "signature"):
        if isinstance(delta.get(name), str):
            block[name] = (block.get(name) or "") + delta[name]


def _read(text: str) -> Any:
    try:
        return json.loads(text) if text else {}
    except ValueError:
        return text
