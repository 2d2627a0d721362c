"""Postgres as a service: lost connections, lost replies, and servers that would lose runs."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest
from store_kinds import POSTGRES, Opened, opening
from tables import table

from stores.lost_replies import Way
from stores.store_runs import add, created, steps
from triage import UsageError
from triage.core import StoreReadOnly, StoreTooNew, StoreUnavailable
from triage.stores import PostgresStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Opened]:
    with Opened("postgres", tmp_path) as made:
        yield made


opened = opening("postgres")


@contextlib.contextmanager
def lossy(opened: Opened, **options: Any) -> Generator[tuple[Any, Way]]:
    """A store that was used once, behind a way on which replies can get lost."""
    opened.new()
    way = Way(POSTGRES)
    store: Any = PostgresStore(way.url, schema=opened.name, **options)
    try:
        yield store, way
    finally:
        way.close()


async def test_an_append_whose_reply_was_lost_is_written_once(opened: Opened) -> None:
    with lossy(opened) as (store, way):
        await created(store, "r", lease_s=60)
        for at in range(1, 6):
            way.lose = 1
            await add(store, "r", at, 1)
        assert way.lost == 5
        assert [event.seq for event in await store.read("r")] == list(range(6))
        await store.close()


async def test_a_claim_whose_reply_was_lost_is_made_once(opened: Opened) -> None:
    with lossy(opened) as (store, way):
        await created(store, "r")
        for epoch in range(1, 4):
            way.lose = 3
            claim = await store.claim("r", lease_s=60, force=True)
            assert (claim.epoch, claim.claims) == (epoch, epoch)
        await store.release("r", epoch=3)
        assert (await store.info("r")).claims == 2
        await store.close()


async def test_a_server_that_is_gone_is_said_so_and_nothing_is_lost(opened: Opened) -> None:
    with lossy(opened, timeout=2.0) as (store, way):
        await created(store, "r")
        way.lose = 10**6
        told: list[BaseException | None] = []
        done = threading.Event()

        def tell(error: BaseException | None) -> None:
            told.append(error)
            if len(told) == 3:
                done.set()

        events = steps("r", 1, 3)
        for event in events:
            store.submit("r", [event], at=event.seq, epoch=0, lease_s=None, done=tell)
        await anyio.to_thread.run_sync(done.wait)
        assert [type(error) for error in told] == [StoreUnavailable] * 3
        with pytest.raises(StoreUnavailable):
            await store.read("r")
        way.lose = 0
        await store.append("r", events, at=1, epoch=0)  # whatever of it the server has done
        assert (await store.read("r", 0)) == events
        await store.close()


# Postgres -----------------------------------------------------------------------------------------


def end_connections(name: str) -> int:
    """Cut every connection of triage that uses a schema, as a restart of the server does."""
    with psycopg.connect(POSTGRES, autocommit=True) as db:
        found = db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = %s AND pid <> pg_backend_pid()",
            (name,),
        ).fetchall()
    return len(found)


async def test_connections_that_are_cut_disturb_no_run(postgres: Opened) -> None:
    postgres.new()
    url = f"{POSTGRES}?application_name={postgres.name}"
    store = PostgresStore(url, schema=postgres.name)
    await created(store, "r")
    cut = 0

    async def live() -> None:
        for at in range(1, 200):
            await add(store, "r", at, 1)

    async with anyio.create_task_group() as group:
        group.start_soon(live)
        for _ in range(8):
            cut += await anyio.to_thread.run_sync(end_connections, postgres.name)
    assert cut > 0
    assert [event.seq for event in await store.read("r")] == list(range(200))
    await store.close()


async def test_commits_are_waited_for_whatever_the_server_says(postgres: Opened) -> None:
    postgres.new()
    store = PostgresStore(f"{POSTGRES}?options=-c%20synchronous_commit%3Doff", schema=postgres.name)
    assert _synchronous_commit(store) == "on"
    await store.close()
    store = PostgresStore(
        f"{POSTGRES}?options=-c%20synchronous_commit%3Dremote_apply", schema=postgres.name
    )
    assert _synchronous_commit(store) == "remote_apply"
    await store.close()


def _synchronous_commit(store: PostgresStore) -> str:
    connection = store.connect(writes=True)
    (found,) = connection.raw.execute("SHOW synchronous_commit").fetchone()
    connection.close()
    return str(found)


async def test_the_tables_of_a_newer_release_are_refused(postgres: Opened) -> None:
    store = postgres.new()
    await store.open()
    with psycopg.connect(POSTGRES, autocommit=True) as db:
        db.execute(f"UPDATE {postgres.name}.meta SET version = version + 1")
    newer = postgres.another()
    with pytest.raises(StoreTooNew, match="version 2"):
        await newer.runs()
    await newer.close()
    await store.close()


async def test_a_database_that_may_only_be_read_is_said_so(postgres: Opened) -> None:
    await postgres.new().open()
    url = f"{POSTGRES}?options=-c%20default_transaction_read_only%3Don"
    store = PostgresStore(url, schema=postgres.name, timeout=2.0)
    with pytest.raises(StoreReadOnly):
        await created(store, "r")
    await store.close()


class _Refuses(socketserver.BaseRequestHandler):
    """Answers each beginning of a session with an error, as Postgres does."""

    def handle(self) -> None:
        text: str = self.server.text  # type: ignore[attr-defined]
        self.server.asked += 1  # type: ignore[attr-defined]
        while len(self.request.recv(4096)) == 8:  # SSL and GSS are asked for first
            self.request.sendall(b"N")
        fields = b"".join(
            key + value.encode() + b"\0" for key, value in ((b"S", "FATAL"), (b"M", text))
        )
        self.request.sendall(b"E" + (len(fields) + 5).to_bytes(4, "big") + fields + b"\0")


@contextlib.contextmanager
def refusing(text: str) -> Generator[Any]:
    """A server that says this to everybody."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Refuses) as server:
        server.text, server.asked = text, 0  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@table(
    "text",
    [
        'database "no_such" does not exist',
        'role "clerk" does not exist',
        'role "clerk" is not permitted to log in',
        'password authentication failed for user "clerk"',
        'no pg_hba.conf entry for host "127.0.0.1", user "clerk", database "no_such", no encryption',
    ],
)
async def test_a_server_that_refuses_for_good_is_asked_once(text: str) -> None:
    with refusing(text) as server:
        port = server.server_address[1]
        store = PostgresStore(f"postgresql://clerk:secret@127.0.0.1:{port}/no_such", timeout=80)
        with anyio.fail_after(60), pytest.raises(StoreUnavailable) as caught:
            await store.open()
        await store.close()
    assert text in str(caught.value)
    assert server.asked == 1


