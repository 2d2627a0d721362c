"""Every limit ends a run, at once or before it is broken, and says which it was; what model calls cost."""

from __future__ import annotations

import logging
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import fields, replace
from strategies.test_limits import limits_of
from support import Says, always, escalation_of
from tables import table

import triage
from engine.limit_scenarios import PRICED, SCENARIOS, Scenario, search
from triage import (
    Agent,
    FailurePolicy,
    FailureType,
    Limits,
    Retry,
    Run,
    Severity,
    Step,
    TriageEscalationError,
    Usage,
    UsageError,
)
from triage.core import Cause
from triage.stores import SQLiteStore
from triage.strategies import Prices, single_retry_layer
from triage.testing import VirtualTime

pytestmark = pytest.mark.anyio


OF_ONE_ATTEMPT = {"attempt_seconds", "stall_seconds"}
"""Limits that end the attempt, and not the run."""


NO_LIMIT = {"on_limit", "prices", "outage_seconds", "longest_wait", "polling_seconds"}
OF_QUESTIONS = {"refusals"}
"""Limits that the contract of adapters plays."""


def test_there_is_a_scenario_for_every_limit() -> None:
    names = {field.name for field in fields(Limits)}
    assert names == SCENARIOS.keys() | OF_ONE_ATTEMPT | NO_LIMIT | OF_QUESTIONS


async def stopped(scenario: Scenario, **options: Any) -> tuple[TriageEscalationError, VirtualTime]:
    env = VirtualTime()
    caught = await escalation_of(scenario.agent(env, **options).run("t"))
    return caught, env


async def test_a_limit_that_is_reached_ends_the_run_and_is_named() -> None:
    for name, scenario in {**SCENARIOS, "prices": PRICED}.items():
        field = "cost_usd" if name == "prices" else name
        named = scenario.name or field
        error, _ = await stopped(scenario)
        found = error.diagnosis
        assert found is not None, name
        assert (found.cause, found.severity) == (Cause.LIMIT, Severity.CRITICAL), name
        assert found.evidence[0].rule == f"limit:{named}"
        assert found.technical_details.startswith(f"limit {named}: {scenario.details}")
        assert found.suggestions[0].startswith(f"Raise Limits({field}=…)")
        assert "limit reached" in str(error), name


async def test_one_less_than_the_limit_is_left_alone() -> None:
    """So that a limit is not merely always reached."""
    for name, scenario in SCENARIOS.items():
        one = scenario._replace(limits={}, uses=_nothing)
        env = VirtualTime()
        agent = one.agent(env, fails=_the_first, more=scenario.limits)
        assert await agent.run("t") == "done", name


async def _nothing(run: Run, env: VirtualTime) -> None:
    run.subgoals(["first"])


def _the_first(run: Run) -> bool:
    if run.attempt == 1:
        return True
    with suppress(UsageError):  # most actions forget what was declared
        run.complete("first")
    return False


