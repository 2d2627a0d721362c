"""The adapter: runs an agent from its input to its end, or to an approval that it waits for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, ClassVar

import openai
from agents import (
    Agent,
    Handoff,
    ItemHelpers,
    Model,
    ModelBehaviorError,
    Runner,
    RunResult,
    RunResultStreaming,
    RunState,
    ToolApprovalItem,
    ToolCallOutputItem,
    UserError,
)
from agents.models._openai_shared import get_default_openai_client
from agents.tool import (
    DEFAULT_APPROVAL_REJECTION_MESSAGE,
)

from triage.adapters.base import (
    Adapter,
    Seam,
    SoftFailure,
)
from triage.core import (
    ApprovalAsked,
    Category,
    Cause,
    FailureType,
    UsageError,
    digest,
    hint,
)
from triage.core.messages.base import ENDINGS, arguments, as_text
from triage.engine import Run
from triage.strategies import RetryLayer

from .model import history_of
from .scope import Scope, entered, until_done
from .session import HeldSession, hold_session

_OPTIONS = frozenset(inspect.signature(Runner.run).parameters) - {"starting_agent", "input"}
_OF_A_STATE = {"previous_response_id", "conversation_id", "auto_previous_response_id"}
"""Options that a `RunState` brings along."""


class Result(RunResult):
    """A `RunResult` of which the journal stores the output only, not its agents or the user's context."""

    __dataclass_fields__: ClassVar = {
        "final_output": RunResult.__dataclass_fields__["final_output"],
    }


class StreamedResult(RunResultStreaming):
    """A `RunResultStreaming` of which the journal stores the output only."""

    __dataclass_fields__: ClassVar = {
        "final_output": RunResultStreaming.__dataclass_fields__["final_output"],
    }


_KEPT: Mapping[type, type] = {RunResult: Result, RunResultStreaming: StreamedResult}


class OpenAIAgentsAdapter(Adapter):
    """Run an agent: `run(input, **options)` is `Runner.run(agent, input, **options)`.

    input: a text, a list of items, or a `RunState` to go on from. on_event: called with each event of
    `Runner.run_streamed`, which is used then; it may be async.

    A tool that needs approval suspends the run, once per call. `Agent.resume(token, approve())` calls the
    tool; after `reject(reason)` the conversation goes on with another plan; `happened(result)` gives the
    model a result without a call.
    """

    name = "openai-agents"
    validates = True

    async def attempt(
        self, seam: Seam, task: Any, *, on_event: Callable[[Any], Any] | None = None, **options: Any
    ) -> Any:
        """Run the agent from its input to its end, or to an approval that is still missing."""
        unknown = ", ".join(sorted(options.keys() - _OPTIONS))
        if unknown:
            known = ", ".join(sorted(_OPTIONS))
            raise UsageError(f"Runner.run takes no {unknown}; its options are: on_event, {known}")
        session = options.get("session")
        if session is not None:
            closing = not isinstance(task, RunState)
            session = options["session"] = hold_session(seam.run, session, closing=closing)
        if isinstance(session, HeldSession):
            seam.at_failure(f"session {session.session_id}", session.keep)
        async with entered(seam) as scope:
            handlers = options.get("error_handlers")
            handled: list[str] = []
            if isinstance(handlers, Mapping):
                options["error_handlers"] = {
                    kind: _heard(kind, handler, handled) for kind, handler in handlers.items()
                }
            result = await self._run(_begun(seam, task), options, on_event)
            while result.interruptions:
                state = result.to_state()
                decide(seam, state, result.interruptions)
                more = {name: value for name, value in options.items() if name not in _OF_A_STATE}
                result = await self._run(state, more, on_event)
        failure = _handed_on(scope, result)
        if handled:
            seam.decided("error_handler", {"error": handled[-1]}, result.final_output)
        elif failure is not None:
            raise SoftFailure("the result is the error of the last tool call") from failure
        if isinstance(session, HeldSession):
            await session.keep()
        kind = _KEPT.get(type(result))
        if kind is not None:
            result.__class__ = kind
        return result

    async def _run(
        self, given: Any, options: dict[str, Any], on_event: Callable[[Any], Any] | None
    ) -> Any:
        if on_event is None:
            return await Runner.run(self.target, given, **options)
        result = Runner.run_streamed(self.target, given, **options)
        try:
            async for event in result.stream_events():
                told = on_event(event)
                if inspect.isawaitable(told):
                    await told
        finally:
            running = result.run_loop_task
            if running is not None and not running.done():
                running.cancel()
                await until_done({running})
        return result

    def clients(self) -> Iterable[object]:
        """The agents' models, and the default client for models given by name."""
        models = [agent.model for agent in agents_of(self.target)]
        given = get_default_openai_client()
        return [given if not isinstance(model, Model) else model for model in models]

    def layers(self) -> Iterable[RetryLayer]:
        """The SDK's own retries."""
        agents = list(agents_of(self.target))
        for one in agents:
            retry = one.model_settings.retry
            if retry is not None and retry.max_retries:
                where = f"agents.ModelSettings.retry of {one.name!r}"
                yield RetryLayer(where, retry.max_retries, "leave it out")
        named_only = any(not isinstance(one.model, Model) for one in agents)
        if named_only and get_default_openai_client() is None:
            remedy = "give agents.set_default_openai_client() one with max_retries=0"
            yield RetryLayer("the client that agents makes", openai.DEFAULT_MAX_RETRIES, remedy)

    def explain(self, error: Exception) -> None:
        """Read what went wrong from the messages of two of the SDK's classes."""
        if isinstance(error, ModelBehaviorError):
            text = str(error)
            if text.startswith("Tool ") and " not found" in text:
                hint(error, failure_type=FailureType.WRONG_TOOL_CALLED, cause=Cause.UNKNOWN_TOOL)
            elif "event `response.incomplete`" in text:
                filtered = "content_filter" in text
                of = "ContentFilterFinishReasonError" if filtered else "LengthFinishReasonError"
                failure_type, cause = ENDINGS[of]
                hint(error, failure_type=failure_type, cause=cause)
        elif isinstance(error, UserError) and error.__cause__ is None:
            hint(error, category=Category.CONFIGURATION)


