"""Scripted agents: what a script does, attempt by attempt."""

from __future__ import annotations

from typing import Any

import pytest
from tables import table

import triage
from triage import Agent, Checks, FailurePolicy, Resume, Retry, Step, Usage, UsageError
from triage.strategies import replan
from triage.testing import (
    LAST,
    ScriptedAgent,
    assert_escalates,
    assert_recovers,
    calls,
    completes,
    fails,
    faults,
    gives,
    sets,
    subgoals,
    waits,
    when_told,
)

pytestmark = pytest.mark.anyio
A_DICT = Checks(result_type=dict)  # made outside of the event loop, as it reads files


@triage.tool(effect="read")
async def search(query: str, *, limit: int = 3) -> list[str]:
    return [query] * limit


async def test_a_script_records_all_that_an_agent_can() -> None:
    script = ScriptedAgent([
        Step(action="think", llm_output="hm"),
        Usage(input_tokens=10, output_tokens=2),
        sets(city="Rome"),
        calls(search, "inns", limit=2),
        waits(3),
        gives(LAST),
    ])  # fmt: skip
    done = await assert_recovers(script, "x", result=["inns", "inns"], at_most_attempts=1)
    assert [step.tool_called for step in done.state.steps] == [None, "search"]
    assert (done.state.state, done.state.usage.input_tokens) == ({"city": "Rome"}, 10)
    assert done.seconds == 3
    assert done.effects == {"search": 1}


async def test_each_attempt_has_its_script_and_the_last_serves_for_the_rest() -> None:
    script = ScriptedAgent(
        [[fails(TimeoutError("slow"))], [fails(faults.rate_limit(retry_after=1))]]
    )
    agent = Agent(script, FailurePolicy(EXTERNAL_FAULT=triage.strategies.backoff_and_retry(3)))
    done = await assert_escalates(agent, "x", because="rate_limited")
    assert [past.diagnosis.cause for past in done.failures] == ["timeout"] + ["rate_limited"] * 3


@table(("hint", "works"), [("Use `find_inns`.", 1), ("Try again.", 0)])
async def test_a_correction_works_only_if_the_hint_carries_the_fact(hint: str, works: int) -> None:
    script = ScriptedAgent([
        when_told("FIND_INNS", then=gives("an inn")),
        fails(faults.wrong_tool("find_in")),
    ])  # fmt: skip
    agent = Agent(script, FailurePolicy(WRONG_TOOL_CALLED=replan(hint, max_replans=2)))
    if works:
        await assert_recovers(agent, "x", result="an inn", at_most_attempts=2)
        assert script.told[0] is None
        assert hint in (script.told[1] or "")
    else:
        await assert_escalates(agent, "x", because="wrong_tool_called")


async def test_otherwise_is_done_where_nothing_was_told_and_the_script_goes_on() -> None:
    script = ScriptedAgent(
        [when_told("x", then=[gives(1)], otherwise=[sets(told=False)]), gives(2)]
    )
    done = await assert_recovers(script, "x", result=2)
    assert done.state.state == {"told": False}


async def test_a_script_resumes_at_its_subgoal() -> None:
    script = ScriptedAgent([
        when_told("pay", then=[completes("pay"), gives("paid")]),
        subgoals("look", "pay"),
        completes("look"),
        fails(ConnectionError("cut")),
    ])  # fmt: skip
    agent = Agent(script, FailurePolicy(EXTERNAL_FAULT=Resume()))
    await assert_recovers(agent, "x", result="paid", at_most_attempts=2)


async def test_the_recommended_policy_stops_a_loop() -> None:
    script = ScriptedAgent([
        when_told("do not", then=gives("else")),
        when_told("again", then=gives("else")),
        fails(faults.loop(5)),
    ])  # fmt: skip
    done = await assert_recovers(script, "x", result="else", at_most_attempts=2)
    assert isinstance(done.failures[0].action, Retry)


async def test_a_slow_move_goes_on_and_a_damaged_answer_is_the_result() -> None:
    script = ScriptedAgent([[fails(faults.slow(4)), fails(faults.malformed_json())], [gives("{}")]])
    agent = Agent(script, FailurePolicy(default=Retry()), checks=A_DICT)
    done = await assert_recovers(agent, "x", result={})
    assert done.failures[0].failure_type == "schema_mismatch"
    assert done.seconds == 4


def any_(value: Any) -> Any:
    """What a type checker would have refused."""
    return value


@table(
    ("make", "said"),
    [
        (lambda: ScriptedAgent([]), "is empty"),
        (lambda: ScriptedAgent(any_("abc")), "a list of moves"),
        (lambda: ScriptedAgent(any_([gives(1), [gives(2)]])), "mixes"),
        (lambda: ScriptedAgent(any_([gives(1), TimeoutError()])), r"\[0\]\[1\] .*write fails"),
        (lambda: ScriptedAgent(any_([[gives(1)], [3]])), r"\[1\]\[0\]"),
        (lambda: when_told("", then=gives(1)), "not empty"),
        (lambda: when_told("a", then=any_([3])), r"when_told\(then=…\)\[0\]"),
        (lambda: calls(any_("search")), "a tool or function"),
        (lambda: fails(any_("slow")), "a fault"),
        (lambda: waits(-1), "seconds"),
    ],
)  # fmt: skip
def test_a_script_that_cannot_be_played_is_refused_at_once(make: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make()
