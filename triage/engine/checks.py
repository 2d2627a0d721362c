"""Checks of a returned result: a wrong result is a failure like any other."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any

from msgspec.structs import replace
from pydantic import ValidationError

from triage.classifiers.detectors.answers import last_answer
from triage.classifiers.detectors.outcomes import changes, omitted
from triage.classifiers.detectors.results import read
from triage.classifiers.detectors.tool_calls import check_output, objection
from triage.classifiers.facts import Fact
from triage.classifiers.grounding import Grounding, Grounds
from triage.classifiers.rules import diagnose
from triage.core.asking import TooSlow, ask, deadline_of, in_worker
from triage.core.capture import captured_text
from triage.core.diagnosis import Diagnosis, Evidence
from triage.core.events import AttemptStarted, StepRecorded
from triage.core.json_values import plain
from triage.core.messages.neutral import ENDINGS
from triage.core.messages.reading import content_text
from triage.core.observers import logger
from triage.core.redaction import redact
from triage.core.state import Call, is_call
from triage.core.steps import Step
from triage.core.taxonomy import UNSAFE, Cause, FailureType

from .call_keys import SAID
from .models import MODEL
from .options import Checks, validate_result
from .run import Recorder

CHECK_SECONDS = 30.0
"""Time for each of a result's type, constraints and facts; then the type refuses, the others only log."""
_MAX_NAMED = 10
_MAX_TOOLS = 20


