"""Who is told what: the outbox, deadlines, limits, and sinks that fail."""

from __future__ import annotations

import json
import logging
import stat
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from incident_desks import Inbox, Restarts, World, refuses

from triage import UsageError
from triage.core import StoreError
from triage.incidents import (
    FileSink,
    Message,
    NotDelivered,
    NotificationPolicy,
    Retries,
    Status,
    WebhookSink,
    signature_fits,
)

pytestmark = pytest.mark.anyio
SECRET = "correct-horse-battery-staple"


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
    await desk.handle("err-001")
    await desk.deliver()
    told = [role for role, kind in inbox.told if kind in ("handling", "recovered")]
    assert told == (["code_developer"] * 2 if level == "medium" else [])
    assert "detected" in [entry.verb for entry in await desk.log()]  # low is logged, like all
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
    assert said == [
        "err-001: wait_and_retry for T-1 in 45 s",
        "err-001: wait_and_retry for T-1 (retry 1 of 2)",
        "err-001: wait_and_retry for T-1 (retry 2 of 2)",
    ]
    await small.close()


async def test_a_message_is_written_with_the_move_it_tells_of_or_not_at_all(world: World) -> None:
    desk = world.desk()
    await desk.report("Merge conflict in a.py", task_id="T-1")
    await desk.escalate("err-001", "architect")
    before = len(await desk.messages())
    if world.kind != "memory":
        world.execute("ALTER TABLE messages RENAME TO gone")
        with pytest.raises(StoreError):
            await desk.escalate("err-001", "project_manager")
        with pytest.raises(StoreError):  # and no group of them
            await desk.tick()
        world.execute("ALTER TABLE gone RENAME TO messages")
    one = await desk.incident("err-001")
    assert (one.escalation_level, len(await desk.messages())) == ("architect", before)
    await world.close()


async def test_what_nobody_acknowledges_goes_to_the_next_role(world: World) -> None:
    inbox = Inbox()
    policy = NotificationPolicy(ack_s={"high": 60.0})
    desk = world.desk(sinks={"*": inbox}, notifications=policy)
    await desk.report("Merge conflict in a.py", task_id="T-1")
    await desk.report("Syntax error in b.py", task_id="T-2")
    await desk.tick()
    await desk.acknowledge("err-002", by="ann")
    inbox.got.clear()
    assert (await desk.tick())["unheard"] == 0
    world.later(61)
    assert (await desk.tick())["unheard"] == 1
    assert inbox.told == [("project_manager", "escalated")]
    assert "architect did not acknowledge it" in inbox.got[0].text
    world.later(61)
    assert (await desk.tick())["unheard"] == 1
    assert (await desk.tick())["unheard"] == 0  # the chain has ended, once
    verbs = [entry.verb for entry in await desk.log("err-001")]
    assert verbs.count("unheard") == 1
    assert (await desk.incident("err-001")).status is Status.ESCALATED
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
    assert {message.status for message in await desks[0].messages("sent")} == {"sent"}
    await world.close()


async def test_a_delivery_whose_desk_died_is_made_again_under_the_same_key(small: World) -> None:
    first: list[Message] = []

    async def dies(message: Message) -> None:
        first.append(message)
        inside.set()
        await anyio.sleep_forever()

    inside = anyio.Event()
    desk = small.desk("dead", sinks={"architect": dies})
    await desk.report("Merge conflict in a.py")
    async with anyio.create_task_group() as group:
        group.start_soon(desk.deliver)
        await inside.wait()
        group.cancel_scope.cancel()
    inbox = Inbox()
    living = small.desk("living", sinks={"architect": inbox})
    await living.deliver()
    assert inbox.got == []  # it may still be at it
    small.later(31)
    await living.deliver()
    assert [message.key for message in inbox.got] == [first[0].key]
    assert inbox.got[0].attempts == 2
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
    await late.escalate("err-001", "architect")
    async with anyio.create_task_group() as group:
        group.start_soon(late.deliver)
        await inside.wait()
        world.later(31)
        assert await living.deliver() == 1
        go_on.set()
    assert [message.status for message in await living.messages()] == ["sent"]
    assert [one.error_id for one in await living.incidents()] == ["err-001"]
    assert [entry.verb for entry in await living.log()][-2:] == ["message sent", "came too late"]
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
    assert {message.incident for message in await desk.messages()} == {1, 2, 3, 4}
    failed = await desk.messages("failed")
    assert {message.attempts for message in failed} == {3}
    await desk.resolve(mine[0].error_id, by="ann")
    await desk.report("Merge conflict", task_id="T-9")
    await desk.deliver()
    again = [one for one in await desk.incidents() if one.source == "desk"]
    assert [one.id for one in again] != [mine[0].id]
    await world.close()


