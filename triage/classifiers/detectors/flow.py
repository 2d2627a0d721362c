"""Where the values of a run come from: names, topics and numbers that neither the task nor a result holds.

Everything here compares values with what came before them; no rule knows a phrase. Runs of more than
400 steps are not read, so the work is bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from triage.classifiers.patterns import Pattern
from triage.core import Step, said_by

from .finding import (
    ALIEN,
    CONTRADICTED,
    FORBIDDEN_TOOL,
    INSERTED,
    MADE_UP_ARGUMENT,
    SAME_TEXT,
    UNDONE,
    UNTOUCHED,
    Finding,
)
from .results import failure_of, says_error

_MAX_TEXT = 4_000
_MAX_LEAVES = 40
_MAX_JSON = 20_000

_WORD = Pattern(r"[^\W\d_]{4,}")
_DIGITS = Pattern(r"(?<![\w-])[A-Za-z_-]{0,30}\d[\w-]{0,40}")
_LEAST_NAME = 4
_PERSON = Pattern(r"\b[A-Z][a-z]{2,20} [A-Z][a-z]{2,20}\b")
_NUMBER = Pattern(
    r"(?<![\w.,-])\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\w-])|(?<![\w.,-])\d+(?:\.\d+)?(?![\w-]|\.\d)"
)


def trace(steps: Sequence[Step], task: Any) -> list[Finding]:
    """What the origin of its values shows about a run."""
    given = text_in(task)
    found = [
        *_arguments(steps, given),
        _same_text(steps),
        _inserted(steps),
        _contradicted(steps),
        _forbidden_tool(steps, given),
        _undone(steps, given),
        _untouched(steps, given),
    ]
    return [one for one in found if one is not None]


def _names(text: str) -> list[str]:
    """The ids of a text: words of letters and digits together, such as `PX-1042` or `C1001`."""
    return [
        name
        for name in _DIGITS.findall(text)
        if len(name) >= _LEAST_NAME and not name.replace("-", "").isdigit()
    ]


def _is_name(text: str) -> bool:
    return _names(text) == [text]


def text_in(value: Any) -> str:
    """A JSON value as text, cut."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value[:_MAX_TEXT]
    return json.dumps(value, ensure_ascii=False, default=str)[:_MAX_TEXT]


def _leaves(value: Any) -> list[str]:
    """The texts and numbers of a call's arguments."""
    if isinstance(value, str):
        return [value[:_MAX_TEXT]]
    found: list[str] = []
    stack: list[Any] = [value]
    while stack and len(found) < _MAX_LEAVES:
        item = stack.pop()
        if isinstance(item, str):
            found.append(item[:_MAX_TEXT])
        elif isinstance(item, Mapping):
            stack += item.values()
        elif isinstance(item, list | tuple):
            stack += item
        elif item is not None and not isinstance(item, bool):
            found.append(str(item))
    return found


# --- names and topics from nowhere ----------------------------------------------------------------

_FEW = 80
_DENIES = Pattern(r"\b(?:not|no|none|unknown|invalid|without|missing)\b|n't\b", re.IGNORECASE)


class _Known:
    """What the task, the calls and the results before a step have named."""

    def __init__(self, given: str) -> None:
        self.words: set[str] = set()
        self.names: set[str] = set()
        self.families: set[str] = set()
        self.texts: list[str] = []
        self.add(given)

    def add(self, text: str, *, called: bool = False) -> None:
        """Take a text in. called: it is an argument, which shows no family of ids to be real."""
        text = text[:_MAX_TEXT]
        self.words.update(_WORD.findall(text.lower()))
        names = [name.lower() for name in _names(text)]
        self.names.update(names)
        if not called:
            self.families.update(map(_family, names))
        self.texts.append(text)

    def is_strange(self, leaves: Iterable[str]) -> bool:
        """Whether the free text of a call has several words and none of them is known."""
        found = [word for leaf in leaves for word in _WORD.findall(leaf.lower())]
        return len(found) > 1 and self.words.isdisjoint(found)

    def unknown(self, leaves: Iterable[str]) -> str | None:
        """The first id of a known family, or a person, that nothing has named before."""
        for leaf in leaves:
            for name in _names(leaf):
                family = _family(name.lower())
                if name.lower() not in self.names and len(family) > 1 and family in self.families:
                    return name
            for person in _PERSON.findall(leaf) if len(leaf) < _FEW else ():
                if not any(person in text for text in self.texts):
                    return person
        return None