class Refused(Exception):
    """The result failed the check in `diagnosis`; `__cause__` is the check's exception, if any."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__(str(diagnosis))
        self.diagnosis = diagnosis


async def check(checks: Checks | None, run: Recorder, result: Any) -> Any:
    """Return the validated result. Raises `Refused` with the diagnosis if it fails a check.

    Even without checks, declared subgoals must be complete.
    """
    if checks is None:
        checks = Checks()
    notes = {} if run.tally is None else run.tally.beside
    answer, content = notes.get(SAID, (result, result))
    if checks.result_type is not None:
        content = result = await _validated(checks, run, result, answer)
    if checks.subgoals:
        _complete(run)
    if checks.constraints:
        await _constrained(checks, run, content)
    if checks.grounds is not None:
        await _grounded(checks, checks.grounds, run, content)
    for verifier in checks.verifiers:
        await _verified(run, verifier, result)
    return result


async def _validated(checks: Checks, run: Recorder, result: Any, answer: Any) -> Any:
    # In a thread: the type may have the user's validators, and the value may be large.
    left = run.session.seconds_left()
    try:
        return await ask(
            _typed, checks, result, answer, seconds=CHECK_SECONDS, seconds_left=left, long=True
        )
    except TooSlow as slow:
        raise _refusal("result_type", f"result_type {slow}") from None


def _typed(checks: Checks, result: Any, answer: Any) -> Any:
    """Return the result, or else the answer in it, as the declared type."""
    try:
        return validate_result(checks.result_type, result)
    except ValidationError as error:
        if answer is not result:
            return _typed(checks, answer, answer)
        found = diagnose(error)
        raise Refused(
            replace(
                found,
                failure_type=FailureType.SCHEMA_MISMATCH,
                cause=Cause.INVALID_RESULT,
                classifier="checks",
            )
        ) from error


def _complete(run: Recorder) -> None:
    if not run.has_subgoals:
        return  # most runs declare none, so their journals need not be read
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


async def _constrained(checks: Checks, run: Recorder, result: Any) -> None:
    if not any(map(callable, checks.constraints)):
        _permitted(checks, result)
        return
    left = run.session.seconds_left()
    try:
        await ask(_permitted, checks, result, seconds=CHECK_SECONDS, seconds_left=left, long=True)
    except TooSlow as slow:
        logger.warning("run %s: a constraint %s; the result passes", run.run_id, slow)


def _permitted(checks: Checks, result: Any) -> None:
    broken, failed = check_output(checks.constraints, plain(result))
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


async def _grounded(checks: Checks, grounds: Grounds, run: Recorder, result: Any) -> None:
    session = run.session
    state = session.state
    sources = (session.task, session.kwargs, state.state, grounds.sources)
    ledgers = list(state.ledgers)
    steps = [step for ledger in ledgers for step in ledger.steps]
    try:
        facts: tuple[Fact, ...] = await in_worker(
            _without_source, grounds, sources, steps, result, seconds=CHECK_SECONDS
        )
    except TimeoutError:
        logger.warning("run %s: the result is too long to be grounded", run.run_id)
        return
    if len(facts) >= grounds.at_least:
        raise Refused(_ungrounded(facts, checks))


def _without_source(
    grounds: Grounds, sources: tuple[Any, ...], steps: list[Any], result: Any
) -> tuple[Fact, ...]:
    """Return the facts of a result that no source supports. Runs in a thread, as it reads much text."""
    grounding = Grounding(grounds.kinds)
    for value in sources:
        grounding.source(plain(value))
    for step in steps:
        grounding.step(step)
    return grounding.unsupported(plain(result))


def _ungrounded(facts: tuple[Fact, ...], checks: Checks) -> Diagnosis:
    named = facts[:_MAX_NAMED]
    shown = [json.dumps(redact(fact.text), ensure_ascii=False) for fact in named]
    evidence = tuple(
        Evidence("check:grounding", f"{fact.kind} {text} in the result has no source")
        for fact, text in zip(named, shown, strict=True)
    )
    more = "" if len(facts) == len(named) else f" and {len(facts) - len(named)} more"
    return Diagnosis(
        FailureType.HALLUCINATED_STATE,
        cause=Cause.UNGROUNDED,
        evidence=evidence,
        user_message="The answer states things that were not looked up.",
        technical_details="; ".join(item.text for item in evidence) + more,
        hint=_look_up(shown, more, checks),
        classifier="checks",
    )


def _look_up(shown: list[str], more: str, checks: Checks) -> str:
    """Return the hint for the next attempt: the facts that have no source, and what to do."""
    tools = ", ".join(list(checks.manifest)[:_MAX_TOOLS])
    with_tools = f" with the tools that exist ({tools})" if tools else ""
    return (
        "These facts of the answer stand neither in the task nor in what a tool answered: "
        f"{', '.join(shown)}{more}. Look them up{with_tools}, or leave them out."
    )


async def _verified(run: Recorder, verifier: Any, result: Any) -> None:
    name = getattr(verifier, "__name__", type(verifier).__name__)
    cause: Exception | None = None
    try:
        seconds = deadline_of(verifier, math.inf)
        left = run.session.seconds_left()
        verdict = await ask(verifier, result, seconds=seconds, seconds_left=left, long=True)
    except TooSlow as slow:
        verdict = f"it {slow}"
    except Exception as error:
        cause = error
        verdict = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(verdict, Diagnosis):
        raise Refused(verdict)
    reason = objection(verifier, verdict)
    if reason is not None:
        raise _refusal(name, reason) from cause


def _refusal(name: str, reason: str) -> Refused:
    """Return the refusal of a check. name: of the check."""
    reason = redact(reason[:1000])
    quoted = json.dumps(reason[:300], ensure_ascii=False)
    return Refused(
        Diagnosis(
            FailureType.PLAN_INCOMPLETE,
            cause=Cause.CHECK_FAILED,
            evidence=(Evidence(f"check:{name}", reason[:300]),),
            user_message="The answer did not pass its check.",
            technical_details=f"{name} refused the result: {reason}",
            hint=f"The result was refused by a check that says: {quoted}.",
            classifier="checks",
        )
    )


# Failures returned as a result; only unmistakable ones count.


OUT_OF_STEPS = (
    "Agent stopped due to max iterations.",  # LangChain, AgentExecutor
    "Agent stopped due to iteration limit or time limit.",
    "Sorry, need more steps to process this request.",  # LangGraph, create_react_agent
)
"""Texts that frameworks return in place of an answer at their own limit of steps."""
_PREFIXES = ("Error: ", "ERROR: ", "error: ")
_MIN_CONFIDENCE = 0.8
"""Minimum confidence of the rules that a tool's text is an external fault."""


