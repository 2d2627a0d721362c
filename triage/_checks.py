"""Is a returned result what it must be? A wrong success is a failure like any other."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ._call import Refused
from ._plain import plain
from ._run import Run
from ._worker import in_worker
from .checks import Checks, objection, validate_result
from .diagnosis import Diagnosis, Evidence
from .grounds import Grounds
from .observers import logger
from .redact import redact
from .taxonomy import Cause, FailureType

if TYPE_CHECKING:
    from .classifiers._facts_in import Fact

GROUNDING_SECONDS = 30.0
"""How long a result's facts may be looked for; one that takes longer is let through, and logged."""
_MAX_NAMED = 10
_MAX_TOOLS = 20


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
    if checks.grounds is not None:
        await _grounded(checks, checks.grounds, run, result)
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
    if not run.has_subgoals:
        return  # most runs declare none: their journal need not be read for it
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


def _permitted(checks: Checks, result: Any) -> None:
    from .classifiers import _constraints

    broken, failed = _constraints.check(checks.constraints, plain(result))
    if broken is None:
        return
    evidence = [Evidence("check:constraints", f"the result {broken.text}")]
    evidence += [Evidence("check:constraints", text) for text in failed]
    raise Refused(
        Diagnosis(
            FailureType.CONSTRAINT_IGNORED,
            cause=Cause.FORBIDDEN_OUTPUT,
            evidence=tuple(evidence),
            user_message="The answer broke a rule and was held back.",
            technical_details=f"the result {broken.text}",
            hint=f"The answer must {broken.wish}.",
            classifier="checks",
        )
    )


async def _grounded(checks: Checks, grounds: Grounds, run: Run, result: Any) -> None:
    session = run.session
    state = session.state
    given = (session.task, session.kwargs, state.state, grounds.sources)
    ledgers = list(state.ledgers)
    steps = [step for ledger in ledgers for step in ledger.steps]
    try:
        facts: tuple[Fact, ...] = await in_worker(
            _without_source, grounds, given, steps, checks, result, seconds=GROUNDING_SECONDS
        )
    except TimeoutError:
        logger.warning("run %s: the result is too long to be grounded", run.run_id)
        return
    if len(facts) >= grounds.at_least:
        raise Refused(_ungrounded(facts, checks))


def _without_source(
    grounds: Grounds, given: tuple[Any, ...], steps: list[Any], checks: Checks, result: Any
) -> tuple[Fact, ...]:
    """The facts of a result that nothing holds. Runs in a thread: it reads all of the run's text."""
    from .classifiers._grounding import Grounding

    grounding = Grounding(grounds.kinds)
    grounding.deeds.tools(checks.manifest)
    for value in given:
        grounding.source(plain(value))
    for step in steps:
        grounding.step(step)
    return grounding.unsupported(plain(result))


def _ungrounded(facts: tuple[Fact, ...], checks: Checks) -> Diagnosis:
    named = facts[:_MAX_NAMED]
    shown = [json.dumps(redact(fact.text), ensure_ascii=False) for fact in named]
    evidence = tuple(
        Evidence("check:grounding", f"{fact.kind} {text} in the result {fact.fault}")
        for fact, text in zip(named, shown, strict=True)
    )
    more = "" if len(facts) == len(named) else f" and {len(facts) - len(named)} more"
    return Diagnosis(
        FailureType.HALLUCINATED_STATE,
        cause=Cause.UNGROUNDED,
        evidence=evidence,
        user_message="The answer states things that were not looked up.",
        technical_details="; ".join(item.text for item in evidence) + more,
        hint=_look_up(named, shown, more, checks),
        classifier="checks",
    )


def _look_up(named: tuple[Fact, ...], shown: list[str], more: str, checks: Checks) -> str:
    """What the next attempt is told: which facts, and what to do about each kind."""
    by_said: dict[str, list[str]] = {}
    for fact, text in zip(named, shown, strict=True):
        by_said.setdefault(fact.fault, []).append(text)
    tools = ", ".join(list(checks.manifest)[:_MAX_TOOLS])
    with_tools = f" with the tools that exist ({tools})" if tools else ""
    sentences = {
        "has no source": "These facts of the answer stand neither in the task nor in what a tool "
        f"answered: {{}}. Look them up{with_tools}, or leave them out.",
        "does not come out": "These results are not what the sums before them give: {}. Reckon again.",
        "is shown by no step": "The answer says so, but no step did it: {}. Do it first"
        f"{with_tools}, or do not say it.",
    }
    told = [sentences[said].replace("{}", ", ".join(texts)) for said, texts in by_said.items()]
    return " ".join(told) + (f" There are{more}." if more else "")


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
        reason = redact(reason[:1000])
        quoted = json.dumps(reason[:300], ensure_ascii=False)
        raise Refused(
            Diagnosis(
                FailureType.PLAN_INCOMPLETE,
                cause=Cause.CHECK_FAILED,
                evidence=(Evidence(f"check:{name}", reason[:300]),),
                user_message="The answer did not pass its check.",
                technical_details=f"{name} refused the result: {reason}",
                hint=f"The result was refused by a check that says: {quoted}.",
                classifier="checks",
            )
        ) from cause
