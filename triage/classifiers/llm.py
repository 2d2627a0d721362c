"""`LLMClassifier`: why an attempt failed, asked of a model.

Top to bottom: what a model may consume, what of its answer is believed, one diagnosis with its retries, and
the classifier. What a model is shown is in `llm_prompt`, the protocols are in `llm_clients`.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import anyio
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from triage.core.asking import in_worker
from triage.core.capture import capture
from triage.core.diagnosis import Diagnosis, Evidence
from triage.core.environment import SYSTEM, Environment
from triage.core.errors import UsageError, check_count, check_number, misuse
from triage.core.failures import ErrorInfo
from triage.core.observers import logger
from triage.core.quoting import quote
from triage.core.redaction import redact
from triage.core.steps import NO_USAGE, Trajectory, Usage
from triage.core.taxonomy import Cause, FailureType, Severity, severity_of
from triage.core.waiting import Waits

from . import advice, llm_clients
from .llm_prompt import INSTRUCTIONS, REGION_QUESTION, Shown, questions, show, visible
from .rules import RulesClassifier, diagnose

CLASSIFIER = "llm"


# --- what it may consume -----------------------------------------------------------------------

MAX_RUNS = 4096
"""Runs whose usage is remembered; beyond it, the least recently used run is forgotten."""

_OPEN = "None for no limit"


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits on what diagnoses may consume; None means no limit.

    calls: requests, retries included. tokens: input and output together. cost_usd: US dollars. Limits
    are checked before each request, so the last request may exceed tokens and cost_usd. Raises
    UsageError unless calls and tokens are counts from 1 and cost_usd is a finite number above 0.
    """

    calls: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None

    def __post_init__(self) -> None:
        for name, count in (("calls", self.calls), ("tokens", self.tokens)):
            if count is not None:
                check_count(f"Budget.{name}", count, 1, _OPEN)
        if self.cost_usd is not None:
            field = "Budget.cost_usd"
            check_number(field, self.cost_usd, "US dollars", above=True, remedy=_OPEN)

    def used_up(self, used: Usage) -> str | None:
        """The limit that forbids another request, in words; None if one may be made."""
        cost = used.cost_usd or 0.0
        for name, amount, allowed in (
            ("calls", used.calls, self.calls),
            ("tokens", used.total_tokens, self.tokens),
            ("cost_usd", cost, self.cost_usd),
        ):
            if allowed is not None and amount >= allowed:
                return f"{amount:.6g} of {allowed:.6g} {name} used"
        return None


class Meter:
    """Usage of one classifier, in total and per run. Thread-safe."""

    def __init__(self, budget: Budget | None, run_budget: Budget | None) -> None:
        self._budget = budget or Budget()
        self._run_budget = run_budget or Budget()
        self._lock = threading.Lock()
        self._used = NO_USAGE
        self._by_run: OrderedDict[str, Usage] = OrderedDict()

    @property
    def used(self) -> Usage:
        """The total of all requests so far."""
        return self._used

    def begin(self, run_id: str | None) -> str | None:
        """Count the request about to be made; return why it is not allowed, or None if it is."""
        with self._lock:
            why = self._budget.used_up(self._used)
            if why is not None:
                return f"the budget is used up: {why}"
            if run_id is not None:
                why = self._run_budget.used_up(self._by_run.get(run_id, NO_USAGE))
                if why is not None:
                    return f"the budget of the run is used up: {why}"
            self._count(run_id, Usage(calls=1))
            return None

    def add(self, run_id: str | None, usage: Usage) -> None:
        """Add what a request consumed; `begin` has counted the call itself."""
        with self._lock:
            self._count(run_id, usage)

    def _count(self, run_id: str | None, usage: Usage) -> None:
        self._used = self._used.plus(usage)
        if run_id is not None:
            self._by_run[run_id] = self._by_run.pop(run_id, NO_USAGE).plus(usage)
            if len(self._by_run) > MAX_RUNS:
                self._by_run.popitem(last=False)


# --- what is believed --------------------------------------------------------------------------

# Nothing is taken on trust. A quote that does not stand in the step it names, and a step that was not
# shown, are dropped and lower the confidence; an answer without one true quote is a guess.

MOST = 0.9
"""No model is believed more than this."""
GUESS = 0.3
"""Nor more than this without a quote that stands where it is said to."""
MAX_ANSWER = 64_000
_MAX_WHY = 500
_MAX_HINT = 300
_MAX_EVIDENCE = 5
_MAX_STARTS = 20

