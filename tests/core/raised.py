"""Exceptions shaped as clients shape theirs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from triage.core.capture import capture


class APIError(Exception):
    """Shaped as clients of HTTP services shape theirs: whatever is given becomes an attribute."""

    def __init__(self, message: str = "failed", **attributes: Any) -> None:
        super().__init__(message)
        for name, value in attributes.items():
            setattr(self, name, value)


def response(status: int = 429, headers: Any = None, **more: Any) -> SimpleNamespace:
    return SimpleNamespace(status_code=status, headers=headers or {}, **more)


def after(headers: Any) -> float | None:
    return capture(APIError(response=response(headers=headers))).retry_after_s
