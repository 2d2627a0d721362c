"""What tools answered, where an answer is a failure that nobody raised.

Many frameworks give a tool's error to the model as its result, and the run goes on. So results are
read: an error that was never got over, JSON that breaks off, a demand to repeat the call, orders to
the agent. A result that came right later decides nothing.
"""

from __future__ import annotations

import ast
import builtins
import errno
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from triage.classifiers.matching import answer_in
from triage.classifiers.tables.messages import REFUSAL
from triage.classifiers.tables.rule import WORDS, Rule, normal
from triage.core.answers import is_page
from triage.core.failures import ErrorInfo
from triage.core.patterns import Pattern
from triage.core.quoting import said_by
from triage.core.retry_after import from_body, from_text
from triage.core.steps import Step
from triage.core.taxonomy import Cause, FailureType

from . import finding
from .arguments import gives

_MAX_READ = 4_000
"""Of a longer result the first 4,000 and the last 1,000 characters are read."""
_MAX_TAIL = 1_000
_MAX_JSON = 20_000
_MAX_SAID = 1_000
_MAX_ERROR = 300
_MAX_CODE = 80
_LEAST_ALIKE = 4
"""Calls in a row that failed alike, from which on they are a loop."""

Judged = Callable[[ErrorInfo], Any]
"""What the rules say of an exception: a verdict with a `rule`, or None."""


class Failure(NamedTuple):
    """What a result says of a failure.

    status, code: the HTTP status and the provider's own code. raised: the class of what the tool raised,
    by its name, None where it raised nothing or that is not known. retry_after_s: seconds that the result
    asks to wait.
    """

    text: str
    status: int | None = None
    code: str | None = None
    raised: str | None = None
    retry_after_s: float | None = None

    @property
    def error(self) -> ErrorInfo:
        """The failure as an error, of the class that was raised, else of one that the text names."""
        raised = getattr(builtins, self.raised or "", None)
        if isinstance(raised, type) and issubclass(raised, Exception):
            mro = tuple(f"builtins.{kind.__name__}" for kind in raised.__mro__)
            return ErrorInfo(
                raised.__name__,
                mro=mro,
                message=self.text[:_MAX_ERROR],
                retry_after_s=self.retry_after_s,
            )
        text = self.text
        if "Traceback (most recent call last)" in text:
            text = text.rstrip().rpartition("\n")[2]
        text = text[:_MAX_ERROR]
        code = self.code
        lead = text.partition(":")[0]
        if code is None and lead in errno.errorcode.values():
            code = lead  # as Node writes it: `ETIMEDOUT: no reply`
        hit = _NAMED.match(text)
        name, said = ("Exception", text) if hit is None else (hit["name"], hit["said"] or "")
        mro = () if hit is None else (f"builtins.{name}", name)
        stated = answer_in(self.text) if self.status is None and code is None else None
        return ErrorInfo(
            name,
            mro=mro,
            message=said,
            status_code=self.status if stated is None else stated.status,
            code=code,
            body=None if stated is None else stated.body,
            retry_after_s=self.retry_after_s,
        )


class _Failed(NamedTuple):
    """A tool whose last result was no good.

    at: position of the first such result since a good one. step: that step. last: position of the
    newest, whose failure that is. same: whether all of them, two or more, say the same.
    """

    at: int
    step: Step
    failure: Failure
    last: int
    newest: Failure
    same: bool = False


