"""Loops, found as steps come: the same call with the same result, alone or in a cycle.

A loop is judged by tool, arguments and result together. Polling is none: the same call gets another
result, or one that says it is not done yet, or somebody waited in between. Nor is working through a
list, where another call gets the same result.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

from msgspec import Struct

from triage.core.state import is_reused
from triage.core.steps import Step
from triage.core.taxonomy import Effect, names_a_change

from .results import denies, is_pending, parsed

REPEATS = 3
"""How often a step or a cycle must stand there."""
COUNTED_REPEATS = 5
"""How often one must whose calls differ in numbers alone."""
COUNTED_ROUNDS = 4
"""How often such a cycle of several steps must."""
VAGUE_REPEATS = 8
"""How often one must whose calls share a word and are given nothing."""
SAID_REPEATS = 5
"""How often words without a call must, where calls came before them."""
MAX_CYCLE = 6
"""The longest cycle looked for, in steps."""
WAITED = 1.0
"""Seconds between two equal calls, in neither a model nor a tool, that make the second a poll."""
_KEPT = 2 * REPEATS * MAX_CYCLE
_EQUAL, _REWORDED, _COUNTED, _VAGUE = "equal", "reworded", "counted", "vague"
_SHOWS = {
    _EQUAL: ("same", "near", "counted", "vague"),
    _REWORDED: ("near", "counted", "vague"),
    _COUNTED: ("counted", "vague"),
    _VAGUE: ("vague",),
}
"""The kinds of loops that two steps may belong to, by how alike they are."""


class Loop(NamedTuple):
    """start: position of its first step. length: steps in one cycle. repeats: whole cycles seen.

    kind: `same`, `near` (other words, same result), `counted` (other numbers, same result), `vague` (the
    same question asked anew, and nothing found) or `error` (the same error from the same tool).
    """

    start: int
    length: int
    repeats: int
    kind: str = "same"


class Polling(NamedTuple):
    """Equal calls that are no loop. start: position of the first. seconds: from its end to the last's."""

    start: int
    tool: str
    calls: int
    seconds: float


class Idle:
    """Adds up the seconds in which neither a model nor a tool was at work.

    A step without a time, or without a duration, may have taken all the time since the step before.
    """

    __slots__ = ("_seconds", "_until")

    def __init__(self) -> None:
        self._seconds = 0.0
        self._until: float | None = None

    def before(self, step: Step, time: float | None) -> float:
        """Take in the next step, which ended at this time; the idle seconds until it began."""
        until = self._until
        if until is not None and time is not None:
            if step.duration_s is not None:
                self._seconds += max(0.0, time - step.duration_s - until)
            time = max(time, until)
        self._until = time
        return self._seconds


class Calls:
    """Counts equal calls, polls apart.

    name_of: what makes calls equal; None for a step that is not counted.
    """

    def __init__(self, name_of: Callable[[Step], str | None]) -> None:
        self._name_of = name_of
        self._idle = Idle()
        self._last: dict[str, float] = {}
        self.counts: Counter[str] = Counter()

    def add(self, step: Step) -> tuple[str | None, bool]:
        """Take in the next step; its name, and whether it is a poll."""
        idle = self._idle.before(step, step.timestamp)
        name = self._name_of(step)
        if name is None:
            return None, False
        last = self._last.get(name)
        self._last[name] = idle
        if last is not None and (idle - last >= WAITED or is_pending(step.tool_output)):
            return name, True
        self.counts[name] += 1
        return name, False


