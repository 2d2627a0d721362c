"""A quick look at arguments, before the full check: most calls fit, and that is soon seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
_SAYS_NOTHING = frozenset({"type", "description", "title", "default", "examples", "items"})
_OF_AN_OBJECT = frozenset({
    "type", "description", "title", "properties", "required", "additionalProperties", "$schema",
    "$defs", "definitions",
})  # fmt: skip


class Fits(NamedTuple):
    """What plain arguments must have: the names, and the types by name."""

    required: frozenset[str]
    types: Mapping[str, tuple[type, ...]]

    def surely(self, arguments: Any) -> bool:
        """True if the arguments fit beyond doubt; False says nothing."""
        if type(arguments) is not dict or not self.required <= arguments.keys():
            return False
        types = self.types
        return all(
            name in types and type(value) in types[name] for name, value in arguments.items()
        )


def quick(schema: Mapping[str, Any]) -> Fits | None:
    """What can be seen quickly of a schema; None if nothing can.

    Names whose own schema says more than a type are left out, so that arguments with them are
    always checked in full.
    """
    properties, required = schema.get("properties"), schema.get("required", ())
    if not isinstance(properties, Mapping) or not schema.keys() <= _OF_AN_OBJECT:
        return None
    if not isinstance(required, list | tuple):
        return None
    types: dict[str, tuple[type, ...]] = {}
    for name, about in properties.items():
        if isinstance(about, Mapping) and about.keys() <= _SAYS_NOTHING:
            kind = about.get("type")
            if isinstance(kind, str) and kind in _TYPES and "items" not in about:
                types[str(name)] = _TYPES[kind]
    return Fits(frozenset(str(name) for name in required), types)