class Results:
    """Is told each step once; `standing` says which failures nothing has mended.

    tools: the manifest, empty if it is not known. brief: read only which calls failed and which
    worked.
    """

    def __init__(self, tools: Mapping[str, Any], *, brief: bool = False) -> None:
        self._tools = tools
        self._brief = brief
        self._asked: dict[str, finding.Finding] = {}
        self._broken: dict[str, finding.Finding] = {}
        self._failed: dict[str, _Failed] = {}
        self._worked: set[str] = set()
        self._keys: dict[str, set[str]] = {}
        self._shapes: dict[str, set[str]] = {}
        self._last: str | None = None
        self._said: str | None = None
        self._step: Step | None = None
        self._at = self._admitted = -1
        self._alike: tuple[str, str] = ("", "")
        self._alike_from, self._alike_calls = -1, 0

    def add(self, step: Step, at: int) -> None:
        """The next step, at this position."""
        tool, output = step.tool_called, step.tool_output
        self._at, self._step = at, step
        self._said = step.llm_output if tool is None and step.error is None else None
        if self._admits:
            self._admitted = at
        if output is None and step.error is None:
            return
        name = tool or ""
        failure = failure_of(step) or self._denied(step) or self._odd(step)
        if tool is not None:
            self._count(tool, failure, at)
        if self._brief and failure is None:
            self._last = None
            self._worked.add(name)
            self._failed.pop(name, None)
            return
        if tool is not None:
            self._last = tool if failure else None
            if isinstance(step.tool_input, Mapping):
                self._keys.setdefault(name, set()).update(step.tool_input)
        read = failure.text if failure is not None else text_of(output) or ""
        if _asks_again(read):
            said = f"the result of {name!r} asks for the same call: {said_by(read)}"
            known = self._asked.get(name, finding.Finding(finding.ASKED, said, at, tool, length=1))
            self._asked[name] = known._replace(repeats=known.repeats + 1)
        elif failure is not None:
            asked = from_body(parsed(output))
            failure = failure._replace(retry_after_s=asked or from_text(failure.text))
            known_failure = self._failed.get(name)
            if known_failure is None:
                self._failed[name] = _Failed(at, step, failure, last=at, newest=failure)
            else:
                first = known_failure.last == known_failure.at or known_failure.same
                same = first and known_failure.failure.text == failure.text
                self._failed[name] = known_failure._replace(last=at, newest=failure, same=same)
        elif is_broken_json(_content(output)):
            said = f"the result of {name!r} breaks off: {said_by(_content(output))}"
            self._broken.setdefault(name, finding.Finding(finding.BROKEN_RESULT, said, at, tool))
        else:
            self._worked.add(name)
            self._shapes.setdefault(name, set()).add(shape_of(output))
            for kept in (self._asked, self._broken, self._failed):
                kept.pop(name, None)

    def _count(self, tool: str, failure: Failure | None, at: int) -> None:
        """Count the calls of one tool in a row that failed alike."""
        words = "" if failure is None else failure.text.rstrip().rpartition("\n")[2]
        alike = tool, re.sub(r"\d+", "#", words)
        if alike != self._alike or not words:
            self._alike, self._alike_from, self._alike_calls = alike, at, 0
        self._alike_calls += bool(words)

    @property
    def _same_failure(self) -> finding.Finding | None:
        """The same failure from the same tool to the end, although it was given something else."""
        tool, words = self._alike
        if self._alike_calls < _LEAST_ALIKE:
            return None
        said = f"{tool!r} failed {self._alike_calls} times alike: {said_by(words)}"
        return finding.Finding(
            finding.SAME_ERROR, said, self._alike_from, tool, self._alike_calls, 1
        )

    def _odd(self, step: Step) -> Failure | None:
        """A page, or an object with a message and nothing else, from a tool that has answered otherwise."""
        output = step.tool_output
        declared = gives(self._tools.get(step.tool_called or "")) if self._tools else None
        if declared and isinstance(output, str) and output[:1] not in ("{", "["):
            status = int(output) if _STATUS.fullmatch(output) else None
            return Failure(output[:_MAX_SAID], status)
        known = self._shapes.get(step.tool_called or "")
        if not known or RECORDS.search(step.tool_called or ""):
            return None
        shape = shape_of(step.tool_output)
        if shape not in (PAGE, _MESSAGE) or shape in known:
            return None
        text = text_of(step.tool_output) or ""
        if shape == PAGE:
            asks = _SIGN_IN.search(text) is not None
            return Failure("a page to sign in" if asks else "a page", 401 if asks else None)
        return Failure(text[:_MAX_SAID])

    def _denied(self, step: Step) -> Failure | None:
        """A short answer that there is no such tool, from one that has never answered otherwise."""
        text, tool = step.tool_output, step.tool_called
        if tool is None or not isinstance(text, str) or not 0 < len(text) <= _MAX_DENIAL:
            return None
        if tool in self._worked or tool in self._tools:
            return None
        others = [name for name in self._worked if len(name) > _LEAST_NAME and name in text]
        listed = bool(others) and not _LISTING.search(tool)
        about = tool in text or len(text) < _FEW
        return Failure(text) if listed or (about and denies_tool(text, tool)) else None

    def standing(self, judge: Judged) -> list[finding.Finding]:
        """What stands at the end, most decisive first."""
        found = self._overflowed(judge)
        for kept in (self._asked, self._broken):
            found += sorted(kept.values(), key=lambda one: one.step or 0)[:1]
        alike = self._same_failure
        return [*found, *self._unmended(judge), *([] if alike is None else [alike])]

    def _overflowed(self, judge: Judged) -> list[finding.Finding]:
        """The last answer, where it is a few words that the window is full."""
        said = self._said or ""
        if not said or len(said) > _MAX_ERROR:
            return []
        verdict = judge(ErrorInfo("Exception", message=said))
        if verdict is None or not verdict.known:
            return []
        if verdict.rule.failure_type is not FailureType.CONTEXT_OVERFLOW:
            return []
        return [finding.Finding(finding.TOO_LONG, f"the answer is {said_by(said)}", self._at)]

    def _unmended(self, judge: Judged) -> list[finding.Finding]:
        """The failures that nothing has mended, the earliest first.

        A fault of the other side decides where the last call ended with it, or more than one tool did.
        That there is no such tool, and that the window is full, decides where it was the last tool called;
        that data have a wrong form too, where it was said twice and the answer admits a failure. Anything
        else may be what the answer is about, so it decides only where nothing came after it.
        """
        failures = dict(self._failed)
        if self._step is not None and _LEADS.match(self._said or ""):
            # What a client raised, given as the last answer.
            said = (self._said or "")[:_MAX_SAID]
            failure = Failure(said, retry_after_s=from_text(said))
            failures[""] = _Failed(self._at, self._step, failure, last=self._at, newest=failure)
        judged = [
            (failed, name, self._rule(failed, name, judge))
            for name, failed in sorted(failures.items(), key=lambda item: item[1].at)
        ]
        outside = sum(rule.failure_type is FailureType.EXTERNAL_FAULT for _, _, rule in judged)
        found: list[finding.Finding] = []
        for failed, name, rule in judged:
            match rule.failure_type:
                case FailureType.EXTERNAL_FAULT:
                    decides = name in (self._last, "") or outside > 1
                case FailureType.WRONG_TOOL_CALLED | FailureType.CONTEXT_OVERFLOW:
                    decides = name in (self._last, "")
                case FailureType.SCHEMA_MISMATCH if self._admits and (
                    failed.same or self._are_arguments(failed, name, judge)
                ):
                    decides = name in (self._last, "")
                case _:
                    decides = failed.last == self._at or name == ""
            said = f"the tool answered with an error: {said_by(failed.failure.text)}"
            least = rule if decides else rule._replace(confidence=min(rule.confidence, LATER))
            if rule.confidence == NOT_KNOWN and decides and self._is_passed_over(failed):
                least = rule._replace(confidence=finding.WEAK)
                said += ", and the answer does not speak of it"
            asked = failed.newest.retry_after_s
            found.append(finding.Finding(least, said, failed.at, name or None, retry_after_s=asked))
        return found

    @property
    def _admits(self) -> bool:
        return ADMITS.search((self._said or "")[:_MAX_READ].lower()) is not None

    def _is_passed_over(self, failed: _Failed) -> bool:
        """Whether the run ends with an answer that has neither a word of a failure nor one for failing.

        An answer with figures of its own may do without the call, a refusal may be the answer, and the
        errors of code that the agent wrote are about that code.
        """
        said, text = (self._said or "")[:_MAX_READ].lower(), failed.failure.text
        if not said or self._admitted > failed.at or len(text) > _MAX_DENIAL:
            return False
        if failed.failure.error.type_name not in _NO_NAMES:
            return False
        given = text_in(failed.step.tool_input).lower()
        if any(figure not in given for figure in _FIGURES.findall(said)):
            return False
        return set(_LONG_WORDS.findall(said)).isdisjoint(_LONG_WORDS.findall(text.lower()))

    def _are_arguments(self, failed: _Failed, name: str, judge: Judged) -> bool:
        """Whether the arguments were refused from the first failure to the newest."""
        first, last = self._rule(failed, name, judge), self._rule(failed, name, judge, newest=True)
        return first.cause is last.cause is Cause.INVALID_ARGUMENTS

    def _rule(self, failed: _Failed, name: str, judge: Judged, *, newest: bool = False) -> Rule:
        """What kind of failure a step ended with: by its structure, then by what the rules know."""
        failure, step = failed.newest if newest else failed.failure, failed.step
        own = bool(name) and name not in self._worked and name not in self._tools
        if own and (failure.code == _NO_METHOD or self._names_tools(failure, name)):
            return finding.UNKNOWN_TOOL._replace(confidence=finding.STRUCTURE)
        verdict = judge(failure.error)
        known: Rule | None = verdict.rule if verdict is not None and verdict.known else None
        if known is not None:
            return known._replace(
                name=finding.FAILED_RESULT.name, confidence=finding.FAILED_RESULT.confidence
            )
        if _exceeds(failure.text):
            return finding.TOO_LONG
        if name and self._names_argument(failure, step, name):
            return finding.ARGUMENTS._replace(confidence=WORDS)
        if not name and failure.error.status_code is None and _OVERFLOWS.search(failure.text):
            return finding.TOO_LONG
        return finding.FAILED_RESULT._replace(confidence=NOT_KNOWN)

    def _names_tools(self, failure: Failure, name: str) -> bool:
        """Whether a failure says that there is no such tool: in words, or by those there are."""
        text = failure.text
        if any(len(other) > _LEAST_NAME and other in text for other in self._worked):
            return True
        return denies_tool(text, name, self._tools)

    def _names_argument(self, failure: Failure, step: Step, name: str) -> bool:
        """Whether a failure speaks of an argument by its name, and not of the value it had."""
        text = failure.text[:_MAX_ERROR]
        given = step.tool_input.values() if isinstance(step.tool_input, Mapping) else ()
        if any(isinstance(value, str) and len(value) > 2 and value in text for value in given):
            return False
        named = self._keys.get(name, set()).intersection(_WORDS.findall(text))
        return bool(named) and (
            _OF_ARGUMENTS.search(text) is not None
            or text.startswith(tuple(f"{key} " for key in named))
            or any(map(is_identifier, named))
        )


