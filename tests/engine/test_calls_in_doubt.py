"""Calls that raised or were cut off, and calls that would be made twice in other words."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from support import LOST, World, always, escalation_of, question_of, recovers
from tables import table

import triage
from triage import (
    Abort,
    Agent,
    Checks,
    Durability,
    Escalate,
    Replan,
    Retry,
    Rollback,
    Run,
    Step,
    Suspend,
    TriageEscalationError,
    TriageSuspendedError,
    UsageError,
    happened,
    rerun,
)
from triage.engine import GuardedCall
from triage.stores import SQLiteStore

pytestmark = pytest.mark.anyio


class Refused(Exception):
    status_code = 429


@table(
    "error",
    [
        Refused("slow down"),
        ConnectionRefusedError("refused"),
        triage.not_attempted(ValueError("checked before sending")),
    ],
)
async def test_a_call_that_was_not_attempted_may_run_again(error: Exception) -> None:
    world = World()
    world.raises = [error]
    once = world.tool("once")

    async def works(task: str) -> str:
        result: str = await once("x")
        return result

    assert await Agent(works, **recovers(Retry())).run("t") == "result of x"
    assert world.did == ["once(x)", "once(x)"]


async def doubtful(**options: Any) -> tuple[World, Agent[str], list[str]]:
    world = World()
    world.raises = [LOST]
    once = world.tool("once")
    log: list[str] = []

    async def works(task: str, *, run: Run) -> str:
        try:
            result: str = await once("x")
        except ConnectionResetError:
            log.append("swallowed")
            result = "guessed"
        try:
            run.record_step(Step(action="next"))
            await once("y")
        except Exception:
            log.append("went on")
        return result

    return world, Agent(works, **recovers(Retry(), **options)), log


async def test_a_call_in_doubt_stops_the_run_whatever_the_agent_does() -> None:
    world, agent, log = await doubtful()
    caught = await question_of(agent.run("t"), match="did once with")
    assert world.did == ["once(x)"]
    assert log == ["swallowed"]
    assert caught.context is not None
    assert caught.context.diagnosis.cause is triage.core.Cause.IN_DOUBT


async def test_in_doubt_answered_happened_gives_the_result_and_runs_nothing_again() -> None:
    world, agent, _ = await doubtful()
    caught = await question_of(agent.run("t"))
    assert await agent.resume(caught.token, triage.happened("it did")) == "it did"
    assert world.did == ["once(x)", "once(y)"]


async def test_in_doubt_answered_rerun_runs_it_once_more() -> None:
    world, agent, _ = await doubtful()
    caught = await question_of(agent.run("t"))
    with pytest.raises(UsageError, match="happened"):
        await agent.resume(caught.token, Retry())
    assert await agent.resume(caught.token, triage.rerun()) == "result of x"
    assert world.did == ["once(x)", "once(x)", "once(y)"]


async def test_in_doubt_answered_rerun_is_asked_again_when_it_fails_again() -> None:
    world, agent, _ = await doubtful()
    world.raises = [LOST, LOST]
    first = await question_of(agent.run("t"))
    second = await question_of(agent.resume(first.token, triage.rerun()))
    assert second.token != first.token
    with pytest.raises(triage.TriageAbortError):
        await agent.resume(second.token, Abort())
    assert world.did == ["once(x)", "once(x)"]


@table(("choice", "kind"), [("fail", TriageEscalationError), ("rerun", None)])
async def test_in_doubt_follows_the_choice_made(choice: Any, kind: Any) -> None:
    world, agent, log = await doubtful(durability=Durability(on_in_doubt=choice))
    if kind is None:
        assert await agent.run("t") == "guessed"
        assert world.did == ["once(x)", "once(y)"]
        assert log == ["swallowed"]
    else:
        with pytest.raises(kind):
            await agent.run("t")
        assert world.did == ["once(x)"]


async def test_a_tool_that_took_its_idempotency_key_may_run_again() -> None:
    keys: list[str] = []

    @triage.tool(effect="once")
    async def act(what: str) -> str:
        keys.append(triage.current_call().idempotency_key)
        if len(keys) == 1:
            raise LOST
        return what

    async def works(task: str) -> str:
        return await act("x")

    assert await Agent(works, **recovers(Retry())).run("t") == "x"
    assert keys[0] == keys[1]


class Dead(BaseException):
    """The process is gone."""


@table("then", ["next attempt", "same attempt", "other process"])
@table("words", ["first", "other"])
async def test_the_idempotency_key_protects_an_equal_call_and_no_reworded_one(
    tmp_path: Path, then: str, words: str
) -> None:
    paid: list[tuple[str, str]] = []
    store = SQLiteStore(tmp_path / f"{then} {words}.db")

    @triage.tool(effect="once")
    async def charge(note: str) -> str:
        paid.append((note, triage.current_call().idempotency_key))
        if len(paid) == 1:
            raise Dead if then == "other process" else LOST
        return note

    async def works(task: str, run: Run) -> str:
        if then != "same attempt":
            return await charge(words if paid else "first")
        try:
            return await charge("first")
        except type(LOST):
            return await charge(words)

    agent = Agent(works, store=store, **recovers(Retry()))
    begun = agent.run("t", run_id="r")
    if then == "other process":
        with pytest.raises(Dead):
            await begun
        begun = agent.recover("r")
    if words == "first":
        assert await begun == "first"
        assert len(paid) == 2
        assert paid[0] == paid[1]
        await store.close()
        return
    caught = await question_of(begun)
    assert "did charge with" in str(caught)
    assert len(paid) == 1
    resumed = agent.resume(caught.token, happened("receipt"))
    if then == "same attempt":  # the next one makes the first call, which has its result by now
        assert await resumed == "receipt"
        assert len(paid) == 1
        await store.close()
        return
    again = await question_of(resumed)
    assert 'has completed in this run with {"note": "first"}' in str(again)
    assert await agent.resume(again.token, triage.approve()) == "other"
    assert [note for note, _ in paid] == ["first", "other"]
    await store.close()


async def test_a_timeout_of_an_unsafe_call_leaves_it_in_doubt() -> None:
    @triage.tool(effect="once", timeout=0.02)
    async def act() -> None:
        await anyio.sleep_forever()

    async def works(task: str) -> None:
        await act()

    caught = await question_of(Agent(works, **recovers(Retry())).run("t"))
    assert isinstance(caught.__cause__, TimeoutError)


async def test_a_sync_tool_times_out_too() -> None:
    release = threading.Event()

    @triage.tool(effect="read", timeout=0.02)
    def act() -> None:
        release.wait(30)

    def works(task: str) -> None:
        act()

    try:
        caught = await escalation_of(Agent(works, **recovers(Escalate())).run("t"))
    finally:
        release.set()
    assert isinstance(caught.__cause__, TimeoutError)


async def test_a_timeout_that_the_tool_raised_itself_is_its_own() -> None:
    @triage.tool(effect="read", timeout=30)
    def act() -> None:
        raise TimeoutError("the bank did not answer")

    def works(task: str) -> None:
        act()

    caught = await escalation_of(Agent(works, **recovers(Escalate())).run("t"))
    assert str(caught.__cause__) == "the bank did not answer"


# The same tool with other arguments ---------------------------------------------------------------
async def changes_its_mind(tool: Any, run: Run) -> str:
    result: str = await tool(f"amount {run.attempt}")
    if run.attempt == 1:
        raise ConnectionError("late")
    return result


@table("action", [Retry(), Replan(), Rollback()])
async def test_an_unsafe_tool_with_other_arguments_is_asked_about(action: Any) -> None:
    world = World()
    once = world.tool("once")

    async def works(task: str, *, run: Run) -> str:
        return await changes_its_mind(once, run)

    agent = Agent(works, **recovers(action))
    caught = await question_of(agent.run("t"), match="has completed in this run")
    assert world.did == ["once(amount 1)"]
    # Its answer allows exactly that call: in the next attempt the arguments are others again.
    with pytest.raises(TriageSuspendedError):
        await agent.resume(caught.token, triage.rerun())


async def test_parallel_calls_of_a_new_plan_undo_what_they_replace_once() -> None:
    log: list[str] = []

    async def refund(result: str) -> None:
        log.append(f"refund {result}")
        await anyio.lowlevel.checkpoint()

    @triage.tool(effect="once", compensate=refund)
    async def charge(what: str) -> str:
        log.append(f"charge {what}")
        return what

    async def works(task: str, *, run: Run) -> None:
        if run.attempt == 1:
            await charge("first")
            raise ConnectionError("late")
        async with anyio.create_task_group() as group:
            group.start_soon(charge, "second")
            group.start_soon(charge, "third")

    with pytest.raises(TriageSuspendedError):
        await Agent(works, **recovers(Replan())).run("t")
    assert log.count("refund first") == 1


class Counter:
    """Takes three cards. The second is refused at first, when the others are at the counter, too."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.charged: list[str] = []
        others = anyio.Event()

        @triage.tool(effect="once")
        async def charge(card: str) -> str:
            self.asked.append(card)
            if len(self.asked) == 3:
                others.set()
            if card == "b" and self.asked.count("b") == 1:
                await others.wait()
                raise ConnectionRefusedError(111, "Connection refused")
            await anyio.lowlevel.cancel_shielded_checkpoint()
            self.charged.append(card)
            return f"receipt {card}"

        self.charge = charge


