"""What detectors say: a `Finding`, and the rules they speak for."""

from __future__ import annotations

from typing import NamedTuple

from triage.classifiers._rule import Rule
from triage.taxonomy import Cause, FailureType, Severity

REDIRECTED = "redirected"
"""Cause: a tool's result gave the agent orders of its own."""
ASKED_AGAIN = "asked_again"
"""Cause: a tool's result asked for exactly the same call once more."""
HISTORY_CUT = "history_cut"
"""Cause: earlier messages were taken out of the model's context."""
NOT_DONE = "not_done"
"""Cause: the last answer says that something was done, and the call that should have done it failed."""
REFUSED = "refused"
"""Cause: the model's answer is a refusal and nothing else."""


class Finding(NamedTuple):
    """What a detector saw.

    step: position of the earliest decisive step, None if no step decided. tool: the tool's name.
    repeats, length: of a loop, how often and how many steps in one round.
    """

    rule: Rule
    text: str
    step: int | None
    tool: str | None = None
    repeats: int = 0
    length: int = 0


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


LOOP = _rule(
    "loop",
    FailureType.LOOP_DETECTED,
    Cause.REPETITION,
    0.97,
    "three identical steps at the end: tool, arguments and result",
)
CYCLE = LOOP._replace(
    name="steps.cycle",
    cause=Cause.CYCLE,
    source="three times the same cycle of two to six steps at the end",
)
NEAR_LOOP = LOOP._replace(
    name="steps.near_loop",
    confidence=0.9,
    source="as a loop, with calls that differ in wording alone and get the same result; at the end of the "
    "run also in the order of words, an id of the request or the time of the call",
)
SAME_ERROR = LOOP._replace(
    name="steps.same_error",
    confidence=0.8,
    source="the same error from the same tool three times, whatever the arguments",
)
MONOLOGUE = LOOP._replace(
    name="steps.monologue",
    confidence=0.6,
    source="ten turns of words in a row by one that has tools and called none",
)
ASKED = _rule(
    "asked_again",
    FailureType.LOOP_DETECTED,
    ASKED_AGAIN,
    0.85,
    "a result that asks for exactly the same call again, and nothing better came after it",
)
REWRITTEN = LOOP._replace(
    name="steps.rewritten",
    confidence=0.6,
    source="a long text written again almost word for word, with nothing learnt in between",
)
UNKNOWN_TOOL = _rule(
    "unknown_tool",
    FailureType.WRONG_TOOL_CALLED,
    Cause.UNKNOWN_TOOL,
    0.97,
    "the tool of the last call is not in the manifest",
)
MISSING_NAME = UNKNOWN_TOOL._replace(
    name="steps.missing_name",
    confidence=0.85,
    source="the name that is missing is the tool of the last call",
)
ARGUMENTS = _rule(
    "arguments",
    FailureType.SCHEMA_MISMATCH,
    Cause.INVALID_ARGUMENTS,
    0.9,
    "the arguments of a call do not fit its tool",
)
GENERATED = ARGUMENTS._replace(
    name="steps.generated_code",
    cause=Cause.MALFORMED_OUTPUT,
    source="code that came from text does not parse",
)
BROKEN_ARGUMENT = ARGUMENTS._replace(
    name="steps.broken_argument",
    source="an argument of the last step's tool is JSON that does not parse",
)
BROKEN_RESULT = _rule(
    "broken_result",
    FailureType.SCHEMA_MISMATCH,
    Cause.BAD_RESPONSE,
    0.85,
    "a tool's result begins as JSON and does not parse, and no better one came after it",
)
FORBIDDEN = _rule(
    "forbidden_output",
    FailureType.CONSTRAINT_IGNORED,
    Cause.FORBIDDEN_OUTPUT,
    0.95,
    "an output breaks a constraint",
)
FAILED_RESULT = _rule(
    "failed_result",
    FailureType.EXTERNAL_FAULT,
    None,
    0.8,
    "the last call was answered with an error of the other side's, or two tools were and never recovered, "
    "or the run ended with an answered error; type, cause and severity are those of the error",
)
BAD_ANSWER = _rule(
    "bad_answer",
    FailureType.EXTERNAL_FAULT,
    Cause.BAD_RESPONSE,
    0.85,
    "the last step's tool raised that what it was answered does not parse",
    Severity.RETRIABLE,
)
REDIRECT = _rule(
    "redirected",
    FailureType.GOAL_DRIFT,
    REDIRECTED,
    0.85,
    "a tool's result speaks to the agent and gives it another goal",
)
DISOBEYED = _rule(
    "disobeyed",
    FailureType.CONSTRAINT_IGNORED,
    Cause.GUARDRAIL,
    0.8,
    "a tool or a statement was used of which the task says by name that it must not be, without exception",
)
OPEN_SUBGOALS = _rule(
    "open_subgoals",
    FailureType.PLAN_INCOMPLETE,
    Cause.INCOMPLETE,
    0.8,
    "a subgoal that no step without an error has named",
)
STOPPED = _rule(
    "stopped",
    FailureType.PLAN_INCOMPLETE,
    Cause.STEP_BUDGET,
    0.9,
    "the last answer says that the allowed steps were used up, and nothing else",
)
LEFT_OPEN = _rule(
    "left_open",
    FailureType.PLAN_INCOMPLETE,
    Cause.INCOMPLETE,
    0.75,
    "the last answer says of itself that parts of the task are not done",
)
REFUSAL = _rule(
    "refusal",
    FailureType.CONSTRAINT_IGNORED,
    REFUSED,
    0.75,
    "the last answer is a refusal that names no reason, and nothing else",
)
CLAIMED = _rule(
    "claimed",
    FailureType.HALLUCINATED_STATE,
    NOT_DONE,
    0.8,
    "the last answer says that something was done for which only the call before it was made, which failed",
)
INVENTED = _rule(
    "made_up",
    FailureType.HALLUCINATED_STATE,
    Cause.UNGROUNDED,
    0.6,
    "a step says that it works with data it has made up, and it is no test",
)
UNGROUNDED = INVENTED._replace(
    name="steps.ungrounded",
    confidence=0.8,
    source="a fact of the last answer stands neither in the task nor in a result; looked for on request",
)
CUT_OFF = _rule(
    "cut_off",
    FailureType.CONTEXT_OVERFLOW,
    Cause.OUTPUT_CUT,
    0.8,
    "the metadata of the last step says that the model's answer ended at the limit of its length",
)
FILTERED = _rule(
    "filtered",
    FailureType.CONSTRAINT_IGNORED,
    Cause.CONTENT_FILTER,
    0.8,
    "the metadata of the last step says that a filter ended the model's answer",
)
FORGOT = _rule(
    "forgot",
    FailureType.CONTEXT_OVERFLOW,
    HISTORY_CUT,
    0.75,
    "the last answer says that what was said before no longer fits",
)
CUT = _rule(
    "history_cut",
    FailureType.CONTEXT_OVERFLOW,
    HISTORY_CUT,
    0.7,
    "earlier messages were taken out, and a call from before them was made again",
)
