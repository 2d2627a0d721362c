"""What is waited for, how long, when a model is told instead, and what the log says while a run waits."""

from __future__ import annotations

import io
import json
import logging
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx
import httpx2
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import FakeEnvironment
from tables import covering, table

import triage
from engine.asked_models import completion, user
from triage import Agent, Checks, Escalate, FailurePolicy, Limits, Run, Step, TriageError
from triage.adapters.openai import record
from triage.engine import Compensator, Guard, GuardedCall
from triage.strategies import (
    Backoff,
    CircuitBreaker,
    Preset,
    RateGate,
    RetryBudget,
    ask_again,
    backoff_and_retry,
    behind_gate,
    break_loop,
    by_severity,
    chain,
    circuit_breaker,
    repair_arguments,
    replan,
    retry_expired_credential,
    retry_with_tool_manifest,
    rollback_to_checkpoint,
    sequence,
    shrink_context,
    substitute,
    switch_model,
    within_budget,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# Failures: whether waiting cures them, and the exception.


CURED, NEVER_CURED = "cured by waiting", "never cured by waiting"


class Failure(NamedTuple):
    """cured: whether waiting is what helps. meet: raises the error."""

    cured: str
    meet: Callable[[], Any]


def _status(code: int, text: str = "", **headers: str) -> Callable[[], Any]:
    def send() -> Any:
        request = httpx.Request("POST", "http://source.invalid/")
        headers_ = {name.replace("_", "-"): value for name, value in headers.items()}
        httpx.Response(code, text=text, headers=headers_, request=request).raise_for_status()

    return send


def _raises(make: Callable[[], Exception]) -> Callable[[], Any]:
    def send() -> Any:
        raise make()

    return send


class VersionConflict(Exception):
    """A conflict as a client without HTTP says it."""


FAILURES = {
    "reset": Failure(CURED, _raises(lambda: ConnectionResetError("connection reset by peer"))),
    "refused": Failure(CURED, _raises(lambda: httpx.ConnectError("connection refused"))),
    "timeout": Failure(CURED, _raises(lambda: TimeoutError("timed out"))),
    "503": Failure(CURED, _status(503, "down")),
    "503 page": Failure(CURED, _status(503, "<html>down</html>", content_type="text/html")),
    "429": Failure(CURED, _status(429, "slow down")),
    "429 after 4 s": Failure(CURED, _status(429, "slow down", retry_after="4")),
    "database lock": Failure(
        CURED, _raises(lambda: sqlite3.OperationalError("database is locked"))
    ),
    "423": Failure(CURED, _status(423, "locked by another client")),
    "used key": Failure(NEVER_CURED, _status(409, '{"error": {"type": "idempotency_error"}}')),
    "conflict": Failure(NEVER_CURED, _status(409, "conflict")),
    "precondition": Failure(NEVER_CURED, _status(412, "precondition failed")),
    "version": Failure(NEVER_CURED, _raises(lambda: VersionConflict("version conflict"))),
    "page": Failure(
        NEVER_CURED, lambda: json.loads("<!DOCTYPE html><html><body>Sign in</body></html>")
    ),
    "half an answer": Failure(NEVER_CURED, lambda: json.loads('{"rows": [1, 2')),
}
OUTAGES = [name for name, failure in FAILURES.items() if failure.cured is CURED]
OTHERS = [name for name, failure in FAILURES.items() if failure.cured is NEVER_CURED]


# Agents: a model that asks for a source, and for another one once it is told that the first is down.


class World:
    """One run: which part fails for how long, and what became of it.

    who: `model`, `tool` (one that the model asks for) or `code` (the agent's own). until: virtual seconds
    at which the failure ends. flexible: the model uses the other source when it is told.
    tries: times at which the failing part was called. told: when the model first saw a hint.
    """

    def __init__(
        self, failure: str, who: str, *, until: float = float("inf"), flexible: bool = True
    ) -> None:
        self.time = FakeEnvironment()
        self.failure, self.who, self.until, self.flexible = failure, who, until, flexible
        self.tries: list[float] = []
        self.told: float | None = None
        self.tries_before_told = 0

    @property
    def seconds(self) -> float:
        """How long the run has taken."""
        return self.time.now - 1000

    def meet(self, who: str) -> None:
        if who != self.who:
            return
        self.tries.append(self.seconds)
        if self.seconds < self.until:
            FAILURES[self.failure].meet()

    def wants(self, hint: str | None) -> str:
        """The model's choice of a source."""
        if hint:
            if self.told is None:
                self.told = self.seconds
                self.tries_before_told = len(self.tries)
            if self.flexible:
                return "mirror"
        return "source"

    def read(self, source: str) -> str:
        if source == "source":
            self.meet("tool")
        return f"rows of {source}"


Way = Callable[[World], Callable[..., Awaitable[Any]]]


def by_hand(world: World) -> Callable[..., Awaitable[Any]]:
    """Each answer and call is a step that the agent records."""

    async def works(task: str, *, record_step: Any, _triage_hint: str | None = None) -> str:
        world.meet("model")
        source = world.wants(_triage_hint)
        record_step(Step(action="ask", llm_output=f"use {source}"))
        world.meet("code")
        try:
            found = world.read(source)
        except Exception as error:
            record_step(Step(tool_called="read", tool_input={"source": source}, error=str(error)))
            raise
        record_step(Step(tool_called="read", tool_input={"source": source}, tool_output=found))
        return found

    return works


def by_run_model(world: World) -> Callable[..., Awaitable[Any]]:
    """The model is asked through `run.model`, and the tool is a `@triage.tool`."""

    async def ask(messages: Any) -> str:
        world.meet("model")
        return world.wants(messages[-1]["content"] if len(messages) > 1 else None)

    @triage.tool(effect="read")
    async def read(source: str) -> str:
        return world.read(source)

    async def works(task: str, *, run: Run) -> str:
        hint = run.guidance.hint
        source = await run.model(ask, [user(task), *([user(hint)] if hint else [])])
        world.meet("code")
        return await read(source)

    return works


def by_client(world: World) -> Callable[..., Awaitable[Any]]:
    """A recorded client, which gives the hint to the model; the function knows of none."""

    def reply(request: httpx2.Request) -> httpx2.Response:
        messages = json.loads(request.content)["messages"]
        source = world.wants(messages[-1]["content"] if len(messages) > 1 else None)
        return httpx2.Response(200, json=completion(source))

    transport = httpx2.MockTransport(reply)
    client = record(
        openai.AsyncOpenAI(
            base_url="http://provider/v1",
            api_key="x",
            max_retries=0,
            http_client=httpx2.AsyncClient(transport=transport),
        )
    )

    @triage.tool(effect="read")
    async def read(source: str) -> str:
        return world.read(source)

    async def works(task: str) -> str:
        world.meet("model")
        answer = await client.chat.completions.create(model="m", messages=[user(task)])  # type: ignore[list-item]
        world.meet("code")
        return await read(answer.choices[0].message.content or "")

    return works


def deaf(world: World) -> Callable[..., Awaitable[Any]]:
    """Model and tool are recorded, and nobody asks for the hint."""

    @triage.model
    async def ask(messages: Any) -> str:
        world.meet("model")
        return world.wants(None)

    @triage.tool(effect="read")
    async def read(source: str) -> str:
        return world.read(source)

    async def works(task: str) -> str:
        source = await ask([user(task)])
        world.meet("code")
        return await read(source)

    return works


def bare(world: World) -> Callable[..., Awaitable[Any]]:
    """Nothing is recorded and nothing can be told."""

    async def works(task: str) -> str:
        world.meet("model")
        source = world.wants(None)
        world.meet("code")
        return world.read(source)

    return works


TOLD: dict[str, Way] = {"by hand": by_hand, "run.model": by_run_model, "client": by_client}
UNTOLD: dict[str, Way] = {"deaf": deaf, "bare": bare}
WAYS = TOLD | UNTOLD
PARTS = ("model", "tool", "code")


async def played(world: World, way: str, **options: Any) -> Any:
    """The result, or the error that ended the run."""
    agent = Agent(WAYS[way](world), environment=world.time, name="worker", **options)
    try:
        return await agent.run("x")
    except TriageError as error:
        return error


# How long, and when the model hears.


@table("failure, way", covering(OUTAGES, TOLD, times=2))
async def test_a_model_hears_of_a_tool_that_is_down_while_another_way_is_still_of_use(
    failure: str, way: str
) -> None:
    world = World(failure, "tool")
    assert await played(world, way) == "rows of mirror"
    assert world.told is not None
    assert world.told <= 20
    assert len(world.tries) <= 3


@table("failure, way", covering(OUTAGES, WAYS, times=2))
async def test_a_tool_for_which_there_is_no_other_way_is_waited_for_all_the_same(
    failure: str, way: str
) -> None:
    world = World(failure, "tool", until=200, flexible=False)
    assert await played(world, way) == "rows of source"
    assert world.seconds < 260


@table("failure, who, way", covering(OUTAGES, ("model", "code"), WAYS, together=2))
async def test_a_model_or_code_of_the_agents_own_that_is_down_is_waited_for(
    failure: str, who: str, way: str
) -> None:
    world = World(failure, who, until=200)
    assert str(await played(world, way)).startswith("rows of")
    assert world.told is None
    assert world.seconds < 260


@table("failure, who, way", covering(OTHERS, ("tool", "code"), TOLD, together=2))
async def test_what_waiting_does_not_cure_is_told_after_two_tries(
    failure: str, who: str, way: str
) -> None:
    world = World(failure, who)
    result = await played(world, way)
    assert world.told is not None
    assert world.told <= 3
    assert world.tries_before_told <= 2
    assert isinstance(result, TriageError if who == "code" else str)


@table("failure, who, way", covering(OTHERS, PARTS, WAYS, together=2))
async def test_what_waiting_does_not_cure_is_not_held_out_for(
    failure: str, who: str, way: str
) -> None:
    world = World(failure, who, flexible=False)
    assert isinstance(await played(world, way), TriageError)
    assert world.seconds <= 40
    assert len(world.tries) <= 7


@table("failure, who, way", covering(OTHERS, PARTS, WAYS, together=2))
async def test_an_agent_that_a_plain_retry_would_save_is_saved(
    failure: str, who: str, way: str
) -> None:
    if failure in ("page", "half an answer") and (who != "tool" or way == "bare"):
        return  # it may be the model's own text, which is asked for again at once
    world = World(failure, who, until=6, flexible=False)
    assert str(await played(world, way)).startswith("rows of")


async def test_each_source_that_is_down_is_told_by_itself() -> None:
    time = FakeEnvironment()
    heard: list[float] = []

    @triage.tool(effect="read")
    async def primary() -> str:
        raise ConnectionError("primary is down")

    @triage.tool(effect="read")
    async def mirror() -> str:
        raise ConnectionError("mirror is down")

    @triage.tool(effect="read")
    async def archive() -> str:
        return "rows"

    @triage.model
    async def ask(hint: str | None) -> int:
        return sum(word in (hint or "") for word in ("call primary", "call mirror"))

    down: set[str] = set()

    async def works(task: str, *, _triage_hint: str | None = None) -> str:
        for name in ("primary", "mirror"):
            if _triage_hint and f"The call {name}" in _triage_hint:
                down.add(name)
                heard.append(time.now - 1000)
        await ask(str(sorted(down)))
        tools: list[Any] = [primary, mirror, archive]
        return str(await tools[len(down)]())

    assert await Agent(works, environment=time).run("x") == "rows"
    assert len(heard) == 2
    assert heard[-1] <= 40


# A wait that the other side asks for, and the deadline.


@table("who, way", covering(PARTS, WAYS, times=2))
async def test_no_new_plan_is_made_into_the_time_that_the_other_side_asked_to_wait(
    who: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = Failure(CURED, _status(429, "slow down", retry_after="60"))
    monkeypatch.setitem(FAILURES, "429 after 60 s", asks)
    world = World("429 after 60 s", who, flexible=False)
    assert isinstance(await played(world, way, limits=Limits(seconds=30)), TriageError)
    told = who == "tool" and way in TOLD
    assert len(world.tries) <= (2 if told else 1)

    world = World("429 after 60 s", who, flexible=False)
    assert isinstance(await played(world, way), TriageError)
    gaps = [after - before for before, after in zip(world.tries, world.tries[1:], strict=False)]
    assert sum(gap < 60 for gap in gaps) <= (1 if told else 0)


# What the log says.


def waits(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and "To change this: " in record.getMessage()
    ]


@table("failure, who, way", covering(OUTAGES, PARTS, WAYS, together=2))
async def test_what_never_comes_back_is_given_up_in_time_and_the_log_has_said_once_why_it_waits(
    failure: str, who: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(failure, who, flexible=False)
    assert isinstance(await played(world, way), TriageError)
    assert 290 <= world.seconds <= 320
    [said] = waits(caplog)
    assert "external_fault" in said
    assert "worker" in said
    assert "at most 300 s" in said
    assert "Limits(outage_seconds=" in said


SECRET = "sk-live-4242424242424242abcdefgh"


async def test_each_new_kind_of_failure_is_said_and_none_of_them_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kinds = ["reset"] * 4 + ["503"] * 4 + ["reset"] * 4 + ["429"] * 4
    left = [*kinds]

    async def works(task: str) -> str:
        if left:
            FAILURES[left.pop(0)].meet()
        return "done"

    agent = Agent(works, environment=FakeEnvironment())
    assert await agent.run("x") == "done"
    said = waits(caplog)
    assert ["connection" in said[0], "unavailable" in said[1], "rate_limited" in said[2]] == [
        True
    ] * 3
    assert len(said) == 3


async def test_a_wait_under_two_seconds_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    world = World("reset", "code", until=2)
    await played(world, "bare")
    assert waits(caplog) == []


async def test_waits_inside_calls_compensators_and_gates_are_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = FakeEnvironment()
    gate = RateGate(environment=env)
    slow = Preset(4, Backoff(base=8.0))

    async def undo(result: Any) -> None:
        raise ConnectionError("undo is down")

    @triage.tool(effect="once", compensate=Compensator(undo, retries=slow))
    async def pay() -> str:
        return "paid"

    @triage.tool(effect="read", retries=slow)
    async def look() -> str:
        raise ConnectionError("look is down")

    async def works(task: str) -> str:
        gate.hold("bank", 30)
        async with gate.through("bank"):
            await pay()
        return await look()

    policy = FailurePolicy(default=Escalate(compensate=True))
    with pytest.raises(TriageError):
        await Agent(works, policy, environment=env).run("x")
    said = waits(caplog)
    assert len(said) == 3
    assert "RateGate" in said[0]
    assert "look is down" in said[1]
    assert "at most 3 times" in said[1]
    assert "undo is down" in said[2]


async def test_waits_without_a_known_end_are_said_after_two_seconds(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A guard that asks a person, a line before a gate, and a store whose file another process locks."""
    gate = RateGate(concurrency=1)
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    await Agent(bare(World("503", "code", until=0)), store=store).run("x")

    async def asks_a_person(call: GuardedCall) -> bool:
        await anyio.sleep(2.3)
        return True

    @triage.tool(effect="once")
    async def pay() -> str:
        return "paid"

    async def guarded(task: str) -> str:
        return await pay()

    async def queued(task: str) -> str:
        async with gate.through("bank"):
            return "through"

    async def stored(task: str) -> str:
        return "stored"

    checks = Checks(guard=Guard(decide=asks_a_person))
    other = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
    async with anyio.create_task_group() as group, gate.through("bank"):
        other.execute("BEGIN IMMEDIATE")
        group.start_soon(Agent(guarded, checks=checks).run, "x")
        group.start_soon(Agent(queued).run, "x")
        group.start_soon(Agent(stored, store=store).run, "x")
        await anyio.sleep(2.3)
        other.execute("ROLLBACK")
    other.close()
    said = sorted(text.split(" has waited")[0].split(" (run")[0] for text in waits(caplog))
    assert len(said) == 3
    assert any("RateGate" in text for text in said)
    assert any("its store has not answered" in text for text in waits(caplog))
    assert any("the guard of pay" in text for text in waits(caplog))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@table("rich_is_there", [True, False])
async def test_a_person_at_a_terminal_sees_each_wait_and_no_text_from_outside_steers_it(
    rich_is_there: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    if not rich_is_there:
        monkeypatch.setitem(sys.modules, "rich.console", None)

    async def works(task: str) -> str:
        raise ConnectionError(f"\x1b[2Jpassword={SECRET}\n[red]fake line[/red] " + "x" * 5_000)

    with pytest.raises(TriageError):
        await Agent(works, environment=FakeEnvironment()).run("x")
    lines = screen.getvalue().splitlines()
    assert 8 <= len(lines) <= 16
    for line in lines:
        assert "waits" in line
        assert "ConnectionError" in line
        assert "\x1b[2J" not in line
        assert SECRET not in line
        assert "[red]fake line" in line
        assert len(line) < 500


async def test_nothing_is_printed_where_standard_error_is_no_terminal_or_the_log_is_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = [io.StringIO(), Terminal()]
    for screen, level in zip(files, (logging.WARNING, logging.ERROR), strict=True):
        monkeypatch.setattr(sys, "stderr", screen)
        logger = logging.getLogger("triage")
        before = logger.level
        logger.setLevel(level)
        try:
            await played(World("503", "code"), "bare")
        finally:
            logger.setLevel(before)
        assert screen.getvalue() == ""


# Counting: no failure that never ends is tried without end.


def strategies() -> st.SearchStrategy[Any]:
    """Ready-made strategies, and strategies made of them."""
    small = st.integers(0, 4)
    plain = st.one_of(
        st.builds(backoff_and_retry, st.one_of(st.none(), small)),
        st.builds(lambda n: replan(max_replans=n), small),
        st.builds(ask_again, small),
        st.builds(retry_with_tool_manifest, small),
        st.builds(rollback_to_checkpoint, max_rollbacks=small),
        st.builds(repair_arguments, small),
        st.builds(retry_expired_credential, small),
        st.just(shrink_context(keep_last=2)),
        st.builds(break_loop, small),
        st.just(switch_model(["second", "third"])),
        st.just(substitute("source", by=["mirror"])),
        st.just(substitute("mirror", by=["source", "archive"])),
    )
    return st.recursive(
        plain,
        lambda inner: st.one_of(
            st.builds(chain, inner, inner),
            st.builds(sequence, inner, inner),
            st.builds(by_severity, inner),
            st.builds(lambda one: within_budget(one, RetryBudget(3, per_second=0)), inner),
            st.builds(lambda one: circuit_breaker(CircuitBreaker(), one), inner),
            st.builds(lambda one: behind_gate(one, RateGate()), inner),
        ),
        max_leaves=5,
    )


@given(
    strategy=st.one_of(
        st.just(
            FailurePolicy.recommended(substitutes={"source": ["mirror"], "mirror": ["archive"]})
        ),
        strategies().map(lambda made: FailurePolicy(default=made)),
    ),
    failure=st.sampled_from(list(FAILURES)),
    work=st.sampled_from(["none", "same", "other", "more"]),
    obeys=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_failure_that_never_ends_is_tried_as_often_as_limits_and_strategies_say(
    strategy: Any, failure: str, work: str, obeys: Any
) -> None:
    env = FakeEnvironment()
    tries: list[str] = []

    def tool(name: str) -> Any:
        async def read() -> None:
            tries.append(name)
            assert len(tries) < 100, "without end"
            FAILURES[failure].meet()

        read.__name__ = name
        return triage.tool(effect="read")(read)

    @triage.tool(effect="read")
    async def page(number: int) -> str:
        return f"page {number}"

    @triage.model
    async def ask(hint: str | None) -> str:
        return "read it"

    tools = {name: tool(name) for name in ("source", "mirror", "archive")}
    begun: dict[str, Callable[[], Iterable[int]]] = {
        "none": lambda: (),
        "same": lambda: (1,),
        "other": lambda: (len(tries),),
        "more": lambda: range(len(tries)),
    }

    async def works(task: str, *, _triage_hint: str | None = None) -> None:
        await ask(_triage_hint)
        for number in begun[work]():
            await page(number)
        hint = _triage_hint or ""
        wanted = [name for name in tools if f"use {name}," in hint] if obeys else []
        await tools[wanted[0] if wanted else "source"]()

    async def run() -> None:
        with pytest.raises((TriageError, Exception)):
            await Agent(works, strategy, environment=env).run("x")

    anyio.run(run)
    assert len(tries) <= 60
    assert env.now - 1000 <= 1_000
