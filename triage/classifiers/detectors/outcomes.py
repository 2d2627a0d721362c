"""A run's answer, held against what its calls came to.

Decided by structure alone: exceptions, status fields, counts, lists of failures, forms of results. In
doubt an answer is right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from triage.core.messages.neutral import STAND_INS
from triage.core.patterns import Pattern
from triage.core.steps import Step
from triage.core.taxonomy import Effect, names_a_change

from .arguments import gives
from .results import PAGE, names, read, shape_of

_MAX_DEPTH = 5
_MAX_ITEMS = 1_000
_MAX_TEXT = 20_000
_FEW_TOKENS = 200
_SAID = 300

_FAILURES = frozenset({
    "failed", "failure", "failures", "error", "errors", "rejected", "unprocessed", "insert errors",
})  # fmt: skip
_COUNTING = frozenset({
    "count", "counts", "total", "num", "number", "of", "n", "item", "items", "entry", "entries", "id",
    "ids", "record", "records", "row", "rows", "list", "key", "keys",
})  # fmt: skip
"""Words beside that of a failure which leave its meaning as it is."""
_FAILED = frozenset({
    "failed", "failure", "fail", "error", "errored", "partial", "partial failure", "partially failed",
    "partial success", "incomplete",
})  # fmt: skip
_STATUS = frozenset({"status", "state", "status code", "http status", "http status code", "code"})
_SUCCESS = frozenset({"ok", "success", "succeeded", "successful"})
_NONE = frozenset({"", "none", "null", "no", "ok", "0", "false"})
_NEVER_BEGUN = frozenset({"UnknownTool", "InvalidArguments", "CallDenied"})
"""Errors of calls that were refused before they began."""
_REFUSALS = frozenset({"content_filter", "refusal", "safety", "max_tokens", "length"})
_ENDINGS = ("finish_reason", "stop_reason")
_FIRST_STATUS, _LAST_STATUS = 400, 599


class Omitted(NamedTuple):
    """A failure that an answer does not tell. step: position of its call. text: what the record shows."""

    step: int
    tool: str
    text: str


class _Outcome(NamedTuple):
    """A failure. said: as the record has it. told: what an answer may tell it by. whole: nothing worked."""

    said: str
    told: tuple[Any, ...]
    whole: bool = True


def omitted(steps: Sequence[Step], answer: Any, tools: Mapping[str, Any]) -> Omitted | None:
    """Return the failure that the record of a finished attempt shows and its answer does not tell.

    None as well for an answer that is empty, or that may tell it. tools: the manifest.
    """
    told = _Told(answer)
    if told.vague:
        return None
    # Words of the model alone may have been for the user, too.
    said = [(at, _Told(step.llm_output)) for at, step in enumerate(steps) if _is_said(step)]
    calls = [
        (at, step)
        for at, step in enumerate(steps)
        if step.tool_called is not None and step.exception_type not in _NEVER_BEGUN
    ]
    outcomes = {at: _outcome(step) for at, step in calls}
    found = (
        _every(calls, outcomes)
        or _last_change(calls, outcomes)
        or _listed(calls, outcomes)
        or _page(calls, tools)
    )
    for at, outcome in found:
        step = steps[at]
        later = [told, *(words for place, words in said if place > at)]
        if any(words.vague or words.tells(step, outcome) for words in later):
            return None
    if not found:
        return None
    at, outcome = found[0]
    tool = steps[at].tool_called or ""
    return Omitted(at, tool, outcome.said)


def _is_said(step: Step) -> bool:
    return step.tool_called is None and step.tool_output is None and bool(step.llm_output)


_Calls = list[tuple[int, Step]]
_Found = list[tuple[int, _Outcome]]


def _every(calls: _Calls, outcomes: Mapping[int, _Outcome | None]) -> _Found:
    """The calls, where all of them failed as a whole."""
    found = [(at, outcome) for at, outcome in outcomes.items() if outcome and outcome.whole]
    return found if len(found) == len(calls) else []


def _last_change(calls: _Calls, outcomes: Mapping[int, _Outcome | None]) -> _Found:
    """The last call that was to change something, where it failed and nothing looked it up since."""
    at, step = next(((at, step) for at, step in reversed(calls) if changes(step)), (-1, None))
    outcome = outcomes.get(at)
    if step is None or outcome is None or not outcome.whole:
        return []
    about = _values(step.tool_input)
    later = [other for place, other in calls if place > at]
    if any(about & (_values(other.tool_input) | _values(other.tool_output)) for other in later):
        return []
    return [(at, outcome)]


def _listed(calls: _Calls, outcomes: Mapping[int, _Outcome | None]) -> _Found:
    """The changes of which a part failed, and the reports of others that gave none, not mended since."""
    found = []
    for at, step in calls:
        outcome = outcomes[at]
        partly = outcome is not None and not outcome.whole and changes(step)
        refused = _refusal(read(step.tool_output)) is not None
        if outcome is not None and (partly or refused):
            later = [(other, outcomes[place]) for place, other in calls if place > at]
            if not _mended(step, outcome, later):
                found.append((at, outcome))
    return found


def _mended(step: Step, outcome: _Outcome, later: list[tuple[Step, _Outcome | None]]) -> bool:
    """Whether later calls worked that may have done what failed: of the tool, or about a part of it."""
    failed = {_plain(item) for item in outcome.told} - {""}
    worked = [other for other, came in later if came is None and changes(other)]
    again = [
        other for other, came in later if came is None and other.tool_called == step.tool_called
    ]
    if again or any(failed & _values(other.tool_input) for other in worked):
        return True
    counts = [item for item in outcome.told if isinstance(item, int)]
    return len(failed) == len(counts) == 1 and len(worked) >= counts[0]


_TITLE = Pattern(r"(?i)<(?:title|h1)\b[^>]{0,100}>([^<]{1,200})")
_NUMBER = Pattern(r"\s*-?\d[\d.,]*\s*")


def _page(calls: _Calls, tools: Mapping[str, Any]) -> _Found:
    """The last page of HTML of a tool that gave data before, or declares it."""
    data: set[str] = set()
    found: dict[str, tuple[int, _Outcome]] = {}
    for at, step in calls:
        tool, output = step.tool_called or "", step.tool_output
        if output is None or step.error is not None:
            continue
        if shape_of(output) != PAGE:
            if not isinstance(read(output), str) or _NUMBER.fullmatch(output):
                data.add(tool)
            found.pop(tool, None)
            continue
        # A tool that is given addresses gives whatever stands there.
        fetches = any("/" in value for value in _values(step.tool_input))
        if not fetches and (tool in data or gives(tools.get(tool))):
            title = " ".join(_TITLE.findall(output[:_MAX_TEXT]))[:_SAID]
            said = f"a page of HTML where it gives data: {title}"
            found[tool] = (at, _Outcome(said, (title,)))
    return list(found.values())


_GENERIC = frozenset({
    "ask", "call", "check", "click", "eval", "evaluate", "exec", "execute", "go", "invoke", "open",
    "perform", "process", "run",
})  # fmt: skip
"""Verbs of tools that may do anything, or look at something."""


def changes(step: Step) -> bool:
    """Whether a call was to change something: as declared, else where its tool's name begins so."""
    effect = step.effect
    if effect is not None and effect != Effect.UNKNOWN:
        return effect != Effect.READ
    verb, *more = names(re.split(r"__|[.:/]", step.tool_called or "")[-1]) or [""]
    return bool(more) and verb not in _GENERIC and names_a_change(verb)


