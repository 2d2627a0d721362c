"""Runs whose result is checked: what is refused, what the next attempt is told, what is let through."""

from __future__ import annotations

import re
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from triage import (
    Agent,
    Cause,
    Diagnosis,
    Escalate,
    FailureContext,
    FailurePolicy,
    FailureType,
    Limits,
    Replan,
    Run,
    Step,
    TriageEscalationError,
    TriageFatalError,
)
from triage.checks import Checks
from triage.grounds import Grounds

pytestmark = pytest.mark.anyio


class Answers:
    """An agent with one answer an attempt, after it has looked up a price."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.hints: list[str | None] = []

    async def __call__(
        self, task: str, *, record_step: Any, _triage_hint: str | None = None
    ) -> Any:
        self.hints.append(_triage_hint)
        record_step(
            Step(tool_called="get_price", tool_input={"city": "Rome"}, tool_output="$120.50")
        )
        return self.answers.pop(0)


async def history(checks: Checks, *answers: Any) -> tuple[Any, list[str | None]]:
    agent = Answers(*answers)
    run = Agent(agent, FailurePolicy(default=Replan()), checks=checks)
    return await run.run("What does a flight to Rome cost, code QX4711?"), agent.hints


async def test_an_answer_without_a_source_is_a_failure_that_names_it() -> None:
    checks = Checks(grounding=True, tools=["get_price"])
    result, hints = await history(
        checks, "It costs $999.99 with ticket ZZ90210. I have sent the ticket.", "It costs $120.50."
    )
    assert result == "It costs $120.50."
    assert hints[0] is None
    assert hints[1] is not None
    for part in ('"$999.99"', '"ZZ90210"', "get_price", '"I have sent the ticket"', "Do it first"):
        assert part in hints[1]


async def test_the_diagnosis_of_an_invented_answer_holds_each_fact_as_evidence() -> None:
    seen: list[Diagnosis] = []

    def note(context: FailureContext) -> Escalate:
        seen.append(context.diagnosis)
        return Escalate("enough")

    agent = Agent(
        Answers({"price": 999.99}), FailurePolicy(default=note), checks=Checks(grounding=True)
    )
    with pytest.raises(TriageEscalationError):
        await agent.run("?")
    assert (seen[0].failure_type, seen[0].cause) == (
        FailureType.HALLUCINATED_STATE,
        Cause.UNGROUNDED,
    )
    assert [(e.rule, e.text, e.step) for e in seen[0].evidence] == [
        ("check:grounding", 'number "999.99" in the result has no source', None)
    ]


@pytest.mark.parametrize(
    ("grounding", "answer"),
    [
        (False, "It costs $999.99."),
        (True, "It costs $120.50, with code QX4711."),
        (Grounds(at_least=2), "It costs $999.99."),
        (Grounds(kinds=("email",)), "It costs $999.99."),
        (Grounds(sources={"rules": ["a fee of $999.99"]}), "It costs $999.99."),
        (True, None),
    ],
)
async def test_an_answer_with_sources_or_with_too_few_facts_is_let_through(
    grounding: Any, answer: Any
) -> None:
    result, _ = await history(Checks(grounding=grounding), answer)
    assert result == answer


async def test_what_an_earlier_attempt_has_found_is_a_source_and_a_hint_is_none() -> None:
    found = iter(["$77.70", "nothing"])
    answers = iter(["It costs $31.30.", "It costs $77.70."])

    async def agent(task: str, *, record_step: Any) -> str:
        record_step(Step(tool_called="get_price", tool_output=next(found)))
        return next(answers)

    run = Agent(agent, FailurePolicy(default=Replan()), checks=Checks(grounding=True))
    assert await run.run("?") == "It costs $77.70."


@pytest.mark.parametrize(
    ("constraint", "hint"),
    [
        ("Secret", "not contain 'Secret'"),
        (re.compile("s.cret"), "not match 's.cret'"),
        (lambda text: "too long" if len(text) > 5 else None, "satisfy 'too long'"),
    ],
)
async def test_a_broken_constraint_is_a_failure_with_a_hint(constraint: Any, hint: str) -> None:
    result, hints = await history(Checks(constraints=(constraint,)), "a secret", "fine")
    assert result == "fine"
    assert hints[1] is not None
    assert hint in hints[1]


async def test_a_constraint_that_raises_lets_the_result_through() -> None:
    def fails(text: str) -> bool:
        raise ValueError(text)

    result, _ = await history(Checks(constraints=(fails,)), "fine")
    assert result == "fine"


async def test_a_long_result_is_grounded_without_blocking_the_loop() -> None:
    beats: list[float] = []
    rows = "".join(f"row {n}: {n * 7}.25 in total; " for n in range(12_000))

    async def agent(task: str, *, record_step: Any) -> str:
        for _ in range(4):
            record_step(Step(tool_called="read_rows", tool_output=rows))
        return rows

    async def beat() -> None:
        while True:
            beats.append(anyio.current_time())
            await anyio.sleep(0.001)

    async with anyio.create_task_group() as group:
        group.start_soon(beat)
        await Agent(agent, checks=Checks(grounding=True)).run("?")
        group.cancel_scope.cancel()
    assert len(beats) > 10


# What an agent is made with to check its results ----------------------------------------------------


class Ticket(BaseModel):
    city: str
    cents: int


async def test_a_result_type_gives_the_validated_object() -> None:
    async def answers(task: str) -> str:
        return '{"city": "Rome", "cents": "1250"}'

    ticket = await Agent(answers, result_type=Ticket).run("t")
    assert ticket == Ticket(city="Rome", cents=1250)


async def test_a_result_of_the_wrong_type_is_a_failure_whose_hint_names_the_field() -> None:
    hints: list[str | None] = []

    async def learns(task: str, *, _triage_hint: str | None) -> dict[str, Any]:
        hints.append(_triage_hint)
        if _triage_hint and "cents" in _triage_hint and "int" in _triage_hint:
            return {"city": "Rome", "cents": 1}
        return {"city": "Rome", "cents": "a lot"}

    assert await Agent(learns, result_type=Ticket).run("t") == Ticket(city="Rome", cents=1)
    assert len(hints) == 2


async def test_verify_refuses_a_result_and_its_reason_is_told() -> None:
    hints: list[str | None] = []

    async def learns(task: str, *, _triage_hint: str | None) -> int:
        hints.append(_triage_hint)
        return len(hints)

    def even(result: int) -> str | None:
        return None if result % 2 == 0 else "the number must be even"

    assert await Agent(learns, verify=even).run("t") == 2
    assert "the number must be even" in str(hints[1])


async def test_an_async_verify_that_asserts_is_a_failed_check() -> None:
    async def answers(task: str) -> int:
        return 1

    async def verify(result: int) -> None:
        assert result == 2, "want two"

    agent = Agent(answers, verify=verify, limits=Limits(attempts=2))
    with pytest.raises(TriageEscalationError) as caught:
        await agent.run("t")
    assert caught.value.diagnosis is not None
    found = [evidence.rule for evidence in caught.value.diagnosis.evidence]
    assert found == ["limit:attempts", "check:verify"]
    assert "want two" in str(caught.value.diagnosis.hint)
    assert "attempts" in str(caught.value)


async def test_open_subgoals_make_a_success_incomplete() -> None:
    async def forgets(task: str, *, run: Run, _triage_subgoal: str | None) -> str:
        if _triage_subgoal is None:
            run.subgoals(["book", "pay"])
            run.complete("book")
        else:
            assert _triage_subgoal == "pay"
            run.complete("pay")
        return "done"

    assert await Agent(forgets).run("t") == "done"


async def test_a_forbidden_text_in_the_result_is_a_failure() -> None:
    checks = Checks(constraints=("secret plan",))

    async def leaks(task: str, *, _triage_hint: str | None) -> dict[str, str]:
        return {"text": "fine"} if _triage_hint else {"text": "the Secret Plan is…"}

    assert await Agent(leaks, checks=checks).run("t") == {"text": "fine"}


async def test_an_error_says_why_a_result_was_refused() -> None:
    async def odd(task: str) -> int:
        return 3

    agent = Agent(odd, FailurePolicy(default=Escalate()), verify=lambda _found: "it is odd")
    with pytest.raises(TriageEscalationError, match="it is odd"):
        await agent.run("t")


async def test_an_error_gives_its_diagnosis_once() -> None:
    async def full(task: str) -> int:
        raise MemoryError("no room for 8 GB")

    with pytest.raises(TriageFatalError) as raised:
        await Agent(full).run("t")
    assert str(raised.value).count("out_of_memory") == 1