def _begun(seam: Seam, task: Any) -> Any:
    """The input of a run: the task, followed by the conversation so far."""
    turns = seam.carried
    if not turns or isinstance(task, RunState):
        return task
    told = refused(seam.run)
    return [*ItemHelpers.input_to_new_input_list(task), *history_of(turns, told, seam.use)]


def _heard(kind: str, handler: Any, handled: list[str]) -> Any:
    """A user's error handler that notes its kind in `handled` when it makes the final output."""
    if not callable(handler):
        return handler

    @functools.wraps(handler)
    def handle(found: Any) -> Any:
        made = handler(found)
        if inspect.isawaitable(made):
            return _noted(made)
        return note(made)

    async def _noted(made: Awaitable[Any]) -> Any:
        return note(await made)

    def note(made: Any) -> Any:
        if made is not None:
            handled.append(kind)
        return made

    return handle


def _handed_on(scope: Scope, result: Any) -> BaseException | None:
    """The last tool call's error, where its message for the model became the result."""
    last = next(
        (one for one in reversed(result.new_items) if isinstance(one, ToolCallOutputItem)), None
    )
    if last is None or last.output != result.final_output:
        return None
    return scope.failed.get(last.call_id or "")


def agents_of(agent: Agent[Any]) -> Iterator[Agent[Any]]:
    """An agent and all agents it reaches by handoffs and as tools."""
    waiting, seen = [agent], set[int]()
    while waiting:
        found = waiting.pop(0)
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        held = [_target_of(one) if isinstance(one, Handoff) else one for one in found.handoffs]
        held += [getattr(tool, "_agent_instance", None) for tool in found.tools]
        waiting += [one for one in held if isinstance(one, Agent)]


def _target_of(handoff: Handoff[Any, Any]) -> Any:
    kept = handoff._agent_ref  # a handoff does not say it otherwise
    return None if kept is None else kept()


def decide(seam: Seam, state: RunState[Any], items: Sequence[ToolApprovalItem]) -> None:
    """Apply a person's decision to each of these calls, or ask about the first one without a decision.

    An approved call is made. A call that happened elsewhere, according to a journal of 0.1.0, is not: the
    model is told its result.
    """
    for item in items:
        name = item.qualified_name or item.name or "tool"
        given = arguments(item.arguments)
        said = seam.ask_person(name, f"approval {_id(item)}", arguments=given, leave=True)
        if said.decision == "answered":
            state.reject(item, rejection_message=as_text(said.value))
        elif said.decision == "rejected":
            state.reject(item)
        else:
            state.approve(item)


def refused(run: Run) -> Callable[[str], str | None]:
    """A function that gives what the model is told about a call, by its id, that was not approved."""
    journal = run.session.state
    asked = {
        event.subject.rsplit(":", 2)[1]
        for event in run.session.events
        if isinstance(event, ApprovalAsked)
        and event.kind == "call"
        and event.subject not in journal.approved
        and event.subject not in journal.calls
    }

    def told(call: str) -> str | None:
        return DEFAULT_APPROVAL_REJECTION_MESSAGE if _digest(run, call) in asked else None

    return told


def _digest(run: Run, call: str) -> str:
    return digest(run.salt, f"approval {call}")


def _id(item: ToolApprovalItem) -> str:
    raw: Any = item.raw_item
    return str(item.call_id or (raw.get("id") if isinstance(raw, dict) else raw.id))
