"""A conversation that is repaired tells the truth: what came of each call, and what was really cut off."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anthropic
import anyio
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import on_both_backends

import triage
from triage import Agent, Checks, Limits, Replan, Run
from triage.adapters import Adapter, Form, Seam, read_chat, repair_chat
from triage.adapters.anthropic import record as record_anthropic
from triage.adapters.openai import record as record_openai
from triage.core import AttemptOver, Event, StepRecorded
from triage.core.messages.neutral import LOST
from triage.strategies import FailurePolicy
from triage.testing import VirtualTime
from triage.testing.adapter_contract import (
    HANGS,
    After,
    Bench,
    Rule,
    Script,
    World,
    asks,
    benches_in,
    call,
    check_wire,
    play,
    provider,
    results_in,
    says,
)

pytestmark = pytest.mark.anyio
anyio_backend = on_both_backends()

EVERY = [pytest.param(bench, bench.backends[0], id=bench.name) for bench in benches_in("benches")]


def on_every_bench(test: Any) -> Any:
    return pytest.mark.usefixtures("theirs_may_block")(
        pytest.mark.parametrize(("bench", "anyio_backend"), EVERY)(test)
    )


HINT = "Answer with what you have."
REPLANNED = FailurePolicy(default=Replan(HINT))
CUT_OFF = Limits(attempts=2, attempt_seconds=60)
"""Of a run in virtual time, which ends an attempt as soon as a tool hangs."""
SEARCH = asks(call("search", query="x"))
CUT = "interrupted"
"""What stands in the words for a call that was cut off."""


def told(request: Any) -> list[tuple[str, str]]:
    """The results in a request; what a framework says around an error is left out."""
    return results_in(request)


class AfterATool(VirtualTime):
    """A tool that hangs is cut off once another one has ended."""

    def __init__(self) -> None:
        super().__init__()
        self._ended = threading.Event()

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepRecorded) and event.step.tool_called:
            self._ended.set()

    async def sleep(self, seconds: float) -> None:
        await anyio.to_thread.run_sync(self._ended.wait, abandon_on_cancel=True)
        await super().sleep(seconds)


# A loop ---------------------------------------------------------------------------------------------


@on_every_bench
async def test_the_calls_of_a_loop_are_shown_with_what_they_gave(bench: Bench) -> None:
    rules = (Rule(says("done"), "Do not make this call again"), Rule(says("done"), HINT))
    script = Script((*rules, Rule(SEARCH)), tools={"search": ("nothing",)})
    for options in ({}, {"policy": REPLANNED}):
        done = await play(bench, script, **options)
        done.check_done()
        found = [result for request in done.world.requests for result in told(request)]
        assert set(found) <= {("search", "nothing")}


# Cut off in the middle of a turn --------------------------------------------------------------------


@on_every_bench
async def test_a_call_beside_one_that_was_cut_off_is_shown_with_what_it_gave(bench: Bench) -> None:
    beside = {
        "found 17 a": (asks(call("search", query="a"), call("search", query="b")), "search"),
        "receipt 5": (asks(call("charge", cents=300), call("search", query="b")), "charge"),
    }
    for gave, (both, tool) in beside.items():
        gives = {"a": After("search(b)", gave), "b": HANGS}
        tools = {"charge": (After("search(b)", gave),), "search": (gives.__getitem__,)}
        script = Script((Rule(says("done"), HINT), Rule(both)), tools=tools)
        env = AfterATool()
        options = {"limits": CUT_OFF, "environment": env, "observers": [env]}
        done = await play(bench, script, policy=REPLANNED, **options)
        done.check_done()
        assert done.count("charge(300)") == (tool == "charge")
        results = told(done.world.requests[-1])
        if results:  # without any the model does not hear of the calls at all
            assert results[0] == (tool, gave)
            assert len(results) == 2
            assert "found" not in results[1][1]
            assert CUT in results[1][1]


@on_every_bench
async def test_a_payment_beside_a_call_that_fails_is_shown_with_its_receipt(bench: Bench) -> None:
    pair = [call("charge", cents=300), call("search", query="b")]
    fails = After("charge(300)", ValueError("no index of that name"))
    for both in (asks(*pair), asks(*reversed(pair))):
        rules = (Rule(says("done"), HINT), Rule(says("done"), "receipt 5"), Rule(both))
        tools = {"charge": (After("search(b)", "receipt 5"),), "search": (fails,)}
        done = await play(bench, Script(rules, tools=tools), policy=REPLANNED)
        done.check_done()
        assert done.count("charge(300)") == 1
        results = dict(told(done.world.requests[-1]))
        if results:
            assert results["charge"] == "receipt 5"
            assert CUT not in results["search"]
    script = Script(
        (Rule(says("done"), "receipt 5"), Rule(asks(*pair))), tools={"search": (fails, "found 17")}
    )
    done = await play(bench, script)  # under the recommended policy
    done.check_done()
    assert done.count("charge(300)") == 1
    for request in done.world.requests:
        assert not any(CUT in result for _, result in told(request))


# A conversation that outlives the attempts ----------------------------------------------------------


class Talk:
    """A loop of somebody's own whose messages outlive an attempt: results are added when all have come.

    dialect: `chat`, `responses` or `anthropic`.
    """

    def __init__(self, dialect: str, client: Any, world: World) -> None:
        self.dialect = dialect
        self.client = client
        self.tools = {tool.__name__: tool for tool in world.tools()}
        self.messages: list[Any] = []

    async def __call__(self, task: str) -> str:
        if not self.messages:
            self.messages.append({"role": "user", "content": task})
        while True:
            words, asked = await getattr(self, f"_{self.dialect}")()
            if not asked:
                return str(words)
            results = [(id_, await self.tools[name](**given)) for id_, name, given in asked]
            self._add(results)

    async def _chat(self) -> tuple[str, list[Any]]:
        answer = await self.client.chat.completions.create(model="m", messages=self.messages)
        message = answer.choices[0].message.model_dump(exclude_none=True)
        self.messages.append(message)
        asked = [
            (one["id"], one["function"]["name"], json.loads(one["function"]["arguments"]))
            for one in message.get("tool_calls", ())
        ]
        return message.get("content") or "", asked

    async def _responses(self) -> tuple[str, list[Any]]:
        answer = await self.client.responses.create(model="m", input=self.messages)
        self.messages += answer.output
        asked = [
            (item.call_id, item.name, json.loads(item.arguments))
            for item in answer.output
            if item.type == "function_call"
        ]
        return answer.output_text, asked

    async def _anthropic(self) -> tuple[str, list[Any]]:
        answer = await self.client.messages.create(
            model="m", max_tokens=1000, messages=self.messages
        )
        self.messages.append({"role": "assistant", "content": answer.content})
        asked = [(one.id, one.name, one.input) for one in answer.content if one.type == "tool_use"]
        return "".join(one.text for one in answer.content if one.type == "text"), asked

    def _add(self, results: list[tuple[str, str]]) -> None:
        if self.dialect == "chat":
            self.messages += [
                {"role": "tool", "tool_call_id": id_, "content": text} for id_, text in results
            ]
        elif self.dialect == "responses":
            self.messages += [
                {"type": "function_call_output", "call_id": id_, "output": text}
                for id_, text in results
            ]
        else:
            content = [
                {"type": "tool_result", "tool_use_id": id_, "content": text}
                for id_, text in results
            ]
            self.messages.append({"role": "user", "content": content})


@asynccontextmanager
async def talking(dialect: str, script: Script, **options: Any) -> AsyncGenerator[Any]:
    """The agent of a talk, its world, and what was said before the run."""
    world = World(script)
    async with provider(world) as url:
        if dialect == "anthropic":
            made: Any = anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0)
            record: Callable[[Any], Any] = record_anthropic
        else:
            made = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
            record = record_openai
        async with made:
            talk = Talk(dialect, record(made), world)
            talk.messages += options.pop("before", ())
            yield Agent(talk, name="talk", **options), world


DIALECTS = ["chat", "responses", "anthropic"]
in_every_dialect = pytest.mark.parametrize(
    ("dialect", "anyio_backend"), [(dialect, "asyncio") for dialect in DIALECTS], ids=DIALECTS
)
PAY_AND_SEARCH = asks(call("charge", cents=300), call("search", query="x"))


@in_every_dialect
async def test_a_call_that_completed_before_another_failed_is_shown_with_its_result(
    dialect: str,
) -> None:
    script = Script(
        (Rule(says("done"), "receipt 5"), Rule(PAY_AND_SEARCH)),
        tools={"search": (ValueError("no index of that name"), "found 17")},
    )
    async with talking(dialect, script, policy=REPLANNED) as (agent, world):
        assert await agent.run("Pay.") == "done"
    assert world.deeds == ["charge(300)", "search(x)"]
    charge, search = told(world.requests[-1])
    assert charge == ("charge", "receipt 5")
    assert "no index of that name" in search[1]
    assert CUT not in search[1]
    check_wire(world.requests)


@in_every_dialect
async def test_what_a_loop_did_before_it_was_stopped_is_shown_with_its_result(dialect: str) -> None:
    script = Script(
        (Rule(says("done"), "Do not make this call again"), Rule(SEARCH)),
        tools={"search": ("nothing",)},
    )
    async with talking(dialect, script) as (agent, world):
        assert await agent.run("Look.") == "done"
    made = len(world.deeds)
    results = told(world.requests[-1])
    assert results.count(("search", "nothing")) == made
    assert all("nothing" in text or "not made" in text for _, text in results)
    check_wire(world.requests)


@in_every_dialect
async def test_a_call_that_was_cut_off_by_the_time_is_called_so_and_no_other(dialect: str) -> None:
    script = Script((Rule(says("done"), HINT), Rule(PAY_AND_SEARCH)), tools={"search": (HANGS,)})
    options = {"policy": REPLANNED, "limits": CUT_OFF, "environment": VirtualTime()}
    async with talking(dialect, script, **options) as (agent, world):
        assert await agent.run("Pay.") == "done"
    assert told(world.requests[-1]) == [("charge", "receipt 5"), ("search", LOST)]
    check_wire(world.requests)


@in_every_dialect
async def test_a_call_that_was_never_begun_is_not_called_cut_off(dialect: str) -> None:
    script = Script(
        (
            Rule(says("done"), HINT),
            Rule(asks(call("search", query="x"), call("charge", cents=300)), "found"),
            Rule(asks(call("charge", cents=5))),
        ),
        faults={2: asks(call("search", query="y"), call("charge", cents=300))},
        tools={"search": (ValueError("no index of that name"),)},
    )
    async with talking(dialect, script, policy=REPLANNED) as (agent, world):
        assert await agent.run("Pay.") == "done"
    assert world.deeds == ["charge(5)", "search(y)"]
    results = told(world.requests[-1])
    assert results[0] == ("charge", "receipt 5")
    assert "no index" in results[1][1]
    assert results[2][0] == "charge"
    assert CUT not in results[2][1]
    assert "not made" in results[2][1]
    check_wire(world.requests)


@in_every_dialect
async def test_a_call_of_a_conversation_before_the_run_is_closed_as_ever(dialect: str) -> None:
    script = Script((Rule(says("done"), "Go on"), Rule(SEARCH)))
    before = [
        {"role": "user", "content": "Look."},
        *_open_call(dialect),
        {"role": "user", "content": "Go on"},
    ]
    async with talking(dialect, script, before=before) as (agent, world):
        assert await agent.run("Look.") == "done"
    assert told(world.requests[-1]) == [("search", LOST)]


def _open_call(dialect: str) -> list[Any]:
    function = {"name": "search", "arguments": '{"query": "x"}'}
    if dialect == "chat":
        return [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": function}],
            }
        ]
    if dialect == "responses":
        return [{"type": "function_call", "call_id": "c1", **function}]
    block = {"type": "tool_use", "id": "c1", "name": "search", "input": {"query": "x"}}
    return [{"role": "assistant", "content": [block]}]


@asynccontextmanager
async def _client(world: World) -> AsyncGenerator[openai.AsyncOpenAI]:
    async with provider(world) as url:
        made = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        async with made:
            yield made


# On the seam ----------------------------------------------------------------------------------------


def test_outside_of_a_run_a_call_without_a_result_is_closed_as_ever() -> None:
    messages = _open_call("chat")
    assert repair_chat(messages).messages[-1]["content"] == LOST


# Any conversation -----------------------------------------------------------------------------------

FATES = ["done", "fails", "stopped", "never"]
TURNS = st.lists(
    st.lists(
        st.tuples(st.sampled_from(["look", "find"]), st.integers(0, 1), st.sampled_from(FATES)),
        max_size=3,
    ),
    max_size=4,
)


class _Told(Adapter):
    """Makes the calls of these turns, each to its own end, and repairs what it would send then."""

    name = "told"

    async def attempt(self, seam: Seam, task: Any, **kwargs: Any) -> Any:
        turns, same_ids = self.target
        messages: list[Any] = []
        wanted: list[str] = []
        for number, turn in enumerate(turns):
            asked: list[dict[str, Any]] = [
                {
                    "id": f"call_{at}" if same_ids else f"call_{number}_{at}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps({"n": n})},
                }
                for at, (name, n, _) in enumerate(turn)
            ]
            message = {"role": "assistant", "content": f"turn {number}", "tool_calls": asked}
            answer = {"choices": [{"message": message}]}
            form = Form(read=read_chat)
            await seam.model(partial(_given, answer), form=form, request=number, said=number)
            messages.append(message)
            for at, (name, n, fate) in enumerate(turn):
                result = f"{name} {n} of turn {number}, {at}"
                wanted.append(
                    {"done": result, "fails": result, "stopped": LOST}.get(fate, "not made")
                )
                if fate != "never":
                    do = partial(_come_to, fate, result)
                    id_ = asked[at]["id"]
                    with suppress(ValueError, AttemptOver):
                        await seam.tool(name, {"n": n}, do, id=id_, effect="read")
        return wanted, [
            one.get("content") for one in repair_chat(messages).messages if one["role"] == "tool"
        ]


async def _given(answer: Any, hint: str | None) -> Any:
    return answer


async def _come_to(fate: str, result: str) -> str:
    if fate == "fails":
        raise ValueError(result)
    if fate == "stopped":
        raise AttemptOver("too late")
    return result


@given(turns=TURNS, same_ids=st.booleans())
def test_each_call_of_any_conversation_is_told_as_what_came_of_it(
    *, turns: Any, same_ids: bool
) -> None:
    async def run() -> Any:
        unwatched = Checks(watch=False)  # calls that fail alike again and again are a loop
        agent: Agent[Any] = triage.wrap((turns, same_ids), adapter=_Told, checks=unwatched)
        return await agent.run("t")

    # Of calls with the same ids in every turn only the last ones can be told apart.
    wanted, found = anyio.run(run)
    assert len(wanted) == len(found)
    if same_ids:
        last = len(turns[-1]) if turns else 0
        wanted, found = wanted[len(wanted) - last :], found[len(found) - last :]
    for want, told_ in zip(wanted, found, strict=True):
        assert want in told_


# What is not of the conversation --------------------------------------------------------------------


async def test_a_tool_called_by_hand_is_no_result_of_the_models_call(anyio_backend: str) -> None:
    """The agent's own code has searched for the same; the model's call was never made."""
    script = Script((Rule(says("done"), HINT), Rule(SEARCH)))
    world = World(script)
    async with _client(world) as plain:
        client = record_openai(plain)
        search = world.tools()[0]
        messages: list[Any] = [{"role": "user", "content": "Look."}]

        async def agent(task: str, *, run: Run) -> str:
            if len(messages) == 1:
                await search(query="x")
            answer = await client.chat.completions.create(model="m", messages=messages)
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if message.tool_calls:
                raise ValueError("no time")
            return message.content or ""

        assert await Agent(agent, REPLANNED).run("Look.") == "done"
    (result,) = told(world.requests[-1])
    assert "found 17" not in result[1]
