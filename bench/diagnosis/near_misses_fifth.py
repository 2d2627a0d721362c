"""A fifth set of the agent's own errors whose words are those of services, networks and tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, NoReturn

from .cases import Case, Label

OWN = Label(("unknown", "schema_mismatch", "hallucinated_state", "plan_incomplete"))
"""It is none of the other side's doing, no loop and no unknown tool, and the same call fails again."""


class RateCardError(Exception):
    """Postage has no rate for a parcel."""


class ThrottleValveStuck(Exception):
    """A valve of the irrigation does not move."""


class QuotaReportIncomplete(Exception):
    """The sales team's quota report lacks a region."""


class TimeoutPolicyMissing(LookupError):
    """No policy is written for a class of tickets."""


class ConnectionGraphError(Exception):
    """The graph of connecting flights has no path."""


class GatewayCityUnknown(KeyError):
    """An airport is no gateway city."""


class OverloadedLorry(ValueError):
    """The planned load is more than the lorry bears."""


class RetryBudgetNegative(ValueError):
    """A budget of retries was computed as less than none."""


class AuthorNotUnique(Exception):
    """Two authors go by the same name."""


class PermissionSlipUnsigned(Exception):
    """A school trip's slip was not signed."""


def cases() -> Iterator[Case]:
    """All near misses, by kind of error."""
    for kind, rows in _ROWS.items():
        for name, provoke in rows.items():
            yield Case(f"{kind}/{name}", provoke, OWN)


def _raises(error: Exception) -> Callable[[], object]:
    def provoke() -> NoReturn:
        raise error

    return provoke


def _split(kind: str) -> object:
    """Divide the errors of a kind by the calls of that kind, of which there were none."""
    errors: Mapping[str, int] = {"timeout": 4, "429": 2, "refused": 9}
    return errors[kind] / sum(())


def _retries(*, retries: int, timeout: float) -> float:
    return retries * timeout


def _wait(text: Any) -> float:
    return float(text) * 1.5


def _two(header: str) -> tuple[str, str]:
    name, value = header.split(": ")
    return name, value


_COUNTS = {"ok": 12, "rejected": 0}
_TOOLS: dict[str, Callable[[], object]] = {"search": dict}
_TRIES = ["attempt 1: timeout", "attempt 2: timeout"]
_RATES = [Decimal("0.5")]
_JOB: Any = None

_ROWS: Mapping[str, Mapping[str, Callable[[], object]]] = {
    "value": {
        "status line": lambda: int("429 Too Many Requests"),
        "retry after": lambda: float("Retry-After: 30 seconds"),
        "host": lambda: ("10.0.0.4", "refused").index("connection refused"),
        "header": lambda: _two("503 Service Unavailable"),
        "date": lambda: datetime.fromisoformat("timeout at noon"),
        "list": lambda: ["rate_limit", "quota"].remove("insufficient_quota"),
        "window": _raises(ValueError("rate limit window must begin before it ends: 14:00, 13:00")),
        "column": _raises(ValueError("column 'server_error' has 3 values, index has 4")),
        "quota": _raises(ValueError("quota exceeded by region North: 104 % of 40 units sold")),
        "seats": _raises(ValueError("overloaded: 44 passengers for a boat of 40")),
        "queue": _raises(ValueError("maximum retries must be a positive number, got -1")),
        "loop": _raises(ValueError("route has a loop: Brno, Vienna, Brno")),
        "tool": _raises(ValueError("tool not found in drawer 7: torque wrench")),
        "token": _raises(ValueError("token expired: parking token 88 was valid until Friday")),
        "ssl": _raises(ValueError("certificate of analysis has expired for batch 12")),
    },
    "key": {
        "timeout": lambda: _COUNTS["timeout"],
        "status": lambda: {200: "fine"}[503],
        "code": lambda: _COUNTS["rate_limit_exceeded"],
        "word": lambda: _COUNTS["service unavailable"],
        "tool": lambda: _TOOLS["send_email"],
        "host": lambda: {"db-1": 5432}["db-2: connection refused"],
        "json": lambda: json.loads('{"error": "overloaded_error"}')["message"],
        "own": _raises(KeyError("no unauthorized absences on file for pupil 14")),
    },
    "index": {
        "attempts": lambda: _TRIES[2],
        "rates": lambda: _RATES[4],
        "text": _raises(IndexError("page 503 of a book with 340 pages")),
        "words": lambda: "502 Bad".split()[2],
    },
    "lookup": {
        "codec": lambda: "rate".encode("too-many-requests"),
        "gateway": _raises(LookupError("bad gateway: door B is no gate of terminal 2")),
        "function": _raises(LookupError("function of the sensor does not exist in the manual")),
    },
    "type": {
        "argument": lambda: _retries(retries=3, timeout=1.0, max_retries=5),  # type: ignore[call-arg]
        "missing": lambda: _retries(retries=3),  # type: ignore[call-arg]
        "none": lambda: _JOB["rate_limit"],
        "call": lambda: _JOB("connection reset by peer"),
        "sum": lambda: "timeout after " + 30,  # type: ignore[operator]
        "list": lambda: _wait(["503"]),
        "compare": lambda: sorted(["429", 503]),  # type: ignore[type-var]
        "text": _raises(TypeError("service unavailable on Sundays must be given as a weekday number")),
        "json": lambda: json.dumps({"error": {429, 503}}),
    },
    "arithmetic": {
        "errors": lambda: _split("429"),
        "timeouts": lambda: _split("timeout"),
        "refused": lambda: _split("refused"),
        "remainder": lambda: 503 % _COUNTS["rejected"],
        "text": _raises(ZeroDivisionError("error rate of 0 requests (rate limit 0/s) is not defined")),
        "overflow": lambda: 2.0 ** (503 * 429),
    },
    "other": {
        "attribute": lambda: _JOB.retry_after,
        "assertion": _raises(AssertionError("expected 429, got 503 in the table of fines")),
        "runtime": _raises(RuntimeError("the plan names the gateway timeout as a stop of the bus")),
        "decode": lambda: json.loads("Too Many Requests")["error"],
        "utf": b"\xff\xfe503".decode,
    },
    "of its own class": {
        "rate": _raises(RateCardError("rate limit of zone 4 is 20 kg, parcel has 23")),
        "throttle": _raises(ThrottleValveStuck("throttle valve 3 is stuck at 40 %")),
        "quota": _raises(QuotaReportIncomplete("quota for 'West' is missing in the report")),
        "timeout": _raises(TimeoutPolicyMissing("no timeout policy for tickets of class C")),
        "connection": _raises(ConnectionGraphError("no connection from Graz to Lund within 9 h")),
        "gateway": _raises(GatewayCityUnknown("Bergen is no gateway city")),
        "overloaded": _raises(OverloadedLorry("axle 2 overloaded by 340 kg")),
        "retry": _raises(RetryBudgetNegative("retry budget is -2 after deduction")),
        "author": _raises(AuthorNotUnique("two authors match 'J. Smith': forbidden in the index")),
        "permission": _raises(PermissionSlipUnsigned("permission slip of pupil 31 is not signed")),
    },
}  # fmt: skip
