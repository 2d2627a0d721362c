"""Runs that earlier releases kept in Redis are copied into another store as they were."""

from __future__ import annotations

import base64
import contextlib
import json
import select
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from anyio import to_thread

from triage import UsageError
from triage.cli import main
from triage.core import Event, loads
from triage.stores import SQLiteStore, open_store

pytestmark = pytest.mark.anyio
GOLDEN = sorted((Path(__file__).parent.parent / "golden").glob("*/redis.json"))
NAME = "schema_of_the_golden_files"
"""Prefix of the keys."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    """A Redis of the test's own, where it is installed: no service of ours needs it any more."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("redis-server is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ("--port", str(port), "--dir", str(tmp_path), "--save", "", "--bind", "127.0.0.1")
    process = subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL)
    client: Any = redis.Redis.from_url(f"redis://127.0.0.1:{port}/0")
    for _ in range(200):
        with contextlib.suppress(redis.ConnectionError):
            client.ping()
            break
        select.select([], [], [], 0.05)
    yield client
    client.close()
    process.terminate()
    process.wait()


def fill(client: Any, kept: Path) -> None:
    """Put what a release wrote into Redis."""

    def value(said: dict[str, str]) -> bytes:
        return said["text"].encode() if "text" in said else base64.b64decode(said["base64"])

    for key, one in json.loads(kept.read_text(encoding="ascii")).items():
        given = one["value"]
        match one["type"]:
            case "string":
                client.set(key, value(given))
            case "hash":
                client.hset(key, mapping={field: value(said) for field, said in given.items()})
            case "list":
                client.rpush(key, *map(value, given))
            case "set":
                client.sadd(key, *map(value, given))
            case _:
                client.zadd(key, {value(said): score for said, score in given})


def journals(folder: Path) -> dict[str, list[Event]]:
    """The events that a release wrote, by run."""
    found: dict[str, list[Event]] = {}
    for line in (folder / "journals.jsonl").read_text(encoding="utf-8").splitlines():
        event = loads(line)
        found.setdefault(event.run_id, []).append(event)
    return found


def statuses(folder: Path) -> dict[str, str]:
    """The status of each run."""
    said = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    return {run_id: info["status"] for run_id, info in said["runs"].items()}


@pytest.mark.parametrize("kept", GOLDEN, ids=lambda path: path.parent.name)
async def test_runs_in_redis_are_copied_as_they_were(
    kept: Path, server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await to_thread.run_sync(fill, server, kept)
    place = server.connection_pool.connection_kwargs
    url = f"redis://127.0.0.1:{place['port']}/0?prefix={NAME}"
    target = f"sqlite:///{tmp_path / 'runs.db'}"
    assert await to_thread.run_sync(main, ["runs", "copy", url, target]) == 0
    written = journals(kept.parent)
    assert f"{len(written)} runs copied, 0 were up to date" in capsys.readouterr().out
    store = SQLiteStore(str(tmp_path / "runs.db"))
    expected = statuses(kept.parent)
    for run_id, events in written.items():
        assert await store.read(run_id) == events
        info = await store.info(run_id)
        assert info is not None
        assert info.status == expected[run_id]
    await store.close()


def test_a_store_in_redis_is_refused_with_the_way_out() -> None:
    with pytest.raises(UsageError, match=r"triage runs copy redis://cache/0 sqlite:///runs\.db"):
        open_store("redis://cache/0")


async def test_a_redis_that_does_not_answer_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["runs", "copy", "redis://127.0.0.1:1/0", f"sqlite:///{tmp_path / 'runs.db'}"]
    assert await to_thread.run_sync(main, arguments) == 1
    assert "Redis does not answer" in capsys.readouterr().err
