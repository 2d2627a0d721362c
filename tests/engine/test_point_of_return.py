"""What a failed attempt goes back to: what led to the failure is asked anew, what came before is reused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from support import Killed, Says, always, question_of
from tables import table

import triage
from engine.asked_models import HINT, KINDS, Ask, Provider, agent_of, answer, completion, said, user
from triage import (
    Agent,
    Diagnosis,
    FailureType,
    Replan,
    Retry,
    Run,
    TriageEscalationError,
    rerun,
)
from triage.adapters.openai import record
from triage.core import AttemptStarted, CallFinished, Event
from triage.stores import SQLiteStore

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]
every_kind = table("kind", KINDS)
AGAIN = always(Retry(hint=HINT))


class Conflict(Exception):
    status_code = 409


class Purchase:
    """A tool with an effect. made: what it has done."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.buy = triage.tool(effect="once", name="buy")(self._buy)

    async def _buy(self, what: str) -> str:
        self.made.append(what)
        return f"receipt for {what}"


async def conversation(ask: Ask, turns: range, messages: list[Any]) -> list[Any]:
    for turn in turns:
        messages = [*messages, user(f"turn {turn}")]
        messages = [*messages, said(await ask(messages))]
    return messages


def eight_turns(check: Callable[[list[str]], Any]) -> Any:
    async def work(ask: Ask, run: Run) -> Any:
        messages = await conversation(ask, range(1, 9), [])
        return check([message["content"] for message in messages if message["role"] != "user"])

    return work


# Twelve journals, worked by hand ----------------------------------------------------------------------


@every_kind
async def test_a_bad_first_turn_that_shows_after_eight_is_found_from_the_start(kind: str) -> None:
    provider = Provider({"turn 1": ["bad", "good"]})
    work = eight_turns(lambda answers: {"good": len(answers)}[answers[0]])
    assert await agent_of(kind, work, provider, policy=AGAIN).run("t") == 8
    first = [f"turn {n}" for n in range(1, 9)]
    assert provider.requests == [*first, "turn 8+", *(f"{turn}+" for turn in first)]


@every_kind
async def test_a_bad_first_turn_that_is_known_as_critical_is_returned_to_at_once(kind: str) -> None:
    provider = Provider({"turn 1": ["bad", "good"]})
    work = eight_turns(lambda answers: {"good": len(answers)}[answers[0]])
    blames = Says(Diagnosis(FailureType.GOAL_DRIFT, critical_step=0))
    await agent_of(kind, work, provider, policy=AGAIN, classifier=blames).run("t")
    first = [f"turn {n}" for n in range(1, 9)]
    assert provider.requests == [*first, *(f"{turn}+" for turn in first)]


@every_kind
async def test_a_bad_fifth_turn_is_asked_anew_and_the_four_before_it_are_not(kind: str) -> None:
    provider = Provider({"turn 5": ["about ten", "10"]})

    async def work(ask: Ask, run: Run) -> int:
        messages = await conversation(ask, range(1, 6), [])
        number = int(messages[-1]["content"])
        await conversation(ask, range(6, 9), messages)
        return number

    assert await agent_of(kind, work, provider, policy=AGAIN).run("t") == 10
    asked = [f"turn {n}" for n in range(1, 6)]
    assert provider.requests == [*asked, "turn 5+", "turn 6+", "turn 7+", "turn 8+"]


async def test_a_judges_verdict_sends_back_to_the_answer_that_was_judged() -> None:
    provider = Provider(
        {"write": ["draft", "better"], "judge draft": ["no"], "judge better": ["yes"]}
    )
    client = record(provider.client())

    @triage.model(judge=True)
    async def judge(text: str) -> str:
        plain = provider.client()
        return await answer(plain, f"judge {text}")

    async def writes(task: str) -> str:
        await answer(client, "plan")
        text = await answer(client, "write")
        assert await judge(text) == "yes", "the judge refused it"
        return text

    assert await Agent(writes, AGAIN).run("t") == "better"
    assert provider.requests == ["plan", "write", "judge draft", "write+", "judge better"]


async def test_what_a_recorded_client_is_asked_while_judging_is_no_answer_of_the_work() -> None:
    provider = Provider({"write": ["draft", "better"], "is draft good?": ["no"]})
    client = record(provider.client(), hint=True)

    async def writes(task: str) -> str:
        text = await answer(client, "write")
        with triage.engine.judging():
            verdict = await answer(client, f"is {text} good?")
        assert verdict != "no"
        return text

    assert await Agent(writes, AGAIN).run("t") == "better"
    assert provider.requests[:3] == ["write", "is draft good?", "write+"]


