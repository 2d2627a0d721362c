"""Events as they may leave the process: `redacted`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ._plain import plain
from .actions import RecoveryAction
from .diagnosis import Diagnosis, Evidence
from .events import CallFinished, Event, RunFinished, RunStarted, StepRecorded
from .failures import ErrorInfo
from .steps import ACTION, EXCEPTION_TYPE, METADATA, Row, Step

if TYPE_CHECKING:
    from ._redactor import Redactor

T = TypeVar("T")

_AS_THEY_ARE = frozenset({
    "run_id", "seq", "time", "attempt", "v", "parent", "agent", "key", "idempotency_key", "token_digest",
    "subject", "call", "kind", "tool", "effect", "outcome", "status", "decision", "unstored",
    "type_name", "module", "mro", "phase", "relation", "failure_type", "severity", "level", "usage",
    "rule", "candidates", "run",
})  # fmt: skip
"""What the journal is read by: ids, digests, words of ours and names in code. Nobody's data is in them."""

_ROWS = (Evidence, ErrorInfo)


def redacted(event: Event, redactor: Redactor) -> Event:
    """The event without secrets in anything that was given; the very same object where there are none.

    No reader may take what is left for what was given: a changed result is not `exact`, and a changed
    argument or task is named in `unstored`.
    """
    if isinstance(event, StepRecorded):
        step = event.step
        clean = _step(step, redactor)
        return event if clean is step else event._replace(step=clean)
    changed = _changed(event, redactor)
    if not changed:
        return event
    if "result" in changed and isinstance(event, CallFinished | RunFinished):
        changed["exact"] = changed["typed"] = False
    if isinstance(event, RunStarted):
        changed = _unstored(event, changed)
    return cast("Event", cast("Any", event)._replace(**changed))


def _unstored(event: RunStarted, changed: dict[str, Any]) -> dict[str, Any]:
    """What changes where arguments held secrets: whoever goes on with the run must give them again."""
    names = list(event.unstored)
    if "task" in changed:
        names.insert(0, "task")
    clean = changed.get("args")
    if clean is not None:
        given = event.args
        changed["args"] = {name: item for name, item in clean.items() if given.get(name) == item}
        names += [name for name in given if name not in changed["args"]]
    return {**changed, "unstored": tuple(dict.fromkeys(names))}


def looked_at(rows: Iterable[Row]) -> list[Any]:
    """What steps hold that may be a secret."""
    values: list[Any] = []
    for row in rows:
        # The texts and the tool's data.
        values += row[ACTION : EXCEPTION_TYPE + 1]
        metadata = row[METADATA]
        if metadata is not None:
            values.append(metadata)
    return values


def _step(step: Step, redactor: Redactor) -> Step:
    if redactor.clears(looked_at((step.row,))):
        return step
    changed = _changed(step, redactor)
    return step._replace(**changed) if changed else step


def _changed(record: Any, redactor: Redactor) -> dict[str, Any]:
    """The fields of an event, or of a value in one, that held secrets, as they may be shown."""
    changed: dict[str, Any] = {}
    for name in _shown(record.__class__):
        given = getattr(record, name)
        clean = _clean(given, redactor)
        if clean is not given:
            changed[name] = clean
    return changed


@cache
def _shown(cls: Any) -> tuple[str, ...]:
    names = (
        tuple(entry.name for entry in dataclasses.fields(cls))
        if dataclasses.is_dataclass(cls)
        else cls._fields
    )
    # `code` is the fingerprint of an agent there, and what a provider answered in an error.
    kept = {*_AS_THEY_ARE, "code"} if cls is RunStarted else _AS_THEY_ARE
    return tuple(name for name in names if name not in kept)


def _clean(given: Any, redactor: Redactor) -> Any:
    kind = given.__class__
    if kind is str:
        return redactor.text(given)
    if kind in _ROWS:
        changed = _changed(given, redactor)
        return given._replace(**changed) if changed else given
    if isinstance(given, Diagnosis | RecoveryAction):
        changed = _changed(given, redactor)
        return dataclasses.replace(cast("Any", given), **changed) if changed else given
    if kind is tuple:
        clean = tuple(_clean(item, redactor) for item in given)
        return given if all(map(_same, clean, given)) else clean
    if given is None or isinstance(given, Enum) or redactor.clears((given,)):
        return given
    # What has no JSON form has one when it is stored, and what it says then may be a secret.
    value, changed_ = redactor.value(plain(given))
    return value if changed_ else given


def _same(one: object, other: object) -> bool:
    return one is other
