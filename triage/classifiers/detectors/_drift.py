"""How far an agent has come from its task: a score that abstains, and never a verdict by itself."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

from triage.steps import Step

FAR = 0.85
"""From here on a drift is worth a thought; runs that went well stay below."""
_WORD = re.compile(r"[^\W\d_]{4,30}")
_MAX_TEXT = 600
_MAX_KNOWN = 4_096
_WINDOW = 4
_LEAST = 6
_encode = json.JSONEncoder(ensure_ascii=False, default=str).encode


class Drift:
    """The share of the words in the last four calls that neither task nor earlier steps hold.

    `add` is told each call and what came of it; work for one is bounded, and so is what is kept
    (4,096 words). A word that a result brought up is known from then on: following what was found
    is no drift.
    """

    __slots__ = ("_known", "_last")

    def __init__(self, task: Any = None) -> None:
        self._known: set[str] = set()
        self._last: deque[tuple[int, int]] = deque(maxlen=_WINDOW)
        if task is not None:
            self._learn(_words(task))

    def add(self, arguments: Any, result: Any) -> None:
        """A call and its result, any JSON values."""
        asked = _words(arguments)
        if asked:
            if self._known:
                self._last.append((len(asked), len(asked - self._known)))
            self._learn(asked)
        self._learn(_words(result))

    def _learn(self, words: set[str]) -> None:
        if len(self._known) < _MAX_KNOWN:
            self._known |= words

    @property
    def score(self) -> float | None:
        """From 0, all is known, to 1; None where there are too few words to say."""
        total = sum(count for count, _ in self._last)
        if len(self._last) < _WINDOW or total < _LEAST:
            return None
        return sum(new for _, new in self._last) / total


def drift_of(steps: Sequence[Step], task: Any) -> float | None:
    """The score at the end of some steps."""
    calls = [step for step in steps if step.tool_called is not None]
    # Where the last calls have too few words there is none, and nothing before them has to be read.
    asked = (len(_words(step.tool_input)) for step in reversed(calls))
    last = list(islice(filter(None, asked), _WINDOW))
    if len(last) < _WINDOW or sum(last) < _LEAST:
        return None
    drift = Drift(task)
    for step in calls:
        drift.add(step.tool_input, step.tool_output)
    return drift.score


def _words(value: Any) -> set[str]:
    if value is None:
        return set()
    if not isinstance(value, str):
        try:
            value = _encode(value)[:_MAX_TEXT]
        except (TypeError, ValueError, RecursionError):
            return set()
    return {word[:12] for word in _WORD.findall(value[:_MAX_TEXT].lower())}
