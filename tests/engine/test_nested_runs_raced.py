"""Two processes that recover the same outer run: one of them goes on with it, the other one stops."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from store_kinds import Opened
from support import Says, always
from tables import table

import triage
from engine.durable_runs import check_journal
from triage import Agent, Retry, Run, Suspend
from triage.core import RunBusy, RunStarted, StaleWriter, TriageSuspendedError
from triage.stores import Store

pytestmark = pytest.mark.anyio

OUTER = "outer"


class Dead(BaseException):
    """The process is gone."""


class Gate:
    """A place where somebody waits until told. A gate that was not closed lets everyone through."""

    def __init__(self) -> None:
        self.reached = anyio.Event()
        self._open: anyio.Event | None = None

    def close(self) -> None:
        self._open = anyio.Event()

    def open(self) -> None:
        if self._open is not None:
            self._open.set()

    async def passed(self) -> None:
        self.reached.set()
        if self._open is not None:
            await self._open.wait()


class Held:
    """A store that holds a look at runs inside the outer one, or a claim of one, until told."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.gates = {"read": Gate(), "claim": Gate()}

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        return partial(self._asked, name, method) if name in self.gates else method

    async def _asked(self, name: str, method: Any, run_id: str, *args: Any, **options: Any) -> Any:
        # A look is over when it is held; a claim has not begun. The claim that follows the takeover
        # of the outer run is no matter of whoever comes to the run inside.
        held = run_id != OUTER and self.armed
        if held and name == "claim":
            await self.gates[name].passed()
        answer = await method(run_id, *args, **options)
        if held and name == "read":
            await self.gates[name].passed()
        return answer

    armed = False


class Process:
    """What one process has: a store, and the agents. The payments are the world's."""

    def __init__(
        self,
        store: Any,
        paid: list[str],
        *,
        dies: bool = False,
        asks: bool = False,
        catches: bool = False,
    ) -> None:
        self.store = Held(store)
        self.at_inner, self.in_clerk, self.paying = Gate(), Gate(), Gate()

        @triage.tool(effect="once")
        async def pay(what: str) -> str:
            paid.append(what)
            await self.paying.passed()
            return f"paid {what}"

        async def clerk(task: str, *, run: Run) -> str:
            first = await pay(f"{task} 1")
            await self.in_clerk.passed()
            if dies:
                raise Dead
            if asks and run.attempt == 1:
                raise PermissionError("may I?")
            return f"{first}, {await pay(f'{task} 2')}"

        options: dict[str, Any] = {"classifier": Says(), "store": self.store}
        policy = always(lambda _context: Suspend("may I?"))
        self.clerk = Agent(clerk, policy, name="clerk", **options)

        async def boss(task: str) -> str:
            await self.at_inner.passed()
            self.store.armed = True
            try:
                return str(await self.clerk.run(task))
            except TriageSuspendedError:
                raise
            except Exception:
                if catches:
                    return "without it"
                raise

        self.boss = Agent(boss, always(lambda _context: Retry()), name="boss", **options)


class Ended:
    """How the calls of two processes have ended."""

    def __init__(self) -> None:
        self.by: dict[str, Any] = {}

    async def of(self, name: str, work: Callable[[], Any]) -> None:
        try:
            self.by[name] = await work()
        except (Exception, Dead) as error:
            self.by[name] = error


@asynccontextmanager
async def left(tmp_path: Path, paid: list[str]) -> AsyncGenerator[Callable[..., Process]]:
    """An outer run whose process died between two payments of the run inside it; makes processes."""
    with Opened("sqlite", tmp_path) as opened:
        stores = [opened.new()]
        with pytest.raises(Dead):
            await Process(stores[0], paid, dies=True).boss.run("t", run_id=OUTER)

        def another(**options: Any) -> Process:
            stores.append(opened.another())
            return Process(stores[-1], paid, **options)

        yield another
        for info in await stores[0].runs():
            check_journal(await stores[0].read(info.run_id), info.epoch)
        assert len(await stores[0].runs()) == 2, "the run inside was begun under another id"
        for store in stores:
            await store.close()


