"""Events on the wire: what is written can be read again, by this release and by later ones."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest
from event_values import EVENT_TYPES, any_event, event_of, json_values, newest, told
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import table

from triage import Step
from triage.core import (
    ActionChosen,
    AttemptFailed,
    AttemptStarted,
    CallFinished,
    CallStarted,
    CompensatorRan,
    CompensatorRegistered,
    Event,
    RunFinished,
    RunResumed,
    RunStarted,
    RunSuspended,
    StateUpdated,
    StepRecorded,
    StoreError,
    SubgoalCompleted,
    SubgoalsDeclared,
    UsageRecorded,
    dumps,
    fold,
    loads,
)
from triage.core.wire import dump, load

GOLDEN = Path(__file__).parents[1] / "golden"
LINES = [
    line
    for name in ("events_v1.jsonl", "events_added.jsonl")
    for line in (GOLDEN / name).read_text(encoding="ascii").splitlines()
]
BY_NAME: dict[str, Any] = {cls.__name__: cls for cls in EVENT_TYPES}


# Round trips --------------------------------------------------------------------------------------


@settings(max_examples=300)  # of all types together
@given(any_event)
def test_every_event_comes_back_from_the_wire_as_it_was(event: Event) -> None:
    line = dumps(event)
    for back in (load(dump(event)), loads(line)):
        assert back == event
        assert type(back) is type(event)
        assert back.v == newest(type(event))
        assert dumps(back) == line


@given(any_event)
def test_an_event_is_one_line_of_ascii_json(event: Event) -> None:
    line = dumps(event)
    assert line.isascii()
    assert line.splitlines() == [line]
    assert json.loads(line) == dump(event)
    assert dump(event)["event"] == type(event).__name__
    assert dump(event)["v"] == newest(type(event))


@table("code", [*range(0x100), 0x2028, 0xD800, 0x1F600])
def test_a_long_text_is_written_as_the_library_writes_it(code: int) -> None:
    text = "a line of an output, " * 20
    event = StepRecorded("r", 1, 1.0, 1, 0, Step(tool_output=text + chr(code) + text))
    assert dumps(event) == json.dumps(dump(event), separators=(",", ":"))


@given(any_event, st.dictionaries(st.text(min_size=30, max_size=32), json_values, min_size=1))
def test_fields_of_a_later_release_are_ignored(event: Event, unknown: dict[str, Any]) -> None:
    assert load({**unknown, **dump(event)}) == event


def test_fields_of_a_later_release_are_ignored_inside_of_fields_too() -> None:
    for line in LINES:
        assert load(_with_unknown(json.loads(line))) == loads(line)


def _with_unknown(value: Any) -> Any:
    """Every object that stands for a value of ours, with one more field."""
    ours = {"failure_type", "type_name", "rule", "action", "input_tokens", "event", "salt"}
    if isinstance(value, dict):
        more = {"a_later_field": [1]} if ours & value.keys() else {}
        return {**{key: _with_unknown(item) for key, item in value.items()}, **more}
    return [_with_unknown(item) for item in value] if isinstance(value, list) else value


# What is refused ----------------------------------------------------------------------------------


@table("cls", EVENT_TYPES)
def test_an_event_of_a_newer_version_is_refused_with_the_version(cls: Any) -> None:
    newer = {**_golden(cls), "v": newest(cls) + 1}
    with pytest.raises(StoreError, match=rf"{cls.__name__} has version {newest(cls) + 1}.*newer"):
        load(newer)


@table("v", [None, 0, -1, True, 1.0, "1"])
def test_an_event_without_a_version_is_refused(v: object) -> None:
    data = {**json.loads(LINES[0]), "v": v}
    with pytest.raises(StoreError, match=r"\.v must be a version from 1"):
        load(data)


@table("name", [None, "", "StepTaken", "RunState", 3, ["RunStarted"], {}])
def test_an_unknown_event_is_refused_by_its_name(name: object) -> None:
    with pytest.raises(StoreError, match="unknown event") as refused:
        load({"event": name, "v": 1})
    assert repr(name) in str(refused.value)
    assert "RunStarted" in str(refused.value)


REQUIRED = [
    (cls, field.name)
    for cls in EVENT_TYPES
    for field in msgspec.structs.fields(cls)
    if field.required
]


@table(("cls", "name"), REQUIRED)
def test_a_missing_field_is_named(cls: Any, name: str) -> None:
    data = _golden(cls)
    del data[name]
    with pytest.raises(StoreError, match=rf"^{cls.__name__} has no {name}\n"):
        load(data)


OF_ANY_TYPE = {"task", "arguments", "result", "plan", "payload"}
TYPED = [
    (cls, name)
    for cls in EVENT_TYPES
    for name in cls.__struct_fields__
    if name not in {*OF_ANY_TYPE, "v"}
]


class Stranger:
    """No field of any event is of this type."""


@table(("cls", "name"), TYPED)
def test_a_field_of_the_wrong_type_is_named(cls: Any, name: str) -> None:
    with pytest.raises(StoreError, match=rf"^{cls.__name__}\.{name}\b"):
        load({**_golden(cls), name: Stranger()})


@table(
    ("place", "value", "words"),
    [
        ("AttemptFailed.diagnosis.failure_type", "tired", "is no FailureType: 'tired'"),
        ("AttemptFailed.diagnosis.evidence", {}, "must be a list, not dict"),
        ("AttemptFailed.diagnosis.confidence", "high", "must be float, not str"),
        ("AttemptFailed.error.status_code", True, "must be int, not bool"),
        ("AttemptFailed.error.related", [3], "[0] must be a JSON object, not int"),
        ("StepRecorded.step.effect", "twice", "idempotent, once, unknown, not 'twice'"),
        ("StepRecorded.step.usage.input_tokens", 1.5, "must be int, not float"),
        ("StepRecorded.step.metadata", [], "must be a JSON object, not list"),
        ("ActionChosen.action.action", "abrot", "ActionChosen.action is no action: 'abrot'"),
        ("ActionChosen.action", "retry", "is no action: None"),
        ("ActionChosen.action.delay_s", "1", "must be float, not str"),
        ("StepRecorded.step.duration_s", -1.0, "Step.duration_s"),
        ("StepRecorded.step.usage.output_tokens", -1, "Usage.output_tokens must be 0 or more"),
        ("ActionChosen.action.delay_s", -1.0, "Retry.delay must be"),
    ],
)
def test_a_wrong_value_inside_of_a_field_is_named_by_its_path(
    place: str, value: object, words: str
) -> None:
    name, *path, last = place.split(".")
    data = _golden(BY_NAME[name])
    inner = data
    for key in path:
        inner = inner[key]
    inner[last] = value
    with pytest.raises(StoreError) as refused:
        load(data)
    assert words in str(refused.value)
    assert f"{name}.{'.'.join(path)}".rstrip(".") in str(refused.value)


@table("line", ["", "{", "null", "[]", '"RunStarted"', "1\n2", "[" * 100_000, "\x00"])
def test_a_line_that_is_no_event_is_refused(line: str) -> None:
    with pytest.raises(StoreError, match="event must be"):
        loads(line)


@table("number", ["NaN", "Infinity", "-Infinity"])
def test_a_line_with_a_number_that_json_does_not_have_is_refused(number: str) -> None:
    line = LINES[0].replace('"time":', f'"time":{number},"was":')
    with pytest.raises(StoreError):
        loads(line)


def test_an_error_nested_without_end_is_refused_as_the_stores_fault() -> None:
    nested: dict[str, Any] = {"type_name": "E"}
    for _ in range(30_000):
        nested = {"type_name": "E", "related": [nested]}
    with pytest.raises(StoreError):
        load({**_golden(AttemptFailed), "error": nested})


# Folds --------------------------------------------------------------------------------------------

_BODIES = (
    StepRecorded, StateUpdated, UsageRecorded, SubgoalsDeclared, SubgoalCompleted,
    CompensatorRegistered, CompensatorRan,
)  # fmt: skip


@st.composite
def journals(draw: Any) -> list[Event]:
    """A whole run: attempts that record, call and fail, each started in one of the four ways."""
    journal: list[Event] = []

    def add(cls: Any, **fields: Any) -> None:
        event = draw(event_of(cls))
        journal.append(msgspec.structs.replace(event, run_id="run", seq=len(journal), **fields))

    add(RunStarted)
    attempts = draw(st.integers(1, 3))
    for number in range(1, attempts + 1):
        seqs = st.none() | st.integers(0, len(journal))
        add(AttemptStarted, attempt=number, base=draw(seqs))
        for cls in draw(st.lists(st.sampled_from(_BODIES), max_size=5)):
            add(cls, attempt=number)
        if draw(st.booleans()):
            add(CallStarted, attempt=number, key=f"call {number}")
            add(CallFinished, attempt=number, key=f"call {number}", step=None)
        if number < attempts or draw(st.booleans()):
            add(AttemptFailed, attempt=number)
            add(draw(st.sampled_from([ActionChosen, RunResumed])), attempt=number)
    add(draw(st.sampled_from([RunFinished, RunSuspended])))
    return journal


@given(journals())
def test_a_journal_read_from_the_wire_tells_the_same_run(journal: list[Event]) -> None:
    read = [loads(dumps(event)) for event in journal]
    assert told(fold(read)) == told(fold(journal))


# Golden files -------------------------------------------------------------------------------------


def _golden(cls: Any) -> dict[str, Any]:
    """The fullest recorded form of an event type."""
    lines = [data for data in map(json.loads, LINES) if data["event"] == cls.__name__]
    fullest: dict[str, Any] = max(lines, key=len)
    return fullest


@table("line", LINES)
def test_a_recorded_event_is_read_and_written_as_it_always_was(line: str) -> None:
    assert dumps(loads(line)) == line


def test_every_event_type_is_on_record_in_its_current_version_with_every_field() -> None:
    seen: dict[str, set[str]] = defaultdict(set)
    for data in map(json.loads, LINES):
        if data["v"] == newest(BY_NAME[data["event"]]):
            seen[data["event"]] |= data.keys()
    assert seen == {cls.__name__: {"event", *cls.__struct_fields__} for cls in EVENT_TYPES}, (
        "give each new field its line in tests/golden/events_added.jsonl"
    )


def test_every_event_type_is_on_record_with_its_defaults_left_out() -> None:
    least = {cls.__name__: {"event", "v"} for cls in EVENT_TYPES}
    for cls, name in REQUIRED:
        least[cls.__name__].add(name)
    shortest = {name: min((d.keys() for d in map(json.loads, LINES) if d["event"] == name), key=len)
                for name in BY_NAME}  # fmt: skip
    assert shortest == least
