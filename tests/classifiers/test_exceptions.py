"""Exceptions of real clients, recorded and labelled before any rule had seen them.

`exceptions.jsonl` has one a line: its name, the types and causes that are right, whether the same call may
succeed later, the delay that was asked for, and the error as `capture` read it. Installed clients raised
them against servers on loopback, which answered as the documentation of the providers says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from triage import Diagnosis, diagnose
from triage.core import ErrorInfo, Severity
from triage.core.wire import from_json

ROWS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parent / "exceptions.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]
MISSED = {
    "groq_json": "the status 400 decides the cause, its code says more",
    "html_not_json": "whether a page or a model was read is known from the steps alone",
    "killed": "a killed subprocess may have been killed for any reason",
    "mistral_422": "its type names the order of messages, its words a missing field",
    "none_attr": "an attribute of None may be missing for a bad answer of the model's",
    "pai_requests": "a spent budget of requests is an unfinished plan as often as a loop",
}
"""Rows that are answered otherwise, and why."""


def wrong_in(row: dict[str, Any], found: Diagnosis) -> str | None:
    """The first field in which the diagnosis is not as labelled."""
    if found.failure_type not in row["types"]:
        return f"type {found.failure_type}"
    if "causes" in row and found.cause not in row["causes"]:
        return f"cause {found.cause}"
    if "passes" in row and (found.severity is Severity.RETRIABLE) != row["passes"]:
        return f"severity {found.severity}"
    if found.retry_after_s != row.get("delay"):
        return f"delay {found.retry_after_s}"
    return None


def test_exceptions_that_no_rule_was_written_for_are_told_as_labelled() -> None:
    wrong = {
        row["id"]: problem
        for row in ROWS
        if (problem := wrong_in(row, diagnose(from_json(ErrorInfo, row["error"], "error"))))
    }
    assert wrong.keys() == MISSED.keys(), wrong