@table("kind", ["client", "seam"])
async def test_a_branch_that_still_grows_does_not_count(kind: str) -> None:
    provider = Provider({"left": ["bad", "good"]})
    asked_right = anyio.Event()

    async def work(ask: Ask, run: Run) -> str:
        results: list[str] = []

        async def left() -> None:
            results.append({"good": "fine"}[await ask([user("left")])])

        async def right() -> None:
            await ask([user("right")])
            if run.attempt == 1:
                asked_right.set()
                await anyio.sleep_forever()

        if run.attempt == 1:
            async with anyio.create_task_group() as group:
                group.start_soon(right)
                await asked_right.wait()
                await left()
        await right()
        await left()
        return results[0]

    assert await agent_of(kind, work, provider, policy=AGAIN).run("t") == "fine"
    assert provider.requests == ["right", "left", "left+"]


@every_kind
async def test_an_effect_between_two_wrong_answers_is_never_returned_to_before(kind: str) -> None:
    provider = Provider({"what": ["a map"], "report": ["bad", "bad", "good"]})
    shop = Purchase()

    async def work(ask: Ask, run: Run) -> str:
        messages = await conversation(ask, range(1, 2), [])
        bought = await shop.buy(await ask([*messages, user("what")]))
        answer = await ask([*messages, user(bought), user("report")])
        return {"good": bought}[answer]

    assert await agent_of(kind, work, provider, policy=AGAIN).run("t") == "receipt for a map"
    assert provider.requests == ["turn 1", "what", "report", "report+", "report+"]
    assert shop.made == ["a map"]


@every_kind
async def test_an_effect_that_a_kept_conversation_goes_on_from_is_not_returned_to_before_either(
    kind: str,
) -> None:
    """As with a framework that keeps a thread: the attempts after the purchase do not call it again."""
    provider = Provider({"what": ["a map"], "report": ["bad", "bad", "good"]})
    shop, events, thread = Purchase(), list[Event](), list[str]()

    async def work(ask: Ask, run: Run) -> str:
        if not thread:
            thread.append(await shop.buy(await ask([user("what")])))
        answer = await ask([user(thread[0]), user("report")])
        return {"good": thread[0]}[answer]

    agent = agent_of(kind, work, provider, policy=AGAIN, observers=[events.append])
    assert await agent.run("t") == "receipt for a map"
    (bought,) = [
        event.seq for event in events if isinstance(event, CallFinished) and "buy" in event.key
    ]
    points = [event.returns_to for event in events if isinstance(event, AttemptStarted)]
    assert points[-1] == bought


@every_kind
async def test_an_inner_agent_that_errs_once_runs_again_and_is_told(kind: str) -> None:
    provider = Provider({"count": ["about ten", "10"]})
    hints: list[str | None] = []

    async def counts(ask: Ask, run: Run) -> str:
        hints.append(run.guidance.hint)
        return await ask([user("count")])

    inner = agent_of(kind, counts, provider, name="counter")

    async def outer(task: str) -> int:
        return int(await inner.run("count them"))

    assert await Agent(outer, AGAIN).run("t") == 10
    assert provider.requests == ["count", "count+"]


async def test_an_inner_agent_that_has_bought_is_not_run_again_and_its_answer_ends_the_run() -> (
    None
):
    provider, shop = Provider({"what": ["a map"]}), Purchase()
    client = record(provider.client())

    async def buys(task: str) -> str:
        found = await answer(client, "what")
        return await shop.buy(found)

    inner = Agent(buys, name="buyer")

    async def outer(task: str) -> int:
        return int(await inner.run("buy"))

    with pytest.raises(TriageEscalationError, match="completed with an effect"):
        await Agent(outer, AGAIN).run("t")
    assert shop.made == ["a map"]
    assert provider.requests == ["what"]


async def test_an_inner_agent_that_has_bought_sends_back_to_the_runs_own_answer() -> None:
    provider, shop = Provider({"how": ["badly", "well"]}), Purchase()
    client = record(provider.client())

    async def buys(task: str) -> str:
        await answer(client, "what")
        return await shop.buy(task)

    inner = Agent(buys, name="buyer")

    async def outer(task: str) -> str:
        found = await answer(client, "how")
        await inner.run("a map")
        return {"well": "done"}[found]

    assert await Agent(outer, AGAIN).run("t") == "done"
    assert provider.requests == ["how", "what", "how+"]
    assert shop.made == ["a map"]


