"""What a model answers: its form, and what of it is believed.

Nothing is taken on trust. A quote that does not stand in the step it names, and a step that was not
shown, are dropped and lower the confidence; an answer without one true quote is a guess.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from triage.diagnosis import Diagnosis, Evidence
from triage.failures import ErrorInfo
from triage.redact import redact
from triage.taxonomy import Cause, FailureType, Severity, severity_of

from . import _messages
from ._llm_prompt import Shown, comparable, visible
from ._shown import quote

CLASSIFIER = "llm"
MOST = 0.9
"""No model is believed more than this."""
GUESS = 0.3
"""Nor more than this without a quote that stands where it is said to."""
MAX_ANSWER = 64_000
_MAX_TEXT = 500
_MAX_HINT = 300
_MAX_EVIDENCE = 5
_LEAST_QUOTE = 4
_MAX_STARTS = 20

# Facts about this process, its limits and its operator; no text of an attempt can establish them.
_OURS = {Cause.LIMIT, Cause.IN_DOUBT, Cause.CANCELLED, Cause.DEPLOYMENT, Cause.OUT_OF_MEMORY}
CAUSES = tuple(cause.value for cause in Cause if cause not in _OURS)
"""The causes a model may name."""


class Unusable(Exception):
    """An answer of the wrong form; the message says to the model what is wrong with it."""


class Quote(BaseModel):
    """A piece of what was shown. step: None is the error."""

    step: int | None = None
    quote: str


class ModelAnswer(BaseModel):
    """A model's answer, as `SCHEMA` asks for it."""

    model_config = ConfigDict(extra="ignore")

    failure_type: FailureType
    cause: str | None = None
    critical_step: int | None = None
    confidence: float = Field(ge=0, le=1, allow_inf_nan=False)
    evidence: list[Quote] = Field(default_factory=list[Quote])
    hint: str | None = None
    why: str = ""

    @field_validator("failure_type", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.strip().lower() if isinstance(value, str) else value


def _nullable(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": [kind, "null"], **more}


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "why": {"type": "string", "description": "One or two sentences."},
        "evidence": {
            "type": "array",
            "description": "Up to five verbatim quotes that show it, strongest first.",
            "items": {
                "type": "object",
                "properties": {
                    "step": _nullable("integer", description="The step's number; null: the error."),
                    "quote": {"type": "string", "description": "Copied exactly, at most 200 letters."},
                },
                "required": ["step", "quote"],
                "additionalProperties": False,
            },
        },
        "failure_type": {"type": "string", "enum": [kind.value for kind in FailureType]},
        "cause": {"anyOf": [{"type": "string", "enum": list(CAUSES)}, {"type": "null"}]},
        "critical_step": _nullable(
            "integer", description="The earliest step that decided the failure; null: none did."
        ),
        "confidence": {"type": "number", "description": "From 0 to 1."},
        "hint": _nullable(
            "string", description="One sentence: what the agent should do otherwise next time."
        ),
    },
    "required": [
        "why", "evidence", "failure_type", "cause", "critical_step", "confidence", "hint",
    ],
    "additionalProperties": False,
}  # fmt: skip
"""The form of an answer, in the part of JSON Schema that strict structured output knows."""


def parse(text: str) -> ModelAnswer:
    """The answer in a model's text, which may stand in a fence or between words.

    Raises Unusable, which says what is wrong with it without repeating any of it.
    """
    problem = "there is no JSON object in it"
    for found in _objects_in(text[:MAX_ANSWER]):
        try:
            return ModelAnswer.model_validate(found)
        except ValidationError as error:
            wrong = [
                f"{'.'.join(str(part) for part in item['loc'])} ({item['type']})"
                for item in error.errors(include_url=False, include_input=False)[:5]
            ]
            problem = f"wrong or missing: {', '.join(wrong)}"
    raise Unusable(problem[:_MAX_TEXT])


def _objects_in(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of a text, as far as the first few braces lead to any."""
    decoder = json.JSONDecoder()
    start = text.find("{")
    for _ in range(_MAX_STARTS):
        if start < 0:
            return
        try:
            found, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            yield found
        start = text.find("{", end)


def believed(answer: ModelAnswer, shown: Shown, error: ErrorInfo | None, model: str) -> Diagnosis:
    """The answer as a diagnosis, with what could not be checked left out."""
    kind = answer.failure_type
    kept = tuple(found for item in answer.evidence if (found := _proven(item, shown)) is not None)
    dropped = len(answer.evidence) - len(kept)
    kept = tuple(dict.fromkeys(kept))[:_MAX_EVIDENCE]
    confidence = min(answer.confidence, MOST)
    notes: list[Evidence] = []
    step = answer.critical_step
    if step is not None and step not in shown.steps:
        notes.append(Evidence("llm:dropped", f"it named step {step}, which it was not shown"))
        confidence *= 0.5
        step = None
    if dropped:
        notes.append(Evidence("llm:dropped", f"{dropped} quotes do not stand where it said"))
        confidence *= 0.5
    if not kept:
        confidence = min(confidence, GUESS)
    if kind is FailureType.UNKNOWN:
        step = None
    cause = Cause(answer.cause) if answer.cause in CAUSES else None
    severity = severity_of(kind, cause)
    if severity is Severity.FATAL:
        severity = Severity.CRITICAL
    why = _said(answer.why, _MAX_TEXT)
    return Diagnosis(
        kind,
        cause=cause,
        severity=severity,
        confidence=round(confidence, 4),
        evidence=(*kept, *notes),
        critical_step=step,
        user_message=_messages.user_message(kind, cause),
        technical_details=f"{model} says: {why}",
        hint=_hint(answer),
        suggestions=_messages.suggestions(kind, cause, severity, None),
        retry_after_s=_delay(kind, error),
        classifier=CLASSIFIER,
    )


def _proven(item: Quote, shown: Shown) -> Evidence | None:
    """The evidence of a quote, None unless it stands in what was shown of its step."""
    text = shown.error if item.step is None else shown.steps.get(item.step)
    wanted = comparable(item.quote[:_MAX_TEXT])
    if text is None or len(wanted) < _LEAST_QUOTE or wanted not in text:
        return None
    return Evidence("llm:quote", _said(item.quote, 200), item.step)


def _hint(answer: ModelAnswer) -> str | None:
    """The advice, as what it is: another model's, made of recorded data, in quotes."""
    if answer.failure_type is FailureType.UNKNOWN or not answer.hint or not answer.hint.strip():
        return None
    advice = _said(answer.hint, _MAX_HINT)
    return f"A review of the failed attempt advises, without changing the task: {advice}"


def _said(text: str, limit: int) -> str:
    return quote(redact(visible(text[: 4 * limit])), limit)


def _delay(kind: FailureType, error: ErrorInfo | None) -> float | None:
    if kind is not FailureType.EXTERNAL_FAULT or error is None:
        return None
    return next(
        (info.retry_after_s for info in error.walk() if info.retry_after_s is not None), None
    )
