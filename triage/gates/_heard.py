"""What an exception that left a call says about the service: is it down, does it ask to wait?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from triage._capture import capture
from triage.errors import CircuitOpen
from triage.failures import ErrorInfo

Verdict: TypeAlias = Literal["up", "down", "unknown"]

_TIMED_OUT = 408
_FROM_SERVER = 500
_ASKED_TOO_OFTEN = frozenset({429, 529})
_OURS = ("PoolTimeout", "EmptyPoolError", "UnsupportedProtocol", "InvalidURL", "InvalidUrlClientError",
         "MissingSchema", "InvalidSchema", "LocationParseError", "LocalProtocolError")  # fmt: skip
"""The request never left because of this side: nothing is known of the other."""
_LOST = ("TimeoutError", "ConnectionError")


def verdict_of(error: BaseException) -> Verdict:
    """Whether the service is down, judging by what a call of it has raised.

    Down: an answer 5xx or 408, a request that was not sent or not answered, a timeout. Up: any
    other answer. Unknown: what says nothing about the service, such as a ValueError.
    """
    if not isinstance(error, Exception) or isinstance(error, CircuitOpen):
        return "unknown"
    for info in _what_caused(capture(error)):
        if info.is_a(*_OURS):
            return "unknown"
        if info.status_code is not None:
            down = info.status_code >= _FROM_SERVER or info.status_code == _TIMED_OUT
            return "down" if down else "up"
        if info.phase in {"not_sent", "sent"} or info.is_a(*_LOST):
            return "down"
    return "unknown"


def refusal_of(error: BaseException) -> tuple[bool, float | None]:
    """Whether the call was refused for its rate, and the seconds it was told to wait."""
    if not isinstance(error, Exception):
        return False, None
    refused = False
    for info in _what_caused(capture(error)):
        delay = info.retry_after_s
        if delay is None and info.hint is not None:
            delay = info.hint.get("retry_after_s")
        if delay is not None:
            return True, delay
        refused = refused or info.status_code in _ASKED_TOO_OFTEN
    return refused, None


def _what_caused(info: ErrorInfo) -> Iterator[ErrorInfo]:
    """The error, its causes and group members; not what merely was being handled."""
    yield info
    for other in info.related:
        if other.relation != "context":
            yield from _what_caused(other)
