"""Raises each case of a set of clients and says what `triage.diagnose` makes of it, as JSON.

    python -m bench.diagnosis.provoke [bench.diagnosis.clients.second]

Runs with an interpreter that has the clients; a client that is not installed is left out and named.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import sys
import warnings
from typing import Any

import triage
from bench.diagnosis.cases import Absent, Case, NothingRaised, TookTooLong, raised

FIRST = "bench.diagnosis.clients"
SECOND = "bench.diagnosis.clients.second"
THIRD = "bench.diagnosis.clients.third"
FIFTH = "bench.diagnosis.clients.fifth"
SIXTH = "bench.diagnosis.clients.sixth"


def answer(case: Case, error: BaseException) -> dict[str, Any]:
    """What is said of one exception, beside its label."""
    found = triage.diagnose(error)
    return {
        "id": case.id,
        "raised": f"{type(error).__module__}.{type(error).__qualname__}: {_text(error)[:300]}",
        **case.label._asdict(),
        "type": found.failure_type.value,
        "cause": found.cause,
        "severity": found.severity.value,
        "delay_s": found.retry_after_s,
    }


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:
        return f"<no text: {type(failure).__name__}>"


def _all(module: str) -> dict[str, list[Any]]:
    told, missing, failed = [], set(), []
    for case in importlib.import_module(module).cases():
        try:
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                error = raised(case)
        except Absent as absent:
            missing.add(str(absent))
        except (NothingRaised, TookTooLong) as problem:
            failed.append(f"{case.id}: {type(problem).__name__}")
        else:
            told.append(answer(case, error))
    return {"answers": told, "absent": sorted(missing), "failed": failed}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    json.dump(_all(sys.argv[1] if len(sys.argv) > 1 else FIRST), sys.stdout, default=str)