def refuse_failed_result(run: Recorder, result: Any) -> None:
    """Raise `Refused` for a result that is a failure.

    Such a result is a framework's text at its limit of steps, the error of the last tool call, or a model's
    last answer, if it is empty or its provider marks it as cut off, refused or failed.
    """
    text = _words(result)
    if text is None:
        return
    if text in OUT_OF_STEPS:
        raise Refused(_out_of_steps(text))
    steps = _steps_from_the_end(run)
    step = next(steps, None)
    if step is None:
        return
    if _is_handed_on(step, text):
        raise Refused(_as_raised(step, text, "the result is the error of the last tool call"))
    if step.action != MODEL or step.tool_called is not None:
        return
    last = list(takewhile(lambda one: one.tool_called is None, _steps_from_the_end(run)))[::-1]
    at = last_answer(last)
    answer = step if at is None else last[at]
    # A refusal's words may be outside of the answer's text, which is empty then.
    is_empty = not text and answer.exception_type in ENDINGS
    if (answer.llm_output or "").strip() != text and not is_empty:
        return
    _check_ending(answer, text)
    tool = next((one for one in steps if one.tool_called is not None), None)
    if tool is not None and _is_handed_on(tool, text):
        raise Refused(_as_raised(tool, text, "the answer is the error of the last tool call"))


_LAST_STEPS = 200
"""Number of the attempt's last steps that its answer is compared with."""


async def refuse_omitted_failure(run: Recorder, result: Any, *, names_hint: bool) -> None:
    """Raise `Refused` for an answer that leaves out a failure which the attempt has recorded.

    names_hint: as in `Function`. Accepts any answer if nothing would receive the hint, if the answer is not
    a model's last one, if another attempt would repeat an unrecorded change, or if a call is in doubt.
    """
    if not (names_hint or run.hint_read):
        return
    last = next(_steps_from_the_end(run), None)
    if last is None or last.tool_called is not None or last.action != MODEL:
        return
    steps = run.ended_by(None).steps[-_LAST_STEPS:]
    if all(step.tool_called is None for step in steps):
        return
    checks = run.session.config.checks
    tools = {} if checks is None else checks.manifest
    answer = _answer(result)
    if not _is_said_by(last, answer):
        return
    found = omitted(steps, answer, tools)
    if found is None or any(changes(step) and not is_call(step) for step in steps):
        return
    if any(_is_in_doubt(call, run.number) for call in run.session.state.calls.values()):
        return  # another attempt would stop for a question
    said = redact(found.text)
    raise Refused(
        Diagnosis(
            FailureType.HALLUCINATED_STATE,
            cause=Cause.OMITTED_FAILURE,
            evidence=(Evidence("result:record", f"{found.tool}: {said}"),),
            user_message="The answer leaves out that something failed.",
            technical_details=f"the answer does not tell what {found.tool} came to: {said}",
            hint=f"Your answer leaves out a failure. {found.tool} came to: "
            f"{json.dumps(said, ensure_ascii=False)}. Do not make the call again. Answer anew, and say "
            f"what failed: name {found.tool}, and how many or which parts failed, if only a part did.",
            classifier="results",
        )
    )


def _is_said_by(step: Step, answer: Any) -> bool:
    """Whether an answer comes from a model's step, as text, as JSON or as the arguments of a call."""
    said = (step.llm_output or "").strip()
    if isinstance(answer, str):
        return bool(said) and answer.strip() == said
    calls = step.tool_output if isinstance(step.tool_output, list) else []
    return read(said) == answer or any(
        isinstance(call, Mapping) and call.get("arguments") == answer for call in calls
    )


def _is_in_doubt(call: Call, attempt: int) -> bool:
    settled = ("done", "not_attempted")
    return call.attempt == attempt and call.effect in UNSAFE and call.outcome not in settled


