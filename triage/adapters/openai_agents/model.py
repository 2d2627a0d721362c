"""The model of one agent run, which asks the agent's own model through the seam; and the forms of its
answers and requests, in the journal and as input.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from hashlib import sha256
from typing import Any, NamedTuple, cast

from triage.adapters.extras import missing

try:
    import agents  # noqa: F401 # pyright: ignore[reportUnusedImport] - the first of its imports
except ImportError as error:
    raise missing("openai-agents", error) from error

from agents import (
    ItemHelpers,
    Model,
    ModelResponse,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
)
from agents.models import get_default_model_settings
from agents.run import CallModelData
from agents.tool import default_tool_error_function
from agents.usage import Usage, deserialize_usage, serialize_usage
from msgspec.structs import replace
from openai.types.responses import Response, ResponseCompletedEvent, ResponseFunctionToolCall
from pydantic import BaseModel

from triage.adapters.base import ModelOptions, NoSuchModel, Seam
from triage.adapters.calls import Form, UnfinishedStream
from triage.adapters.conversations import Turn, continued, repaired
from triage.core import Step, plain
from triage.core.messages.base import Answer, Asked, as_data, mapping
from triage.core.messages.responses import RESPONSES

Handoffs = Mapping[str, str]
"""The agent that each handoff names, by the id of its call."""


class StoredAnswer:
    """How one model call's answer is stored.

    model: its name. inside: the place of a nested run that made the call, empty for the wrapped agent's
    own. handoffs: picks the handoffs among the calls in an answer. ended: why the answer ended, where it
    was cut off.
    """

    def __init__(
        self, model: str, inside: str, handoffs: Callable[[Sequence[Any]], Handoffs]
    ) -> None:
        self._model = model
        self._inside = inside
        self._handoffs = handoffs
        self.ended: str | None = None
        self.form = Form(self._dump, load, self._read)

    def _dump(self, answer: ModelResponse) -> Any:
        data: dict[str, Any] = {
            "output": [
                item.model_dump(mode="json", warnings=False, exclude_unset=True)
                if isinstance(item, BaseModel)
                else item
                for item in answer.output
            ],
            "usage": _usage(answer.usage),
            "response_id": answer.response_id,
        }
        if answer.request_id is not None:
            data["request_id"] = answer.request_id
        if self.ended is not None:
            data["ended"] = self.ended
        handed = self._handoffs(answer.output)
        if handed:
            data["handed"] = dict(handed)
        if self._inside:
            data["inside"] = self._inside
        return data

    def _read(self, data: Any) -> Answer:
        found = RESPONSES.answer({**data, "model": self._model})
        ended = data.get("ended")
        if ended is None:
            for item in data["output"]:
                if item.get("status") == "incomplete":
                    ended = "length"
        return found if ended is None else replace(found, ended=ended)


def _usage(used: Usage) -> dict[str, Any]:
    """The token counts, with details that are not all zero."""
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
    return ModelResponse(
        output=response_of(data).output,
        usage=deserialize_usage(data["usage"]),
        response_id=data.get("response_id"),
        request_id=data.get("request_id"),
    )


def response_of(data: Any) -> Response:
    """A stored answer, as OpenAI's client gives it."""
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


def _dump_result(value: Any) -> Any:
    """JSON that reads the same to the model as the value would."""
    if isinstance(value, list):
        return [_dump_result(item) for item in value]
    if isinstance(value, BaseModel) and type(value).__module__ == "agents.tool":
        return value.model_dump(mode="json", warnings=False, exclude_none=True)
    return value if isinstance(value, str | int | float | bool | dict | None) else str(value)


RESULT = Form(_dump_result)

_encode = json.JSONEncoder(sort_keys=True, default=lambda value: plain(as_data(value))).encode


def whole_input(items: str | list[Any]) -> str | list[Any]:
    """Input in which every call has its output."""
    return items if isinstance(items, str) else repaired(RESPONSES, items).messages


def key_of_request(items: str | list[Any], *more: Any) -> str:
    """The digest of everything that decides an answer: the input, and more."""
    given = [items] if isinstance(items, str) else items
    text = "".join(f"{_encode(item)}," for item in given) + _encode(more)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def history_of(
    turns: Iterable[Turn], refused: Callable[[str], str | None], use: Callable[[Turn], object]
) -> list[Any]:
    """Turns of earlier attempts as input, for the wrapped agent's own conversation.

    refused: gives what the model is told about a call that a person refused, by its id; None for others.
    use: called with each result in the input.
    """

    def answer(turn: Turn) -> tuple[list[Any], list[Asked]] | None:
        data = mapping(turn.value)
        if data.get("inside"):
            return None
        items: list[Any] = list(load(data).to_input_items())
        handed = mapping(data.get("handed"))
        waiting: list[Asked] = []
        for asked in RESPONSES.answer(data).calls:
            name, told = handed.get(asked.id), refused(asked.id)
            if name is not None:
                items.append(_output(asked, json.dumps({"assistant": name})))
            elif told is not None:
                items.append(_output(asked, told))
            else:
                waiting.append(asked)
        return items, waiting

    def result(asked: Asked, turn: Turn) -> Any:
        told = turn.value if turn.error is None else default_tool_error_function(*_NOBODY)
        return _output(asked, told)

    items = continued(turns, answer=answer, result=result, use=use)
    return repaired(RESPONSES, items).messages


