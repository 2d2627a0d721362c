"""What a capability's function is called with: the plan's parameters, and the results it is given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from triage._tool import TOOL_ATTRIBUTE, Tool, tool_of

from ._plan import Parameters, PlannedStep

FILLED = ("task", "step", "results")
"""Parameters that the run fills where a function names them."""


class Takes(NamedTuple):
    """The parameters of a function. required: those without a default. open: it takes any by name.

    told: for a planner, name to annotation and default. filled: those that the run fills.
    """

    names: frozenset[str]
    required: frozenset[str]
    open: bool
    told: Mapping[str, str]
    filled: tuple[str, ...]


def takes(function: Callable[..., Any]) -> Takes:
    """What a function can be given by name; read once."""
    tool, owner = tool_of(function)
    return _takes(tool.function, len(owner))


@lru_cache(maxsize=1024)
def _takes(function: Callable[..., Any], bound: int) -> Takes:
    parameters = list(inspect.signature(function).parameters.values())[bound:]
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    told = {p.name: _told(p) for p in named}
    return Takes(
        frozenset(p.name for p in named),
        frozenset(p.name for p in named if p.default is p.empty and p.name not in FILLED),
        any(p.kind is p.VAR_KEYWORD for p in parameters),
        {name: text for name, text in told.items() if name not in FILLED},
        tuple(name for name in FILLED if name in told),
    )


def _told(parameter: inspect.Parameter) -> str:
    kind = parameter.annotation
    if kind is parameter.empty:
        text = "any"
    elif isinstance(kind, str):
        text = kind
    else:
        text = kind.__name__ if isinstance(kind, type) else str(kind)
    return text if parameter.default is parameter.empty else f"{text} = {parameter.default!r}"[:200]


def place_of(kind: str, key: str, known: Takes) -> str | None:
    """The parameter that an input of this type and key goes into; None for none of its own.

    Under its type in lower case, else under its key.
    """
    name = kind.lower()
    if name in known.names:
        return name
    return key if key in known.names or known.open else None


def misfits(step: PlannedStep, known: Takes) -> tuple[list[str], list[str]]:
    """Parameters of a step that its function does not take, and those it needs and is not given."""
    names = named(step)
    given = names.union(place_of(kind, key, known) or "" for kind, key in step.inputs)
    unknown = [] if known.open else sorted(names - known.names)
    return unknown, sorted(known.required - given)


def named(step: PlannedStep) -> frozenset[str]:
    """The names of a step's parameters."""
    found = step.parameters
    return found.names if isinstance(found, Parameters) else frozenset(found)


def arguments(
    step: PlannedStep, known: Takes, results: Mapping[str, Any], task: object
) -> dict[str, Any]:
    """What the function is called with. results: of the step's inputs, by key.

    An input wins over a parameter of the same name. Several inputs of one type are given as a list.
    """
    given = step.given
    if step.inputs:
        counted: dict[str, list[Any]] = {}
        for kind, key in step.inputs:
            place = place_of(kind, key, known)
            if place is not None:
                counted.setdefault(place, []).append(results[key])
        for place, values in counted.items():
            given[place] = values[0] if len(values) == 1 else values
    for name in known.filled:
        filled = {"task": task, "step": step, "results": dict(results)}
        given.setdefault(name, filled[name])
    return given


def tool_for(function: Callable[..., Any], name: str, effect: Any) -> tuple[Tool, tuple[Any, ...]]:
    """What is recorded of a capability's calls, and the object its function is bound to, if any.

    A tool keeps what was said of it.
    """
    if hasattr(function, TOOL_ATTRIBUTE):
        return tool_of(function)
    known = takes(function)
    ignored = tuple(name for name in ("task", "step") if name in known.names)
    return Tool(function, effect=effect, name=name, ignore=ignored), ()


def by_origin(tool: Tool, origins: Mapping[str, str]) -> Tool:
    """The same tool, whose calls are known by where these arguments come from, not by what they are.

    origins: name of an argument to the key of the call whose result it is.
    """

    def key(**bound: Any) -> dict[str, Any]:
        kept = {name: value for name, value in bound.items() if name not in tool.ignore}
        return {**kept, **{name: {"result of": key} for name, key in origins.items()}}

    return Tool(
        tool.function,
        effect=tool.effect,
        name=tool.name,
        ignore=tuple(tool.ignore),
        compensate=tool.compensate,
        timeout=tool.timeout,
        key=key,
    )
