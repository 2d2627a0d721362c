"""Loops, found as steps come: the same call with the same result, alone or in a cycle.

A loop is judged by tool, arguments and result together. Polling, where the same call gets another
result, is none; nor is working through a list, where another call gets the same result.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from triage.steps import ACTION, ERROR, INPUT, METADATA, OUTPUT, SAID, TOOL, Row, Step, step_of

from ._near import near, near_text

REPEATS = 3
"""How often a step or a cycle must stand there."""
SAID_REPEATS = 5
"""How often words without a call must, where calls came before them."""
MAX_CYCLE = 6
"""The longest cycle looked for, in steps."""
TALK = 10
"""Turns of words in a row that are a monologue."""
_LENGTHS = range(1, MAX_CYCLE + 1)
_ROW = [(REPEATS - 1) * length for length in range(MAX_CYCLE + 1)]
"""Of a cycle, by its length: steps in a row that are like the one so many before, where it is a loop."""
_ROUND = math.lcm(*_ROW[1:])
_SAMPLED = [
    tuple(length for length in _LENGTHS if (at + 1) % _ROW[length] == 0) for at in range(_ROUND)
]
"""The lengths for which a step is compared while no row is seen, by its place: one step in each row."""
_KEPT = 2 * REPEATS * MAX_CYCLE
_MAX_SAID = 600
_AROUND = 0.8


class Loop(NamedTuple):
    """start: position of its first step. length: steps in one cycle. repeats: whole cycles seen.

    kind: `same`, `near` (other words, same result), `error` (the same error from the same tool) or
    `talk` (words without a call).
    """

    start: int
    length: int
    repeats: int
    kind: str = "same"


class Loops:
    """Is told each step once, and knows whether the last ones are a loop.

    Work and memory for a step are bounded: it is compared with some of the six before it. exempt:
    tools that may repeat themselves; a step of theirs ends a loop. tools: True if the agent is known
    to have tools, without which words alone are no monologue.
    """

    __slots__ = (
        "_called", "_exempt", "_failed", "_near", "_places", "_recent", "_same", "_seen", "_talk",
        "_tools", "_warm",
    )  # fmt: skip

    def __init__(self, exempt: frozenset[str] = frozenset(), *, tools: bool = False) -> None:
        self._exempt = exempt
        self._tools = tools
        self._called = False
        self.clear()

    def clear(self) -> None:
        """Forget what came before."""
        self._recent: list[Row] = []
        self._places: list[int] = []
        self._seen = 0
        # For each length of a cycle: how many steps in a row were like the one so many before. Zero also
        # while nobody has looked: of a row as long as a loop's one step is compared, and those before it
        # if it fits.
        self._same = [0] * (MAX_CYCLE + 1)
        self._near = [0] * (MAX_CYCLE + 1)
        self._failed = (0, -1)
        self._talk = (0, -1)
        self._warm = False

    def add(self, step: Row, at: int) -> Loop | None:
        """The next step of the attempt, which stands at this position; the loop it stands in, if any."""
        tool = step[TOOL]
        if tool is None:
            if step[OUTPUT] is None and step[SAID] is None:
                # Of a step that records nothing but its name nothing can be said.
                self.clear()
                return None
        elif tool in self._exempt:
            self.clear()
            return None
        seen = self._seen
        self._seen = seen + 1
        sampled = _SAMPLED[seen % _ROUND]
        if sampled or self._warm:
            self._compare(step, seen, sampled)
        if tool is None or step[ERROR] is not None or self._failed[0] or self._talk[0]:
            self._count(step, at)
        if tool is not None:
            self._tools = self._called = True
        recent = self._recent
        recent.append(step)
        self._places.append(at)
        if len(recent) > _KEPT:
            del recent[: -_KEPT // 2], self._places[: -_KEPT // 2]
        return self.standing if self._warm or self._failed[0] or self._talk[0] else None

    def _compare(self, step: Row, seen: int, sampled: tuple[int, ...]) -> None:
        """Count on, for each length of a cycle, where this step is like the one so many before."""
        near_, recent = self._near, self._recent
        warm = False
        for length in _LENGTHS if self._warm else sampled:
            counted = near_[length]
            if not (counted or length in sampled):
                continue
            kind = _alike(step, recent[-length])
            if not kind:
                self._same[length] = near_[length] = 0
                continue
            warm = True
            if counted:
                near_[length] = counted + 1
                self._same[length] = self._same[length] + 1 if kind == _EQUAL else 0
            else:
                self._count_back(length, kind, seen)
        self._warm = warm

    def _count_back(self, length: int, kind: str, seen: int) -> None:
        """Count the row that the step to come ends, from where it began: it is one of this kind."""
        recent = self._recent
        near_ = 1
        same = equal = int(kind == _EQUAL)
        for back in range(1, min(_ROW[length], seen - length + 1)):
            kind = _alike(recent[-back], recent[-back - length])
            if not kind:
                break
            near_ += 1
            equal = equal and kind == _EQUAL
            same += equal
        self._near[length], self._same[length] = near_, same

    def _count(self, step: Row, at: int) -> None:
        if step[TOOL] is None and step[ACTION] == _MODEL and step[OUTPUT] is not None:
            return  # a model that asks for calls says nothing itself: what its calls come to counts
        self._count_errors(step, at)
        if step[TOOL] is None:
            self._count_talk(step, at)
        else:
            self._talk = (0, -1)

    def _count_errors(self, step: Row, at: int) -> None:
        if step[TOOL] is None or step[ERROR] is None:
            self._failed = (0, -1)
            return
        before = self._recent[: -MAX_CYCLE - 1 : -1]
        last = next((other for other in before if other[TOOL] is not None), None)
        if (
            last is not None
            and last[ERROR] is not None
            and self._failed[0]
            and last[TOOL] == step[TOOL]
            and _shape(last[ERROR]) == _shape(step[ERROR])
        ):
            self._failed = (self._failed[0] + 1, self._failed[1])
        else:
            self._failed = (1, at)

    def _count_talk(self, step: Row, at: int) -> None:
        last = self._recent[-1] if self._recent else None
        same = last is not None and last[TOOL] is None and last[ACTION] == step[ACTION]
        if same and step[SAID] and self._talk[0]:
            self._talk = (self._talk[0] + 1, self._talk[1])
        else:
            self._talk = (1, at) if step[SAID] else (0, -1)

    @property
    def standing(self) -> Loop | None:
        """The loop the steps are in now, None if they are in none; the surest kind first."""
        for counts, kind in ((self._same, "same"), (self._near, "near")):
            if max(counts) < REPEATS - 1:
                continue
            for length in _LENGTHS:
                count = counts[length]
                if count >= _ROW[length] and count >= length * (self._needed(length) - 1):
                    size = count + length
                    start = self._place(size)
                    return Loop(start, length, size // length, kind)
        if self._failed[0] >= REPEATS:
            return Loop(self._failed[1], 1, self._failed[0], "error")
        if self._tools and self._talk[0] >= TALK:
            return Loop(self._talk[1], 1, self._talk[0], "talk")
        return None

    def _needed(self, length: int) -> int:
        """How many rounds make a loop: an answer said again after the work is done does no harm."""
        if self._called and all(step[TOOL] is None for step in self._recent[-length:]):
            return SAID_REPEATS
        return REPEATS

    def one_round(self, loop: Loop) -> list[Step]:
        """The steps of one round of the standing loop, from where it began."""
        last = self._recent[-loop.length :]
        turned = (self._same if loop.kind == "same" else self._near)[loop.length] % loop.length
        cut = (loop.length - turned) % loop.length
        return [step_of(row) for row in last[cut:] + last[:cut]]

    def _place(self, back: int) -> int:
        places = self._places
        if back <= len(places):
            return places[-back]
        return places[0] - (back - len(places))  # older places are not kept: as if without gaps


def ends_anew(steps: Sequence[Step], exempt: Collection[str] = ()) -> bool:
    """True if no loop stands at the end of these steps: the last call is like none that it would repeat.

    False says nothing. It is what most attempts end with, and is seen without going through them all.
    """
    if not steps:
        return True
    last = steps[-1].row
    tool = last[TOOL]
    if last[METADATA]:
        return False
    if tool is None or last[ERROR] is not None:
        return False  # words and errors are counted, not compared
    if tool in exempt:
        return True
    for lag in range(1, min(MAX_CYCLE, len(steps) // REPEATS) + 1):
        other = steps[-1 - lag].row
        if other[METADATA]:
            return False  # a step that is passed over moves those before it
        if _alike(last, other):
            return False
    return True


_MODEL = "model"
"""The action of a step that is a call of a model."""
_EQUAL, _REWORDED = "equal", "reworded"


def same_step(one: Step, other: Step) -> bool:
    """True for the same tool (or, without one, the same words), arguments, result and error."""
    return _alike(one.row, other.row) == _EQUAL and _says_something(one.row)


def reach_back(steps: Sequence[Step], loop: Loop) -> Loop:
    """The same loop from its true beginning, where it began before the steps that were looked at."""
    start, length = loop.start, loop.length
    while start > 0 and same_step(steps[start - 1], steps[start - 1 + length]):
        start -= 1
    gained = loop.start - start
    return loop._replace(start=start, repeats=loop.repeats + gained // length)


def _alike(one: Row, other: Row) -> str:
    """How alike two steps are: equal, other in wording, or not (empty)."""
    if one[TOOL] != other[TOOL] or one[OUTPUT] != other[OUTPUT]:
        return ""
    if one[ERROR] != other[ERROR] or one[ACTION] != other[ACTION]:
        return ""
    if one[TOOL] is None and one[SAID] != other[SAID]:
        return _REWORDED if _said_alike(one, other) else ""
    left, right = one[INPUT], other[INPUT]
    if left == right:
        return _EQUAL
    if isinstance(left, str) and isinstance(right, str) and left[:1] == right[:1] == "{":
        # Arguments may come as JSON text, whose spaces and key order mean nothing.
        left, right = parsed(left), parsed(right)
        if left == right:
            return _EQUAL
    return _REWORDED if near(left, right) else ""


def _said_alike(one: Row, other: Row) -> bool:
    left, right = one[SAID], other[SAID]
    if not left or not right or one[INPUT] != other[INPUT]:
        return False
    if len(left) > _MAX_SAID or not _AROUND <= len(left) / len(right) <= 1 / _AROUND:
        return False
    return near_text(left, right)


def _says_something(step: Row) -> bool:
    """A step that records nothing but its name gives nothing to compare."""
    return step[TOOL] is not None or step[SAID] is not None or step[OUTPUT] is not None


def parsed(text: str) -> Any:
    """What JSON text says; the text itself where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


@lru_cache(maxsize=64)
def _shape(error: str) -> str:
    """An error without what changes from call to call."""
    return re.sub(r"\d+|0x[0-9a-f]+|'[^'\n]{0,80}'|\"[^\"\n]{0,80}\"", "#", error[:300].lower())
