"""Histories a provider accepts, hints that stand there once, and answers put together from pieces."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.histories import CHAT, CONTENTS, ITEMS, MESSAGES, NAMED, TURNS
from triage.adapters import (
    hinted_anthropic,
    hinted_chat,
    hinted_gemini,
    hinted_responses,
    read_anthropic,
    read_chat,
    read_responses,
    repair_anthropic,
    repair_chat,
    repair_gemini,
    repair_responses,
)
from triage.core.messages.cohere import COHERE
from triage.core.messages.converse import CONVERSE
from triage.core.messages.neutral import LOST
from triage.core.messages.ollama import OLLAMA
from triage.core.messages.reading import says
from triage.core.messages.wires import Repaired
from triage.testing.adapter_contract import Request, check_wire


class Form(NamedTuple):
    name: str
    repair: Callable[[list[Any]], Repaired]
    hinted: Callable[[Any, str | None], Any]
    histories: st.SearchStrategy[list[Any]]


FORMS = [
    Form("chat", repair_chat, hinted_chat, CHAT),
    Form("responses", repair_responses, hinted_responses, ITEMS),
    Form("anthropic", repair_anthropic, hinted_anthropic, MESSAGES),
    Form("converse", CONVERSE.repair, CONVERSE.hinted, TURNS),
    Form("ollama", OLLAMA.repair, OLLAMA.hinted, NAMED),
    Form("cohere", COHERE.repair, COHERE.hinted, CHAT),
    Form("gemini", repair_gemini, hinted_gemini, CONTENTS),
]
many = settings(max_examples=150)  # of all forms together


def request(form: str, history: list[Any]) -> Request:
    field = {"responses": "input", "gemini": "contents"}.get(form, "messages")
    return Request(form, {field: history}, "")


@many
@given(form=st.sampled_from(FORMS), data=st.data())
def test_whatever_it_is_given_a_provider_takes_it_afterwards(form: Form, data: Any) -> None:
    history = data.draw(form.histories)
    before = copy.deepcopy(history)
    repaired = form.repair(history)
    check_wire([request(form.name, repaired.messages)])
    hinted = form.hinted(repaired.messages, "be brief")
    check_wire([request(form.name, hinted)])
    assert history == before
    assert form.repair(repaired.messages) == Repaired(repaired.messages, 0, 0)


def chat_call(call: str) -> dict[str, Any]:
    return {"id": call, "type": "function", "function": {"name": "pay", "arguments": "{}"}}


def test_a_call_that_was_cut_off_is_closed_before_the_next_words() -> None:
    asked = {"role": "assistant", "content": None, "tool_calls": [chat_call("a"), chat_call("b")]}
    result = {"role": "tool", "tool_call_id": "b", "content": "paid"}
    words = {"role": "user", "content": "go on"}
    repaired = repair_chat([asked, words, result])
    lost = {"role": "tool", "tool_call_id": "a", "content": LOST}
    assert repaired == Repaired([asked, result, lost, words], closed=1, dropped=0)


def test_a_result_without_a_call_is_left_out() -> None:
    words = {"role": "user", "content": "hello"}
    orphan = {"role": "tool", "tool_call_id": "x", "content": "paid"}
    assert repair_chat([words, orphan]) == Repaired([words], closed=0, dropped=1)


def test_a_result_is_put_into_the_words_of_the_user_that_follow() -> None:
    asked = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "a", "name": "pay", "input": {}}],
    }
    repaired = repair_anthropic([asked, {"role": "user", "content": "go on"}])
    (block, words) = repaired.messages[1]["content"]
    assert (block["tool_use_id"], block["is_error"], words["text"]) == ("a", True, "go on")


class Message:
    """As clients give one."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def model_dump(self, *, exclude_unset: bool) -> dict[str, Any]:
        return self.fields


def test_objects_of_a_client_are_read_and_given_on_as_they_are() -> None:
    asked = Message(role="assistant", content=None, tool_calls=[chat_call("a")])
    repaired = repair_chat([asked])
    assert repaired.messages[0] is asked
    assert repaired.messages[1]["tool_call_id"] == "a"


@many
@given(form=st.sampled_from(FORMS), data=st.data())
def test_a_hint_is_said_once_and_the_history_stays_as_it_was(form: Form, data: Any) -> None:
    history, hinted = data.draw(form.histories), form.hinted
    before = copy.deepcopy(history)
    told = hinted(history, "be brief")
    assert history == before
    assert str(told).count("be brief") == 1
    assert says(told[-1], "be brief")
    assert hinted(told, "be brief") == told
    assert hinted(history, None) == history


def test_input_that_is_one_text_gets_its_hint_as_a_message_of_its_own() -> None:
    told = hinted_responses("hello", "be brief")
    assert [message["content"] for message in told] == ["hello", "be brief"]


READERS = [
    read_chat,
    read_responses,
    read_anthropic,
    *(
        read
        for wire in (CONVERSE, OLLAMA, COHERE)
        for read in (wire.answer, lambda data, wire=wire: wire.answer(wire.whole([data, data])))
    ),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "message",
                    "content",
                    "tool_calls",
                    "function",
                    "output",
                    "usage",
                    "type",
                    "toolUse",
                    "toolResult",
                    "contentBlockDelta",
                    "contentBlockStart",
                    "delta",
                    "document",
                    "name",
                    "text",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=60)
@given(read=st.sampled_from(READERS), data=JSON)
def test_an_answer_of_any_shape_is_read_without_an_error(read: Any, data: Any) -> None:
    answer = read(data)
    assert isinstance(answer.text, str)
    assert all(isinstance(asked.name, str) for asked in answer.calls)