# --- what a call came to ---------------------------------------------------------------------------


def _outcome(step: Step) -> _Outcome | None:
    """What a call came to; None where nothing says that any of it failed."""
    if step.error in STAND_INS:
        return None
    if step.error is not None:
        kind = step.exception_type or ""
        said = f"{kind}: {step.error}" if kind else step.error
        return _Outcome(said, (step.error, kind))
    result = read(step.tool_output)
    if isinstance(result, Mapping) and isinstance(result.get("content"), list):
        if result.get("isError") is True or result.get("is_error") is True:
            return _Outcome(_short(result["content"]), tuple(_leaves(result)))
        texts = [part.get("text") for part in result["content"] if isinstance(part, Mapping)]
        if len(texts) == 1 and isinstance(texts[0], str):
            result = read(texts[0])
    if isinstance(result, Mapping):
        whole = _refusal(result) or _whole(result, of_change=changes(step))
        if whole is not None:
            return _Outcome(whole, tuple(_leaves(result)))
    parts = list(_parts(result, _MAX_DEPTH))
    if not parts or not changes(step):
        return None
    told = tuple(item for part in parts for item in part)
    return _Outcome(_short(step.tool_output), told, whole=False)


def _refusal(result: Any) -> str | None:
    """How another model's answer ended, where it is none."""
    if not isinstance(result, Mapping):
        return None
    if result.get("refusal"):
        return f"refusal: {_short(result['refusal'])}"
    for key in _ENDINGS:
        if result.get(key) in _REFUSALS:
            return f"{key}: {result[key]}"
    if isinstance(result.get("incomplete_details"), Mapping):
        return f"incomplete: {_short(result['incomplete_details'])}"
    return None


