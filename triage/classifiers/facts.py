"""Find the hard facts of an answer: values in it that somebody must have looked up.

Facts are numbers, dates, times and names, in a form that can be compared however they were written. Every
repetition in a regex is bounded or over a single character class, so reading a text takes linear time.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from triage.core.patterns import Pattern

# --- numbers, dates and times ----------------------------------------------------------------

MONTHS = [
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
]  # fmt: skip
_MONTH = "|".join(
    "sep(?:t(?:ember)?)?" if name == "september" else f"{name[:3]}(?:{name[3:]})?"
    for name in MONTHS
)
_MONTH_NUMBERS = {name[:3]: at for at, name in enumerate(MONTHS, 1)}
_DAY = r"(?P<{0}>[0-3]?\d)(?:st|nd|rd|th)?"

# Thousands are grouped by commas, dots, apostrophes, underscores or narrow spaces.
NUMBER = r"\d(?:[\d,.'\u2019_]|[\u00a0\u202f](?=\d)){0,40}"
SCALES = {
    "k": 1e3, "thousand": 1e3, "m": 1e6, "mn": 1e6, "mio": 1e6, "million": 1e6, "b": 1e9, "bn": 1e9,
    "billion": 1e9, "trillion": 1e12,
}  # fmt: skip


class Day(NamedTuple):
    """A calendar day. year: None if it was not written."""

    year: int | None
    month: int
    day: int


year = r"(?P<{0}>(?:19|20)\d\d)"
forms = (
    rf"(?<![\d.]){year.format('y1')}[-/.](?P<m1>[01]?\d)[-/.](?P<d1>[0-3]?\d)(?!\d)",
    r"(?<![\d/.-])(?P<a>[0-3]?\d)[/.-](?P<b>[0-3]?\d)[/.-](?P<y2>(?:19|20)?\d\d)(?![\d/-]|\.\d)",
    rf"\b{_DAY.format('d3')}(?: of)?[ -](?P<m3>{_MONTH})\b\.?(?:[ ,-]{{1,3}}{year.format('y3')}\b)?",
    rf"\b(?P<m4>{_MONTH})\.?[ -]{_DAY.format('d4')}\b(?:[ ,-]{{1,3}}{year.format('y4')}\b)?",
    r"(?<!\d)(?P<y5>20\d\d)(?P<m5>0[1-9]|1[0-2])(?P<d5>0[1-9]|[12]\d|3[01])(?!\d)",
)
DATES = Pattern("|".join(forms), re.IGNORECASE)
"""Matches a day in any of its written forms, with a named group for each part."""


def days_of(match: re.Match[str]) -> tuple[Day, ...]:
    """Return the days that a match of `DATES` may mean: two for 03/04/2024, none for no valid day."""
    parts = match.groupdict()
    if parts["a"]:
        year = int(parts["y2"])
        year += 2000 if year < 100 else 0  # a year of two digits
        first, second = int(parts["a"]), int(parts["b"])
        found = [Day(year, first, second), Day(year, second, first)]
    else:
        form = next(number for number in "1345" if parts[f"m{number}"])
        month = parts[f"m{form}"]
        number = int(month) if month.isdecimal() else _MONTH_NUMBERS[month[:3].lower()]
        found = [Day(int(y) if (y := parts[f"y{form}"]) else None, number, int(parts[f"d{form}"]))]
    return tuple(dict.fromkeys(day for day in found if _is_day(day)))


def _is_day(day: Day) -> bool:
    try:
        dt.date(day.year or 2000, day.month, day.day)
    except ValueError:
        return False
    return True


def moved(day: Day, by: int) -> Day:
    """Return the day `by` days later; the day itself if the result is outside the calendar."""
    try:
        date = dt.date(day.year or 2001, day.month, day.day) + dt.timedelta(days=by)
    except (ValueError, OverflowError):
        return day
    return Day(None if day.year is None else date.year, date.month, date.day)


def day_of_epoch(value: float) -> Day | None:
    """Return the UTC day of a time in seconds or milliseconds since the epoch; None for other numbers."""
    if value >= 1e11:  # milliseconds from 1973 on
        value /= 1e3
    if not 1e8 <= value < 1e10:  # 1973 to 2286
        return None
    date = dt.datetime.fromtimestamp(value, dt.UTC)
    return Day(date.year, date.month, date.day)


TIMES = Pattern(
    r"(?<![\d:.])(?P<h>[0-2]?\d):(?P<m>[0-5]\d)(?::[0-5]\d(?:\.\d{1,6})?)?(?![\d:])"
    r"\s?(?P<half>[ap]\.?m\b\.?)?"
    r"|(?<![\d:.])(?P<h2>1?\d)\s?(?P<half2>[ap]\.?m\b\.?)",
    re.IGNORECASE,
)
"""Matches a time of day: 14:05, 14:05:30, 2:05 pm, 2 pm."""


def minutes_of(match: re.Match[str]) -> tuple[int, ...]:
    """Return the minutes after midnight that a match of `TIMES` may mean: two if am or pm is missing."""
    hour = int(match["h"] or match["h2"])
    minute = int(match["m"] or 0)
    half = (match["half"] or match["half2"] or "").lower()
    if hour > 24 or (half and hour > 12):  # the last hour of a day, and of half a day
        return ()
    if half:
        return ((hour % 12 + (12 if half[0] == "p" else 0)) * 60 + minute,)
    first = hour % 24 * 60 + minute
    either = 1 <= hour <= 12 and match["h"][0] != "0"  # 9:05 may be in the evening, 09:05 may not
    return (first, (first + 12 * 60) % (24 * 60)) if either else (first,)


class Number(NamedTuple):
    """A number as written. step: the value of its last digit, such as 0.01 for 3.14."""

    value: float
    step: float


def numbers_of(token: str) -> tuple[Number, ...]:
    """Return the numbers that a token of digits and separators may mean, likeliest first.

    `1,234` may mean 1234 or, in other countries, 1.234. Empty if the token is not one number, such as
    `1,2,3`.
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
    grouped = len(head) <= 3 and all(len(group) == 3 for group in groups)  # thousands
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


