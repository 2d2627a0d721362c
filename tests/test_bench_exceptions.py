"""The exceptions of the bench: each raises what it says, and a label counts as what it is."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any

import pytest

from bench.diagnosis import exceptions, near_misses, near_misses_second
from bench.diagnosis.cases import RATE, Absent, Case, NothingRaised, raised, use
from bench.diagnosis.servers import Reply, closed_port, web

TOLD: dict[str, Any] = {
    "id": "lib/one", "raised": "E: slow down", **RATE.after(20)._asdict(), "type": "external_fault",
    "cause": "rate_limited", "severity": "retriable", "delay_s": 20.4,
}  # fmt: skip


def test_near_misses_raise_and_have_names_of_their_own() -> None:
    cases = [*near_misses.cases(), *near_misses_second.cases()]
    assert len({case.id for case in cases}) == len(cases) >= 100
    for case in cases:
        assert type(raised(case)).__name__ in case.id
        assert not set(case.label.types) & {"loop_detected", "context_overflow"}


def test_a_label_counts_as_what_it_is() -> None:
    changes: list[dict[str, Any]] = [
        {}, {"type": "unknown"}, {"type": "goal_drift"}, {"cause": "quota_exhausted"},
        {"severity": "critical"}, {"delay_s": None}, {"delay_s": 3.0},
        {"retry_after_s": None}, {"causes": [], "passes": None},
    ]  # fmt: skip
    line = exceptions.line("all", [TOLD | change for change in changes])
    assert line == exceptions.Line(
        "all",
        9,
        7 / 9,
        misrouted=1,
        abstained=1,
        cause=7 / 8,
        passes=7 / 8,
        delay=6 / 8,
        invented=1,
    )
    assert len(list(exceptions.missed([TOLD | change for change in changes]))) == 7
    nothing = exceptions.line("none", [])
    assert (nothing.right, nothing.cause, nothing.passes, nothing.delay) == (None,) * 4


def test_each_library_has_a_line() -> None:
    lines = list(exceptions.by_library([TOLD, TOLD | {"id": "other/two"}, TOLD]))
    assert [(line.title, line.cases) for line in lines] == [("lib", 2), ("other", 1), ("all", 3)]


def test_what_is_not_installed_or_raises_nothing_is_told_apart() -> None:
    with pytest.raises(Absent):
        raised(Case("a", lambda: use("no_such_library_at_all"), RATE))
    with pytest.raises(NothingRaised):
        raised(Case("a", lambda: None, RATE))


def test_a_client_gets_the_answer_it_was_to_get() -> None:
    with web(Reply(429, {"slow": True}, {"Retry-After": "3"})) as base:
        with pytest.raises(urllib.error.HTTPError) as found:
            urllib.request.urlopen(base)
        assert (found.value.code, found.value.headers["Retry-After"]) == (429, "3")
        assert found.value.read() == b'{"slow": true}'
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{closed_port()}")