@every_kind
async def test_a_crash_in_the_middle_of_a_retry_goes_on_with_the_same_point(
    kind: str, tmp_path: Path
) -> None:
    provider = Provider({"turn 3": ["about ten", "10"]})
    store = SQLiteStore(tmp_path / "runs.db")
    dies = True

    async def work(ask: Ask, run: Run) -> int:
        nonlocal dies
        messages = await conversation(ask, range(1, 4), [])
        number = int(messages[-1]["content"])
        messages = await conversation(ask, range(4, 5), messages)
        if dies:
            dies = False
            raise Killed
        await conversation(ask, range(5, 6), messages)
        return number

    agent = agent_of(kind, work, provider, policy=AGAIN, store=store)
    with pytest.raises(Killed):
        await agent.run("t", run_id="run")
    events = await store.read("run")
    points = [event.returns_to for event in events if isinstance(event, AttemptStarted)]
    other = agent_of(kind, work, provider, policy=AGAIN, store=SQLiteStore(tmp_path / "runs.db"))
    assert await other.recover("run") == 10
    started = [event for event in await store.read("run") if isinstance(event, AttemptStarted)]
    assert [event.returns_to for event in started] == [*points, points[-1]]
    assert [event.attempt for event in started] == [1, 2, 2]
    assert provider.requests == ["turn 1", "turn 2", "turn 3", "turn 3+", "turn 4+", "turn 5+"]
    await store.close()
    await other.store.close()


@every_kind
async def test_an_answer_of_200_with_an_error_in_it_is_asked_for_again(kind: str) -> None:
    overloaded = {"error": {"message": "Provider overloaded, try again", "code": 503}}
    provider = Provider({"turn 2": [overloaded, "fine"]})

    async def work(ask: Ask, run: Run) -> str:
        answer: str = (await conversation(ask, range(1, 3), []))[-1]["content"]
        return answer

    assert await agent_of(kind, work, provider, policy=AGAIN).run("t") == "fine"
    assert provider.requests == ["turn 1", "turn 2", "turn 2+"]


async def test_a_200_with_an_error_that_the_agent_reads_itself_is_asked_for_again() -> None:
    bodies: list[dict[str, Any]] = [
        {"error": {"message": "Provider returned 503 service unavailable", "code": 503}},
        completion("fine"),
    ]
    asked: list[str] = []

    async def create(prompt: str) -> dict[str, Any]:
        asked.append(prompt)
        return completion("plan") if prompt == "plan" else bodies.pop(0)

    async def works(task: str, *, run: Run) -> Any:
        await run.model(create, "plan")
        answer = await run.model(create, "write")
        if "error" in answer:
            raise RuntimeError(answer["error"]["message"])
        return answer["choices"][0]["message"]["content"]

    assert await Agent(works, AGAIN).run("t") == "fine"
    assert asked == ["plan", "write", "write"]


@every_kind
async def test_parallel_branches_are_ordered_by_when_they_were_answered(kind: str) -> None:
    provider = Provider({"b2": ["bad", "good"]})

    async def work(ask: Ask, run: Run) -> str:
        async def branch(name: str, before: list[anyio.Event], after: anyio.Event) -> None:
            for event in before:
                await event.wait()
            answers[name] = await ask([user(name)])
            after.set()

        answers: dict[str, str] = {}
        a1, b1, b2 = anyio.Event(), anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(branch, "a1", [], a1)
            group.start_soon(branch, "b1", [a1], b1)
            group.start_soon(branch, "b2", [a1, b1], b2)
        return {"good": "fine"}[answers["b2"]]

    assert await agent_of(kind, work, provider, policy=AGAIN).run("t") == "fine"
    assert provider.requests[:3] == ["a1", "b1", "b2"]
    if kind in ("client", "seam"):  # with the hint in them, requests of several tasks have no order
        assert provider.requests[3:] == ["b2+"]


