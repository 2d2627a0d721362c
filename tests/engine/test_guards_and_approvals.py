"""A guard over calls that matter: allowed, denied or asked about before anything runs."""

from __future__ import annotations

import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import anyio
import pytest
from support import FakeEnvironment, Killed, World, always, in_two_processes, question_of, recovers
from tables import table

import triage
from triage import (
    Agent,
    Checks,
    Durability,
    FailureType,
    Resume,
    Retry,
    Rollback,
    Run,
    Step,
    Suspend,
    TriageError,
    TriageEscalationError,
    TriageSuspendedError,
    UsageError,
    approve,
    edit,
    happened,
    reject,
    rerun,
)
from triage.core import ApprovalGiven, CallStarted, Cause
from triage.engine import CallDenied, Guard, GuardedCall
from triage.stores import SQLiteStore

pytestmark = pytest.mark.anyio


def guarding(decide: Any, **rules: Any) -> Checks:
    return Checks(guard=Guard(decide, **rules) if rules else decide)


async def test_a_guard_sees_the_call_before_it_runs_and_may_let_it() -> None:
    world, seen = World(), []
    charge = world.tool("once")

    def guard(call: GuardedCall) -> bool:
        assert world.did == []
        seen.append(call)
        return True

    async def agent(_task: str) -> str:
        result: str = await charge("x")
        return result

    assert await Agent(agent, checks=guarding(guard)).run("buy") == "result of x"
    (call,) = seen
    assert (call.tool, call.arguments, call.effect, call.attempt) == (
        "once", {"what": "x"}, "once", 1,
    )  # fmt: skip
    assert call.task == "buy"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio starts tasks in any order
async def test_calls_made_at_once_are_ruled_on_in_their_order() -> None:
    seen: list[str] = []
    world = World()
    charge = world.tool("once")

    def guard(call: GuardedCall) -> bool:
        seen.append(call.arguments["what"])
        threading.Event().wait(0.001 * (len(seen) % 3))
        return True

    async def agent(_task: str) -> None:
        async with anyio.create_task_group() as group:
            for what in made:
                group.start_soon(charge, what)

    made = [str(number) for number in range(20)]
    await Agent(agent, checks=guarding(guard)).run("buy")
    assert seen == made


@table("ruling", [Suspend("a large sum"), "not again"])
async def test_a_call_that_was_cut_off_is_asked_about_before_its_guard_is(
    ruling: Any, tmp_path: Path
) -> None:
    did: list[str] = []

    @triage.tool(effect="once")
    async def charge(what: str) -> None:
        did.append(what)
        raise Killed

    async def agent(_task: str) -> None:
        await charge("x")

    checks = guarding(lambda _: ruling if did else None)
    work = in_two_processes(agent, tmp_path, checks=checks)
    await question_of(work, match="did charge with .* happen")
    assert did == ["x"]


@table("effect", ["read", "idempotent", "unknown"])
async def test_other_effects_are_looked_at_by_rule_alone(effect: str) -> None:
    world, seen = World(), []
    tool = world.tool(effect)

    def guard(call: GuardedCall) -> None:
        seen.append(call.tool)

    async def agent(_task: str) -> str:
        result: str = await tool("x")
        return result

    await Agent(agent, checks=guarding(guard)).run("t")
    assert seen == []
    await Agent(agent, checks=guarding(guard, tools=(f"{effect[:3]}*",))).run("t")
    await Agent(agent, checks=guarding(guard, effects=(effect,))).run("t")
    assert seen == [effect, effect]


@table("ruling", [False, "not on a Sunday"])
async def test_a_denied_call_does_not_run_and_the_agent_may_go_on(ruling: Any) -> None:
    world = World()
    charge = world.tool("once")
    steps: list[Any] = []

    async def agent(_task: str, *, run: Run) -> str:
        try:
            await charge("x")
        except CallDenied as denied:
            steps.extend(run.trajectory.steps)
            return denied.reason
        return "charged"

    answer = await Agent(agent, checks=guarding(lambda _: ruling)).run("t")
    assert answer == (ruling or "no reason was given")
    assert world.did == []
    (step,) = steps
    assert (step.tool_called, step.exception_type) == ("once", "CallDenied")
    assert answer in step.error


async def test_an_agent_that_lets_the_denial_through_is_told_and_makes_another_plan() -> None:
    world = World()
    charge, hints = world.tool("once"), []

    async def agent(_task: str, *, _triage_hint: str | None = None) -> str:
        hints.append(_triage_hint)
        if _triage_hint is None:
            await charge("x")
        return "done without"

    failures: list[Any] = []
    agent_ = Agent(agent, checks=guarding(lambda _: "over budget"), observers=[failures.append])
    assert await agent_.run("t") == "done without"
    (failed,) = [event for event in failures if isinstance(event, triage.core.events.AttemptFailed)]
    assert failed.diagnosis.failure_type is FailureType.CONSTRAINT_IGNORED
    assert "over budget" in str(hints[1])
    assert world.did == []


