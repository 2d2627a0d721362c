"""The hard facts of an answer: what is written in it that somebody must have looked up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from ._reckoned import is_labelled, sums_in
from ._values import NUMBER, SCALES, Day, Number, dates, days_of, minutes_of, numbers_of, times

MAX_ANSWER = 100_000
"""An answer is looked at up to so many characters."""
MAX_FACTS = 500
SMALL = 13
"""Whole numbers below it are counts anybody makes."""
_MAX_TEXT = 200


class Fact(NamedTuple):
    """A fact of an answer. kind: one of `FACT_KINDS`. text: as it stands in the answer, cut at 200."""

    kind: str
    text: str

    @property
    def fault(self) -> str:
        """What is wrong with it where it is not grounded."""
        return _FAULTS.get(self.kind, "has no source")


_FAULTS = {"sum": "does not come out", "claim": "is shown by no step"}


class Found(NamedTuple):
    """A fact with what it means. around: the words before and after it, in small letters.

    numbers: what a number may mean. percent, hedged, ending: it is so written. reckoned: it is said to
    be a sum or the like. right: whether the sum that is written out before it is right, None if none
    is. days, minutes: of a date.
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
    right: bool | None = None
    days: tuple[Day, ...] = ()
    minutes: tuple[int, ...] = ()


CURRENCY = "$€£¥₹₩"
_UNRATED = frozenset(
    {"confidence", "score", "probability", "rating", "relevance", "priority", "index"}
)
# What looks like an id and is a name everybody knows.
_STANDARDS = re.compile(
    r"(?:sha|aes|rsa|utf|iso|rfc|ieee|hs|rs|es|x|h|win|arm|amd|base|http|ipv|covid|ecma|crc|mp|cuda)"
    r"[-_]?\d{1,5}(?:-\d{1,4})?|[a-z]{1,5}-?\d{1,2}[a-z]?",
    re.IGNORECASE,
)
_ORDINARY = re.compile(r"(\d+(?:[.,]\d+)?)-?([A-Za-z]+(?:-[A-Za-z]+){0,4})")
_EXAMPLE = re.compile(
    r"(?:\be\.g\.|\bi\.e\.|\bex[ae]mples?|\binstance|\bsuch as|\blike|\bformat|\bplaceholder)[^.\n]{0,80}$"
)
_HEDGE = re.compile(
    r"(?:\babout|\baround|\bapprox(?:\.|imately)?|\broughly|\bnearly|\balmost|\bover|\bmore than|"
    r"\bless than|\bunder|\bsome|\bestimated|\bclose to|\bat least|\bup to|\bbelow|\babove|~|≈|<|>|≥|≤"
    r")\s{0,2}[$€£¥₹]?$"
)
_ENDING = re.compile(
    r"(?:\bend(?:s|ing|ed)?(?: in| with)?|\blast (?:four|4)\b[^.\n]{0,20}|…|\.\.|[*x•]{2})\s{0,2}$"
)
_NUMBERED = re.compile(
    r"(?:\bstep|\boption|\bsection|\bchapter|\bpage|\bfigure|\btable|\bversion|\bv|\bpart|\bphase|"
    r"\bpython|\bnode|\bjava|\bubuntu|\bios|\bandroid|\bwindows|\bhttp|\btls|\busb|\bgpt|"
    r"\bitem|\bline|\bquestion|\bexample|\btop|\btier|\blevel|\bno\.|\bnumber|\brow|#)[ :]{0,2}#?$"
)
_LASTING = re.compile(
    r"\s{0,2}-?(?:(?:business|working|calendar)[ -])?"
    r"(?:s|sec|secs|seconds?|m|min|mins|minutes?|h|hrs?|hours?|days?|weeks?|months?|years?)\b"
)
_USUAL_SPANS = frozenset(
    {14, 15, 20, 21, 24, 25, 28, 30, 35, 40, 45, 48, 50, 60, 72, 90, 100, 120, 180, 365}
)
_IF = re.compile(r"\b(?:if|when|whether|could|should|would|can|may|please|try)\b[^.!?\n]{0,80}$")
_TODAY = re.compile(
    r"(?:\bas of,?|\btoday(?: is|['\u2019]s date(?: is)?)?,?|\bcurrent date(?: is)?:?) ?\(? ?$"
)
_PHONE = re.compile(r"\+?\d{1,4}([-.])\d{1,4}(?:\1\d{1,4}){1,3}")
_SAID = re.compile(
    r"\b(?:says?|said|states?|stated|reads?|wrote|writes|reports?|reported|quot\w{1,6}|notes|noted|"
    r"according to|replied|returned|shows?|message|response|output|text)\b[^.!?\n]{0,60}$"
)


@cache
def _masked() -> tuple[re.Pattern[str], ...]:
    """What holds no facts: code, numbers of footnotes and lists."""
    return (
        re.compile(r"```[^`]*(?:`{1,2}[^`]+)*(?:```|\Z)"),
        re.compile(r"~~~[^~]*(?:~~~|\Z)"),
        re.compile(r"\[\^?\d{1,3}(?:[,\u2013-] ?\d{1,3}){0,8}\]"),
        re.compile(r"\b24/7\b"),
        re.compile(r"^[ \t>#*-]{0,12}\(?\d{1,3}[.):](?=\s)", re.MULTILINE),
    )


