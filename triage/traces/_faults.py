"""Errors that were recorded as text or as a small object, as `ErrorInfo`."""

from __future__ import annotations

import builtins
import re
from functools import cache
from typing import Any

from triage.errors import StoreError
from triage.failures import ErrorInfo

from ._values import as_text, mapping, number, text_or_none

_LONGEST = 16_000
_NAMED = re.compile(
    r"(?P<name>(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,100}?"
    r"(?:Error|Exception|Timeout|Exit|Interrupt|Warning|Failure|Refused|Denied|NotFound|Expired))"
    r"(?:: (?P<message>.*)|\s*)\Z",
    re.DOTALL,
)
_STATUS_KEYS = ("status_code", "status", "http_status")


def error_of(value: object, kind: object = None) -> ErrorInfo | None:
    """The error a recording tells of, None where it tells of none.

    value: its text, or an object with its type, message, code and status. kind: its class, where the
    recording has it apart. A class is read from a text only where it begins with one
    (`ValueError: …`) or is a traceback.
    """
    if isinstance(value, dict):
        return _from_object(value, kind) if value else None
    text = as_text(value)[:_LONGEST].strip()
    name = text_or_none(kind)
    if not text and name is None:
        return None
    if name is None:
        name, text = named_in(text)
    return info(name or "Exception", text or name or "")


def info(name: str, message: str, **more: Any) -> ErrorInfo:
    """An error of this class (with or without its module), as `capture` would have taken it."""
    module, _, plain = name.strip()[:300].rpartition(".")
    plain = plain or "Exception"
    return ErrorInfo(
        plain, module or _module(plain), _mro(module, plain), message[:_LONGEST] or plain, **more
    )


def named_in(text: str) -> tuple[str | None, str]:
    """The class a text begins with, None without one, and the words after it."""
    if text.startswith("Traceback (most recent call last)"):
        last = text.rstrip().rpartition("\n")[2].strip()
        found = _NAMED.match(last)
        return (found["name"], (found["message"] or "").strip()) if found else (None, text)
    found = _NAMED.match(text[:_LONGEST])
    if found is None:
        return None, text
    return found["name"], (found["message"] or "").strip()


def _from_object(value: dict[str, Any], kind: object) -> ErrorInfo | None:
    if "type_name" in value:
        from triage._wire import from_json

        try:
            found = from_json(ErrorInfo, value, "error")
        except (StoreError, RecursionError):
            pass
        else:
            assert isinstance(found, ErrorInfo)
            return found
    inner = value.get("error")
    if isinstance(inner, dict) and inner and "message" not in value:
        return _from_object({**value, **inner, "error": None}, kind)
    words = next((value[key] for key in ("message", "text", "detail") if value.get(key)), None)
    message = as_text(value if words is None else words)[:_LONGEST]
    name = text_or_none(kind)
    for key in ("type_name", "exception_type", "type", "class", "name"):
        name = name or text_or_none(value.get(key))
    status = next(
        (found for key in _STATUS_KEYS if (found := number(value.get(key))) is not None), None
    )
    code = value.get("code")
    if type(code) is int and status is None and code in range(400, 600):
        status, code = float(code), None
    # A provider's own word for the error (`invalid_request_error`) is a code and no class.
    is_class = name is not None and _NAMED.match(name) is not None
    if name is not None and not is_class and text_or_none(code) is None:
        code = name
    return info(
        name if name is not None and is_class else "Exception",
        message,
        status_code=None if status is None else int(status),
        code=text_or_none(code),
        retry_after_s=number(value.get("retry_after_s", value.get("retry_after"))),
        body={"error": dict(mapping(value))} if len(message) < 2_000 and code else None,  # noqa: PLR2004 - small
    )


@cache
def _built_in() -> dict[str, tuple[str, ...]]:
    """The names of the built-in exceptions, each with its bases."""
    return {
        name: tuple(f"builtins.{base.__name__}" for base in kind.__mro__[:-1])
        for name, kind in vars(builtins).items()
        if isinstance(kind, type) and issubclass(kind, BaseException)
    }


def _mro(module: str, name: str) -> tuple[str, ...]:
    if module in ("", "builtins") and name in _built_in():
        return _built_in()[name]
    return (f"{module}.{name}" if module else name, "builtins.Exception", "builtins.BaseException")


def _module(name: str) -> str:
    return "builtins" if name in _built_in() else ""
