"""Which failure takes which way in a plan-first run, and how it waits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import anyio
import pytest
from support import FakeEnvironment
from tables import table

from triage import Severity, TriageEscalationError
from triage.core import PlanStepMoved, TriageFatalError
from triage.core.faults import (
    CodeRuntimeFailed,
    ConnectivityFault,
    InvalidContextKey,
    MissingContext,
    PolicyRefused,
    RateLimited,
    WorkflowFault,
)
from triage.plan import Capability, Orchestrator, PlanLimits, Registry
from triage.strategies import Backoff, Preset

from .runs import (
    ANSWER,
    BAD,
    FIND,
    GOOD,
    PAY,
    READ,
    RESULT,
    Fails,
    Kept,
    Script,
    capabilities,
    kinds,
    orchestrator,
    plan,
    state_of,
    step,
)

pytestmark = pytest.mark.anyio


class ReadTimeout(TimeoutError):
    """A timeout by its class, whatever it is called."""


class Answered(Exception):
    """What a client raises for an answer with an error status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the endpoint answered {status}")
        self.status_code = status


@table(
    ("error", "asked"),
    [
        (ReadTimeout(), 4),
        (Answered(429), 4),
        (Answered(503), 4),
        (ConnectionResetError("gone"), 4),
        (ValueError("no temperature is set"), 1),
        (TypeError("planner() got an unexpected argument"), 1),
        (Answered(401), 1),
        (InvalidContextKey(key="x", available=["y"]), 3),
    ],
)
async def test_a_planner_is_asked_again_as_its_failure_deserves(error: Any, asked: int) -> None:
    planner = Script(error)
    with pytest.raises(TriageEscalationError) as ended:
        await orchestrator(planner).run("task")
    assert planner.count == asked
    assert ended.value.report is not None
    assert ended.value.report.facts.failed == "the planner"


@table(
    ("error", "found", "planned"),
    [
        (ConnectivityFault("gone"), 3, 1),
        (RateLimited("slow down", retry_after_s=9), 3, 1),
        (CodeRuntimeFailed("it ran and failed"), 3, 3),
        (MissingContext(keys=("map",)), 3, 3),
        (WorkflowFault("ask somebody"), 1, 1),
    ],
)
async def test_a_fault_of_a_capability_takes_the_way_it_says(
    error: Any, found: int, planned: int
) -> None:
    tried: Counter[str] = Counter()

    def fails(name: str) -> None:
        tried[name] += 1
        if name == "find":
            raise error

    planner = Script(GOOD)
    with pytest.raises(TriageEscalationError) as ended:
        await orchestrator(planner, fails=fails).run("task")
    assert (tried["find"], planner.count) == (found, planned)
    if isinstance(error, MissingContext):
        assert "map" in planner.requests[1].feedback
    assert ended.value.__cause__ is error


