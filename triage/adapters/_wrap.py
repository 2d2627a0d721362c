"""`triage.wrap`: an `Agent` around an object of a framework, which is not imported to find it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple, Unpack

from triage._agent import Agent, Options
from triage._options import misuse
from triage._retry_layers import say
from triage._run import Run
from triage.checks import Checks
from triage.errors import UsageError
from triage.policy import FailurePolicy
from triage.taxonomy import Effect

from .base import Adapter

DOCS = "docs/adapters.md"


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


def adapter_of(target: object) -> type[Adapter]:
    """The adapter for an object, by the names of its classes. UsageError where there is none."""
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
            f"wrap() runs agents, and {names[0]} is a client; have its calls recorded with "
            f"{_CLIENTS[package]}(client), and give the function that uses it to Agent"
        )
    if callable(target) and not isinstance(target, type):
        raise UsageError(
            f"wrap() knows no {names[0]}; a function is wrapped by triage.Agent(function)"
        )
    supported = ", ".join(known.types[0] for known in KNOWN) or "none yet"
    raise UsageError(
        f"wrap() knows no {names[0]}; supported are: {supported}. For another framework give an "
        f"adapter of your own, wrap(…, adapter=MyAdapter), in some 40 lines: see {DOCS}"
    )


def wrap(
    target: Any,
    policy: FailurePolicy | None = None,
    *,
    adapter: type[Adapter] | None = None,
    effects: Mapping[str, Effect | str] | None = None,
    result_type: Any = None,
    **options: Unpack[Options],
) -> Agent[Any]:
    """An `Agent` around an agent of a framework: each of its model and tool calls is recorded.

    target: the framework's own object; it is not changed. policy, result_type, options: as for `Agent`.
    adapter: runs the target; None finds the one for its class. effects: what each tool does to the
    world, by name (`{"charge": "once"}`); one that is neither named nor a `@triage.tool` is `unknown`,
    as unsafe to repeat as `once`. The tools that the target says it has are checked as `Checks.tools`,
    unless `checks` names some.

    `run(task, **kwargs)` gives the task to the framework as its input, and kwargs as its own options.
    Raises UsageError for an object that no adapter knows, and as `Agent` does.
    """
    if adapter is None:
        adapter = adapter_of(target)
    elif not (isinstance(adapter, type) and issubclass(adapter, Adapter)):
        raise misuse("wrap(adapter=…)", adapter, "a class made of triage.adapters.base.Adapter")
    made = adapter(target, effects=effects)
    say(*made.clients())

    async def attempt(task: Any, *, run: Run, **kwargs: Any) -> Any:
        return await made.run(task, run, kwargs)

    attempt.__name__ = attempt.__qualname__ = _name_of(target, made)
    options["checks"] = _with_tools(options.get("checks"), made)
    return Agent(attempt, policy, result_type=result_type, **options)


def _name_of(target: Any, adapter: Adapter) -> str:
    name = getattr(target, "name", None)
    return name if isinstance(name, str) and name else adapter.name


def _with_tools(checks: Checks | None, adapter: Adapter) -> Checks | None:
    tools = adapter.tools()
    if not tools or (checks is not None and checks.tools):
        return checks
    return Checks(tools=tools) if checks is None else replace(checks, tools=tools)
