"""What the tests of diagnoses share: errors as data, and the rules asked about them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from triage.classifiers import Rule, RulesClassifier
from triage.core import Diagnosis, ErrorInfo, FailureType, Severity, Step, Trajectory

ALL = RulesClassifier()


def info_for(rule: Rule, example: str) -> ErrorInfo:
    """An error that shows a rule its example where the rule looks."""
    match rule.looks_at:
        case "status":
            return ErrorInfo("APIError", mro=("lib.APIError",), status_code=int(example))
        case "code":
            mro = ("lib.DriverError", "lib.DatabaseError")
            return ErrorInfo("DriverError", mro=mro, code=example)
        case "name" if example.islower():
            return ErrorInfo("APIError", mro=("lib.APIError",), code=example)
        case "name":
            full = example if "." in example else f"lib.{example}"
            return ErrorInfo(full.rpartition(".")[2], mro=(full,))
        case "answer":
            mro = ("lib.APIError", "builtins.Exception")
            return ErrorInfo("APIError", mro=mro, message=example, status_code=400)
        case _:
            return said(example)


def seen(diagnosis: Diagnosis) -> str:
    return diagnosis.evidence[0].text


def said(message: str, kind: str = "RuntimeError") -> ErrorInfo:
    return ErrorInfo(kind, mro=(f"builtins.{kind}", "builtins.Exception"), message=message)


def classify(
    error: ErrorInfo | None, steps: Iterable[Step] = (), with_: RulesClassifier = ALL, **kwargs: Any
) -> Diagnosis:
    return with_.classify(Trajectory(steps, error=error, **kwargs), "a task")


def fired(diagnosis: Diagnosis) -> set[str]:
    return {evidence.rule for evidence in diagnosis.evidence}


def passes(diagnosis: Diagnosis) -> bool:
    """A fault of the other side's after which the same call is right: there is nothing to tell."""
    return (diagnosis.failure_type, diagnosis.severity) == (
        FailureType.EXTERNAL_FAULT,
        Severity.RETRIABLE,
    )


def search(query: str, output: Any = "no results", **more: Any) -> Step:
    return Step(
        action="search", tool_called="search", tool_input={"q": query}, tool_output=output, **more
    )


def invalid(text: str) -> ValidationError:
    class Trip(BaseModel):
        city: str

    with pytest.raises(ValidationError) as caught:
        Trip.model_validate_json(text)
    return caught.value


def json_error(text: str) -> json.JSONDecodeError:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads(text)
    return caught.value
