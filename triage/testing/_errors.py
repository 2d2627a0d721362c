"""Errors as clients of models and services raise them.

The classes here have the shape of those of the common clients (status, headers, body, request id), so
that no client need be installed. Where a real client is at hand, its own classes are made.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

from triage._options import check_word
from triage.errors import UsageError

CLIENTS = ("openai", "anthropic")
"""Clients whose own classes can be made."""


class APIError(Exception):
    """A client's own error; the base of the others here."""


class APIStatusError(APIError):
    """The service answered with an error. status_code, headers, body: of its answer."""

    def __init__(
        self, message: str, status_code: int, headers: Mapping[str, str], body: Any
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status_code = status_code
        self.headers = dict(headers)
        self.body = body
        self.request_id = "req_test"
        self.response = SimpleNamespace(status_code=status_code, headers=self.headers)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.status_code, self.headers, self.body)


class BadRequestError(APIStatusError):
    """400."""


class AuthenticationError(APIStatusError):
    """401."""


class RateLimitError(APIStatusError):
    """429."""


class InternalServerError(APIStatusError):
    """500 and above."""


class APITimeoutError(APIError, TimeoutError):
    """No answer came in time."""


class UnknownToolError(LookupError):
    """A tool was called that does not exist."""


class Answer(NamedTuple):
    """An answer that is an error. code, kind: the service's own words for it; empty: none."""

    status: int
    message: str
    code: str = ""
    kind: str = ""
    headers: Mapping[str, str] = {}


def status_error(answer: Answer, client: str | None) -> Exception:
    """The error a client raises for this answer. client: None for one of no client in particular."""
    text = f"Error code: {answer.status} - {answer.message}"
    detail = {"message": answer.message, "type": answer.kind, "code": answer.code or None}
    named = _status_class(answer.status)
    if client is None:
        kinds = {kind.__name__: kind for kind in APIStatusError.__subclasses__()}
        kind = kinds.get(named, APIStatusError)
        return kind(text, answer.status, answer.headers, {"error": detail})
    module = _real(client)
    http = _http(client)
    request = http.Request("POST", f"https://{client}.invalid/v1")
    response = http.Response(answer.status, headers=dict(answer.headers), request=request)
    # One client takes the error out of its envelope, the other hands over the whole.
    body = detail if client == "openai" else {"type": "error", "error": detail}
    real: Exception = getattr(module, named)(text, response=response, body=body)
    return real


def timeout_error(client: str | None) -> Exception:
    """What a client raises when no answer came in time."""
    if client is None:
        return APITimeoutError("Request timed out.")
    request = _http(client).Request("POST", f"https://{client}.invalid/v1")
    real: Exception = _real(client).APITimeoutError(request=request)
    real.__cause__ = _http(client).ReadTimeout("The read operation timed out", request=request)
    return real


def refused_error(client: str | None) -> Exception:
    """What a client raises when nobody listens at the other side."""
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    if client is None:
        return refused
    http = _http(client)
    request = http.Request("POST", f"https://{client}.invalid/v1")
    real: Exception = _real(client).APIConnectionError(request=request)
    between = http.ConnectError("[Errno 111] Connection refused", request=request)
    between.__cause__ = refused
    real.__cause__ = between
    return real


def check_client(field: str, client: object) -> None:
    """UsageError for a client whose errors cannot be made: an unknown one, or one not installed."""
    if client is None:
        return
    check_word(field, client, CLIENTS)
    _real(str(client))


def _status_class(status: int) -> str:
    if status >= 500:
        return "InternalServerError"
    named = {400: "BadRequestError", 401: "AuthenticationError", 429: "RateLimitError"}
    return named.get(status, "APIStatusError")


def _real(client: str) -> Any:
    try:
        return import_module(client)
    except ImportError:
        raise UsageError(
            f"client={client!r} makes the errors of the package {client}, which is not installed; "
            f"install it (pip install {client}), or leave client away"
        ) from None


def _http(client: str) -> Any:
    """The HTTP library that this release of the client is built on."""
    home = import_module(f"{client}._exceptions")
    return getattr(home, "httpx2", None) or import_module("httpx")
