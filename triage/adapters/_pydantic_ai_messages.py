"""Pydantic AI's messages: as the journal keeps them, as its next request shows them, and with a hint."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from pydantic_ai.exceptions import ModelRetry, ToolFailed
from pydantic_ai.messages import (
    InstructionPart,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
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

_BYTES = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
_RESPONSE: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse, config=_BYTES)
_RETURN: TypeAdapter[ToolReturnPart] = TypeAdapter(ToolReturnPart, config=_BYTES)
_USER: TypeAdapter[UserPromptPart] = TypeAdapter(UserPromptPart, config=_BYTES)

# Answers of a model -------------------------------------------------------------------------------


def _dump_answer(response: ModelResponse) -> Any:
    return _RESPONSE.dump_python(response, mode="json", exclude_none=True)


def _load_answer(data: Any) -> ModelResponse:
    return _RESPONSE.validate_json(json.dumps(data))


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


ANSWER = Form(_dump_answer, _load_answer, _read_answer)


# Results of a tool --------------------------------------------------------------------------------

_KIND = "pydantic_ai"
"""Marks a result that is more than a value: what it is."""
_REFUSALS: Mapping[str, type[ModelRetry | ToolFailed]] = {
    "ModelRetry": ModelRetry,
    "ToolFailed": ToolFailed,
}


def is_refusal(value: object) -> bool:
    """Whether a tool's answer is an exception that the model is told."""
    return isinstance(value, ModelRetry | ToolFailed)


def _dump_result(value: Any) -> Any:
    if isinstance(value, ModelRetry | ToolFailed):
        kind = "ModelRetry" if isinstance(value, ModelRetry) else "ToolFailed"
        return {_KIND: kind, "message": value.message}
    if isinstance(value, ToolReturn):
        told = None if value.content is None else _dump_content(value.content)
        result = _dump_result(value.return_value)
        more = {"content": told, "metadata": plain(value.metadata), "tools": value.tools}
        return {_KIND: "ToolReturn", "result": result, **more}
    if isinstance(value, str | int | float | bool | None):
        return value
    part = ToolReturnPart("", value)
    data = _RETURN.dump_python(part, mode="json")["content"]
    return {_KIND: "files", "content": data} if part.files else data


def _dump_content(content: Any) -> Any:
    return _USER.dump_python(UserPromptPart(content), mode="json")["content"]


def _load_result(data: Any) -> Any:
    kind = data.get(_KIND) if isinstance(data, dict) else None
    if kind in _REFUSALS:
        return _REFUSALS[kind](data["message"])
    if kind == "ToolReturn":
        told = data["content"]
        return ToolReturn(
            _load_result(data["result"]),
            content=None if told is None else _load_content(told),
            metadata=data["metadata"],
            tools=data["tools"],
        )
    if kind == "files":
        part = {"tool_name": "", "content": data["content"], "tool_call_id": "x"}
        return _RETURN.validate_json(json.dumps(part)).content
    return data


def _load_content(data: Any) -> Any:
    return _USER.validate_json(json.dumps({"content": data})).content


def _failed(data: Any) -> Failed | None:
    kind = data.get(_KIND) if isinstance(data, dict) else None
    return Failed(as_text(data["message"]), kind) if kind in _REFUSALS else None


RESULT = Form(_dump_result, _load_result, failed=_failed)


# Requests -----------------------------------------------------------------------------------------

_NEW_EACH_TIME = {"timestamp", "run_id", "conversation_id", "metadata", "workspace_ref", "model_id"}
_EXCLUDED = {"__all__": {**dict.fromkeys(_NEW_EACH_TIME, True), "parts": {"__all__": {"timestamp"}}}}


def request_of(
    messages: list[ModelMessage], settings: Any, parameters: ModelRequestParameters
) -> Any:
    """All that decides the answer: no times, and no ids of runs."""
    said = ModelMessagesTypeAdapter.dump_json(messages, exclude=_EXCLUDED, exclude_none=True)  # type: ignore[arg-type] # a nested set, as pydantic documents it
    tools = [tool.name for tool in (*parameters.function_tools, *parameters.output_tools)]
    system = [part.content for part in parameters.instruction_parts or ()]
    return [said.decode(), system, tools, dict(settings or {})]


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
    if isinstance(part, ToolReturnPart):
        return part.model_response_str()
    content: Any = getattr(part, "content", None)
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return plain(content)
    return [item if isinstance(item, str) else f"[{type(item).__name__}]" for item in content]


class Refused:
    """Calls that never ran, as the next request says: of an unknown tool, with arguments that do not fit."""

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
                yield call, part.model_response_str(), part.retry.cause


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
    value = _load_result(turn.value) if turn.error is None else turn.error
    content = value.return_value if isinstance(value, ToolReturn) else value
    outcome = "success" if turn.error is None else "failed"
    part = ToolReturnPart(call.tool_name, content, call.tool_call_id, outcome=outcome)
    request.parts = [*request.parts, part]  # type: ignore[assignment] # it is a request of ours
