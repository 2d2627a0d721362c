"""A store that says nothing holds a run up no longer than its settings say, cancelled or not."""

from __future__ import annotations

import socket
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import pytest
from store_kinds import POSTGRES, Opened
from tables import table

import triage
from triage import Agent, Durability
from triage.core import RunStarted, StoreUnavailable, fold
from triage.stores import MemoryStore, PostgresStore, SQLiteStore, Store

pytestmark = pytest.mark.anyio


class Proxy:
    """Stands before a server, and passes on no word of it while it is silent."""

    def __init__(self, host: str, port: int) -> None:
        self._to = host, port
        self.silent = threading.Event()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._to)
                self._sockets += [client, server]
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not self.silent.is_set() or target.getpeername() == self._to:
                    target.sendall(data)

    def close(self) -> None:
        self._listener.close()
        for one in self._sockets:
            one.close()


@contextmanager
def silent_postgres(opened: Opened) -> Generator[tuple[Store, Store, Callable[[], Awaitable[Any]]]]:
    """A store whose server goes silent, the same without the fault, and how it does."""
    sound = opened.new()
    assert isinstance(sound, PostgresStore)
    url = urlsplit(POSTGRES)
    proxy = Proxy(url.hostname or "127.0.0.1", url.port or 5432)
    through = url._replace(netloc=f"{url.username}@127.0.0.1:{proxy.port}").geturl()
    try:
        yield (
            PostgresStore(through, schema=sound.schema, timeout=0.5),
            sound,
            lambda: anyio.to_thread.run_sync(proxy.silent.set),
        )
    finally:
        proxy.close()


@contextmanager
def locked_sqlite(opened: Opened) -> Generator[tuple[Store, Store, Callable[[], Awaitable[Any]]]]:
    sound = opened.new()
    assert isinstance(sound, SQLiteStore)
    holder = sqlite3.connect(sound.path, check_same_thread=False, isolation_level=None)
    try:
        yield (
            SQLiteStore(sound.path, timeout=0.5),
            sound,
            lambda: anyio.to_thread.run_sync(holder.execute, "BEGIN IMMEDIATE"),
        )
    finally:
        holder.close()


FAULTY: dict[str, Any] = {"postgres": silent_postgres, "sqlite": locked_sqlite}


