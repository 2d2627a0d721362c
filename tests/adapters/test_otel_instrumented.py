"""Frameworks that real packages instrument: each call has one span, theirs, and nothing is an orphan.

These packages are in no extra. To run these tests, install openinference-instrumentation-langchain,
openinference-instrumentation-openai-agents and the opentelemetry-instrumentation-… of both.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import agents
import anyio.to_thread
import pytest
from agents.testing import ScriptedModel
from langchain.agents import create_agent
from langchain_core.tools import tool

import triage
from adapters.langchain_agents import chat_model
from adapters.otel_trees import Collector
from adapters.sdk_agents import calls, says
from triage.testing.adapter_contract import Rule, Script, World, asks, call, loopback
from triage.testing.adapter_contract import says as said

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]
PACKAGES = {
    "langchain": (
        ("openinference.instrumentation.langchain", "LangChainInstrumentor"),
        ("opentelemetry.instrumentation.langchain", "LangchainInstrumentor"),
    ),
    "openai_agents": (
        ("openinference.instrumentation.openai_agents", "OpenAIAgentsInstrumentor"),
        ("opentelemetry.instrumentation.openai_agents", "OpenAIAgentsInstrumentor"),
    ),
}


@pytest.fixture(params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both frameworks run on asyncio."""
    return str(request.param)


class Traced(ScriptedModel):
    """A model that traces its calls, as the models of the SDK do."""

    async def get_response(self, *args: Any, **options: Any) -> agents.ModelResponse:
        with agents.generation_span(model="scripted"):
            return await super().get_response(*args, **options)


SCRIPT = Script((Rule(said("found"), "x"), Rule(asks(call("search", query="x")))))


def wrapped(framework: str, url: str, collector: Collector, telemetry: Any) -> Any:
    """An agent of a framework whose one tool opens a span of its own. url: of a provider."""
    tracer = collector.tracers.get_tracer("user")

    async def search(query: str) -> str:
        """Search."""
        with tracer.start_as_current_span("inside the tool"):
            return query

    made: Any
    if framework == "langchain":
        made = create_agent(chat_model(url), [tool(search)])
    else:
        turns = Traced([calls("search c1", query="x"), says("found")])
        made = agents.Agent(name="guide", model=turns, tools=[agents.function_tool(search)])
    return triage.wrap(made, observers=[telemetry])


@pytest.mark.parametrize(
    ("framework", "package", "name"),
    [(framework, *one) for framework, known in PACKAGES.items() for one in known],
)
async def test_each_call_has_one_span_which_is_theirs_and_is_annotated(
    framework: str, package: str, name: str
) -> None:
    found = pytest.importorskip(package, reason=f"{package} is not installed")
    collector = Collector()
    instrumentor = getattr(found, name)()
    if framework == "openai_agents":
        agents.set_trace_processors([])
        agents.set_tracing_disabled(disabled=False)
    instrumentor.instrument(tracer_provider=collector.tracers)
    telemetry = collector.telemetry()
    try:
        with loopback(World(SCRIPT)) as url:
            await wrapped(framework, url, collector, telemetry).run("hi")
        assert await anyio.to_thread.run_sync(telemetry.flush)
    finally:
        instrumentor.uninstrument()
        agents.set_trace_processors([])
        agents.set_tracing_disabled(disabled=True)
    told = {span.context.span_id: span for span in collector.spans if span.context}
    scopes = Counter(
        span.instrumentation_scope.name.partition(".")[0]
        for span in told.values()
        if span.instrumentation_scope and "triage.call.key" in (span.attributes or {})
    )
    assert scopes == {package.partition(".")[0]: 3}
    assert all(span.parent is None or span.parent.span_id in told for span in told.values())
    (inside,) = [span for span in told.values() if span.name == "inside the tool"]
    assert inside.parent is not None
    key = (told[inside.parent.span_id].attributes or {})["triage.call.key"]
    assert str(key).startswith("search:")
