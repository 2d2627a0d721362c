"""A run that is cut off anywhere ends as if it had not been: from every prefix of its journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from durable_runs import (
    PAYMENTS,
    RUN,
    STEPS,
    Kept,
    agent_of,
    begun,
    brought_to_its_end,
    check_journal,
    left_open,
    payments,
)
from store_kinds import Opened, opening

import triage
from triage import MemoryStore
from triage.errors import TriageSuspendedError
from triage.events import ActionChosen, AttemptFailed, AttemptStarted, Event, UsageRecorded
from triage.stores import Store

pytestmark = pytest.mark.anyio
KINDS = ("memory", "sqlite", "postgres")


opened = opening(*KINDS)


async def whole(scenario: str) -> tuple[Any, list[Event], list[str], list[str]]:
    """The scenario's end, journal and effects, and its tokens, where nothing cuts it off."""
    store, world = MemoryStore(), Kept()
    agent = agent_of(scenario, store, world)
    tokens: list[str] = []

    async def run() -> Any:
        try:
            return await agent.run("task", run_id=RUN)
        except TriageSuspendedError as question:
            tokens.append(question.token)
            raise

    result, doubts = await brought_to_its_end(agent, world, run)
    assert doubts == 0
    assert payments(world) == PAYMENTS
    return result, await store.read(RUN), world.effects, tokens


async def written(store: Store, events: Sequence[Event]) -> None:
    """A store as a process has left it that died after these events."""
    await store.append(RUN, list(events), at=0, epoch=0)


async def gone_on_with(
    agent: triage.Agent[Any], world: Kept, prefix: Sequence[Event], tokens: list[str]
) -> tuple[Any, int]:
    """What the run comes to in a process that finds this prefix."""
    if triage.fold(prefix).status == "suspended":
        if not getattr(agent.store, "durable", True):
            # Its token is good in the process that asked; another has the question asked anew.
            return await brought_to_its_end(agent, world, lambda: agent.recover(RUN, force=True))
        (token,) = tokens
        return await brought_to_its_end(agent, world, lambda: agent.resume(token, triage.approve()))
    return await brought_to_its_end(agent, world, lambda: agent.recover(RUN))


def used(events: Sequence[Event]) -> int:
    return triage.fold(events).usage.total_tokens


def of_cut_attempt(prefix: Sequence[Event]) -> int:
    """Tokens that the attempt used which a prefix cuts off: it needs them once more."""
    tokens = 0
    for event in prefix:
        if isinstance(event, AttemptStarted | AttemptFailed):
            tokens = 0
        elif isinstance(event, UsageRecorded):
            tokens += event.usage.total_tokens
    return tokens


@pytest.mark.parametrize("scenario", STEPS)
async def test_cut_off_anywhere_a_run_ends_as_it_would_have(scenario: str, opened: Opened) -> None:
    expected, events, _, tokens = await whole(scenario)
    # Each store keeps a journal alike, and a new schema takes its time: there every fifth will do.
    step = {"memory": 1, "sqlite": 2, "postgres": 5}[opened.kind]
    for length in range(1, len(events), step):
        prefix = events[:length]
        open_payments = left_open(prefix)
        # What was begun and not recorded may have happened, or may not.
        for happened in (True, False) if open_payments else (True,):
            kept = [name for name in begun(prefix) if happened or name not in open_payments]
            await _cut(scenario, opened.new(), prefix, Kept(kept), expected, tokens, events)


async def _cut(
    scenario: str,
    store: Any,
    prefix: list[Event],
    world: Kept,
    expected: Any,
    tokens: list[str],
    events: list[Event],
) -> None:
    try:
        await written(store, prefix)
        agent = agent_of(scenario, store, world)
        result, doubts = await gone_on_with(agent, world, prefix, tokens)
        where = (scenario, len(prefix), type(prefix[-1]).__name__)
        assert result == expected, where
        assert payments(world) == PAYMENTS, where
        assert doubts == len(left_open(prefix)), where
        found = await store.read(RUN)
        check_journal(found, (await store.info(RUN)).epoch)
        assert found[: len(prefix)] == prefix
        assert triage.fold(found).attempt == triage.fold(events).attempt + doubts, where
        if not doubts:
            assert used(found) == used(events) + of_cut_attempt(prefix), where
    finally:
        await store.close()


def test_the_cuts_stand_behind_every_milestone_there_is() -> None:
    """So that what is cut above is all there is to cut."""
    import anyio

    seen = set()
    for scenario in STEPS:
        _, events, _, _ = anyio.run(whole, scenario)
        seen |= {type(event).__name__ for event in events[:-1]}
        chosen = [event for event in events if isinstance(event, ActionChosen)]
        seen |= {f"ActionChosen {event.action.kind}" for event in chosen}
    kinds = ("retry", "replan", "rollback", "resume", "suspend", "escalate", "abort")
    assert seen >= {f"ActionChosen {kind}" for kind in kinds}
    assert seen >= {"RunStarted", "AttemptStarted", "AttemptFailed", "RunSuspended", "RunResumed"}
