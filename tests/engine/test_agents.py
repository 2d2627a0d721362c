"""Wrapping a function and calling it: what it is given, what comes back, and what streams out of it."""

from __future__ import annotations

import copy
import functools
import gc
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import anyio
import anyio.lowlevel
import pytest
from support import RETRY, FakeEnvironment, Says
from tables import table

import triage
from triage import Agent, Limits, Retry, Run, Step, TriageEscalationError, Usage, UsageError
from triage.core import StepRecorded

pytestmark = pytest.mark.anyio


async def test_the_function_is_given_only_what_it_names() -> None:
    seen: dict[str, Any] = {}

    async def names_some(task: str, *, record_usage: Any, _triage_hint: Any, **rest: Any) -> None:
        seen.update(rest, hint=_triage_hint)
        record_usage(Usage(input_tokens=3))

    await Agent(names_some).run("t", city="Rome")
    assert seen == {"city": "Rome", "hint": None}


async def test_everything_that_can_be_injected_is() -> None:
    given: list[Any] = []

    async def names_all(
        task: str,
        *,
        record_step: Any,
        update_state: Any,
        record_usage: Any,
        run: Run,
        _triage_hint: Any,
        _triage_subgoal: Any,
        _triage_state: Any,
        _triage_context: Any,
    ) -> str:
        record_step(Step(action="look", tool_called="look"))
        update_state({"seen": [1]})
        record_usage(Usage(input_tokens=2, output_tokens=3, cost_usd=0.5))
        given.append((_triage_hint, _triage_subgoal, _triage_state, _triage_context))
        assert run.trajectory[0].index == 0
        assert run.state == {"seen": [1]}
        assert run.usage.total_tokens == 5
        assert run.attempt == 1
        assert run.history == ()
        assert triage.current_run() is run
        return run.run_id

    agent = Agent(names_all)
    run_id = await agent.run("t")
    assert given == [(None, None, None, None)]
    assert [info.run_id for info in await agent.store.runs()] == [run_id]


async def test_a_task_may_be_any_value() -> None:
    marker = object()

    async def same(task: object) -> object:
        return task

    assert await Agent(same).run(marker) is marker


async def test_a_sync_function_runs_in_a_thread() -> None:
    async def where() -> int:
        return threading.get_ident()

    def sync_agent(task: str, *, record_step: Any) -> tuple[int, str]:
        record_step(Step(action="in a thread"))
        return threading.get_ident(), triage.current_run().run_id

    thread, run_id = await Agent(sync_agent).run("t", run_id="chosen")
    assert thread != await where()
    assert run_id == "chosen"


def test_run_sync_runs_without_an_event_loop() -> None:
    async def double(task: int) -> int:
        return task * 2

    assert Agent(double).run_sync(4) == 8


def test_run_sync_adds_nothing_to_an_agents_error() -> None:
    async def fails(task: int) -> int:
        raise LookupError("its own")

    policy = triage.FailurePolicy(default=triage.Escalate())
    with pytest.raises(TriageEscalationError) as raised:
        Agent(fails, policy, classifier=Says()).run_sync(4)
    error = raised.value.__cause__
    assert isinstance(error, LookupError)
    assert error.__context__ is None


@table("double", [AsyncMock, MagicMock])
def test_a_callable_with_any_attribute_is_read_to_its_end(double: Any) -> None:
    assert Agent(double(return_value=3)).run_sync("t") == 3


async def test_a_callable_object_and_a_partial_are_agents() -> None:
    class Greeter:
        async def __call__(self, task: str, *, greeting: str) -> str:
            return f"{greeting} {task}"

    async def joined(task: str, tail: str) -> str:
        return task + tail

    assert await Agent(Greeter()).run("Ann", greeting="Hi") == "Hi Ann"
    assert await Agent(functools.partial(joined, tail="!")).run("a") == "a!"


