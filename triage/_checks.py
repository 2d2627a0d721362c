"""Is a returned result what it must be? A wrong success is a failure like any other."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ._call import Refused
from ._plain import plain
from ._run import Run
from .checks import Checks, objection, validate_result
from .diagnosis import Diagnosis, Evidence
from .taxonomy import Cause, FailureType


async def check(checks: Checks | None, run: Run, result: Any) -> Any:
    """The result, validated. Raises `Refused` with the diagnosis if it fails a check.

    Without any checks, declared subgoals must be complete all the same.
    """
    if checks is None:
        checks = Checks()
    if checks.result_type is not None:
        result = _typed(checks, result)
    if checks.subgoals:
        _complete(run)
    if checks.constraints:
        _permitted(checks, result)
    for verifier in checks.verifiers:
        await _verified(verifier, result)
    return result


def _typed(checks: Checks, result: Any) -> Any:
    from pydantic import ValidationError

    from .classifiers import diagnose

    try:
        return validate_result(checks.result_type, result)
    except ValidationError as error:
        found = diagnose(error)
        raise Refused(
            replace(
                found,
                failure_type=FailureType.SCHEMA_MISMATCH,
                cause=Cause.INVALID_RESULT,
                classifier="checks",
            )
        ) from error


def _complete(run: Run) -> None:
    missing = run.session.state.open_subgoals
    if missing:
        names = ", ".join(missing)[:300]
        raise Refused(
            Diagnosis(
                FailureType.PLAN_INCOMPLETE,
                cause=Cause.INCOMPLETE,
                evidence=(Evidence("check:subgoals", f"not completed: {names}"),),
                user_message="The answer was given before the work was finished.",
                technical_details=f"declared subgoals are open: {names}",
                hint=f"These subgoals are still open: {names}. Complete them before answering.",
                classifier="checks",
            )
        )


def _texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, keys included."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            stack += [*item, *item.values()]
        elif isinstance(item, list):
            stack += item


def _permitted(checks: Checks, result: Any) -> None:
    broken = next(filter(None, map(checks.violations, _texts(plain(result)))), None)
    if broken is not None:
        raise Refused(
            Diagnosis(
                FailureType.CONSTRAINT_IGNORED,
                cause=Cause.FORBIDDEN_OUTPUT,
                evidence=(Evidence("check:constraints", f"the result contains {broken!r}"),),
                user_message="The answer broke a rule and was held back.",
                technical_details=f"the result contains the forbidden text {broken!r}",
                hint=f"The answer must not contain {broken!r}.",
                classifier="checks",
            )
        )


async def _verified(verifier: Any, result: Any) -> None:
    name = getattr(verifier, "__name__", type(verifier).__name__)
    cause: Exception | None = None
    try:
        verdict = verifier(result)
        if inspect.isawaitable(verdict):
            verdict = await verdict
    except Exception as error:  # noqa: BLE001 - a verify that asserts says so by raising
        cause = error
        verdict = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(verdict, Diagnosis):
        raise Refused(verdict)
    reason = objection(verifier, verdict)
    if reason is not None:
        quoted = json.dumps(reason[:300], ensure_ascii=False)
        raise Refused(
            Diagnosis(
                FailureType.PLAN_INCOMPLETE,
                cause=Cause.CHECK_FAILED,
                evidence=(Evidence(f"check:{name}", reason[:300]),),
                user_message="The answer did not pass its check.",
                technical_details=f"{name} refused the result: {reason[:1000]}",
                hint=f"The result was refused by a check that says: {quoted}.",
                classifier="checks",
            )
        ) from cause
