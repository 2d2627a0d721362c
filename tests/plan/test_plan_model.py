"""Plans as values: immutable, hashed, saved and loaded, and every fault of their form named."""

from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped] # it has no types of its own
import pytest
from event_values import json_objects, json_values
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import table

import triage.plan
from triage import UsageError
from triage.core import StoreError
from triage.plan import ExecutionPlan, Input, PlannedStep, plan_schema

from .values import GOOD, any_plan, any_step, plan, step

DOCS = Path(__file__).parents[2] / "docs"


# Values -------------------------------------------------------------------------------------------


def test_a_plan_and_its_steps_cannot_be_changed() -> None:
    made = plan(step("a", parameters={"n": [1]}))
    for value, name in ((made, "steps"), (made.steps[0], "capability")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, None)
    inside: Any = made.steps[0].parameters
    inside["n"].append(2)
    with pytest.raises(TypeError):
        inside["m"] = 1
    assert made.steps[0].parameters == {"n": [1]}


def test_what_a_plan_was_made_of_may_be_changed_afterwards() -> None:
    values, steps = {"n": [1]}, [step("a")]
    made = ExecutionPlan(tuple(steps))
    one = PlannedStep("a", "find", parameters=values)
    steps.append(step("b"))
    values["n"].append(2)
    assert len(made.steps) == 1
    assert dict(one.parameters) == {"n": [1]}


@given(json_objects)
def test_parameters_read_as_a_mapping_of_what_was_given(values: dict[str, Any]) -> None:
    held = PlannedStep("a", "b", parameters=values).parameters
    assert held == values
    assert dict(held) == values
    assert len(held) == len(values)
    assert bool(held) is bool(values)
    assert repr(held) == repr(dict(held))


@table(
    ("fields", "named"),
    [
        ({"context_key": 1}, "PlannedStep.context_key must be text, not int"),
        ({"capability": None}, "PlannedStep.capability must be text, not NoneType"),
        ({"task_objective": b""}, "PlannedStep.task_objective"),
        ({"success_criteria": 0}, "PlannedStep.success_criteria"),
        ({"expected_output": 3}, "PlannedStep.expected_output"),
        ({"parameters": [1]}, "PlannedStep.parameters"),
        ({"parameters": {"when": {1, 2}}}, r"parameters\['when'\] cannot be restored .* set"),
        ({"parameters": {"n": float("nan")}}, r"parameters\['n'\]"),
        ({"inputs": "ab"}, "PlannedStep.inputs"),
        ({"inputs": [("A", "b")]}, "PlannedStep.inputs item"),
        ({"inputs": [Input("A", 3)]}, "PlannedStep.inputs item"),  # type: ignore[arg-type] # wrong on purpose
        ({"steps": "ab"}, "ExecutionPlan.steps"),
        ({"steps": [{}]}, "ExecutionPlan.steps item"),
        ({"steps": (), "version": 0}, "ExecutionPlan.version"),
        ({"steps": (), "version": True}, "ExecutionPlan.version"),
    ],
)
def test_a_field_of_the_wrong_type_is_named_at_once(fields: dict[str, Any], named: str) -> None:
    made: Any = ExecutionPlan
    if "steps" not in fields:
        made, fields = PlannedStep, {"context_key": "a", "capability": "b", **fields}
    with pytest.raises(UsageError, match=named):
        made(**fields)


# JSON ---------------------------------------------------------------------------------------------


@given(any_plan)
def test_a_plan_comes_back_from_json_as_it_was(made: ExecutionPlan) -> None:
    assert pickle.loads(pickle.dumps(made)) == made
    for data in (made.to_json(), json.dumps(made.to_json()), made):
        back = ExecutionPlan.from_json(data)
        assert back == made
        assert back.hash == made.hash
        assert hash(back) == hash(made)


