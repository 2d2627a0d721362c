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

from triage.classifiers._rule import Rule
from triage.classifiers._shown import said_by
from triage.failures import ErrorInfo
from triage.steps import Step
from triage.taxonomy import Cause, FailureType

from ._failure import MAX_JSON, Failure, bare_failure, failure_of, tells_of, text_of
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

    __slots__ = ("_asked", "_bare", "_broken", "_failed", "_last", "_over", "_redirect")

    def __init__(self) -> None:
        self._redirect: Finding | None = None
        self._asked: dict[str, Finding] = {}
        self._broken: dict[str, Finding] = {}
        self._failed: dict[str, _Failed] = {}
        self._last: str | None = None
        self._bare: tuple[Step, int] | None = None
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
            self._bare = None if failure else (step, at)
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
            if (verdict is None or not verdict.known) and name == self._last and self._over:
                verdict = _by_form(failed.failure)
            if verdict is not None and verdict.known:
                verdicts.append((failed, name, verdict))
        verdicts += self._bare_one(judge)
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

    def _bare_one(self, judge: Judged) -> list[tuple[_Failed, str, Any]]:
        """The last call, where its short result is nothing but a failure by the words of the rules."""
        if self._bare is None:
            return []
        step, at = self._bare
        failure = bare_failure(step)
        verdict = None if failure is None else judge(failure.info())
        if failure is None or verdict is None or not verdict.known:
            return []
        # A number in a sentence may be what it is about.
        if verdict.rule.looks_at == "status" or tells_of(failure.text):
            return []
        self._last = step.tool_called
        return [(_Failed(at, failure), step.tool_called or "", verdict)]


class _Told(NamedTuple):
    """What an error comes to that its tool has named as one."""

    rule: Rule
    known: bool = True


def _by_form(failure: Failure) -> _Told | None:
    """What an error says whose words no rule knows: that it is one is known, so few words are enough."""
    hit = _told().search(failure.text[:_MAX_TOLD])
    return None if hit is None else _Told(_TOLD[hit.lastgroup or ""])


_MAX_TOLD = 300
_TOLD = {
    "tool": FAILED_RESULT._replace(
        failure_type=FailureType.WRONG_TOOL_CALLED, cause=Cause.UNKNOWN_TOOL
    ),
    "missing": FAILED_RESULT._replace(
        failure_type=FailureType.HALLUCINATED_STATE, cause=Cause.MISSING_RESOURCE
    ),
    "form": FAILED_RESULT._replace(
        failure_type=FailureType.SCHEMA_MISMATCH, cause=Cause.INVALID_ARGUMENTS
    ),
}


@cache
def _told() -> re.Pattern[str]:
    return re.compile(
        r"(?P<tool>\b(?:tool|function) [\w.:-]{1,60} (?:is |was )?not (?:found|registered|available)\b|"
        r"\b(?:unknown|no|no such|invalid|unsupported) (?:function|tool|agent|action|command|handoff)"
        r"(?: name)?\b(?! (?:call|input|argument|output)))"
        r"|(?P<missing>\b(?:not found|(?:does not|doesn't|do not|don't) exist|no such \w|cannot find|"
        r"can't find|"
        r"could(?: not|n't) (?:find|be found)|no \w{1,20} (?:was |were )?found|unknown \w{1,20} ?(?:id|"
        r"name|number)|"
        r"did not appear verbatim|no match))"
        r"|(?P<form>\b(?:invalid \w|malformed|must be (?:an?|one|in|at|of|greater|less|between|positive)\b|"
        r"expected \w|(?:missing|unknown|unexpected|required) (?:required )?(?:\w{1,20} )?(?:parameter|"
        r"argument|field|"
        r"property|key|value|column|format)|(?:is|are) (?:missing|required)\b|wrong (?:format|type)|"
        r"unsupported \w))",
        re.IGNORECASE,
    )


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
        or "anweisung" in low
        or "consigne" in low
        or "instruc" in low
        or "istruzion" in low
        or (not low.isascii() and ("\u6307\u4ee4" in low or "\u6307\u793a" in low))
    ):
        return False
    hit = _strong().search(low)
    if hit is not None and not _MENTIONS.search(low[: hit.start()][-40:]):
        return True
    return len({hit.lastgroup for hit in _weak().finditer(low)}) > 1


_MENTIONS = re.compile(
    r"\b(?:such as|like|e\.g\.,?|for example,?|phrases?|words|texts?|sentences?|saying|says?|said|"
    r"called|asks?"
    r"|strings?|commands?):? ?['\"\u201c\u2018`]\Z"
)
"""What stands before an order that is only told of."""


@cache
def _strong() -> re.Pattern[str]:
    return re.compile(
        r"[\[<({*#]{1,3}\s?(?:system|admin(?:istrator)?|developer|supervisor|orchestrator)[ _-]{1,2}"
        r"(?:update|notice|message|note|override|alert|prompt|instructions?|directive|command|order)"
        r"\s?[\]>)}:*#]"
        r"|\b(?:ignore|disregard|forget|override) (?:\w{1,12} ){0,3}(?:previous|prior|above|earlier|"
        r"preceding|original) (?:\w{1,12} ){0,2}(?:instructions?|prompts?|directions?|guidelines|goals?|"
        r"objectives?|orders?)\b"
        r"|\b(?:vergiss|vergessen sie|ignoriere?n?(?: sie)?|"
        r"missachte)\b (?:\w{1,12} ){0,3}(?:bisherigen?|vorherigen?|"
        r"obigen?|früheren?) (?:\w{1,12} )?(?:anweisung|instruktion|befehl|vorgabe)"
        r"|\b(?:ignore[zr]?|oublie[zr]?) (?:toutes )?(?:les|vos|tes) (?:instructions|"
        r"consignes) (?:précédentes|"
        r"antérieures|ci-dessus)"
        r"|\b(?:ignor[ae]|olvid[ae]|desconsidere|esqueça) (?:todas )?(?:las |tus |sus |as |"
        r"suas )?(?:instrucciones|"
        r"instruções) (?:anteriores|previas|prévias)"
        r"|\bignora (?:tutte )?le istruzioni (?:precedenti|sopra)"
        "|(?:\u5ffd\u7565|\u65e0\u89c6|\u5fd8\u8bb0|\u5fd8\u6389).{0,6}(?:\u4e4b\u524d|\u4ee5\u4e0a|\u5148\u524d|\u6b64\u524d|\u4e0a\u8ff0)"
        ".{0,6}(?:\u6307\u4ee4|\u6307\u793a)"
        "|(?:\u3053\u308c\u307e\u3067|\u4ee5\u524d|\u4e0a\u8a18|\u524d)\u306e.{0,6}\u6307\u793a.{0,8}(?:\u7121\u8996|\u5fd8\u308c)"
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
