"""Runs inside runs: found again by every attempt, gone on with where they were cut off, not done twice."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_kinds import Opened, opening
from support import Says, always, question_of, recovers
from tables import table

import triage
from engine.inner_runs import OUTER, Office, asks_once_more
from triage import (
    Abort,
    Agent,
    Checks,
    Escalate,
    Limits,
    Replan,
    Resume,
    Retry,
    Rollback,
    Run,
    Step,
    Suspend,
    Usage,
)
from triage.core import (
    AlreadyResumed,
    AttemptFailed,
    CallFinished,
    CallStarted,
    Cause,
    Event,
    ResultLost,
    RunStarted,
    TriageAbortError,
    TriageEscalationError,
    TriageSuspendedError,
    UsageError,
)
from triage.engine import GuardedCall, cancel
from triage.engine.outside import answers_to, asks_of, resolve
from triage.stores import MemoryStore, Store
from triage.testing import VirtualTime

pytestmark = pytest.mark.anyio


opened = opening("memory", "sqlite")


# Done already -------------------------------------------------------------------------------------
@pytest.mark.parametrize("effect", ["once", "read"])
@pytest.mark.parametrize("action", [Retry(), Resume("the rest")])
async def test_one_that_is_done_gives_its_result_to_the_next_attempt(
    action: Any, effect: str, store: Store
) -> None:
    office = Office(store, effect)
    agent = office.boss(asks_once_more(office, "a", "b", "a"), action)
    assert await agent.run("t", run_id=OUTER) == ["did a", "did b", "did a"]
    assert office.did == ["a", "b", "a"]
    assert await office.runs() == [("a", "done"), ("b", "done"), ("a", "done")]


async def test_a_retry_runs_one_anew_that_is_critical_and_had_no_effect(store: Store) -> None:
    office = Office(store, "read")
    works = asks_once_more(office, "a")
    agent = Agent(works, **recovers(always(Retry()).default, critical_step=0), store=store)
    assert await agent.run("t", run_id=OUTER) == ["did a"]
    assert office.did == ["a", "a"]


async def test_a_new_plan_has_what_only_read_done_anew_and_reuses_what_had_an_effect(
    store: Store,
) -> None:
    reads, pays = Office(store, "read"), Office(store, "once")
    for office, often in ((reads, 2), (pays, 1)):
        agent = office.boss(asks_once_more(office, "a"), Replan())
        assert await agent.run("t", run_id=f"outer-{often}") == ["did a"]
        assert office.did == ["a"] * often


async def test_a_rollback_keeps_what_was_done_before_its_checkpoint(store: Store) -> None:
    office = Office(store)
    checkpoints: list[int] = []

    async def works(task: str, *, run: Run) -> list[str]:
        found = [await office.clerk.run("before")]
        if run.attempt == 1:
            checkpoints.append(run.record_step(Step(action="think")))
            raise ConnectionError("late")
        return found

    agent = Agent(works, **recovers(lambda _c: Rollback(checkpoints[0])), store=store)
    assert await agent.run("t", run_id=OUTER) == ["did before"]
    assert office.did == ["before"]


@pytest.mark.parametrize("effect", ["once", "read"])
async def test_a_rollback_past_one_undoes_nothing_it_cannot_undo(effect: str, store: Store) -> None:
    office = Office(store, effect)

    async def works(task: str, *, run: Run) -> list[str]:
        run.record_step(Step(action="think"))
        return asks_once_more_in(run, [await office.clerk.run("a")])

    agent = Agent(works, **recovers(lambda _context: Rollback(2)), store=store)
    if effect == "once":
        with pytest.raises(TriageEscalationError, match="clerk had the effect"):
            await agent.run("t", run_id=OUTER)
        assert office.did == ["a"]
    else:
        assert await agent.run("t", run_id=OUTER) == ["did a"]
        assert office.did == ["a", "a"]


def asks_once_more_in(run: Run, found: list[str]) -> list[str]:
    if run.attempt == 1:
        raise ConnectionError("late")
    return found


async def test_equal_ones_are_told_apart_by_the_order_they_are_started_in(store: Store) -> None:
    count = Counter[str]()

    async def clerk(task: str) -> str:
        count[task] += 1
        return f"{task}{count[task]}"

    inner = Agent(clerk, store=store)
    seen: list[list[str]] = []

    async def works(task: str, *, run: Run) -> None:
        found: list[str] = []

        async def one(what: str) -> None:
            found.append(await inner.run(what))

        async with anyio.create_task_group() as group:
            for what in "abab" if run.attempt == 1 else "bbaa":
                group.start_soon(one, what)
        seen.append(sorted(found))
        if run.attempt == 1:
            raise ConnectionError("late")

    await Agent(works, **recovers(lambda _context: Retry()), store=store).run("t")
    assert seen == [["a1", "a2", "b1", "b2"]] * 2
    assert count == {"a": 2, "b": 2}


async def test_an_argument_without_a_form_does_not_hide_it_and_a_task_does(store: Store) -> None:
    office = Office(store)

    async def works(task: str, *, run: Run) -> None:
        await office.clerk.run("a", client=object())
        if run.attempt == 1:
            raise ConnectionError("late")

    await office.boss(works, Retry()).run("t")
    assert office.did == ["a"]

    tasks: list[object] = []

    async def clerk(task: object) -> None:
        tasks.append(task)

    inner = Agent(clerk, store=store)

    async def blind(task: str, *, run: Run) -> None:
        await inner.run(object())
        if run.attempt == 1:
            raise ConnectionError("late")

    await Agent(blind, **recovers(lambda _context: Retry()), store=store).run("t", run_id=OUTER)
    assert len(tasks) == 2
    assert [info.status for info in await store.runs(parent=OUTER)] == ["done", "done"]


class Ticket(NamedTuple):
    number: int


# Other arguments ----------------------------------------------------------------------------------
def words_it_anew(office: Office) -> Callable[..., Any]:
    async def works(task: str, *, run: Run) -> str:
        found = await office.clerk.run(f"wording {min(run.attempt, 2)}")
        if run.attempt == 1:
            raise ConnectionError("late")
        return str(found)

    return works


@pytest.mark.parametrize("action", [Retry(), Replan()])
async def test_another_one_is_asked_about_where_the_first_had_an_effect(
    action: Any, store: Store
) -> None:
    office = Office(store)
    agent = office.boss(words_it_anew(office), action)
    asked = await question_of(agent.run("t", run_id=OUTER), match="clerk has completed in this run")
    assert office.did == ["wording 1"]
    assert await agent.resume(asked.token, triage.rerun()) == "did wording 2"


async def test_nobody_is_asked_about_one_that_a_new_plan_repeats(store: Store) -> None:
    office = Office(store)

    async def clerk(task: str) -> str:
        return f"read {task}" if task == "one" else await office.clerk.run(task)

    inner = Agent(clerk, store=store, name="reader")

    async def works(task: str, *, run: Run) -> list[str]:
        found = [await inner.run("one"), await inner.run("two")]
        if run.attempt == 1:
            raise ConnectionError("late")
        return found

    assert await office.boss(works, Replan()).run("t") == ["read one", "did two"]
    assert office.did == ["two"]


@pytest.mark.parametrize("action", [Retry(), Replan()])
async def test_nobody_is_asked_about_another_one_where_the_first_only_read(
    action: Any, store: Store
) -> None:
    office = Office(store, "read")
    assert await office.boss(words_it_anew(office), action).run("t") == "did wording 2"


# Its own end --------------------------------------------------------------------------------------
async def test_one_that_escalated_is_not_given_back_for_ever(store: Store) -> None:
    tries: list[str] = []

    async def clerk(task: str) -> str:
        tries.append(task)
        if len(tries) < 3:
            raise ConnectionError("gone")
        return "done at last"

    inner = Agent(clerk, always(lambda _c: triage.Escalate("enough")), store=store)

    async def works(task: str) -> str:
        return str(await inner.run("a"))

    agent = Agent(works, **recovers(lambda _context: Retry()), store=store)
    assert await agent.run("t", run_id=OUTER) == "done at last"
    statuses = [info.status for info in await store.runs(parent=OUTER)]
    assert sorted(statuses) == ["done", "escalated", "escalated"]


async def test_one_that_failed_after_it_had_an_effect_is_asked_about(store: Store) -> None:
    office = Office(store)
    paid: list[str] = []

    @triage.tool(effect="once")
    async def pay(what: str) -> str:
        paid.append(what)
        return "paid"

    async def clerk(task: str) -> str:
        await pay(task)
        if len(paid) == 1:
            raise ConnectionError("gone")
        return f"bought {task}"

    inner = Agent(clerk, always(lambda _c: triage.Abort("no")), store=store, name="buyer")

    async def works(task: str) -> str:
        return str(await inner.run("a map"))

    agent = office.boss(works, Retry())
    asked = await question_of(agent.run("t", run_id=OUTER), match=r"did buyer with .* happen")
    assert paid == ["a map"]
    answered = await agent.resume(asked.token, triage.happened("it is here"))
    assert answered == "it is here"
    paid.clear()
    asked = await question_of(agent.run("t", run_id="again"))
    assert await agent.resume(asked.token, triage.rerun()) == "bought a map"
    assert paid == ["a map", "a map"]


# Cut off ------------------------------------------------------------------------------------------
class Late:
    """An attempt whose time is up as soon as the run inside it hangs."""

    def __init__(self) -> None:
        self.env = VirtualTime()
        self._hangs = anyio.Event()

    async def hang(self) -> None:
        self._hangs.set()
        await anyio.sleep_forever()

    async def waits_for(self, inner: Awaitable[Any]) -> Any:
        """The result of the run inside; called by the attempt around it."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._passes)
            found = await inner
            group.cancel_scope.cancel()
        return found

    async def _passes(self) -> None:
        await self._hangs.wait()
        self._hangs = anyio.Event()
        await self.env.sleep(60)


