"""What a result is checked against, what is refused, and what the next attempt is told."""

from __future__ import annotations

import enum
import pickle
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import anyio
import pytest
from pydantic import BaseModel, Field
from support import always, escalation_of
from tables import table
from typing_extensions import TypedDict

import triage
from triage import (
    Agent,
    Checks,
    Diagnosis,
    Escalate,
    FailureContext,
    FailurePolicy,
    FailureType,
    Limits,
    Replan,
    Run,
    Step,
    TriageError,
    TriageEscalationError,
    UsageError,
)
from triage.classifiers import Grounds, objection
from triage.core import Cause, TriageFatalError
from triage.engine import Durability

pytestmark = pytest.mark.anyio


SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}


CLOSED = {**SCHEMA, "required": ["q"], "additionalProperties": False}


class Ticket(BaseModel):
    id: int
    seat: str | None = None


@dataclass
class Point:
    x: int
    y: int


class Row(TypedDict):
    name: str


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class NamedTool:
    name: str


@dataclass(frozen=True)
class DescribedTool:
    name: str
    inputSchema: dict[str, Any]  # noqa: N815 - as the protocol writes it


def search(q: str) -> str:
    return q


def any_(value: Any) -> Any:
    """The value as code gives it that no type checker has seen."""
    return value


def fine(result: object) -> bool:
    return result is not None


@table(
    ("tools", "manifest"),
    [
        (None, {}),
        ([], {}),
        (["search", "book"], {"search": None, "book": None}),
        ({"search": SCHEMA, "book": None}, {"search": SCHEMA, "book": None}),
        ({"search": search}, {"search": CLOSED}),
        ([search, NamedTool("book")], {"search": CLOSED, "book": None}),
        ([DescribedTool("book", SCHEMA)], {"book": SCHEMA}),
        (
            [{"type": "function", "function": {"name": "search", "parameters": SCHEMA}}],
            {"search": SCHEMA},
        ),
        ([{"type": "function", "function": {"name": "search"}}], {"search": None}),
        ([{"type": "function", "name": "search", "parameters": SCHEMA}], {"search": SCHEMA}),
        ([{"name": "search", "input_schema": SCHEMA}], {"search": SCHEMA}),
        ([{"name": "search", "inputSchema": SCHEMA}], {"search": SCHEMA}),
        (iter(["search", "book"]), {"search": None, "book": None}),
    ],
)
def test_tools_are_taken_in_the_forms_people_have_them(tools: Any, manifest: Any) -> None:
    assert Checks(tools=tools).manifest == manifest


def take(_: str) -> str:
    return ""


take.__name__ = "<lambda>"


def test_a_list_that_changes_later_does_not_change_the_manifest() -> None:
    tools = ["search"]
    checks = Checks(tools=tools)
    tools.append("book")
    assert list(checks.manifest) == ["search"]


def test_one_verifier_or_several_are_a_tuple() -> None:
    assert Checks().verifiers == ()
    assert Checks(verify=fine).verifiers == (fine,)
    assert Checks(verify=[fine, fine]).verifiers == (fine, fine)


def given(result: Any, result_type: Any) -> Any:
    """What a run gives whose function gives this."""

    async def gives(task: str) -> Any:
        return result

    return Agent(gives, FailurePolicy(default=Escalate()), result_type=result_type).run_sync("t")


@table(
    ("result_type", "result", "validated"),
    [
        (int, 5, 5),
        (int, "5", 5),
        (Ticket, Ticket(id=1), Ticket(id=1)),
        (Ticket, {"id": "1"}, Ticket(id=1)),
        (Ticket, '{"id": 1}', Ticket(id=1)),
        (Ticket, b' {"id": 1}\n', Ticket(id=1)),
        (list[Ticket], '[{"id": 1}]', [Ticket(id=1)]),
        (list[int], (1, "2"), [1, 2]),
        (Point, '{"x": 1, "y": 2}', Point(1, 2)),
        (Row, '{"name": "a"}', {"name": "a"}),
        (Ticket | None, None, None),
        (Ticket | None, "null", None),
        (str, '{"id": 1}', '{"id": 1}'),
        (str | None, "null", "null"),
        (Literal["yes", "no"], "yes", "yes"),
        (Colour, "red", Colour.RED),
        (Annotated[int, Field(gt=0)], "3", 3),
        (dict[str, int] | str, '{"a": 1}', '{"a": 1}'),
    ],
)
def test_a_result_is_converted_to_its_type(result_type: Any, result: Any, validated: Any) -> None:
    found = given(result, result_type)
    assert found == validated
    assert type(found) is type(validated)


@table(
    ("result_type", "result", "words"),
    [
        (int, "five", "int_parsing"),
        (Ticket, {"seat": "1A"}, "missing"),
        (Ticket, '{"seat": "1A"}', "missing"),
        (Ticket, "I could not find it", "model_type"),
        (str, 5, "string_type"),
        (Ticket, None, "model_type"),
    ],
)
def test_a_result_of_another_kind_says_what_it_lacks(
    result_type: Any, result: Any, words: str
) -> None:
    with pytest.raises(TriageEscalationError) as caught:
        given(result, result_type)
    assert caught.value.diagnosis is not None
    assert caught.value.diagnosis.failure_type is FailureType.SCHEMA_MISMATCH
    assert words in str(caught.value)


