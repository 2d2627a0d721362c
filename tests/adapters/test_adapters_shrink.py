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


Named = list[tuple[str, str, str]]
"""Calls of a turn: id, tool and output of each."""
Write = Callable[[Conversation], list[Any]]


def writer(
    said: Callable[[str, str], Any], called: Callable[[Named], list[Any]], *, system: bool = False
) -> Write:
    """Write conversations. said: words. called: a turn and its results. system: with the system's words."""

    def write(conversation: Conversation) -> list[Any]:
        made: list[Any] = []
        for at, entry in enumerate(conversation):
            if isinstance(entry, Turn):
                made += called([(f"c{at}.{n}", *call) for n, call in enumerate(entry.calls)])
            elif system or entry.role != "system":
                made.append(said({"model": "assistant"}.get(entry.role, entry.role), entry.text))
        return made

    return write


def _message(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def _chat(calls: Named) -> list[Any]:
    asked = [
        {"id": id_, "type": "function", "function": {"name": tool, "arguments": "{}"}}
        for id_, tool, _ in calls
    ]
    results = [{**_message("tool", output), "tool_call_id": id_} for id_, _, output in calls]
    return [{**_message("assistant", None), "tool_calls": asked}, *results]


def _responses(calls: Named) -> list[Any]:
    kinds = ["custom_tool_call" if tool == "do" else "function_call" for _, tool, _ in calls]
    named = list(zip(kinds, calls, strict=True))
    return [
        {"type": "reasoning", "id": f"r{calls[0][0]}", "summary": []},
        *({"type": k, "call_id": id_, "name": tool, "arguments": "{}"} for k, (id_, tool, _) in named),
        *({"type": f"{k}_output", "call_id": id_, "output": output} for k, (id_, _, output) in named),
    ]  # fmt: skip


def _anthropic(calls: Named) -> list[Any]:
    asked = [{"type": "tool_use", "id": id_, "name": tool, "input": {}} for id_, tool, _ in calls]
    results = [
        {"type": "tool_result", "tool_use_id": id_, "content": output} for id_, _, output in calls
    ]
    return [_message("assistant", asked), _message("user", results)]


def _converse(calls: Named) -> list[Any]:
    asked = [{"toolUse": {"toolUseId": id_, "name": tool, "input": {}}} for id_, tool, _ in calls]
    results = [
        {"toolResult": {"toolUseId": id_, "content": [{"text": output}]}}
        for id_, _, output in calls
    ]
    return [_message("assistant", asked), _message("user", results)]


def _gemini(calls: Named) -> list[Any]:
    asked = [{"functionCall": {"name": tool, "args": {}}} for _, tool, _ in calls]
    results = [
        {"functionResponse": {"name": tool, "response": {"result": output}}}
        for _, tool, output in calls
    ]
    return [{"role": "model", "parts": asked}, {"role": "user", "parts": results}]


def _part(role: str, text: str) -> dict[str, Any]:
    return {"role": {"assistant": "model"}.get(role, role), "parts": [{"text": text}]}


chat = writer(_message, _chat, system=True)
responses = writer(_message, _responses, system=True)
anthropic = writer(lambda role, text: _message(role, [{"type": "text", "text": text}]), _anthropic)
converse = writer(lambda role, text: _message(role, [{"text": text}]), _converse)
gemini = writer(_part, _gemini)


class Form(NamedTuple):
    """How a conversation is written in a form of messages, and made shorter."""

    name: str
    write: Write
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
    form=forms, conversation=conversations, keep_last=st.integers(0, 20), most=st.integers(0, 4_000)
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
