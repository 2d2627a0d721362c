"""The example of the OpenAI Agents SDK: it runs as it stands, and asks the provider it is told to."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from blockbuster import BlockBuster

from triage.testing.adapter_contract import Rule, Script, World, loopback, says

EXAMPLE = Path(__file__).parent.parent / "examples" / "openai_agents_agent.py"


@pytest.fixture(autouse=True)
def theirs_may_block(never_blocked: BlockBuster) -> None:
    """Frameworks look at files and clocks in the event loop; that is theirs."""
    never_blocked.deactivate()


def test_the_example_pays_once_though_its_provider_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "  bill of customer 7",
        "a person is asked, and agrees",
        "  charging customer 7: 300 cents",
    ]
    assert lines[3].startswith("attempt failed: external_fault (overloaded)")
    assert lines[4:] == ["cashier: Customer 7 has paid 300 cents: receipt 5."]


def test_with_a_key_the_example_asks_the_provider_of_that_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(Script((Rule(says("There is no bill.")),)))
    with loopback(world) as url:
        monkeypatch.setenv("OPENAI_API_KEY", "any")
        monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
        monkeypatch.setenv("OPENAI_MODEL", "another")
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert capsys.readouterr().out == "clerk: There is no bill.\n"
    assert [request.body["model"] for request in world.requests] == ["another"]
