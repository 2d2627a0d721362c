"""Runs copied from one store to another are as they were: journal, status, claims, lease and token."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from store_kinds import Opened

import triage
from triage import Agent, TriageSuspendedError, UsageError
from triage.cli import main
from triage.core import DeadLetter, RunStarted, UnknownRun
from triage.stores import RunInfo, Store, copy_run, open_store
from triage.testing import VirtualTime

pytestmark = pytest.mark.anyio
KINDS = ("memory", "sqlite", "postgres")


class Dead(BaseException):
    """The process dies."""


class Work:
    """A function that pays once, and then does as it is told. paid: how often it has."""

    def __init__(self) -> None:
        self.paid = 0
        self.then = ""

    def agent(self, store: Store) -> Agent[str]:
        @triage.tool(effect="once")
        async def pay(n: int) -> int:
            self.paid += 1
            return n

        def guard(call: Any) -> Any:
            return triage.Suspend("may it be paid?") if self.then == "asks" else None

        async def pays(task: str) -> str:
            await pay(1)
            if self.then == "dies":
                raise Dead
            return task

        checks = triage.Checks(guard=guard)
        return Agent(pays, store=store, name="pays", environment=VirtualTime(), checks=checks)


async def running(work: Work, store: Store) -> None:
    work.then = "dies"
    with pytest.raises(Dead):
        await work.agent(store).run("t", run_id="r")
    work.then = ""


async def claimed(work: Work, store: Store) -> None:
    await running(work, store)
    for _ in range(2):
        await store.claim("r", lease_s=0.001, force=True)


async def leased(work: Work, store: Store) -> None:
    await running(work, store)
    await store.claim("r", lease_s=600, force=True)


async def put_aside(work: Work, store: Store) -> None:
    await running(work, store)
    for _ in range(3):
        await store.claim("r", lease_s=0.001, force=True)
    with pytest.raises(DeadLetter):
        await store.claim("r", lease_s=0.001, force=True)


async def suspended(work: Work, store: Store) -> None:
    work.then = "asks"
    with pytest.raises(TriageSuspendedError):
        await work.agent(store).run("t", run_id="r")


async def done(work: Work, store: Store) -> None:
    await work.agent(store).run("t", run_id="r")


async def recovered(work: Work, store: Store) -> None:
    await running(work, store)
    await work.agent(store).recover("r", force=True)


STATES = (running, claimed, leased, put_aside, suspended, done, recovered)


def _told(info: RunInfo | None) -> tuple[Any, ...]:
    assert info is not None
    return (
        info.run_id,
        info.agent,
        info.status,
        info.started,
        info.updated,
        info.events,
        info.claims,
    )


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
@pytest.mark.parametrize(("source", "target"), list(itertools.product(KINDS[1:], KINDS)))
async def test_a_copied_run_is_as_it_was(
    source: str, target: str, state: Any, tmp_path: Path
) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    with Opened(source, tmp_path / "from") as given, Opened(target, tmp_path / "to") as kept:
        before, after = given.new(), kept.new()
        work = Work()
        await state(work, before)
        events = await before.read("r")
        assert await copy_run(before, after, "r") == len(events)
        assert await after.read("r") == events
        was, now = await before.info("r"), await after.info("r")
        assert _told(now) == _told(was)
        assert was is not None
        assert now is not None
        if state is leased:
            left = (now.lease_until or 0) - await after.now()
            assert 500 < left <= 600
        assert await copy_run(before, after, "r") == 0
        if was.status in ("running", "dead_letter"):
            work.then = ""
            assert await work.agent(after).recover("r", force=True) == "t"
            assert work.paid == 1  # the copy knows what was done
        for store in (before, after):
            await store.close()


async def test_an_answer_finds_the_copy_by_its_token(tmp_path: Path) -> None:
    with Opened("sqlite", tmp_path) as opened:
        before, after = opened.new(), opened.new()
        work = Work()
        work.then = "asks"
        with pytest.raises(TriageSuspendedError) as caught:
            await work.agent(before).run("t", run_id="r")
        await copy_run(before, after, "r")
        work.then = ""
        assert await work.agent(after).resume(caught.value.token, triage.approve()) == "t"
        assert work.paid == 1
        for store in (before, after):
            await store.close()


async def test_a_copy_that_was_broken_off_goes_on_and_another_run_is_never_written_into(
    tmp_path: Path,
) -> None:
    with Opened("sqlite", tmp_path) as opened:
        before, after = opened.new(), opened.new()
        await recovered(Work(), before)
        events = await before.read("r")
        await after.append("r", events[:2], at=0, epoch=0)
        assert await copy_run(before, after, "r") == len(events) - 2
        assert await after.read("r") == events
        await after.append("x", [RunStarted("x", 0, 1.0, agent="other", task="t")], at=0, epoch=0)
        await before.append("x", [RunStarted("x", 0, 2.0, agent="pays", task="t")], at=0, epoch=0)
        with pytest.raises(UsageError, match="another run x"):
            await copy_run(before, after, "x")
        with pytest.raises(UnknownRun):
            await copy_run(before, after, "nobody")
        for store in (before, after):
            await store.close()


async def test_the_command_copies_all_runs_or_those_that_it_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = (f"sqlite:///{tmp_path / name}.db" for name in ("from", "to"))
    agent = Work().agent(open_store(source))
    for number in range(3):
        await agent.run("t", run_id=f"r{number}")
    await agent.store.close()

    def said(*arguments: str) -> str:
        assert main(["runs", "copy", source, target, *arguments]) == 0
        return capsys.readouterr().out

    assert "1 run copied, 0 were up to date" in await to_thread.run_sync(said, "r1")
    assert "2 runs copied, 1 were up to date" in await to_thread.run_sync(said)