async def test_one_that_a_failed_attempt_cut_off_goes_on(store: Store) -> None:
    outer = Late()
    did: list[str] = []
    attempts: list[int] = []

    @triage.tool(effect="once")
    async def act(what: str) -> object:
        did.append(what)
        return object()  # at hand in this process alone

    async def clerk(task: str, *, run: Run, update_state: Any, _triage_state: Any) -> Any:
        attempts.append(run.attempt)
        await act("first")
        if _triage_state is None:
            update_state({"half": "done"})
            await outer.hang()
        await act("second")
        return _triage_state

    inner = Agent(clerk, store=store)

    async def works(task: str) -> Any:
        return await outer.waits_for(inner.run("a"))

    limits = Limits(attempts=2, attempt_seconds=30)
    agent = Agent(
        works,
        **recovers(lambda _context: Retry()),
        store=store,
        limits=limits,
        environment=outer.env,
    )
    assert await agent.run("t", run_id=OUTER) == {"half": "done"}
    assert did == ["first", "second"]
    assert attempts == [1, 1]
    (info,) = await store.runs(parent=OUTER)
    assert info.status == "done"


async def test_one_that_runs_anew_is_not_asked_about_for_one_that_was_cut_off(
    store: Store,
) -> None:
    did: list[str] = []

    @triage.tool(effect="once")
    async def act(what: str) -> None:
        did.append(what)

    async def clerk(task: str, *, run: Run) -> None:
        if task == "work":
            await act("first")
            if did == ["first"]:
                paid.set()
                await anyio.sleep_forever()
            await act("second")

    inner = Agent(clerk, name="clerk", store=store)

    async def works(task: str, *, run: Run) -> None:
        await inner.run("look")
        async with anyio.create_task_group() as group:
            group.start_soon(inner.run, "work")
            if run.attempt == 1:
                await paid.wait()
                did.append("late")
                raise ConnectionError("late")

    paid = anyio.Event()
    await Agent(works, **recovers(Replan("anew")), store=store).run("t")
    assert did == ["first", "late", "second"]


