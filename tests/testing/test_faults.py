"""Exceptions that say what kind of failure they are: what each says, how it travels, and wrapping."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import table

import triage
from triage import Diagnosis, ErrorInfo, FailureType, Severity, UsageError, diagnose
from triage.core import Category, Level, Recovery, faults
from triage.core.capture import capture
from triage.core.faults import Fault

CLASSES: dict[str, type[Fault]] = {
    name: value
    for name in faults.__all__
    if isinstance(value := getattr(faults, name), type) and issubclass(value, Fault)
}
CATEGORIES = {
    Category.INFRASTRUCTURE: (Recovery.RETRY, Severity.RETRIABLE),
    Category.CODE: (Recovery.REGENERATE, Severity.REPLANNING),
    Category.DATA: (Recovery.REPLAN, Severity.REPLANNING),
    Category.WORKFLOW: (Recovery.ASK, Severity.CRITICAL),
    Category.CONFIGURATION: (Recovery.CONFIGURE, Severity.CRITICAL),
    Category.SAFETY: (Recovery.NEVER, Severity.FATAL),
}
BASES: dict[Category, type[Fault]] = {
    Category.INFRASTRUCTURE: faults.InfrastructureFault,
    Category.CODE: faults.CodeFault,
    Category.DATA: faults.DataFault,
    Category.WORKFLOW: faults.WorkflowFault,
    Category.CONFIGURATION: faults.ConfigurationFault,
    Category.SAFETY: faults.SafetyFault,
}


def raised_from(outer: BaseException, *inner: BaseException) -> BaseException:
    """The outer error, raised from the next, which was raised from the next."""
    error = outer
    for cause in inner:
        error.__cause__ = cause
        error = cause
    return outer


def test_the_diagnosis_of_a_fault_is_what_the_fault_says() -> None:
    said = ("failure_type", "cause", "severity", "level", "recovery")
    for name, kind in CLASSES.items():
        fault = kind("it did not work")
        found = diagnose(fault)
        assert [getattr(found, each) for each in said] == [getattr(fault, each) for each in said], (
            name
        )
        assert found.user_message == (fault.user_message or found.user_message), name
        assert found.confidence >= 0.9, name
        assert "it did not work" in found.technical_details, name


def test_a_category_says_what_helps_and_what_may_be_done() -> None:
    assert {name: (base.recovery, base.severity) for name, base in BASES.items()} == CATEGORIES
    assert all(Fault.__subclasses__().count(base) == 1 for base in BASES.values())


def test_every_fault_without_a_word_of_its_own_is_printed_by_its_fields() -> None:
    said = {
        "cannot reach db:5432": faults.ConnectivityFault(host="db", port=5432),
        "not done within 30 s": faults.ExecutionTimeout(seconds=30),
        "not there: weather, prices": faults.MissingContext(keys=["weather", "prices"]),
        "no step makes the data wether": faults.InvalidContextKey(key="wether"),
        "step 2: unknown; step 4: empty": faults.PlanInvalid(
            issues=["step 2: unknown", "step 4: empty"]
        ),
        "stopped at review": faults.WorkflowFault(stage="review"),
        "the query failed 3 times": faults.MaxAttemptsExceeded(
            operation="the query", max_attempts=3
        ),
        "check API_URL": faults.ConfigurationFault(setting="API_URL"),
        "refused by R7": faults.PolicyRefused(rule="R7"),
        "": faults.WorkflowFault(),
    }
    assert [str(fault) for fault in said.values()] == list(said)


def test_a_class_of_ones_own_says_only_what_is_special_of_it() -> None:
    class BeamLost(faults.InfrastructureFault):
        level = Level.HIGH
        cause = "beam_lost"
        user_message = "The beam was lost. It comes back by itself."

    class Budget(Fault):
        category = Category.DATA

    class Refused(Fault):
        category = "safety"  # type: ignore[assignment] # a word in place of the member

    found = diagnose(BeamLost("12 mA"))
    assert (found.cause, found.severity, found.level) == (
        "beam_lost",
        Severity.RETRIABLE,
        Level.HIGH,
    )
    assert found.user_message == "The beam was lost. It comes back by itself."
    assert (Budget.recovery, Budget.severity, Budget.level) == (
        Recovery.REPLAN,
        Severity.REPLANNING,
        Level.MEDIUM,
    )
    assert (Refused.category, Refused.severity) == (Category.SAFETY, Severity.FATAL)


def test_a_word_that_is_none_is_refused_where_the_class_is_made() -> None:
    for attribute, value, names in (
        ("severity", "banana", "retriable, replanning"),
        ("recovery", 7, "retry, regenerate"),
        ("category", "net", "code, data, infrastructure"),
        ("level", "loud", "low, medium"),
        ("failure_type", None, "wrong_tool_called"),
    ):
        with pytest.raises(UsageError, match=rf"Odd\.{attribute} must be one of {names}"):
            type("Odd", (Fault,), {attribute: value})


def test_what_is_refused_for_safety_cannot_be_made_harmless() -> None:
    with pytest.raises(UsageError, match="recovery must be never"):
        type("Soft", (faults.PolicyRefused,), {"recovery": Recovery.RETRY})
    fault = faults.PolicyRefused("no", recovery=Recovery.RETRY, severity=Severity.RETRIABLE)
    hinted = triage.hint(faults.PolicyRefused("no"), recovery="retry", category="data")
    for refused in (fault, hinted):
        found = diagnose(refused)
        assert (found.severity, found.recovery) == (Severity.FATAL, Recovery.NEVER)
    assert not fault.should_retry_execution()


def test_a_keyword_no_fault_takes_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="Fault has no 'user_mesage'; did you mean 'user_message'"):
        Fault("x", user_mesage="y")  # type: ignore[call-arg] # what is tested


def test_one_fault_may_say_more_than_its_class() -> None:
    fault = faults.RateLimited(
        "slow down",
        retry_after_s=20,
        user_message="Too fast.",
        suggestions=("Buy more.",),
        technical_details="bucket 4",
        cause="burst",
    )
    found = diagnose(fault)
    assert (found.retry_after_s, found.user_message, found.cause) == (20, "Too fast.", "burst")
    assert found.suggestions[0] == "Buy more."
    assert "bucket 4" in found.technical_details


@pytest.mark.parametrize(
    ("said", "severity", "level"),
    [
        ({"recovery": Recovery.ASK}, Severity.CRITICAL, Level.HIGH),
        ({"recovery": "regenerate"}, Severity.REPLANNING, Level.MEDIUM),
        ({"recovery": "ask", "level": Level.LOW}, Severity.CRITICAL, Level.LOW),
        ({"recovery": "ask", "severity": "retriable"}, Severity.RETRIABLE, Level.LOW),
        ({"severity": Severity.FATAL}, Severity.FATAL, Level.CRITICAL),
        ({"recovery": "no word"}, Severity.RETRIABLE, Level.LOW),
    ],
)
def test_severity_and_level_follow_from_what_an_instance_says(
    said: Any, severity: Severity, level: Level
) -> None:
    fault = faults.ConnectivityFault("gone", **said)
    for told in (fault, pickle.loads(pickle.dumps(fault)), diagnose(fault)):
        assert (told.severity, told.level) == (severity, level)


def test_no_instance_makes_a_refusal_harmless() -> None:
    fault = faults.PolicyRefused("no", recovery=Recovery.RETRY)
    assert fault.severity == diagnose(fault).severity == Severity.FATAL


def test_a_property_may_stand_for_an_attribute() -> None:
    class Counted(faults.CodeFault):
        @property
        def recovery(self) -> Recovery:  # type: ignore[override] # worked out, as the page says
            return Recovery.ASK if (self.attempt or 0) > 2 else Recovery.REGENERATE

    assert diagnose(Counted("x", attempt=1)).severity is Severity.REPLANNING
    assert diagnose(Counted("x", attempt=3)).severity is Severity.CRITICAL


def test_a_class_that_knows_nothing_of_triage_takes_part_by_a_mark() -> None:
    class Foreign(ValueError):
        __triage_fault__ = True
        category = "infrastructure"
        user_message = "The archive is closed."

    found = diagnose(Foreign("closed"))
    assert (found.recovery, found.severity) == (Recovery.RETRY, Severity.RETRIABLE)
    assert found.user_message == "The archive is closed."

    class Unmarked(ValueError):
        category = "infrastructure"

    assert diagnose(Unmarked("closed")).recovery is None


def test_any_exception_can_be_given_a_category_or_a_recovery() -> None:
    found = diagnose(triage.hint(ValueError("x"), category="infrastructure", level="critical"))
    assert (found.severity, found.recovery, found.level) == (
        Severity.RETRIABLE,
        Recovery.RETRY,
        Level.CRITICAL,
    )
    assert diagnose(triage.hint(ValueError("x"), recovery="ask")).severity is Severity.CRITICAL
    for field in ("category", "recovery", "level"):
        with pytest.raises(ValueError, match=rf"hint\(\) {field} must be one of"):
            triage.hint(ValueError("x"), **{field: "banana"})  # type: ignore[arg-type] # what is tested


# --- wrapping -------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(list(Category)), min_size=1, max_size=5))
def test_an_error_put_around_another_never_lowers_the_category(chain: list[Category]) -> None:
    errors = [BASES[category](f"level {n}") for n, category in enumerate(chain)]
    found = diagnose(raised_from(errors[0], *errors[1:]))
    order = list(Category)
    gravest = max(chain, key=order.index)
    assert found.recovery is CATEGORIES[gravest][0]
    assert errors[0].should_retry_execution() == (gravest is Category.INFRASTRUCTURE)
    assert errors[0].should_retry_code_generation() == (gravest is Category.CODE)
    travelled = pickle.loads(pickle.dumps(errors[0]))
    assert diagnose(travelled).recovery is CATEGORIES[gravest][0]


def test_a_plain_error_around_a_fault_leaves_it_what_it_is() -> None:
    inner = faults.ConfigurationFault(setting="API_URL")
    for outer in (RuntimeError("the step failed"), ConnectionError("reset by peer")):
        assert diagnose(raised_from(outer, KeyError("x"), inner)).recovery is Recovery.CONFIGURE


def test_infrastructure_behind_generated_code_is_not_taken_for_its_mistake() -> None:
    wrapped = raised_from(faults.CodeRuntimeFailed("exit 1"), faults.ConnectivityFault(host="db"))
    assert diagnose(wrapped).recovery is Recovery.RETRY
    given_up = raised_from(
        faults.MaxAttemptsExceeded(max_attempts=3), faults.ConnectivityFault(host="db")
    )
    assert diagnose(given_up).recovery is Recovery.ASK


def test_what_was_merely_being_handled_counts_where_the_error_says_nothing_of_itself() -> None:
    def handled(error: BaseException, inner: BaseException) -> BaseException:
        error.__context__ = inner
        return error

    inner = faults.ConfigurationFault("bad url")
    assert diagnose(handled(RuntimeError("x"), inner)).recovery is Recovery.CONFIGURE
    assert diagnose(handled(faults.CodeFault("x"), inner)).recovery is Recovery.REGENERATE
    refused = capture(handled(faults.CodeFault("x"), faults.PolicyRefused("no")))
    assert refused.refused


def test_the_gravest_member_of_a_group_counts() -> None:
    group = ExceptionGroup("two", [faults.ConnectivityFault("x"), faults.PolicyRefused("y")])
    assert diagnose(group).recovery is Recovery.NEVER


def test_a_run_that_gave_up_inside_stays_a_matter_for_a_person() -> None:
    context = triage.FailureContext("r", "t", 1, Diagnosis(FailureType.EXTERNAL_FAULT))
    ended = triage.TriageEscalationError("gave up", context)
    assert diagnose(raised_from(ended, faults.ConnectivityFault("x"))).severity is Severity.CRITICAL


# --- travelling -----------------------------------------------------------------------------------


@table("travel", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_a_fault_travels_with_all_it_says(travel: Any) -> None:
    for kind in CLASSES.values():
        fault = kind("message", user_message="For you.", level=Level.CRITICAL)
        fault.add_note("seen at noon")
        fault.__cause__ = faults.ConnectivityFault(host="db", port=1)
        there = travel(fault)
        assert type(there) is kind
        assert (there.args, vars(there)) == (fault.args, vars(fault))
        assert diagnose(there).recovery is diagnose(fault).recovery
        assert isinstance(there.__cause__, faults.ConnectivityFault)
        assert there.__cause__.host == "db"


def test_nothing_that_is_put_into_a_fault_keeps_it_from_being_raised_or_diagnosed() -> None:
    class Hostile:
        def __str__(self) -> str:
            raise RuntimeError("no text")

        __repr__ = __str__

        def __bool__(self) -> bool:
            raise RuntimeError("no truth")

        def __iter__(self) -> Any:
            raise RuntimeError("no items")

        def __hash__(self) -> int:
            raise RuntimeError("no hash")

    bad: Any = Hostile()
    made: list[Fault] = [
        faults.ConnectivityFault(bad, host=bad, port=bad),
        faults.ExecutionTimeout(seconds=bad),
        faults.CodeSyntaxInvalid(details=bad, attempt=bad),
        faults.InvalidContextKey(key=bad, available=bad),
        faults.PlanInvalid(issues=(str(n) for n in iter(int, 1))),  # it never ends
        faults.MaxAttemptsExceeded(operation=bad, max_attempts=bad, error_chain=bad),
        faults.WorkflowFault(stage=bad),
        faults.PolicyRefused(rule=bad),
        faults.RateLimited("x", retry_after_s=bad, suggestions=bad, level=bad, recovery=bad),
        faults.RateLimited("x", user_message=bad, technical_details=bad, hint=bad, cause=bad),
    ]
    for fault in made:
        found = diagnose(fault)
        assert found.recovery is type(fault).recovery
        assert found.severity is type(fault).severity


def test_a_property_that_raises_or_exits_leaves_the_rest() -> None:
    class Odd(faults.ConfigurationFault):
        @property
        def user_message(self) -> str:  # type: ignore[override] # as above
            raise SystemExit(3)

        @property
        def level(self) -> Level:  # type: ignore[override] # as above
            raise ValueError("no level")

    found = diagnose(Odd("x"))
    assert (found.recovery, found.severity) == (Recovery.CONFIGURE, Severity.CRITICAL)
    assert found.user_message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
WORDS = st.sampled_from(
    ["category", "recovery", "severity", "level", "failure_type", "cause", "suggestions", "hint"]
)


@given(st.dictionaries(WORDS, JSON | st.sampled_from([*Recovery, *Category, *Severity])))
def test_a_hint_read_from_a_journal_may_be_anything(hint: dict[str, Any]) -> None:
    inner = ErrorInfo("X", hint=hint, relation="cause")
    error = ErrorInfo("Y", message="y", hint=dict(hint), related=(inner,))
    found = triage.RulesClassifier().classify(triage.Trajectory(error=error))
    assert isinstance(found, Diagnosis)
    assert error.refused == (hint.get("recovery") == "never")
