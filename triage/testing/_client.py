"""A client whose calls fail as planned: any object with methods, and the objects it has."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from triage._options import misuse

from ._errors import CLIENTS
from ._wrap import Wrapping

if TYPE_CHECKING:
    from ._plan import FaultPlan

_DATA = (str, bytes, int, float, complex, bool, list, tuple, dict, set, frozenset, type, type(None))
_NEVER = frozenset({"close", "aclose"})
"""Methods that are no calls to the other side."""


def wrap_client(plan: FaultPlan, client: Any, is_async: bool | None) -> Any:  # noqa: FBT001 - as its caller was given it
    """The client, with the plan's faults around the calls of its methods."""
    if isinstance(client, _DATA):
        raise misuse(
            "wrap_client(client)", client, "an object whose methods are called", "make one first"
        )
    if is_async is not None and not isinstance(is_async, bool):
        raise misuse("wrap_client(is_async=…)", is_async, "True, False or None")
    packages = (kind.__module__.partition(".")[0] for kind in type(client).__mro__)
    flavour = next((package for package in packages if package in CLIENTS), None)
    if is_async is None and hasattr(type(client), "__aenter__"):
        is_async = True
    return _Client(client, plan, "", flavour, is_async)


class _Client:
    """Stands for an object of the client. Its own names are few, as all others are the client's."""

    __slots__ = (
        "_triage_async",
        "_triage_flavour",
        "_triage_path",
        "_triage_plan",
        "_triage_target",
    )

    def __init__(
        self,
        target: Any,
        plan: FaultPlan,
        path: str,
        flavour: str | None,
        is_async: bool | None,  # noqa: FBT001 - as it was said
    ) -> None:
        for name, value in (
            ("target", target), ("plan", plan), ("path", path), ("flavour", flavour),
            ("async", is_async),
        ):  # fmt: skip
            object.__setattr__(self, f"_triage_{name}", value)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._triage_target, name)
        if isinstance(value, _DATA) or name.startswith("_"):
            return value
        path = f"{self._triage_path}.{name}" if self._triage_path else name
        if inspect.isroutine(value):
            return value if name in _NEVER else self._triage_method(value, path)
        if callable(value) and not _has_parts(value):
            return self._triage_method(value, path)
        return self._triage_child(value, path)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._triage_target, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        method = self._triage_method(self._triage_target, self._triage_path or "call")
        return method(*args, **kwargs)

    async def __aenter__(self) -> Any:
        await self._triage_target.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._triage_target.__aexit__(*error)

    def __enter__(self) -> Any:
        self._triage_target.__enter__()
        return self

    def __exit__(self, *error: object) -> Any:
        return self._triage_target.__exit__(*error)

    def __repr__(self) -> str:
        return f"<{self._triage_target!r} with faults>"

    def _triage_child(self, target: Any, path: str) -> _Client:
        return _Client(target, self._triage_plan, path, self._triage_flavour, self._triage_async)

    def _triage_method(self, method: Any, path: str) -> Any:
        """The method with faults; one that gives a client like this one gives it with faults."""
        wrapping = Wrapping(self._triage_plan, path, "client", client=self._triage_flavour)
        answers_later = _is_async(method, self._triage_async)

        async def faulty(*args: Any, **kwargs: Any) -> Any:
            return await wrapping.call(lambda: method(*args, **kwargs))

        def faulty_sync(*args: Any, **kwargs: Any) -> Any:
            return wrapping.call_sync(lambda: method(*args, **kwargs))

        def copying(*args: Any, **kwargs: Any) -> Any:
            made = method(*args, **kwargs)
            own = type(made) is type(self._triage_target)
            return self._triage_child(made, self._triage_path) if own else made

        if path.rpartition(".")[2] in _COPIES:
            return copying
        return faulty if answers_later else faulty_sync


_COPIES = frozenset({"with_options", "copy"})
"""Methods by which clients give a copy of themselves with other settings."""


def _has_parts(value: Any) -> bool:
    """Whether a callable object also has methods of its own, as a part of a client has."""
    return any(
        inspect.isfunction(found) and not name.startswith("_")
        for kind in type(value).__mro__
        for name, found in vars(kind).items()
    )


def _is_async(method: Any, said: bool | None) -> bool:  # noqa: FBT001 - what was said, if anything
    """Whether the method's answer is awaited: by its code, else by what is said of its client."""
    inner = inspect.unwrap(method)
    inner = inspect.unwrap(getattr(inner, "__func__", inner))
    if inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__):
        return True
    return bool(said)
