"""A run that is cut off anywhere ends as if it had not been: from every prefix of its journal."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import anyio
import pytest
from store_kinds import Opened, opening
from support import RETRY, Says, always, question_of
from tables import covering

import triage
from engine.durable_runs import (
    PAID,
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
from triage import Agent, Rollback
from triage.core import (
    ActionChosen,
    AttemptFailed,
    AttemptStarted,
    Event,
    RunSuspended,
    TriageEscalationError,
    TriageSuspendedError,
    UsageRecorded,
)
from triage.stores import MemoryStore, SQLiteStore, Store

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
    if triage.core.fold(prefix).status == "suspended":
        if not getattr(agent.store, "durable", True):
            # Its token is good in the process that asked; another has the question asked anew.
            return await brought_to_its_end(agent, world, lambda: agent.recover(RUN, force=True))
        (token,) = tokens
        return await brought_to_its_end(agent, world, lambda: agent.resume(token, triage.approve()))
    return await brought_to_its_end(agent, world, lambda: agent.recover(RUN))


def used(events: Sequence[Event]) -> int:
    return triage.core.fold(events).usage.total_tokens


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
async def test_cut_off_anywhere_a_run_ends_as_it_would_have(
    scenario: str, opened: Opened, anyio_backend: str
) -> None:
    expected, events, _, tokens = await whole(scenario)
    # Every prefix in memory. Each store and event loop keeps a journal alike, and a new file or schema
    # takes its time: there some of them will do.
    step = {"memory": 1, "sqlite": 3, "postgres": 8}[opened.kind]
    if anyio_backend == "trio":
        step *= 3
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
        assert triage.core.fold(found).attempt == triage.core.fold(events).attempt + doubts, where
        if not doubts:
            assert used(found) == used(events) + of_cut_attempt(prefix), where
    finally:
        await store.close()


def test_the_cuts_stand_behind_every_milestone_there_is() -> None:
    """So that what is cut above is all there is to cut."""
    seen = set()
    for scenario in STEPS:
        _, events, _, _ = anyio.run(whole, scenario)
        seen |= {type(event).__name__ for event in events[:-1]}
        chosen = [event for event in events if isinstance(event, ActionChosen)]
        seen |= {f"ActionChosen {event.action.kind}" for event in chosen}
    kinds = ("retry", "replan", "rollback", "resume", "suspend", "escalate", "abort")
    assert seen >= {f"ActionChosen {kind}" for kind in kinds}
    assert seen >= {"RunStarted", "AttemptStarted", "AttemptFailed", "RunSuspended", "RunResumed"}


# Questions ----------------------------------------------------------------------------------------
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
            waits = triage.core.fold(prefix).status == "suspended"
            last = prefix[-1]
            if isinstance(last, AttemptFailed | ActionChosen | RunSuspended):
                raised = await question_of(agent.recover(RUN, force=waits))
                assert raised.question == asked.question
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


undone: list[str] = []


def cancel(result: str) -> None:
    undone.append(result)


@triage.tool(effect="once", compensate=cancel)
async def book(room: str) -> str:
    return f"booked {room}"


async def test_a_rollback_whose_process_died_undoes_what_that_did(tmp_path: Any) -> None:
    undone.clear()

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
    with pytest.raises(TriageEscalationError, match="2 of 2 attempts used"):
        await agent_on(store).recover(RUN)
    assert undone == ["booked 12"]
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
        with pytest.raises(triage.core.errors.TriageFatalError):
            await (agent.run("task", run_id=RUN) if store is kept else agent.recover(RUN))
    await store.close()


class Till:
    """Money as the world has it: how often each amount is charged and not refunded."""

    open: ClassVar[Till]

    def __init__(self, prefix: Sequence[Event] = ()) -> None:
        Till.open = self
        state = triage.core.fold(prefix)
        self.charged = [
            call.arguments["cents"]
            for call in state.calls.values()
            if call.outcome == "done" and not call.undone
        ]


async def refund(receipt: str, cents: int) -> None:
    Till.open.charged.remove(cents)


@triage.tool(effect="once", compensate=refund)
async def charge(cents: int) -> str:
    Till.open.charged.append(cents)
    return f"receipt of {cents}"


def rolled_back(store: Store, to: int, steps: int) -> Agent[str]:
    """The example of the documentation, with so many steps by hand before it pays."""

    async def goes_back(task: str, *, run: Any) -> str:
        for step in range(steps):
            run.record_step(triage.Step(action=f"begin {step}"))
        await charge(100)
        await charge(200)
        if run.attempt == 1:
            raise ConnectionError("lost the connection")
        return "paid"

    return Agent(goes_back, always(Rollback(to)), store=store, name="goes_back")


@pytest.mark.parametrize(("place", "kills"), covering([(2, 1), (2, 3), (4, 3)], [1, 2]))
async def test_a_rollback_to_a_written_position_works_after_a_kill_anywhere(
    place: tuple[int, int], kills: int
) -> None:
    to, steps = place
    till, store = Till(), MemoryStore()
    assert await rolled_back(store, to, steps).run("x", run_id=RUN) == "paid"
    events = await store.read(RUN)
    for length in range(1, len(events)):
        prefix = events[:length]
        for kill in range(1, kills):  # the next process came no further than to take it over
            recovered = triage.core.RunRecovered(RUN, length, 0.0, attempt=1, epoch=kill)
            prefix = [*prefix, recovered]
        store, till = MemoryStore(), Till(prefix)
        await written(store, prefix)
        agent = rolled_back(store, to, steps)
        result = None
        try:
            result = await agent.recover(RUN)
        except TriageSuspendedError as doubt:
            while result is None:
                try:
                    result = await agent.resume(doubt.token, triage.rerun())
                except TriageSuspendedError as again:
                    doubt = again
        assert result == "paid", (length, type(prefix[-1]).__name__)
        assert sorted(till.charged) == [100, 200], (length, type(prefix[-1]).__name__)
