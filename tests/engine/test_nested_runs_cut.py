"""Wherever a process dies or is cancelled, a run with runs inside it ends as if nothing had been."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from store_kinds import Opened
from support import Says, always

import triage
from engine.durable_runs import check_journal
from engine.test_cancellation import HOW, cancelled
from triage import Agent, Retry, Run, Usage
from triage.core import Event, TriageSuspendedError
from triage.stores import Store

pytestmark = pytest.mark.anyio


OUTER = "outer"


RESULT = [["did a", 1], ["did b", 1]]


class Dead(BaseException):
    """The process is gone: nothing that it does reaches the store."""


class Dying:
    """A store whose process dies at the so-manieth thing it asks of it: before it, or right after."""

    def __init__(self, store: Store, at: int, *, after: bool) -> None:
        self._store = store
        self._at = at
        self._after = after
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        return partial(self._asked, method) if callable(method) else method

    def _passes(self) -> bool:
        self.count += 1
        if self.count > self._at or (self.count == self._at and not self._after):
            raise Dead
        return self.count < self._at

    async def _asked(self, method: Any, *args: Any, **options: Any) -> Any:
        lives = self._passes()
        answer = await method(*args, **options)
        if not lives:
            raise Dead
        return answer

    def submit(
        self, run_id: str, events: Sequence[Event], *, done: Callable[..., None], **options: Any
    ) -> None:
        try:
            lives = self._passes()
        except Dead as error:
            done(error)
            return
        told = done if lives else lambda _error: done(Dead())
        self._store.submit(run_id, events, done=told, **options)


def agent_on(store: Any, did: list[str]) -> Agent[Any]:
    """One that has two others work, who fail once each, and fails once itself."""

    @triage.tool(effect="once")
    async def act(what: str) -> str:
        did.append(what)
        return f"did {what}"

    async def clerk(task: str, *, run: Run, record_usage: Any) -> list[Any]:
        found = await act(task)
        record_usage(Usage(input_tokens=1))
        if run.attempt == 1:
            raise ConnectionError("gone")
        return [found, 1]

    options: dict[str, Any] = {"policy": always(lambda _c: Retry()), "classifier": Says()}
    inner = Agent(clerk, store=store, name="clerk", **options)

    async def works(task: str, *, run: Run) -> list[Any]:
        found = [await inner.run("a")]
        await run.flush()
        found.append(await inner.run("b"))
        if run.attempt == 1:
            raise ConnectionError("gone")
        return found

    return Agent(works, store=store, name="works", **options)


async def brought_on(store: Store, did: list[str]) -> None:
    """The run comes to its end in a new process; what is asked is answered truly."""
    agent = agent_on(store, did)
    info = await store.info(OUTER)
    waits = info is not None and info.status == "suspended"
    step = partial(agent.run, "t", run_id=OUTER)
    if info is not None:
        step = partial(agent.recover, OUTER, force=waits)
    while True:
        try:
            result = await step()
            break
        except TriageSuspendedError as asked:
            what = "a" if '"what": "a"' in asked.question else "b"
            answer = triage.happened(f"did {what}") if what in did else triage.rerun()
            step = partial(agent.resume, asked.token, answer)
    assert result == RESULT
    assert Counter(did) == {"a": 1, "b": 1}
    runs = await store.runs()
    assert {info.status for info in runs} == {"done"}
    used = 0
    for info in runs:
        events = await store.read(info.run_id)
        check_journal(events, info.epoch)
        if info.parent is not None:
            used += triage.core.fold(events).usage.input_tokens
    assert len(runs) == 3
    assert triage.core.fold(await store.read(OUTER)).usage.input_tokens == used


async def test_wherever_its_process_dies_all_of_it_is_done_once(
    tmp_path: Path, anyio_backend_name: str
) -> None:
    # Each half of the ways to die on one of the backends: the rest is the same.
    after = anyio_backend_name == "trio"
    with Opened("sqlite", tmp_path) as opened:
        for at in range(1, 200):
            store, did = opened.new(), list[str]()
            dying = Dying(store, at, after=after)
            try:
                await agent_on(dying, did).run("t", run_id=OUTER)
            except Dead:
                await brought_on(store, did)
                await store.close()
            else:
                await store.close()
                break
        assert at > 8


@pytest.mark.parametrize("how", HOW)
async def test_cancelled_anywhere_all_of_it_is_done_once(
    how: str, tmp_path: Path, anyio_backend_name: str
) -> None:
    if how.startswith("native") and anyio_backend_name == "trio":
        pytest.skip("trio has scopes alone")
    # At each suspension in one way; the others differ in little, and are at some.
    first = HOW.index(how)
    step = 1 if how == "scope" and anyio_backend_name == "asyncio" else 3
    with Opened("sqlite", tmp_path) as opened:
        for at in range(1 + first % step, 300, step):
            store, did = opened.new(), list[str]()
            stopped = await cancelled(agent_on(store, did).run("t", run_id=OUTER), at, how)
            if anyio_backend_name == "asyncio":
                assert len(asyncio.all_tasks()) <= 2, asyncio.all_tasks()
            if stopped is None:
                await store.close()
                break
            assert stopped
            for info in await store.runs():
                assert info.lease_until is None, "it was not given back"
            await brought_on(store, did)
            await store.close()
        assert at > 8
