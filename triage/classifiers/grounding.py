"""Check whether the facts of an answer rest on what the agent was given or found."""

from __future__ import annotations

import json
import re
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache, cached_property
from itertools import chain
from typing import Any, NamedTuple

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
    prose,
    texts_of,
)

FACT_KINDS = ("number", "id", "url", "path", "quote", "email", "date", "sum", "claim")
"""The kinds of facts that an answer can be checked for."""
_BY_DEFAULT = tuple(kind for kind in FACT_KINDS if kind != "sum")


@dataclass(frozen=True)
class Grounds:
    """How strictly an answer must rest on what the agent was given or found.

    kinds: the kinds of facts to check: `number`, `id`, `url`, `path`, `quote`, `email`, `date` (including
    times), `sum` (a calculation that is written out and wrong) and `claim` (an action that no step shows).
    All but `sum` by default, since wrong arithmetic is not invention. at_least: how many facts without a
    source fail a result, 1 by default. sources: what the agent knows besides its task and steps, such as
    its system prompt, as any JSON value; None (default) for nothing.

    Raises UsageError naming the field for an invalid value.
    """

    kinds: tuple[str, ...] = _BY_DEFAULT
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
# not detect lies: it compares values, and gives a fact the benefit of the doubt. Claims of an action ("I
# have sent the email") are checked against the tools that were called.


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
        self.deeds = Deeds()
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

    def did(self, tool: str | None, arguments: Any, output: Any, *, failed: bool = False) -> None:
        """Add a tool call, which is a source and may support the claim of an action.

        tool: None if no tool was called. failed: whether the call failed and so supports no claim.
        """
        self.source(arguments)
        self.source(output)
        if tool is not None:
            form = sorted(map(str, arguments)) if isinstance(arguments, Mapping) else ()
            self._calls[tool, *form] += 1
            self.source(tool)
            self.deeds.add(tool, arguments, output, failed=failed)

    def step(self, step: Step) -> None:
        """Add what a step shows, except the model's own words."""
        self.source(step.action)
        self.source(step.error)
        self.source(
            {key: value for key, value in (step.metadata or {}).items() if key not in _NO_SOURCES}
        )
        failed = step.error is not None or step.exception_type is not None
        # The output of a model's step is its answer or the calls it asked for, so it is no source.
        output = None if step.tool_called is None and step.action == "model" else step.tool_output
        self.did(step.tool_called, step.tool_input, output, failed=failed)

    def unsupported(self, answer: Any) -> tuple[Fact, ...]:
        """Return the facts of an answer that no source contains, in order. answer: any JSON value."""
        if self._index is None:
            # The run itself is the source for how often it called a tool, as in "There were 29 pages."
            counts = {*self._calls.values(), self._calls.total()}
            self._index = _Index(self._texts, self._lists, counts)
        found = [fact for fact in facts_in(answer) if fact.kind in self.kinds]
        missing = _Answer(found, self._index).missing()
        facts = [Fact(fact.kind, fact.text[:_MAX_FACT]) for fact in missing]
        if "claim" in self.kinds and self.deeds.known:
            claims = (claim for _, text in texts_of(answer) for claim in claims_in(prose(text)))
            unshown = self.deeds.without(claims, self._index.words)
            facts += [Fact("claim", text[:_MAX_FACT]) for text in unshown]
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
    def words(self) -> str:
        """The whole text in lower case."""
        return self.text.casefold()

    @cached_property
    def compact(self) -> str:
        return compact(self.text)

    @cached_property
    def spoken(self) -> str:
        """The words of the whole text separated by single spaces, for comparing quotations."""
        return " ".join(match[0] for match in re.finditer(r"\w+", self.words))

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
        if fact.kind == "quote":
            return self._has_quote(fact.text)
        return self._has_name(fact)

    def _has_day(self, days: tuple[Day, ...]) -> bool:
        known = self.index.days
        for then in (moved(day, shift) for day in days for shift in self.index.shifts):
            if then in known or then._replace(year=None) in known:
                return True
            if then.year is None and any(then[1:] == day[1:] for day in known):
                return True
        return False

    def _has_quote(self, text: str) -> bool:
        for part in re.split(r"\.{3}|…|\[[^\]]{0,40}\]", text):
            words = " ".join(re.findall(r"\w+", part.casefold()))
            if words not in self.index.spoken:
                return False
        return True

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
        if fact.right is not None:
            return fact.right or self._is_written(fact)
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


# --- claims of an action -----------------------------------------------------------------------

