"""The answers and results of the OpenAI Agents SDK, as the journal keeps them and as input has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from agents import ItemHelpers, ModelResponse
from agents.tool import default_tool_error_function
from agents.usage import Usage, deserialize_usage, serialize_usage
from openai.types.responses import Response, ResponseFunctionToolCall
from pydantic import BaseModel

from triage._plain import plain
from triage.traces._values import mapping

from ._carried import Turn
from ._forms import Answer, Asked, Form, read_responses
from ._repair import as_data, repair_responses

Handed = Mapping[str, str]
"""The agent that each call of a handoff names, by the id of the call."""

# Answers of a model -------------------------------------------------------------------------------


class Kept:
    """How one model call's answer is kept.

    model: its name. inside: where a run inside the wrapped agent's own made it, empty for its own.
    handed: of the calls in an answer, those that hand the conversation over. ended: why the answer
    ended, where that is known and it was no end.
    """

    def __init__(self, model: str, inside: str, handed: Callable[[Sequence[Any]], Handed]) -> None:
        self._model = model
        self._inside = inside
        self._handed = handed
        self.ended: str | None = None
        self.form = Form(self._dump, load, self._read)

    def _dump(self, answer: ModelResponse) -> Any:
        data: dict[str, Any] = {
            "output": [_item(item) for item in answer.output],
            "usage": _usage(answer.usage),
            "response_id": answer.response_id,
        }
        if answer.request_id is not None:
            data["request_id"] = answer.request_id
        if self.ended is not None:
            data["ended"] = self.ended
        handed = self._handed(answer.output)
        if handed:
            data["handed"] = dict(handed)
        if self._inside:
            data["inside"] = self._inside
        return data

    def _read(self, data: Any) -> Answer:
        found = read_responses({**data, "model": self._model})
        ended = data.get("ended")
        if ended is None:
            for item in data["output"]:
                if item.get("status") == "incomplete":
                    ended = "length"
        return found if ended is None else found._replace(ended=ended)


def _item(item: Any) -> Any:
    return item.model_dump(mode="json", exclude_unset=True) if isinstance(item, BaseModel) else item


def _usage(used: Usage) -> dict[str, Any]:
    """Counts and what they are made of, as far as it is more than nothing."""
    kept = {name: getattr(used, name) for name in _COUNTS}
    for name in _DETAILS:
        details = getattr(used, name)
        if any(vars(details).values()):
            kept[name] = details.model_dump()
    if len(used.request_usage_entries) > 1:
        kept["request_usage_entries"] = serialize_usage(used)["request_usage_entries"]
    return kept


_COUNTS = ("requests", "input_tokens", "output_tokens", "total_tokens")
_DETAILS = ("input_tokens_details", "output_tokens_details")


def load(data: Any) -> ModelResponse:
    """An answer that was kept."""
    return ModelResponse(
        output=response_of(data).output,
        usage=deserialize_usage(data["usage"]),
        response_id=data.get("response_id"),
        request_id=data.get("request_id"),
    )


def response_of(data: Any) -> Response:
    """An answer that was kept, as OpenAI's client gives it."""
    used = data["usage"]
    return Response.construct(
        id=data.get("response_id") or "",
        object="response",
        status="completed",
        output=data["output"],
        usage={**{name: {} for name in _DETAILS}, **used},
    )


def whole(response: Response) -> ModelResponse:
    """The answer that a stream ended with."""
    used = response.usage
    usage = Usage() if used is None else deserialize_usage({"requests": 1, **used.model_dump()})
    return ModelResponse(output=response.output, usage=usage, response_id=response.id)


# Results of a tool --------------------------------------------------------------------------------


def _dump_result(value: Any) -> Any:
    """JSON that the model is shown as it would be shown the value."""
    if isinstance(value, list):
        return [_dump_result(item) for item in value]
    if isinstance(value, BaseModel) and type(value).__module__ == "agents.tool":
        return value.model_dump(mode="json", exclude_none=True)
    return value if isinstance(value, str | int | float | bool | dict | None) else str(value)


RESULT = Form(_dump_result)

# Requests -------------------------------------------------------------------------------------------


