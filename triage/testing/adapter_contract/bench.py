"""What an adapter brings to the contract, a `Bench`, and what is played on it: a model made of rules and
two tools, the same for every adapter.

The model keeps nothing: what it answers follows from the request alone, so that it is right however an
adapter recovers. Faults of the model come by the number of the request instead.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeAlias

import anyio

import triage
from triage.core.errors import misuse
from triage.engine.agents import Agent
from triage.engine.run import current
from triage.testing.faults import Answer, die, status_error
from triage.testing.time import VirtualTime

MODEL = "scripted"
BEFORE, OPEN_ID = "Find out what we owe.", "call_open"
"""The user's words in a conversation that begins in the middle, and the id of its open call."""
TOKENS = (10, 5)
"""Input and output tokens of every answer."""


class Call(NamedTuple):
    """A tool call by the model. arguments: a mapping, or text that need not be JSON."""

    tool: str
    arguments: Mapping[str, Any] | str

    @property
    def text(self) -> str:
        """The arguments as a provider sends them."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


class Says(NamedTuple):
    """The model answers in words. ended: `stop`, or `length` where the answer is cut off."""

    text: str
    ended: str = "stop"


class Asks(NamedTuple):
    """The model asks for tools, all in one turn. ended: `length` where the answer is cut off."""

    calls: tuple[Call, ...]
    ended: str = "stop"


class Fails(NamedTuple):
    """The provider refuses. retry_after: seconds in its header, or None. code: the error's code beside its
    message, or None.
    """

    status: int
    message: str
    retry_after: float | None = None
    code: str | None = None


class Hangs(NamedTuple):
    """The provider never answers."""


class Cut(NamedTuple):
    """The provider breaks off in the middle of these words.

    silently: the connection ends normally; otherwise it visibly breaks.
    """

    of: Says
    silently: bool = False


Turn: TypeAlias = Says | Asks | Fails | Hangs | Cut


def says(text: str, *, ended: str = "stop") -> Says:
    """A turn of words."""
    return Says(text, ended)


def asks(*calls: Call, ended: str = "stop") -> Asks:
    """A turn that asks for tools."""
    return Asks(calls, ended)


def call(tool: str, /, **arguments: Any) -> Call:
    """A tool call with these arguments."""
    return Call(tool, arguments)


class Rule(NamedTuple):
    """One rule of a model. It applies where all its conditions hold; without any it always applies.

    sees: texts that the request must contain, one or several. model: the name of the requested model.
    longer: the request's text must have more characters than this.
    """

    then: Turn
    sees: str | Sequence[str] = ()
    model: str | None = None
    longer: int | None = None

    @property
    def _seen(self) -> Sequence[str]:
        return (self.sees,) if isinstance(self.sees, str) else self.sees

    def holds(self, request: Request) -> bool:
        """Whether the rule applies to a request."""
        return (
            all(text in request.text for text in self._seen)
            and (self.model is None or self.model == request.body.get("model"))
            and (self.longer is None or len(request.text) > self.longer)
        )


class Request(NamedTuple):
    """What a model was sent. text: all text of the conversation and its instructions.

    who: the helper that sent it; empty for the agent itself.
    """

    protocol: str
    body: dict[str, Any]
    text: str
    who: str = ""


class Helper(NamedTuple):
    """The model of another agent: its rules, and its faults by the number of its request."""

    rules: tuple[Rule, ...]
    faults: Mapping[int, Turn] = {}


class Script(NamedTuple):
    """What happens in a scenario.

    rules: of the model; the first that applies is followed. faults: given instead of an answer, by the
    number of the request, from 1. tools: the outcome of each call of a tool, by the tool's name, the last
    one repeated: a text, an exception to raise, `After`, `HANGS`, `CRASHES`, or a function of the tool's
    argument that gives one of these.

    streamed: answers are streamed, and each piece of text goes to `World.hear`. open_call: the conversation
    begins in the middle, after this call, which has no result (see `World.before`). retries: how often the
    model's client retries by itself. helpers: agents with the same tools and the instructions
    `World.instructions(name)`, each a tool of that name with the text argument `input`. handoffs: the agent
    hands over to them instead (`transfer_to_ann`). approvals: tools for which the framework asks a person
    before it calls them.
    """

    rules: tuple[Rule, ...]
    faults: Mapping[int, Turn] = {}
    tools: Mapping[str, Sequence[Any]] = {}
    streamed: bool = False
    open_call: Call | None = None
    retries: int = 0
    helpers: Mapping[str, Helper] = {}
    handoffs: bool = False
    approvals: tuple[str, ...] = ()


class After(NamedTuple):
    """A tool call that ends with a result, or raises it, once another call has begun; within 10 s."""

    deed: str
    result: Any


class Deed(NamedTuple):
    """Entry in a world's log: a tool's body has begun."""

    text: str


class Heard(NamedTuple):
    """Entry in a world's log: the agent's caller received a piece of an answer."""

    text: str


class ToolFault(Enum):
    """What a tool does in place of giving a result or raising."""

    HANGS = "hangs"
    CRASHES = "crashes"


HANGS, CRASHES = ToolFault.HANGS, ToolFault.CRASHES


class World:
    """A script in play. requests: what the models were sent, in order. deeds: the tool calls whose bodies
    began, as `charge(300)`. cancelled: the tools whose bodies saw a cancellation. log: requests, `Deed`,
    `Heard` and the events of the run, in order.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.deeds: list[str] = []
        self.cancelled: list[str] = []
        self.log: list[Any] = []
        self._played: dict[str, int] = {}
        self._crashed = ""
        self._hangs = threading.Event()
        self._attempt = copy_context()
        self._lock = threading.Lock()
        self._reached = threading.Condition(self._lock)

    def answer(self, protocol: str, body: dict[str, Any]) -> Turn:
        """The model's reaction to a request; safe from any thread.

        protocol: `chat`, `responses`, `anthropic`, `gemini`, or `own` for a framework's own fake model,
        whose requests are then given as chat messages.
        """
        text = _text_of({name: item for name, item in body.items() if name in _PROMPT_FIELDS})
        helpers = self.script.helpers
        who = next((name for name in helpers if self.instructions(name) in text), "")
        request = Request(protocol, body, text, who)
        asked: Script | Helper = helpers[who] if who else self.script
        with self._reached:
            self.requests.append(request)
            self.log.append(request)
            number = sum(one.who == who for one in self.requests)
            self._reached.notify_all()
        if number in asked.faults:
            if isinstance(asked.faults[number], Hangs):
                self._hangs.set()
            return asked.faults[number]
        for rule in asked.rules:
            if rule.holds(request):
                return rule.then
        raise AssertionError("no rule of the script holds; give it a last one that always does")

    async def ask(self, messages: Sequence[Any], *, model: str = "m") -> Says | Asks:
        """The answer of a framework's own fake model to messages in chat form.

        model: its name. Raises what a client would for a refusal, and never returns where the provider
        hangs.
        """
        turn = self.answer("own", {"model": model, "messages": list(messages)})
        if isinstance(turn, Fails):
            headers = {} if turn.retry_after is None else {"retry-after": f"{turn.retry_after:g}"}
            answer = Answer(turn.status, turn.message, turn.code or "", headers=headers)
            raise status_error(answer, None)
        if isinstance(turn, Cut):
            raise ConnectionError("the answer broke off")
        if isinstance(turn, Hangs):
            await anyio.sleep(math.inf)
        assert isinstance(turn, Says | Asks)
        return turn

    def wait_for(self, deed: str, seconds: float = 10.0) -> bool:
        """Wait, in a thread, until a tool's body has begun; False if it does not."""
        with self._reached:
            return self._reached.wait_for(lambda: deed in self.deeds, seconds)

    def before(self) -> list[dict[str, Any]]:
        """The conversation before the run, as chat messages; empty without an `open_call`."""
        left = self.script.open_call
        if left is None:
            return []
        function = {"name": left.tool, "arguments": left.text}
        made = {"id": OPEN_ID, "type": "function", "function": function}
        return [
            {"role": "user", "content": BEFORE},
            {"role": "assistant", "content": "Wait.", "tool_calls": [made]},
        ]

    def instructions(self, helper: str) -> str:
        """The instructions of a helper, by which the model knows who is asking."""
        return f"You are {helper}, who helps."

    def hear(self, text: str) -> None:
        """Note that the agent's caller received a piece of an answer."""
        if text:
            with self._reached:
                self.log.append(Heard(text))
                self._reached.notify_all()

    def wait_until_cancelled(self, tool: str) -> bool:
        """Wait, in a thread, until a tool's body has seen a cancellation; False if it does not in 10 s."""
        with self._reached:
            return self._reached.wait_for(lambda: tool in self.cancelled, 10.0)

    def check_alive(self) -> None:
        """Crash the attempt if a tool that runs outside it has crashed."""
        if self._crashed:
            tool, self._crashed = self._crashed, ""
            die(current.get(), tool, None)

    def wait_until_heard(self) -> None:
        """Wait, in a thread, until the caller has received more of an answer; at most 2 s."""
        with self._reached:
            self._reached.wait_for(lambda: isinstance(self.log[-1], Heard), 2.0)

    def functions(self) -> list[Callable[..., Any]]:
        """The tools as plain async functions, named, annotated and described."""

        async def search(query: str) -> str:
            """Look something up. query: what to look for."""
            return await self._do("search", query, "found 17")

        async def charge(cents: int) -> str:
            """Charge the card. cents: how much."""
            if not isinstance(cents, int):
                raise misuse("charge(cents)", cents, "a whole number")
            return await self._do("charge", cents, "receipt 5")

        return [search, charge]

    def tools(self) -> list[Callable[..., Any]]:
        """The tools as `@triage.tool`: search reads, charge happens once."""
        search, charge = self.functions()
        return [triage.tool(effect="read")(search), triage.tool(effect="once")(charge)]

    @property
    def effects(self) -> dict[str, str]:
        """The effects of all tools, for `triage.wrap(effects=…)`."""
        return {"search": "read", "charge": "once", **dict.fromkeys(self.script.helpers, "read")}

    async def cut_off(self, clock: VirtualTime, seconds: float) -> None:
        """Once the model hangs, let time pass for the attempt that called a tool last."""
        await anyio.to_thread.run_sync(self._hangs.wait, abandon_on_cancel=True)
        self._attempt.run(clock.advance, seconds)

    async def _do(self, tool: str, given: Any, ordinary: str) -> str:
        self._attempt = copy_context()
        with self._reached:
            self.deeds.append(f"{tool}({given})")
            self.log.append(Deed(self.deeds[-1]))
            number = self._played[tool] = self._played.get(tool, 0) + 1
            self._reached.notify_all()
        planned = self.script.tools.get(tool, (ordinary,))
        found = planned[min(number, len(planned)) - 1]
        if callable(found):
            found = found(given)
        if isinstance(found, After):
            began = await anyio.to_thread.run_sync(
                self.wait_for, found.deed, abandon_on_cancel=True
            )
            if not began:
                raise TimeoutError(f"{found.deed} has not begun beside this call")
            found = found.result
        if found is HANGS:
            await self._hang(tool)
        if found is CRASHES:
            if current.get() is not None:
                die(current.get(), tool, None)
            self._crashed = tool
            found = ordinary
        if isinstance(found, BaseException):
            raise found
        return str(found)

    async def _hang(self, tool: str) -> None:
        run = current.get()
        # In virtual time the attempt ends as soon as the tool hangs.
        sleep = anyio.sleep if run is None else run.session.config.env.sleep
        try:
            await sleep(math.inf)
        except anyio.get_cancelled_exc_class():
            with self._reached:
                self.cancelled.append(tool)
                self._reached.notify_all()
            raise