# Facts about this process, its limits and its operator; no text of an attempt can establish them.
_OURS = {
    Cause.LIMIT,
    Cause.IN_DOUBT,
    Cause.NEEDS_APPROVAL,
    Cause.CANCELLED,
    Cause.DEPLOYMENT,
    Cause.OUT_OF_MEMORY,
}
CAUSES = tuple(cause.value for cause in Cause if cause not in _OURS)
"""The causes a model may name."""


class Quote(BaseModel):
    """A piece of what was shown. step: None is the task or the error."""

    step: int | None = None
    quote: str


class ModelAnswer(BaseModel):
    """A model's diagnosis, as `_DIAGNOSIS` asks for it."""

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


class Region(BaseModel):
    """The part of a long record that a model wants to read whole, as `_REGION` asks for it."""

    model_config = ConfigDict(extra="ignore")

    first_step: int
    last_step: int


def _asked(name: str, about: str, properties: dict[str, Any]) -> llm_clients.Asked:
    """A form of answer in the part of JSON Schema that strict structured output knows.

    Models fill the properties in this order: what a later one rests on comes first.
    """
    return llm_clients.Asked(
        name,
        about,
        {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        },
    )


_QUOTE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "step": {
            "type": ["integer", "null"],
            "description": "The step's number; null: the task or the error.",
        },
        "quote": {"type": "string", "description": "Copied exactly, at most 200 letters."},
    },
    "required": ["step", "quote"],
    "additionalProperties": False,
}
_DIAGNOSIS = _asked(
    "report_diagnosis",
    "Report why the attempt failed.",
    {
        "evidence": {
            "type": "array",
            "description": "Up to five verbatim quotes that show it, strongest first.",
            "items": _QUOTE,
        },
        "why": {
            "type": "string",
            "description": "Two or three sentences: what happened, which step decided it, and why "
            "the neighbouring types do not fit.",
        },
        "critical_step": {
            "type": ["integer", "null"],
            "description": "The number of the decisive step; null: none is.",
        },
        "failure_type": {"type": "string", "enum": [kind.value for kind in FailureType]},
        "cause": {"anyOf": [{"type": "string", "enum": list(CAUSES)}, {"type": "null"}]},
        "confidence": {"type": "number", "description": "From 0 to 1."},
        "hint": {
            "type": ["string", "null"],
            "description": "One sentence: what the agent should do differently next time.",
        },
    },
)
_REGION = _asked(
    "report_region",
    "Name the part of the record to read whole.",
    {
        "why": {"type": "string", "description": "One sentence."},
        "first_step": {"type": "integer", "description": "The number of its first step."},
        "last_step": {"type": "integer", "description": "The number of its last step."},
    },
)

M = TypeVar("M", bound=BaseModel)


def parse(form: type[M], text: str) -> M:
    """The answer in a model's text, which may stand in a fence or between words.

    Raises llm_clients.Unusable, which says what is wrong with it without repeating any of it.
    """
    problem = "there is no JSON object in it"
    decoder = json.JSONDecoder()
    text = text[:MAX_ANSWER]
    start = text.find("{")
    for _ in range(_MAX_STARTS):
        if start < 0:
            break
        try:
            found, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            try:
                return form.model_validate(found)
            except ValidationError as error:
                wrong = [
                    f"{'.'.join(str(part) for part in item['loc'])} ({item['type']})"
                    for item in error.errors(include_url=False, include_input=False)[:5]
                ]
                problem = f"wrong or missing: {', '.join(wrong)}"
        start = text.find("{", end)
    raise llm_clients.Unusable(problem[:_MAX_WHY])


