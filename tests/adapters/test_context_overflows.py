"""A context that overflows, once or more often: each effect is made once, and each later request fits.

The model knows only its request: it asks for the first part of the work that it cannot see there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import agents as sdk
import anthropic
import httpx2
import openai
import pydantic_ai
import pytest
from langchain.agents import create_agent
from langchain_core.tools import StructuredTool
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from store_kinds import EXAMPLES
from tables import covering

import triage
from adapters.langchain_agents import chat_model
from triage import Agent, TriageEscalationError, current_run
from triage.adapters import shrunk_chat
from triage.adapters.anthropic import record as record_anthropic
from triage.adapters.anthropic import run_tools as run_anthropic
from triage.adapters.openai import record as record_openai
from triage.adapters.openai import run_tools as run_openai
from triage.core.events import ActionChosen, Event
from triage.core.messages.receipts import Shrink
from triage.testing import VirtualTime
from triage.testing.adapter_contract import (
    Call,
    Fails,
    Request,
    Script,
    World,
    asks,
    loopback,
    says,
)

from .own_loops import Called, Chat, Messages, Responses, by_table

sdk.set_tracing_disabled(disabled=True)
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]

TASK = "Read the pages, then write the mails."
PAGE = "x" * 3_000
MOST_REQUESTS = 60
CALL = re.compile(r"(read_page|send_email)\((\{.*?\})\)")
Part = tuple[str, dict[str, Any]]


class Model(World):
    """A provider whose window becomes smaller. limit: characters it takes. narrows: at which parts of the
    work the window shrinks, to a bit less than the request that asks for them. page: what each page says.
    in_words: it asks for tools in its words.
    """

    def __init__(
        self,
        plan: list[Part],
        limit: int,
        narrows: tuple[int, ...] = (),
        *,
        told: bool = True,
        page: str = PAGE,
    ) -> None:
        super().__init__(Script(()))
        self.plan = plan
        self.page = page
        self.limit = limit
        self.narrows = list(narrows)
        self.narrowest = (-1, 0)
        self.told = told
        self.in_words = False
        self.overflows = 0
        self.mails: list[str] = []
        self.asked = 0
        self.url = ""
        self.client = httpx2.AsyncClient()

    def answer(self, protocol: str, body: dict[str, Any]) -> Any:
        items = body.get("input") or body["messages"]
        size = len(json.dumps(items))
        seen = list(_seen(items))
        part = next((one for one in self.plan if one not in seen), None)
        if part is not None and self.plan.index(part) in self.narrows:
            self.narrows.remove(self.plan.index(part))
            self.limit = min(self.limit, max(size * 19 // 20, FLOOR))
        if len(self.mails) == self.narrowest[0]:
            self.limit = self.narrowest[1]
        self.requests.append(Request(protocol, body, ""))
        if size > self.limit:
            self.overflows += 1
            return Fails(400, self._refusal(size), None, "context_length_exceeded")
        self.asked += 1
        if part is None:
            return says("done")
        name, given = part
        return says(f"{name}({json.dumps(given)})") if self.in_words else asks(Call(name, given))

    def _refusal(self, size: int) -> str:
        if not self.told:
            return "Your input exceeds the context window of this model."
        return (
            f"This model's maximum context length is {self.limit // 4} tokens. However, your messages "
            f"resulted in {size // 4} tokens. Please reduce the length of the messages."
        )


def _seen(items: list[Any]) -> Iterator[Part]:
    """All calls that a conversation shows, as calls or in words."""
    for item in items:
        if item.get("type") == "function_call":
            yield item["name"], json.loads(item["arguments"])
        for call in item.get("tool_calls") or ():
            yield call["function"]["name"], json.loads(call["function"]["arguments"])
        content = item.get("content")
        for block in content if isinstance(content, list) else [{"text": content}]:
            if block.get("type") == "tool_use":
                yield block["name"], block["input"]
            for name, given in CALL.findall(str(block.get("text"))):
                yield name, json.loads(given)


def _openai(model: Model) -> openai.AsyncOpenAI:
    url = f"{model.url}/v1"
    return openai.AsyncOpenAI(api_key="x", base_url=url, max_retries=0, http_client=model.client)


def _claude(model: Model) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        api_key="x", base_url=model.url, max_retries=0, http_client=model.client
    )


def _functions(model: Model) -> tuple[Callable[..., Awaitable[str]], ...]:
    async def read_page(n: int) -> str:
        """Read a page."""
        return f"page {n}: {model.page}"

    async def send_email(to: str) -> str:
        """Send a mail."""
        model.mails.append(to)
        return f"sent {len(model.mails)}"

    return read_page, send_email


EFFECTS = {"read_page": "read", "send_email": "once"}


def _tools(model: Model) -> dict[str, Any]:
    return {
        function.__name__: triage.tool(effect=EFFECTS[function.__name__])(function)
        for function in _functions(model)
    }


# The ways -------------------------------------------------------------------------------------------


class Words(Chat):
    """Calls stand in the model's words, and results in the user's."""

    def take(self, completion: Any) -> list[Called]:
        self.text = completion.choices[0].message.content
        self.messages.append({"role": "assistant", "content": self.text})
        asked = CALL.fullmatch(self.text)
        return [Called(None, asked[1], json.loads(asked[2]))] if asked else []

    def give(self, results: list[tuple[Called, str]]) -> None:
        self.messages += [{"role": "user", "content": f"Result: {text}"} for _, text in results]


def _loop(model: Model, talk: Any, ask: Callable[[Any], Awaitable[Any]]) -> Any:
    model.in_words = talk is Words
    tools = _tools(model)

    async def work(task: str) -> str:
        said = talk(task)
        while calls := said.take(await ask(said.messages)):
            said.give([(one, await by_table(tools, one)) for one in calls])
        return str(said.text)

    return work


def own_chat(model: Model, talk: Any = Chat) -> Any:
    create: Any = record_openai(_openai(model)).chat.completions.create
    return _loop(model, talk, lambda messages: create(model="m", messages=messages))


def own_text(model: Model) -> Any:
    return own_chat(model, Words)


def run_model_chat(model: Model, talk: Any = Chat) -> Any:
    create = _openai(model).chat.completions.create

    async def ask(messages: Any) -> Any:
        run = current_run()
        given = shrunk_chat(messages, Shrink.of(run.guidance, run))
        hint = run.guidance.hint
        told = [*given, {"role": "user", "content": hint}] if hint else given
        return await run.model(create, model="m", messages=told)

    return _loop(model, talk, ask)


def run_model_text(model: Model) -> Any:
    return run_model_chat(model, Words)


def own_responses(model: Model) -> Any:
    create = record_openai(_openai(model)).responses.create
    return _loop(model, Responses, lambda items: create(model="m", input=items))


def own_anthropic(model: Model) -> Any:
    create: Any = record_anthropic(_claude(model)).messages.create
    asked: dict[str, Any] = {"model": "m", "max_tokens": 500}
    return _loop(model, Messages, lambda messages: create(messages=messages, **asked))


def tools_openai(model: Model) -> Any:
    client, tools = record_openai(_openai(model)), _tools(model)

    async def work(task: str) -> str:
        return (await run_openai(client, task, model="m", tools=tools.values(), turns=80)).text

    return work


def tools_anthropic(model: Model) -> Any:
    client, tools = record_anthropic(_claude(model)), _tools(model)

    async def work(task: str) -> str:
        asked = run_anthropic(
            client, task, model="m", max_tokens=500, tools=tools.values(), turns=80
        )
        return (await asked).text

    return work


def langgraph(model: Model) -> Any:
    chat = chat_model(model.url, http_async_client=model.client)
    tools = [StructuredTool.from_function(coroutine=one) for one in _functions(model)]
    graph: Any = create_agent(chat, tools).with_config({"recursion_limit": 200})
    return triage.wrap(graph, effects=EFFECTS, environment=VirtualTime())


def pydantic(model: Model) -> Any:
    chat = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=_openai(model)))
    agent = pydantic_ai.Agent(chat, tools=_functions(model))
    return triage.wrap(agent, effects=EFFECTS, environment=VirtualTime())


def openai_agents(model: Model) -> Any:
    tools: list[sdk.Tool] = [sdk.function_tool(one) for one in _functions(model)]
    responses = sdk.OpenAIResponsesModel("m", _openai(model))
    agent: Any = sdk.Agent(name="clerk", model=responses, tools=tools)
    return triage.wrap(agent, effects=EFFECTS, environment=VirtualTime())


WAYS: dict[str, Callable[[Model], Any]] = {
    way.__name__: way
    for way in (
        own_chat, own_text, run_model_chat, run_model_text, own_responses, own_anthropic,
        tools_openai, tools_anthropic, langgraph, pydantic, openai_agents,
    )
}  # fmt: skip


async def _run(model: Model, name: str, **options: Any) -> Any:
    """What the way comes to. options: of the agent's."""
    kwargs: dict[str, Any] = {"max_turns": 200} if name == "openai_agents" else {}
    task: Any = {"messages": [("user", TASK)]} if name == "langgraph" else TASK
    with loopback(model) as model.url:
        async with model.client:
            made = WAYS[name](model)
            if not isinstance(made, Agent):
                made = Agent(made, environment=VirtualTime(), **options)
            try:
                return await made.run(task, **kwargs)
            finally:
                assert len(model.requests) <= MOST_REQUESTS, "the run does not end"


