"""Wrapping a function and calling it: what it is given, what comes back."""

from __future__ import annotations

import copy
import functools
import threading
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import anyio
import pytest
from support import RETRY, FakeEnvironment, Says

import triage
from triage import (
    Agent,
    Limits,
    Retry,
    Run,
    Step,
    TriageEscalationError,
    Usage,
    UsageError,
)

pytestmark = pytest.mark.anyio


async def test_a_bare_function_works() -> None:
    async def bare(task: str) -> str:
        return task.upper()

    assert await Agent(bare).run("x") == "X"
    assert await Agent(bare)("y") == "Y"


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


async def test_a_failing_sync_function_recovers() -> None:
    attempts: list[str | None] = []

    def sync_agent(task: str, *, _triage_hint: str | None = None) -> str:
        attempts.append(_triage_hint)
        if len(attempts) == 1:
            raise ConnectionError("refused")
        return "done"

    agent = Agent(sync_agent, triage.FailurePolicy(default=Retry("again")), classifier=Says())
    assert await agent.run("t") == "done"
    assert attempts == [None, "again"]


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


@pytest.mark.parametrize("double", [AsyncMock, MagicMock])
def test_a_callable_with_any_attribute_is_read_to_its_end(double: Any) -> None:
    assert Agent(double(return_value=3)).run_sync("t") == 3


async def test_run_sync_refuses_async_code() -> None:
    async def double(task: int) -> int:
        return task * 2

    with pytest.raises(UsageError, match="await agent"):
        Agent(double).run_sync(4)


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


async def test_a_usage_error_of_the_agent_is_never_recovered() -> None:
    calls: list[int] = []

    async def wrong(task: str, *, update_state: Any) -> None:
        calls.append(1)
        update_state({"when": {1, 2}})

    with pytest.raises(UsageError, match="when"):
        await Agent(wrong, RETRY).run("t")
    assert calls == [1]


async def test_a_handle_used_after_its_attempt_reaches_nothing() -> None:
    kept: list[Run] = []

    async def leaks(task: str, *, run: Run) -> str:
        kept.append(run)
        return run.run_id

    agent = Agent(leaks)
    run_id = await agent.run("t")
    before = await agent.store.read(run_id)
    with pytest.raises(triage.AttemptOver, match="attempt 1"):
        kept[0].record_step(Step(action="late"))
    with pytest.raises(triage.AttemptOver):
        kept[0].update_state({"late": 1})
    with pytest.raises(triage.AttemptOver):
        kept[0].record_usage(Usage(input_tokens=1))
    with pytest.raises(triage.AttemptOver):
        await kept[0].call(len, "x")
    assert await agent.store.read(run_id) == before


async def test_the_handle_of_an_earlier_attempt_is_over_in_the_next() -> None:
    handles: list[Run] = []

    async def twice(task: str, *, run: Run) -> str:
        handles.append(run)
        if len(handles) == 1:
            raise ConnectionError("once")
        with pytest.raises(triage.AttemptOver):
            handles[0].record_step(Step(action="late"))
        return "done"

    assert await Agent(twice, RETRY, classifier=Says()).run("t") == "done"


async def test_cancellation_wins_and_is_journalled() -> None:
    started = anyio.Event()

    async def waits(task: str) -> None:
        started.set()
        await anyio.sleep_forever()

    agent = Agent(waits, RETRY)
    async with anyio.create_task_group() as group:
        group.start_soon(agent.run, "t")
        await started.wait()
        group.cancel_scope.cancel()
    (info,) = await agent.store.runs()
    assert info.status == "cancelled"


async def test_keyboard_interrupt_passes_untouched() -> None:
    async def interrupted(task: str) -> None:
        raise KeyboardInterrupt

    agent = Agent(interrupted, RETRY)
    with pytest.raises(KeyboardInterrupt):
        await agent.run("t")
    assert [info.status for info in await agent.store.runs()] == ["cancelled"]


async def test_a_taken_run_id_is_refused_before_the_function_is_called() -> None:
    calls: list[str] = []

    async def counts(task: str) -> None:
        calls.append(task)

    agent = Agent(counts)
    await agent.run("a", run_id="mine")
    with pytest.raises(UsageError, match="mine is taken"):
        await agent.run("b", run_id="mine")
    assert calls == ["a"]


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