scales = "|".join(sorted(SCALES, key=len, reverse=True))
_SOURCE_NUMBERS = Pattern(rf"({NUMBER})(?:\s?({scales})\b)?", re.IGNORECASE)


def numbers_in(text: str) -> Iterator[float]:
    """Yield every number that a text may hold, in digits or words, including those inside names."""
    for match in _SOURCE_NUMBERS.finditer(text):
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
    yield from numbers_in_words(text)


_ONES = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
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


names = "|".join([*_WORDS, *_POWERS])
_WORD_RUNS = Pattern(
    rf"\b(?:{names})\b(?:(?:[ -]| and ){{1,2}}(?:{names})\b){{0,12}}", re.IGNORECASE
)


def numbers_in_words(text: str) -> Iterator[float]:
    """Yield the numbers that a text spells, such as twenty-four."""
    for match in _WORD_RUNS.finditer(text):
        total = group = 0.0
        for word in re.findall(r"[a-z]+", match[0].lower()):
            if word in _POWERS:
                group = (group or 1.0) * _POWERS[word]
                if _POWERS[word] > 100:  # a power above a hundred closes the group
                    total, group = total + group, 0.0
            else:
                group += _WORDS.get(word, 0.0)
        yield total + group


# --- figures that an answer calculates itself -------------------------------------------------

_MAX_SUM = 300
_BARE = 3
_SUM = "0123456789+-*/\u00d7÷·x().,$€£¥ \t"

