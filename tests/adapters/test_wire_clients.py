"""What is promised of an agent holds for a plain loop around each client, whose tools alone are ours."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from benches import Texts
from tables import covering

from triage import Agent, Durability, TriageSuspendedError
from triage.core import Retry
from triage.strategies import FailurePolicy
from triage.testing.adapter_contract import (
    Fails,
    Rule,
    Scenario,
    Script,
    World,
    asks,
    call,
    check_adapter,
    owed_scenarios,
    play,
    says,
)
from triage.testing.faults import Answer, status_error

from .own_loops import BOTH, CLIENTS, own_loop

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]


class OwnLoop(Texts):
    """A plain loop, which knows nothing of us but that its tools are declared.

    With the option `durability` they are not: what they do is seen on the wire alone.
    """

    offers = frozenset[str]({"endings"})

    def __init__(self, name: str, *, stream: bool) -> None:
        self.name = f"{name}, {'streamed' if stream else 'whole'}"
        self.backends = CLIENTS[name].backends
        self._client = name
        self._stream = stream

    @asynccontextmanager
    async def agent(self, world: World, url: str, **options: Any) -> AsyncGenerator[Agent[Any]]:
        tools: dict[str, Any] = {tool.__name__: tool for tool in world.tools()}
        if "durability" in options:
            tools = {name: tool.__wrapped__ for name, tool in tools.items()}
        async with own_loop(self._client, url, tools, stream=self._stream) as agent:
            yield Agent(agent, **options)


# What happens to them -------------------------------------------------------------------------------

CHARGE, SEARCH = asks(call("charge", cents=300)), asks(call("search", query="x"))
DONE = Rule(says("done"), "receipt 5")
RETRY = FailurePolicy(default=Retry())


async def mended(bench: Any) -> None:
    """503 from the model: the request is made again in its place, and the agent sees nothing of it."""
    rules = (DONE, Rule(CHARGE, "found 17"), Rule(SEARCH))
    overloaded = {2: Fails(503, "Overloaded")}
    done = await play(bench, Script(rules, faults=overloaded), policy=RETRY)
    done.check_done(deeds=["search(x)", "charge(300)"], requests=4)
    assert not done.failures, f"attempts failed: {done.failures}"
    refused = [bool(step.error) for step in done.models]
    assert refused == [False, True, False, False], f"which steps have errors: {refused}"


async def wrong_arguments(bench: Any) -> None:
    """Arguments that a tool does not take: the model is told which it takes, by the recommended policy."""
    rules = (DONE, Rule(CHARGE, "cents"), Rule(asks(call("charge", euros=3))))
    done = await play(bench, Script(rules))
    misfit = "schema_mismatch: invalid_arguments"
    done.check_done(deeds=["charge(300)"], requests=3, diagnosis=misfit)
    refused = [(step.tool_input, step.exception_type) for step in done.tools if step.error]
    assert refused == [({"euros": 3}, "InvalidArguments")], f"the refused calls are {refused}"


async def carried(bench: Any) -> None:
    """A tool fails behind a change that nothing has recorded: the model goes on from its earlier turns."""
    unavailable = status_error(Answer(503, "Service unavailable."), None)
    rules = (Rule(says("done"), "found 17"), Rule(SEARCH, "receipt 5"), Rule(CHARGE))
    script = Script(rules, tools={"search": (unavailable, "found 17")})
    done = await play(bench, script, policy=RETRY, durability=Durability(undeclared="carry"))
    done.check_done(deeds=["charge(300)", "search(x)", "search(x)"], requests=4)


async def held_back(bench: Any) -> None:
    """The model asks once more for a change that was made: a person is asked before the agent sees that."""
    unavailable = status_error(Answer(503, "Service unavailable."), None)
    broken = Rule(CHARGE, "This call has no result")
    rules = (Rule(says("done"), "found 17"), broken, Rule(SEARCH, "receipt 5"), Rule(CHARGE))
    script = Script(rules, tools={"search": (unavailable, "found 17")})
    done = await play(bench, script, policy=RETRY, durability=Durability(undeclared="carry"))
    assert done.world.deeds == ["charge(300)", "search(x)"], done.world.deeds
    assert isinstance(done.error, TriageSuspendedError), done.error
    assert "asks for it once more" in str(done.error)


_CONTRACT = {one.__name__: one for one in owed_scenarios}
SCENARIOS: dict[str, Scenario] = {
    "retried after 503": mended,
    "told after a bad answer": _CONTRACT["malformed_output"],
    "stopped in a loop": _CONTRACT["loop"],
    "told of wrong arguments": wrong_arguments,
    "pays once": _CONTRACT["unavailable_tool"],
    "goes on after its death": _CONTRACT["crash_and_resume"],
    "goes on with its turns": carried,
    "asks before a change is repeated": held_back,
}
ROWS = covering(
    CLIENTS,
    BOTH,
    (False, True),
    SCENARIOS,
    together=2,
    where=lambda client, backend, *_: backend in CLIENTS[client].backends,
)


@pytest.mark.parametrize(("client", "anyio_backend"), sorted({row[:2] for row in ROWS}))
async def test_an_own_loop_is_kept(client: str, anyio_backend: str) -> None:
    failed: list[str] = []
    for name, backend, stream, scenario in ROWS:
        if (name, backend) == (client, anyio_backend):
            try:
                await check_adapter(OwnLoop(name, stream=stream), SCENARIOS[scenario])
            except AssertionError as error:
                failed.append(f"{scenario}: {error}")
    assert not failed, "\n".join(failed)
