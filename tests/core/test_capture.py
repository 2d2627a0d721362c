"""Exceptions as data: what is read from a live one, and what can be written onto one."""

from __future__ import annotations

import errno
import socket
import ssl
from enum import Enum
from types import SimpleNamespace
from typing import Any

import httpx2
import openai
import pytest
from tables import table

from core.raised import APIError, response
from triage.core import Cause, ErrorInfo, FailureType, Severity, hint, not_attempted
from triage.core.capture import capture

# --- class and message -----------------------------------------------------------------------


def test_class_bases_and_message_are_kept() -> None:
    info = capture(ConnectionResetError(errno.ECONNRESET, "gone"))
    assert (info.type_name, info.module) == ("ConnectionResetError", "builtins")
    assert info.mro[:2] == ("builtins.ConnectionResetError", "builtins.ConnectionError")
    assert "builtins.object" not in info.mro
    assert info.code == "ECONNRESET"
    assert info.is_a("OSError")


def test_an_empty_message_is_replaced_by_the_name_of_the_class() -> None:
    assert capture(ValueError()).message == "ValueError"
    assert capture(ValueError("  ")).message == "ValueError"


def test_a_message_is_cut() -> None:
    assert len(capture(ValueError("x" * 1_000_000)).message) == 4_000


def test_notes_are_kept_and_bounded() -> None:
    error = ValueError("x")
    for number in range(50):
        error.add_note(f"note {number} " + "y" * 9_000)
    notes = capture(error).notes
    assert len(notes) == 8
    assert all(len(note) <= 500 for note in notes)


# --- status, code, body ----------------------------------------------------------------------


@table(
    "error",
    [
        APIError(status_code=429),
        APIError(status=429),
        APIError(http_status=429),
        APIError(response=response(429)),
        APIError(response=SimpleNamespace(status=429)),
        APIError(response={"ResponseMetadata": {"HTTPStatusCode": 429}}),
        APIError(code=429, response=object()),
        APIError(code="429", body={}),
    ],
)
def test_a_status_is_found_wherever_clients_keep_it(error: Exception) -> None:
    info = capture(error)
    assert info.status_code == 429
    assert info.phase == "answered"


@table(
    "error",
    [
        APIError(status_code="N/A"),
        APIError(status=-1),
        APIError(status=True),
        APIError(code=404),
        SystemExit(404),
    ],
)
def test_a_number_that_is_no_status_is_not_taken_for_one(error: BaseException) -> None:
    assert capture(error).status_code is None


@table(
    ("error", "code"),
    [
        (APIError(code="insufficient_quota", body={}), "insufficient_quota"),
        (APIError(body={"error": {"code": "model_not_found", "type": "x"}}), "model_not_found"),
        (APIError(body={"type": "error", "error": {"type": "overloaded_error"}}), "overloaded_error"),
        (APIError(response={"Error": {"Code": "ThrottlingException"}}), "ThrottlingException"),
        (APIError(code=lambda: SimpleNamespace(name="UNAVAILABLE")), "UNAVAILABLE"),
        (APIError(sqlstate="40P01"), "40P01"),
        (APIError(details={"codeName": "WriteConflict", "code": 112}), "WriteConflict"),
        (APIError(smtp_code=535), "SMTP_535"),
        (FileNotFoundError(errno.ENOENT, "x"), "ENOENT"),
        (socket.gaierror(-2, "Name or service not known"), "EAI"),
    ],
)  # fmt: skip
def test_the_providers_own_code_is_found(error: Exception, code: str) -> None:
    assert capture(error).code == code


def test_a_small_body_is_decoded_and_a_large_one_cut() -> None:
    assert capture(APIError(body='{"error": "x"}')).body == {"error": "x"}
    assert capture(APIError(content=b'{"a": [1, null, true]}')).body == {"a": [1, None, True]}
    large = capture(APIError(body="[" + "1," * 1_000_000 + "1]")).body
    assert len(large) == 2_000
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    assert len(str(capture(APIError(body=deep)).body)) < 100
    wide = capture(APIError(body={str(n): n for n in range(100_000)})).body
    assert len(wide) == 40


def test_an_answer_nobody_has_read_is_not_fetched() -> None:
    class Streamed:
        status_code = 500
        _content = False

        @property
        def content(self) -> bytes:
            raise AssertionError("read from the network")

    assert capture(APIError(response=Streamed())).body is None


def test_failed_fields_of_a_validation_error_are_kept() -> None:
    from pydantic import BaseModel, ValidationError

    class Trip(BaseModel):
        days: int

    with pytest.raises(ValidationError) as caught:
        Trip.model_validate({"days": "many"})
    item = capture(caught.value).body["detail"][0]
    assert item["loc"] == ["days"]
    assert item["type"] == "int_parsing"


