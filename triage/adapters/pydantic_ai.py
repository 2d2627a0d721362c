"""Pydantic AI: any agent, with its sub-agents, toolsets and output types.

    agent = triage.wrap(pydantic_ai.Agent("openai:gpt-5", tools=[charge]), effects={"charge": "once"})
    result = await agent.run("Pay the bill.", deps=deps)
    print(result.output)

Each attempt is one run of the agent from its prompt; what was done before is answered from the journal.

A capability for each run of an agent wraps the model and the tools it has at that moment. The agent that
is wrapped may run others, in its tools and hooks; so the one method through which every run of an agent
begins is replaced, once in a process, by one that adds the capability where a wrapped agent is running.

Requests that leave over HTTP are recorded there. Those of other models, such as `FunctionModel`, are
recorded here; they are not made shorter, and a new plan begins without the turns before it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

from .extras import missing

try:
    import pydantic_ai as ai
except ImportError as error:
    raise missing("pydantic-ai", error) from error

from pydantic import ValidationError
from pydantic_ai import models
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import repair_messages
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers import infer_provider_class

from triage.core.capture import hint
from triage.core.json_values import plain
from triage.core.messages.neutral import Answer, Asked
from triage.core.messages.reading import arguments, as_text, mapping, usage_of
from triage.core.taxonomy import Cause, FailureType
from triage.strategies.layers import RetryLayer

from . import base
from .asked_together import answers_to
from .asking import AskedCall, Said
from .calls import Failed, Form, StreamLeft, key_of, within
from .replacing import Scopes, replace_method

__all__ = ["PydanticAIAdapter"]


class Result(ai.AgentRunResult[Any]):
    """An `AgentRunResult` of which the journal stores the output; its steps have the messages."""

    __dataclass_fields__: ClassVar = {"output": ai.AgentRunResult.__dataclass_fields__["output"]}


class PydanticAIAdapter(base.Adapter):
    """Run an agent: `run(prompt, **options)` is its `run`, and returns its `AgentRunResult`.

    Deferred tool calls suspend the run, unless one of the agent's own capabilities answers them.
    `Agent.resume(token, approve())` runs them, `reject(reason)` asks for another way, and
    `happened(answer)` answers them: with the result of a call made elsewhere, False or a reason to deny a
    call, or a mapping of other arguments for it.
    """

    name = "pydantic-ai"
    asyncio_only = True
    validates = True
    on_wire = True

    async def attempt(self, seam: base.Seam, task: Any, **kwargs: Any) -> Any:
        history = kwargs.get("message_history")
        if history and task is not None and not kwargs.get("deferred_tool_results"):
            kwargs["message_history"] = repair_messages(history)
        with entered(seam):
            result = await self.target.run(task, **kwargs)
        if type(result) is ai.AgentRunResult:
            result.__class__ = Result
        return result

    def answer(self, result: Any) -> Any:
        return result.output

    def soft_failure(self, result: Any) -> BaseException | None:
        """A final answer that was broken off is a failure."""
        last = next(reversed(result.all_messages()), None)
        if isinstance(last, ai.ModelResponse) and last.state != "complete":
            return base.SoftFailure(f"it ended with an answer that is {last.state}")
        return None

    def clients(self) -> Iterable[object]:
        """The models, each with its provider's client."""
        found = list(_models_of(self.target.model))
        return [*found, *map(_client_of, found)]

    def layers(self) -> Iterable[RetryLayer]:
        """Pydantic AI's own retries."""
        for model in _models_of(self.target.model):
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


def _models_of(model: Any) -> Iterator[Any]:
    if isinstance(model, models.Model):
        yield model
    for one in model.models if isinstance(model, FallbackModel) else ():
        yield from _models_of(one)


def _client_of(model: Any) -> object:
    return getattr(model.provider, "client", None)


# Runs of agents -----------------------------------------------------------------------------------

_SCOPES = Scopes[base.Seam]("pydantic_ai", lambda seam: seam.run)


@contextmanager
def entered(seam: base.Seam) -> Generator[None]:
    """Make the agent runs that this code, its tasks and its threads start pass through a seam."""
    replace_method(ai.Agent, "iter", _iter)
    with _SCOPES.entered(seam):
        yield