@table(
    ("limits", "calls", "said"),
    [
        (PlanLimits(), 8, ""),
        (PlanLimits(retries=3), 4, "retries: all 3 are used up, its own preset has 7"),
        (PlanLimits(total_retries=5), 6, "total_retries: all are used up, its own preset has 7"),
    ],
)
async def test_a_capability_is_tried_as_often_as_it_says_and_a_limit_that_cuts_it_is_logged(
    limits: PlanLimits, calls: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[str] = []

    def fails(name: str) -> None:
        tried.append(name)
        if name == "read":
            raise ConnectionError("the archive is away")

    more = {"read": {"retry": Preset(8, Backoff(0.1))}}
    made = orchestrator(Script(GOOD), fails=fails, more=more, limits=limits)
    with pytest.raises(TriageEscalationError):
        await made.run("task", run_id="run-1")
    assert tried.count("read") == calls
    logged = [
        one.getMessage() for one in caplog.records if "is not tried again" in one.getMessage()
    ]
    assert logged == ([f'run run-1: step "now" is not tried again: {said}'] if said else [])


async def test_waiting_holds_up_nobody_and_can_be_cancelled() -> None:
    env = Slow()
    made = orchestrator(Script(GOOD), fails=EveryRunOnce(), environment=env)
    async with anyio.create_task_group() as group:
        for number in range(64):
            group.start_soon(made.run, number)
        await env.all_wait(64)  # none of them is in the way of another
        env.go_on.set()
    assert [info.status for info in await made.store.runs()] == ["done"] * 64

    env = Slow()
    made = orchestrator(Script(ConnectionError("gone")), environment=env)
    async with anyio.create_task_group() as group:
        group.start_soon(made.run, "task")
        await env.all_wait(1)
        group.cancel_scope.cancel()
    assert [info.status for info in await made.store.runs()] == ["cancelled"]


class Slow(FakeEnvironment):
    """Whoever sleeps here sleeps until told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = anyio.Event()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await self.go_on.wait()

    async def all_wait(self, count: int) -> None:
        with anyio.fail_after(60):
            while len(self.slept) < count:
                await anyio.lowlevel.checkpoint()


class EveryRunOnce:
    """The reading fails once in each run."""

    def __init__(self) -> None:
        self.left = 64

    def __call__(self, name: str) -> None:
        if name == "read" and self.left:
            self.left -= 1
            raise ConnectionError("gone")


async def test_what_is_refused_is_neither_tried_again_nor_planned_around() -> None:
    planner = Script(GOOD)
    made = orchestrator(
        planner, fails=Fails(find=PolicyRefused("no")), limits=PlanLimits(climb=True)
    )
    with pytest.raises(TriageFatalError):
        await made.run("task", run_id="run-1")
    assert planner.count == 1
    assert (await state_of(made.store, "run-1")).ended == "stop"


async def test_what_the_caller_was_handling_is_no_failure_of_the_plan() -> None:
    made = orchestrator(Script(GOOD), fails=Fails(find=[RateLimited("busy"), None]))
    try:
        raise PolicyRefused("the caller's own")
    except PolicyRefused:
        assert await made.run("task") == RESULT


@table("severity", [Severity.RETRIABLE, Severity.REPLANNING, Severity.CRITICAL])
async def test_no_capability_can_explain_a_refusal_away(severity: Severity) -> None:
    planner, env = Script(GOOD), FakeEnvironment()
    fails = Fails(find=[PolicyRefused("not on sundays")] * 9)
    more = {"find": {"classify_error": lambda _error, _known: severity}}
    made = orchestrator(planner, fails=fails, more=more, environment=env)
    with pytest.raises(TriageFatalError):
        await made.run("task", run_id="run-1")
    assert (planner.count, env.slept) == (1, [])
    assert (await state_of(made.store, "run-1")).ended == "stop"


async def test_a_parameter_that_no_longer_fits_is_told_before_the_step_begins(
    tmp_path: Any,
) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    env = Slow()
    old = orchestrator(Script(GOOD), fails=Fails(find=TimeoutError()), store=store, environment=env)
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: old.run("task", run_id="run-1"))
        await env.all_wait(1)
        group.cancel_scope.cancel()  # its process goes away while it waits
    await old.store.close()
    planner = Script(plan(ANSWER))
    new = orchestrator(planner, store=store, more={"pay": {"function": _new_pay}})
    assert await new.recover("run-1") == RESULT
    assert 'takes no \\"cents\\"' in planner.requests[0].feedback
    assert planner.requests[0].results == {"where": "ADDRESS", "now": "VALUE"}
    await new.store.close()


@table(
    ("gone", "planned", "done"),
    [
        ("pay", 1, {"find beam": 1, "read beam-1": 1, "respond": 1}),
        ("find", 0, {"find beam": 1, "read beam-1": 1, "pay 5": 1, "respond": 1}),
    ],
)
async def test_a_capability_that_is_gone_is_missed_only_when_it_is_its_turn(
    gone: str, planned: int, done: dict[str, int], tmp_path: Any
) -> None:
    """A step that it was to do is an ordinary failure, and what it has done is still there."""
    env, world = Slow(), Kept()
    store = f"sqlite:///{tmp_path / f'{gone}.db'}"
    failing = Fails(read=TimeoutError())
    old = orchestrator(Script(GOOD), world, fails=failing, store=store, environment=env)
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: old.run("task", run_id="run-1"))
        await env.all_wait(1)
        group.cancel_scope.cancel()  # its process goes away while it waits
    await old.store.close()
    planner = Script(plan(ANSWER))
    without = Registry(one for one in capabilities(world) if one.name != gone)
    new = Orchestrator(without, planner, store=store, name=old.name)
    assert await new.recover("run-1") == RESULT
    assert planner.count == planned
    assert all(f'"{gone}"' in request.feedback for request in planner.requests)
    assert world.done() == Counter(done)
    await new.store.close()


async def _new_pay(euros: float) -> float:
    return euros


async def test_a_result_that_another_process_cannot_read_is_made_again_where_that_is_safe(
    tmp_path: Any,
) -> None:
    store, env, looked = f"sqlite:///{tmp_path / 'runs.db'}", Slow(), Counter[str]()

    def look() -> object:
        looked["look"] += 1
        return object()

    def use(raw: object) -> bool:
        looked["use"] += 1
        if looked["use"] == 1:
            raise ConnectionRefusedError("nobody is there")
        return type(raw) is object

    the_plan = plan(step("it", "look"), step("used", "use", ("RAW", "it")))

    def made(**options: Any) -> Orchestrator:
        registry = Registry(
            [
                Capability("look", "looks", look, provides=("RAW",), effect="read"),
                Capability("use", "uses", use, requires=("RAW",), effect="once"),
            ]
        )
        return Orchestrator(registry, Script(the_plan), store=store, **options)

    first = made(environment=env)
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: first.run("task", run_id="run-1"))
        await env.all_wait(1)
        group.cancel_scope.cancel()
    await first.store.close()
    second = made()
    assert await second.recover("run-1") is True
    assert looked == Counter(look=2, use=2)
    await second.store.close()


async def test_nothing_of_a_plan_is_begun_that_cannot_be_run_whole() -> None:
    world = Kept()
    torn = plan(FIND, READ, PAY, step("x", "teleport"))
    made = orchestrator(Script(torn), world)
    with pytest.raises(TriageEscalationError):
        await made.run("task", run_id="run-1")
    assert world.effects == []
    assert kinds(await made.store.read("run-1"))[PlanStepMoved.__name__] == 0


async def test_a_sync_planner_does_not_hold_up_the_event_loop() -> None:
    import threading

    here, seen = threading.get_ident(), list[int]()

    def planner(_request: Any) -> Any:
        seen.append(threading.get_ident())
        return BAD if len(seen) == 1 else GOOD

    assert await orchestrator(planner).run("task") == RESULT
    assert here not in seen


async def test_background_is_told_to_the_planner_and_the_selector() -> None:
    planner, selector = Script(GOOD), Script(["find", "read", "pay"])
    made = orchestrator(planner, selector=selector)
    said = {"history": ["hello"], "user": "ann"}
    assert await made.run("task", background=said) == RESULT
    assert planner.requests[0].background == selector.requests[0].background == said
