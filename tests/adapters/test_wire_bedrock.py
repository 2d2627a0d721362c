"""Bedrock by boto3 and by Anthropic's client, Ollama and Cohere by plain HTTP: nothing is declared."""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import botocore.endpoint  # type: ignore[import-untyped]  # it has no types
import pytest
from botocore.exceptions import ClientError, EventStreamError  # type: ignore[import-untyped]  # as above
from llm_server import Handler, Reply, Request, Server, cut_off, fails, serving
from support import always, on_both_backends
from tables import table

import triage
from triage import Agent, FailurePolicy, Replan, Retry, Step, TriageEscalationError
from triage.adapters.calls import UnfinishedStream
from triage.core import AttemptFailed, StepRecorded
from triage.engine.run import current
from triage.stores import SQLiteStore
from triage.strategies import switch_model
from triage.testing import Crash, VirtualTime
from triage.testing.adapter_contract import Request as Sent
from triage.testing.adapter_contract import check_wire
from triage.testing.faults import die

from .hosted_models import (
    FRAMES,
    WAYS,
    AnthropicBedrock,
    Converse,
    Invoke,
    Said,
    Tool,
    Way,
    bedrock,
    frame,
    stream,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]
anyio_backend = on_both_backends()

STREAMED = [way for way in WAYS if way.streamed]
CENTS = {"type": "object", "properties": {"cents": {"type": "integer"}}, "required": ["cents"]}
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = [Tool("find", TEXT), *(Tool(name, CENTS) for name in ("pay", "pay_deposit", "pay_invoice"))]


def find(text: str) -> str:
    return f"found {text}"


def loop(way: Way, url: str, task: str, **tools: Callable[..., str]) -> str:
    """An agent's own loop, as anybody writes it."""
    messages = [way.user(task)]
    for _ in range(12):
        message, said = way.ask(url, messages, TOOLS)
        messages.append(message)
        if not said.calls:
            return said.text
        outputs = [tools[name](**taken) for _, name, taken in said.calls]
        messages += way.results(said.calls, outputs)
    raise RuntimeError("no answer after 12 turns")


def asks(tool: str, at: int = 0, **taken: Any) -> Said:
    return Said(calls=((f"c{at}", tool, taken),))


FOUND, DONE = asks("find", text="hotels"), Said("All is done.")


class Watched:
    """An agent, and what it went through."""

    def __init__(self, work: Callable[[str], Any], policy: Any = None, **options: Any) -> None:
        self.events: list[Any] = []
        self.attempts = 0
        self._work = work
        given = {"environment": VirtualTime(), "observers": [self.events.append], **options}
        self.agent = Agent(self._attempt, policy, **given)

    def _attempt(self, task: str) -> Any:
        self.attempts += 1
        return self._work(task)

    async def run(self, **options: Any) -> Any:
        return await self.agent.run("Book it.", **options)

    @property
    def steps(self) -> list[Step]:
        return [event.step for event in self.events if isinstance(event, StepRecorded)]

    @property
    def causes(self) -> list[str]:
        found = (event.diagnosis for event in self.events if isinstance(event, AttemptFailed))
        return [f"{one.failure_type} {one.cause}" for one in found]


# Healthy runs ---------------------------------------------------------------------------------------


@table("way", WAYS)
async def test_what_is_asked_for_said_and_used_is_recorded(way: Way) -> None:
    with serving(way.reply(FOUND), way.reply(DONE)) as server:
        watched = Watched(lambda task: loop(way, server.url, task, find=find))
        assert await watched.run() == DONE.text
    first, call, last = watched.steps
    assert first.tool_output == [{"tool": "find", "arguments": {"text": "hotels"}}]
    assert (call.tool_called, call.tool_input) == ("find", {"text": "hotels"})
    assert "found hotels" in str(call.tool_output)
    assert last.llm_output == DONE.text
    assert [step.usage is not None for step in watched.steps] == [True, False, True]


@table("way", WAYS)
async def test_a_reused_answer_is_what_it_was_at_first(way: Way) -> None:
    def work(task: str) -> str:
        turns.append(way.ask(server.url, [way.user(task)], TOOLS))
        if len(turns) == 1:
            raise ConnectionError("reset")
        return "end"

    turns: list[Any] = []
    with serving(way.reply(asks("find", text="grüß"))) as server:
        assert await Watched(work, always(Retry())).run() == "end"
        assert len(server.requests) == 1
    assert turns[0] == turns[1]