def _iter(original: Any) -> Any:
    def iter(self: Any, *args: Any, capabilities: Any = None, **options: Any) -> Any:  # noqa: A001 - theirs
        seam = _SCOPES.active()
        if seam is not None:
            capabilities = [*(capabilities or ()), Recording(seam)]
        return original(self, *args, capabilities=capabilities, **options)

    return iter


class Recording(AbstractCapability[Any]):
    """Passes one run of an agent through a seam."""

    def __init__(self, seam: base.Seam) -> None:
        super().__init__()
        self.seam = seam

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """None, as it lives no longer than one run."""
        return None

    def get_wrapper_model(self, model: models.Model) -> models.Model:
        """The model as it is asked through the seam, or the one that is asked in its place."""
        return model if isinstance(model, _Model) else _Model(model, self.seam)

    def get_wrapper_toolset(self, toolset: ai.AbstractToolset[Any]) -> Toolset:
        return Toolset(toolset, self.seam)

    async def on_tool_validate_error(
        self, ctx: Any, *, call: ai.ToolCallPart, tool_def: Any, args: Any, error: Any
    ) -> dict[str, Any]:
        """Note a call with arguments that do not fit."""
        given, id_ = arguments(call.args), _own_id(call)
        self.seam.refused(call.tool_name, given, str(error), kind="InvalidArguments", id=id_)
        raise error

    async def handle_deferred_tool_calls(
        self, ctx: ai.RunContext[Any], *, requests: ai.DeferredToolRequests
    ) -> ai.DeferredToolResults:
        """A person's answers to these calls; without answers yet, the run is suspended."""
        turn = next(one for one in reversed(ctx.messages) if isinstance(one, ai.ModelResponse))
        places = [call.tool_call_id for call in turn.tool_calls]

        def asked(call: ai.ToolCallPart) -> AskedCall:
            place = f"{within()} {ctx.run_step}.{places.index(call.tool_call_id)}".lstrip()
            return AskedCall(_own_id(call) or place, call.tool_name, arguments(call.args))

        approvals = {one.tool_call_id: asked(one) for one in requests.approvals}
        elsewhere = {one.tool_call_id: asked(one) for one in requests.calls}
        told = answers_to(self.seam, [*approvals.values()], [*elsewhere.values()])
        return requests.build_results(
            approvals={id_: _decision(call, told[call.id]) for id_, call in approvals.items()},
            calls={id_: told[call.id].value for id_, call in elsewhere.items()},
        )


def _decision(call: AskedCall, said: Said) -> ai.ToolApproved | ai.ToolDenied:
    """Approved, denied, denied for a reason, or approved with other arguments."""
    if said.decision == "rejected":
        return ai.ToolDenied(said.told)
    allowed = said.value
    if said.decision == "approved":
        allowed = {**arguments(call.arguments), **said.edits} if said.edits else True
    if isinstance(allowed, str) or allowed is False:
        return ai.ToolDenied(allowed) if allowed else ai.ToolDenied()
    return ai.ToolApproved(override_args=None if allowed is True else dict(allowed))


def _own_id(call: ai.ToolCallPart | ai.RunContext[Any]) -> str | None:
    """The model's id of a call; None for one that the framework made up, another one in each attempt."""
    made_up = call.tool_call_id is None or call.tool_call_id.startswith("pyd_ai_")
    return None if made_up else call.tool_call_id


# Models -------------------------------------------------------------------------------------------


class _Model(WrapperModel):
    """A model that is asked through a seam, or the one that `Seam.other_model` names in its place."""

    def __init__(self, model: models.Model, seam: base.Seam) -> None:
        name = seam.other_model
        super().__init__(model if name is None else _other(model, name))
        self._seam = seam
        self._is_made = name is not None and _has_provider(name)

    # The owner of the user's model enters that one.
    async def __aenter__(self) -> Self:
        if self._is_made:
            await self.wrapped.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:  # noqa: PYI036 - passed on
        if self._is_made:
            await self.wrapped.__aexit__(*error)

    async def request(
        self,
        messages: list[ai.ModelMessage],
        model_settings: ai.ModelSettings | None,
        model_request_parameters: models.ModelRequestParameters,
    ) -> ai.ModelResponse:
        given = (model_settings, model_request_parameters)

        async def ask(hint: str | None) -> ai.ModelResponse:
            return await self.wrapped.request(_hinted(messages, hint), *given)

        options = partial(_options, self.model_name, messages, *given)
        return await self._seam.asked(self._innermost, self.model_name, ask, options)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ai.ModelMessage],
        model_settings: ai.ModelSettings | None,
        model_request_parameters: models.ModelRequestParameters,
        run_context: ai.RunContext[Any] | None = None,
    ) -> AsyncGenerator[models.StreamedResponse]:
        given = (model_settings, model_request_parameters)
        options = partial(_options, self.model_name, messages, *given)
        asking = self._seam.streamed(self._innermost, self.model_name, options)
        if asking.known is not None:
            yield models.CompletedStreamedResponse(
                asking.known, model_request_parameters=model_request_parameters, replay_events=True
            )
            return
        sent = self.wrapped.request_stream(_hinted(messages, asking.hint), *given, run_context)
        async with AsyncExitStack() as stack:
            with asking.passing():
                with asking.listening():
                    pieces = await stack.enter_async_context(sent)
                yield pieces
                answer = pieces.get()
                if answer.state != "complete":
                    asking.failed(StreamLeft())
                asking.done(answer)
        await asking.durable()

    @property
    def _innermost(self) -> models.Model:
        model = self.wrapped
        while isinstance(model, WrapperModel):
            model = model.wrapped
        return model


