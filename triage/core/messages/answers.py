"""What a model answered, whatever provider's form it is in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .anthropic import ANTHROPIC
from .base import Answer
from .chat import CHAT
from .gemini import GEMINI
from .responses import RESPONSES

_KNOWN_BY: Mapping[str, Callable[[Any], Answer]] = {
    "choices": CHAT.answer,
    "output": RESPONSES.answer,
    "content": ANTHROPIC.answer,
    "candidates": GEMINI.answer,
}
"""The list that an answer of each form has."""


def read_answer(data: Any) -> Answer | None:
    """A model's answer of any of these forms, or the text it is; None for anything else."""
    if isinstance(data, str):
        return Answer(data)
    if not isinstance(data, Mapping):
        return None
    for name, read in _KNOWN_BY.items():
        if isinstance(data.get(name), list):
            return read(data)
    if "role" in data and ("content" in data or "tool_calls" in data):
        return CHAT.answer({"choices": [{"message": data}]})  # a message by itself
    return None