def _whole(result: Mapping[Any, Any], *, of_change: bool) -> str | None:
    """What an object says of the call as a whole, where that failed.

    A status of what was read is that of the thing, unless it is one of HTTP or an error stands beside it.
    """
    fields = {" ".join(names(key)): value for key, value in result.items()}
    if any(value is False for key, value in fields.items() if key in _SUCCESS):
        return _short(result)
    error = fields.get("error")
    if isinstance(error, Mapping | str) and error and str(error).lower() not in _NONE:
        return _short(result)
    for key in ("exit code", "exitcode", "returncode", "return code"):
        if type(fields.get(key)) is int and fields[key] != 0:
            return _short(result)
    nested = (
        fields,
        *(value for value in fields.values() if isinstance(value, Mapping) and len(fields) < 4),
    )
    for one in nested:
        if any(_is_http(key, value) for key, value in one.items()) and not _has_parts(result):
            return _short(result)
    status = fields.get("status", fields.get("state"))
    if of_change and isinstance(status, str) and " ".join(names(status)) in _FAILED:
        return None if _has_parts(result) or "partial" in status.lower() else _short(result)
    return None


def _has_parts(result: Mapping[Any, Any]) -> bool:
    return any(isinstance(value, list) and value for value in result.values())


def _is_http(key: Any, value: Any) -> bool:
    words = " ".join(names(key))
    return (
        type(value) is int
        and _FIRST_STATUS <= value <= _LAST_STATUS
        and (words in _STATUS or words.endswith("status code"))
        and words != "code"
    )


def _parts(value: Any, depth: int) -> Iterator[list[Any]]:
    """What failed of a whole, each with what an answer may tell it by."""
    if not depth or not isinstance(value, Mapping | list):
        return
    if isinstance(value, list):
        for item in value[:_MAX_ITEMS]:
            if isinstance(item, Mapping) and _item_failed(item):
                yield list(_leaves(item))
            else:
                yield from _parts(item, depth - 1)
        return
    status = value.get("status")
    if isinstance(status, str) and " ".join(names(status)) in _FAILED:
        yield list(_leaves(value))
    for key, item in value.items():
        if _is_of_failures(names(key)):
            told = _amount(item)
            if told is not None:
                yield [*told, *_beside(value, item)]
                continue
        yield from _parts(item, depth - 1)


def _is_of_failures(words: list[str]) -> bool:
    kept = [word for word in words if word not in _COUNTING]
    return " ".join(kept) in _FAILURES


def _amount(value: Any) -> list[Any] | None:
    """What a field of failures holds; None where it holds none."""
    if isinstance(value, bool):
        return [] if value else None
    if isinstance(value, int):
        return [value] if value > 0 else None
    if isinstance(value, list | Mapping) and value:
        return [len(value), *_leaves(value)]
    return None


def _beside(whole: Mapping[Any, Any], failed: Any) -> list[Any]:
    """The counts beside a count or a list of failures, but for their sum: so many worked."""
    size = (
        failed if type(failed) is int else len(failed) if isinstance(failed, list | Mapping) else 0
    )
    counts = [value for value in whole.values() if type(value) is int and value > 0]
    sums = {size + count for count in counts}
    return [count for count in counts if count not in sums]


def _item_failed(item: Mapping[Any, Any]) -> bool:
    fields = {" ".join(names(key)): value for key, value in item.items()}
    if any(value is False for key, value in fields.items() if key in _SUCCESS):
        return True
    if any(fields.get(key) for key in ("error", "error code", "errors")):
        return True
    if any(_is_http(key, value) for key, value in item.items()):
        return True
    status = fields.get("status", fields.get("state"))
    return isinstance(status, str) and " ".join(names(status)) in _FAILED


