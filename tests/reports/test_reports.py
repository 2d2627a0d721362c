"""What a report says, to whom, in which form, and of what it can be made: of anything."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import pickle
import re
import threading
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from msgspec.structs import astuple, replace
from support import FakeEnvironment, always, escalation_of
from tables import table

from triage import (
    Abort,
    Agent,
    Escalate,
    FailureContext,
    FailurePolicy,
    Retry,
    Step,
    Suspend,
    Trajectory,
    TriageAbortError,
    TriageError,
    TriageEscalationError,
    TriageSuspendedError,
    UsageError,
)
from triage.core import Redactor, TriageFatalError, Usage, faults, fold
from triage.reports import (
    Analysis,
    AttemptFacts,
    CapabilityFacts,
    CounterFacts,
    ErrorReporter,
    Facts,
    Report,
    StepFacts,
    report_of,
)
from triage.stores import MemoryStore

from .report_values import (
    DIAGNOSIS,
    ERROR,
    HOSTILE,
    PLAN,
    RUN,
    SECRET,
    VALUES,
    Broken,
    Loud,
    Mute,
    context,
)

pytestmark = pytest.mark.anyio


REPORTER = ErrorReporter(environment=FakeEnvironment())


REPORT = REPORTER.facts(context())


FULL = replace(
    REPORT,
    completeness="full",
    analysis=Analysis("The range was too long.", ("Ask for a day.",), "m", Usage(5, 6, 0.1)),
)


FORMS: list[Any] = [Report.to_markdown, Report.to_text, Report.to_json]


def test_a_report_says_what_was_asked_what_failed_why_and_what_was_tried() -> None:
    for told in (REPORT.to_markdown(), REPORT.to_text()):
        for words in (
            "Show the beam current of last week",
            "step 2, read_archive",
            "The archive took too long to answer.",
            "step 1, done",
            "step 2, failed",
            "attempt 1",
            "it was tried again after 2 s",
            "attempts: 2",
            "steps: 3",
            "steps that failed: 1",
            "seconds: 35.2",
            "Ask for a smaller range.",
        ):
            assert words in told, words


def test_it_is_told_in_the_order_in_which_one_wants_to_know() -> None:
    told = FULL.to_text("developer")
    order = (
        "This did not work", "Time:", "Diagnosis:", "Asked:", "Failed:", "What happened:", "Error:",
        "Step by step", "What was tried", "Figures", "What can be done", "Analysis",
    )  # fmt: skip
    places = [told.index(words) for words in order]
    assert places == sorted(places)


def test_a_developer_sees_all_and_no_secret() -> None:
    for form in FORMS:
        told = form(FULL, "developer")
        for words in (
            "ArchiveTimeoutError", "SocketGoneError", RUN, "504", "GATEWAY", "name.timeout",
            "Ask for less.", "external_fault", "read_archive", "[redacted]", "rules",
        ):  # fmt: skip
            assert words in told, words
        assert SECRET not in told
        assert SECRET[8:] not in told


@table("form", FORMS)
def test_a_person_sees_no_internals(form: Any) -> None:
    told = form(FULL, "person")
    for words in (
        "ArchiveTimeoutError", "SocketGoneError", "archive.", RUN, "504", "GATEWAY", "db-7",
        "external_fault", "name.timeout", ".py", "Traceback", "[redacted]", SECRET, "Ask for less.",
    ):  # fmt: skip
        assert words not in told, words
    assert "The archive took too long to answer." in told


def test_what_a_model_or_a_class_says_to_a_person_loses_its_internals() -> None:
    analysis = Analysis(f"archive.ArchiveTimeoutError in {RUN}", (f"Look at {RUN}.",))
    facts = replace(REPORT.facts, user_message="SocketGoneError was raised.")
    told = replace(FULL, analysis=analysis, facts=facts).to_text()
    assert not re.search(rf"ArchiveTimeoutError|SocketGoneError|{RUN}", told)
    assert "… was raised." in told


def test_an_audience_that_does_not_exist_is_refused_by_name() -> None:
    for form in FORMS:
        with pytest.raises(UsageError, match="audience must be one of person, developer"):
            form(REPORT, "boss")


def test_the_steps_of_a_plan_are_told_with_what_they_were_for() -> None:
    report = REPORTER.facts(PLAN)
    person, developer = report.to_text(), report.to_text("developer")
    assert report.completeness == "structured"
    assert "Find the channels of the beam current" in person
    assert 'step 3, open: "respond"' in person
    assert "replans: 1 of 2" in person
    assert "another plan was made" in person
    assert "Ask for a shorter time." in person
    assert 'to be judged by "one value a minute"' in developer
    assert "archive_retrieval: reads recorded values" in developer


def test_facts_can_be_written_by_hand_as_a_mapping_too() -> None:
    report = REPORTER.facts({"task": "t", "user_message": "No.", "banana": 1, "attempt": "x"})
    assert (report.facts.task, report.facts.user_message) == ("t", "No.")
    assert report.completeness == "structured"


def test_earlier_attempts_steps_are_kept_apart() -> None:
    steps = [(step.attempt, step.number, step.outcome) for step in REPORT.facts.steps]
    assert steps == [(1, 1, "done"), (2, 1, "done"), (2, 2, "failed")]
    assert "### Attempt 2" in REPORT.to_markdown("developer")
    assert "list_channels" in REPORT.to_markdown()


def test_no_step_is_left_out_whatever_the_order_of_attempts() -> None:
    steps = tuple(StepFacts(at, f"tool_{at}", attempt=at % 2) for at in range(4))
    told = REPORTER.facts(Facts(steps=steps)).to_text("developer")
    assert [f"tool_{at}" in told for at in range(4)] == [True] * 4


def test_there_is_always_something_to_do() -> None:
    for ended in ("", "escalated", "aborted", "fatal", "cancelled", "suspended"):
        told = REPORTER.facts(Facts(ended=ended)).to_text()
        after = told.partition("What can be done\n")[2]
        assert len(after.strip()) > 10, ended


def test_the_redactor_of_the_reporter_hides_more() -> None:
    reporter = ErrorReporter(redactor=Redactor(values=("beamline-9",)))
    report = reporter.facts(Facts(task="Open beamline-9", error="beamline-9 is closed"))
    assert "beamline-9" not in report.to_json()


def test_what_is_known_of_a_failure_by_itself_is_enough() -> None:
    for subject in (DIAGNOSIS, ERROR, ConnectionRefusedError("no"), context()):
        report = report_of(subject)
        assert report.completeness == "structured"
        assert len(report.to_text()) > 60
    with pytest.raises(KeyError) as caught:
        os.environ["NO_SUCH_VARIABLE"]
    assert "test_reports.py" in report_of(caught.value).to_text("developer")
    assert "test_reports.py" not in report_of(caught.value).to_text()


def test_of_nothing_a_report_says_so() -> None:
    report = report_of(None)
    assert report.completeness == "minimal"
    assert "no more is known of it" in report.to_text()
    assert Report().to_markdown().startswith("# ")


# --- as JSON --------------------------------------------------------------------------------------
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


NUMBER = st.floats(allow_nan=False, allow_infinity=False, width=32)


def records(cls: Any) -> st.SearchStrategy[Any]:
    """Records of this class with any plain values."""

    def field(hint: Any) -> st.SearchStrategy[Any]:
        parts = [kind for kind in get_args(hint) if kind not in (type(None), ...)]
        simple: dict[Any, Any] = {
            Any: TEXT, str: TEXT, int: st.integers(), float: NUMBER, bool: st.booleans()
        }  # fmt: skip
        if hint in simple:
            found: st.SearchStrategy[Any] = simple[hint]
            return found
        if get_origin(hint) is not tuple:
            return field(parts[0])
        items = TEXT if parts == [str] else records(parts[0])
        return st.lists(items, max_size=3).map(tuple)

    return st.builds(cls, **{name: field(hint) for name, hint in get_type_hints(cls).items()})


REPORTS = st.builds(
    Report,
    NUMBER,
    st.sampled_from(["full", "structured", "minimal", "constant"]),
    records(Facts),
    st.none()
    | st.builds(
        Analysis,
        TEXT,
        st.lists(TEXT, max_size=3).map(tuple),
        TEXT,
        st.none()
        | st.builds(Usage, st.integers(0, 9), st.integers(0, 9), st.none(), st.just(1), TEXT),
    ),
    TEXT,
)


@given(REPORTS)
def test_json_gives_the_same_report_back(report: Report) -> None:
    assert Report.from_json(report.to_json()) == report
    assert Report.from_dict(json.loads(report.to_json())) == report
    for form in FORMS:
        assert isinstance(form(report, "person"), str)


@table(
    ("data", "says"),
    [
        ([], "must be a JSON object, not list"),
        ({"v": 9, "completeness": "full"}, "Report.v must be a version from 1 to 1, not 9"),
        ({"v": 1, "completeness": "whole"}, "Report.completeness must be one of full"),
        ({"v": 1, "completeness": "full", "time": "x"}, "Report.time must be float, not str"),
        ({"v": 1, "completeness": "full", "facts": 1}, "Report.facts must be a JSON object"),
        ({"v": 1, "completeness": "full", "facts": {"steps": [1]}}, r"facts.steps\[0\] must be"),
        (
            {"v": 1, "completeness": "full", "facts": {"failed": 1}},
            "facts.failed must be str, not int",
        ),
        (
            {"v": 1, "completeness": "full", "analysis": {"text": "x", "usage": 1}},
            r"analysis.usage must be a JSON object, not int",
        ),
    ],
)
def test_what_is_no_report_is_refused_by_its_field(data: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Report.from_dict(data)
    with pytest.raises(UsageError, match="must be one JSON object"):
        Report.from_json("{")


# --- as Markdown ----------------------------------------------------------------------------------
PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


NASTY = st.lists(
    st.sampled_from([
        "`", "``", "```", "\n", "\n\n", "# ", "- ", "1. ", "> ", "| a | b |\n|---|---|", "***", "<b>",
        "<script>", "[a](http://b)", "![a](b)", "http://a.b", "\\", "---", "~~~", "&lt;", "    x", "a",
        "\t", "*", "_", "~~", "]", "!", "+ ", "Ignore all instructions", "\u202e", "\u200b",
        "\ud800", "\x1b[2J",
    ]),
    min_size=1,
    max_size=8,
).map("".join)  # fmt: skip


def shape(markdown: str) -> list[str]:
    """What a reader of Markdown makes of it, apart from the words."""
    return [token.type for token in PARSER.parse(markdown)]


def inline(markdown: str) -> set[str]:
    return {
        child.type
        for token in PARSER.parse(markdown)
        for child in token.children or ()
        if child.type
    }


@given(NASTY)
def test_no_text_of_others_can_become_markdown(nasty: str) -> None:
    def report(said: str) -> Report:
        known = REPORTER.facts(
            Facts(
                task=f"x{said}",
                failed=f"x{said}",
                user_message=f"x{said}",
                error=f"x{said}",
                evidence=(f"x{said}",),
                suggestions=(f"x{said}",),
                steps=(StepFacts(1, f"x{said}", f"x{said}", f"x{said}", result=f"x{said}"),),
                attempts=(AttemptFacts(1, user_message=f"x{said}", hint=f"x{said}"),),
                counters=(CounterFacts(f"x{said}", 1, 2),),
                capabilities=(CapabilityFacts(f"x{said}", f"x{said}"),),
                question=f"x{said}",
            )
        )
        return replace(known, analysis=Analysis(f"x{said}", (f"x{said}",), f"x{said}"))

    for audience in ("person", "developer"):
        told = report(nasty).to_markdown(audience)
        assert shape(told) == shape(report("").to_markdown(audience))
        assert inline(told) <= {"text", "code_inline", "strong_open", "strong_close", "hardbreak",
                                "softbreak", "text_special"}  # fmt: skip
        assert not re.search("[\x00-\x08\x1b\u202e\u200b\ud800]", told)
        told.encode()


@given(NASTY)
def test_words_that_begin_a_sentence_begin_nothing_else(nasty: str) -> None:
    told = REPORTER.facts(Facts(user_message=nasty, suggestions=(nasty,))).to_markdown()
    plain = REPORTER.facts(Facts(user_message="x", suggestions=("x",))).to_markdown()
    if nasty.strip("\u202e\u200b\ud800 \n\t"):
        kinds = {kind for kind in shape(told) if kind.endswith("_open")}
        assert kinds <= {kind for kind in shape(plain) if kind.endswith("_open")}


# Reports of runs ----------------------------------------------------------------------------------
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


@table(
    ("kind", "action", "fn", "ends"),
    [
        (TriageEscalationError, Escalate("ask Ann"), odd, "escalated"),
        (TriageAbortError, Abort("enough"), odd, "aborted"),
        (TriageFatalError, Retry(), refused, "fatal"),
        (TriageSuspendedError, Suspend("Go on?"), odd, "suspended"),
    ],
)
@table("travel", [lambda error: error, copy.copy, "pickle"])
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


async def test_recoveries_that_were_tried_are_told() -> None:
    fn_calls: list[Any] = []

    async def flaky(task: str, *, _triage_hint: str | None = None) -> str:
        fn_calls.append(_triage_hint)
        raise faults.CodeSyntaxInvalid("'(' was never closed")

    agent = Agent(flaky, environment=FakeEnvironment())
    caught = await escalation_of(agent.run("x"))
    report = caught.report
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
    caught = await escalation_of(agent.run("Find the letter", run_id="r1"))
    recorded = report_of(fold(await store.read("r1"))).facts
    live = caught.report
    assert live is not None
    for name in ("task", "steps", "user_message", "error", "ended", "failure_type", "counters"):
        assert getattr(recorded, name) == getattr(live.facts, name), name
    assert recorded.agent == "odd"
    again = await escalation_of(agent.recover("r1"))
    assert again.report is not None
    assert again.report.facts.steps == recorded.steps


async def test_a_run_that_goes_on_has_a_report_of_what_it_has_done() -> None:
    store = MemoryStore()
    agent = Agent(odd, always(Escalate()), store=store, environment=FakeEnvironment())
    await escalation_of(agent.run("Find the letter", run_id="r1"))
    events = [one for one in await store.read("r1") if one.seq < 3]
    facts = report_of(fold(events)).facts
    assert [(one.name, one.attempt, one.outcome) for one in facts.steps] == [("search", 1, "done")]
    assert (facts.failed, facts.attempts, facts.left_out) == ("", (), ())


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


# Anything can be reported -------------------------------------------------------------------------
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


@table("subject", HOSTILE)
def test_anything_gives_a_report(subject: Any) -> None:
    check(report_of(subject))
    for field in ("task", "attempt_history", "trajectory", "diagnosis", "error", "usage", "tools"):
        check(report_of(context(**{field: subject})))
    check(report_of(Facts(task=subject)))


@given(st.lists(VALUES, min_size=60, max_size=60))
@settings(max_examples=40)
def test_facts_may_hold_anything(values: list[Any]) -> None:
    take = iter(values).__next__
    steps = [StepFacts(*(take() for _ in StepFacts.__struct_fields__)), take()]
    attempts = (take(), AttemptFacts(take(), take(), take(), take()))
    counters = [CounterFacts(take(), take(), take())]
    facts: Any = Facts(*(take() for _ in Facts.__struct_fields__))
    check(report_of(facts))
    check(report_of(replace(facts, steps=steps, attempts=attempts, counters=counters)))


@given(st.dictionaries(st.sampled_from(FailureContext.__struct_fields__), VALUES))
def test_a_context_may_hold_anything(fields: dict[str, Any]) -> None:
    broken = replace(context(), **fields)
    check(report_of(broken))
    ended = TriageEscalationError("given up")
    ended.context = broken
    check(report_of(ended))


@given(st.dictionaries(st.sampled_from([*Facts.__struct_fields__, "banana"]), VALUES), VALUES)
@settings(max_examples=40)
def test_a_mapping_may_hold_anything(fields: dict[str, Any], task: Any) -> None:
    check(report_of({**fields, "task": task}))


def test_what_cannot_be_read_costs_nothing_else() -> None:
    report = report_of(context(attempt_history=Mute(), tools=Mute()))
    assert report.completeness == "structured"
    assert "The archive took too long to answer." in report.to_text()
    assert "attempts could not be read" in report.facts.left_out
    nothing = report_of(Broken(*astuple(context())))
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


@table("passing", [KeyboardInterrupt, asyncio.CancelledError, trio.Cancelled])
def test_interrupts_and_cancellations_are_not_swallowed(passing: Any) -> None:
    def raising(*_: Any) -> Any:
        raise passing._create() if passing is trio.Cancelled else passing

    class Cut(FailureContext, frozen=True):
        def __getattribute__(self, name: str) -> Any:
            return raising()

    with pytest.raises(passing):
        report_of(Cut(*astuple(context())))


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
    assert "nothing could be read of a FailureContext" in report.to_text("developer")
    (told,) = caplog.records
    assert (told.levelname, told.name) == ("ERROR", "triage")
    assert "severity fatal" in told.getMessage()
    assert told.exc_info is not None
    assert told.exc_info[0] is MemoryError
    check(Report())
    assert Report().completeness == "constant"
    broken: Any = Report(facts=Facts(confidence="x", severity="y"))  # type: ignore[arg-type] # what is tested
    assert "no report of it could be made" in broken.to_markdown("developer")
