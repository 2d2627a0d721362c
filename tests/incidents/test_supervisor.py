"""`Supervisor`: a desk that works by itself, is told to stop, and gives back what it holds."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from incident_desks import DIED, Inbox, Restarts, World
from tables import table

from triage import UsageError
from triage.core import StoreError, StoreUnavailable
from triage.incidents import Hooks, IncidentDesk, Recovery, Status, Supervisor, lifecycle

pytestmark = pytest.mark.anyio
QUICK: dict[str, Any] = {"interval_s": 0.01}


@asynccontextmanager
async def at_work(*supervisors: Supervisor) -> AsyncGenerator[None]:
    """They run inside, and have stopped afterwards."""
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for one in supervisors:
                group.start_soon(one.run)
            yield
            for one in supervisors:
                one.stop()


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    while not await true():
        await anyio.lowlevel.checkpoint()


class Held:
    """A hook that is inside until it is let go, or cancelled."""

    def __init__(self) -> None:
        self.inside = anyio.Event()
        self.go_on = anyio.Event()
        self.calls: list[str] = []

    async def __call__(self, recovery: Recovery) -> str:
        self.calls.append(recovery.key)
        self.inside.set()
        await self.go_on.wait()
        return f"agent-{len(self.calls)}"


async def test_what_fails_is_found_recovered_from_and_told(world: World) -> None:
    restarts, inbox = Restarts(), Inbox()
    desk = world.desk(hooks=restarts.hooks, sinks={"*": inbox})
    supervisor = Supervisor(desk, **QUICK)
    assert (supervisor.health().state, supervisor.health().healthy) == ("new", False)
    async with at_work(supervisor):
        await desk.put_task("T-1", waits_for=["T-1"])
        await desk.report(DIED, task_id="T-2")

        async def told() -> bool:
            return len(inbox.got) == 5

        await until(told)
        assert supervisor.health().healthy
    assert [entry.status for entry in (await world.log())[-1:]] != []
    assert (await desk.incident(await world.nth(1))).status in (Status.RECOVERED, Status.ESCALATED)
    kinds = sorted(message.kind for message in inbox.got)
    assert kinds == ["detected", "detected", "escalated", "handling", "recovered"]
    health = supervisor.health()
    assert (health.detected, health.handled, health.failed, health.delivered) == (1, 2, 0, 5)
    assert (health.state, health.under_way, health.error) == ("stopped", 0, "")
    await world.close()


async def test_many_may_open_a_new_store_at_once(world: World) -> None:
    desks = [world.desk(f"d-{n}") for n in range(4)]
    async with anyio.create_task_group() as group:
        for desk in desks:
            group.start_soon(desk.incidents)
            group.start_soon(partial(desk.report, DIED, task_id=desk.owner))
    assert len(await desks[0].incidents()) == 4
    await world.close()


async def test_several_share_the_work_and_do_each_once(world: World) -> None:
    restarts, inbox = Restarts(), Inbox()
    desks = [world.desk(f"d-{n}", hooks=restarts.hooks, sinks={"*": inbox}) for n in range(3)]
    for number in range(12):
        await desks[0].report(DIED, task_id=f"T-{number}")
    supervisors = [Supervisor(desk, interval_s=0.01, at_once=2) for desk in desks]

    async def all_told() -> bool:
        return len(inbox.got) >= 24

    async with at_work(*supervisors):
        await until(all_told)
    tasks = sorted(recovery.incident.task_id or "" for recovery in restarts.seen)
    assert tasks == sorted(f"T-{number}" for number in range(12))
    keys = [message.key for message in inbox.got]
    assert len(keys) == len(set(keys)) == 24
    assert sum(one.health().handled for one in supervisors) == 12
    await world.close()


async def test_a_hook_that_hangs_keeps_only_its_own_place(small: World) -> None:
    held = Held()

    async def hook(recovery: Recovery) -> Any:
        return await held(recovery) if recovery.incident.task_id == "T-0" else None

    desk = small.desk(hooks=Hooks(restart=hook))
    for number in range(6):
        await desk.report(DIED, task_id=f"T-{number}")
    supervisor = Supervisor(desk, interval_s=0.01, at_once=2)

    async def five_are_done() -> bool:
        return supervisor.health().handled == 5 and supervisor.health().under_way == 1

    async with at_work(supervisor):
        await until(five_are_done)
        assert held.inside.is_set()
        held.go_on.set()
    assert len(await desk.incidents("recovered")) == 6
    await small.close()


async def test_told_to_stop_it_finishes_what_it_holds_and_begins_nothing(small: World) -> None:
    held = Held()
    desk = small.desk(hooks=Hooks(restart=held))
    for number in range(3):
        await desk.report(DIED, task_id=f"T-{number}")
    supervisor = Supervisor(desk, interval_s=0.01, at_once=1)
    async with anyio.create_task_group() as group:
        group.start_soon(supervisor.run)
        await held.inside.wait()
        supervisor.stop()
        assert supervisor.health().state == "stopping"
        held.go_on.set()
    assert len(held.calls) == 1
    assert len(await desk.incidents("recovered")) == 1
    assert len(await desk.incidents("detected")) == 2
    await small.close()


@pytest.mark.parametrize("in_doubt", ["escalate", "rerun"])
@pytest.mark.parametrize("at_once", [False, True])
async def test_what_does_not_end_within_the_grace_is_given_back(
    in_doubt: Any, small: World, *, at_once: bool
) -> None:
    held = Held()
    desk = small.desk(hooks=Hooks(restart=held, on_in_doubt=in_doubt))
    await desk.report(DIED, task_id="T-1")
    supervisor = Supervisor(desk, interval_s=0.01, grace_s=60.0 if at_once else 0.01)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(supervisor.run)
            await held.inside.wait()
            supervisor.stop(at_once=at_once)
    one = await desk.incident(await small.nth(1))
    assert (one.owner, one.lease_until) == (None, None)
    if in_doubt == "escalate":
        assert one.status is Status.ESCALATED
        text = (await desk.log(await small.nth(1)))[-1].text
        assert "the desk was stopped during it; whether it has happened is not known" in text
    else:  # at once for the next one, and the attempt is none
        assert (one.status, one.attempt) == (Status.WAITING, 0)
        restarts = Restarts()
        again = small.desk("next", hooks=Hooks(restart=restarts, on_in_doubt="rerun"))
        await again.tick()
        (seen,) = restarts.seen
        assert (seen.key, seen.attempt) == (held.calls[0], 1)
    await small.close()


async def test_what_fails_in_a_round_is_tried_again_and_told(
    small: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarts = Restarts()
    desk = small.desk(hooks=restarts.hooks)
    monkeypatch.setattr("triage.incidents.supervisor.BACKOFF", Quick())
    supervisor = Supervisor(desk, **QUICK)

    async def is_failing() -> bool:
        health = supervisor.health()
        return health.state == "failing" and not health.healthy and "due" in health.error

    async def has_restarted() -> bool:
        return len(restarts.seen) == 1

    async with at_work(supervisor):
        await until(lambda: looked(supervisor))
        broken(small, "ALTER TABLE runs RENAME COLUMN due TO late")
        await until(is_failing)
        broken(small, "ALTER TABLE runs RENAME COLUMN late TO due")
        await desk.report(DIED, task_id="T-1")
        await until(has_restarted)
        await until(lambda: is_well(supervisor))
    fails = [record.message for record in caplog.records if "fails" in record.message]
    assert 1 <= len(fails) <= 3  # one of each loop, however often it failed
    assert any("works again" in record.message for record in caplog.records)
    await small.close()


def broken(small: World, statement: str) -> None:
    """Change the tables so that statements on them fail, and back."""
    with closing(sqlite3.connect(small.opened.name)) as file:
        file.execute(statement)
        file.commit()


class Quick:
    """No waiting between tries, so that the test need not either."""

    def delay(self, *_args: Any) -> float:
        return 0.01


async def looked(supervisor: Supervisor) -> bool:
    return supervisor.health().looks > 0


async def is_well(supervisor: Supervisor) -> bool:
    return supervisor.health().healthy


async def test_an_incident_that_cannot_be_handled_disturbs_no_other(small: World) -> None:
    restarts = Restarts()
    desk = small.desk(hooks=restarts.hooks)
    await desk.report(DIED, task_id="T-1")
    await desk.report(DIED, task_id="T-2")
    small.execute("UPDATE events SET body = 'no json' WHERE run = 1")
    desk = small.desk("other", hooks=restarts.hooks)
    supervisor = Supervisor(desk, interval_s=0.01, at_once=1)

    async def other_is_done() -> bool:
        return len(restarts.seen) == 1 and supervisor.health().failed >= 1

    async with at_work(supervisor):
        await until(other_is_done)
    assert restarts.seen[0].incident.task_id == "T-2"
    await small.close()


async def test_what_cannot_work_is_raised_at_the_beginning(small: World) -> None:
    source = lifecycle(partial(sqlite3.connect, ":memory:"), table="nowhere")
    desk = small.desk(sources=[source])
    with pytest.raises(sqlite3.Error, match="nowhere"):
        await Supervisor(desk, **QUICK).run()
    await desk.close()
    gone: IncidentDesk = IncidentDesk("postgresql://nobody@127.0.0.1:1/none?timeout=0.2")
    with pytest.raises(StoreUnavailable):
        await Supervisor(gone, **QUICK).run()
    await gone.close()
    assert issubclass(StoreUnavailable, StoreError)


async def test_it_runs_once_and_not_after_it_was_stopped(small: World) -> None:
    supervisor = Supervisor(small.desk(), **QUICK)
    supervisor.stop()
    await supervisor.run()
    assert supervisor.health().looks == 0
    with pytest.raises(UsageError, match="a Supervisor runs once"):
        await supervisor.run()
    await small.close()


@table(
    ("options", "field"),
    [
        ({"interval_s": 0}, "interval_s"),
        ({"at_once": 0}, "at_once"),
        ({"grace_s": -1}, "grace_s"),
    ],
)
def test_wrong_options_are_named(options: Any, field: str) -> None:
    with pytest.raises(UsageError, match=rf"Supervisor\.{field}"):
        Supervisor(IncidentDesk(), **options)
    with pytest.raises(UsageError, match=r"Supervisor\.desk"):
        Supervisor("desk")  # type: ignore[arg-type] # what is to be refused
