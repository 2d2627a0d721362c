"""The rules on steps: each fires on the run it shows and not on its near miss, read as a file would be."""

from __future__ import annotations

import io
import json
from typing import Any

from diagnoses import fired

from triage import Diagnosis, RulesClassifier
from triage.adapters.recordings import read
from triage.classifiers import Rule
from triage.classifiers.detectors import finding as _finding
from triage.classifiers.tables.steps import STEP_RULES

OPTIONS = ("constraints", "subgoals", "grounding", "failed")


def diagnosed(line: str) -> Diagnosis:
    record: dict[str, Any] = json.loads(line)
    options = {name: record.pop(name) for name in OPTIONS if name in record}
    found = read(io.BytesIO(json.dumps(record).encode()))
    assert not found.problems
    [trace] = found.traces
    return RulesClassifier(**options).classify(trace.trajectory)


def test_every_rule_that_detectors_speak_for_is_in_the_table() -> None:
    known = {rule.name for rule in vars(_finding).values() if isinstance(rule, Rule)}
    assert known == {rule.name for rule in STEP_RULES}


def test_a_rule_on_steps_fires_on_its_example() -> None:
    wrong: dict[str, str] = {}
    for rule in STEP_RULES:
        assert rule.source
        (example,) = rule.examples
        found = diagnosed(example)
        told = (
            found.hint or found.retry_after_s is not None or rule.failure_type == "external_fault"
        )
        if (
            found.evidence[0].rule != rule.name
            or found.failure_type is not rule.failure_type
            or rule.cause not in (None, found.cause)
            or not told
        ):
            wrong[rule.name] = f"{found} by {found.evidence[0]}"
    assert not wrong


def test_a_rule_on_steps_does_not_fire_on_its_near_miss() -> None:
    wrong = [
        rule.name
        for rule in STEP_RULES
        for near_miss in rule.near_misses
        if rule.name in fired(diagnosed(near_miss))
    ]
    assert all(rule.near_misses for rule in STEP_RULES)
    assert not wrong
