"""A thousand agents on one provider that has an outage and a rate limit, in virtual time.

    python -m bench.storm [--agents 1000] [--seed 1]

Each agent makes three calls, one after the other. Between seconds 20 and 80 the provider answers 503;
at all times it serves so many calls a second and refuses the others with 429 and a Retry-After. What
differs is who tries again, and how: nobody; a decorator around the whole agent that waits exponentially
longer; the client library around each call; both; and triage with its gates. The others are models of
a few lines, by their documented defaults; ours is the package as it is.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import triage
from triage import Agent, Diagnosis, FailurePolicy, Limits, RulesClassifier, Trajectory, TriageError
from triage.strategies import (
    Backoff,
    CircuitBreaker,
    RateGate,
    RetryBudget,
    Strategy,
    backoff_and_retry,
    within_budget,
)

from . import virtual

CALLS = 3
"""Calls an agent makes."""
ARRIVE_S = 30.0
"""Seconds over which the agents start."""
OUTAGE = (20.0, 80.0)
"""Seconds between which the provider is down."""
PER_SECOND = 50
"""Calls the provider serves in a second."""
_TOO_MANY, _DOWN = 429, 503


class Refusal(Exception):
    """The provider's answer. retry_after: seconds, None where the answer names none."""

    def __init__(self, status: int, retry_after: float | None = None) -> None:
        super().__init__(f"the provider answered {status}")
        self.status_code = status
        self.retry_after = retry_after


class Provider:
    """Serves, counts what it is sent, and refuses what is too much."""

    def __init__(self, env: virtual.VirtualEnvironment) -> None:
        self._env = env
        self._second = -1
        self._served = 0
        self.sent = 0
        self.busiest = 0
        self._in_second = 0

    async def call(self) -> str:
        """One request: an answer after a second or so, or a Refusal."""
        env = self._env
        second = int(env.monotonic())
        if second != self._second:
            self._second, self._served, self._in_second = second, 0, 0
        self.sent += 1
        self._in_second += 1
        self.busiest = max(self.busiest, self._in_second)
        if OUTAGE[0] <= env.monotonic() < OUTAGE[1]:
            await env.sleep(0.2)
            raise Refusal(_DOWN)
        if self._served >= PER_SECOND:
            # The window is over at the end of this second; Retry-After is in whole seconds.
            await env.sleep(0.05)
            raise Refusal(_TOO_MANY, retry_after=1.0)
        self._served += 1
        await env.sleep(0.5 + env.random())
        return "an answer"


Work = Callable[[int], Awaitable[None]]
"""One agent, from its start to its end; raises if it fails."""


def no_policy(provider: Provider, env: virtual.VirtualEnvironment) -> Work:
    """Nobody tries again."""
    del env

    async def work(number: int) -> None:
        del number
        for _ in range(CALLS):
            await provider.call()

    return work


def blind(provider: Provider, env: virtual.VirtualEnvironment) -> Work:
    """As `tenacity.retry(stop=stop_after_attempt(10), wait=wait_exponential(max=60))` on the agent."""
    return _again(no_policy(provider, env), env)


def sdk(provider: Provider, env: virtual.VirtualEnvironment) -> Work:
    """As the clients of OpenAI and Anthropic do: `max_retries=2` on each call."""

    async def call() -> None:
        for retry in range(3):
            try:
                await provider.call()
            except Refusal as refusal:
                if retry == 2:
                    raise
                asked = refusal.retry_after
                grown = min(0.5 * 2.0**retry, 8.0) * (1 - 0.25 * env.random())
                await env.sleep(asked if asked is not None and 0 < asked <= 60 else grown)
            else:
                return

    async def work(number: int) -> None:
        del number
        for _ in range(CALLS):
            await call()

    return work


def stacked(provider: Provider, env: virtual.VirtualEnvironment) -> Work:
    """The decorator on the agent, and the client's retries inside."""
    return _again(sdk(provider, env), env)


def _again(inner: Work, env: virtual.VirtualEnvironment) -> Work:
    async def work(number: int) -> None:
        for attempt in range(10):
            try:
                await inner(number)
            except Refusal:
                if attempt == 9:
                    raise
                await env.sleep(min(2.0**attempt, 60.0))
            else:
                return

    return work


