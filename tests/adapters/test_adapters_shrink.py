"""Requests that are made shorter stay valid, in every form of messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from triage.adapters import shrunk_anthropic, shrunk_chat, shrunk_gemini, shrunk_responses
from triage.core.messages.cohere import COHERE
from triage.core.messages.converse import CONVERSE
from triage.core.messages.ollama import OLLAMA
from triage.core.messages.receipts import Shrink

EFFECTS = {"pay": "once", "set": "idempotent", "read": "read", "do": "unknown"}
LONG = "x" * 1_000


class Say(NamedTuple):
    """Words of somebody's: `system`, `user` or `model`."""

    role: str
    text: str


class Turn(NamedTuple):
    """Tools that the model asked for, and what each gave."""

    calls: tuple[tuple[str, str], ...]


Conversation = Sequence[Say | Turn]

outputs = st.sampled_from(["short", LONG])
turns = st.builds(
    Turn,
    st.lists(st.tuples(st.sampled_from(sorted(EFFECTS)), outputs), min_size=1, max_size=3).map(
        lambda calls: tuple(
            (tool, f"{tool} {at} {output}") for at, (tool, output) in enumerate(calls)
        )
    ),
)
words = st.builds(Say, st.sampled_from(["user", "model"]), st.sampled_from(["Hm.", "Go on."]))
conversations = st.lists(st.one_of(turns, turns, words), max_size=8).map(
    lambda rest: [Say("system", "Be brief."), Say("user", "Do it."), *rest]
)
shrinks = st.builds(
    Shrink, st.integers(0, 20), st.none() | st.just("It was done."), st.just(EFFECTS)
)


def _number(conversation: Conversation) -> list[tuple[Say | Turn, int]]:
    return [(entry, at) for at, entry in enumerate(conversation)]


def chat(conversation: Conversation) -> list[Any]:
    made: list[Any] = []
    for entry, at in _number(conversation):
        if isinstance(entry, Say):
            role = "assistant" if entry.role == "model" else entry.role
            made.append({"role": role, "content": entry.text})
            continue
        calls = [
            {"id": f"c{at}.{n}", "type": "function", "function": {"name": tool, "arguments": "{}"}}
            for n, (tool, _) in enumerate(entry.calls)
        ]
        made.append({"role": "assistant", "content": None, "tool_calls": calls})
        made += [
            {"role": "tool", "tool_call_id": f"c{at}.{n}", "content": output}
            for n, (_, output) in enumerate(entry.calls)
        ]
    return made


def responses(conversation: Conversation) -> list[Any]:
    made: list[Any] = []
    for entry, at in _number(conversation):
        if isinstance(entry, Say):
            role = "assistant" if entry.role == "model" else entry.role
            made.append({"role": role, "content": entry.text})
            continue
        made.append({"type": "reasoning", "id": f"r{at}", "summary": []})
        kinds = ["custom_tool_call" if tool == "do" else "function_call" for tool, _ in entry.calls]
        made += [
            {"type": kind, "call_id": f"c{at}.{n}", "name": tool, "arguments": "{}"}
            for n, ((tool, _), kind) in enumerate(zip(entry.calls, kinds, strict=True))
        ]
        made += [
            {"type": f"{kind}_output", "call_id": f"c{at}.{n}", "output": output}
            for n, ((_, output), kind) in enumerate(zip(entry.calls, kinds, strict=True))
        ]
    return made


def anthropic(conversation: Conversation) -> list[Any]:
    made: list[Any] = []
    for entry, at in _number(conversation[1:]):
        if isinstance(entry, Say):
            role = "assistant" if entry.role == "model" else entry.role
            made.append({"role": role, "content": [{"type": "text", "text": entry.text}]})
            continue
        made.append(
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": f"c{at}.{n}", "name": tool, "input": {}}
                    for n, (tool, _) in enumerate(entry.calls)
                ],
            }
        )
        results: list[Any] = [
            {"type": "tool_result", "tool_use_id": f"c{at}.{n}", "content": output}
            for n, (_, output) in enumerate(entry.calls)
        ]
        made.append({"role": "user", "content": results})
    return made