def _answer(result: Any) -> Any:
    """Return the answer in a result, as JSON: its text, or the value in it."""
    if not isinstance(result, Mapping) or "messages" in result:
        words = _words(result)
        if words is not None:
            return words
        for name in ("final_output", "output"):
            if hasattr(result, name):
                return plain(getattr(result, name))
    return plain(result)


def _words(result: Any) -> str | None:
    """Return the text of a result that holds exactly one; None otherwise."""
    if isinstance(result, Mapping):
        for name in ("output", "content"):
            if isinstance(result.get(name), str):
                return str(result[name]).strip()
        messages = result.get("messages")
        return _words(messages[-1]) if isinstance(messages, list) and messages else None
    if isinstance(result, str):
        return result.strip()
    for name in ("content", "output", "final_output"):
        words = getattr(result, name, None)
        if isinstance(words, str):
            return words.strip()
    return None


def _steps_from_the_end(run: Recorder) -> Iterator[Step]:
    """Yield the steps of this attempt, last first."""
    for event in reversed(run.session.events):
        if isinstance(event, StepRecorded):
            yield event.step
        elif isinstance(event, AttemptStarted):
            return


def _is_handed_on(step: Step, text: str) -> bool:
    """Whether a text is the error of a tool's step, with or without a prefix such as `Error:`."""
    if step.tool_called is None:
        return False
    bare = text
    for prefix in _PREFIXES:
        bare = bare.removeprefix(prefix)
    if step.error:
        return step.error.strip() == bare
    return bare != text and _output_text(step) == text and _is_external(bare)


def _output_text(step: Step) -> str:
    """Return the text of a tool's output."""
    output = step.tool_output
    if isinstance(output, Mapping):
        output = content_text(output.get("content"))
    return output.strip() if isinstance(output, str) else ""


def _is_external(error: str) -> bool:
    """Whether the text of an error is of an external fault."""
    found = diagnose(captured_text(error, "ToolError"))
    return found.failure_type is FailureType.EXTERNAL_FAULT and found.confidence >= _MIN_CONFIDENCE


def _check_ending(step: Step, text: str) -> None:
    """Raise `Refused` for a model's last answer that is empty, cut off or filtered."""
    error, kind = step.error, step.exception_type
    if kind in ENDINGS and error:
        raise Refused(_as_raised(step, text, "the result is the last answer of the model"))
    # A step recorded by hand is an answer if it has `llm_output`, even an empty one.
    answered = MODEL in (step.metadata or {}) or step.llm_output is not None
    if not text and error is None and step.tool_output is None and answered:
        raise Refused(_empty())


def _as_raised(step: Step, text: str, why: str) -> Diagnosis:
    """Return the diagnosis of the error in a result: the error of its step, or else the text."""
    error = step.error or text
    found = diagnose(captured_text(error, step.exception_type or "ToolError"))
    evidence = (Evidence("result:error", f"{why}: {error[:200]}"), *found.evidence)
    return replace(found, evidence=evidence)


def _out_of_steps(text: str) -> Diagnosis:
    return Diagnosis(
        FailureType.PLAN_INCOMPLETE,
        cause=Cause.STEP_BUDGET,
        evidence=(Evidence("result:out_of_steps", f"the result says: {text}"),),
        user_message="The work was cut off before its end.",
        technical_details=f"the framework reached its own limit of steps and gave: {text}",
        hint="The attempt before ran out of steps. Come to the answer in fewer steps.",
        classifier="results",
    )


def _empty() -> Diagnosis:
    return Diagnosis(
        FailureType.PLAN_INCOMPLETE,
        cause=Cause.INCOMPLETE,
        evidence=(
            Evidence("result:empty", "the result is the model's last answer, which is empty"),
        ),
        user_message="No answer was given.",
        technical_details="the model's last answer is empty, and was returned as it is",
        hint="The answer was empty. Answer in words.",
        classifier="results",
    )
