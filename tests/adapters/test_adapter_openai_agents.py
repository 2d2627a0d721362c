"""Agents of the OpenAI Agents SDK: what is recorded, done once, told, kept apart, and left as it is."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import fields
from typing import Any

import agents
import anyio
import openai
import pytest
from support import always

import triage
from adapters.sdk_agents import Desk, Refused, calls, model, over_http, says, steps_of, told
from triage import Escalate, FailureType, Replan, Retry, TriageEscalationError, UsageError
from triage.core import AttemptFailed, CallStarted, Event, WatchNoticed
from triage.testing.adapter_contract import (
    Fails,
    Helper,
    Rule,
    Script,
    World,
    asks,
    call,
    results_in,
)
from triage.testing.adapter_contract import says as answers

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]


# What is recorded -----------------------------------------------------------------------------------


async def test_the_agent_and_its_tools_stay_as_they_are() -> None:
    desk = Desk(calls("charge 1", cents=300), says("done"))
    before = {one.name: getattr(desk.clerk, one.name) for one in fields(desk.clerk)}
    tools = [dict(vars(tool)) for tool in desk.clerk.tools]
    result = await desk.agent().run("Pay.")
    assert {one.name: getattr(desk.clerk, one.name) for one in fields(desk.clerk)} == before
    assert [vars(tool) for tool in desk.clerk.tools] == tools
    assert result.last_agent is desk.clerk
    assert {id(item.agent) for item in result.new_items} == {id(desk.clerk)}


async def test_hooks_and_models_see_the_agents_and_tools_of_the_user() -> None:
    seen: list[Any] = []

    class Hooks(agents.RunHooks[Any]):
        async def on_agent_start(self, context: Any, agent: Any) -> None:
            seen.append(agent)

        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            seen.append(tool)

        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: object) -> None:
            seen.append((agent, tool.name, result))

    desk = Desk(calls("look 1", what="bill"), says("done"))
    await desk.agent().run("Look.", hooks=Hooks())
    assert seen == [desk.clerk, desk.clerk.tools[1], (desk.clerk, "look", "saw bill")]
    assert desk.model.calls[0].tools == desk.clerk.tools


async def test_outside_of_a_run_everything_is_as_ever() -> None:
    desk = Desk(says("first"), calls("look 1", what="bill"), says("second"))
    result = await desk.agent().run("One.")
    later = await agents.Runner.run(result.last_agent, [*result.to_input_list(), *ask("Two.")])
    assert later.final_output == "second"
    assert desk.did == ["look bill"]
    assert len(desk.steps) == 1


def ask(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


async def test_two_runs_at_once_do_not_mix() -> None:
    import anyio

    slow = anyio.Event()

    async def wait(what: str) -> str:
        """Wait."""
        if what == "first":
            await slow.wait()
        return what

    tool = agents.function_tool(wait)
    one = Desk(calls("wait 1", what="first"), says("one"), tools=[tool])
    other = Desk(calls("wait 1", what="second"), says("other"), tools=[tool])
    results: list[str] = []

    async def run(desk: Desk) -> None:
        results.append((await desk.agent().run("Wait.")).final_output)
        slow.set()

    async with anyio.create_task_group() as group:
        group.start_soon(run, one)
        group.start_soon(run, other)
    assert results == ["other", "one"]
    assert [s.tool_output for s in one.steps if s.tool_called] == ["first"]
    assert [s.tool_output for s in other.steps if s.tool_called] == ["second"]


async def test_a_tool_in_a_thread_is_recorded() -> None:
    @agents.function_tool
    def count(what: str) -> dict[str, int]:
        """Count."""
        return {what: 3}

    desk = Desk(calls("count 1", what="bees"), Refused(), says("done"), tools=[count])
    await desk.agent(effects={"count": "read"}).run("Count.")
    assert [s.tool_output for s in desk.steps if s.tool_called] == [{"bees": 3}]
    assert told(desk.asked()) == ["Count.", "count", "{'bees': 3}"]


async def test_a_group_that_failed_in_a_handler_of_events_gives_no_running_call_up() -> None:
    begun, failed = threading.Event(), threading.Event()

    async def fails() -> None:
        raise ValueError("a child")

    async def handles(event: Any) -> None:
        if not failed.is_set():
            failed.set()
            with pytest.raises(ExceptionGroup):
                async with asyncio.TaskGroup() as group:
                    group.create_task(fails())

    @agents.function_tool
    def count(what: str) -> int:
        """Count them."""
        desk.did.append("count")
        begun.set()
        assert given_up.wait(10)
        return 3

    given_up = threading.Event()

    def give_up(turns: int) -> None:
        """Some turns of the event loop from now, when the call beside has been cancelled."""
        if turns:
            asyncio.get_running_loop().call_soon(give_up, turns - 1)
        else:
            given_up.set()

    async def look(what: str) -> str:
        """Look it up."""
        await anyio.to_thread.run_sync(begun.wait, 10)
        desk.did.append("find")
        if not given_up.is_set():
            give_up(100)
            raise Refused
        return "saw it"

    beside = agents.function_tool(look, name_override="find", failure_error_function=None)
    desk = Desk(calls("count 1", "find 2", what="bees"), says("done"), tools=[count, beside])
    agent = desk.agent(effects={"count": "read", "find": "read"})
    result = await agent.run("Count.", on_event=handles)
    assert result.final_output == "done"
    assert desk.did == ["count", "find", "find"]
    assert failed.is_set()


# Agents that work together --------------------------------------------------------------------------


PAYS = Helper((Rule(asks(call("charge", cents=300))),), faults={2: Fails(400, "bad request")})
HANDS_OVER = (Rule(answers("done"), "Answer now."), Rule(asks(call("transfer_to_cashier"))))


async def test_a_handoff_is_a_step_and_a_new_plan_knows_of_it_and_of_what_came_behind() -> None:
    events: list[Event] = []
    world = World(Script(HANDS_OVER, helpers={"cashier": PAYS}))
    async with over_http(world) as clerk:
        agent = triage.wrap(
            clerk, always(Replan("Answer now.")), effects=world.effects, observers=[events.append]
        )
        result = await agent.run("Pay.")
    assert result.final_output == "done"
    assert world.deeds == ["charge(300)"]
    handed = ("transfer_to_cashier", '{"assistant": "cashier"}')
    assert results_in(world.requests[-1]) == [handed, ("charge", "receipt 5")]
    steps = [(step.tool_called, step.tool_output) for step in steps_of(events)]
    assert [step for step in steps if step[0]] == [handed, ("charge", "receipt 5")]
    asked = [event.tool for event in events if isinstance(event, CallStarted)]
    assert asked == ["openai", "openai cashier", "charge", "openai cashier", "openai"]


async def test_agents_that_hand_over_are_kept_apart() -> None:
    desk = Desk(calls("look 1", what="who"), calls("transfer_to_cashier 2"))
    cashier = agents.Agent(
        name="cashier",
        model=(till := model(calls("charge 3", cents=300), Refused(), says("paid"))),
        tools=[agents.function_tool(desk.charge)],
    )
    desk.clerk.handoffs = [cashier]
    result = await desk.agent().run("Pay.")
    assert result.final_output == "paid"
    assert result.last_agent is cashier
    assert desk.did == ["look who", "charge 300"]
    assert (len(desk.model.calls), len(till.calls)) == (2, 3)


async def test_agents_that_hand_over_to_each_other_for_ever_are_a_loop() -> None:
    turns = range(1, 40)
    desk = Desk(*(calls(f"transfer_to_cashier {n}") for n in turns))
    till = model(*(calls(f"transfer_to_clerk {-n}") for n in turns))
    cashier = agents.Agent(name="cashier", model=till, handoffs=[desk.clerk])
    desk.clerk.handoffs = [cashier]
    with pytest.raises(TriageEscalationError) as caught:
        await desk.agent(Escalate()).run("Pay.", max_turns=60)
    assert caught.value.diagnosis is not None
    assert caught.value.diagnosis.failure_type is FailureType.LOOP_DETECTED
    assert len(desk.model.calls) + len(till.calls) <= 12


def assistants(desk: Desk, *scripts: Any) -> list[Any]:
    return [
        agents.Agent(
            name=f"helper {at}", model=script, tools=[agents.function_tool(desk.charge)]
        ).as_tool(f"help{at}", "Help.")
        for at, script in enumerate(scripts)
    ]


async def test_agents_as_tools_are_recorded_within_and_go_on_where_they_were() -> None:
    one = model(calls("charge 1", cents=1), Refused(), says("one"))
    other = model(calls("charge 1", cents=2), says("two"))
    both = [*calls("help0 8", input="a"), *calls("help1 9", input="b")]
    desk = Desk(both, says("sorry"), says("both"))
    desk.clerk.tools += assistants(desk, one, other)
    result = await desk.agent(effects={"help1": "idempotent"}).run("Help.")
    # What the first helper failed with was only told to the clerk, who went on to answer with the other.
    assert result.final_output == "sorry"
    assert sorted(desk.did) == ["charge 1", "charge 2"]
    inner = [s for s in desk.steps if s.tool_called == "charge"]
    assert sorted(str(s.tool_input) for s in inner) == ["{'cents': 1}", "{'cents': 2}"]


async def test_a_helper_that_failed_after_an_effect_is_not_begun_again() -> None:
    helper = model(calls("charge 1", cents=1), Refused(), says("helped"))
    first, again = calls("help0 8", input="a"), calls("help0 9", input="a, please")
    desk = Desk(first, again, says("done"))
    desk.clerk.tools += assistants(desk, helper)
    result = await desk.agent().run("Help.")
    assert result.final_output == "done"
    assert desk.did == ["charge 1"]
    assert told(desk.asked()) == ["Help.", "help0", "helped"]
    assert len(helper.calls) == 3


async def test_a_tool_may_run_an_agent_by_itself() -> None:
    async def delegate(what: str) -> str:
        """Delegate."""
        found = await agents.Runner.run(helper, what)
        return str(found.final_output)

    tool = agents.function_tool(delegate)
    desk = Desk(calls("delegate 9", what="a"), tools=[tool], tool_use_behavior="stop_on_first_tool")
    helper: agents.Agent[Any] = agents.Agent(
        name="helper",
        model=model(calls("charge 1", cents=1), Refused(), says("helped")),
        tools=[agents.function_tool(desk.charge)],
    )
    desk.clerk.tools = desk.clerk.tools[1:]
    result = await desk.agent(effects={"delegate": "read"}).run("Do.")
    assert result.final_output == "helped"
    assert desk.did == ["charge 1"]
    noticed = [event for event in desk.events if isinstance(event, WatchNoticed)]
    assert not [event for event in noticed if event.rule == "steps.unknown_tool"]


async def test_an_agent_that_a_guardrail_runs_is_recorded_beside() -> None:
    judge: agents.Agent[Any] = agents.Agent(name="judge")

    @agents.input_guardrail
    async def judged(context: Any, agent: Any, given: Any) -> agents.GuardrailFunctionOutput:
        found = await agents.Runner.run(judge, given)
        return agents.GuardrailFunctionOutput(found.final_output, tripwire_triggered=False)

    events: list[Event] = []
    judge.model = model(says("fine"), says("fine"))
    rules = (Rule(answers("done"), "Be brief."), Rule(asks(call("search", query="x"))))
    world = World(Script(rules, faults={2: Fails(400, "bad request")}))
    async with over_http(world, input_guardrails=[judged]) as clerk:
        policy = always(Replan("Be brief."))
        agent = triage.wrap(clerk, policy, effects=world.effects, observers=[events.append])
        await agent.run("Look.")
    said = [step.llm_output for step in steps_of(events) if step.llm_output]
    assert sorted(said) == ["done", "fine", "fine"]
    assert results_in(world.requests[-1]) == [("search", "found 17")]
    assert "Be brief." in world.requests[-1].text


async def test_after_a_guardrails_verdict_the_answer_is_asked_anew_and_not_the_judge() -> None:
    judge: agents.Agent[Any] = agents.Agent(name="judge")

    @agents.output_guardrail
    async def judged(context: Any, agent: Any, given: Any) -> agents.GuardrailFunctionOutput:
        found = await agents.Runner.run(judge, given)
        return agents.GuardrailFunctionOutput(None, tripwire_triggered=found.final_output == "bad")

    desk = Desk(
        calls("charge 1", cents=300), says("4111"), says("paid"), output_guardrails=[judged]
    )
    judge.model = (verdicts := model(says("bad"), says("good")))
    assert (await desk.agent(Retry("Tell no card.")).run("Pay.")).final_output == "paid"
    assert (len(desk.model.calls), len(verdicts.calls)) == (3, 2)
    assert desk.did == ["charge 300"]
    assert told(desk.asked())[-1] == "Tell no card."
    assert verdicts.calls[-1].input == [{"role": "user", "content": "paid"}]


def chat(url: str, client: openai.AsyncOpenAI) -> agents.Model:
    return agents.OpenAIChatCompletionsModel("m", client)


async def test_a_judge_that_is_asked_over_http_is_told_no_hint_and_its_words_are_no_answer() -> (
    None
):
    judge: agents.Agent[Any] = agents.Agent(name="judge", instructions="You are judge, who helps.")

    @agents.output_guardrail
    async def judged(context: Any, agent: Any, given: Any) -> agents.GuardrailFunctionOutput:
        judge.model = agent.model
        found = await agents.Runner.run(judge, given)
        return agents.GuardrailFunctionOutput(None, tripwire_triggered=found.final_output == "bad")

    rules = (
        Rule(answers("paid"), "Not 4111."),
        Rule(answers("4111"), "receipt 5"),
        Rule(asks(call("charge", cents=300))),
    )
    verdicts = Helper((Rule(answers("bad"), "4111"), Rule(answers("goo", ended="length"))))
    world = World(Script(rules, helpers={"judge": verdicts}))
    async with over_http(world, chat, output_guardrails=[judged]) as clerk:
        clerk.handoffs = []
        agent = triage.wrap(clerk, always(Retry("Not 4111.")), effects=world.effects)
        assert (await agent.run("Pay.")).final_output == "paid"
    assert [request.who for request in world.requests] == ["", "", "judge", "", "judge"]
    assert world.deeds == ["charge(300)"]


async def test_the_model_is_told_why_a_guardrail_refused_its_answer() -> None:
    @agents.output_guardrail
    async def no_card(context: Any, agent: Any, given: Any) -> agents.GuardrailFunctionOutput:
        why = {"rule": "no card numbers"}
        return agents.GuardrailFunctionOutput(why, tripwire_triggered="4111" in given)

    desk = Desk(says("card 4111"), says("paid"), output_guardrails=[no_card])
    assert (await desk.agent().run("Pay.")).final_output == "paid"
    (failed,) = [event for event in desk.events if isinstance(event, AttemptFailed)]
    assert '{"rule": "no card numbers"}' in (failed.diagnosis.hint or "")


# What is found to have failed -----------------------------------------------------------------------


async def test_the_text_of_a_failed_tool_is_no_result() -> None:
    desk = Desk(calls("look 1", what="bill"), says("done"), tool_use_behavior="stop_on_first_tool")
    desk.raises = [ConnectionResetError("reset")]
    result = await desk.agent().run("Look.")
    assert result.final_output == "saw bill"
    assert desk.did == ["look bill", "look bill"]


async def test_what_the_model_makes_of_a_failed_tool_is_an_answer() -> None:
    desk = Desk(calls("look 1", what="bill"), says("There is no such bill."))
    desk.raises = [LookupError("no bill")]
    result = await desk.agent().run("Look.")
    assert result.final_output == "There is no such bill."
    assert steps_of(desk.events)[1].error == "no bill"


async def test_a_tool_that_failed_and_then_succeeded_is_no_failure() -> None:
    desk = Desk(calls("look 1", what="a"), calls("look 2", what="b"), says("done"))
    desk.raises = [Refused(503, "Overloaded")]
    result = await desk.agent().run("Look.")
    assert result.final_output == "done"
    assert len(desk.model.calls) == 3


async def test_a_tool_that_says_itself_what_it_makes_of_errors_is_believed() -> None:
    def explain(context: Any, error: Exception) -> str:
        return f"nothing there: {error}"

    async def find(what: str) -> str:
        """Find."""
        raise KeyError(what)

    tool = agents.function_tool(find, failure_error_function=explain)
    desk = Desk(calls("find 1", what="x"), says("There is none."), tools=[tool])
    result = await desk.agent(effects={"find": "read"}).run("Find.")
    assert result.final_output == "There is none."
    (step,) = [step for step in desk.steps if step.tool_called]
    assert (step.error, step.exception_type) == ("'x'", "KeyError")


async def test_arguments_that_do_not_fit_are_told_to_the_model() -> None:
    desk = Desk(calls("charge 1", cents="many"), calls("charge 2", cents=300), says("done"))
    result = await desk.agent().run("Pay.")
    assert result.final_output == "done"
    assert desk.did == ["charge 300"]
    told_model = told(desk.asked(1))[2]
    assert told_model.startswith("The tool was not called: its arguments do not fit.")
    assert "cents" in told_model


async def test_a_formatter_of_the_users_own_has_the_word() -> None:
    config = agents.RunConfig(tool_error_formatter=lambda given: f"own words: {given.kind}")
    desk = Desk(calls("charge 1", cents="many"), calls("charge 2", cents=300), says("done"))
    await desk.agent().run("Pay.", run_config=config)
    assert told(desk.asked(1))[2] == "own words: tool_exception"


async def test_an_option_that_the_runner_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Runner\.run takes no turns"):
        await Desk(says("done")).agent().run("Look.", turns=3)


async def test_a_retry_may_have_a_hint_that_is_told_once_and_not_kept() -> None:
    desk = Desk(calls("look 1", what="bill"), Refused(), says("done"))
    result = await desk.agent(Retry("Be brief.")).run("Look.")
    assert told(desk.asked()) == ["Look.", "look", "saw bill", "Be brief."]
    assert "Be brief." not in str(result.to_input_list())
