"""What is known of a function whose calls are recorded, and the call a tool runs in."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, cast

from ._plain import plain
from ._serde import canonical, digest
from .errors import UsageError
from .steps import effect_of
from .taxonomy import Effect

_UNRESOLVED = object()


class Tool:
    """What is known of a function whose calls are recorded. Made by `tool`, read by the engine."""

    __slots__ = (
        "_returns",
        "compensate",
        "effect",
        "function",
        "ignore",
        "is_async",
        "key",
        "name",
        "signature",
        "timeout",
    )  # fmt: skip

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        effect: Effect | str = Effect.UNKNOWN,
        compensate: Callable[..., Any] | None = None,
        key: Callable[..., Any] | None = None,
        ignore: tuple[str, ...] = (),
        timeout: float | None = None,
        name: str | None = None,
    ) -> None:
        self.function = function
        self.name = str(name or getattr(function, "__name__", type(function).__name__))
        try:
            self.effect = effect_of("tool(effect=…)", effect)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError(
                f"tool {self.name} is a generator, whose result is never complete; return a list, "
                "or record its steps by hand with record_step"
            )
        for option, value in (("compensate", compensate), ("key", key)):
            if value is not None and not callable(value):
                raise UsageError(f"tool({option}=…) must be a function, not {type(value).__name__}")
        if name is not None and not isinstance(name, str):
            raise UsageError(f"tool(name=…) must be text or None, not {type(name).__name__}")
        if not isinstance(ignore, str | tuple | list | frozenset | set):
            raise UsageError(f"tool(ignore=…) takes names in a tuple, not {type(ignore).__name__}")
        if isinstance(ignore, str):  # type: ignore[unreachable] # what a caller may well give
            raise UsageError(f'tool(ignore=…) takes names in a tuple; write ignore=("{ignore}",)')
        if timeout is not None and (
            isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0
        ):
            raise UsageError(
                f"tool(timeout=…) must be a number of seconds above 0, not {timeout!r}"
            )
        self.compensate = compensate
        self.key = key
        self.ignore = frozenset(ignore)
        self.timeout = timeout
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object whose call is async
        )
        try:
            self.signature = inspect.signature(function)
        except ValueError:
            raise UsageError(
                f"tool {self.name} has no signature to read its arguments from; wrap it in a function"
            ) from None
        unknown = self.ignore - self.signature.parameters.keys()
        if unknown:
            raise UsageError(
                f"tool(ignore=…) names {', '.join(sorted(unknown))}, but {self.name} takes "
                f"{', '.join(self.signature.parameters) or 'nothing'}"
            )
        self._returns: Any = _UNRESOLVED

    @property
    def returns(self) -> Any:
        """The declared result type, None where there is none or it cannot be resolved."""
        if self._returns is _UNRESOLVED:
            self._returns = None
            try:
                import typing

                self._returns = typing.get_type_hints(self.function).get("return")
            except Exception:  # noqa: BLE001, S110 - a name only a type checker knows; the result stays JSON
                pass
        return self._returns

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The call's arguments by name, defaults filled in. TypeError if they do not fit."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    def arguments(self, bound: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments a call is known by: without `self`, `cls` and those to ignore."""
        names = list(self.signature.parameters)
        own = names[0] if names and names[0] in ("self", "cls") else None
        return {
            name: value for name, value in bound.items() if name != own and name not in self.ignore
        }

    def digest(self, bound: Mapping[str, Any], salt: str) -> str:
        """The digest of the call's arguments, or of what `key` says of them."""
        if self.key is not None:
            parameters = inspect.signature(self.key).parameters.values()
            if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
                named = dict(bound)
            else:
                wanted = {parameter.name for parameter in parameters}
                named = {name: value for name, value in bound.items() if name in wanted}
            return digest(salt, canonical(self.key(**named), "the result of key"))
        parts = [
            f'"{name}":{canonical(value, name)}' for name, value in self.arguments(bound).items()
        ]
        return digest(salt, ",".join(sorted(parts)))

    def shown(self, bound: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as JSON, for people."""
        return cast("dict[str, Any]", plain(self.arguments(bound)))


class CurrentCall:
    """The recorded call a tool runs in."""

    __slots__ = ("_key", "asked", "tool")

    def __init__(self, tool: str, key: str) -> None:
        self.tool = tool
        self._key = key
        self.asked = False

    @property
    def idempotency_key(self) -> str:
        """32 hexadecimal digits, the same for this call in every attempt and process of the run.

        Give it to a service that knows such keys: a tool that has taken it may be run again after a
        failure that leaves open whether it happened.
        """
        self.asked = True
        return self._key


calling: ContextVar[CurrentCall | None] = ContextVar("triage_call", default=None)


def current_call() -> CurrentCall:
    """The recorded call the calling code runs in. Raises UsageError outside of any."""
    call = calling.get()
    if call is None:
        raise UsageError(
            "current_call() was called outside of a recorded call; use it inside a @triage.tool "
            "function, or one given to run.call, while an agent runs"
        )
    return call


TOOL_ATTRIBUTE = "__triage_tool__"


@functools.lru_cache(maxsize=1024)
def _undeclared(function: Callable[..., Any]) -> Tool:
    return Tool(function)


def tool_of(function: Callable[..., Any]) -> tuple[Tool, tuple[Any, ...]]:
    """What is known of a function given to `run.call`, and the object it is bound to, if any.

    A function that is no tool has the effect `unknown`.
    """
    owner: tuple[Any, ...] = ()
    bound_to = getattr(function, "__self__", None)
    unbound = getattr(function, "__func__", None)
    if bound_to is not None and unbound is not None:
        owner, function = (bound_to,), unbound
    known = getattr(function, TOOL_ATTRIBUTE, None)
    if isinstance(known, Tool):
        return known, owner
    if not callable(function):
        raise UsageError(f"run.call() takes a function, not {type(function).__name__}")
    try:
        return _undeclared(function), owner
    except TypeError:  # an unhashable callable
        return Tool(function), owner
