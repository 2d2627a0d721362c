"""A report can be made of anything, and nothing that it is made of can stop it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from report_values import HOSTILE, VALUES, Broken, Loud, Mute, context

from triage import FailureContext, Step, Trajectory, TriageEscalationError, TriageSuspendedError
from triage.reports import (
    Analysis,
    AttemptFacts,
    CounterFacts,
    ErrorReporter,
    Facts,
    Report,
    StepFacts,
    report_of,
)

pytestmark = pytest.mark.anyio
LONGEST = 120_000


def check(report: Report) -> None:
    """It can be printed in every form, for everybody, on any terminal; and it is not endless."""
    assert "nothing could be read" not in report.facts.technical_details
    for audience in ("person", "developer"):
        for told in (
            report.to_markdown(audience),
            report.to_text(audience),
            report.to_json(audience),
        ):
            assert 2 <= len(told) < LONGEST
            told.encode()
        json.loads(report.to_json(audience))
    assert Report.from_json(report.to_json()) == report


@pytest.mark.parametrize("subject", HOSTILE, ids=lambda value: type(value).__name__)
def test_anything_gives_a_report(subject: Any) -> None:
    check(report_of(subject))
    check(report_of(context(task=subject)))
    check(report_of(Facts(task=subject)))


@given(st.lists(VALUES, min_size=60, max_size=60))
@settings(deadline=None, max_examples=40)
def test_facts_may_hold_anything(values: list[Any]) -> None:
    take = iter(values).__next__
    steps = [StepFacts(*(take() for _ in StepFacts._fields)), take()]
    attempts = (take(), AttemptFacts(take(), take(), take(), take()))
    counters = [CounterFacts(take(), take(), take())]
    facts: Any = Facts(*(take() for _ in Facts._fields))
    check(report_of(facts))
    check(report_of(facts._replace(steps=steps, attempts=attempts, counters=counters)))


@given(st.dictionaries(st.sampled_from(FailureContext._fields), VALUES))
@settings(deadline=None, max_examples=60)
def test_a_context_may_hold_anything(fields: dict[str, Any]) -> None:
    broken = context()._replace(**fields)
    check(report_of(broken))
    ended = TriageEscalationError("given up")
    ended.context = broken
    check(report_of(ended))


@given(st.dictionaries(st.sampled_from([*Facts._fields, "banana"]), VALUES), VALUES)
@settings(deadline=None, max_examples=40)
def test_a_mapping_may_hold_anything(fields: dict[str, Any], task: Any) -> None:
    check(report_of({**fields, "task": task}))


def test_what_cannot_be_read_costs_nothing_else() -> None:
    report = report_of(context(attempt_history=Mute(), tools=Mute()))
    assert report.completeness == "structured"
    assert "The archive took too long to answer." in report.to_text()
    assert "attempts could not be read" in report.facts.left_out
    nothing = report_of(Broken(*context()))
    assert nothing.completeness == "minimal"
    check(nothing)


def test_an_error_that_leaves_the_program_when_it_is_read_is_reported() -> None:
    report = report_of(Loud("x"))
    assert "Loud" in report.to_text("developer")
    suspended = TriageSuspendedError("waits", token="secret-token", question="Pay?")
    suspended.context = Mute()  # type: ignore[assignment] # what is tested
    told = report_of(suspended).to_text("developer")
    assert "Pay?" in told
    assert "secret-token" not in told


@pytest.mark.parametrize("passing", [KeyboardInterrupt, asyncio.CancelledError, trio.Cancelled])
def test_interrupts_and_cancellations_are_not_swallowed(passing: Any) -> None:
    def raising(*_: Any) -> Any:
        raise passing._create() if passing is trio.Cancelled else passing

    class Cut(FailureContext):
        def __getattribute__(self, name: str) -> Any:
            return raising()

    with pytest.raises(passing):
        report_of(Cut(*context()))


def test_too_much_is_cut_and_the_newest_is_kept() -> None:
    steps = [Step(tool_called=f"tool_{n}", tool_output="x" * 10_000) for n in range(500)]
    report = report_of(context(trajectory=Trajectory(steps), task="t" * 1_000_000))
    assert len(report.facts.task) == 1_000
    assert report.facts.steps[-1].name == "tool_499"
    assert len(report.facts.steps) == 60
    assert report.facts.left_out == ("441 earlier steps",)
    check(report)


async def test_an_analyst_may_answer_or_raise_anything() -> None:
    for answer in (*HOSTILE, Analysis(Mute(), Mute(), Mute()), Analysis("", ())):  # type: ignore[arg-type] # what is tested

        async def analyst(brief: Any, answer: Any = answer) -> Any:
            return answer

        report = await ErrorReporter(analyst, capabilities=["search"]).generate(context())
        assert report.completeness in ("structured", "full")
        assert report.facts.user_message == "The archive took too long to answer."
        check(report)
    for error in (Loud("x"), SystemExit(2), GeneratorExit(), ExceptionGroup("g", [Loud("y")])):

        def failing(brief: Any, error: BaseException = error) -> Any:
            raise error

        report = await ErrorReporter(failing).generate(context(), failing)
        assert (report.completeness, report.analysis) == ("structured", None)
        assert "the analyst failed" in report.missing
        assert "No analysis could be made." in report.to_text()
        check(report)


def test_the_last_resort_is_a_constant_sentence(caplog: pytest.LogCaptureFixture) -> None:
    class NoClock:
        def time(self) -> float:
            raise MemoryError

        monotonic = random = time

        def new_id(self) -> str:
            return ""

        new_token = new_id

        async def sleep(self, seconds: float) -> None:
            """Not at all."""

    report = ErrorReporter(environment=NoClock()).facts(context())
    assert report.completeness == "minimal"
    assert "of a FailureContext nothing could be read" in report.to_text("developer")
    (told,) = caplog.records
    assert (told.levelname, told.name) == ("ERROR", "triage")
    assert "severity fatal" in told.getMessage()
    assert told.exc_info is not None
    assert told.exc_info[0] is MemoryError
    check(Report())
    assert Report().completeness == "constant"
    broken: Any = Report(facts=Facts(confidence="x", severity="y"))  # type: ignore[arg-type] # what is tested
    assert "no report of it could be made" in broken.to_markdown("developer")
