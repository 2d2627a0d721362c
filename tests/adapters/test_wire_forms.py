"""Requests and answers of Bedrock, Ollama and Cohere: which are a model's, and what they say."""

from __future__ import annotations

import base64
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tables import table

from triage.adapters.tools import tools_by_name
from triage.adapters.wire import Endpoint
from triage.adapters.wire.bodies import Kept, Reader, answer_in
from triage.adapters.wire.endpoints import asked_of
from triage.core import Usage
from triage.core.messages.anthropic import ANTHROPIC
from triage.core.messages.cohere import COHERE as COHERE_WIRE
from triage.core.messages.converse import CONVERSE as CONVERSE_WIRE
from triage.core.messages.neutral import Asked
from triage.core.messages.ollama import OLLAMA as OLLAMA_WIRE
from triage.core.messages.reading import max_tokens_of, tools_of
from triage.core.messages.wires import ProviderWire

from .hosted_models import (
    CLAUDE,
    COHERE,
    CONVERSE,
    FRAMES,
    OLLAMA,
    TOKENS,
    Form,
    Said,
    chunk,
    frame,
)

WIRES: dict[str, ProviderWire] = {
    "converse": CONVERSE_WIRE,
    "anthropic": ANTHROPIC,
    "ollama": OLLAMA_WIRE,
    "cohere": COHERE_WIRE,
}
FORMS = [CONVERSE, CLAUDE, OLLAMA, COHERE]
HELLO: list[Any] = [{"role": "user", "content": "hello"}]


def _found(path: str, **body: Any) -> str | None:
    asked = asked_of("POST", path, json.dumps({"messages": HELLO, **body}))
    if asked is None:
        return None
    assert isinstance(asked.endpoint, Endpoint)
    return f"{asked.endpoint.provider} {type(asked.endpoint.wire).__name__}"


CLAUDE_BODY = {"anthropic_version": "bedrock-2023-05-31"}
MESSAGES = "anthropic AnthropicWire"
VERTEX = "/v1/projects/p/locations/l/publishers/anthropic/models/c:rawPredict"
ARN = "arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Ainference-profile%2Fus.anthropic.claude"


@table(
    ("path", "body", "found"),
    [
        ("/model/us.amazon.nova-pro-v1:0/converse", {}, "bedrock ConverseWire"),
        (f"/model/{ARN}/converse-stream", {}, "bedrock ConverseWire"),
        ("/model/arn:aws:bedrock:x:1:inference-profile/claude/invoke", CLAUDE_BODY, MESSAGES),
        ("/model/m/invoke-with-response-stream", CLAUDE_BODY, MESSAGES),
        ("/model/us.amazon.nova-lite-v1:0/invoke", {}, "bedrock ConverseWire"),
        ("/model/mistral.large/invoke", {}, None),
        ("/model/m/count-tokens", {}, None),
        (VERTEX, CLAUDE_BODY, MESSAGES),
        ("/api/chat", {"model": "m"}, "ollama OllamaWire"),
        ("/api/chat", {}, None),
        ("/v2/chat", {"model": "m"}, "cohere CohereWire"),
        ("/v1/messages", {}, MESSAGES),
        ("/v1/threads/t1/messages", {}, None),
        ("/threads/t1/messages", {"model": "m"}, None),
    ],
)  # fmt: skip
def test_a_models_request_is_known_by_its_path_and_body(
    path: str, body: dict[str, Any], found: str | None
) -> None:
    assert _found(path, **body) == found


words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
arguments = st.dictionaries(st.sampled_from(["a", "b"]), words | st.integers(0, 9))
calls = st.lists(st.tuples(st.just("pay") | st.just("find"), arguments), max_size=3)
answers = st.builds(
    lambda text, asked, cut: Said(
        text if asked or text.strip() else "well",
        tuple((f"c{at}", name, taken) for at, (name, taken) in enumerate(asked)),
        cut,
    ),
    words,
    calls,
    st.booleans(),
)


def _kept(kind: str, body: bytes) -> Kept:
    try:
        return Kept(status=200, headers=[["Content-Type", kind]], body=body.decode(), base64=False)
    except UnicodeDecodeError:
        text = base64.b64encode(body).decode()
        return Kept(status=200, headers=[["Content-Type", kind]], body=text, base64=True)


@given(form=st.sampled_from(FORMS), said=answers)
def test_a_streamed_answer_says_what_a_whole_one_says(form: Form, said: Said) -> None:
    wire = WIRES[form.name]
    body = json.dumps(form.answer(said)).encode()
    whole = answer_in(wire, _kept("application/json", body))
    streamed = answer_in(wire, _kept(form.kind, b"".join(form.events(said))))
    assert streamed == whole
    ids = [""] * len(said.calls) if form is OLLAMA else [id_ for id_, _, _ in said.calls]
    named = zip(ids, said.calls, strict=True)
    assert whole.calls == tuple(Asked(id_, name, taken) for id_, (_, name, taken) in named)
    assert whole.text == said.text
    assert whole.usage is not None
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == TOKENS
    assert (whole.ended in ("length", "max_tokens")) == said.is_cut


