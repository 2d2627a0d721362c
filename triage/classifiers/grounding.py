"""Check whether the facts of an answer rest on what the agent was given or found."""

from __future__ import annotations

import json
import re
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from itertools import chain
from typing import Any

from triage.classifiers.detectors.finding import UNGROUNDED, Finding
from triage.core.errors import check_count, check_word, misuse
from triage.core.patterns import Pattern
from triage.core.redaction import redact
from triage.core.steps import Step

from .facts import (
    CURRENCY,
    DATES,
    TIMES,
    Day,
    Fact,
    Found,
    add_up,
    day_of_epoch,
    days_of,
    facts_in,
    minutes_of,
    moved,
    numbers_in,
    numbers_in_words,
)

FACT_KINDS = ("number", "id", "url", "path", "email", "date")
"""The kinds of facts that an answer can be checked for."""


@dataclass(frozen=True)
class Grounds:
    """How strictly an answer must rest on what the agent was given or found.

    kinds: the kinds of facts to check: `number`, `id`, `url`, `path`, `email` and `date` (including
    times); all by default. at_least: how many facts without a source fail a result, 1 by default.
    sources: what the agent knows besides its task and steps, such as its system prompt, as any JSON
    value; None (default) for nothing.

    Raises UsageError naming the field for an invalid value.
    """

    kinds: tuple[str, ...] = FACT_KINDS
    at_least: int = 1
    sources: Any = None

    def __post_init__(self) -> None:
        kinds: Any = self.kinds
        if isinstance(kinds, str) or not isinstance(kinds, Iterable):
            raise misuse("Grounds.kinds", kinds, "a tuple of kinds", "write kinds=(kind,)")
        object.__setattr__(self, "kinds", tuple(kinds))
        if not self.kinds:
            raise misuse("Grounds.kinds", kinds, "a tuple of kinds", "write grounding=False")
        for kind in self.kinds:
            check_word("Grounds.kinds item", kind, FACT_KINDS)
        check_count("Grounds.at_least", self.at_least, 1, "1 fails a result for any fact")


# `Grounding` takes sources as they arrive, and tells which facts of an answer they do not contain. It does
# not detect lies: it compares values, and gives a fact the benefit of the doubt.


MAX_READ = 1_000_000
"""How many characters of all sources together are parsed for numbers, dates and times. Beyond that, a fact
is only searched for as it is written."""
_MAX_FACT = 200
_OPERANDS = 40
_LONG = 5
_MAX_OWN = 48
_MAX_SHIFTS = 64
_NEXT_DAY = Pattern(
    r"(?<![a-z])(?:next|following|previous|day after|day before|tomorrow|yesterday|overnight|nights?|"
    r"arriv[a-z]{1,5}|check-?out)(?![a-z])"
)
_OPERANDS_OF_A_SUM = 3
_NO_SOURCES = ("call", "said", "id", "conversation")
"""Keys of a step's metadata that are no sources: ids, and the model's own words."""

_FACTORS = (
    60.0, 3600.0, 86400.0, 24.0, 7.0, 12.0, 30.0, 52.0, 365.0, 100.0, 1000.0, 1e6, 1e9,
    1024.0, 1024.0**2, 1024.0**3, 1.609344, 0.45359237, 0.3048, 30.48, 2.54, 3.6,
)  # fmt: skip
_CENTS = ((100.0, 0.0),)
_CONVERSIONS = (
    *((factor, 0.0) for factor in _FACTORS),
    *((1 / factor, 0.0) for factor in _FACTORS),
    (1.8, 32.0),
    (1 / 1.8, -32 / 1.8),
)
_UNIT = Pattern(
    r"\s?-?(?:[kmgt]?i?b|[kmgt]?bytes?|ms|s|sec\w{0,4}|min\w{0,4}|h|hrs?|hours?|days?|weeks?|months?|"
    r"years?|[kcm]?m|miles?|feet|ft|inch\w{0,2}|[km]?g|lbs?|pounds?|kilo\w{0,8}|met\w{2,3}|cents?|"
    r"dollars?|euros?|usd|eur|°[cf]?|degrees?)(?![a-z])"
)


_DAYS = Pattern(r"\s?-?(?:days?|nights?)\b")
_FINE = 0.05
"""Half a unit of the last place, at most, of a number that may be a quotient."""
_MOST_DAYS = 60


