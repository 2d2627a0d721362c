"""The model of one run of an agent: it asks whatever model the SDK would ask, through the seam."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from inspect import isawaitable
from typing import Any, NamedTuple

from agents import (
    Model,
    ModelResponse,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
)
from agents.models import get_default_model_settings
from agents.run import CallModelData, ModelInputData
from openai.types.responses import ResponseCompletedEvent

from triage.steps import Step
from triage.traces._values import arguments

from ._hints import hinted_responses
from ._openai_agents_items import Course, Kept, response_of, whole
from ._recording import UnfinishedStream
from ._said import said_in_items
from .base import Seam

_asking: ContextVar[tuple[Any, Model]] = ContextVar("triage_openai_agents_asking")
"""The agent whose model is about to be asked, and that model."""
_kept: ContextVar[Kept] = ContextVar("triage_openai_agents_kept")
"""How the answer of the request on its way is kept."""


class _Request(NamedTuple):
    """A request on its way.

    given: the arguments of `Model.get_response`, its input repaired. noting: the model, or a copy of it
    that notes beside its answer why that ended.
    """

    model: Model
    noting: Model
    given: dict[str, Any]
    kept: Kept
    request: Any
    said: Any
    name: str
    who: str

    def send(self, hint: str | None) -> Awaitable[ModelResponse]:
        """Ask the model."""
        _kept.set(self.kept)
        answer: Awaitable[ModelResponse] = self.noting.get_response(**self.hinted(hint))
        return answer

    def hinted(self, hint: str | None) -> dict[str, Any]:
        return {**self.given, "input": hinted_responses(self.given["input"], hint)}

    def words(self) -> dict[str, Any]:
        """As the seam is told."""
        return {
            "form": self.kept.form,
            "request": self.request,
            "said": self.said,
            "model": self.name,
            "who": self.who,
        }


class SeamModel(Model):
    """The model of all agents in one run of the SDK's runner.

    config: as the user gave it. inside: the calls of tools that the run is made in, empty for the wrapped
    agent's own.
    """

    def __init__(self, seam: Seam, config: RunConfig, inside: str) -> None:
        self.config = config
        self._seam = seam
        self._inside = inside
        self._agent: Any = None
        self._first: Any = None
        self._models: list[Model] = []
        self._noting: list[Model] = []
        self._course = Course()

    # What the runner asks -------------------------------------------------------------------------

    def asked_by(self, data: CallModelData[Any]) -> Any:
        """As `RunConfig.call_model_input_filter`: the runner calls it before each request."""
        agent = data.agent
        _asking.set((agent, self._model_of(agent)))
        if self._first is None:
            self._first = agent
        if self._agent is not None and self._agent is not agent:
            self._note_handoff(agent)
        self._agent = agent
        own = self.config.call_model_input_filter
        return data.model_data if own is None else _filtered(own(data))

    def _model_of(self, agent: Any) -> Model:
        """The model that the runner would ask without this one."""
        chosen: str | Model | None = self.config.model
        if chosen is None:
            chosen = agent.model
        provider = self.config.model_provider
        found = chosen if isinstance(chosen, Model) else provider.get_model(chosen)
        self._place_of(found)
        return found

    def _place_of(self, model: Model) -> int:
        """Where a model stands among those of the run."""
        for at, known in enumerate(self._models):
            if known is model:
                return at
        self._models.append(model)
        self._noting.append(_noting(model))
        return len(self._models) - 1

    def _settings(self, agent: Any, given: ModelSettings) -> ModelSettings:
        """Settings as the runner has them where a name says which model it is: it has defaults."""
        chosen = self.config.model
        if isinstance(chosen, Model) or (chosen is None and isinstance(agent.model, Model)):
            return given
        implicit = ModelSettings() if isinstance(agent.model, Model) else _defaults(agent.model)
        if agent.model_settings != implicit:
            return given
        return (implicit if chosen is None else _defaults(chosen)).resolve(given)

    def _supports_default_prompt_cache_key(self) -> bool:
        known = getattr(_asking.get()[1], "_supports_default_prompt_cache_key", None)
        return bool(known()) if callable(known) else False

    def get_retry_advice(self, request: Any) -> Any:
        """What the model that was asked says."""
        return _asking.get()[1].get_retry_advice(request)

    async def _cleanup_on_run_end(self, owner: object) -> None:
        for model in self._models:
            await model._cleanup_on_run_end(owner)  # noqa: SLF001 - as the runner does with each model

    async def get_response(self, *args: Any, **more: Any) -> ModelResponse:
        """Ask the model, recorded."""
        asked = self._request(args, more)
        answer: ModelResponse = await self._seam.model(asked.send, **asked.words())
        self._note_unknown(answer.output, asked.given)
        return answer

    async def stream_response(self, *args: Any, **more: Any) -> AsyncIterator[Any]:
        """Ask the model, recorded when the last piece has come; a known answer comes in one piece."""
        asked = self._request(args, more)
        stream = self._seam.stream(**asked.words())
        if stream.known is not None:
            self._note_unknown(stream.known.output, asked.given)
            yield ResponseCompletedEvent.construct(
                type="response.completed",
                sequence_number=0,
                response=response_of(asked.kept.form.dump(stream.known)),
            )
            return
        over = False
        with stream.passing():
            pieces: Any = asked.model.stream_response(**asked.hinted(self._seam.hint))
            async with aclosing(pieces):
                async for piece in pieces:
                    if isinstance(piece, ResponseCompletedEvent):
                        over = True
                        stream.done(whole(piece.response))
                        await stream.durable()
                        self._note_unknown(piece.response.output, asked.given)
                    yield piece
            if not over:
                raise UnfinishedStream

    # Requests -------------------------------------------------------------------------------------

    def _request(self, args: tuple[Any, ...], more: dict[str, Any]) -> _Request:
        agent, model = _asking.get()
        given = {**dict(zip(_PARAMETERS, args, strict=False)), **more}
        if not (given["previous_response_id"] or given["conversation_id"]):
            # What a provider keeps of a conversation it alone knows.
            given["input"] = self._course.repaired(given["input"])
        given["model_settings"] = self._settings(agent, given["model_settings"])
        names = [getattr(tool, "name", "") for tool in (*given["tools"], *given["handoffs"])]
        name = str(getattr(model, "model", "") or "")
        who = agent.name if self._inside or agent is not self._first else ""
        kept = Kept(name, self._inside, lambda output: _handed(output, given["handoffs"]))
        request = self._course.request(given["input"], name, given["system_instructions"], names)
        said = said_in_items(given["input"])
        where = f"{self._inside} {who}".strip()
        noting = self._noting[self._place_of(model)]
        return _Request(model, noting, given, kept, request, said, name, where)

    # What is noted --------------------------------------------------------------------------------

    def _note_handoff(self, agent: Any) -> None:
        said = {"from": self._agent.name, "to": agent.name}
        self._seam.run.record_step(Step(action="handoff", tool_input=said))

    def _note_unknown(self, output: Sequence[Any], given: Mapping[str, Any]) -> None:
        """Calls of tools that there are none of: the SDK ends the run for them, or tells the model."""
        for item in output:
            if getattr(item, "type", None) != "function_call":
                continue
            name = getattr(item, "name", "")
            tools = [getattr(tool, "name", "") for tool in given["tools"]]
            handoffs = [handoff.tool_name for handoff in given["handoffs"]]
            # The last is how LiteLLM gives an answer of a type.
            of_type = given["output_schema"] is not None and name == "json_tool_call"
            if of_type or name in tools or name in handoffs:
                continue
            text = f"there is no tool {name!r}; the tools are: {', '.join(tools) or 'none'}"
            self._seam.refused(name, arguments(item.arguments), text, kind="UnknownTool")


_PARAMETERS = (
    "system_instructions", "input", "model_settings", "tools", "output_schema", "handoffs", "tracing",
)  # fmt: skip


def _noting(model: Model) -> Any:
    """OpenAI's models do not say why an answer ended: a copy that notes it where it is said."""
    if type(model) not in _THEIRS or getattr(model, "_client", None) is None:
        return model
    copied: Any = copy.copy(model)
    fetch = copied._fetch_response  # noqa: SLF001 - the whole answer passes nowhere else

    async def fetched(*args: Any, **more: Any) -> Any:
        whole = await fetch(*args, **more)
        kept = _kept.get()
        choices = getattr(whole, "choices", None)
        if choices:  # it has no status, and to ask for what is not there is dear
            if choices[0].finish_reason == "length":
                kept.ended = "length"
        elif getattr(whole, "status", None) == "incomplete":
            kept.ended = getattr(whole.incomplete_details, "reason", None) or "length"
        return whole

    copied._fetch_response = fetched  # noqa: SLF001 - as above
    return copied


_THEIRS = (OpenAIChatCompletionsModel, OpenAIResponsesModel)


async def _filtered(data: Any) -> ModelInputData:
    found: ModelInputData = await data if isawaitable(data) else data
    return found


def _defaults(name: str | None) -> ModelSettings:
    return get_default_model_settings() if name is None else get_default_model_settings(name)


def _handed(output: Sequence[Any], handoffs: Sequence[Any]) -> Mapping[str, str]:
    agents = {handoff.tool_name: handoff.agent_name for handoff in handoffs}
    calls = [item for item in output if getattr(item, "type", None) == "function_call"]
    return {call.call_id: agents[call.name] for call in calls if call.name in agents}
