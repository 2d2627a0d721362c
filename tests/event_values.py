"""Events of every type and form, for the tests that must hold for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

import msgspec
from hypothesis import strategies as st

from triage import (
    Abort,
    Diagnosis,
    Effect,
    ErrorInfo,
    Escalate,
    FailureType,
    Replan,
    Resume,
    Retry,
    Rollback,
    Severity,
    Step,
    Suspend,
    Usage,
)
from triage.core import Action, Basis, Cause, Evidence, Level, Origin, RunState, events

EVENT_TYPES: tuple[Any, ...] = get_args(events.Event)

texts = st.text(st.characters(codec=None), max_size=8)  # lone surrogates and NUL are text too
counts = st.integers(0, 10**6)
seconds = st.floats(0, 1e12, allow_nan=False, allow_infinity=False)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
json_objects = st.dictionaries(texts, json_values, max_size=3)
causes = st.sampled_from(Cause) | texts.filter(bool)

usages = st.builds(Usage, counts, counts, st.none() | seconds, counts, model=st.none() | texts)
steps = st.builds(
    Step,
    index=st.none() | counts,
    action=texts,
    tool_called=st.none() | texts,
    tool_input=json_values,
    tool_output=json_values,
    llm_output=st.none() | texts,
    error=st.none() | texts,
    exception_type=st.none() | texts,
    effect=st.none() | st.sampled_from(Effect),
    usage=st.none() | usages,
    metadata=st.none() | json_objects,
    timestamp=st.none() | seconds,
    duration_s=st.none() | seconds,
)
evidence = st.builds(Evidence, texts, texts, st.none() | counts)
diagnoses = st.builds(
    Diagnosis,
    st.sampled_from(FailureType),
    cause=st.none() | causes,
    severity=st.none() | st.sampled_from(Severity),
    level=st.none() | st.sampled_from(Level),
    confidence=st.floats(0, 1),
    evidence=st.lists(evidence, max_size=2).map(tuple),
    critical_step=st.none() | counts,
    user_message=texts,
    technical_details=texts,
    hint=st.none() | texts,
    suggestions=st.lists(texts, max_size=2).map(tuple),
    retry_after_s=st.none() | seconds,
    candidates=st.lists(st.sampled_from(FailureType), max_size=2).map(tuple),
    classifier=texts,
)


def _errors(related: st.SearchStrategy[ErrorInfo] | None = None) -> st.SearchStrategy[ErrorInfo]:
    names = st.lists(texts, max_size=2).map(tuple)
    below = st.just(()) if related is None else st.lists(related, max_size=2).map(tuple)
    return st.builds(
        ErrorInfo,
        type_name=texts,
        module=texts,
        mro=names,
        message=texts,
        status_code=st.none() | counts,
        code=st.none() | texts,
        retry_after_s=st.none() | seconds,
        phase=st.sampled_from([None, "not_sent", "sent", "answered"]),
        body=json_values,
        hint=st.none() | json_objects,
        notes=names,
        relation=st.sampled_from(["", "cause", "context", "group"]),
        related=below,
    )


errors = _errors(_errors(_errors()))
hints = st.none() | texts
parameter_names = st.sampled_from(["query", "model", "_triage_hint"])
actions: st.SearchStrategy[Any] = st.one_of(
    st.builds(Retry, hints, seconds, st.dictionaries(parameter_names, json_values, max_size=2)),
    st.builds(Replan, hints, seconds),
    st.builds(Rollback, st.none() | counts, hints),
    st.builds(Resume, hints, hints),
    st.builds(Suspend, hints, json_objects),
    st.builds(Escalate, hints, st.booleans()),
    st.builds(Abort, hints, st.booleans()),
)

_BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    str: texts,
    int: counts,
    float: seconds,
    bool: st.booleans(),
    Any: json_values,
    Mapping[str, Any]: json_objects,
    tuple[str, ...]: st.lists(texts, max_size=2).map(tuple),
    tuple[Any, ...]: st.lists(json_values, max_size=2).map(tuple),
    Step: steps,
    Usage: usages,
    ErrorInfo: errors,
    Diagnosis: diagnoses,
    Action: actions,
    Origin: st.builds(Origin, texts, counts, counts, texts),
    Basis: st.builds(
        Basis,
        texts,
        texts,
        strategy=texts,
        draw=st.floats(0, 1),
        probability=st.none() | st.floats(0, 1),
        saw=st.lists(json_values, max_size=2).map(tuple),
        seconds_left=st.none() | seconds,
    ),
}


def _of_type(hint: Any) -> st.SearchStrategy[Any]:
    if hint in _BY_TYPE:
        return _BY_TYPE[hint]
    (kind,) = (member for member in get_args(hint) if member is not type(None))
    return st.none() | _BY_TYPE[kind]


def newest(cls: Any) -> int:
    """The version in which this release writes an event type."""
    (field,) = (field for field in msgspec.structs.fields(cls) if field.name == "v")
    return int(field.default_factory())


def event_of(cls: Any) -> st.SearchStrategy[Any]:
    """Any event of this type, in its current version."""
    fields = {name: _of_type(hint) for name, hint in get_type_hints(cls).items()}
    return st.builds(cls, **{**fields, "v": st.just(newest(cls))})


any_event: st.SearchStrategy[Any] = st.one_of([event_of(cls) for cls in EVENT_TYPES])


def told(state: RunState) -> dict[str, Any]:
    """All a state says, as one comparable value."""
    ledgers = [_public(ledger) for ledger in (state.ledger, *state.ledgers)]
    return {**_public(state), "ledger": ledgers[0], "ledgers": ledgers[1:]}


def _public(value: Any) -> dict[str, Any]:
    """The public attributes of an object that are no methods."""
    found = {name: getattr(value, name) for name in dir(value) if not name.startswith("_")}
    return {name: item for name, item in found.items() if not callable(item)}
