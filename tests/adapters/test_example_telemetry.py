"""The example that sends its trace to a collector, and the figures of `bench.telemetry`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from adapters.otlp_receiver import receiving
from bench import telemetry as bench
from examples.telemetry import __main__ as example

FOLDER = Path(example.__file__).parent


def test_the_example_sends_one_trace_in_which_nothing_is_paid_twice() -> None:
    with receiving() as receiver:
        receipt = example.main(f"{receiver.url}/v1/traces")
    assert receipt == "receipt for morning to Lisboa: 29900 cents"
    spans = receiver.spans()
    assert len({span["traceId"] for span in spans}) == 1
    assert sorted(span["name"] for span in spans) == [
        "chat", "chat", "execute_tool pay", "execute_tool pay", "execute_tool search",
        "execute_tool search", "invoke_agent book", "triage.attempt", "triage.attempt",
        "triage.recovery",
    ]  # fmt: skip
    assert sum("links" in span for span in spans) == 3


def test_the_compose_file_starts_what_the_example_and_the_page_name() -> None:
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
    assert set(compose["services"]) == {"jaeger"}
    ports = compose["services"]["jaeger"]["ports"]
    assert ports == ["127.0.0.1:16686:16686", "127.0.0.1:4318:4318"]
    page = (FOLDER.parents[1] / "docs" / "telemetry.md").read_text(encoding="utf-8")
    assert "127.0.0.1:16686" in page


@pytest.mark.usefixtures("theirs_may_block")
def test_the_bench_measures_what_an_event_costs() -> None:
    found = bench.measured(asyncio.run(bench.journals(5)))
    assert all(figure > 0 for figure in found)


def test_the_page_has_the_metrics_there_are() -> None:
    program = FOLDER.parents[1] / "docs" / "generate_metrics.py"
    root = str(FOLDER.parents[1])
    subprocess.run(
        [sys.executable, str(program), "--check"],
        env={**os.environ, "PYTHONPATH": root},
        check=True,
    )