_MAX_ARGUMENTS = 20_000
_MAX_CLAIM = 200
_MAX_CLAIMS = 50

# The verbs of claims, with the stems of the tools that do such a thing. A stem matches the beginning of any
# word in a tool's name, arguments or result.
_DEEDS: dict[str, tuple[str, ...]] = {
    deed: tuple(stems.split())
    for deed, stems in {
        "sent": "send sent mail messag notif sms slack "
        "post deliver dispatch reply forward request invite transfer",
        "emailed": "send sent mail messag notif",
        "forwarded": "forward send sent mail transfer escalat",
        "notified": "notif send sent mail messag alert call slack page",
        "booked": "book reserv purchas order schedul creat buy appointment",
        "reserved": "reserv book hold creat",
        "scheduled": "schedul creat book add calendar event meeting insert remind plan",
        "rescheduled": "schedul updat modif chang mov calendar",
        "cancelled": "cancel delet remov terminat void updat status unsubscrib",
        "refunded": "refund return cancel credit pay reimburs exchang",
        "issued": "issu refund certificate credit creat send sent gener pay cancel return grant",
        "purchased": "purchas buy order book pay checkout creat plac",
        "ordered": "order purchas buy plac creat checkout",
        "paid": "pay paid charg transfer settl bill checkout",
        "charged": "charg pay paid bill debit book order updat modif",
        "transferred": "transfer send mov forward pay escalat handoff wire",
        "deleted": "delet remov drop clear clean rm purge unlink truncat cancel destroy",
        "uploaded": "upload put push post creat writ sav send s3 stor",
        "published": "publish post deploy releas push creat upload",
        "deployed": "deploy releas publish rollout push kubectl "
        "apply helm launch pipeline trigger ship",
        "restarted": "restart reboot start reset relaunch cycle systemctl",
        "submitted": "submit send sent post creat fil request apply ticket order",
        "filed": "fil creat submit open ticket report issue",
        "escalated": "escalat transfer forward assign ticket human notif priorit",
        "merged": "merg git pull",
        "renewed": "renew extend updat subscri",
        "unsubscribed": "unsubscri remov delet updat cancel opt",
        "revoked": "revok remov delet disabl updat deactiv permission",
        "pushed": "push",
        "committed": "commit",
        "called": "call phone dial contact ring",
        "contacted": "contact call mail messag send sent notif phone",
    }.items()
}
_NOUNS = {
    "refund": "refunded",
    "cancellation": "cancelled",
    "booking": "booked",
    "reservation": "reserved",
    "payment": "paid",
    "transfer": "transferred",
    "purchase": "purchased",
}
_SPELLINGS = {"canceled": "cancelled", "e-mailed": "emailed"}

# Tools that may do anything: once one was called, every claim may be true.
_ANYTHING = Pattern(
    r"(?:^|[\W_])(?:python|bash|shell|sh|exec|execute|run|code|terminal|computer|browser|http|curl|"
    r"fetch|api|sql|query|db|eval|script|command|cmd|powershell|repl|interpreter|invoke|agent|"
    r"delegate|handoff|task|workflow|playwright|selenium|click|mcp|rpc|requests?|graphql)(?:$|[\W_])"
)
# Tools that only read: their results show what others did.
_LOOKS = Pattern(
    r"(?:get|list|search|lookup|look|fetch|read|view|show|describe|count|retrieve|load)(?:_|$)"
)
_NOT_REALLY = Pattern(
    r"\b(?:if|when|whenever|once|unless|until|after|before|would|could|should|might|may|can|cannot|"
    r"will|going to|not|never|no|nothing|n't|failed|unable|whether|assuming|suppose|in case|had|as "
    r"soon as|please|ensure|make sure|check|confirm|verify|unfortunately|example|e\.g\.)\b|n['\u2019]t\b"
)


class Claim(NamedTuple):
    """A claim of an action in an answer. deed: its verb, a key of `_DEEDS`. own: in the first person."""

    text: str
    deed: str
    own: bool


