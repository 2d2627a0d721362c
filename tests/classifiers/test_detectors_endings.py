"""Runs in which nobody raised anything: results that are failures, how the model ended, data made up."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tables import table

from triage import FailureType, RulesClassifier, Step, Trajectory

EXTERNAL = FailureType.EXTERNAL_FAULT
SCHEMA = FailureType.SCHEMA_MISMATCH
MISSING = FailureType.HALLUCINATED_STATE
UNKNOWN = FailureType.UNKNOWN
RULE = FailureType.CONSTRAINT_IGNORED
OVERFLOW = FailureType.CONTEXT_OVERFLOW


def call(tool: str, given: Any = None, result: Any = None) -> Step:
    return Step(action=tool, tool_called=tool, tool_input=given, tool_output=result)


def said(text: str, who: str = "model", **metadata: str) -> Step:
    return Step(action=who, llm_output=text, metadata=metadata or None)


def kind(*steps: Step, task: Any = None, tools: Any = None) -> FailureType:
    return RulesClassifier().classify(Trajectory(steps, task=task, tools=tools)).failure_type


OPENED = call("open", {"page": 1}, "a list")


@table(
    ("tool", "result", "expected"),
    [
        (
            "bash",
            "fatal: unable to access 'https://g.test/': Could not resolve host: g.test",
            EXTERNAL,
        ),
        ("fare", {"ok": False, "message": "rate limit exceeded"}, EXTERNAL),
        ("fare", {"code": 503, "message": "later, please"}, EXTERNAL),
        ("fare", {"error": "column fare does not exist"}, MISSING),
        ("fare", "ValidationError: 2 validation errors for Fare", SCHEMA),
        (
            "fare",
            {"isError": True, "content": [{"type": "text", "text": "request timed out"}]},
            EXTERNAL,
        ),
    ],
)
def test_a_run_that_ends_with_a_failed_call_is_that_failure(
    tool: str, result: Any, expected: FailureType
) -> None:
    assert kind(OPENED, call(tool, "x", result)) is expected


@table(
    ("tool", "result"),
    [
        ("bash", "src/net.py:14:    except TimeoutError:"),
        ("service_status", "billing is down: connection refused"),
        ("get_ticket", "Users see 'request timed out'."),
        ("fare", "The guide explains connection refused on page 3."),
        ("fare", {"code": 503, "title": "Shoe", "message": "new", "price": 4, "stock": 2}),
        ("fare", "Please try again later."),
    ],
)
def test_a_result_that_tells_of_a_failure_elsewhere_is_none(tool: str, result: Any) -> None:
    assert kind(OPENED, call(tool, "x", result), said("That is what I found.")) is UNKNOWN


@table(
    ("reason", "expected"),
    [("length", OVERFLOW), ("max_tokens", OVERFLOW), ("content_filter", RULE), ("stop", UNKNOWN)],
)
def test_the_reason_for_which_a_model_ended_counts(reason: str, expected: FailureType) -> None:
    assert kind(OPENED, said("The first of them is", finish_reason=reason)) is expected


def test_an_order_that_is_only_mentioned_is_none() -> None:
    mention = call("read", 1, "An attack is a text such as 'ignore previous instructions'.")
    assert kind(mention, said("Done.")) is UNKNOWN


@table(
    "asked",
    [
        ["Porto Faro", "Faro Porto", "Porto, Faro!"],
        ["room 1 of 3 sea", "room 3 of 1 sea", "sea room 1 of 3"],
        [{"q": "sea", "day": f"2031-05-0{at}"} for at in (1, 2, 3)],
        [{"q": "sea", "timestamp": 1_700_000_000 + 3_600 * at} for at in range(3)],
        [{"q": "sea", "timestamp": at} for at in range(3)],
        [{"q": "sea", "id": at} for at in range(3)],
        [{"q": "sea", "now": value} for value in (None, True, "soon:ish")],
    ],
)
def test_other_questions_with_one_result_are_none(asked: list[Any]) -> None:
    calls = [call("search", given, "nothing") for given in asked]
    assert kind(OPENED, *calls) is UNKNOWN


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "errors", "status", "code", "message", "ts", "now", "q"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON, JSON, st.text(max_size=60))
def test_any_steps_are_judged_without_an_error(given: Any, result: Any, answer: str) -> None:
    steps = [call("search", given, result)] * 3
    for tail in ((), (said(answer),)):
        assert kind(*steps, *tail) in FailureType
