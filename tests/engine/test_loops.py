"""Loops in attempts that go on: noted, told to the agent, and stopped after ten identical calls at most."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest
from adapters.recorded_clients import openai_line
from classifiers.test_detectors import healthy
from hypothesis import given
from hypothesis import strategies as st
from support import escalation_of
from tables import table

import triage
from engine.watched import ONCE_MORE, Watched, call, count_calls, watched
from triage import (
    Agent,
    Checks,
    FailurePolicy,
    FailureType,
    Retry,
    Rollback,
    RulesClassifier,
    Run,
    Step,
    Trajectory,
    TriageError,
    Usage,
)
from triage.adapters.openai import run_tools
from triage.core import AttemptFailed, WatchNoticed
from triage.engine import Watching
from triage.testing.adapter_contract import Rule, Script, asks
from triage.testing.adapter_contract import call as tool_call

pytestmark = pytest.mark.anyio


ALL = ["note", "hint", "interrupt"]


# Escalation ---------------------------------------------------------------------------------------
async def test_a_loop_is_noted_then_told_then_stopped_and_the_next_attempt_knows() -> None:
    run = await watched([call()] * 40, policy=None)
    assert [one.response for one in run.noticed] == ALL
    assert {(one.rule, one.step, one.attempt) for one in run.noticed} == {("steps.loop", 0, 1)}
    # Told after the fourth; stopped in the recording of the seventh.
    assert run.first_hint == 4
    assert run.recorded == 6
    [failed] = [event for event in run.events if isinstance(event, AttemptFailed)]
    assert failed.error is None
    assert failed.diagnosis.failure_type is FailureType.LOOP_DETECTED
    assert failed.diagnosis.critical_step == 0
    assert run.told is not None
    assert 'search("x")' in run.told


async def test_the_running_agent_reads_what_is_the_matter() -> None:
    run = await watched([call()] * 9)
    assert run.diagnoses[2] is None
    assert run.diagnoses[3].failure_type is FailureType.LOOP_DETECTED
    assert run.hints[3] == run.diagnoses[3].hint
    assert run.hints[3:] == run.hints[3:4] * 3


async def test_a_live_hint_comes_before_what_the_attempt_was_told() -> None:
    hints: list[str | None] = []

    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            raise ConnectionError("gone")
        for _ in range(6):
            run.record_step(call())
        hints.append(run.guidance.hint)
        return "done"

    await Agent(works, FailurePolicy(default=Retry("Take care."))).run("t")
    assert hints[0] is not None
    assert hints[0].startswith("You called search")
    assert hints[0].endswith("\nTake care.")


async def test_the_hint_is_withdrawn_when_the_loop_ends() -> None:
    run = await watched([*[call()] * 6, call(given="y", output="found"), *[call()] * 6])
    assert run.hints[5] is not None
    assert run.hints[6] is None
    # The same loop again is another finding.
    assert [one.response for one in run.noticed] == ["note", "hint", "note", "hint"]
    assert [one.step for one in run.noticed] == [0, 0, 7, 7]


@table("length", range(1, 7))
async def test_cycles_of_up_to_six_steps_are_stopped_after_a_round_to_heed_the_hint(
    length: int,
) -> None:
    cycle = [call(f"tool_{at}", {"at": at}, "no such row") for at in range(length)]
    run = await watched([call("begin", 1, "ok"), *cycle * 20])
    assert [one.response for one in run.noticed] == ALL
    assert {one.step for one in run.noticed} == {1}
    # The step in whose recording it is stopped is the agent's last; the first is none of the cycle.
    rounds = run.recorded / length
    least = max(4, -(-6 // length) + 1)
    assert least <= rounds <= least + 1
    told = run.first_hint
    assert told is not None
    assert run.recorded - told >= length - 1, "it had no round to heed the hint"


async def test_seven_steps_are_no_cycle() -> None:
    cycle = [call(f"tool_{at}", {"at": at}, "no such row") for at in range(7)]
    assert (await watched(cycle * 10)).noticed == []


async def test_a_loop_that_is_seen_late_is_told_before_it_is_stopped() -> None:
    steps = [call(given={"q": f"{'a ' * at}cheap hotel Porto"}) for at in range(40)]
    run = await watched(steps)
    assert run.responses == [(response, "steps.near_loop") for response in ALL]
    assert run.first_hint is not None
    assert run.recorded >= run.first_hint


async def test_what_differs_from_step_to_step_beside_the_call_hides_no_loop() -> None:
    steps = [
        call(usage=Usage(at, 1), duration_s=float(at), llm_output=f"Once more: {at}")
        for at in range(40)
    ]
    run = await watched(steps)
    assert (run.first_hint, run.recorded) == (4, 6)


async def test_the_same_error_is_stopped_whatever_the_arguments() -> None:
    steps = [call("plan", {"day": at}, None, error=f"day {at} does not work") for at in range(40)]
    run = await watched(steps)
    assert run.responses == [(response, "steps.same_error") for response in ALL]
    assert run.recorded == 6


# What is no loop ----------------------------------------------------------------------------------
@table(
    "steps",
    [
        [call("poll", {"job": 1}, f"{at} % done") for at in range(100)],
        [call("rename", {"file": f"{at}.txt"}, "ok") for at in range(100)],
        [Step(action="think") for _ in range(100)],
        [call(effect="read", metadata={"replayed": True}) for _ in range(100)],
    ],
)
async def test_no_word_is_said_of_healthy_repetition(steps: list[Step]) -> None:
    run = await watched(steps)
    assert run.noticed == []
    assert run.recorded == 100


@given(healthy())
def test_no_word_is_said_of_healthy_work(steps: list[Step]) -> None:
    async def main() -> Watched:
        return await watched(steps)

    assert anyio.run(main).noticed == []


@given(healthy(), st.integers(1, 6), st.integers(3, 5))
def test_live_and_afterwards_the_same_loop_is_seen(
    steps: list[Step], length: int, rounds: int
) -> None:
    async def main() -> Watched:
        cycle = [call(f"loop_{at}", {"at": at}, "no such row") for at in range(length)]
        return await watched([*steps, *cycle * rounds], Watching(interrupt_after=None))

    run = anyio.run(main)
    after = RulesClassifier().classify(_trajectory(run))
    # Few steps are not looked at one by one, so a short loop at the end may stand there unseen.
    if run.noticed:
        assert run.noticed[0].step == after.evidence[0].step
        assert run.noticed[0].rule == after.evidence[0].rule
    else:
        assert run.recorded < 16


def _trajectory(run: Watched) -> Any:
    return Trajectory(run.steps)


async def test_an_exempt_tool_may_repeat_itself() -> None:
    run = await watched([call("poll")] * 40, classifier=RulesClassifier(exempt=["poll"]))
    assert run.noticed == []


# What is configured -------------------------------------------------------------------------------
@table(
    ("watch", "responses"),
    [
        (False, []),
        (Watching(None, None), ["note"]),
        (Watching(None, 9), ["note", "interrupt"]),
        (Watching(3, None), ["note", "hint"]),
        (True, ALL),
    ],
)
async def test_each_answer_to_a_loop_can_be_left_out(watch: Any, responses: list[str]) -> None:
    run = await watched([call()] * 40, watch)
    assert [one.response for one in run.noticed] == responses
    assert (run.recorded == 40) is ("interrupt" not in responses)
    assert any(run.hints) is ("hint" in responses)


@table(
    ("watch", "hint_at", "recorded"),
    [
        (Watching(10, 20), 11, 20),
        (Watching(6, 6), 7, 7),
        (Watching(20, 6), None, 6),
        (Watching(1, 1), 3, 3),
    ],
)
async def test_when_it_is_told_and_stopped_is_counted_in_steps_of_the_loop(
    watch: Watching, hint_at: int | None, recorded: int
) -> None:
    run = await watched([call()] * 40, watch)
    assert (run.first_hint, run.recorded) == (hint_at, recorded)


async def test_none_is_stopped_before_its_fourth_round() -> None:
    cycle = [call(f"tool_{at}", {"at": at}, "no such row") for at in range(6)]
    run = await watched(cycle * 10, Watching(None, 1))
    assert run.recorded == 4 * 6 - 1


# Where steps come from ----------------------------------------------------------------------------
async def test_after_a_rollback_the_steps_are_counted_from_the_beginning() -> None:
    noticed: list[WatchNoticed] = []

    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            for at in range(3):
                run.record_step(call("read", {"page": at}, f"page {at}"))
            raise ConnectionError("gone")
        for at in range(7):
            run.record_step(call("look", {"row": at}, f"row {at}"))
        for _ in range(40):
            run.record_step(call())
        return "done"

    def back(context: Any) -> Any:
        return Rollback() if context.attempt == 1 else FailurePolicy.escalate_by_default()

    def note(event: Any) -> None:
        if isinstance(event, WatchNoticed):
            noticed.append(event)

    policy = FailurePolicy(EXTERNAL_FAULT=Rollback(), default=FailurePolicy.escalate_by_default())
    caught = await escalation_of(Agent(works, policy, observers=[note]).run("t"))
    assert [(one.response, one.step, one.attempt) for one in noticed] == [
        (response, 10, 2) for response in ALL
    ]
    assert caught.diagnosis is not None
    assert caught.diagnosis.critical_step == 10
    assert caught.context is not None
    assert len(caught.context.trajectory) == 17


async def test_steps_before_an_attempt_are_none_of_its_own() -> None:
    noticed: list[Any] = []

    async def works(task: str, *, run: Run) -> str:
        for _ in range(2):
            run.record_step(call())
        if run.attempt < 8:
            raise ConnectionError("gone")
        return "done"

    agent = Agent(works, ONCE_MORE, checks=Checks(tools=["search"]), observers=[noticed.append])
    await agent.run("t")
    assert not any(isinstance(event, WatchNoticed) for event in noticed)


async def test_recorded_calls_in_a_loop_are_stopped_before_the_next_begins() -> None:
    made: list[int] = []

    @triage.tool(effect="read")
    async def search(q: str) -> str:
        made.append(len(made))
        return "nothing"

    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            while True:
                await search("x")
        return "done"

    assert await Agent(works, ONCE_MORE).run("t") == "done"
    assert len(made) == 7


# What it costs ------------------------------------------------------------------------------------
@table("kind", ["unlike", "alike", "in and out of loops"])
def test_a_step_costs_the_same_however_many_came_before(kind: str) -> None:
    """Counted in calls of functions of the package, which no load of the machine changes."""

    def step(at: int) -> Step:
        if kind == "unlike":
            return call("page", {"n": at}, f"row {at}")
        if kind == "alike":
            return call("rename", {"n": at}, "ok")
        # Long enough to be noted, left before it is told.
        return call(
            "page", {"n": at // 5 if at % 5 < 3 else at}, f"row {at // 5 if at % 5 < 3 else at}"
        )

    counts: list[int] = []

    async def works(task: str, *, run: Run) -> str:
        def record(first: int) -> None:
            for at in range(first, first + 1_000):
                run.record_step(step(at))

        thousands = range(0, 10_000, 1_000)
        counts.extend(count_calls(partial(record, first), "/triage/") for first in thousands)
        return "done"

    async def main() -> str:
        return await Agent(works).run("t")

    assert anyio.run(main) == "done"
    assert max(counts) <= 1.02 * min(counts)
    assert counts[0] > 2_000, "it was not watched"


# Stopped early, wherever the calls come from ------------------------------------------------------
MOST_BEFORE_TOLD, MOST = 5, 10


class Loop:
    """An agent that calls the same tool for ever. calls: how often; told: before which call it was."""

    def __init__(self, limit: int = 100) -> None:
        self.calls = 0
        self.told: int | None = None
        self._limit = limit

    def call(self, hint: Any) -> None:
        if hint and self.told is None:
            self.told = self.calls
        self.calls += 1
        assert self.calls < self._limit

    def check(self) -> None:
        assert self.told is not None
        assert self.told <= MOST_BEFORE_TOLD
        assert self.calls <= MOST


def hint_now() -> Any:
    told = triage.current_run().guidance
    return None if told is None else told.hint


@table("beside", [0, 1, 3])
async def test_a_loop_of_steps_by_hand_is_stopped_early(beside: int) -> None:
    """beside: how many other steps stand between two calls."""
    loop = Loop()

    async def agent(task: str, *, record_step: Any) -> str:
        while True:
            loop.call(hint_now())
            record_step(
                Step(
                    action="look",
                    tool_called="search",
                    tool_input={"q": "x"},
                    tool_output="nothing",
                )
            )
            for n in range(beside):
                record_step(Step(action="think", llm_output=f"Let me look {n}"))

    with pytest.raises(TriageError):
        await Agent(agent).run("task")
    loop.check()


@table("effect", ["read", "idempotent", "unknown", "once"])
async def test_a_loop_of_a_tool_is_stopped_early(effect: str) -> None:
    loop = Loop()

    @triage.tool(effect=effect)
    async def search(q: str) -> str:
        loop.call(hint_now())
        return "nothing"

    async def agent(task: str) -> str:
        while True:
            await search("x")

    with pytest.raises(TriageError):
        await Agent(agent).run("task")
    loop.check()


async def test_a_loop_over_a_caught_failure_is_stopped_early() -> None:
    loop = Loop()

    @triage.tool(effect="read")
    async def search(q: str) -> str:
        loop.call(hint_now())
        raise ValueError("no such table")

    async def agent(task: str) -> str:
        while True:
            try:
                await search("x")
            except ValueError:
                continue

    with pytest.raises(TriageError):
        await Agent(agent).run("task")
    loop.check()


async def test_a_loop_through_a_recorded_client_is_stopped_early() -> None:
    loop = Loop()

    @triage.tool(effect="read")
    async def search(q: str) -> str:
        loop.call(hint_now())
        return "nothing"

    async with openai_line(Script((Rule(asks(tool_call("search", q="x"))),))) as line:

        async def agent(task: str) -> str:
            return (await run_tools(line.client, task, model="m", tools=[search], turns=100)).text

        with pytest.raises(TriageError):
            await Agent(agent).run("task")
    loop.check()


async def test_forty_reminders_to_one_customer_are_sent_in_one_attempt() -> None:
    sent: list[int] = []

    @triage.tool(effect="once")
    async def remind(customer: str, invoice: int) -> None:
        sent.append(invoice)

    async def works(task: str, *, run: Run) -> int:
        for invoice in range(1001, 1041):
            await remind("C17", invoice)
        return run.attempt

    assert await Agent(works).run("remind") == 1
    assert sent == list(range(1001, 1041))


async def test_a_loop_over_attempts_is_stopped_early() -> None:
    """Four calls an attempt, and a failure at each end."""
    loop = Loop()

    async def agent(task: str, *, record_step: Any) -> str:
        for _ in range(4):
            loop.call(hint_now())
            record_step(
                Step(
                    action="look",
                    tool_called="search",
                    tool_input={"q": "x"},
                    tool_output="nothing",
                )
            )
        raise RuntimeError(f"nothing found {loop.calls}")

    with pytest.raises(TriageError):
        await Agent(agent).run("task")
    assert loop.calls <= MOST


async def test_a_loop_that_did_not_end_its_attempt_does_not_end_the_next() -> None:
    @triage.tool(effect="read")
    async def status() -> str:
        return "ready"

    async def agent(task: str, *, run: triage.Run) -> str:
        found = [await status() for _ in range(4)][-1]
        if run.attempt == 1:
            raise RuntimeError("boom")
        return found

    assert await Agent(agent).run("task") == "ready"
