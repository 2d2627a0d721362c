"""Where Pydantic AI's model requests and tool calls pass: through the attempt's seam, inside of a run.

A capability for each run of an agent wraps the model and the tools it has at that moment. The agent that
is wrapped may run others, in its tools and hooks; so the one method through which every run of an agent
begins is replaced, once in a process, by one that looks whether a wrapped agent is running, and adds the
capability. Where none is running it calls straight on.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Awaitable, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from threading import Lock
from types import CoroutineType
from typing import Any, Self, cast

from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import AbstractCapability, CombinedCapability
from pydantic_ai.exceptions import (
    UnexpectedModelBehavior,
)
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models import (
    CompletedStreamedResponse,
    Model,
    ModelRequestContext,
    ModelRequestParameters,
    StreamedResponse,
)
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults
from pydantic_ai.toolsets import AbstractToolset

from triage._recorder import current
from triage.traces._values import arguments

from ._pydantic_ai_deferred import answers_to
from ._pydantic_ai_messages import (
    ANSWER,
    Course,
    Refused,
    hinted,
    history_of,
    said_in,
)
from ._pydantic_ai_tools import Toolset
from ._recording import StreamLeft, UnfinishedStream
from .base import Seam


class Scope:
    """One attempt of a wrapped agent. agents: how many have begun to run in it."""

    def __init__(self, seam: Seam) -> None:
        self.seam = seam
        self.agents = 0

    def capability(self, agent: Any) -> Recording:
        """What is added to a run that begins: the first is the wrapped agent's own."""
        self.agents += 1
        first = self.agents == 1
        return Recording(self.seam, "" if first else agent.name or "agent", first=first)


_scope: ContextVar[Scope | None] = ContextVar("triage_pydantic_ai", default=None)


@contextmanager
def entered(seam: Seam) -> Generator[None]:
    """Have the runs of agents that this code starts, and tasks and threads of it, pass through a seam."""
    _install()
    token = _scope.set(Scope(seam))
    try:
        yield
    finally:
        _scope.reset(token)


def _active() -> Scope | None:
    scope = _scope.get()
    if scope is None:
        return None
    run = current.get()
    # A run inside this one, of a function that is none of ours, keeps its own journal.
    if run is not None and run.session is not scope.seam.run.session:
        return None
    return scope


_lock = Lock()
_installed: list[Any] = []


def _install() -> None:
    with _lock:
        if _installed:
            return
        original: Any = Agent.iter

        @functools.wraps(original)
        def iter(self: Any, *args: Any, capabilities: Any = None, **options: Any) -> Any:  # noqa: A001 - theirs
            scope = _active()
            if scope is not None:
                capabilities = [*(capabilities or ()), scope.capability(self)]
            return original(self, *args, capabilities=capabilities, **options)

        Agent.iter = iter  # type: ignore[method-assign] # it takes what the original takes
        _installed.append(original)


# A run of an agent ----------------------------------------------------------------------------------


class Recording(AbstractCapability[Any]):
    """Has one run of an agent pass through a seam.

    who: the agent's name where others run beside it. first: it is the attempt's own, whose conversation
    may begin in the middle.
    """

    def __init__(self, seam: Seam, who: str, *, first: bool) -> None:
        super().__init__()
        self.seam = seam
        self.who = who
        self._carries = first
        self._refused = Refused()
        self._course = Course()
        self._last: list[ToolCallPart] = []
        self._model: _Model | None = None

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """None: it lives as long as one run."""
        return None

    def get_wrapper_model(self, model: Model) -> Model:
        """The model, asked through the seam: mostly the same one at each request."""
        made = self._model
        if made is None or (model is not made and model is not made.wrapped):
            made = self._model = _Model(model, self.seam, self.who, self._course)
        return made

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any] | None:
        """The tools, called through the seam."""
        return Toolset(toolset, self.seam)

    async def before_run(self, ctx: RunContext[Any]) -> None:
        """Step out of the line where it is the last in it, and be called by the line itself."""
        line = ctx.root_capability
        if type(line) is CombinedCapability and line.capabilities[-1] is self:
            _Line.make_of(line, self)

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Put in what was carried, and note what never ran."""
        messages = request_context.messages
        for call, told, cause in self._refused.new_in(messages):
            self._refuse(call, told, _KINDS[cause])
        if self._carries:
            self._carries = False
            known = history_of(self.seam.carried, hint=self.seam.hint is not None)
            if known:
                request_context.messages = [*messages, *known]
                ctx.messages.extend(known)
        return request_context

    async def after_model_request(
        self,
        ctx: RunContext[Any],  # noqa: ARG002 - as theirs
        *,
        request_context: ModelRequestContext,  # noqa: ARG002 - as theirs
        response: ModelResponse,
    ) -> ModelResponse:
        """Remember what was asked for last."""
        self.answered(response)
        return response

    async def on_run_error(
        self,
        ctx: RunContext[Any],  # noqa: ARG002 - as theirs
        *,
        error: BaseException,
    ) -> Any:
        """Note why the run ends."""
        self.ended(error)
        raise error

    def answered(self, response: ModelResponse) -> None:
        """Remember what was asked for last."""
        self._last = [part for part in response.parts if isinstance(part, ToolCallPart)]

    def ended(self, error: BaseException) -> None:
        """Note the call that was refused once too often: no request tells of it any more."""
        kind = _KINDS.get(type(error.__cause__).__name__)
        if isinstance(error, UnexpectedModelBehavior) and kind is not None:
            calls = [part for part in self._last if f"Tool {part.tool_name!r}" in str(error)]
            for call in calls:
                self._refuse(call, str(error.__cause__), kind)

    def _refuse(self, call: ToolCallPart, told: str, kind: str) -> None:
        self.seam.refused(call.tool_name, arguments(call.args), told, kind=kind)

    async def handle_deferred_tool_calls(
        self,
        ctx: RunContext[Any],  # noqa: ARG002 - as theirs
        *,
        requests: DeferredToolRequests,
    ) -> DeferredToolResults | None:
        """What a person said to these calls; where nobody was asked yet, the run waits for it."""
        return answers_to(self.seam.run, requests)


_KINDS = {
    "unknown_tool": "UnknownTool",
    "_UnknownTool": "UnknownTool",
    "unavailable_tool": "UnknownTool",
    "_ToolUnavailable": "UnknownTool",
    "validation_error": "InvalidArguments",
    "ValidationError": "InvalidArguments",
}
"""What was wrong with a call that never ran: by the framework's word or class, as its step calls it."""