# Before it is broken ------------------------------------------------------------------------------
@table("limits", [{"tool_calls": 3}, {"calls_per_tool": {"search": 3}}])
@table("together", [False, True])
async def test_a_call_that_would_go_over_the_limit_does_not_run(
    limits: dict[str, Any],
    together: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    made: list[int] = []

    @triage.tool(effect="read", name="search")
    async def look(q: int) -> str:
        made.append(q)
        await anyio.lowlevel.checkpoint()
        return "row"

    async def works(task: str, *, run: Run) -> str:
        if together:
            async with anyio.create_task_group() as group:
                for q in range(5):
                    group.start_soon(look, q)
        for q in range(5):
            await look(q)
        return "never"

    caught = await escalation_of(Agent(works, limits=Limits(**limits)).run("t"))
    assert len(made) == 3
    assert caught.diagnosis is not None
    assert "used 3, allowed 3" in caught.diagnosis.technical_details


async def test_calls_that_ended_are_not_counted_twice() -> None:
    async def works(task: str, *, run: Run) -> str:
        for at in range(3):
            async with anyio.create_task_group() as group:
                for q in range(2):
                    group.start_soon(search, 10 * at + q)
        return "done"

    assert await Agent(works, limits=Limits(tool_calls=6)).run("t") == "done"


async def test_reused_calls_count_once() -> None:
    async def works(task: str, *, run: Run) -> str:
        for q in range(3):
            await search(q)
        if run.attempt < 4:
            raise ConnectionError("gone")
        return "done"

    limits = Limits(tool_calls=3, calls_per_tool={"search": 3}, steps=3)
    agent = Agent(works, always(Retry()), classifier=Says(), limits=limits)
    assert await agent.run("t") == "done"


async def test_waiting_that_would_go_over_the_limit_is_not_begun() -> None:
    error, env = await stopped(SCENARIOS["slept_seconds"])
    assert env.slept == [6]
    assert "6 of 10 seconds of waiting between attempts used; waiting another 6 s" in str(error)
    late = SCENARIOS["seconds"]._replace(action=Retry(delay=6.0))
    error, env = await stopped(late)
    assert env.slept == [6]
    assert "waiting another 6 s would pass it" in str(error)


# At once ------------------------------------------------------------------------------------------
@table("name", ["steps", "input_tokens", "output_tokens", "tokens", "cost_usd"])
async def test_what_cannot_be_known_before_stops_the_attempt_as_it_is_recorded(name: str) -> None:
    error, _ = await stopped(SCENARIOS[name])
    assert error.context is not None
    assert error.context.attempt == 1
    events = len(error.context.trajectory) or error.context.usage.calls
    assert events in (3, 4)
    assert error.context.error is None


async def test_the_deadline_of_the_run_stops_an_attempt_on_time() -> None:
    error, env = await stopped(SCENARIOS["seconds"])
    assert env.monotonic() == 10
    assert error.context is not None
    assert error.context.attempt == 2


@table("name", sorted(OF_ONE_ATTEMPT))
async def test_an_attempt_that_takes_too_long_is_a_failure_like_any_other(name: str) -> None:
    env = VirtualTime()
    failed: list[Any] = []

    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            await env.sleep(100)
        failed.extend(run.history)
        return "done"

    agent = Agent(works, always(Retry()), limits=limits_of(**{name: 8}), environment=env)
    assert await agent.run("t") == "done"
    [past] = failed
    found = past.diagnosis
    assert (found.failure_type, found.cause) == (FailureType.EXTERNAL_FAULT, Cause.TIMEOUT)
    assert found.severity is Severity.RETRIABLE
    assert found.evidence[0].rule == f"limit:{name}"
    assert found.technical_details == f"limit {name}: allowed 8 s, all of them used"
    # A stall is seen at most a quarter of its time late.
    assert 8 <= past.ended - past.started <= 10


# Stalls -------------------------------------------------------------------------------------------
@table("pause", [1, 5, 7])
async def test_an_attempt_that_records_now_and_then_does_not_stall(pause: int) -> None:
    env = VirtualTime()

    async def works(task: str, *, run: Run) -> str:
        for at in range(10):
            await env.sleep(pause)
            run.record_step(Step(action=f"step {at}", llm_output=f"{at}"))
        return "done"

    assert await Agent(works, limits=Limits(stall_seconds=8), environment=env).run("t") == "done"


async def test_a_run_inside_that_records_is_no_stall_of_the_outer_one() -> None:
    env = VirtualTime()

    async def inner(task: str, *, run: Run) -> str:
        for at in range(10):
            await env.sleep(5)
            run.record_step(Step(action=f"step {at}", llm_output=f"{at}"))
        if run.attempt == 1:
            raise ConnectionError("gone")
        return "part"

    inside = Agent(inner, always(Retry()), classifier=Says(), environment=env)

    async def works(task: str, *, run: Run) -> str:
        return f"{run.attempt} {await inside.run(task)}"

    agent = Agent(works, limits=Limits(stall_seconds=8), environment=env)
    assert await agent.run("t") == "1 part"


async def test_a_run_inside_that_stalls_is_stopped_with_the_outer_one() -> None:
    env = VirtualTime()

    async def inner(task: str, *, run: Run) -> str:
        await env.sleep(100)
        return "part"

    inside = Agent(inner, always(Retry()), environment=env)

    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            await inside.run(task)
        return "done"

    agent = Agent(works, always(Retry()), limits=Limits(stall_seconds=8), environment=env)
    assert await agent.run("t") == "done"
    assert env.monotonic() <= 10


async def test_a_stream_that_stalls_is_stopped_and_its_reader_may_be_slow() -> None:
    env = VirtualTime()

    async def items(task: str, *, run: Run) -> Any:
        yield "first"
        if run.attempt == 1:
            await env.sleep(100)
        yield "last"

    agent = Agent(items, always(Retry()), limits=Limits(stall_seconds=8), environment=env)
    found: list[Any] = []
    async for item in agent.stream("t"):
        found.append(item if isinstance(item, str) else type(item).__name__)
        await env.sleep(50)
    assert found == ["first", "Restarted", "first", "last"]


async def test_what_an_attempt_raises_passes_through_the_watch_for_stalls() -> None:
    class Own(BaseException):
        pass

    async def works(task: str) -> str:
        raise Own

    with pytest.raises(Own):
        await Agent(works, limits=Limits(stall_seconds=8)).run("t")


# What there is all the same -----------------------------------------------------------------------
async def test_what_was_reached_is_in_the_error() -> None:
    async def works(task: str, *, run: Run) -> str:
        run.update_state({"found": ["Sol"], "page": 1})
        run.record_step(
            Step(tool_called="search", tool_output=["Sol", "Mar"], usage=Usage(10, 5, 0.01))
        )
        run.record_step(Step(action="model", llm_output="Two hotels so far."))
        run.record_step(Step(action="think"))
        run.record_step(Step(action="one too many"))
        return "never"

    caught = await escalation_of(Agent(works, limits=Limits(steps=3)).run("t"))
    assert caught.context is not None
    partial = caught.context.partial
    assert partial.state == {"found": ["Sol"], "page": 1}
    assert partial.last_output == "Two hotels so far."
    assert partial.usage == Usage(10, 5, 0.01)


async def test_every_limit_leaves_what_was_reached() -> None:
    for name, scenario in SCENARIOS.items():

        async def uses(run: Run, env: VirtualTime, scenario: Scenario = scenario) -> None:
            run.update_state({"attempt": run.attempt})
            await scenario.uses(run, env)

        error, _ = await stopped(scenario._replace(uses=uses))
        assert error.context is not None, name
        partial = error.context.partial
        assert partial.state == {"attempt": error.context.attempt}, name
        assert partial.usage == error.context.usage, name


# Through a run inside -----------------------------------------------------------------------------
async def test_what_a_run_inside_uses_counts_outside() -> None:
    async def inner(task: str, *, run: Run) -> str:
        run.record_usage(Usage(60, 0))
        return "part"

    inside = Agent(inner)

    async def works(task: str, *, run: Run) -> str:
        for at in range(5):
            await inside.run(at)
        return "never"

    caught = await escalation_of(Agent(works, limits=Limits(input_tokens=100)).run("t"))
    assert caught.context is not None
    assert caught.context.usage.input_tokens == 120


# Prices -------------------------------------------------------------------------------------------
OURS = Prices({"ours": (1.0, 4.0)}, listed=False)


CALL = Usage(10_000, 2_000, model="ours")


ESCALATE = FailurePolicy(default=FailurePolicy.escalate_by_default())


async def uses(_task: str, *, run: Run) -> float | None:
    run.record_usage(CALL)
    run.record_step(Step(action="model", usage=CALL))
    return run.usage.cost_usd


@table(
    ("usage", "limits", "cost"),
    [
        (CALL, Limits(prices=OURS), 0.018),
        (Usage(10_000, 2_000, model="gpt-4o-2024-08-06"), Limits(), 0.045),
        (replace(CALL, cost_usd=1.0), Limits(prices=OURS), 1.0),
    ],
)
async def test_usage_costs_what_is_given_else_what_its_model_costs(
    usage: Usage, limits: Limits, cost: float
) -> None:
    async def agent(_task: str, *, run: Run) -> float | None:
        run.record_usage(usage)
        return run.usage.cost_usd

    assert await Agent(agent, limits=limits).run("t") == pytest.approx(cost)


async def test_usage_of_a_step_counts_beside_what_is_recorded() -> None:
    assert await Agent(uses, limits=Limits(prices=OURS)).run("t") == pytest.approx(0.036)


async def test_an_unknown_model_costs_what_nobody_knows_and_this_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    prices = Prices({"ours": (1.0, 4.0)}, listed=False)

    async def agent(_task: str, *, run: Run) -> float | None:
        for _ in range(3):
            run.record_usage(Usage(10, 10, model="secret-model"))
        return run.usage.cost_usd

    with caplog.at_level(logging.WARNING, "triage.strategies.prices"):
        assert await Agent(agent, limits=Limits(prices=prices, cost_usd=0.01)).run("t") is None
    assert caplog.text.count("secret-model") == 2  # the model, and how to give its price


async def test_a_limit_on_cost_counts_what_was_priced() -> None:
    async def agent(_task: str, *, run: Run) -> None:
        for _ in range(10):
            run.record_step(Step(action="model", usage=CALL))

    caught = await escalation_of(
        Agent(agent, limits=Limits(prices=OURS, cost_usd=0.05)).run("t"), match="US dollars"
    )
    assert caught.context is not None
    usage = caught.context.partial.usage
    assert usage.calls == 3
    assert usage.cost_usd == pytest.approx(0.054)


async def test_a_recovered_run_has_spent_what_it_spent(tmp_path: Path) -> None:
    class Killed(BaseException):
        """The process goes away."""

    async def agent(_task: str, *, run: Run, dies: bool = False) -> float | None:
        if dies:
            run.record_usage(CALL)
            await run.flush()
            raise Killed
        return run.usage.cost_usd

    store = SQLiteStore(tmp_path / "r.db")
    agent_ = Agent(agent, store=store, limits=Limits(prices=OURS))
    with pytest.raises(Killed):
        await agent_.run("t", run_id="r", dies=True)
    after = Agent(agent, store=store, limits=Limits(prices=OURS))
    assert await after.recover("r", dies=False) == pytest.approx(0.018)
    await store.close()


# Clients that retry by themselves -------------------------------------------------------------------
COUNTS = count(10)
"""Each kind of client is said once in a process: each test has its own."""


def client() -> Any:
    openai = pytest.importorskip("openai")
    return openai.AsyncOpenAI(api_key="none", max_retries=7, base_url="http://127.0.0.1:9")


async def fails(agent: Any, **given: Any) -> None:
    with pytest.raises(TriageEscalationError):
        await Agent(agent, ESCALATE).run("t", **given)


@table("held", ["closure", "argument", "default", "instance"])
async def test_a_client_that_retries_is_said_when_the_other_side_fails(
    held: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = client()
    often = model.max_retries = next(COUNTS)

    async def closes(_task: str) -> None:
        assert model is not None
        raise ConnectionError("connection refused")

    async def takes(_task: str, llm: Any = None) -> None:
        raise ConnectionError("connection refused")

    async def defaults(_task: str, llm: Any = model) -> None:
        raise ConnectionError("connection refused")

    class Books:
        def __init__(self) -> None:
            self.llm = model

        async def run(self, _task: str) -> None:
            raise ConnectionError("connection refused")

    given = {"llm": model} if held == "argument" else {}
    functions = {
        "closure": closes, "argument": takes, "default": defaults, "instance": Books().run,
    }  # fmt: skip
    with caplog.at_level(logging.WARNING, "triage.retries"):
        await fails(functions[held], **given)
        assert f"up to {often} times by itself" in caplog.text
        assert "single_retry_layer" in caplog.text
        caplog.clear()
        await fails(functions[held], **given)
        assert caplog.text == ""


async def test_one_layer_of_retries_is_nothing_to_speak_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = single_retry_layer(client())

    async def agent(_task: str) -> None:
        assert model is not None
        raise ConnectionError("connection refused")

    with caplog.at_level(logging.WARNING, "triage.retries"):
        await fails(agent)
    assert caplog.text == ""
