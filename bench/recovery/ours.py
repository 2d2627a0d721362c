"""Ours, with every default: hand-written steps, `run.model`, `record(client)`, `wrap`, nothing declared."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import triage
from triage import (
    Agent,
    Checks,
    FailurePolicy,
    Step,
    Suspend,
    TriageSuspendedError,
    Usage,
    approve,
    happened,
    reject,
    rerun,
)
from triage.adapters import shrunk_chat
from triage.core import ActionChosen, AttemptFailed, RunSuspended, WatchNoticed
from triage.core.actions import Reply
from triage.core.messages.receipts import Shrink
from triage.engine import GuardedCall
from triage.stores import open_store

from .agents import SYSTEM, finish, loop, options_of
from .desk import MOST_QUESTIONS, Desk, LeftToAPerson, Unexpected
from .plain import asked, bare, configured, graph


class Virtual:
    """An environment whose seconds are the play's."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def time(self) -> float:
        """Seconds since the epoch, nearly."""
        return 1_800_000_000 + self._desk.clock.now

    def monotonic(self) -> float:
        """Seconds."""
        return self._desk.clock.now

    def random(self) -> float:
        """From 0 to 1."""
        return self._desk.rng.random()

    def new_id(self) -> str:
        """One of its own."""
        return uuid.UUID(int=self._desk.rng.getrandbits(128)).hex

    def new_token(self) -> str:
        """One of its own."""
        return self.new_id()

    async def sleep(self, seconds: float) -> None:
        """Wait while a request is under way, as it takes less than any of these; then be late at once."""
        await self._desk.quiet()
        self._desk.clock.sleep(seconds)


def options(desk: Desk) -> dict[str, Any]:
    """The same for every task: the recommended policy, a virtual clock, somebody who looks on."""

    def look(event: Any) -> None:
        match event:
            case AttemptFailed(attempt=number, diagnosis=diagnosis, error=error):
                desk.story.append(f"{number}: {diagnosis} <- {str(error)[:160]}")
            case ActionChosen(action=action, by=by, reason=reason):
                desk.story.append(f"   {str(action)[:200]} by {by}: {str(reason)[:200]}")
            case RunSuspended(question=question):
                desk.story.append(f"   asked: {str(question)[:200]}")
            case WatchNoticed():
                desk.story.append(f"   noticed: {str(event)[:200]}")

    def guard(call: GuardedCall) -> Suspend:
        return Suspend(f"buy {call.arguments['item_id']}?")

    desk.play.asks_first = False
    return {
        "policy": FailurePolicy.recommended(),
        "environment": Virtual(desk),
        "observers": [look],
        "checks": Checks(guard=guard if "allowed" in desk.task.options else None),
    }


async def run(desk: Desk, agent: Any, task: Any, **given: Any) -> Any:
    """Run it; questions are answered by somebody who looks into the ledger, or refuses purchases."""
    try:
        return await agent.run(task, **given)
    except TriageSuspendedError as waits:
        token, question = waits.token, str(waits.question)
    while True:
        answer = answered(desk, question)
        try:
            return await agent.resume(token, answer)
        except TriageSuspendedError as waits:
            token, question = waits.token, str(waits.question)


def answered(desk: Desk, question: str) -> Reply:
    """Answer a question. Raises Unexpected for a needless one, and for one too many."""
    if len(desk.questions) >= MOST_QUESTIONS:
        desk.questions.append(question)
        raise Unexpected(f"asked again: {question}")
    if "allowed" in desk.task.options:
        return approve() if desk.play.allows(question) else reject("it is not to be bought")
    desk.questions.append(question)
    if not desk.task.may_ask:
        raise Unexpected(f"asked: {question}")
    receipt = desk.unanswered()
    return rerun() if receipt is None else happened({"receipt": receipt})


def recorded_tools(desk: Desk) -> dict[str, Any]:
    """The tools, with what each does to the world."""
    made: dict[str, Any] = {}
    for kit in desk.kits:
        tool: Callable[..., Any] = triage.tool(effect=kit.effect)
        made[kit.name] = tool(kit.function)
    return made


async def steps(desk: Desk) -> Any:
    """A plain client; each answer is a step written by hand."""
    tools = recorded_tools(desk)

    async def agent(_task: str, *, record_step: Any, _triage_hint: str | None = None) -> Any:
        async def ask(**request: Any) -> Any:
            answer = await desk.client.chat.completions.create(**request)
            said = answer.choices[0].message
            used = Usage(answer.usage.prompt_tokens, answer.usage.completion_tokens)
            record_step(Step(action="model", llm_output=said.content or "", usage=used))
            return answer

        return await loop(desk.task, desk.name, ask, tools, desk.kits, _triage_hint)

    return await run(desk, Agent(agent, **options(desk)), desk.prompt)


