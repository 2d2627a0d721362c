"""`triage corrections`: what was corrected, and a rule to begin with for each."""

from __future__ import annotations

import argparse
import json

from triage.classifiers import Rule
from triage.corrections import Correction, read_corrections

from ._run import _note, _write
from ._show import clean

DONE, FAILED = 0, 1


def run(options: argparse.Namespace) -> int:
    """Carry out the command; its exit code. Raises UsageError for a file that cannot be read."""
    corrections = read_corrections(options.file)
    if not corrections:
        _note(f"{options.file}: there are no corrections in it")
        return FAILED
    for correction in corrections:
        if options.json:
            _write(json.dumps(_report(correction)))
        else:
            _show(correction)
    return DONE


def _report(correction: Correction) -> dict[str, object]:
    rule, error = correction.rule(), correction.trajectory.error
    return {
        "line": correction.line,
        "said": correction.said,
        "correct": correction.correct,
        "cause": correction.cause,
        "note": clean(correction.note, 2_000),
        "error": None if error is None else clean(str(error), 2_000),
        "rule": None if rule is None else {"looks_at": rule.looks_at, "keys": rule.keys},
    }


def _show(correction: Correction) -> None:
    note = f": {correction.note}" if correction.note else ""
    cause = f" ({correction.cause})" if correction.cause else ""
    said = f"{correction.said}, right is {correction.correct}{cause}"
    _write(f"line {correction.line}: said {clean(said + note)}")
    error, rule = correction.trajectory.error, correction.rule()
    if error is not None:
        _write(f"    {clean(str(error))}")
    if rule is not None:
        _write(f"    {_row(rule)}")


def _row(rule: Rule) -> str:
    """The rule as it would be written."""
    kind = f"FailureType.{rule.failure_type.name}"
    cause = None if rule.cause is None else clean(str(rule.cause))
    keys = tuple(clean(key) for key in rule.keys)
    return f"Rule({rule.name!r}, {kind}, {cause!r}, {rule.looks_at!r}, {keys!r})"
