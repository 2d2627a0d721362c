"""Read tools, given in any common form, as names with the JSON Schemas of their arguments."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, cast

from pydantic import TypeAdapter

from .errors import UsageError, misuse

Schema: TypeAlias = Mapping[str, Any]
"""A JSON Schema of a tool's arguments, or MCP's `inputSchema` and `outputSchema`."""

_REMEDY = "give its name as text"
_KEYS = (
    "parameters", "input_schema", "inputSchema", "params_json_schema", "parameters_json_schema",
)  # fmt: skip
# Parameters filled in by the framework, not the model.
_FILLED = frozenset({"self", "cls", "ctx", "context", "run", "run_context", "config", "runtime"})


class Manifest(Mapping[str, "Schema | None"]):
    """Tools by name. A function's schema is made from its signature on first access."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[str, Any]) -> None:
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> Schema | None:
        entry = self._entries[name]
        if callable(entry):
            entry = self._entries[name] = schema_of(entry)
        return cast("Schema | None", entry)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"Manifest({', '.join(self._entries)})"

    def __reduce__(self) -> tuple[Any, ...]:  # schemas pickle, functions may not
        return (Manifest, (dict(self),))


def manifest_of(tools: Any) -> Mapping[str, Schema | None]:
    """Return the tools of `Checks.tools` by name. Raises UsageError for one without a usable name."""
    if tools is None:
        return {}
    entries: dict[str, Any] = {}
    if isinstance(tools, Mapping):
        for key, value in tools.items():
            entries[_name(key)] = _schema(key, value)
    elif isinstance(tools, str | bytes) or not isinstance(tools, Iterable):
        raise misuse("tools", tools, "a list or a mapping of tools", "write [tool]")
    else:
        for tool in tools:
            name, schema = _entry(tool)
            if name in entries:
                raise UsageError(f"Checks.tools names {name!r} twice; give each tool its own name")
            entries[name] = schema
    return Manifest(entries)


def _name(name: object) -> str:
    if not isinstance(name, str) or not name or name == "<lambda>":
        raise misuse("Checks.tools name", name, "a text that is not empty", _REMEDY)
    return name


def _schema(name: object, value: object) -> Any:
    if value is None or callable(value) or isinstance(value, Mapping):
        return value
    wanted = "a JSON Schema (a mapping), a function or None"
    raise misuse(f"Checks.tools[{name!r}]", value, wanted, "None if it is not known")


def _entry(tool: object) -> tuple[str, Any]:
    if isinstance(tool, str):
        return _name(tool), None
    if isinstance(tool, Mapping):
        return _definition(cast("Mapping[str, Any]", tool))
    declared = getattr(tool, "__triage_tool__", None)  # set by `@triage.tool`
    if declared is not None:
        return _name(declared.name), tool
    name = getattr(tool, "name", None)
    if isinstance(name, str):
        schemas = (getattr(tool, key, None) for key in _KEYS)
        takes = next((found for found in schemas if isinstance(found, Mapping)), None)
        return _name(name), _whole(takes, getattr(tool, "outputSchema", None))
    name = getattr(tool, "__name__", None)
    if isinstance(name, str):
        return _name(name), tool if callable(tool) else None
    wanted = "a name, a function, an object with a name or a tool definition"
    raise misuse("Checks.tools item", tool, wanted, _REMEDY)


def _definition(tool: Mapping[str, Any]) -> tuple[str, Any]:
    inner = tool.get("function", tool.get("toolSpec", tool))
    function = cast("Mapping[str, Any]", inner if isinstance(inner, Mapping) else {})
    if not isinstance(function.get("name"), str):
        wanted = "a tool definition with a name"
        raise misuse("Checks.tools item", tool, wanted, _REMEDY)
    name = _name(function["name"])
    takes = _schema(name, next((function[key] for key in _KEYS if key in function), None))
    if isinstance(takes, Mapping) and isinstance(takes.get("json"), Mapping):
        takes = takes["json"]  # as Bedrock wraps it
    return name, _whole(takes, function.get("outputSchema"))


def _whole(takes: Any, gives: object) -> Any:
    """Return the schema of a tool's input, with that of its output if declared, as in MCP."""
    return {"inputSchema": takes, "outputSchema": gives} if isinstance(gives, Mapping) else takes


def schema_of(function: Callable[..., Any]) -> Schema | None:
    """Return the JSON Schema of a function's arguments, or None if its signature has none.

    A parameter without an annotation, or whose type has no plain JSON form (a model, a named tuple),
    accepts anything. A parameter whose type is unknown to pydantic (a client) is optional.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if kinds & {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL}:
        return None  # such arguments have no names
    ignored = _FILLED | getattr(getattr(function, "__triage_tool__", None), "ignore", frozenset())
    hints = _hints(function)
    properties: dict[str, Any] = {}
    required: list[str] = []
    open_ended = inspect.Parameter.VAR_KEYWORD in kinds
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        known = name not in hints or _json_schema(hints[name])
        properties[name] = _plain(known, parameter.default) if isinstance(known, dict) else {}
        if parameter.default is parameter.empty and known is not None and name not in ignored:
            required.append(name)
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": open_ended,
    }


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(inspect.unwrap(function), include_extras=True)
    except Exception:
        return {}


def _json_schema(annotation: Any) -> dict[str, Any] | None:
    """Return pydantic's JSON Schema of an annotation, or None if it has none."""
    try:
        return TypeAdapter(annotation).json_schema()
    except Exception:
        return None


def _plain(schema: dict[str, Any], default: Any) -> dict[str, Any]:
    """Loosen a schema so that it also accepts the value's form in a step."""
    if _has_shape(schema):
        return {}
    return {"anyOf": [schema, {"type": "null"}]} if default is None else schema


def _has_shape(schema: Any) -> bool:
    """Whether a schema describes the fields of objects, which a step may keep in another form."""
    if isinstance(schema, dict):
        words = ("$ref", "properties", "prefixItems", "propertyNames")
        return any(word in schema for word in words) or any(map(_has_shape, schema.values()))
    return isinstance(schema, list) and any(map(_has_shape, schema))