def test_a_type_that_names_an_unknown_class_is_a_mistake_of_the_caller() -> None:
    checks = Checks(result_type=list["Nowhere"])  # type: ignore[name-defined] # noqa: F821 - on purpose
    with pytest.raises(UsageError, match=r"Checks\.result_type must be a type that pydantic"):
        given([], checks.result_type)


def test_a_class_that_is_defined_later_is_found() -> None:
    class Trip(BaseModel):
        leg: Leg

    checks = Checks(result_type=Trip)

    class Leg(BaseModel):
        n: int

    Trip.model_rebuild()
    assert given({"leg": {"n": 1}}, checks.result_type) == Trip(leg=Leg(n=1))


def test_the_order_of_a_union_is_kept() -> None:
    class A(BaseModel):
        n: int

    class B(BaseModel):
        n: int

    assert type(given({"n": 1}, A | B)) is A
    assert type(given({"n": 1}, B | A)) is B


@table(
    ("verdict", "reason"),
    [
        (True, None),
        (None, None),
        ("", None),
        (False, "fine answered False"),
        ("no seat", "no seat"),
        (0, "fine answered with int, not with True, False, None or a reason"),
        ([], "fine answered with list, not with True, False, None or a reason"),
    ],
)
def test_a_verdict_is_good_or_gives_the_reason(verdict: Any, reason: str | None) -> None:
    assert objection(fine, verdict) == reason


def test_kinds_may_be_any_collection() -> None:
    assert Grounds(kinds=any_(["number", "id"])).kinds == ("number", "id")
    assert Checks(grounding=True).grounds == Grounds()
    assert Checks().grounds is None


def test_a_manifest_of_functions_can_be_pickled() -> None:
    manifest = Checks(tools=[search]).manifest
    assert pickle.loads(pickle.dumps(manifest)) == manifest


def test_the_safe_ways_of_keeping_a_run_are_the_default() -> None:
    default = Durability()
    assert (default.mode, default.on_in_doubt, default.on_store_error) == ("step", "ask", "fail")
    assert (default.lease_s, default.redact) == (30.0, True)


# Runs ---------------------------------------------------------------------------------------------
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
        checks, "It costs $999.99 with ticket ZZ90210.", "It costs $120.50."
    )
    assert result == "It costs $120.50."
    assert hints[0] is None
    assert hints[1] is not None
    for part in ('"$999.99"', '"ZZ90210"', "get_price"):
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


@table(
    ("grounding", "answer"),
    [
        (False, "It costs $999.99."),
        (True, "It costs $120.50, with code QX4711."),
        (Grounds(at_least=2), "It costs $999.99."),
        (Grounds(kinds=("email",)), "It costs $999.99."),
        (True, "Two tickets: 2 * 120.50 = 251"),
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


@table(
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
class Booking(BaseModel):
    city: str
    cents: int


async def test_a_result_of_the_wrong_type_is_a_failure_whose_hint_names_the_field() -> None:
    hints: list[str | None] = []

    async def learns(task: str, *, _triage_hint: str | None) -> dict[str, Any]:
        hints.append(_triage_hint)
        if _triage_hint and "cents" in _triage_hint and "int" in _triage_hint:
            return {"city": "Rome", "cents": 1}
        return {"city": "Rome", "cents": "a lot"}

    assert await Agent(learns, result_type=Booking).run("t") == Booking(city="Rome", cents=1)
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
    caught = await escalation_of(agent.run("t"))
    assert caught.diagnosis is not None
    found = [evidence.rule for evidence in caught.diagnosis.evidence]
    assert found == ["limit:attempts", "check:verify"]
    assert "want two" in str(caught.diagnosis.hint)
    assert "attempts" in str(caught)


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


async def test_an_error_gives_its_diagnosis_once() -> None:
    async def full(task: str) -> int:
        raise MemoryError("no room for 8 GB")

    with pytest.raises(TriageFatalError) as raised:
        await Agent(full).run("t")
    assert str(raised.value).count("out_of_memory") == 1


def context_of(error: TriageError) -> FailureContext:
    assert error.context is not None
    return error.context


# Grounding --------------------------------------------------------------------------------------------
async def grounded(agent: Any) -> FailureType | None:
    try:
        await Agent(agent, always(Escalate("no")), checks=Checks(grounding=True)).run(
            "What do we owe?"
        )
    except TriageEscalationError as error:
        return context_of(error).diagnosis.failure_type
    return None


async def test_the_digest_of_a_call_is_no_source() -> None:
    @triage.tool(effect="read")
    async def look(name: str) -> str:
        return "nothing found"

    events: list[Any] = []

    async def agent(task: str) -> str:
        await look("acme")
        keys = [(step.metadata or {})["call"] for step in triage.current_run().trajectory.steps]
        events.extend(keys)
        return f"The invoice is {keys[0].split('#')[0].split('@')[-1]}."

    assert await grounded(agent) is FailureType.HALLUCINATED_STATE, events


async def test_what_the_model_said_in_a_step_is_no_source() -> None:
    async def agent(task: str, *, record_step: Any) -> str:
        record_step(
            Step(
                action="look",
                tool_called="search",
                tool_input={"q": "acme"},
                tool_output="nothing found",
            )
        )
        record_step(Step(action="model", llm_output="Invoice INV-77123 is 4,711.13 dollars."))
        record_step(
            Step(action="model", metadata={"said": "Invoice INV-77123 is 4,711.13 dollars."})
        )
        return "Invoice INV-77123 is 4,711.13 dollars."

    assert await grounded(agent) is FailureType.HALLUCINATED_STATE
