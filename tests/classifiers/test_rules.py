"""What the rules say, and what they must not say: driven by their own examples and near misses."""

from __future__ import annotations

from diagnoses import classify, fired, info_for, passes, said, search
from msgspec.structs import replace
from tables import table

from triage.classifiers import RULES, Rule, RulesClassifier, diagnose
from triage.core import Cause, ErrorInfo, FailureType, Severity, Step, hint


def test_every_rule_says_where_it_comes_from_and_shows_when_it_fires() -> None:
    names = [rule.name for rule in RULES]
    assert len(names) == len(set(names))
    bare = [
        rule.name
        for rule in RULES
        if not (rule.source and rule.keys and rule.examples and rule.near_misses)
    ]
    assert not bare


def test_a_rule_fires_on_its_examples() -> None:
    wrong = [
        (rule.name, example)
        for rule in RULES
        for alone in (RulesClassifier((rule,)),)
        for example in rule.examples
        if not _fires(rule, example, alone)
    ]
    assert not wrong


def _fires(rule: Rule, example: str, alone: RulesClassifier) -> bool:
    among_all = classify(info_for(rule, example))
    return (
        rule.name in fired(classify(info_for(rule, example), with_=alone))
        and among_all.failure_type is rule.failure_type
        and bool(among_all.hint) is not passes(among_all)
        and bool(among_all.user_message)
    )


def test_a_rule_does_not_fire_on_its_near_misses() -> None:
    wrong = [
        (rule.name, near_miss)
        for rule in RULES
        for alone in (RulesClassifier((rule,)),)
        for near_miss in rule.near_misses
        if rule.name in fired(classify(info_for(rule, near_miss), with_=alone))
    ]
    assert not wrong


@table(
    "message",
    [
        "user 500 not found",
        "user 404 not found",
        "page 403 forbidden to guests",
        "order #429 rejected",
        "4429 tokens",
        "port 503 closed",
        "requested 500 tokens",
        "step 429 of 900 failed: division by zero",
        "processed 500 items, but the manifest lists 512",
        "the query returned 404 results",
        "timeout parameter must be positive",
        "customer 'Service Unavailable GmbH' has no tax number on file",
        "tool hammer not found in aisle 4",
    ],
)
def test_a_number_or_a_name_that_sounds_like_a_fault_is_none(message: str) -> None:
    found = classify(said(message))
    assert found.failure_type is FailureType.UNKNOWN
    assert found.candidates
    assert found.severity is Severity.RECLASSIFICATION


@table(
    ("message", "kind", "cause"),
    [
        ("529 overloaded", FailureType.EXTERNAL_FAULT, Cause.UNAVAILABLE),
        ("connection reset by peer", FailureType.EXTERNAL_FAULT, Cause.CONNECTION),
        ("ECONNREFUSED", FailureType.EXTERNAL_FAULT, Cause.CONNECTION),
        ("HTTP 401", FailureType.EXTERNAL_FAULT, Cause.AUTH),
        ("upstream answered 502 Bad Gateway", FailureType.EXTERNAL_FAULT, Cause.UNAVAILABLE),
        ("insufficient_quota", FailureType.EXTERNAL_FAULT, Cause.QUOTA_EXHAUSTED),
        ("context_length_exceeded", FailureType.CONTEXT_OVERFLOW, Cause.CONTEXT_LENGTH),
        ("Error code: 429 - slow", FailureType.EXTERNAL_FAULT, Cause.RATE_LIMITED),
    ],
)
def test_words_that_leave_no_doubt_are_read(message: str, kind: FailureType, cause: Cause) -> None:
    found = classify(said(message))
    assert (found.failure_type, found.cause) == (kind, cause)


# --- order -----------------------------------------------------------------------------------


def test_a_hint_the_exception_carries_comes_first() -> None:
    error = hint(
        RuntimeError("rate limit exceeded"),
        failure_type=FailureType.GOAL_DRIFT,
        cause="wandered_off",
        hint="Go back to the task.",
        retry_after_s=3,
        user_message="One moment.",
    )
    found = diagnose(error, [search("q")] * 3)
    assert found.failure_type is FailureType.GOAL_DRIFT
    assert found.cause == "wandered_off"
    assert (found.hint, found.user_message) == ("Go back to the task.", "One moment.")
    assert found.retry_after_s == 3
    assert found.evidence[0].rule == "hint"


def test_a_hint_without_a_type_adds_to_the_diagnosis() -> None:
    error = hint(ConnectionResetError("reset"), severity="critical", retry_after_s=9)
    found = diagnose(error)
    assert found.failure_type is FailureType.EXTERNAL_FAULT
    assert found.severity is Severity.CRITICAL
    assert found.retry_after_s == 9


def test_a_hint_on_a_cause_counts_too() -> None:
    outer = RuntimeError("tool failed")
    outer.__cause__ = hint(ValueError("x"), failure_type="plan_incomplete")
    assert diagnose(outer).failure_type is FailureType.PLAN_INCOMPLETE


