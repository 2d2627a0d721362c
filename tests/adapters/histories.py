"""Histories of conversations for property tests: any order of turns, calls and results, right or wrong."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

IDS = st.sampled_from(["a", "b", "c", "d"])
CALLS = st.lists(IDS, unique=True, max_size=3)


def _chat_call(call: str) -> dict[str, Any]:
    return {"id": call, "type": "function", "function": {"name": "search", "arguments": "{}"}}


CHAT = st.lists(
    st.one_of(
        st.just({"role": "user", "content": "hello"}),
        st.builds(
            lambda calls: {
                "role": "assistant",
                "content": None if calls else "well",
                **({"tool_calls": [_chat_call(call) for call in calls]} if calls else {}),
            },
            CALLS,
        ),
        st.builds(
            lambda call, text: {"role": "tool", "tool_call_id": call, "content": text},
            IDS,
            st.sampled_from(["one", "two"]),
        ),
    ),
    max_size=10,
)

ITEMS = st.lists(
    st.one_of(
        st.just({"role": "user", "content": "hello"}),
        st.builds(
            lambda call: {
                "type": "function_call",
                "call_id": call,
                "name": "search",
                "arguments": "{}",
            },
            IDS,
        ),
        st.builds(
            lambda call: {"type": "function_call_output", "call_id": call, "output": "found"}, IDS
        ),
    ),
    max_size=10,
)

_TEXT = {"type": "text", "text": "hello"}
MESSAGES = st.lists(
    st.one_of(
        st.just({"role": "user", "content": "hello"}),
        st.builds(
            lambda calls: {
                "role": "assistant",
                "content": [
                    _TEXT,
                    *(
                        {"type": "tool_use", "id": call, "name": "search", "input": {}}
                        for call in calls
                    ),
                ],
            },
            CALLS,
        ),
        st.builds(
            lambda calls, words: {
                "role": "user",
                "content": [
                    *(
                        {"type": "tool_result", "tool_use_id": call, "content": "found"}
                        for call in calls
                    ),
                    *([_TEXT] if words or not calls else []),
                ],
            },
            CALLS,
            st.booleans(),
        ),
    ),
    max_size=10,
)

_WORDS = {"text": "hello"}
TURNS = st.lists(
    st.one_of(
        st.just({"role": "user", "content": [_WORDS]}),
        st.builds(
            lambda calls: {
                "role": "assistant",
                "content": [
                    _WORDS,
                    *(
                        {"toolUse": {"toolUseId": call, "name": "search", "input": {}}}
                        for call in calls
                    ),
                ],
            },
            CALLS,
        ),
        st.builds(
            lambda calls, words: {
                "role": "user",
                "content": [
                    *(
                        {"toolResult": {"toolUseId": call, "content": [{"text": "found"}]}}
                        for call in calls
                    ),
                    *([_WORDS] if words or not calls else []),
                ],
            },
            CALLS,
            st.booleans(),
        ),
    ),
    max_size=10,
)

TOOLS = st.sampled_from(["search", "pay"])
NAMED = st.lists(
    st.one_of(
        st.just({"role": "user", "content": "hello"}),
        st.builds(
            lambda tools: {
                "role": "assistant",
                "content": "" if tools else "well",
                **(
                    {
                        "tool_calls": [
                            {"function": {"name": tool, "arguments": {}}} for tool in tools
                        ]
                    }
                    if tools
                    else {}
                ),
            },
            st.lists(TOOLS, max_size=3),
        ),
        st.builds(
            lambda name: {
                "role": "tool",
                "content": "one",
                **({"tool_name": name} if name else {}),
            },
            TOOLS | st.none(),
        ),
    ),
    max_size=10,
)
"""Of Ollama's form: results by the name of their tool, or without one."""

_PARTS = {
    "model": lambda tool, id_: {"functionCall": {"name": tool, "args": {}, **id_}},
    "user": lambda tool, id_: {
        "functionResponse": {"name": tool, "response": {"result": 1}, **id_}
    },
}
CONTENTS = st.lists(
    st.sampled_from(["user", "model"]).flatmap(
        lambda role: st.builds(
            lambda parts: {"role": role, "parts": parts},
            st.lists(
                st.builds(_PARTS[role], TOOLS, st.sampled_from([{}, {"id": "1"}, {"id": "2"}]))
                | st.just({"text": "so"}),
                min_size=1,
                max_size=4,
            ),
        )
    ),
    max_size=6,
)
"""Of Gemini's form: calls and responses with ids, or without."""
