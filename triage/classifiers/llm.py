"""`LLMClassifier`: why an attempt failed, asked of a model."""

from __future__ import annotations

from typing import Any

from triage._env import SYSTEM, Environment
from triage._options import check_count, check_number, misuse
from triage.diagnosis import Diagnosis
from triage.errors import UsageError
from triage.observers import logger
from triage.redact import redact
from triage.steps import Trajectory, Usage

from ._llm_answer import CLASSIFIER
from ._llm_budget import Budget, Meter
from ._llm_clients import provider_of
from ._llm_endpoint import endpoint_of
from ._llm_talk import Settings, Stopped, Talk, abstained, with_usage

LEAST_CHARS = 2_000
_SPARE_SECONDS = 3.0
_PAIR = 2


class LLMClassifier:
    """Asks a model why an attempt failed. Async, under asyncio and trio.

    The model is shown the task, the error and the steps that matter, at most `max_chars` characters,
    without what looks like a credential and as quoted data. Of its answer only what can be checked is
    believed: a quote that does not stand in its step lowers the confidence, which is never above 0.9.

    `classify` never raises. Where there is no answer (a refusal, an answer of the wrong form even
    when asked again, an endpoint that fails or is silent, a used-up budget) the diagnosis is UNKNOWN
    with confidence 0, and its evidence says why. `Diagnosis.usage` is what was consumed in any case.

    provider: `"openai"` (any endpoint with OpenAI's chat completions), `"anthropic"`, or an
    AsyncOpenAI or AsyncAnthropic of your own, which is used as it is and not closed. model, base_url,
    api_key: None reads OPENAI_MODEL, OPENAI_BASE_URL and OPENAI_API_KEY, or the same with ANTHROPIC;
    no base_url is the provider's own. deadline: seconds for a diagnosis, everything included.
    budget: for all diagnoses of this object; run_budget: for those of one run; None: no limit.
    retries: how often a request is repeated that failed for now, apart from it; the delay the
    endpoint asks for is kept, unless it passes the deadline. max_chars: from 2,000. price: US dollars
    for a million input and a million output tokens; None: the cost is not known. environment: sleep
    and chance; None: the machine's.

    Raises UsageError for a value that cannot be used, a model or key that is nowhere to be found, and
    an extra that is not installed.
    """

    name = CLASSIFIER

    def __init__(  # noqa: PLR0913 - each is a thing of its own, and all but two are optional
        self,
        provider: Any = "openai",
        model: str | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        deadline: float = 30.0,
        budget: Budget | None = None,
        run_budget: Budget | None = None,
        retries: int = 2,
        max_chars: int = 24_000,
        price: tuple[float, float] | None = None,
        environment: Environment | None = None,
    ) -> None:
        protocol, client = provider_of(provider)
        check_number("LLMClassifier.deadline", deadline, "seconds", above=True)
        check_count("LLMClassifier.retries", retries, 0)
        check_count("LLMClassifier.max_chars", max_chars, LEAST_CHARS)
        price = _checked_price(price)
        _check_budgets(budget, run_budget, price)
        if environment is not None and not isinstance(environment, Environment):
            raise misuse("LLMClassifier.environment", environment, "an Environment or None")
        self._seconds = deadline
        self._settings = Settings(
            protocol,
            endpoint_of("LLMClassifier", protocol, client, model, base_url, api_key),
            Meter(budget, run_budget),
            retries,
            max_chars,
            price,
            environment or SYSTEM,
        )

    @property
    def deadline(self) -> float:
        """Seconds after which nobody need wait: the deadline, and what it takes to say that it passed."""
        return self._seconds + _SPARE_SECONDS

    @property
    def usage(self) -> Usage:
        """What this object has consumed so far, in all runs together."""
        return self._settings.meter.used

    async def classify(self, trajectory: Trajectory, task: Any = None) -> Diagnosis:
        """Why the attempt failed, as far as the model can show it; UNKNOWN otherwise."""
        import anyio

        talk = Talk(self._settings, trajectory.run_id, anyio.current_time() + self._seconds)
        found: Diagnosis | None = None
        try:
            with anyio.move_on_after(self._seconds):
                found = await talk.diagnosis(trajectory, task)
        except Stopped as stopped:
            found = abstained(stopped.rule, str(stopped), talk.usage)
        except Exception as error:  # noqa: BLE001 - whatever a client raises, the run is not disturbed
            logger.exception("LLMClassifier failed")
            found = abstained("llm:failed", f"{type(error).__name__}: {error}", talk.usage)
        if found is None:
            found = abstained("llm:deadline", f"no answer within {self._seconds:g} s", talk.usage)
        return with_usage(found, talk.usage)

    def __repr__(self) -> str:
        settings = self._settings
        where = settings.endpoint.base_url
        at = f", base_url={redact(where)!r}" if where else ""
        return f"LLMClassifier({settings.provider.name!r}, {settings.endpoint.model!r}{at})"


def _checked_price(price: object) -> tuple[float, float] | None:
    if price is None:
        return None
    if not isinstance(price, tuple) or len(price) != _PAIR:
        raise misuse(
            "LLMClassifier.price", price, "a pair of US dollars, for a million tokens in and out"
        )
    for amount in price:
        check_number("LLMClassifier.price", amount, "US dollars")
    return price


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
