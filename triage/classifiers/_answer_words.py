"""The codes and words of an error and of the answer it holds, of bounded length."""

from __future__ import annotations

from typing import Any

from triage.failures import ErrorInfo

MAX_TEXT = 4_000


def cut(text: str) -> str:
    """The beginning and the end of a long text: all work on it is bounded."""
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1000]} {text[-1000:]}"


def codes_of(info: ErrorInfo) -> tuple[str, ...]:
    """The codes of an error and of its answer's body, most exact first."""
    found = [info.code] if info.code else []
    body = _answer(info.body)
    if body is not None:
        said = _body_words(body, _CODES, 2)
        said += _reasons(body)
        found += [code for code in said if " " not in code]
    return tuple(dict.fromkeys(found))


def answer_text(info: ErrorInfo) -> str:
    """The message and what the body says in words."""
    message, body = info.message[:MAX_TEXT], info.body
    if body is None:
        return message
    if isinstance(body, str):
        return f"{message}\n{body}"
    answer = _answer(body)
    said = [] if answer is None else _body_words(answer, _SAYING, 3)
    return "\n".join([message, *dict.fromkeys(said)])


_CODES = ("code", "type", "status", "codeName", "errorCode", "error")
_SAYING = ("message", "detail", "error", "reason", "errmsg", "title", "description", "msg")
_HOLDING = ("error", "status", "detail", "details")


def _answer(body: Any) -> dict[str, Any] | None:
    """The answer itself: some services put it into a list, even where it is only one."""
    if isinstance(body, list | tuple) and body:
        body = body[0]
    return body if isinstance(body, dict) else None


def _reasons(body: dict[str, Any]) -> list[str]:
    """The reasons in the details of an answer, as Google's services list them."""
    error = body.get("error")
    within = error if isinstance(error, dict) else body
    found: list[str] = []
    for name in ("details", "errors"):
        listed = within.get(name)
        if isinstance(listed, list):
            reasons = [
                item.get("reason") for item in listed[:_MAX_DETAILS] if isinstance(item, dict)
            ]
            found += [text[:MAX_TEXT] for text in reasons if isinstance(text, str) and text]
    return found


_MAX_DETAILS = 8


def _body_words(body: dict[str, Any], names: tuple[str, ...], depth: int) -> list[str]:
    found: list[str] = []
    for name in names:
        if name in body:
            value = body[name]
            if isinstance(value, str) and value:
                found.append(value[:MAX_TEXT])
    if depth:
        for name in _HOLDING:
            if name in body:
                inner = body[name]
                if isinstance(inner, dict):
                    found += _body_words(inner, names, depth - 1)
    return found
