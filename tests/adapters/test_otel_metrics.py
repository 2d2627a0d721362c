"""Metrics for Prometheus: from the journals of a store, as the text format wants them."""

from __future__ import annotations

import math
import re
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import RETRY, always

import triage
from triage import Agent, Run, Suspend, TriageSuspendedError, Usage, UsageError
from triage.adapters.otel import Metrics, StoreMetrics
from triage.adapters.otel.metrics import sample
from triage.adapters.otel.names import INSTRUMENTS
from triage.adapters.otel.spans import Measure
from triage.cli.supervise import served_metrics
from triage.core import Event
from triage.stores import MemoryStore

pytestmark = pytest.mark.anyio

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL}(?:,{LABEL})*)?)\}})? ([+-]?Inf|NaN|[-+0-9.e]+)")
COMMENT = re.compile(rf"# (?:HELP ({NAME}) [^\n]*|TYPE ({NAME}) (?:counter|gauge|histogram))")


def read(text: str) -> dict[str, float]:
    """The samples of a text by their names with labels. Asserts that it is the text format."""
    found: dict[str, float] = {}
    typed: set[str] = set()
    for line in text.removesuffix("\n").split("\n") if text else ():
        comment = COMMENT.fullmatch(line)
        if comment is not None:
            if comment[2]:
                assert comment[2] not in typed, "one TYPE a metric"
                typed.add(comment[2])
            continue
        parts = SAMPLE.fullmatch(line)
        assert parts is not None, line
        name = re.sub(r"_(bucket|sum|count)$", "", parts[1])
        assert parts[1] in typed or name in typed, f"{line}: no TYPE before it"
        key = f"{parts[1]}{{{parts[2]}}}" if parts[2] else parts[1]
        assert key not in found, "no sample twice"
        found[key] = float(parts[3])
    return found


async def guide(task: str, *, run: Run) -> str:
    run.record_usage(Usage(100, 10, 0.5, model="gpt-9"))
    if run.attempt == 1:
        raise ConnectionError("down")
    return task


def recovery(agent: str, action: str, outcome: str) -> str:
    labels = f'agent="{agent}",failure="external_fault",action="{action}",outcome="{outcome}"'
    return f"triage_recoveries_total{{{labels}}}"


async def test_the_runs_of_a_store_are_counted() -> None:
    store = MemoryStore()
    await Agent(guide, RETRY, name="guide", store=store).run("x")
    asks = Agent(guide, always(Suspend("go on?")), name="asks", store=store)
    with pytest.raises(TriageSuspendedError):
        await asks.run("x")
    found = read(await StoreMetrics(store).text())
    expected = {
        'triage_runs_total{agent="guide",status="done"}': 1,
        'triage_attempts_total{agent="guide",outcome="done"}': 1,
        'triage_attempts_total{agent="guide",outcome="failed"}': 1,
        recovery("guide", "retry", "recovered"): 1,
        recovery("asks", "suspend", "suspended"): 1,
        'triage_tokens_total{agent="guide",type="input",model="gpt-9"}': 200,
        'triage_cost_usd_total{agent="guide",model="gpt-9"}': 1,
        'triage_questions_open{agent="asks"}': 1,
        'triage_runs_open{status="suspended"}': 1,
        'triage_runs_open{status="running"}': 0,
    }
    assert {name: found.get(name) for name in expected} == expected


class Counted(MemoryStore):
    """Counts the events that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_events = 0

    async def read(self, run_id: str, after: int = -1) -> list[Event]:
        events = await super().read(run_id, after)
        self.read_events += len(events)
        return events


async def test_only_what_is_new_is_read_again_and_counts_never_fall() -> None:
    store = Counted()
    metrics = StoreMetrics(store)
    asks = Agent(guide, always(Suspend("go on?")), name="asks", store=store)
    with pytest.raises(TriageSuspendedError) as asked:
        await asks.run("x")
    first = read(await metrics.text())
    before = store.read_events
    assert read(await metrics.text()) == first
    assert store.read_events == before
    await asks.resume(asked.value.token, triage.approve())
    store.read_events = 0
    then = read(await metrics.text())
    assert 0 < store.read_events < 8
    assert then['triage_questions_open{agent="asks"}'] == 0
    assert then['triage_wait_seconds_count{agent="asks",reason="person"}'] == 1
    await store.prune(keep=0)
    after = read(await metrics.text())
    done = 'triage_runs_total{agent="asks",status="done"}'
    assert after[done] == then[done] == 1


texts = st.text(max_size=12)
measures = st.lists(
    st.sampled_from([one for one in INSTRUMENTS if one.prometheus]).flatmap(
        lambda instrument: st.builds(
            Measure,
            st.just(instrument),
            st.floats(0, 1e6),
            st.fixed_dictionaries(dict.fromkeys(instrument.labels or {}, texts)),
        )
    ),
    max_size=20,
)


@given(measures)
def test_any_labels_and_values_are_written_as_the_format_wants(told: list[Measure]) -> None:
    metrics = Metrics()
    metrics.add(told)
    found = read("".join(f"{line}\n" for line in metrics.lines()))
    for name, value in found.items():
        if "_bucket" in name and 'le="+Inf"' in name:
            counted = name.replace("_bucket", "_count")
            counted = re.sub(r',?le="\+Inf"', "", counted).replace("{}", "")
            assert found[counted] == value
    assert sum(_counts(found)) == len([one for one in told if one.instrument.buckets])


def _counts(found: dict[str, float]) -> Iterable[float]:
    return (value for name, value in found.items() if re.match(r"\w+_count(\{|$)", name))


def test_numbers_are_written_in_full() -> None:
    assert sample("x", (), math.inf) == "x +Inf"
    assert sample("x", (("a", 'b"\\\n'),), 0.1) == 'x{a="b\\"\\\\\\n"} 0.1'
    assert sample("x", (), 3.0) == "x 3"


class TestServed:
    def asked(self, port: int, path: str, **headers: str) -> tuple[int, str, Any]:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read().decode(), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode(), error.headers

    def test_metrics_are_served_to_this_machine_and_nothing_else_is(self) -> None:
        store = MemoryStore()
        anyio.run(Agent(guide, RETRY, name="guide", store=store).run, "x")
        with served_metrics(store, 0) as port:
            code, text, headers = self.asked(port, "/metrics")
            assert (code, headers["Content-Type"].split(";")[0]) == (200, "text/plain")
            assert read(text)['triage_runs_total{agent="guide",status="done"}'] == 1
            assert self.asked(port, "/")[0] == 404
            assert self.asked(port, "/metrics", Host="evil.example")[0] == 403

    def test_a_store_that_fails_is_an_answer_too(self) -> None:
        class Gone(MemoryStore):
            async def runs(self, *args: Any, **options: Any) -> Any:
                raise triage.StoreError("gone")

        with served_metrics(Gone(), 0) as port:
            assert self.asked(port, "/metrics")[0] == 503

    def test_a_port_that_is_taken_is_refused(self) -> None:
        with served_metrics(MemoryStore(), 0) as port:
            for bad in (port, -1, 70_000):
                with (
                    pytest.raises(UsageError, match=f"--metrics {bad}"),
                    served_metrics(MemoryStore(), bad),
                ):
                    pass
