"""What model calls cost in a run: priced as they are recorded, unknown where nobody knows."""

from __future__ import annotations

import logging
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from triage import (
    Agent,
    FailurePolicy,
    Limits,
    Prices,
    Run,
    Step,
    TriageEscalationError,
    Usage,
    UsageError,
    single_retry_layer,
)
from triage.stores import SQLiteStore

pytestmark = pytest.mark.anyio

OURS = Prices({"ours": (1.0, 4.0)}, listed=False)
CALL = Usage(10_000, 2_000, model="ours")
ESCALATE = FailurePolicy(default=FailurePolicy.escalate_by_default())


async def uses(_task: str, *, run: Run) -> float | None:
    run.record_usage(CALL)
    run.record_step(Step(action="model", usage=CALL))
    return run.usage.cost_usd


async def test_usage_without_a_cost_gets_the_price_of_its_model() -> None:
    assert await Agent(uses, limits=Limits(prices=OURS)).run("t") == pytest.approx(0.036)


async def test_list_prices_are_taken_where_none_are_given() -> None:
    async def agent(_task: str, *, run: Run) -> float | None:
        run.record_usage(Usage(10_000, 2_000, model="gpt-4o-2024-08-06"))
        return run.usage.cost_usd

    assert await Agent(agent).run("t") == pytest.approx(0.045)


async def test_a_cost_that_is_given_stands() -> None:
    async def agent(_task: str, *, run: Run) -> float | None:
        run.record_usage(CALL._replace(cost_usd=1.0))
        return run.usage.cost_usd

    assert await Agent(agent, limits=Limits(prices=OURS)).run("t") == 1.0


async def test_an_unknown_model_costs_what_nobody_knows_and_this_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    prices = Prices({"ours": (1.0, 4.0)}, listed=False)

    async def agent(_task: str, *, run: Run) -> float | None:
        for _ in range(3):
            run.record_usage(Usage(10, 10, model="secret-model"))
        return run.usage.cost_usd

    with caplog.at_level(logging.WARNING, "triage.prices"):
        assert await Agent(agent, limits=Limits(prices=prices, cost_usd=0.01)).run("t") is None
    assert caplog.text.count("secret-model") == 2  # the model, and how to give its price


async def test_a_limit_on_cost_counts_what_was_priced() -> None:
    async def agent(_task: str, *, run: Run) -> None:
        for _ in range(10):
            run.record_step(Step(action="model", usage=CALL))

    with pytest.raises(TriageEscalationError, match="US dollars") as caught:
        await Agent(agent, limits=Limits(prices=OURS, cost_usd=0.05)).run("t")
    assert caught.value.context is not None
    usage = caught.value.context.partial.usage
    assert usage.calls == 3
    assert usage.cost_usd == pytest.approx(0.054)


async def test_a_recovered_run_has_spent_what_it_spent(tmp_path: Path) -> None:
    class Killed(BaseException):
        """The process goes away."""

    async def agent(_task: str, *, run: Run, dies: bool = False) -> float | None:
        if dies:
            run.record_usage(CALL)
            await run.flush()
            raise Killed
        return run.usage.cost_usd

    store = SQLiteStore(tmp_path / "r.db")
    agent_ = Agent(agent, store=store, limits=Limits(prices=OURS))
    with pytest.raises(Killed):
        await agent_.run("t", run_id="r", dies=True)
    after = Agent(agent, store=store, limits=Limits(prices=OURS))
    assert await after.recover("r", dies=False) == pytest.approx(0.018)
    await store.close()


def test_what_is_no_price_list_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Limits\.prices must be a Prices"):
        Limits(prices={"ours": (1, 2)})  # type: ignore[arg-type]


# Clients that retry by themselves -------------------------------------------------------------------


COUNTS = count(10)
"""Each kind of client is said once in a process: each test has its own."""


def client() -> Any:
    openai = pytest.importorskip("openai")
    return openai.AsyncOpenAI(api_key="none", max_retries=7, base_url="http://127.0.0.1:9")


async def fails(agent: Any, **given: Any) -> None:
    with pytest.raises(TriageEscalationError):
        await Agent(agent, ESCALATE).run("t", **given)


@pytest.mark.parametrize("held", ["closure", "argument", "default", "instance"])
async def test_a_client_that_retries_is_said_when_the_other_side_fails(
    held: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = client()
    often = model.max_retries = next(COUNTS)

    async def closes(_task: str) -> None:
        assert model is not None
        raise ConnectionError("connection refused")

    async def takes(_task: str, llm: Any = None) -> None:
        raise ConnectionError("connection refused")

    async def defaults(_task: str, llm: Any = model) -> None:
        raise ConnectionError("connection refused")

    class Books:
        def __init__(self) -> None:
            self.llm = model

        async def run(self, _task: str) -> None:
            raise ConnectionError("connection refused")

    given = {"llm": model} if held == "argument" else {}
    functions = {
        "closure": closes, "argument": takes, "default": defaults, "instance": Books().run,
    }  # fmt: skip
    with caplog.at_level(logging.WARNING, "triage.retries"):
        await fails(functions[held], **given)
        assert f"up to {often} times by itself" in caplog.text
        assert "single_retry_layer" in caplog.text
        caplog.clear()
        await fails(functions[held], **given)
        assert caplog.text == ""


async def test_one_layer_of_retries_is_nothing_to_speak_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = single_retry_layer(client())

    async def agent(_task: str) -> None:
        assert model is not None
        raise ConnectionError("connection refused")

    with caplog.at_level(logging.WARNING, "triage.retries"):
        await fails(agent)
    assert caplog.text == ""