@table("store", ["memory", "sqlite"])
async def test_an_approval_is_for_exactly_that_call_once(store: str, tmp_path: Path) -> None:
    world = World()
    charge = world.tool("once")
    asked: list[Any] = []

    async def guard(call: GuardedCall) -> Suspend | None:
        await anyio.lowlevel.checkpoint()
        asked.append(call.arguments["what"])
        return Suspend("is that right?")

    async def agent(_task: str) -> list[str]:
        return [await charge("x"), await charge("x"), await charge("y")]

    options: dict[str, Any] = {"store": SQLiteStore(tmp_path / "r.db")} if store == "sqlite" else {}
    wrapped = Agent(agent, checks=guarding(guard), **options)
    error = await question_of(wrapped.run("t"))
    assert 'may once run with {"what": "x"}?' in error.question
    assert "is that right?" in error.question
    assert world.did == []
    second = await question_of(wrapped.resume(error.token, approve()))
    assert world.did == ["once(x)"]  # the same arguments once more are another call
    third = await question_of(wrapped.resume(second.token, approve()))
    assert world.did == ["once(x)", "once(x)"]
    result = await wrapped.resume(third.token, approve())
    assert result == ["result of x", "result of x", "result of y"]
    assert asked == ["x", "x", "y"]
    for kept in options.values():
        await kept.close()


@table("action", [Retry("be brief", inject={"bag": "big"}), Resume("two", "be brief"), Rollback(3)])
async def test_an_attempt_that_a_question_stopped_goes_on_as_it_was_begun(action: Any) -> None:
    world, told, asked = World(), list[Any](), list[str]()
    charge = world.tool("once")

    @triage.model
    async def ask(prompt: str) -> str:
        asked.append(prompt)
        return f"answer {len(asked)}"

    async def agent(
        _task: str, *, run: Run, bag: str = "small", _triage_context: Any = None
    ) -> str:
        context = _triage_context
        if context is None:
            run.record_step(Step(action="begin"))
            run.update_state({"found": 1})
            raise ConnectionError("late")
        told.append((context.hint, context.subgoal, context.state, context.diagnosis.cause, bag))
        answer = await ask(f"hint {context.hint}, state {context.state}")
        return f"{answer}, {await charge('x')}"

    wrapped = Agent(agent, checks=guarding(lambda _call: Suspend("sure?")), **recovers(action))
    question = await question_of(wrapped.run("t"))
    assert await wrapped.resume(question.token, approve()) == "answer 1, result of x"
    assert told[0] == told[1]
    assert told[0][0]
    assert len(asked) == 1


async def test_an_approval_is_for_the_try_that_was_asked_about() -> None:
    world = World()
    world.raises = [ConnectionRefusedError("refused")]
    charge = world.tool("once")

    async def agent(_task: str) -> str:
        for _ in range(2):
            try:
                return str(await charge("x"))
            except ConnectionRefusedError:
                continue
        return "refused"

    wrapped = Agent(agent, checks=guarding(lambda _call: Suspend("sure?")))
    first = await question_of(wrapped.run("t"))
    second = await question_of(wrapped.resume(first.token, approve()))
    assert await wrapped.resume(second.token, approve()) == "result of x"
    assert len(world.did) == 2


async def test_a_refusal_is_told_to_the_agent() -> None:
    world = World()
    charge, hints = world.tool("once"), []

    async def agent(_task: str, *, _triage_hint: str | None = None) -> str:
        hints.append(_triage_hint)
        if _triage_hint is None:
            await charge("x")
        return "another way"

    wrapped = Agent(agent, checks=guarding(lambda _: Suspend("")))
    error = await question_of(wrapped.run("t"))
    assert await wrapped.resume(error.token, reject("too dear")) == "another way"
    assert "too dear" in str(hints[1])
    assert world.did == []


async def test_a_call_whose_result_is_known_is_not_looked_at_again() -> None:
    world, seen = World(), []
    charge = world.tool("once")

    def guard(call: GuardedCall) -> None:
        seen.append(call.attempt)

    async def agent(_task: str, *, run: Run) -> str:
        result: str = await charge("x")
        if run.attempt == 1:
            raise ConnectionError("late")
        return result

    await Agent(agent, checks=guarding(guard), **recovers(Retry())).run("t")
    assert (seen, world.did) == ([1], ["once(x)"])


def broken(_call: GuardedCall) -> bool:
    raise LookupError("no such rule")


