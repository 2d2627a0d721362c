"""Exceptions as data: what is read from a live one, and what can be written onto one."""

from __future__ import annotations

import errno
import socket
import ssl
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triage._capture import capture, hint, not_attempted
from triage.failures import ErrorInfo
from triage.taxonomy import Cause, FailureType, Severity


class APIError(Exception):
    """Shaped as clients of HTTP services shape theirs: whatever is given becomes an attribute."""

    def __init__(self, message: str = "failed", **attributes: Any) -> None:
        super().__init__(message)
        for name, value in attributes.items():
            setattr(self, name, value)


def response(status: int = 429, headers: Any = None, **more: Any) -> SimpleNamespace:
    return SimpleNamespace(status_code=status, headers=headers or {}, **more)


def after(headers: Any) -> float | None:
    return capture(APIError(response=response(headers=headers))).retry_after_s


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


@pytest.mark.parametrize(
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
    ids=range(8),
)
def test_a_status_is_found_wherever_clients_keep_it(error: Exception) -> None:
    info = capture(error)
    assert info.status_code == 429
    assert info.phase == "answered"


@pytest.mark.parametrize(
    "error",
    [
        APIError(status_code="N/A"),
        APIError(status=-1),
        APIError(status=True),
        APIError(code=404),
        SystemExit(404),
    ],
    ids=range(5),
)
def test_a_number_that_is_no_status_is_not_taken_for_one(error: BaseException) -> None:
    assert capture(error).status_code is None


@pytest.mark.parametrize(
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
    ids=lambda value: value if isinstance(value, str) else "",
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


# --- delays ----------------------------------------------------------------------------------


def test_a_delay_is_read_from_headers() -> None:
    assert after({"Retry-After": "7"}) == 7
    assert after({"retry-after": "0"}) == 0
    assert after([("Retry-After", "7")]) == 7
    assert after({"retry-after-ms": "1500", "retry-after": "2"}) == 1.5
    assert after({"x-ms-retry-after-ms": "250"}) == 0.25
    assert after({"ratelimit": '"api";r=0;t=55'}) == 55
    assert after({"Retry-After": "soon"}) is None
    assert after({"Retry-After": "-3"}) is None
    assert after({"Retry-After": "nan"}) is None
    assert after({"Retry-After": "1e999"}) is None


def test_a_date_is_measured_by_the_other_sides_clock() -> None:
    theirs = datetime(2001, 1, 1, tzinfo=UTC)
    headers = {
        "Date": format_datetime(theirs, usegmt=True),
        "Retry-After": format_datetime(theirs + timedelta(seconds=30), usegmt=True),
    }
    assert after(headers) == 30
    soon = datetime.fromtimestamp(time.time() + 60, UTC)
    found = after({"Retry-After": format_datetime(soon, usegmt=True)})
    assert found is not None
    assert 55 < found <= 61
    assert after({"Retry-After": format_datetime(theirs, usegmt=True)}) == 0


def test_a_header_beats_the_text_and_a_typed_detail_beats_it_too() -> None:
    error = APIError("try again in 9s", response=response(headers={"retry-after": "2"}))
    assert capture(error).retry_after_s == 2
    duration = SimpleNamespace(seconds=12, nanos=500_000_000)
    detail = SimpleNamespace(retry_delay=duration)
    assert capture(APIError("try again in 9s", details=[detail])).retry_after_s == 12.5
    body = {"error": {"details": [{"@type": "google.rpc.RetryInfo", "retryDelay": "34s"}]}}
    assert capture(APIError("x", body=body)).retry_after_s == 34


def test_retry_info_is_read_from_the_trailers_of_a_call() -> None:
    info = b"\x0a\x09\x08\x06\x10\x80\xca\xb5\xee\x01"
    error = APIError(trailing_metadata=lambda: (("google.rpc.retryinfo-bin", info),))
    assert capture(error).retry_after_s == 6.5
    broken = APIError(trailing_metadata=lambda: (("google.rpc.retryinfo-bin", b"\x0a\xff\xff"),))
    assert capture(broken).retry_after_s is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Please try again in 1.4s.", 1.4),
        ("try again in 6m0s", 360),
        ("retry after 15 seconds", 15),
        ("Please wait 2 minutes 3 seconds", 123),
        ("try again in 350ms", 0.35),
        ("Retry-After: 3", 3),
        ("try again in 1 hour", 3600),
        ("retry 5 times", None),
        ("wait a few minutes", None),
        ("created in 20s", None),
        ("try again later", None),
    ],
)
def test_a_delay_is_read_from_words_only_where_they_name_one(
    text: str, seconds: float | None
) -> None:
    assert capture(RuntimeError(text)).retry_after_s == seconds