@table("action", [Retry(), Replan()])
async def test_a_call_refused_beside_others_is_made_again_unasked(action: Any) -> None:
    counter = Counter()

    async def works(task: str) -> list[str]:
        receipts: list[str] = []

        async def one(card: str) -> None:
            receipts.append(await counter.charge(card))

        async with anyio.create_task_group() as group:
            for card in "abc":
                group.start_soon(one, card)
        return sorted(receipts)

    receipts = await Agent(works, **recovers(action)).run("t")
    assert receipts == ["receipt a", "receipt b", "receipt c"]
    assert sorted(counter.charged) == ["a", "b", "c"]


@table("action", [Retry(), Replan()])
async def test_a_refused_call_is_asked_about_once_another_was_made_in_its_place(
    action: Any,
) -> None:
    charged: list[str] = []

    @triage.tool(effect="once")
    async def charge(card: str) -> str:
        if card == "a" and not charged:
            raise ConnectionRefusedError(111, "Connection refused")
        charged.append(card)
        return f"receipt {card}"

    async def works(task: str, *, run: Run) -> str:
        try:
            receipt: str = await charge("a")
        except ConnectionRefusedError:
            receipt = await charge("b")
        if run.attempt == 1:
            raise ConnectionError("late")
        return receipt

    await question_of(Agent(works, **recovers(action)).run("t"), match="has completed in this run")
    assert charged == ["b"]