def _has_provider(name: str) -> bool:
    """Whether a name begins with a provider, as names of models can have a colon, too (`llama3:8b`)."""
    provider, colon, _ = name.partition(":")
    try:
        return bool(colon and infer_provider_class(provider))
    except ValueError:
        return False


def _other(model: models.Model, name: str) -> models.Model:
    """The model of that name: of the provider in it, else of this model's. Raises NoSuchModel."""
    try:
        return models.infer_model(name) if _has_provider(name) else _renamed(model, name)
    except base.NoSuchModel:
        raise
    except Exception as error:
        raise base.NoSuchModel(name, f"pydantic-ai makes no model of it: {error}") from error


def _renamed(model: models.Model, name: str) -> models.Model:
    """The model of that name of the same class and provider, with the same settings."""
    if isinstance(model, WrapperModel):
        wrapper = copy.copy(model)
        wrapper.wrapped = _renamed(model.wrapped, name)
        return wrapper
    kind: Any = type(model)
    if model.provider is None:
        remedy = "give the name with its provider, such as 'openai:gpt-5'"
        raise base.NoSuchModel(name, f"{kind.__name__} has no provider to ask for it; {remedy}")
    renamed: models.Model = kind(name, provider=model.provider, settings=model.settings)
    return renamed


# Models that are not asked over HTTP --------------------------------------------------------------


def _hinted(messages: list[ai.ModelMessage], hint: str | None) -> list[ai.ModelMessage]:
    last = messages[-1] if messages else None
    if hint is None or not isinstance(last, ai.ModelRequest):
        return messages
    return [*messages[:-1], replace(last, parts=[*last.parts, ai.UserPromptPart(hint)])]


_TELLING = ("tool_name", "tool_call_id", "args", "content")


def _options(
    model: str,
    messages: Sequence[ai.ModelMessage],
    settings: ai.ModelSettings | None,
    parameters: models.ModelRequestParameters,
) -> base.ModelOptions:
    """What is recorded of a request. Times and instructions, which may change, do not make it another."""
    said = ""
    for message in messages:
        parts = [
            [part.part_kind, *(getattr(part, name, None) for name in _TELLING)]
            for part in message.parts
            if not isinstance(part, ai.SystemPromptPart)
        ]
        said = key_of([said, parts])
    tools = [*parameters.function_tools, *parameters.output_tools]
    return {
        "form": ANSWER,
        "request": [said, [tool.name for tool in tools], dict(settings or {})],
        "said": [_shown(part) for part in messages[-1].parts] if messages else [],
        "model": model,
        "max_tokens": (settings or {}).get("max_tokens"),
        "tools": tools,
    }


def _shown(part: Any) -> dict[str, Any]:
    """A part of a request, as a step shows it."""
    kind = part.part_kind.partition("-")[0]
    content = getattr(part, "content", None)
    if isinstance(part, ai.ToolReturnPart):
        content = part.model_response_str()
    elif isinstance(content, list | tuple):
        content = [one if isinstance(one, str) else f"[{type(one).__name__}]" for one in content]
    return {"role": kind if kind in ("system", "tool") else "user", "content": content}


def _dump_answer(response: ai.ModelResponse) -> Any:
    return _ANSWERS.dump_python([response], mode="json", warnings=False, exclude_none=True)[0]


