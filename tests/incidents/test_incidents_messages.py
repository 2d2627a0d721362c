"""Who is told what: messages, deadlines, limits, and sinks that fail."""

from __future__ import annotations

import logging

import anyio
import pytest
from incident_desks import Inbox, Restarts, World, refuses

from triage.core import StoreError
from triage.incidents import Message, NotificationPolicy, Retries, Status

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("text", "level", "roles"),
    [
        ("data_loss", "critical", ["architect", "project_manager"]),
        ("Syntax error in a.py", "high", ["architect", "code_developer"]),
        ("Process died unexpectedly", "medium", []),
        ("Network timeout", "low", []),
    ],
)
async def test_each_level_is_told_to_its_roles(
    text: str, level: str, roles: list[str], small: World
) -> None:
    inbox = Inbox()
    desk = small.desk(sinks={"*": inbox}, hooks=Restarts().hooks)
    one = await desk.report(text, task_id="T-1")
    assert one.level == level
    await desk.deliver()
    assert sorted(role for role, _ in inbox.told) == roles
    await desk.handle(await small.nth(1))
    await desk.deliver()
    told = [role for role, kind in inbox.told if kind in ("handling", "recovered")]
    assert told == (["code_developer"] * 2 if level == "medium" else [])
    assert "detected" in [entry.verb for entry in await small.log()]  # low is logged, like all
    await small.close()


async def test_what_waits_is_told_of_when_it_is_scheduled_and_when_it_begins(small: World) -> None:
    inbox = Inbox()
    hooks = Restarts(refuses).hooks
    desk = small.desk(sinks={"*": inbox}, hooks=hooks, retries=Retries(wait_s=45))
    await desk.report("Resource exhausted: memory", task_id="T-1")
    for _ in range(3):
        await desk.tick()
        small.later(46)
    said = [message.text for message in inbox.got if message.kind == "handling"]
    error_id = await small.nth(1)
    assert said == [
        f"{error_id}: wait_and_retry for T-1 in 45 s",
        f"{error_id}: wait_and_retry for T-1 (retry 1 of 2)",
        f"{error_id}: wait_and_retry for T-1 (retry 2 of 2)",
    ]
    await small.close()


async def test_a_message_is_written_with_the_move_it_tells_of_or_not_at_all(world: World) -> None:
    desk = world.desk()
    await desk.report("Merge conflict in a.py", task_id="T-1")
    await desk.escalate(await world.nth(1), "architect")
    before = len(await world.messages())
    error_id = await world.nth(1)
    if world.kind != "memory":
        world.execute("ALTER TABLE events RENAME TO gone")
        with pytest.raises(StoreError):
            await desk.escalate(error_id, "project_manager")
        world.execute("ALTER TABLE gone RENAME TO events")
    one = await desk.incident(error_id)
    assert (one.escalation_level, len(await world.messages())) == ("architect", before)
    await world.close()


async def test_what_nobody_acknowledges_goes_to_the_next_role(world: World) -> None:
    inbox = Inbox()
    policy = NotificationPolicy(ack_s={"high": 60.0})
    desk = world.desk(sinks={"*": inbox}, notifications=policy)
    await desk.report("Merge conflict in a.py", task_id="T-1")
    await desk.report("Syntax error in b.py", task_id="T-2")
    await desk.tick()
    await desk.acknowledge(await world.nth(2), by="ann")
    inbox.got.clear()
    assert (await desk.tick())["unheard"] == 0
    world.later(61)
    assert (await desk.tick())["unheard"] == 1
    assert inbox.told == [("project_manager", "escalated")]
    assert "architect did not acknowledge it" in inbox.got[0].text
    world.later(61)
    assert (await desk.tick())["unheard"] == 1
    assert (await desk.tick())["unheard"] == 0  # the chain has ended, once
    verbs = [entry.verb for entry in await desk.log(await world.nth(1))]
    assert verbs.count("unheard") == 1
    assert (await desk.incident(await world.nth(1))).status is Status.ESCALATED
    await world.close()


async def test_each_message_is_delivered_once_by_whichever_desk(world: World) -> None:
    inbox = Inbox()
    desks = [world.desk(f"d{n}", sinks={"*": inbox}) for n in range(3)]
    for number in range(10):
        await desks[0].report("Merge conflict in a.py", task_id=f"T-{number}")
    async with anyio.create_task_group() as group:
        for desk in desks:
            group.start_soon(desk.deliver)
    keys = [message.key for message in inbox.got]
    assert len(keys) == len(set(keys)) == 20
    assert {message.status for message in await world.messages()} == {"sent"}
    await world.close()