_text = json.JSONEncoder(sort_keys=True, default=lambda value: plain(as_data(value))).encode


class Course:
    """The requests of one run of an agent, each of which mostly is the one before with more at its end.

    Only what is new in a request is looked at.
    """

    def __init__(self) -> None:
        self._known: list[Any] = []
        self._taken: list[Any] | None = None
        self._digest = sha256()
        self._calls = _Calls()

    def repaired(self, items: str | list[Any]) -> str | list[Any]:
        """Input whose calls all have their outputs."""
        if isinstance(items, str):
            return items
        self._take(items)
        if not self._calls.are_paired:
            return repair_responses(items).messages
        self._taken = items
        return items

    def request(self, items: str | list[Any], *more: Any) -> str:
        """The digest of what decides an answer: the input, and more beside it.

        Asked at once of what `repaired` gave, it does not look at it again.
        """
        taken, self._taken = self._taken, None
        if items is not taken:
            self._take([items] if isinstance(items, str) else items)
        whole = self._digest.copy()
        whole.update(_text(more).encode("utf-8", "surrogatepass"))
        return whole.hexdigest()

    def _take(self, items: list[Any]) -> None:
        """Go on from what was known with these items."""
        same = len(self._known)
        if self._known != items[:same]:
            same = 0
            self._digest = sha256()
            self._calls = _Calls()
        for item in items[same:]:
            # However many come at once, the text of all of them is the same.
            self._digest.update(f"{_text(item)},".encode("utf-8", "surrogatepass"))
            self._calls.add(mapping(item))
        self._known = list(items)


class _Calls:
    """Whether the calls and the outputs in an input belong together, as far as it is known."""

    def __init__(self) -> None:
        self._waiting: list[Any] = []
        self._alone = False

    @property
    def are_paired(self) -> bool:
        """Whether each call has its output behind it, and each output its call before it."""
        return not (self._waiting or self._alone)

    def add(self, item: Mapping[str, Any]) -> None:
        """The next item."""
        kind, call = item.get("type"), item.get("call_id")
        if kind in _CALLS:
            self._waiting.append(call)
        elif kind in _OUTPUTS and call in self._waiting:
            self._waiting.remove(call)
        elif kind in _OUTPUTS:
            self._alone = True


def repaired(items: list[Any]) -> list[Any]:
    """Input whose calls all have their outputs."""
    calls = _Calls()
    for item in map(mapping, items):
        calls.add(item)
    return items if calls.are_paired else repair_responses(items).messages


_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")


def history_of(turns: Iterable[Turn], refused: Callable[[str], str | None]) -> list[Any]:
    """Turns of attempts before as input: those of the wrapped agent's own conversation.

    refused: what the model is told of a call that a person refused, by its id; None for any other.
    """
    items: list[Any] = []
    waiting: list[Asked] = []

    def close() -> None:
        for asked in waiting:
            told = refused(asked.id)
            if told is not None:
                items.append(_output(asked, told))
        waiting.clear()

    for turn in turns:
        if turn.kind == "tool":
            asked = next((one for one in waiting if _is(one, turn)), None)
            if asked is not None:
                waiting.remove(asked)
                told = turn.value if turn.error is None else default_tool_error_function(*_NOBODY)
                items.append(_output(asked, told))
            continue
        data = mapping(turn.value)
        if data.get("inside"):
            continue
        close()
        items += load(data).to_input_items()
        handed = mapping(data.get("handed"))
        for asked in read_responses(data).calls:
            name = handed.get(asked.id)
            if name is None:
                waiting.append(asked)
            else:
                items.append(_output(asked, json.dumps({"assistant": name})))
    close()
    return repair_responses(items).messages


_NOBODY: Any = (None, None)
"""The SDK's own text says nothing of the error that it is about."""


def _is(asked: Asked, turn: Turn) -> bool:
    return asked.id == turn.id if turn.id else asked.name == turn.name


def _output(asked: Asked, told: Any) -> Any:
    call = ResponseFunctionToolCall(
        type="function_call", call_id=asked.id, name=asked.name, arguments=""
    )
    return as_data(ItemHelpers.tool_call_output_item(call, told))
