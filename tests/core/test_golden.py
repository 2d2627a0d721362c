"""What earlier releases wrote is read, shown and gone on with; see golden/README.md."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, get_args

import psycopg
import pytest
from event_values import told
from golden.runs import PLANNED, Trip, World
from store_kinds import POSTGRES, Opened

import triage
from triage import TriageAbortError, TriageEscalationError, UsageError
from triage.adapters.recordings import Trace, stream
from triage.cli import main
from triage.core import (
    AlreadyResumed,
    CallFinished,
    CallStarted,
    DeadLetter,
    Event,
    RunRecovered,
    TriageFatalError,
    TriageSuspendedError,
    fold,
    loads,
)
from triage.core.wire import dump
from triage.incidents import Hooks, IncidentDesk, Status, Watch
from triage.stores import Store

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]
FOLDERS = sorted((Path(__file__).parents[1] / "golden").glob("v*"))
NAME = "schema_of_the_golden_files"
KINDS = ("sqlite", "postgres")
BOUGHT = ["Lisboa", "sunny", "receipt 5", "receipt 7", 300, "mailed ann"]
"""What `buyer` comes back with."""


def expected(folder: Path) -> Any:
    return json.loads((folder / "expected.json").read_text(encoding="ascii"))


def lines(folder: Path) -> list[str]:
    return (folder / "journals.jsonl").read_text(encoding="ascii").splitlines()


def journals(folder: Path) -> dict[str, list[Event]]:
    """The events of each run, as they were exported."""
    found: dict[str, list[Event]] = {}
    for event in map(loads, lines(folder)):
        found.setdefault(event.run_id, []).append(event)
    return found


# Copies -------------------------------------------------------------------------------------------


def fill(opened: Opened, folder: Path) -> None:
    """Put a golden copy where the last store of `opened` keeps its runs."""
    if opened.kind == "sqlite":
        shutil.copy(folder / "runs.db", opened.name)
        Path(opened.name).chmod(0o600)
    else:
        said = (folder / "postgres.sql").read_text(encoding="utf-8").replace(NAME, opened.name)
        with psycopg.connect(POSTGRES, autocommit=True) as db:
            db.execute(said.encode())


@pytest.fixture
def anyio_backend() -> str:
    """What a file holds is no matter of the event loop."""
    return "asyncio"


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def folder(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Iterator[Opened]:
    """Where a copy is."""
    with Opened(request.param, tmp_path) as made:
        made.new()
        fill(made, folder)
        yield made


@pytest.fixture
async def store(opened: Opened) -> AsyncIterator[Store]:
    """A store on a copy."""
    made: Store = opened.another()
    yield made
    await made.close()


async def question(work: Any) -> TriageSuspendedError:
    """What a run asks, instead of ending."""
    with pytest.raises(TriageSuspendedError) as asked:
        await work
    return asked.value


# Reading ------------------------------------------------------------------------------------------


def test_every_event_type_is_in_the_golden_files() -> None:
    written = {json.loads(line)["event"] for folder in FOLDERS for line in lines(folder)}
    assert written == {cls.__name__ for cls in get_args(Event)}


def test_nothing_that_was_written_gets_lost_on_reading(folder: Path) -> None:
    for line in lines(folder):
        was, now = json.loads(line), dump(loads(line))
        assert {**now, **was, "v": now["v"]} == now


async def test_every_run_is_listed_as_it_was_left(store: Store, folder: Path) -> None:
    infos = await store.runs()
    names = ("agent", "status", "events", "epoch", "claims", "parent")
    found = {info.run_id: {name: getattr(info, name) for name in names} for info in infos}
    assert found == expected(folder)["runs"]
    waiting = {info.run_id for info in await store.runs("suspended") if info.parent is None}
    assert waiting == expected(folder)["tokens"].keys()
    inner = [info.status for info in await store.runs(parent="office-asks")]
    assert inner == ["suspended", "done"]


async def test_every_event_is_read_and_tells_the_same_run(store: Store, folder: Path) -> None:
    infos = {info.run_id: info for info in await store.runs()}
    exported = journals(folder)
    assert exported.keys() == infos.keys()
    for run_id, events in exported.items():
        read = await store.read(run_id)
        assert read == events
        state = fold(read)
        assert told(state) == told(fold(events))
        if infos[run_id].status not in ("running", "dead_letter"):
            assert state.status == infos[run_id].status


async def test_what_a_run_recorded_is_folded_as_it_was_written(store: Store) -> None:
    state = fold(await store.read("done"))
    assert state.result == {"city": "Lisboa", "cents": 300}
    assert (state.attempt, len(state.history)) == (5, 4)
    assert state.usage.input_tokens == 500
    outcomes = {call.outcome for call in state.calls.values()}
    assert outcomes == {"done", "failed", "not_attempted"}
    assert any(
        isinstance(event, CallFinished) and event.replayed for event in await store.read("done")
    )
    (doubtful,) = [
        call for call in fold(await store.read("doubt")).calls.values() if call.outcome != "done"
    ]
    assert (doubtful.tool, doubtful.outcome) == ("transfer", "in_doubt")


@pytest.mark.parametrize("kind", KINDS)
def test_the_commands_list_and_show_every_run(
    kind: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Opened(kind, tmp_path) as opened:
        opened.new()
        fill(opened, folder)
        text = {
            "sqlite": f"sqlite:///{opened.name}",
            "postgres": f"{POSTGRES}?schema={opened.name}",
        }[kind]
        assert main(["runs", "list", "--store", text]) == 0
        listed = capsys.readouterr().out
        for run_id in ("done", "asks", "died-in-effect", "plan-asks"):
            assert run_id in listed
        written = journals(folder)
        for run_id, info in expected(folder)["runs"].items():
            assert main(["runs", "show", run_id, "--store", text, "--events"]) == 0
            assert [loads(line) for line in capsys.readouterr().out.splitlines()] == written[run_id]
            if kind != "sqlite":
                continue  # the same events are shown in the same way
            assert main(["runs", "show", run_id, "--store", text, "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["status"] == info["status"]
            assert main(["runs", "show", run_id, "--store", text]) == 0
            if info["status"] not in ("done", "running", "dead_letter"):
                assert main(["runs", "show", run_id, "--store", text, "--report", "text"]) == 0
            capsys.readouterr()


# Runs that have ended -----------------------------------------------------------------------------


async def test_runs_that_are_done_give_their_results_and_do_nothing(store: Store) -> None:
    world = World(store)
    agents = world.agents
    assert await agents["traveller"].recover("done") == Trip("Lisboa", 300)
    assert await agents["returner"].recover("rolled-back") == ["receipt 5", "receipt 7"]
    assert await agents["asker"].recover("resumed") == "receipt 3 for map"
    assert await agents["sender"].recover("told") == "transferred 500"
    assert await agents["buyer"].recover("recovered") == BOUGHT
    assert await agents["office"].recover("office-done") == [
        "receipt 4 of copy", "receipt 4 of file",
    ]  # fmt: skip
    assert await world.planner.recover("plan-done") == PLANNED
    assert world.did == []


@pytest.mark.parametrize(
    ("run_id", "agent", "error"),
    [
        ("aborted", "aborter", TriageAbortError),
        ("aborted-in-part", "aborter", TriageAbortError),
        ("escalated", "escalator", TriageEscalationError),
        ("fatal", "faller", TriageFatalError),
    ],
)
async def test_runs_that_failed_raise_what_they_ended_with(
    run_id: str, agent: str, error: type[Exception], store: Store
) -> None:
    world = World(store)
    with pytest.raises(error, match="gone for x"):
        await world.agents[agent].recover(run_id)
    assert world.did == []


# Runs whose process died --------------------------------------------------------------------------


async def test_a_run_that_died_between_two_effects_repeats_none(store: Store) -> None:
    world = World(store)
    assert await world.agents["buyer"].recover("died-between") == BOUGHT
    assert world.did == ["quote Lisboa", "mail ann"]
    owners = [e for e in await store.read("died-between") if isinstance(e, RunRecovered)]
    assert [event.epoch for event in owners] == [1]


@pytest.mark.parametrize(
    ("answer", "again"), [(triage.happened("receipt 7"), []), (triage.rerun(), ["pay 7"])]
)
async def test_a_run_that_died_in_an_effect_asks_whether_it_happened(
    answer: Any, again: list[str], store: Store
) -> None:
    world = World(store)
    asked = await question(world.agents["buyer"].recover("died-in-effect"))
    assert '"cents": 7' in asked.question
    assert world.did == []
    assert await world.agents["buyer"].resume(asked.token, answer) == BOUGHT
    assert world.did == [*again, "quote Lisboa", "mail ann"]


async def test_an_effect_that_had_taken_its_idempotency_key_is_repeated_with_it(
    store: Store,
) -> None:
    world = World(store)
    assert await world.agents["buyer"].recover("died-in-keyed") == BOUGHT
    assert world.did == ["mail ann"]
    (started, *_) = [
        event
        for event in await store.read("died-in-keyed")
        if isinstance(event, CallStarted) and event.tool == "mail"
    ]
    assert world.keys == [started.idempotency_key]


async def test_arguments_that_were_not_stored_are_asked_for_by_name(store: Store) -> None:
    buyer = World(store).agents["buyer"]
    with pytest.raises(UsageError, match="client"):
        await buyer.recover("died-without-client")
    assert (await buyer.recover("died-without-client", client=object()))[0] == "Rome"


async def test_an_effect_recorded_by_hand_is_left_to_a_person(store: Store) -> None:
    world = World(store)
    with pytest.raises(TriageEscalationError, match="recorded by hand"):
        await world.agents["by_hand"].recover("died-by-hand")
    assert world.did == []


async def test_a_run_that_died_inside_another_goes_on_through_the_outer_one(store: Store) -> None:
    world = World(store)
    asked = await question(world.agents["office"].recover("office-died"))
    assert "pay" in asked.question
    result = await world.agents["office"].resume(asked.token, triage.rerun())
    assert result == ["receipt 4 of copy", "receipt 4 of file"]
    assert world.did == ["pay 4"]


async def test_a_dead_letter_is_refused_and_taken_over_by_force(store: Store) -> None:
    world = World(store)
    with pytest.raises(DeadLetter):
        await world.agents["buyer"].recover("dead")
    assert await world.agents["buyer"].recover("dead", force=True) == BOUGHT
    assert world.did == ["quote Lisboa", "mail ann"]


async def test_a_run_that_was_stopped_goes_on(store: Store) -> None:
    world = World(store)
    assert await world.agents["waiter"].recover("stopped") == "receipt 5"
    assert world.did == []


async def test_a_plan_whose_process_died_asks_about_its_effect_and_goes_on(store: Store) -> None:
    world = World(store)
    asked = await question(world.planner.recover("plan-died"))
    assert "charge" in asked.question
    assert await world.planner.resume(asked.token, triage.happened(5)) == PLANNED
    assert world.did == []


# Runs that wait -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run_id", "agent", "result", "did"),
    [
        ("asks", "asker", "receipt 3 for map", ["pay 3"]),
        ("asks-with-price", "asker", "receipt 4 for map", ["pay 4"]),
        ("office-asks", "office", ["receipt 4 of copy", "receipt 4 of sign"], ["pay 4"]),
    ],
)
async def test_a_question_is_answered_once_with_its_token(
    run_id: str, agent: str, result: Any, did: list[str], store: Store, folder: Path
) -> None:
    world, token = World(store), expected(folder)["tokens"][run_id]
    assert await world.agents[agent].resume(token, triage.approve()) == result
    with pytest.raises(AlreadyResumed):
        await world.agents[agent].resume(token, triage.approve())
    assert world.did == did


@pytest.mark.parametrize(
    ("answer", "did"),
    [(triage.happened("transferred 500"), []), (triage.rerun(), ["transfer 500"])],
)
async def test_a_doubt_is_answered(answer: Any, did: list[str], store: Store, folder: Path) -> None:
    world = World(store)
    token = expected(folder)["tokens"]["doubt"]
    assert await world.agents["sender"].resume(token, answer) == "transferred 500"
    assert world.did == did


async def test_a_plan_is_approved_and_carried_out(store: Store, folder: Path) -> None:
    world = World(store)
    asked = await world.planner.asked("plan-asks")
    assert asked is not None
    assert asked.of == "plan"
    token = expected(folder)["tokens"]["plan-asks"]
    assert await world.planner.resume(token, triage.approve(), by="ann") == PLANNED
    assert world.did == ["find beam", "read beam-1", "charge 5"]


async def test_a_step_of_a_plan_is_approved_and_the_steps_before_are_not_repeated(
    store: Store, folder: Path
) -> None:
    world = World(store)
    token = expected(folder)["tokens"]["plan-step-asks"]
    assert await world.careful.resume(token, triage.approve(), by="ann") == PLANNED
    assert world.did == ["charge 5"]


# Incidents ----------------------------------------------------------------------------------------


@pytest.fixture
async def desk(opened: Opened, store: Store) -> AsyncIterator[IncidentDesk]:
    """A desk on a copy, which starts agents anew."""
    made = IncidentDesk(
        store,
        owner="desk-2",
        hooks=Hooks(restart=lambda _recovery: "agent-99"),
        watch=Watch(suspended_s=None),
    )
    yield made
    await made.close()


async def test_incidents_are_as_they_were_left(
    desk: IncidentDesk, opened: Opened, folder: Path
) -> None:
    found = [one for status in Status for one in await desk.incidents(status)]
    statuses = {one.error_id: str(one.status) for one in found}
    assert statuses == expected(folder)["incidents"][opened.kind]
    assert {one.run_id for one in found} >= {"aborted", "escalated", "fatal", "dead"}
    seen = await desk.incident("err-004")
    assert (seen.task_id, seen.acknowledged_by) == ("T-seen", "ann")
    log = await desk.log("err-005")
    assert log[-1].by == "ann"
    messages = await desk.messages()
    assert {message.status for message in messages} == {"sent"}
    stats = await desk.stats()
    assert stats["incidents"] == len(found)


async def test_the_desk_goes_on_with_what_is_open(desk: IncidentDesk, opened: Opened) -> None:
    newest = {"sqlite": "err-013", "postgres": "err-014"}[opened.kind]
    assert (await desk.handle(newest))["success"] is True
    assert (await desk.incident(newest)).status is Status.RECOVERED
    await desk.resolve("err-003", by="bob")
    counted = await desk.tick()
    assert counted["failed"] == 0
    assert (await desk.incident("err-002")).status is Status.RECOVERED
    assert (await desk.report("it broke", task_id="T-1")).id > 14
    await desk.heartbeat("agent-1")
    assert (await desk.prune(older_than=0))["incidents"] > 0


# Lines --------------------------------------------------------------------------------------------


def test_exported_journals_are_read_as_recordings(folder: Path) -> None:
    with (folder / "journals.jsonl").open("rb") as file:
        found = list(stream(file))
    assert all(isinstance(one, Trace) for one in found)
    assert len(found) > 40


def test_corrections_and_messages_are_read(folder: Path) -> None:
    with (folder / "corrections.jsonl").open("rb") as file:
        (record,) = stream(file)
    assert isinstance(record, Trace)
    assert record.trajectory.steps
    written = (folder / "messages.jsonl").read_text(encoding="ascii").splitlines()
    assert all(json.loads(line)["error_id"].startswith("err-") for line in written)