async def test_two_levels_down_it_goes_on_with_results_that_have_no_form() -> None:
    tickets: list[object] = []

    @triage.tool(effect="once")
    async def buy() -> object:
        tickets.append(object())
        return tickets[-1]

    async def clerk(task: str) -> bool:
        ticket = await buy()
        if not bought.is_set():
            bought.set()
            await anyio.sleep_forever()
        return ticket is tickets[0]

    async def manager(task: str) -> bool:
        return await clerks.run(task)

    clerks = Agent(clerk, name="clerk")
    managers = Agent(manager, name="manager")

    async def works(task: str, *, run: Run) -> bool:
        found: list[bool] = []

        async def one() -> None:
            found.append(await managers.run(task))

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            if run.attempt == 1:
                await bought.wait()
                raise ConnectionError("late")
        return found == [True]

    bought = anyio.Event()
    assert await Agent(works, **recovers(Retry())).run("t")
    assert len(tickets) == 1


async def test_one_that_nothing_comes_to_again_ends_with_the_outer_run(store: Store) -> None:
    outer = Late()

    async def clerk(task: str) -> None:
        await outer.hang()

    inner = Agent(clerk, store=store)

    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            await outer.waits_for(inner.run("a"))
        return "without it"

    limits = Limits(attempts=2, attempt_seconds=30)
    agent = Agent(
        works,
        **recovers(lambda _context: Retry()),
        store=store,
        limits=limits,
        environment=outer.env,
    )
    assert await agent.run("t", run_id=OUTER) == "without it"
    assert [info.status for info in await store.runs(parent=OUTER)] == ["cancelled"]


async def test_what_one_used_counts_once_in_the_outer_run(store: Store) -> None:
    outer = Late()

    async def clerk(task: str, *, run: Run, record_usage: Any) -> str:
        record_usage(Usage(input_tokens=10))
        if not again:
            again.append(1)
            await outer.hang()
        return "done"

    again: list[int] = []
    inner = Agent(clerk, store=store)
    used: list[int] = []

    async def works(task: str, *, run: Run) -> str:
        found = await outer.waits_for(inner.run("a"))
        used.append(run.usage.input_tokens)
        if len(used) == 1:
            raise ConnectionError("late")
        return str(found)

    limits = Limits(attempts=3, attempt_seconds=30)
    agent = Agent(
        works,
        **recovers(lambda _context: Retry()),
        store=store,
        limits=limits,
        environment=outer.env,
    )
    await agent.run("t", run_id=OUTER)
    assert used == [20, 20]


