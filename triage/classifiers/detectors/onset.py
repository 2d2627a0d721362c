"""Results that change from one step on, whatever is asked of which tool.

A service that fails, a page that is not the one asked for, words put into results by somebody else: they
begin at some step, meet tools that had answered well before, and stay. So one question is asked of
several marks of a result: did it take over?
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from triage.classifiers.tables.rule import Rule
from triage.core.failures import ErrorInfo
from triage.core.patterns import Pattern
from triage.core.quoting import said_by
from triage.core.steps import Step

from .finding import FOREIGN, GARBLED, INSERTED, SAME_TEXT, SERVICE_TEXT, Finding
from .results import denies, is_broken_json, parsed, text_in

_MAX_TEXT = 4_000
_LEAST_SHARE = 0.5
"""Of the results from the first marked one on, how many must be marked."""
_LEAST_TEXT = 12
_GRAM = 4
"""Words and marks in a row that two results must have in common."""
_MAX_TOKENS = 150

_DIGITS = re.compile(r"\d+(?:[.,]\d+)*")
_TOKEN = Pattern(r"\w+|[^\w\s]")
_LETTERS = Pattern(r"[^\W\d_]{2,}")
_AMOUNT = Pattern(r"(?<!\S)[$€£¥₹]\d[\d.,]*(?!\S)")


class _Result(NamedTuple):
    """One result of a tool.

    at: position of its step. text: as text. given: the texts of its arguments. failed: it was recorded
    as an error.
    """

    at: int
    tool: str
    text: str
    given: tuple[str, ...]
    failed: bool


def onsets(
    steps: Sequence[Step], task: str, judge: Callable[[ErrorInfo], Any]
) -> Iterator[Finding]:
    """What took over the results of a run. judge: what the rules say of an error."""
    results = list(_results(steps))
    found = (
        _shared(results, judge)
        or _foreign(results, task)
        or _inserted(results, task)
        or _garbled(results)
    )
    if found is not None:
        yield found


def _results(steps: Sequence[Step]) -> Iterator[_Result]:
    for at, step in enumerate(steps):
        tool, output = step.tool_called, step.tool_output
        if output is None:
            output = step.error
        if tool is None or output is None:
            continue
        given = step.tool_input
        values = given.values() if isinstance(given, Mapping) else (given,)
        texts = tuple(one for one in values if isinstance(one, str))
        yield _Result(at, tool, text_in(output), texts, step.error is not None)


def _took_over(
    results: Sequence[_Result], marked: set[int], least: float = _LEAST_SHARE
) -> _Result | None:
    """The first marked result, where most results from there on are marked and a tool has changed.

    marked: indices of results. least: the share of them that is most. At least two tools must be
    concerned, of which one had answered without the mark before, and at least two things asked for.
    """
    if len(marked) < 2:
        return None
    first = min(marked)
    tools = {results[at].tool for at in marked}
    changed = not tools.isdisjoint(one.tool for one in results[:first])
    share = len(marked) / (len(results) - first)
    if len(tools) < 2 or not changed or share < least:
        return None
    asked = [results[at].given for at in marked]
    return None if set.intersection(*map(set, asked)) else results[first]


# --- one text for every question ------------------------------------------------------------------


def _shared(results: Sequence[_Result], judge: Callable[[ErrorInfo], Any]) -> Finding | None:
    """The same words from different tools: what is meant by them says what kind of failure it is."""
    masked = [_masked(one) for one in results]
    tools: dict[str, set[str]] = {}
    for one, text in zip(results, masked, strict=True):
        if len(text) >= _LEAST_TEXT or text in errno.errorcode.values():
            tools.setdefault(text, set()).add(one.tool)
    shared = {text for text, by in tools.items() if len(by) > 1}
    marked = {at for at, text in enumerate(masked) if text in shared}
    first = _took_over(results, marked)
    if first is None:
        return _turned(results, masked, judge)
    rule = _rule_of(first.text, len(shared), judge)
    few = len(_LETTERS.findall(first.text)) < _GRAM and first.text not in errno.errorcode.values()
    nothing = denies(first.text) and not first.failed and first.tool not in first.text
    if rule in (SERVICE_TEXT, FOREIGN) and (few or nothing or _tells_success(first.text)):
        return None  # that there is nothing is an answer, and few words may be a state of work
    return Finding(
        rule, f"different tools gave the same answer: {said_by(first.text)}", first.at, first.tool
    )


_LONGEST_RECEIPT = 120
_DONE = Pattern(
    r"\b(?:success\w*|succeeded|completed?|done|saved|stored|updated|created|deleted|removed|added|sent)\b",
    re.IGNORECASE,
)
_UNDONE = Pattern(
    r"\b(?:not|no|nothing|never|cannot|unable|without|until|un\w+ed|fail\w*|errors?)\b|n't\b",
    re.IGNORECASE,
)


def _tells_success(text: str) -> bool:
    """Whether a result only says that something was done: tools that change things may say so alike."""
    short = len(text) <= _LONGEST_RECEIPT
    return short and _DONE.search(text) is not None and _UNDONE.search(text) is None


def _turned(
    results: Sequence[_Result], masked: Sequence[str], judge: Callable[[ErrorInfo], Any]
) -> Finding | None:
    """The same words from one tool whatever it is asked, in another form than its results had before."""
    forms: dict[str, set[str]] = {}
    begun: dict[str, int] = {}
    asked: dict[str, set[tuple[str, ...]]] = {}
    for at, (one, text) in enumerate(zip(results, masked, strict=True)):
        tool, form = one.tool, _form(one.text)
        start = begun.get(tool)
        if start is not None and masked[start] == text:
            asked[tool].add(one.given)
        elif (
            start is None and tool in forms and form not in forms[tool] and len(text) >= _LEAST_TEXT
        ):
            begun[tool], asked[tool] = at, {one.given}
        else:
            begun.pop(tool, None)
            forms.setdefault(tool, set()).add(form)
    for tool, start in begun.items():
        first = results[start]
        if len(asked[tool]) < 2:
            continue
        rule = _rule_of(first.text, 1, judge)
        if rule is SERVICE_TEXT:
            few = len(_LETTERS.findall(first.text)) < _GRAM or is_broken_json(first.text)
            texts = {
                _unasked(one)
                for one, text in zip(results, masked, strict=True)
                if text == masked[start]
            }
            counts = len(texts) > 1
            if few or counts or first.failed or denies(first.text):
                continue
        if rule.failure_type in _OF_SERVICES:
            said = f"{tool!r} gives the same answer whatever it is asked: {said_by(first.text)}"
            return Finding(rule, said, first.at, tool)
    return None


_OF_SERVICES = (SERVICE_TEXT.failure_type, SAME_TEXT.failure_type)


def _form(text: str) -> str:
    """The keys of an object, or what else a result is."""
    found = parsed(text)
    if isinstance(found, dict):
        return " ".join(found)
    return text[:1] if text[:1] in ("<", "[", "{") else "text"


def _rule_of(text: str, texts: int, judge: Callable[[ErrorInfo], Any]) -> Rule:
    verdict = judge(ErrorInfo("Exception", message=text[:300]))
    if verdict is not None and verdict.known:
        known: Rule = verdict.rule
        return known._replace(name=SERVICE_TEXT.name, confidence=SERVICE_TEXT.confidence)
    if _AGAIN.search(text):
        return SAME_TEXT
    return FOREIGN if texts > 1 else SERVICE_TEXT


_AGAIN = Pattern(
    r"\b(?:re-?(?:try|peat|run|send|submit|do|issue)\w{0,3}|again|once more|wiederhol\w{1,3}|"
    r"erneut|repet\w{1,3}|nochmals?|de nuevo|encore)\b",
    re.IGNORECASE,
)
"""Words for doing the same once more."""


def _masked(one: _Result) -> str:
    """A result without the tool's name, its arguments and numbers."""
    return _DIGITS.sub("0", _unasked(one)).strip()


