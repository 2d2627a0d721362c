"""Answers of clients, damaged: objects, mappings and lists, as deep as answers go."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, cast

_SAID = ("content", "text", "arguments", "output_text")
"""Fields that hold what a model said."""
_MOST = 2_000
"""Parts of an answer that are looked at."""


def with_text(answer: Any, text: str) -> Any:
    """A copy in which all that a model said is this text; the text alone where nothing is found."""
    changed = _changed(answer, lambda part: _put(part, _SAID, text))
    return text if changed is None else changed


def with_tool(answer: Any, name: str) -> Any:
    """A copy in which every call that is asked for has this tool's name; None where none is."""
    return _changed(answer, lambda part: _asks(part) and _put(part, ("name",), name))


def _changed(answer: Any, change: Callable[[Any], bool]) -> Any:
    if isinstance(answer, str | bytes) or answer is None:
        return None
    try:
        copied = copy.deepcopy(answer)
    except Exception:  # noqa: BLE001 - an answer that holds a socket or a lock is not changed
        return None
    # All parts are changed, so no short cut at the first.
    found = [change(part) for part in _parts(copied)]
    return copied if any(found) else None


def _parts(answer: Any) -> Iterator[Any]:
    """The answer, and what is in it; each part once."""
    waiting, seen = [answer], set[int]()
    while waiting and len(seen) < _MOST:
        part = waiting.pop()
        if id(part) in seen or part is None or isinstance(part, str | bytes | int | float | type):
            continue
        seen.add(id(part))
        yield part
        waiting += _inside(part).values()


def _inside(part: Any) -> dict[Any, Any]:
    if isinstance(part, dict):
        return part
    if isinstance(part, list | tuple):
        return dict(enumerate(cast("list[Any]", part)))
    return cast("dict[Any, Any]", getattr(part, "__dict__", {}))


def _put(part: Any, names: tuple[str, ...], value: str) -> bool:
    """Put the value where one of the names holds a text; whether any does."""
    held = _inside(part)
    found = [name for name in names if isinstance(held.get(name), str)]
    for name in found:
        held[name] = value
    return bool(found)


def _asks(part: Any) -> bool:
    """Whether this part of an answer asks for a tool: as a function with arguments, or with an input."""
    held = _inside(part)
    return "name" in held and ("arguments" in held or "input" in held)