class Grounding:
    """Collects sources, and tells which facts of an answer they do not support.

    kinds: the kinds of facts to check, all by default. Adding a source only stores its text; the sources
    are parsed when an answer is checked. Not safe for use by several threads at once.
    """

    def __init__(self, kinds: Iterable[str] = FACT_KINDS) -> None:
        self.kinds = frozenset(kinds)
        self._texts: list[str] = []
        self._lists: list[list[float]] = []
        self._calls: Counter[tuple[str, ...]] = Counter()
        self._index: _Index | None = None

    def source(self, value: Any) -> None:
        """Add something that the agent was given or found, as any JSON value."""
        stack: list[Any] = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                self._texts.append(item)
            elif isinstance(item, Mapping):
                stack += item.values()
                self._texts += map(str, item)
            elif isinstance(item, list | tuple):
                self._texts.append(str(len(item)))
                self._keep(item)
                stack += item
            elif item is not None and not isinstance(item, bool):
                self._texts.append(str(item))
        self._index = None

    def step(self, step: Step) -> None:
        """Add what a step shows, except the model's own words."""
        self.source(step.action)
        self.source(step.error)
        self.source(
            {key: value for key, value in (step.metadata or {}).items() if key not in _NO_SOURCES}
        )
        self.source(step.tool_input)
        if step.tool_called is not None:
            given = step.tool_input
            form = sorted(map(str, given)) if isinstance(given, Mapping) else ()
            self._calls[step.tool_called, *form] += 1
            self.source(step.tool_called)
        # The output of a model's step is its answer or the calls it asked for, so it is no source.
        if step.tool_called is not None or step.action != "model":
            self.source(step.tool_output)

    def unsupported(self, answer: Any) -> tuple[Fact, ...]:
        """Return the facts of an answer that no source contains, in order. answer: any JSON value."""
        if self._index is None:
            # The run itself is the source for how often it called a tool, as in "There were 29 pages."
            counts = {*self._calls.values(), self._calls.total()}
            self._index = _Index(self._texts, self._lists, counts)
        found = [fact for fact in facts_in(answer) if fact.kind in self.kinds]
        missing = _Answer(found, self._index).missing()
        facts = [Fact(fact.kind, fact.text[:_MAX_FACT]) for fact in missing]
        return tuple(dict.fromkeys(facts))

    def _keep(self, items: list[Any] | tuple[Any, ...]) -> None:
        """Keep lists of numbers and the columns of a list of objects, whose sums an answer may give."""
        columns: dict[str, list[float]] = {}
        for item in items:
            if isinstance(item, Mapping):
                for key, value in item.items():
                    if _is_number(value):
                        columns.setdefault(str(key), []).append(float(value))
            elif _is_number(item):
                columns.setdefault("", []).append(float(item))
        self._lists += columns.values()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def compact(text: str) -> str:
    """Reduce a name to its letters and digits in lower case, for comparison."""
    return re.sub(r"[\W_]+", "", text.casefold())


class _Index:
    """The sources indexed for search, by value and as one text."""

    def __init__(self, texts: list[str], lists: list[list[float]], counts: set[int]) -> None:
        self.text = "\n".join(texts)
        self._lists = lists
        self.lengths = frozenset(map(float, (*map(len, lists), *counts)))
        self._read = self.text[:MAX_READ]
        self.is_cut = len(self.text) > MAX_READ

    @cached_property
    def compact(self) -> str:
        return compact(self.text)

    @cached_property
    def in_order(self) -> list[float]:
        """The distinct numbers, newest last."""
        found: dict[float, None] = {}
        for value in chain(numbers_in(self._read), map(sum, self._lists)):
            found.pop(value, None)
            found[value] = None
        return list(found)

    @cached_property
    def numbers(self) -> list[float]:
        return sorted(self.in_order)

    @cached_property
    def operands(self) -> list[float]:
        """The newest numbers, sorted: those that the agent may have calculated with."""
        return sorted(self.in_order[-_OPERANDS:])

    @cached_property
    def days(self) -> frozenset[Day]:
        """The days in the sources, including those of epoch timestamps."""
        found = {day for match in DATES.finditer(self._read) for day in days_of(match)}
        return frozenset(
            found | {day for day in map(day_of_epoch, self.numbers) if day is not None}
        )

    @cached_property
    def spans(self) -> frozenset[float]:
        """How many days lie between two days of the sources."""
        days = [date(day.year, day.month, day.day) for day in self.days if day.year is not None]
        days = days[:_MOST_DAYS]
        return frozenset(float(abs((one - other).days)) for one in days for other in days)

    @cached_property
    def minutes(self) -> frozenset[int]:
        """The times of day in the sources, in minutes after midnight."""
        return frozenset(at for match in TIMES.finditer(self._read) for at in minutes_of(match))

    @cached_property
    def shifts(self) -> frozenset[int]:
        """By how many days an answer may move a date, given the spans of time that the sources mention."""
        found = {0}
        read = self._read.casefold()
        if _NEXT_DAY.search(read):
            found |= {1, -1}
        if re.search(r"\bweeks?\b", read):
            found |= {7, -7, 14, -14}
        for match in re.finditer(r"\b(\d{1,3})[ -](?:business )?(?:day|night)s?\b", read):
            if len(found) < _MAX_SHIFTS:
                found |= {int(match[1]), -int(match[1])}
        return frozenset(found)

    def has(self, value: float, low: float, high: float) -> bool:
        """Return whether a source has a number from `value - low` to `value + high`, of either sign."""
        numbers = self.numbers
        return _between(numbers, value - low, value + high) or (
            value > 0 and _between(numbers, -value - high, -value + low)
        )


