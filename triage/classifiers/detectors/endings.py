"""What steps say of their own making: how the last answer ended, texts written anew, data made up."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from triage.classifiers.patterns import Pattern
from triage.core import Step, said_by

from .finding import CUT_OFF, FILTERED, INVENTED, REWRITTEN, Finding
from .loops import words

_MAX_TEXT = 4_000
_LONG = 80
_NOTHING_NEW = 0.9
_SHINGLE = 3
_MAX_WRITERS = 16
_LONG_PATH = 300

_REASONS = ("finish_reason", "stop_reason", "finishReason", "stopReason", "done_reason")
_TOO_LONG = frozenset({"length", "max_tokens", "max_output_tokens", "model_length", "token_limit"})
_FILTERS = frozenset({
    "content_filter", "content_filtered", "safety", "prohibited_content", "blocklist", "recitation",
    "refusal", "spii",
})  # fmt: skip


def ended(step: Step, at: int) -> Finding | None:
    """What a model gave as the reason for its end, where that was no end of its own."""
    if not step.metadata:
        return None
    for key in _REASONS:
        reason = step.metadata.get(key)
        if isinstance(reason, str):
            said = f"the model's last answer ended with {key} {said_by(reason)}"
            if reason.lower() in _TOO_LONG:
                return Finding(CUT_OFF, said, at)
            if reason.lower() in _FILTERS:
                return Finding(FILTERED, said, at)
    return None


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


def _shape(text: str) -> Counter[tuple[str, ...]] | None:
    """The runs of three words of a text, counted; None for a short one."""
    found = words(text[:_MAX_TEXT])
    if len(found) < _LONG:
        return None
    return Counter(zip(*(found[at:] for at in range(_SHINGLE)), strict=False))


def _known_share(old: Counter[Any], new: Counter[Any]) -> float:
    """The share of a text's runs that stood in the one before it, from 0 to 1."""
    return (old & new).total() / new.total()


_DATA = (
    r"(?:data|datasets?|data ?set|values?|numbers?|figures|prices?|results?|content|text|entries|"
    r"records|list|csv|responses?|information|statistics)"
)
_MADE_UP = Pattern(
    rf"\bsimulat(?:e|ed|ing) (?:the |an? |some |this |these )?(?:\w+ ){{0,2}}{_DATA}\b"
    rf"|\b(?:sample|dummy|fake|hypothetical|synthetic|illustrative|fictional|fictitious|made-up|"
    rf"fabricated) (?:\w+ ){{0,2}}{_DATA}\b",
    re.IGNORECASE,
)
_ASSUMED = Pattern(
    r"\b(?:assum(?:e|es|ed|ing|ption|ptions)|hypothetical\w*|simulat(?:e|ed|ing|ion)|"
    r"placeholders?|pretend)\b",
    re.IGNORECASE,
)
_TESTING = Pattern(
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
        hit = _MADE_UP.search(text[:_MAX_TEXT])
        if hit and not _TESTING.search(text[:_MAX_TEXT]) and not _is_for_tests(step.tool_input):
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


def assumes(step: Step) -> bool:
    """Whether a step speaks of an assumption: weaker than data made up, and often the same."""
    return any(
        text is not None and _ASSUMED.search(text[:_MAX_TEXT]) is not None
        for text in (step.llm_output, _longest(step.tool_input))
    )


def invented(steps: Sequence[Step]) -> Finding | None:
    """The first step that works with data it says it made up."""
    for at, step in enumerate(steps):
        if at == 0 and step.tool_called is None:
            continue  # the task, as it was handed on
        said = says_made_up(step)
        if said is not None:
            return Finding(INVENTED, f"the step speaks of {said_by(said)}", at, step.tool_called)
    return None
