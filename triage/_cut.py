"""Steps that are too large for a store are cut, and say so: `fitting`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING, Any

from ._parts import ITEM, SLICE, json_parts, weight
from ._plain import MARK
from .events import CallStarted, Event, StepRecorded
from .steps import ACTION, ERROR, INPUT, METADATA, OUTPUT, SAID

if TYPE_CHECKING:
    from ._redactor import Redactor
    from .steps import Row, Step

HEAVY = SLICE
"""Characters of events from which on they are made ready in a thread of their own."""
WHOLE = 8 * 2**20
"""Characters that a step may hold before its values are cut."""
KEPT = 2**20
"""Characters that stay of a value that is cut."""
_BEHIND = 2**15
"""What is looked at behind them, so that a secret is known that goes on there: no shape is longer."""


def weight_of(event: Event, most: float = inf) -> int:
    """How many characters an event holds in values that are given, nearly. most: as in `weight`."""
    if isinstance(event, StepRecorded):
        return weight_of_step(event.step.row, most)
    return weight(event, most)


def weight_of_step(row: Row, most: float) -> int:
    """As `weight_of`."""
    given, output, said = row[INPUT], row[OUTPUT], row[SAID]
    # The common case first: a step is weighed whenever one is recorded.
    if (
        output.__class__ is str
        and given.__class__ is dict
        and row[ERROR] is None
        and row[METADATA] is None
    ):
        found = len(output) if said is None else len(output) + len(said)
        for item in given.values():
            if item.__class__ is str:
                found += len(item)
            elif item.__class__ is not int:
                break
        else:
            return found
    return weight(row[ACTION : METADATA + 1], most)


def fitting(event: Event, redactor: Redactor | None) -> Event:
    """The event as a store may keep it; the very same object where nothing is cut.

    Of a step that holds more than 8 million characters each longer value keeps the first million, its
    length and its SHA-256; so do the arguments of a call. Nothing else is cut: a run goes on with it.
    """
    if weight_of(event) > WHOLE:
        if isinstance(event, StepRecorded):
            return event._replace(step=_shortened(event.step, redactor))
        if isinstance(event, CallStarted):
            return event._replace(arguments=_Cutter(redactor).cut(event.arguments))
    return event


def _shortened(step: Step, redactor: Redactor | None) -> Step:
    """The step, with those of its values cut that are long."""
    cutter = _Cutter(redactor)
    fields: dict[str, Any] = step._asdict()
    cut = {
        name: cutter.cut(value)
        for name, value in fields.items()
        if isinstance(value, str | dict | list) and weight((value,)) > KEPT
    }
    return step._replace(**cut)


def _measured(parts: Iterable[str]) -> tuple[int, str]:
    """How long a text in parts is, and its digest."""
    length, digest = 0, hashlib.sha256()
    for part in parts:
        length += len(part)
        digest.update(part.encode("utf-8", "surrogatepass"))
    return length, digest.hexdigest()


class _Cutter:
    """Cuts values. redactor: what is cut is looked through first, as half a secret is not known for one."""

    def __init__(self, redactor: Redactor | None) -> None:
        self._redactor = redactor
        self._left = 0

    def cut(self, value: Any) -> Any:
        """The beginning of a long value, and what is known of the whole."""
        self._left = KEPT
        if isinstance(value, str):
            parts = (value[at : at + SLICE] for at in range(0, len(value), SLICE))
            length, digest = _measured(parts)
            return f"{self._text(value)} [of {length} characters, SHA-256 {digest}]"
        length, digest = _measured(json_parts(value))
        return {
            MARK: "cut",
            "type": type(value).__name__,
            "characters": length,
            "sha256": digest,
            "value": self._value(value),
        }

    def _text(self, text: str) -> str:
        head = text[: self._left + _BEHIND]
        if self._redactor is not None:
            head = self._redactor.text(head)
        head = head[: self._left]
        self._left = 0
        return f"{head}… [cut]"

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            if len(value) > self._left:
                return self._text(value)
            self._left -= len(value)
        elif isinstance(value, dict):
            return self._mapping(value)
        elif isinstance(value, list):
            items: list[Any] = []
            for item in value:
                if self._left <= 0:
                    items.append({MARK: "cut", "items": len(value) - len(items)})
                    break
                self._left -= ITEM
                items.append(self._value(item))
            return items
        return value

    def _mapping(self, value: dict[str, Any]) -> dict[str, Any]:
        copy: dict[str, Any] = {}
        for key, item in value.items():
            self._left -= ITEM + len(key)
            if self._left <= 0:
                return {**copy, MARK: "cut", "items": len(value) - len(copy)}
            copy[key] = self._value(item)
        return copy