# What it is ---------------------------------------------------------------------------------------
async def test_it_is_a_call_of_the_attempt_with_a_journal_of_its_own(store: Store) -> None:
    office = Office(store, "read")

    async def works(task: str, *, run: Run) -> None:
        for start in (office.clerk, office.clerk.run):
            await run.call(start, "a")
        await office.clerk("b")
        (first, *_) = run.trajectory
        assert (first.tool_called, first.tool_input, first.tool_output) == (
            "clerk",
            {"task": "a"},
            "did a",
        )

    await Agent(works, store=store).run("t", run_id=OUTER)
    events: list[Event] = await store.read(OUTER)
    begun = [event for event in events if isinstance(event, CallStarted)]
    ended = [event for event in events if isinstance(event, CallFinished)]
    assert [event.effect for event in ended] == ["idempotent"] * 3
    for event in begun:
        assert event.run is not None
        (started, *_rest) = await store.read(event.run)
        assert isinstance(started, RunStarted)
        assert started.parent == OUTER
    assert len({event.run for event in begun}) == 3


async def test_an_id_may_be_chosen_and_must_be_free(store: Store) -> None:
    office = Office(store)
    await office.clerk.run("stranger", run_id="taken")

    async def works(task: str, *, run: Run) -> str:
        found = await office.clerk.run("a", run_id="mine")
        if run.attempt == 1:
            raise ConnectionError("late")
        return str(found)

    assert await office.boss(works, Retry()).run("t", run_id=OUTER) == "did a"
    assert office.did == ["stranger", "a"]
    assert (await store.info("mine")).parent == OUTER  # type: ignore[union-attr] # it is there

    async def takes(task: str) -> None:
        await office.clerk.run("a", run_id="taken")

    with pytest.raises(UsageError, match="taken"):
        await office.boss(takes, Retry()).run("t")
    assert (await store.info("taken")).status == "done"  # type: ignore[union-attr] # as above


@pytest.mark.parametrize("waits", [True, False])
async def test_a_chosen_id_gives_no_task_the_result_of_another(
    *, waits: bool, store: Store
) -> None:
    office = Office(store)

    async def works(task: str, *, run: Run) -> list[str]:
        found = ["", ""]

        async def one(n: int, what: str) -> None:
            found[n] = await office.clerk.run(what, run_id="mine")

        async with anyio.create_task_group() as group:
            for n, what in enumerate("ab"):
                if waits:
                    await one(n, what)
                else:
                    group.start_soon(one, n, what)
        if run.attempt == 1:
            raise ConnectionError("late")
        return found

    assert await office.boss(works, Retry()).run("t", run_id=OUTER) == ["did a", "did b"]
    assert sorted(office.did) == ["a", "b"]
    assert {info.run_id for info in await store.runs(parent=OUTER)} == {"mine", "mine.2"}


async def test_the_same_task_under_the_same_id_is_the_same_run(store: Store) -> None:
    office = Office(store)

    async def works(task: str, *, run: Run) -> list[str]:
        found = [await office.clerk.run("a", run_id="mine") for _ in range(2)]
        if run.attempt == 1:
            raise ConnectionError("late")
        return found

    assert await office.boss(works, Retry()).run("t", run_id=OUTER) == ["did a", "did a"]
    assert office.did == ["a"]


async def test_a_question_inside_cuts_off_no_call_with_an_effect_beside_it() -> None:
    sent: list[str] = []

    @triage.tool(effect="once")
    async def send(what: str) -> str:
        started.set()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        sent.append(what)
        return f"sent {what}"

    async def clerk(task: str) -> str:
        await started.wait()
        return str(await send("the bill"))

    def asks(call: GuardedCall) -> Suspend | None:
        return Suspend("sure?") if call.arguments["what"] == "the bill" else None

    inner = Agent(clerk, name="clerk", checks=Checks(guard=asks))

    async def works(task: str) -> list[str]:
        found = ["", ""]

        async def letter() -> None:
            found[0] = await send("a letter")

        async def bill() -> None:
            found[1] = await inner.run("x")

        async with anyio.create_task_group() as group:
            group.start_soon(letter)
            group.start_soon(bill)
        return found

    started = anyio.Event()
    agent = Agent(works, **recovers(Retry()))
    asked = await question_of(agent.run("t"), match="may send run with .*bill")
    assert sent == ["a letter"]
    found = await agent.resume(asked.token, triage.approve())
    assert found == ["sent a letter", "sent the bill"]
    assert sent == ["a letter", "the bill"]


@pytest.mark.parametrize("later", range(4))
async def test_no_call_with_an_effect_begins_inside_a_run_that_is_being_stopped(later: int) -> None:
    begun: list[str] = []
    sent: list[str] = []

    @triage.tool(effect="once")
    async def send(what: str) -> str:
        begun.append(what)
        await anyio.lowlevel.checkpoint()
        sent.append(what)
        return f"sent {what}"

    async def clerk(task: str) -> str:
        await asked.wait()
        for _ in range(later):
            await anyio.lowlevel.checkpoint()
        return str(await send(task))

    def asks(call: GuardedCall) -> Suspend | None:
        asked.set()
        return Suspend("sure?") if call.arguments["what"] == "the bill" else None

    inner = Agent(clerk, name="clerk")

    async def works(task: str) -> list[str]:
        found = ["", ""]

        async def letter() -> None:
            found[0] = await inner.run("a letter")

        async def bill() -> None:
            found[1] = await send("the bill")

        async with anyio.create_task_group() as group:
            group.start_soon(letter)
            await anyio.lowlevel.checkpoint()
            group.start_soon(bill)
        return found

    asked = anyio.Event()
    agent = Agent(works, **recovers(Retry()), checks=Checks(guard=asks), limits=Limits(seconds=60))
    question = await question_of(agent.run("t"), match="may send run with .*bill")
    assert begun == sent
    found = await agent.resume(question.token, triage.approve())
    assert found == ["sent a letter", "sent the bill"]