class Loops:
    """Is told each step once, and knows whether the last ones are a loop.

    Work and memory for a step are bounded: it is compared with the six before it. exempt: tools that
    may repeat themselves; a step of theirs ends a loop. polling: that of the last call, None if it was
    no poll.
    """

    __slots__ = ("_called", "_exempt", "_failed", "_idle", "_recent", "_turns", "polling")

    def __init__(self, exempt: frozenset[str] = frozenset()) -> None:
        self._exempt = exempt
        self._called = False
        self._idle = Idle()
        self.polling: Polling | None = None
        self._clear()

    def _clear(self) -> None:
        self._recent: list[_Seen] = []
        # By the length of a cycle: how many steps in a row, by kind, were like the one so many before.
        self._turns: dict[int, dict[str, int]] = {}
        # How many in a row, and the position of the first.
        self._failed = (0, -1)

    def add(self, step: Step, at: int, time: float | None = None) -> Loop | None:
        """Take in the next step, which stands at this position; return the loop it stands in, or None.

        time: when it was recorded, for a step without a timestamp. A reused step stands between others,
        and repeats nothing by itself.
        """
        if step.timestamp is not None:
            time = step.timestamp
        idle = self._idle.before(step, time)
        called = step.tool_called is not None
        if called:
            self.polling = None
        if not _says_something(step) or step.tool_called in self._exempt:
            # Of a step that records nothing but its name nothing can be said.
            self._clear()
            return None
        seen = _Seen(step, at, time, idle, _holds_numbers(step.tool_input))
        recent = self._recent
        turns: dict[int, dict[str, int]] = {}
        for length, before in enumerate(recent[: -MAX_CYCLE - 1 : -1], 1):
            how = _alike(seen, before, recent[-1] if length > 1 else None)
            if how and seen.polls(before):
                if seen.calls == 1:
                    self._polled(seen, before)
            elif how:
                so_far = self._turns.get(length, {})
                turns[length] = {kind: so_far.get(kind, 0) + 1 for kind in _SHOWS[how]}
        self._turns = turns
        # A model that asks for calls says nothing itself: what its calls come to counts.
        asks = not called and step.action == "model" and step.tool_output is not None
        if not asks and seen.fresh:
            self._count_errors(seen)
        self._called = self._called or called
        recent.append(seen)
        if len(recent) > _KEPT:
            del recent[: _KEPT // 2]
        return self.standing

    def _polled(self, seen: _Seen, before: _Seen) -> None:
        first = seen.first = before.first or before
        seen.calls = before.calls + 1
        seconds = 0.0 if first.time is None or seen.time is None else seen.time - first.time
        self.polling = Polling(first.at, seen.step.tool_called or "", seen.calls, seconds)

    def _count_errors(self, seen: _Seen) -> None:
        step = seen.step
        if step.tool_called is None or step.error is None:
            self._failed = (0, -1)
            return
        before = self._recent[: -MAX_CYCLE - 1 : -1]
        last = next((other for other in before if other.step.tool_called is not None), None)
        count, first = self._failed
        if (
            count
            and last is not None
            and last.step.error is not None
            and last.step.tool_called == step.tool_called
            and _shape(last.step.error) == _shape(step.error)
            and not seen.polls(last)
        ):
            self._failed = (count + 1, first)
        else:
            self._failed = (1, seen.at)

    @property
    def standing(self) -> Loop | None:
        """The loop the steps are in now, None if they are in none; the surest kind first."""
        if not self._turns and not self._failed[0]:
            return None
        for kind in _SHOWS[_EQUAL]:
            for length, counts in self._turns.items():
                size = counts.get(kind, 0) + length
                needed = self._needed(length, kind)
                if size < length * needed:
                    continue
                rounds = self._fresh_rounds(length, size // length)
                if sum(rounds) >= needed:
                    stale = len(rounds) - sum(rounds)
                    return Loop(self._place(size), length, size // length - stale, kind)
        if self._failed[0] >= REPEATS:
            return Loop(self._failed[1], 1, self._failed[0], "error")
        return None

    def _fresh_rounds(self, length: int, rounds: int) -> list[bool]:
        """For each of the last rounds of a cycle that are kept, whether a step of it was not reused."""
        fresh = [one.fresh for one in self._recent[::-1][: rounds * length]]
        return [any(fresh[at : at + length]) for at in range(0, len(fresh), length)]

    def _needed(self, length: int, kind: str) -> int:
        """How many rounds make a loop: an answer said again after the work is done does no harm."""
        if kind == "vague":
            return VAGUE_REPEATS
        if kind == "counted":
            return COUNTED_REPEATS if length == 1 else COUNTED_ROUNDS
        said = all(one.step.tool_called is None for one in self._recent[-length:])
        return SAID_REPEATS if said and self._called else REPEATS

    def one_round(self, loop: Loop) -> list[Step]:
        """The steps of one round of the standing loop, from where it began."""
        last = [one.step for one in self._recent[-loop.length :]]
        turned = self._turns.get(loop.length, {}).get(loop.kind, 0)
        cut = -turned % loop.length
        return last[cut:] + last[:cut]

    def _place(self, back: int) -> int:
        recent = self._recent
        if back <= len(recent):
            return recent[-back].at
        return recent[0].at - (back - len(recent))  # older places: as if without gaps


def same_step(one: Step, other: Step) -> bool:
    """True for the same tool (or, without one, the same words), arguments, result and error."""
    return _says_something(one) and _alike(_Seen(one), _Seen(other), None) == _EQUAL


def _says_something(step: Step) -> bool:
    """A step that records nothing but its name gives nothing to compare."""
    return (
        step.tool_called is not None or step.llm_output is not None or step.tool_output is not None
    )


_MOST_VALUES = 300
_MOST_TEXT = 2_000
_MOST_TAIL = 200


class _Seen(Struct, gc=False, eq=False):
    """A step in its place.

    numbers: its arguments are numbers alone. first, calls: of equal calls that poll, the first one before
    this one, and how many they are. read: the step's outline, once another step may be like it.
    """

    step: Step
    at: int = 0
    time: float | None = None
    idle: float = 0.0
    numbers: bool = False
    first: _Seen | None = None
    calls: int = 1
    read: _Outline | None = None

    @property
    def fresh(self) -> bool:
        """Whether the step was not reused from an earlier attempt."""
        return not (self.step.metadata and is_reused(self.step.metadata))

    @property
    def outline(self) -> _Outline:
        if self.read is None:
            self.read = _Outline(self.step)
        return self.read

    def polls(self, before: _Seen) -> bool:
        """Whether this call, which is like one before, was made to see what has come of something."""
        if self.step.tool_called is None:
            return False
        return self.idle - before.idle >= WAITED or self.outline.pending


class _Outline:
    """A step as it is compared with others: of large values by their beginning and size.

    So a step costs the same whatever a tool has returned.
    """

    def __init__(self, step: Step) -> None:
        self.step = step

    @cached_property
    def pending(self) -> bool:
        """Whether the result says that something is not done yet."""
        return is_pending(self.step.tool_output)

    @cached_property
    def output(self) -> tuple[Any, ...]:
        return outline(self.step.tool_output)

    @cached_property
    def given(self) -> Any:
        """What the tool was given; parsed, if it is JSON."""
        return parsed(self.step.tool_input)

    @cached_property
    def arguments(self) -> tuple[Any, ...]:
        return outline(self.given)

    @cached_property
    def counted(self) -> Any:
        """The arguments without their numbers."""
        if not isinstance(self.given, dict):
            return self.given
        return {key: "#" if _is_count(value) else value for key, value in self.given.items()}

    @cached_property
    def counts(self) -> set[str]:
        """The numbers that are left out in `counted`."""
        values = self.given.values() if isinstance(self.given, dict) else ()
        return {str(value) for value in values if _is_count(value)}

    @cached_property
    def worded(self) -> Any:
        """The arguments without what differs from wording to wording."""
        return _worded(self.given)

    @cached_property
    def changes(self) -> bool:
        """Whether the call changes something, as declared or by the name of its tool."""
        effect = self.step.effect
        if effect is None or effect == Effect.UNKNOWN:
            return names_a_change(self.step.tool_called or "")
        return effect != Effect.READ

    @cached_property
    def nothing(self) -> str:
        """The text of a result that says there is nothing, or holds an empty list; empty for others."""
        output = self.step.tool_output
        if isinstance(output, str):
            if len(output) > _SHORT_RESULT or not (_is_void(output) or denies(output)):
                return ""
            return output or "None"
        text = str(self.output) if any(map(_is_nothing, self.output)) else ""
        return text if len(text) <= _SHORT_RESULT else ""

    @cached_property
    def residue(self) -> str:
        """What is left of `nothing` without what was asked."""
        text, given = self.nothing, self.given
        asked = given.values() if isinstance(given, dict) else (given,)
        found = sorted(map(re.escape, filter(None, map(str, asked))), key=len, reverse=True)
        within = "|".join(found)
        return re.sub(rf"(?<!\w)(?:{within})(?!\w)", "#", text) if within else text

    @cached_property
    def timeless(self) -> tuple[Any, ...]:
        """The output without its times of day and its own id, if it is short; else as it is."""
        if len(self.output) > _FEW_VALUES:
            return self.output
        kept = [
            value
            for before, value in zip((None, *self.output), self.output, strict=False)
            if not (isinstance(before, str) and _ID_KEY.fullmatch(before))
        ]
        return tuple(_CHANGES.sub("#", one) if isinstance(one, str) else one for one in kept)


def outline(value: Any) -> tuple[Any, ...]:
    """A JSON value as a flat tuple: its first 300 keys and values, and the sizes of what holds them.

    Texts of more than 2,000 characters count by their beginning, their end and their length.
    """
    if value is None or (isinstance(value, str) and len(value) <= _MOST_TEXT):
        return (value,)
    found: list[Any] = []
    stack = [value]
    while stack and len(found) < _MOST_VALUES:
        item = stack.pop()
        if isinstance(item, str) and len(item) > _MOST_TEXT:
            found += (len(item), item[:_MOST_TEXT], item[-_MOST_TAIL:])
        elif isinstance(item, dict):
            found.append(("{}", len(item)))
            for key in sorted(islice(item, _MOST_VALUES), reverse=True):
                stack += (item[key], key)
        elif isinstance(item, list):
            found.append(("[]", len(item)))
            stack += reversed(item[:_MOST_VALUES])
        else:
            found.append(item)
    return tuple(found)


def _alike(one: _Seen, other: _Seen, beside: _Seen | None) -> str:
    """How alike two steps are: equal, other in wording, other in numbers, or not (empty).

    beside: of a cycle, the step of the same round before `one`.
    """
    step, before = one.step, other.step
    called = step.tool_called is not None
    if (
        step.tool_called != before.tool_called
        or step.action != before.action
        or step.error != before.error
        or not (called or step.llm_output == before.llm_output)
    ):
        return ""
    if not _same_output(one, other):
        return _alike_results(one.outline, other.outline, beside) if called else ""
    if step.tool_input == before.tool_input:
        return _EQUAL
    if one.numbers and other.numbers and step.tool_input.keys() == before.tool_input.keys():
        return ""  # they are about no one thing
    this, that = one.outline, other.outline
    if this.arguments == that.arguments:
        return _EQUAL
    if not called and beside is not None and _goes_on(this.given, that.given):
        return _EQUAL
    return _alike_arguments(this, that, beside)


def _same_output(one: _Seen, other: _Seen) -> bool:
    output, before = one.step.tool_output, other.step.tool_output
    if isinstance(output, str) and len(output) <= _MOST_TEXT:
        return bool(output == before)
    return output is before or one.outline.output == other.outline.output


def _holds_numbers(given: Any) -> bool:
    """Whether arguments are numbers alone."""
    return type(given) is dict and _NUMBERS.issuperset(map(type, given.values()))


def _goes_on(given: Any, before: Any) -> bool:
    """Whether a model was sent the conversation that it was sent before, and what came since."""
    if isinstance(given, dict) and isinstance(before, dict):
        return given.keys() == before.keys() and all(
            item == before[key] or _goes_on(item, before[key]) for key, item in given.items()
        )
    if not isinstance(given, list) or not isinstance(before, list):
        return False
    size = len(before)
    return 0 < size < len(given) and given[0] == before[0] and given[size - 1] == before[-1]


def _alike_results(one: _Outline, other: _Outline, beside: _Seen | None) -> str:
    """How alike two calls of a tool are whose results are not equal."""
    if one.step.tool_input == other.step.tool_input:
        return _COUNTED if one.timeless == other.timeless else ""
    if not one.nothing or not other.nothing:
        return ""
    if one.counted == other.counted:
        return _COUNTED if _is_void(one.nothing) and one.residue == other.residue else ""
    # Asked in other words: how many there were, and how long it took, is no answer.
    left, right = (re.sub(r"\d+", "#", text) for text in (one.residue, other.residue))
    return _alike_arguments(one, other, beside) if left == right else ""


_CHANGES = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?[\d.,]{0,10}(?:Z|[+-]\d\d:?\d\d)?"
    r"|(?<=\{\"id\": )\"?\w{1,40}\"?(?=, )"
)
_ID_KEY = re.compile(r"id|(?:run|job|request|trace)_?id", re.IGNORECASE)
_FEW_VALUES = 20


_LONG_RESULT = 40
_SHORT_RESULT = 400


def _alike_arguments(one: _Outline, other: _Outline, beside: _Seen | None) -> str:
    """How alike the arguments of two calls with the same result are that are not equal.

    Those that differ in numbers alone are a try, a page, a time; but working through a list differs in
    numbers too. So they must be about one thing. Where the result is nothing, other words for the same
    question, or more of them, are another try.
    """
    if max(len(one.arguments), len(other.arguments)) >= _MOST_VALUES:
        return ""
    given, again = one.given, other.given
    both = isinstance(given, dict) and isinstance(again, dict)
    if both and one.counted == other.counted:
        return _COUNTED if _is_about_one_thing(one, given, again, beside) else ""
    if one.worded == other.worded:
        return _REWORDED
    return _alike_questions(one, given, again, beside) if both and one.nothing else ""


def _alike_questions(
    one: _Outline, given: dict[str, Any], again: dict[str, Any], beside: _Seen | None
) -> str:
    """How alike two questions are that found nothing, of which one may have more arguments."""
    if not (given.keys() <= again.keys() or again.keys() <= given.keys()):
        return ""
    pairs = [(given[key], again[key]) for key in given.keys() & again.keys()]
    changed = [(before, after) for before, after in pairs if before != after]
    if all(near(*pair) for pair in changed):
        return _REWORDED
    if all(_is_count(before) and _is_count(after) for before, after in changed):
        return _COUNTED if _is_about_one_thing(one, given, again, beside) else ""
    if all(_is_asked_again(*pair) for pair in changed):
        return _COUNTED
    return _VAGUE if all(_is_asked_anew(*pair) for pair in changed) else ""


def _is_about_one_thing(
    one: _Outline, given: dict[str, Any], again: dict[str, Any], beside: _Seen | None
) -> bool:
    """Whether two calls share an id, or a name and no result, or a name and a result that says much.

    Two calls that change something are about two things, unless words say that nothing came of them, or
    their numbers only count the calls: then a read before in the round has another one.
    """
    result = one.step.tool_output
    said = result if isinstance(result, str) else ""
    if one.changes and not (said and denies(said) and not _is_void(said)):
        numbers = set[str]() if beside is None or beside.outline.changes else beside.outline.counts
        if not numbers or not numbers.isdisjoint(one.counts):
            return False
    much = one.nothing != "" or (isinstance(result, str) and len(result) >= _LONG_RESULT)
    kept = [text for key, text in given.items() if isinstance(text, str) and again.get(key) == text]
    return any(_DIGIT.search(text) or (len(text) > 2 and much) for text in kept)


_NUMBERS = frozenset({int, float, bool, type(None)})
_DIGIT = re.compile(r"\d")
_COUNT = re.compile(r"\d[\d.:TZ+-]*|(?=.*\d)[0-9a-f]{12,}|[0-9a-f]{8}(?:-[0-9a-f]{4,12}){4}")
"""A number, a time, or a token that a program has made, such as the key of a request."""


def _is_void(text: str) -> bool:
    """Whether a text holds an empty list, object or value."""
    return "[]" in text or "{}" in text or "null" in text or "None" in text or "alse" in text


def _is_nothing(value: Any) -> bool:
    """Whether a value of an outline is null, false, or the head of an empty list or object."""
    return value is None or value is False or value in (("[]", 0), ("{}", 0))


def _is_count(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) < _LONG_RESULT and _COUNT.fullmatch(value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shape(error: str) -> str:
    """An error without what changes from call to call."""
    return re.sub(r"\d+|0x[0-9a-f]+|'[^'\n]{0,80}'|\"[^\"\n]{0,80}\"", "#", error[:300].lower())


# --- other words for the same ----------------------------------------------------------------

_LONGEST = 2_000
_ARTICLES = frozenset({"a", "an", "the", "please", "of", "for", "in", "on"})
_STEM = 3


def near(one: Any, other: Any) -> bool:
    """Whether two JSON values say the same but for their wording: case, marks, articles, plurals.

    A word put in place of another, a number or a name is another question: that is how lists are worked
    through. Texts over 2,000 characters must be equal.
    """
    return bool(_worded(one) == _worded(other))


def _worded(value: Any) -> Any:
    """A JSON value with the words of its texts, as `words` gives them, in their place."""
    if isinstance(value, str):
        return (words(value) or value) if len(value) <= _LONGEST else value
    if isinstance(value, dict):
        return {key: _worded(item) for key, item in value.items()}
    return value


_SHARED = 0.6


def _is_asked_again(one: Any, other: Any) -> bool:
    """Whether two arguments have the same words in another order, or nearly the same ones and a number."""
    if _is_count(one) and _is_count(other):
        return True
    if not isinstance(one, str) or not isinstance(other, str) or len(one) + len(other) > _LONGEST:
        return near(one, other)
    figures = re.findall(r"\d+", one)
    if sorted(figures) != sorted(re.findall(r"\d+", other)):
        return False
    left, right = set(words(one)), set(words(other))
    shared = len(left & right)
    if shared < 2:
        return False
    if left <= right or right <= left:
        added = {word.lower() for word in re.findall(r"(?<=\s)[A-Z]\w*", f"{one} {other}")}
        return 2 * shared >= max(len(left), len(right)) and (left ^ right).isdisjoint(added)
    return bool(figures) and shared >= _SHARED * max(len(left), len(right))


def _is_asked_anew(one: Any, other: Any) -> bool:
    """Whether two texts share a word, and the figures of one are among those of the other.

    Texts that differ in one place alone, with other words there, ask about one thing after another.
    """
    if not isinstance(one, str) or not isinstance(other, str) or len(one) + len(other) > _LONGEST:
        return False
    figures, others = re.findall(r"\d+", one), re.findall(r"\d+", other)
    left, right = words(one), words(other)
    if set(left).isdisjoint(right) or not (_among(figures, others) or _among(others, figures)):
        return False
    most = min(len(left), len(right))
    begin = next((at for at in range(most) if left[at] != right[at]), most)
    end = next((at for at in range(most - begin) if left[-1 - at] != right[-1 - at]), most - begin)
    one_place = begin + end >= most - end - begin and begin + end < most
    return not one_place or not set(left[begin : len(left) - end]).isdisjoint(
        right[begin : len(right) - end]
    )


def _among(figures: list[str], others: list[str]) -> bool:
    """Whether each figure is one of the others, or its end, as 62 is that of 1962."""
    return all(any(other.endswith(figure) for other in others) for figure in figures)


def words(text: str) -> tuple[str, ...]:
    """The words of a text in small letters, without articles and the s of a plural."""
    return tuple(
        word[:-1] if word[-1] == "s" and len(word) > _STEM else word
        for word in re.findall(r"[^\W_]+", text.lower())
        if word not in _ARTICLES
    )
