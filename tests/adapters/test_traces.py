"""Recorded conversations of every form are read into trajectories, as they are written in the wild."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import RETRY
from tables import table

from adapters.trace_forms import EXAMPLE, FORMS, TELLS_FAILURES, Told, attempts, export, span
from triage import Agent, RulesClassifier, Step, Trajectory
from triage.adapters.recordings import Reading, read, stream
from triage.core import dumps

GOLDEN = Path(__file__).parents[1] / "golden" / "events_v1.jsonl"
RECORDS = Path(__file__).parents[3] / "shared" / "trajectories" / "dev.jsonl.gz"


def content(value: Any) -> bytes:
    return json.dumps(value).encode()


def only(reading: Reading) -> Trajectory:
    assert reading.problems == []
    (trace,) = reading.traces
    return trace.trajectory


def facts(step: Step) -> tuple[Any, ...]:
    return step.tool_called, step.tool_input, step.tool_output, step.llm_output, step.error


@given(
    name=st.sampled_from(sorted(FORMS)),
    told=attempts,
    indent=st.sampled_from([None, 0, 2]),
    forced=st.booleans(),
)
def test_an_attempt_is_read_back_from_every_form(
    name: str, told: Told, indent: int | None, *, forced: bool
) -> None:
    if not forced and not told.calls:
        told = EXAMPLE  # words alone look alike in several forms
    text = json.dumps(FORMS[name](told), indent=indent)
    reading = read(text, name if forced else None)
    assert reading.format == name
    trajectory = only(reading)
    assert trajectory.task == told.task
    expected = [
        (call.name, call.given, None, None, call.result)
        if call.failed and name in TELLS_FAILURES
        else (call.name, call.given, call.result, None, None)
        for call in told.calls
    ]
    assert [facts(step) for step in trajectory] == [*expected, (None, None, None, told.last, None)]
    assert [step.index for step in trajectory] == list(range(len(trajectory)))


@table("name", ["openai", "responses", "anthropic"])
def test_a_conversation_may_be_a_list_a_record_or_a_message_a_line(name: str) -> None:
    messages = FORMS[name](EXAMPLE)
    key = "input" if name == "responses" else "messages"
    whole = only(read(content(messages)))
    assert len(whole) == 3
    assert only(read(content({key: messages}), name)) == whole
    assert only(read("\n".join(map(json.dumps, messages)))) == whole
    lines = read("\n".join(json.dumps({key: messages, "id": f"r{at}"}) for at in range(3)))
    assert [(trace.line, trace.id) for trace in lines.traces] == [(1, "r0"), (2, "r1"), (3, "r2")]
    listed = read(content([{key: messages}, {key: messages}]), name)
    assert [trace.trajectory for trace in listed.traces] == [whole, whole]


def test_a_file_may_be_gzipped_have_a_mark_and_windows_lines(tmp_path: Path) -> None:
    lines = "\r\n".join(json.dumps(FORMS["steps"](EXAMPLE)) for _ in range(2)) + "\r\n"
    path = tmp_path / "records.jsonl.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + lines.encode()))
    for source in (path, str(path), path.read_bytes(), io.BytesIO(path.read_bytes())):
        assert [trace.line for trace in read(source).traces] == [1, 2]


def test_a_long_file_of_records_is_read_as_it_is_iterated_over() -> None:
    line = json.dumps(FORMS["steps"](EXAMPLE)).encode() + b"\n"

    class Endless(io.RawIOBase):
        asked = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            self.asked += 1
            assert self.asked < 100
            buffer[: len(line)] = line
            return len(line)

    found = stream(io.BufferedReader(Endless(), buffer_size=len(line)))
    assert [next(found).line for _ in range(50)] == list(range(1, 51))


class TestOpenAI:
    def test_tools_usage_and_the_reason_to_stop_are_read_from_requests_and_responses(self) -> None:
        record = {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Add"}]}],
            "tools": [
                {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
            ],
            "model": "model-a",
            "usage": {"prompt_tokens": 7, "completion_tokens": 3},
            "choices": [
                {"message": {"role": "assistant", "content": "1, 2"}, "finish_reason": "length"}
            ],
        }
        trajectory = only(read(content(record)))
        assert trajectory.task == "Add"
        assert trajectory.tools == {"add": {"type": "object"}}
        usage = trajectory[0].usage
        assert usage is not None
        assert (usage.input_tokens, usage.output_tokens, usage.model) == (7, 3, "model-a")
        assert RulesClassifier().classify(trajectory).cause == "output_cut"

    def test_a_list_of_responses_is_one_conversation(self) -> None:
        answers = [{"choices": [{"message": {"content": text}}]} for text in ("one", "two")]
        assert [step.llm_output for step in only(read(content(answers)))] == ["one", "two"]

    def test_a_refusal_is_an_error_of_the_attempt(self) -> None:
        message = {"role": "assistant", "content": None, "refusal": "I cannot help with that"}
        trajectory = only(read(content([message]), "openai"))
        assert trajectory[0].llm_output == "I cannot help with that"
        assert RulesClassifier().classify(trajectory).cause == "content_filter"

    def test_the_old_form_of_calls_is_read(self) -> None:
        call = {"name": "add", "arguments": '{"a": 1}'}
        messages = [
            {"role": "assistant", "content": "Let me add", "function_call": call},
            {"role": "function", "name": "add", "content": "3"},
        ]
        (step,) = only(read(content(messages)))
        assert facts(step) == ("add", {"a": 1}, "3", "Let me add", None)

    def test_results_find_their_calls_whatever_their_order(self) -> None:
        def entry(name: str) -> dict[str, Any]:
            return {"id": name, "function": {"name": name, "arguments": "{"}}

        messages = [
            {"role": "assistant", "tool_calls": [entry("a"), entry("b"), entry("c")]},
            {"role": "tool", "tool_call_id": "b", "content": "B"},
            {"role": "tool", "tool_call_id": "a", "content": "A"},
        ]
        found = [
            (step.tool_called, step.tool_input, step.tool_output)
            for step in only(read(content(messages)))
        ]
        assert found == [("a", "{", "A"), ("b", "{", "B"), ("c", "{", None)]

    def test_a_result_without_its_call_is_kept_and_told(self) -> None:
        reading = read(
            content([{"role": "tool", "tool_call_id": "x", "name": "f", "content": "B"}])
        )
        assert [step.tool_output for step in reading.traces[0].trajectory] == ["B"]
        assert "'x'" in str(reading.problems[0])

    def test_later_words_of_the_user_are_steps(self) -> None:
        messages = [{"role": role, "content": text} for role, text in
                    (("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))]  # fmt: skip
        assert [step.action for step in only(read(content(messages)))] == [
            "model",
            "user: c",
            "model",
        ]


class TestResponses:
    def test_what_a_response_failed_with_is_the_error(self) -> None:
        said = {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "x"}],
        }
        record = {"object": "response", "output": [said], "usage": {"input_tokens": 5}}
        broken = {**record, "error": {"code": "server_error", "message": "try again"}}
        error = only(read(content(broken))).error
        assert error is not None
        assert (error.code, error.message) == ("server_error", "try again")
        cut = {**record, "incomplete_details": {"reason": "max_output_tokens"}}
        assert RulesClassifier().classify(only(read(content(cut)))).cause == "output_cut"
        assert only(read(content(record)))[0].usage is not None

    def test_calls_of_servers_carry_their_own_result(self) -> None:
        items = [
            {"type": "mcp_call", "id": "1", "name": "f", "arguments": "{}", "output": "ok"},
            {
                "type": "mcp_call",
                "id": "2",
                "name": "g",
                "arguments": "{}",
                "error": "ValueError: no",
            },
        ]
        trajectory = only(read(content(items)))
        assert trajectory[0].tool_output == "ok"
        assert trajectory.error is not None
        assert (trajectory.error.type_name, trajectory.error.message) == (
            "ValueError",
            "ValueError: no",
        )


class TestAnthropic:
    def test_a_request_and_its_response_are_read_together(self) -> None:
        record = {
            "system": "Be brief",
            "tools": [{"name": "add", "input_schema": {"type": "object"}}],
            "messages": [{"role": "user", "content": "Add"}],
            "stop_reason": "max_tokens",
            "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "1"}],
            "usage": {"input_tokens": 9, "output_tokens": 1},
        }
        reading = read(content(record))
        trajectory = only(reading)
        assert reading.format == "anthropic"
        assert trajectory.tools == {"add": {"type": "object"}}
        assert [step.llm_output for step in trajectory] == ["1"]
        assert RulesClassifier().classify(trajectory).cause == "output_cut"

    def test_a_failed_tool_is_an_error_and_a_soft_failure_is_an_output(self) -> None:
        def told(**more: Any) -> Trajectory:
            use = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
            result = {"type": "tool_result", "tool_use_id": "1", "content": "KeyError: 'x'", **more}
            messages = [
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [result]},
            ]
            return only(read(content(messages)))

        hard, soft = told(is_error=True), told()
        assert (hard[0].error, hard[0].exception_type) == ("KeyError: 'x'", "KeyError")
        assert hard.error is not None
        assert hard.error.is_a("LookupError")
        assert (soft[0].tool_output, soft.error) == ("KeyError: 'x'", None)


class TestSpans:
    def test_an_exception_of_a_span_is_the_error_of_its_step_and_of_the_attempt(self) -> None:
        event = {
            "name": "exception",
            "attributes": [
                {"key": "exception.type", "value": {"stringValue": "openai.RateLimitError"}},
                {"key": "exception.message", "value": {"stringValue": "try again in 7s"}},
            ],
        }
        failed = {"status": {"code": "STATUS_CODE_ERROR"}, "events": [event]}
        usage = {"gen_ai.usage.input_tokens": 12, "gen_ai.request.model": "model-a"}
        chat = span("chat", 1, {"gen_ai.operation.name": "chat", **usage}, **failed)
        trajectory = only(read(content(export(chat))))
        step, error = trajectory[0], trajectory.error
        assert (step.error, step.exception_type) == ("try again in 7s", "RateLimitError")
        assert (step.timestamp, step.duration_s) == (2.0, 1.0)
        assert step.usage is not None
        assert (step.usage.input_tokens, step.usage.model) == (12, "model-a")
        assert error is not None
        assert (error.mro[0], error.retry_after_s) == ("openai.RateLimitError", 7.0)

    def test_a_root_that_succeeded_says_that_the_error_was_got_over(self) -> None:
        tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "f"}
        failed = span("f", 2, tool, status={"code": 2, "message": "no"})
        root = span(
            "agent", 1, {"gen_ai.operation.name": "invoke_agent"}, spanId="root", parentSpanId=""
        )
        assert only(read(content(export(failed, root)))).error is not None
        well = {**root, "status": {"code": 1}}
        trajectory = only(read(content(export(failed, well))))
        assert (trajectory[0].error, trajectory.error) == ("no", None)

    def test_calls_told_in_messages_are_steps_unless_they_have_spans_of_their_own(self) -> None:
        part = {"type": "tool_call", "id": "1", "name": "f", "arguments": {"a": 1}}
        back = {"type": "tool_call_response", "id": "1", "response": "R"}
        first = {"gen_ai.operation.name": "chat",
                 "gen_ai.output.messages": [{"role": "assistant", "parts": [part]}]}  # fmt: skip
        second = {"gen_ai.operation.name": "chat",
                  "gen_ai.input.messages": [{"role": "tool", "parts": [back]}]}  # fmt: skip
        chats = [span("chat", 1, first), span("chat", 3, second)]
        alone = only(read(content(export(*chats))))
        assert facts(alone[0]) == ("f", {"a": 1}, "R", None, None)
        tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "f",
                "gen_ai.tool.call.id": "1", "gen_ai.tool.call.result": "S"}  # fmt: skip
        both = only(read(content(export(*chats, span("f", 2, tool)))))
        assert [step.tool_output for step in both if step.tool_called == "f"] == ["S"]

    @table("older", ["events", "body", "indexed"])
    def test_older_ways_of_telling_what_was_said_are_read(self, older: str) -> None:
        message = {"role": "assistant", "content": "hello"}
        choice = {"index": 0, "finish_reason": "length", "message": message}
        events = {"gen_ai.user.message": {"content": "hi"}, "gen_ai.choice": choice}
        if older == "body":
            events = {
                name: {"gen_ai.event.content": json.dumps(body)} for name, body in events.items()
            }
        attributes: dict[str, Any] = {"gen_ai.operation.name": "chat"}
        if older == "indexed":
            attributes |= {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "hi",
                           "gen_ai.completion.0.content": "hello",
                           "gen_ai.completion.0.finish_reason": "length"}  # fmt: skip
            events = {}
        entries = [{"name": name, "attributes": body} for name, body in events.items()]
        trajectory = only(read(content(export(span("chat", 1, attributes, events=entries)))))
        assert (trajectory.task, trajectory[0].llm_output) == ("hi", "hello")
        assert RulesClassifier().classify(trajectory).cause == "output_cut"

    def test_each_trace_of_a_file_is_an_attempt_whatever_line_its_spans_are_on(self) -> None:
        told = {"gen_ai.operation.name": "chat", "gen_ai.completion.0.content": "x"}
        lines = [
            export(span("chat", at, told, traceId=f"t{at % 2}", spanId=f"{at}"))
            for at in range(1, 5)
        ]
        lines.append(export(span("GET /", 9, {}, traceId="web")))
        reading = read("\n".join(map(json.dumps, lines)))
        assert [(trace.id, len(trace.trajectory)) for trace in reading.traces] == [
            ("t1", 2),
            ("t0", 2),
        ]
        assert [problem.line for problem in reading.problems] == [5]


def test_a_journal_gives_each_attempt_with_the_error_and_the_diagnosis_it_had() -> None:
    reading = read(GOLDEN)
    assert (reading.format, reading.problems) == ("journal", [])
    first = reading.traces[0]
    assert first.id == "run-1, attempt 1"
    assert first.attempt is not None
    assert first.trajectory.error == first.attempt.error
    assert first.trajectory.error is not None
    assert first.trajectory[0].tool_called == "search_fares"
    assert reading.traces[1].earlier == (first.attempt,)


@pytest.mark.anyio
async def test_the_journals_of_runs_give_the_attempts_they_had() -> None:
    async def book(task: str, *, record_step: Any, run: Any) -> str:
        record_step(Step(tool_called="search", tool_output=task))
        if run.attempt == 1:
            raise ConnectionError("refused")
        return "done"

    agent = Agent(book, RETRY)
    runs = [[dumps(event) async for event in agent.events(task)] for task in ("one", "two")]
    # Two runs side by side, in one file.
    lines = [line for pair in zip(*runs, strict=True) for line in pair]
    reading = read("\n".join(lines))
    assert reading.problems == []
    told = [
        (trace.trajectory.task, trace.trajectory.attempt, trace.outcome) for trace in reading.traces
    ]
    assert told == [
        ("one", 1, "failure"),
        ("one", 2, "success"),
        ("two", 1, "failure"),
        ("two", 2, "success"),
    ]
    error = reading.traces[0].trajectory.error
    assert error is not None
    assert error.is_a("ConnectionError")
    assert reading.traces[3].trajectory[0].tool_output == "two"


def test_the_shared_records_are_read_whole() -> None:
    if not RECORDS.exists():
        pytest.skip(f"{RECORDS.name} is not there")
    reading = read(RECORDS)
    assert (reading.format, reading.problems) == ("steps", [])
    with gzip.open(RECORDS, "rt", encoding="utf-8") as lines:
        raw = [json.loads(line) for line in lines]
    for record, trace in zip(raw, reading.traces, strict=True):
        assert trace.id == record["id"]
        assert len(trace.trajectory) == len(record["steps"])
        assert trace.fields["mapped_labels"] == record["mapped_labels"]
