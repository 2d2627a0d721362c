"""What a model answered, read from the JSON of the three usual forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from triage._plain import plain
from triage.steps import Usage
from triage.taxonomy import Cause, FailureType
from triage.traces._values import (
    arguments,
    as_text,
    content_text,
    listed,
    mapping,
    text_or_none,
    usage_of,
)


class Asked(NamedTuple):
    """A tool call that a model asks for. arguments: read from JSON; the text itself if it is none."""

    id: str
    name: str
    arguments: Any


class Answer(NamedTuple):
    """What a model answered. ended: why it stopped, in the provider's word; None if it is not said."""

    text: str = ""
    calls: tuple[Asked, ...] = ()
    usage: Usage | None = None
    ended: str | None = None


def _same(value: Any) -> Any:
    return value


def _nothing(_data: Any) -> Answer:
    return Answer()


class Failed(NamedTuple):
    """A tool that answered with an error. kind: its class, or whatever it is called."""

    text: str
    kind: str | None = None


def _good(_data: Any) -> Failed | None:
    return None


class Form(NamedTuple):
    """How a framework's answer is kept: `dump` gives JSON, `load` reads it back, `read` says what it is.

    read is only used for model calls, failed only for tools: the error that a result stands for, None
    for a good one. own: what `dump` gives is JSON in containers that nobody else has, and is kept as it
    is; of anything else a copy is kept. `load(dump(x))` must serve the framework as `x` does.
    """

    dump: Callable[[Any], Any] = _same
    load: Callable[[Any], Any] = _same
    read: Callable[[Any], Answer] = _nothing
    failed: Callable[[Any], Failed | None] = _good
    own: bool = False

    def kept(self, result: Any) -> Any:
        """What the journal keeps of a result: JSON of its own."""
        data = self.dump(result)
        return data if self.own else plain(data)


def read_chat(data: Any) -> Answer:
    """An OpenAI chat completion."""
    found = mapping(data)
    choices = listed(found.get("choices"))
    choice = mapping(choices[0]) if choices else {}
    message = mapping(choice.get("message"))
    ended = text_or_none(choice.get("finish_reason"))
    refusal = text_or_none(message.get("refusal"))
    return Answer(
        refusal or content_text(message.get("content")),
        tuple(map(asked_in_chat, listed(message.get("tool_calls")))),
        usage_of(found.get("usage"), found.get("model")),
        "refusal" if refusal else ended,
    )


def asked_in_chat(call: Any) -> Asked:
    """A tool call of a chat message."""
    outer = mapping(call)
    inner = mapping(outer.get("function")) or mapping(outer.get("custom"))
    given = inner.get("arguments", inner.get("input"))
    return Asked(as_text(outer.get("id")), as_text(inner.get("name")), arguments(given))


def read_responses(data: Any) -> Answer:
    """A response of OpenAI's Responses API."""
    found = mapping(data)
    words: list[str] = []
    calls: list[Asked] = []
    refused = False
    for entry in listed(found.get("output")):
        item = mapping(entry)
        kind = item.get("type")
        if kind == "message":
            parts = listed(item.get("content"))
            refused = refused or any(mapping(part).get("type") == "refusal" for part in parts)
            words.append(content_text(item.get("content")))
        elif kind in ("function_call", "custom_tool_call"):
            given = item.get("arguments", item.get("input"))
            calls.append(
                Asked(as_text(item.get("call_id")), as_text(item.get("name")), arguments(given))
            )
    reason = text_or_none(mapping(found.get("incomplete_details")).get("reason"))
    return Answer(
        "\n".join(filter(None, words)),
        tuple(calls),
        usage_of(found.get("usage"), found.get("model")),
        "refusal" if refused else reason or text_or_none(found.get("status")),
    )


def read_anthropic(data: Any) -> Answer:
    """A message of Anthropic's."""
    found = mapping(data)
    words: list[str] = []
    calls: list[Asked] = []
    for entry in listed(found.get("content")):
        block = mapping(entry)
        kind = block.get("type")
        if kind == "text":
            words.append(content_text([block]))
        elif kind == "tool_use":
            calls.append(
                Asked(as_text(block.get("id")), as_text(block.get("name")), block.get("input"))
            )
    usage = mapping(found.get("usage"))
    read = usage_of(usage, found.get("model"))
    if read is not None:
        # What was read from and written to the cache was sent, too.
        cached = (usage.get("cache_read_input_tokens") or 0) + (
            usage.get("cache_creation_input_tokens") or 0
        )
        if cached:
            read = read._replace(input_tokens=read.input_tokens + cached)
    return Answer("\n".join(words), tuple(calls), read, text_or_none(found.get("stop_reason")))


ENDINGS: Mapping[str, tuple[FailureType, Cause]] = {
    "LengthFinishReasonError": (FailureType.CONTEXT_OVERFLOW, Cause.OUTPUT_CUT),
    "ContentFilterFinishReasonError": (FailureType.CONSTRAINT_IGNORED, Cause.CONTENT_FILTER),
}
"""What an answer is that ended for such a reason, by the class that clients raise for it."""
