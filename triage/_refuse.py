"""The error for a value that cannot be used: one form of message."""

from __future__ import annotations


def refuse(field: str, value: object, wanted: str, remedy: str = "") -> TypeError:
    """The error for a value of the wrong type: names the field, the type found and the remedy."""
    tail = f"; {remedy}" if remedy else ""
    return TypeError(f"{field} must be {wanted}, not {type(value).__name__} ({short(value)}){tail}")


def short(value: object, limit: int = 60) -> str:
    """A value in a message: the beginning of its repr."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a broken __repr__ must not replace the error being reported
        return "no repr"
    return text if len(text) <= limit else text[: limit - 1] + "…"
