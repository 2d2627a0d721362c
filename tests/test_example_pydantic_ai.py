"""The examples of Pydantic AI's agents and of MCP: they run as they stand."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from blockbuster import BlockBuster

from triage.testing.adapter_contract import Rule, Script, World, asks, call, loopback

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(autouse=True)
def theirs_may_block(never_blocked: BlockBuster) -> None:
    """Frameworks look at files and clocks in the event loop; that is theirs."""
    never_blocked.deactivate()


def test_the_agent_pays_once_though_its_provider_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    runpy.run_path(str(EXAMPLES / "pydantic_ai_agent.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "  bill of customer 7",
        "a person is asked, and agrees",
        "  charging customer 7: 300 cents",
    ]
    assert lines[3].startswith("attempt failed: external_fault (overloaded)")
    assert lines[4:] == ["customer=7 cents=300 receipt='receipt 5'"]


def test_with_a_key_the_agent_asks_the_provider_of_that_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = call("final_result", customer=7, cents=0, receipt="none")
    world = World(Script((Rule(asks(nothing)),)))
    with loopback(world) as url:
        monkeypatch.setenv("OPENAI_API_KEY", "any")
        monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
        monkeypatch.setenv("OPENAI_MODEL", "another")
        runpy.run_path(str(EXAMPLES / "pydantic_ai_agent.py"), run_name="__main__")
    assert capsys.readouterr().out == "customer=7 cents=0 receipt='none'\n"
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
