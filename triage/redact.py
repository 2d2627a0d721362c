"""What must not leave the process as it is: credentials, by their shape, their name or their value."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any

from ._redact_names import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._redactor import Redactor

__all__ = ["HIDDEN", "Redactor", "redact"]


def redact(text: str) -> str:
    """`text` with everything that looks like a credential as `[redacted]`, as `Redactor()` does it.

    In a run whose `Durability.redact` is a `Redactor`, as that one does it; in runs inside others, as
    each of theirs does.
    """
    in_force = _in_force.get()
    if not in_force:
        return _standard()(text)
    for redactor in in_force:
        text = redactor.text(text)
    return text


_in_force: ContextVar[tuple[Redactor, ...]] = ContextVar("triage_redactors", default=())


@contextmanager
def redacting(redactor: Redactor) -> Generator[None]:
    """While it is entered, `redact` hides what this one finds too; also in tasks that are begun in it."""
    in_force = _in_force.get()
    if redactor in in_force:
        yield
        return
    token = _in_force.set((*in_force, redactor))
    try:
        yield
    finally:
        _in_force.reset(token)


@cache
def _standard() -> Callable[[str], str]:
    from ._redactor import usual

    return usual()


def __getattr__(name: str) -> Any:
    # At first use: whoever only logs has no need of the rest until there is something to log.
    if name == "Redactor":
        from ._redactor import Redactor

        globals()[name] = Redactor
        return Redactor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
