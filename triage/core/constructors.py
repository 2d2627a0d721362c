"""Errors for wrong arguments of public constructors, with the class and the likely field."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import msgspec

from .errors import UsageError, closest, short

__all__ = [
    "Struct",
    "Value",
    "check_constructor",
    "check_constructors",
    "construct",
    "unknown_name",
]

construct: Any = msgspec.StructMeta.__call__
"""Construct a struct from arguments that are known to fit, without the cost of naming a wrong one."""

if TYPE_CHECKING:
    from msgspec import Struct
else:
    from msgspec import StructMeta

    class Checked(StructMeta):
        """Metaclass of structs whose constructor names a wrong argument."""

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - of a metaclass
            try:
                return super().__call__(*args, **kwargs)
            except TypeError as error:
                raise misnamed(cls, inspect.signature(cls), args, kwargs, error) from None

    class Struct(msgspec.Struct, metaclass=Checked):
        """`msgspec.Struct` for values that users construct."""


class Value(Struct, frozen=True, omit_defaults=True):
    """Base class of a run's values. Fields may be given by name or by position.

    `msgspec.structs.replace` makes a changed copy, `msgspec.structs.asdict` a dict of the fields.
    A field of this type in a pydantic model accepts a value or its JSON object.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Let pydantic models read and write a value as its JSON object."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            cls._read,
            serialization=core_schema.plain_serializer_function_ser_schema(
                msgspec.to_builtins, when_used="json"
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, source: Any, handler: Any) -> dict[str, Any]:
        """Return the schema of an object, without its fields."""
        return {"type": "object", "title": cls.__name__}

    @classmethod
    def _read(cls, given: object) -> Self:
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise ValueError(f"must be a {cls.__name__} or its JSON object")  # noqa: TRY004 - pydantic's way
        return msgspec.convert(dict(cast("Mapping[str, Any]", given)), cls)


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
C = TypeVar("C", bound=Callable[..., Any])


def check_constructors(room: Mapping[str, Any]) -> None:
    """Make the constructors of a package's public classes name a wrong argument.

    room: the package's namespace. Structs do so through their base class; for other classes, `__init__` or
    `__new__` is wrapped.
    """
    for name in room["__all__"]:
        made = room.get(name)
        if inspect.isclass(made) and not issubclass(made, msgspec.Struct):
            check_constructor(made)


def check_constructor(made: type) -> None:
    """Make the constructor of a class name a wrong argument."""
    way = "__new__" if issubclass(made, tuple) else "__init__"
    place = next(base for base in made.__mro__ if way in vars(base))
    own = getattr(place, way)
    if place.__module__.startswith("triage.") and not hasattr(own, "__wrapped__"):
        checked = _checked(own)
        setattr(place, way, staticmethod(checked) if way == "__new__" else checked)


def _checked(own: C) -> C:
    @functools.wraps(own)
    def constructor(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return own(self, *args, **kwargs)
        except TypeError as error:
            made = self if isinstance(self, type) else type(self)
            raise misnamed(made, inspect.signature(own), (self, *args), kwargs, error) from None

    return constructor  # type: ignore[return-value] # the same signature


def misnamed(
    made: type,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    error: TypeError,
) -> TypeError:
    """Make the error for arguments that a constructor does not take; return `error` if it takes them."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as wrong:
        taken = [
            name
            for name, parameter in signature.parameters.items()
            if parameter.kind in _BY_NAME and name not in ("self", "cls", "_cls")
        ]
        for name, value in kwargs.items():
            if name not in taken:
                return unknown_name(made, name, value, taken, _settings(made, signature))
        return UsageError(f"{made.__name__}: {wrong}")
    return error


def unknown_name(
    made: type,
    name: str,
    value: Any,
    taken: Iterable[str],
    settings: Mapping[str, type] | None = None,
) -> UsageError:
    """Make the error for a keyword that a class does not take.

    taken: the valid keywords. settings: the classes of the values with fields of their own, by keyword.
    """
    taken = list(taken)
    fields = {
        field: (at, kind)
        for at, kind in (settings or {}).items()
        for field in inspect.signature(kind).parameters
    }
    meant = None if name in fields else _closest(name, taken)
    inner = None if meant else _closest(name, fields)
    if inner is not None:
        at, kind = fields[inner]
        said = f"write {at}={kind.__name__}({inner}={short(value)})"
    elif meant is not None:
        said = f"did you mean {meant!r}?"
    else:
        said = f"it takes {', '.join(taken) or 'no keywords'}"
    return UsageError(f"{made.__name__} has no {name!r}; {said}")


def _closest(name: str, names: Iterable[str]) -> str | None:
    """Return the name with the closest spelling, or else the first that shares a word."""
    names = list(names)
    words = set(name.casefold().split("_"))
    sharing = (one for one in names if words & set(one.casefold().split("_")))
    return closest(name, names) or next(sharing, None)


def _settings(made: type, signature: inspect.Signature) -> dict[str, type]:
    """Return the classes of a constructor's parameters that have fields of their own, by parameter."""
    names = vars(sys.modules[made.__module__])
    found: dict[str, type] = {}
    for name, parameter in signature.parameters.items():
        for word in str(parameter.annotation).split("|"):
            kind = names.get(word.strip())
            if inspect.isclass(kind) and hasattr(kind, "__match_args__") and kind is not made:
                found.setdefault(name, kind)
    return found
