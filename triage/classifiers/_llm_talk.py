"""One diagnosis by a model: the request, its repetitions, and what ends it without an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

import anyio

from triage._capture import capture
from triage._env import Environment
from triage._worker import in_worker
from triage.diagnosis import Diagnosis, Evidence
from triage.observers import logger
from triage.redact import redact
from triage.steps import Trajectory, Usage
from triage.taxonomy import Cause, FailureType, Severity

from ._llm_answer import CLASSIFIER, Unusable, believed, parse
from ._llm_budget import Meter
from ._llm_clients import AS_TEXT, Endpoint, Provider, Reply
from ._llm_prompt import Shown, instructions, show
from .diagnose import diagnose
from .rules import RulesClassifier

_ROUNDS = 2
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 8.0
_FORM_REFUSED = frozenset({400, 422, 501})
"""Statuses with which an endpoint may say that it does not know how the answer was asked for."""
_OTHERWISE = frozenset({Cause.CONTEXT_LENGTH, Cause.MODEL_MISSING, Cause.QUOTA_EXHAUSTED})
"""What such a status may mean as well; asking in another way does not help then."""
_CLOSING_SECONDS = 2.0


class Stopped(Exception):
    """No answer will come. rule: of the evidence that says why; the message is its text."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(text)
        self.rule = rule


@dataclass
class Settings:
    """What a classifier asks with. form: position of the one that works, found out by asking."""

    provider: Provider
    endpoint: Endpoint
    meter: Meter
    retries: int
    max_chars: int
    price: tuple[float, float] | None
    env: Environment
    form: int = 0


class _Prompt(NamedTuple):
    shown: Shown
    client: Any


class Talk:
    """One diagnosis. `usage` is what it has consumed so far, also after it was cut off."""

    def __init__(self, settings: Settings, run_id: str | None, deadline: float) -> None:
        self._settings = settings
        self._run_id = run_id
        self._deadline = deadline
        self.usage = Usage(calls=0, model=settings.endpoint.model)

    async def diagnosis(self, trajectory: Trajectory, task: Any) -> Diagnosis:
        """The model's diagnosis. Raises Stopped where there is none."""
        prepare: Callable[..., _Prompt] = self._prepare
        prompt = await in_worker(prepare, trajectory, task, seconds=self._left())
        try:
            return await self._rounds(prompt, trajectory)
        finally:
            if self._settings.endpoint.client is None:
                with anyio.move_on_after(_CLOSING_SECONDS, shield=True):
                    await prompt.client.close()

    def _prepare(self, trajectory: Trajectory, task: Any) -> _Prompt:
        """What takes time without waiting: rendering, importing the client, reading certificates."""
        opinion = RulesClassifier().classify(trajectory, task)
        shown = show(trajectory, task, opinion, self._settings.max_chars)
        given = self._settings.endpoint.client
        if given is None:
            return _Prompt(shown, self._settings.provider.open(self._settings.endpoint))
        return _Prompt(shown, given.with_options(max_retries=0, timeout=None))

    async def _rounds(self, prompt: _Prompt, trajectory: Trajectory) -> Diagnosis:
        """Ask, and ask once more where the answer cannot be used."""
        problem = ""
        for _ in range(_ROUNDS):
            text = prompt.shown.text
            if problem:
                text += f"\n\nAn earlier answer could not be used: {problem}.{AS_TEXT}"
            try:
                reply = await self._reply(prompt.client, text)
                if reply.refused is not None:
                    raise Stopped("llm:refused", f"the model refused: {reply.refused}")
                answer = parse(reply.text)
            except Unusable as error:
                problem = str(error)
                continue
            model = self._settings.endpoint.model
            return believed(answer, prompt.shown, trajectory.error, model)
        raise Stopped("llm:invalid", f"{_ROUNDS} answers could not be used; of the last, {problem}")

    async def _reply(self, client: Any, text: str) -> Reply:
        """One answer, asked for in the best way the endpoint knows."""
        settings = self._settings
        forms = settings.provider.forms
        for at in range(settings.form, len(forms)):
            try:
                reply = await self._answered(client, forms[at], text)
            except _FormRefused:
                continue
            if at > settings.form:
                logger.warning(
                    "%s does not know answers by %s; it is asked by %s from now on",
                    settings.endpoint.model,
                    forms[settings.form],
                    forms[at],
                )
                settings.form = at
            return reply
        raise AssertionError("the last form is never refused for what it is")

    async def _answered(self, client: Any, form: str, text: str) -> Reply:
        """As `_reply` in one way, repeated while the endpoint cannot answer now."""
        settings = self._settings
        for retry in range(settings.retries + 1):
            why = settings.meter.begin(self._run_id)
            if why is not None:
                raise Stopped("llm:budget", why)
            self.usage = self.usage.plus(self._consumed(0, 0, calls=1))
            try:
                raw = await settings.provider.send(
                    client, settings.endpoint.model, form, instructions(), text
                )
            except Exception as error:  # noqa: BLE001 - judged by our own rules, whatever it is
                await self._after(error, retry, form)
                continue
            reply = settings.provider.read(raw.http_response.text)
            used = self._consumed(reply.input_tokens, reply.output_tokens, calls=0)
            settings.meter.add(self._run_id, used)
            self.usage = self.usage.plus(used)
            return reply
        raise AssertionError("the last try returns or raises")

    async def _after(self, error: Exception, retry: int, form: str) -> None:
        """Wait before the next try; raises where another one would be of no use."""
        settings = self._settings
        found = diagnose(error)
        status = capture(error).status_code
        if found.cause is Cause.CONTENT_FILTER:
            raise Stopped("llm:refused", f"the endpoint refused: {error}") from error
        if (
            status in _FORM_REFUSED
            and found.cause not in _OTHERWISE
            and form != settings.provider.forms[-1]
        ):
            raise _FormRefused from error
        if found.severity is not Severity.RETRIABLE or retry >= settings.retries:
            _give_up(error)
        pause = found.retry_after_s
        if pause is None:
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**retry) * (0.5 + settings.env.random() / 2)
        if pause >= self._left():
            raise Stopped(
                "llm:failed",
                f"{_shown(error)}; waiting {pause:.3g} s would pass the deadline",
            ) from error
        await settings.env.sleep(pause)

    def _left(self) -> float:
        return self._deadline - anyio.current_time()

    def _consumed(self, read: int, written: int, *, calls: int) -> Usage:
        price = self._settings.price
        cost = None if price is None else (read * price[0] + written * price[1]) / 1_000_000
        return Usage(read, written, cost, calls, self._settings.endpoint.model)


class _FormRefused(Exception):
    """The endpoint does not know this way to ask for a structured answer."""


def _give_up(error: BaseException | None) -> NoReturn:
    raise Stopped("llm:failed", f"the model could not be asked: {_shown(error)}") from error


def _shown(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"


def abstained(rule: str, text: str, usage: Usage) -> Diagnosis:
    """No diagnosis, and why; what the model's side said of it is data, cut and without credentials."""
    why = redact(text)[:300]
    return Diagnosis(
        FailureType.UNKNOWN,
        confidence=0.0,
        evidence=(Evidence(rule, why),),
        technical_details=why,
        classifier=CLASSIFIER,
        usage=_or_none(usage),
    )


def with_usage(diagnosis: Diagnosis, usage: Usage) -> Diagnosis:
    """The diagnosis with what it consumed."""
    return replace(diagnosis, usage=_or_none(usage))


def _or_none(usage: Usage) -> Usage | None:
    return usage if usage.calls else None