def test_three_identical_steps_are_a_loop_that_outranks_the_exception() -> None:
    steps = [Step(action="plan"), search("a"), search("b"), search("b"), search("b")]
    found = classify(said("giving up"), steps)
    assert (found.failure_type, found.cause) == (FailureType.LOOP_DETECTED, Cause.REPETITION)
    assert found.critical_step == 2, "the call the loop begins with"
    assert found.evidence[0].step == 2
    assert "search" in (found.hint or "")
    assert "3 times" in (found.hint or "")


def test_two_identical_steps_are_no_loop() -> None:
    assert classify(said("giving up"), [search("b")] * 2).failure_type is FailureType.UNKNOWN


@table("length", range(2, 7))
def test_a_cycle_gone_through_three_times_is_a_loop(length: int) -> None:
    cycle = [search(str(number)) for number in range(length)]
    found = classify(said("giving up"), cycle * 3)
    assert (found.failure_type, found.cause) == (FailureType.LOOP_DETECTED, Cause.CYCLE)
    assert found.critical_step == 0
    assert classify(said("giving up"), cycle * 2).failure_type is FailureType.UNKNOWN


def test_a_cycle_of_seven_is_not_looked_for() -> None:
    cycle = [search(str(number)) for number in range(7)]
    assert classify(said("giving up"), cycle * 3).failure_type is FailureType.UNKNOWN


def test_polling_with_changing_results_is_no_loop() -> None:
    steps = [search("job", output=f"running {done} %") for done in range(0, 100, 10)]
    assert classify(said("giving up"), steps).failure_type is FailureType.UNKNOWN


def test_a_loop_that_was_left_decides_nothing() -> None:
    steps = [*[search("a")] * 5, search("b", "found"), search("c", "found")]
    assert classify(said("giving up"), steps).failure_type is FailureType.UNKNOWN


def test_replayed_steps_do_not_count_as_repetition() -> None:
    steps = [search("a", metadata={"replayed": True}), search("a"), search("a")]
    assert classify(said("giving up"), steps).failure_type is FailureType.UNKNOWN


def test_argument_order_and_json_spaces_do_not_hide_a_loop() -> None:
    inputs = [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 2}]
    steps = [Step(action="f", tool_called="f", tool_input=value) for value in inputs]
    assert classify(None, steps).failure_type is FailureType.LOOP_DETECTED
    texts = ['{"a": 1}', '{"a":1}', '{ "a": 1 }']
    steps = [Step(action="f", tool_called="f", tool_input=value) for value in texts]
    assert classify(None, steps).failure_type is FailureType.LOOP_DETECTED


def test_calls_that_all_failed_alike_are_retries_against_a_fault_and_no_loop() -> None:
    steps = [search("a", output=None, error="503")] * 4
    error = ErrorInfo("APIError", status_code=503, message="unavailable")
    assert classify(error, steps).failure_type is FailureType.EXTERNAL_FAULT


def test_calls_that_were_all_answered_with_an_error_are_retries_too() -> None:
    error = ErrorInfo("APIError", status_code=503, message="unavailable")
    answered = Step(tool_called="search", tool_output="Error: 503 Service Unavailable")
    found = classify(error, [answered] * 3)
    assert (found.failure_type, found.cause) == (FailureType.EXTERNAL_FAULT, Cause.UNAVAILABLE)
    useless = Step(tool_called="search", tool_output="nothing found")
    assert classify(error, [useless] * 3).failure_type is FailureType.LOOP_DETECTED


def test_an_unknown_tool_is_seen_against_the_manifest() -> None:
    steps = [search("a"), Step(action="serch", tool_called="serch", tool_input={"q": 1})]
    found = classify(said("boom"), steps, tools={"search": None, "open": None})
    assert found.failure_type is FailureType.WRONG_TOOL_CALLED
    assert found.critical_step == 1
    for word in ("serch", "search", "open", "closest"):
        assert word in (found.hint or "")


def test_an_unknown_tool_the_agent_recovered_from_decides_nothing() -> None:
    steps = [Step(action="serch", tool_called="serch", error="no such tool"), search("a")]
    found = classify(said("boom"), steps, tools={"search": None})
    assert found.failure_type is FailureType.UNKNOWN


def test_an_earlier_error_that_was_recovered_from_never_decides() -> None:
    steps = [search("a", error="429 Too Many Requests", output=None), search("a", output="found")]
    found = classify(said("'total'", "KeyError"), steps)
    assert found.failure_type is FailureType.UNKNOWN
    assert found.retry_after_s is None


def test_the_missing_name_is_a_tool_only_if_the_last_call_was_of_it() -> None:
    step = Step(action="call", tool_called="serch", tool_input={})
    assert classify(said("'serch'", "KeyError"), [step]).cause == Cause.UNKNOWN_TOOL
    assert classify(said("'total'", "KeyError"), [step]).failure_type is FailureType.UNKNOWN


