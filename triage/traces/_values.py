"""Taking what is there from values of any kind: texts, arguments, tools, usage. Nothing raises."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from triage.steps import Usage

_TEXT_KEYS = ("text", "content", "refusal", "thinking", "output_text", "input_text")
_MOST_PARTS = 10_000


def mapping(value: object) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def listed(value: object) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def text_or_none(value: object) -> str | None:
    """The value if it is text with something in it."""
    return value if isinstance(value, str) and value else None


def as_text(value: object) -> str:
    """Text as it is, None as nothing, anything else as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return f"<{type(value).__name__}>"


def content_text(content: object) -> str:
    """The words of a message's content: a text, or the texts of its parts."""
    if not isinstance(content, list):
        return _part_text(content)
    return "\n".join(filter(None, (_part_text(part) for part in content[:_MOST_PARTS])))


def _part_text(part: object) -> str:
    if not isinstance(part, dict):
        return as_text(part)
    for key in _TEXT_KEYS:
        if isinstance(part.get(key), str):
            return str(part[key])
    kind = part.get("type")
    return f"[{kind}]" if isinstance(kind, str) else as_text(part)


def result_value(content: object) -> Any:
    """What a tool answered: the words where it is made of text parts, else the value as it is."""
    if isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("type"), str) for part in content
    ):
        return content_text(content)
    return content


def arguments(value: object) -> Any:
    """The object or list that a JSON text says; the text itself, or any other value, as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def number(value: object) -> float | None:
    """A finite number from 0, also where it is written as text."""
    if value is None or isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) and found >= 0 else None


def usage_of(value: object, model: object = None) -> Usage | None:
    """What a model call consumed, by any of the usual names; None where nothing is said."""
    found = mapping(value)
    given = _count(found, "input_tokens", "prompt_tokens")
    made = _count(found, "output_tokens", "completion_tokens")
    cost = number(found.get("cost_usd"))
    if given is None and made is None and cost is None:
        return None
    calls = _count(found, "calls")
    name = text_or_none(found.get("model")) or text_or_none(model)
    return Usage(given or 0, made or 0, cost, 1 if calls is None else calls, name)


def _count(found: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        given = found.get(name)
        if type(given) is int and 0 <= given < _EXACT:
            return given  # as it mostly is
        value = number(given)
        if value is not None:
            return int(value)
    return None


_EXACT = 2**53
"""Numbers below are the same as a float."""


def tools_of(value: object) -> dict[str, Any]:
    """The tools that exist, name to JSON Schema or None.

    From a mapping of names to schemas, a list of names, or a list of declarations in the form of any
    of the usual interfaces. What is none of these is left out.
    """
    if isinstance(value, dict):
        if isinstance(value.get("tools"), list | dict):
            return tools_of(value["tools"])
        return {name: _schema(schema) for name, schema in value.items()}
    return dict(_declared(listed(value)))


def _declared(entries: list[Any]) -> Iterator[tuple[str, Any]]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry, None
            continue
        declared = mapping(entry)
        inner = mapping(declared.get("function")) or declared
        name = text_or_none(inner.get("name"))
        if name is not None:
            yield name, _schema(inner)
        for nested in listed(declared.get("functionDeclarations")):
            yield from _declared([nested])


def _schema(declared: object) -> Any:
    found = mapping(declared)
    for key in ("parameters", "input_schema", "inputSchema"):
        if isinstance(found.get(key), dict):
            return found[key]
    is_schema = any(key in found for key in ("properties", "type", "$ref", "anyOf", "oneOf"))
    return found if is_schema and found.get("type") != "function" else None
