"""Families of failures that clients, services and systems tell of in many ways; and what only sounds so."""

from __future__ import annotations

from typing import Any

from diagnoses import classify, said
from msgspec.structs import replace
from tables import table

from triage.classifiers import diagnose
from triage.core import Cause, ErrorInfo, FailureType, Severity

EXTERNAL = FailureType.EXTERNAL_FAULT
SCHEMA = FailureType.SCHEMA_MISMATCH
MISSING = FailureType.HALLUCINATED_STATE


@table(
    ("message", "kind", "cause"),
    [
        # the system's own number says it in every language
        ("[Errno 2] Tiedostoa ei ole: 'lista.csv'", MISSING, Cause.MISSING_RESOURCE),
        ("[Errno 104] Yhteys katkesi", EXTERNAL, Cause.CONNECTION),
        ("[Errno 13] Nu ai voie: '/srv/x'", EXTERNAL, Cause.PERMISSION),
        ("[Errno 28] Levy on t\u00e4ynn\u00e4", EXTERNAL, Cause.RESOURCE_EXHAUSTED),
        ("[WinError 10060] Aikakatkaisu", EXTERNAL, Cause.TIMEOUT),
        ("[WinError 32] Tiedosto on varattu", EXTERNAL, Cause.CONFLICT),
        # an answer written into a message as JSON
        ('{"errors": [{"extensions": {"code": "THROTTLED"}}]}', EXTERNAL, Cause.RATE_LIMITED),
        ("{'error': {'type': 'permission_denied'}}", EXTERNAL, Cause.PERMISSION),
        ('{"error": {"code": "UNAUTHENTICATED"}}', EXTERNAL, Cause.AUTH),
        ('{"errorCode": "BAD_USER_INPUT"}', SCHEMA, Cause.BAD_REQUEST),
        ('Cannot query field "titel" on type "Book".', SCHEMA, Cause.BAD_REQUEST),
        # tools, steps, money and plans
        ("Tool book_last_seat not found in agent Box Office", FailureType.WRONG_TOOL_CALLED, None),
        ("Function print_map not found.", FailureType.WRONG_TOOL_CALLED, None),
        (
            "Tool 'seats' was called 6 times with the same arguments",
            FailureType.LOOP_DETECTED,
            None,
        ),
        ("The agent hit its turn limit", FailureType.PLAN_INCOMPLETE, Cause.STEP_BUDGET),
        ("Two subtasks were never started", FailureType.PLAN_INCOMPLETE, Cause.INCOMPLETE),
        ("finish_reason: SAFETY", FailureType.CONSTRAINT_IGNORED, Cause.CONTENT_FILTER),
        (
            "The answer was cut off by the token limit",
            FailureType.CONTEXT_OVERFLOW,
            Cause.OUTPUT_CUT,
        ),
        ("Prompt exceeds max sequence length", FailureType.CONTEXT_OVERFLOW, Cause.CONTEXT_LENGTH),
        # the other side
        ("could not lease a connection: pool exhausted", EXTERNAL, Cause.UNAVAILABLE),
        ('FATAL:  role "tourist" does not exist', EXTERNAL, Cause.AUTH),
        ("locator.fill: Timeout 900ms exceeded.", EXTERNAL, Cause.TIMEOUT),
    ],
)
def test_a_message_is_understood(message: str, kind: FailureType, cause: Cause | None) -> None:
    found = classify(said(message))
    assert found.failure_type is kind
    assert cause is None or found.cause == cause


@table(
    "message",
    [
        "no timeout occurred, but two guests are missing",
        "the connection was not reset, the ferry is late all the same",
        "the reader did not exceed its context window",
        "there was no deadlock detected by the locksmith",
        "no permission denied stamps among the forms",
        "model 7 of the boat was retired",
        "the switchboard has an open breaker cabinet",
        "the tool in the second drawer was not found",
        "12 finish lines, reason: safety of the runners",
    ],
)
def test_what_is_denied_or_only_sounds_like_a_fault_is_none(message: str) -> None:
    assert classify(said(message)).failure_type is FailureType.UNKNOWN


@table(
    ("name", "kind", "cause"),
    [
        ("SpendLimitReachedError", EXTERNAL, Cause.QUOTA_EXHAUSTED),
        ("ConcurrencyLimitExceeded", EXTERNAL, Cause.RATE_LIMITED),
        ("NotLeaderForPartitionError", EXTERNAL, Cause.UNAVAILABLE),
        ("MissingAPIKeyError", EXTERNAL, Cause.MISSING_CONFIG),
        ("BrokenWorkerProcess", EXTERNAL, Cause.PROCESS_DIED),
        ("NoSpaceLeftError", EXTERNAL, Cause.RESOURCE_EXHAUSTED),
        ("LimitOverrunError", SCHEMA, Cause.BAD_RESPONSE),
        ("PayloadTooBig", SCHEMA, Cause.PAYLOAD_TOO_LARGE),
        ("OutputTokenLimitExceeded", FailureType.CONTEXT_OVERFLOW, Cause.OUTPUT_CUT),
    ],
)
def test_a_name_is_understood(name: str, kind: FailureType, cause: Cause) -> None:
    found = classify(ErrorInfo(name, mro=(f"lib.{name}", "builtins.Exception")))
    assert (found.failure_type, found.cause) == (kind, cause)


def test_a_spent_budget_is_not_tried_again() -> None:
    found = classify(ErrorInfo("APIError", mro=("lib.APIError",), code="budget_exceeded"))
    assert (found.failure_type, found.severity) == (FailureType.PLAN_INCOMPLETE, Severity.CRITICAL)


