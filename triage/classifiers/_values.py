"""Numbers, dates and times in a text, as values that can be compared however they were written.

Every repetition below is bounded or over one class, so reading a text takes linear time.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

MONTHS = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
_MONTH = "|".join(
    "sep(?:t(?:ember)?)?" if name == "september" else f"{name[:3]}(?:{name[3:]})?"
    for name in MONTHS
)
_DAY = r"(?P<{0}>[0-3]?\d)(?:st|nd|rd|th)?"

# Thousands are grouped by commas, dots, apostrophes, underscores or narrow spaces.
NUMBER = r"\d(?:[\d,.'\u2019_]|[\u00a0\u202f](?=\d)){0,40}"
SCALES = {
    "k": 1e3,
    "thousand": 1e3,
    "m": 1e6,
    "mn": 1e6,
    "mio": 1e6,
    "million": 1e6,
    "b": 1e9,
    "bn": 1e9,
    "billion": 1e9,
    "trillion": 1e12,
}


class Day(NamedTuple):
    """A day of the calendar. year: None where it was not written."""

    year: int | None
    month: int
    day: int


@cache
def dates() -> re.Pattern[str]:
    """A day in the forms it is written in. Groups say which part is which."""
    year = r"(?P<{0}>(?:19|20)\d\d)"
    forms = (
        rf"(?<![\d.]){year.format('y1')}[-/.](?P<m1>[01]?\d)[-/.](?P<d1>[0-3]?\d)(?!\d)",
        r"(?<![\d/.-])(?P<a>[0-3]?\d)[/.-](?P<b>[0-3]?\d)[/.-](?P<y2>(?:19|20)?\d\d)(?![\d/-]|\.\d)",
        rf"\b{_DAY.format('d3')}(?: of)?[ -](?P<m3>{_MONTH})\b\.?(?:[ ,-]{{1,3}}{year.format('y3')}\b)?",
        rf"\b(?P<m4>{_MONTH})\.?[ -]{_DAY.format('d4')}\b(?:[ ,-]{{1,3}}{year.format('y4')}\b)?",
        r"(?<!\d)(?P<y5>20\d\d)(?P<m5>0[1-9]|1[0-2])(?P<d5>0[1-9]|[12]\d|3[01])(?!\d)",
    )
    return re.compile("|".join(forms), re.IGNORECASE)


def days_of(match: re.Match[str]) -> tuple[Day, ...]:
    """The days a match of `dates` may mean: 03/04/2024 is two. Empty if it is no day at all."""
    parts = match.groupdict()
    if parts["a"]:
        year = int(parts["y2"])
        year += 2000 if year < 100 else 0  # noqa: PLR2004 - a year of two digits
        first, second = int(parts["a"]), int(parts["b"])
        found = [Day(year, first, second), Day(year, second, first)]
    else:
        form = next(number for number in "1345" if parts[f"m{number}"])
        month = parts[f"m{form}"]
        number = int(month) if month.isdecimal() else _month(month)
        found = [Day(int(y) if (y := parts[f"y{form}"]) else None, number, int(parts[f"d{form}"]))]
    return tuple(dict.fromkeys(day for day in found if _is_day(day)))


def _month(name: str) -> int:
    return next(at for at, month in enumerate(MONTHS, 1) if month.startswith(name[:3].lower()))


def _is_day(day: Day) -> bool:
    try:
        dt.date(day.year or 2000, day.month, day.day)
    except ValueError:
        return False
    return True


def moved(day: Day, by: int) -> Day:
    """The day so many days later."""
    try:
        date = dt.date(day.year or 2001, day.month, day.day) + dt.timedelta(days=by)
    except (ValueError, OverflowError):
        return day
    return Day(None if day.year is None else date.year, date.month, date.day)


def day_of_epoch(value: float) -> Day | None:
    """The day of a time in seconds or milliseconds since the epoch; None for other numbers."""
    if value >= 1e11:  # noqa: PLR2004 - milliseconds from 1973 on
        value /= 1e3
    if not 1e8 <= value < 1e10:  # noqa: PLR2004 - 1973 to 2286
        return None
    date = dt.datetime.fromtimestamp(value, dt.UTC)
    return Day(date.year, date.month, date.day)


@cache
def times() -> re.Pattern[str]:
    """A time of day: 14:05, 14:05:30, 2:05 pm, 2 pm."""
    return re.compile(
        r"(?<![\d:.])(?P<h>[0-2]?\d):(?P<m>[0-5]\d)(?::[0-5]\d(?:\.\d{1,6})?)?(?![\d:])"
        r"\s?(?P<half>[ap]\.?m\b\.?)?"
        r"|(?<![\d:.])(?P<h2>1?\d)\s?(?P<half2>[ap]\.?m\b\.?)",
        re.IGNORECASE,
    )


def minutes_of(match: re.Match[str]) -> tuple[int, ...]:
    """The minutes after midnight a match of `times` may mean; two where the half is not said."""
    hour = int(match["h"] or match["h2"])
    minute = int(match["m"] or 0)
    half = (match["half"] or match["half2"] or "").lower()
    if hour > 24 or (half and hour > 12):  # noqa: PLR2004 - hours of a day and of its half
        return ()
    if half:
        return ((hour % 12 + (12 if half[0] == "p" else 0)) * 60 + minute,)
    first = hour % 24 * 60 + minute
    either = 1 <= hour <= 12 and match["h"][0] != "0"  # noqa: PLR2004 - 9:05 may be in the evening, 09:05 not
    return (first, (first + 12 * 60) % (24 * 60)) if either else (first,)


class Number(NamedTuple):
    """A number as written. step: what its last digit counts, 0.01 for 3.14."""

    value: float
    step: float


def numbers_of(token: str) -> tuple[Number, ...]:
    """What a token of digits and separators may mean, likeliest first; empty if it is no number.

    `1,234` is 1234 and, elsewhere, 1.234. `1,2,3` is three numbers, of which none is returned.
    """
    token = token.strip(",.'\u2019_\u00a0\u202f")
    plain = re.sub(r"['\u2019_\u00a0\u202f]", "", token)
    if plain.isdecimal():
        return (Number(float(plain), 1.0),)
    comma, dot = plain.count(","), plain.count(".")
    if comma and dot:
        decimal = "," if plain.rfind(",") > plain.rfind(".") else "."
        return _read(plain, decimal) if plain.count(decimal) == 1 else ()
    mark = "," if comma else "."
    head, *groups = plain.split(mark)
    grouped = len(head) <= 3 and all(len(group) == 3 for group in groups)  # noqa: PLR2004 - thousands
    if len(groups) > 1:
        return _read(plain, "." if mark == "," else ",") if grouped else ()
    as_thousands = _read(plain, "." if mark == "," else ",") if grouped and head != "0" else ()
    as_decimal = _read(plain, mark)
    return as_thousands + as_decimal if mark == "," else as_decimal + as_thousands


def _read(text: str, decimal: str) -> tuple[Number, ...]:
    text = text.replace("." if decimal == "," else ",", "").replace(decimal, ".")
    try:
        value = float(text)
    except ValueError:
        return ()
    return (Number(value, 10.0 ** -len(text.partition(".")[2])),)


@cache
def _source_numbers() -> re.Pattern[str]:
    scales = "|".join(sorted(SCALES, key=len, reverse=True))
    return re.compile(rf"({NUMBER})(?:\s?({scales})\b)?", re.IGNORECASE)


def numbers_in(text: str) -> Iterator[float]:
    """Every number a text may hold, in digits or in words, also those inside of names."""
    for match in _source_numbers().finditer(text):
        token = match[1]
        scale = SCALES[match[2].lower()] if match[2] else 0.0
        found = numbers_of(token)
        if not found or not re.fullmatch(r"[\d.]+", token):
            yield from (float(part) for part in re.split(r"\D+", token) if part)
        for number in found:
            yield number.value
            if scale:
                yield number.value * scale
    for match in re.finditer(r"(?<!\d)(\d\d)(?:0[1-9]|1[0-2])\.\d{4,5}(?!\d)", text):
        yield 2000.0 + int(match[1])  # the year in the id of a preprint: 2101.01234
    yield from _numbers_in_words(text)


_ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_WORDS = {
    **{word: float(at) for at, word in enumerate(_ONES)},
    **{word: 10.0 * at for at, word in enumerate(_TENS, 2)},
    "dozen": 12.0,
    "half": 0.5,
    "quarter": 0.25,
    "twice": 2.0,
    "double": 2.0,
}
_POWERS = {"hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9}


@cache
def _word_runs() -> re.Pattern[str]:
    names = "|".join([*_WORDS, *_POWERS])
    return re.compile(
        rf"\b(?:{names})\b(?:(?:[ -]| and ){{1,2}}(?:{names})\b){{0,12}}", re.IGNORECASE
    )


def _numbers_in_words(text: str) -> Iterator[float]:
    for match in _word_runs().finditer(text):
        total = group = 0.0
        for word in re.findall(r"[a-z]+", match[0].lower()):
            if word in _POWERS:
                group = (group or 1.0) * _POWERS[word]
                if _POWERS[word] > 100:  # noqa: PLR2004 - above a hundred a group is closed
                    total, group = total + group, 0.0
            else:
                group += _WORDS.get(word, 0.0)
        yield total + group