@settings(max_examples=40)
@given(any_plan, any_plan)
def test_plans_of_equal_steps_have_equal_hashes_and_no_others(
    one: ExecutionPlan, other: ExecutionPlan
) -> None:
    assert (one.hash == other.hash) is (one.to_json()["steps"] == other.to_json()["steps"])
    assert dataclasses.replace(one, version=one.version + 1).hash == one.hash


@given(st.lists(any_step, min_size=1, max_size=4), st.data())
def test_any_change_of_a_step_changes_the_hash(steps: list[PlannedStep], data: Any) -> None:
    at = data.draw(st.integers(0, len(steps) - 1))
    name = data.draw(st.sampled_from([field.name for field in dataclasses.fields(PlannedStep)]))
    changed: dict[str, Any] = {
        "parameters": {"another": data.draw(json_values)},
        "inputs": (*steps[at].inputs, Input("A", "b")),
    }
    other: Any = changed.get(name, f"{getattr(steps[at], name)}!")
    again = [*steps]
    again[at] = dataclasses.replace(steps[at], **{name: other})
    if again[at] != steps[at]:
        assert plan(*again).hash != plan(*steps).hash


def test_numbers_that_only_seem_equal_are_told_apart() -> None:
    hashes = {plan(step("a", parameters={"n": n})).hash for n in (1, 1.0, True, "1")}
    assert len(hashes) == 4


PROGRAM = """
from triage.plan import ExecutionPlan, Input, PlannedStep
print(ExecutionPlan((PlannedStep("a", "find", "größer \\U0001f600", parameters={"z": [1, 2.5, None], "a":
    {"y": True, "b": "x"}}, inputs=(Input("A", "k"),)),)).hash)
"""


def test_the_hash_is_the_same_in_every_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(triage.__file__).parents[1])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    # Written down: a release that hashed otherwise would not know what was approved before it.
    assert found == {"865e5818df756fdba95375f7884b20049f35d90c9f8f2098d889f8dcf16cadb5"}


def test_the_form_of_the_seeds_is_read() -> None:
    made = ExecutionPlan.from_json({
        "steps": [
            {"context_key": "pvs", "capability": "find", "expected_output": "A"},
            {"context_key": "out", "capability": "respond", "inputs": [{"A": "pvs"}]},
            {"context_key": "x", "capability": "y", "inputs": [{"type": "A", "key": "pvs"}]},
        ]
    })  # fmt: skip
    assert [one.inputs for one in made.steps] == [(), (Input("A", "pvs"),), (Input("A", "pvs"),)]


FAULTS: list[tuple[Any, str]] = [
    (None, "plan: must be an object with steps, not NoneType"),
    ([], "plan: must be an object with steps, not list"),
    ("{", "plan: is no JSON"),
    ('{"steps": [], "steps": []}', 'has the field "steps" twice'),
    ('{"steps": NaN}', "NaN is no JSON"),
    ("[" * 100_000, "plan: is no JSON"),
    ({}, "steps: is missing"),
    ({"steps": {}}, "steps: must be a list, not dict"),
    ({"v": 2, "steps": []}, 'v: this release reads plans of version 1, not "2"'),
    ({"v": True, "steps": []}, "v: this release reads"),
    ({"version": 0, "steps": []}, "version: must be a whole number from 1"),
    ({"steps": [], "stpes": []}, 'plan: has no field "stpes"'),
    ({"steps": [3]}, r"steps\[0\]: must be an object, not int"),
    ({"steps": [{"capability": "x"}]}, r"steps\[0\].context_key: is missing"),
    ({"steps": [{"context_key": "x"}]}, r"steps\[0\].capability: is missing"),
    ({"steps": [{"context_key": "x", "capability": 1}]}, r"steps\[0\].capability: must be text"),
    ({"steps": [{"paramters": 1}]}, r'has no field "paramters"; did you mean "parameters"\?'),
    ({"steps": [{"parameters": []}]}, r"steps\[0\].parameters: must be an object, not list"),
    ({"steps": [{"parameters": {"a": {1}}}]}, r"steps\[0\].parameters\['a'\] .* set"),
    ({"steps": [{"inputs": {}}]}, r"steps\[0\].inputs: must be a list, not dict"),
    ({"steps": [{"inputs": ["pvs"]}]}, r"steps\[0\].inputs\[0\]: must be an object that names"),
    ({"steps": [{"inputs": [{"A": 1}]}]}, r"steps\[0\].inputs\[0\]: must be an object that names"),
]


