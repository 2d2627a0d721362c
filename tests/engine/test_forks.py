"""Forks: a new run goes on from a step or a failure of an old one, and no effect happens twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from store_kinds import KINDS, Opened, opening
from tables import table

import triage
from engine.durable_runs import RUN, STEPS, Kept, agent_of, brought_to_its_end, payments
from triage import (
    Agent,
    Durability,
    FailurePolicy,
    Replan,
    Retry,
    Step,
    TriageEscalationError,
    TriageSuspendedError,
    UsageError,
)
from triage.core import (
    ApprovalGiven,
    AttemptFailed,
    Event,
    RunFinished,
    RunResumed,
    RunStarted,
    StaleWriter,
    StepRecorded,
    StoreKeyMissing,
    UnknownRun,
    fold,
)
from triage.core.state import active_seconds
from triage.core.wire import Keyring
from triage.engine import fork
from triage.stores import MemoryStore, Store

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]
opened = opening(*KINDS)
STOPS = FailurePolicy(default=FailurePolicy.escalate_by_default())
NOON = 1_800_000_000.0


class Shop:
    """An agent that looks, pays and fails where it is told to. paid, undone: what the bank has seen."""

    def __init__(self, store: Store, policy: FailurePolicy = STOPS, **options: Any) -> None:
        self.paid: list[int] = []
        self.undone: list[str] = []
        self.looks = 0
        self.fails = True
        self.cents = 5
        self.loses_the_reply = False
        self.hints: list[str | None] = []

        @triage.tool(effect="read")
        async def look(place: str) -> str:
            self.looks += 1
            return f"seen {place}"

        async def refund(receipt: str) -> None:
            self.undone.append(receipt)

        @triage.tool(effect="once", compensate=refund)
        async def pay(cents: int) -> str:
            self.paid.append(cents)
            if self.loses_the_reply:
                raise TimeoutError("the bank did not answer")
            return f"receipt {cents}"

        async def shop(task: str, *, _triage_hint: str | None = None) -> list[str]:
            self.hints.append(_triage_hint)
            found = [await look("one"), await pay(self.cents), await look("two")]
            if self.fails:
                raise RuntimeError("the parcel is lost")
            return [task, *found]

        self.agent = Agent(shop, policy, store=store, **options)

    async def failed(self) -> list[Event]:
        """A run that has failed, as its journal tells it."""
        with pytest.raises(TriageEscalationError):
            await self.agent.run("buy", run_id=RUN)
        self.fails = False
        return await self.agent.store.read(RUN)


def step_of(events: list[Event], tool: str) -> int:
    """The position of the last step of a tool."""
    return next(
        event.seq
        for event in reversed(events)
        if isinstance(event, StepRecorded) and event.step.tool_called == tool
    )


def first(events: list[Event], kind: type[Event]) -> Any:
    return next(event for event in events if isinstance(event, kind))


BOUGHT = ["buy", "seen one", "receipt 5", "seen two"]


async def test_a_fork_goes_on_behind_its_step_and_reuses_what_came_before(store: Any) -> None:
    shop = Shop(store)
    events = await shop.failed()
    at = step_of(events, "pay")
    made = await fork(store, RUN, at=at, now=NOON, by="ann")
    copied = await store.read(made)
    assert [type(event) for event in copied[: at + 1]] == [
        type(event) for event in events[: at + 1]
    ]
    assert await shop.agent.recover(made) == BOUGHT
    assert (shop.paid, shop.looks) == ([5], 3)
    assert await store.read(RUN) == events


async def test_a_fork_says_where_it_comes_from_who_made_it_and_when(store: Any) -> None:
    shop = Shop(store)
    at = step_of(await shop.failed(), "pay")
    made = await fork(store, RUN, at=at, now=NOON, by="ann")
    events = await store.read(made)
    started = events[0]
    assert isinstance(started, RunStarted)
    assert started.origin is not None
    assert (started.origin.run_id, started.origin.at, started.time) == (RUN, at, NOON)
    given = first(events, ApprovalGiven)
    assert (given.kind, given.subject, given.by, given.time) == ("fork", RUN, "ann", NOON)
    assert given.seq == started.origin.events
    info = await store.info(made)
    assert (info.status, info.updated, info.lease_until) == ("running", NOON, None)
    assert active_seconds(events) < 60


async def test_a_fork_before_an_effect_does_not_repeat_it(store: Any) -> None:
    shop = Shop(store)
    at = step_of(await shop.failed(), "look") - 1
    first_step = next(e.seq for e in await store.read(RUN) if isinstance(e, StepRecorded))
    assert first_step < at
    made = await fork(store, RUN, at=first_step, now=NOON)
    assert await shop.agent.recover(made) == BOUGHT
    assert shop.paid == [5]


async def test_a_fork_that_words_an_effect_otherwise_asks_first(store: Any) -> None:
    shop = Shop(store)
    events = await shop.failed()
    shop.cents = 7
    made = await fork(store, RUN, at=first(events, StepRecorded).seq, now=NOON)
    with pytest.raises(
        TriageSuspendedError, match=r"pay has completed in this run with .*5"
    ) as asked:
        await shop.agent.recover(made)
    assert shop.paid == [5]
    await shop.agent.resume(asked.value.token, triage.approve())
    assert shop.paid == [5, 7]


async def test_an_effect_in_doubt_behind_the_step_is_asked_about(store: Any) -> None:
    shop = Shop(store)
    shop.loses_the_reply = True
    with pytest.raises(TriageSuspendedError):
        await shop.agent.run("buy", run_id=RUN)
    shop.fails = shop.loses_the_reply = False
    events = await store.read(RUN)
    made = await fork(store, RUN, at=first(events, StepRecorded).seq, now=NOON, end=True)
    with pytest.raises(TriageSuspendedError, match=r"did pay with .* happen") as asked:
        await shop.agent.recover(made)
    assert await shop.agent.resume(asked.value.token, triage.happened("receipt 5")) == BOUGHT
    assert shop.paid == [5]


async def test_an_effect_that_was_taken_back_is_made_again(store: Any) -> None:
    undoing = FailurePolicy(default=lambda _context: triage.Abort("enough", compensate=True))
    shop = Shop(store, undoing)
    with pytest.raises(triage.TriageAbortError):
        await shop.agent.run("buy", run_id=RUN)
    shop.fails = False
    assert shop.undone == ["receipt 5"]
    made = await fork(store, RUN, at=step_of(await store.read(RUN), "pay"), now=NOON)
    assert await shop.agent.recover(made) == BOUGHT
    assert shop.paid == [5, 5]


async def test_a_fork_does_not_take_back_what_it_shares_with_others(store: Any) -> None:
    shop = Shop(store)
    at = step_of(await shop.failed(), "pay")
    shop.fails = True
    made = await fork(store, RUN, at=at, now=NOON)
    again = FailurePolicy(default=lambda _context: triage.Abort("enough", compensate=True))
    with pytest.raises(triage.TriageAbortError):
        await Agent(shop.agent._wrapped, again, store=store, name=shop.agent.name).recover(made)
    assert (shop.paid, shop.undone) == ([5], [])


async def test_a_failure_is_forked_with_an_answer_that_the_next_attempt_is_told(store: Any) -> None:
    shop = Shop(store)
    events = await shop.failed()
    failed = first(events, AttemptFailed)
    made = await fork(
        store, RUN, at=failed.seq, now=NOON, by="ann", action=Replan("ask the other depot")
    )
    resumed = first(await store.read(made), RunResumed)
    assert (resumed.by, resumed.action) == ("ann", Replan("ask the other depot"))
    assert await shop.agent.recover(made) == BOUGHT
    assert shop.hints == [None, "ask the other depot"]
    assert shop.paid == [5]


async def test_a_fork_of_a_fork_reuses_what_the_first_run_did(store: Any) -> None:
    shop = Shop(store)
    events = await shop.failed()
    shop.fails = True
    once = await fork(store, RUN, at=step_of(events, "pay"), now=NOON)
    with pytest.raises(TriageEscalationError):
        await shop.agent.recover(once)
    shop.fails = False
    again = await fork(store, once, at=first(await store.read(once), StepRecorded).seq, now=NOON)
    assert await shop.agent.recover(again) == BOUGHT
    assert shop.paid == [5]
    state = fold(await store.read(again))
    assert state.origin is not None
    assert (state.origin.run_id, state.salt) == (once, RUN)


async def test_forks_are_taken_up_by_any_worker(store: Any) -> None:
    shop = Shop(store)
    made = await fork(store, RUN, at=step_of(await shop.failed(), "pay"), now=NOON)
    assert [(one.run_id, one.result) for one in await shop.agent.recover_all()] == [(made, BOUGHT)]


async def test_a_run_inside_that_had_an_effect_is_reused_by_a_fork(store: Any) -> None:
    shop = Shop(store)
    shop.fails = False
    fails = True

    async def outer(task: str, *, record_step: Callable[[Step], int]) -> Any:
        record_step(Step(action="think"))
        found = await shop.agent.run(task)
        if fails:
            raise RuntimeError("not so")
        return found

    agent = Agent(outer, STOPS, store=store)
    with pytest.raises(TriageEscalationError):
        await agent.run("buy", run_id=RUN)
    fails = False
    for event in [e for e in await store.read(RUN) if isinstance(e, StepRecorded)]:
        made = await fork(store, RUN, at=event.seq, now=NOON)
        assert await agent.recover(made) == BOUGHT
    assert shop.paid == [5]


# Whose run it is ----------------------------------------------------------------------------------


async def test_a_run_that_goes_on_is_forked_only_after_it_is_ended(opened: Opened) -> None:
    store = opened.new()
    begun, go_on = anyio.Event(), anyio.Event()
    paid: list[str] = []
    raised: list[Exception] = []

    @triage.tool(effect="once")
    async def pay(order: str) -> str:
        paid.append(order)
        return "receipt"

    async def works(task: str, *, run: triage.Run) -> str:
        run.record_step(Step(action="think"))
        await run.flush()
        if not begun.is_set():
            begun.set()
            await go_on.wait()
        return await pay(task)

    agent = Agent(works, STOPS, store=store)

    async def owner() -> None:
        try:
            await agent.run("order", run_id=RUN)
        except Exception as error:
            raised.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(owner)
        await begun.wait()
        if opened.kind == "memory":
            group.cancel_scope.cancel()  # a run in memory is known to its store at its end alone
            return
        at = first(await store.read(RUN), StepRecorded).seq
        with pytest.raises(UsageError, match="has not ended"):
            await fork(store, RUN, at=at, now=NOON)
        made = await fork(store, RUN, at=at, now=NOON, by="ann", end=True)
        go_on.set()
    assert isinstance(raised[0], StaleWriter)
    ended = first(await store.read(RUN), RunFinished)
    assert (ended.status, ended.by) == ("cancelled", "ann")
    assert await agent.recover(made) == "receipt"
    assert paid == ["order"]
    await store.close()


async def test_what_cannot_be_forked_is_said_with_the_remedy_and_nothing_is_written() -> None:
    store = MemoryStore()
    shop = Shop(store)
    events = await shop.failed()
    at = step_of(events, "pay")
    before = await store.runs()
    for said, error, given in (
        ("knows no run other", UnknownRun, ("other", {"at": at})),
        ("taken; choose another", UsageError, (RUN, {"at": at, "new_id": RUN})),
        ("run_id 'a b' must be", UsageError, (RUN, {"at": at, "new_id": "a b"})),
        ("position 0 of run .* is neither a step", UsageError, (RUN, {"at": 0})),
        ("position 999 of run", UsageError, (RUN, {"at": 999})),
        ("position -1 of run", UsageError, (RUN, {"at": -1})),
        ("takes no action", UsageError, (RUN, {"at": at, "action": Retry()})),
    ):
        run_id, options = given
        with pytest.raises(error, match=said):
            await fork(store, run_id, now=NOON, **options)
    failed = first(events, AttemptFailed).seq
    wrong: Any = triage.Abort("no")
    with pytest.raises(UsageError, match="takes Retry, Replan or None, not Abort"):
        await fork(store, RUN, at=failed, now=NOON, action=wrong)
    assert await store.runs() == before


async def test_an_effect_recorded_by_hand_keeps_a_run_from_being_forked() -> None:
    store = MemoryStore()

    async def works(_task: str, *, record_step: Callable[[Step], int]) -> None:
        record_step(Step(action="think"))
        record_step(Step(action="mailed", effect="once"))
        raise RuntimeError("no")

    with pytest.raises(TriageEscalationError):
        await Agent(works, STOPS, store=store).run("go", run_id=RUN)
    at = first(await store.read(RUN), StepRecorded).seq
    with pytest.raises(UsageError, match=r"the step mailed .* recorded by hand"):
        await fork(store, RUN, at=at, now=NOON)


async def test_what_is_encrypted_is_forked_with_its_key_only(tmp_path: Any) -> None:
    key = "11" * 32
    secret = "sk-qX7vT2mK9pL4wN8zR3cY6aB1"
    store = f"sqlite:///{tmp_path}/runs.db"
    shop = Shop(triage.stores.open_store(store), durability=Durability(key=key))
    with pytest.raises(TriageEscalationError):
        await shop.agent.run(secret, run_id=RUN)
    shop.fails = False
    kept = shop.agent.store
    at = step_of(await kept.read(RUN), "pay")
    with pytest.raises(StoreKeyMissing):
        await fork(kept, RUN, at=at, now=NOON)
    made = await fork(kept, RUN, at=at, now=NOON, keys=Keyring.of(key))
    assert await shop.agent.recover(made) == [secret, *BOUGHT[1:]]
    assert secret not in repr(await kept.read(made))
    assert shop.paid == [5]
    await kept.close()


# Everywhere ---------------------------------------------------------------------------------------


@table("scenario", list(STEPS))
async def test_no_fork_from_any_step_repeats_an_effect(scenario: str) -> None:
    world, store = Kept(), MemoryStore()
    agent = agent_of(scenario, store, world)
    await brought_to_its_end(agent, world, lambda: agent.run("buy", run_id=RUN))
    events = await store.read(RUN)
    effects = payments(world)
    assert effects <= Counter({"pay 5": 1, "pay 7": 1})
    points = [e.seq for e in events if isinstance(e, StepRecorded | AttemptFailed)]
    for at in points:
        made = await fork(store, RUN, at=at, now=NOON)
        await brought_to_its_end(agent, world, lambda made=made: agent.recover(made))  # type: ignore[misc]
        assert payments(world) <= Counter({"pay 5": 1, "pay 7": 1}), at
