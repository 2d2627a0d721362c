"""An agent of the OpenAI Agents SDK that pays a bill, although its provider fails in the middle.

    python examples/openai_agents_agent.py

With OPENAI_API_KEY it asks OpenAI (OPENAI_MODEL, by default gpt-4o-mini); without one, a provider on this
machine that plays the model and is overloaded after the payment. Needs the extra openai-agents.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import agents
import openai

import triage
from triage import FailurePolicy, Limits, TriageSuspendedError, approve
from triage.core import Event, StepRecorded
from triage.strategies import Backoff, backoff_and_retry, replan
from triage.testing.adapter_contract import Fails, Rule, Script, World, asks, call, loopback, says

TASK = "Look up the bill of customer 7 and charge exactly that many cents."


@agents.function_tool
async def bill(customer: int) -> str:
    """The open bill of a customer."""
    print(f"  bill of customer {customer}")
    return "300 cents"


@agents.function_tool(needs_approval=True)
async def charge(customer: int, cents: int) -> str:
    """Charge a customer's card."""
    print(f"  charging customer {customer}: {cents} cents")
    return "receipt 5"


POLICY = FailurePolicy(
    EXTERNAL_FAULT=backoff_and_retry(max_attempts=5, backoff=Backoff(base=0.1)),
    LOOP_DETECTED=replan("Use what you have found already."),
    SCHEMA_MISMATCH=replan("Call each tool with the arguments it declares."),
    default=FailurePolicy.escalate_by_default(),
)


async def main() -> None:
    """Pay the bill, with a person's consent."""
    with provider() as (url, key):
        # One layer that retries is enough.
        async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
            name = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
            cashier: agents.Agent[Any] = agents.Agent(
                name="cashier",
                model=agents.OpenAIResponsesModel(name, client),
                tools=[charge],
                handoff_description="Charges cards.",
            )
            clerk: agents.Agent[Any] = agents.Agent(
                name="clerk",
                model=agents.OpenAIResponsesModel(name, client),
                tools=[bill],
                handoffs=[cashier],
            )
            agent = triage.wrap(
                clerk,
                POLICY,
                effects={"bill": "read", "charge": "once"},
                limits=Limits(attempts=6, seconds=120, tokens=20_000),
                observers=[failures],
            )
            # Nothing is sent to where traces are collected.
            config = agents.RunConfig(tracing_disabled=True)
            try:
                result = await agent.run(TASK, run_config=config)
            except TriageSuspendedError as waits:
                print("a person is asked, and agrees")
                result = await agent.resume(waits.token, approve())
            print(f"{result.last_agent.name}: {result.final_output}")


def failures(event: Event) -> None:
    """Say which requests to a model failed, and how."""
    if isinstance(event, StepRecorded) and event.step.action == "model" and event.step.error:
        print("  a request failed:", event.step.error)


@contextmanager
def provider() -> Generator[tuple[str | None, str]]:
    """OpenAI where there is a key for it, else a provider on this machine; its address and the key."""
    key = os.environ.get("OPENAI_API_KEY")
    if key:
        yield os.environ.get("OPENAI_BASE_URL"), key
        return
    script = Script(
        (
            Rule(says("Customer 7 has paid 300 cents: receipt 5."), sees="receipt 5"),
            Rule(asks(call("charge", customer=7, cents=300)), sees="cashier"),
            Rule(asks(call("transfer_to_cashier")), sees="300 cents"),
            Rule(asks(call("bill", customer=7))),
        ),
        faults={4: Fails(503, "The server is overloaded")},
    )
    with loopback(World(script)) as url:
        yield f"{url}/v1", "any"


if __name__ == "__main__":
    asyncio.run(main())