_PROMPT_FIELDS = (
    "messages", "input", "contents", "system", "instructions", "systemInstruction"
)  # fmt: skip


def _text_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "\n".join(_text_of(item) for item in value.values())
    if isinstance(value, list):
        return "\n".join(map(_text_of, value))
    return ""


class Bench(Protocol):
    """Runs a script with one adapter.

    name: the adapter's, a column of the matrix. offers: the `CAPABILITIES` of the framework; a scenario
    that needs another one is not played. Every adapter owes the scenarios that need none. backends: the
    event loops that the framework runs on.
    """

    @property
    def name(self) -> str:
        """The adapter's name."""
        ...

    @property
    def offers(self) -> Collection[str]:
        """Names of `CAPABILITIES`."""
        ...

    @property
    def backends(self) -> tuple[str, ...]:
        """`asyncio`, `trio` or both."""
        ...

    def text(self, result: Any) -> str:
        """The model's last words, from the agent's result."""
        ...

    def given(self, world: World) -> Mapping[str, Any]:
        """Arguments of `Agent.run` beside the task: options of the framework.

        For a streamed script: what passes the pieces to `world.hear`. For one that begins in the middle:
        `world.before()` as the framework's history. Otherwise empty.
        """
        ...

    def agent(
        self, world: World, url: str, **options: Any
    ) -> AbstractAsyncContextManager[Agent[Any]]:
        """An agent of the framework, wrapped with these options of `Agent`.

        Its task is a text. It has the world's tools (as `@triage.tool`, or as plain functions with
        `wrap(effects=world.effects)`), and gives up after some ten turns. Its model is a client of the
        loopback provider at `url` (see `loopback`) without retries of its own, or the framework's fake
        model, which answers with `await world.ask(messages)`. `Script` says what else may be needed:
        streams, helpers, retries of the client.
        """
        ...