def converse(conversation: Conversation) -> list[Any]:
    made: list[Any] = []
    for entry, at in _number(conversation[1:]):
        if isinstance(entry, Say):
            role = "assistant" if entry.role == "model" else entry.role
            made.append({"role": role, "content": [{"text": entry.text}]})
            continue
        calls = [
            {"toolUse": {"toolUseId": f"c{at}.{n}", "name": tool, "input": {}}}
            for n, (tool, _) in enumerate(entry.calls)
        ]
        results = [
            {"toolResult": {"toolUseId": f"c{at}.{n}", "content": [{"text": output}]}}
            for n, (_, output) in enumerate(entry.calls)
        ]
        made += [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    return made


def gemini(conversation: Conversation) -> list[Any]:
    made: list[Any] = []
    for entry in conversation[1:]:
        if isinstance(entry, Say):
            made.append({"role": entry.role, "parts": [{"text": entry.text}]})
            continue
        calls = [{"functionCall": {"name": tool, "args": {}}} for tool, _ in entry.calls]
        answers = [
            {"functionResponse": {"name": tool, "response": {"result": output}}}
            for tool, output in entry.calls
        ]
        made += [{"role": "model", "parts": calls}, {"role": "user", "parts": answers}]
    return made


class Form(NamedTuple):
    """How a conversation is written in a form of messages, and made shorter."""

    name: str
    write: Callable[[Conversation], list[Any]]
    shrink: Callable[[Any, Shrink | None], Any]


FORMS = [
    Form("chat", chat, shrunk_chat),
    Form("responses", responses, shrunk_responses),
    Form("anthropic", anthropic, shrunk_anthropic),
    Form("gemini", gemini, shrunk_gemini),
    Form("converse", converse, CONVERSE.shrunk),
    Form("ollama", chat, OLLAMA.shrunk),
    Form("cohere", chat, COHERE.shrunk),
]


def unpaired(messages: Any) -> tuple[set[str], set[str]]:
    """Ids that stand in one place only, of calls and results; Gemini's by name and order."""
    text = json.dumps(messages)
    ids = [f"c{at}.{n}" for at in range(12) for n in range(3)]
    alone = {one for one in ids if text.count(f'"{one}"') == 1}
    calls, answers = text.count('"functionCall"'), text.count('"functionResponse"')
    return alone, set() if calls == answers else {f"{calls} calls, {answers} responses"}


forms = st.sampled_from(FORMS)
many = settings(max_examples=100)  # of all forms together


@many
@given(form=forms, conversation=conversations, shrink=shrinks)
def test_every_call_keeps_its_result_and_the_last_messages_stay(
    form: Form, conversation: Conversation, shrink: Shrink
) -> None:
    given_ = form.write(conversation)
    before = json.dumps(given_)
    made = form.shrink(given_, shrink)
    assert json.dumps(given_) == before, "what was given is changed"
    assert unpaired(made) == (set(), set())
    kept = min(shrink.keep_last, len(given_))
    if kept:
        assert made[-kept:] == given_[-kept:]


@many
@given(form=forms, conversation=conversations, keep_last=st.integers(0, 20))
def test_only_old_outputs_are_left_out_and_receipts_are_not(
    form: Form, conversation: Conversation, keep_last: int
) -> None:
    given_ = form.write(conversation)
    made = form.shrink(given_, Shrink(keep_last, None, EFFECTS))
    assert len(made) == len(given_)
    old = max(0, len(given_) - keep_last)
    for at, (before, after) in enumerate(zip(given_, made, strict=True)):
        text, told = json.dumps(before), json.dumps(after)
        if at >= old or not any(f"{tool} {n} {LONG}" in text for tool, n in _masked_tools()):
            assert told == text
            continue
        assert told.count("left out: ") == sum(
            text.count(f"{tool} {n} {LONG}") for tool, n in _masked_tools()
        )
        for tool, n in [(tool, n) for tool in ("pay", "set") for n in range(3)]:
            assert told.count(f"{tool} {n} {LONG}") == text.count(f"{tool} {n} {LONG}")
        for n in range(3):
            assert told.count(f"do {n} xxx") == text.count(f"do {n} {LONG}")


def _masked_tools() -> list[tuple[str, int]]:
    return [(tool, n) for tool in ("read", "do") for n in range(3)]


@many
@given(form=forms, conversation=conversations, keep_last=st.integers(0, 20))
def test_a_summary_leaves_what_the_user_said_and_every_receipt(
    form: Form, conversation: Conversation, keep_last: int
) -> None:
    given_ = form.write(conversation)
    made = form.shrink(given_, Shrink(keep_last, "It was done.", EFFECTS))
    before, after = json.dumps(given_), json.dumps(made)
    for said in ("Do it.", '"Hm."', '"Go on."'):
        users = [
            entry
            for entry in conversation
            if isinstance(entry, Say) and entry.role == "user" and entry.text == said.strip('"')
        ]
        assert after.count(said.strip('"')) >= len(users)
    for tool, n in [(tool, n) for tool in ("pay", "set") for n in range(3)]:
        for output in ("short", LONG):
            assert after.count(f"{tool} {n} {output}") >= before.count(f"{tool} {n} {output}")
    assert ("It was done." in after) == (len(made) != len(given_) or before != after)


ALTERNATING = st.lists(
    turns.map(lambda turn: [turn]) | st.just([Say("model", "Hm."), Say("user", "Go on.")])
)


@given(rest=ALTERNATING, shrink=shrinks)
def test_turns_that_alternate_do_so_afterwards(
    rest: list[list[Say | Turn]], shrink: Shrink
) -> None:
    whole = [
        Say("system", "Be brief."),
        Say("user", "Do it."),
        *(one for part in rest for one in part),
    ]
    roles = [message["role"] for message in CONVERSE.shrunk(converse(whole), shrink)]
    assert all(one != other for one, other in pairwise(roles))


@many
@given(
    form=forms,
    conversation=conversations,
    keep_last=st.integers(0, 20),
    most=st.integers(0, 4_000),
)
def test_a_request_that_has_to_fit_is_valid_too(
    form: Form, conversation: Conversation, keep_last: int, most: int
) -> None:
    made = form.shrink(
        form.write(conversation), Shrink(keep_last, None, EFFECTS, max_characters=most)
    )
    assert unpaired(made) == (set(), set())


@many
@given(form=forms, conversation=conversations)
def test_nothing_is_changed_where_nothing_is_asked_for(
    form: Form, conversation: Conversation
) -> None:
    given_ = form.write(conversation)
    made = form.shrink(given_, None)
    assert made == given_
    assert made is not given_, "what is appended to the request would be in the conversation"


def test_the_request_begins_with_the_same_bytes_up_to_what_is_left_out() -> None:
    turns = [Turn((("read", f"read 0 {LONG}"),)) for _ in range(8)]
    given_ = chat([Say("user", "Do it."), *turns])
    first = shrunk_chat(given_, Shrink(10, None, EFFECTS))
    later = shrunk_chat([*given_, {"role": "user", "content": "more"}], Shrink(10, None, EFFECTS))
    assert json.dumps(later[:7]) == json.dumps(first[:7])
    assert json.dumps(first[:2]) == json.dumps(given_[:2])


def test_beside_a_summary_the_last_outputs_are_cut_and_receipts_are_not() -> None:
    page, receipt = f"read 0 {LONG * 5}", f"pay 0 {LONG * 5}"
    turns = [Turn((("read", page),)), Turn((("pay", receipt),)), Turn((("read", "read 1"),))]
    given_ = chat([Say("user", "Do it."), *turns])
    made = shrunk_chat(given_, Shrink(6, "It was done.", EFFECTS))
    outputs = [message["content"] for message in made if message["role"] == "tool"]
    assert outputs == [f"{page[:2_000]}… [left out: 3,007 of 5,007 characters]", receipt, "read 1"]


def test_the_text_of_a_request_of_the_responses_api_stays() -> None:
    assert shrunk_responses("Do it.", Shrink(0)) == "Do it."
