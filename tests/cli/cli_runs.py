"""A directory with agents and a store, and `triage runs` in it."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from store_kinds import POSTGRES, Opened

from cli.runs_agents import look, pay
from triage import Agent, TriageSuspendedError
from triage.cli import main
from triage.core import AttemptStarted, Event, RunStarted
from triage.stores import RunInfo, Store, open_store

T = TypeVar("T")


class Office:
    """text: names the store, as in `--store`. folder: the current directory."""

    def __init__(self, text: str, folder: Path) -> None:
        self.text = text
        self.folder = folder

    def __call__(self, *arguments: str) -> int:
        """`triage runs` with these arguments; its exit code."""
        code = main(["runs", *arguments])
        sys.modules.pop("agents", None)
        return code

    def do(self, work: Callable[[Store], Awaitable[T]]) -> T:
        """Something with the store, which is closed again."""
        store = open_store(self.text)

        async def done() -> T:
            try:
                return await work(store)
            finally:
                await store.close()

        return anyio.run(done)

    def read(self, run_id: str) -> list[Event]:
        return self.do(lambda store: store.read(run_id))

    def info(self, run_id: str) -> RunInfo:
        found = self.do(lambda store: store.info(run_id))
        assert found is not None
        return found

    def write(self, run_id: str, events: Sequence[Event], lease_s: float | None = None) -> None:
        """Begin a run with these events."""
        self.do(lambda store: store.append(run_id, events, at=0, epoch=0, lease_s=lease_s))

    def leave(
        self,
        run_id: str,
        agent: str,
        task: Any = "fly",
        *,
        lease_s: float | None = None,
        unstored: tuple[str, ...] = (),
        **args: Any,
    ) -> None:
        """A run that its process has left in its first attempt."""
        now = time.time()
        first = RunStarted(run_id, 0, now, agent, task, args, unstored)
        self.write(run_id, [first, AttemptStarted(run_id, 1, now, 1)], lease_s)

    def run(self, function: Any, task: str, run_id: str, **options: Any) -> Any:
        """Run an agent function to its end: its result; the token where it waits."""

        store = open_store(self.text)
        agent = Agent(function, store=store, **options)

        async def work() -> Any:
            try:
                return await agent.run(task, run_id=run_id)
            except TriageSuspendedError as error:
                return error.token
            finally:
                await store.close()

        return anyio.run(work)


@pytest.fixture(params=["sqlite", "postgres"], name="runs")
def runs_of_stores(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Office]:
    """A directory with agents, which is the current one, and a store with its name in the environment."""
    shutil.copy(Path(__file__).with_name("runs_agents.py"), tmp_path / "agents.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "agents", raising=False)
    with Opened(str(request.param), tmp_path) as opened:
        opened.new()
        text = f"sqlite:///{opened.name}"
        if request.param == "postgres":
            text = f"{POSTGRES}?schema={opened.name}"
        monkeypatch.setenv("TRIAGE_STORE", text)
        office = Office(text, tmp_path)
        office.do(lambda store: store.runs())
        yield office


@pytest.fixture(name="runs")
def runs_of_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Office:
    monkeypatch.chdir(tmp_path)
    office = Office(f"sqlite:///{tmp_path}/runs.db", tmp_path)
    monkeypatch.setenv("TRIAGE_STORE", office.text)
    return office


@pytest.fixture(name="three")
def three_runs(runs: Office) -> Office:
    """One run that is done, one that waits, one that its process has left."""
    runs.run(look, "fly", "done-1")
    runs.run(pay, "order 17", "waits-1")
    runs.leave("left-1", "look")
    return runs