# Under trio the client leaves its streams to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_streamed_answer_that_led_to_the_failure_is_streamed_anew() -> None:
    provider = Provider({"count": ["ten", "10"]})
    client: Any = record(provider.client())

    async def streams(task: str) -> Any:
        await answer(client, "plan")
        text = ""
        pieces = await client.chat.completions.create(
            model="m",
            messages=[user("count")],
            stream=True,
        )
        async for piece in pieces:
            text += piece.choices[0].delta.content or ""
            yield text
        int(text)

    items = [item async for item in Agent(streams, AGAIN).stream("t")]
    assert items[-1] == "10"
    (restarted,) = [item for item in items if isinstance(item, triage.Restarted)]
    assert restarted.returns_to is not None
    assert restarted.returns_to > 0
    assert provider.requests == ["plan", "count", "count+"]


async def test_a_handoff_goes_back_to_the_agent_that_answered_last() -> None:
    provider = Provider({"first: to whom?": ["second"], "second: how many?": ["ten", "10"]})
    client = record(provider.client())

    async def agents(task: str) -> int:
        now, question = "first", "to whom?"
        while True:
            found = await answer(client, f"{now}: {question}")
            if now == "second":
                return int(found)
            now, question = found, "how many?"

    assert await Agent(agents, AGAIN).run("t") == 10
    assert provider.requests == ["first: to whom?", "second: how many?", "second: how many?+"]


@every_kind
async def test_after_a_conflict_nothing_that_was_read_is_trusted(kind: str) -> None:
    provider = Provider()
    versions = [1, 2]

    @triage.tool(effect="read")
    async def version() -> int:
        return versions.pop(0)

    @triage.tool(effect="idempotent")
    async def write(over: int) -> str:
        if over != 2:
            raise Conflict("409 Conflict: the version is stale")
        return "written"

    async def work(ask: Ask, run: Run) -> str:
        known = await version()
        await ask([user(f"change version {known}")])
        return await write(known)

    assert await agent_of(kind, work, provider, policy=AGAIN).run("t") == "written"
    assert provider.requests == ["change version 1", "change version 2+"]


# The rules by themselves ------------------------------------------------------------------------------


@every_kind
async def test_an_outage_of_another_side_asks_no_model_anew(kind: str) -> None:
    provider = Provider({"turn 2": [503, 503, "fine"]})

    async def work(ask: Ask, run: Run) -> str:
        answer: str = (await conversation(ask, range(1, 4), []))[-3]["content"]
        return answer

    await agent_of(kind, work, provider, policy=AGAIN).run("t")
    assert provider.requests == ["turn 1", "turn 2", "turn 2+", "turn 2+", "turn 3+"]


@every_kind
async def test_only_the_request_that_was_too_long_is_sent_again(kind: str) -> None:
    provider = Provider({"turn 3": [400, 400, "fine"]})

    async def work(ask: Ask, run: Run) -> int:
        return len(await conversation(ask, range(1, 4), []))

    overflow = Says(Diagnosis(FailureType.CONTEXT_OVERFLOW))
    assert await agent_of(kind, work, provider, policy=AGAIN, classifier=overflow).run("t") == 6
    assert provider.requests == ["turn 1", "turn 2", "turn 3", "turn 3+", "turn 3+"]


async def test_an_answer_that_its_own_call_could_not_read_is_asked_for_again() -> None:
    provider = Provider({"turn 1": ["{}"], "turn 2": ["{", '{"n": 2}']})
    client = provider.client()

    @triage.model
    async def ask(words: str) -> Any:
        return json.loads(await answer(client, words))

    async def work(task: str) -> Any:
        await ask("turn 1")
        return (await ask("turn 2"))["n"]

    assert await Agent(work, AGAIN).run("t") == 2
    assert provider.requests == ["turn 1", "turn 2", "turn 2"]


@every_kind
async def test_a_failure_of_unrecorded_code_asks_no_model_anew(kind: str) -> None:
    provider, fails = Provider(), [True, True]

    async def work(ask: Ask, run: Run) -> str:
        await conversation(ask, range(1, 3), [])
        if fails:
            fails.pop()
            raise ConnectionError("reset by peer")
        return "end"

    assert await agent_of(kind, work, provider, policy=AGAIN).run("t") == "end"
    assert provider.requests == ["turn 1", "turn 2"]


async def test_an_answer_inside_a_completed_read_is_asked_for_with_the_read() -> None:
    provider, ran = Provider({"summarize": ["bad", "good"]}), []
    client = record(provider.client())

    @triage.tool(effect="read")
    async def summary() -> str:
        ran.append("summary")
        return await answer(client, "summarize")

    async def works(task: str) -> str:
        return {"good": "fine"}[await summary()]

    assert await Agent(works, AGAIN).run("t") == "fine"
    assert provider.requests == ["summarize", "summarize+"]
    assert ran == ["summary", "summary"]


