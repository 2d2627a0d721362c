"""The tree of a run: what each event becomes, the same live and from the journal."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from event_values import EVENT_TYPES, any_event, event_of
from google.protobuf import json_format  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from adapters.otel_trees import SCENARIOS, TRACES, Collector, drawn, traced_run
from triage.adapters.otel import VERSIONS, LogData, SpanData, export, read_tree, tree_of
from triage.adapters.otel.exporting import logs_request, trace_request
from triage.core.errors import UsageError
from triage.core.events import (
    AttemptStarted,
    CallStarted,
    Event,
    Origin,
    PlanRouted,
    RunFinished,
    RunStarted,
    RunSuspended,
)

pytestmark = pytest.mark.anyio


def _journal(events: list[Event]) -> list[Event]:
    """The events as a journal, which has one start and one end at the most."""
    ended = [at for at, event in enumerate(events) if isinstance(event, RunFinished)]
    kept = events[: ended[0] + 1] if ended else events
    kept = kept[:1] + [event for event in kept[1:] if not isinstance(event, RunStarted)]
    return [replace(event, run_id="r", seq=seq, time=1e9 + seq) for seq, event in enumerate(kept)]


journals = st.lists(any_event, max_size=12).map(_journal)
"""Events of any type in any order, as no run would record them, up to the first end."""
few = settings(max_examples=40)
"""A journal of events takes longer to draw than to look at."""


@pytest.mark.parametrize("event_type", EVENT_TYPES)
@given(st.data())
@settings(max_examples=1)
def test_every_type_of_event_has_a_place_in_the_tree(
    event_type: type[Event], data: st.DataObject
) -> None:
    tree_of([[data.draw(event_of(event_type))]])


def told_live(events: Sequence[Event], *, content: bool) -> tuple[list[SpanData], list[LogData]]:
    collector = Collector()
    telemetry = collector.telemetry(content=content)
    for at, event in enumerate(events):
        if at and isinstance(events[at - 1], RunSuspended):
            telemetry.take_in(events[:at])  # as when the answer comes
        around = telemetry(event)
        if around is not None:
            with around:
                pass
    telemetry.close()
    return collector.told()


def is_fork(events: Sequence[Event]) -> bool:
    """Whether some links lead to the trace of another run."""
    return isinstance(events[0], RunStarted) and events[0].origin is not None


def is_whole(span: SpanData) -> bool:
    return "triage.incomplete" not in span.attributes


def by_id(spans: Sequence[SpanData]) -> dict[str, SpanData]:
    found = {span.span: span for span in spans}
    assert len(found) == len(spans), "two spans with one id"
    return found


def same_logs(some: Sequence[LogData], others: Sequence[LogData]) -> bool:
    def key(log: LogData) -> tuple[str, int, str]:
        return log.run_id, log.seq, log.name

    return sorted(some, key=key) == sorted(others, key=key)


@given(journals, st.booleans())
@few
def test_live_and_afterwards_any_journal_gives_the_same_tree(
    events: list[Event],
    content: bool,  # noqa: FBT001 - drawn by name
) -> None:
    spans, logs = tree_of([events], content=content)
    live, live_logs = told_live(events, content=content)
    assert by_id(live) == by_id([span for span in spans if is_whole(span)])
    assert same_logs(live_logs, logs)


@pytest.mark.parametrize("name", SCENARIOS)
async def test_live_and_afterwards_a_real_run_gives_the_tree_of_its_golden_file(
    name: str, tmp_path: Path, theirs_may_block: None
) -> None:
    traced = await traced_run(name, tmp_path)
    spans, logs = await read_tree(traced.store, traced.run_id, content=True)
    await traced.store.close()
    golden = (TRACES / f"{name}.txt").read_text(encoding="utf-8")
    assert drawn(spans, logs) == golden, (
        "look at it, then: PYTHONPATH=tests python -m adapters.otel_trees"
    )
    live, live_logs = traced.collector.told()
    # A fork is written by nobody's observer, and is another run than the one it came from.
    live = [span for span in live if name != "forked" or span.run_id == "fork"]
    live_logs = [log for log in live_logs if name != "forked" or log.run_id == "fork"]
    logs = [log for log in logs if log.attributes.get("triage.approval.kind") != "fork"]
    whole = [span for span in spans if is_whole(span)]
    assert {span.name for span in spans if not is_whole(span)} <= {"triage.question"}
    assert by_id(live) == by_id(whole)
    assert same_logs(live_logs, logs)


@given(journals, st.booleans())
@few
def test_any_journal_is_a_sound_tree_that_a_collector_can_read(
    events: list[Event],
    content: bool,  # noqa: FBT001 - drawn by name
) -> None:
    spans, logs = tree_of([events], content=content)
    known = by_id(spans)
    for span in spans:
        assert span.start <= span.end
        assert span.parent in known or not span.parent
        assert all(link.span in known or is_fork(events) for link in span.links)
        assert not any(value is None for value in span.attributes.values())
    assert all(log.span in known or not log.span for log in logs)
    json_format.Parse(_with_bytes(trace_request(spans)), ExportTraceServiceRequest())
    json_format.Parse(_with_bytes(logs_request(logs)), ExportLogsServiceRequest())


def _with_bytes(request: dict[str, Any]) -> str:
    """OTLP JSON has ids in hexadecimal, where protobuf's own JSON has base64."""

    def changed(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: _base64(item)
                if key in ("traceId", "spanId", "parentSpanId")
                else changed(item)
                for key, item in value.items()
            }
        return [changed(item) for item in value] if isinstance(value, list) else value

    return json.dumps(changed(request))


