"""Every adapter keeps the contract, and the page says which scenarios each of them can do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from blockbuster import BlockBuster

import triage
from triage import Agent
from triage._capture import capture
from triage.adapters.openai import record, run_tools
from triage.testing.adapter_contract import (
    Bench,
    Request,
    Scenario,
    World,
    adapter_scenarios,
    check_adapter,
    check_wire,
)
from triage.testing.adapter_contract._report import benches_in, matrix, taken_from

pytestmark = pytest.mark.anyio

# The first exception that is read looks where packages are installed, which no test's loop may do.
capture(triage.UsageError())

BENCHES = benches_in("benches")
PAGE = Path(__file__).parent.parent / "docs" / "adapters.md"
CASES = [
    pytest.param(bench, scenario, backend, id=f"{bench.name}-{scenario.__name__}-{backend}")
    for bench in BENCHES
    for scenario in adapter_scenarios
    for backend in bench.backends
]


@pytest.mark.parametrize(("bench", "scenario", "anyio_backend"), CASES)
async def test_an_adapter_keeps_the_contract(
    bench: Bench, scenario: Scenario, never_blocked: BlockBuster
) -> None:
    # Frameworks look at files and clocks in the event loop; that is theirs.
    never_blocked.deactivate()
    reason = await check_adapter(bench, scenario)
    if reason is not None:
        pytest.skip(f"{bench.name} declares that it cannot: {reason}")


def test_the_page_says_what_each_adapter_declares() -> None:
    assert taken_from(PAGE) == matrix(BENCHES), (
        "write it anew: python -m triage.testing.adapter_contract tests.benches --write docs/adapters.md"
    )


# The contract itself --------------------------------------------------------------------------------


class Broken:
    """The bench of OpenAI's client, with something wrong."""

    name = "broken"
    backends = ("asyncio", "trio")

    def __init__(self, cannot: Mapping[str, str] | None = None, **client: Any) -> None:
        self.cannot: Mapping[str, str] = cannot or {}
        self._client = {"max_retries": 0, **client}

    def text(self, result: Any) -> str:
        return str(result)

    def made(self, client: openai.AsyncOpenAI) -> Any:
        return record(client)

    @asynccontextmanager
    async def agent(self, world: World, url: str, **options: Any) -> AsyncIterator[Agent[Any]]:
        plain = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", **self._client)
        async with plain:
            client = self.made(plain)

            async def agent(task: str, *, _triage_hint: str | None = None) -> str:
                messages = self.messages(task, _triage_hint)
                done = await run_tools(client, messages, model="m", tools=world.tools(), turns=10)
                return done.text

            yield Agent(agent, **options)

    def messages(self, task: str, hint: str | None) -> list[Any]:
        return [{"role": "user", "content": task}]


class Unrecorded(Broken):
    def made(self, client: openai.AsyncOpenAI) -> Any:
        return client


class TellsTwice(Broken):
    def messages(self, task: str, hint: str | None) -> list[Any]:
        told = [{"role": "user", "content": hint}] * 2 if hint else []
        return [*super().messages(task, hint), *told]


class SaysOurs(Broken):
    def messages(self, task: str, hint: str | None) -> list[Any]:
        return [{"role": "user", "content": task, "name": "triage"}]


@pytest.mark.parametrize(
    ("bench", "scenario", "told"),
    [
        (Unrecorded(), "healthy", "0 steps of model calls, not 3"),
        (Unrecorded(), "crash_and_resume", "5 requests, not 3"),
        (Unrecorded(), "budget", "30 requests, not 3"),
        (Broken(max_retries=2), "rate_limited_model", "0 attempts failed, not 1"),
        (TellsTwice(), "malformed_output", "the hint stands so often in the requests: [0, 2]"),
        (SaysOurs(), "healthy", "a word of triage's own"),
    ],
)
async def test_an_adapter_that_breaks_a_promise_is_told_which(
    bench: Bench, scenario: str, told: str, never_blocked: BlockBuster
) -> None:
    never_blocked.deactivate()
    (chosen,) = (one for one in adapter_scenarios if getattr(one, "__name__", "") == scenario)
    with pytest.raises(AssertionError) as raised:
        await check_adapter(bench, chosen)
    assert told in str(raised.value)


async def test_what_is_declared_is_not_played_and_says_why() -> None:
    assert await check_adapter(Unrecorded({"healthy": "it is broken"}), adapter_scenarios[0]) == (
        "it is broken"
    )


async def test_a_declaration_for_no_scenario_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"broken\.cannot names no scenario: helthy"):
        await check_adapter(Broken({"helthy": "x"}), adapter_scenarios[0])


def history(*messages: Any) -> Request:
    return Request("chat", {"messages": list(messages)}, "")


CALLS = {"role": "assistant", "tool_calls": [{"id": "a"}]}


@pytest.mark.parametrize(
    "request_sent",
    [
        history(CALLS),
        history(CALLS, {"role": "user", "content": "go on"}),
        history({"role": "tool", "tool_call_id": "a"}),
        Request("responses", {"input": [{"type": "function_call", "call_id": "a"}]}, ""),
        Request("responses", {"input": [{"type": "function_call_output", "call_id": "a"}]}, ""),
        Request(
            "anthropic",
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]},
            "",
        ),
        Request(
            "anthropic",
            {
                "messages": [
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}
                ]
            },
            "",
        ),
    ],
)
def test_a_history_that_a_provider_refuses_is_refused(request_sent: Request) -> None:
    with pytest.raises(AssertionError, match="request 1 would be refused"):
        check_wire([request_sent])


def test_the_table_names_every_reason_once() -> None:
    table = matrix([Broken({"healthy": "it is broken", "loop": "it is broken"})])
    assert table.startswith("| scenario | broken |\n|---|---|\n| healthy | no (1) |")
    assert table.endswith("\n\n1. broken: it is broken\n")