def is_identifier(name: str) -> bool:
    """Whether a name is no ordinary word: with a mark, a digit, or a capital within."""
    return re.search(r"[_\W\d]|[a-z][A-Z]", name) is not None


NOT_KNOWN = 0.3
"""The confidence that a failure of no known kind is the other side's."""
LATER = 0.5
"""The confidence in a failure after which the run went on with other tools."""
_NO_METHOD = "-32601"
"""JSON-RPC: method not found."""
_MAX_DENIAL = 300
_LEAST_NAME = 3
_LISTING = Pattern(r"(?i:tool|help|function|command|capabilit)")
_NOUN = r"(?:tool|function|method|action|command|operation|capability|plugin)s?"
_CALLED = r"(?: ?(?:name|named|called|available|type|with (?:the )?name)){0,2}:? "
_NAME = r"['\"`\u201c]?(?P<{0}>[\w.:/-]{{1,80}})['\"`\u201d]?"
_SAID_END = (
    r"(?= ?(?:$|[.,;:!)\]}'\"\n]|(?:in|by|on|for|among) "
    r"(?:(?:the|this|that|my|any|your|our|available) ){0,2}"
    r"(?:tools?|toolbox|registry|manifest|agent|server|environment|list|toolset)\b))"
)
_NO_TOOL = Pattern(
    r"(?i)\b(?:(?:unknown|unregistered|unrecogni[sz]ed|undefined|nonexistent|unsupported|invalid|no such|"
    r"no|not an? (?:known|valid|available|registered)|(?:not|n't|unable to) (?:find|have|know)"
    rf"(?: an?| the| any)?) {_NOUN}(?:{_CALLED}{_NAME.format('a')}|{_SAID_END})"
    rf"|{_NOUN}{_CALLED}?(?:{_NAME.format('b')} )?(?:(?:is|was|are|does|do|has|could) ?)?(?:not|n't) "
    rf"(?:(?:yet|been|currently|be|a|an) ){{0,2}}"
    rf"(?:found|exist|available|registered|defined|known|recogni[sz]ed|supported|implemented|"
    rf"offered|provided|valid|among|one of|in|part of)\b(?(b)|{_SAID_END}))"
    rf"|-32601\b|\bmethod_?not_?found\b"
)


