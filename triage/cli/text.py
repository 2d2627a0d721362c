"""Text as it may be shown: cut, without credentials, and without what would steer a terminal."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from triage.core import UsageError, redact

LONGEST = 200
"""Characters of a text that are shown."""
_MOST_READ = 65_536  # longer than any credential that begins where it would be shown

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?)")
# Controls, marks that turn the direction of writing, and halves of surrogate pairs.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_LENGTH = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) ?(s|m|min|h|d|w)", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def clean(text: str, longest: int = LONGEST) -> str:
    """Put `text` into one line, without controls and credentials, cut at `longest`."""
    text = _ESCAPES.sub("", text[:_MOST_READ])
    text = redact(_UNPRINTABLE.sub("", " ".join(text.split())))
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def printable(text: str) -> str:
    """All of `text`, its lines kept, without what would steer a terminal."""
    text = _ESCAPES.sub("", text).replace("\r\n", "\n")
    return "\n".join(
        "\t".join(_UNPRINTABLE.sub("", cell) for cell in line.split("\t"))
        for line in text.split("\n")
    )


def shown(text: str, longest: int = LONGEST) -> str:
    """Put `text` into one line, its control characters as escapes.

    A text with a credential loses them instead: they could part what would be known as one.
    """
    text = text[:_MOST_READ]
    bare = _UNPRINTABLE.sub("", _ESCAPES.sub("", text))
    if redact(bare) != bare or redact(text) != text:
        return clean(text, longest)
    text = _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def counted(number: int, word: str) -> str:
    """A number of things: `1 step`, `2 steps`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


# JSON ---------------------------------------------------------------------------------------------


def json_text(value: Any) -> str:
    """Text as it is, any other JSON value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def json_line(value: Any) -> str:
    """A JSON value in one line, its texts redacted; null for a number that JSON has not."""
    return json.dumps(_redacted(value), allow_nan=False)


def _redacted(value: Any) -> Any:
    match value:
        case str():
            return redact(value)
        case float() if not math.isfinite(value):
            return None
        case Mapping():
            return {name: _redacted(item) for name, item in value.items()}
        case list() | tuple():
            return [_redacted(item) for item in value]
        case _:
            return value


def json_given(option: str, text: str) -> Any:
    """Read the value of an option that is JSON. Raises UsageError for what is none."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option} must be JSON, text in double quotes: {error}") from None


# Times --------------------------------------------------------------------------------------------


def now() -> float:
    """Seconds since the epoch on this machine's clock, by which ages are told."""
    return time.time()


def moment(seconds: float) -> str:
    """A time in seconds since the epoch, as UTC."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "unknown"


def span(seconds: float) -> str:
    """How long something is, in the largest unit of which it has two: `119 s`, `2 min`, `47 h`."""
    if not math.isfinite(seconds):
        return "unknown"
    whole = max(0, int(seconds))
    size, unit = next((entry for entry in _UNITS if whole >= 2 * entry[0]), _UNITS[-1])
    return f"{whole // size} {unit}"


def seconds_of(option: str, text: str) -> float:
    """Seconds of a text such as `30d`. Raises UsageError for anything else."""
    found = _LENGTH.fullmatch(text)
    if found is None:
        raise UsageError(f"{option} {text!r} must be a number and a unit: 90s, 30m, 12h, 30d, 4w")
    return float(found[1]) * _SECONDS[found[2]]
