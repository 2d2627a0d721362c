"""OpenAI chat messages: a list of them, a request with `messages`, one or more responses."""

from __future__ import annotations

from typing import Any

from ._nouns import Tell
from ._talk import Talk
from ._values import (
    arguments,
    as_text,
    content_text,
    listed,
    mapping,
    result_value,
    text_or_none,
    tools_of,
    usage_of,
)

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def read_chat(value: Any, talk: Talk, tell: Tell) -> None:
    """Put a message, a list of messages or responses, or an object that holds them, into a talk."""
    if isinstance(value, list):
        for entry in value:
            read_chat(entry, talk, tell)
        return
    if not isinstance(value, dict):
        tell(f"a message must be an object, not {type(value).__name__}", "")
        return
    if "role" in value and "messages" not in value:
        _message(value, talk, tell)
        return
    talk.tools.update(tools_of(value.get("tools") or value.get("functions")))
    messages = value.get("messages")
    if isinstance(messages, list):
        for message in messages:
            read_chat(message, talk, tell)
    elif messages is not None:
        tell(f"messages must be a list, not {type(messages).__name__}", "")
    choices = value.get("choices")
    if isinstance(choices, list) and choices:
        _choice(choices[0], value, talk, tell)
    elif messages is None:
        tell("there are neither messages nor choices", "")


def _choice(choice: object, response: dict[str, Any], talk: Talk, tell: Tell) -> None:
    found = mapping(choice)
    message = found.get("message")
    if not isinstance(message, dict):
        tell("a choice has no message", "a streamed answer must be put together first")
        return
    usage = usage_of(response.get("usage"), response.get("model"))
    _turn(message, talk, tell, usage=usage, ended=found.get("finish_reason"))


def _message(message: dict[str, Any], talk: Talk, tell: Tell) -> None:
    role, content = message["role"], message.get("content")
    if role == "assistant":
        usage = usage_of(message.get("usage"), message.get("model"))
        _turn(message, talk, tell, usage=usage, ended=message.get("finish_reason"))
    elif role == "user":
        talk.user(content_text(content))
    elif role in ("tool", "function"):
        _result(message, talk, tell)
    elif role not in _ROLES:
        known = ", ".join(_ROLES)
        tell(f"a message has the role {as_text(role)[:40]!r}", f"the roles are {known}")


def _turn(message: dict[str, Any], talk: Talk, tell: Tell, *, usage: Any, ended: Any) -> None:
    calls: list[dict[str, Any]] = []
    for entry in listed(message.get("tool_calls")):
        call = mapping(entry)
        inner = mapping(call.get("function")) or mapping(call.get("custom"))
        name = text_or_none(inner.get("name"))
        if name is None:
            tell("a tool call has no function with a name", "")
            continue
        given = inner.get("arguments", inner.get("input"))
        calls.append({"id": call.get("id"), "name": name, "input": arguments(given)})
    legacy = mapping(message.get("function_call"))
    name = text_or_none(legacy.get("name"))
    if name is not None:
        given = arguments(legacy.get("arguments"))
        calls.append({"id": f"function:{name}", "name": name, "input": given})
    refusal = text_or_none(message.get("refusal"))
    if refusal is not None:
        ended = "refusal"
    talk.turn(refusal or content_text(message.get("content")), calls, usage=usage, ended=ended)


def _result(message: dict[str, Any], talk: Talk, tell: Tell) -> None:
    name = message.get("name")
    call = message.get("tool_call_id")
    if message["role"] == "function":
        call = f"function:{name}"
    failed = message.get("status") == "error" or message.get("is_error") is True
    output = result_value(message.get("content"))
    if not talk.result(call, output, name=name, failed=failed):
        told = as_text(call)[:60]
        tell(
            f"a tool's result is for the call {told!r}, which is not there", "it is kept as a step"
        )