_NOBODY: Any = (None, None)
"""Context and error for the SDK's own message, which mentions neither."""


def _output(asked: Asked, told: Any) -> Any:
    call = ResponseFunctionToolCall(
        type="function_call", call_id=asked.id, name=asked.name, arguments=""
    )
    return as_data(ItemHelpers.tool_call_output_item(call, told))


_asking: ContextVar[tuple[Any, Model]] = ContextVar("triage_openai_agents_asking")
"""The agent whose model is about to be asked, with that model."""
_stored: ContextVar[StoredAnswer] = ContextVar("triage_openai_agents_kept")
"""How the answer to the current request is stored."""


class _Request(NamedTuple):
    """A request being made.

    model: the one that the runner would ask. given: the arguments of `Model.get_response`, with repaired
    input. of: the model that makes it.
    """

    of: SeamModel
    agent: Any
    model: Model
    given: dict[str, Any]
    kept: StoredAnswer
    request: Any
    said: Any
    name: str
    who: str

    def send(self, hint: str | None) -> Awaitable[ModelResponse]:
        _stored.set(self.kept)
        model, given = self.of.sent(self, hint)
        answer: Awaitable[ModelResponse] = _noting(model).get_response(**given)
        return answer

    def options(self) -> ModelOptions:
        return {
            "form": self.kept.form,
            "request": self.request,
            "said": self.said,
            "model": self.name,
            "who": self.who,
            "max_tokens": self.given["model_settings"].max_tokens,
            "tools": _declared(self.given),
        }


class SeamModel(Model):
    """The model of all agents in one run of the SDK's runner.

    config: as the user gave it. inside: the tool calls that contain the run, empty for the wrapped agent's
    own. check: called before each request; raises where the attempt must not go on.
    """

    def __init__(
        self, seam: Seam, config: RunConfig, inside: str, check: Callable[[], None]
    ) -> None:
        self.config = config
        self._check = check
        self._seam = seam
        self._inside = inside
        self._agent: Any = None
        self._first: Any = None
        self._models: list[Model] = []
        self._others: dict[tuple[int, str], Model] = {}

    def asked_by(self, data: CallModelData[Any]) -> Any:
        """As `RunConfig.call_model_input_filter`: the runner calls it before each request."""
        self._check()
        agent = data.agent
        _asking.set((agent, self._model_of(agent)))
        if self._first is None:
            self._first = agent
        if self._agent is not None and self._agent is not agent:
            handed = {"from": self._agent.name, "to": agent.name}
            went_on = {"assistant": agent.name}
            step = Step(action="handoff", tool_input=handed, tool_output=went_on)
            self._seam.run.record_step(step)
        self._agent = agent
        own = self.config.call_model_input_filter
        return data.model_data if own is None else own(data)

    def _model_of(self, agent: Any) -> Model:
        """The model that the runner would ask otherwise."""
        chosen: str | Model | None = self.config.model
        if chosen is None:
            chosen = agent.model
        provider = self.config.model_provider
        found = chosen if isinstance(chosen, Model) else provider.get_model(chosen)
        if not any(known is found for known in self._models):
            self._models.append(found)
        return found

    def sent(self, asked: _Request, hint: str | None) -> tuple[Model, dict[str, Any]]:
        """The model that is asked, and the arguments of its `get_response`. Raises NoSuchModel."""
        model, given = asked.model, dict(asked.given)
        shrunk = RESPONSES.shrunk(given["input"], self._seam.shrink)
        given["input"] = RESPONSES.hinted(shrunk, hint)
        name = self._seam.other_model
        if name is None:
            given["model_settings"] = self._settings(asked.agent, given["model_settings"])
            return model, given
        given["model_settings"] = self._settings(asked.agent, given["model_settings"], name)
        other = self._others.get((id(model), name))
        if other is None:
            other = self._others[id(model), name] = self._other(asked.agent, model, name)
        return other, given

    def _other(self, agent: Any, model: Model, name: str) -> Model:
        """The provider's model of that name where the agent names its own, else one like the agent's."""
        if not self._is_named(agent):
            return _renamed(model, name)
        try:
            return self.config.model_provider.get_model(name)
        except Exception as error:
            raise NoSuchModel(name, f"the run's model_provider has none: {error}") from error

    def _is_named(self, agent: Any) -> bool:
        """Whether a name says which model the runner would ask."""
        chosen = self.config.model
        return not isinstance(agent.model if chosen is None else chosen, Model)

    def _settings(
        self, agent: Any, given: ModelSettings, other: str | None = None
    ) -> ModelSettings:
        """The settings, with the defaults that the runner adds for a model given by name.

        other: the name of the model asked instead.
        """
        if not self._is_named(agent):
            return given
        implicit = (
            ModelSettings()
            if isinstance(agent.model, Model)
            else get_default_model_settings(agent.model)
        )
        if agent.model_settings != implicit:
            return given
        name = other or self.config.model
        return (implicit if name is None else get_default_model_settings(str(name))).resolve(given)

    def _supports_default_prompt_cache_key(self) -> bool:
        known = getattr(_asking.get()[1], "_supports_default_prompt_cache_key", None)
        return bool(known()) if callable(known) else False

    def get_retry_advice(self, request: Any) -> Any:
        return _asking.get()[1].get_retry_advice(request)

    async def _cleanup_on_run_end(self, owner: object) -> None:
        for model in self._models:
            await model._cleanup_on_run_end(owner)  # as the runner does with each model

    async def get_response(self, *args: Any, **more: Any) -> ModelResponse:
        asked = self._request(args, more)
        answer: ModelResponse = await self._seam.model(asked.send, **asked.options())
        return answer

    async def stream_response(self, *args: Any, **more: Any) -> AsyncIterator[Any]:
        """Ask the model, recorded with the last piece; a reused answer comes in one piece."""
        asked = self._request(args, more)
        stream = self._seam.stream(**asked.options())
        if stream.known is not None:
            yield ResponseCompletedEvent.construct(
                type="response.completed",
                sequence_number=0,
                response=response_of(asked.kept.form.dump(stream.known)),
            )
            return
        over = False
        with stream.passing():
            model, given = self.sent(asked, self._seam.hint)
            pieces: Any = model.stream_response(**given)
            async with aclosing(pieces):
                async for piece in pieces:
                    if isinstance(piece, ResponseCompletedEvent):
                        over = True
                        stream.done(whole(piece.response))
                        await stream.durable()
                    yield piece
            if not over:
                raise UnfinishedStream

    def _request(self, args: tuple[Any, ...], more: dict[str, Any]) -> _Request:
        agent, model = _asking.get()
        given = {**dict(zip(_PARAMETERS, args, strict=False)), **more}
        theirs = given["previous_response_id"] or given["conversation_id"]
        if not theirs and self.config.call_model_input_filter is None:
            # A provider's stored conversation is known to it alone; a filter's output is intended.
            given["input"] = whole_input(given["input"])
        names = [getattr(tool, "name", "") for tool in (*given["tools"], *given["handoffs"])]
        name = str(getattr(model, "model", "") or "")
        who = agent.name if self._inside or agent is not self._first else ""
        kept = StoredAnswer(
            name, self._inside, lambda output: _handoffs_in(output, given["handoffs"])
        )
        request = key_of_request(given["input"], name, given["system_instructions"], names)
        said = RESPONSES.new_in(given["input"])
        where = f"{self._inside} {who}".strip()
        return _Request(self, agent, model, given, kept, request, said, name, where)


