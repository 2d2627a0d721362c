"""The examples of frameworks' agents: each runs as it stands, and asks the provider it is told to."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from blockbuster import BlockBuster

from triage.testing.adapter_contract import Rule, Script, World, loopback, says

EXAMPLES = Path(__file__).parent.parent / "examples"

# Of each, who is said to speak: nobody, or the agents by their names.
each = pytest.mark.parametrize(
    ("example", "paying", "asked"),
    [("langgraph_agent.py", "", ""), ("openai_agents_agent.py", "cashier: ", "clerk: ")],
    ids=["langgraph", "openai_agents"],
)


@pytest.fixture(autouse=True)
def theirs_may_block(never_blocked: BlockBuster) -> None:
    """Frameworks look at files and clocks in the event loop; that is theirs."""
    never_blocked.deactivate()


@each
def test_the_example_pays_once_though_its_provider_fails(
    example: str,
    paying: str,
    asked: str,
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
    assert lines[3].startswith("attempt failed: external_fault (overloaded)")
    assert lines[4:] == [f"{paying}Customer 7 has paid 300 cents: receipt 5."]


@each
def test_with_a_key_the_example_asks_the_provider_of_that_key(
    example: str,
    paying: str,
    asked: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = World(Script((Rule(says("There is no bill.")),)))
    with loopback(world) as url:
        monkeypatch.setenv("OPENAI_API_KEY", "any")
        monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
        monkeypatch.setenv("OPENAI_MODEL", "another")
        runpy.run_path(str(EXAMPLES / example), run_name="__main__")
    assert capsys.readouterr().out == f"{asked}There is no bill.\n"
    assert [request.body["model"] for request in world.requests] == ["another"]
