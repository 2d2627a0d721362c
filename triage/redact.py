"""What must not leave the process as it is: credentials, by their shape, their name or their value."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from ._redact_names import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._redactor import Redactor

__all__ = ["HIDDEN", "Redactor", "redact"]


def redact(text: str) -> str:
    """`text` with everything that looks like a credential as `[redacted]`, as `Redactor()` does it."""
    return _standard()(text)


@cache
def _standard() -> Callable[[str], str]:
    from ._redactor import standard

    return standard().text


def __getattr__(name: str) -> Any:
    # At first use: whoever only logs has no need of the rest until there is something to log.
    if name == "Redactor":
        from ._redactor import Redactor

        globals()[name] = Redactor
        return Redactor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
