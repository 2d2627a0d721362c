"""Exact repetition at the end of a trajectory: the same call and result, or a cycle of calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from triage.steps import Step

REPEATS = 3
"""How often a step or a cycle must stand there, unchanged."""
MAX_CYCLE = 6
"""The longest cycle looked for, in steps."""


class Loop(NamedTuple):
    """start: position of its first step. length: steps in one cycle. repeats: whole cycles seen."""

    start: int
    length: int
    repeats: int


def find_loop(steps: Sequence[Step]) -> Loop | None:
    """The loop a trajectory ends in, None if it does not; steps that were replayed do not count.

    Polling, where the same call gives another result, is none. Time is linear in the length of the
    loop.
    """
    if len(steps) < REPEATS:
        return None
    places = _Places(steps)
    for length in range(1, MAX_CYCLE + 1):
        matching = 0
        needed = length * (REPEATS - 1)
        while places.same(matching, matching + length):
            matching += 1
        if matching >= needed:
            size = matching + length
            repeats = size // length
            start = places.position(size - 1)
            return None if start is None else Loop(start, length, repeats)
    return None


class _Places:
    """Steps counted from the end, without the replayed ones; found as far as they are asked for."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._found: list[int] = []
        self._next = len(steps) - 1

    def position(self, back: int) -> int | None:
        """Where the step stands that is `back` steps before the last one."""
        while len(self._found) <= back and self._next >= 0:
            step = self._steps[self._next]
            if not (step.metadata and step.metadata.get("replayed")):
                self._found.append(self._next)
            self._next -= 1
        return self._found[back] if back < len(self._found) else None

    def same(self, one: int, other: int) -> bool:
        """True if both steps exist and did exactly the same, with the same result."""
        later, earlier = self.position(one), self.position(other)
        if later is None or earlier is None:
            return False
        return same_step(self._steps[later], self._steps[earlier])


def same_step(one: Step, other: Step) -> bool:
    """True for the same tool (or, without one, the same words), arguments, result and error."""
    if one is other or _equal(one[_WHAT_IT_DID], other[_WHAT_IT_DID]):
        return _says_something(one)
    return (
        one.tool_called == other.tool_called
        and one.action == other.action
        and one.error == other.error
        and (one.tool_called is not None or one.llm_output == other.llm_output)
        and _says_something(one)
        and _same(one.tool_input, other.tool_input)
        and _same(one.tool_output, other.tool_output)
    )


_WHAT_IT_DID = slice(1, 7)
"""The fields of a step from its action to its error: in most loops they are simply equal."""


def _says_something(step: Step) -> bool:
    """A step that records nothing but its name gives nothing to compare."""
    return (
        step.tool_called is not None or step.llm_output is not None or step.tool_output is not None
    )


def _equal(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # noqa: BLE001 - a foreign object that cannot be compared is not the same
        return False


def _same(one: Any, other: Any) -> bool:
    if _equal(one, other):
        return True
    # Arguments may come as JSON text, whose spaces and key order mean nothing.
    if isinstance(one, str) and isinstance(other, str) and one[:1] == other[:1] == "{":
        try:
            return bool(json.loads(one) == json.loads(other))
        except (ValueError, RecursionError):
            return False
    return False