async def test_a_compensator_that_failed_may_be_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[str] = []

    def refund(result: str) -> None:
        log.append("refund")
        if len(log) == 1:
            raise LookupError("bank is closed")

    @triage.tool(effect="once", compensate=refund)
    async def charge(what: str) -> str:
        return what

    async def works(task: str, *, run: Run) -> str:
        result: str = await charge("first" if run.attempt == 1 else "second")
        if run.attempt == 1:
            raise ConnectionError("late")
        return result

    assert await Agent(works, **recovers(Replan())).run("t") == "second"
    assert log == ["refund", "refund"]


async def test_a_sync_tool_is_asked_about_where_it_cannot_be_undone() -> None:
    log: list[str] = []

    @triage.tool(effect="once", compensate=log.append)
    def charge(what: str) -> str:
        log.append(what)
        return what

    async def works(task: str, *, run: Run) -> None:
        charge("first" if run.attempt == 1 else "second")
        if run.attempt == 1:
            raise ConnectionError("late")

    with pytest.raises(TriageSuspendedError):
        await Agent(works, **recovers(Replan())).run("t")
    assert log == ["first"]


# Equal calls in doubt -----------------------------------------------------------------------------
class Till:
    """An agent that makes three equal charges at once; those that are named fail at first."""

    def __init__(self, failing: tuple[int, ...] = (1, 2, 3)) -> None:
        self.charged = 0

        @triage.tool(effect="once")
        async def charge(cents: int) -> str:
            self.charged += 1
            number = self.charged
            await anyio.lowlevel.checkpoint()
            if number in failing:
                raise ConnectionResetError("reset")
            return f"receipt {number}"

        async def work(task: str) -> list[str]:
            receipts: list[str] = [""] * 3
            errors: list[ConnectionError] = []

            async def one(at: int) -> None:
                try:
                    receipts[at] = await charge(300)
                except ConnectionError as error:
                    errors.append(error)

            async with anyio.create_task_group() as group:
                for at in range(3):
                    group.start_soon(one, at)
            for error in errors:
                raise error
            return sorted(receipts)

        self.agent = Agent(work, always(Retry()))


