"""What is too large: steps are cut and say so, what a run goes on with is kept whole or refused by name."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from anyio.abc import TaskStatus
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict
from store_kinds import DURABLE, EXAMPLES, opening
from store_runs import created, started
from support import RETRY, Says, always

import triage
from triage import Agent, Checks, Durability, Retry, Rollback, Step
from triage.core import (
    CallFinished,
    CallStarted,
    Redactor,
    StepRecorded,
    StoreError,
)
from triage.core import json_values as _parts
from triage.core import wire as cutting
from triage.stores import MemoryStore, SQLiteStore, Store

pytestmark = pytest.mark.anyio
MB = 2**20
PROSE = "The flight to Rome leaves at nine, and nobody at the gate knows why. "


def prose(size: int) -> str:
    return (PROSE * (size // len(PROSE) + 1))[:size]


opened = opening(*DURABLE)


async def recorded(store: Store, step: Step, run_id: str = "r", **options: Any) -> Step:
    """A step as the store gives it back, once a run has recorded it."""

    async def works(task: str, *, run: triage.Run) -> str:
        run.record_step(step)
        return task

    await Agent(works, RETRY, store=store, **options).run("task", run_id=run_id)
    return next(e.step for e in await store.read(run_id) if isinstance(e, StepRecorded))


# Steps --------------------------------------------------------------------------------------------


async def test_a_step_of_50_mb_is_cut_and_says_so(store: Store) -> None:
    output = prose(50 * MB)
    kept = await recorded(store, Step(action="dump", tool_called="dump", tool_output=output))
    digest = hashlib.sha256(output.encode()).hexdigest()
    assert (kept.action, kept.tool_called) == ("dump", "dump")
    assert (
        kept.tool_output == output[:MB] + f"… [cut] [of {len(output)} characters, SHA-256 {digest}]"
    )


async def test_a_large_value_of_many_is_cut_where_it_is_full(store: Store) -> None:
    rows = [{"id": number, "text": prose(100_000)} for number in range(200)]
    step = Step(action="dump", tool_input={"table": "all"}, tool_output=rows, llm_output="short")
    kept = await recorded(store, step)
    whole = json.dumps(rows, separators=(",", ":"))
    assert kept.tool_input == {"table": "all"}
    assert kept.llm_output == "short"
    assert kept.tool_output["$triage"] == "cut"
    assert kept.tool_output["type"] == "list"
    assert kept.tool_output["characters"] == len(whole)
    assert kept.tool_output["sha256"] == hashlib.sha256(whole.encode()).hexdigest()
    value = kept.tool_output["value"]
    assert value[:10] == rows[:10]
    assert value[-1] == {"$triage": "cut", "items": len(rows) - len(value) + 1}
    assert MB * 0.9 < len(json.dumps(value)) < MB * 1.1


async def test_a_step_within_the_bound_is_kept_whole(store: Store) -> None:
    step = Step(action="dump", tool_output=prose(7 * MB), llm_output=prose(MB // 2))
    kept = await recorded(store, step)
    assert (kept.tool_output, kept.llm_output) == (step.tool_output, step.llm_output)


async def test_no_secret_is_known_by_the_half_that_is_kept(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    key = "AKIA" + "Q" * 16
    for back in (1, 8, 12, 19):
        text = prose(MB - back - 1) + " " + key + " " + prose(9 * MB)
        nested = await recorded(store, Step(tool_output=text, metadata={"x": [text]}), f"r{back}")
        for kept in (nested.tool_output, nested.metadata):
            assert "AKIA" not in json.dumps(kept)
    await store.close()


async def test_arguments_of_a_call_are_cut_as_they_are_for_people(store: Store) -> None:
    @triage.tool(effect="once")
    async def send(text: str) -> int:
        return len(text)

    async def works(task: str) -> int:
        return await send(prose(9 * MB))

    agent = Agent(works, RETRY, store=store)
    assert await agent.run("task", run_id="r") == 9 * MB
    begun = next(e for e in await store.read("r") if isinstance(e, CallStarted))
    assert begun.arguments["type"] == "dict"
    assert len(json.dumps(begun.arguments)) < 1.1 * MB


values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=80),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=30), inner),
    max_leaves=60,
)  # fmt: skip


@given(value=values, said=st.text(max_size=300))
def test_whatever_is_cut_is_a_step_of_bounded_size(value: Any, said: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "WHOLE", 100)
        patch.setattr(cutting, "KEPT", 50)
        step = Step(action="x", tool_output=value, llm_output=said, metadata={"value": value})
        event = StepRecorded("r", 1, 1.0, 1, 0, step)
        weight = cutting.weight_of(event)
        cut = cutting.fitting(event, None)
        assert isinstance(cut, StepRecorded)
        if weight <= 100:
            assert cut is event
        for name, given_ in asdict(step).items():
            kept = getattr(cut.step, name)
            if kept != given_:
                # What stays, escaped, and what is said of the whole.
                assert len(json.dumps(kept)) < 50 * 12 + 400, name
                assert kept.__class__ is str or kept["characters"] == len(
                    json.dumps(given_, separators=(",", ":"))
                )
        assert triage.stores.loads(triage.stores.dumps(cut)) == cut


# What a run goes on with --------------------------------------------------------------------------


def fetching(
    store: Store, ran: list[int], size: int, *, stop: Any = None, **options: Any
) -> Agent[list[int]]:
    """An agent whose calls have large results. stop: called behind them, once."""

    @triage.tool(effect="once")
    async def fetch(number: int) -> str:
        ran.append(number)
        return prose(size + number)

    async def works(task: str) -> list[int]:
        found = [len(await fetch(number)) for number in (1, 2)]
        if stop is not None:
            stop()
            await anyio.sleep_forever()
        return found

    return Agent(works, RETRY, store=store, **options)


async def test_a_large_result_is_kept_whole_and_reused(store: Store) -> None:
    ran: list[int] = []
    with anyio.CancelScope() as scope:
        await fetching(store, ran, 12 * MB, stop=scope.cancel).run("task", run_id="r")
    assert await fetching(store, ran, 12 * MB).recover("r") == [12 * MB + 1, 12 * MB + 2]
    assert ran == [1, 2]
    results = [e.result for e in await store.read("r") if isinstance(e, CallFinished)]
    assert results[:2] == [prose(12 * MB + 1), prose(12 * MB + 2)]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores that keep ten million characters at most."""
    monkeypatch.setattr("triage.stores.rows.MOST_CHARACTERS", 10 * MB)


