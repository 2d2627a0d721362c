"""Whether a provider would take a request: its history, its hint, nothing of ours in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
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


def results_in(request: Request) -> list[tuple[str, str]]:
    """The tool calls whose results a request holds, in the order of the calls: the tool, its result."""
    calls: dict[str, str] = {}
    results: dict[str, str] = {}
    for item in _items(request):
        kind, own = item.get("type"), item.get("role") == "tool"
        for call in item.get("tool_calls") or ():
            calls[call["id"]] = call["function"]["name"]
        if kind in ("function_call", "tool_use"):
            calls[item.get("call_id") or item["id"]] = item["name"]
        elif own or kind in ("function_call_output", "tool_result"):
            ids = (item.get(name) for name in ("tool_call_id", "call_id", "tool_use_id"))
            told = item["content"] if own or kind == "tool_result" else item["output"]
            results[next(filter(None, ids), "")] = _text(told)
    return [(name, results[call]) for call, name in calls.items() if call in results]


def _items(request: Request) -> Iterator[dict[str, Any]]:
    """Messages, blocks of messages and items, whatever the protocol calls them."""
    given = request.body.get("messages") or request.body.get("input")
    for item in given if isinstance(given, list) else ():
        yield item
        content = item.get("content")
        yield from content if isinstance(content, list) and item.get("role") != "tool" else ()


def _text(told: Any) -> str:
    return told if isinstance(told, str) else "".join(part.get("text", "") for part in told)


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