async def test_equal_calls_in_doubt_are_told_apart_by_order_and_time() -> None:
    till = Till()
    asked = await question_of(till.agent.run("go"))
    questions = [asked.question]
    for _ in range(2):
        asked = await question_of(
            till.agent.resume(asked.token, happened(f"seen {len(questions)}"))
        )
        questions.append(asked.question)
    assert till.charged == 3
    assert len(set(questions)) == 3
    for question in questions:
        assert "of 3" in question
        assert "UTC" in question or "Z" in question
    assert sorted(at for at in "123" for q in questions if f"call {at} of 3" in q) == [
        "1",
        "2",
        "3",
    ]
    result = await till.agent.resume(asked.token, happened("seen 3"))
    assert result == ["seen 1", "seen 2", "seen 3"]
    assert till.charged == 3


async def test_each_answer_about_equal_calls_counts_for_exactly_one() -> None:
    till = Till()
    asked = await question_of(till.agent.run("go"))
    asked = await question_of(till.agent.resume(asked.token, happened("seen 1")))
    asked = await question_of(till.agent.resume(asked.token, rerun()))
    assert till.charged == 3, "one ran before all of them were settled"
    result = await till.agent.resume(asked.token, happened("seen 3"))
    assert result == ["receipt 4", "seen 1", "seen 3"]
    assert till.charged == 4


async def test_only_the_equal_calls_in_doubt_are_asked_about() -> None:
    till = Till(failing=(2,))
    asked = await question_of(till.agent.run("go"))
    assert "call 2 of 3" in asked.question
    assert len(await till.agent.resume(asked.token, happened("seen"))) == 3
    assert till.charged == 3


async def test_a_single_call_in_doubt_is_not_numbered() -> None:
    @triage.tool(effect="once")
    async def charge(cents: int) -> None:
        raise ConnectionResetError("reset")

    async def work(task: str) -> None:
        await charge(300)

    asked = await question_of(Agent(work, always(Retry())).run("go"))
    assert asked.question.startswith('did charge with {"cents": 300} happen?')
    assert " of 1" not in asked.question