class InLoop:
    """The rules, asked in the event loop: a thread would not know of virtual time."""

    def __init__(self) -> None:
        self._rules = RulesClassifier()

    async def classify(self, trajectory: Trajectory, task: object) -> Diagnosis:
        """What the rules say."""
        return self._rules.classify(trajectory, task)


def ours(provider: Provider, env: virtual.VirtualEnvironment) -> Work:
    """A gate and a breaker around the calls, recorded calls, backing off and retrying."""
    gate = RateGate(concurrency=PER_SECOND, environment=env)
    breaker = CircuitBreaker(cooldown_s=10.0, name="provider", environment=env)

    @triage.tool(effect="read")
    async def ask(question: int) -> str:
        del question
        async with gate.through("provider"), breaker.through():
            return await provider.call()

    return _wrapped(ask, env, _PATIENT)


def budgeted(provider: Provider, env: virtual.VirtualEnvironment) -> Work:
    """A retry budget alone: what it refuses is handed over to a person."""
    budget = RetryBudget(100, environment=env)

    @triage.tool(effect="read")
    async def ask(question: int) -> str:
        del question
        async with budget.through("provider"):
            return await provider.call()

    return _wrapped(ask, env, within_budget(_PATIENT, budget, "provider"))


_PATIENT = backoff_and_retry(20, Backoff(base=0.5, cap=5.0))


def _wrapped(
    ask: Callable[[int], Awaitable[str]], env: virtual.VirtualEnvironment, strategy: Strategy
) -> Work:
    async def agent(number: int) -> None:
        del number
        for question in range(CALLS):
            await ask(question)

    wrapped: Agent[None] = Agent(
        agent,
        FailurePolicy(default=strategy),
        classifier=InLoop(),
        limits=Limits(attempts=30),
        environment=env,
    )
    return wrapped.run


POLICIES = {
    "no policy": no_policy,
    "blind exponential retry": blind,
    "SDK retries": sdk,
    "SDK retries in blind ones": stacked,
    "triage: retry budget alone": budgeted,
    "triage: gate and breaker": ours,
}


class Outcome(NamedTuple):
    """What came of it.

    finished: agents that did. sent: requests. wasted: requests that were refused, or whose answer was
    thrown away. busiest: requests in the busiest second. seconds: until the last agent had ended.
    """

    finished: int
    sent: int
    wasted: int
    busiest: int
    seconds: float


def simulate(policy: str, agents: int = 1_000, seed: int = 1) -> Outcome:
    """One storm under one policy of `POLICIES`; the same outcome for the same seed."""
    return virtual.run(_storm(policy, agents, seed))


async def _storm(policy: str, agents: int, seed: int) -> Outcome:
    env = virtual.VirtualEnvironment(seed)
    provider = Provider(env)
    work = POLICIES[policy](provider, env)
    starts = [ARRIVE_S * env.random() for _ in range(agents)]
    finished = 0
    over = 0.0

    async def agent(number: int, start: float) -> None:
        nonlocal finished, over
        await env.sleep(start)
        try:
            await work(number)
            finished += 1
        except (Refusal, TriageError):
            pass
        over = max(over, env.monotonic())

    await asyncio.gather(*(agent(number, start) for number, start in enumerate(starts)))
    wasted = provider.sent - CALLS * finished
    return Outcome(finished, provider.sent, wasted, provider.busiest, over)


def table(outcomes: dict[str, Outcome], agents: int) -> str:
    """The outcomes as a Markdown table."""
    title = f"{agents} agents, {CALLS} calls each"
    lines = [f"| {title} | finished | requests | wasted | busiest second | seconds |"]
    lines.append("|---|---|---|---|---|---|")
    for policy, out in outcomes.items():
        lines.append(
            f"| {policy} | {out.finished} | {out.sent} | {out.wasted} | {out.busiest} | {out.seconds:.0f} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.storm", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--agents", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    outcomes = {policy: simulate(policy, options.agents, options.seed) for policy in POLICIES}
    print(table(outcomes, options.agents))
    return 0


if __name__ == "__main__":
    sys.exit(main())
