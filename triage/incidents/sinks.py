"""Where messages go: the log, a file, a webhook; any function of a `Message` is a sink too."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import time
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from triage._options import check_number, misuse
from triage.errors import TriageError, UsageError
from triage.observers import logger
from triage.taxonomy import Level

from ._model import Message

Sink = Callable[[Message], Any]
"""Given a message, sync (called in a thread) or async. What it raises means: not delivered."""

TIMESTAMP = "Triage-Timestamp"
SIGNATURE = "Triage-Signature"
DELIVERY = "Triage-Delivery"
_LOUD = (Level.HIGH, Level.CRITICAL)
_LEAST_SECRET = 16


class NotDelivered(TriageError):
    """A webhook did not take a message."""


class LogSink:
    """Writes messages on the logger `triage`: warnings, and errors from the level high on."""

    def __call__(self, message: Message) -> None:
        """Write one."""
        write = logger.error if message.level in _LOUD else logger.warning
        write("to %s: %s", message.role, message.text)

    def __repr__(self) -> str:
        return "LogSink()"


class FileSink:
    """Appends messages to a file, one JSON object a line; a new file is for its owner alone (0600).

    Raises UsageError for what is no path.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise misuse("FileSink.path", path, "the path of a file")
        self._path = Path(path).absolute()

    def __call__(self, message: Message) -> None:
        """Append one."""
        line = json.dumps(payload(message)) + "\n"
        place = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(place, line.encode("ascii"))
        finally:
            os.close(place)

    def __repr__(self) -> str:
        return f"FileSink({self._path.name!r})"


class WebhookSink:
    """Posts messages as JSON to a URL, signed.

    url: `https://…` or `http://…`. secret: at least 16 characters, shared with the receiver; it signs
    `timestamp.body` with HMAC-SHA256, in the header `Triage-Signature: v1=<hex>` beside
    `Triage-Timestamp` (seconds since the epoch) and `Triage-Delivery` (the same for every delivery of one
    message). `signature_fits` checks it. timeout_s: seconds, 10 by default. Redirects are refused, as they
    would carry a message elsewhere. Any answer but 2xx raises NotDelivered, which names the host alone.

    Raises UsageError, which shows neither the secret nor the URL.
    """

    def __init__(self, url: str, secret: str, *, timeout_s: float = 10.0) -> None:
        try:
            parts = urlsplit(url)
            host = parts.hostname
        except (ValueError, AttributeError, TypeError):
            parts, host = None, None
        if parts is None or parts.scheme not in ("http", "https") or not host:
            raise UsageError("WebhookSink.url must be an http or https URL with a host")
        if not isinstance(secret, str) or len(secret) < _LEAST_SECRET:
            raise UsageError(
                f"WebhookSink.secret must be text of at least {_LEAST_SECRET} characters"
            )
        check_number("WebhookSink.timeout_s", timeout_s, "seconds", above=True)
        self._url = url
        self._host = host
        self._secret = secret
        self._timeout = timeout_s
        self._opener = build_opener(_NoRedirects)

    def __call__(self, message: Message) -> None:
        """Post one; blocks, so it is called in a thread."""
        body = json.dumps(payload(message)).encode("ascii")
        stamp = str(int(time.time()))
        request = Request(self._url, body, method="POST")  # noqa: S310 - the scheme was checked
        request.add_header("Content-Type", "application/json")
        request.add_header(TIMESTAMP, stamp)
        request.add_header(SIGNATURE, signature(self._secret, stamp, body))
        request.add_header(DELIVERY, message.key)
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                answer.read(1024)
        except HTTPError as error:
            error.close()
            raise NotDelivered(f"{self._host} answered {error.code}") from None
        except (URLError, HTTPException, OSError) as error:
            reason = getattr(error, "reason", error)
            raise NotDelivered(f"{self._host} was not reached: {type(reason).__name__}") from None

    def __repr__(self) -> str:
        return f"WebhookSink({self._host!r})"


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_args: Any, **_options: Any) -> None:
        return None


def payload(message: Message) -> dict[str, Any]:
    """A message as JSON: its incident, to whom, and the key by which a repetition is known."""
    return {
        "key": message.key,
        "role": message.role,
        "created_at": message.created_at,
        **message.body,
    }


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """What the header `Triage-Signature` holds."""
    signed = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256)
    return f"v1={signed.hexdigest()}"


def signature_fits(
    secret: str, timestamp: str, body: bytes, given: str, *, now: float, tolerance_s: float = 300.0
) -> bool:
    """Whether a webhook's body came from who knows the secret, not long ago: for its receiver.

    now: seconds since the epoch. tolerance_s: how old it may be, so that nobody can send it again.
    """
    try:
        age = abs(now - float(timestamp))
    except ValueError:
        return False
    fits = hmac.compare_digest(signature(secret, timestamp, body).encode(), given.encode())
    return fits and age <= tolerance_s
