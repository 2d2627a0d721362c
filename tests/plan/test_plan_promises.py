"""What planning first promises as a whole: its layers, its one question, its log, its last word."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

import anyio
import pytest
from msgspec.structs import astuple
from tables import table

from triage import TriageEscalationError
from triage.core import LoggingObserver, PlanRouted, PlanStepMoved
from triage.plan import PlanLimits, fold_plan, route

from .runs import (
    ANSWER,
    FIND,
    GOOD,
    PAY,
    READ,
    RESULT,
    Fails,
    Kept,
    Script,
    orchestrator,
    plan,
    step,
)

LAYERS = {
    "triage.core": (
        "triage.classifiers", "triage.strategies", "triage.stores", "triage.engine", "triage.plan",
    ),
    "triage.classifiers": ("triage.strategies", "triage.stores", "triage.engine", "triage.plan"),
    "triage.strategies": ("triage.classifiers", "triage.stores", "triage.engine", "triage.plan"),
    "triage.engine": ("triage.plan", "triage.adapters", "triage.incidents"),
}  # fmt: skip


@table("layer", LAYERS)
def test_each_layer_is_imported_without_those_above_it(layer: str) -> None:
    # The package's own names are found at first use; this layer is asked for what it has.
    said = f"import importlib, sys; m = importlib.import_module({layer!r})\n"
    said += "[getattr(m, name) for name in dir(m)]\nprint(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", said], capture_output=True, text=True, check=True
    )
    above = {name for name in loaded.stdout.split() if name.startswith(LAYERS[layer])}
    assert not above


@pytest.mark.anyio
async def test_a_plan_of_any_length_takes_one_question_and_is_checked_before_anything_runs() -> (
    None
):
    world = Kept()
    many = [step(f"p{at}", "pay", cents=at) for at in range(60)]
    planner = Script(plan(*many, step("x", "teleport")), plan(*many, step("out", "respond")))
    done_before: list[int] = []

    async def plans(request: Any) -> Any:
        done_before.append(sum(world.done().values()))
        return await planner(request)

    made = orchestrator(plans, world, limits=PlanLimits(steps=100))
    await made.run("task", run_id="run-1")
    # What is wrong with its last step was found before its first one; the next plan took no more.
    assert done_before == [0, 0]
    assert sum(world.done().values()) == 61


@pytest.mark.anyio
async def test_what_comes_next_follows_from_the_journal_alone() -> None:
    made = orchestrator(Script(GOOD))
    await made.run("task", run_id="run-1")
    events = await made.store.read("run-1")
    for at, event in enumerate(events):
        if isinstance(event, PlanRouted):
            assert route(fold_plan(events[:at]))[:4] == astuple(event)[3:7]
    done = [event.step for event in events if isinstance(event, PlanStepMoved)]
    assert done == [one.context_key for one in GOOD.steps]


@pytest.mark.anyio
async def test_what_goes_well_is_logged_quietly_and_what_fails_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "triage")
    log = LoggingObserver(logging.INFO)
    made = orchestrator(Script(GOOD), fails=Fails(read=TimeoutError("slow")), observers=[log])
    assert await made.run("task") == RESULT
    lines = [(one.levelname, one.getMessage()) for one in caplog.records if one.name == "triage"]
    levels = {text.split(" ", 1)[1].split(":")[0]: level for level, text in lines}
    assert levels["attempt 1 failed"] == "WARNING"
    assert levels["run finished"] == "INFO"
    assert all(level in ("INFO", "DEBUG") for text, level in levels.items() if "failed" not in text)

    caplog.clear()
    limits = PlanLimits(replans=0, reclassifications=0)
    failing = Fails(read=ValueError("no such address"))
    script = Script(plan(FIND, READ, PAY, ANSWER))
    made = orchestrator(script, fails=failing, observers=[log], limits=limits)
    with pytest.raises(TriageEscalationError):
        await made.run("task")
    last = [one for one in caplog.records if "run finished: escalated" in one.getMessage()]
    assert [one.levelname for one in last] == ["WARNING"]


def test_the_report_of_a_run_goes_into_a_conversation_as_it_is() -> None:
    messages = pytest.importorskip("langchain_core.messages")
    made = orchestrator(Script(plan(FIND, READ, ANSWER)), fails=Fails(read=[KeyError("k")] * 9))
    with pytest.raises(TriageEscalationError) as ended:
        anyio.run(made.run, "What is the beam?")
    report = ended.value.report
    assert report is not None
    for text in (report.to_markdown(), report.to_text()):
        message = {"role": "assistant", "content": text}
        state = json.loads(json.dumps({"messages": [message]}))
        (shown,) = messages.convert_to_messages(state["messages"])
        assert shown.type == "ai"
        assert shown.content == text
        assert "What is the beam?" in text
        assert "KeyError" not in text
        assert "Traceback" not in text