@table(
    ("body", "cause"),
    [
        ([{"message": "somebody else has it", "errorCode": "UNABLE_TO_LOCK_ROW"}], Cause.CONFLICT),
        ([{"error": {"message": "API key not valid. Look again."}}], Cause.AUTH),
        ({"error": {"message": "No.", "details": [{"reason": "API_KEY_INVALID"}]}}, Cause.AUTH),
        ({"error": {"errors": [{"reason": "userRateLimitExceeded"}]}}, Cause.RATE_LIMITED),
        ({"code": "capacity_exceeded", "message": "Come back."}, Cause.OVERLOADED),
        ({"error": {"details": ["no object", {"reason": 7}]}}, Cause.BAD_REQUEST),
        ([], Cause.BAD_REQUEST),
        ({"ErrorCode": 405, "Message": "You ran out of credits."}, Cause.QUOTA_EXHAUSTED),
        ({"error": {"message": "Unsafe or sensitive content was detected"}}, Cause.BAD_REQUEST),
        ({"message": "System detected unsafe or sensitive content"}, Cause.CONTENT_FILTER),
        ({"message": "Prompt exceeds max length"}, Cause.CONTEXT_LENGTH),
    ],
)
def test_the_answer_says_what_a_general_status_does_not(body: Any, cause: Cause) -> None:
    error = ErrorInfo("APIError", mro=("lib.APIError",), status_code=400, body=body)
    assert classify(error).cause == cause


def test_a_failed_precondition_is_told_from_what_the_other_side_says_of_it() -> None:
    plain = ErrorInfo("RpcError", mro=("lib.RpcError",), code="FAILED_PRECONDITION")
    spent = replace(plain, message="prepaid credits are used up")
    assert classify(plain).cause == Cause.CONFLICT
    assert classify(spent).cause == Cause.QUOTA_EXHAUSTED


def test_a_refusal_by_its_code_is_told_from_what_is_said_of_it() -> None:
    plain = ErrorInfo("RpcError", mro=("lib.RpcError",), code="PERMISSION_DENIED")
    filtered = replace(plain, message="Content violates usage guidelines.")
    assert classify(plain).cause == Cause.PERMISSION
    assert classify(filtered).cause == Cause.CONTENT_FILTER


@table(
    ("code", "cause"),
    [
        ("AuthFailure.SignatureFailure", Cause.AUTH),
        ("RequestLimitExceeded.User", Cause.RATE_LIMITED),
        ("InvalidImageId.NotFound", Cause.MISSING_RESOURCE),
        ("ResourceInsufficient.Type", Cause.OVERLOADED),
    ],
)
def test_of_a_code_with_a_dot_the_general_part_counts_where_the_whole_says_nothing(
    code: str, cause: Cause
) -> None:
    assert classify(ErrorInfo("SDKError", mro=("lib.SDKError",), code=code)).cause == cause


@table(
    ("name", "message", "cause"),
    [
        ("BadRequestError", "Authentication failed", Cause.AUTH),
        ("BadRequestError", "Too many requests", Cause.RATE_LIMITED),
        ("BadRequestError", "The amount is too low", Cause.BAD_REQUEST),
        ("InternalError", "Database record `books:1` already exists", Cause.BAD_REQUEST),
        ("InternalError", "Something went wrong", Cause.SERVER_ERROR),
    ],
)
def test_words_say_more_than_a_class_for_every_refusal(
    name: str, message: str, cause: Cause
) -> None:
    error = ErrorInfo(name, mro=(f"lib.{name}", "builtins.Exception"), message=message)
    assert classify(error).cause == cause


def test_an_error_page_is_the_other_sides_whatever_class_carries_it() -> None:
    page = "<html><head><title>502 Bad Gateway</title></head></html>"
    assert classify(said(page, "ValueError")).failure_type is EXTERNAL
    assert classify(said("<html><body>Welcome</body></html>", "ValueError")).failure_type is SCHEMA
    assert classify(said("502 Bad Gateway", "ValueError")).failure_type is FailureType.UNKNOWN
    answer = 'Request failed with status code 429: {"error": "5 requests a second"}'
    assert classify(said(answer, "ValueError")).cause == Cause.RATE_LIMITED
    own = said("status code 429: seat {row} is not in the plan", "ValueError")
    assert classify(own).failure_type is FailureType.UNKNOWN


@table(
    ("behind", "cause"),
    [
        (OSError("[Errno 111] Connection refused"), Cause.CONNECTION),
        (OSError("certificate verify failed"), Cause.TLS),
        (OSError("Name or service not known"), Cause.DNS),
        (ValueError("no such page"), Cause.UNAVAILABLE),
    ],
)
def test_the_network_says_more_than_a_class_for_what_is_not_there(
    behind: Exception, cause: Cause
) -> None:
    class GeocoderUnavailable(Exception):
        pass

    error = GeocoderUnavailable("no")
    error.__cause__ = behind
    assert diagnose(error).cause == cause


def test_an_unknown_tool_behind_used_up_retries_decides() -> None:
    class UnexpectedModelBehavior(Exception):
        pass

    error = UnexpectedModelBehavior("Tool exceeded its retries")
    error.__cause__ = RuntimeError("Unknown tool name: 'serch'. Available tools: 'search'")
    found = diagnose(error)
    assert found.failure_type is FailureType.WRONG_TOOL_CALLED