def _unasked(one: _Result) -> str:
    """A result without the tool's name and its arguments."""
    text = one.text.replace(one.tool, "#")
    for value in one.given:
        if len(value) > 2:
            text = text.replace(value, "#")
    return text


# --- pages that belong to no question -------------------------------------------------------------

_WORD = Pattern(r"[^\W\d_]{5,}")
_STEM = 6
_LEAST_LONG = 2
_LEAST_WORDS = 6


def _foreign(results: Sequence[_Result], task: str) -> Finding | None:
    """Texts that have no longer word in common with the task, what was asked or any result before them."""
    known = _words(task)
    marked: set[int] = set()
    for at, one in enumerate(results):
        known |= _words(f"{one.tool} {' '.join(one.given)}")
        words = _words(one.text)
        about = any(len(value) > 2 and value.lower() in one.text.lower() for value in one.given)
        speaks = len(words) >= _LEAST_LONG and len(one.text.split()) >= _LEAST_WORDS
        if at and speaks and not (about or _tells_success(one.text)) and words.isdisjoint(known):
            marked.add(at)
        else:
            known |= words
    first = _took_over(results, marked)
    if first is None:
        return None
    text = f"results have no word of what was asked: {said_by(first.text)}"
    return Finding(FOREIGN, text, first.at, first.tool)


def _words(text: str) -> set[str]:
    """The longer words of a text in small letters, cut to their stems."""
    return {word[:_STEM] for word in _WORD.findall(text.lower())}


# --- words put in ---------------------------------------------------------------------------------


