"""Pydantic AI: any agent, with its sub-agents, toolsets and output types.

    agent = triage.wrap(pydantic_ai.Agent("openai:gpt-5", tools=[charge]), effects={"charge": "once"})
    result = await agent.run("Pay the bill.", deps=deps)
    print(result.output)

Each attempt is one run of the agent from its prompt; what was done before is answered from the journal.

A capability for each run of an agent wraps the model and the tools it has at that moment. The agent that
is wrapped may run others, in its tools and hooks; so the one method through which every run of an agent
begins is replaced, once in a process, by one that looks whether a wrapped agent is running, and adds the
capability. Where none is running it calls straight on.
"""

from __future__ import annotations

import copy
import json
from collections.abc import (
    AsyncGenerator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeGuard

from .extras import missing

try:
    import pydantic_ai  # noqa: F401 # pyright: ignore[reportUnusedImport] - the first of its imports
except ImportError as error:
    raise missing("pydantic-ai", error) from error

from pydantic import ValidationError
from pydantic_ai import Agent, RunContext
from pydantic_ai.agent import WrapperAgent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import (
    ApprovalRequired,
    CallDeferred,
    ModelRetry,
    ToolFailed,
    UnexpectedModelBehavior,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
    UserPromptPart,
    repair_messages,
)
from pydantic_ai.models import (
    CompletedStreamedResponse,
    Model,
    ModelRequestContext,
    ModelRequestParameters,
    StreamedResponse,
    infer_model,
)
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers import infer_provider_class
from pydantic_ai.run import AgentRunResult
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDenied
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, ToolsetTool, WrapperToolset

from triage.core import Cause, FailureType, UsageError, hint, plain
from triage.core.messages.base import (
    NOT_MADE,
    Answer,
    Asked,
    Message,
    Shrink,
    Tell,
    Wire,
    arguments,
    as_text,
    listed,
    mapping,
    tell_nobody,
    usage_of,
)
from triage.core.messages.base import Result as ToolResult
from triage.engine import shown
from triage.strategies import RetryLayer

from .base import (
    Adapter,
    AskedCall,
    ModelOptions,
    NoSuchModel,
    Said,
    Scopes,
    Seam,
    SoftFailure,
    replace_method,
)
from .calls import Failed, Form, StreamLeft, UnfinishedStream, key_of
from .conversations import Turn, continued, guidance_text, repaired

__all__ = ["PydanticAIAdapter", "shrunk_pydantic"]


class PydanticAIWire(Wire):
    """Pydantic AI's messages: results are parts of the request behind the response that asked for them."""

    def read(self, message: ModelMessage, tell: Tell = tell_nobody) -> Message:
        if isinstance(message, ModelResponse):
            words = [part.content for part in message.parts if isinstance(part, TextPart)]
            calls = [_asked(part) for part in message.parts if isinstance(part, ToolCallPart)]
            return Message("model", "".join(words), tuple(calls))
        results = [
            ToolResult(part.tool_call_id, _words(part), part.tool_name)
            for part in message.parts
            if _is_output(part)
        ]
        shows_any = any(isinstance(part, ToolReturnPart) for part in message.parts)
        return Message("tool" if shows_any else "user", results=tuple(results))

    def user(self, text: str) -> Any:
        return ModelRequest([UserPromptPart(text)])

    def result(self, asked: Asked, text: str, *, failed: bool) -> Any:
        return returned(asked, text, failed=failed)

    def held(self, message: ModelMessage) -> list[Any]:
        return [part for part in message.parts if _is_output(part)]

    def joined(self, results: list[Any], message: ModelMessage | None) -> list[Any]:
        if message is None:
            return [ModelRequest(results)]
        assert isinstance(message, ModelRequest)
        parts = [*results, *(part for part in message.parts if not _is_output(part))]
        return [replace(message, parts=parts)] if parts else []

    def masked(self, message: ModelMessage, outputs: Mapping[int, str]) -> Any:
        assert isinstance(message, ModelRequest)
        parts = list(message.parts)
        places = [at for at, part in enumerate(parts) if _is_output(part)]
        for place, text in outputs.items():
            part = parts[places[place]]
            assert _is_output(part)
            parts[places[place]] = replace(part, content=text)
        return replace(message, parts=parts)

    def says(self, messages: Any, text: str) -> bool:
        quoted = json.dumps(text, ensure_ascii=False)[1:-1].encode()
        return quoted in ModelMessagesTypeAdapter.dump_json(list(messages))

    def ending_with(self, messages: list[Any], text: str) -> list[Any]:
        last = messages[-1] if messages else None
        if not isinstance(last, ModelRequest):
            return messages
        return [*messages[:-1], replace(last, parts=[*last.parts, UserPromptPart(text)])]

    def new_in(self, messages: Any) -> list[Any]:
        """The parts of the last message."""
        last = messages[-1] if messages else None
        if not isinstance(last, ModelRequest):
            return []
        return [{"role": _role(part), "content": _words(part)} for part in last.parts]


PYDANTIC_AI = PydanticAIWire()


def shrunk_pydantic(messages: list[ModelMessage], shrink: Shrink | None) -> list[ModelMessage]:
    """The messages without old tool outputs, as `shrink` says; None: unchanged."""
    found: list[ModelMessage] = PYDANTIC_AI.shrunk(messages, shrink)
    return found


def returned(asked: Asked, content: Any, *, failed: bool) -> ToolReturnPart:
    """The result of a call as a part of a request."""
    part = ToolReturnPart(asked.name, content, asked.id)
    if failed:
        part.outcome = "failed"
    return part


def _asked(part: ToolCallPart) -> Asked:
    return Asked(part.tool_call_id, part.tool_name, arguments(part.args))


def _is_output(part: Any) -> TypeGuard[ToolReturnPart]:
    """Whether a part is a tool's output; subclasses are of the framework's own tools."""
    return type(part) is ToolReturnPart


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


def _dump_answer(response: ModelResponse) -> Any:
    dumped = ModelMessagesTypeAdapter.dump_python(
        [response], mode="json", warnings=False, exclude_none=True
    )
    return dumped[0]


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


ANSWER = Form(_dump_answer, _load_answer, _read_answer)


_KIND = "pydantic_ai"
"""Key that marks a stored result as more than a value, and says what it is."""
_REFUSALS = {"ModelRetry": ModelRetry, "ToolFailed": ToolFailed}
Spoken = ModelRetry | ToolFailed | ApprovalRequired | CallDeferred
"""What a tool raises and the framework goes on with: it counts as a result."""


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
    """The content of a part, as stored in a message."""
    (data,) = ModelMessagesTypeAdapter.dump_python(
        [ModelRequest([part])], mode="json", warnings=False
    )
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
    if kind not in _REFUSALS:
        return None
    return Failed(as_text(data["message"]), kind, refuses=kind == "ModelRetry")


RESULT = Form(_dump_result, _load_result, failed=_failed)


_TELLING = ("tool_name", "tool_call_id", "args", "content")


def request_of(
    messages: Sequence[ModelMessage], settings: Any, parameters: ModelRequestParameters
) -> Any:
    """Everything that decides an answer, for `Seam.model`.

    Timestamps and run ids are left out, and so are instructions, which may be generated for each request,
    for example from the time of day.
    """
    said = ""
    for message in messages:
        parts = [
            [part.part_kind, *[getattr(part, name, None) for name in _TELLING]]
            for part in message.parts
            if not isinstance(part, SystemPromptPart)
        ]
        said = key_of([said, parts])
    tools = [tool.name for tool in (*parameters.function_tools, *parameters.output_tools)]
    return [said, tools, dict(settings or {})]


def history_of(
    turns: Sequence[Turn], *, hint: bool, use: Callable[[Turn], object]
) -> list[ModelMessage]:
    """The agent's own turns as messages that end with a request.

    hint: there will be a hint, which can follow a final answer. use: called with each result used.
    """

    def answer(turn: Turn) -> tuple[list[Any], list[Asked]] | None:
        if " " in turn.name:
            return None  # of another agent beside it
        response = _load_answer(turn.value)
        return [response], [
            _asked(part) for part in response.parts if isinstance(part, ToolCallPart)
        ]

    def result(asked: Asked, turn: Turn) -> ModelRequest:
        content: Any = turn.error
        if content is None:
            value = _load_result(turn.value)
            if isinstance(value, ApprovalRequired | CallDeferred):
                return ModelRequest([returned(asked, NOT_MADE, failed=True)])
            content = value.return_value if isinstance(value, ToolReturn) else value
        return ModelRequest([returned(asked, content, failed=turn.error is not None)])

    before = continued(turns, answer=answer, result=result, use=use)
    messages: list[ModelMessage] = []
    for message in repaired(PYDANTIC_AI, before).messages:
        if (
            messages
            and isinstance(message, ModelResponse)
            and isinstance(messages[-1], ModelResponse)
        ):
            messages.append(ModelRequest([]))  # two answers are never next to each other
        messages.append(message)
    if messages and isinstance(messages[-1], ModelResponse):
        return [*messages, ModelRequest([])] if hint else messages[:-1]
    return messages


class Result(AgentRunResult[Any]):
    """An `AgentRunResult` of which the journal stores the output; its steps have the messages."""

    __dataclass_fields__: ClassVar = {"output": AgentRunResult.__dataclass_fields__["output"]}


class PydanticAIAdapter(Adapter):
    """Run an agent: `run(prompt, **options)` is its `run`, and returns its `AgentRunResult`.

    Deferred tool calls suspend the run, unless one of the agent's own capabilities answers them.
    `Agent.resume(token, approve())` runs them, `reject(reason)` asks for another way, and
    `happened(answer)` answers them: with the result of a call made elsewhere, False or a reason to deny a
    call, or a mapping of other arguments for it.
    """

    name = "pydantic-ai"
    asyncio_only = True
    validates = True

    async def attempt(self, seam: Seam, task: Any, **kwargs: Any) -> Any:
        history = kwargs.get("message_history")
        if history and task is not None and not kwargs.get("deferred_tool_results"):
            kwargs["message_history"] = repair_messages(history)
        with entered(seam):
            result = await self.target.run(task, **kwargs)
        if type(result) is AgentRunResult:
            result.__class__ = Result
        return result

    def answer(self, result: Any) -> Any:
        return result.output

    def soft_failure(self, result: Any) -> BaseException | None:
        """A final answer that was broken off is a failure."""
        messages = result.all_messages()
        last = messages[-1] if messages else None
        if isinstance(last, ModelResponse) and last.state != "complete":
            return SoftFailure(f"it ended with an answer that is {last.state}")
        return None

    def clients(self) -> Iterable[object]:
        """The models, each with its provider's client."""
        return [part for model in _models_of(self.target) for part in (model, _client_of(model))]

    def layers(self) -> Iterable[RetryLayer]:
        """Pydantic AI's own retries."""
        agent = self.target
        while isinstance(agent, WrapperAgent):
            agent = agent.wrapped
        for model in _models_of(agent):
            client = getattr(_client_of(model), "_client", None)
            transport = getattr(client, "_transport", None)
            if type(transport).__module__ == "pydantic_ai.retries":
                where = f"pydantic_ai.retries.{type(transport).__qualname__}"
                yield RetryLayer(where, None, "make the provider without that transport")

    def explain(self, error: Exception) -> None:
        """Read limits, and why a call was refused, from Pydantic AI's classes."""
        kind, behind = type(error).__name__, error.__cause__
        # A call was refused for its own sake where no connection or service stands behind the refusal.
        refused = isinstance(behind, ValidationError) or (
            behind is not None and behind.__context__ is None
        )
        if kind in ("OutputTokenLimitExceeded", "IncompleteToolCall"):
            hint(error, failure_type=FailureType.CONTEXT_OVERFLOW, cause=Cause.OUTPUT_CUT)
        elif type(behind).__name__ in ("_UnknownTool", "_ToolUnavailable"):
            hint(error, failure_type=FailureType.WRONG_TOOL_CALLED, cause=Cause.UNKNOWN_TOOL)
        elif kind == "UnexpectedModelBehavior" and str(error).startswith("Tool ") and refused:
            hint(error, failure_type=FailureType.SCHEMA_MISMATCH, cause=Cause.INVALID_ARGUMENTS)


def _models_of(agent: Any) -> Iterator[Any]:
    model = getattr(agent, "model", None)
    waiting = [model] if isinstance(model, Model) else []
    while waiting:
        model = waiting.pop(0)
        yield model
        waiting += model.models if isinstance(model, FallbackModel) else []


def _client_of(model: Any) -> object:
    return getattr(model.provider, "client", None)


class Scope:
    """One attempt of a wrapped agent. agents: how many agent runs have begun in it."""

    def __init__(self, seam: Seam) -> None:
        self.seam = seam
        self.agents = 0

    def capability(self, agent: Any) -> Recording:
        """The capability for an agent run that begins; the first run is the wrapped agent's own."""
        self.agents += 1
        first = self.agents == 1
        return Recording(self.seam, "" if first else agent.name or "agent", first=first)


_SCOPES = Scopes[Scope]("pydantic_ai", lambda scope: scope.seam.run)


@contextmanager
def entered(seam: Seam) -> Generator[None]:
    """Make the agent runs that this code, its tasks and its threads start pass through a seam."""
    replace_method(Agent, "iter", _iter)
    with _SCOPES.entered(Scope(seam)):
        yield


def _iter(original: Any) -> Any:
    def iter(self: Any, *args: Any, capabilities: Any = None, **options: Any) -> Any:  # noqa: A001 - theirs
        scope = _SCOPES.active()
        if scope is not None:
            capabilities = [*(capabilities or ()), scope.capability(self)]
        return original(self, *args, capabilities=capabilities, **options)

    return iter


class Recording(AbstractCapability[Any]):
    """Passes one run of an agent through a seam.

    who: the agent's name, unless it is the wrapped agent. first: it is the wrapped agent's run, whose
    conversation may begin in the middle.
    """

    def __init__(self, seam: Seam, who: str, *, first: bool) -> None:
        super().__init__()
        self.seam = seam
        self.who = who
        self._carries = first
        self._refused: set[str] = set()
        self._last: list[ToolCallPart] = []

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """None, as it lives no longer than one run."""
        return None

    def get_wrapper_model(self, model: Model) -> Model:
        return model if isinstance(model, _Model) else _Model(model, self.seam, self.who)

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any] | None:
        return Toolset(toolset, self.seam)

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Insert the carried turns, and note calls that never ran."""
        messages = request_context.messages
        self._note_refused(messages)
        if self._carries:
            self._carries = False
            known = history_of(
                self.seam.carried,
                hint=guidance_text(self.seam.run.told) is not None,
                use=self.seam.use,
            )
            if known:
                request_context.messages = [*messages, *known]
                ctx.messages.extend(known)
        return request_context

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """Remember the latest tool calls."""
        self._last = [part for part in response.parts if isinstance(part, ToolCallPart)]
        return response

    async def on_run_error(self, ctx: RunContext[Any], *, error: BaseException) -> Any:
        """Note the call that was refused once too often, which no later request shows."""
        kind = _KINDS.get(type(error.__cause__).__name__)
        if isinstance(error, UnexpectedModelBehavior) and kind is not None:
            calls = [part for part in self._last if f"Tool {part.tool_name!r}" in str(error)]
            for call in calls:
                self._refuse(call, str(error.__cause__), kind)
        raise error

    def _note_refused(self, messages: Sequence[ModelMessage]) -> None:
        """Note the calls that the last message refuses: unknown tools, wrong arguments."""
        last = messages[-1] if messages else None
        if not isinstance(last, ModelRequest):
            return
        turn = next((one for one in reversed(messages) if isinstance(one, ModelResponse)), None)
        parts = () if turn is None else turn.parts
        asked = {part.tool_call_id: part for part in parts if isinstance(part, ToolCallPart)}
        for part in last.parts:
            if not isinstance(part, ToolReturnPart) or part.retry is None:
                continue
            kind, call = _KINDS.get(part.retry.cause), asked.get(part.tool_call_id)
            if kind is not None and call is not None and part.tool_call_id not in self._refused:
                self._refused.add(part.tool_call_id)
                self._refuse(call, part.model_response_str(wrap_if_error=False), kind)

    def _refuse(self, call: ToolCallPart, told: str, kind: str) -> None:
        given = arguments(call.args)
        self.seam.refused(call.tool_name, given, told, kind=kind, id=call.tool_call_id)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """A person's answers to these calls; without answers yet, the run is suspended."""
        return answers_to(self.seam, requests)


