"""Answers that come at once: one counts, and whoever is late hears who was first and with which answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from starlette.testclient import TestClient

import triage
from triage import (
    Agent,
    Checks,
    FailurePolicy,
    Retry,
    Suspend,
    TriageError,
    TriageSuspendedError,
    approve,
)
from triage.cli import main
from triage.core import RunBusy, RunResumed
from triage.engine.answering import waits_for
from triage.plan import (
    Approval,
    ExecutionPlan,
    Orchestrator,
    PlannedStep,
    Registry,
    capability,
)
from triage.stores import SQLiteStore
from triage.web import Person, Role, app

RUN = "r1"
URL = "http://localhost"
OURS = {"Origin": URL, "Sec-Fetch-Site": "same-origin"}


@triage.tool(effect="once")
async def send(cents: int) -> str:
    return f"sent {cents}"


async def guarded(task: str) -> str:
    return await send(300)


async def doubtful(task: str, extra: int = 0) -> int:
    if not extra:
        raise ValueError("which?")
    return extra


@capability("measure", "Give the temperature.")
async def measure(sensor: str) -> int:
    return 21


PLAN = ExecutionPlan((PlannedStep("t", "measure", parameters={"sensor": "hall"}),))


def about_call(store: SQLiteStore) -> Any:
    return Agent(guarded, store=store, checks=Checks(guard=lambda _: Suspend("over 200")))


def about_action(store: SQLiteStore) -> Any:
    return Agent(doubtful, FailurePolicy(default=Suspend("which?")), store=store)


def about_plan(store: SQLiteStore) -> Any:
    return Orchestrator(Registry([measure]), lambda _: PLAN, store=store, approval=Approval())


def agent_of(made: Any) -> Any:
    return getattr(made, "agent", made)


class Told(NamedTuple):
    """What somebody who answers is told. late: whether in the way for an answer that came late."""

    done: bool
    late: bool
    said: str


class Desk:
    """A run that waits in a file, and the ways to answer it."""

    def __init__(self, folder: Path, make: Callable[[SQLiteStore], Any]) -> None:
        self.path = folder / "runs.db"
        self.make = make
        self.token = ""
        self.wants_call = make is about_call
        self.wants_plan = make is about_plan
        self.do(self._ask)

    async def _ask(self, store: SQLiteStore) -> None:
        with pytest.raises(TriageSuspendedError) as asked:
            await self.make(store).run("task", run_id=RUN)
        self.token = asked.value.token

    def do(self, work: Callable[[SQLiteStore], Any]) -> Any:
        store = SQLiteStore(self.path)

        async def done() -> Any:
            try:
                return await work(store)
            finally:
                await store.close()

        return anyio.run(done)

    def reply(self) -> Any:
        return approve() if self.wants_call or self.wants_plan else Retry(inject={"extra": 7})

    async def first(self, store: SQLiteStore) -> None:
        """Ann's answer."""
        await agent_of(self.make(store)).answer(RUN, self.reply(), by="ann")

    # The ways, each for bob.

    def _said(self, work: Callable[[SQLiteStore], Any]) -> Told:
        try:
            self.do(work)
        except TriageError as error:
            return Told(done=False, late=type(error).__name__ == "AlreadyResumed", said=str(error))
        return Told(done=True, late=False, said="")

    def by_resume(self) -> Told:
        return self._said(lambda store: self.make(store).resume(self.token, self.reply()))

    def by_token(self) -> Told:
        return self._said(
            lambda store: agent_of(self.make(store)).answer(self.token, self.reply(), by="bob")
        )

    def by_id(self) -> Told:
        return self._said(
            lambda store: agent_of(self.make(store)).answer(RUN, self.reply(), by="bob")
        )

    def _page(self, store: SQLiteStore) -> TestClient:
        page = app(store, who=lambda _: Person("bob", Role.ADMIN))
        return TestClient(page, base_url=URL, headers=OURS, follow_redirects=False)

    def by_page(self) -> Told:
        answer = "approve" if self.wants_call or self.wants_plan else "retry"
        form = {"question": self.digest, "answer": answer}
        store = SQLiteStore(self.path)
        got = self._page(store).post(f"/runs/{RUN}/answer", data=form)
        anyio.run(store.close)
        return Told(got.status_code == 303, got.status_code == 409, got.text)

    def by_page_of_many(self) -> Told:
        answer = "approve" if self.wants_call or self.wants_plan else "retry"
        form = {"pick": f"{RUN}*{self.digest}", "answer": answer}
        store = SQLiteStore(self.path)
        got = self._page(store).post("/questions", data=form)
        anyio.run(store.close)
        assert got.status_code == 200
        done = "1 of 1" in got.text
        return Told(done, not done and "was first" in got.text, got.text)

    def by_approve(self) -> Told:
        return self._command("approve", RUN, "--yes", "--by", "bob")

    def by_resolve(self) -> Told:
        return self._command("runs", "resolve", RUN, "approve")

    def _command(self, *arguments: str) -> Told:
        err: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            for module in ("triage.cli.app", "triage.cli.run", "triage.cli.runs"):
                patch.setattr(f"{module}.note", err.append, raising=False)
            code = main([*arguments, "--store", f"sqlite:///{self.path}"])
        return Told(code == 0, code == 1, "\n".join(err))

    @property
    def digest(self) -> str:
        asked = waits_for(self._waiting)
        assert asked is not None
        return asked.token_digest

    def remember(self) -> None:
        self._waiting = self.do(lambda store: store.read(RUN))

    def resumed(self) -> list[RunResumed]:
        events = self.do(lambda store: store.read(RUN))
        return [event for event in events if isinstance(event, RunResumed)]