def denies_tool(text: str, tool: str, tools: Collection[str] = ()) -> bool:
    """Whether a text says that there is no such tool: by its name, or with nothing else in front.

    tools: those that exist, which the text may list.
    """
    for hit in _NO_TOOL.finditer(text):
        name = hit["a"] or hit["b"]
        if name is not None:
            if _same_name(name, tool):
                return True
            continue
        about = set(_WORDS.findall(text[: hit.start()].replace(tool, "").lower()))
        listed = _IDENTIFIER.findall(text)
        if about <= _BEFORE_DENIAL and all(each == tool or each in tools for each in listed):
            return True
    return False


_BEFORE_DENIAL = frozenset("error exception mcp tool code the there is this sorry".split())


def _same_name(one: str, other: str) -> bool:
    """Whether these name one tool, with or without a namespace before it."""
    one, other = one.rstrip(".:").lower(), other.lower()
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    return longer == shorter or re.search(rf"(?:__|[./:]){re.escape(shorter)}$", longer) is not None


_IDENTIFIER = Pattern(r"\b[a-z]+(?:_[a-z0-9]+)+\b|\b[a-z]+[A-Z]\w+|(?<=['\"`])[\w.-]+(?=['\"`])")
_WORDS = Pattern(r"[A-Za-z_]\w*")
_OF_ARGUMENTS = Pattern(
    r"(?i)\b(?:arg(?:ument)?s?|param(?:eter)?s?|fields?|propert(?:y|ies)|keys?|keywords?|missing|required?s?|"
    r"mandatory|unexpected|unrecogni[sz]ed|expect(?:s|ed)|must|should|invalid|type|format)\b"
)
"""Words about arguments: without one a name in a message may be an ordinary word."""
_FIGURES = Pattern(r"\d[\d.,]{0,20}\d")
_NO_NAMES = ("Exception", "Error")
"""The classes of failures whose text names none."""
_LONG_WORDS = Pattern(r"[^\W_]{4,}")
ADMITS = Pattern(
    r"\b(?:not|cannot|unable|unfortunately|sorry|fail\w{0,4}|errors?|problems?|issues?|unavailable|"
    r"time[ds]? ?out|(?:try|tried|once) again|later|without|unless|trouble|reject\w{0,3}|denied|"
    r"refused|stop\w{0,4})\b"
    r"|n['\u2019]t\b"
)
"""Words by which an answer admits that something went wrong."""
_OVERFLOWS = Pattern(
    r"(?i)\b(?:context|prompt|window|conversation|history|transcript|input)\b[^.;\n]{0,20}"
    r"\b(?:too (?:long|large|big|much)|over(?:flow\w{0,3}|run)|longer|larger|truncat\w{1,4}|"
    r"trimmed|used up)\b"
)
"""Says that the conversation does not fit, as one statement."""
_TOKENS = Pattern(r"(?i)(?<!output )(?<!completion )(?<!max[ _])\btokens?\b(?! per )")
_LARGE = Pattern(r"\d{1,3}(?:[,. ]\d{3})+\b|\d{4,}")
_PAIR = 2


def _exceeds(text: str) -> bool:
    """Whether a failure counts tokens and names a limit that is less."""
    if len(text) > _MAX_ERROR or not _TOKENS.search(text):
        return False
    counts = [int(re.sub(r"\D", "", number)) for number in _LARGE.findall(text)]
    return len(counts) == _PAIR and counts[0] != counts[1]


# --- an error as a result --------------------------------------------------------------------