# --- phase -----------------------------------------------------------------------------------


def named(name: str) -> Exception:
    found: Exception = type(name, (Exception,), {})("failed")
    return found


@pytest.mark.parametrize(
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
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_the_phase_says_how_far_a_request_got(error: BaseException, phase: str | None) -> None:
    assert capture(error).phase == phase


def test_a_general_connection_error_has_the_phase_of_what_it_wraps() -> None:
    outer = named("APIConnectionError")
    outer.__cause__ = named("ConnectError")
    assert capture(outer).phase == "not_sent"
    assert capture(outer).not_attempted
    outer.__cause__ = named("ReadTimeout")
    assert capture(outer).phase == "sent"
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


# --- hostile objects -------------------------------------------------------------------------


class Hostile(Exception):
    def __str__(self) -> str:
        raise SystemExit

    def __getattribute__(self, name: str) -> Any:
        raise LookupError(name)


class Liar(Exception):
    status_code = property(lambda self: 1 / 0)
    headers = property(lambda self: (_ for _ in ()).throw(SystemExit))
    body: ClassVar[Any] = {"a": type("Bad", (str,), {"__str__": lambda self: 1 / 0})("x")}

    @property  # type: ignore[misc] # lying about the class is the test
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class Endless(dict[str, Any]):
    def items(self) -> Any:
        while True:
            yield "a", self


def test_hostile_exceptions_are_captured_all_the_same() -> None:
    assert capture(Hostile()).message == "Hostile"
    assert capture(Liar("x")).type_name == "Liar"
    assert capture(APIError(body=Endless())).body is not None
    huge = capture(APIError(status_code=10**5_000, retry_after=10**5_000))
    assert (huge.status_code, huge.retry_after_s) == (None, None)


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=30),
    st.binary(max_size=30),
    st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=3),
    st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=5), max_size=3),
    st.sampled_from([object(), Hostile, lambda: 1 / 0, Endless(), response(headers=Endless())]),
)
ATTRIBUTES = """
    status_code status code response headers body data details content error errors type sqlstate
    retry_after trailing_metadata smtp_code errno __notes__ exceptions message reason resp
"""
attributes = st.sampled_from(sorted(set(ATTRIBUTES.split())))


@given(st.dictionaries(attributes, values, max_size=6), st.text(max_size=50))
def test_no_attribute_makes_capture_raise(found: dict[str, Any], message: str) -> None:
    error = type("ValidationHTTPError", (Exception,), {})(message)
    for name, value in found.items():
        setattr(error, name, value)
    info = capture(error)
    assert isinstance(info.message, str)
    assert info.status_code is None or 100 <= info.status_code <= 599
    assert info.retry_after_s is None or 0 <= info.retry_after_s < float("inf")


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


@pytest.mark.parametrize(
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


def test_an_exception_that_refuses_attributes_is_tolerated() -> None:
    class Refuses(Exception):
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(name)

    assert (capture(hint(Refuses("x"), cause="c")).hint or {})["cause"] == "c"
    assert isinstance(hint(Hostile(), cause="c"), Hostile)


def test_not_attempted_marks_the_phase() -> None:
    error = not_attempted(TimeoutError("queue was full"))
    assert capture(error).phase == "not_sent"
    assert capture(error).not_attempted
