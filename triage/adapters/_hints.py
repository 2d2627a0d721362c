"""What the model is told by an attempt's guidance: at the end of a request, once, and never kept.

Each function gives a new request; the one it was given stays as it is. Text that stands in the
request already is not added again.
"""

from __future__ import annotations

from typing import Any

from triage._guidance import Guidance


def told(guidance: Guidance) -> str | None:
    """Hint and subgoal as one text; None where there is neither."""
    parts = [guidance.hint] if guidance.hint else []
    if guidance.subgoal:
        parts.append(f"Go on with this part of the work: {guidance.subgoal}")
    return "\n".join(parts) or None


def says(value: Any, text: str) -> bool:
    """Whether a text stands in any string of a JSON value."""
    if isinstance(value, str):
        return text in value
    if isinstance(value, dict):
        return any(says(item, text) for item in value.values())
    return isinstance(value, list | tuple) and any(says(item, text) for item in value)


def hinted_chat(messages: list[Any], hint: str | None) -> list[Any]:
    """Chat messages with the hint as the user's last message."""
    if not hint or says(messages, hint):
        return messages
    return [*messages, {"role": "user", "content": hint}]


def hinted_responses(items: Any, hint: str | None) -> Any:
    """Input of the Responses API, a text or a list of items, with the hint as its last message."""
    if not hint or says(items, hint):
        return items
    before = [{"role": "user", "content": items}] if isinstance(items, str) else list(items)
    return [*before, {"role": "user", "content": hint}]


def hinted_anthropic(messages: list[Any], hint: str | None) -> list[Any]:
    """Anthropic messages with the hint at the end of the user's last turn, or as a turn of its own."""
    if not hint or says(messages, hint):
        return messages
    block = {"type": "text", "text": hint}
    last = messages[-1] if messages else None
    if not isinstance(last, dict) or last.get("role") != "user":
        return [*messages, {"role": "user", "content": [block]}]
    content = last.get("content")
    blocks = (
        [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
    )
    return [*messages[:-1], {**last, "content": [*blocks, block]}]
