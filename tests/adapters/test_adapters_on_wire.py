"""Frameworks whose models are recorded where their requests leave: once each, and told each turn once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import product
from typing import Any, ClassVar

import pytest
from tables import table

import triage
from adapters.own_framework import FORM, steps_of
from triage import Replan
from triage.adapters import Adapter, Seam
from triage.adapters.base import ModelOptions
from triage.core import Event
from triage.testing.adapter_contract import (
    Rule,
    Script,
    World,
    asks,
    call,
    check_wire,
    loopback,
    results_in,
    says,
)

from .own_loops import CLIENTS

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]

HINT = "Answer in JSON."
SEARCHES = Script(
    (
        Rule(says("{}"), HINT),
        Rule(says("{"), "found"),
        Rule(asks(call("search", query="prices")), "Write"),
        Rule(asks(call("search", query="x"))),
    )
)
FOUND, PRICES = [("search", "found x")], [("search", "found prices")]


class Talks(Adapter):
    """Its target is what an agent does, with a seam and its task."""

    name = "talks"
    on_wire: ClassVar[bool] = True

    async def attempt(self, seam: Seam, task: Any, **kwargs: Any) -> Any:
        return await self.target(seam, task)


def options() -> ModelOptions:
    return {"form": FORM, "request": "x", "said": "x", "model": "m"}


async def loop(seam: Seam, talk: Any, ask: Callable[[Any], Awaitable[Any]], who: str = "") -> str:
    """Ask a model until it asks for nothing more."""

    async def sent(_hint: str | None) -> Any:
        return await ask(talk.messages)

    async def result(one: Any) -> Any:
        async def search() -> str:
            return f"found {one.arguments['query']}"

        return await seam.tool(one.name, one.arguments, search, id=one.id)

    turn = 0
    while True:
        turn += 1
        answer = await seam.asked(ask, "m", sent, options, who=f"{who}#{turn}" if who else "")
        calls = talk.take(answer)
        if not calls:
            return str(talk.text)
        talk.give([(one, await result(one)) for one in calls])


ASYNC = ("openai", "openai, responses", "anthropic", "google-genai, httpx")


async def run(url: str, client: str, course: Callable[[Seam, Any], Awaitable[str]]) -> None:
    """Run what is done with a seam and with what asks a model, which has to say `{}` in the end."""
    async with CLIENTS[client].open(url, stream=False) as ask:
        agent: Any = triage.wrap(
            lambda seam, _: course(seam, ask),
            triage.FailurePolicy(default=Replan(HINT)),
            adapter=Talks,
            effects={"search": "read"},
            verify=lambda text: text == "{}",
        )
        assert await agent.run("Go.") == "{}"


@table(("client", "holds"), list(product(ASYNC, (False, True))))
async def test_a_new_plan_is_told_each_turn_once_whoever_holds_the_conversation(
    client: str, *, holds: bool
) -> None:
    world = World(SEARCHES)
    held = CLIENTS[client].talk("Go.")

    async def course(seam: Seam, ask: Any) -> str:
        return await loop(seam, held if holds else CLIENTS[client].talk("Go."), ask)

    with loopback(world) as url:
        await run(url, client, course)
    assert [results_in(request) for request in world.requests] == [[], FOUND, FOUND]
    check_wire(world.requests)


async def test_an_agent_goes_on_with_its_own_turns_and_with_nobody_elses() -> None:
    world = World(SEARCHES)
    begun: list[int] = []

    async def course(seam: Seam, ask: Any) -> str:
        tasks = {"finder": "Find it.", "writer": "Write it."}
        if begun:  # in another order, and in other words
            tasks = {"writer": "Write it anew.", "finder": "Find it anew."}
        said = ""
        for who, task in tasks.items():
            begun.append(len(world.requests))
            said = await loop(seam, CLIENTS["openai"].talk(task), ask, who)
        return said

    with loopback(world) as url:
        await run(url, "openai", course)
    assert [results_in(world.requests[at]) for at in begun] == [[], [], PRICES, FOUND]
    check_wire(world.requests)


@table("kept", [{0}, {1}, {0, 1}, {0, 3}, {0, 2, 3}])
async def test_each_request_that_leaves_is_one_call_also_of_a_model_that_keeps_answers(
    kept: set[int],
) -> None:
    """An answer that was kept leaves nothing to be heard, which says nothing of the next one."""

    class Keeps:
        """A model whose answers are kept somewhere."""

    world = World(Script((Rule(says("done")),)))
    events: list[Event] = []

    async def course(seam: Seam, _: str) -> str:
        for number in range(5):

            async def sent(_hint: str | None, number: int = number) -> Any:
                if number in kept:
                    return {"text": "kept"}
                talk = CLIENTS["openai"].talk(f"Go {number}.")
                talk.take(await ask(talk.messages))
                return {"text": talk.text}

            await seam.asked(Keeps(), "m", sent, options)
        return "end"

    with loopback(world) as url:
        async with CLIENTS["openai"].open(url, stream=False) as ask:
            await triage.wrap(course, adapter=Talks, observers=[events.append]).run("Go.")
    said = [step.llm_output for step in steps_of(events)]
    assert said.count("done") == len(world.requests) == 5 - len(kept)
