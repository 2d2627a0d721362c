"""The same attempt written in every form that is read, for the tests that must hold for all of them."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from hypothesis import strategies as st


class Call(NamedTuple):
    """One call of a tool: its name, arguments, result, and whether it failed."""

    name: str
    given: dict[str, Any]
    result: str
    failed: bool = False


class Told(NamedTuple):
    """An attempt: the task, the calls in order, and what the model said last."""

    task: str
    calls: list[Call]
    last: str


words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
names = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)
given = st.dictionaries(names, st.integers(-9, 9) | words | st.lists(words, max_size=2), max_size=2)
calls = st.builds(Call, names, given, words.map(lambda text: f"r {text}"), st.booleans())
attempts = st.builds(Told, words, st.lists(calls, max_size=4), words.map(lambda text: f"s {text}"))


def openai(told: Told) -> list[dict[str, Any]]:
    """Chat messages; a failed call cannot be told from another."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": told.task},
    ]
    for at, call in enumerate(told.calls):
        function = {"name": call.name, "arguments": json.dumps(call.given)}
        entry = {"id": f"c{at}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [entry]})
        messages.append({"role": "tool", "tool_call_id": f"c{at}", "content": call.result})
    return [*messages, {"role": "assistant", "content": told.last}]


def responses(told: Told) -> list[dict[str, Any]]:
    """Items of the Responses API."""
    items: list[dict[str, Any]] = [{"role": "user", "content": told.task}]
    for at, call in enumerate(told.calls):
        made = {"name": call.name, "arguments": json.dumps(call.given)}
        items.append({"type": "function_call", "call_id": f"c{at}", **made})
        items.append({"type": "function_call_output", "call_id": f"c{at}", "output": call.result})
    said = [{"type": "output_text", "text": told.last}]
    return [*items, {"type": "message", "role": "assistant", "content": said}]


def anthropic(told: Told) -> list[dict[str, Any]]:
    """Messages with blocks."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": told.task}]
    for at, call in enumerate(told.calls):
        use = {"type": "tool_use", "id": f"c{at}", "name": call.name, "input": call.given}
        messages.append({"role": "assistant", "content": [use]})
        result = {"type": "tool_result", "tool_use_id": f"c{at}", "content": call.result}
        messages.append({"role": "user", "content": [{**result, "is_error": call.failed}]})
    said = [{"type": "text", "text": told.last}]
    return [*messages, {"role": "assistant", "content": said}]


def gemini(told: Told) -> list[dict[str, Any]]:
    """Contents with parts; a failed call cannot be told from another."""
    contents: list[dict[str, Any]] = [{"role": "user", "parts": [{"text": told.task}]}]
    for at, call in enumerate(told.calls):
        about = {"id": f"c{at}", "name": call.name}
        asked = {"functionCall": {**about, "args": call.given}}
        answered = {"functionResponse": {**about, "response": {"result": call.result}}}
        contents.append({"role": "model", "parts": [asked]})
        contents.append({"role": "user", "parts": [answered]})
    return [*contents, {"role": "model", "parts": [{"text": told.last}]}]


def attribute(key: str, value: Any) -> dict[str, Any]:
    """An attribute as OTLP writes it."""
    return {"key": key, "value": typed(value)}


def typed(value: Any) -> dict[str, Any]:
    """A value with its type, as OTLP writes it."""
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, list):
        return {"arrayValue": {"values": [typed(item) for item in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [attribute(key, item) for key, item in value.items()]}}
    return {"stringValue": value}


def span(name: str, at: int, attributes: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A span below the root; `at` is its second."""
    return {
        "traceId": "t1",
        "spanId": f"s{at}",
        "parentSpanId": "root",
        "name": name,
        "startTimeUnixNano": str(at * 10**9),
        "endTimeUnixNano": str((at + 1) * 10**9),
        "attributes": [attribute(key, value) for key, value in attributes.items()],
        **more,
    }


def export(*spans: dict[str, Any]) -> dict[str, Any]:
    """An export of these spans."""
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def otlp(told: Told) -> dict[str, Any]:
    """A trace: a span for each call, and one for what the model said last."""
    spans = [
        span(
            f"execute_tool {call.name}",
            at,
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": call.name,
                "gen_ai.tool.call.arguments": json.dumps(call.given),
                **({} if call.failed else {"gen_ai.tool.call.result": call.result}),
            },
            status={"code": 2, "message": call.result} if call.failed else {},
        )
        for at, call in enumerate(told.calls, 1)
    ]
    heard = [{"role": "user", "parts": [{"type": "text", "content": told.task}]}]
    said = [{"role": "assistant", "parts": [{"type": "text", "content": told.last}]}]
    chat = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps(heard),
        "gen_ai.output.messages": json.dumps(said),
    }
    # Spans come as they end, not as they begin.
    return export(*reversed([*spans, span("chat", len(spans) + 1, chat)]))


def steps(told: Told) -> dict[str, Any]:
    """A record of plain steps."""
    made = [
        {
            "action": "call",
            "tool_called": call.name,
            "tool_input": call.given,
            "tool_output": None if call.failed else call.result,
            "error": call.result if call.failed else None,
        }
        for call in told.calls
    ]
    return {"task": told.task, "steps": [*made, {"action": "model", "llm_output": told.last}]}


FORMS: dict[str, Any] = {
    "openai": openai,
    "responses": responses,
    "anthropic": anthropic,
    "gemini": gemini,
    "otlp": otlp,
    "steps": steps,
}
TELLS_FAILURES = ("anthropic", "otlp", "steps")
EXAMPLE = Told(
    "Book a flight", [Call("search", {"to": "Porto"}, "[]"), Call("pay", {}, "no")], "ok"
)