PAGE, _MESSAGE, _OTHER = "page", "message", "other"
_SIGN_IN = Pattern(r"<form\b[^\0]{0,2000}password|type\s?=\s?['\"]password", re.IGNORECASE)


def shape_of(output: Any) -> str:
    """Whether a result is a page, an object with a message alone, or anything else."""
    if isinstance(output, str):
        if is_page(output):
            return PAGE
        if len(output) <= _MAX_ERROR:
            output = parsed(output)
    if isinstance(output, Mapping) and len(output) == 1:
        ((key, value),) = output.items()
        return _MESSAGE if key in _MESSAGE_KEYS and isinstance(value, str) else _OTHER
    return _OTHER


def _content(output: Any) -> str:
    """The text of a result that is one, or that comes as content; else empty."""
    if isinstance(output, str):
        return output
    if isinstance(output, Mapping) and ("content" in output or "text" in output):
        inner = output.get("text", output.get("content"))
        first: Any = inner[0] if isinstance(inner, list) and inner else inner
        text = first.get("text") if isinstance(first, Mapping) else first
        return text if isinstance(text, str) else ""
    return ""


def parsed(value: Any) -> Any:
    """A value, read where it is the JSON text of an object or a list."""
    if not isinstance(value, str) or value[:1] not in ("{", "[") or len(value) > _MAX_JSON:
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def read(value: Any) -> Any:
    """A value, read where it is text that writes an object or a list down, as JSON or as Python does."""
    if not isinstance(value, str):
        return value
    found = parsed(value.strip())
    if isinstance(found, str) and found[:2] in ("{'", "[{") and len(found) <= _MAX_READ:
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return ast.literal_eval(found)
    return found


def text_in(value: Any) -> str:
    """A JSON value as text, cut."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value[:_MAX_READ]
    return json.dumps(value, ensure_ascii=False, default=str)[:_MAX_READ]


def text_of(output: Any) -> str | None:
    """The part of a result that is read; None where it has no text."""
    if isinstance(output, str):
        if len(output) <= _MAX_READ:
            return output
        return f"{output[:_MAX_READ]}\n{output[-_MAX_TAIL:]}"
    if isinstance(output, Mapping):
        inner = output.get("text", output.get("content"))
        if isinstance(inner, str | list):
            return text_of(inner)
        found = [value for value in list(output.values())[:20] if isinstance(value, str)]
        return text_of("\n".join(value[:_MAX_READ] for value in found)) if found else None
    if isinstance(output, list) and output and isinstance(output[0], Mapping | str):
        return text_of(output[0])
    return None


def failure_of(step: Step) -> Failure | None:
    """The failure that a step tells of, where its result is an error and nothing else; else None."""
    if step.error:
        told = _in_json(step.error) or _in_page(step.error) or Failure(step.error)
        return told._replace(raised=step.exception_type)
    output = step.tool_output
    text = text_of(output)
    if isinstance(output, Mapping):
        said = _in_fields(output)
        if said is None and (output.get("isError") is True or output.get("is_error") is True):
            said = Failure((text or "error")[:_MAX_SAID])
        if said is not None:
            return said
    read = _content(output) if isinstance(output, Mapping) else text
    if read and _LEADS.match(read):
        return Failure(read[:_MAX_SAID])
    if text and is_refusal(text):
        return Failure(text)
    if (
        text is None
        or text.lstrip()[:1] not in ("{", "<")
        or RECORDS.search(step.tool_called or "")
    ):
        return None
    # A list is how content comes in parts: the first text of it is what the model reads first.
    return _in_json(output if isinstance(output, str) else text) or _in_page(text)


def is_refusal(text: str) -> bool:
    """Whether a result is a few words that the call was not approved."""
    return len(text) <= 2 * _MAX_DENIAL and _REFUSAL.search(normal(text[:_MAX_DENIAL])) is not None


_REFUSAL = Pattern(rf"(?<!\w)(?:{REFUSAL})(?!\w)")


def gave(step: Step) -> bool:
    """Whether a step's tool gave something that is no failure: then it exists, whatever is declared."""
    output = step.tool_output
    if step.error is not None or denies(output) or failure_of(step) is not None:
        return False
    return not (isinstance(output, Mapping) and False in output.values())


_STATUS = Pattern(r"[45]\d\d")
_FEW = 80
_DENIES = Pattern(
    r"\b(?:not|no(?!\.? ?\d)|none|unknown|invalid|without|missing|nothing|nobody|"
    r"nicht|nichts|kein\w{0,2}|pas|aucune?)\b"
    r"|n't\b|\A(?:0|zero) [a-z]",
    re.IGNORECASE,
)


def denies(output: Any) -> bool:
    """Whether a result is nothing, a few words with a negation, or some more that begin with one."""
    if output is None or output in ("", [], {}):
        return True
    text = output if isinstance(output, str) else ""
    if text in ("[]", "{}", "null") or (len(text) < _FEW and _DENIES.search(text)):
        return True
    return len(text) < _MAX_DENIAL and _DENIES.match(text) is not None


