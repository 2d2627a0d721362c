"""Why an own loop failed is what its model had answered, whatever the loop raised of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import openai
import pytest
from support import on_both_backends
from tables import covering, table

from triage import Agent, FailurePolicy, Step, TriageEscalationError
from triage.core import ActionChosen, AttemptFailed, Cause, Event, FailureType, TriageError
from triage.core.messages.reading import max_tokens_of, with_limit
from triage.strategies import ask_again
from triage.testing import VirtualTime
from triage.testing.adapter_contract import (
    Asks,
    Call,
    Fails,
    Rule,
    Says,
    Script,
    World,
    asks,
    benches_in,
    call,
    play,
    provider,
    says,
)

from .own_loops import BOTH, CLIENTS, Called, by_table, own_loop

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]
anyio_backend = on_both_backends()
DONE = '{"answer": "done"}'


class Case(NamedTuple):
    """A bad answer, what it is told as, and the words that the next request tells."""

    bad: Says | Asks
    failure: FailureType
    cause: str
    told: tuple[str, ...]
    charges: bool = False


CUT = FailureType.CONTEXT_OVERFLOW, "output_cut", ("cut off at the token limit",)
MISFIT = FailureType.SCHEMA_MISMATCH, "invalid_arguments"
NO_TOOL = FailureType.WRONG_TOOL_CALLED, "unknown_tool"
CASES = {
    "cut in a call": Case(asks(Call("search", '{"query": "x'), ended="length"), *CUT),
    "cut behind a call": Case(
        asks(Call("charge", '{"cents": 3'), ended="length"), *CUT, charges=True
    ),
    "cut in JSON": Case(says('{"answer": "do', ended="length"), *CUT),
    "wrong field": Case(asks(call("search", q="x")), *MISFIT, ("query", "string")),
    "wrong field of a change": Case(
        asks(call("charge", euros=3)), *MISFIT, ("cents", "integer"), charges=True
    ),
    "wrong type": Case(asks(call("search", query=["x"])), *MISFIT, ("query", "string")),
    "wrong type of a change": Case(
        asks(call("charge", cents="many")), *MISFIT, ("cents", "integer"), charges=True
    ),
    "unknown tool": Case(
        asks(call("look_up", query="x")), *NO_TOOL, ("look_up", "search, charge, send")
    ),
    "near name": Case(
        asks(call("serach", query="x")), *NO_TOOL, ("serach", "search (the closest name)")
    ),
}


# Ways in which people write the body of the loop ----------------------------------------------------


def by_field(tools: dict[str, Any], one: Called) -> Any:
    field = {"search": "query", "charge": "cents"}
    return tools[one.name](one.arguments[field[one.name]])


def by_branches(tools: dict[str, Any], one: Called) -> Any:
    if one.name == "search":
        return tools["search"](one.arguments["query"])
    if one.name == "charge":
        return tools["charge"](**one.arguments)
    raise ValueError(f"Unknown tool: {one.name}")


def by_attribute(tools: dict[str, Any], one: Called) -> Any:
    return getattr(Desk(tools), one.name)(**one.arguments)


class Desk:
    def __init__(self, tools: dict[str, Any]) -> None:
        self.search, self.charge = tools["search"], tools["charge"]


WAYS = (by_table, by_field, by_branches, by_attribute)


ROWS = covering(
    CLIENTS,
    BOTH,
    (False, True),
    CASES,
    WAYS,
    together=2,
    where=lambda client, backend, *_: backend in CLIENTS[client].backends,
)


@pytest.mark.parametrize(("client", "anyio_backend"), sorted({row[:2] for row in ROWS}))
async def test_the_answer_is_the_cause_of_what_an_own_loop_raises(
    client: str, anyio_backend: str
) -> None:
    failed: list[str] = []
    for name, backend, stream, case, way in ROWS:
        if (name, backend) == (client, anyio_backend):
            try:
                await check(name, case, way, stream=stream)
            except AssertionError as error:
                failed.append(f"{case}, {way.__name__}, {stream=}: {str(error).splitlines()[0]}")
    assert not failed, "\n".join(failed)


def answer_in(text: str) -> str:
    return str(json.loads(text)["answer"])


async def check(client: str, name: str, way: Callable[..., Any], *, stream: bool) -> None:
    case = CASES[name]
    tool = "charge" if case.charges else "search"
    wanted = asks(call("charge", cents=300)) if case.charges else asks(call("search", query="x"))
    result = "receipt 5" if case.charges else "found 17"
    world = World(Script((Rule(says(DONE), result), Rule(wanted)), faults={1: case.bad}))
    tools: dict[str, Any] = {one.__name__: one for one in world.functions()}
    tools["search"] = stripped(tools["search"])
    tools["charge"] = world.tools()[1]
    events: list[Event] = []
    async with (
        provider(world) as url,
        own_loop(client, url, tools, stream=stream, read=answer_in, call=way) as loop,
    ):
        agent = Agent(loop, observers=[events.append], environment=VirtualTime())
        try:
            given: Any = await agent.run("Look.")
        except TriageError as error:
            given = error
    failures = [one for one in events if isinstance(one, AttemptFailed)]
    seen = [f"{one.diagnosis.failure_type}: {one.diagnosis.cause}" for one in failures]
    raised = [one.error and f"{one.error.type_name}: {one.error.message}"[:100] for one in failures]
    assert seen == [f"{case.failure}: {case.cause}"], f"{seen} for {raised}: {given!r}"[:400]
    assert given == "done", f"the result is {given!r}"
    delays = [getattr(one.action, "delay", 0.0) for one in events if isinstance(one, ActionChosen)]
    assert delays == [0.0], f"waited {delays}"
    assert len(world.requests) == 3, f"{len(world.requests)} requests"
    hint = failures[0].diagnosis.hint or ""
    assert all(word in hint for word in case.told), f"the hint is {hint!r}"
    told = world.requests[1].text
    assert all(word in told for word in case.told), f"the model is told {told!r}"
    deeds = ["charge(300)"] if case.charges else ["search(x)"]
    assert world.deeds == deeds, f"{tool}: {world.deeds}"


def stripped(search: Any) -> Any:
    async def search_(query: str) -> str:
        return str(await search(query.strip()))

    return search_


# What an own loop records beside, and what may have happened -----------------------------------------


async def run_with(
    work: Any, world: World, **options: Any
) -> tuple[Any, list[AttemptFailed], list[str]]:
    """What an agent gives or raises, its failures, and what its tools did."""
    events: list[Event] = []
    async with provider(world) as url, openai_client(url) as client:

        async def agent(task: str, *, record_step: Any) -> Any:
            return await work(client, task, record_step)

        made = Agent(agent, observers=[events.append], environment=VirtualTime(), **options)
        try:
            given: Any = await made.run("Look.")
        except TriageError as error:
            given = error
    return given, [one for one in events if isinstance(one, AttemptFailed)], world.deeds


def openai_client(url: str) -> Any:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)


async def ask_once(client: Any, task: str) -> Any:
    messages = [{"role": "user", "content": task}]
    tools: Any = CLIENTS["openai"].talk.tools
    return (
        (await client.chat.completions.create(model="m", messages=messages, tools=tools))
        .choices[0]
        .message
    )


@table("words", ["half of i", ""])
@table(("ended", "wanted"), [("length", "output_cut"), ("content_filter", "content_filter")])
async def test_a_step_of_its_own_hides_no_ending(words: str, ended: str, wanted: str) -> None:
    async def work(client: Any, task: str, record_step: Any) -> str:
        said = (await ask_once(client, task)).content or ""
        record_step(Step(action="model", llm_output=said))
        return str(said)

    world = World(Script((Rule(says("done")),), faults={1: says(words, ended=ended)}))
    given, failures, _ = await run_with(work, world)
    assert [one.diagnosis.cause for one in failures] == [wanted]
    assert given == "done" or wanted == "content_filter"


async def test_a_refusal_explains_what_its_reader_raises() -> None:
    async def work(client: Any, task: str, record_step: Any) -> Any:
        return json.loads((await ask_once(client, task)).content or "")

    world = World(Script((Rule(says("No.", ended="content_filter")),)))
    given, failures, _ = await run_with(work, world)
    assert isinstance(given, TriageEscalationError)
    assert [one.diagnosis.cause for one in failures] == ["content_filter"]


async def test_a_bug_of_its_own_stays_one_behind_a_cut_answer() -> None:
    async def work(client: Any, task: str, record_step: Any) -> Any:
        await ask_once(client, task)
        raise NameError("name 'summarise' is not defined")

    world = World(Script((Rule(says("half of i", ended="length")),)))
    _, failures, _ = await run_with(work, world)
    assert [one.diagnosis.severity for one in failures] == ["critical"]


async def test_what_a_lenient_tool_may_have_done_is_not_done_again() -> None:
    """The schema wants a number, and the tool took a text; nobody has declared or recorded it."""
    paid: list[Any] = []

    def charge(cents: Any) -> str:
        paid.append(cents)
        return "receipt 5"

    async def work(client: Any, task: str, record_step: Any) -> str:
        said = await ask_once(client, task)
        for one in said.tool_calls:
            charge(**json.loads(one.function.arguments))
        raise ValueError("the reader of receipts is broken")

    world = World(Script((Rule(asks(call("charge", cents="300"))),)))
    given, _, _ = await run_with(work, world)
    assert isinstance(given, TriageEscalationError)
    assert "charge" in str(given)
    assert paid == ["300"]


# What cures an answer that was cut -------------------------------------------------------------------


class Limited(NamedTuple):
    """A way to ask with a token limit. field: of the request. ask: with a client and messages."""

    field: str
    ask: Any


async def by_chat(client: Any, messages: Any, **limit: Any) -> str:
    answer = await client.chat.completions.create(model="m", messages=messages, **limit)
    return str(answer.choices[0].message.content)


async def by_responses(client: Any, messages: Any, **limit: Any) -> str:
    return str((await client.responses.create(model="m", input=messages, **limit)).output_text)


LIMITS = [
    Limited("max_tokens", by_chat),
    Limited("max_completion_tokens", by_chat),
    Limited("max_output_tokens", by_responses),
]
HALF, WHOLE = '{"answer": "do', DONE


async def limited(
    limit: Limited, script: Script, tokens: int | None = 100
) -> tuple[Any, list[Any], list[str]]:
    """What an agent gives that reads JSON, the limits that its requests had, and what they said last."""

    async def work(client: Any, task: str, record_step: Any) -> Any:
        given = {} if tokens is None else {limit.field: tokens}
        text = await limit.ask(client, [{"role": "user", "content": task}], **given)
        return json.loads(text)["answer"]

    world = World(script)
    given, _, _ = await run_with(work, world)
    bodies = [one.body for one in world.requests]
    return given, [one.get(limit.field) for one in bodies], [one.text for one in world.requests]


@table("limit", LIMITS)
async def test_an_answer_that_was_cut_is_asked_for_with_twice_the_limit(
    limit: Limited, caplog: pytest.LogCaptureFixture
) -> None:
    cut = says(HALF, ended="length")
    script = Script((Rule(says(WHOLE)),), faults={1: cut, 2: cut})
    given, limits, told = await limited(limit, script)
    assert given == "done"
    assert limits == [100, 200, 400]
    assert "limit of 100. It is 200 now" in told[1]
    assert "limit of 200. It is 400 now" in told[2]
    assert "shorter" not in told[2]
    logged = [one.getMessage() for one in caplog.records if "cut off" in one.getMessage()]
    assert ["200 tokens now, not of 100" in one for one in logged] == [True, False]


async def test_a_request_without_a_limit_asks_for_a_shorter_answer() -> None:
    script = Script((Rule(says(WHOLE)),), faults={1: says(HALF, ended="length")})
    given, limits, told = await limited(LIMITS[0], script, None)
    assert given == "done"
    assert limits == [None, None]
    assert "shorter answer" in told[1]


async def test_a_limit_that_the_provider_does_not_take_is_set_back() -> None:
    too_high = Fails(400, "max_tokens is too large: 200. This model supports at most 150.")
    faults: Any = {1: says(HALF, ended="length"), 2: too_high}
    given, limits, _ = await limited(LIMITS[0], Script((Rule(says(WHOLE)),), faults=faults))
    assert given == "done"
    assert limits == [100, 200, 100]


async def test_a_limit_of_a_few_tokens_is_meant() -> None:
    script = Script((Rule(says(WHOLE)),), faults={1: says("no J", ended="length")})
    _, limits, _ = await limited(LIMITS[0], script, 4)
    assert set(limits) == {4}


async def test_a_policy_of_its_own_may_leave_the_limit() -> None:
    async def work(client: Any, task: str, record_step: Any) -> Any:
        return json.loads(await by_chat(client, [{"role": "user", "content": task}], max_tokens=99))

    world = World(Script((Rule(says(WHOLE)),), faults={1: says(HALF, ended="length")}))
    policy = FailurePolicy.recommended().replace(causes={Cause.OUTPUT_CUT: ask_again(2)})
    given, _, _ = await run_with(work, world, policy=policy)
    assert given == {"answer": "done"}
    assert [one.body["max_tokens"] for one in world.requests] == [99, 99]


@table("options", [
    {"max_tokens": 50},
    {"generationConfig": {"maxOutputTokens": 50, "temperature": 1}},
    {"inferenceConfig": {"maxTokens": 50}},
    {"options": {"num_predict": 50, "seed": 3}},
])  # fmt: skip
def test_every_form_of_a_limit_is_raised(options: dict[str, Any]) -> None:
    body = {"messages": [], "stream": True, **options}
    raised = with_limit(body, 2)
    assert max_tokens_of(raised) == 100
    assert json.dumps(raised) == json.dumps(body).replace("50", "100")
    assert with_limit(body, 2, above=50) == body
    assert with_limit({"options": {"num_predict": -1}}, 2) == {"options": {"num_predict": -1}}


# Loops that are not one's own ------------------------------------------------------------------------

FRAMEWORKS = {bench.name: bench for bench in benches_in("benches")}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@table("name", FRAMEWORKS)
async def test_no_change_is_made_of_an_answer_that_was_cut(name: str) -> None:
    """What it asks for reads as a whole call: 3 cents, of 300."""
    cut = asks(call("charge", cents=3), ended="length")
    rules = (Rule(says("done"), "receipt 5"), Rule(asks(call("charge", cents=300))))
    done = await play(FRAMEWORKS[name], Script(rules, faults={1: cut}))
    done.check_done(deeds=["charge(300)"])
