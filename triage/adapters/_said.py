"""What is new in a request, as JSON for the step of its call: short, and without ids new each time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from triage._plain import plain
from triage.traces._values import content_text, listed, mapping

from ._repair import as_data

MOST = 20
"""Messages that are shown."""


def said_in_chat(messages: Any) -> Any:
    """The messages after the model's last turn, of OpenAI's or Anthropic's form."""
    given = _after(listed(messages), lambda message: message.get("role") == "assistant")
    return [
        {"role": _json(message.get("role")), "content": _content(message.get("content"))}
        for message in given[:MOST]
    ]


def said_in_items(items: Any) -> Any:
    """The input after the model's last output, of the Responses API."""
    if isinstance(items, str):
        return [{"role": "user", "content": _json(items)}]
    made = ("function_call", "custom_tool_call", "reasoning")
    given = _after(
        listed(items), lambda item: item.get("type") in made or item.get("role") == "assistant"
    )
    return [
        {
            "role": _json(item.get("role", "tool")),
            "content": _content(item.get("content", item.get("output"))),
        }
        for item in given[:MOST]
    ]


def _after(
    given: list[Any], is_models: Callable[[Mapping[str, Any]], bool]
) -> list[Mapping[str, Any]]:
    """What stands behind the last one that is the model's: it is looked for from the end."""
    found: list[Mapping[str, Any]] = []
    for value in reversed(given):
        data = value if type(value) is dict else mapping(as_data(value))
        if is_models(data):
            break
        found.append(data)
    return found[::-1]


def _content(content: Any) -> Any:
    if type(content) is str:
        return content
    return (
        [_part(as_data(part)) for part in content] if isinstance(content, list) else plain(content)
    )


def _part(part: Any) -> Any:
    if isinstance(part, dict) and part.get("type") == "tool_result":
        return {"result": _json(content_text(part.get("content")))}
    return _json(content_text([part]))


def _json(value: Any) -> Any:
    """The value as JSON that nobody else has: mostly a text, which is that already."""
    return value if type(value) is str else plain(value)