async def test_a_question_inside_comes_before_the_call_in_doubt_that_it_would_cut_off_again() -> (
    None
):
    sent: list[str] = []

    @triage.tool(effect="once")
    async def send(what: str) -> str:
        for _ in range(200):
            await anyio.lowlevel.checkpoint()
        sent.append(what)
        return f"sent {what}"

    @triage.tool(effect="once")
    async def pay(what: str) -> str:
        sent.append(what)
        return f"paid {what}"

    async def clerk(task: str) -> str:
        return str(await pay("the bill"))

    inner = Agent(clerk, name="clerk", checks=Checks(guard=lambda _call: Suspend("sure?")))

    @triage.tool(effect="read")
    async def ask_the_clerk() -> str:
        return await inner.run("x")

    async def works(task: str) -> list[str]:
        found = ["", ""]

        async def letter() -> None:
            found[0] = await send("a letter")

        async def bill() -> None:
            await anyio.lowlevel.checkpoint()
            found[1] = await ask_the_clerk()  # a call inside a call waits for none beside it

        async with anyio.create_task_group() as group:
            group.start_soon(letter)
            group.start_soon(bill)
        return found

    agent = Agent(works, **recovers(Retry()))
    step: Awaitable[Any] = agent.run("t")
    questions: list[str] = []
    found = None
    while found is None and len(questions) < 5:
        try:
            found = await step
        except TriageSuspendedError as asked:
            questions.append(asked.question[:3])
            answer = triage.approve() if questions[-1] == "may" else triage.rerun()
            step = agent.resume(asked.token, answer)
    assert found == ["sent a letter", "paid the bill"]
    assert sorted(sent) == ["a letter", "the bill"]
    assert questions.count("may") == 1


async def test_a_stream_gives_its_items_to_every_attempt(store: Store) -> None:
    given: list[int] = []

    async def counts(task: str) -> Any:
        for number in range(3):
            given.append(number)
            yield number

    inner = Agent(counts, store=store)

    async def works(task: str, *, run: Run) -> list[Any]:
        found = [item async for item in inner.stream("a")]
        if run.attempt == 1:
            raise ConnectionError("late")
        return found

    agent = Agent(works, **recovers(lambda _context: Retry()), store=store)
    assert await agent.run("t") == [0, 1, 2]
    assert given == [0, 1, 2]


def test_sync_agents_have_runs_inside_them_too(tmp_path: Any) -> None:
    office = Office(MemoryStore())

    def works(task: str, *, run: Run) -> str:
        found = office.clerk.run_sync("a")
        if run.attempt == 1:
            raise ConnectionError("late")
        return str(found)

    assert office.boss(works, Retry()).run_sync("t", run_id=OUTER) == "did a"
    assert office.did == ["a"]


async def test_a_task_that_outlives_the_attempt_may_start_runs(store: Store) -> None:
    office = Office(store)
    go, over = anyio.Event(), anyio.Event()

    async def later() -> None:
        await go.wait()
        assert await office.clerk.run("a") == "did a"
        over.set()

    async with anyio.create_task_group() as group:

        async def works(task: str) -> None:
            group.start_soon(later)

        await Agent(works, store=store).run("t")
        go.set()
        await over.wait()


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(st.tuples(values, values), st.tuples(values, values))
def test_one_is_known_by_all_that_it_was_given(one: Any, other: Any) -> None:
    made: list[Any] = []

    async def clerk(task: Any, *, extra: Any) -> None:
        made.append((task, extra))

    inner = Agent(clerk)

    async def works(_task: str, *, run: Run) -> None:
        task, extra = one if run.attempt == 1 else other
        await inner.run(task, extra=extra)
        if run.attempt == 1:
            raise ConnectionError("late")

    Agent(works, **recovers(lambda _context: Retry())).run_sync("t")
    same = repr(sorted_all(one)) == repr(sorted_all(other))
    assert len(made) == (1 if same else 2)


def sorted_all(value: Any) -> Any:
    """The value with its mappings in one order."""
    if isinstance(value, dict):
        return {key: sorted_all(value[key]) for key in sorted(value)}
    return [sorted_all(item) for item in value] if isinstance(value, list | tuple) else value