def _arguments(steps: Sequence[Step], given: str) -> list[Finding]:
    """Calls about what nothing before them has named: an id or person, or a whole topic."""
    if not given.strip():
        return []  # without the task nobody knows what the first calls rest on
    known = _Known(given)
    made_up: dict[str, Finding] = {}
    strange: list[tuple[int, Step]] = []
    anchored = False
    for at, step in enumerate(steps):
        tool = step.tool_called
        leaves = _leaves(step.tool_input) if tool is not None else []
        if anchored and known.is_strange(leaves):
            strange.append((at, step))  # nor does its result make its topic known
            continue
        if tool is not None:
            anchored = anchored or (bool(leaves) and not known.is_strange(leaves))
            unknown = known.unknown(leaves)
            if failure_of(step) is None and not _is_denied(step.tool_output):
                made_up.pop(tool, None)
            elif unknown is not None:
                text = f"{said_by(unknown)} stands neither in the task nor in a result"
                made_up.setdefault(tool, Finding(MADE_UP_ARGUMENT, text, at, tool))
        for leaf in leaves:
            known.add(leaf, called=True)
        for shown in (step.action, step.llm_output, text_in(step.tool_output), step.error):
            known.add(shown or "")
    found = list(made_up.values())[:1]
    if len(strange) > 1:
        at, step = strange[0]
        topic = said_by(" ".join(_leaves(step.tool_input))[:_FEW])
        text = f"{len(strange)} calls about {topic}, of which neither the task nor a result speaks"
        found.append(Finding(ALIEN, text, at, step.tool_called))
    return found


def _family(name: str) -> str:
    """The letters an id begins with, up to its first digit."""
    return re.split(r"\d", name, maxsplit=1)[0]


def _is_denied(output: Any) -> bool:
    """Whether a result is nothing, or a few words with a negation."""
    if output is None or output in ("", [], {}):
        return True
    text = output if isinstance(output, str) else ""
    return text in ("[]", "{}", "null") or (len(text) < _FEW and _DENIES.search(text) is not None)


# --- one text for every question ------------------------------------------------------------------

_LONG_TEXT = 30


def _same_text(steps: Sequence[Step]) -> Finding | None:
    """A sentence that different tools begin to give for whatever they are asked: nothing comes back."""
    told: dict[str, list[tuple[int, str]]] = {}
    first: dict[str, str] = {}
    for at, step in enumerate(steps):
        text, tool = step.tool_output, step.tool_called
        # A recorder may have put the answer down as an error, too.
        if tool is None or not isinstance(text, str) or step.error not in (None, text):
            continue
        first.setdefault(tool, text)
        if _LONG_TEXT <= len(text) <= _MAX_TEXT and text[0] not in "{[<":
            told.setdefault(text, []).append((at, tool))
    shared = [text for text, calls in told.items() if len({tool for _, tool in calls}) > 1]
    if len(shared) != 1:
        return None
    (text,) = shared
    calls = told[text]
    if says_error(text) or all(first[tool] == text for _, tool in calls):
        return None
    at, tool = calls[0]
    count = len({tool for _, tool in calls})
    return Finding(SAME_TEXT, f"{count} tools gave the same answer: {said_by(text)}", at, tool)


_TAIL = 50