def _between(numbers: list[float], low: float, high: float) -> bool:
    at = bisect_left(numbers, low)
    return at < len(numbers) and numbers[at] <= high


def _near(numbers: list[float], value: float, within: float) -> bool:
    return _between(numbers, value - within, value + within)


class _Answer:
    """Checks the facts of one answer against the sources and against each other."""

    def __init__(self, facts: list[Found], index: _Index) -> None:
        self.facts = facts
        self.index = index
        # Numbers that the answer took from a source, and may have added up.
        self.own = sorted(
            {f.numbers[0].value for f in facts[:_MAX_OWN] if f.numbers and self._is_written(f)}
        )

    def missing(self) -> list[Found]:
        """Return the facts without a source, in order. Later numbers may derive from earlier ones."""
        found: list[Found] = []
        for fact in self.facts:
            if not self._has(fact):
                found.append(fact)
            elif fact.numbers and len(self.own) < _MAX_OWN:
                insort(self.own, fact.numbers[0].value)
        return found

    def _has(self, fact: Found) -> bool:
        if self.index.is_cut and fact.text in self.index.text:
            return True
        if fact.days:
            return self._has_day(fact.days)
        if fact.minutes:
            return any(at in self.index.minutes for at in fact.minutes)
        if fact.numbers:
            return self._has_number(fact)
        return self._has_name(fact)

    def _has_day(self, days: tuple[Day, ...]) -> bool:
        known = self.index.days
        for then in (moved(day, shift) for day in days for shift in self.index.shifts):
            if then in known or then._replace(year=None) in known:
                return True
            if then.year is None and any(then[1:] == day[1:] for day in known):
                return True
        return False

    def _has_name(self, fact: Found) -> bool:
        name = fact.text
        if fact.kind == "url":
            name = re.sub(r"^(?:https?://)?(?:www\.)?", "", name, flags=re.IGNORECASE)
            if re.match(
                r"(?:localhost|127\.0\.0\.1|(?:[\w-]+\.)?example\.(?:com|org|net))\b", name
            ):
                return True
        whole = self.index.compact
        if compact(name) in whole:
            return True
        parts = [compact(part) for part in re.split(r"[/\\?&=#]", name) if compact(part)]
        if fact.kind == "path":
            return parts[-1] in whole
        return fact.kind == "url" and all(part in whole for part in parts)

    def _has_number(self, fact: Found) -> bool:
        digits = re.sub(r"\D", "", fact.text)
        if (fact.ending or len(digits) >= _LONG) and digits in self.index.compact:
            return True
        if fact.calculated:
            return True
        if fact.reckoned and len(self.index.numbers) >= _OPERANDS_OF_A_SUM:
            # Most figures derived from several numbers cannot be checked, but a total must add up.
            return not fact.total or self._is_written(fact) or self._is_total(fact)
        if self._is_written(fact):
            return True
        if re.fullmatch(r"\d{7,}", fact.text):
            return False  # a number this long without separators is an id
        return self._is_derived(fact)

    def _is_total(self, fact: Found) -> bool:
        """Return whether numbers of the sources or of the answer itself add up to this one."""
        operands = [*self.index.operands, *self.own]
        for value, step in fact.numbers:
            around = max(step, abs(value) * 0.1) if fact.hedged else step * 0.5
            if add_up(abs(value) - around, abs(value) + around, operands):
                return True
        return self._is_derived(fact)

    def _is_derived(self, fact: Found) -> bool:
        operands = self.index.operands
        for value, step in fact.numbers:
            if fact.percent and self._has_share(value, step * 0.999):
                return True
            if self._has_other_unit(fact, value, step):
                return True
            within = min(step * 0.5, 0.5)
            if self._has_sum(value, within, operands) or self._has_rate(
                fact, value, within, operands
            ):
                return True
            if _DAYS.match(fact.after) and value in self.index.spans:
                return True
        return fact.numbers[0].value in self.index.lengths

    def _is_written(self, fact: Found) -> bool:
        """Return whether a source has this number, possibly with more digits."""
        for value, step in fact.numbers:
            low, high = step * 0.5, step * 0.999  # rounded, or truncated
            if fact.hedged:
                low = high = max(step, abs(value) * 0.1)
            if self.index.has(value, low + abs(value) * 1e-12, high):
                return True
        return False

    def _has_share(self, value: float, within: float) -> bool:
        """Return whether this percentage is a fraction in the sources, or relates two of their numbers."""
        if self.index.has(value / 100, within / 100, within / 100):
            return True
        operands = self.index.operands
        for whole in operands:
            if whole > 0:
                for target in (value, 100 - value, 100 + value):
                    if _near(operands, whole * target / 100, whole * within / 200):
                        return True
        return False

    def _has_other_unit(self, fact: Found, value: float, step: float) -> bool:
        """Return whether a source has this number in another unit of time, size, money or length."""
        conversions: tuple[tuple[float, float], ...] = _CENTS if fact.text[:1] in CURRENCY else ()
        if _UNIT.match(fact.after):
            conversions = _CONVERSIONS
        for factor, more in conversions:
            within = max(step * factor * 0.5, 1e-12)
            if self.index.has(value * factor + more, within, within):
                return True
        return False

    def _has_sum(self, value: float, within: float, operands: list[float]) -> bool:
        """Return whether two numbers give this value by arithmetic."""
        within = max(within, abs(value) * 1e-9)
        own = self.own
        for operand in (*operands, *own):
            if operand <= 0 or operand == value:
                continue
            for others in (operands, own):
                if _near(others, value - operand, within) or _near(others, value + operand, within):
                    return True
                if operand != 1 and _near(others, value / operand, within / operand):
                    return True
        return False

    def _has_rate(self, fact: Found, value: float, within: float, operands: list[float]) -> bool:
        """Whether a number with decimals is a quotient: of two numbers, or by one that is spelled."""
        if within > _FINE:
            return False
        by = [*numbers_in_words(f"{fact.before} {fact.after}"), *operands]
        return any(_near(operands, value * one, max(within, 1e-9) * one) for one in by if one > 1)