@table(("data", "named"), FAULTS)
def test_a_malformed_plan_is_refused_by_the_place_of_its_fault(data: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        ExecutionPlan.from_json(data)


def test_all_faults_of_a_plan_are_named_at_once() -> None:
    with pytest.raises(UsageError) as refused:
        ExecutionPlan.from_json({"version": "x", "steps": [3, {"context_key": 1}]})
    for words in ("version:", "steps[0]:", "steps[1].context_key:", "steps[1].capability:"):
        assert words in str(refused.value)


class Model:
    def __init__(self, dumped: Any) -> None:
        self.dumped = dumped

    def model_dump(self) -> Any:
        if isinstance(self.dumped, Exception):
            raise self.dumped
        return self.dumped


def test_a_model_of_a_plan_is_read_by_what_it_dumps() -> None:
    assert ExecutionPlan.from_json(Model(GOOD.to_json())) == GOOD
    with pytest.raises(UsageError, match="plan: reading it raised KeyError"):
        ExecutionPlan.from_json(Model(KeyError("x")))


# Files --------------------------------------------------------------------------------------------


@given(made=any_plan)
def test_a_saved_plan_is_loaded_as_it_was(
    made: ExecutionPlan, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    made.save(path)
    assert ExecutionPlan.load(path) == made
    assert path.stat().st_mode & 0o077 == 0
    assert [entry.name for entry in path.parent.iterdir()] == ["plan.json"]


def test_a_file_that_is_no_plan_is_named_with_its_fault(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(UsageError, match=r"plan\.json: the plan cannot be read"):
        ExecutionPlan.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"plan\.json: the plan cannot be read"):
        ExecutionPlan.load(path)
    path.write_text('{"v": 9, "steps": []}', encoding="utf-8")
    with pytest.raises(UsageError, match=r"plan\.json: v: this release reads plans of version 1"):
        ExecutionPlan.load(path)
    with path.open("wb") as file:
        file.truncate(11_000_000)
    with pytest.raises(UsageError, match="too many for one"):
        ExecutionPlan.load(path)


def test_a_plan_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    GOOD.save(tmp_path / "plan.json")
    with pytest.raises(StoreError, match="the plan cannot be written"):
        GOOD.save(tmp_path / "no" / "plan.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match="the plan cannot be written"):
        GOOD.save(tmp_path / "folder")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["folder", "plan.json"]
    assert ExecutionPlan.load(tmp_path / "plan.json") == GOOD


# Names --------------------------------------------------------------------------------------------


def test_a_schema_of_plans_offers_the_names_that_exist() -> None:
    schema = plan_schema(("find", "respond"))
    answer = {
        "steps": [
            {
                "context_key": "a",
                "capability": "find",
                "task_objective": "",
                "inputs": [{"type": "A", "key": "k"}],
            }
        ]
    }
    jsonschema.validate(answer, schema)
    assert ExecutionPlan.from_json(answer).steps[0].inputs == (Input("A", "k"),)
    answer["steps"][0]["capability"] = "invented"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(answer, schema)
    jsonschema.validate(answer, plan_schema())


def test_every_name_of_the_package_is_there_and_described() -> None:
    names = triage.plan.__all__
    assert names == sorted(set(names))
    assert set(names) <= set(dir(triage.plan))
    page = (DOCS / "plans.md").read_text(encoding="utf-8")
    for name in names:
        assert getattr(triage.plan, name) is not None
        assert name in page, name
    with pytest.raises(AttributeError, match="no attribute 'Plan'"):
        getattr(triage.plan, "Plan")  # noqa: B009 - spelt so that a type checker does not refuse it
