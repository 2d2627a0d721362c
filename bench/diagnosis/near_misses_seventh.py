"""A seventh set of the agent's own errors whose words, names and attributes are those of providers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from .cases import Case
from .near_misses_fifth import OWN


class ShelfError(Exception):
    """A shelf, whose number is called its code, does not bear a load."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class GameOver(RuntimeError):
    """A game of chess has ended; status says how."""

    def __init__(self, message: str, status: str) -> None:
        super().__init__(message)
        self.status = status


class DoseError(ValueError):
    """A dose cannot be given; retry_after is the hour of the next one."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TariffLimitError(ValueError):
    """A tariff is outside of what the regulator allows."""


class ToolCribError(LookupError):
    """A tool is not in the crib of a workshop."""


class ServerRota(RuntimeError):
    """A restaurant has too few servers."""


class TokenBucketEmpty(KeyError):
    """A child has no tokens left for the carousel."""


class ProviderNotListed(LookupError):
    """A provider of childcare is not in the register."""


class ModelTrainError(RuntimeError):
    """A model train derails in the plan of a layout."""


def cases() -> Iterator[Case]:
    """All near misses, by kind of error."""
    for kind, rows in _ROWS.items():
        for name, provoke in rows.items():
            yield Case(f"{kind}/{name}", provoke, OWN)


def _raises(error: Exception) -> Callable[[], object]:
    def provoke() -> NoReturn:
        raise error

    return provoke


def _wrapped() -> object:
    try:
        return _PLANS["rate_limit"]
    except KeyError as error:
        raise ServerRota("no rota for the night of the rate limit vote") from error


def _priced(*, model: str, seats: int) -> float:
    return _PRICES[model] * seats


_PRICES = {"roadster": 3.0}
_PLANS: dict[str, Any] = {"free": {"requests_per_minute": 5}}
_HEADERS: dict[str, str] = {"content-type": "text/plain"}

_TRIES = ["429 at 9:00", "429 at 9:05"]

_ROWS: Mapping[str, Mapping[str, Callable[[], object]]] = {
    "value": {
        "reset": lambda: int("2026-11-28T00:00:00Z rate limit reset"),
        "percent": lambda: float("87% of quota"),
        "pair": lambda: dict([("429", "Too Many Requests", "retry")]),  # type: ignore[arg-type]
        "range": _raises(ValueError("requests per minute must be between 1 and 600, got 0")),
        "fare": _raises(ValueError("credit balance is too low for a child's fare: 0.80")),
        "letter": _raises(ValueError("content policy: clause 4 is missing from the lease")),
        "context": _raises(ValueError("context window 3 of the facade exceeds the wall by 20 cm")),
        "model": _raises(ValueError("model T does not exist in 1907")),
        "host": _raises(ValueError("could not resolve host of the party: two names given")),
        "gateway": _raises(ValueError("payment gateway column is empty in row 504")),
        "later": _raises(ValueError("try again in 20s is not a valid instruction for a robot arm")),
    },
    "key": {
        "header": lambda: _HEADERS["retry-after"],
        "plan": lambda: _PLANS["free"]["tokens_per_minute"],
        "error": lambda: json.loads('{"message": "Rate limit reached"}')["error"],
        "choices": lambda: json.loads('{"error": {"code": 503}}')["choices"],
        "price": lambda: _priced(model="gpt-9-unavailable", seats=2),
        "bucket": _raises(TokenBucketEmpty("no tokens left for pupil 12; quota refills on Monday")),
        "tenant": _raises(KeyError("tenant quota exceeded flag")),
    },
    "type": {
        "seconds": lambda: "retry after " + 30,  # type: ignore[operator]
        "limit": lambda: min(5, None),  # type: ignore[call-overload]
        "argument": lambda: _priced(model="roadster", timeout=3),  # type: ignore[call-arg]
        "body": lambda: json.dumps({"rate_limit": b"429"}),
        "text": _raises(TypeError("connection timeout must be an int, not a Timeout")),
        "none": lambda: len(_PLANS.get("unauthorized")),  # type: ignore[arg-type]
    },
    "lookup": {
        "crib": _raises(ToolCribError("unknown tool: torque wrench is not in crib 4")),
        "provider": _raises(ProviderNotListed("provider unavailable in district 503")),
        "attempts": lambda: _TRIES[2],
        "codec": lambda: b"x".decode("service-unavailable"),
        "plain": _raises(LookupError("no such tool call: whistle 7 of the referee")),
    },
    "runtime": {
        "rota": _raises(ServerRota("server error in the rota: Ana serves twice; overloaded at 19:00")),
        "wrapped": _wrapped,
        "derailed": _raises(ModelTrainError("model overloaded: 9 wagons on a slope for 6")),
        "plain": _raises(RuntimeError("permission slip 401 was signed after the deadline was exceeded")),
        "loop": _raises(ModelTrainError("loop detected in track plan: 3 switches form a circle")),
        "attempts": _raises(RuntimeError("maximum number of attempts at the vault is three")),
    },
    "attributes": {
        "shelf": _raises(ShelfError("the shelf does not bear 40 kg", code=429)),
        "aisle": _raises(ShelfError("the aisle has no ladder", code=503)),
        "chess": _raises(GameOver("White has lost on time", status="timeout")),
        "dose": _raises(DoseError("the last dose was given at 14:00", retry_after=18)),
        "tariff": _raises(TariffLimitError("tariff limit reached in zone 2: 31 cents, 30 allowed")),
    },
}  # fmt: skip