@pytest.fixture(params=["postgres", "sqlite"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Opened]:
    with Opened(request.param, tmp_path) as one:
        yield one


async def takes_at_most(seconds: float, work: Callable[[], Awaitable[Any]]) -> BaseException | None:
    """What it raises."""
    began = time.monotonic()
    raised: BaseException | None = None
    with anyio.move_on_after(60) as scope:
        try:
            await work()
        except Exception as error:
            raised = error
    assert not scope.cancelled_caught, "it hangs"
    assert time.monotonic() - began < seconds
    return raised


async def test_each_operation_of_a_store_that_goes_silent_ends(opened: Opened) -> None:
    with FAULTY[opened.kind](opened) as (store, sound, silence):
        begun = RunStarted("r1", 0, 0.0, "a", "x")
        await sound.append("r1", [begun], at=0, epoch=0)
        await store.runs()
        await store.now()
        await store.renew("r1", epoch=0, lease_s=30)
        await silence()
        writes: dict[str, Callable[[], Awaitable[Any]]] = {
            "append": lambda: store.append("r1", [begun], at=1, epoch=0),
            "claim": lambda: store.claim("r1", lease_s=1, force=True),
            "renew": lambda: store.renew("r1", epoch=0, lease_s=1),
            "release": lambda: store.release("r1", epoch=0),
            "prune": lambda: store.prune(keep=0),
        }
        reads: dict[str, Callable[[], Awaitable[Any]]] = {
            "read": lambda: store.read("r1"),
            "info": lambda: store.info("r1"),
            "runs": store.runs,
            "find": lambda: store.find("a"),
            "now": store.now,
        }
        chosen = writes if opened.kind == "sqlite" else {**writes, **reads}
        raised: dict[str, BaseException | None] = {}

        async def ask(name: str) -> None:
            raised[name] = await takes_at_most(20, chosen[name])

        async with anyio.create_task_group() as group:
            for name in chosen:
                group.start_soon(ask, name)
        kinds = {name: type(error) for name, error in raised.items()}
        assert kinds == dict.fromkeys(chosen, StoreUnavailable)


def paying(store: Store, silence: Callable[[], Awaitable[Any]], paid: list[int]) -> Agent[str]:
    @triage.tool(effect="once")
    async def pay(cents: int) -> str:
        paid.append(cents)
        await silence()  # before its end is recorded
        return "paid"

    async def pays(task: str) -> str:
        return await pay(5)

    return Agent(pays, store=store, name="pays", durability=Durability(lease_s=30))


async def test_a_run_whose_store_goes_silent_ends_and_is_asked_about(opened: Opened) -> None:
    paid: list[int] = []
    with FAULTY[opened.kind](opened) as (store, sound, silence):
        await store.runs()
        raised = await takes_at_most(30, lambda: paying(store, silence, paid).run("x", run_id="r1"))
        assert isinstance(raised, StoreUnavailable)
    await resolved(sound, paid)


async def test_a_cancelled_run_whose_store_is_silent_ends_too(opened: Opened) -> None:
    paid: list[int] = []
    with FAULTY[opened.kind](opened) as (store, sound, silence):
        await store.runs()

        async def cancelled() -> None:
            with anyio.move_on_after(0.4):
                await paying(store, silence, paid).run("x", run_id="r1")

        await takes_at_most(30, cancelled)
    await resolved(sound, paid)


async def resolved(sound: Store, paid: list[int]) -> None:
    """Another process repeats nothing: it finds that the call was made, or asks."""
    again = paying(sound, anyio.lowlevel.checkpoint, paid)
    try:
        result = await again.recover("r1", force=True)
    except triage.TriageSuspendedError as question:
        result = await again.resume(question.token, triage.happened("paid"))
    assert result == "paid"
    assert paid == [5]
    assert fold(await sound.read("r1")).status == "done"


class Mute(MemoryStore):
    """A store of the user's own that stops answering, one way of asking it at a time."""

    durable = True

    def __init__(self) -> None:
        super().__init__()
        self.mute: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        if name != "mute" and name in getattr(self, "mute", ()):

            async def never(*_: Any, **__: Any) -> None:
                await anyio.sleep_forever()

            return (lambda *_, **__: None) if name == "submit" else never
        return super().__getattribute__(name)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triage.engine.config, "LEAST_PATIENCE", 0.2)


@pytest.mark.usefixtures("impatient")
@table(
    "name",
    ["submit", "renew", "read", "claim", "info", "now", "release", "find"],
    at_once=True,
)
@pytest.mark.parametrize("what", ["run", "recover", "cancelled run", "recover_all"])
async def test_a_store_of_ones_own_that_never_answers_holds_nothing_up(
    what: str, name: str
) -> None:
    store = Mute()
    durability = Durability(lease_s=0.4)
    cut = anyio.Event()

    async def works(task: str, *, run: Any) -> str:
        await run.flush()
        cut.set()
        if what == "cancelled run":
            await anyio.sleep_forever()
        return "done"

    agent = Agent(works, store=store, name="works", durability=durability)
    if what in ("recover", "recover_all"):
        await store.append("r1", [RunStarted("r1", 0, 0.0, "works", "x")], at=0, epoch=0)
    store.mute = {name}

    async def act() -> None:
        if what == "recover":
            await agent.recover("r1")
        elif what == "recover_all":
            await agent.recover_all()
        elif what == "run":
            await agent.run("x", run_id="r1")
        else:
            with anyio.move_on_after(0.3):
                await agent.run("x", run_id="r1")

    raised = await takes_at_most(20, act)
    assert raised is None or isinstance(raised, (StoreUnavailable, triage.TriageError)), raised
