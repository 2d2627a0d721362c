"""Durable runs: what is written when, taking over, leases, modes, and stores that fail."""

from __future__ import annotations

import logging
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from store_kinds import opening
from support import RETRY, Says, always, cancelled_once, escalation_of, question_of, recovers
from tables import table

import triage
from engine.durable_runs import RUN, Kept, agent_of, check_journal, payments
from triage import (
    Agent,
    Durability,
    Escalate,
    FailureContext,
    FailurePolicy,
    Limits,
    Retry,
    Run,
    Step,
    Suspend,
    Usage,
)
from triage.core import (
    Action,
    AttemptFailed,
    AttemptStarted,
    CallFinished,
    CallStarted,
    DeadLetter,
    Event,
    ResultLost,
    RunRecovered,
    StaleWriter,
    StepRecorded,
    StoreError,
    StoreUnavailable,
    TriageAbortError,
    TriageEscalationError,
    TriageSuspendedError,
    UnknownRun,
    UsageError,
)
from triage.stores import MemoryStore, SQLiteStore, Store

pytestmark = pytest.mark.anyio


opened = opening("sqlite", "postgres")


def agent_on(store: Store | str, function: Any, policy: Any = RETRY, **options: Any) -> Agent[Any]:
    return Agent(function, policy, classifier=Says(), store=store, **options)


async def left_running(store: Store, agent: Agent[Any], events: int) -> None:
    """A run of this agent whose process is gone, with so many events."""
    kept = MemoryStore()
    source = Agent(agent.__wrapped__, RETRY, classifier=Says(), store=kept, name=agent.name)  # type: ignore[attr-defined]
    await source.run("task", run_id=RUN)
    await store.append(RUN, (await kept.read(RUN))[:events], at=0, epoch=0)


# Recover ------------------------------------------------------------------------------------------
async def test_a_finished_run_gives_its_result_and_runs_nothing(store: Store) -> None:
    world = Kept()
    agent = agent_of("retry", store, world)
    result = await agent.run("task", run_id=RUN)
    before = list(world.effects)
    assert await agent_of("retry", store, world).recover(RUN) == result
    assert world.effects == before


@pytest.mark.parametrize(
    ("scenario", "error"), [("abort", TriageAbortError), ("escalate", TriageEscalationError)]
)
async def test_a_finished_run_raises_the_error_it_ended_with(
    scenario: str, error: type[Exception], store: Store
) -> None:
    agent = agent_of(scenario, store, Kept())
    with pytest.raises(error):
        await agent.run("task", run_id=RUN)
    with pytest.raises(error, match="the service is gone") as raised:
        await agent_of(scenario, store, Kept()).recover(RUN)
    context: Any = raised.value
    assert context.context.diagnosis.failure_type is triage.FailureType.EXTERNAL_FAULT


async def test_a_result_without_a_json_form_is_said_to_be_lost(store: Store) -> None:
    async def works(task: str) -> object:
        return object()

    await agent_on(store, works).run("task", run_id=RUN)
    with pytest.raises(ResultLost, match="result_type"):
        await agent_on(store, works).recover(RUN)


async def test_what_could_not_be_stored_is_asked_for_by_name(store: Store) -> None:
    session_lost = object()

    async def works(task: object, *, client: Any, size: int) -> str:
        if task is session_lost:
            await anyio.sleep_forever()
        return f"{task} {client} {size}"

    agent = agent_on(store, works)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await agent.run(session_lost, run_id=RUN, client=object(), size=3)
    asked = r"task, client could not be stored.*recover\(run_id, task=…, client=…\)"
    with pytest.raises(UsageError, match=asked):
        await agent.recover(RUN)
    assert await agent.recover(RUN, task="t", client="c") == "t c 3"


async def test_an_answer_is_asked_for_what_could_not_be_stored_with_the_call_it_was_given_by(
    store: Store,
) -> None:
    asked = False

    async def works(task: object, *, client: Any, size: int) -> str:
        nonlocal asked
        if not asked:
            asked = True
            raise ValueError("who is this?")
        return f"{task} {client} {size}"

    waits = FailurePolicy(default=Suspend("go on?"))
    suspended = await question_of(
        agent_on(store, works, policy=waits).run(object(), client=object(), size=3)
    )
    token = suspended.token
    elsewhere = agent_on(store, works, policy=waits)
    told = r"task, client could not be stored.*: resume\(token, answer, task=…, client=…\)\n"
    with pytest.raises(UsageError, match=told):
        await elsewhere.resume(token, Retry())
    told = r"^client could not be stored.*: resume\(token, answer, client=…\)\n"
    with pytest.raises(UsageError, match=told):
        await elsewhere.resume(token, Retry(), task="t")
    assert await elsewhere.resume(token, Retry(), task="t", client="c") == "t c 3"


