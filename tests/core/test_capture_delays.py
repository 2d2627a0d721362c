"""How long the other side asks to wait, wherever it says so."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace

import pytest
from tables import table

from core.raised import APIError, after, response
from triage.core.capture import capture


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
    assert capture(APIError("x", body={"parameters": {"retry_after": 14}})).retry_after_s == 14
    assert capture(APIError("x", body={"error_extra": {"retry_after": 12}})).retry_after_s == 12
    assert capture(APIError("x", body={"job": {"retry_after": 12}})).retry_after_s is None


def test_retry_info_is_read_from_the_trailers_of_a_call() -> None:
    info = b"\x0a\x09\x08\x06\x10\x80\xca\xb5\xee\x01"
    error = APIError(trailing_metadata=lambda: (("google.rpc.retryinfo-bin", info),))
    assert capture(error).retry_after_s == 6.5
    for name, value, seconds in (("retry-after", "6", 6), ("grpc-retry-pushback-ms", "1500", 1.5)):
        asked = APIError(trailing_metadata=lambda pair=(name, value): (pair,))
        assert capture(asked).retry_after_s == seconds
    broken = APIError(trailing_metadata=lambda: (("google.rpc.retryinfo-bin", b"\x0a\xff\xff"),))
    assert capture(broken).retry_after_s is None


@table(
    ("text", "seconds"),
    [
        ("Please try again in 1.4s.", 1.4),
        ("try again in 6m0s", 360),
        ("retry after 15 seconds", 15),
        ("Please wait 2 minutes 3 seconds", 123),
        ("try again in 350ms", 0.35),
        ("Retry-After: 3", 3),
        ("try again in 1 hour", 3600),
        ("Too Many Requests: retry after 14", 14),
        ("Retry after 2.5, please", 2.5),
        ("retry after 3 attempts", None),
        ("retry after 14 days", None),
        ("retry after 10:30", None),
        ("retry after 2031-05-01", None),
        ("gave up: no second retry after 429", None),
        ("do not retry after 3", None),
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


# --- windows that begin anew -----------------------------------------------------------------

NOW = 1_790_000_000.0
"""Seconds since the epoch, of which the clock is made to say that it is now."""


@pytest.fixture
def at_noon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)


@pytest.mark.usefixtures("at_noon")
@table(
    ("headers", "seconds"),
    [
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 360),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "20ms"}, 0.02),
        ({"x-ratelimit-reset-tokens": "1h30m"}, 5400),
        ({"x-ratelimit-reset": "4"}, 4),
        ({"X-RateLimit-Reset": str(int(NOW) + 120)}, 120),
        ({"X-RateLimit-Reset": str((int(NOW) + 120) * 1000)}, 120),
        ({"x-rate-limit-reset": str(int(NOW) + 15)}, 15),
        ({"RateLimit-Reset": "55"}, 55),
        (
            {
                "x-ratelimit-remaining-requests": "499",
                "x-ratelimit-reset-requests": "120ms",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "1.4s",
            },
            1.4,
        ),
        (
            {
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": datetime.fromtimestamp(
                    NOW + 30, UTC
                ).isoformat(),
            },
            30,
        ),
        ({"x-ratelimit-remaining": "12", "x-ratelimit-reset": "4"}, None),
        ({"x-ratelimit-reset": "9999999"}, None),
        ({"x-ratelimit-reset": "-4"}, None),
        ({"x-ratelimit-reset": "soon"}, None),
        ({"x-ratelimit-reset": ""}, None),
        ({"x-ratelimit-reset": "2026-11-21T12:00:00"}, None),
    ],
)
def test_a_window_that_is_used_up_says_when_it_begins_anew(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert after(headers) == (None if seconds is None else pytest.approx(seconds))


def test_a_window_counts_only_for_an_answer_that_refuses_for_a_rate() -> None:
    reset = {"x-ratelimit-reset": "30"}
    assert capture(APIError(response=response(503, reset))).retry_after_s is None
    assert capture(APIError(response=response(403, reset))).retry_after_s is None
    spent = {**reset, "x-ratelimit-remaining": "0"}
    assert capture(APIError(response=response(403, spent))).retry_after_s == 30


def test_what_was_asked_for_comes_before_a_window() -> None:
    both = {"retry-after": "2", "x-ratelimit-reset": "30"}
    assert after(both) == 2
    said = APIError("try again in 9s", response=response(headers={"x-ratelimit-reset": "30"}))
    assert capture(said).retry_after_s == 9


@pytest.mark.usefixtures("at_noon")
def test_an_absurd_delay_is_none() -> None:
    assert after({"retry-after": str(int(NOW) + 60)}) == 60
    assert after({"retry-after": "999999999"}) is None
    assert after({"retry-after": "1" + "0" * 30}) is None
    assert after({"retry-after-ms": "1" + "0" * 30}) is None
