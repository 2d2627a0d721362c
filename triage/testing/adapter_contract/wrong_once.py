"""Scenarios of answers that are wrong once: an agent that a plain second try saves is saved.

All of them run under the recommended policy, with no option set for them. Where two plain tries
succeed, the run succeeds, with at most one request more than they make, and what happens once has
happened once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from pydantic import BaseModel, TypeAdapter

from triage.core.errors import TriageError
from triage.core.events import AttemptFailed
from triage.engine.agents import Agent
from triage.testing.faults import Answer, status_error

from .bench import Bench, Call, Fails, Rule, Script, Turn, asks, call, says
from .playing import CHARGE, SEARCH, TASK, Played, Scenario, Stage, declared_in, play, scenario


class WrongAnswer(Struct, frozen=True):
    """A run of two requests, in which one answer is wrong, once.

    about: what is wrong with it. faults: the wrong answer, by the number of its request. right: the last
    words of a run that succeeds. reads: raises, or gives False, where the agent cannot use the last words.
    """

    name: str
    about: str
    faults: Mapping[int, Turn]
    right: str = "done"
    reads: Callable[[str], object] = str
    needs: tuple[str, ...] = ()

    def scenario(self) -> Scenario:

        async def wrong_once(bench: Bench) -> None:
            def verify(result: Any) -> bool:
                return self.reads(bench.text(result)) is not False

            rules = (Rule(says(self.right), "receipt 5"), Rule(CHARGE))
            done = await play(bench, Script(rules, self.faults), verify=verify)
            done.check_done(self.right)
            _check_sent(done, plain_tries=4)

        wrong_once.__name__ = f"wrong_once_{self.name}"
        wrong_once.__doc__ = f"One answer is wrong once: {self.about}. Asked again, it is right."
        return scenario(*self.needs)(wrong_once)


def _check_sent(done: Played, plain_tries: int) -> None:
    """One request more than two plain tries make is enough; and success alone is not: it is recorded."""
    assert done.models, "no model call is recorded"
    sent = len(done.world.requests)
    assert sent <= plain_tries + 1, f"{sent} requests, where two plain tries make {plain_tries}"


class _Price(BaseModel):
    cents: int


def _says_done(text: str) -> None:
    assert text.startswith("done"), "the answer does not say that it is done"


def _ends_with_a_stop(text: str) -> None:
    if not text.endswith("."):
        raise ValueError("an answer ends with a full stop")


def _look_up(text: str) -> None:
    if text not in ("paid", "open"):
        raise LookupError(f"no state is called {text!r}")


_WRONG_ANSWERS = (
    WrongAnswer("no_number", "`int(answer)` raises", {2: says("about ten")}, "10", int),
    WrongAnswer(
        "missing_key",
        "a key is missing",
        {2: says("{}")},
        '{"cents": 1}',
        lambda text: json.loads(text)["cents"],
    ),
    WrongAnswer(
        "no_json",
        "`json.loads(answer)` raises",
        {2: says('{"cents": 1')},
        '{"cents": 1}',
        json.loads,
    ),
    WrongAnswer(
        "wrong_shape",
        "pydantic refuses it",
        {2: says('{"cents": "many"}')},
        '{"cents": 1}',
        TypeAdapter(_Price).validate_json,
    ),
    WrongAnswer(
        "refused_by_assertion", "an assertion fails", {2: says("not yet")}, "done", _says_done
    ),
    WrongAnswer(
        "unknown_name",
        "the agent's own table has no such entry",
        {2: says("payed")},
        "paid",
        {"paid": 1}.__getitem__,
    ),
    WrongAnswer(
        "failed_lookup", "a lookup of the agent's own fails", {2: says("payed")}, "paid", _look_up
    ),
    WrongAnswer(
        "refused_value",
        "the agent's own check raises ValueError",
        {2: says("done")},
        "done.",
        _ends_with_a_stop,
    ),
    WrongAnswer(
        "refused",
        "a check of the result refuses it",
        {2: says("0")},
        "10",
        lambda text: int(text) > 0,
    ),
    WrongAnswer("unknown_tool", "there is no such tool", {1: asks(call("pay", cents=300))}),
    WrongAnswer(
        "arguments",
        "the arguments do not fit the tool",
        {1: asks(Call("charge", {"cents": "many"}))},
    ),
    WrongAnswer(
        "cut_off",
        "it is cut off by its length",
        {2: says("do", ended="length")},
        needs=("endings",),
    ),
    WrongAnswer(
        "error_with_200",
        "it has the status 200 and an error in its body",
        {2: Fails(200, "Overloaded")},
    ),
)


for _answer in _WRONG_ANSWERS:
    _answer.scenario()


@scenario()
async def wrong_once_inside_another_agent(bench: Bench) -> None:
    """An agent of somebody's runs this one and cannot read what it says, once: it runs again."""
    script = Script((Rule(says("10"), "found 17"), Rule(SEARCH)), faults={2: says("about ten")})
    async with Stage(bench, script) as stage:
        inner = await stage.agent()
        given = bench.given(stage.world)

        async def reads(task: str) -> str:
            words = bench.text(await inner.run(task, **given))
            int(words)
            return words

        try:
            done = stage.played(await Agent(reads).run(TASK))
        except TriageError as error:
            done = stage.played(None, error)
    done.check_done("10")
    _check_sent(done, plain_tries=4)


@scenario()
async def wrong_once_too_many_turns(bench: Bench) -> None:
    """The model goes astray until the framework's limit of turns, once: it begins anew, and is done."""
    astray = {number: asks(call("search", query=f"x{number}")) for number in range(2, 60)}
    tools = {"search": (lambda query: f"nothing about {query}",)}
    script = Script((Rule(says("done"), "receipt 5"), Rule(CHARGE)), faults=astray, tools=tools)

    def back_on_track(event: object) -> None:
        if isinstance(event, AttemptFailed):
            astray.clear()

    async with Stage(bench, script, observers=[back_on_track]) as stage:
        agent = await stage.agent()
        done = await stage.outcome(lambda: stage.run(agent))
    done.check_done()


@scenario()
async def wrong_once_several_turns_before(bench: Bench) -> None:
    """A bad decision shows two turns later: after the last answer, the start is returned to."""
    rules = (
        Rule(says("10"), "found 17"),
        Rule(says("I do not know"), "nothing here"),
        Rule(SEARCH),
    )
    script = Script(
        rules,
        faults={1: asks(call("search", query="wrong"))},
        tools={"search": (lambda query: "found 17" if query == "x" else "nothing here",)},
    )
    done = await play(bench, script, verify=lambda result: int(bench.text(result)) > 0)
    done.check_done("10")
    _check_sent(done, plain_tries=4)


@scenario("tool_errors")
async def wrong_once_stale_read(bench: Bench) -> None:
    """What was read is out of date when it is acted on (409): it is read again, and accepted once."""

    def charge(version: int) -> object:
        stale = status_error(Answer(409, "The version is stale."), None)
        return stale if version == 1 else "receipt 5"

    rules = (
        Rule(says("done"), "receipt 5"),
        Rule(asks(call("charge", cents=2)), "version 2"),
        # A model that is told of the error, in whatever words, reads again by itself.
        Rule(SEARCH, "stale"),
        Rule(SEARCH, "error occurred"),
        Rule(asks(call("charge", cents=1)), "version 1"),
        Rule(SEARCH),
    )
    tools = {"search": ("version 1", "version 2"), "charge": (charge,)}
    done = await play(bench, Script(rules, tools=tools))
    done.check_done()
    _check_sent(done, plain_tries=5)


WRONG_ONCE = declared_in(__name__)