async def test_siblings_cut_off_together_are_each_asked_about_once() -> None:
    did: list[str] = []

    async def act(what: str) -> str:
        did.append(what)
        if did.count(what) == 1:
            await anyio.sleep_forever()  # until its sibling fails
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        return f"result of {what}"

    pay, ship = (triage.tool(effect="once", name=name)(act) for name in ("pay", "ship"))
    results: dict[str, str] = {}

    async def works(_task: str, *, run: Run) -> dict[str, str]:
        async def one(tool: Any, what: str) -> None:
            results[what] = await tool(what)

        async def fails() -> None:
            while run.attempt == 1 and len(did) < 3:
                await anyio.lowlevel.checkpoint()
            if run.attempt == 1:
                raise ConnectionError

        async with anyio.create_task_group() as group:
            group.start_soon(one, pay, "rent")
            group.start_soon(one, pay, "gas")
            group.start_soon(one, ship, "keys")
            group.start_soon(fails)
        return results

    agent = Agent(works, **recovers(Retry()))
    error = await question_of(agent.run("t"))
    asked = [error.question.partition(" happen?")[0]]
    for _ in range(2):
        error = await question_of(agent.resume(error.token, rerun()))
        asked.append(error.question.partition(" happen?")[0])
    assert sorted(asked) == [
        'did pay with {"what": "gas"}',
        'did pay with {"what": "rent"}',
        'did ship with {"what": "keys"}',
    ]
    assert (await agent.resume(error.token, rerun())).keys() == {"rent", "gas", "keys"}
    assert sorted(did) == ["gas", "gas", "keys", "keys", "rent", "rent"]


@table("ends", ["answer lost", "guarded"])
async def test_what_stops_an_attempt_cuts_off_no_call_with_an_effect_beside_it(ends: str) -> None:
    did: list[str] = []
    slow = anyio.Event()

    @triage.tool(effect="once")
    async def pay(what: str) -> str:
        slow.set()
        for _ in range(30):
            await anyio.lowlevel.checkpoint()
        did.append(what)
        return f"paid {what}"

    @triage.tool(effect="once")
    async def send(what: str) -> str:
        did.append(what)
        if ends == "answer lost" and did.count(what) == 1:
            raise ConnectionResetError("reset")
        return f"sent {what}"

    def guard(call: GuardedCall) -> Suspend | None:
        return Suspend("sure?") if (ends, call.tool) == ("guarded", "send") else None

    async def works(task: str) -> list[str]:
        found = ["", ""]

        async def rent() -> None:
            found[0] = await pay("rent")

        async def keys() -> None:
            await slow.wait()
            found[1] = await send("keys")

        async with anyio.create_task_group() as group:
            group.start_soon(rent)
            group.start_soon(keys)
        return found

    agent = Agent(works, **recovers(Retry()), checks=Checks(guard=guard))
    asked = await question_of(agent.run("t"), match="may send|did send")
    assert await agent.resume(asked.token, rerun()) == ["paid rent", "sent keys"]
    assert did.count("rent") == 1


@table("wrong", ["first", "second"])
async def test_what_cut_a_call_off_is_not_given_again_with_the_answer_about_it(wrong: str) -> None:
    """A model's answer that cannot be read ends the group in which a mail is being sent."""
    asked: list[str] = []
    sent: list[str] = []

    @triage.model
    async def ask(prompt: str) -> str:
        asked.append(prompt)
        return "{" if prompt == wrong and asked.count(wrong) == 1 else "{}"

    async def works(task: str) -> None:
        sending, read = anyio.Event(), anyio.Event()

        @triage.tool(effect="once")
        async def send(to: str) -> str:
            sending.set()
            await read.wait()
            sent.append(to)
            return f"sent to {to}"

        async def reads() -> None:
            answers = [await ask(prompt) for prompt in ("first", "second")]
            await sending.wait()
            for answer in answers:
                json.loads(answer)
            read.set()

        async with anyio.create_task_group() as group:
            group.start_soon(reads)
            group.start_soon(send, "ann")

    agent = Agent(works)
    question = await question_of(agent.run("t"), match="did send")
    if wrong == "first":  # the second one is asked anew before it
        question = await question_of(agent.resume(question.token, triage.rerun()), match="did send")
    await agent.resume(question.token, triage.rerun())
    assert sent == ["ann"]
    assert asked.count(wrong) == 2
