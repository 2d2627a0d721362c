"""Read the delay that the other side asked for, from headers, then typed details, then the text.

Sources: RFC 9110 section 10.2.3 (`Retry-After`, seconds or a date), the `retry-after-ms` and
`x-ms-retry-after-ms` headers of model providers, `grpc-retry-pushback-ms` of gRPC, the `RateLimit`
header's `t` of the IETF draft, and `google.rpc.RetryInfo` as object, as JSON and in gRPC trailers. Last,
and only for a rate limit, the reset of the exhausted window (`x-ratelimit-reset-*`,
`anthropic-ratelimit-*-reset`, `RateLimit-Reset`), which is weaker evidence than an explicit delay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from .foreign import attr, call, entry, is_a, items, seconds, some, text_of
from .patterns import Pattern

_MILLISECONDS = ("retry-after-ms", "x-ms-retry-after-ms", "grpc-retry-pushback-ms")
_BODY_SECONDS = ("retry_after", "retryAfter", "retry_after_s", "retry-after", "retryDelay")
_BODY_MILLISECONDS = ("retry_after_ms", "retryAfterMs")
_INNER = ("error", "detail", "data", "param", "meta", "extra")
"""Prefixes of the names of fields whose objects may hold a delay."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_EPOCH = 1e9
"""Minimum of a Unix time in seconds; a thousand times as much is one in milliseconds."""
_LONGEST = 366 * 86_400.0
"""Maximum delay in seconds; a longer one is ignored."""
_LONGEST_WINDOW = 86_400.0
"""Maximum seconds until a window resets; a longer one is a quota, too long to wait for."""
_RATES = frozenset({429, 403})


_NUMBER = r"(\d{1,9}(?:\.\d{1,9})?)"
_UNIT = r"(ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?)"
_IN_WORDS = Pattern(
    r"\b(?:(?:try|retry)(?: your request| the request)?(?: again)?(?: after| in)"
    r"|retry[ _-]?after[ :=]{1,3}|wait(?: for)?(?: about| at least)?) ?"
    rf"(?:{_NUMBER} ?{_UNIT}(?: ?{_NUMBER} ?{_UNIT})?(?: ?{_NUMBER} ?{_UNIT})?)\b"
    rf"|\bretry-after[:=] ?{_NUMBER}\b"
    rf"|\bretry[ _-]?after[ _-]?ms[ :=]{{1,2}}{_NUMBER}"
    # Without a unit, no word may follow: "after 3 attempts", "after 10:30" and a status are no delay.
    r"|(?<!not )(?<!n't )(?<!no )(?<!never )\bretry after (?!4\d\d\b|5\d\d\b)(\d{1,5}(?:\.\d{1,3})?)"
    r"(?=\s*(?:$|[\n;,!)\]}\"']|\.(?!\d)))",
    re.IGNORECASE,
)
_SPANS = Pattern("".join(rf"(?:{_NUMBER}{unit})?" for unit in ("d", "h", "m", "s", "ms")))


def from_text(text: str) -> float | None:
    """Read seconds from words like "try again in 1.4s" or "retry after 2 minutes"; None without them.

    A number without a unit means seconds, but counts only after "retry after" and where no word follows
    that the number could belong to.
    """
    low = text.lower()
    if "try" not in low and "wait" not in low:
        return None
    found = _IN_WORDS.search(text)
    if found is None:
        return None
    *spans, header, milliseconds, bare = found.groups()
    if milliseconds is not None:
        return float(milliseconds) / 1000
    if header is not None or bare is not None:
        return float(header or bare)
    total = 0.0
    for number, unit in zip(spans[::2], spans[1::2], strict=True):
        if number is not None:
            word = unit.lower()
            total += float(number) * _UNITS["ms" if word.startswith(("ms", "mil")) else word[0]]
    return round(total, 6)


def header(headers: object, name: str) -> str | None:
    """Return the value of a header, by its lower-case name, from any kind of mapping."""
    if not is_a(headers, dict):
        value = call(headers, "get", name)
        if value is not None:
            return text_of(value, 400)
    for key, value in items(headers):
        if text_of(key, 60).lower() == name and value is not None:
            return text_of(value, 400)
    return None


def from_headers(headers: object, now: float) -> float | None:
    """Read a delay in seconds from an answer's headers, None without one. now: seconds since the epoch."""
    for name in _MILLISECONDS:
        delay = seconds(header(headers, name))
        if delay is not None:
            return delay / 1000 if delay <= 1000 * _LONGEST else None
    value = header(headers, "retry-after")
    if value is not None:
        delay = seconds(value)
        if delay is None:
            delay = _until(value, header(headers, "date"), now)
        elif delay >= _EPOCH:  # a Unix time, though the standard asks for seconds
            delay = _left(delay, now)
        return delay if delay is not None and delay <= _LONGEST else None
    value = header(headers, "ratelimit")
    if value is not None:
        fields = {
            name.strip(): text
            for name, _, text in (part.partition("=") for part in value.split(";"))
        }
        if fields.get("r", "0").strip() == "0":
            return seconds(fields.get("t"))
    return None