async def test_an_unknown_run_is_said_to_be_unknown(store: Store) -> None:
    with pytest.raises(UnknownRun, match="run-1"):
        await agent_of("retry", store, Kept()).recover(RUN)


async def test_changed_code_is_said_and_journalled(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    async def works(task: str) -> str:  # pyright: ignore[reportRedeclaration] # as it was before
        await anyio.Event().wait()
        return "old"

    before = agent_on(store, works)

    async def works(task: str) -> str:  # type: ignore[no-redef] # the same agent, released anew
        return "new" + task

    await left_running_of(store, before)
    with caplog.at_level(logging.WARNING, "triage"):
        assert await agent_on(store, works).recover(RUN) == "newtask"
    assert "not the one it was started with" in caplog.text
    events = await store.read(RUN)
    assert [event.changed for event in events if isinstance(event, RunRecovered)] == [True]


async def left_running_of(store: Store, agent: Agent[Any]) -> None:
    """A run that was cancelled as it began: given back to the store."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        await agent.run("task", run_id=RUN)


async def test_three_deaths_make_a_dead_letter_and_force_takes_it_over(store: Store) -> None:
    agent = agent_of("retry", store, Kept())
    await left_running(store, agent, 3)
    for _ in range(3):
        await store.claim(RUN, lease_s=60, force=True)
    with pytest.raises(DeadLetter):
        await agent.recover(RUN)
    assert [info.run_id for info in await store.runs("dead_letter")] == [RUN]
    with pytest.raises(DeadLetter):
        await agent.recover(RUN)
    assert (await agent.recover(RUN, force=True))[0] == "task"


async def test_recover_all_leaves_living_runs_alone_and_tells_of_the_others(store: Store) -> None:
    begun: list[object] = []

    async def works(task: object, *, client: Any = None) -> str:
        if len(begun) < 4:
            await anyio.sleep_forever()
        return f"done {task}"

    agent = agent_on(store, works)
    for name in "abcd":
        arguments = {"client": object()} if name in "bd" else {}
        with anyio.CancelScope() as scope:
            scope.cancel()
            await agent.run(name, run_id=name, **arguments)
        begun.append(name)
    for name in "cd":
        await store.claim(name, lease_s=60)
    found = {ended.run_id: ended for ended in await agent.recover_all()}
    assert set(found) == {"a", "b"}
    assert found["a"].result == "done a"
    assert "client" in str(found["b"].error)
    for name in "bcd":
        info = await store.info(name)
        assert info is not None
        assert (info.status, info.claims) == ("running", int(name != "b"))


async def test_a_hand_written_effect_is_not_repeated_after_a_death(store: Store) -> None:
    paid: list[str] = []
    flushed = anyio.Event()

    async def works(task: str, *, run: triage.Run, record_step: Callable[[Step], int]) -> str:
        paid.append(task)
        record_step(Step(action="pay", effect="once"))
        await run.flush()
        flushed.set()
        await anyio.sleep_forever()
        return "never"

    agent = agent_on(store, works)
    await cancelled_once(flushed, lambda: agent.run("task", run_id=RUN))
    with pytest.raises(TriageEscalationError, match="recorded by hand"):
        await agent.recover(RUN)
    assert paid == ["task"]


async def test_what_limits_count_is_restored(store: Store) -> None:
    async def works(
        task: str,
        *,
        run: triage.Run,
        record_usage: Callable[[Usage], None],
        _triage_state: Any,
    ) -> str:
        record_usage(Usage(input_tokens=60))
        raise ConnectionError("gone")

    agent = agent_on(store, works, limits=Limits(attempts=4, tokens=130))
    kept = MemoryStore()
    with pytest.raises(TriageEscalationError):
        await agent_on(kept, works, limits=Limits(attempts=2)).run("task", run_id=RUN)
    events = await kept.read(RUN)
    second = [event.seq for event in events if isinstance(event, AttemptStarted)][1]
    await store.append(RUN, events[: second + 1], at=0, epoch=0)
    raised = await escalation_of(agent.recover(RUN))
    assert raised.context is not None
    # 60 in the first process and 60 in the second attempt: the third may not go over 130.
    assert raised.context.usage.total_tokens == 180
    assert raised.context.attempt == 3


class Failing:
    """A store whose k-th write fails, and every one after it if it stays so."""

    def __init__(self, store: Store, at: int, *, stays: bool) -> None:
        self._store = store
        self._at = at
        self._stays = stays
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def submit(self, run_id: str, events: Sequence[Event], **options: Any) -> None:
        self.count += 1
        if self.count == self._at or (self._stays and self.count > self._at):
            options["done"](StoreUnavailable(f"write {self.count} failed"))
        else:
            self._store.submit(run_id, events, **options)


async def ends(agent: Agent[Any]) -> Any:
    """The result of a run, or the error that ends it."""
    try:
        return await agent.run("task", run_id=RUN)
    except Exception as error:
        return error


@table("stays", [False, True])
@table("choice", ["fail", "continue"])
async def test_whichever_write_fails_nothing_of_the_agents_own_is_lost(
    choice: Any, stays: Any, tmp_path: Path
) -> None:
    expected = ["task", 10, 20, "paid 5", "paid 7"]
    failed = 0
    for at in range(1, 100):
        store = SQLiteStore(str(tmp_path / f"{at}.db"))
        failing: Any = Failing(store, at, stays=stays)
        world = Kept()
        durability = Durability(on_store_error=choice)
        ended = await ends(agent_of("retry", failing, world, durability=durability))
        events = await store.read(RUN)
        if events:
            check_journal(events)
        await store.close()
        if choice == "continue" or failing.count < at:
            assert ended == expected, at
            assert sum(payments(world).values()) == 2
        else:
            failed += 1
            assert isinstance(ended, StoreUnavailable), at
            # The agent had finished, or it had failed, or it was on its way: the error says so.
            assert getattr(ended, "result", expected) == expected
        if failing.count < at:
            break
    else:
        pytest.fail("every write failed")
    assert failed or choice == "continue"


@table("choice", ["fail", "continue"])
async def test_an_error_of_the_agent_is_raised_although_the_store_fails(
    choice: Any, tmp_path: Path
) -> None:
    for at in range(1, 6):
        store = SQLiteStore(str(tmp_path / f"{at}.db"))
        failing: Any = Failing(store, at, stays=True)

        async def works(task: str) -> str:
            raise ValueError("the agent's own")

        agent = Agent(
            works,
            always(lambda _context: triage.Abort("no")),
            classifier=Says(),
            store=failing,
            durability=Durability(on_store_error=choice),
        )
        with pytest.raises((TriageAbortError, StoreError)) as raised:
            await agent.run("task")
        chain = [raised.value, raised.value.__cause__]
        assert any(isinstance(error, ValueError) for error in chain), at
        await store.close()


# Owners -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("choice", ["fail", "continue"])
@pytest.mark.parametrize("by", ["record_step", "flush"])
async def test_a_zombie_learns_that_it_lost_the_run_and_writes_nothing(
    by: str, choice: Any, store: Store
) -> None:
    taken = anyio.Event()

    async def works(task: str, *, run: triage.Run, record_step: Callable[[Step], int]) -> str:
        if taken.is_set():
            record_step(Step(action="new owner"))
            return "new"
        record_step(Step(action="first"))
        await run.flush()
        await store.claim(RUN, lease_s=60, force=True)
        taken.set()
        record_step(Step(action="of a zombie"))
        for _ in range(500):
            if by == "flush":
                await run.flush()
            else:
                record_step(Step(action="of a zombie"))
                await anyio.sleep(0.001)
        return "old"

    # Without its store a run may go on, and never beside the owner it has now.
    durability = Durability(on_store_error=choice)
    agent = Agent(works, RETRY, classifier=Says(), store=store, durability=durability)
    with pytest.raises(StaleWriter):
        await agent.run("task", run_id=RUN)
    assert await agent.recover(RUN) == "new"
    events = await store.read(RUN)
    check_journal(events)
    steps = [event.step.action for event in events if isinstance(event, StepRecorded)]
    assert steps == ["first", "new owner"]


async def test_a_silent_call_keeps_its_lease(store: Store) -> None:
    lease_s = 1.0

    async def leased_until() -> float:
        info = await store.info(RUN)
        assert info is not None
        assert info.lease_until is not None
        return info.lease_until

    async def works(task: str) -> str:
        first = await leased_until()
        while await leased_until() < first + lease_s:
            await anyio.sleep(0.01)
        with pytest.raises(triage.core.errors.RunBusy):
            await store.claim(RUN, lease_s=lease_s)
        return "kept"

    agent = Agent(works, RETRY, store=store, durability=Durability(lease_s=lease_s))
    assert await agent.run("task", run_id=RUN) == "kept"


# Modes --------------------------------------------------------------------------------------------
KILLED = """
import os, signal, sys
import anyio
import triage
from triage import Agent, Durability, Step

async def works(task, *, run, record_step):
    record_step(Step(action="one"))
    await anyio.sleep(0.1)  # what must not be stored has some time to be
    if sys.argv[3] == "flush":
        await run.flush()
    while len(await agent.store.read(run.run_id)) < int(sys.argv[4]):
        await anyio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)

