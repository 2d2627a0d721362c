"""A framework's own check refuses the model's answer once: what two plain tries save is saved."""

from __future__ import annotations

import pytest
from tables import table

from adapters.framework_ways import TASK, WAYS, Way, wire
from triage.testing.adapter_contract import Rule, Script, World, asks, call, loopback

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]
CHARGE = asks(call("charge", cents=300))


def script(way: Way) -> Script:
    """A card is charged, and then the price is told: wrong in the second request, where it is asked for."""
    rules = (Rule(way.right, "receipt 5"), Rule(CHARGE))
    return Script(rules, faults={2: way.wrong})


@table("way", WAYS)
async def test_what_two_plain_tries_save_is_saved_wrapped_and_pays_once(way: Way) -> None:
    world = World(script(way))
    with loopback(world) as url:
        async with wire(url) as line:
            bare, _ = way.build(world, line)
            with pytest.raises(Exception):  # noqa: B017, PT011 - each framework has an error of its own
                await bare(TASK)
            await bare(TASK)
    assert len(line.sent) == 4
    world = World(script(way))
    with loopback(world) as url:
        async with wire(url) as line:
            _, agent = way.build(world, line)
            await agent.run(TASK)
    assert world.deeds == ["charge(300)"]
    assert len(line.sent) <= 5
