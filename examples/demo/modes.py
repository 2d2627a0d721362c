"""The three ways to run the same agent: bare, under blind retry (tenacity), under triage."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import httpx
from openai import AsyncOpenAI
from tenacity import AsyncRetrying, RetryCallState, stop_after_attempt, wait_exponential

import triage
from triage.core import ActionChosen, Event

from .agent import Answer, TravelDesk
from .tools import MANIFEST

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from .service import Service
    from .show import Show
    from .tasks import Task

MODES = ("bare", "tenacity", "triage")
POLICY = Path(__file__).parent / "policy.toml"
TIMEOUT_S = 1.0
"""How long the agent waits for the loopback service; the real endpoint gets a minute."""
BLIND_ATTEMPTS = 3
SCRIPTED = "scripted"
"""The model of the loopback service, which costs nothing."""


class Endpoint(NamedTuple):
    """Where the model is: the base URL, the key, the model's name and the client's timeout."""

    base_url: str
    api_key: str
    model: str
    timeout_s: float


class Outcome(NamedTuple):
    """How one task ended in one mode.

    seconds: from its start to its end, those waited included. repeated: charges of its order beyond
    the first.
    """

    task: str
    done: bool
    error: str | None
    model_calls: int
    tokens: int
    seconds: float
    waited: float
    repeated: int


def endpoint(service_url: str) -> Endpoint:
    """The loopback service, or the real endpoint if `OPENAI_API_KEY` is set.

    `OPENAI_BASE_URL` and `OPENAI_MODEL` say which; by default the provider's own and gpt-4o-mini.
    """
    key = os.environ.get("OPENAI_API_KEY")
    if not key:
        return Endpoint(f"{service_url}/v1", "sk-loopback", SCRIPTED, TIMEOUT_S)
    base = os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
    return Endpoint(base, key, os.environ.get("OPENAI_MODEL") or "gpt-4o-mini", 60.0)


@asynccontextmanager
async def desk(service: Service, task: str) -> AsyncGenerator[TravelDesk]:
    """The agent for one task, its clients pointed at the service and closed afterwards."""
    model = endpoint(service.url)
    headers = {"X-Demo-Task": task}
    async with (
        AsyncOpenAI(
            base_url=model.base_url,
            api_key=model.api_key,
            max_retries=0,
            timeout=model.timeout_s,
            default_headers=headers,
        ) as client,
        httpx.AsyncClient(base_url=service.url, headers=headers, timeout=TIMEOUT_S) as http,
    ):
        yield TravelDesk(client, http, model.model)


class Runner:
    """Runs the agent in one mode, telling `show` what happens, and adds up what was waited.

    policy: for the mode `triage`; None is that of `policy.toml`.
    """

    def __init__(
        self, mode: str, service: Service, show: Show, policy: triage.FailurePolicy | None = None
    ) -> None:
        self.mode = mode
        self.policy = policy
        self.service = service
        self.show = show
        self.waited = 0.0

    async def run(self, agent: TravelDesk, task: Task) -> Answer:
        """The agent's answer. Raises what it raised in the end."""
        match self.mode:
            case "bare":
                return await self._bare(agent, task)
            case "tenacity":
                return await self._tenacity(agent, task)
            case _:
                return await self._triage(agent, task)

    async def _bare(self, agent: TravelDesk, task: Task) -> Answer:
        agent.on_call = self.show.call
        return await agent.book(task.prompt)

    async def _tenacity(self, agent: TravelDesk, task: Task) -> Answer:
        agent.on_call = self.show.call
        retrying = AsyncRetrying(
            stop=stop_after_attempt(BLIND_ATTEMPTS),
            wait=wait_exponential(multiplier=0.5),
            before_sleep=self._slept,
            reraise=True,
        )
        return await retrying(agent.book, task.prompt)

    async def _triage(self, agent: TravelDesk, task: Task) -> Answer:
        runner = triage.Agent(
            agent.book,
            policy=self.policy or triage.FailurePolicy.from_file(POLICY),
            limits=triage.Limits(
                attempts=6, seconds=60, prices=triage.strategies.Prices({SCRIPTED: (0.0, 0.0)})
            ),
            checks=triage.Checks(tools=MANIFEST, verify=self._receipt_is_real),
            observers=[self.show.event, self._decided],
        )
        return await runner.run(task.prompt)

    def _slept(self, state: RetryCallState) -> None:
        self.waited += state.upcoming_sleep
        error = None if state.outcome is None else state.outcome.exception()
        self.show.retry(state.attempt_number, error, state.upcoming_sleep)

    def _decided(self, event: Event) -> None:
        if isinstance(event, ActionChosen):
            self.waited += getattr(event.action, "delay", 0.0)

    async def _receipt_is_real(self, answer: Answer) -> str | None:
        """A check on the result, against the ledger and not against what the model says."""
        charges = await asyncio.to_thread(self.service.shop.charges, answer.order_id)
        if answer.order_id is None or answer.receipt in {row.receipt for row in charges}:
            return None
        return (
            f"receipt {answer.receipt} of order {answer.order_id} is not in the ledger:"
            " the order has not been paid; pay it with charge_card and answer with its receipt"
        )
