"""A model made of rules, two tools, and what both of them saw: the same for every adapter.

The model keeps nothing: what it answers follows from the request alone, so that it is right however an
adapter recovers. Faults of the model come by the number of the request instead.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

import triage
from triage._options import misuse
from triage.testing._crash import die
from triage.testing._errors import Answer, status_error
from triage.testing._site import here

MODEL = "scripted"
BEFORE, OPEN_ID = "Find out what we owe.", "call_open"
"""What was said before a conversation that begins in the middle; the id of its call without a result."""
TOKENS = (10, 5)
"""Input and output tokens of every answer."""


class Call(NamedTuple):
    """A tool call of the model's. arguments: a mapping, or text that need not be JSON."""

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
    """The model asks for tools, all in one turn."""

    calls: tuple[Call, ...]


class Fails(NamedTuple):
    """The provider refuses. retry_after: seconds, as its header; None without one."""

    status: int
    message: str
    retry_after: float | None = None


class Hangs(NamedTuple):
    """The provider never answers."""


class Cut(NamedTuple):
    """The provider breaks off in the middle of these words.

    silently: the connection ends as if all had come; otherwise it is seen to break.
    """

    of: Says
    silently: bool = False


Turn: TypeAlias = Says | Asks | Fails | Hangs | Cut


def says(text: str, *, ended: str = "stop") -> Says:
    """A turn of words."""
    return Says(text, ended)


def asks(*calls: Call) -> Asks:
    """A turn that asks for tools."""
    return Asks(calls)


def call(tool: str, /, **arguments: Any) -> Call:
    """A tool call with these arguments."""
    return Call(tool, arguments)


class Rule(NamedTuple):
    """One rule of a model. sees: what must stand in the request's text; None: it always holds."""

    then: Turn
    sees: str | None = None


class Request(NamedTuple):
    """What a model was sent. text: all the words of the conversation and of its instructions.

    who: the helper whose request it is, empty for the agent's own.
    """

    protocol: str
    body: dict[str, Any]
    text: str
    who: str = ""


class Helper(NamedTuple):
    """The model of another agent: its rules, and its faults by the number of its own request."""

    rules: tuple[Rule, ...]
    faults: Mapping[int, Turn] = {}


class Script(NamedTuple):
    """What happens in a scenario.

    rules: the model's, of which the first that holds is followed. faults: instead of an answer, by the
    number of the request, from 1. tools: what each call of a tool gives, by the tool's name, the last one
    for ever: a text, an exception that it raises, `After`, `HANGS`, `CRASHES`, or a function of its
    argument that gives one of these.

    streamed: answers come in pieces, and each piece of words goes to `World.hear`. open_call: the
    conversation begins in the middle, behind this call, which has no result (see `World.before`).
    retries: how often the model's client tries again by itself. helpers: agents with the same tools,
    told `World.instructions` of their name, each of which the agent calls as a tool of that name with
    the text `input`. handoffs: the agent hands over to them instead (`transfer_to_ann`).
    """

    rules: tuple[Rule, ...]
    faults: Mapping[int, Turn] = {}
    tools: Mapping[str, Sequence[Any]] = {}
    streamed: bool = False
    open_call: Call | None = None
    retries: int = 0
    helpers: Mapping[str, Helper] = {}
    handoffs: bool = False


class After(NamedTuple):
    """A tool's call that ends with a result (or raises it) once another one has begun, within 10 s."""

    deed: str
    result: Any


class Deed(NamedTuple):
    """In a world's log: a tool's body has begun."""

    text: str


class Heard(NamedTuple):
    """In a world's log: the agent's caller was given a piece of an answer."""

    text: str


class _Hangs:
    def __repr__(self) -> str:
        return "HANGS"


class _Crashes:
    def __repr__(self) -> str:
        return "CRASHES"


HANGS: Any = _Hangs()
CRASHES: Any = _Crashes()


def unavailable() -> Exception:
    """What a tool raises whose service answers 503."""
    return status_error(Answer(503, "Service unavailable."), None)


