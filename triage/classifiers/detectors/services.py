"""Services that answer every question with the same text: they are down, or want something else.

The text begins at some step, where the tools had answered well before, and stays.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from triage.classifiers.tables.rule import Rule
from triage.core.failures import ErrorInfo
from triage.core.patterns import Pattern
from triage.core.quoting import said_by
from triage.core.steps import Step

from .finding import SAME_TEXT, SERVICE_TEXT, Finding
from .results import denies, is_broken_json, parsed, text_in

_LEAST_TEXT = 12
_FEW_WORDS = 4
_DIGITS = re.compile(r"\d+(?:[.,]\d+)*")
_LETTERS = Pattern(r"[^\W\d_]{2,}")


class _Result(NamedTuple):
    """One result of a tool.

    at: position of its step. text: as text. masked: without the tool's name, its arguments and numbers.
    given: the texts of its arguments. failed: it was recorded as an error.
    """

    at: int
    tool: str
    text: str
    masked: str
    given: tuple[str, ...]
    failed: bool

    @property
    def is_code(self) -> bool:
        return self.masked in errno.errorcode.values()

    @property
    def is_short(self) -> bool:
        return len(_LETTERS.findall(self.text)) < _FEW_WORDS and not self.is_code


def same_answers(steps: Sequence[Step], judge: Callable[[ErrorInfo], Any]) -> Finding | None:
    """Find the first of the results that are one text whatever is asked. judge: what the rules say."""
    results = list(_results(steps))
    return _of_several_tools(results, judge) or _of_one_tool(results, judge)


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
        text = text_in(output)
        masked = _DIGITS.sub("0", _without(text, tool, texts)).strip()
        yield _Result(at, tool, text, masked, texts, step.error is not None)


def _without(text: str, tool: str, given: tuple[str, ...]) -> str:
    """A result without the tool's name and its arguments."""
    for value in (tool, *(one for one in given if len(one) > 2)):
        text = text.replace(value, "#")
    return text


def _of_several_tools(
    results: Sequence[_Result], judge: Callable[[ErrorInfo], Any]
) -> Finding | None:
    """The same text from two tools or more, of which one had answered otherwise before.

    It must be most of the results from its first one on, and answer two questions or more.
    """
    tools: dict[str, set[str]] = {}
    for one in results:
        if len(one.masked) >= _LEAST_TEXT or one.is_code:
            tools.setdefault(one.masked, set()).add(one.tool)
    shared = {text for text, by in tools.items() if len(by) > 1}
    marked = [at for at, one in enumerate(results) if one.masked in shared]
    if not marked:
        return None
    first, same = results[marked[0]], [results[at] for at in marked]
    changed = not {one.tool for one in same}.isdisjoint(one.tool for one in results[: marked[0]])
    if not changed or 2 * len(same) < len(results) - marked[0]:
        return None
    if set.intersection(*(set(one.given) for one in same)):
        return None
    rule = _rule_of(first.text, judge)
    if rule is SERVICE_TEXT:
        nothing = denies(first.text) and not first.failed and first.tool not in first.text
        if len(shared) > 1 or first.is_short or nothing or _tells_success(first.text):
            return None  # several texts, few words and that there is nothing are answers
    said = f"different tools gave the same answer: {said_by(first.text)}"
    return Finding(rule, said, first.at, first.tool)


def _of_one_tool(results: Sequence[_Result], judge: Callable[[ErrorInfo], Any]) -> Finding | None:
    """The same text from one tool whatever it is asked, in another form than its results had before."""
    forms: dict[str, set[str]] = {}
    begun: dict[str, list[_Result]] = {}
    for one in results:
        tool, form, same = one.tool, _form(one.text), begun.get(one.tool)
        if same and same[0].masked == one.masked:
            same.append(one)
        elif (
            not same
            and tool in forms
            and form not in forms[tool]
            and len(one.masked) >= _LEAST_TEXT
        ):
            begun[tool] = [one]
        else:
            begun.pop(tool, None)
            forms.setdefault(tool, set()).add(form)
    for tool, same in begun.items():
        first = same[0]
        if len({one.given for one in same}) < 2:
            continue
        rule = _rule_of(first.text, judge)
        if rule is SERVICE_TEXT:
            few = first.is_short or is_broken_json(first.text)
            counts = len({_without(one.text, tool, one.given) for one in same}) > 1
            if few or counts or first.failed or denies(first.text):
                continue
        if rule.failure_type in (SERVICE_TEXT.failure_type, SAME_TEXT.failure_type):
            said = f"{tool!r} gives the same answer whatever it is asked: {said_by(first.text)}"
            return Finding(rule, said, first.at, tool)
    return None


def _form(text: str) -> str:
    """The keys of an object, or what else a result is."""
    found = parsed(text)
    if isinstance(found, dict):
        return " ".join(found)
    return text[:1] if text[:1] in ("<", "[", "{") else "text"


def _rule_of(text: str, judge: Callable[[ErrorInfo], Any]) -> Rule:
    verdict = judge(ErrorInfo("Exception", message=text[:300]))
    if verdict is not None and verdict.known:
        known: Rule = verdict.rule
        return known._replace(name=SERVICE_TEXT.name, confidence=SERVICE_TEXT.confidence)
    return SAME_TEXT if _AGAIN.search(text) else SERVICE_TEXT


_AGAIN = Pattern(
    r"\b(?:re-?(?:try|peat|run|send|submit|do|issue)\w{0,3}|again|once more|wiederhol\w{1,3}|"
    r"erneut|repet\w{1,3}|nochmals?|de nuevo|encore)\b",
    re.IGNORECASE,
)
"""Words for doing the same once more."""
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
