"""Anthropic messages: a list of them, a request with `messages`, a response."""

from __future__ import annotations

from typing import Any

from ._nouns import Tell
from ._talk import Talk
from ._values import (
    as_text,
    content_text,
    listed,
    mapping,
    result_value,
    text_or_none,
    tools_of,
    usage_of,
)

_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")


def read_anthropic(value: Any, talk: Talk, tell: Tell) -> None:
    """Put a message, a list of messages, a request or a response into a talk."""
    if isinstance(value, list):
        for entry in value:
            read_anthropic(entry, talk, tell)
        return
    if not isinstance(value, dict):
        tell(f"a message must be an object, not {type(value).__name__}", "")
        return
    if "role" in value and "messages" not in value:
        _message(value, talk, tell)
        return
    talk.tools.update(tools_of(value.get("tools")))
    messages = value.get("messages")
    if isinstance(messages, list):
        for message in messages:
            read_anthropic(message, talk, tell)
    else:
        tell("there is no list of messages", "")
    answer = value.get("response")
    if isinstance(answer, dict):
        read_anthropic(answer, talk, tell)
    elif "stop_reason" in value and "content" in value:
        _message({**value, "role": "assistant"}, talk, tell)


def _message(message: dict[str, Any], talk: Talk, tell: Tell) -> None:
    role, content = message["role"], message.get("content")
    if role == "assistant":
        _turn(message, talk, tell)
    elif role == "user":
        words: list[Any] = []
        for block in content if isinstance(content, list) else [content]:
            if mapping(block).get("type") == "tool_result":
                _result(block, talk, tell)
            else:
                words.append(block)
        if words:
            talk.user(content_text(words))
    elif role != "system":
        tell(f"a message has the role {as_text(role)[:40]!r}", "the roles are user and assistant")


def _turn(message: dict[str, Any], talk: Talk, tell: Tell) -> None:
    content = message.get("content")
    blocks = content if isinstance(content, list) else [content]
    calls: list[dict[str, Any]] = []
    words: list[Any] = []
    results: list[Any] = []
    for block in blocks:
        found = mapping(block)
        kind = found.get("type")
        if kind in _CALLS:
            name = text_or_none(found.get("name"))
            if name is None:
                tell("a tool_use block has no name", "")
                continue
            calls.append({"id": found.get("id"), "name": name, "input": found.get("input")})
        elif isinstance(kind, str) and kind.endswith("tool_result"):
            results.append(block)
        elif kind not in ("thinking", "redacted_thinking"):
            words.append(block)
    usage = usage_of(message.get("usage"), message.get("model"))
    talk.turn(content_text(words), calls, usage=usage, ended=message.get("stop_reason"))
    for block in results:  # of tools that ran on the other side
        _result(block, talk, tell)


def _result(block: Any, talk: Talk, tell: Tell) -> None:
    content = block.get("content")
    inner = [mapping(content), *(mapping(part) for part in listed(content))]
    failed = block.get("is_error") is True or any("error_code" in part for part in inner)
    if not talk.result(block.get("tool_use_id"), result_value(content), failed=failed):
        told = as_text(block.get("tool_use_id"))[:60]
        tell(f"a tool_result is for {told!r}, which was not called", "it is kept as a step")