async def test_a_delivery_whose_desk_died_is_made_again_under_the_same_key(small: World) -> None:
    first: list[Message] = []
    inside = anyio.Event()

    async def dies(message: Message) -> None:
        first.append(message)
        inside.set()
        await anyio.sleep_forever()

    desk, inbox = small.desk("dead", sinks={"architect": dies}), Inbox()
    living = small.desk("living", sinks={"architect": inbox})
    await desk.report("Merge conflict in a.py")
    async with anyio.create_task_group() as group:
        group.start_soon(desk.deliver)
        await inside.wait()
        await living.deliver()
        assert inbox.got == []  # it may still be at it
        small.later(31)
        await living.deliver()
        group.cancel_scope.cancel()
    assert [message.key for message in inbox.got] == [first[0].key]
    await small.close()


@pytest.mark.parametrize("fails", [True, False])
async def test_a_desk_that_is_late_with_its_message_opens_no_second_incident(
    *, fails: bool, world: World
) -> None:
    """Its sink was slower than the others were patient, and another desk has delivered the message."""
    inside, go_on = anyio.Event(), anyio.Event()

    async def slow(_message: Message) -> None:
        inside.set()
        await go_on.wait()
        if fails:
            raise TimeoutError

    inbox = Inbox()
    late, living = world.desk("late", sinks={"*": slow}), world.desk("living", sinks={"*": inbox})
    await late.report("Process died unexpectedly", task_id="T-1")
    await late.escalate(await world.nth(1), "architect")
    async with anyio.create_task_group() as group:
        group.start_soon(late.deliver)
        await inside.wait()
        world.later(31)
        assert await living.deliver() == 1
        go_on.set()
    assert [message.status for message in await world.messages()] == ["sent"]
    assert [one.error_id for one in await living.incidents()] == [await world.nth(1)]
    assert [entry.verb for entry in await world.log()].count("messages") == 1
    await world.close()


async def test_a_role_is_not_flooded_but_hears_of_what_is_critical(small: World) -> None:
    inbox = Inbox()
    policy = NotificationPolicy(rate=3, window_s=60)
    desk = small.desk(sinks={"*": inbox}, notifications=policy)
    for number in range(5):
        await desk.report("Merge conflict in a.py", task_id=f"T-{number}")
    await desk.deliver()
    assert [role for role, _ in inbox.told].count("architect") == 3
    await desk.report("data_loss", task_id="T-9")
    await desk.deliver()
    assert inbox.got[-1].level == "critical"
    small.later(61)
    await desk.deliver()
    assert [role for role, _ in inbox.told].count("architect") == 6  # late, not lost
    await small.close()


async def test_a_sink_that_fails_is_one_incident_and_disturbs_nothing(world: World) -> None:
    def broken(_message: Message) -> None:
        raise OSError("disk on fire, token=ghp_abcdefghijklmnopqrstuvwxyz0123456789")

    restarts = Restarts()
    policy = NotificationPolicy(tries=3)
    desk = world.desk(sinks={"*": broken}, hooks=restarts.hooks, notifications=policy)
    for number in range(4):
        await desk.report("Process died unexpectedly", task_id=f"T-{number}")
    done = await desk.tick()
    assert (done["handled"], done["failed"], done["delivered"]) == (4, 0, 0)
    for delay in (5, 10, 20, 40):
        world.later(delay)
        await desk.tick()
    mine = [one for one in await desk.incidents() if one.source == "desk"]
    assert len(mine) == 1
    assert (mine[0].cause, mine[0].occurrences) == ("sink_failing", 1)
    assert "ghp_" not in mine[0].message
    failed = [message for message in await world.messages() if message.status == "failed"]
    assert mine[0].error_id not in {message.error_id for message in await world.messages()}
    assert {message.attempts for message in failed} == {3}
    await desk.resolve(mine[0].error_id, by="ann")
    await desk.report("Merge conflict", task_id="T-9")
    await desk.deliver()
    again = [one for one in await desk.incidents() if one.source == "desk"]
    assert [one.error_id for one in again] != [mine[0].error_id]
    await world.close()


async def test_without_sinks_messages_are_logged(
    small: World, caplog: pytest.LogCaptureFixture
) -> None:
    desk = small.desk()
    await desk.report("data_loss", task_id="T-1")
    with caplog.at_level(logging.WARNING, "triage"):
        await desk.deliver()
    assert f"to project_manager: critical incident {await small.nth(1)}: data_loss" in caplog.text
    await small.close()