_LABEL = Pattern(
    r"(?:\btotal\w{0,3}|\bsum\w{0,3}|\bsubtotal|\b(?:al)?together|\bin all|\bcombined|"
    r"\boverall|\baverage\w?|\bmean|"
    r"\bcomes? to|\bamounts? to|\badds? up|\bcalculat\w{1,4}|\bequal\w?|\bnet\b|=)[^.\n]{0,50}$"
)
_TOTAL = Pattern(
    r"(?:\btotal\w{0,3}|\bsum\b|\bsubtotal|\b(?:al)?together|\bin all|\bcombined|\bcomes? to|"
    r"\bamounts? to|\badds? up)[^.\n]{0,50}$"
)
_MAX_REACH = 20_000_000
"""The largest total, in hundredths, that `add_up` checks."""
_MAX_TIMES = 12


_RESULT = Pattern(rf"=\s?[$€£¥]?\s?({NUMBER})")


def calculated_in(text: str) -> Iterator[int]:
    """Yield where the results of written calculations end, such as `3 * 120 + 430 = 790`."""
    for match in _RESULT.finditer(text):
        before = text[max(0, match.start() - _MAX_SUM) : match.start()]
        written = before[len(before.rstrip(_SUM)) :]
        if len(re.findall(NUMBER, written)) > 1:
            yield match.start(1) + len(match[1].rstrip(",.'\u2019_\u00a0\u202f"))