@table(
    ("guard", "said"),
    [(broken, "LookupError"), (lambda _: 5, "int"), (lambda _: {"allow": True}, "dict")],
)
async def test_a_guard_that_fails_lets_nothing_run(
    guard: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    charge = world.tool("once")

    async def agent(_task: str) -> str:
        result: str = await charge("x")
        return result

    wrapped = Agent(agent, checks=guarding(guard))
    error = await question_of(wrapped.run("t"))
    assert said in error.question
    assert world.did == []
    assert await wrapped.resume(error.token, approve()) == "result of x"
    assert ("the guard of once failed" in caplog.text) == (guard is broken)


@table("kind", ["sync", "async"])
async def test_a_sync_tool_in_a_thread_waits_for_either_kind_of_guard(kind: str) -> None:
    did: list[str] = []

    @triage.tool(effect="once")
    def send(text: str) -> str:
        did.append(text)
        return text

    async def waits(call: GuardedCall) -> str | None:
        await anyio.lowlevel.checkpoint()
        return decides(call)

    def decides(call: GuardedCall) -> str | None:
        return "spam" if call.arguments["text"] == "buy!" else None

    def agent(_task: str) -> str:
        try:
            send("buy!")
        except CallDenied as denied:
            return f"{send('hello')}, not {denied.reason}"
        return "sent all"

    checks = guarding(waits if kind == "async" else decides)
    assert await Agent(agent, checks=checks).run("t") == "hello, not spam"
    assert did == ["hello"]


async def test_where_nobody_can_wait_for_an_async_guard_a_person_is_asked() -> None:
    did: list[str] = []

    @triage.tool(effect="once")
    def send(text: str) -> str:
        did.append(text)
        return text

    async def waits(_call: GuardedCall) -> bool:
        return True

    async def agent(_task: str) -> str:
        return str(send("hello"))  # in the event loop's own thread

    wrapped = Agent(agent, checks=guarding(waits))
    error = await question_of(wrapped.run("t"))
    assert "async" in error.question
    assert did == []
    assert await wrapped.resume(error.token, approve()) == "hello"


async def test_parallel_calls_are_asked_about_each() -> None:
    world, seen = World(), []
    charge = world.tool("once")

    async def guard(call: GuardedCall) -> str | None:
        await anyio.lowlevel.checkpoint()
        seen.append(call.arguments["what"])
        return "odd" if call.arguments["what"] in "13" else None

    async def agent(_task: str) -> list[str]:
        results: dict[str, str] = {}

        async def one(what: str) -> None:
            try:
                results[what] = await charge(what)
            except CallDenied as denied:
                results[what] = denied.reason

        async with anyio.create_task_group() as group:
            for what in "0123":
                group.start_soon(one, what)
        return [results[what] for what in "0123"]

    answer = await Agent(agent, checks=guarding(guard)).run("t")
    assert answer == ["result of 0", "odd", "result of 2", "odd"]
    assert sorted(seen) == ["0", "1", "2", "3"]
    assert sorted(world.did) == ["once(0)", "once(2)"]


async def test_a_denial_never_becomes_a_call_in_doubt() -> None:
    world = World()
    charge = world.tool("once")

    async def agent(_task: str) -> str:
        result: str = await charge("x")
        return result

    with pytest.raises(TriageError) as caught:
        await Agent(
            agent, checks=guarding(lambda _: "never"), limits=triage.Limits(attempts=2)
        ).run("t")
    assert not isinstance(caught.value, TriageSuspendedError)
    assert world.did == []


# Approvals ----------------------------------------------------------------------------------------
class Shop:
    """An agent that charges, guarded. charged: what its bodies were given."""

    def __init__(self, **options: Any) -> None:
        self.charged: list[tuple[int, str]] = []
        self.hints: list[str | None] = []
        self.events: list[Any] = []

        @triage.tool(effect="once")
        async def charge(cents: int, card: str = "visa") -> str:
            self.charged.append((cents, card))
            return f"charged {cents} to {card}"

        async def work(task: str, *, _triage_hint: str | None = None) -> str:
            self.hints.append(_triage_hint)
            return await charge(300) if _triage_hint is None else "without"

        self.agent = Agent(
            work,
            always(Retry()),
            checks=Checks(guard=lambda _: Suspend()),
            observers=[self.events.append],
            **options,
        )


async def test_what_waits_for_an_approval_is_no_failure_in_doubt() -> None:
    shop = Shop()
    asked = await question_of(shop.agent.run("go"))
    assert asked.context is not None
    diagnosis = asked.context.diagnosis
    assert diagnosis.cause is Cause.NEEDS_APPROVAL
    assert "doubt" not in f"{diagnosis} {diagnosis.user_message} {asked.question}"
    assert "taken effect" not in str(diagnosis.user_message)
    assert "approval" in str(diagnosis.user_message)


async def test_what_has_not_begun_cannot_have_happened_and_the_question_stays_open() -> None:
    shop = Shop()
    asked = await question_of(shop.agent.run("go"))
    for answer in (happened("receipt"), happened()):
        with pytest.raises(UsageError, match=r"not begun.*approve\(\), reject\(reason\) or edit"):
            await shop.agent.resume(asked.token, answer)
    assert shop.charged == []
    assert await shop.agent.resume(asked.token, approve()) == "charged 300 to visa"
    assert shop.charged == [(300, "visa")]


async def test_an_approval_may_change_the_arguments_of_the_call() -> None:
    shop = Shop()
    asked = await question_of(shop.agent.run("go"))
    assert await shop.agent.resume(asked.token, edit({"cents": 200})) == "charged 200 to visa"
    assert shop.charged == [(200, "visa")]
    (given,) = [event for event in shop.events if isinstance(event, ApprovalGiven)]
    assert (given.decision, given.payload) == ("edited", {"cents": 200})
    (started,) = [event for event in shop.events if isinstance(event, CallStarted)]
    assert started.arguments == {"cents": 200, "card": "visa"}


async def test_an_edit_that_names_no_argument_is_refused_and_the_question_stays_open() -> None:
    shop = Shop()
    asked = await question_of(shop.agent.run("go"))
    with pytest.raises(UsageError, match=r"amount.*cents, card"):
        await shop.agent.resume(asked.token, edit({"amount": 200}))
    assert await shop.agent.resume(asked.token, reject("too much")) == "without"
    assert "too much" in str(shop.hints[-1])
    assert shop.charged == []


async def test_an_edit_is_kept_where_another_process_goes_on(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    first, second = Shop(store=store), Shop(store=store)
    try:
        asked = await question_of(first.agent.run("go"))
        result = await second.agent.resume(asked.token, edit({"card": "amex"}))
        assert result == "charged 300 to amex"
    finally:
        await first.agent.store.close()
        await second.agent.store.close()
    assert (first.charged, second.charged) == ([], [(300, "amex")])


async def test_a_sync_tool_takes_the_arguments_a_person_gave() -> None:
    did: list[int] = []

    @triage.tool(effect="once")
    def charge(cents: int) -> int:
        did.append(cents)
        return cents

    async def work(task: str) -> int:
        return charge(300)

    agent = Agent(work, checks=Checks(guard=lambda _: Suspend()))
    asked = await question_of(agent.run("go"))
    assert await agent.resume(asked.token, edit({"cents": 1})) == 1
    assert did == [1]


async def test_a_guard_asks_also_where_calls_in_doubt_end_the_run() -> None:
    shop = Shop(durability=Durability(on_in_doubt="fail"))
    asked = await question_of(shop.agent.run("go"))
    assert await shop.agent.resume(asked.token, approve()) == "charged 300 to visa"


async def test_a_call_in_other_words_has_not_begun_either() -> None:
    did: list[int] = []

    @triage.tool(effect="once")
    async def pay(cents: int) -> str:
        did.append(cents)
        return f"paid {cents}"

    async def work(task: str, *, run: Any) -> str:
        paid = await pay(300 if run.attempt == 1 else 310)
        if run.attempt == 1:
            raise ConnectionError("lost")
        return paid

    agent = Agent(work, always(Retry()))
    asked = await question_of(agent.run("go"))
    assert asked.context is not None
    assert asked.context.diagnosis.cause is Cause.NEEDS_APPROVAL
    with pytest.raises(UsageError, match="not begun"):
        await agent.resume(asked.token, happened("paid"))
    assert await agent.resume(asked.token, rerun()) == "paid 310"
    assert did == [300, 310]


async def test_a_call_in_other_words_ends_the_run_where_nobody_is_asked() -> None:
    @triage.tool(effect="once")
    async def pay(cents: int) -> str:
        return f"paid {cents}"

    async def work(task: str, *, run: Any) -> str:
        await pay(300 + run.attempt)
        raise ConnectionError("lost")

    agent = Agent(work, always(Retry()), durability=Durability(on_in_doubt="fail"))
    with pytest.raises(TriageEscalationError):
        await agent.run("go")


@table("error", [ValueError("unreadable"), ConnectionError("reset")])
async def test_what_a_person_was_asked_counts_as_no_failure(error: Exception) -> None:
    world = World()
    pay = world.tool("once")

    async def agent(_task: str, *, run: Run) -> int:
        for number in range(12):
            await pay(str(number))
        if not any(past.error is not None for past in run.history):
            raise error
        return len(run.history)

    checks = guarding(lambda _: Suspend("a large sum"))
    paying = Agent(agent, checks=checks, environment=FakeEnvironment())
    work: Awaitable[int] = paying.run("t")
    for _ in range(12):
        work = paying.resume((await question_of(work)).token, approve())
    assert await work == 13
    assert len(world.did) == 12
