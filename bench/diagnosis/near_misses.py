"""Exceptions of an agent's own code whose words are those of a provider, a network or a model.

Right is UNKNOWN, or what the exception is by its class; an answer that only its words bear out is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NoReturn

from .cases import BAD_RESPONSE, FORBIDDEN, MISSING, UNKNOWN, Case, Label

UNKNOWN_OR_MISSING = Label(("unknown", "hallucinated_state"))
DECODING = Label(("unknown", "schema_mismatch"))


class BookingError(RuntimeError):
    """An application's own error."""


class QuotaPlanError(ValueError):
    """An error about a plan of seats for each agency, which the application calls a quota."""


class TimeoutColumnError(KeyError):
    """A column that is named timeout is not in a table."""


class TokenizerStateError(Exception):
    """A parser's own error."""


class ConnectionTypeError(TypeError):
    """An error about the connections of a train journey."""


class ToolCribError(LookupError):
    """An error of a workshop's inventory."""


class LoopGeometryError(ArithmeticError):
    """An error about the loops of a race track."""


_SAID: tuple[BaseException, ...] = (
    ValueError("rate limit must be positive, got -3"),
    ValueError("429 is not a valid room number"),
    ValueError("context window too narrow for the chart: 12 px"),
    ValueError("loop detected in graph input: a -> b -> a"),
    ValueError("invalid token '}' at line 3 of the recipe"),
    ValueError("the quota column holds text: 'n/a'"),
    ValueError("unauthorized is no order status; known are open, paid, shipped"),
    ValueError("timeout must be a number of seconds"),
    ValueError("max_tokens and budget cannot both be zero"),
    ValueError("cannot connect point 4 to point 9: they coincide"),
    ValueError("schema 'public' has 0 seats left"),
    ValueError("retry_after may not be negative"),
    ValueError("model 'T' was built from 1908 to 1927, not in 1935"),
    ValueError("certificate number 00-881 has a wrong check digit"),
    ValueError("503 crates do not fit on 12 pallets"),
    ValueError("permission slip is missing a date"),
    ValueError("guardrail height below 1.10 m"),
    ValueError("the tool list of the workshop is empty"),
    KeyError("timeout"),
    KeyError("rate_limit"),
    KeyError("status_code"),
    KeyError("api_key_column"),
    KeyError("tool 'hammer' not in inventory"),
    KeyError(404),
    IndexError("page 500 of 499"),
    IndexError("context index out of range"),
    IndexError("token list is empty"),
    TypeError("unsupported operand type(s) for +: 'Timeout' and 'int'"),
    TypeError("rate limiter expects a callable"),
    TypeError("'Connection' object is not subscriptable"),
    TypeError("schema must be a dict, not list"),
    TypeError("overloaded truck cannot be compared with None"),
    ZeroDivisionError("division by zero: requests per minute"),
    ZeroDivisionError("tokens per second of an empty interval"),
    AttributeError("'Booking' object has no attribute 'timeout'"),
    AttributeError("'NoneType' object has no attribute 'rate_limit'"),
    AttributeError("'Server' object has no attribute 'unavailable'"),
    AssertionError("expected 401 rows, got 403"),
    AssertionError("connection graph is not connected"),
    AssertionError("plan is incomplete only if a stage is open"),
    AssertionError("hallucinated rows must be zero in the fixture"),
    AssertionError(),
    BookingError("service dog is unavailable for hire"),
    BookingError("gateway 502 closes ten minutes before departure"),
    BookingError("too many requests for a window seat in row 12"),
    BookingError("the guest is forbidden fruit's author; see the notes"),
    BookingError("internal server (tennis) has an error rate of 4 %"),
    BookingError("connection at Basel is refused by the planner: 2 minutes"),
    QuotaPlanError("agency 7 exceeded its quota of 12 seats"),
    QuotaPlanError("insufficient_quota must be one of: warn, block"),
    TimeoutColumnError("timeout"),
    TokenizerStateError("context length 3 does not match the grammar's 4"),
    TokenizerStateError("maximum depth of loops is 8"),
    ConnectionTypeError("a connection takes a train, not a bus"),
    ToolCribError("no tool named 'torque wrench' on shelf 3"),
    ToolCribError("unknown tool size 17/32"),
    LoopGeometryError("the loop repeats itself after 400 m"),
    NotImplementedError("content filter for spam scores"),
    RecursionError("maximum recursion depth exceeded while comparing tokens"),
    StopIteration("no more tools"),
    RuntimeError("dictionary changed size during iteration over rate limits"),
    RuntimeError("the event loop of the fair runs twice a day"),
    LookupError("city 'Timeout' is in no gazetteer"),
    OverflowError("context of the integer is too large to convert to C long"),
)

_FILE_MISSING = FileNotFoundError(2, "No such file or directory", "rate_limit_429.txt")
_FILE_DENIED = PermissionError(13, "Permission denied", "/etc/timeout.conf")
_BY_CLASS: tuple[tuple[BaseException, Label], ...] = (
    (_FILE_MISSING, MISSING),
    (_FILE_DENIED, FORBIDDEN),
    (IsADirectoryError(21, "Is a directory", "/srv/context window"), UNKNOWN_OR_MISSING),
    (json.JSONDecodeError("Expecting value", "429 Too Many Requests", 4), BAD_RESPONSE),
    (UnicodeDecodeError("utf-8", b"\xff401", 0, 1, "invalid start byte"), DECODING),
    (MemoryError("no room for the context"), Label(("unknown", "external_fault"))),
)
"""What these are is said by their classes, whatever their words are about."""


def cases() -> Iterator[Case]:
    """All near misses."""
    yield from labelled("near miss", [*((error, UNKNOWN) for error in _SAID), *_BY_CLASS])


def labelled(name: str, errors: Iterable[tuple[BaseException, Label]]) -> Iterator[Case]:
    """A case for each exception, named after what it says."""
    for error, label in errors:
        yield Case(f"{name}/{type(error).__name__}({error})", partial(_throw, error), label)


def _throw(error: BaseException) -> NoReturn:
    raise error
