"""What is new in a request, for the step of its call: short, and without ids that are new each time."""

from __future__ import annotations

from typing import Any

from triage.traces._values import content_text, listed, mapping

from ._repair import as_data

MOST = 20
"""Messages that are shown."""


def said_in_chat(messages: Any) -> Any:
    """The messages after the model's last turn, of OpenAI's or Anthropic's form."""
    given = [mapping(as_data(message)) for message in listed(messages)]
    last = max((at for at, one in enumerate(given) if one.get("role") == "assistant"), default=-1)
    return [
        {"role": message.get("role"), "content": _content(message.get("content"))}
        for message in given[last + 1 :][:MOST]
    ]


def said_in_items(items: Any) -> Any:
    """The input after the model's last output, of the Responses API."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    given = [mapping(as_data(item)) for item in listed(items)]
    made = ("function_call", "custom_tool_call", "reasoning")
    last = -1
    for at, item in enumerate(given):
        if item.get("type") in made or item.get("role") == "assistant":
            last = at
    return [
        {
            "role": item.get("role", "tool"),
            "content": _content(item.get("content", item.get("output"))),
        }
        for item in given[last + 1 :][:MOST]
    ]


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    parts = [as_data(part) for part in content]
    return [
        {"result": content_text(mapping(part).get("content"))}
        if mapping(part).get("type") == "tool_result"
        else content_text([part])
        for part in parts
    ]