async def test_the_decorator_works_with_and_without_options() -> None:
    @triage.agent
    async def plain(task: str) -> str:
        return task

    @triage.agent(limits=Limits(attempts=1), name="other")
    async def configured(task: str) -> str:
        raise ValueError(task)

    assert await plain.run("x") == "x"
    assert plain.name.endswith("plain")
    assert configured.name == "other"
    with pytest.raises(TriageEscalationError):
        await configured("x")


class Service:
    prefix = "class"

    def __init__(self, prefix: str) -> None:
        self.own = prefix

    @triage.agent
    async def method(self, task: str, *, record_step: Any) -> str:
        record_step(Step(action=self.own))
        return f"{self.own} {task}"

    @triage.agent
    @classmethod
    async def of_class(cls, task: str) -> str:
        return f"{cls.prefix} {task}"

    @triage.agent
    @staticmethod
    async def of_none(task: str) -> str:
        return task


async def test_methods_classmethods_and_staticmethods_are_agents() -> None:
    one, two = Service("one"), Service("two")
    assert await one.method.run("a") == "one a"
    assert await two.method("b") == "two b"
    assert await Service.of_class.run("c") == "class c"
    assert await one.of_class.run("c") == "class c"
    assert await Service.of_none.run("d") == "d"


async def test_a_handle_used_after_its_attempt_reaches_nothing() -> None:
    kept: list[Run] = []

    async def leaks(task: str, *, run: Run) -> str:
        kept.append(run)
        return run.run_id

    agent = Agent(leaks)
    run_id = await agent.run("t")
    before = await agent.store.read(run_id)
    with pytest.raises(triage.core.AttemptOver, match="attempt 1"):
        kept[0].record_step(Step(action="late"))
    with pytest.raises(triage.core.AttemptOver):
        kept[0].update_state({"late": 1})
    with pytest.raises(triage.core.AttemptOver):
        kept[0].record_usage(Usage(input_tokens=1))
    with pytest.raises(triage.core.AttemptOver):
        await kept[0].call(len, "x")
    assert await agent.store.read(run_id) == before


async def test_the_handle_of_an_earlier_attempt_is_over_in_the_next() -> None:
    handles: list[Run] = []

    async def twice(task: str, *, run: Run) -> str:
        handles.append(run)
        if len(handles) == 1:
            raise ConnectionError("once")
        with pytest.raises(triage.core.AttemptOver):
            handles[0].record_step(Step(action="late"))
        return "done"

    assert await Agent(twice, RETRY, classifier=Says()).run("t") == "done"


