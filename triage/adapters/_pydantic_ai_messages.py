"""Pydantic AI's messages: as the journal keeps them, as its next request shows them, and with a hint."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from operator import is_
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolFailed
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    SystemPromptPart,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters

from triage._plain import plain
from triage.traces._values import arguments, as_text, listed, mapping, usage_of

from ._carried import Turn
from ._forms import Answer, Asked, Failed, Form
from ._recording import key_of

# Answers of a model -------------------------------------------------------------------------------


# As `ModelMessagesTypeAdapter` has them, which looks for the kind of each.
_RESPONSES = TypeAdapter(
    list[ModelResponse], config=ConfigDict(defer_build=True, ser_json_bytes="base64")
)


def _dump_answer(response: ModelResponse) -> Any:
    return _RESPONSES.dump_python([response], mode="json", exclude_none=True)[0]


def _load_answer(data: Any) -> ModelResponse:
    (response,) = ModelMessagesTypeAdapter.validate_json(json.dumps([data]))
    assert isinstance(response, ModelResponse)
    return response


def _read_answer(data: Any) -> Answer:
    found = mapping(data)
    parts = [mapping(part) for part in listed(found.get("parts"))]
    words = [as_text(part.get("content")) for part in parts if part.get("part_kind") == "text"]
    calls = [
        Asked(
            as_text(part.get("tool_call_id")),
            as_text(part.get("tool_name")),
            arguments(part.get("args")),
        )
        for part in parts
        if part.get("part_kind") == "tool-call"
    ]
    used = usage_of(found.get("usage"), found.get("model_name"))
    return Answer("".join(words), tuple(calls), used, found.get("finish_reason"))


ANSWER = Form(_dump_answer, _load_answer, _read_answer, own=True)


# Results of a tool --------------------------------------------------------------------------------

_KIND = "pydantic_ai"
"""Marks a result that is more than a value: what it is."""
_REFUSALS = {"ModelRetry": ModelRetry, "ToolFailed": ToolFailed}
Spoken = ModelRetry | ToolFailed | ApprovalRequired | CallDeferred
"""What a tool raises and does not fail with: the framework goes on, and so it is a result."""


def _dump_result(value: Any) -> Any:
    if isinstance(value, ModelRetry | ToolFailed):
        kind = "ModelRetry" if isinstance(value, ModelRetry) else "ToolFailed"
        return {_KIND: kind, "message": value.message}
    if isinstance(value, ApprovalRequired):
        return {_KIND: "ApprovalRequired", "metadata": plain(value.metadata)}
    if isinstance(value, CallDeferred):
        return {_KIND: "CallDeferred", "metadata": plain(value.metadata), "kind": value.kind}
    if isinstance(value, ToolReturn):
        told = None if value.content is None else _dump_part(UserPromptPart(value.content))
        result = _dump_result(value.return_value)
        more = {"content": told, "metadata": plain(value.metadata), "tools": value.tools}
        return {_KIND: "ToolReturn", "result": result, **more}
    if isinstance(value, str | int | float | bool | None):
        return value
    part = ToolReturnPart("", value)
    data = _dump_part(part)
    return {_KIND: "files", "content": data} if part.files else data


def _dump_part(part: ToolReturnPart | UserPromptPart) -> Any:
    """The content of a part, as a message with it is kept."""
    (data,) = ModelMessagesTypeAdapter.dump_python([ModelRequest([part])], mode="json")
    return data["parts"][0]["content"]


def _load_part(kind: str, content: Any) -> Any:
    part = {"part_kind": kind, "content": content, "tool_name": "", "tool_call_id": "x"}
    data = json.dumps([{"kind": "request", "parts": [part]}])
    (request,) = ModelMessagesTypeAdapter.validate_json(data)
    found: Any = request.parts[0]
    return found.content


def _load_result(data: Any) -> Any:
    kind = data.get(_KIND) if isinstance(data, dict) else None
    if kind in _REFUSALS:
        return _REFUSALS[kind](data["message"])
    if kind == "ApprovalRequired":
        return ApprovalRequired(data["metadata"])
    if kind == "CallDeferred":
        return CallDeferred(data["metadata"], kind=data["kind"])
    if kind == "ToolReturn":
        told = data["content"]
        return ToolReturn(
            _load_result(data["result"]),
            content=None if told is None else _load_part("user-prompt", told),
            metadata=data["metadata"],
            tools=data["tools"],
        )
    if kind == "files":
        return _load_part("tool-return", data["content"])
    return data


def _failed(data: Any) -> Failed | None:
    kind = data.get(_KIND) if isinstance(data, dict) else None
    return Failed(as_text(data["message"]), kind) if kind in _REFUSALS else None


RESULT = Form(_dump_result, _load_result, failed=_failed)


# Requests -----------------------------------------------------------------------------------------


class Course:
    """What tells the requests of one run of an agent from each other: all that was said up to them.

    Times and ids of runs are left out, and so are instructions, which may be made anew each time, from
    the time of day say. Each message is looked at once, however long the conversation becomes.
    """

    def __init__(self) -> None:
        self._messages: list[ModelMessage] = []
        self._digests: list[str] = []

    def request(
        self, messages: list[ModelMessage], settings: Any, parameters: ModelRequestParameters
    ) -> Any:
        """As `Seam.model` takes it."""
        tools = [tool.name for tool in (*parameters.function_tools, *parameters.output_tools)]
        return [self._digest(messages), tools, dict(settings or {})]

    def _digest(self, messages: list[ModelMessage]) -> str:
        """Of all messages, each with those before it."""
        known = list(map(is_, self._messages, messages))
        same = len(known) if all(known) else known.index(False)
        del self._messages[same:], self._digests[same:]
        for message in messages[same:]:
            before = self._digests[-1] if self._digests else ""
            parts = [
                _told(part) for part in message.parts if not isinstance(part, SystemPromptPart)
            ]
            self._digests.append(key_of([before, parts]))
            self._messages.append(message)
        return self._digests[-1] if self._digests else ""


def _told(part: Any) -> list[Any]:
    has = _telling_of(part.__class__)
    return [part.part_kind, *[getattr(part, name) if name in has else None for name in _TELLING]]


_TELLING = ("tool_name", "tool_call_id", "args", "content")


@cache
def _telling_of(kind: Any) -> frozenset[str]:
    """Which of these a kind of part has: to ask a part for one that it has not is dear."""
    fields = kind.__dataclass_fields__
    return frozenset(name for name in _TELLING if name in fields or hasattr(kind, name))


def hinted(messages: list[ModelMessage], hint: str | None) -> list[ModelMessage]:
    """The messages with a hint as the user's last words, once; the list that was given stays as it is."""
    last = messages[-1] if messages else None
    if not hint or not isinstance(last, ModelRequest) or _says(messages, hint):
        return messages
    return [*messages[:-1], replace(last, parts=[*last.parts, UserPromptPart(hint)])]


