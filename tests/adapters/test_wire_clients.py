"""What is promised of an agent holds for a plain loop around each client, whose tools alone are ours."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio.from_thread
import pytest
from benches import Texts
from blockbuster import BlockBuster
from recorded_clients import ANSWERS
from tables import covering

from triage import Agent
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

from .own_clients import BOTH, CLIENTS, Called

pytestmark = [
    pytest.mark.anyio,
    # OpenAI's client stops at the last piece, and leaves its stream to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    # Google's makes a class of aiohttp's session.
    pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning"),
]
assert ANSWERS  # its module has the clients read what machine they are on
TURNS = 10


@pytest.fixture(autouse=True)
def _theirs(never_blocked: BlockBuster) -> None:
    """Clients look at files and clocks in the event loop; that is theirs."""
    never_blocked.deactivate()


class OwnLoop(Texts):
    """Thirty lines around a client, which know nothing of us but that their tools are declared."""

    offers = frozenset[str]({"endings"})

    def __init__(self, name: str, *, stream: bool) -> None:
        self.name = f"{name}, {'streamed' if stream else 'whole'}"
        self.backends = CLIENTS[name].backends
        self._client = CLIENTS[name]
        self._stream = stream

    @asynccontextmanager
    async def agent(self, world: World, url: str, **options: Any) -> AsyncGenerator[Agent[Any]]:
        tools: dict[str, Any] = {tool.__name__: tool for tool in world.tools()}
        talk = self._client.talk
        opened = self._client.open(url, stream=self._stream)
        async with AsyncExitStack() as stack:
            if hasattr(opened, "__aenter__"):
                ask = await stack.enter_async_context(opened)

                async def agent(task: str) -> str:
                    said = talk(task)
                    for _ in range(TURNS):
                        calls = said.take(await ask(said.messages))
                        if not calls:
                            return str(said.text)
                        said.give([(one, await tools[one.name](**one.arguments)) for one in calls])
                    raise RuntimeError(f"no answer after {TURNS} turns")

                yield Agent(agent, **options)
                return
            ask = stack.enter_context(opened)

            def agent_sync(task: str) -> str:
                said = talk(task)
                for _ in range(TURNS):
                    calls = said.take(ask(said.messages))
                    if not calls:
                        return str(said.text)
                    said.give([(one, call(one)) for one in calls])
                raise RuntimeError(f"no answer after {TURNS} turns")

            def call(one: Called) -> str:
                work = functools.partial(tools[one.name], **one.arguments)
                return str(anyio.from_thread.run(work))

            yield Agent(agent_sync, **options)


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


_CONTRACT = {one.__name__: one for one in owed_scenarios}
SCENARIOS: dict[str, Scenario] = {
    "retried after 503": mended,
    "told after a bad answer": _CONTRACT["malformed_output"],
    "stopped in a loop": _CONTRACT["loop"],
    "told of wrong arguments": wrong_arguments,
    "pays once": _CONTRACT["unavailable_tool"],
    "goes on after its death": _CONTRACT["crash_and_resume"],
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
