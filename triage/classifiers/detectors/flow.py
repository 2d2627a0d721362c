"""Where the values of a run come from: names, topics and numbers that neither the task nor a result holds.

Everything here compares values with what came before them; no rule knows a phrase. Runs of more than
400 steps are not read, so the work is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from triage.core.patterns import Pattern
from triage.core.quoting import said_by
from triage.core.steps import Step
from triage.core.taxonomy import Effect, infer_effect

from . import finding
from .results import ADMITS, denies, failure_of, is_identifier, parsed, text_in

_MAX_TEXT = 4_000
_MAX_LEAVES = 40

_WORD = Pattern(r"[^\W\d_]{4,}")
_DIGITS = Pattern(
    r"(?<![\w./:@-])(?=[\w./:-]{0,40}\d)(?=[\w./:-]{0,40}[^\W\d_])\w(?:[\w/-]|[.:](?=\w)){2,60}(?![\w@])"
)
_MEASURE = Pattern(
    r"\d[\d.,:/-]*[^\W\d_]{1,3}|\d{4}-\d\d-\d\d[tT].*|(?:https?|www)\b.*|\w+:\d+(?:\.\d+)?"
)
"""What has letters and digits and is no id: a measure, a time, an address of the web, a field."""
_ADDRESS = Pattern(r"(?<![\w.+-])[\w.+-]{1,60}@[\w-]{1,60}(?:\.[\w-]{1,60})+")
_LEAST_NAME = 4
_PERSON = Pattern(r"\b[A-Z][a-z]{2,20} [A-Z][a-z]{2,20}\b")
_NUMBER = Pattern(
    r"(?<![\w.,-])\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\w-])|(?<![\w.,-])\d+(?:\.\d+)?(?![\w-]|\.\d)"
)


def trace(steps: Sequence[Step], task: Any) -> list[finding.Finding]:
    """What the origin of its values shows about a run."""
    given = text_in(task)
    found = [
        *_arguments(steps, given),
        _contradicted(steps),
        _forbidden_tool(steps, given),
        _undone(steps, given),
        _left_of_list(steps, given) or _left_of_all(steps, given),
        _made_twice(steps),
        _other_entity(steps, given),
        _other_address(steps, given),
        _other_person(steps, given),
        _obeyed(steps, given),
        _followed(steps, given),
        _retold(steps),
        _made_up_data(steps, given),
        _claimed(steps),
        _same_failure(steps),
    ]
    return [one for one in found if one is not None]


def _names(text: str) -> list[str]:
    """The ids of a text: words of letters and digits, such as `PX-1042`, `C1001` or `refs/v2`."""
    return [
        name
        for name in _DIGITS.findall(text)
        if len(name) >= _LEAST_NAME and not _MEASURE.fullmatch(name)
    ]


_PART = Pattern(r"[\w-]+")
_RANGE = Pattern(
    r"(?<![\w-])(?P<family>(?:\w[\w/-]{0,20})?\D)?(?P<first>\d{1,6})"
    r"(?: (?:to|through|until|bis|up to) |\s?(?:\u2013|\.\.)\s?)(?P=family)(?P<last>\d{1,6})(?![\w-])"
)
_MOST_BETWEEN = 200


def _between(text: str) -> list[str]:
    """The ids that a text names by the first and the last, as `PX-1 to PX-9`."""
    found: list[str] = []
    for hit in _RANGE.finditer(text):
        first, last, width = int(hit["first"]), int(hit["last"]), len(hit["first"])
        if hit["family"] and first < last <= first + _MOST_BETWEEN:
            found += (f"{hit['family']}{number:0{width}d}" for number in range(first, last + 1))
    return found


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
_PROSE = Pattern(
    r"(?:[^\W\d_]+|\d+)(?:[\s,.?!'\u2019&-]{1,3}(?:[^\W\d_]{1,40}|\d{1,9})){1,40}[.?!]?"
)
"""Words and numbers alone: what has brackets, slashes or underscores is a key or code, and no topic."""


class _Known:
    """What the task, the calls and the results before a step have named."""

    def __init__(self, given: str) -> None:
        self.words: set[str] = set()
        self.parts: set[str] = set()
        self.names: set[str] = set()
        self.families: set[str] = set()
        self.add(given)

    def add(self, text: str, *, called: bool = False) -> None:
        """Take a text in. called: it is an argument, which shows no family of ids to be real."""
        text = text[:_MAX_TEXT]
        self.words.update(_WORD.findall(text.lower()))
        self.parts.update(_PART.findall(text.lower()))
        names = [name.lower() for name in (*_names(text), *_between(text))]
        self.names.update(names)
        if not called:
            self.families.update(map(_family, names))

    def is_strange(self, leaves: Iterable[str]) -> bool:
        """Whether the free text of a call has several words and none of them is known."""
        said = [leaf for leaf in leaves if _PROSE.fullmatch(leaf)]
        found = [word for leaf in said for word in _WORD.findall(leaf.lower())]
        return len(found) > 1 and self.words.isdisjoint(found)

    def unknown(self, leaves: Iterable[str]) -> str | None:
        """The first id of a known family that nothing has named before."""
        for leaf in leaves:
            for name in _names(leaf):
                low, family = name.lower(), _family(name.lower())
                known = low in self.names or self.parts.issuperset(_PART.findall(low))
                if not known and len(family) > 1 and family in self.families:
                    return name
        return None


def _arguments(steps: Sequence[Step], given: str) -> list[finding.Finding]:
    """Calls about what nothing before them has named: an id, or a whole topic."""
    if not given.strip():
        return []  # without the task nobody knows what the first calls rest on
    known = _Known(given)
    made_up: dict[str, finding.Finding] = {}
    strange: list[tuple[int, Step]] = []
    back = 0
    anchored = False
    for at, step in enumerate(steps):
        tool = step.tool_called
        leaves = _leaves(step.tool_input) if tool is not None else []
        if anchored and known.is_strange(leaves):
            strange.append((at, step))  # nor does its result make its topic known
            continue
        if tool is not None:
            back += bool(strange)
            anchored = anchored or (bool(leaves) and not known.is_strange(leaves))
            unknown = known.unknown(leaves)
            if failure_of(step) is None and not denies(step.tool_output):
                made_up.pop(tool, None)
            elif unknown is not None:
                text = f"{said_by(unknown)} stands neither in the task nor in a result"
                made_up.setdefault(tool, finding.Finding(finding.MADE_UP_ARGUMENT, text, at, tool))
        for leaf in leaves:
            known.add(leaf, called=True)
        for shown in (step.action, step.llm_output, text_in(step.tool_output), step.error):
            known.add(shown or "")
    found = list(made_up.values())[:1]
    said = {
        leaf for _, step in strange for leaf in _leaves(step.tool_input) if len(leaf.split()) > 1
    }
    if len(strange) > max(1, back) and len(said) > 1:
        at, step = strange[0]
        topic = said_by(" ".join(_leaves(step.tool_input))[:_FEW])
        text = f"{len(strange)} calls about {topic}, of which neither the task nor a result speaks"
        found.append(finding.Finding(finding.ALIEN, text, at, step.tool_called))
    return found


def _family(name: str) -> str:
    """The letters an id begins with, up to its first digit."""
    return re.split(r"\d", name, maxsplit=1)[0]


# --- what results say of the same thing -----------------------------------------------------------


class _Told(NamedTuple):
    """The numbers a result gives for a thing, and the step of it."""

    at: int
    numbers: tuple[float, ...]


def _contradicted(steps: Sequence[Step]) -> finding.Finding | None:
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
        beside = re.sub(re.escape(name), " ", sentence, flags=re.IGNORECASE)
        said = list(filter(_is_hard, _numbers(beside)))
        if any(value in entries[-1].numbers for value in said):
            continue
        for value in said:
            if any(value in entry.numbers for entry in entries):
                text = f"{name}: the answer says {value:g}, step {entries[-1].at} says otherwise"
                return finding.Finding(finding.CONTRADICTED, text, last)
    return None


def _is_hard(value: float) -> bool:
    """A number that is no small count."""
    return value >= 100 or value != int(value)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number.replace(",", "")) for number in _NUMBER.findall(text))


_BETWEEN = re.compile(r"\}[\s'\"\\]*,\s*\{|\n|\\n|;|(?<=\w)\.\s")
"""What stands between two records in a text."""


def _pieces(output: Any) -> list[str]:
    """The records of a result: its objects, lines or sentences."""
    return _BETWEEN.split(text_in(output))


def _records(output: Any) -> Iterator[tuple[str, tuple[float, ...]]]:
    """The ids of a result, each with the numbers beside it."""
    for piece in _pieces(output):
        ids = {name.lower() for name in _names(piece)}
        if len(ids) == 1:
            yield ids.pop(), _numbers(piece)


def _retold(steps: Sequence[Step]) -> finding.Finding | None:
    """A number that one agent gives for a thing, and for which another had given a different one."""
    told: dict[str, tuple[str, tuple[float, ...]]] = {}
    known: set[float] = set()
    for at, step in enumerate(steps):
        if step.tool_called is not None or not step.llm_output:
            known.update(_numbers(text_in(step.tool_output)))
            continue
        for sentence in _sentences(step.llm_output[:_MAX_TEXT]):
            ids = {name.lower() for name in _names(sentence)}
            numbers = tuple(filter(_is_hard, _numbers(sentence)))
            if len(ids) != 1 or len(numbers) != 1:
                continue
            (name,) = ids
            who, before = told.setdefault(name, (step.action, numbers))
            altered = before != numbers and numbers[0] not in known
            if who != step.action and altered:
                text = f"{name}: {who!r} had said {before[0]:g}, not {numbers[0]:g}"
                return finding.Finding(finding.CONTRADICTED, text, at)
    return None


# --- what was asked and what was done -------------------------------------------------------------

_NEGATION = Pattern(
    r"\b(?:not|never|no|nor|without|avoid\w{0,3}|forbid\w{0,5}|prohibit\w{0,4}|off|except|refrain|"
    r"banned|disallow\w{0,3}|nobody|nothing|nicht|niemals|kein\w{0,2}|verboten|untersagt|jamais|"
    r"interdite?s?|nunca|prohibid[oa]s?)\b|n't\b",
    re.IGNORECASE,
)
_CONDITION = Pattern(r"\b(?:before|until|unless|if|when|after|only)\b", re.IGNORECASE)


def _forbidden_tool(steps: Sequence[Step], given: str) -> finding.Finding | None:
    """The first call of a tool that the task names in a sentence of negation."""
    called = {step.tool_called for step in steps if step.tool_called}
    named = {tool for tool in called if is_identifier(tool) and tool in given}
    for sentence in _sentences(given):
        hit = _NEGATION.search(sentence)
        if hit is None or _CONDITION.search(sentence):
            continue
        meant = {tool for tool in named if _mentions(sentence, tool)}
        barred = _BARRED.search(sentence)
        if barred is not None:
            meant |= {tool for tool in called if _words_of(tool)[:1] == [barred["verb"].lower()]}
        for at, step in enumerate(steps):
            if step.tool_called in meant:
                text = f"the task says {said_by(sentence.strip())}"
                return finding.Finding(finding.FORBIDDEN_TOOL, text, at, step.tool_called)
    return None


_BARRED = Pattern(
    r"\b(?:not|never|n't) (?P<verb>[a-z]{3,20}) (?:anything|anybody|anyone|any\b|more\b|\W*\Z)",
    re.IGNORECASE,
)
"""What must not be done to anything at all."""


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w-])(?<!\d\.){re.escape(name)}(?![\w-]|\.\d)", text) is not None


_UNDOING = frozenset(
    "cancel undo revert release drop abandon withdraw retract remove delete off down disable close stop "
    "revoke unassign detach dequeue restore rollback discard unbook unlink uninstall deactivate reset "
    "void refund return reject recall reopen".split()
)
_ONLY_UNDOING = frozenset("undo revert rollback withdraw retract revoke recall reopen".split())
"""Words for nothing else than taking back what was done before."""
_PREFIXES = ("un", "de", "in", "dis", "re", "ent", "des")


def _undone(steps: Sequence[Step], given: str) -> finding.Finding | None:
    """A change that worked and was then taken back, although nobody has asked for that.

    What the user says in between may ask for it, and a change made anew afterwards puts things right.
    """
    changed: dict[str, list[tuple[int, str]]] = {}
    asked = set(re.findall(r"[a-z]+", given.lower()))
    called = {step.tool_called for step in steps if step.tool_called is not None}
    changing = {tool for tool in called if infer_effect(tool) is not Effect.READ}
    tools = {tool: set(_words_of(tool)) for tool in called}
    everywhere = set.intersection(*tools.values()) if len(tools) > 2 else set[str]()
    for at, step in enumerate(steps):
        tool = step.tool_called
        if tool is None and step.action.startswith("user"):
            changed.clear()
        if tool not in changing or step.error is not None or failure_of(step) is not None:
            continue
        words = tools[tool] - everywhere
        for leaf in _leaves(step.tool_input):
            if _names(leaf) != [leaf]:
                continue
            for place, other in changed.get(leaf, ()) if tool not in given else ():
                if not _takes_back(words, tools[other], asked):
                    continue
                if all(one.tool_called != other for one in steps[at + 1 :]):
                    return _as_undone(steps, at, place, leaf)
            changed.setdefault(leaf, []).append((at, tool))
    return None


def _as_undone(steps: Sequence[Step], at: int, place: int, name: str) -> finding.Finding:
    """The finding on a change of this thing; of an answer that still speaks of it, that it is not true."""
    tool, other = steps[at].tool_called, steps[place].tool_called
    said = steps[-1].llm_output if steps[-1].tool_called is None else None
    told = name in (said or "")
    rule = (
        finding.UNDONE._replace(failure_type=finding.MADE_UP_DATA.failure_type)
        if told
        else finding.UNDONE
    )
    return finding.Finding(
        rule, f"{tool!r} took back what {other!r} did to {name} in step {place}", at, tool
    )


def _takes_back(words: set[str], before: set[str], asked: set[str]) -> bool:
    """Whether a tool of these words takes back what one of those did, and nobody has asked for that."""
    undoing = (words & _UNDOING) - before
    if undoing:
        known = bool(words & before) or not undoing.isdisjoint(_ONLY_UNDOING)
        return known and asked.isdisjoint(undoing)
    negated = {
        word for word in words for one in _PREFIXES if word.removeprefix(one) in before - {word}
    }
    return bool(negated) and asked.isdisjoint(negated)


def _words_of(tool: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", tool)]


_LEAST_ITEMS = 3
_LEAST_DONE = 2
_ITEM = r"[\w./-]*\d[\w/-]*(?:\.\w+)*"
_ENUMERATION = Pattern(rf"{_ITEM}(?:(?:,|;| and| or| und| y| et)+ {_ITEM})+")


def _left_of_all(steps: Sequence[Step], given: str) -> finding.Finding | None:
    """An id or address of the task that no call was given and the answer does not name."""
    if steps[-1].tool_called is not None or not steps[-1].llm_output:
        return None
    named = [
        name
        for sentence in _sentences(given)
        if not _NEGATION.search(sentence)
        for name in (*_names(sentence), *_ADDRESS.findall(sentence))
    ]
    named = list(dict.fromkeys(named))
    used = "\n".join(
        leaf for step in steps if step.tool_called is not None for leaf in _leaves(step.tool_input)
    )
    done = [name for name in named if name in used]
    left = [name for name in named if name not in used]
    if not left or len(done) < _LEAST_DONE or any(name in steps[-1].llm_output for name in left):
        return None
    text = f"no call was about {left[0]}, one of {len(named)} that the task names"
    return finding.Finding(finding.UNTOUCHED, text, len(steps) - 1)


def _left_of_list(steps: Sequence[Step], given: str) -> finding.Finding | None:
    """Things the task lists that the last tool was never given, though it was given others of the list.

    A list is three ids or more with commas between them.
    """
    lists = [_names(found) for found in _ENUMERATION.findall(given)]
    lists += [_between(hit[0]) for hit in _RANGE.finditer(given)]
    lists = [items for items in lists if len(items) >= _LEAST_ITEMS]
    if not lists or steps[-1].tool_called is not None:
        return None
    touched: dict[str, set[str]] = {}
    last = None
    for step in steps:
        if step.tool_called is None:
            continue
        names = {name for leaf in _leaves(step.tool_input) for name in _names(leaf)}
        touched.setdefault(step.tool_called, set()).update(names)
        last = step.tool_called
    for items in lists if last is not None else ():
        done = [item for item in items if item in touched[last or ""]]
        if _LEAST_DONE <= len(done) < len(items):
            left = next(item for item in items if item not in done)
            if _is_excused(left, steps[-1].llm_output or ""):
                return None
            text = f"{last!r} was called for {len(done)} of {len(items)} things, not for {left}"
            return finding.Finding(finding.UNTOUCHED, text, len(steps) - 1, last)
    return None


def _is_excused(name: str, answer: str) -> bool:
    """Whether the sentence of an answer that names a thing says that something was not done."""
    said = [line for line in re.split(r"(?<=[.!?;])\s|\n", answer) if _mentions(line, name)]
    return any(_NEGATION.search(one) or ADMITS.search(one.lower()) for one in said)


# --- one thing in place of another ----------------------------------------------------------------


def _made_twice(steps: Sequence[Step]) -> finding.Finding | None:
    """The same call made twice, each time with a new id as its result, of which the first goes unused."""
    made: dict[str, list[tuple[int, str]]] = {}
    texts: list[str] = []
    for at, step in enumerate(steps):
        given, got = text_in(step.tool_input), text_in(step.tool_output)
        texts.append(f"{given}\n{got}\n{step.llm_output or ''}")
        if step.tool_called is None or not _leaves(step.tool_input) or failure_of(step):
            continue
        names = [name for name in _names(got) if name not in given]
        if len(names) == 1:
            made.setdefault(f"{step.tool_called} {given}", []).append((at, names[0]))
    for calls in made.values():
        if len(calls) != 2:
            continue
        (first, one), (second, other) = calls
        others = [text for at, text in enumerate(texts) if at != first]
        fresh = not any(one in text for text in others) and not any(
            other in text for text in texts[:second]
        )
        if one != other and fresh:
            tool = steps[second].tool_called
            text = f"{tool!r} was called twice with the same arguments, and made {one} and {other}"
            return finding.Finding(finding.MADE_TWICE, text, second, tool, 2, second - first)
    return None


_NAME_WORD = Pattern(r"\b[A-Z][^\W\d_]{2,30}\b")


def _other_entity(steps: Sequence[Step], given: str) -> finding.Finding | None:
    """The last call is about a thing whose record lacks the name by which the task tells it apart."""
    last = max((at for at, step in enumerate(steps) if step.tool_called), default=None)
    if last is None or steps[last].error is not None:
        return None
    asked = {name for leaf in _leaves(steps[last].tool_input) for name in _names(leaf)}
    if len(asked) != 1 or any(name in given for name in asked):
        return None
    (name,) = asked
    records = {
        ids[0]: piece
        for step in steps[:last]
        for piece in _pieces(step.tool_output)
        if len(ids := list(dict.fromkeys(_names(piece)))) == 1
    }
    own = records.get(name)
    if own is None:
        return None
    telling = {
        word
        for word in _NAME_WORD.findall(given)
        if any(_mentions(piece, word) for piece in records.values())
    }
    if len(telling) != 1:
        return None
    (word,) = telling
    got = set(_NAME_WORD.findall(text_in(steps[last].tool_output)))
    if _mentions(own, word) or not got.isdisjoint(_NAME_WORD.findall(own)):
        return None  # the thing that is meant, or a look at another
    tool = steps[last].tool_called
    text = f"the task is about {word}, and the record of {name} does not name it"
    return finding.Finding(finding.OTHER_ENTITY, text, last, tool)


def _other_address(steps: Sequence[Step], given: str) -> finding.Finding | None:
    """A call to an address, where the task names one and no call was given that."""
    wanted = set(_ADDRESS.findall(given))
    if len(wanted) != 1:
        return None
    used = [
        (at, found)
        for at, step in enumerate(steps)
        if step.tool_called is not None
        for found in _leaves(step.tool_input)
        if _ADDRESS.fullmatch(found)
    ]
    if len({found for _, found in used} - wanted) != 1 or any(found in wanted for _, found in used):
        return None
    at, found = used[0]
    text = f"the task names the address {next(iter(wanted))}, the call was given {found}"
    return finding.Finding(finding.OTHER_ENTITY, text, at, steps[at].tool_called)


def _other_person(steps: Sequence[Step], given: str) -> finding.Finding | None:
    """A call that reaches a person from nowhere, where no call was given one of those the task names."""
    texts = [given]
    called = "\n".join(leaf for step in steps for leaf in _leaves(step.tool_input))
    left = [person for person in _PERSON.findall(given) if person not in called]
    if not left:
        return None
    for at, step in enumerate(steps):
        tool = step.tool_called
        if tool is not None and infer_effect(tool) is not Effect.READ:
            for found in _leaves(step.tool_input):
                if _PERSON.fullmatch(found) and not any(found in text for text in texts):
                    text = f"the task names {left[0]}, the call was given {found}"
                    return finding.Finding(finding.OTHER_ENTITY, text, at, tool)
        texts += [step.action, step.llm_output or "", text_in(step.tool_output)]
    return None


# --- who gave the order ---------------------------------------------------------------------------

_LEAST_PHRASE = 4
_MOST_PHRASE = 20


def _obeyed(steps: Sequence[Step], given: str) -> finding.Finding | None:
    """A call whose argument is part of a sentence in a result, and has no word of the task."""
    texts: list[str] = []
    wanted = set(_WORD.findall(given.lower()))
    if not wanted:
        return None
    for at, step in enumerate(steps):
        if step.tool_called is None:
            continue
        for leaf in _leaves(step.tool_input):
            if not _LEAST_PHRASE <= len(leaf.split()) <= _MOST_PHRASE or not leaf[:1].islower():
                continue
            foreign = wanted.isdisjoint(_WORD.findall(leaf.lower()))
            within = Pattern(rf"[a-z,:] {re.escape(leaf)}")
            if foreign and any(map(within.search, texts)):
                text = f"the argument {said_by(leaf)} is part of a sentence in a result"
                return finding.Finding(finding.REDIRECT, text, at, step.tool_called)
        texts.append(text_in(step.tool_output))
    return None


_ADDRESSED = Pattern(
    r"\b(?:assistants?|agents?|ai|bots?|models?|llms?|automat\w{1,6})\b"
    r"|\b(?:any|every|each|all|which(?:ever)?|what(?:ever)?) (?:programs?|software|machines?)\b"
    r"|\byou are (?:now|from now on)\b"
    r"|\byour (?:\w{1,12} ){0,2}(?:assignment|task|goal|job|mission|objective|instructions?)\b",
    re.IGNORECASE,
)
"""Words to whoever reads a result, which is a program."""
_LEAST_PROSE = 6
_MOST_ORDER = 400


def _followed(steps: Sequence[Step], given: str) -> finding.Finding | None:
    """A result speaks to the program that reads it, and what it names is what the agent then deals with.

    Named nowhere before: in an argument of a call that follows, or as the whole of the answer.
    """
    if not given.strip():
        return None
    shown = [given]
    for at, step in enumerate(steps):
        for text in _leaves(parsed(step.tool_output)) if step.tool_called is not None else ():
            hit = _ADDRESSED.search(text)
            if hit is None or len(text.split()) < _LEAST_PROSE:
                continue
            if text[: hit.start()].count('"') % 2:
                continue  # within what the result quotes
            order, before = text[hit.start() :][:_MOST_ORDER], "\n".join(shown)
            for later in steps[at + 1 :]:
                for leaf in (*_leaves(later.tool_input), *_closing(later, steps)):
                    if len(leaf) > 1 and _mentions(order, leaf) and not _mentions(before, leaf):
                        said = f"the result says {said_by(order)}"
                        return finding.Finding(finding.REDIRECT, said, at, step.tool_called)
        shown += (text_in(step.tool_input), text_in(step.tool_output), step.llm_output or "")
    return None


def _closing(step: Step, steps: Sequence[Step]) -> tuple[str, ...]:
    """The last answer, where it is a word or two."""
    said = (step.llm_output or "").strip().rstrip(".") if step is steps[-1] else ""
    return (said,) if step.tool_called is None and _LEAST_NAME <= len(said) < _FEW else ()


# --- what is said of a call that failed -----------------------------------------------------------

_STOPPED = (
    r"\b(?:not|none|cannot|unable|refus\w{1,4}|reject\w{1,4}|den(?:y|ied)|abort\w{1,3}|fail\w{0,4}|"
    r"declin\w{1,3})\b|n't\b"
)
_REFUSED = Pattern(rf"(?i)^(?:no|error)\b|{_STOPPED}")
"""Words of a result by which it refuses."""
_CONTRASTS = Pattern(
    rf"{_STOPPED}|\b(?:no|nothing|error|full|stays?|remains?|instead|except|pending)\b"
)
"""Words of an answer that say of something, in small letters, that it is not as it was to be."""
_NOTHING_ELSE = Pattern(r"\b(?:nothing|no) (?:else|more|further|other)\b[^.!?]{0,80}")
_LEAST_LEAF = 3
_FEW_KEYS = 5
_FEW_WORDS = 3


class _Refusal:
    """A change that failed: the arguments of the call, the words of its tool, and what it was answered.

    own: the arguments that no call of the tool that worked had.
    """

    def __init__(self, at: int, step: Step, leaves: list[str]) -> None:
        self.at = at
        self.tool = step.tool_called or ""
        self.leaves = leaves
        self.own = set(leaves)
        text = step.error or " ".join(_leaves(parsed(step.tool_output)))
        known = {*_words_of(self.tool), *_WORD.findall(text_in(step.tool_input).lower())}
        self._why = set(_WORD.findall(text.lower())) - known

    def is_mended(self, leaves: Iterable[str]) -> bool:
        """Whether a call of the same tool that worked, with these arguments, was about the same thing."""
        ids = {leaf for leaf in self.leaves if re.search(r"\d", leaf)}
        return not ids or not ids.isdisjoint(leaves)

    def is_restated(self, said: str) -> bool:
        """Whether something said is about this call, and admits nothing.

        It has most of the arguments, one of them an id, or names what tells this call from others.
        """
        low = _NOTHING_ELSE.sub("", said.lower())
        if len(low.split()) <= _LEAST_PHRASE or ADMITS.search(low) or _CONTRASTS.search(low):
            return False
        if low.rstrip().endswith("?"):
            return False
        if not self._why.isdisjoint(_WORD.findall(low)):
            return False
        found = {leaf for leaf in self.leaves if _mentions(low, leaf.lower())}
        telling = {leaf for leaf in self.own if re.match(r"[A-Z]|.*\d", leaf)}
        if self.own != set(self.leaves) and telling and telling <= found:
            return True
        named = any(re.search(r"\d", leaf) for leaf in found)
        return named and 2 * len(found) > len(self.leaves)


def _claimed(steps: Sequence[Step]) -> finding.Finding | None:
    """A call that failed, and what was said later with its arguments and without a word of failure."""
    failed: list[_Refusal] = []
    worked: dict[str, set[str]] = {}
    for at, step in enumerate(steps):
        tool = step.tool_called
        if step.action.startswith("user"):
            failed.clear()
        given = _leaves(step.tool_input)
        changes = tool is not None and infer_effect(tool) is not Effect.READ
        texts = [step.llm_output or ""] if tool is None else given if changes else []
        for text in texts:
            for one in failed:
                if one.tool != tool and one.is_restated(text):
                    said = f"{one.tool!r} failed in step {one.at}, of which {said_by(text)} says nothing"
                    return finding.Finding(finding.CLAIMED, said, at, tool)
        if tool is None:
            continue
        leaves = [leaf for leaf in given if len(leaf) >= _LEAST_LEAF]
        if not _refused(step):
            worked.setdefault(tool, set()).update(leaves)
            for one in failed:
                if one.tool == tool:
                    one.own -= set(leaves)
            failed = [
                one
                for one in failed
                if (
                    not one.is_mended(leaves)
                    if one.tool == tool
                    else set(one.leaves).isdisjoint(leaves)
                )
            ]
        elif leaves and changes:
            failed.append(_Refusal(at, step, leaves))
            failed[-1].own -= worked.get(tool, set())
    return None


_DONE_BEFORE = Pattern(r"(?i)\balready\b")
"""Words of a failure by which things may well be as they were to be."""


def _refused(step: Step) -> bool:
    """Whether a call was answered with a failure, or with a few words or fields that refuse it."""
    failure = failure_of(step)
    if failure is not None:
        return not _DONE_BEFORE.search(failure.text)
    output = parsed(step.tool_output)
    if isinstance(output, Mapping):
        words = [one for one in output.values() if isinstance(one, str) and len(one.split()) > 2]
        void = None in output.values()
        states = [one.replace("_", " ") for one in output.values() if isinstance(one, str)]
        stopped = False in output.values() or any(
            _REFUSED.match(one) for one in states if len(one.split()) <= _FEW_WORDS
        )
        return len(output) <= _FEW_KEYS and (bool(words) or void) and stopped
    return isinstance(output, str) and len(output) < _FEW and _REFUSED.search(output) is not None


_TABLE = Pattern(r"[\[{][^\[\]{}()]{0,400}[\]}]")
"""A list or an object in code that holds no call."""
_DRAWN = Pattern(
    r"\brandom\.(?:random|uniform|randint|randrange|choices?|sample|gauss|normal|rand|randn|integers)\("
)
_BY_CHANCE = Pattern(
    r"(?i)random|simulat|chance|probab|dice|shuffl|lotter|monte carlo|guess|password|generat|game|sampl"
)
"""What a task speaks of for which chance is needed."""
_LEAST_FIGURES = 3
_CODE = ("code", "script", "source", "program", "python")


def _made_up_data(steps: Sequence[Step], given: str) -> finding.Finding | None:
    """Code with a table of numbers that nothing before has: the model made them up."""
    known = set(_numbers(given))
    for at, step in enumerate(steps):
        if step.tool_called is not None and isinstance(step.tool_input, Mapping):
            code = next(
                (one for key in _CODE if isinstance(one := step.tool_input.get(key), str)), ""
            )
            drawn = _DRAWN.search(code[:_MAX_TEXT])
            if drawn is not None and not _BY_CHANCE.search(given):
                text = f"the code draws data by chance, {said_by(drawn[0])}"
                return finding.Finding(finding.MADE_UP_DATA, text, at, step.tool_called)
            for table in _TABLE.findall(code[:_MAX_TEXT]):
                strange = {value for value in _numbers(table) if value >= 10} - known
                if len(strange) >= _LEAST_FIGURES:
                    text = f"the code holds {said_by(table)}, which nothing before it has"
                    return finding.Finding(finding.MADE_UP_DATA, text, at, step.tool_called)
            known.update(_numbers(code[:_MAX_TEXT]))
        for shown in (text_in(step.tool_output), step.llm_output if at == 0 else None):
            known.update(_numbers(shown or ""))
    return None


_LEAST_FAILURES = 4


def _same_failure(steps: Sequence[Step]) -> finding.Finding | None:
    """The same failure from the same tool to the end, although it was given something else each time."""
    first, count, last = -1, 0, ("", "")
    for at, step in enumerate(steps):
        if step.tool_called is None:
            continue
        failure = failure_of(step)
        told = "" if failure is None else failure.text.rstrip().rpartition("\n")[2]
        now = (step.tool_called, re.sub(r"\d+", "#", told)) if told else ("", "")
        if now != last or not told:
            first, count, last = at, 0, now
        count += 1
    if count < _LEAST_FAILURES or not last[0]:
        return None
    text = f"{last[0]!r} failed {count} times alike: {said_by(last[1])}"
    return finding.Finding(finding.SAME_ERROR, text, first, last[0], count, 1)


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?;:])\s|\n", text)
