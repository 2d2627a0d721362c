"""What cannot be read is told with its line, and the rest is read; no content raises."""

from __future__ import annotations

import gzip
import io
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from event_values import json_values
from hypothesis import example, given
from hypothesis import strategies as st
from tables import table

from adapters.trace_forms import EXAMPLE, FORMS, Told, attempts
from triage import RulesClassifier, UsageError
from triage.adapters.recordings import FORMATS, error_of, read, tools_of

GOLDEN = Path(__file__).parents[1] / "golden" / "events_v1.jsonl"
RECORD = json.dumps(FORMS["steps"](EXAMPLE))
VALID = [
    *(json.dumps(form(EXAMPLE), indent=2).encode() for form in FORMS.values()),
    "\n".join([RECORD] * 3).encode(),
    "\n".join(map(json.dumps, FORMS["openai"](EXAMPLE))).encode(),
    b"\n".join(GOLDEN.read_bytes().splitlines()[:30]),
]


def is_read(source: bytes) -> None:
    """Whatever it is, in every form: nothing raises, and what comes of it can be diagnosed."""
    for name in (None, *FORMATS):
        reading = read(source, name)
        assert reading.format == name or name is None
        for trace in reading.traces:
            RulesClassifier().classify(trace.trajectory)
            assert trace.line >= 1
        for problem in reading.problems:
            assert problem.text
            assert str(problem)


@given(st.binary(max_size=200))
def test_any_bytes_are_read(source: bytes) -> None:
    is_read(source)
    is_read(gzip.compress(source)[: len(source) + 10])


@given(json_values)
def test_any_json_is_read(value: Any) -> None:
    is_read(json.dumps(value).encode())


