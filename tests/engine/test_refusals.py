"""What stands of a person's refusal, in whatever run and however the call comes again."""

from __future__ import annotations

from typing import Any

import pytest
from support import always
from tables import table

import triage
from triage import (
    Agent,
    Limits,
    Replan,
    Retry,
    Suspend,
    TriageEscalationError,
    TriageSuspendedError,
    approve,
    edit,
    reject,
)
from triage.core import ApprovalAsked, ApprovalGiven, AttemptStarted
from triage.engine import Checks, Durability

pytestmark = pytest.mark.anyio


@triage.tool(effect="once")
async def charge(cents: int) -> str:
    return f"receipt {cents}"


@triage.tool(effect="read")
async def search(query: str) -> str:
    return f"found {query}"


def _asks(call: Any) -> Suspend | None:
    return Suspend("a charge") if call.tool == "charge" else None


def agent_of(function: Any, **options: Any) -> tuple[Any, list[Any]]:
    events: list[Any] = []
    agent = Agent(function, checks=Checks(guard=_asks), observers=[events.append], **options)
    return agent, events


async def played(agent: Any, *answers: Any) -> tuple[int, Any]:
    """How many questions were put, each answered in turn (the last one repeated), and the end."""
    asked = 0
    work = agent.run("t")
    while True:
        try:
            return asked, await work
        except TriageSuspendedError as waits:
            asked += 1
            assert asked < 12, "it is asked for ever"
            work = agent.resume(waits.token, answers[min(asked, len(answers)) - 1])
        except TriageEscalationError as error:
            return asked, error


async def always_charges(task: str, *, _triage_hint: str | None = None) -> str:
    return await charge(300)


@table(("refusals", "attempts"), [(1, 2), (2, 3), (5, 6)])
async def test_a_call_is_refused_so_often_and_then_the_run_ends(
    refusals: int, attempts: int
) -> None:
    agent, events = agent_of(always_charges, limits=Limits(refusals=refusals))
    asked, error = await played(agent, reject("too dear"))
    assert asked == 1
    assert f"{refusals + 1} of {refusals} refusals" in str(error)
    assert sum(isinstance(event, AttemptStarted) for event in events) == attempts


async def test_without_a_limit_other_limits_end_it() -> None:
    agent, _ = agent_of(always_charges, limits=Limits(refusals=None, attempts=5))
    asked, error = await played(agent, reject("too dear"))
    assert (asked, "attempts used" in str(error)) == (1, True)


async def test_a_limit_that_asks_puts_the_question_again() -> None:
    agent, _ = agent_of(always_charges, limits=Limits(on_limit="suspend"))
    assert await played(agent, reject("too dear"), approve()) == (2, "receipt 300")


async def test_the_next_attempt_is_told_which_call_was_refused_why_and_what_was_before() -> None:
    async def cheaper(task: str, *, run: Any, _triage_hint: str | None = None) -> str:
        return await charge(max(100, 400 - 100 * run.number))

    agent, events = agent_of(cheaper)
    assert await played(agent, reject("too dear"), reject("still"), approve()) == (3, "receipt 100")
    hints = [event.hint for event in events if isinstance(event, AttemptStarted) and event.hint]
    first = (
        """A person refused the call of charge with {"cents": 300}: 'too dear'. Find another way."""
    )
    assert hints[0] == first
    assert """charge with {"cents": 200}: 'still'""" in hints[1]
    assert """Refused before: the call of charge with {"cents": 300}: 'too dear'.""" in hints[1]


async def test_work_that_was_done_before_is_no_other_work() -> None:
    async def looks_first(task: str, *, _triage_hint: str | None = None) -> str:
        await search("price")
        return await charge(300)

    agent, _ = agent_of(looks_first)
    asked, error = await played(agent, reject("too dear"))
    assert (asked, "refusals" in str(error)) == (1, True)


async def test_other_work_has_it_asked_about_anew() -> None:
    async def looks_on(task: str, *, run: Any, _triage_hint: str | None = None) -> str:
        if run.number > 1:
            await search(f"price {run.number}")
        return await charge(300)

    agent, _ = agent_of(looks_on)
    assert await played(agent, reject("no"), reject("no"), approve()) == (3, "receipt 300")


async def test_a_call_that_should_be_made_otherwise_is_not_asked_about_as_it_was() -> None:
    async def course(task: str, *, _triage_hint: str | None = None) -> str:
        agent = triage.current_run()
        return await charge(300 if agent.number < 3 else 200)

    agent, _ = agent_of(course)
    assert await played(agent, reject("no"), approve()) == (2, "receipt 200")
    agent, _ = agent_of(always_charges)
    assert await played(agent, edit({"cents": 200})) == (1, "receipt 200")


@table("how", ["caught", "failing"])
async def test_a_refusal_inside_another_run_holds_in_every_run_inside(how: str) -> None:
    inner, _ = agent_of(always_charges, name="inner")

    async def outer(task: str, *, _triage_hint: str | None = None) -> str:
        for part in ("a", "b"):
            try:
                await inner.run(part)
            except TriageEscalationError:
                if how == "failing":
                    raise
        return "done"

    agent = Agent(outer, always(Replan("again")), name="outer", limits=Limits(attempts=4))
    asked, _ = await played(agent, reject("too dear"))
    assert asked == 1


async def test_another_process_refuses_by_the_first_answer(tmp_path: Any) -> None:
    store = f"sqlite:///{tmp_path}/runs.db"
    first, _ = agent_of(always_charges, store=store, name="a", durability=Durability())
    with pytest.raises(TriageSuspendedError) as waits:
        await first.run("t", run_id="r")
    await first.answer(waits.value.token, reject("too dear"))
    await first.store.close()
    second, events = agent_of(always_charges, store=store, name="a")
    with pytest.raises(TriageEscalationError, match="refusals"):
        await second.recover("r")
    assert not [event for event in events if isinstance(event, ApprovalGiven)]
    assert len([event for event in events if isinstance(event, ApprovalAsked)]) == 2
    await second.store.close()


async def test_an_approved_call_is_made_after_a_retry_without_a_question() -> None:
    fails = iter((True, False))

    async def course(task: str, *, _triage_hint: str | None = None) -> str:
        receipt = await charge(300)
        if next(fails, False):
            raise RuntimeError("later")
        return receipt

    agent, _ = agent_of(course, policy=always(Retry()))
    assert await played(agent, approve()) == (1, "receipt 300")
