"""What tools answered, where an answer is a failure that nobody raised.

Many frameworks give a tool's error to the model as its result, and the run goes on. So results are
read: an error that was never got over, JSON that breaks off, a demand to repeat the call, orders to
the agent. A result that came right later decides nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from triage.classifiers._shown import said_by
from triage.failures import ErrorInfo
from triage.steps import Step
from triage.taxonomy import FailureType

from ._failure import MAX_JSON, Failure, failure_of, text_of
from ._finding import ASKED, BROKEN_RESULT, FAILED_RESULT, REDIRECT, UNKNOWN_TOOL, Finding

_MAX_TOOLS = 256

Judged = Callable[[ErrorInfo], Any]
"""What the rules say of an exception: a verdict with a `rule`, or None."""


class _Failed(NamedTuple):
    """A tool whose last result was no good. first: position of the first one since a good one."""

    first: int
    failure: Failure


class Results:
    """Is told each step once; `standing` says what was never got over."""

    __slots__ = ("_asked", "_broken", "_failed", "_last", "_over", "_redirect")

    def __init__(self) -> None:
        self._redirect: Finding | None = None
        self._asked: dict[str, Finding] = {}
        self._broken: dict[str, Finding] = {}
        self._failed: dict[str, _Failed] = {}
        self._last: str | None = None
        self._over = False

    def add(self, step: Step, at: int) -> None:
        """The next step, at this position."""
        tool, output = step.tool_called, step.tool_output
        self._over = False
        if output is None and step.error is None:
            return
        name = tool or ""
        text = text_of(output)
        failure = failure_of(step, text)
        if tool is not None:
            self._last = tool if failure else None
            # An error that was raised is judged as that.
            self._over = step.error is None
        if failure is None and text is None:
            self._came_right(name)
            return
        shown = text if text is not None else failure.text if failure is not None else ""
        low = shown.lower()
        if self._redirect is None and redirects(low):
            self._redirect = Finding(REDIRECT, f"the result says {_order(shown)}", at, tool)
        if asks_again(low):
            self._note_asked(name, tool, shown, at)
        elif failure is not None:
            if len(self._failed) < _MAX_TOOLS or name in self._failed:
                known = self._failed.get(name)
                self._failed[name] = _Failed(known.first if known else at, failure)
        elif isinstance(output, str) and is_broken_json(output):
            if name not in self._broken and len(self._broken) < _MAX_TOOLS:
                text = f"the result of {tool or 'the step'!r} is no valid JSON: {said_by(output)}"
                self._broken[name] = Finding(BROKEN_RESULT, text, at, tool)
        else:
            self._came_right(name)

    def _note_asked(self, name: str, tool: str | None, shown: str, at: int) -> None:
        known = self._asked.get(name)
        if known is not None:
            self._asked[name] = known._replace(repeats=known.repeats + 1)
        elif len(self._asked) < _MAX_TOOLS:
            said = f"the result of {tool or 'the step'!r} asks for the same call: {said_by(shown)}"
            self._asked[name] = Finding(ASKED, said, at, tool, repeats=1, length=1)

    def _came_right(self, name: str) -> None:
        for kept in (self._asked, self._broken, self._failed):
            if kept and name in kept:
                del kept[name]

    def standing(self, judge: Judged) -> list[Finding]:
        """What stands at the end, most decisive first."""
        found = [] if self._redirect is None else [self._redirect]
        found += _earliest(self._asked)
        found += _earliest(self._broken)
        failed = self._failures(judge)
        return found + ([failed] if failed is not None else [])

    def _failures(self, judge: Judged) -> Finding | None:
        """The failure that the last call ended with, or that two tools never got over.

        Of the other side's unless the attempt ended with that very call: then nobody has made
        anything of its failure, whatever it is.
        """
        verdicts: list[tuple[_Failed, str, Any]] = []
        for name, failed in self._failed.items():
            verdict = judge(failed.failure.info())
            if verdict is not None and verdict.known:
                verdicts.append((failed, name, verdict))
        outside = [
            one for one in verdicts if one[2].rule.failure_type is FailureType.EXTERNAL_FAULT
        ]
        last = [one for one in verdicts if one[1] == self._last]
        if last and last[0][2].rule.failure_type is FailureType.WRONG_TOOL_CALLED:
            failed, name, verdict = last[0]
            return Finding(UNKNOWN_TOOL._replace(confidence=0.8), _said(failed), failed.first, name)
        if not outside or (len(outside) == 1 and outside[0][1] != self._last):
            if not (last and self._over):
                return None
            outside = last
        failed, name, verdict = min(outside, key=lambda one: one[0].first)
        rule = verdict.rule._replace(name=FAILED_RESULT.name, confidence=FAILED_RESULT.confidence)
        return Finding(rule, _said(failed), failed.first, name or None)


def _earliest(kept: Mapping[str, Finding]) -> list[Finding]:
    return [min(kept.values(), key=lambda found: found.step or 0)] if kept else []


def _said(failed: _Failed) -> str:
    return f"the tool answered with an error: {said_by(failed.failure.text)}"


# --- one result ----------------------------------------------------------------------------


def asks_again(low: str) -> bool:
    """Whether a result asks for exactly the call it answers once more. low: in small letters."""
    if "same" not in low and "identical" not in low:
        return False
    return _again().search(low) is not None


@cache
def _again() -> re.Pattern[str]:
    verb = (
        r"(?:re-?try|re-?peat|re-?run|re-?send|re-?submit|re-?issue|re-?do|try|call|run|send|submit|"
        r"issue|make|invoke|execute|perform|use|ask)"
    )
    what = (
        r"(?:calls?|query|queries|requests?|arguments?|parameters?|inputs?|commands?|tool|"
        r"function|operation|search|lookup|step|action)"
    )
    same = r"(?:(?:exact(?:ly)?|very) (?:the )?same|(?:the )?same exact|identical|the same)"
    return re.compile(
        rf"\b{verb}\b[^.\n]{{0,30}}\b{same}\b[^.\n]{{0,20}}\b{what}\b"
        rf"|\b{verb}\b[^.\n]{{0,20}}\b(?:again|once more)\b[^.\n]{{0,20}}\bwith (?:the )?"
        rf"(?:exact )?(?:same|identical)\b"
    )


def redirects(low: str) -> bool:
    """Whether a result speaks to the agent in place of its user, and sends it elsewhere.

    low: in small letters.
    """
    if not (
        "system" in low
        or "instruction" in low
        or "from now on" in low
        or "previous" in low
        or "goal" in low
        or "task" in low
        or "topic" in low
    ):
        return False
    if _strong().search(low) is not None:
        return True
    return len({hit.lastgroup for hit in _weak().finditer(low)}) > 1


@cache
def _strong() -> re.Pattern[str]:
    return re.compile(
        r"[\[<({*#]{1,3}\s?(?:system|admin(?:istrator)?|developer|supervisor|orchestrator)[ _-]{1,2}"
        r"(?:update|notice|message|note|override|alert|prompt|instructions?|directive|command|order)"
        r"\s?[\]>)}:*#]"
        r"|\b(?:ignore|disregard|forget|override) (?:\w{1,12} ){0,3}(?:previous|prior|above|earlier|"
        r"preceding|original) (?:\w{1,12} ){0,2}(?:instructions?|prompts?|directions?|guidelines|goals?|"
        r"objectives?|orders?)\b"
    )


@cache
def _weak() -> re.Pattern[str]:
    return re.compile(
        r"(?P<role>(?:^|\n|[\[<({*#]{1,3})\s?(?:system|developer)\s?[\]>)}:*#])"
        r"|(?P<changed>\b(?:goal|objective|task|mission|assignment|topic) has (?:now )?(?:been )?"
        r"(?:changed|updated|replaced|superseded)\b)"
        r"|(?P<now>\bfrom now on\b)"
        r"|(?P<stop>\b(?:stop|abandon|drop|cease|pause)\b[^.\n]{0,20}\b(?:current|previous|original|present)"
        r" (?:task|topic|work|goal|objective|research|search)\b)"
        r"|(?P<new>\byour new (?:task|goal|objective|instructions?|assignment|mission) (?:is|are)\b)"
        r"|(?P<instead>\b(?:investigate|research|focus on|work on|search for|look (?:for|into)|write)\b"
        r"[^.\n]{0,80}\binstead\b)"
        r"|(?P<you>\byou (?:must|should|will|are to) now\b)"
    )


def _order(text: str) -> str:
    hit = _strong().search(text.lower()) or _weak().search(text.lower())
    start = hit.start() if hit else 0
    return said_by(text[start : start + 300])


_CUT_MARKS = re.compile(
    r"\u2026|\.\.\.|truncat|omitted|trimmed|elided|<cut|\[cut|more (?:items|rows|char)"
)
_ROUND = 50


def is_broken_json(text: str) -> bool:
    """Whether a text begins as JSON and is none, by the tool's doing.

    Not judged are texts over 20,000 characters, texts that were visibly shortened, and those that
    break off at a round length: there whoever wrote the record down has cut it.
    """
    if text[:1] not in ("{", "[") or len(text) > MAX_JSON or not _begins_as_json(text):
        return False
    try:
        json.loads(text)
    except RecursionError:
        return False
    except json.JSONDecodeError as problem:
        at = problem.pos
        if _CUT_MARKS.search(text[max(0, at - 60) : at + 60].lower()) or _CUT_MARKS.search(
            text[-60:].lower()
        ):
            return False
        ended = at >= len(text.rstrip()) - 1 or problem.msg.startswith("Unterminated")
        if ended and len(text) % _ROUND == 0:
            return False
        return "Extra data" not in problem.msg
    return False


@cache
def _json_beginning() -> re.Pattern[str]:
    return re.compile(
        r'\{\s*"(?:[^"\\\n]|\\.){1,200}"\s*:\s*(?:["\[{\d-]|true|false|null)|\[\s*(?:\{\s*"|\[\s*[\[{"\d]|"[^"\n]*"\s*,)'
    )


def _begins_as_json(text: str) -> bool:
    return _json_beginning().match(text) is not None
