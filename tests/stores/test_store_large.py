"""Large appends: none delays or fails others, and what is cut is of bounded size."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict
from store_kinds import DURABLE, opening
from support import RETRY

import triage
from stores.store_runs import created, started
from triage import Agent, Durability, Step
from triage.core.events import StepRecorded
from triage.core.large_values import fitting, json_of
from triage.core.redaction import Redactor
from triage.stores import SQLiteStore, Store

pytestmark = pytest.mark.anyio

opened = opening(*DURABLE)

values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=80),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=30), inner),
    max_leaves=60,
)  # fmt: skip


@given(value=values, said=st.text(max_size=300))
def test_whatever_is_cut_is_a_step_of_bounded_size(value: Any, said: str) -> None:
    step = Step(action="x", tool_output=value, llm_output=said, metadata={"value": value})
    event = StepRecorded("r", 1, 1.0, 1, 0, step)
    cut = fitting(event, 100, None, lambda _: "once")
    assert isinstance(cut, StepRecorded)
    for name, given_ in asdict(step).items():
        whole, kept = json_of(given_), getattr(cut.step, name)
        if len(whole) <= 100:
            assert kept == given_
        else:
            assert str(len(whole)) in json.dumps(kept)
            assert len(json.dumps(kept)) < 2_000 * 12 + 300, name
    assert triage.core.loads(triage.core.dumps(cut)) == cut


class Failing(Redactor):
    """Fails at a value that says so."""

    def value(self, value: Any) -> tuple[Any, bool]:
        if "fail now" in repr(value):
            raise RecursionError("as told")
        return super().value(value)


async def test_what_cannot_be_looked_through_fails_its_own_run_alone(store: Store) -> None:
    ended: dict[str, str] = {}

    async def works(task: str, *, run: triage.Run) -> str:
        run.record_step(Step(action="say", tool_output={"said": task}))
        await run.flush()
        return task

    agent = Agent(works, RETRY, store=store, durability=Durability(redact=Failing()))

    async def one(run_id: str, task: str) -> None:
        try:
            ended[run_id] = await agent.run(task, run_id=run_id)
        except RecursionError as error:
            ended[run_id] = str(error)

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(one, f"r{number}", "fail " + ("now" if number == 2 else "never"))
    assert ended == {f"r{n}": "as told" if n == 2 else "fail never" for n in range(5)}


async def test_small_appends_do_not_wait_for_a_large_one_behind_them(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    for run_id in ("a", "b", "c"):
        await created(store, run_id)
    order: list[tuple[str, int]] = []
    release, done = threading.Event(), threading.Event()

    def submit(run_id: str, output: str) -> None:
        def tell(error: BaseException | None) -> None:
            assert error is None
            with contextlib.closing(sqlite3.connect(store.path)) as db:
                (length,) = db.execute("SELECT events FROM runs WHERE run_id = 'c'").fetchone()
            order.append((run_id, length))
            if len(order) == 3:
                done.set()

        event = StepRecorded(run_id, 1, 1.0, 1, 0, Step(action="x", tool_output=output))
        store.submit(run_id, [event], at=1, epoch=0, lease_s=None, done=tell)

    def hold(_error: BaseException | None) -> None:
        release.wait(10)  # until all of them wait

    store.submit("d", [started("d")], at=0, epoch=0, lease_s=None, done=hold)
    submit("a", "small")
    submit("b", "small")
    submit("c", "prose " * 2**20)
    release.set()
    await anyio.to_thread.run_sync(done.wait, 20)
    # What was told before the large one was there does not know of it.
    assert order == [("a", 1), ("b", 1), ("c", 2)]
    await store.close()