async def test_an_answer_inside_a_completed_effect_is_not_asked_for_again() -> None:
    provider, sent = Provider(), []
    client = record(provider.client())

    @triage.tool(effect="once")
    async def send_letter() -> str:
        text = await answer(client, "word it")
        sent.append(text)
        return text

    async def works(task: str, *, run: Run) -> str:
        text = await send_letter()
        if run.attempt == 1:
            raise ValueError("something else is wrong")
        return text

    assert await Agent(works, AGAIN).run("t") == "re: word it"
    assert provider.requests == ["word it"]
    assert sent == ["re: word it"]


async def test_without_a_model_call_everything_safe_runs_again_and_effects_do_not() -> None:
    read: list[int] = []
    shop = Purchase()

    @triage.tool(effect="read")
    async def price() -> int:
        read.append(1)
        return len(read)

    async def works(task: str) -> str:
        return {2: await shop.buy("a map")}[await price()]

    assert await Agent(works, AGAIN).run("t") == "receipt for a map"
    assert shop.made == ["a map"]


@every_kind
async def test_an_answered_question_reuses_all_that_its_attempt_had_come_to(kind: str) -> None:
    provider = Provider({"turn 2": ["about ten", "10"]})

    @triage.tool(effect="once")
    async def pay(cents: int) -> str:
        if not paid:
            paid.append(cents)
            raise ConnectionResetError("reset")
        return "paid"

    paid: list[int] = []

    async def work(ask: Ask, run: Run) -> str:
        messages = await conversation(ask, range(1, 3), [])
        cents = int(messages[-1]["content"])
        await ask([*messages, user("turn 3")])
        return await pay(cents)

    agent = agent_of(kind, work, provider, policy=AGAIN)
    suspended = await question_of(agent.run("t"))
    before = list(provider.requests)
    assert before == ["turn 1", "turn 2", "turn 2+", "turn 3+"]
    assert await agent.resume(suspended.token, rerun()) == "paid"
    assert provider.requests == before


@every_kind
async def test_a_new_plan_begins_at_the_start(kind: str) -> None:
    provider = Provider({"turn 2": ["about ten", "10"]})

    async def work(ask: Ask, run: Run) -> int:
        return int((await conversation(ask, range(1, 3), []))[-1]["content"])

    assert await agent_of(kind, work, provider, policy=always(Replan(HINT))).run("t") == 10
    assert provider.requests == ["turn 1", "turn 2", "turn 1+", "turn 2+"]


async def test_an_attempt_that_could_only_repeat_itself_is_not_made() -> None:
    provider, shop = Provider(), Purchase()
    attempts: list[int] = []

    async def works(task: str, *, run: Run) -> str:
        attempts.append(run.attempt)
        client = record(provider.client())
        await shop.buy("a map")
        await answer(client, "done?")
        await shop.buy("a pen")
        raise ValueError("the agent's own check fails")

    with pytest.raises(TriageEscalationError):
        await Agent(works, AGAIN).run("t")
    assert shop.made == ["a map", "a pen"]


@every_kind
async def test_which_requests_are_sent_by_failure_critical_step_recording_and_action(
    kind: str,
) -> None:
    few = (FailureType.EXTERNAL_FAULT, FailureType.GOAL_DRIFT)
    actions = (Retry(hint=HINT), Replan(HINT))
    for failure in FailureType if kind == "client" else few:
        for critical, action in itertools.product((None, 0, 1), actions):
            provider = Provider()
            says = Says(Diagnosis(failure, critical_step=critical))
            agent = agent_of(kind, _fails_once, provider, policy=always(action), classifier=says)
            assert await agent.run("t") == "end"
            if isinstance(action, Replan):
                again = 1
            elif critical is not None:
                again = critical + 1
            else:
                again = 4 if failure is FailureType.EXTERNAL_FAULT else 3
            sent = ["turn 1", "turn 2", "turn 3", *(f"turn {n}+" for n in range(again, 4))]
            assert provider.requests == sent, (failure, critical, action)


async def _fails_once(ask: Ask, run: Run) -> str:
    await conversation(ask, range(1, 4), [])
    if run.attempt == 1:
        raise RuntimeError("it has failed")
    return "end"
