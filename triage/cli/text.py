"""What commands say of numbers, times and JSON values."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from typing import Any

from triage.core import UsageError, redact, refuse_constant

_LENGTH = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) ?(s|m|min|h|d|w)", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}


# JSON ---------------------------------------------------------------------------------------------


def json_line(value: Any) -> str:
    """A JSON value in one line, ASCII only, its texts redacted; null for a number that JSON has not."""
    return json.dumps(_redacted(value), allow_nan=False)


def _redacted(value: Any) -> Any:
    match value:
        case str():
            return redact(value)
        case float() if not math.isfinite(value):
            return None
        case Mapping():
            return {redact(str(name)): _redacted(item) for name, item in value.items()}
        case list() | tuple():
            return [_redacted(item) for item in value]
        case _:
            return value


def json_given(option: str, text: str) -> Any:
    """Read the value of an option that is JSON. Raises UsageError for what is none."""
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option} must be JSON, text in double quotes: {error}") from None


# Times --------------------------------------------------------------------------------------------


def now() -> float:
    """Seconds since the epoch on this machine's clock, by which ages are told."""
    return time.time()


def seconds_of(option: str, text: str) -> float:
    """Seconds of a text such as `30d`. Raises UsageError for anything else."""
    found = _LENGTH.fullmatch(text)
    if found is None:
        raise UsageError(f"{option} {text!r} must be a number and a unit: 90s, 30m, 12h, 30d, 4w")
    return float(found[1]) * _SECONDS[found[2]]
