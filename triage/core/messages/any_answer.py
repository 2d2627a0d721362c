"""Read the answer of a model in any of the known forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .anthropic import ANTHROPIC
from .chat import CHAT
from .gemini import GEMINI
from .neutral import Answer
from .responses import RESPONSES

_KNOWN_BY: Mapping[str, Callable[[Any], Answer]] = {
    "choices": CHAT.answer,
    "output": RESPONSES.answer,
    "content": ANTHROPIC.answer,
    "candidates": GEMINI.answer,
}
"""The reader of each form, by the key of the list in its answers."""


def read_answer(data: Any) -> Answer | None:
    """Read a model's answer in any of these forms, or as plain text; None for anything else."""
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
