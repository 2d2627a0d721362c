"""The names that telemetry uses: those of the GenAI conventions, and our own where they have none.

Names that differ between versions of the conventions are in `Names`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from triage.core.errors import UsageError

SCOPE = "triage"
"""The instrumentation scope of all telemetry."""


@dataclass(frozen=True)
class Names:
    """The names in one version of the conventions that differ between versions.

    schema: the version's URL. provider: the attribute for a model's provider. evaluation: the log event for
    the diagnosis of a failure. plan: the operation that makes a plan.
    """

    schema: str
    provider: str = "gen_ai.provider.name"
    evaluation: str = "gen_ai.evaluation.result"
    plan: str = "plan"


_NEWEST = "1.43"
VERSIONS: Mapping[str, Names] = {
    _NEWEST: Names("https://opentelemetry.io/schemas/1.43.0"),
    "1.36": Names(
        "https://opentelemetry.io/schemas/1.36.0",
        provider="gen_ai.system",
        evaluation="triage.evaluation.result",
        plan="triage.plan",
    ),
}
"""The supported versions, newest first. Where a version has no name, one of our own is used."""

NEWEST = VERSIONS[_NEWEST]


def names_of(version: str | None) -> Names:
    """Return the names of a version; None for the newest. Raises UsageError for an unknown version."""
    if version is None:
        return NEWEST
    try:
        return VERSIONS[version]
    except (KeyError, TypeError):
        known = ", ".join(VERSIONS)
        raise UsageError(
            f"version must be one of the conventions {known}, not {version!r}"
        ) from None


# Names of spans, and of the operations in them.
INVOKE_AGENT = "invoke_agent"
CHAT = "chat"
EXECUTE_TOOL = "execute_tool"
ATTEMPT = "triage.attempt"
RECOVERY = "triage.recovery"
QUESTION = "triage.question"
STEP = "triage.step"
COMPENSATION = "triage.compensation"
PLAN_STAGES = {
    "selector": "triage.plan.select",
    "approver": "triage.plan.approve",
    "step": "triage.plan.step",
}
"""Span names by the target of a `PlanRouted`. The target `planner` has `plan`; others end the plan."""

# Attributes of the conventions.
OPERATION = "gen_ai.operation.name"
AGENT_NAME = "gen_ai.agent.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105 - a kind of tokens, no secret
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"
EVALUATION_NAME = "gen_ai.evaluation.name"
EVALUATION_LABEL = "gen_ai.evaluation.score.label"
EVALUATION_SCORE = "gen_ai.evaluation.score.value"
EVALUATION_EXPLANATION = "gen_ai.evaluation.explanation"
ERROR_TYPE = "error.type"
EXCEPTION_TYPE = "exception.type"
EXCEPTION_MESSAGE = "exception.message"

PROVIDERS = {"openai": "openai", "anthropic": "anthropic", "gemini": "gcp.gemini"}
"""Providers by the name of the client that records the calls; unknown for other clients."""

# Our own attributes.
RUN_ID = "triage.run.id"
RUN_STATUS = "triage.run.status"
RUN_BY = "triage.run.by"
RUN_PARENT = "triage.run.parent_id"
SEQ = "triage.seq"
TASK = "triage.task"
RESULT = "triage.result"
INCOMPLETE = "triage.incomplete"
EVENTS_LOST = "triage.events_lost"
TOTAL_INPUT = "triage.usage.input_tokens"
TOTAL_OUTPUT = "triage.usage.output_tokens"
COST = "triage.cost_usd"
ATTEMPT_NUMBER = "triage.attempt.number"
ATTEMPT_OUTCOME = "triage.attempt.outcome"
ATTEMPT_TOLD = "triage.attempt.told"
ATTEMPT_HINT = "triage.attempt.hint"
RETURNS_TO = "triage.attempt.returns_to"
CALL_NAME = "triage.call.name"
CALL_KEY = "triage.call.key"
CALL_KIND = "triage.call.kind"
CALL_EFFECT = "triage.call.effect"
CALL_OUTCOME = "triage.call.outcome"
CALL_REUSED = "triage.call.reused"
CALL_TRIES = "triage.call.tries"
CALL_RUN = "triage.call.run_id"
STEP_ACTION = "triage.step.action"
STEP_INPUT = "triage.step.input"
STEP_OUTPUT = "triage.step.output"
FAILURE_TYPE = "triage.failure.type"
FAILURE_CAUSE = "triage.failure.cause"
FAILURE_SEVERITY = "triage.failure.severity"
FAILURE_LEVEL = "triage.failure.level"
FAILURE_STEP = "triage.failure.critical_step"
FAILURE_BY = "triage.failure.classifier"
FAILURE_EVIDENCE = "triage.failure.evidence"
ACTION = "triage.action.kind"
ACTION_BY = "triage.action.by"
ACTION_REASON = "triage.action.reason"
DELAY = "triage.recovery.delay_s"
RECOVERY_OUTCOME = "triage.recovery.outcome"
QUESTION_OUTCOME = "triage.question.outcome"
QUESTION_TEXT = "triage.question.text"
QUESTION_CALL = "triage.question.call"
QUESTION_DOUBT = "triage.question.doubt"
COMPENSATOR = "triage.compensator"
PLAN_VERSION = "triage.plan.version"
PLAN_STEP = "triage.plan.step.key"
PLAN_TARGET = "triage.plan.target"
PLAN_REASON = "triage.plan.reason"
PLAN_CONTENT = "triage.plan.content"
LINK = "triage.link"
WAIT_FOR = "triage.wait.for"


@dataclass(frozen=True)
class Instrument:
    """A metric.

    kind: `counter`, `histogram` or `updown`. by: the attributes of a measurement, in words. buckets: the
    upper bounds of a histogram.
    """

    name: str
    kind: str
    unit: str
    help: str
    by: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_WAITS = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 1_800, 3_600, 21_600, 86_400)
_TOKENS = tuple(4.0**power for power in range(14))

RUNS = Instrument(
    "triage.runs", "counter", "{run}", "Runs that have ended.",
    ("agent", "status"),
)  # fmt: skip
ATTEMPTS = Instrument(
    "triage.attempts", "counter", "{attempt}", "Attempts that have ended.",
    ("agent", "outcome"),
)  # fmt: skip
RECOVERIES = Instrument(
    "triage.recoveries", "counter", "{recovery}", "Actions taken after a failure, and what they led to.",
    ("agent", "failure", "action", "outcome"),
)  # fmt: skip
REUSED = Instrument(
    "triage.calls.reused", "counter", "{call}", "Recorded calls whose result was reused.",
    ("agent", "kind"),
)  # fmt: skip
TOKENS = Instrument(
    "triage.tokens", "counter", "{token}", "Tokens that model calls consumed.",
    ("agent", "type", "model"),
)  # fmt: skip
COSTS = Instrument(
    "triage.cost", "counter", "{USD}", "US dollars that model calls cost, where the price is known.",
    ("agent", "model"),
)  # fmt: skip
WAITS = Instrument(
    "triage.wait", "histogram", "s", "Seconds that runs waited: between attempts, or for a person.",
    ("agent", "reason"), _WAITS,
)  # fmt: skip
QUESTIONS = Instrument(
    "triage.questions.open", "updown", "{question}", "Questions that runs wait for an answer to.",
    ("agent",),
)  # fmt: skip
TOKEN_USAGE = Instrument(
    "gen_ai.client.token.usage", "histogram", "{token}", "Tokens of one model call.",
    buckets=_TOKENS,
)  # fmt: skip

INSTRUMENTS = (
    RUNS, ATTEMPTS, RECOVERIES, REUSED, TOKENS, COSTS, WAITS, QUESTIONS, TOKEN_USAGE,
)  # fmt: skip
