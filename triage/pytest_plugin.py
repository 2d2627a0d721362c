"""The pytest plugin: fixtures for faults, scripted models and virtual time, and a report of what recovered.

pytest loads it in every session of an environment that has this package, so it stands beside the rooms
and imports them where a test asks for something.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from triage.testing.adapter_contract.bench import Rule, World
    from triage.testing.plans import FaultPlan
    from triage.testing.time import VirtualTime

MARK = "triage_faults"
PROPERTY = "triage"
"""The name of a report's property that says what a tested run did."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    meaning = "the faults of the fixture fault_plan, as triage.testing.FaultPlan takes them"
    config.addinivalue_line("markers", f"{MARK}(plan, **options): {meaning}")


@pytest.fixture
def fault_plan(request: pytest.FixtureRequest) -> FaultPlan:
    """The `FaultPlan` of the test's mark `triage_faults`; one without faults where there is no mark."""
    from triage.testing.plans import FaultPlan

    mark = request.node.get_closest_marker(MARK)
    return FaultPlan({}) if mark is None else FaultPlan(*mark.args, **mark.kwargs)


@pytest.fixture
def virtual_time() -> VirtualTime:
    """A clock that jumps to the next wake-up: `Agent(…, environment=virtual_time)`."""
    from triage.testing.time import VirtualTime

    return VirtualTime()


@pytest.fixture
def scripted_model() -> Iterator[Callable[..., tuple[str, World]]]:
    """Give a function that starts a model provider on this machine, of rules and faults.

    `url, world = scripted_model(Rule(says("Paid.")), faults={1: Fails(503, "Overloaded")})`, with the
    names of `triage.testing.adapter_contract`. The address speaks the protocols of OpenAI (at `/v1`) and
    Anthropic; `world.requests` is what it was asked. It stops with the test.
    """
    from triage.testing.adapter_contract.bench import Script, World
    from triage.testing.adapter_contract.providers import loopback

    with ExitStack() as servers:

        def start(*rules: Rule, **script: Any) -> tuple[str, World]:
            world = World(Script(rules, **script))
            return servers.enter_context(loopback(world)), world

        yield start


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Note what `assert_recovers` and `assert_escalates` tested, in properties that every report has."""
    try:
        return (yield)
    finally:
        asserts = sys.modules.get("triage.testing.asserts")
        if asserts is not None:
            item.user_properties += [(PROPERTY, account.summary) for account in asserts.tested]
            asserts.tested.clear()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what recovered, and how."""
    lines: list[str] = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                told = [text for name, text in report.user_properties if name == PROPERTY]
                lines += [f"{report.nodeid}  {text}" for text in told]
    if lines:
        terminalreporter.section("triage")
        for line in lines:
            terminalreporter.write_line(line)
