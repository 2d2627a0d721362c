"""Read values in the forms of providers and frameworks. Nothing here raises for malformed input."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from triage.core.json_values import plain
from triage.core.steps import Usage

_TEXT_KEYS = ("text", "content", "refusal", "thinking", "output_text", "input_text")


_MOST_PARTS = 10_000


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a dict, else an empty one."""
    return value if isinstance(value, dict) else {}


def listed(value: object) -> list[Any]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def as_data(message: Any) -> Any:
    """Return a client's model as a dict, anything else unchanged."""
    if isinstance(message, dict):
        return message
    dump = getattr(message, "model_dump", None)
    return message if dump is None else dump(exclude_unset=True)


def text_or_none(value: object) -> str | None:
    """Return the value if it is text and not empty, else None."""
    return value if isinstance(value, str) and value else None


def as_text(value: object) -> str:
    """Return text unchanged, None as empty text, anything else as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return f"<{type(value).__name__}>"


def content_text(content: object) -> str:
    """Return the text of a message's content: a text, or the texts of its parts, one a line."""
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
    """Return a tool's result: its text if it consists of typed parts, else the value unchanged."""
    if isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("type"), str) for part in content
    ):
        return content_text(content)
    return content


def arguments(value: object) -> Any:
    """Parse a JSON text of an object or list; return anything else unchanged."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def number(value: object) -> float | None:
    """Return a finite number from 0, given as number or text, else None."""
    if value is None or isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) and found >= 0 else None


def usage_of(value: object, model: object = None) -> Usage | None:
    """Read the usage of a model call under any of the usual names; None without one."""
    found = mapping(value)

    def count(*names: str) -> int | None:
        counts = (number(found.get(name)) for name in names)
        return next((int(one) for one in counts if one is not None), None)

    given, made = (
        count("input_tokens", "prompt_tokens"),
        count("output_tokens", "completion_tokens"),
    )
    cost, calls = number(found.get("cost_usd")), count("calls")
    if given is None and made is None and cost is None:
        return None
    return Usage(
        input_tokens=given or 0,
        output_tokens=made or 0,
        cost_usd=cost,
        calls=1 if calls is None else calls,
        model=text_or_none(found.get("model")) or text_or_none(model),
    )


_OPTIONS = ("inferenceConfig", "generationConfig", "options")
"""Fields of a request that hold its options for some providers."""


_LIMITS = (
    "max_tokens", "max_completion_tokens", "max_output_tokens", "maxTokens", "maxOutputTokens",
    "num_predict",
)  # fmt: skip


MAX_TOKENS = "max_tokens"
"""Key in the metadata of a model's step with a cut answer. The value is the token limit in the request."""


def max_tokens_of(options: Mapping[str, Any]) -> int | None:
    """Return the token limit of the answer from a request's options, or None."""
    inner = (mapping(options.get(name)) for name in _OPTIONS)
    for found in (options, *inner):
        for name in _LIMITS:
            if isinstance(found.get(name), int):
                return int(found[name])
    return None


def with_limit(options: Mapping[str, Any], factor: int, *, above: int = 0) -> dict[str, Any]:
    """Return a request's options with the token limit of the answer, if set, multiplied.

    above: a limit up to this number stays unchanged.
    """
    made = dict(options)
    for name, value in options.items():
        if name in _LIMITS and type(value) is int and value > above:
            made[name] = value * factor
        elif name in _OPTIONS and isinstance(value, dict):
            made[name] = with_limit(value, factor, above=above)
    return made


def tools_of(value: object) -> dict[str, Any]:
    """Return the declared tools, name to JSON Schema or None.

    A tool with an `outputSchema`, as in MCP, keeps both schemas.

    value: a mapping of names to schemas, a list of names, or a list of declarations in any usual
    provider's form. Entries of another kind are skipped.
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
        inner = mapping(declared.get("function")) or mapping(declared.get("toolSpec")) or declared
        name = text_or_none(inner.get("name"))
        if name is not None:
            yield name, _schema(inner)
        for nested in listed(declared.get("functionDeclarations")):
            yield from _declared([nested])


def _schema(declared: object) -> Any:
    found = mapping(declared)
    for key in ("parameters", "input_schema", "inputSchema"):
        takes = found.get(key)
        if isinstance(takes, dict):
            if isinstance(takes.get("json"), dict):  # Bedrock's form
                return takes["json"]
            gives = found.get("outputSchema")
            both = {"inputSchema": takes, "outputSchema": gives}
            return both if isinstance(gives, dict) else takes
    is_schema = any(key in found for key in ("properties", "type", "$ref", "anyOf", "oneOf"))
    return found if is_schema and found.get("type") != "function" else None


def says(value: Any, text: str) -> bool:
    """Whether any string in a JSON value contains a text."""
    if isinstance(value, str):
        return text in value
    if isinstance(value, dict):
        return any(says(item, text) for item in value.values())
    return isinstance(value, list | tuple) and any(says(item, text) for item in value)


def rewritten(value: Any, change: Callable[[str], str], key: str = "content") -> Any:
    """Return a message's content with its texts changed. key: the field that holds the value."""
    if isinstance(value, str):
        return change(value) if key in _TEXT_KEYS else value
    if isinstance(value, dict):
        return {name: rewritten(item, change, name) for name, item in value.items()}
    if isinstance(value, list):
        return [rewritten(item, change, key) for item in value]
    return value


def output_text(output: Any) -> str:
    return output if isinstance(output, str) else json.dumps(output, default=str)


def shown_content(content: Any) -> Any:
    """Return a message's content for a step: texts, and results under the key `result`."""
    if not isinstance(content, list):
        return plain(content)
    shown: list[Any] = []
    for part in map(as_data, content):
        if mapping(part).get("type") == "tool_result":
            shown.append({"result": content_text(part.get("content"))})
        else:
            shown.append(content_text([part]))
    return shown