# --- phase -----------------------------------------------------------------------------------


def named(name: str) -> Exception:
    found: Exception = type(name, (Exception,), {})("failed")
    return found


@table(
    ("error", "phase"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), "not_sent"),
        (OSError(errno.EHOSTUNREACH, "x"), "not_sent"),
        (socket.gaierror(-2, "x"), "not_sent"),
        (ssl.SSLCertVerificationError(1, "x"), "not_sent"),
        (named("ConnectTimeout"), "not_sent"),
        (named("PoolTimeout"), "not_sent"),
        (named("ReadTimeout"), "sent"),
        (ConnectionResetError(errno.ECONNRESET, "x"), "sent"),
        (BrokenPipeError(errno.EPIPE, "x"), "sent"),
        (named("RemoteProtocolError"), "sent"),
        (APIError(status_code=500), "answered"),
        (TimeoutError(), None),
        (ValueError("x"), None),
    ],
)
def test_the_phase_says_how_far_a_request_got(error: BaseException, phase: str | None) -> None:
    assert capture(error).phase == phase


def wrapped(cause: Exception) -> ErrorInfo:
    """What is known of the error that the real client raises when its transport has raised this."""

    def fails(request: httpx2.Request) -> httpx2.Response:
        raise cause

    http = httpx2.Client(transport=httpx2.MockTransport(fails))
    client = openai.OpenAI(api_key="k", http_client=http, max_retries=0)
    with client, pytest.raises(openai.APIConnectionError) as caught:
        client.models.list()
    return capture(caught.value)


def test_a_general_connection_error_has_the_phase_of_what_it_wraps() -> None:
    refused, lost = wrapped(httpx2.ConnectError("refused")), wrapped(httpx2.ReadError("lost"))
    assert (refused.phase, refused.not_attempted) == ("not_sent", True)
    assert (lost.phase, lost.not_attempted) == ("sent", False)


def test_an_error_of_somebodys_own_does_not_have_the_phase_of_its_cause() -> None:
    outer = named("APIConnectionError")
    outer.__cause__ = named("ConnectError")
    assert capture(outer).phase is None
    assert not capture(outer).not_attempted


# --- what belongs together -------------------------------------------------------------------


def relations(info: ErrorInfo) -> list[tuple[str, str]]:
    return [(found.type_name, found.relation) for found in info.walk()]


def test_cause_context_and_members_are_followed() -> None:
    inner = ExceptionGroup("both", [KeyError("a"), TimeoutError()])
    outer = RuntimeError("outer")
    outer.__cause__ = inner
    assert relations(capture(outer)) == [
        ("RuntimeError", ""),
        ("ExceptionGroup", "cause"),
        ("KeyError", "group"),
        ("TimeoutError", "group"),
    ]


def test_a_suppressed_context_is_left_out() -> None:
    error = RuntimeError("outer")
    error.__context__ = KeyError("a")
    assert relations(capture(error))[1:] == [("KeyError", "context")]
    error.__suppress_context__ = True
    assert relations(capture(error))[1:] == []


def test_a_cycle_ends() -> None:
    one, two = RuntimeError("one"), RuntimeError("two")
    one.__cause__, two.__cause__ = two, one
    assert [info.message for info in capture(one).walk()] == ["one", "two"]


def test_long_chains_and_wide_groups_are_cut() -> None:
    error: Exception = ValueError("0")
    for number in range(1, 3_000):
        wrapped = RuntimeError(str(number))
        wrapped.__cause__ = error
        error = wrapped
    assert len(list(capture(error).walk())) <= 13
    nested: Exception = ExceptionGroup("g", [ValueError(str(n)) for n in range(10_000)])
    assert len(list(capture(nested).walk())) <= 25


# --- writing ---------------------------------------------------------------------------------


def test_a_hint_is_attached_kept_as_plain_data_and_returned() -> None:
    error = ValueError("x")
    found = hint(
        error, failure_type=FailureType.PLAN_INCOMPLETE, cause=Cause.INCOMPLETE, severity="fatal"
    )
    assert found is error
    hint(error, retry_after_s=2)
    assert capture(error).hint == {
        "failure_type": "plan_incomplete",
        "cause": "incomplete",
        "severity": Severity.FATAL.value,
        "retry_after_s": 2.0,
    }
    assert capture(ValueError("x")).hint is None


@table(
    ("field", "value"),
    [
        ("failure_type", "sunspots"),
        ("cause", 3),
        ("severity", "bad"),
        ("hint", 3),
        ("retry_after_s", -1),
        ("retry_after_s", float("inf")),
        ("retry_after_s", "3"),
        ("user_message", b"x"),
    ],
)
def test_a_wrong_hint_is_refused_by_field(field: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=field):
        hint(ValueError("x"), **{field: value})


