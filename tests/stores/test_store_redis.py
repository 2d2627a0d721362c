"""Redis as a service of its own: the settings that are refused, and what replicas and restarts keep."""

from __future__ import annotations

import contextlib
import select
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from store_kinds import missing
from store_runs import add, created

from triage.core import StoreFull, StoreReadOnly, StoreTooNew, StoreUnavailable
from triage.stores import RedisStore

pytestmark = pytest.mark.anyio

KEEPING = ("--appendonly", "yes", "--appendfsync", "always")


class Server:
    """A Redis of the test's own."""

    def __init__(self, folder: Path, *options: str) -> None:
        binary = shutil.which("redis-server")
        if binary is None:
            missing("redis-server", FileNotFoundError("it is not installed"))
        assert binary is not None
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        fixed = ("--port", str(port), "--dir", str(folder), "--save", "", "--bind", "127.0.0.1")
        self._process = subprocess.Popen([binary, *fixed, *options], stdout=subprocess.DEVNULL)
        self.url = f"redis://127.0.0.1:{port}/0"
        self.client: Any = redis.Redis.from_url(self.url)  # both its clients share their types
        deadline = 200
        while deadline:
            with contextlib.suppress(redis.ConnectionError):
                self.client.ping()
                return
            self._process.poll()
            deadline -= 1
            select.select([], [], [], 0.05)

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self.client.close()
        self._process.terminate()
        self._process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with contextlib.closing(Server(tmp_path, *KEEPING, "--repl-diskless-sync-delay", "0")) as made:
        yield made


async def test_a_server_that_keeps_its_runs_is_taken(server: Server) -> None:
    store = RedisStore(server.url)
    await created(store, "r")
    assert len(await store.read("r")) == 1
    await store.close()


@pytest.mark.parametrize(
    ("setting", "value", "match"),
    [
        ("maxmemory-policy", "allkeys-lru", "allkeys-lru.*set noeviction"),
        ("maxmemory-policy", "volatile-ttl", "volatile-ttl.*set noeviction"),
        ("appendonly", "no", 'set appendonly yes, or say persistence="any"'),
    ],
)
async def test_a_server_that_loses_runs_is_refused(
    server: Server, setting: str, value: str, match: str
) -> None:
    server.client.config_set(setting, value)
    store = RedisStore(server.url)
    with pytest.raises(StoreUnavailable, match=match):
        await store.open()
    await store.close()


async def test_replicas_that_do_not_confirm_are_said_so(server: Server) -> None:
    store = RedisStore(server.url, wait_replicas=1, timeout=3.0)
    with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
        await created(store, "r")
    await store.close()


async def test_a_replica_that_confirms_has_what_was_acknowledged(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "replica").mkdir()
    port = str(urlsplit(server.url).port)
    replica = Server(tmp_path / "replica", "--replicaof", "127.0.0.1", port)
    try:
        store = RedisStore(server.url, wait_replicas=1)
        await created(store, "r")
        await add(store, "r", 1, 10)
        await store.close()
        copy = RedisStore(replica.url, persistence="any", timeout=2.0)
        assert await _length_in(replica) == 11
        with pytest.raises(StoreReadOnly):
            await created(copy, "s")
        await copy.close()
    finally:
        replica.close()


async def _length_in(server: Server) -> int:
    (key,) = server.client.keys("*:e:*")
    return int(server.client.llen(key))


async def test_a_full_redis_is_said_so_and_loses_nothing(server: Server) -> None:
    store = RedisStore(server.url)
    await created(store, "r")
    server.client.config_set("maxmemory", "1mb")
    with pytest.raises(StoreFull, match="no room left"):
        await add(store, "r", 1, 1)
    assert len(await store.read("r")) == 1
    server.client.config_set("maxmemory", "0")
    await add(store, "r", 1, 1)
    await store.close()


async def test_runs_survive_a_restart_of_redis(tmp_path: Path) -> None:
    for length in (0, 20, 40):
        with contextlib.closing(Server(tmp_path, *KEEPING)) as server:
            store = RedisStore(server.url)
            if not length:
                await created(store, "r")
            assert len(await store.read("r")) == length + (not length)
            await add(store, "r", max(1, length), 20 - (not length))
            await store.close()
            server.kill()


async def test_the_keys_of_a_newer_release_are_refused(server: Server) -> None:
    await (store := RedisStore(server.url)).open()
    await store.close()
    server.client.incr("{triage}:version")
    with pytest.raises(StoreTooNew, match="version 2"):
        await store.runs()
    await store.close()


async def test_ids_are_not_part_of_keys(server: Server) -> None:
    store = RedisStore(server.url, prefix="mine")
    run_id = "}{x}:secret-name\r\nFLUSHALL"
    await created(store, run_id)
    assert len(await store.read(run_id)) == 1
    for key in server.client.keys("*"):
        assert key.startswith(b"{mine}:")
        assert b"secret" not in key
    await store.close()
