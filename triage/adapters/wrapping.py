"""`triage.wrap`: an `Agent` around an object of a framework, which is not imported to find it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from types import FunctionType, MethodType
from typing import Any, NamedTuple, Protocol, TypeVar, Unpack, overload

from msgspec.structs import replace

from triage.core.errors import UsageError, misuse
from triage.core.observers import child_logger
from triage.core.taxonomy import Effect
from triage.engine.agents import Agent, Options
from triage.engine.calls import Run
from triage.engine.options import Checks
from triage.engine.undeclared import RECORDS_TOOLS
from triage.strategies.layers import warn_of_retries
from triage.strategies.policy import Policy

from .any_object import runner_of
from .base import Adapter
from .tools import checked_trust

__all__ = ["wrap"]

DOCS = "docs/adapters.md"
_log = child_logger("retries")


class Known(NamedTuple):
    """An adapter of this package. types: whose objects it runs, each with its module."""

    module: str
    adapter: str
    types: tuple[str, ...]


KNOWN: tuple[Known, ...] = (
    Known(".langgraph", "LangGraphAdapter", ("langgraph.pregel.main.Pregel",)),
    Known(".langchain", "LangChainAdapter", ("langchain_core.runnables.base.Runnable",)),
    Known(".pydantic_ai", "PydanticAIAdapter", ("pydantic_ai.agent.abstract.AbstractAgent",)),
    Known(".openai_agents", "OpenAIAgentsAdapter", ("agents.agent.Agent",)),
)
"""The adapters there are; each module is imported when one of its objects is wrapped."""

_CLIENTS = {
    "openai": "triage.adapters.openai.record",
    "anthropic": "triage.adapters.anthropic.record",
    "mcp": "triage.adapters.mcp.record",
}


def adapter_of(target: object) -> type[Adapter] | None:
    """The adapter for an object, by the names of its classes; None without one. UsageError for a client."""
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(target).__mro__]
    for name in names:
        for known in KNOWN:
            if name in known.types:
                module = import_module(known.module, __package__)
                found: type[Adapter] = getattr(module, known.adapter)
                return found
    package = names[0].partition(".")[0]
    if package in _CLIENTS:
        raise UsageError(
            f"wrap() runs agents, and {names[0]} is a client; give the function that uses it to Agent, and "
            f"what it asks is seen where it leaves, or have it recorded with {_CLIENTS[package]}(client)"
        )
    return None


def _function_of(target: object) -> Callable[..., Any]:
    """What runs an object without an adapter. UsageError for one that no method is known to run."""
    if isinstance(target, FunctionType | MethodType | partial):
        return target
    found = None if isinstance(target, type) else runner_of(target)
    if found is None:
        raise UsageError(
            f"wrap() knows no method by which {type(target).__name__} is run; give Agent a function that "
            f"runs it, or write an adapter, wrap(…, adapter=MyAdapter): see {DOCS}"
        )
    return found


T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


class Runs(Protocol[R_co]):
    """An agent that is run: those of Pydantic AI."""

    async def run(self, prompt: Any, /) -> R_co:
        """Run it."""
        ...


class Invoked(Protocol[R_co]):
    """What is invoked: compiled graphs and runnables."""

    async def ainvoke(self, value: Any, /) -> R_co:
        """Invoke it."""
        ...


class HandsOver(Protocol):
    """An agent that a runner runs: those of the OpenAI Agents SDK."""

    handoffs: list[Any]
    instructions: Any


class _Wrapping(Options, total=False):
    effects: Mapping[str, Effect | str] | None
    trust_hints: bool | Iterable[str]


@overload
def wrap(
    target: Any,
    policy: Policy | None = None,
    *,
    result_type: type[T],
    adapter: type[Adapter] | None = None,
    **options: Unpack[_Wrapping],
) -> Agent[T]: ...
@overload
def wrap(
    target: Any,
    policy: Policy | None = None,
    *,
    adapter: type[Adapter],
    result_type: Any = None,
    **options: Unpack[_Wrapping],
) -> Agent[Any]: ...
@overload
def wrap(
    target: Runs[T], policy: Policy | None = None, **options: Unpack[_Wrapping]
) -> Agent[T]: ...
@overload
def wrap(
    target: Invoked[T], policy: Policy | None = None, **options: Unpack[_Wrapping]
) -> Agent[T]: ...
@overload
def wrap(
    target: HandsOver, policy: Policy | None = None, **options: Unpack[_Wrapping]
) -> Agent[Any]: ...
@overload
def wrap(
    target: object, policy: Policy | None = None, **options: Unpack[_Wrapping]
) -> Agent[Any]: ...
def wrap(
    target: Any,
    policy: Policy | None = None,
    *,
    adapter: type[Adapter] | None = None,
    effects: Mapping[str, Effect | str] | None = None,
    trust_hints: bool | Iterable[str] = False,
    result_type: Any = None,
    **options: Unpack[Options],
) -> Agent[Any]:
    """Wrap an agent of a framework in an `Agent` that records each model and tool call.

    target: the framework's own object; it is not changed. policy, result_type, options: as for `Agent`.
    adapter: runs the target; None finds the one for its class. effects: what each tool does to the world,
    by name (`{"charge": "once"}`). The effect of any other tool that is not a `@triage.tool` is inferred
    from its name (`infer_effects=False` turns that off); failing that it is `unknown`, as unsafe to repeat
    as `once`. trust_hints: whether annotations of MCP servers count (`readOnlyHint`); True for all, or
    names of tools, with `*` and `?`, where only some servers are trusted. The target's own tools are used
    as `Checks.tools`, unless `checks` names some.

    `run(task, **kwargs)` gives the task to the framework as its input, and kwargs as its own options.
    A function is wrapped as by `Agent(function)`. An object without an adapter is run by its async method
    of a usual name (`arun`, `run`, …) or by a sync one: what it asks models is seen where it leaves, and
    its model goes on from its earlier turns where a change would be made again. Raises UsageError for an
    object that no such method runs, and as `Agent` does.
    """
    adapter = adapter_of(target) if adapter is None else adapter
    if adapter is None:
        function = _function_of(target)
        if effects is not None or trust_hints is not False:
            raise UsageError(
                "effects and trust_hints are for agents of frameworks that have an adapter, whose tools "
                "are recorded; use @triage.tool"
            )
        return Agent(function, policy, result_type=result_type, **options)
    if not (isinstance(adapter, type) and issubclass(adapter, Adapter)):
        raise misuse("wrap(adapter=…)", adapter, "a class made of triage.adapters.base.Adapter")
    trusted = checked_trust(trust_hints)
    adapted = adapter(target, effects=effects)
    adapted.trust_hints = trusted
    warn_of_retries(*adapted.clients())
    for layer in adapted.layers():
        _log.warning("%s. Each retry of triage's is multiplied by these.", layer)

    async def attempt(task: Any, *, run: Run, **kwargs: Any) -> Any:
        return await adapted.run(task, run, kwargs)

    setattr(attempt, RECORDS_TOOLS, True)
    attempt.__annotations__["return"] = adapted.result_type()
    name = getattr(target, "name", None)
    attempt.__name__ = attempt.__qualname__ = (
        name if isinstance(name, str) and name else adapted.name
    )
    checks, tools = options.get("checks") or Checks(), adapted.tools()
    if tools and not checks.tools:
        options["checks"] = replace(checks, tools=tools)
    return Agent(attempt, policy, result_type=result_type, **options)
