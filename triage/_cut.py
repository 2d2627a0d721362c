"""Steps that are too large for a store are cut, and say so: `fitting`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ._plain import MARK
from .events import CallStarted, Event, StepRecorded

if TYPE_CHECKING:
    from ._redactor import Redactor
    from .steps import Step

HEAVY = 2**20
"""Characters of events from which on they are made ready in a thread of their own."""
WHOLE = 8 * 2**20
"""Characters that a step may hold before its values are cut."""
KEPT = 2**20
"""Characters that stay of a value that is cut."""
_BEHIND = 2**15
"""What is looked at behind them, so that a secret is known that goes on there: no shape is longer."""
_ITEM = 8
"""What an item counts besides its texts."""

_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def weight_of(event: Event) -> int:
    """How many characters an event holds in values that are given, nearly."""
    if not isinstance(event, StepRecorded):
        return _weight(event)
    step = event.step
    given, output, said = step[3], step[4], step[5]
    # The common case first: a step is weighed whenever one is recorded.
    if output.__class__ is str and given.__class__ is dict and step[6] is None and step[10] is None:
        weight = len(output) if said is None else len(output) + len(said)
        for item in given.values():
            if item.__class__ is str:
                weight += len(item)
            elif item.__class__ is not int:
                break
        else:
            return weight
    return _weight(step[1:11])


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


def _weight(values: Iterable[Any]) -> int:
    weight = 0
    todo = [values]
    for container in todo:
        for item in container:
            if item is None:
                continue
            kind = item.__class__
            if kind is str:
                weight += len(item)
            elif kind is dict:
                todo += (item, item.values())
            elif kind is list:
                todo.append(item)
            else:
                weight += _ITEM
    return weight


def _shortened(step: Step, redactor: Redactor | None) -> Step:
    """The step, with those of its values cut that are long."""
    cutter = _Cutter(redactor)
    fields: dict[str, Any] = step._asdict()
    cut = {
        name: cutter.cut(value)
        for name, value in fields.items()
        if isinstance(value, str | dict | list) and _weight((value,)) > KEPT
    }
    return step._replace(**cut)


class _Cutter:
    """Cuts values. redactor: what is cut is looked through first, as half a secret is not known for one."""

    def __init__(self, redactor: Redactor | None) -> None:
        self._redactor = redactor
        self._left = 0

    def cut(self, value: Any) -> Any:
        """The beginning of a long value, and what is known of the whole."""
        self._left = KEPT
        if isinstance(value, str):
            digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
            return f"{self._text(value)} [of {len(value)} characters, SHA-256 {digest}]"
        whole = _json(value)
        return {
            MARK: "cut",
            "type": type(value).__name__,
            "characters": len(whole),
            "sha256": hashlib.sha256(whole.encode()).hexdigest(),
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
                self._left -= _ITEM
                items.append(self._value(item))
            return items
        return value

    def _mapping(self, value: dict[str, Any]) -> dict[str, Any]:
        copy: dict[str, Any] = {}
        for key, item in value.items():
            self._left -= _ITEM + len(key)
            if self._left <= 0:
                return {**copy, MARK: "cut", "items": len(value) - len(copy)}
            copy[key] = self._value(item)
        return copy