RECORDS = Pattern(r"(?i:(?:^|[\W_])(?:file|log|cat|grep|tail|head|diff|doc)s?(?:$|[\W_]))")
"""Tools that show what was written down: an object or a page there is what somebody kept."""
_LEADS = Pattern(
    r"[\s\[<*(\u2502\u2577]{0,6}(?:"
    r"(?i:tool |api |request |execution |mcp )?(?i:errors?|failed|failure|exception)\b\s{0,2}"
    r"[:\-\]>\u2014*)]"
    r"|(?:fatal|error|npm ERR!|E|panic)(?:: | code )\S"
    r"|(?i:unknown (?:tool|function|action) ?(?:name ?)?[:'\"`])"
    r"|(?i:(?:the )?(?:tool|function)(?: ['\"`]?[\w.-]{1,60}['\"`]?)? (?:is |was |does )?not "
    r"(?:found|exist|available|executed|run|called))\b"
    r"|\d{1,3} validation errors? for \w"
    r"|(?i:(?:invalid|malformed|(?:failed|unable) to parse|could not parse) (?:the )?(?:json )?"
    r"(?:tool |function )?(?:arguments?|parameters?|input)\b)"
    r"|(?i:input validation error\b|error (?:invoking|executing|calling) (?:the )?tool\b)"
    r"|(?i:blocked|denied|rejected|forbidden) by \w"
    r"|An error occurred \(\w{1,60}\) when calling"
    r"|(?:[a-z_]\w{0,40}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception|Timeout)\b\s{0,2}[:(]"
    r"|Traceback \(most recent call last\)"
    r"|(?i:http(?:/[\d.]{1,3}| error| status(?: code)?)?)[ :]{1,3}[45]\d\d\b"
    r"|[45]\d\d (?:Too Many|Internal|Bad Gateway|Service Un|Gateway Time|Unauthor|Forbidden)"
    r"|(?i:(?:api )?rate limit (?:exceeded|reached)|service (?:temporarily )?unavailable|"
    r"(?:request|connection|operation) (?:timed out|refused|reset))"
    r"|Error code: [45]\d\d\b"
    r"|exit(?: code| status)? [1-9]\d{0,2}\b"
    r")"
)
"""How programs begin what is nothing but an error."""
_NAMED = Pattern(
    r"\s{0,4}(?:(?i:error)\s{0,2}[:\-]\s{0,2})?(?:[a-z_]\w{0,40}\.){0,6}"
    r"(?P<name>[A-Z]\w{0,60}(?:Error|Exception|Timeout))(?:\s{0,2}: (?P<said>.*)|\Z)",
    re.DOTALL,
)


_ERROR_KEYS = ("error", "Error", "errorMessage", "error_message", "fault")
_MESSAGE_KEYS = ("message", "detail", "title", "reason", "description", "msg", "why", "cause")
_STATUS_KEYS = ("status", "statusCode", "status_code", "http_status")
_OUTCOMES = ("ok", "success", "succeeded")
_NO_SUCCESS = frozenset({"error", "failed", "failure", "fail"})
_FEW_FIELDS = 4
_WORTH_PARSING = Pattern(
    r'"(?i:error_?(?:message)?|fault|failed|(?:http_?)?status_?(?:code)?|code?|ok|success|succeeded|is_?error)"\s{0,4}:'
)


def _in_json(text: str) -> Failure | None:
    """The failure in a result that is an object as JSON text."""
    if not _WORTH_PARSING.search(text[:_MAX_READ]):
        return None
    found = parsed(text)
    return _in_fields(found) if isinstance(found, dict) else None


def _in_fields(result: Mapping[Any, Any]) -> Failure | None:
    said = next((value for key in _ERROR_KEYS if (value := result.get(key))), None)
    if said is None and type(number := result.get("code")) is int and number < 0:
        said = result  # the error of JSON-RPC by itself
    if said is None:
        status = _status(result, _STATUS_KEYS)
        if status is None and len(result) <= _FEW_FIELDS and _message(result):
            status = _status(
                result, ("code", "cod")
            )  # of a thing that has more fields it is the thing's
        failed = any(result.get(key) is False for key in _OUTCOMES)
        if len(result) <= _FEW_FIELDS and _LEADS.match(str(result.get("message"))):
            failed = True
        if status is None and not failed and str(result.get("status")).lower() not in _NO_SUCCESS:
            return None
        # A number alone may be the answer; with a message beside it, it is the answer's own status.
        words = _message(result) or text_in(result.get("errors") or None)
        bare = all(not value for key, value in result.items() if key not in _STATUS_KEYS)
        if not words and status is not None and bare:
            words = f"status {status}"
        return Failure(words[:_MAX_SAID], status) if words else None
    inner: Mapping[Any, Any] = said if isinstance(said, Mapping) else {}
    status = _status(inner, (*_STATUS_KEYS, "code")) or _status(result, (*_STATUS_KEYS, "code"))
    code = inner.get("code", inner.get("type")) if inner else result.get("code")
    if type(code) is int and code < 0:
        code = str(code)  # JSON-RPC
    if not isinstance(code, str):
        code = inner.get("status", result.get("status"))  # as gRPC's `RESOURCE_EXHAUSTED`
        code = code if isinstance(code, str) and code.isupper() else None
    if code is None and isinstance(said, str) and _CODE_WORD.fullmatch(said):
        code = said  # as OAuth's `invalid_token`
    words = str(inner.get("message", inner.get("faultstring", said)))
    if not inner:
        more = _message(result)
        words = more if said is True and more else f"{words}: {more}" if more else words
    return Failure(
        words[:_MAX_SAID], status, code if code is None or len(code) <= _MAX_CODE else None
    )


