"""Runs of a store as OTLP: into a file, to a collector."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from adapters.otlp_receiver import Receiver, receiving
from triage import Agent, FailurePolicy, Run, Step, UsageError
from triage.adapters.otel import NotExported, export_run, read_tree
from triage.adapters.recordings import read
from triage.core import UnknownRun
from triage.stores import MemoryStore, SQLiteStore

TAKES_A_PART = b'{"partialSuccess": {"rejectedSpans": "2", "errorMessage": "too old"}}'


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


async def guide(task: str) -> str:
    return f"{task}: open from nine"


async def failing_once(task: str, *, run: Run) -> str:
    run.record_step(Step(tool_called="search", tool_input=task, tool_output="nine"))
    if run.attempt == 1:
        raise ConnectionError("no route")
    return task


async def kept() -> MemoryStore:
    """A store with one run."""
    store = MemoryStore()
    await Agent(guide, store=store, name="guide").run("museum", run_id="r1")
    return store


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {entry["key"]: next(iter(entry["value"].values())) for entry in span["attributes"]}


class TestACollector:
    async def sent(self, receiver: Receiver) -> tuple[int, int]:
        return await export_run(await kept(), "r1", receiver.url)

    def test_it_gets_the_spans_of_a_run_that_nobody_traced(
        self, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OTEL_SERVICE_NAME", "desk")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.version=1%2E0,env=test")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x")
        assert anyio.run(self.sent, receiver) == (2, 0)
        assert receiver.names() == ["triage.attempt", "invoke_agent guide"]
        ((path, request),) = receiver.requests
        assert path == "/v1/traces"
        assert attributes(request["resourceSpans"][0]["resource"]) == {
            "service.name": "desk",
            "service.version": "1.0",
            "env": "test",
        }
        assert receiver.headers[0]["Authorization"] == "Bearer x"

    def test_exported_twice_it_is_one_trace(self, receiver: Receiver) -> None:
        for _ in range(2):
            anyio.run(self.sent, receiver)
        spans = [(span["traceId"], span["spanId"]) for span in receiver.spans()]
        assert len(spans) == 4
        assert len(set(spans)) == 2

    @pytest.mark.parametrize(
        ("answer", "said"),
        [((503, b"later"), "answered 503: later"), ((200, TAKES_A_PART), "2 rejected, too old")],
    )
    def test_that_refuses_is_an_error_that_says_so(
        self, receiver: Receiver, answer: tuple[int, bytes], said: str
    ) -> None:
        receiver.answer = answer
        with pytest.raises(NotExported, match=said):
            anyio.run(self.sent, receiver)

    def test_that_is_not_there_is_an_error_that_says_so(self) -> None:
        async def sent() -> None:
            await export_run(await kept(), "r1", "http://127.0.0.1:9")

        with pytest.raises(NotExported, match="cannot be reached"):
            anyio.run(sent)

    def test_an_unknown_run_is_refused(self) -> None:
        async def read() -> None:
            await read_tree(MemoryStore(), "r1")

        with pytest.raises(UnknownRun):
            anyio.run(read)


def test_a_run_is_written_to_a_file_that_can_be_diagnosed(tmp_path: Path) -> None:
    target = tmp_path / "trace.jsonl"

    async def sent() -> tuple[int, int]:
        agent = Agent(failing_once, FailurePolicy.recommended(), store=MemoryStore())
        await agent.run("museum", run_id="r1")
        return await export_run(agent.store, "r1", str(target), content=True)

    assert anyio.run(sent) == (6, 1)
    lines = [json.loads(line) for line in target.read_text("utf-8").splitlines()]
    assert [list(line) for line in lines] == [["resourceSpans"], ["resourceLogs"]]
    (found, *_) = read(target).traces
    assert [step.tool_called for step in found.trajectory if step.tool_called][:1] == ["search"]


@pytest.mark.parametrize(
    ("target", "error", "said"),
    [
        ("no/x.jsonl", UsageError, "there is no folder"),
        ("s3://x", UsageError, "name a file, or a collector"),
        ("http://:4318", UsageError, "names no host"),
        ("http://127.0.0.1:9", NotExported, "cannot be reached"),
    ],
)
def test_a_bad_target_is_refused(target: str, error: type[Exception], said: str) -> None:
    async def sent() -> None:
        await export_run(await kept(), "r1", target)

    with pytest.raises(error, match=said):
        anyio.run(sent)


def test_a_run_inside_another_is_exported_in_the_trace_of_the_outer_one(
    tmp_path: Path, receiver: Receiver
) -> None:
    async def sent() -> None:
        store = SQLiteStore(tmp_path / "runs.db")
        inner = Agent(guide, name="guide", store=store)

        async def boss(task: str) -> str:
            return await inner.run(task)

        await Agent(boss, name="boss", store=store).run("museum", run_id="outer")
        (info,) = await store.runs(parent="outer")
        await export_run(store, info.run_id, receiver.url)
        await export_run(store, "outer", receiver.url)
        await store.close()

    anyio.run(sent)
    spans = {span["spanId"]: span for span in receiver.spans()}
    assert len({span["traceId"] for span in spans.values()}) == 1
    inner = next(span for span in spans.values() if span["name"] == "invoke_agent guide")
    assert spans[inner["parentSpanId"]]["name"] == "execute_tool guide"
    assert receiver.names() == [
        "triage.attempt", "invoke_agent guide",
        "execute_tool guide", "triage.attempt", "invoke_agent boss",
        "triage.attempt", "invoke_agent guide",
    ]  # fmt: skip
