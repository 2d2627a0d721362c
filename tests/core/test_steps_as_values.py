"""A `Step` as a value: read-only, comparable, copied and pickled like any value."""

from __future__ import annotations

import copy
import pickle
from io import StringIO
from typing import Any

import pytest
from event_values import steps
from hypothesis import given
from msgspec.structs import asdict, astuple, replace
from pydantic import BaseModel, ValidationError
from rich.console import Console
from tables import table

from triage import Diagnosis, Effect, Escalate, FailureType, Retry, Step, Trajectory, Usage
from triage.core import Evidence

FULL = Step(
    3, "search", "search", {"q": 1}, ["found"], "said", "broken", "KeyError", "once",
    Usage(1, 2), {"id": "c1"}, 12.5, 0.25,
)  # fmt: skip


def test_all_fields_are_read_by_name() -> None:
    assert asdict(FULL) == {
        "index": 3,
        "action": "search",
        "tool_called": "search",
        "tool_input": {"q": 1},
        "tool_output": ["found"],
        "llm_output": "said",
        "error": "broken",
        "exception_type": "KeyError",
        "effect": Effect.ONCE,
        "usage": Usage(1, 2),
        "metadata": {"id": "c1"},
        "timestamp": 12.5,
        "duration_s": 0.25,
    }
    assert {name: getattr(FULL, name) for name in asdict(FULL)} == asdict(FULL)


@given(steps)
def test_a_step_survives_copying_and_pickling(step: Step) -> None:
    assert pickle.loads(pickle.dumps(step)) == step
    assert copy.deepcopy(step) == step
    assert repr(copy.copy(step)) == repr(step)


@given(steps, steps)
def test_steps_are_equal_by_their_fields(one: Step, other: Step) -> None:
    assert (one == other) is (asdict(one) == asdict(other))
    assert replace(one, **asdict(other)) == other


@table("name", [*asdict(FULL)])
def test_no_field_can_be_set(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(FULL, name, None)


def test_a_copy_has_other_fields_and_no_unknown_ones() -> None:
    assert replace(FULL, error=None).error is None
    assert FULL.error == "broken"
    with pytest.raises(TypeError, match="tool"):
        replace(FULL, tool="search")


def test_a_step_is_no_tuple_and_equal_to_none() -> None:
    given: Any = FULL
    assert given != astuple(given)
    assert hash(Step(action="a")) == hash(Step(action="a"))
    assert Trajectory([FULL]) == Trajectory([replace(FULL)])


class Kept(BaseModel):
    """A model of a user, with values of ours among its fields."""

    step: Step
    diagnosis: Diagnosis | None = None
    action: Retry | Escalate = Retry()


def test_values_may_be_fields_of_a_pydantic_model() -> None:
    kept = Kept(
        step=FULL, diagnosis=Diagnosis(FailureType.UNKNOWN, cause="mine"), action=Escalate("no")
    )
    assert kept.step is FULL
    assert Kept.model_validate_json(kept.model_dump_json()) == kept
    assert Kept.model_validate(kept.model_dump(mode="json")) == kept
    assert Kept.model_json_schema()["properties"]["step"]["type"] == "object"


@table("given", [3, {"action": 3}, {"index": -1}])
def test_a_pydantic_model_refuses_what_is_no_such_value(given: Any) -> None:
    with pytest.raises(ValidationError):
        Kept.model_validate({"step": given})


def test_values_are_told_apart_by_their_fields_where_rich_prints_them() -> None:
    console = Console(file=StringIO(), width=200)
    console.print(Evidence("rule", "seen"))
    assert "Evidence(rule='rule', text='seen', step=None)" in console.file.getvalue()  # type: ignore[attr-defined] # a StringIO