@pytest.mark.usefixtures("narrow")
async def test_a_result_no_store_keeps_is_refused_by_the_name_of_its_tool(store: Store) -> None:
    with pytest.raises(StoreError, match="result of tool fetch of run r takes 12,5"):
        await fetching(store, [], 12 * MB).run("task", run_id="r")
    kinds = [type(event) for event in await store.read("r")]
    assert CallStarted in kinds
    assert CallFinished not in kinds  # in doubt: nothing was cut
    await created(store, "another")
    assert len(await store.runs()) == 2


@pytest.mark.usefixtures("narrow")
async def test_where_a_run_may_do_without_its_store_it_goes_on(store: Store) -> None:
    durability = Durability(on_store_error="continue")
    agent = fetching(store, [], 12 * MB, durability=durability)
    assert await agent.run("task", run_id="r") == [12 * MB + 1, 12 * MB + 2]


# Who waits ----------------------------------------------------------------------------------------


class Watched(SQLiteStore):
    """Notes in which thread it is given events."""

    threads: list[str]

    def submit(self, run_id: str, events: Any, **options: Any) -> None:
        here = threading.current_thread()
        kinds = {type(event) for event in events}
        if StepRecorded in kinds:
            self.threads.append(here.name)
        super().submit(run_id, events, **options)


async def test_no_event_loop_looks_through_a_large_value_itself(tmp_path: Path) -> None:
    store = Watched(tmp_path / "runs.db")
    store.threads = []

    async def works(task: str, *, run: triage.Run) -> None:
        await run.flush()
        run.record_step(Step(action="small"))
        await run.flush()
        run.record_step(Step(action="large", tool_output=prose(2 * MB)))
        run.record_step(Step(action="behind"))
        await run.flush()

    await Agent(works, RETRY, store=store).run("task", run_id="r")
    here = threading.current_thread().name
    assert store.threads[:2] == [here, "triage-heavy"]
    kept = [e.step.action for e in await store.read("r") if isinstance(e, StepRecorded)]
    assert kept == ["small", "large", "behind"]
    await store.close()


def holds(folder: Path, text: str) -> bool:
    """Whether a text stands in a file there."""
    return any(text.encode() in file.read_bytes() for file in folder.iterdir())


class Noting(Redactor):
    """Notes in which thread it is given a large value, and of which size the largest is."""

    seen: ClassVar[list[tuple[str, int]]] = []

    def _note(self, values: Any) -> None:
        self.seen.append((threading.current_thread().name, _parts.weight(values)))

    def value(self, value: Any) -> tuple[Any, bool]:
        self._note((value,))
        return super().value(value)

    def text(self, text: str) -> str:
        self._note((text,))
        return super().text(text)


@pytest.mark.parametrize("secret", [True, False])
async def test_no_event_loop_looks_through_a_large_result_itself(
    tmp_path: Path, *, secret: bool
) -> None:
    """The result of a call is 16 MB: others go on meanwhile, and no secret in it is kept."""
    key = "sk-" + "Qx7" * 12
    result = prose(8 * MB) + (f" {key} " if secret else "") + prose(8 * MB)
    store = SQLiteStore(tmp_path / "runs.db")
    turns = at_return = 0

    @triage.tool(effect="read")
    async def fetch() -> str:
        nonlocal at_return
        at_return = turns
        return result

    async def works(task: str) -> int:
        return len(await fetch())

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    Noting.seen.clear()
    agent = Agent(works, RETRY, store=store, durability=Durability(redact=Noting()))
    async with anyio.create_task_group() as group:
        group.start_soon(others)
        assert await agent.run("task", run_id="r") == len(result)
        assert turns > at_return + 50  # while it was looked through, encoded and written
        group.cancel_scope.cancel()
    here = threading.current_thread().name
    assert max((size for name, size in Noting.seen if name == here), default=0) < MB
    assert max(size for name, size in Noting.seen if name != here) > 12 * MB
    (kept,) = [e for e in await store.read("r") if isinstance(e, CallFinished)]
    assert kept.result == (result.replace(key, "[redacted]") if secret else result)
    assert kept.exact is not secret
    await store.close()
    assert not holds(tmp_path, key)


