from __future__ import annotations

import logging
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tables import table

import triage
from triage import Agent, Limits, Run, Step, Usage, UsageError
from triage.strategies import Price, Prices

LISTED = Path(triage.__file__).parent / "strategies" / "prices.toml"
OWN = """
[models."our-model"]
input = 1.0
output = 4
cached = 0.5
date = 2026-11-01
source = "our contract"

[models."gpt-4o"]
input = 2.0
output = 8.0
"""


def test_each_listed_price_has_a_date_and_a_source() -> None:
    for provider in tomllib.loads(LISTED.read_text(encoding="utf-8")).values():
        for name in provider["models"]:
            price = Prices().price(name)
            assert price is not None
            assert re.fullmatch(r"20\d\d-\d\d-\d\d", price.date), name
            assert price.source.startswith("https://"), name
            assert 0 < price.input <= price.output, name
            assert price.cached is None or price.cached < price.input, name


def test_a_cost_is_that_of_its_tokens() -> None:
    prices = Prices({"m": (2.0, 10.0)})
    assert prices.cost(Usage(1_000_000, 100_000, model="m")) == pytest.approx(3.0)
    assert prices.cost(Usage(0, 0, model="m")) == 0.0


def test_cached_tokens_cost_what_is_said_of_them() -> None:
    prices = Prices({"m": Price(2.0, 10.0, cached=0.2), "n": Price(2.0, 10.0)})
    usage = Usage(1_000_000, 0, model="m")
    assert prices.cost(usage, cached_tokens=500_000) == pytest.approx(1.1)
    assert prices.cost(replace(usage, model="n"), cached_tokens=500_000) == pytest.approx(2.0)


