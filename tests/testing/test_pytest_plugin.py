"""The pytest plugin: its fixtures, its mark and its report, in a session of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import openai
import pytest
import triage
from triage.testing import assert_escalates_sync, assert_recovers_sync, faults
from triage.testing.adapter_contract import Fails, Rule, says


@triage.tool(effect="read")
async def price(title):
    return 12


def agent_of(plan):
    look = plan.wrap_tool(price)

    async def buy(task):
        return await look(task)

    return buy


@pytest.mark.triage_faults({("price", 1): faults.server_error(500)})
def test_a_failure_is_recovered_from(fault_plan):
    assert_recovers_sync(agent_of(fault_plan), "Emma", fault_plan, result=12)


@pytest.mark.triage_faults({"price": faults.auth()})
def test_a_refused_key_ends_the_run(fault_plan):
    assert_escalates_sync(agent_of(fault_plan), "Emma", fault_plan)


def test_without_a_mark_nothing_fails(fault_plan):
    assert_recovers_sync(agent_of(fault_plan), "Emma", fault_plan, result=12)


def test_time_is_virtual_and_the_model_is_scripted(virtual_time, scripted_model):
    url, world = scripted_model(Rule(says("Paid.")), faults={1: Fails(503, "Overloaded")})

    async def ask(task):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
            messages = [{"role": "user", "content": task}]
            answer = await client.chat.completions.create(model="m", messages=messages)
            return answer.choices[0].message.content

    agent = triage.Agent(ask, environment=virtual_time)
    assert_recovers_sync(agent, "Pay", result="Paid.", environment=virtual_time)
    assert len(world.requests) == 2
    assert virtual_time.monotonic() > 0
"""
REPORT = """
test_shop.py::test_a_failure_is_recovered_from  recovered after 2 attempts: external_fault → retry
test_shop.py::test_a_refused_key_ends_the_run  ended in TriageEscalationError after 1 attempt: external_fault → escalate
test_shop.py::test_time_is_virtual_and_the_model_is_scripted  did not fail after 1 attempt
test_shop.py::test_without_a_mark_nothing_fails  did not fail after 1 attempt
""".strip().splitlines()  # noqa: E501 - as they are printed


@pytest.mark.parametrize(
    "options", [(), ("-p", "xdist.plugin", "-n", "2")], ids=["one process", "two workers"]
)
def test_a_session_with_the_plugin_reports_what_recovered(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "test_shop.py").write_text(TESTS, encoding="utf-8")
    # Where it is installed, pytest finds the plugin itself: `test_wheel` looks at the entry point.
    plugins = ("--strict-markers", "-p", "triage.pytest_plugin")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, *options],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": str(ROOT),
            "PYTHONUTF8": "1",
        },
        capture_output=True,
        encoding="utf-8",
        timeout=80,
        check=False,
    )
    assert "4 passed" in done.stdout, done.stdout
    report = done.stdout.partition(" triage ===")[2].splitlines()
    assert sorted(line for line in report if "::" in line) == REPORT
