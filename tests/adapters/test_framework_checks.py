"""A framework's own check refuses the model's answer once: what two plain tries save is saved."""

from __future__ import annotations

import pytest
from framework_ways import TASK, WAYS, Way, wire

from triage.testing.adapter_contract import Rule, Script, World, asks, call, loopback

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]
WAY = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
CHARGE = asks(call("charge", cents=300))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def script(way: Way, *, wrong: bool) -> Script:
    """A card is charged, and then the price is told: wrong in the second request, where it is asked for."""
    rules = (Rule(way.right, "receipt 5"), Rule(CHARGE))
    return Script(rules, faults={2: way.wrong} if wrong else {})


@WAY
async def test_two_plain_tries_are_enough(way: Way) -> None:
    world = World(script(way, wrong=True))
    with loopback(world) as url:
        async with wire(url) as line:
            bare, _ = way.build(world, line)
            with pytest.raises(Exception):  # noqa: B017, PT011 - each framework has an error of its own
                await bare(TASK)
            await bare(TASK)
    assert len(line.sent) == 4


@WAY
async def test_wrapped_it_is_saved_and_pays_once(way: Way) -> None:
    world = World(script(way, wrong=True))
    with loopback(world) as url:
        async with wire(url) as line:
            _, agent = way.build(world, line)
            await agent.run(TASK)
    assert world.deeds == ["charge(300)"]
    assert len(line.sent) <= 5