_CODE_WORD = Pattern(r"[a-z]{2,30}(?:_[a-z]{2,30}){1,4}")


def _message(result: Mapping[Any, Any]) -> str | None:
    found = (result.get(key) for key in _MESSAGE_KEYS)
    return next((value for value in found if isinstance(value, str) and value), None)


_FIRST, _LAST = 400, 599


def _status(result: Mapping[Any, Any], keys: tuple[str, ...]) -> int | None:
    """The first status of an HTTP error under one of these keys."""
    for key in keys:
        value = result.get(key)
        if isinstance(value, str) and len(value) == len("503") and value.isdecimal():
            value = int(value)
        if type(value) is int and _FIRST <= value <= _LAST:
            return value
    return None


def _in_page(text: str) -> Failure | None:
    """The failure in a page that a server or a proxy shows in place of an answer.

    Its title is a status or a status's name and nothing else; that of a page about one says more.
    """
    if not is_page(text):
        return None
    for at, title in enumerate(_TITLE.finditer(text[:_MAX_READ])):
        shown = _SHOWN.fullmatch(" ".join(title["said"].split()))
        # A page with a title of its own may be about an error; that it is closed it says below it.
        if shown is not None and (at == 0 or shown["closed"]):
            status = "503" if shown["closed"] else shown["status"]
            return Failure(shown[0], int(status) if status else None)
    return None


_TITLE = Pattern(
    r"<(?P<tag>title|h1)\b[^>\n]{0,100}>(?P<said>[^<]{1,160})</(?P=tag)>", re.IGNORECASE
)
_SERVER = (
    r"(?:internal )?server error|bad gateway|service (?:temporarily )?unavailable|"
    r"gateway time-?out|too many requests"
)
_ANY = (
    r"bad request|unauthorized|authorization required|forbidden|(?:page )?not found|"
    r"method not allowed|request time-?out|(?:the )?connection timed out|a timeout occurred|"
    r"(?:the )?(?:web server|origin) is (?:down|unreachable)|web server is returning an unknown error|"
    r"backend [a-z ]{1,30}"
)
_CLOSED = (
    r"(?:(?:down|closed|offline) for |under(?:going)? )?(?:(?:planned|scheduled|emergency|site|system) )?"
    r"(?:maintenance|downtime|outage)(?: mode| page| in progress)?"
    r"|we(?:'|\u2019| wi)ll be (?:right |shortly )?back(?: soon| shortly)?"
    r"|(?:site |system |currently |temporarily ){0,2}(?:offline|out of service|down)"
)
_SHOWN = Pattern(
    rf"(?:[\w.-]{{1,80}} \| )?(?:(?:http )?error:? |http(?: status)? )?"
    rf"(?:(?P<status>[45]\d\d)(?:[ :\u2013\u2014-]{{1,3}}(?:error|{_SERVER}|{_ANY}))?|{_SERVER}"
    rf"|(?:[\w ]{{1,40}} [-:|\u2013\u2014] )?(?P<closed>{_CLOSED}))[.!]?",
    re.IGNORECASE,
)


# --- a result that is still to come ------------------------------------------------------------

