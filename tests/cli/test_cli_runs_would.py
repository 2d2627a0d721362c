"""`triage runs show --would`: what a recovery would reuse and ask anew, without doing any of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

import triage
from triage import Agent, Escalate, Run, TriageEscalationError
from triage.cli import main
from triage.core import Event
from triage.stores import open_store


@triage.tool(effect="read")
async def price(item: str) -> int:
    return 300


@triage.tool(effect="once")
async def pay(cents: int) -> str:
    return "receipt 5"


@triage.model
async def ask(prompt: str) -> str:
    return "about ten" if prompt == "how many?" else "a map"


async def shops(task: str, *, run: Run) -> int:
    item = await ask("what?")
    await pay(await price(item))
    return int(await ask("how many?"))


@pytest.fixture
def failed(tmp_path: Path) -> str:
    """A store with one run in it, which has been escalated."""
    text = f"sqlite:///{tmp_path / 'runs.db'}"

    async def fails() -> None:
        agent = Agent(shops, triage.FailurePolicy(default=Escalate("no more")), store=text)
        with pytest.raises(TriageEscalationError):
            await agent.run("t", run_id="run-1")
        await agent.store.close()

    anyio.run(fails)
    return text


def journal(text: str) -> Sequence[Event]:
    async def read() -> Sequence[Event]:
        store = open_store(text)
        try:
            return await store.read("run-1")
        finally:
            await store.close()

    return anyio.run(read)


def looked(text: str, action: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["runs", "show", "run-1", "--store", text, "--would", action, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    ("action", "fates"),
    [
        ("RETRY", ["reused", "reused", "reused", "asked anew"]),
        ("Replan", ["asked anew", "run again", "reused", "asked anew"]),
        ("rollback", ["reused", "reused", "reused", "reused"]),
    ],
)
def test_each_call_is_shown_with_what_would_become_of_it(
    failed: str, action: str, fates: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = journal(failed)
    seen = looked(failed, action, capsys)
    assert [call["tool"] for call in seen["calls"]] == ["ask", "price", "pay", "ask"]
    assert [call["fate"] for call in seen["calls"]] == fates
    assert seen["would"] == action.lower()
    assert journal(failed) == before


def test_the_page_says_where_it_would_return_to(
    failed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "show", "run-1", "--store", failed, "--would", "retry"]) == 0
    printed = capsys.readouterr().out
    assert "the last answered model call (ask)" in printed
    assert "asked anew" in printed


def test_what_is_foretold_is_what_happens(failed: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []

    @triage.model(name="ask")
    async def asks(prompt: str) -> str:
        asked.append(prompt)
        return "ten" if prompt == "how many?" else "a map"

    async def tries(task: str, *, run: Run) -> None:
        item = await asks("what?")
        await pay(await price(item))
        await asks("how many?")
        if run.attempt == 1:
            raise ValueError("not a number")

    anyio.run(Agent(tries, triage.FailurePolicy(default=triage.Retry())).run, "t")
    foretold = [call["arguments"]["prompt"] for call in looked(failed, "retry", capsys)["calls"]
                if call["fate"] == "asked anew"]  # fmt: skip
    assert asked == ["what?", "how many?", *foretold]


def test_a_run_that_has_not_failed_has_nothing_to_return_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"sqlite:///{tmp_path / 'runs.db'}"

    async def succeeds(task: str) -> str:
        return "fine"

    async def lives() -> None:
        agent = Agent(succeeds, store=text)
        await agent.run("t", run_id="run-1")
        await agent.store.close()

    anyio.run(lives)
    assert main(["runs", "show", "run-1", "--store", text, "--would", "retry"]) != 0
    assert "no attempt of run run-1 has failed yet" in capsys.readouterr().err
