"""Polling is no loop: equal calls after a wait, or whose result says that something is not done yet."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from pydantic_ai.usage import UsageLimits
from tables import table

from triage import Agent, Checks, FailureType, Limits, Run, Step, TriageEscalationError, diagnose
from triage.core import Event, WatchNoticed
from triage.engine import Watching
from triage.testing import VirtualTime

from .recording_ways import MODELLESS, TASK, UNTIMED, WAYS, Asks, Turn, World, words_of

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]
POLLS = 40


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def poller(pending: Any, *, polls: int = POLLS, **seconds: Any) -> World:
    """A model that asks for a job's status until it is done."""
    asked = 0

    def status(given: str) -> Any:
        nonlocal asked
        asked += 1
        return pending if asked < polls else {"status": "done", "progress": 100}

    def think(results: int, told: str) -> Turn:
        return "finished" if asked >= polls else Asks("job_status", "j1")

    return World(think, {"job_status": status}, {"job_status": "read"}, **seconds)


async def played(way: str, world: World, **options: Any) -> tuple[Any, list[WatchNoticed]]:
    """What a run came to, and what was noticed in it."""
    noticed: list[WatchNoticed] = []

    def hear(event: Event) -> None:
        if isinstance(event, WatchNoticed):
            noticed.append(event)

    more = {"recursion_limit": 500} if way == "langgraph" else {}
    agent = WAYS[way](world, observers=[hear], **options)
    if way == "langgraph":
        result = await agent.run({"messages": [("user", TASK)]}, config=more)
    elif way == "openai_agents":
        result = await agent.run(TASK, max_turns=500)
    elif way == "pydantic":
        result = await agent.run(TASK, usage_limits=UsageLimits(request_limit=500))
    else:
        result = await agent.run(TASK)
    return words_of(result), noticed


@table("way", [way for way in WAYS if way not in UNTIMED])
async def test_calls_between_which_the_agent_waits_are_no_loop(way: str) -> None:
    world = poller({"progress": 10}, model_seconds=2, tool_seconds=2, wait=30)
    assert await played(way, world) == ("finished", [])


@table("way", list(WAYS))
async def test_calls_whose_result_says_it_is_not_done_are_no_loop(way: str) -> None:
    world = poller({"status": "running", "progress": "10 %"}, model_seconds=2, tool_seconds=20)
    assert await played(way, world) == ("finished", [])


@table("way", [way for way in WAYS if way not in MODELLESS or way in UNTIMED])
async def test_a_loop_of_slow_models_and_tools_stays_a_loop(way: str) -> None:
    world = poller({"progress": 10}, model_seconds=20, tool_seconds=10)
    with pytest.raises(TriageEscalationError) as caught:
        await played(way, world)
    assert caught.value.diagnosis is not None
    assert caught.value.diagnosis.failure_type is FailureType.LOOP_DETECTED
    assert len(world.calls) < POLLS


@table("way", list(WAYS))
async def test_polling_ends_after_the_seconds_it_may_take(way: str) -> None:
    world = poller({"status": "pending"}, polls=10_000, tool_seconds=30)
    with pytest.raises(TriageEscalationError) as caught:
        await played(way, world, limits=Limits(polling_seconds=600))
    context = caught.value.context
    assert context is not None
    diagnosis = context.attempt_history[0].diagnosis
    assert diagnosis.failure_type is FailureType.LOOP_DETECTED
    assert "Limits(polling_seconds=600)" in str(diagnosis.evidence[0].text)
    assert len(world.calls) < 30


async def test_polling_has_no_end_where_there_is_no_limit() -> None:
    world = poller({"status": "pending"}, polls=300, tool_seconds=30)
    assert await played("run_model", world, limits=Limits(polling_seconds=None)) == ("finished", [])


async def test_a_poll_that_failed_is_made_again_in_the_next_attempt_as_often_as_needed() -> None:
    environment = VirtualTime()
    asked = 0

    async def agent(task: str, *, run: Run) -> str:
        nonlocal asked
        while True:
            asked += 1
            run.record_step(
                Step(tool_called="status", tool_input="j", tool_output={"state": "queued"})
            )
            await environment.sleep(30)
            if asked in (15, 30):
                raise ConnectionError("reset by peer")
            if asked == 60:
                return "finished"

    assert await Agent(agent, environment=environment).run(TASK) == "finished"


# --- what says that it is not done ------------------------------------------------------------------


@dataclasses.dataclass
class Job:
    """A job as a client gives it."""

    id: str
    status: str


class Operation:
    """As clients of services write them."""

    def __init__(self, state: str) -> None:
        self.state = state

    def model_dump(self, **_: Any) -> dict[str, str]:
        return {"state": self.state}


