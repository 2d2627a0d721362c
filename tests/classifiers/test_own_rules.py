"""Rules of one's own, other severities and levels, and the page that lists the rules."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from diagnoses import classify, said, search
from tables import table

from triage.classifiers import RULES, Override, Rule, RulesClassifier, diagnose
from triage.core import Cause, ErrorInfo, FailureType, Level, Severity, Step, hint

DOCS = Path(__file__).parents[2] / "docs"
MINE = Rule("mine", FailureType.PLAN_INCOMPLETE, "till_closed", "text", (r"till \w{1,9} closed",))
FORBIDDEN = ErrorInfo("APIError", mro=("lib.APIError",), status_code=403, message="not yours")


def test_own_rules_come_before_the_built_in_ones() -> None:
    found = classify(said("till 429 closed"), with_=RulesClassifier((MINE, *RULES)))
    assert (found.failure_type, found.cause) == (FailureType.PLAN_INCOMPLETE, "till_closed")


@table(
    ("changes", "words"),
    [
        ({"keys": ("till (closed",)}, "not a regular expression: missing"),
        ({"keys": ("Till closed",)}, "a lower-case letter in place of 'T'"),
        ({"keys": ("till_closed",)}, "a space in place of '_'"),
        ({"keys": "till closed"}, "keys must be a tuple of texts"),
        ({"keys": ()}, "keys must not be empty"),
        ({"keys": (3,)}, "keys item must be text"),
        ({"looks_at": "txt"}, "did you mean 'text'"),
        ({"looks_at": "status", "keys": ("4290",)}, "no HTTP status"),
        ({"looks_at": "name", "keys": ("RateLimit",)}, "words in lower case"),
        ({"failure_type": "sunspots"}, "failure_type must be one of wrong_tool_called"),
        ({"severity": "bad"}, "severity must be one of retriable"),
        ({"level": "bad"}, "level must be one of low"),
        ({"cause": 3}, "cause must be text"),
        ({"confidence": 2}, "confidence must be from 0 to 1"),
        ({"confidence": "high"}, "confidence must be a number"),
        ({"name": ""}, "Rule.name must be text"),
    ],
)
def test_a_rule_that_could_never_fire_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words.replace("(", r"\(")) as caught:
        RulesClassifier((MINE._replace(**changes), *RULES))
    assert "mine" in str(caught.value) or "name" in changes


def test_values_of_a_rule_may_be_given_as_words() -> None:
    words: Any = {"failure_type": "goal_drift", "severity": "critical", "level": "low"}
    rule = MINE._replace(**words)
    found = classify(said("till 3 closed"), with_=RulesClassifier((rule,)))
    assert found.failure_type is FailureType.GOAL_DRIFT
    assert (found.severity, found.level) == (Severity.CRITICAL, Level.LOW)


def test_escapes_classes_and_groups_are_no_text_that_must_be_met() -> None:
    rule = MINE._replace(keys=(r"\bno (?P<What>\w{1,9}) in [A-Z_-]{0,3}\S",))
    assert classify(said("no milk in x"), with_=RulesClassifier((rule,))).cause == "till_closed"


# --- overrides -------------------------------------------------------------------------------


def found_with(*overrides: Override, error: Any = FORBIDDEN, **more: Any) -> tuple[Any, Any]:
    own = RulesClassifier(overrides=overrides)
    found = diagnose(error, classifier=own, **more)
    return found.severity, found.level


AS_EVER = (Severity.CRITICAL, Level.HIGH)


@table(
    "condition",
    [
        {},
        {"rule": "http.forbidden"},
        {"failure_type": FailureType.EXTERNAL_FAULT},
        {"failure_type": "external_fault"},
        {"cause": Cause.PERMISSION},
        {"cause": "permission"},
        {"tool": "search"},
        {"when": lambda run: run.task == "t"},
        {"rule": "http.forbidden", "tool": "search", "cause": "permission"},
    ],
)
def test_an_override_applies_where_all_its_conditions_hold(condition: dict[str, Any]) -> None:
    step = Step(tool_called="search", error="403")
    one = Override(Severity.REPLANNING, **condition)
    assert found_with(one, steps=[step], task="t") == (Severity.REPLANNING, Level.MEDIUM)


@table(
    "condition",
    [
        {"rule": "http.auth"},
        {"failure_type": FailureType.GOAL_DRIFT},
        {"cause": Cause.AUTH},
        {"tool": "open"},
        {"when": lambda run: run.task == "another"},
        {"when": lambda run: 1 / 0},
        {"rule": "http.forbidden", "tool": "open"},
    ],
)
def test_an_override_whose_conditions_do_not_hold_changes_nothing(
    condition: dict[str, Any],
) -> None:
    step = Step(tool_called="search", error="403")
    assert found_with(Override(Severity.FATAL, **condition), steps=[step], task="t") == AS_EVER


def test_severity_and_level_are_each_taken_from_the_first_that_fits() -> None:
    overrides = (
        Override(level=Level.LOW, cause="permission"),
        Override(Severity.REPLANNING, Level.CRITICAL),
        Override(Severity.FATAL),
    )
    assert found_with(*overrides) == (Severity.REPLANNING, Level.LOW)


def test_what_the_exception_carries_comes_before_an_override() -> None:
    error = hint(ConnectionResetError("x"), severity="replanning")
    assert found_with(Override(Severity.FATAL), error=error)[0] is Severity.REPLANNING


def test_an_override_reaches_findings_and_the_hint() -> None:
    own = RulesClassifier(overrides=[Override(Severity.CRITICAL, rule="steps.loop")])
    looped = classify(None, [search("a")] * 3, own)
    assert looped.severity is Severity.CRITICAL
    passing = ErrorInfo("APIError", status_code=503, message="down")
    stopped = RulesClassifier(overrides=[Override(Severity.CRITICAL)])
    assert classify(passing).hint is None
    assert classify(passing, with_=stopped).hint


def test_equal_errors_of_different_runs_are_told_apart() -> None:
    own = RulesClassifier(overrides=[Override(level=Level.LOW, when=lambda run: run.task == "a")])
    levels = [diagnose(FORBIDDEN, task=task, classifier=own).level for task in ("a", "b", "a")]
    assert levels == [Level.LOW, Level.HIGH, Level.LOW]


@table(
    ("overrides", "words"),
    [
        (Override(Severity.FATAL), "an iterable of Override"),
        ([Severity.FATAL], r"overrides\[0\] must be an Override"),
        ([Override()], "changes nothing"),
        ([Override(severity="bad")], "severity must be one of"),  # type: ignore[arg-type] # the wrong value is the test
        ([Override(level="bad")], "level must be one of"),  # type: ignore[arg-type] # as above
        ([Override(Severity.FATAL, rule=3)], "rule must be text"),  # type: ignore[arg-type] # as above
        ([Override(Severity.FATAL, when=3)], "when must be a function"),  # type: ignore[arg-type] # as above
        ([Override(Severity.FATAL, failure_type="x")], "failure_type must be"),  # type: ignore[arg-type] # as above
    ],
)
def test_a_wrong_override_is_refused_by_field(overrides: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        RulesClassifier(overrides=overrides)


# --- the page, and time ----------------------------------------------------------------------


def test_the_page_of_rules_is_what_the_tables_give() -> None:
    program = [sys.executable, str(DOCS / "generate_rules.py"), "--check"]
    checked = subprocess.run(program, capture_output=True, text=True, cwd=DOCS.parent, check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_page_names_every_rule() -> None:
    page = (DOCS / "rules.md").read_text(encoding="utf-8")
    assert [rule.name for rule in RULES if f"| `{rule.name}` |" not in page] == []


@table("rule", [rule for rule in RULES if rule.looks_at in ("text", "answer")])
def test_a_rule_on_words_reads_any_text_in_linear_time(rule: Rule) -> None:
    alone = RulesClassifier((rule,))

    def seconds(unit: str, size: int) -> float:
        text = (unit * (size // len(unit) + 1))[:size]
        error = ErrorInfo("APIError", message=text, status_code=599)
        begin = time.process_time()
        alone.classify(trajectory(error))
        return time.process_time() - begin

    for example in (*rule.examples, *rule.near_misses):
        # What begins as an example does, over and over, and never ends as one.
        unit = example[: max(1, len(example) // 2)]
        alone.classify(trajectory(ErrorInfo("APIError", message=unit)))
        small = min(seconds(unit, 16_000) for _ in range(2))
        large = min(seconds(unit, 1_000_000) for _ in range(2))
        # 62 times the text; a quadratic reader would take 3,900 times as long.
        assert large < 60 * small + 0.02


def trajectory(error: ErrorInfo) -> Any:
    from triage.core import Trajectory

    return Trajectory(error=error)
