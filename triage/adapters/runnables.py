"""What a runnable of LangChain or a graph of LangGraph is made of: its models, its retries, its tools."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, cast

from langchain_core.language_models.base import BaseLanguageModel
from langchain_core.runnables.retry import RunnableRetry
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from triage.strategies.layers import RetryLayer

__all__ = ["clients_in", "layers_in", "tools_in"]

_MOST = 5_000
"""The most objects that are looked at."""
_THEIRS = ("langchain", "langgraph")
_PLAIN = (str, bytes, int, float, bool, type(None), type)


def parts_of(root: object) -> Iterator[Any]:
    """All objects reachable from one of LangChain's or LangGraph's."""
    waiting: list[Any] = [root]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST:
        value = waiting.pop(0)
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        waiting += _held_by(value)


def _held_by(value: Any) -> list[Any]:
    if isinstance(value, list | tuple | set | frozenset):
        return list(cast("list[Any]", value))
    if isinstance(value, Mapping):
        return list(value.values())
    if inspect.ismethod(value):
        return [value.__self__, value.__func__]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if inspect.isfunction(value):
        return _reached(value)
    if isinstance(value, BaseLanguageModel) or not _is_theirs(value):
        return []
    return list(getattr(value, "__dict__", {}).values())


def _reached(function: Any) -> list[Any]:
    """The variables that a function closes over, and the globals that it names unless it is LangChain's."""
    try:
        found = inspect.getclosurevars(function)
    except ValueError:  # a variable that has no value yet
        return []
    own = function.__module__.startswith(_THEIRS)
    return [*found.nonlocals.values(), *(() if own else found.globals.values())]


def _is_theirs(value: object) -> bool:
    packages = (kind.__module__.partition(".")[0] for kind in type(value).__mro__)
    return any(name.startswith(_THEIRS) for name in packages)


def clients_in(root: object) -> list[object]:
    """The models, and middleware with a number of retries."""
    return [
        part
        for part in parts_of(root)
        if isinstance(part, BaseLanguageModel)
        or (_is_theirs(part) and type(getattr(part, "max_retries", None)) is int)
    ]


def layers_in(root: object) -> Iterator[RetryLayer]:
    """LangChain's and LangGraph's own retries around models and tools."""
    for part in parts_of(root):
        where = f"{type(part).__module__}.{type(part).__qualname__}"
        if isinstance(part, RunnableRetry):
            often = part.max_attempt_number - 1
            yield RetryLayer(where, often, "leave .with_retry() out")
        elif where == "langgraph.types.RetryPolicy":
            yield RetryLayer(where, part.max_attempts - 1, "leave the node's retry_policy out")


def tools_in(root: object) -> dict[str, Any]:
    """The tools that the graph's own nodes run, name to JSON Schema."""
    found: dict[str, BaseTool] = {}
    for part in parts_of(root):
        tools = getattr(part, "tools_by_name", None)
        if _is_theirs(part) and isinstance(tools, dict):
            found |= tools
    return {name: _schema(tool) for name, tool in found.items()}


def _schema(tool: BaseTool) -> Any:
    try:
        return convert_to_openai_tool(tool)["function"].get("parameters")
    except Exception:
        return None
