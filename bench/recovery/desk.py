"""What a contestant is given for one play, and how the play is judged."""

from __future__ import annotations

import asyncio
import functools
import random
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import openai

from .agents import SYSTEM, loop, prompt, turns_of
from .script import Model
from .server import Play, Server
from .tasks import Task
from .tools import Kit, tools_of
from .world import Clock, new_world

REAL_SECONDS = 30.0
"""A play that takes longer than this hangs."""
UNDECLARED = (
    "nothing declared: own loop",
    "nothing declared: langgraph",
    "nothing declared: pydantic-ai",
)
UNRECORDED = ("bare", "tenacity", "triage-agent", "ours: steps", *UNDECLARED)
"""Those who cannot give an answer of the model again: their oracle starts over, too."""
STOPPED_WITHIN = 3600.0
STOPPED_REQUESTS = 60
MOST_QUESTIONS = 3


class Unexpected(Exception):
    """The run asked a person where nothing was in doubt, or asked again and again."""


class LeftToAPerson(Exception):
    """The run waits for a person, who is to say whether changes may be made again."""


@dataclass
class Desk:
    """One play, as the contestant sees it."""

    play: Play
    kits: list[Kit]
    client: Any
    url: str
    model_http: Any
    sync_http: Any
    rng: random.Random
    story: list[str] = field(default_factory=list)
    under_way: Callable[[], int] = lambda: 0

    @property
    def task(self) -> Task:
        """What is to be done."""
        return self.play.task

    @property
    def questions(self) -> list[str]:
        """What a person was asked."""
        return self.play.questions

    @property
    def name(self) -> str:
        """The model to ask, by which the provider knows the play."""
        return self.play.id

    @property
    def clock(self) -> Clock:
        """The play's virtual seconds."""
        return self.play.world.clock

    @property
    def prompt(self) -> str:
        """What the user says."""
        return prompt(self.task)

    @property
    def turns(self) -> int:
        """How often the agent asks its model at most."""
        return turns_of(self.task)

    async def quiet(self) -> None:
        """Wait until no request is under way."""
        await asyncio.sleep(0)
        while self.under_way():  # noqa: ASYNC110 - a counter, no event
            await asyncio.sleep(0.001)

    def catching(self, kit: Kit) -> Any:
        """The tool; for an agent that handles errors, one that says them."""
        if not self.task.options.get("catches"):
            return kit.function

        @functools.wraps(kit.function)
        async def call(**arguments: Any) -> Any:
            try:
                return await kit.function(**arguments)
            except Exception as error:
                return f"error: {error}"

        return call

    def unanswered(self) -> str | None:
        """The receipt of the newest order in the ledger whose answer was lost."""
        orders = self.play.world.orders()
        lost = [call for call in self.play.calls if call.endswith("!lost")]
        if not lost or not orders:
            return None
        item, _ = orders[-1]
        return f"R-{item}-{len(orders)}"


@dataclass(frozen=True)
class Oracle:
    """What a task comes to when nothing goes wrong."""

    result: Any
    orders: list[tuple[str, int]]
    calls: int
    turns: list[str]
    over: int = 0
    """Model calls of the plain agent that is started over, told what was wrong, until it is right."""


Contestant = Callable[[Desk], Awaitable[Any]]


