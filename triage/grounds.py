"""How strictly an answer must rest on what the agent was given or found: `Grounds`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ._options import check_count, check_word, misuse

FACT_KINDS = ("number", "id", "url", "path", "quote", "email", "date", "sum", "claim")
"""The kinds of facts an answer may be judged by."""
_BY_DEFAULT = tuple(kind for kind in FACT_KINDS if kind != "sum")


@dataclass(frozen=True)
class Grounds:
    """How strictly an answer must rest on what the agent was given or found.

    kinds: the facts that are looked at, any of `number`, `id`, `url`, `path`, `quote`, `email`,
    `date` (times too), `sum` (one that is written out and wrong) and `claim` (of an action no step
    shows); all but `sum` by default, as wrong arithmetic is no invention. at_least: how many facts
    without a source fail a result, 1 by default. sources: what the agent knows besides its task and
    steps, such as its system prompt: any JSON value, or None.

    Raises UsageError, which names the field, for a value of another kind.
    """

    kinds: tuple[str, ...] = _BY_DEFAULT
    at_least: int = 1
    sources: Any = None

    def __post_init__(self) -> None:
        kinds: Any = self.kinds
        if isinstance(kinds, str) or not isinstance(kinds, Iterable):
            raise misuse("Grounds.kinds", kinds, "a tuple of kinds", "write kinds=(kind,)")
        object.__setattr__(self, "kinds", tuple(kinds))
        if not self.kinds:
            raise misuse("Grounds.kinds", kinds, "a tuple of kinds", "write grounding=False")
        for kind in self.kinds:
            check_word("Grounds.kinds item", kind, FACT_KINDS)
        check_count("Grounds.at_least", self.at_least, 1, "1 fails a result for any fact")