def test_hint_refuses_what_is_no_exception() -> None:
    with pytest.raises(TypeError, match="an exception"):
        hint("text")  # type: ignore[type-var] # the wrong type is the test
    with pytest.raises(TypeError, match="an exception"):
        not_attempted(ValueError)  # type: ignore[type-var] # the wrong type is the test


def test_an_exception_that_refuses_attributes_takes_a_hint() -> None:
    class Refuses(Exception):
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(name)

    assert (capture(hint(Refuses("x"), cause="c")).hint or {})["cause"] == "c"


def test_not_attempted_marks_the_phase() -> None:
    error = not_attempted(TimeoutError("queue was full"))
    assert capture(error).phase == "not_sent"
    assert capture(error).not_attempted


# --- what clients keep in places of their own ------------------------------------------------


def client_error(module: str, *args: object, **fields: object) -> Exception:
    """An exception of a client's class, as `module` would define it."""
    kind = type("ClientError", (Exception,), {"__module__": module})
    error: Exception = kind(*args)
    error.__dict__.update(fields)
    return error


class Rpc(Enum):
    UNAVAILABLE = 14


@table(
    ("error", "code"),
    [
        (client_error("pycurl", 28, "Operation timed out"), "CURL_28"),
        (client_error("mysql.connector.errors", "full", errno=1040, sqlstate="08004"), "08004"),
        (
            client_error("mysql.connector.errors", "slow", errno=3024, sqlstate="HY000"),
            "MYSQL_3024",
        ),
        (client_error("clickhouse_driver.errors", "no such table", code=60), "CLICKHOUSE_60"),
        (client_error("facebook_business.exceptions", "slow down", _api_error_code=17), "GRAPH_17"),
        (client_error("ftplib", "552 quota"), "FTP_552"),
        (client_error("asyncmy.errors", 1969, "too slow", sqlstate="70100"), "MYSQL_1969"),
        (client_error("lib", "closed", error_type="NOT-FOUND"), "NOT-FOUND"),
        (client_error("lib", "White has lost on time", status="timeout"), None),
        (client_error("lib", "no", status="rate_limited"), "rate_limited"),
        (client_error("aioftp.errors", "no", received_codes=("530",)), "FTP_530"),
        (client_error("grpclib.exceptions", "draining", status=Rpc.UNAVAILABLE), "UNAVAILABLE"),
        (client_error("pg8000", {"S": "ERROR", "C": "42P01", "M": "no books"}), "42P01"),
        (client_error("oracledb", SimpleNamespace(code=12514, full_code="ORA-12514")), "ORA-12514"),
        (
            client_error("confluent_kafka", SimpleNamespace(code=7, name=lambda: "TIMED_OUT")),
            "TIMED_OUT",
        ),
        (client_error("lib", message="", code="42501", details=None, hint=None), "42501"),
        (ValueError({"code": "rate_limited"}), None),
        (ValueError(SimpleNamespace(code=7, name=lambda: "TIMED_OUT")), None),
    ],
)
def test_a_code_is_read_where_its_client_keeps_it(error: BaseException, code: str | None) -> None:
    assert capture(error).code == code


def test_a_status_counts_in_args_only_before_its_own_name() -> None:
    for name in ("Unprocessable Entity", "Unprocessable Content"):
        named = client_error("lib", "the API returned an error", 422, name)
        assert capture(named).status_code == 422
    assert capture(client_error("lib", "the flat has", 422, "windows")).status_code is None


@table(
    "body",
    [{"status": 429, "title": "Slow down"}, {"error": {"status_code": 429}}, {"status": "429"}],
)
def test_a_status_that_only_a_body_states_does_not_prove_that_nothing_was_done(body: Any) -> None:
    info = capture(client_error("lib", "no", details=body))
    assert (info.status_code, info.not_attempted) == (429, False)
    answered = capture(client_error("lib", "no", details=body, status_code=500))
    assert answered.status_code == 500


def test_a_success_that_a_body_states_is_no_status_of_an_error() -> None:
    assert capture(client_error("lib", "no", details={"status": 200})).status_code is None


def test_a_delay_of_zero_in_a_field_is_the_default_of_its_class() -> None:
    assert capture(client_error("lib", "no", retry_after=0)).retry_after_s is None
    assert capture(client_error("lib", "no", period_remaining=2.5)).retry_after_s == 2.5
    for name in ("retry_after_seconds", "backoff"):
        assert capture(client_error("lib", "no", **{name: 17})).retry_after_s == 17


def test_a_reply_of_a_broker_is_read_where_its_client_keeps_it() -> None:
    closed = type("AMQPChannelError", (OSError,), {"__module__": "lib"})("closed")
    closed.error_code = 406
    assert capture(closed).code == "AMQP_406"
