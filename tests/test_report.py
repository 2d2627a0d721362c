"""What a report says, to whom, and in which form."""

from __future__ import annotations

import json
import os
import re
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from report_values import DIAGNOSIS, ERROR, PLAN, RUN, SECRET, context
from support import FakeEnvironment

from triage import Redactor, UsageError
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
from triage.steps import Usage

REPORTER = ErrorReporter(environment=FakeEnvironment())
REPORT = REPORTER.facts(context())
FULL = REPORT._replace(
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


@pytest.mark.parametrize("form", FORMS)
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
    facts = REPORT.facts._replace(user_message="SocketGoneError was raised.")
    told = FULL._replace(analysis=analysis, facts=facts).to_text()
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
    assert "test_report.py" in report_of(caught.value).to_text("developer")
    assert "test_report.py" not in report_of(caught.value).to_text()


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
    from triage.reports._clean import kinds_of

    def field(kind: Any) -> st.SearchStrategy[Any]:
        simple: dict[Any, Any] = {
            str: TEXT, int: st.integers(), float: NUMBER, bool: st.booleans()
        }  # fmt: skip
        if kind in simple:
            found: st.SearchStrategy[Any] = simple[kind]
            return found
        inner = get_args(kind)[0]
        items = TEXT if inner is str else records(inner)
        return st.lists(items, max_size=3).map(tuple)

    return st.builds(cls, **{name: field(kind) for name, kind in kinds_of(cls).items()})


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
@settings(deadline=None)
def test_json_gives_the_same_report_back(report: Report) -> None:
    assert Report.from_json(report.to_json()) == report
    assert Report.from_dict(json.loads(report.to_json())) == report
    for form in FORMS:
        assert isinstance(form(report, "person"), str)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([], "must be a JSON object, not list"),
        ({"v": 9, "completeness": "full"}, "Report.v must be a version from 1 to 1, not 9"),
        ({"v": 1, "completeness": "whole"}, "Report.completeness must be one of full"),
        ({"v": 1, "completeness": "full", "time": "x"}, "Report.time must be a number"),
        ({"v": 1, "completeness": "full", "facts": 1}, "Report.facts must be a JSON object"),
        ({"v": 1, "completeness": "full", "facts": {"steps": [1]}}, r"facts.steps\[0\] must be"),
        ({"v": 1, "completeness": "full", "facts": {"task": 1}}, "facts.task must be str, not int"),
        ({"v": 1, "completeness": "full", "analysis": {"usage": 1}}, "analysis.usage cannot be"),
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
@settings(deadline=None)
def test_no_text_of_others_can_become_markdown(nasty: str) -> None:
    def report(said: str) -> Report:
        return REPORTER.facts(
            Facts(
                task=f"x{said}",
                failed=f"x{said}",
                user_message=f"x{said}",
                error=f"x{said}",
                evidence=(f"x{said}",),
                suggestions=(f"x{said}",),
                steps=(StepFacts(1, f"x{said}", "done", f"x{said}", result=f"x{said}"),),
                attempts=(AttemptFacts(1, user_message=f"x{said}", hint=f"x{said}"),),
                counters=(CounterFacts(f"x{said}", 1, 2),),
                capabilities=(CapabilityFacts(f"x{said}", f"x{said}"),),
                question=f"x{said}",
            )
        )._replace(analysis=Analysis(f"x{said}", (f"x{said}",), f"x{said}"))

    for audience in ("person", "developer"):
        told = report(nasty).to_markdown(audience)
        assert shape(told) == shape(report("").to_markdown(audience))
        assert inline(told) <= {"text", "code_inline", "strong_open", "strong_close", "hardbreak",
                                "softbreak", "text_special"}  # fmt: skip
        assert not re.search("[\x00-\x08\x1b\u202e\u200b\ud800]", told)
        told.encode()


@given(NASTY)
@settings(deadline=None)
def test_words_that_begin_a_sentence_begin_nothing_else(nasty: str) -> None:
    told = REPORTER.facts(Facts(user_message=nasty, suggestions=(nasty,))).to_markdown()
    plain = REPORTER.facts(Facts(user_message="x", suggestions=("x",))).to_markdown()
    if nasty.strip("\u202e\u200b\ud800 \n\t"):
        kinds = {kind for kind in shape(told) if kind.endswith("_open")}
        assert kinds <= {kind for kind in shape(plain) if kind.endswith("_open")}