def _all_of_it(way: Way, url: str) -> Any:
    """What a client of boto3's gives, with its metadata."""
    client, body = bedrock(url), {"anthropic_version": "x", "messages": []}
    messages: list[Any] = [way.user("Hi.")]
    given = {"modelId": "m", "body": json.dumps({**body, "messages": messages})}
    if isinstance(way, Converse):
        ask = client.converse_stream if way.streamed else client.converse
        answer = ask(modelId="m", messages=messages)
        return {**answer, "stream": list(answer["stream"])} if way.streamed else answer
    if way.streamed:
        answer = client.invoke_model_with_response_stream(**given)
        return {**answer, "body": list(answer["body"])}
    answer = client.invoke_model(**given)
    return {**answer, "body": answer["body"].read()}


@table("way", [way for way in WAYS if isinstance(way, Converse | Invoke)])
async def test_a_reused_answer_has_the_metadata_of_the_first(way: Way) -> None:
    def work(_task: str) -> str:
        answers.append(_all_of_it(way, server.url))
        if len(answers) == 1:
            raise ConnectionError("reset")
        return "end"

    answers: list[Any] = []
    with serving(way.reply(DONE)) as server:
        await Watched(work, always(Retry())).run()
        assert len(server.requests) == 1
    for answer in answers:
        for name in ("date", "server", "transfer-encoding"):
            answer["ResponseMetadata"]["HTTPHeaders"].pop(name, None)
    assert answers[0] == answers[1]


# Six failures ---------------------------------------------------------------------------------------


@table("refusal", [fails(503, "Service unavailable"), fails(429, "Too many requests"), cut_off])
@table("way", WAYS)
async def test_a_request_that_failed_is_made_again_in_its_place(way: Way, refusal: Reply) -> None:
    with serving(refusal, way.reply(DONE)) as server:
        watched = Watched(lambda task: loop(way, server.url, task))
        assert await watched.run() == DONE.text
        first, second = server.requests
    assert first.body == second.body
    assert watched.attempts == 1
    assert [step.llm_output for step in watched.steps if not step.error] == [DONE.text]