def test_forbidden_strings_in_outputs_break_a_constraint() -> None:
    steps = [Step(action="say", llm_output="fine"), Step(action="say", llm_output="It costs 9 EUR")]
    found = classify(None, steps, constraints=("eur",))
    assert (found.failure_type, found.cause) == (
        FailureType.CONSTRAINT_IGNORED,
        Cause.FORBIDDEN_OUTPUT,
    )
    assert found.critical_step == 1
    own = RulesClassifier(constraints=("EUR",))
    assert classify(None, steps, own).failure_type is FailureType.CONSTRAINT_IGNORED
    down = ErrorInfo("APIError", status_code=503)
    assert classify(down, steps, constraints=("eur",)).candidates == (
        FailureType.CONSTRAINT_IGNORED,
    )


def test_a_cause_decides_for_a_wrapper_that_says_nothing() -> None:
    inner = ErrorInfo(
        "RateLimitError",
        mro=("lib.RateLimitError",),
        status_code=429,
        retry_after_s=9.0,
        relation="cause",
    )
    found = classify(replace(said("cannot load page", "ValueError"), related=(inner,)))
    assert found.cause == Cause.RATE_LIMITED
    assert found.retry_after_s == 9


def test_a_context_does_not_decide_for_an_error_of_its_own() -> None:
    inner = ErrorInfo("APIError", status_code=503, retry_after_s=9.0, relation="context")
    found = classify(replace(said("'hint'", "KeyError"), related=(inner,)))
    assert found.failure_type is FailureType.UNKNOWN
    assert found.retry_after_s is None


def test_a_group_is_what_its_members_agree_on() -> None:
    down = ErrorInfo("APIError", status_code=503, relation="group")
    bad = ErrorInfo("APIError", status_code=400, relation="group")
    group = ErrorInfo("ExceptionGroup", mro=("builtins.ExceptionGroup",), message="2 errors")
    assert classify(replace(group, related=(down, down))).failure_type is FailureType.EXTERNAL_FAULT
    assert classify(replace(group, related=(down, bad))).failure_type is FailureType.UNKNOWN


# --- names and codes -------------------------------------------------------------------------


@table("status", [429, 502, 503, 504])
def test_a_service_that_is_not_there_has_refused_nothing_whatever_its_error_is_called(
    status: int,
) -> None:
    found = classify(ErrorInfo("Refusal", mro=("lib.Refusal",), status_code=status))
    assert found.failure_type is FailureType.EXTERNAL_FAULT


@table(
    ("mro", "cause"),
    [
        (("lib.TopicAuthorizationFailedError",), Cause.PERMISSION),
        (("lib.RebalanceInProgressError",), Cause.CONFLICT),
        (("lib.LDAPNoSuchObjectResult",), Cause.MISSING_RESOURCE),
        (("lib.ServiceResponseError",), Cause.CONNECTION),
        (("lib.InvalidDimensionException",), Cause.BAD_REQUEST),
        (("lib.UnknownTopicOrPartitionError",), Cause.MISSING_RESOURCE),
        (("lib.BadCipher", "lib.CipherError"), Cause.BAD_REQUEST),
        (("ssl.SSLEOFError", "ssl.SSLError"), Cause.CONNECTION),
        (("lib.NoSuchModuleError",), Cause.DEPLOYMENT),
        (("lib.BadCipher", "builtins.Exception"), None),
        (("lib.UnknownGuestReport", "builtins.ValueError"), None),
    ],
)
def test_a_name_is_read_by_its_end_else_by_what_an_error_begins_with(
    mro: tuple[str, ...], cause: Cause | None
) -> None:
    error = ErrorInfo(mro[0].rpartition(".")[2], mro=mro, message="see the desk")
    assert classify(error).cause == cause


def raised(name: str, base: type[Exception], *args: object, **attributes: object) -> Exception:
    error: Exception = type(name, (base,), {})(*args)
    for attribute, value in attributes.items():
        setattr(error, attribute, value)
    return error


class DatabaseError(Exception):
    pass


class MySQLError(Exception):
    pass


@table(
    ("error", "cause"),
    [
        (raised("OperationalError", MySQLError, 1205, "Lock wait"), Cause.CONFLICT),
        (raised("ProgrammingError", MySQLError, 1146, "no table"), Cause.MISSING_RESOURCE),
        (raised("InterfaceError", DatabaseError, "28000", "[28000] Login"), Cause.AUTH),
        (raised("GetError", Exception, "404: gone", response_code=404), Cause.NOT_FOUND),
        (raised("GrantError", Exception, "no", error="invalid_grant", status_code=400), Cause.AUTH),
        (raised("CountError", Exception, 1146, "items"), None),
    ],
)
def test_a_code_is_found_where_drivers_and_clients_put_it(
    error: Exception, cause: Cause | None
) -> None:
    assert diagnose(error).cause == cause


def test_a_missing_thing_answered_as_a_bad_request_is_missing() -> None:
    error = ErrorInfo(
        "QueueDoesNotExist", mro=("lib.QueueDoesNotExist",), status_code=400, message="no queue"
    )
    assert classify(error).failure_type is FailureType.HALLUCINATED_STATE
