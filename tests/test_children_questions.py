"""What a run inside another asks, the outer run asks: the answer finds its way, and is taken once."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from calls import recovers
from store_kinds import Opened, opening
from support import Says, always

import triage
from triage import Abort, Agent, Escalate, Retry, Run, Suspend
from triage._answers import cancel, resolve
from triage.errors import (
    AlreadyResumed,
    TriageAbortError,
    TriageEscalationError,
    TriageSuspendedError,
    UsageError,
)
from triage.stores import Store

pytestmark = pytest.mark.anyio
OUTER = "outer"


opened = opening("memory", "sqlite")


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
    with pytest.raises(TriageSuspendedError, match=match) as raised:
        await agent.run("a map", run_id=OUTER)
    return raised.value.token


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


async def test_the_question_of_a_run_two_levels_down_comes_up(store: Store) -> None:
    paid: list[str] = []
    shop = Shop(store, paid)

    async def chief(task: str) -> str:
        return str(await shop.boss.run(task))

    agent = Agent(chief, **recovers(Retry()), store=store)
    token = await token_of(agent)
    assert await agent.resume(token, triage.approve()) == "paid for a map 0"
    assert paid == ["a map"]


async def test_a_question_that_is_lost_is_asked_anew(store: Store) -> None:
    paid: list[str] = []
    shop = Shop(store, paid)
    old = await token_of(shop.boss)
    with pytest.raises(TriageSuspendedError) as raised:
        await shop.boss.recover(OUTER, force=True)
    with pytest.raises(AlreadyResumed):
        await shop.boss.resume(old, triage.approve())
    assert await shop.boss.resume(raised.value.token, triage.approve()) == "paid for a map 0"


async def test_an_answer_that_was_lost_on_its_way_is_asked_for_again(tmp_path: Any) -> None:
    with Opened("sqlite", tmp_path) as opened:
        store, paid = opened.new(), list[str]()
        token = await token_of(Shop(store, paid).boss)
        shop = Shop(store, paid)
        # As if the process had died between the outer run's taking the answer and the inner one's.
        claim = await store.claim(OUTER, lease_s=30)
        event = triage.events.RunResumed(OUTER, claim.events, 0.0, 1, Retry())
        await store.append(OUTER, [event], at=claim.events, epoch=claim.epoch)
        await store.release(OUTER, epoch=claim.epoch)
        with pytest.raises(AlreadyResumed):
            await shop.boss.resume(token, triage.approve())
        with pytest.raises(TriageSuspendedError, match="may I buy it") as raised:
            await shop.boss.recover(OUTER)
        assert paid == []
        assert await shop.boss.resume(raised.value.token, triage.approve()) == "paid for a map 0"
        await store.close()


def in_doubt(store: Store, paid: list[str]) -> Shop:
    return Shop(store, paid, doubt=True)


@pytest.mark.parametrize("by", ["outer", "inner"])
async def test_an_operator_answers_at_the_store(by: str, tmp_path: Any) -> None:
    with Opened("sqlite", tmp_path) as opened:
        store, paid = opened.new(), list[str]()
        await token_of(in_doubt(store, paid).boss, "did pay")
        inner = (await inner_of(store)).run_id
        if by == "inner":
            await resolve(store, inner, triage.happened("seen"), now=1.0)
        await resolve(store, OUTER, triage.happened("seen"), now=1.0)
        assert [info.status for info in await store.runs()] == ["running", "running"]
        assert await in_doubt(store, paid).boss.recover(OUTER) == "seen 0"
        assert paid == ["a map"]
        await store.close()


async def test_an_outer_run_that_is_cancelled_takes_those_inside_with_it(store: Store) -> None:
    shop = Shop(store, [])
    await token_of(shop.boss)
    await cancel(store, OUTER, now=1.0)
    assert {info.status for info in await store.runs()} == {"cancelled"}
