"""Calls that are tried again at once: how often, after what, for how long, and what is written down."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from support import FakeEnvironment, escalation_of, recovers
from tables import table

import triage
from triage import (
    Agent,
    Escalate,
    Limits,
    Retry,
    Run,
    Trajectory,
    TriageEscalationError,
    TriageSuspendedError,
    UsageError,
)
from triage.strategies import Backoff, Preset

pytestmark = pytest.mark.anyio


class Busy(Exception):
    status_code = 429

    def __init__(self, retry_after_s: float | None = None) -> None:
        super().__init__("busy")
        if retry_after_s is not None:
            triage.hint(self, retry_after_s=retry_after_s)


class Tried:
    """A tool that raises these errors, one a try, then works; and the run around it."""

    def __init__(self, effect: str, *errors: Exception, **options: Any) -> None:
        self.errors = list(errors)
        self.tries = 0
        self.environment = FakeEnvironment()
        self.seen: list[Trajectory] = []
        self.tool: Any = triage.tool(effect=effect, name="act", **options)(self._act)

    async def _act(self) -> str:
        self.tries += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    async def run(self, **options: Any) -> Any:
        async def works(task: str, *, run: Run) -> Any:
            try:
                return await self.tool()
            finally:
                self.seen.append(run.trajectory)

        given = {**recovers(Escalate()), "environment": self.environment, **options}
        return await Agent(works, **given).run("t")


async def test_a_read_is_tried_again_and_each_try_is_on_its_step() -> None:
    tried = Tried("read", ConnectionError("one"), ValueError("two"), retries=2)
    assert await tried.run() == "done"
    assert tried.tries == 3
    (step,) = tried.seen[0]
    assert step.tool_output == "done"
    assert [entry["error"] for entry in (step.metadata or {})["tries"]] == ["one", "two"]
    assert tried.environment.slept == [0.75, 1.5]  # three quarters of 1 and 2 seconds


async def test_after_the_last_try_the_error_is_the_tools_own() -> None:
    tried = Tried("read", *(ConnectionError(str(n)) for n in range(5)), retries=2)
    caught = await escalation_of(tried.run())
    assert str(caught.__cause__) == "2"
    assert len((tried.seen[0][0].metadata or {})["tries"]) == 2


@table(
    ("retries", "errors", "slept"),
    [
        (Preset(3, Backoff(base=5.0, factor=3.0, jitter=False)), [Busy(), Busy()], [5.0, 15.0]),
        (1, [Busy(17.0)], [17.0]),
    ],
)
async def test_each_try_waits(retries: Any, errors: list[Exception], slept: list[float]) -> None:
    tried = Tried("read", *errors, retries=retries)
    assert await tried.run() == "done"
    assert tried.environment.slept == slept


@table("effect", ["once", "unknown"])
async def test_an_unsafe_call_is_tried_again_only_where_nothing_can_have_happened(
    effect: str,
) -> None:
    tried = Tried(effect, Busy(), ConnectionRefusedError("refused"), retries=5)
    assert await tried.run() == "done"
    assert tried.tries == 3

    tried = Tried(effect, Busy(), ConnectionResetError("reset"), retries=5)
    with pytest.raises(TriageSuspendedError):
        await tried.run()
    assert tried.tries == 2


async def test_an_unsafe_call_that_took_its_key_is_tried_again() -> None:
    keys: list[str] = []

    @triage.tool(effect="once", retries=1)
    async def act() -> str:
        keys.append(triage.current_call().idempotency_key)
        if len(keys) == 1:
            raise ConnectionResetError("reset")
        return "done"

    async def works(task: str) -> str:
        return await act()

    assert await Agent(works, environment=FakeEnvironment()).run("t") == "done"
    assert len(set(keys)) == 1
    assert len(keys) == 2


class Status(Exception):
    def __init__(self, status_code: int) -> None:
        super().__init__(f"status {status_code}")
        self.status_code = status_code


@table(
    "error",
    [
        Status(404),
        Status(401),
        TypeError("no such argument"),
        UsageError("wrong"),
        triage.hint(RuntimeError("closed for good"), severity="fatal"),
    ],
)
async def test_what_will_come_again_is_not_tried_again(error: Exception) -> None:
    tried = Tried("read", error, retries=5)
    with pytest.raises((triage.TriageError, TypeError)):
        await tried.run()
    assert tried.tries == 1


async def test_who_asks_for_too_much_time_is_left_to_the_policy() -> None:
    tried = Tried("read", Busy(3600.0), retries=3)
    with pytest.raises(TriageEscalationError):
        await tried.run()
    assert tried.tries == 1


@table("limits", [Limits(seconds=10.0), Limits(attempt_seconds=10.0)])
async def test_no_wait_passes_the_deadline(limits: Limits) -> None:
    tried = Tried("read", Busy(6.0), Busy(6.0), retries=5)
    with pytest.raises(TriageEscalationError):
        await tried.run(limits=limits)
    assert tried.environment.slept == [6.0]
    assert tried.tries == 2


async def test_all_tries_are_one_call() -> None:
    tried = Tried("read", Busy(), Busy(), retries=2)
    assert await tried.run(limits=Limits(tool_calls=1)) == "done"


async def test_a_retry_of_the_run_reuses_what_the_last_try_gave() -> None:
    tried = Tried("once", Busy(), retries=1)

    async def works(task: str, *, run: Run) -> Any:
        result = await tried.tool()
        if run.attempt == 1:
            raise ConnectionError("late")
        return result

    options = {**recovers(Retry()), "environment": tried.environment}
    assert await Agent(works, **options).run("t") == "done"
    assert tried.tries == 2


@table("seconds", [None, 30.0])
async def test_a_sync_tool_waits_in_its_thread(seconds: float | None) -> None:
    environment = FakeEnvironment()
    threads: set[int] = set()

    @triage.tool(effect="read", retries=2, timeout=seconds)
    def act() -> str:
        threads.add(threading.get_ident())
        if len(environment.slept) < 2:
            raise ConnectionError("late")
        return "done"

    def works(task: str) -> str:
        return act()

    assert await Agent(works, environment=environment).run("t") == "done"
    assert environment.slept == [0.75, 1.5]
    assert threading.get_ident() not in threads


async def test_a_sync_tool_waits_in_a_thread_of_ones_own_too() -> None:
    environment = FakeEnvironment()
    results: list[str] = []

    @triage.tool(effect="read", retries=1)
    def act() -> str:
        if not environment.slept:
            raise ConnectionError("late")
        return "done"

    def works(task: str, *, run: Run) -> None:
        inside = contextvars.copy_context()
        thread = threading.Thread(target=inside.run, args=(lambda: results.append(act()),))
        thread.start()
        thread.join()

    await Agent(works, environment=environment).run("t")
    assert results == ["done"]


async def test_nobody_waits_in_the_event_loops_own_thread() -> None:
    environment = FakeEnvironment()
    calls: list[str] = []

    @triage.tool(effect="read", retries=2)
    def act() -> str:
        calls.append("act")
        raise ConnectionError("late")

    async def works(task: str, *, run: Run) -> None:
        act()

    with pytest.raises(TriageEscalationError):
        await Agent(works, environment=environment, **recovers(Escalate())).run("t")
    assert (calls, environment.slept) == (["act"], [])

    async def works_aside(task: str, *, run: Run) -> None:
        await run.call(act)

    with pytest.raises(TriageEscalationError):
        await Agent(works_aside, environment=environment, **recovers(Escalate())).run("t")
    assert len(calls) == 4


class Stopping(FakeEnvironment):
    """Something happens while a call waits for its next try."""

    def __init__(self, happens: Callable[[], Any]) -> None:
        super().__init__()
        self.happens = happens

    async def sleep(self, seconds: float) -> None:
        self.happens()
        await anyio.lowlevel.checkpoint()


async def test_a_cancelled_wait_leaves_nothing_in_doubt() -> None:
    scope = anyio.CancelScope()
    events: list[triage.core.Event] = []

    @triage.tool(effect="once", retries=3)
    async def act() -> None:
        raise Busy

    async def works(task: str) -> None:
        await act()

    agent = Agent(works, environment=Stopping(scope.cancel), observers=[events.append])
    with scope:
        await agent.run("t")
    assert scope.cancelled_caught
    (call,) = triage.core.fold(events).calls.values()
    assert call.outcome == "not_attempted"


async def test_after_an_interrupt_no_try_begins() -> None:
    tries: list[str] = []
    runs: list[Run] = []

    @triage.tool(effect="read", retries=3)
    async def act() -> None:
        tries.append("act")
        raise Busy

    async def works(task: str, *, run: Run) -> None:
        runs.append(run)
        await act()

    interrupted = triage.Diagnosis(triage.FailureType.EXTERNAL_FAULT)
    environment = Stopping(lambda: runs[0].stop(interrupted))
    with pytest.raises(TriageEscalationError):
        await Agent(works, environment=environment, **recovers(Escalate())).run("t")
    assert tries == ["act"]


async def test_no_retries_is_one_try() -> None:
    for none in (None, 0, Backoff.WRITE):
        tried = Tried("read", ConnectionError("late"), retries=none)
        with pytest.raises(TriageEscalationError):
            await tried.run()
        assert tried.tries == 1