ROWS = [{"id": n, "name": f"customer {n}", "balance": n * 1.5} for n in range(50_000)]
"""More than may be copied, encoded or looked through within the 50 ms that an event loop may be held."""
HELD_S = 0.05


class Loop:
    """Notes how long the thread of the event loop has worked at a stretch: its CPU, whatever else runs."""

    longest_s = 0.0
    _last = 0.0

    def note(self) -> None:
        self.longest_s = max(self.longest_s, time.thread_time() - self._last)
        self._last = time.thread_time()

    async def watch(self, *, task_status: TaskStatus[None]) -> None:
        self._last = time.thread_time()
        task_status.started()
        while True:
            await anyio.sleep(0.001)
            self.note()


@triage.tool(effect="read")
async def read_rows() -> list[dict[str, Any]]:
    return ROWS


@triage.tool(effect="once")
async def take_rows() -> list[dict[str, Any]]:
    return ROWS


async def reads(task: str, *, run: triage.Run) -> int:
    """The first attempt fails behind the call, the second one is given its result again."""
    given = [*await read_rows(), *await take_rows()]
    if run.attempt == 1:
        raise ConnectionError("late")
    assert given == ROWS * 2
    return len(given)


async def gives(task: str) -> list[dict[str, Any]]:
    return ROWS


async def asks_another(task: str, *, run: triage.Run) -> int:
    given = await Agent(gives, name="inner").run("rows")
    if run.attempt == 1:
        raise ConnectionError("late")
    return len(given) * 2


async def records(task: str, *, run: triage.Run, _triage_state: Any = None) -> int:
    """What is recorded is copied where it is recorded: in a thread, where it is large."""

    def record() -> None:
        run.record_step(Step(action="rows", tool_called="rows", tool_output=ROWS))
        run.update_state({"rows": ROWS})

    if run.attempt == 1:
        await anyio.to_thread.run_sync(record)
        raise ConnectionError("late")
    return len(_triage_state["rows"]) * 2


async def counts(rows: Any, *, run: triage.Run, more: Any = ()) -> int:
    if run.attempt == 1:
        raise ConnectionError("late")
    return len(rows) + len(more)


@triage.tool(effect="read")
async def count_rows(rows: list[dict[str, Any]]) -> int:
    return len(rows)


async def gives_on(task: str, *, run: triage.Run) -> int:
    """The rows are an argument of a call, and the task of a run inside."""
    found = await count_rows(ROWS)
    found += await Agent(counts, name="inner").run(ROWS)
    if run.attempt == 1:
        raise ConnectionError("late")
    return found


def says_nothing(_output: str) -> None:
    """A constraint that every output keeps."""


CONSTRAINTS = ("not in any row", says_nothing)


@pytest.mark.parametrize(
    ("kind", "function", "task", "given", "options"),
    [
        ("memory", reads, "task", {}, {}),
        *([("sqlite", reads, "task", {}, {})] if EXAMPLES > 1 else []),
        ("sqlite", asks_another, "task", {}, {}),
        ("memory", records, "task", {}, {}),
        ("memory", gives_on, "task", {}, {}),
        ("memory", counts, ROWS, {"more": ROWS}, {}),
        ("memory", gives, "task", {}, {"checks": Checks(result_type=list[dict[str, Any]])}),
        ("memory", gives, "task", {}, {"checks": Checks(constraints=CONSTRAINTS)}),
    ],
)
async def test_no_event_loop_is_held_by_many_rows(
    tmp_path: Path, kind: str, function: Any, task: Any, given: dict[str, Any], options: Any
) -> None:
    store = SQLiteStore(tmp_path / "runs.db") if kind == "sqlite" else MemoryStore()
    policy = always(lambda context: Rollback() if context.state else Retry())
    await Agent(gives, store=store).run("imports what a first run needs")
    loop = Loop()
    async with anyio.create_task_group() as group:
        await group.start(loop.watch)
        agent = Agent(function, policy, classifier=Says(), store=store, **options)
        found = await agent.run(task, **given)
        loop.note()
        group.cancel_scope.cancel()
    assert (len(found) * 2 if function is gives else found) == len(ROWS) * 2
    assert loop.longest_s <= HELD_S
    await store.close()


@given(value=values, size=st.integers(_parts.ITEM, 40))
def test_parts_make_the_same_json(value: Any, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_parts, "SLICE", size)
        text = "".join(_parts.json_parts(value))
    assert text == json.dumps(value, separators=(",", ":"))


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
    submit("c", prose(6 * MB))
    release.set()
    await anyio.to_thread.run_sync(done.wait, 20)
    # What was told before the large one was there does not know of it.
    assert order == [("a", 1), ("b", 1), ("c", 2)]
    await store.close()