# What must hold ---------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A window. limit, narrows, told, page: as of `Model`. mixed: mails are sent between the pages."""

    limit: int
    narrows: tuple[int, ...] = ()
    told: bool = True
    mixed: bool = False
    page: str = PAGE


ENDLESS, FLOOR = 1_000_000, 2_500
FIVE = (13, 15, 17, 19, 21)
CASES = {
    "one, narrow": Case(8_000, mixed=True),
    "two": Case(17_400, (14,)),
    "two, of which one by a page": Case(12_000, (14,), page=PAGE * 5),
    "two, untold": Case(17_400, (14,), told=False),
    "five": Case(ENDLESS, FIVE),
    "five, mixed": Case(ENDLESS, FIVE, mixed=True),
}
PLAN: list[Part] = [("read_page", {"n": n}) for n in range(1, 13)]
PLAN += [("send_email", {"to": f"p{n}@x.org"}) for n in range(1, 13)]
MIXED = [part for pair in zip(PLAN[:12], PLAN[12:], strict=True) for part in pair]


@pytest.mark.parametrize(("name", "case"), covering(WAYS, CASES, times=2))
async def test_each_effect_is_made_once_and_each_later_request_fits(name: str, case: str) -> None:
    limit, narrows, told, mixed, page = CASES[case]
    plan = MIXED if mixed else PLAN
    model = Model(plan, limit, narrows, told=told, page=page)
    overflows = len(narrows) + (limit < ENDLESS)
    await _run(model, name)
    assert model.mails == [part["to"] for tool, part in plan if tool == "send_email"]
    assert model.asked <= len(plan) + 1 + 2 * overflows, "what was read is read again and again"
    assert model.overflows >= min(overflows, 3)
    assert model.overflows <= (overflows if told else 2 * overflows)