def _base64(text: str) -> str:
    return base64.b64encode(bytes.fromhex(text)).decode()


class TestWhatIsTold:
    async def test_no_content_is_told_unless_it_is_asked_for(
        self, tmp_path: Path, theirs_may_block: None
    ) -> None:
        traced = await traced_run("retries", tmp_path, content=False)
        await traced.store.close()
        told = repr(traced.collector.told())
        assert "execute_tool quote" in told
        for said in ("Lisboa", "sunny", "Once more.", "receipt", "with the same arguments"):
            assert said not in told

    def test_an_older_version_of_the_conventions_has_its_own_names(self) -> None:
        assert next(iter(VERSIONS)) > "1.36"
        old = VERSIONS["1.36"]
        assert old.provider == "gen_ai.system"
        assert old.evaluation.startswith("triage.")

    def test_events_that_were_lost_are_counted_on_the_span_of_the_run(self) -> None:
        started = RunStarted(run_id="r", seq=0, time=1.0, agent="a")
        attempt = AttemptStarted(run_id="r", seq=4, time=1.0, attempt=1)
        done = RunFinished(run_id="r", seq=5, time=1.0, status="done")
        spans, _ = tree_of([[started, attempt, done]])
        (run,) = [span for span in spans if span.parent == ""]
        assert run.attributes["triage.events_lost"] == 3

    def test_a_run_that_has_not_ended_is_marked_incomplete(self) -> None:
        started = RunStarted(run_id="r", seq=0, time=1.0, agent="a")
        attempt = AttemptStarted(run_id="r", seq=1, time=2.0, attempt=1)
        routed = PlanRouted(run_id="r", seq=2, time=2.0, target="planner")
        call = CallStarted(
            run_id="r", seq=3, time=3.0, key="k", tool="look", attempt=1, effect="read"
        )
        spans, _ = tree_of([[started, attempt, routed, call]])
        assert {span.name: span.attributes["triage.incomplete"] for span in spans} == dict.fromkeys(
            ("execute_tool look", "plan a", "triage.attempt", "invoke_agent a"), True
        )

    def test_what_is_open_in_copied_events_belongs_to_the_original_run(self) -> None:
        origin = Origin(run_id="other", at=0, events=3, salt="")
        started = RunStarted(run_id="r", seq=0, time=1.0, agent="a", origin=origin)
        attempt = AttemptStarted(run_id="r", seq=1, time=2.0, attempt=1)
        assert tree_of([[started, attempt]]) == ([], [])

    def test_the_trace_of_the_code_that_started_the_run_goes_on(self) -> None:
        caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        started = RunStarted(run_id="r", seq=0, time=1.0, agent="a", trace=caller)
        (run,), _ = tree_of([[started, RunFinished(run_id="r", seq=1, time=2.0, status="done")]])
        assert (run.trace, run.parent) == (caller.split("-")[1], caller.split("-")[2])

    def test_a_secret_in_content_is_redacted(self) -> None:
        key = "sk-" + "a1" * 20
        started = RunStarted(run_id="r", seq=0, time=1.0, agent=key, task={"password": "hunter22"})
        done = RunFinished(run_id="r", seq=1, time=2.0, status="done", result=f"it is {key}")
        spans, _ = tree_of([[started, done]], content=True)
        assert key not in repr(spans)
        assert "hunter22" not in repr(spans)


def test_a_target_that_cannot_be_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    for target in ("ftp://host/x", "http://", str(tmp_path / "no" / "file"), "http://[::1"):
        with pytest.raises(UsageError, match=r"^target "):
            export([], [], target)