class _Line(CombinedCapability[Any]):
    """The capabilities of one run, whose last is ours and is called at its own hooks only.

    For each that stands in the line the framework copies the run's context at every hook it has, some
    eighteen times a turn, and puts a generator around the events, whether it has that hook or not.
    """

    recording: Recording

    @classmethod
    def make_of(cls, line: CombinedCapability[Any], recording: Recording) -> None:
        """Change the line that a run has, as more than one part of the run holds it."""
        CombinedCapability.__init__(line, line.capabilities[:-1])
        line.__class__ = cls
        assert isinstance(line, cls)
        line.recording = recording

    def get_wrapper_model(self, model: Model) -> Model | None:
        """Ours innermost, as at all that follows: the last on the way there, the first on the way back."""
        ours = self.recording.get_wrapper_model(model)
        return super().get_wrapper_model(ours) or (None if ours is model else ours)

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        asked = await super().before_model_request(ctx, request_context)
        found = await self.recording.before_model_request(ctx, asked)
        # A wrapper that it finds here is not entered around the request, as one that is made later is: the
        # dearest part of it. Hooks that look which model it is, and wrappers, must find their own.
        if not (self._has_prepare_model_request or isinstance(found.model, WrapperModel)):
            found.model = self.recording.get_wrapper_model(found.model)
        return found

    async def after_model_request(
        self,
        ctx: RunContext[Any],
        *,
        request_context: ModelRequestContext,
        response: ModelResponse,
    ) -> ModelResponse:
        self.recording.answered(response)
        return await super().after_model_request(
            ctx, request_context=request_context, response=response
        )

    async def on_run_error(self, ctx: RunContext[Any], *, error: BaseException) -> Any:
        self.recording.ended(error)
        return await super().on_run_error(ctx, error=error)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        answers = await super().handle_deferred_tool_calls(ctx, requests=requests)
        left = requests if answers is None else requests.remaining(answers)
        if left is None:
            return answers
        ours = await self.recording.handle_deferred_tool_calls(ctx, requests=left)
        if answers is None or ours is None:
            return answers or ours
        answers.update(ours)
        return answers


# Models ---------------------------------------------------------------------------------------------


class _Model(WrapperModel):
    """A model that is asked through a seam."""

    def __init__(self, wrapped: Model, seam: Seam, who: str, course: Course) -> None:
        super().__init__(wrapped)
        self._seam = seam
        self._who = who
        self._course = course

    # It has nothing to enter, and what it wraps is entered by whoever owns it. The framework enters a
    # wrapper for each request, and the way to tell that the inner one must be left alone is a long one.
    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        """Nothing was entered."""

    # Not `async`: the framework puts two coroutines of its own around each model's method that is, as
    # around the one that is called in the end.
    def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> CoroutineType[Any, Any, ModelResponse]:
        def ask(hint: str | None) -> Awaitable[ModelResponse]:
            given = hinted(messages, hint)
            return self.wrapped.request(given, model_settings, model_request_parameters)

        words = self._words(messages, model_settings, model_request_parameters)
        asked = self._seam.model(ask, **words)
        return cast("CoroutineType[Any, Any, ModelResponse]", asked)

    def _words(
        self, messages: list[ModelMessage], settings: Any, parameters: ModelRequestParameters
    ) -> dict[str, Any]:
        """As the seam is told."""
        return {
            "form": ANSWER,
            "request": self._course.request(messages, settings, parameters),
            "said": said_in(messages),
            "model": self.model_name,
            "who": self._who,
        }

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        words = self._words(messages, model_settings, model_request_parameters)
        stream = self._seam.stream(**words)
        if stream.known is not None:
            yield CompletedStreamedResponse(
                stream.known,
                model_request_parameters=model_request_parameters,
                replay_events=True,
            )
            return
        with stream.passing():
            async with self.wrapped.request_stream(
                hinted(messages, self._seam.hint),
                model_settings,
                model_request_parameters,
                run_context,
            ) as pieces:
                yield pieces
                answer = pieces.get()
                if answer.state != "complete":
                    stream.failed(StreamLeft())
                elif _is_unfinished(answer):
                    raise UnfinishedStream
                stream.done(answer)
        await stream.durable()


_SAY_WHY = ("openai", "anthropic")
"""Providers that say of each answer why it ended."""


def _is_unfinished(answer: ModelResponse) -> bool:
    said = answer.provider_details or {}
    return answer.provider_name in _SAY_WHY and not said.get("finish_reason")
