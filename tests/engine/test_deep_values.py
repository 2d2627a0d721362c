"""However deep a value or an error is nested, a run ends as the agent does, and no error hides its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tables import covering, table

import triage
from triage import Agent, Escalate, FailurePolicy, Step, TriageEscalationError
from triage.core import TriageError, UsageError

pytestmark = pytest.mark.anyio

DEPTHS = (1, 64, 100, 500, 5_000)


class Model(BaseModel):
    a: Any = None


@dataclasses.dataclass
class Node:
    below: Any


VALUES: dict[str, Callable[[Any], Any]] = {
    "list": lambda inner: [inner],
    "tuple": lambda inner: (inner,),
    "dict": lambda inner: {"a": inner},
    "dataclass": Node,
    "model": lambda inner: Model.model_construct(a=inner),
}


def _caused(inner: BaseException) -> BaseException:
    error = ValueError("over")
    error.__cause__ = inner
    return error


def _in_context(inner: BaseException) -> BaseException:
    error = ValueError("over")
    error.__context__ = inner
    return error


ERRORS: dict[str, Callable[[Any], Any]] = {
    "group": lambda inner: ExceptionGroup("g", [inner]),
    "the same twice": lambda inner: ExceptionGroup("g", [inner, inner]),
    "cause": _caused,
    "context": _in_context,
    "group and cause": lambda inner: _caused(ExceptionGroup("g", [inner])),
}


def deep(depth: int, wrap: Callable[[Any], Any], leaf: Any) -> Any:
    for _ in range(depth):
        leaf = wrap(leaf)
    return leaf


def _agent(function: Any, folder: Path, *, durable: bool) -> Agent[Any]:
    store = f"sqlite:///{folder / 'runs.db'}" if durable else None
    return Agent(function, FailurePolicy(default=Escalate()), store=store, name="deep")


@table("shape, depth, durable", covering(ERRORS, DEPTHS, (False, True), together=2))
async def test_an_error_of_any_depth_is_the_one_that_is_told(
    tmp_path: Path, shape: str, depth: int, *, durable: bool
) -> None:
    error = deep(depth, ERRORS[shape], ValueError("leaf"))

    async def fails(task: str) -> str:
        raise error

    with pytest.raises(TriageEscalationError) as ended:
        await _agent(fails, tmp_path, durable=durable).run("x")
    assert ended.value.__cause__ is error
    assert "RecursionError" not in str(ended.value.report)


@table("durable", [False, True])
@table("depth", DEPTHS)
async def test_a_mistake_of_the_callers_is_found_in_a_group_of_any_depth(
    tmp_path: Path, depth: int, *, durable: bool
) -> None:
    error = deep(depth, ERRORS["group"], UsageError("a mistake"))

    async def fails(task: str) -> str:
        raise error

    with pytest.raises(ExceptionGroup) as ended:
        await _agent(fails, tmp_path, durable=durable).run("x")
    assert ended.value is error


PLACES = (
    "task",
    "argument",
    "result",
    "state",
    "step",
    "tool's argument",
    "tool's result",
    "error",
)


@table(
    "place, shape, depth, durable",
    covering(PLACES, [*VALUES, "JSON"], DEPTHS, (False, True), together=2),
)
async def test_a_value_of_any_depth_is_taken_or_refused(
    tmp_path: Path, place: str, shape: str, depth: int, *, durable: bool
) -> None:
    if shape == "JSON":
        value: Any = '{"a":' * depth + "1" + "}" * depth
    else:
        value = deep(depth, VALUES[shape], 1)

    @triage.tool(effect="read", name="look")
    async def look(x: Any) -> Any:
        return value if place == "tool's result" else "ok"

    async def works(task: Any, other: Any, *, record_step: Any, update_state: Any) -> Any:
        if place == "error":
            raise ValueError(value)
        if place == "state":
            update_state({"x": value})
        if place == "step":
            record_step(Step(tool_called="t", tool_input={"x": value}, tool_output=value))
        if place.startswith("tool's"):
            found = await look(value if place == "tool's argument" else 1)
            assert place == "tool's argument" or found is value
        return value if place == "result" else "done"

    agent = _agent(works, tmp_path, durable=durable)
    given = (value if place == "task" else "x", value if place == "argument" else "x")
    ended: Exception | None = None
    try:
        result = await agent.run(given[0], other=given[1])
    except TriageError as error:
        ended = error
    if ended is None:
        assert result is value if place == "result" else result == "done"
    elif isinstance(ended, UsageError):
        # State and what a call is known by must come back from JSON: the error says what to do.
        assert place in ("state", "tool's argument")
        assert "nested" in str(ended) or "is of type" in str(ended)
    else:
        assert place == "error"
        assert isinstance(ended.__cause__, ValueError)
