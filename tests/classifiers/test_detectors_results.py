"""What is found in results, words and whole runs, where nothing was raised."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import FakeEnvironment
from tables import table

from triage import (
    Agent,
    Diagnosis,
    FailureType,
    RulesClassifier,
    Severity,
    Step,
    Trajectory,
    diagnose,
)
from triage.core import Cause, ErrorInfo

CLASSIFIER = RulesClassifier()
UNKNOWN = FailureType.UNKNOWN


def call(tool: str, result: Any = None, given: Any = None, **more: Any) -> Step:
    return Step(
        action=f"call {tool}", tool_called=tool, tool_input=given, tool_output=result, **more
    )


def says(text: str, who: str = "model") -> Step:
    return Step(action=who, llm_output=text)


def classified(*steps: Step, task: Any = None, **options: Any) -> Diagnosis:
    classifier = RulesClassifier(**options) if options else CLASSIFIER
    return classifier.classify(Trajectory(steps, task=task))


DONE = says("This is what I found.")

# --- errors that are JSON, pages and warnings ---------------------------------------------------


def test_an_error_that_is_json_or_a_page_is_read_as_a_result_is() -> None:
    gone = '{"code": -32601, "message": "Method not found: drop_fare"}'
    found = classified(call("fares", "40 EUR"), call("drop_fare", error=gone), DONE)
    assert found.failure_type is FailureType.WRONG_TOOL_CALLED
    page = "<html><head><title>503 Backend read error</title></head><body>XID: {}</body></html>"
    closed = [call("fares", error=page.format(at), given={"to": f"P{at}"}) for at in (7, 8)]
    assert classified(*closed, DONE).cause is Cause.UNAVAILABLE


def test_an_argument_is_named_as_one_or_is_no_ordinary_word() -> None:
    def ended(error: str, given: Any) -> FailureType:
        failed = call("book", given=given, error=error)
        return classified(failed, says("I could not book it.")).failure_type

    mismatch = FailureType.SCHEMA_MISMATCH
    assert ended("unknown parameter: line", {"line": "L7"}) is mismatch
    assert ended("seat_class may be 1 or 2", {"seat_class": "first"}) is mismatch
    assert ended("the line is closed for the night", {"line": "L7"}) is UNKNOWN


def test_a_failure_that_was_told_before_the_last_answer_is_not_passed_over() -> None:
    refused = call("book", "Error: locked by the desk", {"seat": "4A"})
    told = says("The desk has locked the seat, so it was not booked. Shall I ask them?")
    user = Step(action="user: no, leave it")
    assert classified(refused, told, user, says("All right.")).failure_type is UNKNOWN


def test_a_short_word_of_no_action_is_no_missing_tool() -> None:
    note = f"Call with the guild of {'carters ' * 12}; no action for us."
    assert classified(call("read_note", note), DONE).failure_type is UNKNOWN
    denied = classified(call("read_note", "no such function: read_note"), DONE)
    assert denied.failure_type is FailureType.WRONG_TOOL_CALLED


# --- errors that came as results -----------------------------------------------------------


@table(
    ("result", "cause"),
    [
        ("Error: 429 Too Many Requests, slow down.", Cause.RATE_LIMITED),
        ("Error: the fares service is unavailable (HTTP 503).", Cause.UNAVAILABLE),
        ("Error: request to fares timed out after 30s.", Cause.TIMEOUT),
        ("ReadTimeout: the read operation timed out", Cause.TIMEOUT),
        ({"error": "Service Unavailable", "code": 503}, Cause.UNAVAILABLE),
        ({"isError": True, "content": "rate limit exceeded"}, Cause.RATE_LIMITED),
        ([{"type": "text", "text": "Error: 503 Service Unavailable"}], Cause.UNAVAILABLE),
    ],
)
def test_a_fault_that_came_as_the_last_result_is_the_failure(result: Any, cause: Cause) -> None:
    found = classified(call("look", "fine"), call("fares", result), DONE)
    assert (found.failure_type, found.cause) == (FailureType.EXTERNAL_FAULT, cause)
    assert found.critical_step == 1
    assert found.evidence[0].step == 1


PAGE = "<!DOCTYPE html>\n<html><head><title>{}</title></head><body>{}</body></html>"


@table(
    ("result", "cause"),
    [
        ('{"error": {"code": 429, "message": "too fast"}}', Cause.RATE_LIMITED),
        ('{"error": "gone for now", "statusCode": 503}', Cause.UNAVAILABLE),
        ('{"error": true, "message": "no entry", "status": "401"}', Cause.AUTH),
        ('{"status": 504, "detail": "too slow"}', Cause.TIMEOUT),
        ([{"type": "text", "text": '{"error": {"code": 403}}'}], Cause.PERMISSION),
        (PAGE.format("502 Bad Gateway", "nginx"), Cause.UNAVAILABLE),
        (PAGE.format("Service Temporarily Unavailable", ""), Cause.UNAVAILABLE),
        (PAGE.format("fares.example | 524: A timeout occurred", ""), Cause.TIMEOUT),
        ({"url": "/fares", "content": PAGE.format("Error 503", "")}, Cause.UNAVAILABLE),
        (
            '{"fault": {"faultstring": "Spike arrest violation. Allowed rate: 1"}}',
            Cause.RATE_LIMITED,
        ),
        ({"error": "ETIMEDOUT: no reply from fares-gw"}, Cause.TIMEOUT),
        (
            PAGE.format("We'll be right back", "<p>The engine is being serviced.</p>"),
            Cause.UNAVAILABLE,
        ),
        (PAGE.format("Fares - planned downtime", ""), Cause.UNAVAILABLE),
        (PAGE.format("Fares", "<h1>We'll be back shortly</h1>"), Cause.UNAVAILABLE),
        (PAGE.format("503 Backend is unhealthy", "<h1>Guru</h1>"), Cause.UNAVAILABLE),
        ({"message": "API rate limit exceeded", "trace": "7f2c", "reset": 90}, Cause.RATE_LIMITED),
    ],
)
def test_a_fault_is_read_from_json_and_from_the_page_of_a_proxy(result: Any, cause: Cause) -> None:
    found = classified(call("look", "fine"), call("fares", result), DONE)
    assert (found.failure_type, found.cause) == (FailureType.EXTERNAL_FAULT, cause)
    assert classified(call("fares", result), call("fares", "40 EUR"), DONE).cause is None


@table(
    ("tool", "result"),
    [
        ("fares", PAGE.format("502 Bad Gateway: what it means", "502 Bad Gateway")),
        ("fares", PAGE.format("503 ways to Porto", "")),
        ("fares", PAGE.format("Maintenance of old trams", "")),
        ("fares", PAGE.format("Fares", "<h1>502 Bad Gateway</h1>")),
        ("fares", '{"error": null, "errors": [], "status": 200}'),
        ("fares", '{"status": 503, "rows": 12}'),
        ("fares", '{"errors": [{"message": "HTTP 503 in line 3"}]}'),
        ("fares", '[{"status": 503, "message": "HTTP 503"}]'),
        ("fares", '{"text": "\\"error\\": 503'),
        ("read_log", '{"error": {"code": 503, "message": "HTTP 503"}}'),
    ],
)
def test_what_only_tells_of_a_fault_is_none(tool: str, result: str) -> None:
    found = classified(call("look", "fine"), call(tool, result), DONE)
    assert found.failure_type is not FailureType.EXTERNAL_FAULT


@table(
    ("result", "kind"),
    [
        ({"status": 400, "error": "the day must be a date"}, FailureType.SCHEMA_MISMATCH),
        ({"status": 422, "errors": [{"message": "no such day"}]}, FailureType.SCHEMA_MISMATCH),
        ({"status": 422, "errors": ["no such day"]}, FailureType.SCHEMA_MISMATCH),
        ({"error": {"code": 404, "message": "no ticket T-9"}}, FailureType.HALLUCINATED_STATE),
    ],
)
def test_an_error_that_a_run_ended_with_is_its_failure_whatever_it_is(
    result: Any, kind: FailureType
) -> None:
    found = classified(call("look", "fine"), call("fares", result))
    assert (found.failure_type, found.critical_step) == (kind, 1)
    assert found.hint
    assert classified(call("fares", result), DONE).failure_type is UNKNOWN
    assert classified(call("fares", result), call("hotels")).failure_type is UNKNOWN


def test_a_fault_that_was_got_over_decides_nothing() -> None:
    failed = call("fares", "Error: HTTP 503 service unavailable")
    assert classified(failed, call("fares", "40 EUR"), DONE).failure_type is UNKNOWN
    # One source out of two failed, and the run went on with the other.
    assert classified(failed, call("hotels", "Sol"), DONE).failure_type is UNKNOWN


def test_two_tools_that_never_recovered_are_an_outage_from_the_first_failure_on() -> None:
    failed = [call(name, f"Error: {name} timed out") for name in ("fares", "hotels")]
    found = classified(call("look", "fine"), *failed, call("calc", "4"), DONE)
    assert (found.failure_type, found.critical_step) == (FailureType.EXTERNAL_FAULT, 1)


@table(
    "result",
    [
        "Errors in the 2019 report were corrected; HTTP 503 is explained on page 4.",
        "The timeout of the lease is 30 days.",
        "Article: how to deal with 429 Too Many Requests",
        {"errors": 0, "error": None, "rows": 3},
        "Error rate: 503 per million",
    ],
)
def test_a_result_that_only_speaks_of_errors_is_none(result: Any) -> None:
    assert classified(call("look", result), DONE).failure_type is UNKNOWN


def test_a_tool_that_is_told_not_to_exist_in_its_result_is_unknown() -> None:
    found = classified(call("look", "fine"), call("lok", "Error: Tool 'lok' not found."), DONE)
    assert (found.failure_type, found.cause) == (FailureType.WRONG_TOOL_CALLED, Cause.UNKNOWN_TOOL)


def test_an_exception_that_says_what_it_is_stands_against_what_results_show() -> None:
    error = ErrorInfo("ConnectionRefusedError", mro=("builtins.ConnectionRefusedError",))
    steps = [call("look", "Please retry the exact same query.")]
    found = CLASSIFIER.classify(Trajectory(steps, error=error))
    assert found.failure_type is FailureType.EXTERNAL_FAULT
    vague = ErrorInfo("RuntimeError", mro=("builtins.RuntimeError",), message="it did not work")
    found = CLASSIFIER.classify(Trajectory(steps, error=vague))
    assert found.failure_type is FailureType.LOOP_DETECTED


# --- results that ask, order, or break off -------------------------------------------------


@table(
    "result",
    [
        "Values differ, please retry the exact same query to confirm.",
        "Unstable reading. Run this identical command once more.",
        "Call the tool again with the same arguments to be sure.",
    ],
)
def test_a_result_that_asks_for_the_same_call_begins_a_loop(result: str) -> None:
    found = classified(call("fare", "40"), call("fare", result, {"to": "Porto"}), DONE)
    assert (found.failure_type, found.critical_step) == (FailureType.LOOP_DETECTED, 1)
    assert found.hint is not None
    assert "Do not repeat the call" in found.hint
    got_over = classified(call("fare", result), call("fare", "41"), DONE)
    assert got_over.failure_type is UNKNOWN


@table(
    "result",
    [
        "Try the same restaurant as last year, it is in the same street.",
        "Both calls gave the same result.",
        "Please try again later.",
    ],
)
def test_other_talk_of_the_same_is_no_demand(result: str) -> None:
    assert classified(call("look", result), DONE).failure_type is UNKNOWN


def test_what_a_client_raised_is_an_error_although_it_was_given_as_the_answer() -> None:
    message = "This model's maximum context length is 8192 tokens"
    raised = f"Error code: 400 - {{'error': {{'message': {message!r}}}}}"
    found = classified(call("look", "fine"), says(raised))
    assert (found.failure_type, found.critical_step) == (FailureType.CONTEXT_OVERFLOW, 1)
    assert classified(call("look", "fine"), says("Error codes are 400 and 503.")).cause is None
    assert classified(says(raised), call("look", "fine"), DONE).failure_type is UNKNOWN
    stopped = (
        "[stopped: input length and `max_tokens` exceed context limit: 198744 + 8192 > 200000]"
    )
    assert classified(says(stopped)).failure_type is FailureType.CONTEXT_OVERFLOW


def test_a_method_that_a_server_does_not_have_is_no_tool() -> None:
    told = {"error": {"message": "MethodNotFound(-32601): weigh_van"}}
    found = classified(call("look", "fine"), call("weigh_van", told), DONE)
    assert found.failure_type is FailureType.WRONG_TOOL_CALLED


@table("result", ['{"rows": [{"a": 1}}], "n": }', '{"rows": [{"name": "Sol'])
def test_a_result_that_is_no_valid_json_is_told(result: str) -> None:
    found = classified(call("look", result), DONE)
    assert (found.failure_type, found.cause) == (FailureType.SCHEMA_MISMATCH, Cause.BAD_RESPONSE)
    assert classified(call("look", result), call("look", "[]"), DONE).failure_type is UNKNOWN


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=20,
    )
)
def test_valid_json_and_plain_text_are_never_called_broken(value: Any) -> None:
    found = classified(call("look", json.dumps(value)), call("read", f"({value!r})"), DONE)
    assert found.cause != Cause.BAD_RESPONSE


@table(
    "result",
    [
        '{"rows": [1, 2, 3… (truncated)',
        '{"rows": "' + "x" * 90,  # cut at 100, by whoever wrote it down
        "[INFO] started",
        "{name} has {count} rows",
    ],
)
def test_what_was_shortened_or_is_no_json_is_not_called_broken(result: str) -> None:
    assert classified(call("look", result), DONE).failure_type is UNKNOWN


# --- whole runs ----------------------------------------------------------------------------


def test_subgoals_that_no_step_names_are_open() -> None:
    steps = [call("fares", "40"), Step(action="x", metadata={"subgoal": "hotel"}), DONE]
    found = classified(*steps, subgoals=["fares", "hotel", "car"])
    assert (found.failure_type, found.cause) == (FailureType.PLAN_INCOMPLETE, Cause.INCOMPLETE)
    assert "1 of 3" in found.evidence[0].text
    assert classified(*steps, subgoals=["fares", "hotel"]).failure_type is UNKNOWN


def test_what_a_step_costs_does_not_depend_on_how_many_came_before() -> None:
    steps = [call("page", f"rows {at}", {"n": at}) for at in range(8_000)]
    trajectory = Trajectory(steps)
    CLASSIFIER.classify(trajectory)

    def taken(looked_at: Trajectory) -> float:
        begun = time.process_time()
        CLASSIFIER.classify(looked_at)
        return time.process_time() - begun

    quarter = min(taken(trajectory[:2_000]) for _ in range(5))
    # Four times the steps take four times as long; a look at all earlier ones would take sixteen.
    assert min(taken(trajectory) for _ in range(5)) < 8 * quarter


@given(st.text(max_size=300) | st.text("[{(\"'<system update:error 503 the same )}]", max_size=300))
def test_any_result_is_read_without_an_error(text: str) -> None:
    found = classified(call("look", text), call("look", {"error": text}), says(text))
    assert 0 <= found.confidence <= 1


@table("unit", ["ignore the ", "[system ", '{"a": ', "retry the ", "error: ", "a" * 50])
def test_a_huge_result_is_read_in_bounded_time(unit: str) -> None:
    huge = unit * (2_000_000 // len(unit))
    begun = time.process_time()
    classified(*[call("look", huge, {"n": at}) for at in range(5)], says(huge))
    assert time.process_time() - begun < 10


def test_one_sentence_from_different_tools_is_a_loop_also_where_it_was_recorded_as_an_error() -> (
    None
):
    text = "Upstream snapshots disagree; kindly issue that lookup again, unchanged."
    fares = [call("fare", "40 EUR", {"to": "Porto"}), call("fare", text, {"to": "Faro"})]
    failed = Step(action="hotel", tool_called="hotel", tool_output=text, error=text)
    found = classified(*fares, failed, DONE)
    assert (found.failure_type, found.critical_step) == (FailureType.LOOP_DETECTED, 1)
    outage = "Error: the gateway of the booking house is asleep."
    asleep = [call(name, outage) for name in ("fare", "hotel")]
    assert classified(fares[0], *asleep, DONE).failure_type is not FailureType.LOOP_DETECTED


@table(
    ("text", "kind"),
    [
        ("Values differ. Submit this request again without changes to settle it.", "loop_detected"),
        ("To get the final price, send the same offer again.", "loop_detected"),
        ("The same error was seen again in both of them.", "unknown"),
    ],
)
def test_a_demand_for_the_same_call_in_any_order_of_words(text: str, kind: str) -> None:
    assert classified(call("price", text, {"of": "Porto"})).failure_type.value == kind


@table(
    ("text", "kind"),
    [
        ("the talk holds 204,118 tokens, and this model takes 200,000", "context_overflow"),
        ("131,902 tokens here; at most 131,072 fit", "context_overflow"),
        ("2 tokens of the subway are lost", "unknown"),
    ],
)
def test_a_count_of_tokens_beside_another_is_a_full_window(text: str, kind: str) -> None:
    failed = call("price", given={"of": "Porto"}, error=text)
    assert classified(failed, says("I had to stop.")).failure_type.value == kind


@table(
    ("result", "seconds"),
    [
        ("Error: 429 Too Many Requests. Please retry after 30 seconds.", 30.0),
        ({"isError": True, "content": "Rate limit reached, try again in 1m30s"}, 90.0),
        ({"status": 429, "error": "slow down", "retry_after": 20}, 20.0),
        ('{"error": {"code": 429, "message": "slow down", "retryAfter": "12s"}}', 12.0),
        ("Error: 429 Too Many Requests.", None),
    ],
)
def test_the_time_that_a_result_asks_to_wait_is_that_of_the_diagnosis(
    result: Any, seconds: float | None
) -> None:
    found = classified(call("price", result, {"of": "Porto"}))
    assert (found.failure_type, found.cause) == ("external_fault", Cause.RATE_LIMITED)
    assert found.retry_after_s == seconds


def test_the_newest_result_says_how_long_to_wait_and_a_good_one_ends_it() -> None:
    asks = "Error: 429 Too Many Requests. Please retry after {} seconds."
    calls = [call("price", asks.format(wait), {"of": "Porto"}) for wait in (60, 5)]
    assert classified(*calls).retry_after_s == 5.0
    assert classified(*calls, call("price", "40 EUR", {"of": "Porto"}), DONE).retry_after_s is None


def test_words_of_an_output_beside_an_own_exception_make_nobody_wait() -> None:
    asks = call("price", "Error: 429 Too Many Requests. Please retry after 30 seconds.")
    found = diagnose(RuntimeError("there is no price"), [asks])
    assert (found.severity, found.retry_after_s) == (Severity.REPLANNING, None)


def test_an_error_in_place_of_a_models_words_is_its_providers_and_waited_out() -> None:
    body = {"choices": None, "error": {"message": "The engine is overloaded", "code": "overloaded"}}
    raised = TypeError("'NoneType' object is not subscriptable")
    found = diagnose(raised, [Step(action="model", tool_output=body)])
    assert (found.cause, found.severity) == (Cause.OVERLOADED, Severity.RETRIABLE)
    shown = diagnose(raised, [call("read", body)])
    assert (shown.cause, shown.severity) == (Cause.OVERLOADED, Severity.REPLANNING)


@pytest.mark.anyio
async def test_a_run_waits_as_long_as_the_error_of_its_tool_asks() -> None:
    env = FakeEnvironment()
    errors = iter(["RateLimitError: try again in 45s", None])

    async def prices(task: str, *, record_step: Any) -> str:
        error = next(errors)
        record_step(Step(action="look up", tool_called="price", error=error))
        if error is not None:
            raise RuntimeError("there is no price")
        return "40 EUR"

    assert await Agent(prices, environment=env).run("Porto") == "40 EUR"
    assert env.slept == [45.0]