WIRES = ("run_model_chat", "own_text", "openai_agents", "own_anthropic", "langgraph", "pydantic")
"""A way for each form of a conversation."""


@pytest.mark.parametrize("name", WAYS if EXAMPLES > 1 else WIRES)
async def test_receipts_of_many_effects_become_short_and_none_is_dropped(name: str) -> None:
    plan: list[Part] = [("send_email", {"to": f"p{n}@x.org"}) for n in range(40)]
    model = Model([("read_page", {"n": 1}), *plan], 7_000, (32,))
    await _run(model, name)
    assert model.mails == [part["to"] for _, part in plan]


@pytest.mark.parametrize("name", ["own_chat", "own_text", "langgraph", "pydantic"])
async def test_where_receipts_alone_do_not_fit_the_run_ends_and_says_so(name: str) -> None:
    plan: list[Part] = [("send_email", {"to": f"person.number{n}@x.org"}) for n in range(40)]
    model = Model(plan, 6_000)
    model.narrowest = 30, 1_000
    with pytest.raises(TriageEscalationError, match=r"receipts"):
        await _run(model, name)
    assert model.mails == [part["to"] for _, part in plan][:30]


async def test_a_receipt_hides_credentials_and_cuts_long_arguments() -> None:
    key = "sk-proj-" + "a1B2c3D4" * 5
    sent: list[str] = []
    seen: list[str] = []

    @triage.tool(effect="once")
    async def store_key(value: str, note: str) -> str:
        sent.append(note[:2])
        return "stored"

    async def ask(messages: list[Any]) -> str:
        seen.append(json.dumps(messages))
        if len(seen[-1]) > 9_000:
            raise openai.BadRequestError(
                "maximum context length is 2000 tokens, your messages resulted in 4350 tokens",
                response=httpx2.Response(400, request=httpx2.Request("POST", "http://p")),
                body={"code": "context_length_exceeded"},
            )
        return "done" if len(sent) == 5 else "more"

    async def work(task: str, *, run: Any) -> str:
        messages: list[Any] = [{"role": "user", "content": task}]
        while True:
            given = shrunk_chat(messages, Shrink.of(run.guidance, run))
            said = await run.model(ask, given)
            if said == "done":
                return str(said)
            at = len(messages) // 2
            messages.append({"role": "assistant", "content": "store_key"})
            found = await store_key(key, f"{at}{'n' * 3_000}")
            messages.append({"role": "user", "content": f"{found} {'n' * 3_000}"})

    await Agent(work, environment=VirtualTime()).run("Store the keys.")
    told = next(text for text in seen[::-1] if "store_key(" in text)
    assert key not in told
    assert "nnn" in told
    assert len(told) < 9_000
    assert len(sent) == 5


async def test_a_size_that_an_action_names_holds_until_the_run_ends() -> None:
    sizes: list[int | None] = []

    def keep(event: Event) -> None:
        if isinstance(event, ActionChosen):
            sizes.append(getattr(event.action, "max_characters", None))

    model = Model(MIXED, 17_400, (14,))
    await _run(model, "own_chat", observers=[keep])
    known = [size for size in sizes if size is not None]
    assert len(known) == 2
    assert all(later < earlier for earlier, later in pairwise(known))