EVERY = ("by_resume", "by_token", "by_id", "by_page", "by_page_of_many")
WAYS = [
    *((about_call, way) for way in (*EVERY, "by_approve", "by_resolve")),
    *((about_action, way) for way in EVERY),
    *((about_plan, way) for way in ("by_resume", "by_page", "by_page_of_many", "by_approve")),
]
ways = pytest.mark.parametrize(
    ("make", "way"), WAYS, ids=lambda value: getattr(value, "__name__", value)
)
SAYS: dict[Any, str] = {about_call: "approved", about_action: "Retry", about_plan: "approve"}


class Claims:
    """Sees each claim of the store before it is made, and each refused one after."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.before: Callable[[], None] | None = None
        self.busy = threading.Event()
        self.patch = patch
        claim = SQLiteStore.claim

        async def seen(store: SQLiteStore, *args: Any, **options: Any) -> Any:
            before, self.before = self.before, None
            if before is not None:
                await anyio.to_thread.run_sync(before)
            try:
                return await claim(store, *args, **options)
            except RunBusy:
                self.busy.set()
                raise

        patch.setattr(SQLiteStore, "claim", seen)


@pytest.fixture
def claims() -> Iterator[Claims]:
    with pytest.MonkeyPatch.context() as patch:
        yield Claims(patch)


def nobody_else(_desk: Desk) -> None: ...


def a_worker_has_it(desk: Desk) -> None:
    desk.do(lambda store: store.claim(RUN, lease_s=600.0))


def it_has_ended(desk: Desk) -> None:
    desk.do(lambda store: desk.make(store).recover(RUN))


afterwards = pytest.mark.parametrize("after", [nobody_else, a_worker_has_it, it_has_ended])


def check(desk: Desk, told: Told) -> None:
    assert not told.done
    assert told.late, told.said
    assert "ann" in told.said
    assert SAYS[desk.make].casefold() in told.said.casefold()
    assert "lease" not in told.said
    assert [event.by for event in desk.resumed()] == ["ann"]


@ways
@afterwards
def test_whoever_comes_between_a_look_and_an_answer_was_first(
    make: Any, way: str, after: Callable[[Desk], None], claims: Claims, tmp_path: Path
) -> None:
    desk = Desk(tmp_path, make)
    desk.remember()

    def answered() -> None:
        desk.do(desk.first)
        after(desk)

    claims.before = answered
    told = getattr(desk, way)()
    check(desk, told)


@ways
@afterwards
def test_whoever_answers_what_was_answered_before_is_told(
    make: Any, way: str, after: Callable[[Desk], None], tmp_path: Path
) -> None:
    desk = Desk(tmp_path, make)
    desk.remember()
    desk.do(desk.first)
    after(desk)
    told = getattr(desk, way)()
    if after is it_has_ended and way in ("by_id", "by_approve", "by_resolve"):
        told = told._replace(late=True)  # RunOver: it names the end, and the answer
    check(desk, told)


@ways
def test_whoever_meets_another_in_the_middle_of_an_answer_waits_and_is_told(
    make: Any, way: str, claims: Claims, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path, make)
    desk.remember()
    inside = threading.Event()
    append = SQLiteStore.append

    async def slow(store: SQLiteStore, *args: Any, **options: Any) -> Any:
        if threading.current_thread().name == "ann":
            inside.set()
            await anyio.to_thread.run_sync(claims.busy.wait, 30)
        return await append(store, *args, **options)

    monkeypatch.setattr(SQLiteStore, "append", slow)
    ann = threading.Thread(target=desk.do, args=(desk.first,), name="ann")
    ann.start()
    assert inside.wait(30)
    told = getattr(desk, way)()
    ann.join()
    check(desk, told)


@pytest.mark.parametrize("make", [about_call, about_action, about_plan])
def test_of_answers_at_once_in_every_way_exactly_one_counts(make: Any, tmp_path: Path) -> None:
    desk = Desk(tmp_path, make)
    desk.remember()
    # A command prints for its whole process, and whoever resumes a run goes on with it.
    names = [way for kind, way in WAYS if kind is make and way in EVERY and way != "by_resume"]
    told: list[Told] = []
    together = threading.Barrier(2 * len(names))

    def answer(way: str) -> None:
        together.wait()
        told.append(getattr(desk, way)())

    threads = [threading.Thread(target=answer, args=(way,)) for way in 2 * names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == len(threads)
    assert sum(one.done for one in told) == 1
    assert all("lease" not in one.said for one in told)
    assert len(desk.resumed()) == 1