def believed(answer: ModelAnswer, shown: Shown, error: ErrorInfo | None, model: str) -> Diagnosis:
    """The answer as a diagnosis, with what could not be checked left out."""
    kind = answer.failure_type
    proven = [
        Evidence("llm:quote", _said(item.quote, 200), item.step)
        for item in answer.evidence
        if item.step in shown.sources and shown.sources[item.step].has(item.quote)
    ]
    confidence = min(answer.confidence, MOST)
    notes: list[Evidence] = []
    step = answer.critical_step
    if step is not None and step not in shown.sources:
        notes.append(Evidence("llm:dropped", f"it named step {step}, which it was not shown"))
        confidence *= 0.5
        step = None
    dropped = len(answer.evidence) - len(proven)
    if dropped:
        notes.append(Evidence("llm:dropped", f"{dropped} quotes do not stand where it said"))
        confidence *= 0.5
    if not proven:
        confidence = min(confidence, GUESS)
    cause = Cause(answer.cause) if answer.cause in CAUSES else None
    severity = severity_of(kind, cause)
    if severity is Severity.FATAL:
        severity = Severity.CRITICAL
    hint = None
    if kind is not FailureType.UNKNOWN and answer.hint and answer.hint.strip():
        # Another model's advice, made of recorded data: it stands in quotes.
        advised = _said(answer.hint, _MAX_HINT)
        hint = f"A review of the failed attempt advises, without changing the task: {advised}"
    delays = (info.retry_after_s for info in error.walk()) if error is not None else ()
    delay = next((seconds for seconds in delays if seconds is not None), None)
    return Diagnosis(
        kind,
        cause=cause,
        severity=severity,
        confidence=round(confidence, 4),
        evidence=(*tuple(dict.fromkeys(proven))[:_MAX_EVIDENCE], *notes),
        critical_step=None if kind is FailureType.UNKNOWN else step,
        user_message=advice.user_message(kind, cause),
        technical_details=f"{model} says: {_said(answer.why, _MAX_WHY)}",
        hint=hint,
        suggestions=advice.suggestions(kind, cause, severity, None),
        retry_after_s=delay if kind is FailureType.EXTERNAL_FAULT else None,
        classifier=CLASSIFIER,
    )


def _said(text: str, limit: int) -> str:
    return quote(redact(visible(text[: 4 * limit])), limit)


# --- one diagnosis -----------------------------------------------------------------------------

_ROUNDS = 2
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 8.0
_FORM_REFUSED = frozenset({400, 422, 501})
"""Statuses an endpoint may answer with when it does not support the form of structured output."""
_NOT_THE_FORM = frozenset({Cause.CONTEXT_LENGTH, Cause.MODEL_MISSING, Cause.QUOTA_EXHAUSTED})
"""Other causes of such a status; another form does not help."""


class Stopped(Exception):
    """There will be no answer; the message says why. rule: of the evidence that holds the message."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(text)
        self.rule = rule


@dataclass
class Settings:
    """How a classifier asks. form: index of the first of the provider's forms not yet refused."""

    provider: llm_clients.Provider
    endpoint: llm_clients.Endpoint
    meter: Meter
    retries: int
    max_chars: int
    price: tuple[float, float] | None
    env: Environment
    form: int = 0


