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
    if info.body is None:
        return tuple(found)
    body = _first(info.body)
    found += [code for code in (*_body_words(body, _CODES, 2), *_reasons(body)) if " " not in code]
    return tuple(dict.fromkeys(found))


def answer_text(info: ErrorInfo) -> str:
    """The message and what the body says in words."""
    if info.body is None:
        return info.message[:MAX_TEXT]
    said = _body_words(
        _first(info.body),
        ("message", "detail", "error", "reason", "errmsg", "title", "description", "msg"),
        3,
    )
    if isinstance(info.body, str):
        said.append(info.body)
    return "\n".join([info.message[:MAX_TEXT], *dict.fromkeys(said)])


_CODES = ("code", "type", "status", "codeName", "errorCode", "error")


def _first(body: Any) -> Any:
    """The answer itself: some services put it into a list, even where it is only one."""
    return body[0] if isinstance(body, list | tuple) and body else body


def _reasons(body: Any) -> list[str]:
    """The reasons in the details of an answer, as Google's services list them."""
    error = body.get("error") if isinstance(body, dict) else None
    within = error if isinstance(error, dict) else body
    if not isinstance(within, dict):
        return []
    listed = [within.get(name) for name in ("details", "errors")]
    items = [item for some in listed if isinstance(some, list) for item in some[:_MAX_DETAILS]]
    found = [item.get("reason") for item in items if isinstance(item, dict)]
    return [reason[:MAX_TEXT] for reason in found if isinstance(reason, str) and reason]


_MAX_DETAILS = 8


def _body_words(body: Any, names: tuple[str, ...], depth: int) -> list[str]:
    if not isinstance(body, dict):
        return []
    found: list[str] = []
    for name in names:
        value = body.get(name)
        if isinstance(value, str) and value:
            found.append(value[:MAX_TEXT])
    if depth:
        for name in ("error", "status", "detail", "details"):
            inner = body.get(name)
            if isinstance(inner, dict):
                found += _body_words(inner, names, depth - 1)
    return found