def _load_answer(data: Any) -> Any:
    return _ANSWERS.validate_json(json.dumps([data]))[0]


def _read_answer(data: Any) -> Answer:
    said: ai.ModelResponse = _load_answer(data)
    calls = [Asked(one.tool_call_id, one.tool_name, arguments(one.args)) for one in said.tool_calls]
    used = usage_of(mapping(data).get("usage"), said.model_name)
    return Answer(said.text or "", tuple(calls), used, said.finish_reason)


_ANSWERS = ai.ModelMessagesTypeAdapter
ANSWER = Form(_dump_answer, _load_answer, _read_answer)


# Tools --------------------------------------------------------------------------------------------

_KIND = "pydantic_ai"
"""Key that marks a stored result as more than a value, and says what it is."""
SIGNALS = (ai.ModelRetry, ai.ToolFailed, ai.ApprovalRequired, ai.CallDeferred)
"""What a tool raises and the framework goes on with: it counts as a result."""
_FIELDS = ("message", "metadata", "kind")


def _dump_result(value: Any) -> Any:
    signal = next((kind for kind in SIGNALS if isinstance(value, kind)), None)
    if signal is not None:
        fields = {name: plain(getattr(value, name)) for name in _FIELDS if hasattr(value, name)}
        return {_KIND: signal.__name__, **fields}
    if isinstance(value, ai.ToolReturn):
        told = None if value.content is None else _dump_part(ai.UserPromptPart(value.content))
        result = _dump_result(value.return_value)
        more = {"content": told, "metadata": plain(value.metadata), "tools": value.tools}
        return {_KIND: "ToolReturn", "result": result, **more}
    if isinstance(value, str | int | float | bool | None):
        return value
    part = ai.ToolReturnPart("", value)
    data = _dump_part(part)
    return {_KIND: "files", "content": data} if part.files else data


def _dump_part(part: ai.ToolReturnPart | ai.UserPromptPart) -> Any:
    """The content of a part, as stored in a message."""
    message = ai.ModelRequest([part])
    return _ANSWERS.dump_python([message], mode="json", warnings=False)[0]["parts"][0]["content"]


def _load_part(kind: str, content: Any) -> Any:
    part = {"part_kind": kind, "content": content, "tool_name": "", "tool_call_id": "x"}
    return _load_answer({"kind": "request", "parts": [part]}).parts[0].content


def _load_result(data: Any) -> Any:
    kind = mapping(data).get(_KIND)
    signal: Any = next((one for one in SIGNALS if one.__name__ == kind), None)
    if signal is not None:
        return signal(**{name: data[name] for name in _FIELDS if name in data})
    if kind == "ToolReturn":
        told = data["content"]
        return ai.ToolReturn(
            _load_result(data["result"]),
            content=None if told is None else _load_part("user-prompt", told),
            metadata=data["metadata"],
            tools=data["tools"],
        )
    return _load_part("tool-return", data["content"]) if kind == "files" else data


def _failed(data: Any) -> Failed | None:
    kind = mapping(data).get(_KIND)
    refuses = kind == "ModelRetry"
    told = refuses or kind == "ToolFailed"
    return Failed(as_text(data["message"]), kind, refuses=refuses) if told else None


RESULT = Form(_dump_result, _load_result, failed=_failed)


@dataclass
class Toolset(ai.WrapperToolset[Any]):
    """Tools that are called through a seam."""

    seam: base.Seam

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: ai.RunContext[Any],
        tool: ai.ToolsetTool[Any],
    ) -> Any:
        async def do() -> Any:
            try:
                return await self.wrapped.call_tool(name, tool_args, ctx, tool)
            except SIGNALS as signal:
                return signal

        hints = (tool.tool_def.metadata or {}).get("annotations")
        answer = await self.seam.tool(
            name,
            tool_args,
            do,
            id=_own_id(ctx),
            effect=self.seam.adapter.hinted(name, hints),
            form=RESULT,
            function=_function_of(tool),
            schema=tool.tool_def.parameters_json_schema,
        )
        if isinstance(answer, SIGNALS):
            raise answer
        return answer


def _function_of(tool: ai.ToolsetTool[Any]) -> object:
    """The user's own function, where the tool is one."""
    held: Any = tool.toolset
    if not isinstance(held, ai.FunctionToolset):
        return None
    found = held.tools.get(getattr(tool, "original_name", None) or tool.tool_def.name)
    return None if found is None else found.function