KEYS = st.sampled_from(
    ["role", "content", "messages", "tool_calls", "function", "name", "arguments", "type", "id", "steps",
     "tool_called", "error", "output", "input", "usage", "choices", "message", "event", "run_id",
     "resourceSpans", "scopeSpans", "spans", "attributes", "key", "value", "status", "tool_use_id",
     "tools", "stop_reason", "call_id", "kvlistValue", "values", "finish_reason", "function_call"]
)  # fmt: skip
WORDS = st.sampled_from(
    [
        "user",
        "assistant",
        "tool",
        "function_call",
        "tool_use",
        "tool_result",
        "message",
        "text",
        "x",
    ]
)
shaped: st.SearchStrategy[Any] = st.recursive(
    WORDS | st.none() | st.integers() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(shaped)
def test_values_of_the_wrong_kind_anywhere_are_read(value: Any) -> None:
    is_read(json.dumps(value).encode())


@given(
    st.sampled_from(VALID),
    st.lists(
        st.tuples(
            st.floats(0, 1),
            st.integers(0, 40),
            st.binary(max_size=3)
            | st.sampled_from([b"{", b"}", b'"', b"[", b"\n", b"null", b"\\"]),
        ),
        max_size=6,
    ),
)
def test_a_recording_that_was_damaged_is_read(
    source: bytes, changes: list[tuple[float, int, bytes]]
) -> None:
    damaged = bytearray(source)
    for place, length, new in changes:
        at = int(place * len(damaged))
        damaged[at : at + length] = new
    is_read(bytes(damaged))


@example(Told("0", [], "s 0"), Told("0", [], "s 0"), "anthropic", ":")
@given(attempts, attempts, st.sampled_from(sorted(FORMS)), st.text(max_size=20))
def test_records_beside_a_broken_line_are_read(
    first: Any, second: Any, name: str, text: str
) -> None:
    broken = "{" + text.replace("\n", " ").replace("\r", " ")
    lines = [json.dumps(FORMS[name](first)), broken, json.dumps(FORMS[name](second))]
    if name == "otlp":
        lines[2] = lines[2].replace('"t1"', '"t2"')
    reading = read("\n".join(lines).encode("utf-8", "surrogatepass"), name)
    assert len(reading.traces) == 2
    assert reading.problems[0].line == 2


class TestLines:
    def test_a_cut_line_is_told_with_its_line_and_column(self) -> None:
        reading = read(f"{RECORD}\n{RECORD[:40]}\n{RECORD}\nnot json\n{RECORD}")
        assert [trace.line for trace in reading.traces] == [1, 3, 5]
        assert [problem.line for problem in reading.problems] == [2, 4]
        assert "column" in str(reading.problems[0])

    def test_a_line_cut_between_values_does_not_take_the_next_with_it(self) -> None:
        reading = read(f'{{"steps": [1\n{RECORD}')
        assert [(trace.line, len(trace.trajectory)) for trace in reading.traces] == [(2, 3)]
        assert [problem.line for problem in reading.problems][:1] == [1]

    def test_of_a_broken_document_what_stands_on_lines_of_its_own_is_read(self) -> None:
        reading = read(f"[\n{RECORD},\n{{nonsense}},\n{RECORD}\n]")
        assert [trace.line for trace in reading.traces] == [2, 4]
        assert [problem.line for problem in reading.problems] == [3]

    def test_a_document_may_go_over_several_lines_and_another_may_follow(self) -> None:
        pretty = json.dumps(FORMS["steps"](EXAMPLE), indent=2)
        reading = read(f"{pretty}\n{pretty}")
        assert [trace.line for trace in reading.traces] == [1, 1 + pretty.count("\n") + 1]
        assert reading.problems == []

    def test_bytes_that_are_no_text_are_told_and_the_line_is_read(self) -> None:
        reading = read(RECORD.encode().replace(b"Book", b"B\xff\xfek"))
        assert "not UTF-8" in reading.problems[0].text
        assert reading.traces[0].trajectory.task == "B\ufffd\ufffdk a flight"

    def test_other_encodings_are_refused_by_name(self) -> None:
        for encoding in ("utf-16", "utf-16-le", "utf-32"):
            reading = read(RECORD.encode(encoding))
            assert reading.traces == []
            assert "UTF-16" in reading.problems[0].text
            assert "UTF-8" in reading.problems[0].remedy

    def test_compressed_data_that_ends_too_early_gives_what_came_before(self) -> None:
        lines = "\n".join(json.dumps({"steps": [], "n": random.random()}) for _ in range(5000))
        packed = gzip.compress(lines.encode())
        reading = read(packed[: len(packed) // 2])
        assert len(reading.traces) > 1000
        assert "compressed data" in reading.problems[-1].text

    def test_an_empty_file_is_told(self) -> None:
        for source in (b"", b"\n \n", b"\xef\xbb\xbf"):
            assert "holds nothing" in read(source).problems[0].text

    def test_not_more_than_a_hundred_problems_are_listed(self) -> None:
        reading = read("\n".join([RECORD, *["nonsense"] * 500]))
        assert len(reading.problems) == 101
        assert "400 more" in reading.problems[-1].text


class TestFields:
    def test_a_step_of_the_wrong_kind_keeps_its_place(self) -> None:
        steps = [
            {"action": "a"},
            7,
            {"action": ["b"], "effect": "big", "metadata": 1, "error": True},
        ]
        reading = read(json.dumps({"steps": steps}))
        assert [step.action for step in reading.traces[0].trajectory] == [
            "a",
            "unreadable",
            '["b"]',
        ]
        told = " ".join(problem.text for problem in reading.problems)
        for words in ("step 1 must be", "action must be text", "effect must be one of", "metadata"):
            assert words in told

    def test_an_event_that_does_not_fit_is_told_and_the_others_are_read(self) -> None:
        lines = GOLDEN.read_text(encoding="utf-8").splitlines()
        reading = read("\n".join([*lines[:7], '{"event": "Odd"}', *lines[8:]]))
        assert [problem.line for problem in reading.problems] == [8, 9]
        assert "unknown event" in reading.problems[0].text
        assert "comes after" in reading.problems[1].text
        assert len(reading.traces) == 2


class TestForm:
    def test_what_speaks_for_a_form_is_said(self) -> None:
        assert "tool_use" in read(json.dumps(FORMS["anthropic"](EXAMPLE))).reason
        assert read(RECORD, "steps").reason == "it was asked for"

    def test_an_ambiguous_file_names_the_forms_it_may_be(self) -> None:
        both = {"messages": FORMS["openai"](EXAMPLE), "steps": []}
        reading = read(json.dumps(both))
        assert (reading.format, reading.traces) == (None, [])
        assert "openai" in reading.problems[0].text
        assert "steps" in reading.problems[0].text
        assert "--format" in reading.problems[0].remedy
        assert len(read(json.dumps(both), "openai").traces) == 1

    def test_a_form_that_is_none_names_those_there_are(self) -> None:
        reading = read(b'{"hello": 1}')
        assert reading.format is None
        assert all(name in reading.problems[0].text for name in FORMATS)


@table(
    "bomb",
    [
        b"[" * 10**5,
        b'{"messages":' * 10**5,
        b'{"a": [1,\n' * 10**4,
        b'{"\\"' * 3 * 10**5,
        b'{"steps":[{"tool_input":' + b"[" * 900 + b"]" * 900 + b"}]}",
        b'[{"role":"user","content":' + b"[" * 900 + b"]" * 900 + b"}]",
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"attributes":[{"key":"gen_ai.x","value":'
        + b'{"arrayValue":{"values":[' * 200
        + b"]}}" * 200
        + b"}]}]}]}]}",
        b"9" * 10**5,
    ],
)
def test_deep_and_long_values_neither_raise_nor_take_long(bomb: bytes) -> None:
    began = time.process_time()
    is_read(bomb)
    assert time.process_time() - began < 30


def test_a_class_is_read_from_an_error_only_where_it_begins_with_one() -> None:
    for text, name, message in (
        ("ValueError: bad", "ValueError", "bad"),
        ("openai.RateLimitError: Error code: 429", "RateLimitError", "Error code: 429"),
        ("Traceback (most recent call last):\n  File x\nKeyError: 'a'\n", "KeyError", "'a'"),
        ("Error: the file is missing", "Exception", "Error: the file is missing"),
        ("The Error: it is", "Exception", "The Error: it is"),
        ("no such file", "Exception", "no such file"),
        ("TimeoutError", "TimeoutError", "TimeoutError"),
    ):
        error = error_of(text)
        assert error is not None
        assert (error.type_name, error.message) == (name, message)


def test_an_error_may_be_an_object_of_a_provider() -> None:
    body = {"error": {"type": "insufficient_quota", "message": "pay", "code": 429}}
    error = error_of(body)
    assert error is not None
    assert (error.message, error.status_code, error.code) == ("pay", 429, "insufficient_quota")
    assert error_of({}) is None
    assert error_of(None) is None


def test_tools_are_read_from_every_way_of_declaring_them() -> None:
    schema = {"type": "object", "properties": {}}
    for declared in (
        {"f": schema},
        {"tools": [{"name": "f", "input_schema": schema}]},
        [{"type": "function", "name": "f", "parameters": schema}],
        [{"type": "function", "function": {"name": "f", "parameters": schema}}],
        [{"name": "f", "inputSchema": schema}],
        [{"functionDeclarations": [{"name": "f", "parameters": schema}]}],
    ):
        assert tools_of(declared) == {"f": schema}
    assert tools_of(["f"]) == {"f": None}


def test_a_format_that_is_not_known_and_a_path_that_cannot_be_read_are_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(UsageError, match="format 'chat' is not known; the formats are openai"):
        read(b"[]", "chat")
    for path in (tmp_path / "none.json", tmp_path, "a\0b"):
        with pytest.raises(UsageError, match="cannot be read"):
            read(path)
    for wrong in (7, io.StringIO(RECORD), None):
        with pytest.raises(UsageError, match=f"in binary mode, not {type(wrong).__name__}"):
            read(wrong)  # type: ignore[arg-type]