class Talk:
    """One diagnosis. `usage` is what it has consumed so far, also after it was cut off."""

    def __init__(self, settings: Settings, run_id: str | None, deadline: float) -> None:
        self._settings = settings
        self._run_id = run_id
        self._deadline = deadline
        self._waits = Waits()
        self.usage = Usage(calls=0, model=settings.endpoint.model)

    async def diagnosis(self, trajectory: Trajectory, task: Any) -> Diagnosis:
        """The model's diagnosis. Raises Stopped where there is none.

        A record that does not fit is read twice: shortened, to find the part that matters, then with
        that part whole.
        """
        settings = self._settings
        asked, shown = await in_worker(self._prepared, trajectory, task, seconds=self._left())
        async with llm_clients.client_of(settings.provider, settings.endpoint) as client:
            if not shown.whole:
                region = await self._ask(client, shown.text + REGION_QUESTION, _REGION, Region)
                edges = sorted((region.first_step, region.last_step))
                shown = await in_worker(
                    self._shown, trajectory, task, asked, edges, seconds=self._left()
                )
            answer = await self._ask(client, shown.text + asked, _DIAGNOSIS, ModelAnswer)
            return believed(answer, shown, trajectory.error, settings.endpoint.model)

    def _prepared(self, trajectory: Trajectory, task: Any) -> tuple[str, Shown]:
        """The questions of the rules, and the record as it is shown first."""
        asked = questions(trajectory, RulesClassifier().classify(trajectory, task))
        return asked, self._shown(trajectory, task, asked)

    def _shown(
        self, trajectory: Trajectory, task: Any, asked: str, region: Sequence[int] | None = None
    ) -> Shown:
        room = self._settings.max_chars - max(len(asked), len(REGION_QUESTION))
        return show(trajectory, task, room, None if region is None else (region[0], region[1]))

    async def _ask(self, client: Any, message: str, asked: llm_clients.Asked, form: type[M]) -> M:
        """An answer of this form; the model is asked once more where its answer cannot be used."""
        problem = ""
        for _ in range(_ROUNDS):
            text = message
            if problem:
                text += f"\n\nAn earlier answer could not be used: {problem}.{asked.as_text}"
            try:
                reply = await self._reply(client, text, asked)
            except llm_clients.Unusable as error:
                problem = str(error)
                continue
            if reply.refused is not None:
                raise Stopped("llm:refused", f"the model refused: {reply.refused}")
            try:
                return parse(form, reply.text)
            except llm_clients.Unusable as error:
                problem = "it was cut off; answer in fewer words" if reply.cut else str(error)
        raise Stopped("llm:invalid", f"{_ROUNDS} answers could not be used; of the last, {problem}")

    async def _reply(self, client: Any, text: str, asked: llm_clients.Asked) -> llm_clients.Reply:
        """One answer, in the best form of structured output that the endpoint supports."""
        settings = self._settings
        forms = settings.provider.forms
        for at in range(settings.form, len(forms)):
            try:
                reply = await self._answered(client, forms[at], text, asked)
            except _FormRefused:
                continue
            if at > settings.form:
                logger.warning(
                    "%s does not support structured answers by %s; it is asked by %s from now on",
                    settings.endpoint.model,
                    forms[settings.form],
                    forms[at],
                )
                settings.form = at
            return reply
        raise AssertionError("the last form is never refused for what it is")

    async def _answered(
        self, client: Any, form: str, text: str, asked: llm_clients.Asked
    ) -> llm_clients.Reply:
        """One answer in this form; transient failures are retried."""
        settings = self._settings
        for retry in range(settings.retries + 1):
            why = settings.meter.begin(self._run_id)
            if why is not None:
                raise Stopped("llm:budget", why)
            self.usage = self.usage.plus(self._consumed(0, 0, calls=1))
            try:
                raw = await settings.provider.send(
                    client, settings.endpoint.model, form, INSTRUCTIONS, text, asked
                )
            except Exception as error:  # judged by our own rules, whatever it is
                await self._after(error, retry, form)
                continue
            reply = settings.provider.read(raw.http_response.text)
            used = self._consumed(reply.input_tokens, reply.output_tokens, calls=0)
            settings.meter.add(self._run_id, used)
            self.usage = self.usage.plus(used)
            return reply
        raise AssertionError("the last try returns or raises")

    async def _after(self, error: Exception, retry: int, form: str) -> None:
        """Wait before the next retry. Raises Stopped where a retry cannot help."""
        settings = self._settings
        found = diagnose(error)
        status = capture(error).status_code
        if found.cause is Cause.CONTENT_FILTER:
            raise Stopped("llm:refused", f"the endpoint refused: {error}") from error
        if (
            status in _FORM_REFUSED
            and found.cause not in _NOT_THE_FORM
            and form != settings.provider.forms[-1]
        ):
            raise _FormRefused from error
        said = f"{type(error).__name__}: {error}"
        if found.severity is not Severity.RETRIABLE or retry >= settings.retries:
            raise Stopped("llm:failed", f"the model could not be asked: {said}") from error
        pause = found.retry_after_s
        if pause is None:
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**retry) * (0.5 + settings.env.random() / 2)
        if pause >= self._left():
            raise Stopped(
                "llm:failed",
                f"{said}; waiting {pause:.3g} s would pass the deadline",
            ) from error
        self._waits.say(
            str(found.cause),
            "a classifier that asks a model",
            pause,
            f"asking the model failed with {type(error).__name__} {quote(str(error))}",
            f"at most {settings.retries} retries, and {self._left():.3g} s to the deadline",
            "retries=… and timeout=… of the classifier",
        )
        await settings.env.sleep(pause)

    def _left(self) -> float:
        return self._deadline - anyio.current_time()

    def _consumed(self, read: int, written: int, *, calls: int) -> Usage:
        price = self._settings.price
        cost = None if price is None else (read * price[0] + written * price[1]) / 1_000_000
        return Usage(read, written, cost, calls, self._settings.endpoint.model)


class _FormRefused(Exception):
    """The endpoint does not support this form of structured output."""


# --- the classifier ----------------------------------------------------------------------------

LEAST_CHARS = 2_000
_SPARE_SECONDS = 3.0


