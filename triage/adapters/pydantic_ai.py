"""Pydantic AI: any agent, with its sub-agents, toolsets and output types.

    agent = triage.wrap(pydantic_ai.Agent("openai:gpt-5", tools=[charge]), effects={"charge": "once"})
    result = await agent.run("Pay the bill.", deps=deps)
    print(result.output)

Each attempt is one run of the agent from its prompt; what was done before is answered from the journal.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from pydantic import ValidationError
from pydantic_ai.agent import AbstractAgent, WrapperAgent
from pydantic_ai.messages import ModelResponse, repair_messages
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.run import AgentRunResult

from triage._capture import hint
from triage._retry_layers import RetryLayer
from triage.taxonomy import Cause, Effect, FailureType

from ._pydantic_ai_hooks import entered
from .base import Adapter, Seam, SoftFailure

__all__ = ["PydanticAIAdapter"]

_log = logging.getLogger("triage.retries")


class Result(AgentRunResult[Any]):
    """An `AgentRunResult` of which a journal keeps the output: the messages are in the run's steps."""

    __dataclass_fields__: ClassVar = {
        "output": AgentRunResult.__dataclass_fields__["output"],
    }


class PydanticAIAdapter(Adapter):
    """Runs an agent: `run(prompt, **options)` is its `run`, and gives its `AgentRunResult`.

    Deferred tool calls suspend the run, unless a capability of the agent's own answers them.
    `Agent.resume(token, approve())` has them run, `reject(reason)` asks for another way, and
    `happened(answer)` gives what the model is told: the result of a call that is done elsewhere, False or
    the reason where a call is denied, or a mapping of other arguments for it.
    """

    name = "pydantic-ai"

    def __init__(self, target: Any, *, effects: Mapping[str, Effect | str] | None = None) -> None:
        super().__init__(target, effects=effects)
        for layer in _layers_of(target):
            _log.warning("%s. Each retry of triage's is multiplied by these.", layer)

    async def attempt(self, seam: Seam, task: Any, **kwargs: Any) -> Any:
        """One run of the agent."""
        history = kwargs.get("message_history")
        if history and task is not None and not kwargs.get("deferred_tool_results"):
            kwargs["message_history"] = repair_messages(history)
        with entered(seam), named():
            result = await self.target.run(task, **kwargs)
        if type(result) is AgentRunResult:
            result.__class__ = Result
        return result

    def soft_failure(self, result: Any) -> BaseException | None:
        """The last answer where it was broken off."""
        messages = result.all_messages()
        last = messages[-1] if messages else None
        if isinstance(last, ModelResponse) and last.state != "complete":
            return SoftFailure(f"it ended with an answer that is {last.state}")
        return None

    def clients(self) -> Iterable[object]:
        """The models, each with its provider's client."""
        return [part for model in _models_of(self.target) for part in (model, _client_of(model))]


def _models_of(agent: Any) -> Iterator[Any]:
    model = getattr(agent, "model", None)
    waiting = [model] if isinstance(model, Model) else []
    while waiting:
        model = waiting.pop(0)
        yield model
        waiting += model.models if isinstance(model, FallbackModel) else []


def _client_of(model: Any) -> object:
    return getattr(model.provider, "client", None)


def _layers_of(agent: AbstractAgent[Any, Any]) -> Iterator[RetryLayer]:
    """What repeats requests in Pydantic AI's own way."""
    while isinstance(agent, WrapperAgent):
        agent = agent.wrapped
    for model in _models_of(agent):
        client = getattr(_client_of(model), "_client", None)
        transport = getattr(client, "_transport", None)
        if type(transport).__module__ == "pydantic_ai.retries":
            where = f"pydantic_ai.retries.{type(transport).__qualname__}"
            yield RetryLayer(where, None, "make the provider without that transport")


@contextmanager
def named() -> Generator[None]:
    """Say of errors whose names tell it what went wrong, as their words do not."""
    try:
        yield
    except Exception as error:
        _name(error)
        raise


def _name(error: Exception) -> None:
    kind, behind = type(error).__name__, error.__cause__
    if kind in ("OutputTokenLimitExceeded", "IncompleteToolCall"):
        hint(error, failure_type=FailureType.CONTEXT_OVERFLOW, cause=Cause.OUTPUT_CUT)
    elif kind == "ModelUnavailableError":  # its words would say that there is no such model
        hint(error, failure_type=FailureType.EXTERNAL_FAULT, cause=Cause.UNAVAILABLE)
    elif type(behind).__name__ in ("_UnknownTool", "_ToolUnavailable"):
        hint(error, failure_type=FailureType.WRONG_TOOL_CALLED, cause=Cause.UNKNOWN_TOOL)
    elif kind == "UnexpectedModelBehavior" and str(error).startswith("Tool ") and _is_all(behind):
        hint(error, failure_type=FailureType.SCHEMA_MISMATCH, cause=Cause.INVALID_ARGUMENTS)


def _is_all(refusal: BaseException | None) -> bool:
    """Whether a call was refused for its own sake: behind may stand a connection, or a service."""
    return isinstance(refusal, ValidationError) or (
        refusal is not None and refusal.__context__ is None
    )
