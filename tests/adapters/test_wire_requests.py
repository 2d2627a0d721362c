"""Requests as they leave the process: unchanged where nothing is to be said, recorded as they are sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import anyio
import httpx
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triage import Agent, FailurePolicy, Replan
from triage.adapters import repair_anthropic, repair_chat, repair_gemini, repair_responses
from triage.core import CallStarted, Event

HINT = "Answer in one word."


class Form(NamedTuple):
    """How a provider is asked. messages: the field of the conversation. answer: one that says `done`."""

    path: str
    messages: str
    repair: Callable[[Any], Any]
    answer: dict[str, Any]


def _said(**message: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}


FORMS = {
    "chat": Form(
        "/v1/chat/completions", "messages", repair_chat, _said(role="assistant", content="done")
    ),
    "responses": Form(
        "/v1/responses",
        "input",
        repair_responses,
        {
            "status": "completed",
            "output": [{"type": "message", "role": "assistant", "content": "done"}],
        },
    ),
    "anthropic": Form(
        "/v1/messages",
        "messages",
        repair_anthropic,
        {"content": [{"type": "text", "text": "done"}], "stop_reason": "end_turn"},
    ),
    "gemini": Form(
        "/v1beta/models/m:generateContent",
        "contents",
        repair_gemini,
        {
            "candidates": [
                {"content": {"role": "model", "parts": [{"text": "done"}]}, "finishReason": "STOP"}
            ]
        },
    ),
}
ATOMS = st.sampled_from(["", "go", "ä\u2028", '"messages":[]', 1, 1.5, True, None])
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["a", "b", "role"]), inner, max_size=2)
    ),
    max_leaves=5,
)
IDS = st.sampled_from("abc")


def _asks(id_: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": id_, "name": "look", "input": {}}],
        "tool_calls": [{"id": id_, "function": {"name": "look", "arguments": "{}"}}],
        "parts": [{"functionCall": {"name": "look", "args": {}}}],
        "type": "function_call", "call_id": id_, "name": "look", "arguments": "{}",
    }  # fmt: skip


TURNS = st.one_of(
    IDS.map(_asks),
    IDS.map(lambda id_: {"role": "tool", "tool_call_id": id_, "content": "seen"}),
    IDS.map(lambda id_: {"type": "function_call_output", "call_id": id_, "output": "seen"}),
    st.builds(lambda value: {"role": "user", "content": value}, VALUES),
    VALUES,
)


def sent_in_a_run(
    form: Form, bodies: list[bytes], *, library: Any = httpx2, policy: Any = None, seam: Any = "on",
    headers: dict[str, str] | None = None, fails: int = 0,
) -> tuple[list[bytes], list[str], list[str]]:  # fmt: skip
    """Send bodies in a run: what left the process, the keys of the calls, and the answers.

    fails: how many attempts raise at their end.
    """
    left: list[bytes] = []
    events: list[Event] = []
    answers: list[str] = []

    def answer(request: Any) -> Any:
        left.append(request.content)
        return library.Response(200, json=form.answer)

    async def agent(task: str) -> str:
        async with library.AsyncClient(transport=library.MockTransport(answer)) as client:
            for body in bodies:
                made = await client.post(
                    f"http://model{form.path}", content=body, headers=headers or {}
                )
                answers.append(made.text)
        if len(answers) <= fails * len(bodies):
            raise ValueError("that is no word")
        return "done"

    async def run() -> None:
        await Agent(agent, policy, observers=[events.append], seam=seam).run("t", run_id="run-1")

    anyio.run(run)
    return left, [event.key for event in events if isinstance(event, CallStarted)], answers


@given(st.sampled_from(sorted(FORMS)), st.lists(TURNS, max_size=5), VALUES)
def test_a_request_leaves_as_it_is_but_for_calls_without_results(
    name: str, messages: list[Any], more: Any
) -> None:
    form = FORMS[name]
    body = {"model": "m", form.messages: messages, "more": more}
    raw = json.dumps(body, ensure_ascii=False).encode()
    (left,), (key,), _ = sent_in_a_run(form, [raw])
    repaired = form.repair(messages).messages
    assert json.loads(left) == {**body, form.messages: repaired}
    if repaired == messages:
        assert left == raw
    again, (same, other), _ = sent_in_a_run(form, [raw, raw])
    assert len(again) == 2
    assert same == key
    assert other.rpartition(":")[0] == key.rpartition(":")[0]


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize("name", FORMS)
def test_a_hint_comes_last_and_once_and_the_rest_is_as_it_was(name: str, library: Any) -> None:
    form = FORMS[name]
    words = {"role": "user", "content": "go", "parts": [{"text": "go"}]}
    raw = json.dumps({form.messages: [words], "model": "m"}).encode()
    policy = FailurePolicy(default=Replan(HINT))
    (first, second), _, answers = sent_in_a_run(
        form, [raw], library=library, policy=policy, fails=1
    )
    assert first == raw
    told = json.loads(second)[form.messages]
    assert json.dumps(told).count(HINT) == 1
    assert HINT in json.dumps(told[-1])
    assert json.loads(second)["model"] == "m"
    assert len(answers) == 2


def test_a_signed_request_and_one_of_an_agent_that_wants_none_of_it_are_sent_as_they_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    form, policy = FORMS["anthropic"], FailurePolicy(default=Replan(HINT))
    raw = json.dumps({"messages": [{"role": "user", "content": "go"}], "model": "m"}).encode()
    signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=a, SignedHeaders=host, Signature=b"}
    left, keys, _ = sent_in_a_run(form, [raw], policy=policy, fails=1, headers=signed)
    assert left == [raw, raw]
    assert len(keys) == 2
    assert "is signed already" in caplog.text
    left, keys, _ = sent_in_a_run(form, [raw], policy=policy, fails=1, seam="off")
    assert (left, keys) == ([raw, raw], [])


@pytest.mark.parametrize(
    "path",
    [
        "/v1/embeddings",
        "/v1/threads/7/messages",
        "/v1/messages/count_tokens",
        "/chat",
        "/v1/models",
    ],
)
def test_what_asks_no_model_passes(path: str) -> None:
    form = Form(path, "messages", repair_chat, {"data": []})
    left, keys, _ = sent_in_a_run(form, [b'{"messages": [], "model": "m"}'])
    assert (left, keys) == ([b'{"messages": [], "model": "m"}'], [])


@pytest.mark.parametrize("field", ["prompt_cache_key", "metadata"])
@pytest.mark.parametrize("name", sorted(FORMS))
def test_what_a_client_draws_anew_for_each_run_makes_no_other_request(
    name: str, field: str
) -> None:
    form = FORMS[name]
    message = {"role": "user", "content": "go", "parts": [{"text": "go"}]}
    bodies = [
        json.dumps({"model": "m", form.messages: [message], field: drawn}).encode()
        for drawn in ("one", "other")
    ]
    left, (one, other), _ = sent_in_a_run(form, bodies)
    assert left == bodies
    assert one.rpartition(":")[0] == other.rpartition(":")[0]