def _inserted(results: Sequence[_Result], task: str) -> Finding | None:
    """Words that results begin to hold behind their own: somebody speaks through them."""
    places: dict[tuple[str, ...], dict[int, int]] = {}
    known = set(_grams(_TOKEN.findall(task[:_MAX_TEXT])))
    for at, one in enumerate(results):
        if one.failed or _is_data(one.text):
            continue
        tokens = _TOKEN.findall(one.text)[-_MAX_TOKENS:]
        for place, gram in enumerate(_grams(tokens)):
            if gram not in known:
                places.setdefault(gram, {}).setdefault(at, place)
    for gram, found in places.items():
        if (
            len(found) < 2
            or min(found.values()) == 0
            or sum(_LETTERS.match(one) is not None for one in gram) < 2
        ):
            continue
        at, words = min(found), " ".join(gram)
        said = " ".join(_TOKEN.findall(results[at].text)[-_MAX_TOKENS:][found[at] :])
        size = len(_LETTERS.findall(said))
        first = _took_over(results, set(found), _LEAST_SHARE if size < _LONG else _LEAST_LONG_SHARE)
        if first is None or len({results[at].text for at in found}) < 2:
            continue
        if not any(words in " ".join(_TOKEN.findall(one.text)) for one in results[:at]):
            text = f"results of two tools go on with {said_by(said)}"
            return Finding(INSERTED, text, first.at, first.tool)
    return None


_LONG = 8
"""Words in a row that nobody says twice by chance."""
_LEAST_LONG_SHARE = 0.3


def _grams(tokens: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return (tuple(tokens[at : at + _GRAM]) for at in range(len(tokens) - _GRAM + 1))


# --- a form that is lost --------------------------------------------------------------------------


def _garbled(results: Sequence[_Result]) -> Finding | None:
    """Results that lose the form they had: an amount stuck on, words out of order, JSON no more."""
    first = _took_over(results, _out_of_form(results)) or _stuck_on(results)
    if first is None:
        return None
    text = f"results lose the form they had: {said_by(first.text)}"
    return Finding(GARBLED, text, first.at, first.tool)


def _out_of_form(results: Sequence[_Result]) -> set[int]:
    """The results that are garbled, by themselves or beside one that their tool gave before."""
    whole: dict[str, _Result] = {}
    marked: set[int] = set()
    for at, one in enumerate(results):
        before = whole.get(one.tool)
        if _is_garbled(one) or (before is not None and _is_reordered(one, before)):
            marked.add(at)
        elif before is None:
            whole[one.tool] = one
    return marked


def _stuck_on(results: Sequence[_Result]) -> _Result | None:
    """The first of the last results that are a value with an amount behind it, none before being so."""
    first = len(results)
    while first and _DOUBLED.fullmatch(results[first - 1].text):
        first -= 1
    before = [one.text for one in results[:first]]
    plain = sum(_VALUE.fullmatch(text) is not None for text in before)
    if first == len(results) or plain < 2 or any(map(_DOUBLED.fullmatch, before)):
        return None
    return results[first]


_VALUE = Pattern(r"[$€£¥₹]?\d[\d.,]*(?:/\w+)?")
_DOUBLED = Pattern(r"[$€£¥₹]?\d[\d.,]*(?:/\w+)? [$€£¥₹]\d[\d.,]*")


def _is_reordered(one: _Result, before: _Result) -> bool:
    """Whether a result has the words of an earlier one of its tool, in another order."""
    order = {word: place for place, word in enumerate(_sequence(before))}
    words = _sequence(one)
    places = [order[word] for word in words if word in order]
    if len(places) < _LEAST_COMMON or 2 * len(places) < min(len(order), len(words)):
        return False
    pairs = [left < right for at, left in enumerate(places) for right in places[at + 1 :]]
    return sum(pairs) < _IN_ORDER * len(pairs)


_LEAST_COMMON = 3
_IN_ORDER = 0.7
"""Of the pairs of words that two results share, how many stand in the same order in both."""
_MOST_WORDS = 40


def _sequence(one: _Result) -> list[str]:
    """The first words of a result, each once, with a mark in place of the arguments' texts."""
    return list(dict.fromkeys(re.findall(r"\w+|#", _masked(one))[:_MOST_WORDS]))


def _is_garbled(one: _Result) -> bool:
    text = one.text
    if _is_data(text):
        return False
    if _AMOUNT.search(text) and not _AMOUNT.fullmatch(text.strip()):
        return True
    return text[:1] in _OPENING or _is_disordered(text)


_OPENING = "{["


def _is_data(text: str) -> bool:
    """Whether a text is markup, or JSON to its end or up to where it breaks off."""
    if text[:1] == "<":
        return True
    if text[:1] not in _OPENING:
        return False
    try:
        json.loads(text)
    except RecursionError:
        return True
    except json.JSONDecodeError as problem:
        return "Extra data" not in problem.msg and not _AMOUNT.match(text[problem.pos :])
    return True


def _is_disordered(text: str) -> bool:
    """Whether a bracket closes that was never opened."""
    for opening, closing in ("()", "{}", "[]"):
        depth = 0
        for mark in re.findall(rf"[{re.escape(opening + closing)}]", text):
            depth += 1 if mark == opening else -1
            if depth < 0:
                return True
    return False
