"""Live exceptions of real client libraries, provoked by the fault lab where it is at hand.

The lab lies beside the repository. Libraries that are not installed are skipped by name, and so is
everything where there is no lab.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from triage.classifiers import diagnose
from triage.core import Diagnosis, Severity, Step

LAB = Path(__file__).parents[3] / "shared" / "faultlab"
LIBRARIES = ("builtins", "httpx", "openai")

if not (LAB / "cases_dev.jsonl").is_file():
    pytest.skip("there is no fault lab beside the repository", allow_module_level=True)


def answer(found: Diagnosis) -> str:
    """The lab has timeouts as a type of their own."""
    if found.failure_type == "external_fault" and found.cause == "timeout":
        return "timeout"
    return found.failure_type.value


def recorded() -> dict[str, dict[str, Any]]:
    with (LAB / "cases_dev.jsonl").open(encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    return {case["id"]: case for case in cases if case["library"] in LIBRARIES}


@pytest.fixture(scope="module")
def lab() -> Iterator[Any]:
    """The lab's own loader; its folder is on the path only for this module."""
    sys.path.insert(0, str(LAB.parent))
    try:
        yield importlib.import_module("faultlab.model")
    except ImportError as missing:
        pytest.skip(f"the fault lab needs {missing.name}")
    finally:
        sys.path.remove(str(LAB.parent))


@pytest.mark.filterwarnings("ignore")  # what the provoked libraries warn of is not ours
@pytest.mark.parametrize("name", LIBRARIES)
def test_live_exceptions_of_a_library_are_diagnosed_as_labelled(lab: Any, name: str) -> None:
    try:
        library = lab.load(name)
    except ImportError as missing:
        pytest.skip(f"{name} is not installed: {missing}")
    wrong = differences(lab, library, recorded())
    gc.collect()  # what the provoked clients left open is warned of here, where that is ignored
    assert wrong == []


def differences(lab: Any, library: Any, labels: dict[str, dict[str, Any]]) -> list[str]:
    """Every case of a library whose diagnosis is not as labelled."""
    wrong: list[str] = []
    seen = 0
    for case in library.cases:
        if case.id not in labels:
            continue
        error = lab.provoke(case)
        if lab.mismatch(case, error):  # a helper of the lab is missing here, or another version is
            continue
        seen += 1
        label = labels[case.id]["label"]
        found = diagnose(error, [Step(**step) for step in case.steps], task="a task")
        kind = answer(found)
        if kind not in label["failure_types"]:
            wrong.append(f"{case.id}: {kind}, not {label['failure_types']}")
        handed_over = kind == "unknown" and found.severity in (
            Severity.RECLASSIFICATION,
            Severity.CRITICAL,
        )
        if found.severity.value not in label["severities"] and not handed_over:
            wrong.append(f"{case.id}: {found.severity}, not {label['severities']}")
        wrong += delays(case.id, found.retry_after_s, label)
        # Nothing can be done otherwise about what only has to be waited for.
        assert found.hint or found.severity is Severity.RETRIABLE
        assert found.user_message
    expected = sum(1 for case in labels.values() if case["library"] == library.name)
    assert seen >= 0.9 * expected
    return wrong


def delays(case: str, found: float | None, label: dict[str, Any]) -> list[str]:
    wanted = label["retry_after"]
    if found is None:
        missed = wanted is not None and not label["retry_after_optional"]
        return [f"{case}: no delay, not {wanted}"] if missed else []
    if wanted is None or abs(found - wanted) > label["retry_after_tolerance"]:
        return [f"{case}: a delay of {found}, not {wanted}"]
    return []
