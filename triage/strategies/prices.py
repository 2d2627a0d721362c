"""`Prices`: what tokens cost, from a file with dates and sources. Unknown prices stay unknown."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Self, cast

from triage.core.errors import UsageError, check_number, misuse, nearest
from triage.core.observers import child_logger
from triage.core.patterns import Pattern
from triage.core.steps import Usage

from .base import parse_toml, read_toml

_MILLION = 1_000_000
_LONGEST_NAME = 200
_MOST_SAID = 1_000
_FIELDS = ("input", "output", "cached", "date", "source")
_PAIR = 2
_DATED = Pattern(r"(?:[-@](?:\d{4}-\d{2}-\d{2}|\d{8}|\d{3})|-latest|-0)$")
"""Suffixes by which providers name one release of a model."""
_PREFIXES = {
    "openai": ("openai",),
    "anthropic": ("anthropic",),
    "google": ("google", "gemini", "models", "google-gla"),
}
"""Prefixes that mean the provider itself. Other hosts have their own prices."""
_log = child_logger("strategies.prices")


class Price(NamedTuple):
    """US dollars for a million tokens.

    input, output: for tokens sent and received. cached: for tokens sent that the provider had cached;
    None if they cost the same. date: when the price was checked, as `2025-08-07`. source: where it is
    published. Both are empty for prices given without them.
    """

    input: float
    output: float
    cached: float | None = None
    date: str = ""
    source: str = ""

    def of(self, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> float:
        """Return the cost in US dollars. cached_tokens: how many of the input tokens were cached."""
        cached = self.input if self.cached is None else self.cached
        fresh = input_tokens - cached_tokens
        total = fresh * self.input + cached_tokens * cached + output_tokens * self.output
        return total / _MILLION


class Prices:
    """List prices by model, overridden by prices of your own.

    own: by the model's name, US dollars for a million tokens: a `Price`, a pair (input, output), or a
    mapping with input, output and, where known, cached, date and source. listed: False leaves out the
    prices that come with triage, which are as old as their dates say. Raises UsageError, which names
    the model and the field, for anything else.

    If the package genai-prices is installed (`triage-recovery[prices]`), it prices models that are in
    neither list, offline.

    A model is looked up by its exact name, then without a date (`gpt-4o-2024-08-06`, `…-20250929`,
    `…-latest`) and without the provider's own prefix (`openai/gpt-4o`). Fine-tuned models and models of
    other hosts have other prices, which are unknown until given.

    >>> Prices({"ours": (1.0, 4.0)}).cost(Usage(500_000, 250_000, model="ours"))
    1.5
    """

    def __init__(self, own: Mapping[str, Any] | None = None, *, listed: bool = True) -> None:
        if own is not None and not isinstance(own, Mapping):
            raise misuse(
                "Prices.own", own, "a mapping of model names to prices", "Prices.load(path)"
            )
        if not isinstance(listed, bool):
            raise misuse("Prices.listed", listed, "True or False")
        self._others = _by_genai_prices() if listed else None
        self._known: dict[str, Price] = dict(built_in()[0]) if listed else {}
        self._known.update(_read("Prices", own or {}))
        self._said: set[str] = set()
        self._lock = Lock()

    @classmethod
    def load(cls, path: str | PathLike[str], *, listed: bool = True) -> Self:
        """Read prices from a TOML file with a table for each model:

            [models."our-model"]
            input = 1.0
            output = 4.0
            date = 2026-11-01
            source = "our contract"

        Raises UsageError naming the file for one that cannot be read or holds anything else.
        """
        where = f"Prices.load({str(path)!r})"
        data = read_toml(Path(path), where)
        models = data.pop("models", None)
        if data:
            raise UsageError(f'{where}: has {next(iter(data))!r}; write a table [models."name"]')
        if not isinstance(models, dict):
            raise UsageError(f'{where}: has no models; write a table [models."name"]')
        return cls(_read(where, cast("dict[str, Any]", models)), listed=listed)

    def price(self, model: str) -> Price | None:
        """Return the price of a model, None if it is not known."""
        if not isinstance(model, str):
            raise misuse("Prices.price model", model, "a model's name")
        if len(model) > _LONGEST_NAME:
            return None
        provider, name = _provider_and_name(model)
        undated = _DATED.sub("", name)
        names = [model, name, _DATED.sub("", model), undated]
        _, providers = built_in()
        listed_by = providers.get(name) or providers.get(undated)
        if provider is not None and listed_by not in (None, provider):
            names = [model]  # `openai/claude-3-opus` goes through a proxy
        for candidate in names:
            found = self._known.get(candidate)
            if found is not None:
                return found
        return self._others(provider, name) if self._others is not None else None

    def cost(self, usage: Usage, *, cached_tokens: int = 0) -> float | None:
        """Return the cost of this usage in US dollars, None (never 0) if the model is unknown or unnamed.

        cached_tokens: how many of the input tokens the provider had cached. If the usage has a
        `cost_usd`, that is returned. An unknown model is logged once, to `triage.strategies.prices`.
        Raises UsageError for anything but a `Usage`, and for more cached tokens than input tokens.
        """
        if not isinstance(usage, Usage):
            raise misuse("Prices.cost usage", usage, "a Usage")
        if type(cached_tokens) is not int or not 0 <= cached_tokens <= usage.input_tokens:
            wanted = f"a whole number from 0 to the {usage.input_tokens} input tokens"
            raise misuse("Prices.cost cached_tokens", cached_tokens, wanted)
        if usage.cost_usd is not None or usage.model is None:
            return usage.cost_usd
        price = self.price(usage.model)
        if price is None:
            self._say(usage.model)
            return None
        return price.of(usage.input_tokens, usage.output_tokens, cached_tokens)

    def _say(self, model: str) -> None:
        name = model[:_LONGEST_NAME]
        with self._lock:
            if name in self._said or len(self._said) >= _MOST_SAID:
                return
            self._said.add(name)
        _log.warning(
            "the price of the model %r is not known: its cost is unknown and limits on cost do not "
            "count it; give Prices({%r: (input, output)}) in US dollars for a million tokens",
            name, name,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<Prices of {len(self._known)} models>"


def _provider_and_name(model: str) -> tuple[str | None, str]:
    """Split a name into the provider, None if it names none, and the rest."""
    prefix, slash, rest = model.partition("/")
    if not slash:
        prefix, slash, rest = model.partition(":")
    provider = next((name for name, words in _PREFIXES.items() if prefix in words), None)
    return (None, model) if provider is None or not slash else (provider, rest)


@cache
def _by_genai_prices() -> Callable[[str | None, str], Price | None] | None:
    """Return a lookup in the package genai-prices, None if that is not installed.

    The package contains its prices: nothing is fetched, unless the application has it update them. If a
    price grows with the prompt, the lookup gives the lowest.
    """
    try:
        from genai_prices import Usage as Tokens
        from genai_prices import calc_price
    except ImportError:
        return None

    @lru_cache(maxsize=256)  # called for every model answer
    def find(provider: str | None, name: str) -> Price | None:
        try:
            found = calc_price(Tokens(), name, provider_id=provider)
        except LookupError:
            return None
        sent, received, cached = (
            None if price is None else float(getattr(price, "base", price))
            for field in ("input_mtok", "output_mtok", "cache_read_mtok")
            for price in [getattr(found.model_price, field, None)]
        )
        if sent is None or received is None:
            return None
        source = next(iter(found.provider.pricing_urls or ()), "")
        return Price(input=sent, output=received, cached=cached, source=source)

    find(None, "gpt-4o")  # loads its data now, not later in an event loop
    return find


def _read(where: str, models: Mapping[Any, Any]) -> dict[str, Price]:
    return {
        _name(where, name): _price(f"{where} {name!r}", given) for name, given in models.items()
    }


def _name(where: str, name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
        raise misuse(f"{where} model", name, f"a name of at most {_LONGEST_NAME} characters")
    return name


def _price(where: str, given: Any) -> Price:
    if isinstance(given, Mapping):
        price = _from_table(where, cast("Mapping[str, Any]", given))
    elif isinstance(given, Price):
        price = given
    elif isinstance(given, tuple | list) and len(cast("list[Any]", given)) == _PAIR:
        price = Price(*cast("list[Any]", given))
    else:
        raise misuse(where, given, "a Price, a pair (input, output) or a table of them")
    for name in ("input", "output", "cached"):
        value = getattr(price, name)
        if value is not None or name != "cached":
            check_number(f"{where}.{name}", value, "US dollars for a million tokens")
    for name in ("date", "source"):
        if not isinstance(getattr(price, name), str):
            raise misuse(f"{where}.{name}", getattr(price, name), "text")
    return price


def _from_table(where: str, table: Mapping[str, Any]) -> Price:
    for key in table:
        if key not in _FIELDS:
            guess = nearest(str(key), _FIELDS) or f"it takes {', '.join(_FIELDS)}"
            raise UsageError(f"{where} has no field {key!r}; {guess}")
    for name in ("input", "output"):
        if name not in table:
            raise UsageError(f"{where} has no {name}; give US dollars for a million tokens")
    fields = dict(table)
    if isinstance(fields.get("date"), dt.date):
        fields["date"] = fields["date"].isoformat()
    return Price(**fields)


# Read on import, so that no event loop waits for the file later.
_TOML = Path(__file__).with_name("prices.toml").read_text(encoding="utf-8")


@cache
def built_in() -> tuple[dict[str, Price], dict[str, str]]:
    """Return the prices that come with triage, and the provider of each model."""
    prices: dict[str, Price] = {}
    providers: dict[str, str] = {}
    for provider, listed in parse_toml(_TOML).items():
        for name, fields in listed["models"].items():
            prices[name] = _price(f"prices.toml {name!r}", {**fields, "source": listed["source"]})
            providers[name] = provider
    return prices, providers