# Sinks --------------------------------------------------------------------------------------------


async def test_a_file_gets_a_line_for_each_message_and_is_ours_alone(
    small: World, tmp_path: Path
) -> None:
    path = tmp_path / "messages.jsonl"
    desk = small.desk(sinks={"*": FileSink(path)})
    await desk.report("Merge conflict in a.py", agent_id="a-1", task_id="T-1")
    assert await desk.deliver() == 2
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {line["role"] for line in lines} == {"architect", "code_developer"}
    assert {line["files_affected"][0] for line in lines} == {"a.py"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await small.close()


async def test_without_sinks_messages_are_logged(
    small: World, caplog: pytest.LogCaptureFixture
) -> None:
    desk = small.desk()
    await desk.report("data_loss", task_id="T-1")
    with caplog.at_level(logging.WARNING, "triage"):
        await desk.deliver()
    assert "to project_manager: critical incident err-001: data_loss" in caplog.text
    await small.close()


class Receiver(BaseHTTPRequestHandler):
    """Keeps what it is sent, and answers as its path says."""

    got: list[tuple[dict[str, str], bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).got.append((dict(self.headers), body))
        status = int(self.path.strip("/") or 200)
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/200")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Quietly."""


@pytest.fixture
def receiver() -> Iterator[str]:
    Receiver.got = []
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_a_webhook_is_signed_so_that_its_receiver_can_tell(
    small: World, receiver: str
) -> None:
    desk = small.desk(sinks={"architect": WebhookSink(receiver, SECRET)})
    await desk.report("Merge conflict in a.py", task_id="T-1")
    assert await desk.deliver() == 2
    ((headers, body),) = Receiver.got
    stamp, given = headers["Triage-Timestamp"], headers["Triage-Signature"]
    now = time.time()
    assert signature_fits(SECRET, stamp, body, given, now=now)
    assert not signature_fits("another-secret-of-16", stamp, body, given, now=now)
    assert not signature_fits(SECRET, stamp, body + b" ", given, now=now)
    assert not signature_fits(SECRET, str(int(stamp) + 1), body, given, now=now)
    assert not signature_fits(SECRET, stamp, body, given, now=now + 301)
    assert not signature_fits(SECRET, "soon", body, given, now=now)
    told = json.loads(body)
    assert headers["Triage-Delivery"] == told["key"]
    assert (told["error_id"], told["severity"], told["role"]) == ("err-001", "high", "architect")
    await small.close()


@pytest.mark.parametrize(("path", "said"), [("/500", "answered 500"), ("/302", "answered 302")])
async def test_any_other_answer_is_no_delivery(
    path: str, said: str, small: World, receiver: str
) -> None:
    sink = WebhookSink(f"{receiver}{path}", SECRET)
    desk = small.desk(sinks={"architect": sink})
    await desk.report("Merge conflict in a.py", task_id="T-1")
    assert await desk.deliver() == 1
    assert len(Receiver.got) == 1  # a redirect is not followed
    (mine,) = [one for one in await desk.incidents() if one.source == "desk"]
    assert said in mine.message
    await small.close()


def test_nothing_shown_of_a_webhook_is_secret() -> None:
    sink = WebhookSink("https://hooks.example.com/T0/B0/key", SECRET)
    assert repr(sink) == "WebhookSink('hooks.example.com')"
    closed = WebhookSink("http://127.0.0.1:9/secret-path", SECRET, timeout_s=0.5)
    with pytest.raises(NotDelivered) as error:
        closed(a_message())
    assert "secret-path" not in str(error.value)
    for url in ("ftp://x/y", "https://", "file:///etc/passwd", 7, "http://[::1"):
        with pytest.raises(UsageError, match=r"WebhookSink\.url must be an http"):
            WebhookSink(url, SECRET)  # type: ignore[arg-type] # what is under test
    with pytest.raises(UsageError, match="at least 16 characters") as short:
        WebhookSink("https://example.com", "hunter2")
    assert "hunter2" not in str(short.value)


def a_message() -> Message:
    from triage.core import Level

    return Message(
        1, 1, "architect", Level.HIGH, "detected", "k", "t", {}, "pending", 1, 0.0, 0.0, None
    )