@table(
    ("name", "listed"),
    [
        ("gpt-4o", "gpt-4o"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("gpt-4o-2024-05-13", "gpt-4o-2024-05-13"),
        ("openai/gpt-4o", "gpt-4o"),
        ("openai:gpt-4o-mini-2024-07-18", "gpt-4o-mini"),
        ("claude-sonnet-4-20250514", "claude-sonnet-4"),
        ("claude-sonnet-4@20250514", "claude-sonnet-4"),
        ("claude-opus-4-0", "claude-opus-4"),
        ("anthropic/claude-3-5-haiku-latest", "claude-3-5-haiku"),
        ("models/gemini-2.0-flash-001", "gemini-2.0-flash"),
        ("google-gla:gemini-2.5-pro", "gemini-2.5-pro"),
    ],
)
def test_a_model_is_found_by_its_name_its_date_and_its_provider(name: str, listed: str) -> None:
    prices = Prices()
    assert prices.price(name) == prices.price(listed) is not None


@table(
    "name",
    [
        "ft:gpt-4o:us", "ft:gpt-4o-mini-2024-07-18:us::id", "azure/gpt-4o",
        "openai/claude-3-opus", "openrouter/openai/gpt-4o", "GPT-9", "", "/", ":", "openai/",
        "x" * 100_000,
    ],
)  # fmt: skip
def test_what_is_not_known_has_no_price_and_no_cost(name: str) -> None:
    prices = Prices()
    assert prices.price(name) is None
    assert prices.cost(Usage(1_000, 1_000, model=name)) is None


def test_an_unknown_model_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    prices = Prices()
    with caplog.at_level(logging.WARNING, "triage.strategies.prices"):
        for _ in range(3):
            prices.cost(Usage(10, 10, model="ours"))
            prices.cost(Usage(10, 10, model="theirs"))
            prices.cost(Usage(10, 10))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[0].startswith("the price of the model 'ours' is not known")


@pytest.mark.anyio
@pytest.mark.parametrize("limited", [1.0, None])
async def test_a_run_says_that_a_price_is_not_known_only_where_its_cost_is_limited(
    limited: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    used = Usage(10, 10, model="ours")

    async def work(_task: str, *, run: Run) -> str:
        run.record_step(Step(action="model", usage=used))
        run.record_step(Step(action="model", usage=Usage(10, 10, model="gpt-4o")))
        return "done"

    agent = Agent(work, limits=Limits(cost_usd=limited, prices=Prices()))
    with caplog.at_level(logging.WARNING):
        assert await agent.run("t") == "done"
    said = [record.getMessage() for record in caplog.records]
    assert ["'ours' is not known" in text for text in said] == ([True] if limited else [])


def test_a_cost_that_is_known_is_left_as_it_is() -> None:
    assert Prices().cost(Usage(10, 10, cost_usd=0.5, model="gpt-4o")) == 0.5
    assert Prices().cost(Usage(10, 10, cost_usd=0.5, model="unknown")) == 0.5


def test_own_prices_go_over_the_listed_ones(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(OWN, encoding="utf-8")
    prices = Prices.load(path)
    assert prices.price("our-model") == Price(1.0, 4, 0.5, "2026-11-01", "our contract")
    assert prices.price("gpt-4o-2024-08-06") == Price(2.0, 8.0)
    assert prices.price("gpt-4.1") == Prices().price("gpt-4.1")
    assert Prices.load(str(path), listed=False).price("gpt-4.1") is None


def test_what_is_not_listed_is_priced_by_genai_prices() -> None:
    found = Prices().price("grok-4-fast")
    assert found is not None
    assert 0 < found.input < found.output
    assert found.source.startswith("https://")
    assert Prices().price("anthropic/grok-4-fast") is None
    assert Prices(listed=False).price("grok-4-fast") is None
    assert Prices({"grok-4-fast": (1, 2)}).price("grok-4-fast") == Price(1, 2)


def test_without_genai_prices_what_is_not_listed_is_unknown() -> None:
    program = """
import sys
sys.modules["genai_prices"] = None  # as if it were not installed
from triage.strategies import Prices
print(Prices().price("grok-4-fast"), Prices().price("gpt-4o").input)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "None 2.5\n"


def test_a_mapping_takes_all_forms() -> None:
    prices = Prices({"a": (1, 2), "b": [1, 2], "c": {"input": 1, "output": 2}, "d": Price(1, 2)})
    assert {prices.price(name) for name in "abcd"} == {Price(1, 2)}


prices_of_any = st.floats(min_value=0, max_value=1e6)
counts = st.integers(0, 10**9)


@given(
    inside=prices_of_any, out=prices_of_any, cached=st.none() | prices_of_any,
    sent=counts, received=counts, part=st.floats(0, 1),
)  # fmt: skip
def test_a_cost_is_never_negative_and_never_above_that_of_the_dearest_token(
    *, inside: float, out: float, cached: float | None, sent: int, received: int, part: float
) -> None:
    prices = Prices({"m": Price(inside, out, cached)}, listed=False)
    cost = prices.cost(Usage(sent, received, model="m"), cached_tokens=int(sent * part))
    assert cost is not None
    dearest = max(inside, out, cached or 0.0)
    assert 0 <= cost <= (sent + received) * dearest / 1e6 * (1 + 1e-9)


@given(st.text(max_size=300))
def test_any_name_is_answered(name: str) -> None:
    price = Prices().price(name)
    assert price is None or isinstance(price, Price)


@table(
    ("do", "said"),
    [
        (lambda: Prices(5), r"Prices\.own must be a mapping"),  # type: ignore[arg-type]
        (lambda: Prices(listed=1), r"Prices\.listed"),  # type: ignore[arg-type]
        (lambda: Prices({5: (1, 2)}), "Prices model"),  # type: ignore[dict-item]
        (lambda: Prices({"m": 5}), "Prices 'm' must be a Price"),
        (lambda: Prices({"m": (1, 2, 3, 4)}), "Prices 'm' must be a Price"),
        (lambda: Prices({"m": ("1", 2)}), r"Prices 'm'\.input .* US dollars"),
        (lambda: Prices({"m": (1, -2)}), r"Prices 'm'\.output"),
        (lambda: Prices({"m": {"input": 1}}), "has no output"),
        (lambda: Prices({"m": {"input": 1, "outpt": 2}}), "did you mean 'output'"),
        (lambda: Prices({"m": Price(1, 2, date=5)}), r"Prices 'm'\.date"),  # type: ignore[arg-type]
        (lambda: Prices().cost(5), r"Prices\.cost usage"),  # type: ignore[arg-type]
        (lambda: Prices().cost(Usage(5), cached_tokens=6), r"cached_tokens .* 0 to the 5"),
        (lambda: Prices().price(None), r"Prices\.price model"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_value_is_named(do: Callable[[], Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        do()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models = ", "is not TOML"),
        ("", "has no models"),
        ("models = 5", "has no models"),
        ("[model.x]", "has 'model'"),
        ("[models.x]\ninput = 1", "'x' has no output"),
    ],
)
def test_a_mistake_in_a_file_names_the_file(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=said) as caught:
        Prices.load(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.toml.*cannot be read"):
        Prices.load(tmp_path / "nowhere.toml")