_KINDS = {
    "unknown_tool": "UnknownTool",
    "_UnknownTool": "UnknownTool",
    "unavailable_tool": "UnknownTool",
    "_ToolUnavailable": "UnknownTool",
    "validation_error": "InvalidArguments",
    "ValidationError": "InvalidArguments",
}
"""The exception type of a refused call's step, by the framework's word or class for the reason."""


class _Model(WrapperModel):
    """A model that is asked through a seam."""

    def __init__(self, wrapped: Model, seam: Seam, who: str) -> None:
        super().__init__(wrapped)
        self._seam = seam
        self._who = who
        self._others = Others(wrapped)

    # There is nothing to enter: the owner of the wrapped model enters it.
    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        """Nothing was entered."""

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        async def ask(hint: str | None) -> ModelResponse:
            given = self._sent(messages, hint)
            name = self._seam.other_model
            if name is None:
                return await self.wrapped.request(given, model_settings, model_request_parameters)
            async with self._others.named(name) as other:
                given = other.prepare_messages(given, model_request_parameters)
                return await other.request(given, model_settings, model_request_parameters)

        options = self._options(messages, model_settings, model_request_parameters)
        answer: ModelResponse = await self._seam.model(ask, **options)
        return answer

    def _sent(self, messages: list[ModelMessage], hint: str | None) -> list[ModelMessage]:
        found: list[ModelMessage] = PYDANTIC_AI.hinted(
            shrunk_pydantic(messages, self._seam.shrink), hint
        )
        return found

    def _options(
        self,
        messages: list[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
    ) -> ModelOptions:
        return {
            "form": ANSWER,
            "request": request_of(messages, settings, parameters),
            "said": PYDANTIC_AI.new_in(messages),
            "model": self.model_name,
            "who": self._who,
            "max_tokens": (settings or {}).get("max_tokens"),
            "tools": [*parameters.function_tools, *parameters.output_tools],
        }

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        options = self._options(messages, model_settings, model_request_parameters)
        stream = self._seam.stream(**options)
        if stream.known is not None:
            yield CompletedStreamedResponse(
                stream.known, model_request_parameters=model_request_parameters, replay_events=True
            )
            return
        with stream.passing():
            given = self._sent(messages, self._seam.hint)
            async with AsyncExitStack() as stack:
                model, other = self.wrapped, self._seam.other_model
                if other is not None:
                    model = await stack.enter_async_context(self._others.named(other))
                    given = model.prepare_messages(given, model_request_parameters)
                asked = model.request_stream(
                    given, model_settings, model_request_parameters, run_context
                )
                pieces = await stack.enter_async_context(asked)
                yield pieces
                answer = pieces.get()
                if answer.state != "complete":
                    stream.failed(StreamLeft())
                elif answer.provider_name in _SAY_WHY and not (answer.provider_details or {}).get(
                    "finish_reason"
                ):
                    raise UnfinishedStream
                stream.done(answer)
        await stream.durable()


_SAY_WHY = ("openai", "anthropic")
"""Providers that give a reason for the end of every answer."""


_REMEDY = "give the name with its provider, such as 'openai:gpt-5'"


class Others:
    """The models asked in place of another. Each is made once, as it may have its own client."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._by_name: dict[str, Model] = {}

    @asynccontextmanager
    async def named(self, name: str) -> AsyncGenerator[Model]:
        """The model to ask, for one request. Raises NoSuchModel."""
        model = self._by_name.get(name)
        if model is None:
            try:
                model = infer_model(name) if _has_provider(name) else _renamed(self._model, name)
            except NoSuchModel:
                raise
            except Exception as error:
                raise NoSuchModel(name, f"pydantic-ai makes no model of it: {error}") from error
            self._by_name[name] = model
        if not _has_provider(name):
            yield model  # it shares the client of the user's model, who owns it
            return
        async with model:
            yield model


def _has_provider(name: str) -> bool:
    """Whether a name begins with a provider, as names of models can have a colon, too (`llama3:8b`)."""
    provider, colon, _ = name.partition(":")
    if not colon:
        return False
    try:
        infer_provider_class(provider)
    except ValueError:
        return False
    return True


def _renamed(model: Model, name: str) -> Model:
    """The model of that name of the same class and provider, with the same settings."""
    if isinstance(model, WrapperModel):
        wrapper = copy.copy(model)
        wrapper.wrapped = _renamed(model.wrapped, name)
        return wrapper
    kind: Any = type(model)
    if model.provider is None:
        raise NoSuchModel(name, f"{kind.__name__} has no provider to ask for it; {_REMEDY}")
    renamed: Model = kind(name, provider=model.provider, settings=model.settings)
    return renamed


class Toolset(WrapperToolset[Any]):
    """Tools that are called through a seam."""

    def __init__(self, wrapped: AbstractToolset[Any], seam: Seam) -> None:
        super().__init__(wrapped)
        self.seam = seam

    async def for_run(self, ctx: RunContext[Any]) -> AbstractToolset[Any]:
        return self._around(await self.wrapped.for_run(ctx))

    async def for_run_step(self, ctx: RunContext[Any]) -> AbstractToolset[Any]:
        return self._around(await self.wrapped.for_run_step(ctx))

    def visit_and_replace(self, visitor: Any) -> AbstractToolset[Any]:
        return self._around(self.wrapped.visit_and_replace(visitor))

    def _around(self, wrapped: AbstractToolset[Any]) -> AbstractToolset[Any]:
        return self if wrapped is self.wrapped else Toolset(wrapped, self.seam)

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        async def do() -> Any:
            try:
                return await self.wrapped.call_tool(name, tool_args, ctx, tool)
            except (ModelRetry, ToolFailed, ApprovalRequired, CallDeferred) as signal:
                return signal

        answer = await self.seam.tool(
            name,
            tool_args,
            do,
            id=ctx.tool_call_id,
            effect=self.seam.adapter.hinted(
                name, (tool.tool_def.metadata or {}).get("annotations")
            ),
            form=RESULT,
            function=_function_of(tool),
            schema=tool.tool_def.parameters_json_schema,
        )
        if isinstance(answer, Spoken):
            raise answer
        return answer


def _function_of(tool: ToolsetTool[Any]) -> object:
    """The user's own function, where the tool is one."""
    held: Any = tool.toolset
    if not isinstance(held, FunctionToolset):
        return None
    name = getattr(tool, "original_name", None) or tool.tool_def.name
    found = held.tools.get(name)
    return None if found is None else found.function


def answers_to(seam: Seam, requests: DeferredToolRequests) -> DeferredToolResults:
    """A person's answers to these calls. Without answers yet, end the attempt and suspend the run.

    The same calls are the same question however often the agent starts over: their ids come from the
    model, whose answer is reused from the journal. An answer that does not fit is asked for again.
    """
    calls = [*requests.approvals, *requests.calls]
    asked = {call.tool_call_id: _asked_call(call) for call in calls}
    known = seam.verdicts([asked[call.tool_call_id] for call in requests.approvals])
    left = [call for call in calls if call.tool_call_id not in known]
    if not left:
        return _told(seam, requests, asked, known, {})
    names = ", ".join(dict.fromkeys(call.tool_name for call in calls))
    about: list[Any] = [[call.tool_call_id, call.tool_name, arguments(call.args)] for call in calls]
    name = f"{names} (approval)" if requests.approvals else f"{names} (done elsewhere)"
    shown_calls, wrong = _shown(left, elsewhere=bool(requests.calls)), ""
    while True:
        said = seam.ask_person(
            name, about, f"{wrong}{_text(left)}",
            calls=[asked[call.tool_call_id] for call in left], **shown_calls,
        )  # fmt: skip
        try:
            return _results(seam, requests, asked, known, said)
        except UsageError as error:
            wrong = f"{error}; "
            about = [*about, wrong]


def _asked_call(call: ToolCallPart) -> AskedCall:
    return AskedCall(call.tool_call_id, call.tool_name, arguments(call.args))


def _results(
    seam: Seam,
    requests: DeferredToolRequests,
    asked: Mapping[str, AskedCall],
    known: Mapping[str, Said],
    said: Said,
) -> DeferredToolResults:
    """What a person said of these calls. Raises UsageError where it does not fit them."""
    if said.decision == "answered":
        given = said.value if len(asked) > 1 else dict.fromkeys(asked, said.value)
        return _told(seam, requests, asked, known, given)
    if requests.calls:  # of a journal in which it could be approved
        names = ", ".join(dict.fromkeys(call.tool for call in asked.values()))
        raise UsageError(f"{names} is done elsewhere: answer with happened(result)")
    return _told(seam, requests, asked, {**dict.fromkeys(asked, said), **known}, {})


def _text(calls: Sequence[ToolCallPart]) -> str:
    words = "; ".join(
        f"{call.tool_name} with {shown(plain(arguments(call.args)))}" for call in calls
    )
    return f"the agent waits for an answer about {words}"


def _shown(calls: Sequence[ToolCallPart], *, elsewhere: bool) -> dict[str, Any]:
    """What `ask_person` is told of the calls. elsewhere: some of them are made by somebody else."""
    if len(calls) > 1:
        asked = {one.tool_call_id: [one.tool_name, plain(arguments(one.args))] for one in calls}
        return {"arguments": asked, "elsewhere": elsewhere}
    given: Any = plain(arguments(calls[0].args))
    editable = tuple(given) if isinstance(given, dict) and not elsewhere else ()
    return {"arguments": given, "editable": editable, "elsewhere": elsewhere}


def _told(
    seam: Seam,
    requests: DeferredToolRequests,
    asked: Mapping[str, AskedCall],
    known: Mapping[str, Said],
    said: Any,
) -> DeferredToolResults:
    """The answers of a person, by the ids of the calls. known: approvals of calls that it does not name."""
    missing = [
        one
        for one in asked
        if one not in known and (not isinstance(said, Mapping) or one not in said)
    ]
    if missing:
        raise UsageError(
            f"{len(asked)} calls wait: answer with happened({{id: answer, …}}); there is none for "
            f"{', '.join(missing)}"
        )
    decided: dict[str, ToolApproved | ToolDenied] = {}
    for call in requests.approvals:
        one = call.tool_call_id
        if one in said:
            decided[one] = _approval(said[one])
        elif known[one].decision == "rejected":
            decided[one] = ToolDenied(known[one].told)
        else:
            edits = known[one].edits
            changed = {**arguments(call.args), **edits} if edits else None
            decided[one] = ToolApproved(override_args=changed)
    for one, decision in decided.items():
        if one in said and isinstance(decision, ToolDenied):
            seam.refuse(asked[one], said[one] if isinstance(said[one], str) else "")
    calls = {one.tool_call_id: said[one.tool_call_id] for one in requests.calls}
    return requests.build_results(approvals=decided, calls=calls)


def _approval(said: Any) -> ToolApproved | ToolDenied:
    """Approved, denied, denied for a reason, or approved with other arguments."""
    if isinstance(said, bool):
        return ToolApproved() if said else ToolDenied()
    if isinstance(said, str):
        return ToolDenied(said)
    if isinstance(said, Mapping):
        return ToolApproved(override_args=dict(said))
    raise UsageError(
        "a call that waits for approval is answered with approve(), reject(reason), or happened() of "
        f"True, False, the reason against it, or the arguments it may have; not {type(said).__name__}"
    )