class World:
    """A script as it is played. requests: what the models were sent, in order. deeds: the tool calls whose
    bodies began, as `charge(300)`. cancelled: the tools whose bodies saw a cancellation. log: requests,
    `Deed`, `Heard` and the events of the run, in the order in which they happened.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.deeds: list[str] = []
        self.cancelled: list[str] = []
        self.log: list[Any] = []
        self._given: dict[str, int] = {}
        self._crashed = ""
        self._lock = threading.Lock()
        self._reached = threading.Condition(self._lock)

    # The model ----------------------------------------------------------------------------------

    def answer(self, protocol: str, body: dict[str, Any]) -> Turn:
        """What the model does about a request; safe from any thread.

        protocol: `chat`, `responses`, `anthropic`, or `own` for a framework's own fake model, whose
        requests are then given as chat messages.
        """
        text = _words({name: item for name, item in body.items() if name in _TOLD})
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
            return asked.faults[number]
        for rule in asked.rules:
            if rule.sees is None or rule.sees in text:
                return rule.then
        raise AssertionError("no rule of the script holds; give it a last one without sees=…")

    async def ask(self, messages: Sequence[Any]) -> Says | Asks:
        """What a framework's own fake model answers to messages of chat form.

        Raises what a client would for a refusal, and never comes back where the provider hangs.
        """
        import anyio

        turn = self.answer("own", {"messages": list(messages)})
        if isinstance(turn, Fails):
            headers = {} if turn.retry_after is None else {"retry-after": f"{turn.retry_after:g}"}
            raise status_error(Answer(turn.status, turn.message, headers=headers), None)
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

    # What a bench builds of it --------------------------------------------------------------------

    def before(self) -> list[dict[str, Any]]:
        """What was said before the run, as chat messages; empty unless the script has an `open_call`."""
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
        """What a helper is told: by it the model knows whom it speaks for."""
        return f"You are {helper}, who helps."

    def hear(self, text: str) -> None:
        """The agent's caller is given a piece of an answer."""
        if text:
            with self._reached:
                self.log.append(Heard(text))
                self._reached.notify_all()

    def wait_until_cancelled(self, tool: str, seconds: float = 10.0) -> bool:
        """Wait, in a thread, until a tool's body has seen a cancellation; False if it does not."""
        with self._reached:
            return self._reached.wait_for(lambda: tool in self.cancelled, seconds)

    def check_alive(self) -> None:
        """Die where a tool has crashed that runs outside of the attempt: for the attempt's side of it."""
        if self._crashed:
            tool, self._crashed = self._crashed, ""
            self.die(tool)

    def die(self, tool: str) -> NoReturn:
        """End the process, as far as the attempt that this code runs in can tell."""
        die(here(), tool, None)

    def wait_until_heard(self, seconds: float = 2.0) -> None:
        """Wait, in a thread, until the caller was given more of an answer; no longer than this."""
        with self._reached:
            self._reached.wait_for(lambda: isinstance(self.log[-1], Heard), seconds)

    # The tools ----------------------------------------------------------------------------------

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
        """As `triage.wrap(effects=…)` takes it."""
        return {"search": "read", "charge": "once", **dict.fromkeys(self.script.helpers, "read")}

    async def _do(self, tool: str, given: Any, ordinary: str) -> str:
        with self._reached:
            self.deeds.append(f"{tool}({given})")
            self.log.append(Deed(self.deeds[-1]))
            number = self._given[tool] = self._given.get(tool, 0) + 1
            self._reached.notify_all()
        planned = self.script.tools.get(tool, (ordinary,))
        found = planned[min(number, len(planned)) - 1]
        if callable(found):
            found = found(given)
        if isinstance(found, After):
            await self._come_to(found.deed)
            found = found.result
        if found is HANGS:
            await self._hang(tool)
        if found is CRASHES:
            if here() is not None:
                self.die(tool)
            self._crashed = tool
            found = ordinary
        if isinstance(found, BaseException):
            raise found
        return str(found)

    async def _come_to(self, deed: str) -> None:
        import anyio

        began = await anyio.to_thread.run_sync(self.wait_for, deed, abandon_on_cancel=True)
        if not began:
            raise TimeoutError(f"{deed} has not begun beside this call")

    async def _hang(self, tool: str) -> None:
        import anyio

        try:
            await anyio.sleep(math.inf)
        except anyio.get_cancelled_exc_class():
            with self._reached:
                self.cancelled.append(tool)
                self._reached.notify_all()
            raise


_TOLD = ("messages", "input", "system", "instructions")


def _words(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "\n".join(_words(item) for item in value.values())
    if isinstance(value, list):
        return "\n".join(map(_words, value))
    return ""