async def test_one_is_kept_as_safely_as_the_outer_run(tmp_path: Any) -> None:
    """An agent with no store of its own would lose with its process what it has paid."""
    paid: list[str] = []

    @triage.tool(effect="once")
    async def pay(what: str) -> str:
        paid.append(what)
        return f"paid {what}"

    async def clerk(task: str, *, run: Run) -> str:
        found = await pay(task)
        await run.flush()
        if len(paid) == 1 and not died:
            died.append(True)
            raise KeyboardInterrupt
        return str(found)

    async def works(task: str) -> str:
        return str(await Agent(clerk, name="clerk").run("a"))

    died: list[bool] = []
    with Opened("sqlite", tmp_path) as opened:
        first, second = opened.new(), opened.another()
        with pytest.raises(KeyboardInterrupt):
            await Agent(works, store=first, name="works").run("t", run_id=OUTER)
        assert await Agent(works, store=second, name="works").recover(OUTER) == "paid a"
        await first.close()
        await second.close()
    assert paid == ["a"]


@table("declares", ["result_type", "annotation"])
async def test_a_result_comes_back_in_another_process_as_what_is_declared(
    declares: str, tmp_path: Any
) -> None:
    async def annotated(task: str) -> Ticket:
        return Ticket(7)

    async def bare(task: str) -> Any:
        return Ticket(7)

    function = annotated if declares == "annotation" else bare
    options: dict[str, Any] = {"result_type": Ticket} if declares == "result_type" else {}
    with Opened("sqlite", tmp_path) as opened:
        store = opened.new()
        await Agent(function, store=store, name="clerk", **options).run("t", run_id="r")
        assert await Agent(function, store=store, name="clerk", **options).recover("r") == Ticket(7)
        with pytest.raises(ResultLost, match="annotate"):
            await Agent(bare, store=store, name="clerk").recover("r")
        await store.close()


class Shop:
    """A buyer who asks, and a boss who sends him out. Made anew, it is another process' shop."""

    def __init__(self, store: Store, paid: list[str], *, doubt: bool = False) -> None:
        self.store = store

        @triage.tool(effect="once")
        async def pay(what: str) -> str:
            paid.append(what)
            if doubt and len(paid) == 1:
                raise ConnectionResetError("reset by peer")
            return f"paid for {what}"

        async def buyer(task: str, *, run: Run, price: int = 0) -> str:
            if not doubt and run.attempt == 1:
                raise PermissionError("may I?")
            return f"{await pay(task)} {price}"

        async def boss(task: str, *, run: Run) -> str:
            return str(await self.buyer.run(task))

        asks = always(lambda _context: Suspend("may I buy it?"))
        self.buyer = Agent(buyer, asks, classifier=Says(), store=store, name="buyer")
        self.boss = Agent(boss, **recovers(Retry()), store=store, name="boss")


async def token_of(agent: Agent[Any], match: str = "may I buy it") -> str:
    raised = await question_of(agent.run("a map", run_id=OUTER), match=match)
    return raised.token


async def inner_of(store: Store) -> Any:
    (info,) = await store.runs(parent=OUTER)
    return info


@pytest.mark.parametrize(
    ("answer", "price"), [(triage.approve(), 0), (triage.edit({"price": 3}), 3), (Retry(), 0)]
)
async def test_an_answer_to_the_outer_run_reaches_the_one_that_asks(
    answer: Any, price: int, store: Store
) -> None:
    paid: list[str] = []
    shop = Shop(store, paid)
    token = await token_of(shop.boss)
    assert token.startswith(f"{OUTER}~")
    assert (await inner_of(store)).status == "suspended"
    assert await shop.boss.resume(token, answer) == f"paid for a map {price}"
    assert paid == ["a map"]
    with pytest.raises(AlreadyResumed):
        await shop.boss.resume(token, answer)


async def test_any_process_may_answer(tmp_path: Any) -> None:
    with Opened("sqlite", tmp_path) as opened:
        first, paid = opened.new(), list[str]()
        token = await token_of(Shop(first, paid).boss)
        second = opened.another()
        assert await Shop(second, paid).boss.resume(token, triage.approve()) == "paid for a map 0"
        await first.close()
        await second.close()


async def test_a_call_in_doubt_inside_is_asked_about_and_never_guessed(store: Store) -> None:
    paid: list[str] = []
    shop = Shop(store, paid, doubt=True)
    token = await token_of(shop.boss, "did pay with .* happen")
    for answer in (triage.approve(), Retry(), triage.edit({"price": 1})):
        with pytest.raises(UsageError, match="happened"):
            await shop.boss.resume(token, answer)
    assert await shop.boss.resume(token, triage.happened("paid in cash")) == "paid in cash 0"
    assert paid == ["a map"]


async def test_a_refusal_is_the_inner_runs_and_the_outer_one_decides(store: Store) -> None:
    paid: list[str] = []
    shop = Shop(store, paid)

    async def boss(task: str) -> str:
        try:
            return str(await shop.buyer.run(task))
        except TriageAbortError:
            return "then not"

    agent = Agent(boss, store=store)
    token = await token_of(agent)
    assert await agent.resume(token, triage.reject("too dear")) == "then not"
    assert paid == []


