"""The declared result of a tool, and its results back from JSON as what was declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._function import whole
from ._plain import MARK

_UNREAD = object()


class Returns:
    """The return annotation of a function, read when it is first needed, or what is declared instead.

    What has no exact JSON form (a model, a dataclass, a tuple, a date) can be read back where the
    annotation says what it was. `says_all` finds out by doing it.
    """

    __slots__ = ("_adapter", "_function", "_type")

    def __init__(self, function: Callable[..., Any], declared: Any = None) -> None:
        self._function = function
        self._type: Any = _UNREAD if declared is None else declared
        self._adapter: Any = None

    @property
    def type(self) -> Any:
        """The declared type; None where there is none, or its name is known to type checkers only."""
        if self._type is _UNREAD:
            self._type = _declared(self._function)
        return self._type

    def says_all(self, result: Any, data: Any) -> bool:
        """Whether `data`, the JSON form of `result`, is read back as an equal value of its type."""
        if self.type is None or self.type is Any:
            return False
        try:
            back = self.read(data)
            return type(back) is type(result) and bool(back == result)
        except Exception:  # noqa: BLE001 - the user's types may raise anything; then it does not
            return False

    def read(self, data: Any) -> Any:
        """The value of a JSON form. Raises ValueError or what pydantic raises where it is none."""
        if self.type is None:
            raise ValueError("no return annotation")
        if self._adapter is None:
            from pydantic import TypeAdapter

            self._adapter = TypeAdapter(self.type)
        import json

        text = json.dumps(data)
        if MARK in text:
            return self._adapter.validate_python(_unmarked(data))
        return self._adapter.validate_json(text)


def _declared(function: Any) -> Any:
    """The return annotation, its names looked up where the function was written."""
    import inspect
    import typing

    function = whole(function)
    if not hasattr(function, "__code__"):
        # An object that is called, or a bound method.
        function = getattr(function, "__func__", type(function).__call__)
    try:
        found = inspect.get_annotations(function).get("return")
        if found is None:
            return None
        inner = inspect.unwrap(function)
        cells = getattr(inner, "__closure__", None) or ()
        names = inner.__code__.co_freevars if cells else ()
        local: dict[str, Any] = {
            name: cell.cell_contents for name, cell in zip(names, cells, strict=False)
        }
        holder = type("holder", (), {"__annotations__": {"return": found}})
        return typing.get_type_hints(holder, getattr(inner, "__globals__", {}), local)["return"]
    except Exception:  # noqa: BLE001 - a name only a type checker knows, an empty cell: it stays JSON
        return None


def _unmarked(data: Any) -> Any:
    """The marks of what JSON has no form for, made into values again where they say all of it."""
    if isinstance(data, list):
        return [_unmarked(item) for item in data]
    if not isinstance(data, dict):
        return data
    kind = data.get(MARK)
    if kind == "bytes":
        import base64

        return base64.b64decode(data["text"], validate=True)
    if kind == "map":
        return {_unmarked(key): _unmarked(value) for key, value in data["items"]}
    if kind == "float":
        return float(data["text"])
    if kind is not None:
        raise ValueError(f"a value was lost: {kind}")
    return {key: _unmarked(value) for key, value in data.items()}
