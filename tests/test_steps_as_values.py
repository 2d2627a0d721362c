"""A `Step` as a value: read-only, comparable, copied and pickled like a named tuple."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from event_values import steps
from hypothesis import given

from triage import Effect, Step, Trajectory, Usage

FULL = Step(
    3, "search", "search", {"q": 1}, ["found"], "said", "broken", "KeyError", "once",
    Usage(1, 2), {"id": "c1"}, 12.5, 0.25,
)  # fmt: skip


def test_all_fields_are_read_by_name() -> None:
    assert FULL._asdict() == {
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
    assert {name: getattr(FULL, name) for name in FULL._asdict()} == FULL._asdict()


@given(steps)
def test_a_step_survives_copying_and_pickling(step: Step) -> None:
    assert pickle.loads(pickle.dumps(step)) == step
    assert copy.deepcopy(step) == step
    assert repr(copy.copy(step)) == repr(step)


@given(steps, steps)
def test_steps_are_equal_by_their_fields(one: Step, other: Step) -> None:
    assert (one == other) is (one._asdict() == other._asdict())
    assert one._replace(**other._asdict()) == other


@pytest.mark.parametrize("name", [*FULL._asdict()])
def test_no_field_can_be_set(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(FULL, name, None)


def test_a_copy_has_other_fields_and_no_unknown_ones() -> None:
    assert FULL._replace(error=None).error is None
    assert FULL.error == "broken"
    with pytest.raises(TypeError, match="has no field tool"):
        FULL._replace(tool="search")


def test_a_step_is_no_tuple_and_equal_to_none() -> None:
    given: Any = FULL
    assert given != given.row
    assert hash(Step(action="a")) == hash(Step(action="a"))
    assert Trajectory([FULL]) == Trajectory([FULL._replace()])