_STATES = frozenset({"status", "state", "phase"})
_DONE = frozenset({
    "done", "completed", "complete", "finished", "ready",
})  # fmt: skip
_UNDONE = frozenset({
    "pending", "queued", "enqueued", "running", "started", "starting", "in progress", "inprogress",
    "processing", "waiting", "scheduled", "submitted", "executing", "creating", "updating",
    "provisioning", "building", "initializing",
})  # fmt: skip
_MAX_STATE = 40
_MAX_DEPTH = 5
_MAX_ITEMS = 50
_WORD = Pattern(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def names(key: Any) -> list[str]:
    """The words of a key or a code, in small letters: `JobState.IN_PROGRESS` has four."""
    return [word.lower() for word in _WORD.findall(str(key)[: 2 * _MAX_STATE])]


def is_pending(result: Any) -> bool:
    """Whether a result has a field that says that something is pending, queued, running or in progress.

    The field may lie within others, and all may be JSON text. Words in prose say nothing.
    """
    return _is_pending(result, _MAX_DEPTH)


def _is_pending(value: Any, depth: int) -> bool:
    value = read(value)
    if not depth or not isinstance(value, dict | list):
        return False
    items = list(value.values() if isinstance(value, dict) else value)[:_MAX_ITEMS]
    if isinstance(value, dict) and any(_says_undone(*item) for item in value.items()):
        return True
    return any(_is_pending(item, depth - 1) for item in items)


def _says_undone(key: Any, value: Any) -> bool:
    words = names(key)
    if not words:
        return False
    if words == ["conclusion"]:
        return value is None
    if value is False:
        return words[-1] in _DONE and words[:-1] in ([], ["is"], ["operation"])
    if not isinstance(value, str) or len(value) > _MAX_STATE or words[-1] not in _STATES:
        return False
    said = " ".join(names(value))
    # A code of several words is one without spaces, as `JOB_STATE_RUNNING`.
    return said in _UNDONE or (
        " " not in value and any(said.endswith(f" {word}") for word in _UNDONE)
    )


# --- what else a result may be ---------------------------------------------------------------

_VERB = (
    r"(?:re-?try|re-?peat|re-?run|re-?send|re-?submit|re-?issue|re-?do|try|call|run|send|submit|"
    r"issue|make|invoke|execute|perform|use|ask)"
)
_CALL = (
    r"(?:calls?|query|queries|requests?|arguments?|parameters?|inputs?|commands?|tool|"
    r"function|operation|search|lookup|step|action)"
)
_SAMENESS = ("same", "identical", "again", "once more", "one more", "anew", "unchanged", "verbatim")
_SAME = r"(?:(?:exact(?:ly)?|very) (?:the )?same|(?:the )?same exact|identical|the same)"
_AGAIN = Pattern(
    rf"\b{_VERB}\b[^.\n]{{0,30}}\b{_SAME}\b[^.\n]{{0,20}}\b{_CALL}\b"
    rf"|\b{_VERB}\b[^.\n]{{0,20}}\b(?:again|once more)\b[^.\n]{{0,20}}\bwith (?:the )?"
    rf"(?:exact )?(?:same|identical)\b"
    rf"|(?:^|[.;:,!]|\b(?:please|to|then|must|should))\s{{0,3}}{_VERB}\b(?=[^.;\n]{{0,60}}"
    rf"\b(?:again|once more|one more time|anew)\b)"
    rf"[^.;\n]{{0,60}}\b(?:same|identical(?:ly)?|unchanged|exactly|precisely|verbatim|as it is|"
    rf"without (?:any )?(?:change|changing))"
)
"""A demand for exactly the call that was answered, once more."""


def _asks_again(text: str) -> bool:
    low = text.lower()
    return any(word in low for word in _SAMENESS) and _AGAIN.search(low) is not None


_CUT_MARKS = Pattern(
    r"\u2026|\.\.\.|truncat|omitted|trimmed|elided|<cut|\[cut|more (?:items|rows|char)"
)
_ROUND = 50
_JSON = Pattern(
    r'\{\s*"(?:[^"\\\n]|\\.){1,200}"\s*:\s*(?:["\[{\d-]|true|false|null)'
    r'|\[\s*(?:\{\s*"|\[\s*[\[{"\d]|"[^"\n]*"\s*,)'
)
"""How JSON begins."""


def is_broken_json(text: str) -> bool:
    """Whether a text begins as JSON and is none, by the tool's doing.

    Not judged are texts over 20,000 characters, texts that were visibly shortened, and those that
    break off at a round length: there whoever wrote the record down has cut it.
    """
    if text[:1] not in ("{", "[") or len(text) > _MAX_JSON or not _JSON.match(text):
        return False
    try:
        json.loads(text)
    except RecursionError:
        return False
    except json.JSONDecodeError as problem:
        at = problem.pos
        if _CUT_MARKS.search(text[max(0, at - 60) : at + 60].lower()):
            return False
        ended = at >= len(text.rstrip()) - 1 or problem.msg.startswith("Unterminated")
        if ended and len(text) % _ROUND == 0:
            return False
        return "Extra data" not in problem.msg or text[at:].lstrip()[:1] in _CLOSING
    return False


_CLOSING = ("}", "]")


# --- how the last answer ended ---------------------------------------------------------------

_REASONS = ("finish_reason", "stop_reason", "finishReason", "stopReason", "done_reason")
_TOO_LONG = frozenset({"length", "max_tokens", "max_output_tokens", "model_length", "token_limit"})
_FILTERS = frozenset({
    "content_filter", "content_filtered", "safety", "prohibited_content", "blocklist", "recitation",
    "refusal", "spii",
})  # fmt: skip


def ended(step: Step, at: int) -> finding.Finding | None:
    """What a model gave as the reason for its end, where that was no end of its own."""
    if not step.metadata:
        return None
    for key in _REASONS:
        reason = step.metadata.get(key)
        if isinstance(reason, str):
            said = f"the model's last answer ended with {key} {said_by(reason)}"
            if reason.lower() in _TOO_LONG:
                return finding.Finding(finding.CUT_OFF, said, at)
            if reason.lower() in _FILTERS:
                return finding.Finding(finding.FILTERED, said, at)
    return None


def cut_short(steps: Sequence[Step], task: str) -> finding.Finding | None:
    """A last answer that begins as JSON and is none, where the task asks for JSON."""
    at = len(steps) - 1
    said = steps[at].llm_output if steps[at].tool_called is None else None
    if not said or "json" not in task.lower():
        return None
    begins = min((place for mark in "{[" if (place := said.find(mark)) >= 0), default=-1)
    text = said[begins:].partition("```")[0].rstrip() if begins >= 0 else ""
    if not is_broken_json(text):
        return None
    return finding.Finding(finding.CUT_SHORT, f"the answer is no valid JSON: {said_by(text)}", at)