def from_windows(headers: object, status: int | None, now: float) -> float | None:
    """Read the seconds until all exhausted rate windows have reset, None without any.

    A window with something remaining is not exhausted.
    """
    if status not in _RATES:
        return None
    found = {
        name: text_of(value, 60)
        for key, value in items(headers)
        if "rate" in (name := text_of(key, 60).lower())
    }
    left: list[float] = []
    for name, value in found.items():
        if "reset" not in name:
            continue
        remaining = found.get(name.replace("reset", "remaining"))
        # 403 is not about a rate unless the answer says that nothing remains.
        if remaining is None and status == 429:
            remaining = "0"
        if remaining is not None and seconds(remaining) == 0:
            delay = _window(value.strip(), now)
            if delay is not None and 0 <= delay <= _LONGEST_WINDOW:
                left.append(delay)
    return max(left, default=None)


def _window(value: str, now: float) -> float | None:
    """Read a span (`"6m0s"`, `"20ms"`, `"4"`), a Unix time or a date as seconds from now."""
    number = seconds(value)
    if number is not None:
        return _left(number, now) if number >= _EPOCH else number
    spans = _SPANS.fullmatch(value)
    if spans is not None and value:
        days, hours, minutes, rest, milli = (float(part or 0) for part in spans.groups())
        return round(86_400 * days + 3600 * hours + 60 * minutes + rest + milli / 1000, 6)
    try:
        then = datetime.fromisoformat(value)
    except ValueError:
        return _until(value, None, now)
    # A time without a zone is ambiguous.
    return None if then.tzinfo is None else then.timestamp() - now


def _left(moment: float, now: float) -> float:
    """Return the seconds from now to a Unix time, given in seconds or milliseconds."""
    return max(0.0, (moment / 1000 if moment >= 1000 * _EPOCH else moment) - now)


def _until(value: str, date: str | None, now: float) -> float | None:
    """Return the seconds to an HTTP date, by the other side's clock if the answer has a `Date`."""
    then = _timestamp(value)
    if then is None:
        return None
    base = None if date is None else _timestamp(date)
    return max(0.0, then - (now if base is None else base))


def _timestamp(value: str) -> float | None:
    try:
        return parsedate_to_datetime(value).timestamp()
    except (TypeError, ValueError, OverflowError, OSError, IndexError):
        return None


def from_body(body: object, depth: int = 3) -> float | None:
    """Read the delay in seconds from a decoded answer, such as a `google.rpc.RetryInfo` in its details."""
    if is_a(body, dict):
        for name in _BODY_SECONDS:
            delay = seconds(entry(body, name))
            if delay is not None:
                return delay
        for name in _BODY_MILLISECONDS:
            delay = seconds(entry(body, name))
            if delay is not None:
                return delay / 1000
        named = ((text_of(name, 60), part) for name, part in items(body))
        inner: Iterable[Any] = (part for name, part in named if name.startswith(_INNER))
    elif is_a(body, list):
        inner = some(body)
    else:
        return None
    if depth == 0:
        return None
    found = (from_body(part, depth - 1) for part in inner)
    return next((delay for delay in found if delay is not None), None)


def from_details(exc: object) -> float | None:
    """Read the delay in seconds of a `RetryInfo` in typed details or in the trailers of a gRPC call."""
    details = attr(exc, "details")
    if is_a(details, list) or is_a(details, tuple):
        for detail in some(details):
            duration = attr(detail, "retry_delay")
            whole, nanos = seconds(attr(duration, "seconds")), attr(duration, "nanos")
            if whole is None:
                whole, nanos = seconds(duration), 0
            if whole is not None:
                return whole + (seconds(nanos) or 0.0) / 1e9
    for key, value in items(call(exc, "trailing_metadata")):
        name = text_of(key, 80).lower()
        if name in ("google.rpc.retryinfo-bin", "grpc-status-details-bin") and is_a(value, bytes):
            delay = _retry_info(value, nested=name.startswith("grpc"))
            if delay is not None:
                return delay
    return None


def _retry_info(data: bytes, *, nested: bool) -> float | None:
    """Read the seconds of an encoded RetryInfo, whose field 1 is a Duration (1 seconds, 2 nanoseconds).

    nested: the data is a `google.rpc.Status`, whose field 3 holds Any (1 type URL, 2 value).
    """
    try:
        if nested:
            for detail in _fields(data).get(3, []):
                packed = _fields(detail)
                if any(url.endswith(b"google.rpc.RetryInfo") for url in packed.get(1, [])):
                    return _retry_info(packed[2][0], nested=False)
            return None
        duration = _fields(_fields(data)[1][0])
    except (IndexError, KeyError, ValueError, TypeError, AttributeError):
        return None
    return seconds(duration.get(1, [0])[0] + duration.get(2, [0])[0] / 1e9)


def _fields(data: bytes) -> dict[int, list[Any]]:
    """Decode the fields of a protocol buffer message: numbers as int, the rest as bytes."""
    found: dict[int, list[Any]] = {}
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        kind = key & 7
        value: int | bytes
        if kind == 0:
            value, position = _varint(data, position)
        else:
            size = {1: 8, 5: 4}.get(kind, -1)
            if kind == 2:  # wire type 2: a length and that many bytes
                size, position = _varint(data, position)
            if size < 0:
                raise ValueError(kind)
            value, position = data[position : position + size], position + size
        found.setdefault(key >> 3, []).append(value)
    return found


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:  # the top bit is set if another byte follows
            return value, position
        if shift > 63:  # longer than 64 bits
            raise ValueError(shift)