RESULT = "paid t 1, paid t 2"


async def answered(agent: Agent[Any], asked: Any, answer: Any) -> Any:
    assert isinstance(asked, TriageSuspendedError), asked
    return await agent.resume(asked.token, answer)


@table("catches", [False, True])
@table("held", ["read", "claim"])
async def test_who_comes_late_to_the_run_inside_does_not_end_it_for_the_owner(
    held: str, *, catches: bool, tmp_path: Path
) -> None:
    paid: list[str] = []
    ended = Ended()
    async with left(tmp_path, paid) as another:
        late, owner = another(catches=catches), another()
        gate = late.store.gates[held]
        gate.close()
        owner.paying.close()
        async with anyio.create_task_group() as group:
            group.start_soon(ended.of, "late", partial(late.boss.recover, OUTER))
            await gate.reached.wait()
            group.start_soon(ended.of, "owner", partial(owner.boss.recover, OUTER))
            await owner.paying.reached.wait()
            gate.open()
            await gone(ended, "late")
            owner.paying.open()
        assert isinstance(ended.by["late"], RunBusy), ended.by
        if held == "claim":
            # The claim came between the owner's payment and its record: nobody guesses about it.
            asked = ended.by["owner"]
            assert await answered(owner.boss, asked, triage.happened("paid t 2")) == RESULT
        else:
            assert ended.by["owner"] == RESULT
        assert paid == ["t 1", "t 2"]


async def gone(ended: Ended, name: str) -> None:
    """Wait until a call has ended."""
    while name not in ended.by:
        await anyio.sleep(0.001)


@table("catches", [False, True])
@table("held", ["read", "claim"])
async def test_a_question_that_is_asked_between_look_and_claim_stays_answerable(
    held: str, *, catches: bool, tmp_path: Path
) -> None:
    paid: list[str] = []
    ended = Ended()
    async with left(tmp_path, paid) as another:
        late, owner = another(asks=True, catches=catches), another(asks=True)
        gate = late.store.gates[held]
        gate.close()
        async with anyio.create_task_group() as group:
            group.start_soon(ended.of, "late", partial(late.boss.recover, OUTER))
            await gate.reached.wait()
            await ended.of("owner", partial(owner.boss.recover, OUTER))
            gate.open()
        assert isinstance(ended.by["late"], RunBusy), ended.by
        assert await answered(owner.boss, ended.by["owner"], triage.approve()) == RESULT
        assert paid == ["t 1", "t 2"]


@table("held", ["read", "claim"])
async def test_one_that_was_gone_on_with_alone_asks_again_through_the_outer_run(
    held: str, tmp_path: Path
) -> None:
    paid: list[str] = []
    ended = Ended()
    async with left(tmp_path, paid) as another:
        outer, alone = another(asks=True), another(asks=True)
        gate = outer.store.gates[held]
        gate.close()
        (inside,) = await alone.store.runs(parent=OUTER)
        async with anyio.create_task_group() as group:
            group.start_soon(ended.of, "outer", partial(outer.boss.recover, OUTER))
            await gate.reached.wait()
            with pytest.raises(TriageSuspendedError):
                await alone.clerk.recover(inside.run_id)
            gate.open()
        asked = ended.by["outer"]
        assert await answered(outer.boss, asked, triage.approve()) == RESULT
        assert paid == ["t 1", "t 2"]


async def test_who_loses_the_outer_run_while_the_one_inside_asks_gives_no_dead_token(
    tmp_path: Path,
) -> None:
    paid: list[str] = []
    ended = Ended()
    async with left(tmp_path, paid) as another:
        loser, owner = another(asks=True), another(asks=True)
        loser.in_clerk.close()
        owner.at_inner.close()
        async with anyio.create_task_group() as group:
            group.start_soon(ended.of, "loser", partial(loser.boss.recover, OUTER))
            await loser.in_clerk.reached.wait()
            group.start_soon(ended.of, "owner", partial(owner.boss.recover, OUTER))
            await owner.at_inner.reached.wait()
            loser.in_clerk.open()
            await gone(ended, "loser")
            owner.at_inner.open()
        assert isinstance(ended.by["loser"], RunBusy), ended.by
        assert await answered(owner.boss, ended.by["owner"], triage.approve()) == RESULT
        assert paid == ["t 1", "t 2"]