@given(form=st.sampled_from(FORMS), said=answers, size=st.integers(1, 40))
def test_events_are_read_however_the_bytes_are_cut(form: Form, said: Said, size: int) -> None:
    wire, body = WIRES[form.name], b"".join(form.events(said))
    pieces: list[Any] = []
    reader, at_once = Reader(form.kind), Reader(form.kind).feed(body)
    for at in range(0, len(body), size):
        assert not (wire.is_whole(pieces) and wire.ends_at_once)
        pieces += reader.feed(body[at : at + size])
    assert pieces == at_once
    assert wire.is_whole(pieces)
    assert not any(wire.is_whole(pieces[:end]) for end in range(1, len(pieces)))


@given(form=st.sampled_from(FORMS), said=answers)
def test_an_answer_goes_on_as_a_turn_that_says_the_same(form: Form, said: Said) -> None:
    wire = WIRES[form.name]
    (turn,) = wire.turn(form.answer(said))
    found = wire.read(turn)
    assert (found.role, found.text) == ("model", said.text)
    assert len(found.calls) == len(said.calls)


SCHEMA = {"type": "object", "properties": {"cents": {"type": "integer"}}}


@table("wire", list(WIRES.values()))
def test_a_declared_tool_is_found_in_a_request(wire: ProviderWire) -> None:
    declared = [wire.declared("pay", "Pays.", SCHEMA), wire.declared("find", None, None)]
    for found in (tools_of(declared), tools_by_name(declared)):
        assert list(found) == ["pay", "find"]
        assert found["pay"] == SCHEMA


@table(
    "body",
    [{"inferenceConfig": {"maxTokens": 7}}, {"options": {"num_predict": 7}}, {"max_tokens": 7}],
)
def test_the_limit_of_tokens_is_found_in_a_request(body: dict[str, Any]) -> None:
    assert max_tokens_of(body) == 7


def test_tokens_of_the_cache_were_sent_too() -> None:
    used = {
        "inputTokens": 3,
        "outputTokens": 2,
        "cacheReadInputTokens": 4,
        "cacheWriteInputTokens": 5,
    }
    assert CONVERSE_WIRE.answer({"usage": used}).usage == Usage(12, 2)


def test_words_are_not_said_beside_results_of_converse() -> None:
    asked = {
        "role": "assistant",
        "content": [{"toolUse": {"toolUseId": "a", "name": "f", "input": {}}}],
    }
    block = {"toolResult": {"toolUseId": "a", "content": [{"json": {"n": 1}}], "status": "error"}}
    history = [asked, {"role": "user", "content": [block]}]
    (result,) = CONVERSE_WIRE.read(history[1]).results
    assert (result.output, result.failed) == ({"n": 1}, True)
    told = CONVERSE_WIRE.hinted(history, "be brief")[-1]
    content = [{"json": {"n": 1}}, {"text": "be brief"}]
    assert told == {
        "role": "user",
        "content": [{"toolResult": {**block["toolResult"], "content": content}}],
    }


def test_reasoning_is_kept_for_the_next_turn_and_not_said() -> None:
    place = {"contentBlockIndex": 0}
    pieces: list[Any] = [
        {"contentBlockDelta": {**place, "delta": {"reasoningContent": {"text": "h"}}}},
        {"contentBlockDelta": {**place, "delta": {"reasoningContent": {"text": "m"}}}},
        {"contentBlockDelta": {**place, "delta": {"reasoningContent": {"signature": "s"}}}},
        {"contentBlockDelta": {"contentBlockIndex": 1, "delta": {"text": "yes"}}},
    ]
    made = CONVERSE_WIRE.whole(pieces)
    thought = {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s"}}}
    assert made["output"]["message"]["content"] == [thought, {"text": "yes"}]
    assert CONVERSE_WIRE.answer(made).text == "yes"


def test_a_result_of_ollama_without_a_name_is_that_of_the_first_call() -> None:
    functions: list[Any] = [
        {"function": {"name": name, "arguments": {}}} for name in ("find", "pay")
    ]
    history: list[Any] = [
        {"role": "assistant", "content": "", "tool_calls": functions},
        {"role": "tool", "content": "found"},
        {"role": "tool", "content": "paid", "tool_name": "pay"},
    ]
    assert OLLAMA_WIRE.repair(history).messages == history


def test_errors_in_amazons_frames_are_errors_and_broken_frames_are_silent() -> None:
    error = frame("throttlingException", {"message": "Too many"}, "exception")
    assert Reader(FRAMES).feed(error) == [
        {"error": {"type": "throttlingException", "message": "Too many"}}
    ]
    reader = Reader(FRAMES)
    whole = chunk({"type": "message_stop"})
    assert reader.feed(whole) == [{"type": "message_stop"}]
    assert reader.feed(whole[:-1] + b"?") == []
    assert reader.feed(whole) == []