def add_up(low: float, high: float, numbers: Sequence[float]) -> bool:
    """Return whether some of these numbers add up to a total from `low` to `high`.

    Each number may count up to twelve times, as in three nights at 120, so whole numbers up to twelve are
    taken for counts, not amounts, unless there are no others. Also True for a total too large to check.
    """
    top = round(high * 100)
    if not 0 <= top <= _MAX_REACH:
        return True
    prices = {one for one in numbers if not (one.is_integer() and one <= _MAX_TIMES)} or set(
        numbers
    )
    reached = 1  # bit n is set if a total of n hundredths can be reached
    within = (1 << (top + 1)) - 1
    for price in prices:
        cents = round(abs(price) * 100)
        often = min(_MAX_TIMES, top // cents) if cents else 0
        more = [reached << (cents * times) for times in range(1, often + 1)]
        for one in more:
            reached |= one & within
    return reached >> max(round(low * 100), 1) != 0


# --- the facts of a text -----------------------------------------------------------------------

MAX_ANSWER = 100_000
"""How many characters of an answer are examined."""
MAX_FACTS = 500
SMALL = 13
"""Whole numbers below this are everyday counts, not facts."""
_MAX_TEXT = 200


class Fact(NamedTuple):
    """A fact of an answer. kind: one of `FACT_KINDS`. text: as in the answer, up to 200 characters."""

    kind: str
    text: str


class Found(NamedTuple):
    """A fact and what it may mean. before, after: the words around it, in lower case.

    numbers: the numbers it may mean. percent: written with a percent sign. hedged: written as approximate,
    such as "about". ending: written as the last digits of a longer number. reckoned: described as a sum,
    an average or the like. total: described as a sum. calculated: written as the result of a calculation.
    days, minutes: the days or times of day it may mean.
    """

    kind: str
    text: str
    before: str = ""
    after: str = ""
    numbers: tuple[Number, ...] = ()
    percent: bool = False
    hedged: bool = False
    ending: bool = False
    reckoned: bool = False
    total: bool = False
    calculated: bool = False
    days: tuple[Day, ...] = ()
    minutes: tuple[int, ...] = ()


CURRENCY = "$€£¥₹₩"
_UNRATED = frozenset(
    {"confidence", "score", "probability", "rating", "relevance", "priority", "index"}
)
# Well-known names that look like ids.
_STANDARDS = Pattern(
    r"(?:sha|aes|rsa|utf|iso|rfc|ieee|hs|rs|es|x|h|win|arm|amd|base|http|ipv|covid|ecma|crc|mp|cuda)"
    r"[-_]?\d{1,5}(?:-\d{1,4})?|[a-z]{1,5}-?\d{1,2}[a-z]?",
    re.IGNORECASE,
)
_ORDINARY = Pattern(r"(\d+(?:[.,]\d+)?)-?([A-Za-z]+(?:-[A-Za-z]+){0,4})")
_EXAMPLE = Pattern(
    r"(?:\be\.g\.|\bi\.e\.|\bex[ae]mples?|\binstance|\bsuch as|\blike|\bformat|\bplaceholder)[^.\n]{0,80}$"
)
_HEDGE = Pattern(
    r"(?:\babout|\baround|\bapprox(?:\.|imately)?|\broughly|\bnearly|\balmost|\bover|\bmore than|"
    r"\bless than|\bunder|\bsome|\bestimated|\bclose to|\bat least|\bup to|\bbelow|\babove|~|≈|<|>|≥|≤"
    r")\s{0,2}[$€£¥₹]?$"
)
_ENDING = Pattern(
    r"(?:\bend(?:s|ing|ed)?(?: in| with)?|\blast (?:four|4)\b[^.\n]{0,20}|…|\.\.|[*x•]{2})\s{0,2}$"
)
_NUMBERED = Pattern(
    r"(?:\bstep|\boption|\bsection|\bchapter|\bpage|\bfigure|\btable|\bversion|\bv|\bpart|\bphase|"
    r"\bpython|\bnode|\bjava|\bubuntu|\bios|\bandroid|\bwindows|\bhttp|\btls|\busb|\bgpt|"
    r"\bitem|\bline|\bquestion|\bexample|\btop|\btier|\blevel|\bno\.|\bnumber|\brow|#)[ :]{0,2}#?$"
)
_LASTING = Pattern(
    r"\s{0,2}-?(?:(?:business|working|calendar)[ -])?"
    r"(?:s|sec|secs|seconds?|m|min|mins|minutes?|h|hrs?|hours?|days?|weeks?|months?|years?)\b"
)
_USUAL_SPANS = frozenset(
    {14, 15, 20, 21, 24, 25, 28, 30, 35, 40, 45, 48, 50, 60, 72, 90, 100, 120, 180, 365}
)
_PHONE = Pattern(r"\+?\d{1,4}([-.])\d{1,4}(?:\1\d{1,4}){1,3}")


_MASKED = (
    Pattern(r"```[^`]*(?:`{1,2}[^`]+)*(?:```|\Z)"),
    Pattern(r"~~~[^~]*(?:~~~|\Z)"),
    Pattern(r"\[\^?\d{1,3}(?:[,\u2013-] ?\d{1,3}){0,8}\]"),
    Pattern(r"\b24/7\b"),
    Pattern(r"^[ \t>#*-]{0,12}\(?\d{1,3}[.):](?=\s)", re.MULTILINE),
)
"""Text that holds no facts: code, and the numbers of footnotes and lists."""


_NAMED = (
    ("url", Pattern(r"\b(?:https?://|www\.)[^\s<>\"'`|\\^{}\[\]]{2,500}", re.IGNORECASE)),
    ("email", Pattern(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,4}")),
    (
        "path",
        Pattern(
            r"(?<![\w./~\\:])(?:(?:~|\.{1,2})?/|[A-Za-z]:\\)?[\w.@%+-]{1,80}"
            r"(?:[/\\][\w.@%+-]{1,80}){1,20}[/\\]?"
        ),
    ),
)
"""Patterns of facts with a form of their own, in the order in which they are searched."""


_TOKENS = Pattern(
    rf"(?P<money>[{CURRENCY}]|\b(?:USD|EUR|GBP|INR|JPY|CAD|AUD) )?\s?(?<![\w.,'\u2019])"
    rf"(?P<word>#?[A-Za-z_-]{{0,40}}(?:{NUMBER}|\d)(?:[A-Za-z0-9_-][\w.-]{{0,60}})?)"
    rf"(?P<unit>\s?(?:%|percent\b)|\s?(?:{'|'.join(sorted(SCALES, key=len, reverse=True))})\b)?",
    re.IGNORECASE,
)
"""Matches a word with a digit, which is a number or an id, and the currency or unit beside it."""


def facts_in(answer: Any) -> Iterator[Found]:
    """Yield the facts of an answer, at most 500. A JSON value is searched text by text."""
    count = 0
    for name, text in texts_of(answer):
        for found in _in_text(text, name):
            yield found
            count += 1
            if count >= MAX_FACTS:
                return


def texts_of(answer: Any) -> Iterator[tuple[str, str]]:
    """Yield each text of an answer with the key it stands under, up to 100,000 characters in all."""
    left = MAX_ANSWER
    for name, text in _texts(answer):
        yield name, text[:left]
        left -= len(text) + 1
        if left <= 0:
            return


def _texts(value: Any) -> Iterator[tuple[str, str]]:
    stack = [("", value)]
    while stack:
        name, item = stack.pop()
        if isinstance(item, str):
            yield name, item
        elif isinstance(item, Mapping):
            stack += [(str(key).lower(), inner) for key, inner in reversed(list(item.items()))]
        elif isinstance(item, list | tuple):
            stack += [(name, inner) for inner in reversed(item)]
        elif isinstance(item, int | float) and not isinstance(item, bool) and name not in _UNRATED:
            yield name or "value", str(item)


def prose(text: str) -> str:
    """Blank out code, footnotes and list numbers, keeping the length of the text."""
    for pattern in _MASKED:
        text = pattern.sub(lambda match: _blank(match[0]), text)
    # A single word in backticks is a name like any other.
    text = re.sub(
        r"`[^`\n]{1,400}`",
        lambda code: _blank(code[0]) if re.search(r"[\s=(){}<>|*+;]", code[0]) else code[0],
        text,
    )
    return text.replace("**", "  ").replace("`", " ")


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _in_text(text: str, name: str) -> Iterator[Found]:
    text = prose(text)
    for kind, pattern in _NAMED:
        for match in pattern.finditer(text):
            found = _named_fact(kind, match, text)
            if found is not None:
                yield found
        text = pattern.sub(
            lambda match: " " * len(match[0]) if _is_named(match[0]) else match[0], text
        )
    for pattern, read in ((DATES, _date), (TIMES, _time)):
        for match in pattern.finditer(text):
            found = read(match, text)
            if found is not None:
                yield found
        text = pattern.sub(lambda match: " " * len(match[0]), text)
    calculated = set(calculated_in(text))
    for match in _TOKENS.finditer(text):
        found = _number_or_id(match, text)
        if found is not None and found.numbers:
            at = match.start("word") + len(match["word"].rstrip("-_.,'\u2019"))
            before = found.before if not name else f"{name} "
            # A number that is nearly all of the text answers a question, so it may be calculated.
            alone = not name and len(text.split()) <= _BARE
            yield found._replace(
                reckoned=alone or _LABEL.search(before) is not None,
                total=_TOTAL.search(before) is not None,
                calculated=at in calculated,
            )
        elif found is not None:
            yield found


def _is_named(name: str) -> bool:
    """Return whether this is a URL, an email address or a path, and not a pair such as and/or."""
    return "@" in name or "://" in name or name.lower().startswith("www.") or _is_path(name)


def _is_path(name: str) -> bool:
    rooted = re.match(r"(?:~|\.{1,2})?/|[A-Za-z]:\\", name)
    if "%" in name and rooted is None:
        return False
    last = re.split(r"[/\\]", name.rstrip("/\\."))[-1]
    if re.fullmatch(r"[\w@+-][\w.@+-]{0,80}\.[A-Za-z][A-Za-z0-9]{0,4}", last):
        return True
    return rooted is not None and len(re.findall(r"[/\\]", name.rstrip("/\\"))) > 1


def _sides(match: re.Match[str], text: str, group: int | str = 0) -> tuple[str, str]:
    before = text[max(0, match.start(group) - 100) : match.start(group)].lower()
    return before, text[match.end(group) : match.end(group) + 30].lower()


def _named_fact(kind: str, match: re.Match[str], text: str) -> Found | None:
    before, after = _sides(match, text)
    if _EXAMPLE.search(before):
        return None
    name = match[0].rstrip(".,;:!?)]*_\"'")
    if kind == "path" and not _is_path(name):
        return None
    return Found(kind, name, before, after)


def _date(match: re.Match[str], text: str) -> Found | None:
    days = days_of(match)
    before, after = _sides(match, text)
    if (
        not days
        or _EXAMPLE.search(before)
        or re.search(r"\bas of,? $|\btoday(?: is)?,? \(?$", before)
    ):
        return None
    return Found("date", match[0].strip(" ,.-"), before, after, days=days)


def _time(match: re.Match[str], text: str) -> Found | None:
    minutes = minutes_of(match)
    before, after = _sides(match, text)
    if not minutes or _EXAMPLE.search(before):
        return None
    return Found("date", match[0].strip(" ."), before, after, minutes=minutes)


def _number_or_id(match: re.Match[str], text: str) -> Found | None:
    word = match["word"].rstrip("-_.,'\u2019")
    before, after = _sides(match, text, "word")
    if _EXAMPLE.search(before):
        return None
    if _is_id(word):
        return Found("id", word, before, after)
    bare = word.lstrip("-_")
    ordinary = _ORDINARY.fullmatch(bare)
    if ordinary is not None:
        bare, after = (
            ordinary[1],
            f" {ordinary[2].lower()}{after}",
        )  # `48.7k` may be thousands or not
    if not bare[:1].isdigit() or re.search(r"[A-Za-z#_-]", bare):
        return None
    unit = "" if ordinary is not None else (match["unit"] or "").strip().lower()
    return _number(bare, unit, match["money"] or "", (before, after))


def _is_id(word: str) -> bool:
    """Return whether a word is so distinctive that two things would hardly share it by chance."""
    bare = word.lstrip("#")
    digits = sum(letter.isdigit() for letter in bare)
    letters = sum(letter.isalpha() for letter in bare)
    if not letters:
        if word[:1] == "#" and digits > 4:  # an order number
            return True
        return digits >= 7 and _PHONE.fullmatch(bare) is not None  # a phone number
    if _STANDARDS.fullmatch(bare) or _ORDINARY.fullmatch(bare):
        return False
    if digits > 2 and len(bare) > 4:  # `QF9311`
        return True
    mixed = re.search(r"\d[A-Z]", bare) is not None and bare.upper() == bare
    return digits > 1 and len(bare) > 5 and mixed  # `R7T0QZ`


def _number(token: str, unit: str, money: str, sides: tuple[str, str]) -> Found | None:
    before, after = sides
    percent = unit in ("%", "percent")
    numbers = numbers_of(token)
    if not numbers:
        return None
    if unit and not percent:
        numbers = _times(numbers, SCALES[unit])
    glued = re.match(r" (\w+)", after)
    if not unit and glued is not None and glued[1] in SCALES:
        numbers += _times(numbers, SCALES[glued[1]])
    if _is_common(numbers[0], percent=percent, money=bool(money), before=before, after=after):
        return None
    text = f"{money.strip()}{token}{'%' if percent else f' {unit}' if unit else ''}"
    hedged = _HEDGE.search(before) is not None or after.startswith("+")
    ending = _ENDING.search(before) is not None
    return Found(
        "number", text, before, after, numbers, percent=percent, hedged=hedged, ending=ending
    )


def _times(numbers: tuple[Number, ...], scale: float) -> tuple[Number, ...]:
    return tuple(Number(n.value * scale, n.step * scale) for n in numbers)


def _is_common(number: Number, *, percent: bool, money: bool, before: str, after: str) -> bool:
    """Return whether a number is no hard fact: a small count, a list number, a usual span of time."""
    value = number.value
    whole = value == int(value) and number.step >= 1
    if whole and value < SMALL and not money:
        return True
    if value in (0, 100) and (percent or value == 0):
        return True
    if _NUMBERED.search(before) and value < 1000:  # larger ones are ids
        return True
    if re.match(r"(?:st|nd|rd|th)\b", after.lstrip()):
        return True
    return whole and value in _USUAL_SPANS and _LASTING.match(after) is not None and not money
