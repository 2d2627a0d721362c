"""In which form a recording is: what speaks for each, and the one that is meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from triage._wire import EVENTS

from ._steps import STEP_FIELDS
from ._values import listed, mapping

OPENAI, RESPONSES, ANTHROPIC = "openai", "responses", "anthropic"
OTLP, JOURNAL, STEPS = "otlp", "journal", "steps"
FORMATS: dict[str, str] = {
    OPENAI: "OpenAI chat messages",
    RESPONSES: "items of the OpenAI Responses API",
    ANTHROPIC: "Anthropic messages",
    OTLP: "OpenTelemetry GenAI spans, as OTLP JSON",
    JOURNAL: "journals of triage",
    STEPS: "plain steps",
}
"""The forms that are read: the name of each, as `format=` takes it, and what it is."""

SAMPLE = 20
"""Values of a recording that are looked at."""
_MOST_MESSAGES = 50
_ITEMS = ("function_call", "function_call_output", "reasoning", "custom_tool_call", "mcp_call")
_BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use")
_WHOLE = ("steps", "messages", "resourceSpans", "resource_spans", "event", "choices", "output")


class Detection(NamedTuple):
    """format: None where it is not known. reason: why. candidates: all that speak for themselves."""

    format: str | None
    reason: str
    candidates: tuple[str, ...] = ()


def records(value: Any) -> list[Any]:
    """The records of a value: the entries of a list that holds whole records, else the value."""
    if isinstance(value, list) and value:
        first = next((entry for entry in value if isinstance(entry, dict | list)), None)
        if isinstance(first, list) or _is_whole(mapping(first)):
            return value if not _one_talk(value) else [value]
    return [value]


def _is_whole(entry: Any) -> bool:
    request = isinstance(entry.get("input"), list) and "type" not in entry
    return request or any(key in entry for key in _WHOLE)


def _one_talk(entries: list[Any]) -> bool:
    """True for responses in a row and for items: a conversation, not a list of records."""
    found = [mapping(entry) for entry in entries[:_MOST_MESSAGES]]
    return any("choices" in entry and "messages" not in entry for entry in found) or any(
        entry.get("type") in _ITEMS for entry in found
    )


def detect(values: Iterable[Any]) -> Detection:
    """The form of a recording, from its first values."""
    found: dict[str, str] = {}
    weak: dict[str, str] = {}
    for value in values:
        for record in records(value)[:SAMPLE]:
            for name, reason in _signs(record):
                found.setdefault(name, reason)
            for name, reason in _weak_signs(record):
                weak.setdefault(name, reason)
    chosen = found or weak
    if len(chosen) == 1:
        ((name, reason),) = chosen.items()
        return Detection(name, reason, (name,))
    if not chosen:
        known = ", ".join(f"{name} ({what})" for name, what in FORMATS.items())
        return Detection(None, f"the form is none that is known: {known}")
    told = "; ".join(f"{name} ({reason})" for name, reason in sorted(chosen.items()))
    return Detection(None, f"the form may be any of {told}", tuple(sorted(chosen)))


def _signs(record: Any) -> Iterator[tuple[str, str]]:
    """What only one form has."""
    found = mapping(record)
    if "resourceSpans" in found or "resource_spans" in found:
        yield OTLP, "resourceSpans"
    event = found.get("event")
    if isinstance(event, str) and event in EVENTS and "run_id" in found:
        yield JOURNAL, f"the event {event}"
        return  # its other fields, such as an action, are its own
    if isinstance(found.get("steps"), list):
        yield STEPS, "a list of steps"
    else:
        for step in _messages(record, found) if isinstance(record, list) else [found]:
            fields = STEP_FIELDS & step.keys()
            if fields and "role" not in step and "messages" not in step:
                yield STEPS, f"the step's field {min(fields)}"
    yield from _talk_signs(record, found)


def _talk_signs(record: Any, found: Any) -> Iterator[tuple[str, str]]:
    if isinstance(found.get("choices"), list) or found.get("object") == "chat.completion":
        yield OPENAI, "a response with choices"
    if found.get("object") == "response" or found.get("type") in _ITEMS:
        yield RESPONSES, f"the {found.get('object') or found['type']} item"
    if "stop_reason" in found or ("messages" in found and "system" in found):
        yield ANTHROPIC, "stop_reason" if "stop_reason" in found else "a system prompt of its own"
    for message in _messages(record, found):
        role, content = message.get("role"), message.get("content")
        if isinstance(message.get("choices"), list):
            yield OPENAI, "responses with choices"
        elif "tool_calls" in message or "function_call" in message:
            yield OPENAI, "an assistant's tool_calls"
        elif role in ("tool", "function", "developer", "system"):
            yield OPENAI, f"a message with the role {role}"
        if message.get("type") in _ITEMS:
            yield RESPONSES, f"the item {message['type']}"
        for part in listed(content):
            kind = mapping(part).get("type")
            if kind in _BLOCKS:
                yield ANTHROPIC, f"the block {kind}"
            elif kind in ("input_text", "output_text"):
                yield RESPONSES, f"the part {kind}"


def _weak_signs(record: Any) -> Iterator[tuple[str, str]]:
    """What several forms have, and is read alike in each."""
    found = mapping(record)
    if isinstance(found.get("output"), list) or isinstance(found.get("input"), list):
        yield RESPONSES, "a list of output or input"
    elif any("role" in message for message in _messages(record, found)):
        yield OPENAI, "messages with roles, which other forms have alike"


def _messages(record: Any, found: Any) -> list[Any]:
    if isinstance(record, list):
        entries = record
    elif "role" in found:
        entries = [found]
    else:
        entries = next(
            (
                found[key]
                for key in ("messages", "output", "input")
                if isinstance(found.get(key), list)
            ),
            [],
        )
    return [mapping(entry) for entry in entries[:_MOST_MESSAGES]]
