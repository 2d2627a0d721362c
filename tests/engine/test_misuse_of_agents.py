"""Mistakes in how an agent is wrapped or called are told at once, with the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tables import table

import triage
from triage import Agent, UsageError

pytestmark = pytest.mark.anyio

calls: list[Any] = []


class Desk:
    @triage.agent
    async def answer(self, task: str) -> str:
        calls.append(task)
        return f"{task} answered"

    @triage.agent
    async def items(self, task: str) -> Any:
        calls.append(task)
        yield task

    @triage.agent
    @classmethod
    async def of_class(cls, task: str) -> str:
        return f"{cls.__name__} {task}"

    @triage.agent
    @staticmethod
    async def static(task: str) -> str:
        return task


async def test_a_method_called_through_its_class_is_refused_and_not_tried() -> None:
    calls.clear()
    answer: Any = Desk.answer
    ways: list[Callable[[], Any]] = [
        lambda: answer("task"),
        lambda: answer.run("task"),
        lambda: answer.stream("task"),
        lambda: answer.run("task", run_id="run-1"),
    ]
    for call in ways:
        with pytest.raises(UsageError, match=r"Desk\.answer.*instance"):
            call()
    with pytest.raises(UsageError, match="instance"):
        async for _ in answer.events("task"):
            pass
    for later in (answer.resume("token", triage.approve()), answer.recover("run-1")):
        with pytest.raises(UsageError, match="instance"):
            await later
    with pytest.raises(UsageError, match="instance"):
        await answer.recover_all()
    assert calls == []


async def test_a_method_is_called_through_its_instance_or_with_one() -> None:
    answer: Any = Desk.answer
    desk: Any = Desk()
    assert await desk.answer("task") == "task answered"
    assert await answer(desk, "task") == "task answered"
    assert await Desk.of_class("task") == "Desk task"
    assert await desk.of_class("task") == "Desk task"
    assert await Desk.static("task") == "task"


@table(
    ("wrong", "meant"),
    [
        ("record_steps", "record_step"),
        ("recordstep", "record_step"),
        ("update_stat", "update_state"),
        ("record_usages", "record_usage"),
        ("triage_hint", "_triage_hint"),
        ("_triage_subgoals", "_triage_subgoal"),
        ("recrod_step", "record_step"),
    ],
)
def test_a_misspelt_parameter_of_the_run_is_refused_when_the_function_is_wrapped(
    wrong: str, meant: str
) -> None:
    names: dict[str, Any] = {}
    exec(f"async def work(task, *, {wrong}): ...", names)
    with pytest.raises(UsageError, match=rf"{wrong}.*did you mean {meant}\b"):
        Agent(names["work"])


def test_parameters_that_only_resemble_those_of_the_run_are_the_callers() -> None:
    async def with_default(task: str, *, record_steps: bool = True) -> None: ...

    async def others(
        task: str, *, runs: int, rung: int, state: Any, hint: str, record: Any
    ) -> None: ...

    async def both(task: str, *, record_step: Any, record_steps: bool) -> None: ...

    async def data(task: str, *, record_steps: bool, update_stats: int) -> None: ...

    for function in (with_default, others, both, data):
        Agent(function)