@pytest.mark.parametrize(
    ("answer", "error"), [(Abort("no"), TriageAbortError), (Escalate("no"), TriageEscalationError)]
)
async def test_an_answer_that_ends_the_run_ends_both(
    answer: Any, error: type[Exception], store: Store
) -> None:
    shop = Shop(store, [])
    token = await token_of(shop.boss)
    with pytest.raises(error):
        await shop.boss.resume(token, answer)
    assert (await inner_of(store)).status == "cancelled"


async def test_an_answer_that_ends_the_run_ends_those_two_levels_down_in_stores_of_their_own() -> (
    None
):
    shop = Shop(MemoryStore(), [])
    above = MemoryStore()
    boss = shop.boss.stored_in(above)

    async def owner(task: str) -> str:
        return str(await boss.run(task))

    agent = Agent(owner, store=MemoryStore())
    token = await token_of(agent)
    with pytest.raises(TriageAbortError):
        await agent.resume(token, Abort("no"))
    (middle,) = await above.runs()
    (lowest,) = await shop.store.runs()
    assert (middle.status, lowest.status) == ("cancelled", "cancelled")


@pytest.mark.parametrize("answer", [triage.approve(), Abort("no")])
async def test_nothing_is_kept_for_a_question_that_is_answered_no_more(answer: Any) -> None:
    class Client:
        """Has no form in JSON."""

    clients: list[weakref.ref[Client]] = []

    async def buyer(task: str, *, run: Run, client: Any) -> str:
        if run.attempt == 1:
            raise PermissionError("may I?")
        return task

    async def boss(task: str) -> list[str]:
        found: dict[str, str] = {}

        async def one(what: str) -> None:
            client = Client()
            clients.append(weakref.ref(client))
            found[what] = await inner.run(what, client=client)

        async with anyio.create_task_group() as group:
            for what in ("a map", "a tent"):
                group.start_soon(one, what)
        return sorted(found.values())

    inner = Agent(buyer, always(lambda _context: Suspend("may I?")), classifier=Says())
    agent = Agent(boss, **recovers(Retry()))
    asked = await question_of(agent.run("t"))
    token = (await question_of(agent.resume(asked.token, triage.approve()))).token
    del asked
    if isinstance(answer, Abort):
        with pytest.raises(TriageAbortError):
            await agent.resume(token, answer)
    else:
        assert await agent.resume(token, answer) == ["a map", "a tent"]
    for _ in range(100):  # a thread that has given its result lets go of it a little later
        await anyio.sleep(0.001)
        gc.collect()
        if not any(client() for client in clients):
            break
    assert len(clients) >= 4
    assert [client() for client in clients] == [None] * len(clients)


async def test_an_answer_at_the_store_lets_the_runs_around_it_go_on(store: Store) -> None:
    paid: list[str] = []
    shop = Shop(store, paid)

    async def owner(task: str) -> str:
        return f"owner: {await shop.boss.run(task)}"

    agent = Agent(owner, **recovers(Retry()), store=store)
    await question_of(agent.run("a map", run_id="top"), match="may I buy it")
    (boss,) = await store.runs(parent="top")
    (buyer,) = await store.runs(parent=boss.run_id)
    await resolve(store, buyer.run_id, triage.approve(), now=0.0, by="ann")
    assert {info.status for info in await store.runs()} == {"running"}
    (ended,) = await agent.recover_all()
    assert ended.result == "owner: paid for a map 0"
    assert paid == ["a map"]


async def test_a_question_inside_about_an_action_is_no_call_in_doubt(store: Store) -> None:
    shop = Shop(store, [])
    await token_of(shop.boss)
    events = await store.read(OUTER)
    assert asks_of(events) == "answer"
    assert answers_to(events)[0] == "approve"
    assert "happened" not in answers_to(events)
    (failed,) = [event for event in events if isinstance(event, AttemptFailed)]
    assert failed.diagnosis.cause != Cause.IN_DOUBT


async def test_answered_itself_it_goes_on_without_the_outer_run(store: Store) -> None:
    paid: list[str] = []
    shop = Shop(store, paid)
    own: list[str] = []

    async def boss(task: str, *, run: Run) -> str:
        try:
            return str(await shop.buyer.run(task))
        except TriageSuspendedError as asked:
            own.append(asked.token)
            raise

    agent = Agent(boss, **recovers(Retry()), store=store)
    token = await token_of(agent)
    assert await shop.buyer.resume(own[0], triage.approve()) == "paid for a map 0"
    assert await agent.resume(token, triage.approve()) == "paid for a map 0"
    assert paid == ["a map"]