def _inserted(steps: Sequence[Step]) -> Finding | None:
    """Words that results of different tools begin to end with: somebody speaks through them."""
    tails: dict[str, list[tuple[int, str, str]]] = {}
    first: dict[str, str] = {}
    for at, step in enumerate(steps):
        text, tool = step.tool_output, step.tool_called
        if tool is None or not isinstance(text, str) or step.error is not None:
            continue
        tail = text[-_TAIL:]
        first.setdefault(tool, tail)
        if len(text) > _TAIL and text[0] not in "{[<":
            tails.setdefault(tail, []).append((at, tool, text))
    for tail, entries in tails.items():
        at, tool, text = entries[0]
        others = [other for _, name, other in entries if name != tool and other != text]
        if not others or all(first[name] == tail for _, name, _ in entries):
            continue
        common = _common_end(text, others[0])
        if len(common) < len(text):
            return Finding(INSERTED, f"results of two tools end with {said_by(common)}", at, tool)
    return None


def _common_end(one: str, other: str) -> str:
    size = next(
        (
            at
            for at, pair in enumerate(zip(reversed(one), reversed(other), strict=False))
            if pair[0] != pair[1]
        ),
        min(len(one), len(other)),
    )
    return one[len(one) - size :].strip()


# --- what results say of the same thing -----------------------------------------------------------


class _Told(NamedTuple):
    """The numbers a result gives for a thing, and the step of it."""

    at: int
    numbers: tuple[float, ...]


def _contradicted(steps: Sequence[Step]) -> Finding | None:
    """A number of the last answer that the newest result about the same thing no longer gives."""
    last = next((at for at in range(len(steps) - 1, -1, -1) if steps[at].llm_output), None)
    if last is None or steps[last].tool_called is not None:
        return None
    answer = (steps[last].llm_output or "")[:_MAX_TEXT]
    wanted = {name.lower() for name in _names(answer)}
    if not wanted:
        return None
    told: dict[str, list[_Told]] = {}
    for at, step in enumerate(steps[:last]):
        for name, numbers in _records(step.tool_output):
            if name in wanted and numbers:
                told.setdefault(name, []).append(_Told(at, numbers))
    for sentence in _sentences(answer):
        ids = {name.lower() for name in _names(sentence)}
        if len(ids) != 1:
            continue
        (name,) = ids
        entries = told.get(name)
        if not entries:
            continue
        for value in _numbers(sentence):
            if value in entries[-1].numbers or not _is_hard(value):
                continue
            if any(value in entry.numbers for entry in entries):
                text = f"{name}: the answer says {value:g}, step {entries[-1].at} says otherwise"
                return Finding(CONTRADICTED, text, last)
    return None


def _is_hard(value: float) -> bool:
    """A number that is no small count."""
    return value >= 100 or value != int(value)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number.replace(",", "")) for number in _NUMBER.findall(text))


def _records(output: Any) -> Iterator[tuple[str, tuple[float, ...]]]:
    """The ids of a result, each with the numbers beside it: in its object, or in its line."""
    if isinstance(output, str) and output[:1] in ("{", "[") and len(output) < _MAX_JSON:
        with suppress(ValueError, RecursionError):
            output = json.loads(output)
    if isinstance(output, str):
        for line in re.split(r"[;\n]", output[:_MAX_JSON]):
            ids = {name.lower() for name in _names(line)}
            if len(ids) == 1:
                yield ids.pop(), _numbers(line)
        return
    stack = [output]
    while stack:
        item = stack.pop()
        if isinstance(item, Mapping):
            named = [v.lower() for v in item.values() if isinstance(v, str) and _is_name(v)]
            numbers = tuple(
                float(v)
                for v in item.values()
                if isinstance(v, int | float) and not isinstance(v, bool)
            )
            if len(named) == 1:
                yield named[0], numbers
            stack += item.values()
        elif isinstance(item, list | tuple):
            stack += item


# --- what was asked and what was done -------------------------------------------------------------

_NEGATION = Pattern(
    r"\b(?:not|never|no|nor|without|avoid\w{0,3}|forbid\w{0,5}|prohibit\w{0,4}|off|except|refrain|"
    r"banned|disallow\w{0,3})\b|n't\b",
    re.IGNORECASE,
)
_CONDITION = Pattern(r"\b(?:before|until|unless|if|when|after|once|only)\b", re.IGNORECASE)