async def test_ids_and_times_come_from_the_environment() -> None:
    async def fails_once(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            raise ConnectionError("no")
        return run.run_id

    env = FakeEnvironment()
    agent = Agent(
        fails_once,
        triage.FailurePolicy(default=Retry(delay=7.5)),
        classifier=Says(),
        environment=env,
    )
    assert await agent.run("t") == "run-1"
    assert env.slept == [7.5]
    events = await agent.store.read("run-1")
    assert [event.seq for event in events] == list(range(len(events)))
    assert events[0].time == 1000.0
    assert events[-1].time == 1007.5


async def test_the_copies_and_bound_forms_of_an_agent_keep_their_runs_in_one_store() -> None:
    class Bot:
        @Agent
        async def answer(self, task: str) -> str:
            return task

    unused: Any = Bot.answer
    agents: list[Agent[str]] = [Bot().answer, Bot().answer, copy.copy(unused), unused]
    for agent in agents[:3]:
        assert agent.store is unused.store
    assert await Bot().answer.run("a") == "a"
    assert [info.status for info in await unused.store.runs()] == ["done"]


async def test_observers_are_taken_when_the_agent_is_made() -> None:
    seen: list[str] = []
    observers = [lambda event: seen.append(type(event).__name__)]

    async def works(task: str) -> str:
        return task

    agent = Agent(works, observers=iter(observers))
    observers.clear()
    await agent.run("t")
    await agent.run("t")
    assert seen == ["RunStarted", "AttemptStarted", "RunFinished"] * 2


async def test_an_agent_observed_by_others_tells_them_beside_its_own_observers() -> None:
    own: list[str] = []
    others: list[str] = []

    async def works(task: str) -> str:
        return task

    agent = Agent(works, observers=[lambda event: own.append(event.run_id)])
    observed = agent.observed_by(lambda event: others.append(event.run_id))
    await observed.run("t", run_id="seen")
    await agent.run("t", run_id="unseen")
    assert own == ["seen"] * 3 + ["unseen"] * 3
    assert others == ["seen"] * 3
    assert observed.store is agent.store


# Streams and events -------------------------------------------------------------------------------
async def test_stream_yields_the_items_of_the_function() -> None:
    async def counts(task: int) -> AsyncIterator[int]:
        for number in range(task):
            yield number

    assert [item async for item in Agent(counts).stream(3)] == [0, 1, 2]
    whole: list[int] = await Agent(counts).run(3)
    assert whole == [0, 1, 2]


async def test_stream_says_where_a_new_attempt_begins() -> None:
    attempts: list[int] = []

    async def fails_late(task: str, *, run: Run) -> AsyncIterator[str]:
        attempts.append(run.attempt)
        yield f"{run.attempt}a"
        if run.attempt == 1:
            raise ConnectionError("cut")
        yield f"{run.attempt}b"

    items = [item async for item in Agent(fails_late, RETRY, classifier=Says()).stream("t")]
    assert items[0] == "1a"
    assert isinstance(items[1], triage.Restarted)
    assert items[1].attempt == 2
    assert items[1].action == Retry()
    assert items[2:] == ["2a", "2b"]


async def test_the_consumer_of_a_stream_is_never_inside_the_attempt() -> None:
    async def yields(task: str, *, run: Run) -> AsyncIterator[str]:
        assert triage.current_run() is run
        yield "a"
        assert triage.current_run() is run
        yield "b"

    async for _ in Agent(yields).stream("t"):
        with pytest.raises(UsageError, match="outside"):
            triage.current_run()


def handed_on(function: Any) -> Any:
    """Decorate as loggers and tracers do: with a plain wrapper."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Counter:
    @triage.agent
    @handed_on
    async def counts(self, task: int) -> AsyncIterator[int]:
        for number in range(task):
            yield number

    @handed_on
    async def plainly(self, task: int) -> AsyncIterator[int]:
        yield task


async def test_a_decorator_does_not_hide_a_generator() -> None:
    @handed_on
    async def fails_late(task: str, *, run: Run) -> AsyncIterator[int]:
        yield run.attempt
        if run.attempt == 1:
            raise ConnectionError("cut")

    agent: Agent[Any] = Agent(fails_late, RETRY, classifier=Says())
    assert await agent.run("t") == [2]
    first, restarted, second = [item async for item in agent.stream("t")]
    assert (first, restarted.attempt, second) == (1, 2, 2)
    assert await Counter().counts.run(3) == [0, 1, 2]
    assert [item async for item in Counter().counts.stream(2)] == [0, 1]
    assert await Agent(functools.partial(Counter().plainly)).run(7) == [7]


async def twice(task: int) -> AsyncIterator[int]:
    yield task
    yield task


@functools.wraps(twice)
async def collected(task: int) -> list[int]:
    return [item async for item in twice(task)]


@functools.wraps(twice)
def collected_later(task: int) -> Any:
    return collected(task)


@functools.wraps(twice)
def collected_at_once(task: int) -> list[int]:
    return anyio.run(collected, task)


@pytest.mark.parametrize(
    "wrapper", [collected, collected_later, collected_at_once, handed_on(collected)]
)
async def test_a_decorator_that_collects_its_generator_makes_an_ordinary_agent(
    wrapper: Any,
) -> None:
    agent: Agent[Any] = Agent(wrapper, verify=[3, 3].__eq__)
    assert await agent.run(3) == [3, 3]
    assert [item async for item in agent.stream(3)] == [[3, 3]]


async def test_a_plain_function_that_returns_a_generator_runs_it() -> None:
    def undecorated(task: int) -> AsyncIterator[int]:
        return twice(task)

    assert await Agent(undecorated).run(3) == [3, 3]


async def test_closing_a_stream_early_is_a_cancellation() -> None:
    closed: list[bool] = []

    async def endless(task: str) -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append(True)

    agent = Agent(endless)
    stream = agent.stream("t")
    assert await anext(stream) == 1
    await stream.aclose()  # type: ignore[attr-defined] # it is an async generator
    assert closed == [True]
    assert [info.status for info in await agent.store.runs()] == ["cancelled"]


async def test_stream_of_a_plain_function_is_its_result() -> None:
    async def answers(task: str) -> str:
        return task

    assert [item async for item in Agent(answers).stream("x")] == ["x"]


async def test_events_follow_the_run_and_its_error_comes_last() -> None:
    async def fails(task: str, *, record_step: Any) -> None:
        record_step(Step(action="try"))
        raise ConnectionError("down")

    agent = Agent(fails, triage.FailurePolicy(default=triage.Escalate("no way")))
    names: list[str] = []

    async def follow() -> None:
        async for event in agent.events("t"):
            names.append(type(event).__name__)  # noqa: PERF401 - kept although the last step raises

    with pytest.raises(TriageEscalationError, match="no way"):
        await follow()
    assert names == [
        "RunStarted", "AttemptStarted", "StepRecorded", "AttemptFailed", "ActionChosen", "RunFinished",
    ]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")  # what trio says of it
async def test_events_that_are_left_by_a_break_end_the_run_and_nothing_else() -> None:
    over = anyio.Event()

    async def waits(task: str, *, record_step: Any) -> None:
        try:
            record_step(Step(action="one"))
            await anyio.sleep_forever()
        finally:
            over.set()

    agent = Agent(waits)

    async def first_step() -> Step:
        async for event in agent.events("t"):
            if isinstance(event, StepRecorded):
                return event.step
        raise AssertionError

    with anyio.fail_after(60):
        assert (await first_step()).action == "one"
        gc.collect()  # where the generator was in a circle
        await over.wait()
        await anyio.lowlevel.checkpoint()  # raises if somebody has cancelled this task
        while [info.status for info in await agent.store.runs()] != ["cancelled"]:
            await anyio.lowlevel.checkpoint()


async def test_events_of_a_sync_agent_are_followed_from_its_thread() -> None:
    def works(task: str, *, record_step: Any) -> str:
        record_step(Step(action="one"))
        record_step(Step(action="two"))
        return "done"

    names = [type(event).__name__ async for event in Agent(works).events("t")]
    assert names == ["RunStarted", "AttemptStarted", "StepRecorded", "StepRecorded", "RunFinished"]


FIRST_RUN = """
import anyio
from blockbuster import blockbuster_ctx
import triage
from triage import Agent, Checks, FailurePolicy, Retry, Run, Step

async def main():
    @triage.tool(effect="read")
    async def price(cents: int) -> int:
        return cents

    async def works(task: str, *, run: Run):
        run.record_step(Step(action="call", tool_called="price", tool_input={"cents": "three"}))
        await price(3)
        if run.attempt == 1:
            raise ValueError("not a number")
        return (1, 2)

    checks = Checks(tools=[price], result_type=tuple[int, int])
    agent = Agent(works, FailurePolicy(default=Retry()), checks=checks)
    print(await agent.run("t"))

with blockbuster_ctx(scanned_modules=["triage"]):
    anyio.run(main)
"""


def test_the_first_run_of_a_process_does_not_hold_up_its_event_loop() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FIRST_RUN], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stdout == "(1, 2)\n", ended.stderr
