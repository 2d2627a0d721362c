"""What detectors say: a `Finding`, and the rules they speak for."""

from __future__ import annotations

from typing import NamedTuple

from triage.classifiers.tables.rule import Rule
from triage.core.taxonomy import Cause, FailureType, Severity

REDIRECTED = "redirected"
"""Cause: a tool's result gave the agent an order, and the agent carried it out."""
ASKED_AGAIN = "asked_again"
"""Cause: a tool's result asked for exactly the same call once more."""


class Finding(NamedTuple):
    """What a detector saw.

    step: position of the earliest decisive step, None if no step decided. tool: the tool's name.
    repeats, length: of a loop, how often and how many steps in one round. retry_after_s: seconds that the
    other side asked to wait.
    """

    rule: Rule
    text: str
    step: int | None
    tool: str | None = None
    repeats: int = 0
    length: int = 0
    retry_after_s: float | None = None


EXACT, STRUCTURE, LIKELY, WEAK = 0.97, 0.93, 0.7, 0.6
"""The confidences of findings, by how often their kind was right: what repeats itself exactly, what
values and forms show, what may be the run's own business too, and what is merely unusual. A rule with a
number of its own was right in about that share of runs by people who had not read it (bench/README.md);
below 0.6 it speaks in post-mortems only."""


def _rule(
    name: str,
    kind: FailureType,
    cause: Cause | str | None,
    confidence: float,
    source: str,
    severity: Severity | None = None,
) -> Rule:
    return Rule(
        f"steps.{name}", kind, cause, "text", (), severity, confidence=confidence, source=source
    )


_LOOP = FailureType.LOOP_DETECTED
_SCHEMA = FailureType.SCHEMA_MISMATCH
_MISSING = FailureType.HALLUCINATED_STATE
_WRONG_TOOL = FailureType.WRONG_TOOL_CALLED
_CONSTRAINT = FailureType.CONSTRAINT_IGNORED
_OVERFLOW = FailureType.CONTEXT_OVERFLOW
_EXTERNAL = FailureType.EXTERNAL_FAULT

# fmt: off
LOOP = _rule("loop", _LOOP, Cause.REPETITION, EXACT,
    "three identical steps at the end: tool, arguments and result")
CYCLE = _rule("cycle", _LOOP, Cause.CYCLE, EXACT,
    "three times the same cycle of two to six steps at the end")
NEAR_LOOP = _rule("near_loop", _LOOP, Cause.REPETITION, STRUCTURE,
    "as a loop, with calls that differ in wording alone and get the same result")
COUNTING = _rule("counting_loop", _LOOP, Cause.REPETITION, STRUCTURE,
    "five times the same result for calls that differ in numbers alone")
PAST_LOOP = _rule("past_loop", _LOOP, Cause.REPETITION, 0.5,
    "a loop out of which the run came by itself")
SAME_ERROR = _rule("same_error", _LOOP, Cause.REPETITION, STRUCTURE,
    "the same error from the same tool three times, whatever the arguments")
ASKED = _rule("asked_again", _LOOP, ASKED_AGAIN, STRUCTURE,
    "a result that asks for exactly the same call again, and nothing better came after it")
UNKNOWN_TOOL = _rule("unknown_tool", _WRONG_TOOL, Cause.UNKNOWN_TOOL, EXACT,
    "the tool of the last call is not in the manifest")
MISSING_NAME = _rule("missing_name", _WRONG_TOOL, Cause.UNKNOWN_TOOL, STRUCTURE,
    "the name that is missing is the tool of the last call")
ARGUMENTS = _rule("arguments", _SCHEMA, Cause.INVALID_ARGUMENTS, STRUCTURE,
    "the arguments of a call do not fit its tool")
RESULT = _rule("result", _SCHEMA, Cause.BAD_RESPONSE, STRUCTURE,
    "a result does not fit the schema that its tool declares for results")
CUT_SHORT = _rule("cut_short", _SCHEMA, Cause.MALFORMED_OUTPUT, STRUCTURE,
    "the last answer begins as JSON, as the task asks, and does not parse")
GENERATED = _rule("generated_code", _SCHEMA, Cause.MALFORMED_OUTPUT, STRUCTURE,
    "code that came from text does not parse")
BROKEN_ARGUMENT = _rule("broken_argument", _SCHEMA, Cause.INVALID_ARGUMENTS, STRUCTURE,
    "an argument of the last step's tool is JSON that does not parse")
BROKEN_RESULT = _rule("broken_result", _SCHEMA, Cause.BAD_RESPONSE, STRUCTURE,
    "a tool's result begins as JSON and does not parse, and no better one came after it")
FORBIDDEN = _rule("forbidden_output", _CONSTRAINT, Cause.FORBIDDEN_OUTPUT, EXACT,
    "an output breaks a constraint")
FAILED_RESULT = _rule("failed_result", _EXTERNAL, None, STRUCTURE,
    "the last call was answered with an error of the other side's, or two tools were and never recovered, "
    "or the run ended with an answered error; type, cause and severity are those of the error, which is "
    "not waited out beside an exception that says nothing of it")
BAD_ANSWER = _rule("bad_answer", _EXTERNAL, Cause.BAD_RESPONSE, STRUCTURE,
    "the last step's tool raised that what it was answered does not parse, or the text that a parser "
    "refused is a page of HTML", Severity.RETRIABLE)
INJECTED = _rule("injected", FailureType.GOAL_DRIFT, REDIRECTED, LIKELY,
    "a tool's result gives the agent an order, and a call soon after it has values that only the order has")
OPEN_SUBGOALS = _rule("open_subgoals", FailureType.PLAN_INCOMPLETE, Cause.INCOMPLETE, STRUCTURE,
    "a subgoal that no step without an error has named")
UNGROUNDED = _rule("ungrounded", _MISSING, Cause.UNGROUNDED, WEAK,
    "a fact of the last answer stands neither in the task nor in a result; looked for on request")
SAME_TEXT = _rule("same_text", _LOOP, Cause.REPETITION, STRUCTURE,
    "different tools answer with the same sentence, whatever they are asked")
SERVICE_TEXT = _rule("service_text", _EXTERNAL, None, STRUCTURE,
    "as same_text, where the sentence does not ask for the call again; type and cause as its words say")
TOO_LONG = _rule("too_long", _OVERFLOW, Cause.CONTEXT_LENGTH, STRUCTURE,
    "a step of the model failed with words about a length and a limit")
POST_MORTEM = _rule("post_mortem", _MISSING, None, 0.5,
    "a run that is known to have failed shows nothing: the type that people gave most often to such runs")
CUT_OFF = _rule("cut_off", _OVERFLOW, Cause.OUTPUT_CUT, STRUCTURE,
    "the metadata of the last step says that the model's answer ended at the limit of its length")
FILTERED = _rule("filtered", _CONSTRAINT, Cause.CONTENT_FILTER, STRUCTURE,
    "the metadata of the last step says that a filter ended the model's answer")
