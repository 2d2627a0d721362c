"""What the recommended policy does about wrong answers: mended, asked again, handed over."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from support import FakeEnvironment, Says
from tables import table

import triage
from triage import Agent, Checks, Diagnosis, FailurePolicy, FailureType, Step, TriageEscalationError
from triage.core import Evidence

pytestmark = pytest.mark.anyio


class Trip(BaseModel):
    city: str
    price: int


async def given(text: Any, result_type: Any = Trip) -> Any:
    """The result of an agent that says this once, and then that it was asked again."""
    said = [text]

    async def answers(task: str) -> Any:
        return said.pop() if said else pytest.fail("asked again")

    policy = FailurePolicy.recommended()
    return await Agent(answers, policy, result_type=result_type, environment=FakeEnvironment()).run(
        "x"
    )


RIGHT = '{"city": "Rome", "price": 120}'
MENDED = [
    f"```json\n{RIGHT}\n```",
    f"```\n{RIGHT}\n```",
    f"Here is the trip:\n\n```json\n{RIGHT}\n```\nEnjoy!",
    f"Sure! {RIGHT} Let me know.",
    f"~~~json\n{RIGHT}\n~~~",
    f"```JSON\r\n{RIGHT}\r\n```",
    f"The trip (see [the list]) is {RIGHT}",
]


@table("text", MENDED)
async def test_one_json_value_among_prose_is_mended_without_asking(text: str) -> None:
    assert await given(text) == Trip(city="Rome", price=120)


LEFT = [
    f"{RIGHT} or {RIGHT}",
    f"```json\n{RIGHT}\n```\n```json\n{RIGHT}\n```",
    'Here: {"city": "Rome", "city": "Oslo", "price": 120}',
    'Here: {"city": "Rome", "price": "120"}',
    'Here: {"city": "Rome", "price": 120',
    'Here: [{"city": "Rome", "price": 120}',
    "Here: {'city': 'Rome', 'price': 120}",
    'Here: {"city": "Rome", "price": 120,}',
    'Here: {"city": "Rome", "price": 120.5}',
    'Here: {"city": "Rome"}',
    'The city is "Rome" and the price 120',
    "",
]


@table("text", LEFT)
async def test_nothing_looser_is_mended(text: str) -> None:
    said = [text, RIGHT]
    asked: list[str | None] = []

    async def answers(task: str, *, _triage_hint: str | None = None) -> str:
        asked.append(_triage_hint)
        return said[len(asked) - 1]

    agent = Agent(answers, result_type=Trip, environment=FakeEnvironment())
    assert await agent.run("x") == Trip(city="Rome", price=120)
    assert len(asked) == 2
    assert asked[1]


async def test_text_is_not_mended_where_text_is_wanted_or_nothing_is_declared() -> None:
    fenced = f"```json\n{RIGHT}\n```"
    assert await given(fenced, str) == fenced
    assert await given(fenced, None) == fenced
    assert await given("```json\n[1, 2]\n```", list[int]) == [1, 2]


async def test_what_does_not_fit_is_told_field_by_field() -> None:
    said = ['{"city": "Rome", "prise": 120}', RIGHT]
    hints: list[str | None] = []

    async def answers(task: str, *, _triage_hint: str | None = None) -> str:
        hints.append(_triage_hint)
        return said.pop(0)

    await Agent(answers, result_type=Trip, environment=FakeEnvironment()).run("x")
    hint = hints[1]
    assert hint is not None
    start = hint.index("[{")
    found, _ = json.JSONDecoder().raw_decode(hint[start:])
    assert found == [
        {"field": "price", "expected": "required"},
        {"field": "prise", "got": 120, "did_you_mean": "price"},
    ]


def raising(kind: type[Exception], *args: Any) -> tuple[Agent[str], list[int]]:
    calls: list[int] = []

    async def fails(task: str) -> str:
        calls.append(1)
        raise kind(*args)

    return Agent(fails, environment=FakeEnvironment()), calls


@table(
    "error",
    [NameError("name 'serch' is not defined"), ImportError("cannot import name 'x'"),
     ModuleNotFoundError("No module named 'y'")],
)  # fmt: skip
async def test_a_defect_of_the_code_escalates_at_once(error: Exception) -> None:
    agent, calls = raising(type(error), *error.args)
    with pytest.raises(TriageEscalationError):
        await agent.run("x")
    assert len(calls) == 1


@table(
    "error",
    [TypeError("'NoneType' object is not subscriptable"),
     AttributeError("'NoneType' object has no attribute 'strip'"),
     UnboundLocalError("cannot access local variable 'x'"), KeyError("city"), IndexError("0"),
     AssertionError(), ZeroDivisionError("division by zero"), RuntimeError("odd"),
     LookupError("Rome"), ValueError("bad")],
)  # fmt: skip
async def test_what_a_bad_answer_may_have_caused_is_tried_twice_more(error: Exception) -> None:
    agent, calls = raising(type(error), *error.args)
    with pytest.raises(TriageEscalationError):
        await agent.run("x")
    assert len(calls) >= 3


async def test_an_attribute_error_after_a_bad_answer_is_saved() -> None:
    answers = [None, "Rome"]

    async def works(task: str) -> str:
        said: Any = answers.pop(0)
        return str(said.strip())

    assert await Agent(works, environment=FakeEnvironment()).run("x") == "Rome"


async def test_a_name_that_the_agents_own_table_does_not_have_is_a_wrong_tool() -> None:
    wanted = ["serch", "search"]
    hints: list[str | None] = []
    tools: dict[str, Callable[[str], str]] = {
        "search": lambda q: f"rows for {q}",
        "book": lambda q: "booked",
    }

    async def works(task: str, *, record_step: Any, _triage_hint: str | None = None) -> str:
        hints.append(_triage_hint)
        name = wanted.pop(0)
        record_step(
            Step(
                action="model",
                tool_output={"tool_calls": [{"function": {"name": name, "arguments": "{}"}}]},
            )
        )
        return tools[name](task)

    checks = Checks(tools=["search", "book"])
    agent = Agent(works, checks=checks, environment=FakeEnvironment())
    assert await agent.run("x") == "rows for x"
    hint = hints[1]
    assert hint is not None
    assert "'serch'" in hint or '"serch"' in hint
    assert "search" in hint
    assert "book" in hint


class Desk:
    """An agent whose tools are known to nobody but itself."""

    def __init__(self, *asked: Any) -> None:
        self.tools = {"search": self.search, "book": self.search}
        self.asked = list(asked)
        self.hints: list[str | None] = []

    def search(self) -> str:
        return "rows"

    async def work(self, task: str, *, record_step: Any, _triage_hint: str | None = None) -> str:
        self.hints.append(_triage_hint)
        name, answer = self.asked.pop(0)
        record_step(Step(action="model", **answer))
        return self.tools[name]()


RIGHT_NAME = ("search", {"llm_output": "search"})


@table(
    "answer",
    [
        {"tool_output": {"content": [{"type": "tool_use", "name": "serch", "input": {}}]}},
        {"tool_output": [{"type": "function_call", "name": "serch", "arguments": "{}"}]},
        {"llm_output": '{"tool": "serch", "args": {}}'},
        {"llm_output": 'I will search. ```json\n{"name": "serch", "input": {}}\n```'},
        {"llm_output": "Thought: look\nAction: serch\nAction Input: x"},
    ],
)
async def test_the_names_of_an_undeclared_table_are_told(answer: Any) -> None:
    desk = Desk(("serch", answer), RIGHT_NAME)
    assert await Agent(desk.work, environment=FakeEnvironment()).run("x") == "rows"
    assert desk.hints[1] is not None
    assert (
        'There is no tool "serch". The tools are: search (the closest name), book.' in desk.hints[1]
    )


async def test_a_missing_key_of_data_is_no_wrong_tool() -> None:
    async def works(task: str, *, record_step: Any) -> str:
        record_step(Step(action="model", llm_output='{"town": "Rome"}'))
        return {"town": "Rome"}["city"]

    with pytest.raises(TriageEscalationError) as caught:
        await Agent(works, environment=FakeEnvironment()).run("x")
    assert caught.value.diagnosis is not None
    assert caught.value.diagnosis.failure_type is not FailureType.WRONG_TOOL_CALLED


@table(
    "kind",
    [FailureType.HALLUCINATED_STATE, FailureType.CONSTRAINT_IGNORED, FailureType.GOAL_DRIFT,
     FailureType.PLAN_INCOMPLETE],
)  # fmt: skip
async def test_the_next_attempt_is_told_the_evidence(kind: FailureType) -> None:
    told: list[triage.Run] = []
    hints: list[str | None] = []
    found = Diagnosis(
        kind, evidence=(Evidence("seen", "invoice 4711 stands nowhere", 0),), hint="Look it up."
    )

    async def works(task: str, *, run: triage.Run, _triage_hint: str | None = None) -> str:
        told.append(run)
        hints.append(_triage_hint)
        run.record_step(Step(action="model", llm_output="invoice 4711"))
        if len(hints) == 1:
            raise RuntimeError("wrong")
        return "right"

    agent = Agent(works, classifier=Says(found), environment=FakeEnvironment())
    assert await agent.run("x") == "right"
    assert "Look it up." in (hints[1] or "")
    assert "invoice 4711 stands nowhere" in (hints[1] or "")
    assert isinstance(told[1].history[-1].action, triage.Retry)


async def test_a_loop_is_told_what_was_repeated_and_what_else_there_is() -> None:
    hints: list[str | None] = []

    @triage.tool(effect="read")
    async def search(q: str) -> str:
        return "nothing"

    async def works(task: str, *, _triage_hint: str | None = None) -> str:
        hints.append(_triage_hint)
        if _triage_hint is not None:
            return "done"
        for _ in range(30):
            await search("flights")
        return "never"

    checks = Checks(tools=["search", "ask_airline", "book"])
    agent = Agent(works, checks=checks, environment=FakeEnvironment())
    assert await agent.run("x") == "done"
    hint = hints[1] or ""
    assert 'search({"q": "flights"})' in hint
    assert "ask_airline" in hint
    assert "book" in hint
