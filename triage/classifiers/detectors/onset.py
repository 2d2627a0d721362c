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

from triage.classifiers.patterns import Pattern
from triage.classifiers.tables.rule import Rule
from triage.core import ErrorInfo, Step, said_by

from .finding import GARBLED, INSERTED, OTHER_PAGES, SAME_TEXT, SERVICE_TEXT, Finding
from .results import denies

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
    shared = _shared(results, judge)
    if shared is not None:
        yield shared
        return
    for find in (_inserted, _garbled):
        found = find(results, task)
        if found is not None:
            yield found
            return


def _results(steps: Sequence[Step]) -> Iterator[_Result]:
    for at, step in enumerate(steps):
        tool, output = step.tool_called, step.tool_output
        if output is None:
            output = step.error
        if tool is None or output is None:
            continue
        text = (
            output
            if isinstance(output, str)
            else json.dumps(output, ensure_ascii=False, default=str)
        )
        given = step.tool_input
        values = given.values() if isinstance(given, Mapping) else (given,)
        texts = tuple(one for one in values if isinstance(one, str))
        yield _Result(at, tool, text[:_MAX_TEXT], texts, step.error is not None)


def _took_over(results: Sequence[_Result], marked: set[int]) -> _Result | None:
    """The first marked result, where most results from there on are marked and a tool has changed.

    marked: indices of results. At least two tools must be concerned, of which one had answered
    without the mark before, and at least two things asked for.
    """
    if len(marked) < 2:
        return None
    first = min(marked)
    tools = {results[at].tool for at in marked}
    changed = not tools.isdisjoint(one.tool for one in results[:first])
    share = len(marked) / (len(results) - first)
    if len(tools) < 2 or not changed or share < _LEAST_SHARE:
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
        return None
    rule = _rule_of(first.text, len(shared), judge)
    few = len(_LETTERS.findall(first.text)) < _GRAM and first.text not in errno.errorcode.values()
    nothing = denies(first.text) and not first.failed and first.tool not in first.text
    if rule in (SERVICE_TEXT, OTHER_PAGES) and (few or nothing):
        return None  # that there is nothing is an answer, and few words may be a state of work
    return Finding(
        rule, f"different tools gave the same answer: {said_by(first.text)}", first.at, first.tool
    )


def _rule_of(text: str, texts: int, judge: Callable[[ErrorInfo], Any]) -> Rule:
    verdict = judge(ErrorInfo("Exception", message=text[:300]))
    if verdict is not None and verdict.known:
        known: Rule = verdict.rule
        return known._replace(name=SERVICE_TEXT.name, confidence=SERVICE_TEXT.confidence)
    if _AGAIN.search(text):
        return SAME_TEXT
    return OTHER_PAGES if texts > 1 else SERVICE_TEXT


_AGAIN = Pattern(
    r"\b(?:re-?(?:try|peat|run|send|submit|do|issue)\w{0,3}|again|once more|wiederhol\w{1,3}|"
    r"erneut|repet\w{1,3}|nochmals?|de nuevo|encore)\b",
    re.IGNORECASE,
)
"""Words for doing the same once more."""


def _masked(one: _Result) -> str:
    """A result without the tool's name, its arguments and numbers."""
    text = one.text.replace(one.tool, "#")
    for value in one.given:
        if len(value) > 2:
            text = text.replace(value, "#")
    return _DIGITS.sub("0", text).strip()


# --- words put in ---------------------------------------------------------------------------------


def _inserted(results: Sequence[_Result], task: str) -> Finding | None:
    """Words that results begin to hold behind their own: somebody speaks through them."""
    places: dict[tuple[str, ...], dict[int, int]] = {}
    known = set(_grams(_TOKEN.findall(task[:_MAX_TEXT])))
    for at, one in enumerate(results):
        if _is_data(one.text):
            continue
        tokens = _TOKEN.findall(one.text)[-_MAX_TOKENS:]
        for place, gram in enumerate(_grams(tokens)):
            if gram not in known:
                places.setdefault(gram, {}).setdefault(at, place)
    for gram, found in places.items():
        if len(found) < 2 or min(found.values()) == 0 or not any(map(_LETTERS.match, gram)):
            continue
        first = _took_over(results, set(found))
        if first is None or len({results[at].text for at in found}) < 2:
            continue
        at, words = min(found), " ".join(gram)
        if any(words in " ".join(_TOKEN.findall(one.text)) for one in results[:at]):
            continue
        said = " ".join(_TOKEN.findall(first.text)[-_MAX_TOKENS:][found[at] :])
        if len(_LETTERS.findall(said)) >= 3:
            text = f"results of two tools go on with {said_by(said)}"
            return Finding(INSERTED, text, first.at, first.tool)
    return None


def _grams(tokens: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return (tuple(tokens[at : at + _GRAM]) for at in range(len(tokens) - _GRAM + 1))


# --- a form that is lost --------------------------------------------------------------------------


def _garbled(results: Sequence[_Result], task: str) -> Finding | None:
    """Results that lose the form they had: an amount stuck on, words out of order, JSON no more."""
    del task
    marked = {at for at, one in enumerate(results) if _is_garbled(one)}
    first = _took_over(results, marked)
    if first is None:
        return None
    text = f"results lose the form they had: {said_by(first.text)}"
    return Finding(GARBLED, text, first.at, first.tool)


def _is_garbled(one: _Result) -> bool:
    text = one.text
    if _is_data(text):
        return False
    if _AMOUNT.search(text) and not _AMOUNT.fullmatch(text.strip()):
        return True
    return (
        text[:1] in _OPENING
        or _is_disordered(text)
        or any(_is_scattered(value, text) for value in one.given)
    )


_OPENING = "{["


def _is_data(text: str) -> bool:
    """Whether a text is markup, or JSON to its end or up to where it was cut."""
    if text[:1] == "<":
        return True
    if text[:1] not in _OPENING:
        return False
    try:
        json.loads(text)
    except RecursionError:
        return True
    except ValueError as problem:
        return "Extra data" not in str(problem)
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


def _is_scattered(value: str, text: str) -> bool:
    """Whether a text holds all words of an argument, but not in their order."""
    words = re.findall(r"\w+", value.lower())
    if len(words) < 2 or len(set(words)) != len(words):
        return False
    found = re.findall(r"\w+", text.lower())
    if not set(words) <= set(found):
        return False
    return " ".join(words) not in " ".join(found)
