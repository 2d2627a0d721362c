"""A directory with a store, agents and hooks, and `triage incidents` in it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from store_kinds import POSTGRES, Opened
from stores.store_runs import edit_sqlite

from triage.cli import main
from triage.core import AttemptStarted, Event, RunStarted
from triage.incidents import Incident, IncidentDesk
from triage.stores import RunInfo, Store

T = TypeVar("T")
DIED = "Process died unexpectedly"
AGENTS = '''
"""Agents and hooks of the tests."""
from triage import Agent
from triage.incidents import IncidentDesk, Watch


async def look(task):
    print("looking at", task)
    return f"saw {task}"


looker = Agent(look)


def restart(recovery):
    print("restarting", recovery.key)
    return f"{recovery.incident.agent_type}-2"


def refuses(recovery):
    raise ConnectionError("no spawner; api_key=sk-abcdefghijklmnopqrstuvwxyz123456")


def loses_its_store(recovery):
    import sqlite3

    with sqlite3.connect("runs.db") as db:
        db.execute("ALTER TABLE incident_log RENAME TO gone")
    db.close()


async def waits(recovery):
    """Says that it is inside, and waits until it may go on."""
    import pathlib
    import anyio

    pathlib.Path("inside").write_text(recovery.key)
    while not pathlib.Path("go-on").exists():
        await anyio.sleep(0.01)
    return "coder-2"


def hangs(recovery):
    import pathlib
    import time

    pathlib.Path("inside").write_text(recovery.key)
    time.sleep(60)


def mail(message):
    with open("mail.txt", "a") as file:
        file.write(f"{message.role} {message.kind}\\n")


def desk():
    return IncidentDesk("sqlite:///runs.db", owner="ours", watch=Watch(runs=False))


number = 7
kept_in_memory = IncidentDesk()
'''


class Room:
    """text: names the store. folder: the current directory."""

    def __init__(self, text: str, folder: Path) -> None:
        self.text = text
        self.folder = folder

    def __call__(self, *arguments: str) -> int:
        """`triage incidents` with these arguments; its exit code."""
        code = main(["incidents", *arguments])
        sys.modules.pop("agents", None)
        return code

    def do(self, work: Callable[[IncidentDesk], Awaitable[T]]) -> T:
        """Something with a desk, which is closed again."""
        desk = IncidentDesk(self.text, owner="test")

        async def done() -> T:
            try:
                return await work(desk)
            finally:
                await desk.close()
                await desk.store.close()

        return anyio.run(done)

    def report(self, message: str = DIED, **options: Any) -> Incident:
        given = {"agent_id": "coder-1", "agent_type": "coder", "task_id": "TASK-1", **options}
        return self.do(lambda desk: desk.report(message, **given))

    def incident(self, error_id: str = "err-001") -> Incident:
        return self.do(lambda desk: desk.incident(error_id))

    def leave(self, run_id: str, agent: str = "look", *, ago: float = 200.0) -> None:
        """A run whose process is gone so long."""
        now = time.time()
        events: list[Event] = [
            RunStarted(run_id, 0, now, agent, "fly"),
            AttemptStarted(run_id, 1, now, 1),
        ]

        async def work(desk: IncidentDesk) -> None:
            await desk.store.append(run_id, events, at=0, epoch=0, lease_s=0.001)

        self.do(work)
        self.execute(f"UPDATE runs SET lease_until = {now - ago} WHERE run_id = '{run_id}'")

    def run(self, run_id: str) -> RunInfo:
        async def work(desk: IncidentDesk) -> RunInfo | None:
            store: Store = desk.store
            return await store.info(run_id)

        found = self.do(work)
        assert found is not None
        return found

    def execute(self, statement: str) -> None:
        edit_sqlite(self.folder / "runs.db", statement)


def told(capsys: pytest.CaptureFixture[str]) -> Any:
    """The line of JSON on standard output."""
    (line,) = capsys.readouterr().out.splitlines()
    return json.loads(line)


def prepared(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Room:
    (folder / "agents.py").write_text(AGENTS, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "agents", raising=False)
    monkeypatch.setenv("TRIAGE_STORE", text)
    room = Room(text, folder)
    room.do(lambda desk: desk.stats())
    return room


@pytest.fixture(name="room")
def room_of_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Room:
    return prepared(tmp_path, "sqlite:///runs.db", monkeypatch)


@pytest.fixture(name="rooms", params=["sqlite", "postgres"])
def room_of_stores(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Room]:
    with Opened(str(request.param), tmp_path) as opened:
        opened.new()
        text = "sqlite:///runs.db"
        if request.param == "postgres":
            text = f"{POSTGRES}?schema={opened.name}"
        yield prepared(tmp_path, text, monkeypatch)