# --- a finished attempt ------------------------------------------------------------------------

_MAX_NAMED = 5


def ungrounded(steps: Sequence[Step], task: Any, grounds: Grounds) -> list[Finding]:
    """Return a finding for each fact without a source, at most five, at the first step that stated it.

    The answer is the model's last output without a tool call; its earlier words are not sources. Empty if
    there is no answer, or fewer such facts than `grounds.at_least`.
    """
    last = next(
        (at for at in range(len(steps) - 1, -1, -1) if _answer(steps[at]) is not None), None
    )
    if last is None:
        return []
    grounding = Grounding(grounds.kinds)
    grounding.source(task)
    grounding.source(grounds.sources)
    for step in steps:
        grounding.step(step)
    facts = grounding.unsupported(_answer(steps[last]))
    if len(facts) < grounds.at_least:
        return []
    found: list[Finding] = []
    for fact in facts[:_MAX_NAMED]:
        shown = json.dumps(redact(fact.text), ensure_ascii=False)
        said = f"the answer's {fact.kind} {shown} has no source"
        found.append(Finding(UNGROUNDED, said, _first(steps, fact.text, last)))
    return found


def _answer(step: Step) -> str | None:
    return step.llm_output if step.tool_called is None and step.llm_output else None


def _first(steps: Sequence[Step], text: str, last: int) -> int:
    """Return the first step whose answer states this fact in the same words, or else `last`."""
    return next((at for at in range(last) if text in (_answer(steps[at]) or "")), last)
