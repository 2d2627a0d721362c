"""The report that an error carries which ended a run."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from typing import Any

import anyio
import pytest
from support import FakeEnvironment, always

import triage
from triage import (
    Abort,
    Agent,
    Escalate,
    FailurePolicy,
    MemoryStore,
    Retry,
    Step,
    Suspend,
    TriageAbortError,
    TriageError,
    TriageEscalationError,
    TriageFatalError,
    TriageSuspendedError,
    UsageError,
    faults,
    fold,
)
from triage.reports import Report, report_of

pytestmark = pytest.mark.anyio


class Odd(Exception):
    """It cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("no way")
        self.lock = threading.Lock()


async def odd(task: str, *, record_step: Any) -> str:
    record_step(Step(tool_called="search", tool_output=["a"]))
    raise Odd


async def ended(kind: type[TriageError], action: Any, fn: Any = odd) -> TriageError:
    agent = Agent(fn, always(action), environment=FakeEnvironment())
    with pytest.raises(kind) as caught:
        await agent.run("Find the letter", run_id="run-4711")
    return caught.value


async def refused(task: str) -> str:
    raise faults.PolicyRefused(rule="R7")


@pytest.mark.parametrize(
    ("kind", "action", "fn", "ends"),
    [
        (TriageEscalationError, Escalate("ask Ann"), odd, "escalated"),
        (TriageAbortError, Abort("enough"), odd, "aborted"),
        (TriageFatalError, Retry(), refused, "fatal"),
        (TriageSuspendedError, Suspend("Go on?"), odd, "suspended"),
    ],
)
@pytest.mark.parametrize("travel", [lambda error: error, copy.copy, "pickle"])
async def test_every_error_that_ends_a_run_carries_its_report(
    kind: Any, action: Any, fn: Any, ends: str, travel: Any
) -> None:
    error = await ended(kind, action, fn)
    there = pickle.loads(pickle.dumps(error)) if travel == "pickle" else travel(error)
    report = there.report
    assert isinstance(report, Report)
    assert (report.completeness, report.facts.ended) == ("structured", ends)
    assert report.facts.run_id == "run-4711"
    assert report is there.report
    assert "Find the letter" in report.to_text()
    assert "run-4711" not in report.to_text()
    if ends == "suspended":
        assert "Go on?" in report.to_text()
        assert there.token not in report.to_json()


async def test_a_report_that_was_made_travels_with_the_error() -> None:
    error = await ended(TriageEscalationError, Escalate())
    report = error.report
    assert pickle.loads(pickle.dumps(error)).report == report


def test_a_report_can_be_read_where_only_the_error_arrives() -> None:
    error = anyio.run(ended, TriageEscalationError, Escalate("ask Ann"))
    program = (
        "import pickle, sys; error = pickle.load(sys.stdin.buffer); "
        "print(error.report.to_text('developer'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(error), capture_output=True, check=True
    )
    for words in (b"ask Ann", b"Find the letter", b"no way", b"search"):
        assert words in done.stdout


async def test_recoveries_that_were_tried_are_told() -> None:
    fn_calls: list[Any] = []

    async def flaky(task: str, *, _triage_hint: str | None = None) -> str:
        fn_calls.append(_triage_hint)
        raise faults.CodeSyntaxInvalid("'(' was never closed")

    agent = Agent(flaky, environment=FakeEnvironment())
    with pytest.raises(TriageEscalationError) as caught:
        await agent.run("x")
    report = caught.value.report
    assert report is not None
    assert [attempt.action for attempt in report.facts.attempts] == ["retry"] * 3 + [""]
    assert "it was tried again" in report.to_text()
    assert "already retried 3 times" in report.to_text("developer")


async def test_an_error_that_ends_no_run_has_no_report() -> None:
    assert UsageError("x").report is None
    assert TriageError("x").report is None


async def test_the_report_of_a_recorded_run_is_that_of_its_error() -> None:
    store = MemoryStore()
    agent = Agent(odd, always(Escalate("ask Ann")), store=store, environment=FakeEnvironment())
    with pytest.raises(TriageEscalationError) as caught:
        await agent.run("Find the letter", run_id="r1")
    recorded = report_of(fold(await store.read("r1"))).facts
    live = caught.value.report
    assert live is not None
    for name in ("task", "steps", "user_message", "error", "ended", "failure_type", "counters"):
        assert getattr(recorded, name) == getattr(live.facts, name), name
    assert recorded.agent == "odd"
    with pytest.raises(TriageEscalationError) as again:
        await agent.recover("r1")
    assert again.value.report is not None
    assert again.value.report.facts.steps == recorded.steps


async def test_a_run_inside_a_run_has_a_report_of_its_own() -> None:
    inner = Agent(odd, FailurePolicy(default=Escalate()), environment=FakeEnvironment())

    async def outer(task: str) -> str:
        return await inner.run(f"inner {task}")

    error = await ended(TriageEscalationError, Escalate(), outer)
    cause = error.__cause__
    assert isinstance(cause, TriageEscalationError)
    assert cause.report is not None
    assert cause.report.facts.task == "inner Find the letter"
    assert error.report is not None
    assert error.report.facts.task == "Find the letter"


def test_nothing_is_made_before_it_is_asked_for() -> None:
    program = (
        "import sys, anyio, triage\n"
        "async def fails(task): raise ValueError('x')\n"
        "try: anyio.run(triage.Agent(fails, triage.FailurePolicy(default=triage.Abort())).run, 'x')\n"
        "except triage.TriageError as error:\n"
        "    print('triage.reports._report' in sys.modules)\n"
        "    error.report\n"
        "    print('triage.reports._report' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True"]
    assert triage.__name__ == "triage"
