"""Gemini's form: what is read, told, hinted and repaired."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import table

from triage.adapters import hinted_gemini, read_gemini, repair_gemini, said_gemini, shrunk_gemini
from triage.core import Usage
from triage.core.messages.neutral import LOST, Asked
from triage.core.messages.receipts import Shrink

CALL = {"functionCall": {"id": "a", "name": "charge", "args": {"cents": 3}}}
ANSWER: dict[str, Any] = {
    "candidates": [
        {
            "content": {
                "role": "model",
                "parts": [{"text": "hm", "thought": True}, {"text": "I "}, {"text": "pay."}, CALL],
            },
            "finishReason": "STOP",
        }
    ],
    "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 3, "thoughtsTokenCount": 2},
    "modelVersion": "gemini-x",
}
SNAKE: dict[str, Any] = {
    "content": {
        "role": "model",
        "parts": [
            {"text": "I pay."},
            {"function_call": {"id": "a", "name": "charge", "args": {"cents": 3}}},
        ],
    },
    "finish_reason": "STOP",
    "usage_metadata": {"prompt_token_count": 7, "candidates_token_count": 5},
    "model_version": "gemini-x",
}


@table("data", [ANSWER, SNAKE])
def test_an_answer_is_read(data: Any) -> None:
    found = read_gemini(data)
    assert found.text == "I pay."
    assert found.calls == (Asked("a", "charge", {"cents": 3}),)
    assert found.usage == Usage(7, 5, model="gemini-x")
    assert found.ended == "stop"


@table(
    ("data", "ended"),
    [
        ({"candidates": [{"finishReason": "MAX_TOKENS"}]}, "max_tokens"),
        ({"candidates": [], "promptFeedback": {"blockReason": "SAFETY"}}, "safety"),
        ({"error_code": "SAFETY"}, "safety"),
        ({"content": None}, None),
    ],
)
def test_it_says_why_it_ended(data: Any, ended: str | None) -> None:
    assert read_gemini(data).ended == ended


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def model(*parts: Any) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def asks(name: str, id_: str | None = None) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": {}, **({"id": id_} if id_ else {})}}


def gives(name: str, told: Any = "ok", id_: str | None = None) -> dict[str, Any]:
    about = {"name": name, "response": {"result": told}, **({"id": id_} if id_ else {})}
    return {"functionResponse": about}


def lost(name: str, id_: str | None = None) -> dict[str, Any]:
    about = {"name": name, "response": {"error": LOST}, **({"id": id_} if id_ else {})}
    return {"functionResponse": about}


GO = user({"text": "Go."})


def test_only_what_is_new_is_told() -> None:
    contents = [GO, model(asks("a")), user(gives("a", 17, "x")), user({"text": "Well?"})]
    assert said_gemini(contents) == [
        {"role": "user", "content": [{"result": {"result": 17}}]},
        {"role": "user", "content": ["Well?"]},
    ]


@table(
    ("contents", "repaired", "closed", "dropped"),
    [
        ([GO, model(asks("a"))], [GO, model(asks("a")), user(lost("a"))], 1, 0),
        (
            [GO, model(asks("a"), asks("b")), user(gives("b"))],
            [GO, model(asks("a"), asks("b")), user(lost("a"), gives("b"))],
            1,
            0,
        ),
        (
            [model(asks("a", "1"), asks("a", "2")), user(gives("a", id_="2"), gives("a", id_="1"))],
            [model(asks("a", "1"), asks("a", "2")), user(gives("a", id_="1"), gives("a", id_="2"))],
            0,
            0,
        ),
        ([GO, user(gives("a"))], [GO], 0, 1),
        (
            [model(asks("a")), user({"text": "Well?"}), user(gives("a"))],
            [model(asks("a")), user(gives("a")), user({"text": "Well?"})],
            0,
            0,
        ),
        (
            [model(asks("a")), user({"text": "Well?"}), model({"text": "Hm."})],
            [model(asks("a")), user(lost("a")), user({"text": "Well?"}), model({"text": "Hm."})],
            1,
            0,
        ),
        (
            [model(asks("a")), model({"text": "Hm."})],
            [model(asks("a")), user(lost("a")), model({"text": "Hm."})],
            1,
            0,
        ),
    ],
)
def test_what_is_open_is_closed(contents: Any, repaired: Any, closed: int, dropped: int) -> None:
    before = copy.deepcopy(contents)
    found = repair_gemini(contents)
    assert found == (repaired, closed, dropped)
    assert contents == before


def test_names_of_python_stay_names_of_python() -> None:
    asked = {"function_call": {"name": "a", "args": {}, "id": "1"}}
    closed = {"function_response": {"id": "1", "name": "a", "response": {"error": LOST}}}
    assert repair_gemini([model(asked)]).messages == [model(asked), user(closed)]


@given(
    st.recursive(
        st.none() | st.text() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_reading_never_raises(data: Any) -> None:
    assert read_gemini(data) is not None


def test_objects_of_a_client_stay_objects() -> None:
    types = pytest.importorskip("google.genai.types", reason="google-genai is not installed")
    answer = types.Part.from_function_response(name="read", response={"result": "x" * 900})
    contents = [
        types.UserContent("Go."),
        types.ModelContent([types.Part.from_function_call(name="read", args={})]),
        types.UserContent([answer]),
        types.ModelContent("Hm."),
    ]
    made = hinted_gemini(shrunk_gemini(contents, Shrink(1)), "Be brief.")
    assert made[0] is contents[0]
    assert made[3] is contents[3]
    assert "left out: 914 characters" in made[2].parts[0].function_response.response["result"]
    assert made[4].parts[0].text == "Be brief."
    assert hinted_gemini(made, "Be brief.") is made
