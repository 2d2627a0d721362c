"""What the end of an attempt shows of work that was left: cut off, lost, announced, or counted as open."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from triage.classifiers._claims import is_quoted
from triage.classifiers._shown import said_by
from triage.steps import Step

from ._failure import text_of
from ._finding import CLAIMED, CUT_OFF, FILTERED, FORGOT, LEFT_OPEN, Finding


def sentence_start(text: str, at: int) -> int:
    """Where the sentence begins that stands at a position of a text."""
    return max(text.rfind(mark, 0, at) for mark in ".!?\n") + 1


# --- how the model ended -------------------------------------------------------------------

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


# --- what was said before is lost ----------------------------------------------------------


@cache
def _forgot() -> re.Pattern[str]:
    earlier = (
        r"(?:the |our |your )?(?:earlier|previous|prior|first|beginning|start|older)\b[^.!?\n]{0,40}"
        r"\b(?:messages?|conversation|chat|context|history|discussion|part|turns?)\b"
    )
    why = r"(?:context|truncat\w+|token|window|cut off|too long|trimmed|limit)"
    return re.compile(
        rf"\bi (?:no longer have|(?:don't|do not|can't|cannot|can no longer) (?:have|see|access|recall|"
        rf"remember))"
        rf"(?: access to)? {earlier}[^.!?\n]{{0,80}}\b{why}\b"
        rf"|\b(?:our|this|the) (?:earlier |previous )?(?:conversation|chat|messages?)\b[^.!?\n]{{0,60}}"
        rf"\b(?:exceed\w*|beyond|outside|fell out of|dropped out of|no longer fits?)[^.!?\n]{{0,20}}"
        r"\bmy (?:context|memory|window)\b",
        re.IGNORECASE,
    )


def forgot(text: str) -> str | None:
    """The words by which an answer says that what was said before is lost to it."""
    hit = _forgot().search(text)
    return None if hit is None or is_quoted(text[: hit.start()]) else hit[0]


# --- announced, and not done ---------------------------------------------------------------

_DO = (
    r"(?:run|check|search|look (?:up|for|into|at)|try|start|continue|proceed|create|write|fetch|update|fix|"
    r"implement|analy[sz]e|read|verify|query|call|retrieve|find|examine|calculate|compute|test|install|click|"
    r"navigate|inspect|extract|download|open|scroll|gather|collect|compile|execute|apply|edit|modify|refactor)"
)


@cache
def _next() -> re.Pattern[str]:
    return re.compile(
        rf"(?:(?:next|now|then|first|so)(?:,| i'll| i will) (?:i'll |i will |i am going to |"
        rf"i'm going to |let me |let's )?"
        rf"(?:now |next |first )?{_DO}\b|let me (?:now |next |first |also |quickly |try to )?{_DO}\b"
        rf"|i(?:'ll| will| am going to|'m going to) (?:now|next|first) {_DO}\b)[^?\n]{{0,300}}[.:\u2026]?",
        re.IGNORECASE,
    )


_LATER = re.compile(
    r"\b(?:if|when|once|unless|after you|until you|let me know|as soon as|tell me|would you|you can|"
    r"shall i|"
    r"for you to)\b",
    re.IGNORECASE,
)
_LAST_SENTENCE = re.compile(
    r"(?:^|[.!?:\n]\s)\s{0,4}((?:[^.!?\n]|\.(?=\w)){1,400}[.:\u2026]{0,3})\s*\Z"
)


def announced(text: str, steps: Sequence[Step]) -> str | None:
    """The last sentence of an answer, where it says what comes next and nothing came.

    An agent that has called tools goes on by calling one; one that leaves it to its user says so.
    """
    if all(step.tool_called is None for step in steps):
        return None
    hit = _LAST_SENTENCE.search(text[-600:])
    if hit is None:
        return None
    said = hit[1].strip()
    found = _next().fullmatch(said)
    return None if found is None or _LATER.search(said) or is_quoted(text) else said


# --- counted as open -----------------------------------------------------------------------

_WORK = (
    r"(?:done|finished|completed|handled|translated|processed|converted|migrated|written|summari[sz]ed|"
    r"implemented|reviewed|fixed|analy[sz]ed|covered|tested|label+ed|extracted|refactored|ported|annotated)"
)


@cache
def _open() -> re.Pattern[str]:
    part = r"(?:\b\d[^.;:!?\n]{0,40}|\bthe (?:rest|others?|remaining [^.;:!?\n]{1,30})) "
    return re.compile(
        rf"{part}(?:(?:is|are|remain)s? (?:still |yet )?(?:to be|left to be)|still (?:needs?|ha(?:s|"
        rf"ve)) to be|"
        rf"(?:has|have) (?:still |yet )?(?:not (?:yet )?been|to be)|(?:has|"
        rf"have)n't (?:yet )?been) {_WORK}\b"
        rf"|\bi (?:have not|haven't|did not|didn't) (?:yet |get to |start |begin )?(?:\w+ing |{_WORK} |do |"
        r"translate |process |implement |cover |handle |review |migrate |convert )"
        r"(?:the (?:rest|remaining|others?)\b|[^.;:!?\n]{0,20}\b\d)"
        r"|\bi (?:have not|haven't) (?:yet )?(?:gotten|got|come|made it|"
        r"moved on) (?:around )?to \w[^.;:!?\n]{0,60}"
        r"|\bi(?: have|'ve)? (?:was )?only (?:been )?(?:able to |managed to )?\w{3,16} (?:\w{1,12} ){0,2}"
        r"\d{1,6} (?:of|out of) (?:the |all )?\d{1,6}\b"
        r"|\byou(?:'ll| will)? (?:still )?(?:need|have) to (?:implement|complete|finish|"
        r"write) [^.!?\n]{0,30}"
        r"\b(?:actual|real|rest|remaining)\b[^.!?\n]{0,20}\b(?:logic|implementation|code|functions?|methods?|"
        r"parts?|body|bodies|steps?)\b",
        re.IGNORECASE,
    )


@cache
def _open_elsewhere() -> re.Pattern[str]:
    """The same in other languages, where the answer counts what is left."""
    return re.compile(
        r"\bich habe\b.{0,200}?\b\d[^.;\n]{0,40}\b(?:stehen|sind) noch (?:aus\b|zu (?:bearbeiten|"
        r"erledigen|\w+en)\b|"
        r"nicht (?:bearbeitet|erledigt|fertig|\w+t)\b)"
        r"|\b(?:faltan|quedan) (?:aún |todavía )?(?:por|sin) \w+(?:ar|er|ir)\b[^.\n]{0,30}\d"
        r"|\bil (?:me |en |m'en )?reste (?:encore )?\d[^.\n]{0,40}\bà \w+(?:er|ir|re)\b"
        r"|\bfaltam (?:ainda )?\d[^.\n]{0,40}\b(?:por|para) \w+(?:ar|er|ir)\b"
        r"|\brestano (?:ancora )?\d[^.\n]{0,40} da \w+(?:are|ere|ire)\b"
        "|(?:\u8fd8\u6709|\u5c1a\u6709|\u5269\u4f59|\u5269\u4e0b).{0,6}\\d+.{0,10}(?:\u672a|\u6ca1\u6709?|\u5c1a\u672a)"
        "(?:\u5904\u7406|\u5b8c\u6210|\u7ffb\u8bd1|\u68c0\u67e5|\u5b9e\u73b0)"
        "|\u6b8b\u308a.{0,6}\\d+.{0,12}(?:\u672a(?:\u51e6\u7406|\u5b8c\u4e86)|\u307e\u3060|(?:\u51e6\u7406|\u5b8c\u4e86)"
        "(?:\u3067\u304d|\u3057)\u3066\u3044\u307e\u305b\u3093)",
        re.IGNORECASE | re.DOTALL,
    )


_SUPPOSED = re.compile(
    r"\b(?:if|when|unless|in case|whether|would|as you asked|as requested)\b", re.IGNORECASE
)


def counted_open(text: str) -> str | None:
    """The words by which an answer counts what of its own work is still to be done."""
    hit = _open().search(text) or _open_elsewhere().search(text)
    if hit is None:
        return None
    before = text[sentence_start(text, hit.start()) : hit.end()]
    if is_quoted(text[: hit.start()]) or _SUPPOSED.search(before):
        return None
    return before.strip()


# --- tests that are said to pass -----------------------------------------------------------

_TESTS = re.compile(
    r"\b(?:pytest|unittest|jest|vitest|mocha|rspec|phpunit|tox|nox|ctest)\b|\b(?:npm|yarn|pnpm|go|cargo|mix|"
    r"dotnet|make|mvn|gradle|bazel)(?: run)? \S{0,20}test|\brun_?tests?\b",
    re.IGNORECASE,
)
_FAILS = re.compile(
    r"\b[1-9]\d{0,5} (?:failed|failing|failures?)\b|\bFAILED \(|\bfailures?[:=] ?[1-9]|^--- FAIL:|"
    r"\btest result: FAILED|^FAIL\b",
    re.MULTILINE,
)
_PASS = re.compile(
    r"\ball (?:\w{1,12} ){0,3}tests? (?:now |are |have )?(?:pass|passed|passing|succeed|green)\b"
    r"|\b(?:the|your|our) (?:\w{1,12} ){0,2}tests? (?:now |are now )(?:pass|passing|green)\b"
    r"|\btests (?:are )?(?:now )?(?:all )?(?:pass|passing) now\b",
    re.IGNORECASE,
)
_BUT = re.compile(
    r"\b(?:but|except|other than|apart from|not|should|will|would|once|if|n't)\b", re.IGNORECASE
)


def passing(text: str, steps: Sequence[Step], at: int) -> Finding | None:
    """A claim that tests pass, where the last run of tests that was recorded failed."""
    hit = _PASS.search(text)
    if hit is None:
        return None
    begun = sentence_start(text, hit.start())
    end = re.search(r"[.!?\n]|\Z", text[hit.end() :])
    sentence = text[begun : hit.end() + (end.start() if end else 0)]
    if _BUT.search(sentence) or is_quoted(text[: hit.start()]):
        return None
    for step in reversed(steps):
        if step.tool_called is None:
            continue
        told = f"{step.tool_called} {text_of(step.tool_input) or ''}"
        if not _TESTS.search(told):
            continue
        shown = text_of(step.tool_output) or step.error or ""
        failed = _FAILS.search(shown)
        if failed is None:
            return None
        said = (
            f"the last answer says {said_by(hit[0])}, and the last tests say {said_by(failed[0])}"
        )
        return Finding(CLAIMED, said, at, step.tool_called)
    return None


def left_over(text: str, steps: Sequence[Step], at: int) -> Finding | None:
    """What the last answer leaves to be done, most decisive first."""
    said = counted_open(text)
    if said is not None:
        return Finding(LEFT_OPEN, f"the last answer says {said_by(said)}", at)
    found = passing(text, steps, at)
    if found is not None:
        return found
    said = forgot(text)
    if said is not None:
        return Finding(FORGOT, f"the last answer says {said_by(said)}", at)
    said = announced(text, steps)
    if said is not None:
        return Finding(LEFT_OPEN, f"the last answer ends with {said_by(said)}", at)
    return None
