"""Runs inside runs that have ended: found again by every attempt, and never done twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import anyio
import pytest
from calls import recovers
from inner_runs import OUTER, Office, asks_once_more
from store_kinds import opening
from support import always

import triage
from triage import Agent, Replan, Resume, Retry, Rollback, Run, Step
from triage.errors import (
    TriageAbortError,
    TriageEscalationError,
    TriageSuspendedError,
)
from triage.stores import Store

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


async def test_a_retry_reuses_one_behind_the_critical_step_too(store: Store) -> None:
    office = Office(store, "read")
    works = asks_once_more(office, "a")
    agent = Agent(works, **recovers(always(Retry()).default, critical_step=0), store=store)
    assert await agent.run("t", run_id=OUTER) == ["did a"]
    assert office.did == ["a"]


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


async def test_a_result_comes_back_as_what_it_was(store: Store) -> None:
    async def clerk(task: str) -> Ticket:
        return Ticket(7)

    async def works(task: str, *, run: Run) -> Ticket:
        found = await Agent(clerk, store=store).run("a")
        if run.attempt == 1:
            raise ConnectionError("late")
        return found

    found = await Agent(works, **recovers(lambda _context: Retry()), store=store).run("t")
    assert type(found) is Ticket


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
    with pytest.raises(TriageSuspendedError, match="clerk has completed in this run") as asked:
        await agent.run("t", run_id=OUTER)
    assert office.did == ["wording 1"]
    assert await agent.resume(asked.value.token, triage.rerun()) == "did wording 2"


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
    with pytest.raises(TriageSuspendedError, match=r"did buyer with .* happen") as asked:
        await agent.run("t", run_id=OUTER)
    assert paid == ["a map"]
    answered = await agent.resume(asked.value.token, triage.happened("it is here"))
    assert answered == "it is here"
    paid.clear()
    with pytest.raises(TriageSuspendedError) as asked:
        await agent.run("t", run_id="again")
    assert await agent.resume(asked.value.token, triage.rerun()) == "bought a map"
    assert paid == ["a map", "a map"]


async def test_an_outer_run_may_handle_what_became_of_one(store: Store) -> None:
    async def clerk(task: str) -> None:
        raise ConnectionError("gone")

    inner = Agent(clerk, always(lambda _c: triage.Abort("no")), store=store)

    async def works(task: str) -> str:
        with pytest.raises(TriageAbortError):
            await inner.run("a")
        return "without it"

    assert await Agent(works, store=store).run("t") == "without it"