class LLMClassifier:
    """Asks a model why an attempt failed. Async, under asyncio and trio.

    The model reads the task, the error and every step, without credentials and as quoted data. A record
    longer than `max_chars` is read in two passes: shortened, to find the part that matters, then with
    that part whole. Only what can be checked is believed: a quote that does not stand in its step lowers
    the confidence, which never exceeds 0.9.

    `classify` never raises. Without an answer (a refusal, two unusable answers, a failing or silent
    endpoint, an exhausted budget) the diagnosis is UNKNOWN with confidence 0, and its evidence says
    why. `Diagnosis.usage` holds what was consumed in any case.

    provider: `"openai"` (chat completions, OpenAI's or any compatible endpoint's),
    `"openai-responses"`, `"anthropic"`, or your own AsyncOpenAI or AsyncAnthropic, which is not closed.
    model, base_url, api_key: None reads OPENAI_MODEL, OPENAI_BASE_URL and OPENAI_API_KEY, or the same
    with ANTHROPIC; without a base_url the provider's own is used. deadline: seconds for one diagnosis,
    both passes and all retries included. budget: for all diagnoses of this object; run_budget: for
    those of one run; None: no limit. retries: of each request that fails for a passing reason, after the
    delay the endpoint asks for; a delay beyond the deadline is not waited for. max_chars: of the record
    in one request, from 2,000. price: US dollars per million input and output tokens; None: the cost is
    unknown here, and in a run what its `Prices` say. environment: sleep and randomness; None: the system's.

    Raises UsageError for an invalid argument, a missing model or key, and an extra that is not
    installed.
    """

    name = CLASSIFIER

    def __init__(  # noqa: PLR0913 - independent settings, all but two with defaults
        self,
        provider: Any = "openai",
        model: str | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        deadline: float = 60.0,
        budget: Budget | None = None,
        run_budget: Budget | None = None,
        retries: int = 2,
        max_chars: int = 200_000,
        price: tuple[float, float] | None = None,
        environment: Environment | None = None,
    ) -> None:
        protocol, client = llm_clients.provider_of(provider)
        check_number("LLMClassifier.deadline", deadline, "seconds", above=True)
        check_count("LLMClassifier.retries", retries, 0)
        check_count("LLMClassifier.max_chars", max_chars, LEAST_CHARS)
        match cast("object", price):
            case None:
                pass
            case tuple((_, _)) as amounts:
                for amount in amounts:
                    check_number("LLMClassifier.price", amount, "US dollars")
            case _:
                wanted = "a pair of US dollars, for a million tokens in and out"
                raise misuse("LLMClassifier.price", price, wanted)
        _check_budgets(budget, run_budget, price)
        if environment is not None and not isinstance(environment, Environment):
            raise misuse("LLMClassifier.environment", environment, "an Environment or None")
        self._seconds = deadline
        self._settings = Settings(
            protocol,
            llm_clients.endpoint_of("LLMClassifier", protocol, client, model, base_url, api_key),
            Meter(budget, run_budget),
            retries,
            max_chars,
            price,
            environment or SYSTEM,
        )

    @property
    def deadline(self) -> float:
        """Seconds to wait for `classify`: the deadline, and some spare to report that it has passed."""
        return self._seconds + _SPARE_SECONDS

    @property
    def usage(self) -> Usage:
        """What this object has consumed so far, over all runs."""
        return self._settings.meter.used

    async def classify(self, trajectory: Trajectory, task: Any = None) -> Diagnosis:
        """Diagnose the attempt; UNKNOWN where the model gives no usable answer."""
        talk = Talk(self._settings, trajectory.run_id, anyio.current_time() + self._seconds)
        rule, why = "llm:deadline", f"no answer within {self._seconds:g} s"
        found: Diagnosis | None = None
        try:
            with anyio.move_on_after(self._seconds):
                found = await talk.diagnosis(trajectory, task)
        except Stopped as stopped:
            rule, why = stopped.rule, str(stopped)
        except Exception as error:  # a client may raise anything; the run goes on
            logger.exception("LLMClassifier failed")
            rule, why = "llm:failed", f"{type(error).__name__}: {error}"
        if found is None:
            # An endpoint's words are data: cut, and without credentials.
            why = redact(why)[:300]
            found = Diagnosis(
                FailureType.UNKNOWN,
                confidence=0.0,
                evidence=(Evidence(rule, why),),
                technical_details=why,
                classifier=CLASSIFIER,
            )
        return replace(found, usage=talk.usage if talk.usage.calls else None)

    def __repr__(self) -> str:
        settings = self._settings
        where = settings.endpoint.base_url
        at = f", base_url={redact(where)!r}" if where else ""
        return f"LLMClassifier({settings.provider.name!r}, {settings.endpoint.model!r}{at})"


def _check_budgets(budget: object, run_budget: object, price: object) -> None:
    for field, value in (("budget", budget), ("run_budget", run_budget)):
        if value is None:
            continue
        if not isinstance(value, Budget):
            raise misuse(f"LLMClassifier.{field}", value, "a Budget or None")
        if value.cost_usd is not None and price is None:
            raise UsageError(
                f"LLMClassifier.{field} limits cost_usd, which is not known without price=…; give "
                "what a million input and output tokens cost"
            )