agent = Agent(works, store=sys.argv[1], durability=Durability(mode=sys.argv[2]), name="works")
anyio.run(lambda: agent.run("task"))
"""


@table(
    ("mode", "flush", "stored"),
    [
        ("step", "", ["RunStarted", "AttemptStarted", "StepRecorded"]),
        ("attempt", "", ["RunStarted", "AttemptStarted"]),
        ("attempt", "flush", ["RunStarted", "AttemptStarted", "StepRecorded"]),
        ("exit", "", []),
        ("exit", "flush", ["RunStarted", "AttemptStarted", "StepRecorded"]),
    ],
)
def test_what_a_mode_keeps_of_a_run_that_is_killed(
    mode: str, flush: str, stored: list[str], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    command = [sys.executable, "-c", KILLED, url, mode, flush, str(len(stored))]
    done = subprocess.run(command, check=False, cwd=Path(triage.__file__).parents[1], timeout=60)
    assert done.returncode == -signal.SIGKILL

    async def read() -> list[str]:
        store = SQLiteStore(str(tmp_path / "runs.db"))
        runs = await store.runs()
        events = await store.read(runs[0].run_id) if runs else []
        await store.close()
        return [type(event).__name__ for event in events]

    if stored or (tmp_path / "runs.db").exists():
        assert anyio.run(read) == stored


FORKED = """
import os, pathlib, sys
import anyio
from triage import Agent, Durability