verbs = "|".join([*_DEEDS, *_SPELLINGS])
adverbs = r"(?:(?:now|just|already|also|successfully|officially|then|since) ){0,3}"
own = rf"\b(?:I|we)(?: have|['\u2019]ve)? {adverbs}(?P<own>{verbs})\b(?! (?:by|if|when))"
done = (
    rf"\b(?:the|your|an?|this|that)(?: [\w'\u2019#-]{{1,40}}){{1,6}} (?:has|have) {adverbs}been "
    rf"{adverbs}(?:\w{{1,16}}ed and )?(?P<done>{verbs})\b"
)
noun = (
    rf"\byour (?P<noun>{'|'.join(_NOUNS)})(?: [\w.,$\u20ac\u00a3'\u2019#-]{{1,40}}){{0,6}} (?:has|"
    rf"have) "
    rf"{adverbs}been {adverbs}(?:processed|completed|made|placed)\b"
)
# Without "successfully", the past tense may describe anything that happened.
past = (
    rf"\b(?:the|your|this|that)(?: [\w.'\u2019#-]{{1,60}}){{1,6}} (?:was|were) "
    rf"(?:(?P<well>successfully) )?(?P<past>{verbs})\b(?(well)|(?=[^!?\n]{{0,80}}\bsuccessfully\b))"
)
_CLAIM = Pattern(f"{own}|{done}|{noun}|{past}", re.IGNORECASE)


def claims_in(text: str) -> Iterator[Claim]:
    """Yield the claims of a text, at most 50, without questions, quotations, negations and intentions."""
    count = 0
    for sentence in re.finditer(r"(?:[^.!?\n]|\.(?=\w)){1,2000}[.!?]?", text):
        said = sentence[0]
        if said.endswith("?") or said.lstrip()[:1] in (">", '"', "“", "'"):
            continue
        for match in _CLAIM.finditer(said):
            before = said[: match.end()]
            if _NOT_REALLY.search(before.lower()) or is_quoted(before):
                continue
            verb = (match["own"] or match["done"] or match["noun"] or match["past"]).lower()
            verb = _SPELLINGS.get(verb) or _NOUNS.get(verb, verb)
            yield Claim(
                " ".join(said.split())[:_MAX_CLAIM].rstrip(".!"), verb, match["own"] is not None
            )
            count += 1
            if count >= _MAX_CLAIMS:
                return


def is_quoted(before: str) -> bool:
    """Return whether a quotation is still open at the end of this text."""
    return before.count('"') % 2 == 1 or before.count("“") > before.count("”")


class Deeds:
    """What the agent did: the names, arguments and results of its tool calls."""

    def __init__(self) -> None:
        self.known = False
        self._anything = False
        self._texts: list[str] = []

    def tools(self, names: Iterable[str]) -> None:
        """Note which tools exist, called or not. The claims of an agent without tools cannot be checked."""
        self.known = self.known or any(True for _ in names)

    def add(self, tool: str, arguments: Any, output: Any, *, failed: bool = False) -> None:
        """Add a tool call. failed: whether the call had no effect and so supports no claim."""
        self.known = True
        if failed:
            return
        spaced = _spaced(tool)
        self._anything = self._anything or _ANYTHING.search(spaced) is not None
        if not _LOOKS.match(spaced):
            self._texts += (spaced, _text(arguments), _text(output))

    def without(self, claims: Iterable[Claim], sources: str) -> list[str]:
        """Return the claims that no call supports. sources: the text of all sources in lower case."""
        if self._anything:
            return []
        done = "\n".join(self._texts)
        return [
            claim.text
            for claim in claims
            if not _stems(claim.deed).search(done if claim.own else sources)
        ]


def _spaced(tool: str) -> str:
    """Return a tool's name in lower case, with its words separated."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", tool[:_MAX_CLAIM]).lower()


@cache
def _stems(deed: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z])(?:re|un|pre|e|auto)?(?:{'|'.join(_DEEDS[deed])})")


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        try:
            value = json.dumps(value, ensure_ascii=False, default=str)
        except (ValueError, RecursionError):
            return ""
    return str(value)[:_MAX_ARGUMENTS].casefold()


# --- a finished attempt ------------------------------------------------------------------------

_MAX_NAMED = 5


def ungrounded(
    steps: Sequence[Step], task: Any, tools: Mapping[str, Any], grounds: Grounds
) -> list[Finding]:
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
    grounding.deeds.tools(tools)
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
        said = f"the answer's {fact.kind} {shown} {fact.fault}"
        found.append(Finding(UNGROUNDED, said, _first(steps, fact.text, last)))
    return found


def _answer(step: Step) -> str | None:
    return step.llm_output if step.tool_called is None and step.llm_output else None


def _first(steps: Sequence[Step], text: str, last: int) -> int:
    """Return the first step whose answer states this fact in the same words, or else `last`."""
    return next((at for at in range(last) if text in (_answer(steps[at]) or "")), last)
