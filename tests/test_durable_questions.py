"""A run that is cut off while it asks about a call asks the same again; what cannot be undone is not."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from durable_runs import (
    PAID,
    RUN,
    Kept,
    begun,
    brought_to_its_end,
    check_journal,
    left_open,
    payments,
)
from support import RETRY, Says, always

import triage
from triage import Agent, MemoryStore, Rollback
from triage.errors import TriageEscalationError, TriageSuspendedError
from triage.events import ActionChosen, AttemptFailed, RunSuspended
from triage.stores import SQLiteStore, Store

pytestmark = pytest.mark.anyio


def losing_its_reply(store: Store, world: Kept) -> Agent[Any]:
    """An agent whose first payment takes effect and raises all the same."""

    @triage.tool(effect="once")
    async def pay(cents: int) -> str:
        world.do(f"pay {cents}")
        raise ConnectionResetError("the reply was lost")

    async def works(task: str) -> list[Any]:
        return [task, await pay(5)]

    return Agent(works, RETRY, classifier=Says(), store=store)


async def test_cut_off_anywhere_a_call_in_doubt_is_asked_about_as_it_would_have_been(
    tmp_path: Any,
) -> None:
    kept, world = MemoryStore(), Kept()
    whole = losing_its_reply(kept, world)
    first = await brought_to_its_end(whole, world, lambda: whole.run("task", run_id=RUN))
    assert first == (["task", PAID.format(5)], 1)
    events = await kept.read(RUN)
    (asked,) = [event for event in events if isinstance(event, RunSuspended)]
    for length in range(1, len(events)):
        prefix = events[:length]
        for happened in (True, False) if left_open(prefix) else (True,):
            world = Kept(begun(prefix) if happened else [])
            store = SQLiteStore(str(tmp_path / f"{length}-{happened}.db"))
            await store.append(RUN, prefix, at=0, epoch=0)
            agent = losing_its_reply(store, world)
            waits = triage.fold(prefix).status == "suspended"
            last = prefix[-1]
            if isinstance(last, AttemptFailed | ActionChosen | RunSuspended):
                with pytest.raises(TriageSuspendedError) as raised:
                    await agent.recover(RUN, force=waits)
                assert raised.value.question == asked.question
                again = (await store.read(RUN))[-1]
                assert isinstance(again, RunSuspended)
                assert (again.call, again.doubt) == (asked.call, asked.doubt)
                waits = True
            result, _ = await brought_to_its_end(
                agent, world, partial(agent.recover, RUN, force=waits)
            )
            assert result == ["task", PAID.format(5)], (length, happened)
            assert payments(world) == {"pay 5": 1}
            check_journal(await store.read(RUN))
            await store.close()


async def test_a_rollback_whose_compensator_died_with_its_process_escalates(tmp_path: Any) -> None:
    undone: list[str] = []

    @triage.tool(effect="once", compensate=lambda result: undone.append(result))  # noqa: PLW0108 - one with a signature
    async def book(room: str) -> str:
        return f"booked {room}"

    async def works(task: str, *, update_state: Any) -> str:
        update_state({"begun": True})
        await book("12")
        raise ConnectionError("gone")

    def agent_on(store: Store) -> Agent[Any]:
        back = always(lambda _context: Rollback(2))
        return Agent(works, back, classifier=Says(), store=store, limits=triage.Limits(attempts=2))

    kept = MemoryStore()
    with pytest.raises(TriageEscalationError):
        await agent_on(kept).run("task", run_id=RUN)
    assert undone == ["booked 12"]
    events = await kept.read(RUN)
    (chosen, *_) = [event for event in events if isinstance(event, ActionChosen)]
    assert chosen.action == Rollback(2)
    store = SQLiteStore(str(tmp_path / "runs.db"))
    await store.append(RUN, events[: chosen.seq + 1], at=0, epoch=0)
    undone.clear()
    with pytest.raises(TriageEscalationError, match="the process that could undo it is gone"):
        await agent_on(store).recover(RUN)
    assert undone == []
    await store.close()


async def test_a_fatal_end_is_fatal_for_whoever_finds_it(tmp_path: Any) -> None:
    fatal = triage.Diagnosis(triage.FailureType.EXTERNAL_FAULT, severity=triage.Severity.FATAL)

    async def works(task: str) -> str:
        raise PermissionError("never")

    kept = MemoryStore()
    for store in (kept, SQLiteStore(str(tmp_path / "runs.db"))):
        agent = Agent(works, RETRY, classifier=Says(fatal), store=store)
        if store is not kept:
            await store.append(RUN, (await kept.read(RUN))[:-1], at=0, epoch=0)
        with pytest.raises(triage.errors.TriageFatalError):
            await (agent.run("task", run_id=RUN) if store is kept else agent.recover(RUN))
    await store.close()