async def test_an_agent_may_answer_by_itself(store: Store) -> None:
    shop = Shop(store, [])

    async def boss(task: str) -> str:
        try:
            return str(await shop.buyer.run(task))
        except TriageSuspendedError as asked:
            return str(await shop.buyer.resume(asked.token, triage.approve()))

    assert await Agent(boss, store=store).run("a map", run_id=OUTER) == "paid for a map 0"
    assert (await store.info(OUTER)).status == "done"  # type: ignore[union-attr] # it is there


async def test_two_that_wait_are_asked_about_one_after_the_other(store: Store) -> None:
    paid: list[str] = []
    shop = Shop(store, paid)

    async def boss(task: str) -> list[str]:
        found: dict[str, str] = {}

        async def one(what: str) -> None:
            found[what] = await shop.buyer.run(what)

        async with anyio.create_task_group() as group:
            for what in ("a map", "a tent"):
                group.start_soon(one, what)
        return [found[what] for what in sorted(found)]

    agent = Agent(boss, **recovers(Retry()), store=store)
    token, answers = await token_of(agent), 0
    while True:
        answers += 1
        try:
            result = await agent.resume(token, triage.approve())
        except TriageSuspendedError as asked:
            token = asked.token
        else:
            break
    assert result == ["paid for a map 0", "paid for a tent 0"]
    assert sorted(paid) == ["a map", "a tent"]
    assert answers == 2


async def test_the_question_that_ends_the_attempt_is_asked_whatever_else_waits_by_then() -> None:
    sent: list[str] = []

    @triage.tool(effect="once")
    async def send(what: str) -> str:
        sent.append(what)
        raise TimeoutError("no answer")

    async def clerk(task: str) -> str:
        return str(await send(task))

    clerks = [Agent(clerk, name=name) for name in ("first", "second")]

    async def works(task: str) -> list[str]:
        found: dict[str, str] = {}
        asked: list[TriageSuspendedError] = []

        async def one(inner: Agent[str]) -> None:
            try:
                found[inner.name] = await inner.run(inner.name)
            except TriageSuspendedError as error:
                asked.append(error)

        async with anyio.create_task_group() as group:
            for inner in clerks:
                group.start_soon(one, inner)
        for error in asked:
            raise error
        return [found[inner.name] for inner in clerks]

    agent = Agent(works, **recovers(Retry()))
    work: Awaitable[Any] = agent.run("t", run_id=OUTER)
    for _ in clerks:
        asked = await question_of(work, match="did send")
        assert asked.token.startswith(f"{OUTER}~")
        what = "first" if "first" in asked.question else "second"
        work = agent.resume(asked.token, triage.happened(f"sent {what}"))
    assert await work == ["sent first", "sent second"]
    assert sorted(sent) == ["first", "second"]


async def test_the_question_of_a_run_two_levels_down_comes_up(store: Store) -> None:
    paid: list[str] = []
    shop = Shop(store, paid)

    async def chief(task: str) -> str:
        return str(await shop.boss.run(task))

    agent = Agent(chief, **recovers(Retry()), store=store)
    token = await token_of(agent)
    assert await agent.resume(token, triage.approve()) == "paid for a map 0"
    assert paid == ["a map"]


async def test_an_answer_that_was_lost_on_its_way_is_asked_for_again(tmp_path: Any) -> None:
    with Opened("sqlite", tmp_path) as opened:
        store, paid = opened.new(), list[str]()
        token = await token_of(Shop(store, paid).boss)
        shop = Shop(store, paid)
        # As if the process had died between the outer run's taking the answer and the inner one's.
        claim = await store.claim(OUTER, lease_s=30)
        event = triage.core.events.RunResumed(OUTER, claim.events, 0.0, 1, Retry())
        await store.append(OUTER, [event], at=claim.events, epoch=claim.epoch)
        await store.release(OUTER, epoch=claim.epoch)
        with pytest.raises(AlreadyResumed):
            await shop.boss.resume(token, triage.approve())
        raised = await question_of(shop.boss.recover(OUTER), match="may I buy it")
        assert paid == []
        assert await shop.boss.resume(raised.token, triage.approve()) == "paid for a map 0"
        await store.close()


def in_doubt(store: Store, paid: list[str]) -> Shop:
    return Shop(store, paid, doubt=True)


@table("by", ["outer", "inner"])
async def test_an_operator_answers_at_the_store(by: str, tmp_path: Any) -> None:
    with Opened("sqlite", tmp_path) as opened:
        store, paid = opened.new(), list[str]()
        await token_of(in_doubt(store, paid).boss, "did pay")
        answered = OUTER if by == "outer" else (await inner_of(store)).run_id
        await resolve(store, answered, triage.happened("seen"), now=1.0)
        assert [info.status for info in await store.runs()] == ["running", "running"]
        assert await in_doubt(store, paid).boss.recover(OUTER) == "seen 0"
        assert paid == ["a map"]
        await store.close()


async def test_an_outer_run_that_is_cancelled_takes_those_inside_with_it(store: Store) -> None:
    shop = Shop(store, [])
    await token_of(shop.boss)
    await cancel(store, OUTER, now=1.0)
    assert {info.status for info in await store.runs()} == {"cancelled"}