class Lab:
    """A server, its clients, and the plays of one process."""

    def __init__(self) -> None:
        self.server = Server()
        self.busy = 0
        self._oracles: dict[str, Oracle] = {}
        self.http = httpx.AsyncClient(timeout=10)
        self.model_http = openai.DefaultAsyncHttpxClient(timeout=10)
        self.sync_http = openai.DefaultHttpxClient(timeout=10)
        self.client = openai.AsyncOpenAI(
            base_url=f"{self.server.url}/v1",
            api_key="key",
            max_retries=0,
            http_client=self.model_http,
        )
        for client in (self.http, self.model_http):
            client.event_hooks = {}
            _counted(client, self)

    async def close(self) -> None:
        """Let go of everything."""
        await self.http.aclose()
        await self.client.close()
        self.sync_http.close()
        self.server.close()

    def desk(self, task: Task, name: str, *, faulty: bool) -> Desk:
        """Set the world up for one play."""
        model = Model(task)
        world = new_world(model.domain, task.seed)
        play = Play(name, task, world, model, (SYSTEM, prompt(task)), faulty)
        if task.options.get("bad_file"):
            bad = next(i for i in world.items if i.id == task.options["bad_id"])
            (world.folder / bad.file).unlink()
        if not faulty and task.options.get("stale"):
            world.reprice(model.wanted().id)
        self.server.plays[name] = play
        kits = tools_of(play, self.server.url, self.server.closed, self.http)
        rng = random.Random(f"{name}-{task.seed}")
        made = Desk(play, kits, self.client, self.server.url, self.model_http, self.sync_http, rng)
        made.under_way = lambda: self.busy
        return made

    async def oracle(self, task: Task) -> Oracle:
        """Play the task with nothing wrong, once, by the plain agent."""
        if task.id not in self._oracles:
            made = await self._oracle(task)
            if task.group == "recoverable":
                made = replace(made, over=await self._started_over(task, made))
            self._oracles[task.id] = made
        return self._oracles[task.id]

    async def _oracle(self, task: Task) -> Oracle:
        kept = (
            "greedy",
            "room",
            "last_room",
            "reworded",
            "bug",
            "substitute",
            "bad_file",
            "allowed",
        )
        options = {name: value for name, value in task.options.items() if name not in kept}
        whole = replace(task, slips=(), outages=(), breakages=(), options=options)
        if task.shape == "nobody":
            return Oracle(None, [], 3, [])
        desk = self.desk(whole, f"oracle {task.id}", faulty=False)
        tools = {kit.name: kit.function for kit in desk.kits}
        ask = self.client.chat.completions.create
        try:
            result = await loop(whole, desk.name, ask, tools, desk.kits, None)
            play = desk.play
            orders = play.world.orders()[: task.options.get("allowed")]
            return Oracle(result, orders, play.answered, play.requests)
        finally:
            self.end(desk)

    async def _started_over(self, task: Task, oracle: Oracle) -> int:
        """What a perfect recovery costs that cannot give an answer of the model again."""
        desk = self.desk(task, f"over {task.id}", faulty=True)
        desk.play.world.idempotent = True
        tools = {kit.name: kit.function for kit in desk.kits}
        ask = self.client.chat.completions.create
        hint = None
        words = [word for slip in task.slips for word in slip.words]
        try:
            for _ in range(6):
                try:
                    result = await loop(task, desk.name, ask, tools, desk.kits, hint)
                    wrong: object = "that was not the answer"
                    if result == oracle.result or task.finish == "text":
                        again = 0 if result == oracle.result else oracle.calls
                        return desk.play.answered + again
                except Exception as error:
                    wrong = error
                hint = f"The last attempt failed: {wrong}. {' '.join(words)}"
                desk.clock.sleep(400)
            return desk.play.answered
        finally:
            self.end(desk)

    def end(self, desk: Desk) -> None:
        """Whatever still runs of the play gets no answer any more; its folder goes."""
        desk.play.over = True
        shutil.rmtree(desk.play.world.folder, ignore_errors=True)

    async def play(self, contestant: str, made: Contestant, task: Task) -> dict[str, Any]:
        """Play one task and judge it."""
        oracle = await self.oracle(task)
        desk = self.desk(task, f"{contestant} {task.id}", faulty=True)
        began = time.perf_counter()
        result: Any = None
        error: BaseException | None = None
        status = "returned"
        try:
            async with asyncio.timeout(REAL_SECONDS):
                result = await made(desk)
        except TimeoutError as hung:
            status, error = ("hung" if _took(began) >= REAL_SECONDS else "raised"), hung
        except Unexpected as asked:
            status, error = "asked", asked
        except LeftToAPerson as left:
            status, error = "left", left
        except Exception as raised:
            status, error = "raised", raised
        finally:
            wall = _took(began)
            orders = desk.play.world.orders()
            self.end(desk)
        return judge(contestant, desk, oracle, status, result, error, orders) | {"wall_s": wall}


def _took(began: float) -> float:
    return round(time.perf_counter() - began, 4)


def _counted(client: Any, lab: Lab) -> None:
    """Know how many requests of a client are under way: sent, and not answered yet."""
    transport = client._transport
    handle = transport.handle_async_request

    async def counted(request: Any) -> Any:
        lab.busy += 1
        try:
            return await handle(request)
        finally:
            lab.busy -= 1

    transport.handle_async_request = counted


def judge(
    contestant: str,
    desk: Desk,
    oracle: Oracle,
    status: str,
    result: Any,
    error: BaseException | None,
    orders: list[tuple[str, int]],
) -> dict[str, Any]:
    """One line about a play: what came of it, and whether that is right."""
    task, play = desk.task, desk.play
    right_result = status == "returned" and result == oracle.result
    surplus = Counter(orders) - Counter(oracle.orders)
    repeated = sum(count for order, count in surplus.items())
    right_world = Counter(orders) == Counter(oracle.orders)
    if isinstance(task.wasted, str):
        wasted = len(oracle.turns) - oracle.turns.index(task.wasted)
    else:
        wasted = task.wasted
    line: dict[str, Any] = {
        "contestant": contestant,
        "task": task.id,
        "kind": task.kind,
        "group": task.group,
        "domain": task.domain,
        "shape": task.shape,
        "finish": task.finish,
        "status": status,
        "result": repr(result)[:200],
        "expected": repr(oracle.result)[:200],
        "error": None if error is None else f"{type(error).__name__}: {error}"[:600],
        "orders": orders,
        "expected_orders": oracle.orders,
        "repeated": repeated,
        "requests": play.requests,
        "tool_calls": play.calls,
        "answered": play.answered,
        "oracle": oracle.over if contestant in UNRECORDED else oracle.calls + wasted,
        "virtual_s": round(play.world.clock.now, 1),
        "heard_s": None
        if play.heard_at is None
        else round(play.heard_at - (play.broken_at or 0.0), 1),
        "questions": desk.questions,
        "story": desk.story,
        "slips": [repr(s) for s in (*task.slips, *task.outages, *task.breakages)],
    }
    if task.group == "hopeless":
        bounded = len(play.requests) <= STOPPED_REQUESTS and play.world.clock.now <= STOPPED_WITHIN
        bounded = bounded and len(desk.questions) <= MOST_QUESTIONS
        line["good"] = status in ("raised", "asked", "left") and bounded and not repeated
        line["wrong"] = status == "returned"
    elif task.group == "healthy":
        undisturbed = play.answered == oracle.calls and len(play.requests) == oracle.calls
        line["good"] = right_result and right_world and not desk.questions and undisturbed
        line["wrong"] = status == "returned" and not right_result
    elif status == "left":
        buys = (play.world.domain.act, "order_all")
        line["good"] = not repeated and any(call.startswith(buys) for call in play.calls)
        line["wrong"] = False
    else:
        line["good"] = right_result and right_world and (task.may_ask or not desk.questions)
        line["wrong"] = status == "returned" and not right_result
    return line
