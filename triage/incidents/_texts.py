"""Texts and times of the room: cleaned, capped, compared, and found in messages."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Iterable

from triage._options import misuse

from ._errors import UnknownIncident

MAX_MESSAGE = 4_000
MAX_TRACE = 20_000
MAX_ID = 256
MAX_FILES = 20
MILLIS = 1e11
"""Times beyond are milliseconds."""

_NUMBERS = re.compile(r"\d+")
_ID = re.compile(r"err-(\d{1,18})")
# A path has a folder or an ending that source and data files have; nothing here repeats without bound.
_FILE = re.compile(
    r"(?<![\w/.:-])(?:(?:\.{1,2}|[\w@+-]{1,64}(?:\.[\w@+-]{1,32}){0,3})?/){0,12}"
    r"[\w@+-]{1,64}(?:\.[\w@+-]{1,32}){0,3}\."
    r"(?:py|pyi|js|ts|tsx|jsx|java|go|rs|c|h|cc|cpp|hpp|cs|rb|php|sh|sql|md|rst|txt|json|ya?ml|toml|"
    r"ini|cfg|csv|db|sqlite3?|lock|log|html|css|xml|ipynb|proto)(?![\w/])"
)


def clean(text: str, most: int) -> str:
    """A text that every database keeps: without NUL and lone surrogates, of at most so many characters."""
    if len(text) > most:
        text = f"{text[: most - 1]}…"
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def check_id(field: str, value: object) -> str:
    """An id as it is kept. Raises UsageError for one that cannot be."""
    if not isinstance(value, str) or not value.strip():
        raise misuse(field, value, "text that is not empty")
    if len(value) > MAX_ID or value != clean(value, MAX_ID):
        raise misuse(field, value[:40], f"at most {MAX_ID} printable characters")
    return value


def number_of(error_id: object) -> int:
    """The number of an incident's id. Raises UnknownIncident for what cannot be one."""
    if not isinstance(error_id, str):
        raise misuse("error_id", error_id, "text such as 'err-001'")
    match = _ID.fullmatch(error_id)
    if match is None:
        raise UnknownIncident(
            f"{clean(error_id, 80)!r} is no incident's id; they look like err-001"
        )
    return int(match[1])


def files_in(*texts: str | None) -> tuple[str, ...]:
    """The files that texts name, each once, in order; at most 20."""
    found: dict[str, None] = {}
    for text in texts:
        for match in _FILE.finditer((text or "")[:MAX_MESSAGE]):
            found.setdefault(match[0])
    return tuple(found)[:MAX_FILES]


def fingerprint(scope: str, agent_type: str, kind: str, cause: str | None, message: str) -> str:
    """Equal for failures that are one trouble: case, numbers and spaces in the message do not count."""
    words = " ".join(_NUMBERS.sub("#", message.casefold()).split())[:300]
    parts: Iterable[str] = (scope, agent_type, kind, cause or "", words)
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32]


def iso(seconds: float) -> str:
    """A time as the desk's JSON has it: `2025-10-26T10:30:00Z`, to the second."""
    when = dt.datetime.fromtimestamp(seconds, dt.UTC)
    return f"{when:%Y-%m-%dT%H:%M:%S}Z"


def seconds_of(value: object) -> float | None:
    """Seconds since the epoch of a time from a foreign table, None for what is none.

    Numbers are seconds, or milliseconds where they would be a year beyond 5000; texts are ISO 8601,
    UTC where they name no zone.
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value) / 1000 if value > MILLIS else float(value)
    if isinstance(value, str):
        try:
            value = dt.datetime.fromisoformat(value.strip())
        except ValueError:
            return None
    if not isinstance(value, dt.datetime):
        return None
    return (value if value.tzinfo else value.replace(tzinfo=dt.UTC)).timestamp()