# --- what an answer tells -----------------------------------------------------------------------------

_TOKEN = Pattern(r"[^\W_]+(?:[@.\-_][^\W_]+)*")
_DENIES = frozenset(
    """
    no not none nothing never neither cannot without except but only unable unfortunately sorry
    nicht nichts kein keine keinen ohne außer nur leider ne pas sans sauf aucun aucune non sin salvo
    excepto falta não sem exceto senza tranne niet geen behalve inte ikke nie bez не нет без кроме
    """.split()
)
"""Words that deny or except."""
_DENYING = Pattern(
    r"n['\u2019]t\b|\b(?:fail|error|reject|refus|declin|den(?:y|ied))"
    r"|[不没沒未無无않못없]|失敗|失败|ない|ません|실패|لم|لا|ليس|فشل|ما عدا|नहीं|לא",
    re.IGNORECASE,
)
"""Forms of words that do, also in scripts without spaces."""


class _Told:
    """What an answer says, by its words and its fields. vague: it may say anything, or nothing."""

    def __init__(self, answer: Any) -> None:
        value = read(answer)
        self.fields = isinstance(value, Mapping | list)
        self.text = (
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        )
        self.text = self.text[:_MAX_TEXT]
        self.tokens = _tokens(self.text)
        self.vague = value in (None, False, "", [], {}) or self._doubts(value)

    def _doubts(self, value: Any) -> bool:
        """Whether an answer denies something, excepts it, or has a field that is false or of failures."""
        if isinstance(value, str):
            denies = not _DENIES.isdisjoint(_tokens(value)) or _DENYING.search(value[:_MAX_TEXT])
            return not value.strip() or bool(denies)
        if isinstance(value, Mapping):
            if any(_is_of_failures(names(key)) and item for key, item in value.items()):
                return True
            status = value.get("status", value.get("state"))
            if isinstance(status, str) and " ".join(names(status)) in _FAILED:
                return True
            return any(item in (None, False) or self._doubts(item) for item in value.values())
        return isinstance(value, list) and any(self._doubts(item) for item in value if item != "")

    def tells(self, step: Step, outcome: _Outcome) -> bool:
        """Whether the answer names the tool, a part that failed, how many did, or a word of the error."""
        tool, text = (step.tool_called or "").lower(), self.text.lower()
        # A name of one word may stand there for anything.
        if "_" in tool and (tool in text or tool.replace("_", " ") in text):
            return True
        given = _tokens(_short(step.tool_input, _MAX_TEXT)) | set(names(tool))
        for item in outcome.told:
            if isinstance(item, bool) or item is None:
                continue
            single = isinstance(item, int | float) or len(item.split()) == 1
            if single and (
                _plain(item) in self.tokens or (len(str(item)) > 2 and str(item) in self.text)
            ):
                return True
            if isinstance(item, str) and (_long(_tokens(item)) - given) & self.tokens:
                return True
        return False


def _long(tokens: set[str]) -> set[str]:
    return {token for token in tokens if len(token) > 3 or token.isdigit()}


def _tokens(text: str) -> set[str]:
    """The words and numbers of a text, in small letters."""
    found = set()
    for token in _TOKEN.findall(text[:_MAX_TEXT].lower()):
        found.add(token)
        found.update(re.findall(r"\d+|[^\W\d_]+", token))
    return found


def _leaves(value: Any) -> Iterator[Any]:
    """The texts and numbers in a JSON value, and the keys of its objects that are no names of fields."""
    stack = [value]
    count = 0
    while stack and count < _FEW_TOKENS:
        item = read(stack.pop())
        count += 1
        if isinstance(item, Mapping):
            yield from (key for key in item if re.search(r"\d", str(key)))
            stack += list(item.values())
        elif isinstance(item, list):
            stack += item
        elif item is not None and not isinstance(item, bool):
            yield item


def _plain(value: Any) -> str:
    return str(value).strip().lower()


def _values(value: Any) -> set[str]:
    """The texts and numbers in arguments or a result, as they are compared."""
    return {
        _plain(item)
        for item in _leaves(read(value))
        if len(_plain(item)) > 1 or _plain(item).isdigit()
    }


def _short(value: Any, most: int = _SAID) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text[:most]
