"""The OpenAI Agents SDK: any agent, with its handoffs, its agents as tools, its approvals and sessions.

    agent = triage.wrap(agents.Agent(name="clerk", tools=[charge]), effects={"charge": "once"})
    result = await agent.run("Pay the bill.", session=session)
    print(result.final_output)

Each attempt is one run of the agent from its input; what was done before is answered from the journal.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import openai
from agents import (
    Agent,
    Handoff,
    ItemHelpers,
    Model,
    RunItem,
    Runner,
    RunResult,
    RunResultStreaming,
    RunState,
    ToolCallOutputItem,
)
from agents.models._openai_shared import get_default_openai_client

from triage._capture import hint
from triage._retry_layers import RetryLayer
from triage.errors import UsageError
from triage.taxonomy import Category, Cause, Effect, FailureType

from ._forms import ENDINGS
from ._openai_agents_approvals import decide, refused
from ._openai_agents_hooks import Scope, entered, until_done
from ._openai_agents_items import history_of
from ._openai_agents_session import Held, held
from .base import Adapter, Seam, SoftFailure

__all__ = ["OpenAIAgentsAdapter"]

_log = logging.getLogger("triage.retries")
_OPTIONS = frozenset(inspect.signature(Runner.run).parameters) - {"starting_agent", "input"}
_OF_A_STATE = {"previous_response_id", "conversation_id", "auto_previous_response_id"}
"""Options that a state has of its own."""


class Result(RunResult):
    """A `RunResult` of which a journal keeps the output: not its agents, nor the user's context."""

    __dataclass_fields__: ClassVar = {
        "final_output": RunResult.__dataclass_fields__["final_output"],
    }


class StreamedResult(RunResultStreaming):
    """A `RunResultStreaming` of which a journal keeps the output."""

    __dataclass_fields__: ClassVar = {
        "final_output": RunResultStreaming.__dataclass_fields__["final_output"],
    }


_KEPT: Mapping[type, type] = {RunResult: Result, RunResultStreaming: StreamedResult}


class OpenAIAgentsAdapter(Adapter):
    """Runs an agent: `run(input, **options)` is `Runner.run(agent, input, **options)`.

    input: a text, a list of items, or a `RunState` to go on from. on_event: called with each event of
    `Runner.run_streamed`, which is used then; it may be async.

    Tools that need approval suspend the run, once for each call. `Agent.resume(token, approve())` has the
    tool called; after `reject(reason)` the conversation goes on with another plan; `happened(result)`
    gives the model a result without a call.
    """

    name = "openai-agents"

    def __init__(self, target: Any, *, effects: Mapping[str, Effect | str] | None = None) -> None:
        super().__init__(target, effects=effects)
        for layer in _layers_of(target):
            _log.warning("%s. Each retry of triage's is multiplied by these.", layer)

    async def attempt(
        self, seam: Seam, task: Any, *, on_event: Callable[[Any], Any] | None = None, **options: Any
    ) -> Any:
        """One run of the agent, from its input to its end or to an approval that nobody has given."""
        unknown = ", ".join(sorted(options.keys() - _OPTIONS))
        if unknown:
            known = ", ".join(sorted(_OPTIONS))
            raise UsageError(f"Runner.run takes no {unknown}; its options are: on_event, {known}")
        session = options.get("session")
        if session is not None:
            closing = not isinstance(task, RunState)
            session = options["session"] = held(seam.run, session, closing=closing)
        with named():
            async with entered(seam) as scope:
                result = await self._run(_begun(seam, task), options, on_event)
                while result.interruptions:
                    state = result.to_state()
                    decide(seam.run, state, result.interruptions, self.effects)
                    more = {
                        name: value for name, value in options.items() if name not in _OF_A_STATE
                    }
                    result = await self._run(state, more, on_event)
            failure = _left_undone(scope, result.new_items)
            if failure is not None:
                text = "the last tool call failed, and the agent gave a result all the same"
                raise SoftFailure(text) from failure
            if isinstance(session, Held):
                await session.keep()
        kind = _KEPT.get(type(result))
        if kind is not None:
            result.__class__ = kind
        return result

    # Not `async`: each coroutine that all of a run is below makes it dearer.
    def _run(
        self, given: Any, options: dict[str, Any], on_event: Callable[[Any], Any] | None
    ) -> Awaitable[Any]:
        if on_event is None:
            return Runner.run(self.target, given, **options)
        return self._streamed(given, options, on_event)

    async def _streamed(
        self, given: Any, options: dict[str, Any], on_event: Callable[[Any], Any]
    ) -> Any:
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
        """The models that the agents have, and the client of those that are named only."""
        models = [agent.model for agent in _agents_of(self.target)]
        given = get_default_openai_client()
        return [given if not isinstance(model, Model) else model for model in models]


def _begun(seam: Seam, task: Any) -> Any:
    """What a run begins with: the task, and behind it the conversation so far."""
    turns = seam.carried
    if not turns or isinstance(task, RunState):
        return task
    told = refused(seam.run)
    return [*ItemHelpers.input_to_new_input_list(task), *history_of(turns, told)]


def _left_undone(scope: Scope, items: Iterable[RunItem]) -> BaseException | None:
    """The error of the tools that were called last, where all of them failed and the agent went on."""
    last: list[ToolCallOutputItem] = []
    for item in reversed(list(items)):
        if isinstance(item, ToolCallOutputItem):
            last.append(item)
        elif last:
            break
    errors = [scope.failed.get(item.call_id or "") for item in last]
    return errors[-1] if errors and None not in errors else None


# What an agent is made of ---------------------------------------------------------------------------


def _agents_of(agent: Agent[Any]) -> Iterator[Agent[Any]]:
    """An agent and those it can reach: by handoffs, and as tools."""
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
    kept = handoff._agent_ref  # noqa: SLF001 - a handoff does not say it otherwise
    return None if kept is None else kept()


def _layers_of(agent: Agent[Any]) -> Iterator[RetryLayer]:
    """What repeats requests in the SDK's own way."""
    agents = list(_agents_of(agent))
    for one in agents:
        retry = one.model_settings.retry
        if retry is not None and retry.max_retries:
            where = f"agents.ModelSettings.retry of {one.name!r}"
            yield RetryLayer(where, retry.max_retries, "leave it out")
    named_only = any(not isinstance(one.model, Model) for one in agents)
    if named_only and get_default_openai_client() is None:
        remedy = "give agents.set_default_openai_client() one with max_retries=0"
        yield RetryLayer("the client that agents makes", openai.DEFAULT_MAX_RETRIES, remedy)


@contextmanager
def named() -> Generator[None]:
    """Say of errors whose names tell it what went wrong, as their words do not."""
    try:
        yield
    except Exception as error:
        _name(error)
        raise


def _name(error: Exception) -> None:
    kind, text = type(error).__name__, str(error)
    if kind == "ModelBehaviorError" and text.startswith("Tool ") and " not found" in text:
        hint(error, failure_type=FailureType.WRONG_TOOL_CALLED, cause=Cause.UNKNOWN_TOOL)
    elif kind == "ModelBehaviorError" and "event `response.incomplete`" in text:
        filtered = "content_filter" in text
        of = "ContentFilterFinishReasonError" if filtered else "LengthFinishReasonError"
        failure_type, cause = ENDINGS[of]
        hint(error, failure_type=failure_type, cause=cause)
    elif kind == "UserError" and error.__cause__ is None:
        hint(error, category=Category.CONFIGURATION)
