"""What was said to and by a model, in each of the ways the GenAI conventions have had."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ._spans import Span
from ._values import arguments, as_text, content_text, listed, mapping, result_value, text_or_none

_INDEXED = re.compile(r"gen_ai\.(prompt|completion)\.(\d{1,4})\.(.+)", re.DOTALL)
_INDEXED_CALL = re.compile(r"tool_calls\.(\d{1,4})\.(id|name|arguments)")
_MOST = 1_000


class Said(NamedTuple):
    """One message. calls: each with `id`, `name`, `input`. results: of calls, by their id."""

    role: str
    text: str = ""
    calls: tuple[dict[str, Any], ...] = ()
    results: tuple[tuple[str, Any], ...] = ()
    ended: str | None = None


def inputs(span: Span) -> list[Said]:
    """What the model was given: from attributes, else from events, else from indexed attributes."""
    found = _messages(span, "gen_ai.input.messages")
    if found:
        return found
    said: list[Said] = []
    for name, given in span.events:
        body = _body(given)
        if name in ("gen_ai.user.message", "gen_ai.tool.message"):
            said.append(_message({"role": name.split(".")[1], **body}))
        elif name == "gen_ai.content.prompt":
            said += _all(arguments(given.get("gen_ai.prompt")))
    return said or _indexed(span.attributes, "prompt")


def outputs(span: Span) -> list[Said]:
    """What the model said: from attributes, else from events, else from indexed attributes."""
    found = _messages(span, "gen_ai.output.messages")
    if found:
        return found
    said: list[Said] = []
    for name, given in span.events:
        if name == "gen_ai.choice":
            body = _body(given)
            message = {**body, **mapping(arguments(body.get("message")))}
            said.append(_message({"role": "assistant", **message}))
        elif name == "gen_ai.content.completion":
            said += _all(arguments(given.get("gen_ai.completion")))
    return said or _indexed(span.attributes, "completion")


def _messages(span: Span, name: str) -> list[Said]:
    value = span.attributes.get(name)
    for event, given in span.events:
        if value is None and event == "gen_ai.client.inference.operation.details":
            value = given.get(name)
    return _all(arguments(value))


def _all(value: object) -> list[Said]:
    entries = value if isinstance(value, list) else [value]
    return [_message(entry) for entry in entries[:_MOST] if isinstance(entry, dict)]


def _body(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of an event, which some write as one JSON text."""
    return {**given, **mapping(arguments(given.get("gen_ai.event.content")))}


def _message(entry: Mapping[str, Any]) -> Said:
    role = as_text(entry.get("role"))
    ended = text_or_none(entry.get("finish_reason"))
    parts = entry.get("parts")
    calls = _calls(listed(arguments(entry.get("tool_calls"))))
    if not isinstance(parts, list):
        content = arguments(entry.get("content"))
        if role == "tool":
            call = as_text(entry.get("id", entry.get("tool_call_id")))
            return Said(role, results=((call, result_value(content)),))
        said = content_text(content if isinstance(content, list) else entry.get("content"))
        return Said(role, said, calls, ended=ended)
    found = [mapping(part) for part in parts[:_MOST]]
    words = [as_text(part.get("content")) for part in found if part.get("type") == "text"]
    results = tuple(
        (as_text(part.get("id")), part.get("response", part.get("result")))
        for part in found
        if part.get("type") == "tool_call_response"
    )
    calls += _calls(part for part in found if part.get("type") == "tool_call")
    return Said(role, "\n".join(words), calls, results, ended)


def _calls(entries: Iterable[object]) -> tuple[dict[str, Any], ...]:
    made: list[dict[str, Any]] = []
    for entry in entries:
        call = mapping(entry)
        inner = mapping(call.get("function")) or call
        name = text_or_none(inner.get("name"))
        if name is not None:
            given = arguments(inner.get("arguments"))
            made.append({"id": text_or_none(call.get("id")), "name": name, "input": given})
    return tuple(made)


def _indexed(attributes: Mapping[str, Any], kind: str) -> list[Said]:
    """Messages whose place stands in the attribute's name, as in `gen_ai.completion.0.content`."""
    found: dict[int, dict[str, Any]] = {}
    calls: dict[int, dict[int, dict[str, Any]]] = {}
    for key, value in attributes.items():
        hit = _INDEXED.fullmatch(key)
        if hit is None or hit[1] != kind:
            continue
        place = int(hit[2])
        call = _INDEXED_CALL.fullmatch(hit[3])
        if call is None:
            found.setdefault(place, {})[hit[3]] = value
        else:
            found.setdefault(place, {})
            calls.setdefault(place, {}).setdefault(int(call[1]), {})[call[2]] = value
    for place, made in calls.items():
        found[place]["tool_calls"] = [made[at] for at in sorted(made)]
    return [_message(found[place]) for place in sorted(found)]