async def works(task, *, run):
    await run.flush()
    if os.fork():
        os._exit(0)  # the owner is gone; its child works on runs of its own
    async def own(task):
        await anyio.Path(sys.argv[2], "begun").touch()
        while not await anyio.Path(sys.argv[2], "over").exists():
            await anyio.sleep(0.01)
    child = Agent(own, store=sys.argv[1], durability=Durability(lease_s=0.3))
    import threading
    thread = threading.Thread(target=lambda: child.run_sync("child", run_id="child"))
    thread.start()
    thread.join()
    pathlib.Path(sys.argv[2], "ended").touch()
    os._exit(0)

agent = Agent(works, store=sys.argv[1], durability=Durability(lease_s=0.3), name="works")
anyio.run(lambda: agent.run("task", run_id="run-1"))
"""


def test_a_forked_child_does_not_keep_the_lease_of_its_parents_run(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    root = Path(triage.__file__).parents[1]
    command = [sys.executable, "-c", FORKED, url, str(tmp_path)]
    subprocess.run(command, check=True, cwd=root, timeout=60)

    async def claim() -> int:
        store = SQLiteStore(str(tmp_path / "runs.db"))
        try:
            await there("begun")
            while True:
                try:
                    return (await store.claim(RUN, lease_s=1)).epoch
                except triage.core.errors.RunBusy:
                    await anyio.sleep(0.05)
        finally:
            await anyio.Path(tmp_path, "over").touch()
            await there("ended")
            await store.close()

    async def there(name: str) -> None:
        while not await anyio.Path(tmp_path, name).exists():
            await anyio.sleep(0.01)

    assert anyio.run(claim) == 1


# Calls: the start is durable before the body runs, the result before it returns -------------------
class Watched(MemoryStore):
    """Keeps what another process would find; refuses what it is told to."""

    durable = True

    def __init__(self) -> None:
        super().__init__()
        self.stored: list[Event] = []
        self.refuses: type[Any] | None = None

    def submit(
        self,
        run_id: str,
        events: Sequence[Event],
        *,
        at: int,
        epoch: int,
        lease_s: float | None,
        done: Callable[[BaseException | None], None],
    ) -> None:
        new = list(events)
        if self.refuses is not None and any(isinstance(event, self.refuses) for event in new):
            done(triage.core.StoreError("disk is gone"))
            return
        self.stored += new
        super().submit(run_id, new, at=at, epoch=epoch, lease_s=lease_s, done=done)

    def has(self, kind: type[Any], outcome: str | None = None) -> bool:
        return any(
            isinstance(event, kind) and (outcome is None or event.outcome == outcome)
            for event in self.stored
        )


@table("effect", ["once", "unknown", "read"])
@table("way", ["async", "thread", "sync agent"])
async def test_the_start_is_durable_before_the_body_and_the_result_before_the_return(
    effect: str, way: str
) -> None:
    store = Watched()
    started: list[bool] = []

    def note() -> None:
        started.append(store.has(CallStarted))

    async def note_async() -> None:
        note()

    act: Any = triage.tool(effect=effect)(note_async if way == "async" else note)

    async def works(task: str, *, run: Run) -> None:
        await (act() if way == "async" else run.call(act))
        assert store.has(CallFinished, "done")

    def works_sync(task: str) -> None:
        act()
        assert store.has(CallFinished, "done")

    await Agent(works_sync if way == "sync agent" else works, store=store).run("t")
    assert started == [True] or effect == "read"


@table("mode", ["attempt", "exit"])
async def test_other_modes_do_not_wait_for_the_store(mode: Any) -> None:
    store = Watched()
    seen: list[bool] = []

    @triage.tool(effect="once")
    async def act() -> None:
        pass

    async def works(task: str) -> None:
        await act()
        seen.append(store.has(CallFinished))

    await Agent(works, store=store, durability=Durability(mode=mode)).run("t")
    assert seen == [False]


@table(("mode", "kept"), [("step", True), ("attempt", True), ("exit", False)])
async def test_what_an_attempt_did_is_stored_before_its_failure_is_thought_about(
    mode: Any, *, kept: bool
) -> None:
    store = Watched()
    seen: list[tuple[str, bool]] = []

    class Thinks(Says):
        def classify(self, trajectory: Any, task: Any) -> Any:
            seen.append(("diagnosed", store.has(CallFinished)))
            return super().classify(trajectory, task)

    def decides(context: FailureContext) -> Escalate:
        seen.append(("decided", store.has(AttemptFailed)))
        return Escalate()

    @triage.tool(effect="once")
    async def act() -> None:
        pass

    async def works(task: str) -> None:
        await act()
        raise ConnectionError("down")

    agent = Agent(
        works, decides, classifier=Thinks(), store=store, durability=Durability(mode=mode)
    )
    await escalation_of(agent.run("t"))
    assert seen == [("diagnosed", kept), ("decided", kept)]


async def test_what_cannot_be_written_down_first_does_not_run() -> None:
    store = Watched()
    store.refuses = CallStarted
    did: list[str] = []

    @triage.tool(effect="once")
    async def act() -> None:
        did.append("act")

    async def works(task: str, *, run: Run) -> None:
        try:
            await act()
        except StoreError:
            did.append("refused")
            raise

    with pytest.raises(StoreError, match="disk is gone"):
        await Agent(works, store=store).run("t")
    assert did == ["refused"]


async def test_a_run_that_may_go_on_without_its_store_does() -> None:
    store = Watched()
    store.refuses = CallStarted
    did: list[str] = []

    @triage.tool(effect="once")
    async def act() -> str:
        did.append("act")
        return "done"

    async def works(task: str) -> str:
        return await act()

    durability = Durability(on_store_error="continue")
    assert await Agent(works, store=store, durability=durability).run("t") == "done"
    assert did == ["act"]


@table("action", [Escalate(), Suspend("go on?")])
@table("refused", [CallStarted, AttemptFailed])
async def test_what_ends_a_run_that_went_on_without_its_store_says_so(
    action: Action, refused: type[Any]
) -> None:
    store = Watched()
    store.refuses = refused

    @triage.tool(effect="once")
    async def act() -> None:
        pass

    async def works(task: str) -> None:
        await act()
        raise ConnectionError("late")

    durability = Durability(on_store_error="continue")
    agent = Agent(works, FailurePolicy(default=action), store=store, durability=durability)
    with pytest.raises((TriageEscalationError, TriageSuspendedError)) as caught:
        await agent.run("t")
    assert "the journal was not stored: StoreError: disk is gone" in str(caught.value.__notes__)


class Slow(Watched):
    """Keeps the first events of a kind when it is told to."""

    def __init__(self, kind: type[Any]) -> None:
        super().__init__()
        self.kind = kind
        self.held: list[Callable[[], None]] = []

    def submit(self, run_id: str, events: Sequence[Event], **options: Any) -> None:
        new = list(events)
        if not any(isinstance(event, self.kind) for event in new) or self.held:
            super().submit(run_id, new, **options)
            return
        self.held.append(lambda: super(Slow, self).submit(run_id, new, **options))


@table("effect", ["once", "read"])
async def test_no_call_returns_before_its_result_is_durable(effect: str) -> None:
    store = Slow(CallFinished)
    returned: list[str] = []

    @triage.tool(effect=effect)
    async def act() -> str:
        return "done"

    async def works(task: str) -> None:
        returned.append(await act())

    async with anyio.create_task_group() as group:
        group.start_soon(Agent(works, store=store).run, "t")
        while not store.held:
            await anyio.lowlevel.checkpoint()
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        before = list(returned)
        store.held[0]()
    assert (before, returned) == ([], ["done"])


async def test_a_call_that_is_cancelled_before_it_runs_is_in_no_doubt() -> None:
    store = Slow(CallStarted)
    did: list[str] = []

    @triage.tool(effect="once")
    async def act() -> str:
        did.append("act")
        return "done"

    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            async with anyio.create_task_group() as group:
                group.start_soon(act)
                while not store.held:
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            store.held[0]()
            raise ConnectionError("late")
        return await act()

    assert await Agent(works, store=store, **recovers(Retry())).run("t") == "done"
    assert did == ["act"]
    assert store.has(CallFinished, "not_attempted")


# What a process that went away has left -----------------------------------------------------------
def left(database: Path, copy: Path) -> None:
    """Keep what a crash would leave now."""
    copy.parent.mkdir()
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


class Bank:
    """Is left in the middle of its first payment: what the store holds then is what a crash leaves."""

    def __init__(self, folder: Path, *, keyed: bool) -> None:
        self.paid: list[str] = []
        self.folder = folder
        self.keyed = keyed
        self.pay: Any = triage.tool(effect="once", name="pay")(self._pay)

    async def _pay(self, cents: int) -> str:
        first = not self.paid
        self.paid.append(triage.current_call().idempotency_key if self.keyed else "paid")
        if first:
            await triage.current_run().flush()
            database, copy = (self.folder / name / "runs.db" for name in ("first", "left"))
            await anyio.to_thread.run_sync(left, database, copy)
        return "receipt"

    async def works(self, task: str) -> str:
        result: str = await self.pay(100)
        return result

    async def recovered(self, **options: Any) -> Any:
        """The run in the process that finds what was left."""
        for folder in ("first", "left"):
            (self.folder / folder).mkdir(exist_ok=True)
            store = SQLiteStore(self.folder / folder / "runs.db")
            agent = Agent(self.works, store=store, **options)
            try:
                if folder == "left":
                    return await agent.recover("run")
                assert await agent.run("t", run_id="run") == "receipt"
            finally:
                await store.close()
        raise AssertionError


async def test_a_call_that_was_cut_off_is_asked_about(tmp_path: Path) -> None:
    bank = Bank(tmp_path, keyed=False)
    with pytest.raises(TriageSuspendedError, match=r'did pay with \{"cents": 100\} happen'):
        await bank.recovered()
    assert bank.paid == ["paid"]


async def test_a_call_that_was_cut_off_may_be_repeated_where_its_tool_had_taken_the_key(
    tmp_path: Path,
) -> None:
    bank = Bank(tmp_path, keyed=True)
    assert await bank.recovered() == "receipt"
    assert len(bank.paid) == 2
    assert len(set(bank.paid)) == 1


async def test_a_call_that_was_cut_off_follows_the_choice_made(tmp_path: Path) -> None:
    bank = Bank(tmp_path, keyed=False)
    assert await bank.recovered(durability=Durability(on_in_doubt="rerun")) == "receipt"
    assert bank.paid == ["paid", "paid"]

    bank = Bank(tmp_path / "other", keyed=False)
    bank.folder.mkdir()
    with pytest.raises(TriageEscalationError, match="did pay with"):
        await bank.recovered(durability=Durability(on_in_doubt="fail"))
    assert bank.paid == ["paid"]


async def test_a_sync_read_in_the_event_loop_holds_nobody_up(tmp_path: Path) -> None:
    @triage.tool(effect="read")
    def look() -> int:
        return 1

    async def works(task: str) -> int:
        return look()

    assert await Agent(works, store=Watched(), **recovers(Escalate())).run("t") == 1