@cache
def _named() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """What has a form of its own, in the order in which it is looked for."""
    return (
        ("url", re.compile(r"\b(?:https?://|www\.)[^\s<>\"'`|\\^{}\[\]]{2,500}", re.IGNORECASE)),
        ("email", re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,4}")),
        (
            "path",
            re.compile(
                r"(?<![\w./~\\:])(?:(?:~|\.{1,2})?/|[A-Za-z]:\\)?[\w.@%+-]{1,80}"
                r"(?:[/\\][\w.@%+-]{1,80}){1,20}[/\\]?"
            ),
        ),
        (
            "quote",
            re.compile(
                r"(?:(?<=[\s(\[—\u2013:-])|^)[\"“„«](?=\S)([^\"“”„«»\n]{20,400})(?<=\S)[\"“”»](?!\w)",
                re.MULTILINE,
            ),
        ),
    )


@cache
def _tokens() -> re.Pattern[str]:
    """A word with a digit: a number or an id, with what stands at its sides."""
    return re.compile(
        rf"(?P<money>[{CURRENCY}]|\b(?:USD|EUR|GBP|INR|JPY|CAD|AUD) )?\s?(?<![\w.,'\u2019])"
        rf"(?P<word>#?[A-Za-z_-]{{0,40}}(?:{NUMBER}|\d)(?:[A-Za-z0-9_-][\w.-]{{0,60}})?)"
        rf"(?P<unit>\s?(?:%|percent\b)|\s?(?:{'|'.join(sorted(SCALES, key=len, reverse=True))})\b)?",
        re.IGNORECASE,
    )


def facts_in(answer: Any) -> Iterator[Found]:
    """The facts of an answer, at most 500. A JSON value is looked at text by text."""
    count = 0
    for name, text in texts_of(answer):
        for found in _in_text(text, name):
            yield found
            count += 1
            if count >= MAX_FACTS:
                return


def texts_of(answer: Any) -> Iterator[tuple[str, str]]:
    """The texts of an answer, each with the key it stands under, up to 100,000 characters."""
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
    """The text without code, footnotes and list numbers; as long as it was."""
    for pattern in _masked():
        text = pattern.sub(lambda match: _blank(match[0]), text)
    text = re.sub(r"`[^`\n]{1,400}`", _without_code, text)
    return text.replace("**", "  ").replace("`", " ")


def _without_code(match: re.Match[str]) -> str:
    """Blank for code; a single word between backticks is a name like any other."""
    return _blank(match[0]) if re.search(r"[\s=(){}<>|*+;]", match[0]) else match[0]


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _in_text(text: str, name: str) -> Iterator[Found]:
    text = prose(text)
    for kind, pattern in _named():
        for match in pattern.finditer(text):
            found = _named_fact(kind, match, text)
            if found is not None:
                yield found
        if kind != "quote":  # what is quoted may hold other facts
            text = pattern.sub(lambda match: _masked_name(match[0]), text)
    for pattern, read in ((dates(), _date), (times(), _time)):
        for match in pattern.finditer(text):
            found = read(match, text)
            if found is not None:
                yield found
        text = pattern.sub(lambda match: " " * len(match[0]), text)
    sums = {shown.at: shown.right for shown in sums_in(text)}
    for match in _tokens().finditer(text):
        found = _number_or_id(match, text)
        if found is not None and found.numbers:
            at = match.start("word") + len(match["word"].rstrip("-_.,'\u2019"))
            reckoned = is_labelled(found.before if not name else f"{name} ", text, bare=not name)
            yield found._replace(reckoned=reckoned, right=sums.get(at))
        elif found is not None:
            yield found


def _masked_name(name: str) -> str:
    """Blank, unless it is one of those pairs that look like a path: 24/7, and/or."""
    return " " * len(name) if _is_named(name) else name


def _is_named(name: str) -> bool:
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
    if kind == "quote":
        said = match[1]
        words = len(said.split())
        quoted = words > 3 and _SAID.search(before) and not _IF.search(before)  # noqa: PLR2004
        return Found(kind, said.strip(), before, after) if quoted else None
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
    """Letters and digits that no two things have in common by chance."""
    bare = word.lstrip("#")
    digits = sum(letter.isdigit() for letter in bare)
    letters = sum(letter.isalpha() for letter in bare)
    if not letters:
        if word[:1] == "#" and digits > 4:  # noqa: PLR2004 - an order's number
            return True
        return digits >= 7 and _PHONE.fullmatch(bare) is not None  # noqa: PLR2004 - a phone's number
    if _STANDARDS.fullmatch(bare) or _ORDINARY.fullmatch(bare):
        return False
    if digits > 2 and len(bare) > 4:  # noqa: PLR2004 - `QF9311`
        return True
    mixed = re.search(r"\d[A-Z]", bare) is not None and bare.upper() == bare
    return digits > 1 and len(bare) > 5 and mixed  # noqa: PLR2004 - `R7T0QZ`


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
    """A number that says nothing hard: a small count, a place in a list, a usual span of time."""
    value = number.value
    whole = value == int(value) and number.step >= 1
    if whole and value < SMALL and not money:
        return True
    if value in (0, 100) and (percent or value == 0):
        return True
    if _NUMBERED.search(before) and value < 1000:  # noqa: PLR2004 - longer ones are ids
        return True
    if re.match(r"(?:st|nd|rd|th)\b", after.lstrip()):
        return True
    return whole and value in _USUAL_SPANS and _LASTING.match(after) is not None and not money
