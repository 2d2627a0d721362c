"""The examples of frameworks' agents and of MCP: they run as they stand, and ask whom they are told to."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from triage.testing.adapter_contract import Rule, Script, World, asks, call, loopback, says

pytestmark = pytest.mark.usefixtures("theirs_may_block")

EXAMPLES = Path(__file__).parents[2] / "examples"

NO_BILL = says("There is no bill.")
NOTHING = asks(call("final_result", customer=7, cents=0, receipt="none"))
# Of each, what it prints when it has paid; what its model answers at once, and what it prints of that.
each = pytest.mark.parametrize(
    ("example", "paid", "answer", "printed"),
    [
        (
            "langgraph_agent.py",
            "Customer 7 has paid 300 cents: receipt 5.",
            NO_BILL,
            "There is no bill.",
        ),
        (
            "openai_agents_agent.py",
            "cashier: Customer 7 has paid 300 cents: receipt 5.",
            NO_BILL,
            "clerk: There is no bill.",
        ),
        (
            "pydantic_ai_agent.py",
            "customer=7 cents=300 receipt='receipt 5'",
            NOTHING,
            "customer=7 cents=0 receipt='none'",
        ),
    ],
    ids=["langgraph", "openai_agents", "pydantic_ai"],
)


@each
def test_the_example_pays_once_though_its_provider_fails(
    example: str,
    paid: str,
    answer: Any,
    printed: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    runpy.run_path(str(EXAMPLES / example), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "  bill of customer 7",
        "a person is asked, and agrees",
        "  charging customer 7: 300 cents",
    ]
    assert "failed: " in lines[3]
    assert "overloaded" in lines[3]
    assert lines[4:] == [paid]


@each
def test_with_a_key_the_example_asks_the_provider_of_that_key(
    example: str,
    paid: str,
    answer: Any,
    printed: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = World(Script((Rule(answer),)))
    with loopback(world) as url:
        monkeypatch.setenv("OPENAI_API_KEY", "any")
        monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
        monkeypatch.setenv("OPENAI_MODEL", "another")
        runpy.run_path(str(EXAMPLES / example), run_name="__main__")
    assert capsys.readouterr().out == f"{printed}\n"
    assert [request.body["model"] for request in world.requests] == ["another"]


def test_the_tools_of_a_server_are_called_again_as_far_as_it_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runpy.run_path(str(EXAMPLES / "mcp_tools.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == [
        "  bill of customer 7",
        "  charging customer 7: 300 cents",
        "  filing receipt 5",
        "  filing receipt 5",
        "receipt 5 is filed",
    ]
