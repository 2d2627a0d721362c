"""Deferred tools of Pydantic AI: the run waits for an answer, and goes on with it, whoever goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import Tool
from pydantic_ai.capabilities import HandleDeferredToolCalls
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelHTTPError
from pydantic_ai.tools import RunContext
from support import always
from tables import table

import triage
from adapters.pydantic_agents import Scripted, call, tools_of
from triage import (
    Agent,
    Retry,
    TriageSuspendedError,
    UsageError,
    approve,
    edit,
    happened,
    reject,
    rerun,
)
from triage.core import ApprovalAsked, Event, RunFinished
from triage.engine.outside import answers_to

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]

OVERLOADED = ModelHTTPError(503, "m")


class Shop:
    """An agent with tools that wait. paid: what was paid."""

    def __init__(self, *turns: Any, **options: Any) -> None:
        self.paid: list[int] = []
        self.events: list[Event] = []
        self.model = Scripted(*turns)
        self._options = options

    def pay(self, cents: int) -> str:
        """Pay."""
        self.paid.append(cents)
        return f"paid {cents}"

    def pay_much(self, ctx: RunContext[None], cents: int) -> str:
        """Pay much."""
        if cents > 100 and not ctx.tool_call_approved:
            raise ApprovalRequired
        return self.pay(cents)

    def ask_elsewhere(self, question: str) -> str:
        """Ask somebody else."""
        raise CallDeferred

    def agent(self, **options: Any) -> Agent[Any]:
        tools: list[Any] = [
            Tool(self.pay, requires_approval=True),
            self.pay_much,
            self.ask_elsewhere,
        ]
        made = PydanticAgent(self.model.model, tools=tools, **self._options)
        effects = {"pay": "once", "pay_much": "once"}
        return triage.wrap(
            made, always(Retry()), effects=effects, observers=[self.events.append], **options
        )

    @property
    def told(self) -> list[Any]:
        """What the model was told last by tools."""
        parts = self.model.seen[-1][-1].parts
        return [part.content for part in parts if part.part_kind == "tool-return"]


async def suspended(run: Any) -> TriageSuspendedError:
    with pytest.raises(TriageSuspendedError) as caught:
        await run
    return caught.value


@table("tool", ["pay", "pay_much"])
async def test_what_needs_approval_waits_for_it_and_then_runs_once(tool: str) -> None:
    shop = Shop(call(tool, cents=300), OVERLOADED, "done")
    agent = shop.agent()
    waits = await suspended(agent.run("go"))
    assert f'the agent waits for an answer about {tool} with {{"cents": 300}}' in str(waits)
    assert shop.paid == []
    result = await agent.resume(waits.token, approve())
    assert result.output == "done"
    assert shop.paid == [300], "the payment was made again after a failure"
    assert shop.told == ["paid 300"]
    assert tools_of(shop.events)[-1].tool_output == "paid 300"


@table(
    "asked",
    [call("pay", cents=300), call("pay_much", cents=300), call("ask_elsewhere", question="May I?")],
)
async def test_what_is_refused_is_not_done_and_another_way_is_looked_for(asked: Any) -> None:
    shop = Shop(asked, "another way")
    agent = shop.agent()
    waits = await suspended(agent.run("go"))
    result = await agent.resume(waits.token, reject("too much"))
    assert result.output == "another way"
    assert shop.paid == []
    assert "too much" in str(shop.model.seen[-1][-1].parts[-1].content)  # type: ignore[union-attr] # a prompt


@table(
    ("answer", "paid", "told"),
    [
        (True, [300], "paid 300"),
        (False, [], "The tool call was denied."),
        ("not today", [], "not today"),
        ({"cents": 5}, [5], "paid 5"),
    ],
)
async def test_an_approval_may_be_more_than_a_yes(answer: Any, paid: list[int], told: str) -> None:
    shop = Shop(call("pay", cents=300), "done")
    agent = shop.agent()
    waits = await suspended(agent.run("go"))
    assert (await agent.resume(waits.token, happened(answer))).output == "done"
    assert (shop.paid, shop.told) == (paid, [told])


async def test_an_edit_approves_a_call_with_other_arguments() -> None:
    shop = Shop(call("pay", cents=300), "done")
    agent = shop.agent()
    waits = await suspended(agent.run("go"))
    with pytest.raises(UsageError, match=r"edit\(\) names amount"):
        await agent.resume(waits.token, edit({"amount": 5}))
    assert (await agent.resume(waits.token, edit({"cents": 5}))).output == "done"
    assert (shop.paid, shop.told) == ([5], ["paid 5"])


async def test_what_is_done_elsewhere_is_told_to_the_model() -> None:
    shop = Shop(call("ask_elsewhere", question="how many?"), OVERLOADED, "done")
    agent = shop.agent()
    waits = await suspended(agent.run("go"))
    assert (await agent.resume(waits.token, happened({"bees": 3}))).output == "done"
    assert shop.told == [{"bees": 3}]


async def test_a_call_that_is_made_elsewhere_waits_for_its_result_and_no_approval() -> None:
    shop = Shop(call("ask_elsewhere", question="how many?"), "done")
    agent = shop.agent()
    waits = await suspended(agent.run("go"))
    assert "approve" not in answers_to(shop.events)
    for answer in (approve(), rerun(), edit({"question": "how much?"})):
        with pytest.raises(UsageError, match="the call is made elsewhere"):
            await agent.resume(waits.token, answer)
    assert (await agent.resume(waits.token, happened(3))).output == "done"
    assert shop.told == [3]


async def test_calls_of_one_turn_are_one_question_and_each_has_its_answer() -> None:
    shop = Shop(
        [call("pay", cents=1), call("pay", cents=2), call("ask_elsewhere", question="?")], "done"
    )
    agent = shop.agent()
    waits = await suspended(agent.run("go"))
    (asked,) = [event for event in shop.events if isinstance(event, ApprovalAsked)]
    answers: dict[str, Any] = {
        key: 17 if tool == "ask_elsewhere" else given["cents"] == 1
        for key, (tool, given) in asked.payload["arguments"].items()
    }
    assert (await agent.resume(waits.token, happened(answers))).output == "done"
    assert shop.paid == [1]
    assert shop.told == ["paid 1", "The tool call was denied.", 17]


async def test_each_question_is_another() -> None:
    shop = Shop(call("pay", cents=1), call("pay", cents=1), "done")
    agent = shop.agent()
    first = await suspended(agent.run("go"))
    second = await suspended(agent.resume(first.token, approve()))
    assert shop.paid == [1]
    assert (await agent.resume(second.token, approve())).output == "done"
    assert shop.paid == [1, 1]


async def test_another_process_goes_on_with_the_answer(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    shop = Shop(call("pay", cents=300), "done")
    agent = shop.agent(store=store)
    waits = await suspended(agent.run("go"))
    await agent.store.close()
    second = shop.agent(store=store)
    result = await second.resume(waits.token, approve())
    assert result.output == "done"
    assert shop.paid == [300]
    assert [message.kind for message in result.all_messages()] == ["request", "response"] * 2
    ended = shop.events[-1]
    assert isinstance(ended, RunFinished)
    assert ended.result == {"output": "done"}, "the journal keeps more than the output"
    await second.store.close()


async def test_a_capability_of_the_agents_own_answers_first() -> None:
    own = HandleDeferredToolCalls(
        handler=lambda ctx, requests: requests.build_results(approve_all=True)
    )
    shop = Shop(call("pay", cents=300), "done", capabilities=[own])
    assert (await shop.agent().run("go")).output == "done"
    assert shop.paid == [300]


@table(
    ("turns", "answer", "told"),
    [
        (
            call("pay", cents=1),
            happened(3.5),
            "answered with approve(), reject(reason), or happened()",
        ),
        ([call("pay", cents=1), call("pay", cents=2)], happened(1), "2 calls wait: answer with"),
    ],
)
async def test_an_answer_that_does_not_fit_goes_back_to_the_person_and_nothing_is_done(
    turns: Any, answer: Any, told: str
) -> None:
    shop = Shop(turns, "done")
    agent = shop.agent()
    waits = await suspended(agent.run("go"))
    for _ in range(2):
        waits = await suspended(agent.resume(waits.token, answer))
        assert told in waits.question
        assert shop.paid == []
    assert (await agent.resume(waits.token, approve())).output == "done"
    assert len(shop.paid) == len(turns if isinstance(turns, list) else [turns])
