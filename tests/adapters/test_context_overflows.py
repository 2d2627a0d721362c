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
from langchain_openai import ChatOpenAI
from pydantic import SecretStr
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from store_kinds import EXAMPLES
from tables import covering

import triage
from triage import Agent, TriageEscalationError
from triage.adapters import shrunk_chat
from triage.adapters.anthropic import record as record_anthropic
from triage.adapters.anthropic import run_tools as run_anthropic
from triage.adapters.openai import record as record_openai
from triage.adapters.openai import run_tools as run_openai
from triage.core import ActionChosen, Event
from triage.core.capture import capture
from triage.core.messages.receipts import Shrink
from triage.testing import VirtualTime

sdk.set_tracing_disabled(disabled=True)
capture(triage.UsageError())

# A framework's attempt that failed leaves coroutines behind.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

TASK = "Read the pages, then write the mails."
PAGE = "x" * 3_000
MOST_REQUESTS = 60
CALL = re.compile(r"(read_page|send_email)\((\{.*?\})\)")
Part = tuple[str, dict[str, Any]]


class Model:
    """A provider whose window becomes smaller. limit: characters it takes. narrows: at which parts of the
    work the window shrinks, to a bit less than the request that asks for them. page: what each page says.
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
        self.plan = plan
        self.page = page
        self.limit = limit
        self.narrows = list(narrows)
        self.narrowest = (-1, 0)
        self.told = told
        self.sizes: list[tuple[int, bool]] = []
        self.overflows = 0
        self.mails: list[str] = []
        self.asked = 0
        self.client = httpx2.AsyncClient(transport=httpx2.MockTransport(self._answer))

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        items = body.get("input") or body["messages"]
        size = len(json.dumps(items))
        seen = list(_seen(items))
        part = next((one for one in self.plan if one not in seen), None)
        if part is not None and self.plan.index(part) in self.narrows:
            self.narrows.remove(self.plan.index(part))
            self.limit = min(self.limit, max(size * 19 // 20, FLOOR))
        if len(self.mails) == self.narrowest[0]:
            self.limit = self.narrowest[1]
        fits = size <= self.limit
        self.sizes.append((size, fits))
        if len(self.sizes) > MOST_REQUESTS:
            raise AssertionError("the run does not end")
        if not fits:
            self.overflows += 1
            return httpx2.Response(400, json={"type": "error", "error": self._refusal(size)})
        self.asked += 1
        return httpx2.Response(200, json=_FORMS[request.url.path](part, self.asked))

    def _refusal(self, size: int) -> dict[str, str]:
        message = "Your input exceeds the context window of this model."
        if self.told:
            message = (
                f"This model's maximum context length is {self.limit // 4} tokens. However, your messages "
                f"resulted in {size // 4} tokens. Please reduce the length of the messages."
            )
        return {"message": message, "code": "context_length_exceeded", "type": "invalid_request"}


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


def _chat(part: Part | None, number: int) -> Any:
    said: dict[str, Any] = {"role": "assistant", "content": "done"}
    if part is not None:
        function = {"name": part[0], "arguments": json.dumps(part[1])}
        call = {"id": f"c{number}", "type": "function", "function": function}
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
    ended = "stop" if part is None else "tool_calls"
    return {
        "id": "x", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": said, "finish_reason": ended}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18},
    }  # fmt: skip


def _words(part: Part | None, number: int) -> Any:
    made = _chat(None, number)
    text = "done" if part is None else f"{part[0]}({json.dumps(part[1])})"
    made["choices"][0]["message"]["content"] = text
    return made


def _responses(part: Part | None, number: int) -> Any:
    text = {"type": "output_text", "text": "done", "annotations": []}
    item: dict[str, Any] = {
        "type": "message", "id": f"m{number}", "role": "assistant", "status": "completed",
        "content": [text],
    }  # fmt: skip
    if part is not None:
        item = {
            "type": "function_call", "id": f"f{number}", "call_id": f"c{number}",
            "name": part[0], "arguments": json.dumps(part[1]), "status": "completed",
        }  # fmt: skip
    return {
        "id": "r", "object": "response", "created_at": 1, "model": "m", "status": "completed",
        "output": [item], "parallel_tool_calls": False, "tool_choice": "auto", "tools": [],
        "usage": {
            "input_tokens": 9, "output_tokens": 9, "total_tokens": 18,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }  # fmt: skip


def _anthropic(part: Part | None, number: int) -> Any:
    block: dict[str, Any] = {"type": "text", "text": "done"}
    if part is not None:
        block = {"type": "tool_use", "id": f"c{number}", "name": part[0], "input": part[1]}
    return {
        "id": "m", "type": "message", "role": "assistant", "model": "m", "content": [block],
        "stop_reason": "end_turn" if part is None else "tool_use", "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 9},
    }  # fmt: skip


_FORMS: dict[str, Callable[[Part | None, int], Any]] = {
    "/v1/chat/completions": _chat,
    "/text/chat/completions": _words,
    "/v1/responses": _responses,
    "/v1/messages": _anthropic,
}


def _openai(model: Model, base: str = "v1") -> openai.AsyncOpenAI:
    url = f"http://provider/{base}"
    return openai.AsyncOpenAI(api_key="x", base_url=url, max_retries=0, http_client=model.client)


def _claude(model: Model) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        api_key="x", base_url="http://provider", max_retries=0, http_client=model.client
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

WAYS: dict[str, Callable[[Model], Any]] = {}


def way(build: Callable[[Model], Any]) -> Callable[[Model], Any]:
    """Enter what makes an agent function, or an agent, for a model."""
    WAYS[build.__name__] = build
    return build


async def _native(ask: Callable[[Any], Awaitable[Any]], tools: dict[str, Any], task: str) -> str:
    messages: list[Any] = [{"role": "user", "content": task}]
    while True:
        said = (await ask(messages)).choices[0].message
        if not said.tool_calls:
            return str(said.content)
        messages.append(said.model_dump(exclude_none=True))
        for call in said.tool_calls:
            given = json.loads(call.function.arguments)
            found = await tools[call.function.name](**given)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": found})


async def _text(ask: Callable[[Any], Awaitable[Any]], tools: dict[str, Any], task: str) -> str:
    messages: list[Any] = [{"role": "user", "content": task}]
    while True:
        text = (await ask(messages)).choices[0].message.content
        messages.append({"role": "assistant", "content": text})
        asked = CALL.fullmatch(text)
        if asked is None:
            return str(text)
        found = await tools[asked[1]](**json.loads(asked[2]))
        messages.append({"role": "user", "content": f"Result: {found}"})


@way
def own_chat(model: Model) -> Any:
    client, tools = record_openai(_openai(model)), _tools(model)

    async def work(task: str) -> str:
        create = client.chat.completions.create
        return await _native(lambda messages: create(model="m", messages=messages), tools, task)

    return work


@way
def own_text(model: Model) -> Any:
    client, tools = record_openai(_openai(model, "text")), _tools(model)

    async def work(task: str) -> str:
        create = client.chat.completions.create
        return await _text(lambda messages: create(model="m", messages=messages), tools, task)

    return work


def _said(hint: str | None) -> list[Any]:
    return [{"role": "user", "content": hint}] if hint else []


@way
def run_model_chat(model: Model) -> Any:
    client, tools = _openai(model), _tools(model)

    async def work(task: str, *, run: Any, _triage_hint: str | None = None) -> str:
        async def ask(messages: Any) -> Any:
            given = shrunk_chat(messages, Shrink.of(run.guidance, run))
            given = [*given, *_said(_triage_hint)]
            return await run.model(client.chat.completions.create, model="m", messages=given)

        return await _native(ask, tools, task)

    return work


@way
def run_model_text(model: Model) -> Any:
    client, tools = _openai(model, "text"), _tools(model)

    async def work(task: str, *, run: Any) -> str:
        async def ask(messages: Any) -> Any:
            given = shrunk_chat(messages, Shrink.of(run.guidance, run))
            given += _said(run.guidance.hint)
            return await run.model(client.chat.completions.create, model="m", messages=given)

        return await _text(ask, tools, task)

    return work


@way
def own_responses(model: Model) -> Any:
    client, tools = record_openai(_openai(model)), _tools(model)

    async def work(task: str) -> str:
        items: list[Any] = [{"role": "user", "content": task}]
        while True:
            made = await client.responses.create(model="m", input=items)
            calls = [item for item in made.output if item.type == "function_call"]
            if not calls:
                return made.output_text
            for call in calls:
                items.append(call.model_dump(exclude_none=True))
                found = await tools[call.name](**json.loads(call.arguments))
                output = {"type": "function_call_output", "call_id": call.call_id, "output": found}
                items.append(output)

    return work


@way
def own_anthropic(model: Model) -> Any:
    client, tools = record_anthropic(_claude(model)), _tools(model)

    async def work(task: str) -> str:
        messages: list[Any] = [{"role": "user", "content": task}]
        while True:
            made = await client.messages.create(model="m", max_tokens=500, messages=messages)
            calls = [block for block in made.content if block.type == "tool_use"]
            if not calls:
                return str(made.content[0].text)  # type: ignore[union-attr]
            said = [block.model_dump(exclude_none=True) for block in made.content]
            messages.append({"role": "assistant", "content": said})
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": call.id,
                    "content": await tools[call.name](**call.input),
                }
                for call in calls
            ]
            messages.append({"role": "user", "content": results})

    return work


@way
def tools_openai(model: Model) -> Any:
    client, tools = record_openai(_openai(model)), _tools(model)

    async def work(task: str) -> str:
        return (await run_openai(client, task, model="m", tools=tools.values(), turns=80)).text

    return work


@way
def tools_anthropic(model: Model) -> Any:
    client, tools = record_anthropic(_claude(model)), _tools(model)

    async def work(task: str) -> str:
        asked = run_anthropic(
            client, task, model="m", max_tokens=500, tools=tools.values(), turns=80
        )
        return (await asked).text

    return work


@way
def langgraph(model: Model) -> Any:
    chat = ChatOpenAI(
        model="m",
        base_url="http://provider/v1",
        api_key=SecretStr("x"),
        max_retries=0,
        http_async_client=model.client,
    )
    tools = [StructuredTool.from_function(coroutine=one) for one in _functions(model)]
    graph: Any = create_agent(chat, tools).with_config({"recursion_limit": 200})
    return triage.wrap(graph, effects=EFFECTS, environment=VirtualTime())


@way
def pydantic(model: Model) -> Any:
    chat = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=_openai(model)))
    agent = pydantic_ai.Agent(chat, tools=_functions(model))
    return triage.wrap(agent, effects=EFFECTS, environment=VirtualTime())


@way
def openai_agents(model: Model) -> Any:
    tools: list[sdk.Tool] = [sdk.function_tool(one) for one in _functions(model)]
    responses = sdk.OpenAIResponsesModel("m", _openai(model))
    agent: Any = sdk.Agent(name="clerk", model=responses, tools=tools)
    return triage.wrap(agent, effects=EFFECTS, environment=VirtualTime())


def _agent(model: Model, name: str) -> Agent[Any]:
    made = WAYS[name](model)
    return made if isinstance(made, Agent) else Agent(made, environment=VirtualTime())


async def _run(model: Model, name: str) -> Any:
    kwargs: dict[str, Any] = {"max_turns": 200} if name == "openai_agents" else {}
    task: Any = {"messages": [("user", TASK)]} if name == "langgraph" else TASK
    async with model.client:
        return await _agent(model, name).run(task, **kwargs)


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


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
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
    assert model.overflows <= (overflows if told else 2 * overflows), model.sizes


WIRES = ("run_model_chat", "own_text", "openai_agents", "own_anthropic", "langgraph", "pydantic")
"""A way for each form of a conversation."""


@pytest.mark.anyio
@pytest.mark.parametrize("name", WAYS if EXAMPLES > 1 else WIRES)
async def test_receipts_of_many_effects_become_short_and_none_is_dropped(name: str) -> None:
    plan: list[Part] = [("send_email", {"to": f"p{n}@x.org"}) for n in range(40)]
    model = Model([("read_page", {"n": 1}), *plan], 7_000, (32,))
    await _run(model, name)
    assert model.mails == [part["to"] for _, part in plan]


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["own_chat", "own_text", "langgraph", "pydantic"])
async def test_where_receipts_alone_do_not_fit_the_run_ends_and_says_so(name: str) -> None:
    plan: list[Part] = [("send_email", {"to": f"person.number{n}@x.org"}) for n in range(40)]
    model = Model(plan, 6_000)
    model.narrowest = 30, 1_000
    with pytest.raises(TriageEscalationError, match=r"receipts"):
        await _run(model, name)
    assert model.mails == [part["to"] for _, part in plan][:30]


@pytest.mark.anyio
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


@pytest.mark.anyio
async def test_a_size_that_an_action_names_holds_until_the_run_ends() -> None:
    sizes: list[int | None] = []

    def keep(event: Event) -> None:
        if isinstance(event, ActionChosen):
            sizes.append(getattr(event.action, "max_characters", None))

    model = Model(MIXED, 17_400, (14,))
    work = WAYS["own_chat"](model)
    async with model.client:
        await Agent(work, environment=VirtualTime(), observers=[keep]).run(TASK)
    known = [size for size in sizes if size is not None]
    assert len(known) == 2
    assert all(later < earlier for earlier, later in pairwise(known))