async def model(desk: Desk) -> Any:
    """A plain client, asked through `run.model` by a loop that does what a recovery asks of a request."""
    tools = recorded_tools(desk)

    async def agent(_task: str, *, run: Any, _triage_hint: str | None = None) -> Any:
        async def ask(**request: Any) -> Any:
            request["messages"] = shrunk_chat(request["messages"], Shrink.of(run.guidance, run))
            if _triage_hint:
                request["messages"].append({"role": "user", "content": _triage_hint})
            return await run.model(desk.client.chat.completions.create, **request)

        return await loop(desk.task, desk.name, ask, tools, desk.kits, None)

    return await run(desk, Agent(agent, **options(desk)), desk.prompt)


async def client(desk: Desk) -> Any:
    """A client that `record` was given."""
    from triage.adapters.openai import record

    tools = recorded_tools(desk)
    recorded = record(desk.client)

    async def agent(_task: str) -> Any:
        ask = recorded.chat.completions.create
        return await loop(desk.task, desk.name, ask, tools, desk.kits, None)

    return await run(desk, Agent(agent, **options(desk)), desk.prompt)


async def langgraph(desk: Desk) -> Any:
    """`wrap` around a graph with an agent of LangChain's `create_agent` in it."""
    effects = {kit.name: kit.effect for kit in desk.kits}
    agent = triage.wrap(graph(desk), effects=effects, **options(desk))
    state = await run(desk, agent, asked(desk), config=configured(desk))
    return state["result"]


def pydantic_agent(desk: Desk) -> Any:
    """An agent of Pydantic AI; its output validator reads the answer."""
    from pydantic_ai import Agent as PydanticAgent
    from pydantic_ai import RunContext, Tool
    from pydantic_ai.messages import ModelRequest, ToolReturnPart
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    chat = OpenAIChatModel(desk.name, provider=OpenAIProvider(openai_client=desk.client))
    kind: Any = PydanticAgent
    made = kind(
        chat,
        output_type=str,
        system_prompt=SYSTEM,
        tools=[
            Tool(desk.catching(kit), name=kit.name, description=kit.function.__doc__)
            for kit in desk.kits
        ],
        model_settings=dict(options_of(desk.task)),
    )

    def read(context: RunContext[Any], text: str) -> Any:
        requests = [m for m in context.messages if isinstance(m, ModelRequest)]
        parts = [part for request in requests for part in request.parts]
        results = [_plain(part) for part in parts if isinstance(part, ToolReturnPart)]
        return finish(desk.task, text, results)

    made.output_validator(read)
    return made


async def pydantic_ai(desk: Desk) -> Any:
    """`wrap` around an agent of Pydantic AI."""
    from pydantic_ai import UsageLimits

    effects = {kit.name: kit.effect for kit in desk.kits}
    agent = triage.wrap(pydantic_agent(desk), effects=effects, **options(desk))
    limits = UsageLimits(request_limit=desk.turns)
    result = await run(desk, agent, desk.prompt, usage_limits=limits)
    return result.output


def _plain(part: Any) -> Any:
    try:
        return json.loads(part.model_response_str())
    except ValueError:
        return part.model_response_str()


async def undeclared(desk: Desk, function: Callable[[str], Any]) -> Any:
    """Run a function of which nothing is declared. Raises LeftToAPerson where it waits for one."""
    store = open_store(f"sqlite:///{desk.play.world.folder}/runs.db")
    own = options(desk) | {"checks": Checks(), "store": store}
    desk.play.asks_first = True
    try:
        return await Agent(function, **own).run(desk.prompt)
    except TriageSuspendedError as waits:
        raise LeftToAPerson(str(waits.question)) from waits
    finally:
        await store.close()


async def undeclared_loop(desk: Desk) -> Any:
    """The plain loop in a bare function."""

    async def agent(_task: str) -> Any:
        return await bare(desk)

    return await undeclared(desk, agent)


async def undeclared_langgraph(desk: Desk) -> Any:
    """A graph that a bare function invokes."""
    made = graph(desk)

    async def agent(_task: str) -> Any:
        state = await made.ainvoke(asked(desk), config=configured(desk))
        return state["result"]

    return await undeclared(desk, agent)


async def undeclared_pydantic_ai(desk: Desk) -> Any:
    """An agent of Pydantic AI that a bare function runs."""
    from pydantic_ai import UsageLimits

    made = pydantic_agent(desk)

    async def agent(task: str) -> Any:
        limits = UsageLimits(request_limit=desk.turns)
        return (await made.run(task, usage_limits=limits)).output

    return await undeclared(desk, agent)


CONTESTANTS = {
    "ours: steps": steps,
    "ours: run.model": model,
    "ours: record": client,
    "ours: langgraph": langgraph,
    "ours: pydantic-ai": pydantic_ai,
    "nothing declared: own loop": undeclared_loop,
    "nothing declared: langgraph": undeclared_langgraph,
    "nothing declared: pydantic-ai": undeclared_pydantic_ai,
}