def _forbidden_tool(steps: Sequence[Step], given: str) -> Finding | None:
    """The first call of a tool that the task names in a sentence of negation."""
    called = {step.tool_called for step in steps if step.tool_called}
    named = [tool for tool in called if re.search(r"[_\W\d]|[a-z][A-Z]", tool) and tool in given]
    if not named:
        return None
    for sentence in _sentences(given):
        hit = _NEGATION.search(sentence)
        if hit is None or _CONDITION.search(sentence):
            continue
        for at, step in enumerate(steps):
            if step.tool_called in named and _mentions(sentence, step.tool_called or ""):
                text = f"the task says {said_by(sentence.strip())}"
                return Finding(FORBIDDEN_TOOL, text, at, step.tool_called)
    return None


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) is not None


_UNDOING = frozenset(
    "cancel undo revert release drop abandon withdraw retract remove delete off down disable close stop "
    "revoke unassign detach dequeue restore rollback discard unbook unlink uninstall deactivate reset "
    "void refund return reject".split()
)


def _undone(steps: Sequence[Step], given: str) -> Finding | None:
    """A change that worked and was then taken back, although the task does not ask for that."""
    changed: dict[str, tuple[int, str]] = {}
    asked = set(re.findall(r"[a-z]+", given.lower()))
    for at, step in enumerate(steps):
        tool = step.tool_called
        if tool is None or step.error is not None or failure_of(step) is not None:
            continue
        undoing = [word for word in _words_of(tool) if word in _UNDOING or word[:2] in ("un", "de")]
        for leaf in _leaves(step.tool_input):
            if not _is_name(leaf):
                continue
            if any(word in _UNDOING for word in undoing) and asked.isdisjoint(undoing):
                known = changed.get(leaf)
                if known is not None and known[1] != tool and _about_the_same(known[1], tool):
                    text = f"{tool!r} took back what {known[1]!r} did to {leaf} in step {known[0]}"
                    return Finding(UNDONE, text, at, tool)
            else:
                changed[leaf] = (at, tool)
    return None


def _words_of(tool: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", tool)]


def _about_the_same(one: str, other: str) -> bool:
    """Whether two tools share a word: `book_courier` and `cancel_courier`."""
    return not set(_words_of(one)).isdisjoint(_words_of(other))


_LEAST_ITEMS = 3
_LEAST_DONE = 2
_ENUMERATION = Pattern(r"[\w-]*\d[\w-]*(?:(?:,|;| and| or| und| y| et)+ [\w-]*\d[\w-]*)+")


def _untouched(steps: Sequence[Step], given: str) -> Finding | None:
    """Things the task lists that the last tool was never given, though it was given others of the list.

    A list is three ids or more of one family with commas between them.
    """
    lists = [_names(found) for found in _ENUMERATION.findall(given)]
    lists = [
        items
        for items in lists
        if len(items) >= _LEAST_ITEMS and len({_family(item) for item in items}) == 1
    ]
    if not lists or steps[-1].tool_called is not None:
        return None
    touched: dict[str, set[str]] = {}
    last = None
    for step in steps:
        if step.tool_called is None or step.error is not None:
            continue
        names = {name for leaf in _leaves(step.tool_input) for name in _names(leaf)}
        if any(not names.isdisjoint(items) for items in lists):
            touched.setdefault(step.tool_called, set()).update(names)
            last = step.tool_called
    for items in lists if last is not None else ():
        done = [item for item in items if item in touched[last or ""]]
        if _LEAST_DONE <= len(done) < len(items):
            left = next(item for item in items if item not in done)
            text = f"{last!r} was called for {len(done)} of {len(items)} things, not for {left}"
            return Finding(UNTOUCHED, text, len(steps) - 1, last)
    return None


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?;])\s|\n", text)
