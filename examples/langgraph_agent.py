"""An agent of LangChain's `create_agent` that pays a bill, although its provider fails in the middle.

    python examples/langgraph_agent.py

With OPENAI_API_KEY it asks OpenAI (OPENAI_MODEL, by default gpt-4o-mini); without one, a provider on this
machine that plays the model and is overloaded after the payment. Needs the extra langgraph, and
langchain-openai.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from contextlib import contextmanager

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

import triage
from triage import FailurePolicy, Limits, TriageSuspendedError, approve
from triage.core import Event, StepRecorded
from triage.strategies import Backoff, backoff_and_retry, replan
from triage.testing.adapter_contract import Fails, Rule, Script, World, asks, call, loopback, says

TASK = "Look up the bill of customer 7 and charge exactly that many cents."


@tool
async def bill(customer: int) -> str:
    """The open bill of a customer."""
    print(f"  bill of customer {customer}")
    return "300 cents"


@tool
async def charge(customer: int, cents: int) -> str:
    """Charge a customer's card."""
    print(f"  charging customer {customer}: {cents} cents")
    return "receipt 5"


POLICY = FailurePolicy(
    EXTERNAL_FAULT=backoff_and_retry(max_attempts=5, backoff=Backoff(base=0.1)),
    LOOP_DETECTED=replan("Use what you have found already."),
    default=FailurePolicy.escalate_by_default(),
)


async def main() -> None:
    """Pay the bill, with a person's consent."""
    with provider() as (url, key):
        model = ChatOpenAI(
            model=os.environ.get("OPENAI_MODEL", "gpt-4o-mini"),
            base_url=url,
            api_key=lambda: key,
            max_retries=0,  # one layer that retries is enough
        )
        graph = create_agent(
            model,
            [bill, charge],
            middleware=[HumanInTheLoopMiddleware(interrupt_on={"charge": True})],
            checkpointer=InMemorySaver(),
        )
        agent = triage.wrap(
            graph,
            POLICY,
            effects={"bill": "read", "charge": "once"},
            limits=Limits(attempts=6, seconds=120, tokens=20_000),
            observers=[failures],
        )
        try:
            result = await agent.run(TASK)
        except TriageSuspendedError as waits:
            print("a person is asked, and agrees")
            result = await agent.resume(waits.token, approve())
        print(result["messages"][-1].text)


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
            Rule(asks(call("charge", customer=7, cents=300)), sees="300 cents"),
            Rule(asks(call("bill", customer=7))),
        ),
        faults={3: Fails(503, "The server is overloaded")},
    )
    with loopback(World(script)) as url:
        yield f"{url}/v1", "any"


if __name__ == "__main__":
    asyncio.run(main())
