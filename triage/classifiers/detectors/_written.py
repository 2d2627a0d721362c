"""What the words of the steps show once a run is over: a text written twice, data made up, history cut.

These cost more than what is looked at with each step, so they are looked for when an attempt has
failed, and in a bounded part of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from triage.classifiers._shown import said_by
from triage.steps import Step

from ._finding import CUT, INVENTED, REWRITTEN, Finding
from ._near import words

MAX_TEXT = 4_000
_LONG = 80
_NOTHING_NEW = 0.9
_SHINGLE = 3
_MAX_WRITERS = 16


def rewritten(steps: Sequence[Step]) -> Finding | None:
    """The last long text of a writer that says nothing it had not written before.

    A writer is a tool, or a role, whose calls give no result: all that came of them is their text. A
    call that was answered is judged with its answer, as a loop, and words beside such calls are
    talk. Looked at are neighbouring texts of one writer; a text that adds to the one before is work.
    """
    last: dict[tuple[str, str | None], tuple[int, Any]] = {}
    found: Finding | None = None
    worked = any(step.tool_called and step.tool_output is not None for step in steps)
    for at, step in enumerate(steps):
        if step.tool_output is not None or step.error is not None:
            continue
        if step.tool_called is None and worked:
            continue
        text = _longest(step.tool_input) or step.llm_output or ""
        writer = (step.action, step.tool_called)
        shape = _shape(text)
        if shape is None:
            continue
        known = last.get(writer)
        if known is None and len(last) >= _MAX_WRITERS:
            continue
        if known is not None:
            found = None
            share = _known_share(known[1], shape)
            if share >= _NOTHING_NEW:
                name = step.tool_called or step.action or "the same text"
                said = f"{name!r}: {share:.0%} of the text stood in that of step {known[0]} already"
                found = Finding(REWRITTEN, said, at, step.tool_called, repeats=2, length=1)
        last[writer] = (at, shape)
    return found


def _longest(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict | Mapping):
        texts = [item for item in value.values() if isinstance(item, str)]
        return max(texts, key=len, default=None)
    return None


def _shape(text: str) -> dict[tuple[str, ...], int] | None:
    """The runs of three words of a text, counted; None for a short one."""
    found = words(text[:MAX_TEXT])
    if len(found) < _LONG:
        return None
    counted: dict[tuple[str, ...], int] = {}
    for at in range(len(found) - _SHINGLE + 1):
        run = tuple(found[at : at + _SHINGLE])
        counted[run] = counted.get(run, 0) + 1
    return counted


def _known_share(old: Mapping[Any, int], new: Mapping[Any, int]) -> float:
    """The share of a text's runs that stood in the one before it, from 0 to 1."""
    common = sum(min(count, old.get(run, 0)) for run, count in new.items())
    return common / sum(new.values())


# --- data made up --------------------------------------------------------------------------


@cache
def _made_up() -> re.Pattern[str]:
    data = (
        r"(?:data|datasets?|data ?set|values?|numbers?|figures|prices?|results?|content|text|entries|"
        r"records|list|csv|responses?|information|statistics)"
    )
    return re.compile(
        rf"\bsimulat(?:e|ed|ing) (?:the |an? |some |this |these )?(?:\w+ ){{0,2}}{data}\b"
        rf"|\b(?:sample|dummy|fake|hypothetical|synthetic|illustrative|fictional|fictitious|made-up|"
        rf"fabricated) (?:\w+ ){{0,2}}{data}\b",
        re.IGNORECASE,
    )


@cache
def _assumed() -> re.Pattern[str]:
    return re.compile(
        r"\b(?:assum(?:e|es|ed|ing|ption|ptions)|hypothetical\w*|simulat(?:e|ed|ing|ion)|"
        r"placeholders?|pretend)\b",
        re.IGNORECASE,
    )


def assumes(step: Step) -> bool:
    """Whether a step speaks of an assumption: weaker than data made up, and often the same."""
    return any(
        text is not None and _assumed().search(text[:MAX_TEXT]) is not None
        for text in (step.llm_output, _longest(step.tool_input))
    )


_TESTING = re.compile(
    r"\b(?:unit ?tests?|pytest|unittest|assert|test (?:case|data|suite)|mock)|\btests?/|"
    r"\btest_\w{1,60}\.\w|"
    r"[._](?:test|spec)s?\.\w",
    re.IGNORECASE,
)


def says_made_up(step: Step) -> str | None:
    """The words by which a step says that its data is invented, None if it does not or is a test."""
    for text in (step.llm_output, _longest(step.tool_input)):
        if not text:
            continue
        hit = _made_up().search(text[:MAX_TEXT])
        if hit and not _TESTING.search(text[:MAX_TEXT]) and not _is_for_tests(step.tool_input):
            return hit[0]
    return None


def _is_for_tests(given: Any) -> bool:
    """Whether a call is about a file of tests."""
    if not isinstance(given, Mapping):
        return False
    names = (
        value for value in given.values() if isinstance(value, str) and len(value) < _LONG_PATH
    )
    return any(_TESTING.search(name) is not None for name in names)


_LONG_PATH = 300


def invented(steps: Sequence[Step]) -> Finding | None:
    """The first step that works with data it says it made up."""
    for at, step in enumerate(steps):
        if at == 0 and step.tool_called is None:
            continue  # the task, as it was handed on
        said = says_made_up(step)
        if said is not None:
            return Finding(INVENTED, f"the step speaks of {said_by(said)}", at, step.tool_called)
    return None


# --- history that was cut ------------------------------------------------------------------


@cache
def _cut() -> re.Pattern[str]:
    return re.compile(
        r"\b(?:earlier|previous|older|prior|past|\d{1,4})\s(?:messages?|turns?|steps|history|conversation|"
        r"context|tool (?:results|outputs))\b[^.\n]{0,40}\b(?:truncated|removed|omitted|trimmed|dropped|"
        r"discarded|cut|elided|summari[sz]ed|compacted)\b"
        r"|\b(?:conversation|chat|message|context)(?: history| window)?\b[^.\n]{0,20}"
        r"\b(?:was|were|has been|have been) (?:truncated|trimmed|compacted|cut)\b",
        re.IGNORECASE,
    )


_NOTICE = 400


def history_cut(steps: Sequence[Step]) -> Finding | None:
    """A notice that earlier messages were taken out, where a call from before it was then made again."""
    calls = [
        (step.tool_called, repr(step.tool_input)[:MAX_TEXT]) for step in steps if step.tool_called
    ]
    if len(set(calls)) == len(calls):
        return None
    before: set[tuple[str | None, str]] = set()
    cut: int | None = None
    for at, step in enumerate(steps):
        if cut is None and at > 0 and _tells_of_a_cut(step):
            cut = at
        if step.tool_called is None:
            continue
        call = (step.tool_called, repr(step.tool_input)[:MAX_TEXT])
        if cut is None:
            before.add(call)
        elif call in before and at > cut:
            said = f"{step.tool_called!r} was called again with the same arguments after history was cut"
            return Finding(CUT, said, cut, step.tool_called)
    return None


def _tells_of_a_cut(step: Step) -> bool:
    return any(
        isinstance(text, str) and _cut().search(text[:_NOTICE]) is not None
        for text in (step.action, step.llm_output, step.tool_output)
    )
