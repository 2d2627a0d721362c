"""`Telemetry` while runs live: what is current, what is dropped, and that it disturbs nothing."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, TraceIdRatioBased
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.instrumented import InstrumentationSettings
from support import RETRY

import triage
from adapters.otel_trees import Collector
from triage import Agent, Run, UsageError
from triage.adapters import otel
from triage.adapters.otel import Telemetry
from triage.core import Step

pytestmark = pytest.mark.anyio
ROOT = Path(triage.__file__).parents[1]


async def flushed(telemetry: Telemetry) -> None:
    assert await anyio.to_thread.run_sync(telemetry.flush)


def parents(collector: Collector) -> dict[str, str]:
    """By the name of a span, the name of the one it is in."""
    names = {span.context.span_id: span.name for span in collector.spans if span.context}
    return {
        span.name: "" if span.parent is None else names.get(span.parent.span_id, "?")
        for span in collector.spans
    }


class TestTheCurrentSpan:
    async def test_spans_of_the_agent_are_in_the_attempt_and_the_run_is_in_the_callers(
        self,
    ) -> None:
        collector = Collector()
        tracer = collector.tracers.get_tracer("user")

        async def agent(task: str) -> str:
            with tracer.start_as_current_span("GET /museum"):
                trace.get_current_span()
            return task

        telemetry = collector.telemetry()
        with tracer.start_as_current_span("request"):
            await Agent(agent, name="guide", observers=[telemetry]).run("x")
        await flushed(telemetry)
        assert parents(collector) == {
            "GET /museum": "triage.attempt",
            "triage.attempt": "invoke_agent guide",
            "invoke_agent guide": "request",
            "request": "",
        }
        assert len({span.context.trace_id for span in collector.spans if span.context}) == 1

    async def test_a_sync_agent_has_it_in_its_thread(self) -> None:
        collector = Collector()
        tracer = collector.tracers.get_tracer("user")

        def agent(task: str) -> str:
            tracer.start_span("inside").end()
            return task

        telemetry = collector.telemetry()
        await Agent(agent, observers=[telemetry]).run("x")
        await flushed(telemetry)
        assert parents(collector)["inside"] == "triage.attempt"

    async def test_what_the_agent_notes_on_it_is_emitted_with_it(self) -> None:
        collector = Collector()

        async def agent(task: str) -> str:
            span = trace.get_current_span()
            assert span.is_recording()
            span.set_attribute("mine", 1)
            span.add_event("looked", {"at": "it"})
            span.record_exception(ValueError("odd"))
            span.end()  # it is not the agent's to end
            return task

        telemetry = collector.telemetry()
        await Agent(agent, observers=[telemetry]).run("x")
        await flushed(telemetry)
        (span,) = [span for span in collector.spans if span.name == "triage.attempt"]
        assert (span.attributes or {})["mine"] == 1
        assert [event.name for event in span.events] == ["looked", "exception"]

    @pytest.mark.parametrize("kind", ["async", "sync", "model"])
    async def test_spans_inside_a_call_are_in_its_own_which_takes_what_is_noted(
        self, kind: str
    ) -> None:
        collector = Collector()
        tracer = collector.tracers.get_tracer("user")

        def work() -> str:
            trace.get_current_span().set_attribute("mine", kind)
            with tracer.start_as_current_span("inside"):
                return "found"

        @triage.tool(effect="read")
        async def search() -> str:
            return work()

        @triage.tool(effect="read")
        def search_sync() -> str:
            return work()

        @triage.model
        async def ask() -> str:
            return work()

        async def agent(task: str) -> str:
            match kind:
                case "async":
                    await search()
                case "sync":
                    await anyio.to_thread.run_sync(search_sync)
                case _:
                    await ask()
            tracer.start_span("after").end()
            return task

        telemetry = collector.telemetry()
        await Agent(agent, observers=[telemetry]).run("x")
        await flushed(telemetry)
        name = {"async": "execute_tool search", "sync": "execute_tool search_sync", "model": "chat"}
        found = parents(collector)
        assert (found["inside"], found["after"]) == (name[kind], "triage.attempt")
        (call,) = [span for span in collector.spans if span.name == name[kind]]
        assert (call.attributes or {})["mine"] == kind

    async def test_a_call_that_raises_leaves_its_span_and_one_inside_another_is_in_it(self) -> None:
        collector = Collector()
        tracer = collector.tracers.get_tracer("user")

        @triage.tool(effect="read")
        async def inner() -> str:
            tracer.start_span("inside").end()
            raise ValueError("nothing there")

        @triage.tool(effect="read")
        async def outer() -> str:
            with pytest.raises(ValueError, match="nothing"):
                await inner()
            tracer.start_span("between").end()
            return "found"

        async def agent(task: str) -> str:
            return await outer()

        telemetry = collector.telemetry()
        await Agent(agent, observers=[telemetry]).run("x")
        await flushed(telemetry)
        found = parents(collector)
        assert found["inside"] == "execute_tool inner"
        assert found["between"] == found["execute_tool inner"] == "execute_tool outer"

    async def test_each_attempt_has_a_span_of_its_own(self) -> None:
        collector = Collector()
        seen: list[int] = []

        async def agent(task: str, *, run: Run) -> str:
            seen.append(trace.get_current_span().get_span_context().span_id)
            if run.attempt == 1:
                raise ConnectionError("down")
            return task

        telemetry = collector.telemetry()
        await Agent(agent, RETRY, observers=[telemetry]).run("x")
        await flushed(telemetry)
        emitted = [
            span.context.span_id
            for span in collector.spans
            if span.name == "triage.attempt" and span.context
        ]
        assert emitted == seen
        assert not trace.get_current_span().get_span_context().is_valid

    async def test_a_stream_has_it_at_each_item_and_its_consumer_does_not(self) -> None:
        collector = Collector()
        inside: list[bool] = []

        async def agent(task: str) -> AsyncIterator[int]:
            for item in range(3):
                inside.append(trace.get_current_span().get_span_context().is_valid)
                yield item

        telemetry = collector.telemetry()
        outside = [
            trace.get_current_span().get_span_context().is_valid
            async for _ in Agent(agent, observers=[telemetry]).stream("x")
        ]
        assert inside == [True] * 3
        assert outside == [False] * 3

    @pytest.mark.parametrize("sampler", [ALWAYS_OFF, TraceIdRatioBased(0.0)])
    async def test_a_run_that_is_not_sampled_takes_what_is_inside_along(self, sampler: Any) -> None:
        collector = Collector(sampler)
        tracer = collector.tracers.get_tracer("user")

        async def agent(task: str) -> str:
            assert not trace.get_current_span().is_recording()
            tracer.start_span("inside").end()
            return task

        telemetry = collector.telemetry()
        await Agent(agent, observers=[telemetry]).run("x")
        await flushed(telemetry)
        assert collector.spans == []
        assert collector.measured()["triage.runs"]


class Stuck(SpanProcessor):
    """Holds up whoever ends a span."""

    def __init__(self) -> None:
        self.holds = threading.Event()
        self.goes_on = threading.Event()

    def on_end(self, span: Any) -> None:
        self.holds.set()
        self.goes_on.wait(30)


class TestNothingIsDisturbed:
    async def test_events_beyond_the_queue_are_dropped_counted_and_said_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        collector, stuck = Collector(), Stuck()
        collector.tracers.add_span_processor(stuck)
        telemetry = collector.telemetry(limit=5)
        made = Agent(self.thinker, name="thinker", observers=[telemetry])
        await made.run("0")
        await anyio.to_thread.run_sync(stuck.holds.wait)
        await made.run("30")
        stuck.goes_on.set()
        await anyio.to_thread.run_sync(telemetry.close, 60)
        assert telemetry.dropped == 27
        assert len([one for one in caplog.records if "is full" in one.message]) == 1
        lost = [
            (span.attributes or {}).get("triage.events_lost")
            for span in collector.spans
            if span.name == "invoke_agent thinker"
        ]
        assert lost == [None, 27]

    async def thinker(self, task: str, *, run: Run) -> str:
        for _ in range(int(task)):
            run.record_step(Step(action="think"))
        return task

    async def test_an_exporter_that_fails_changes_nothing_and_is_logged_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Broken:
            def get_tracer(self, *args: Any) -> Any:
                raise RuntimeError("no tracer today")

        async def agent(task: str) -> str:
            return task

        telemetry = Telemetry(tracer_provider=Broken())
        assert await Agent(agent, observers=[telemetry]).run("x") == "x"
        await anyio.to_thread.run_sync(telemetry.close, 60)
        assert "no tracer today" in caplog.text

    async def test_without_an_sdk_it_is_said_once_that_nothing_is_emitted(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def agent(task: str) -> str:
            return task

        telemetry = Telemetry(tracer_provider=trace.NoOpTracerProvider())
        for _ in range(2):
            assert await Agent(agent, observers=[telemetry]).run("x") == "x"
        await anyio.to_thread.run_sync(telemetry.close, 60)
        said = [one for one in caplog.records if "no span is emitted" in one.message]
        assert len(said) == 1
        assert said[0].levelno == logging.WARNING

    async def test_closed_it_takes_nothing_more_and_leaves_no_thread(self) -> None:
        collector = Collector()
        telemetry = collector.telemetry()

        async def agent(task: str) -> str:
            return task

        await Agent(agent, observers=[telemetry]).run("x")
        worker = telemetry._worker
        assert worker is not None
        await anyio.to_thread.run_sync(telemetry.close, 60)
        await anyio.to_thread.run_sync(worker.join, 10)
        assert not worker.is_alive()
        seen = len(collector.spans)
        await Agent(agent, observers=[telemetry]).run("x")
        assert len(collector.spans) == seen > 0

    @pytest.mark.parametrize(
        "options", [{"content": "yes"}, {"version": "0.1"}, {"version": 1.36}, {"limit": 0}]
    )
    def test_a_bad_option_is_refused(self, options: Any) -> None:
        with pytest.raises(UsageError):
            Telemetry(**options)

    def test_without_opentelemetry_it_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "opentelemetry", None)
        for name in ("emitting", "telemetry"):
            monkeypatch.delitem(sys.modules, f"triage.adapters.otel.{name}")
            monkeypatch.delattr(otel, name)
        with pytest.raises(ModuleNotFoundError, match=r"triage-recovery\[otel\]"):
            _ = otel.Telemetry

    def test_what_is_in_the_queue_is_emitted_at_exit_and_after_a_fork_once(
        self, tmp_path: Path
    ) -> None:
        program = textwrap.dedent(
            """
            import asyncio, os, sys
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
            from triage import Agent
            from triage.adapters.otel import Telemetry

            def line(span):
                return f"{os.getpid() == parent} {span.name}\\n"

            parent = os.getpid()
            provider = TracerProvider()
            provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(formatter=line)))

            async def agent(task):
                return task

            made = Agent(agent, name="it", observers=[Telemetry(tracer_provider=provider)])
            asyncio.run(made.run("x"))
            if os.fork() == 0:
                asyncio.run(made.run("y"))
            else:
                os.wait()
            """
        )
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == [
            f"{whose} {name}"
            for whose in ("False", "True")
            for name in ("invoke_agent it", "triage.attempt")
        ]


class TestContent:
    @pytest.mark.parametrize(
        ("said", "told"), [("true", True), ("span_only", True), ("no_content", False), ("", False)]
    )
    async def test_the_environment_says_whether_it_is_told(
        self, said: str, told: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", said)
        collector = Collector()

        async def agent(task: str) -> str:
            return task

        telemetry = collector.telemetry()
        await Agent(agent, observers=[telemetry]).run("where is it?")
        await flushed(telemetry)
        assert ("where is it?" in repr(collector.told())) is told


class TestOthersInstrument:
    """A framework that is instrumented itself records the spans of its calls; they are annotated."""

    @pytest.fixture(params=["asyncio"])
    def anyio_backend(self, request: pytest.FixtureRequest) -> str:
        """Pydantic AI runs on asyncio."""
        return str(request.param)

    def agent(self, collector: Collector) -> tuple[Any, Telemetry]:
        def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            if len(messages) == 1:
                return ModelResponse([ToolCallPart("look", {"city": "Lisboa"})])
            return ModelResponse([TextPart("sunny")])

        made = PydanticAgent(FunctionModel(answer), name="guide")

        @made.tool_plain
        def look(city: str) -> str:
            return f"{city} is sunny"

        telemetry = collector.telemetry()
        return triage.wrap(made, effects={"look": "read"}, observers=[telemetry]), telemetry

    async def names(self, collector: Collector, run: Any, telemetry: Telemetry) -> list[str]:
        result = await run.run("Is it sunny?")
        assert result.output == "sunny"
        await flushed(telemetry)
        kinds = [span.name.split(" ")[0] for span in collector.spans]
        return sorted(kind for kind in kinds if kind in ("chat", "execute_tool"))

    async def test_pydantic_ai_alone_has_our_spans(self, theirs_may_block: None) -> None:
        collector = Collector()
        agent, telemetry = self.agent(collector)
        assert await self.names(collector, agent, telemetry) == ["chat", "chat", "execute_tool"]
        assert all(
            span.instrumentation_scope and span.instrumentation_scope.name == "triage"
            for span in collector.spans
        )

    async def test_pydantic_ai_instrumented_has_its_own_which_are_annotated(
        self, theirs_may_block: None
    ) -> None:
        collector = Collector()
        PydanticAgent.instrument_all(InstrumentationSettings(tracer_provider=collector.tracers))
        try:
            agent, telemetry = self.agent(collector)
            assert await self.names(collector, agent, telemetry) == ["chat", "chat", "execute_tool"]
        finally:
            PydanticAgent.instrument_all(instrument=False)
        for span in collector.spans:
            if span.name.startswith(("chat", "execute_tool")):
                assert span.instrumentation_scope is not None
                assert span.instrumentation_scope.name == "pydantic-ai"
                assert "triage.call.key" in (span.attributes or {})

    @pytest.mark.parametrize("name", ["chat gpt-9", "openai.chat"])
    async def test_a_client_that_is_instrumented_inside_of_our_call_is_annotated_too(
        self, name: str
    ) -> None:
        collector = Collector()
        tracer = collector.tracers.get_tracer("client")

        @triage.model
        async def ask(prompt: str, model: str = "gpt-9") -> str:
            given = {"gen_ai.operation.name": "chat"}
            with tracer.start_as_current_span(name, attributes=given):
                return "sunny"

        async def agent(task: str) -> str:
            return f"{await ask(task)} {await ask('again')}"

        telemetry = collector.telemetry()
        await Agent(agent, observers=[telemetry]).run("x")
        await flushed(telemetry)
        chats = [span for span in collector.spans if "chat" in span.name]
        assert [span.name for span in chats] == [name, name]
        assert all("triage.call.key" in (span.attributes or {}) for span in chats)
        assert parents(collector)[name] == "triage.attempt"

    async def test_a_span_that_begins_before_our_call_and_is_not_current_is_annotated(self) -> None:
        collector = Collector()
        tracer = collector.tracers.get_tracer("opentelemetry.instrumentation.langchain")
        user = collector.tracers.get_tracer("user")

        @triage.model
        async def ask(prompt: str) -> str:
            user.start_span("request").end()
            return "sunny"

        async def agent(task: str) -> str:
            theirs = tracer.start_span("ChatModel.chat")
            answer = await ask(task)
            theirs.end()
            return answer + await ask("again")

        telemetry = collector.telemetry()
        await Agent(agent, observers=[telemetry]).run("x")
        await flushed(telemetry)
        chats = {span.name: span for span in collector.spans if "chat" in span.name}
        assert sorted(chats) == ["ChatModel.chat", "chat"]
        theirs = chats["ChatModel.chat"]
        assert "triage.call.key" in (theirs.attributes or {})
        inside = [span.parent for span in collector.spans if span.name == "request"]
        assert [one and one.span_id for one in inside] == [
            span.context and span.context.span_id for span in (theirs, chats["chat"])
        ]

    async def test_openinference_may_say_what_a_span_is_only_when_it_ends(self) -> None:
        collector = Collector()
        tracer = collector.tracers.get_tracer("openinference.instrumentation.langchain")
        user = collector.tracers.get_tracer("user")

        @triage.tool(effect="read")
        async def look(city: str) -> str:
            if city == "Porto":
                tracer.start_span("chain").end()
            theirs = tracer.start_span("look")
            user.start_span("request").end()
            theirs.set_attribute("openinference.span.kind", "TOOL")
            theirs.end()
            return f"{city} is sunny"

        async def agent(task: str) -> str:
            return await look(task)

        telemetry = collector.telemetry()
        await Agent(agent, observers=[telemetry]).run("Lisboa")
        await flushed(telemetry)
        found = parents(collector)
        assert (found["request"], found["look"]) == ("look", "triage.attempt")
        assert "execute_tool look" not in found

        # A span that is inside of ours already must not lose it.
        await Agent(agent, observers=[telemetry]).run("Porto")
        await flushed(telemetry)
        found = parents(collector)
        assert found["chain"] == "execute_tool look"


class TestRunsInside:
    async def test_an_inner_run_is_in_the_call_that_began_it(self) -> None:
        collector = Collector()
        telemetry = collector.telemetry()

        async def clerk(task: str) -> str:
            return task

        inner = Agent(clerk, name="clerk", observers=[telemetry])

        async def boss(task: Any) -> str:
            return await inner.run(task)

        outer = Agent(boss, name="boss", observers=[telemetry])
        await outer.run("x")
        await flushed(telemetry)
        assert parents(collector)["invoke_agent clerk"] == "execute_tool clerk"

        await outer.run(object())  # a task by which no call can be known again
        await flushed(telemetry)
        assert parents(collector)["invoke_agent clerk"] == "triage.attempt"

    async def test_runs_side_by_side_are_told_apart(self) -> None:
        collector = Collector()
        telemetry = collector.telemetry()

        async def agent(task: str) -> str:
            await anyio.lowlevel.checkpoint()
            return task

        made = Agent(agent, observers=[telemetry])
        async with anyio.create_task_group() as group:
            for at in range(50):
                group.start_soon(made.run, str(at))
        threads = [threading.Thread(target=lambda: anyio.run(made.run, "x")) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await anyio.to_thread.run_sync(thread.join)
        await flushed(telemetry)
        assert collector.measured()["triage.runs"].popitem()[1] == 55
        traces = {span.context.trace_id for span in collector.spans if span.context}
        assert (len(traces), len(collector.spans)) == (55, 110)


async def test_the_metrics_are_told_through_the_api() -> None:
    collector = Collector()
    telemetry = collector.telemetry()

    async def agent(task: str, *, run: Run) -> str:
        run.record_usage(triage.Usage(100, 10, 0.5, model="gpt-9"))
        if run.attempt == 1:
            raise ConnectionError("down")
        return task

    await Agent(agent, RETRY, name="guide", observers=[telemetry]).run("x")
    await flushed(telemetry)
    measured = collector.measured()
    who = ("gen_ai.agent.name", "guide")
    model = ("gen_ai.response.model", "gpt-9")
    assert measured["triage.runs"] == {(who, ("triage.run.status", "done")): 1}
    assert measured["triage.attempts"] == {
        (who, ("triage.attempt.outcome", "failed")): 1,
        (who, ("triage.attempt.outcome", "done")): 1,
    }
    assert measured["triage.recoveries"] == {
        (
            who,
            ("triage.action.kind", "retry"),
            ("triage.failure.type", "external_fault"),
            ("triage.recovery.outcome", "recovered"),
        ): 1
    }
    assert measured["triage.tokens"] == {
        (who, model, ("gen_ai.token.type", "input")): 200,
        (who, model, ("gen_ai.token.type", "output")): 20,
    }
    assert measured["triage.cost"] == {(who, model): 1.0}