PENDING: tuple[Any, ...] = (
    {"status": "pending"},
    {"status": "PENDING"},
    {"status": "queued"},
    {"status": "running", "progress": 0.1},
    {"status": "in progress"},
    {"status": "in_progress"},
    {"status": "in-progress"},
    {"status": "InProgress"},
    {"status": "IN_PROGRESS", "id": 7},
    {"Status": "Running"},
    {"STATUS": "QUEUED"},
    {"state": "RUNNING"},
    {"state": "PENDING", "ready": False},
    {"state": "JOB_STATE_RUNNING"},
    {"state": "JobState.QUEUED"},
    {"phase": "Pending"},
    {"phase": "Running"},
    {"job_status": "processing"},
    {"jobStatus": "Processing"},
    {"build_state": "queued"},
    {"run-status": "running"},
    {"provisioningState": "InProgress"},
    {"StackStatus": "CREATE_IN_PROGRESS"},
    {"status": "in_progress", "conclusion": None},
    {"conclusion": None, "name": "build"},
    {"done": False},
    {"name": "operations/7", "done": False},
    {"operation": {"done": False}},
    {"operation.done": False},
    {"completed": False},
    {"finished": False, "percent": 40},
    {"ready": False},
    {"isDone": False},
    {"is_complete": False},
    {"data": {"status": "pending"}},
    {"data": {"job": {"state": "running"}}},
    {"QueryExecution": {"Status": {"State": "QUEUED"}}},
    {"status": {"state": "running"}},
    {"status": {"phase": "Pending"}},
    {"ok": True, "result": {"status": "running"}},
    {"status": "ok", "data": {"status": "running"}},
    {"status": 200, "body": {"state": "queued"}},
    {"success": True, "job": {"status": "pending", "id": "j"}},
    [{"id": 1, "status": "running"}],
    {"runs": [{"id": 1, "status": "completed"}, {"id": 2, "status": "in_progress"}]},
    json.dumps({"status": "pending"}),
    json.dumps({"data": {"state": "running"}}, indent=2),
    "  " + json.dumps({"done": False}),
    {"content": [{"type": "text", "text": '{"status": "pending"}'}], "isError": False},
    {"body": '{"state": "queued"}', "statusCode": 200},
    str({"status": "pending", "done": False}),
    Job("j", "queued"),
    Operation("running"),
)
NOT_PENDING: tuple[Any, ...] = (
    "pending",
    "The job is still running, please wait.",
    "status: pending",
    "queued",
    {"message": "The job is pending."},
    {"text": "running"},
    {"status": "the job may be running or not, nobody knows for sure"},
    {"status": "failed"},
    {"status": "done", "done": True},
    {"status": "not running"},
    {"status": "stopped"},
    {"state": "error", "message": "pending"},
    {"done": True},
    {"conclusion": "success"},
    {"ready": True},
    {"pending": 0},
    {"title": "pending", "name": "running"},
    {"results": []},
    {"shoes": "running"},
    {"statuses": "running"},
    {"completed": True},
    {"finished": None},
    {"progress": 10},
    [],
    None,
    7,
    '{"text": "pending"}',
    "{status: pending",
)


async def noticed_of(result: Any, *, times: int = 12) -> list[str]:
    """What is noticed of equal calls with this result, at once one after another."""
    heard: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, WatchNoticed):
            heard.append(event.response)

    async def agent(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            for _ in range(times):
                run.record_step(Step(tool_called="job", tool_input={"id": 1}, tool_output=result))
        return "finished"

    await Agent(agent, observers=[hear]).run(TASK)
    return heard


@table("result", PENDING)
async def test_a_field_says_that_it_is_not_done(result: Any) -> None:
    assert await noticed_of(result) == []


@table("result", NOT_PENDING)
async def test_nothing_but_a_field_says_that_it_is_not_done(result: Any) -> None:
    assert "interrupt" in await noticed_of(result)


def steps_of(result: Any, apart: float | None, times: int = 8) -> list[Step]:
    """The same call again and again, this many seconds apart; None where no times are known."""
    return [
        Step(
            action="call",
            tool_called="job",
            tool_input={"id": 1},
            tool_output=result,
            timestamp=None if apart is None else 1000.0 + number * (apart + 1),
            duration_s=None if apart is None else 1.0,
        )
        for number in range(times)
    ]


@table(
    ("result", "apart", "is_loop"),
    [
        ({"progress": 1}, None, True),
        ({"progress": 1}, 0.0, True),
        ({"progress": 1}, 0.9, True),
        ({"progress": 1}, 1.1, False),
        ({"status": "pending"}, None, False),
        ({"status": "pending"}, 0.0, False),
        ("pending", None, True),
    ],
)
def test_a_post_mortem_knows_polling_by_times_and_fields(
    result: Any, apart: float | None, *, is_loop: bool
) -> None:
    found = diagnose(ConnectionError("reset"), steps_of(result, apart))
    assert (found.failure_type is FailureType.LOOP_DETECTED) is is_loop


async def test_a_limit_on_polling_holds_where_loops_are_left_to_go_on() -> None:
    world = poller({"status": "pending"}, polls=10_000, tool_seconds=30)
    checks = Checks(watch=Watching(hint_after=None, interrupt_after=None))
    with pytest.raises(TriageEscalationError):
        await played("run_model", world, limits=Limits(polling_seconds=600), checks=checks)


async def test_a_call_that_raises_until_the_thing_is_there_is_polling() -> None:
    def status(given: str) -> Any:
        if len(world.calls) < POLLS:
            raise LookupError("no such job yet")
        return "there"

    def think(results: int, told: str) -> Turn:
        return "finished" if len(world.calls) >= POLLS else Asks("job_status", "j1")

    world = World(think, {"job_status": status}, tool_seconds=1, wait=30)
    assert await played("run_model", world) == ("finished", [])