def _says(messages: Sequence[ModelMessage], text: str) -> bool:
    quoted = json.dumps(text, ensure_ascii=False)[1:-1].encode()
    return quoted in ModelMessagesTypeAdapter.dump_json(list(messages))


def said_in(messages: Sequence[ModelMessage]) -> Any:
    """What is new in a request, without ids: the parts of its last message."""
    last = messages[-1] if messages else None
    if not isinstance(last, ModelRequest):
        return []
    return [{"role": _role(part), "content": _words(part)} for part in last.parts]


def _role(part: ModelRequestPart) -> str:
    kind = part.part_kind.partition("-")[0]
    return kind if kind in ("system", "tool") else "user"


def _words(part: ModelRequestPart) -> Any:
    content: Any = getattr(part, "content", None)
    if isinstance(part, ToolReturnPart):
        succeeded = type(content) is str and part.outcome == "success"
        return content if succeeded else part.model_response_str()
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return plain(content)
    return [item if isinstance(item, str) else f"[{type(item).__name__}]" for item in content]


class Refused:
    """Calls that never ran, as the next request says: unknown tools, arguments that do not fit."""

    CAUSES = ("unknown_tool", "unavailable_tool", "validation_error")

    def __init__(self) -> None:
        self._told: set[str] = set()

    def new_in(self, messages: Sequence[ModelMessage]) -> Iterable[tuple[ToolCallPart, str, str]]:
        """Those not told before: the call, what the model is told, and why it is."""
        last = messages[-1] if messages else None
        if not isinstance(last, ModelRequest):
            return
        for part in last.parts:
            if not isinstance(part, ToolReturnPart) or part.retry is None:
                continue
            call = _call_of(messages, part.tool_call_id)
            known = part.retry.cause not in self.CAUSES or part.tool_call_id in self._told
            if call is not None and not known:
                self._told.add(part.tool_call_id)
                yield call, part.model_response_str(wrap_if_error=False), part.retry.cause


def _call_of(messages: Sequence[ModelMessage], id_: str) -> ToolCallPart | None:
    for message in reversed(messages):
        if isinstance(message, ModelResponse):
            calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
            return next((call for call in calls if call.tool_call_id == id_), None)
    return None


# The conversation of the attempts before ------------------------------------------------------------


def history_of(turns: Sequence[Turn], *, hint: bool) -> list[ModelMessage]:
    """Turns as messages that end with a request. hint: it will have words for an answer that was none.

    A call without a result is closed by the framework itself.
    """
    messages: list[ModelMessage] = []
    waiting: list[ToolCallPart] = []
    for turn in turns:
        if turn.kind == "model":
            response = _load_answer(turn.value)
            waiting = [part for part in response.parts if isinstance(part, ToolCallPart)]
            messages += [response, ModelRequest([])]
            continue
        call = next((one for one in waiting if _is(one, turn)), None)
        if call is not None:
            waiting.remove(call)
            _add(messages[-1], call, turn)
    if messages and not hint and not messages[-1].parts and not waiting:
        del messages[-2:]
    return messages


def _is(call: ToolCallPart, turn: Turn) -> bool:
    return call.tool_call_id == turn.id if turn.id else call.tool_name == turn.name


def _add(request: ModelMessage, call: ToolCallPart, turn: Turn) -> None:
    assert isinstance(request, ModelRequest)
    value = _load_result(turn.value) if turn.error is None else turn.error
    content = value.return_value if isinstance(value, ToolReturn) else value
    part = ToolReturnPart(call.tool_name, content, call.tool_call_id)
    if turn.error is not None:
        part.outcome = "failed"
    request.parts = [*request.parts, part]