@table("way", WAYS)
async def test_a_hint_after_a_bad_answer_is_said_last_and_once(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    def work(task: str) -> str:
        said = loop(way, server.url, task, find=find)
        if said == "wrong":
            raise ValueError("this is no booking")
        return said

    replies = map(way.reply, (FOUND, Said("wrong"), FOUND, DONE))
    with serving(*replies) as server, caplog.at_level(logging.WARNING, "triage"):
        watched = Watched(work, always(Replan("Answer in French.")))
        assert await watched.run() == DONE.text
        hinted, before = server.requests[-1], server.requests[-2]
    if way.signed:
        assert "is signed already and is sent as it is: it cannot carry the hint" in caplog.text
        assert "French" not in str(hinted.body)
        return
    for request in (before, hinted):
        messages = request.body["messages"]
        assert str(messages[-1]).count("Answer in French.") == 1
        assert "French" not in str(messages[:-1])
    check_wire([Sent(way.form.name, hinted.body, "")])
    earlier = server.requests[1].body
    assert {**hinted.body, "messages": None} == {**earlier, "messages": None}


def answering(way: Way, choose: Callable[[str], Said]) -> Reply:
    """A model that answers by the text of the conversation."""

    def reply(handler: Handler, request: Request) -> None:
        way.reply(choose(json.dumps(request.body["messages"])))(handler, request)

    return reply


@table("way", WAYS)
async def test_a_loop_is_left_with_a_hint(way: Way) -> None:
    def choose(text: str) -> Said:
        is_told = "same" in text or "repeat" in text
        return DONE if is_told else asks("find", text.count("found"), text="x")

    with serving(answering(way, choose)) as server:
        watched = Watched(lambda task: loop(way, server.url, task, find=find))
        if way.signed:  # it cannot be told
            with pytest.raises(TriageEscalationError, match="loop_detected"):
                await watched.run()
        else:
            assert await watched.run() == DONE.text
            assert watched.attempts == 1
            assert len(server.requests) < 12


@table("way", [way for way in WAYS if not way.signed])
async def test_arguments_that_do_not_fit_are_told_to_the_model(way: Way) -> None:
    def choose(text: str) -> Said:
        if "paid" in text:
            return DONE
        return asks("pay", cents=3) if "amount" in text else asks("pay", amount=3)

    def pay(cents: int) -> str:
        paid.append(cents)
        return "paid"

    paid: list[int] = []
    with serving(answering(way, choose)) as server:
        watched = Watched(lambda task: loop(way, server.url, task, pay=pay))
        assert await watched.run() == DONE.text
    assert paid == [3]
    assert [cause.partition(" ")[0] for cause in watched.causes] == ["schema_mismatch"]


# Tools that are declared are known by their names everywhere in a process.
DEPOSIT, INVOICE = "pay_deposit", "pay_invoice"


@triage.tool(effect="once")
def pay_invoice(cents: int) -> str:
    PAID.append(cents)
    return "receipt 1"


PAID: list[int] = []


def pay_deposit(cents: int) -> str:
    PAID.append(cents)
    return "receipt 1"


@table("way", WAYS)
@table("name", [DEPOSIT, INVOICE])
async def test_an_effect_happens_once(way: Way, name: str) -> None:
    def find(text: str) -> str:
        finds.append(text)
        if len(finds) == 1:
            raise ConnectionError("the index is down")
        return "found"

    def choose(text: str) -> Said:
        if "receipt" not in text:
            return asks(name, cents=3)
        return DONE if "found" in text else asks("find", 1, text="x")

    PAID.clear()
    finds: list[str] = []
    tools = {DEPOSIT: pay_deposit, INVOICE: pay_invoice}
    with serving(answering(way, choose)) as server:
        watched = Watched(lambda task: loop(way, server.url, task, **tools, find=find))
        if name == INVOICE:
            assert await watched.run() == DONE.text
        else:
            with pytest.raises(TriageEscalationError, match="pay_deposit"):
                await watched.run()
    assert PAID == [3]
    first, *again = [step for step in watched.steps if step.tool_called == name]
    assert "receipt 1" in str(first.tool_output)
    assert len(again) == (name == INVOICE)  # in the second attempt it is reused


@table("way", WAYS)
async def test_a_killed_run_goes_on_from_its_recorded_answers(way: Way, tmp_path: Path) -> None:
    def dying(text: str) -> str:
        deaths.append(text)
        if len(deaths) == 1:
            die(current.get(), "find", None)
        return "found"

    deaths: list[str] = []
    store = SQLiteStore(str(tmp_path / f"{way}.db"))
    with serving(way.reply(FOUND), way.reply(DONE)) as server:
        watched = Watched(lambda task: loop(way, server.url, task, find=dying), store=store)
        with pytest.raises(Crash):
            await watched.run(run_id="r")
        assert len(server.requests) == 1
        assert await watched.agent.recover("r", force=True) == DONE.text
        assert len(server.requests) == 2
    await store.close()


# Streams --------------------------------------------------------------------------------------------


@table("way", STREAMED)
@table("broken", [True, False])
async def test_a_stream_that_ends_early_fails_its_reader_and_is_asked_for_again(
    way: Way, broken: Any
) -> None:
    early = stream(way.form.kind, way.form.events(DONE)[:-3], ends=not broken)
    with serving(early, way.reply(DONE)) as server:
        watched = Watched(lambda task: loop(way, server.url, task), always(Retry()))
        assert await watched.run() == DONE.text
        assert len(server.requests) == 2
    assert watched.attempts == 2
    assert [bool(step.error) for step in watched.steps] == [True, False]


@table("way", STREAMED)
async def test_an_answer_is_recorded_before_its_last_event_is_given_on(way: Way) -> None:
    """The server hangs behind the last event, until the answer is recorded."""
    recorded = threading.Event()

    def hanging(handler: Handler, request: Request) -> None:
        stream(way.form.kind, way.form.events(DONE), ends=False)(handler, request)
        handler.wfile.flush()
        told.append(recorded.wait(5))

    def observe(event: Any) -> None:
        if isinstance(event, StepRecorded):
            steps.append(event.step)
            recorded.set()

    told: list[bool] = []
    steps: list[Step] = []
    with serving(hanging) as server:
        watched = Watched(lambda task: loop(way, server.url, task), observers=[observe])
        with suppress(
            TriageEscalationError
        ):  # some clients read the end of the body, which breaks off
            await watched.run()
    assert told[0]
    assert steps[0].llm_output == DONE.text


async def test_a_stream_that_is_left_early_is_not_taken_for_an_answer() -> None:
    def work(_task: str) -> str:
        answer = bedrock(server.url).converse_stream(modelId="m", messages=[CONVERSE_USER])
        with closing(answer["stream"]) as events:
            next(iter(events))
        return "left"

    with serving(Converse(streamed=True).reply(DONE)) as server:
        watched = Watched(work)
        assert await watched.run() == "left"
    assert [step.error for step in watched.steps] == ["the stream was left before its end"]


CONVERSE_USER = {"role": "user", "content": [{"text": "Hi."}]}


@table("way", [Converse(streamed=True), Invoke(streamed=True), AnthropicBedrock(streamed=True)])
async def test_an_error_within_a_stream_is_recorded_as_what_it_is(way: Way) -> None:
    error = frame("throttlingException", {"message": "Too many tokens"}, "exception")
    broken = stream(FRAMES, [*way.form.events(DONE)[:2], error])
    seen: list[BaseException] = []

    def work(task: str) -> str:
        try:
            return loop(way, server.url, task)
        except Exception as error:
            seen.append(error)
            raise

    with serving(broken, way.reply(DONE)) as server:
        watched = Watched(work, always(Retry()))
        assert await watched.run() == DONE.text
    assert [step.error for step in watched.steps] == ["Too many tokens", None]
    assert not isinstance(seen[0], UnfinishedStream)
    assert isinstance(seen[0], EventStreamError) or way.signed


# The client itself ----------------------------------------------------------------------------------


async def refusals(monkeypatch: pytest.MonkeyPatch, attempts: int, server: Server) -> Watched:
    monkeypatch.setattr(botocore.endpoint, "time", SimpleNamespace(sleep=lambda _seconds: None))

    def work(_task: str) -> Any:
        client = bedrock(server.url, total_max_attempts=attempts)
        return client.converse(modelId="m", messages=[CONVERSE_USER])["stopReason"]

    watched = Watched(work, FailurePolicy(EXTERNAL_FAULT=in_place(3)))
    with suppress(TriageEscalationError, ClientError):
        await watched.run()
    return watched


def in_place(times: int) -> Callable[[Any], Any]:
    asked = itertools.count(1)

    def strategy(_context: Any) -> Any:
        return Retry() if next(asked) <= times else triage.Escalate("enough")

    return strategy


async def test_retries_of_the_client_are_tries_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    reply = Converse(streamed=False).reply(DONE)
    with serving(fails(503, "down"), fails(503, "down"), reply) as server:
        watched = await refusals(monkeypatch, 3, server)
        counts = [request.headers["amz-sdk-request"] for request in server.requests]
    assert [f"attempt={at}" in count for at, count in enumerate(counts, 1)] == [True] * 3
    assert watched.attempts == 1
    assert [step.error for step in watched.steps] == ["503: down", "503: down", None]


async def test_retries_of_the_client_and_ours_do_not_multiply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(fails(503, "down")) as server:
        watched = await refusals(monkeypatch, 3, server)
        assert len(server.requests) == 3 + 3
    assert watched.attempts == 1


async def test_another_model_is_asked_by_its_name_in_the_path() -> None:
    missing = fails(404, "no such model", "model_not_found")
    way = Converse(streamed=False)
    with serving(missing, way.reply(DONE)) as server:
        policy = FailurePolicy(default=switch_model(["us.other:1"]))
        watched = Watched(lambda task: loop(way, server.url, task), policy)
        assert await watched.run() == DONE.text
        paths = [request.path for request in server.requests]
    assert paths == ["/model/m%3A0/converse", "/model/us.other%3A1/converse"]
    assert [(step.metadata or {})["model"] for step in watched.steps] == ["m:0", "us.other:1"]


async def test_other_services_and_endpoints_of_another_kind_pass() -> None:
    class Waiting(botocore.endpoint.Endpoint):  # type: ignore[misc]
        async def _send_request(self, request: Any, _operation: Any) -> Any:
            return request

    request = {"method": "POST", "url_path": "/model/m/converse", "body": b'{"messages": []}'}

    async def work(_task: str) -> Any:
        return await Waiting("http://host", "x", None, None, object()).make_request(None, request)

    events: list[Any] = []
    assert await Agent(work, observers=[events.append]).run("t") == request
    assert not any(isinstance(event, StepRecorded) for event in events)
