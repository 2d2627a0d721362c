"""`triage corrections`: what was corrected, and a rule to begin with for each."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from triage.classifiers import Correction, read_corrections
from triage.core import one_line

from .options import JsonLines, NoPager, epilogue
from .output import note, paged, print_text, write
from .text import json_line

DONE, FAILED = 0, 1
_CODES = """\
exit codes:
  0    they are shown
  1    there are none in the file
  2    the file cannot be read
"""

app = App(
    name="corrections",
    help_epilogue=epilogue(_CODES, "corrections", "corrections triage-corrections.jsonl --json"),
)


@app.default
def show(
    file: Annotated[
        str, Parameter(help="Where they are kept (triage-corrections.jsonl).")
    ] = "triage-corrections.jsonl",
    /,
    *,
    json: JsonLines = False,
    no_pager: NoPager = False,
) -> int:
    """Show the corrections of a file, and for each a rule to begin with."""
    corrections = read_corrections(file)
    if not corrections:
        note(f"{file}: there are no corrections in it")
        return FAILED
    if json:
        for correction in corrections:
            write(json_line(_as_json(correction)))
        return DONE
    with paged(pager=not no_pager) as out:
        for correction in corrections:
            for line in _lines(correction):
                print_text(out, line)
    return DONE


def _as_json(correction: Correction) -> dict[str, object]:
    rule, error = correction.rule(), correction.trajectory.error
    return {
        "line": correction.line,
        "said": correction.said,
        "correct": correction.correct,
        "cause": correction.cause,
        "note": correction.note,
        "error": None if error is None else f"{error.type_name}: {error.message}",
        "rule": None if rule is None else {"looks_at": rule.looks_at, "keys": rule.keys},
    }


def _lines(correction: Correction) -> list[str]:
    remark = f": {correction.note}" if correction.note else ""
    cause = f" ({correction.cause})" if correction.cause else ""
    said = f"{correction.said}, right is {correction.correct}{cause}"
    lines = [f"line {correction.line}: said {one_line(said + remark)}"]
    error, rule = correction.trajectory.error, correction.rule()
    if error is not None:
        lines.append(f"    {one_line(str(error))}")
    if rule is not None:  # as it would be written
        kind = f"FailureType.{rule.failure_type.name}"
        because = None if rule.cause is None else one_line(str(rule.cause))
        keys = tuple(one_line(key) for key in rule.keys)
        lines.append(f"    Rule({rule.name!r}, {kind}, {because!r}, {rule.looks_at!r}, {keys!r})")
    return lines
