"""Trying a call again at once, inside the call: how often, after which errors, after how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._options import check_count, misuse
from .errors import TriageError

if TYPE_CHECKING:
    from .failures import ErrorInfo
    from .strategies.backoff import Preset

_PERMANENT = frozenset({400, 401, 402, 403, 404, 405, 406, 410, 411, 413, 414, 415, 422, 501, 505})
"""HTTP answers that the same request gets again."""
_MISTAKES = (
    TriageError, TypeError, AttributeError, NameError, ImportError, AssertionError,
    NotImplementedError,
)  # fmt: skip
"""Errors of the program, which no repetition mends."""


def tries_of(field: str, value: object) -> Preset | None:
    """What `retries=` says: calls altogether and the waiting between them; None for a single one.

    Takes None, a number of retries (with the waiting of `Backoff()`) or a `Preset`. Raises UsageError
    naming the field.
    """
    if value is None:
        return None
    from .strategies.backoff import Backoff, Preset

    if isinstance(value, Backoff):
        raise misuse(field, value, "a number of retries or a Preset", "write Preset(3, Backoff(…))")
    if isinstance(value, Preset):
        check_count(f"{field} attempts", value.attempts, 1, "1 never retries")
        if not isinstance(value.backoff, Backoff):
            raise misuse(f"{field} backoff", value.backoff, "a Backoff")
        return value if value.retries else None
    check_count(field, value, 0, "0 never retries")
    assert isinstance(value, int)
    return Preset(value + 1, Backoff()) if value else None


def pause_before(
    tries: Preset | None,
    retry: int,
    error: Exception,
    info: ErrorInfo,
    *,
    draw: float,
    left: float | None,
) -> float | None:
    """Seconds to wait before this retry, from 1; None where there is to be none.

    There is none for an error that will come again, where the other side asks for more than the cap,
    or where the wait would not end before the deadline. left: seconds until that, None without one.
    """
    if tries is None or retry > tries.retries or not _may_pass(error, info):
        return None
    asked = _asked(info)
    if asked is not None and asked > tries.backoff.cap:
        return None
    pause = tries.backoff.delay(retry, draw, asked)
    return None if left is not None and pause >= left else pause


def _asked(info: ErrorInfo) -> float | None:
    """Seconds that the other side asks to wait, as the error or what caused it says."""
    for error in info.walk():
        told = None if error.hint is None else error.hint.get("retry_after_s")
        seconds: float | None = error.retry_after_s if told is None else told
        if seconds is not None:
            return seconds
    return None


def _may_pass(error: Exception, info: ErrorInfo) -> bool:
    if isinstance(error, _MISTAKES) or info.status_code in _PERMANENT:
        return False
    said = info.decisive
    told = None if said is None or said.hint is None else said.hint.get("severity")
    return not info.refused and (told is None or told == "retriable")