@table("asks", [False, True])
async def test_any_number_that_recover_at_once_lose_nothing(*, asks: bool, tmp_path: Path) -> None:
    for number in range(10):
        paid: list[str] = []
        ended = Ended()
        folder = tmp_path / str(number)
        folder.mkdir()
        async with left(folder, paid) as another:
            all_of_them = [another(asks=asks) for _ in range(3)]
            async with anyio.create_task_group() as group:
                for name, each in enumerate(all_of_them):
                    group.start_soon(ended.of, str(name), partial(each.boss.recover, OUTER))
            info = await all_of_them[0].store.info(OUTER)
            assert info.status in ("done", "suspended"), (info, ended.by)
            if info.status == "suspended":
                asked = [e for e in ended.by.values() if isinstance(e, TriageSuspendedError)]
                assert len(asked) == 1, ended.by
                found: Any = asked[0]
                while isinstance(found, TriageSuspendedError):
                    doubt = "happen" in found.question
                    what = "t 1" if '"t 1"' in found.question else "t 2"
                    answer: Any = triage.approve()
                    if doubt:
                        answer = triage.happened(f"paid {what}") if what in paid else triage.rerun()
                    try:
                        found = await all_of_them[0].boss.resume(found.token, answer)
                    except TriageSuspendedError as more:
                        found = more
                assert found == RESULT
            assert paid == ["t 1", "t 2"]


# Processes that stood still -----------------------------------------------------------------------


async def test_a_run_inside_stops_as_soon_as_its_outer_run_is_taken_over(tmp_path: Path) -> None:
    paid: list[str] = []
    ended = Ended()
    with Opened("sqlite", tmp_path) as opened:
        zombie, owner = Process(opened.new(), paid), Process(opened.another(), paid)
        zombie.in_clerk.close()
        owner.at_inner.close()
        async with anyio.create_task_group() as group:
            run = partial(zombie.boss.run, "t", run_id=OUTER)
            group.start_soon(ended.of, "zombie", run)
            await zombie.in_clerk.reached.wait()
            group.start_soon(ended.of, "owner", partial(owner.boss.recover, OUTER))
            await owner.at_inner.reached.wait()
            # The owner has not come to the run inside yet.
            zombie.in_clerk.open()
            await gone(ended, "zombie")
            assert paid == ["t 1"]
            owner.at_inner.open()
        assert isinstance(ended.by["zombie"], StaleWriter), ended.by
        assert ended.by["owner"] == RESULT
        assert paid == ["t 1", "t 2"]
        await zombie.store.close()
        await owner.store.close()


async def test_no_run_is_begun_inside_one_that_was_taken_over(tmp_path: Path) -> None:
    paid: list[str] = []
    ended = Ended()
    with Opened("sqlite", tmp_path) as opened:
        zombie, owner = Process(opened.new(), paid), Process(opened.another(), paid)
        zombie.at_inner.close()
        owner.at_inner.close()
        async with anyio.create_task_group() as group:
            run = partial(zombie.boss.run, "t", run_id=OUTER)
            group.start_soon(ended.of, "zombie", run)
            await zombie.at_inner.reached.wait()
            while not await owner.store.read(OUTER):  # an outer run of no calls is not yet stored
                await anyio.sleep(0.001)
            group.start_soon(ended.of, "owner", partial(owner.boss.recover, OUTER))
            await owner.at_inner.reached.wait()
            zombie.at_inner.open()
            await gone(ended, "zombie")
            assert paid == []
            owner.at_inner.open()
        assert isinstance(ended.by["zombie"], StaleWriter), ended.by
        assert ended.by["owner"] == RESULT
        assert paid == ["t 1", "t 2"]
        (inside,) = await owner.store.runs(parent=OUTER)
        assert isinstance((await owner.store.read(inside.run_id))[0], RunStarted)
        await zombie.store.close()
        await owner.store.close()
