"""A booking that fails once, sent to a collector: `python -m examples.telemetry`.

    docker compose -f examples/telemetry/compose.yaml up -d
    python -m examples.telemetry
    open http://127.0.0.1:16686

Needs `pip install triage-recovery[otel] opentelemetry-sdk opentelemetry-exporter-otlp-proto-http`.
"""

from __future__ import annotations

import asyncio

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from triage import Agent, FailurePolicy, Run, model, tool
from triage.adapters.otel import Telemetry
from triage.strategies import backoff_and_retry


@tool(effect="read")
async def search(city: str) -> list[str]:
    """Look for flights."""
    return [f"morning to {city}", f"evening to {city}"]


@model
async def choose(flights: list[str]) -> str:
    """Stand for a model that is asked."""
    return flights[0]


@tool(effect="once")
async def pay(flight: str, cents: int) -> str:
    """Pay for a flight, once."""
    return f"receipt for {flight}: {cents} cents"


async def book(city: str, *, run: Run) -> str:
    """Book a flight; the first attempt loses its connection after the payment."""
    flight = await choose(await search(city))
    receipt = await pay(flight, 29_900)
    if run.attempt == 1:
        raise ConnectionError("the airline hung up")
    return receipt


def traced(endpoint: str | None = None) -> tuple[Agent[str], Telemetry]:
    """The agent, and what traces it. endpoint: of a collector; None: as the environment says."""
    provider = TracerProvider(resource=Resource.create({"service.name": "bookings"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    telemetry = Telemetry(tracer_provider=provider, content=True)
    policy = FailurePolicy(EXTERNAL_FAULT=backoff_and_retry(max_attempts=3))
    return Agent(book, policy, name="book", observers=[telemetry]), telemetry


def main(endpoint: str | None = None) -> str:
    """Book once, and send the trace."""
    agent, telemetry = traced(endpoint)
    receipt = asyncio.run(agent.run("Lisboa"))
    telemetry.close()
    return receipt


if __name__ == "__main__":
    print(main())
