"""Whether a provider would take a request: its history, its hint, nothing of ours in it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ._script import Request


def check_wire(requests: Iterable[Request]) -> None:
    """Raise AssertionError for the first request that a provider would refuse."""
    for number, request in enumerate(requests, 1):
        problem = _OF.get(request.protocol, _chat)(request.body)
        if "triage" in json.dumps(request.body, default=str).lower():
            problem = "it holds a field or a word of triage's own"
        if problem is not None:
            raise AssertionError(f"request {number} would be refused: {problem}")


def times_told(request: Request, hint: str) -> int:
    """How often a hint stands in a request."""
    return request.text.count(hint)


def _chat(body: dict[str, Any]) -> str | None:
    waiting: list[str] = []
    for message in body["messages"]:
        if message.get("role") == "tool":
            call = message.get("tool_call_id")
            if call not in waiting:
                return f"the result of {call} does not follow its call"
            waiting.remove(call)
            continue
        if waiting:
            return f"the calls {waiting} have no result"
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
    return f"the calls {waiting} have no result" if waiting else None


def _responses(body: dict[str, Any]) -> str | None:
    if isinstance(body["input"], str):
        return None
    waiting: list[str] = []
    for item in body["input"]:
        if item.get("type") == "function_call":
            waiting.append(item["call_id"])
        elif item.get("type") == "function_call_output":
            if item["call_id"] not in waiting:
                return f"the output of {item['call_id']} has no call"
            waiting.remove(item["call_id"])
    return f"the calls {waiting} have no output" if waiting else None


def _anthropic(body: dict[str, Any]) -> str | None:
    waiting: list[str] = []
    for message in body["messages"]:
        content = message["content"]
        blocks = [] if isinstance(content, str) else content
        results = [block["tool_use_id"] for block in blocks if block.get("type") == "tool_result"]
        if sorted(results) != sorted(waiting):
            return f"the calls {waiting} are answered by the results {results}"
        if any(block.get("type") != "tool_result" for block in blocks[: len(results)]):
            return "results do not come first in their turn"
        if not content:
            return "a message is empty"
        waiting = [block["id"] for block in blocks if block.get("type") == "tool_use"]
    return f"the calls {waiting} have no result" if waiting else None


_OF = {"chat": _chat, "responses": _responses, "anthropic": _anthropic}