async def test_a_server_that_is_starting_is_asked_again() -> None:
    with refusing("the database system is starting up") as server:
        port = server.server_address[1]
        store = PostgresStore(f"postgresql://clerk@127.0.0.1:{port}/runs", timeout=3.0)
        with anyio.fail_after(60), pytest.raises(StoreUnavailable, match="starting up"):
            await store.open()
        await store.close()
    assert server.asked > 1


async def test_a_database_that_does_not_exist_is_named_at_once() -> None:
    store = PostgresStore(f"{POSTGRES.rpartition('/')[0]}/no_such_database", timeout=80)
    with anyio.fail_after(60), pytest.raises(StoreUnavailable, match="no_such_database"):
        await store.open()
    await store.close()


async def test_a_value_that_postgres_cannot_keep_does_not_fail_its_neighbours(
    postgres: Opened,
) -> None:
    store = postgres.new()
    await created(store, "good")
    told: list[BaseException | None] = []
    done = threading.Event()

    def tell(error: BaseException | None) -> None:
        told.append(error)
        if len(told) == 40:
            done.set()

    for at in range(1, 21):
        store.submit("good", steps("good", at, 1), at=at, epoch=0, lease_s=None, done=tell)
        bad = steps("bad", 2**31 - 2 - at, 1)  # of a run nobody knows
        store.submit("bad", bad, at=2**31 - 2 - at, epoch=0, lease_s=None, done=tell)
    await anyio.to_thread.run_sync(done.wait)
    assert sum(error is None for error in told) == 20
    assert len(await store.read("good")) == 21
    await store.close()


# Options ------------------------------------------------------------------------------------------


@table(
    ("kind", "options", "named"),
    [
        (PostgresStore, {"url": 3}, "PostgresStore.url"),
        (PostgresStore, {"url": "postgresql://h/d?nonsense=1"}, "PostgresStore.url"),
        (PostgresStore, {"url": POSTGRES, "schema": 'x"; DROP'}, "PostgresStore.schema"),
        (PostgresStore, {"url": POSTGRES, "timeout": -1}, "PostgresStore.timeout"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(
    kind: Any, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        kind(**options)


def test_no_password_is_shown() -> None:
    assert "hunter22" not in repr(PostgresStore("postgresql://me:hunter22@db/x"))