_PARAMETERS = (
    "system_instructions", "input", "model_settings", "tools", "output_schema", "handoffs", "tracing",
)  # fmt: skip


def _declared(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the model may call: tools, handoffs, and LiteLLM's tool for typed answers."""
    found = {
        getattr(tool, "name", ""): getattr(tool, "params_json_schema", None)
        for tool in given["tools"]
    }
    found |= {handoff.tool_name: None for handoff in given["handoffs"]}
    return found if given["output_schema"] is None else {**found, "json_tool_call": None}


def _renamed(model: Model, name: str) -> Model:
    """The same model with another name: of its class, with its client."""
    if not isinstance(getattr(model, "model", None), str):
        kind = type(model).__name__
        remedy = (
            "give the agent its model by name, so that RunConfig.model_provider makes the other one"
        )
        raise NoSuchModel(name, f"{kind} has no attribute `model` that could be another; {remedy}")
    renamed: Any = copy.copy(model)
    renamed.model = name
    return cast("Model", renamed)


def _noting(model: Model) -> Any:
    """A copy of an OpenAI model that notes why an answer ended, which the model itself does not pass on."""
    if type(model) not in _THEIRS or getattr(model, "_client", None) is None:
        return model
    copied: Any = copy.copy(model)
    fetch = copied._fetch_response  # the only place that sees the whole answer

    async def fetched(*args: Any, **more: Any) -> Any:
        whole = await fetch(*args, **more)
        kept = _stored.get()
        choices = getattr(whole, "choices", None)
        if choices:
            if choices[0].finish_reason == "length":
                kept.ended = "length"
        elif getattr(whole, "status", None) == "incomplete":
            kept.ended = getattr(whole.incomplete_details, "reason", None) or "length"
        return whole

    copied._fetch_response = fetched
    return copied


_THEIRS = (OpenAIChatCompletionsModel, OpenAIResponsesModel)


def _handoffs_in(output: Sequence[Any], handoffs: Sequence[Any]) -> Mapping[str, str]:
    agents = {handoff.tool_name: handoff.agent_name for handoff in handoffs}
    calls = [item for item in output if getattr(item, "type", None) == "function_call"]
    return {call.call_id: agents[call.name] for call in calls if call.name in agents}
