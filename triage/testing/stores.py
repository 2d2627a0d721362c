"""What every store must do, as checks that run against yours.

    @pytest.mark.parametrize("check", store_checks, ids=lambda check: check.__name__)
    async def test_my_store_keeps_the_contract(check):
        await check(MyStore())

`await store_contract(MyStore)` runs them all. Every check takes a store that holds no runs, raises
AssertionError where a promise is broken, and runs under asyncio and trio.
"""

from __future__ import annotations

import inspect
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
from msgspec.structs import replace

from triage.core.actions import Resume
from triage.core.diagnosis import Diagnosis
from triage.core.errors import DeadLetter, RunBusy, RunOver, StaleWriter, UnknownRun, UsageError
from triage.core.events import (
    AttemptFailed,
    AttemptStarted,
    CallFinished,
    CallStarted,
    CompensatorRan,
    Event,
    RunFinished,
    RunRecovered,
    RunResumed,
    RunStarted,
    RunSuspended,
    StateUpdated,
    StepRecorded,
)
from triage.core.failures import ErrorInfo
from triage.core.steps import Step
from triage.core.taxonomy import FailureType
from triage.stores.base import Claim, RunInfo, Store

__all__ = ["store_checks", "store_contract"]

Check = Callable[[Store], Awaitable[None]]
_checks: list[Check] = []


def check(function: Check) -> Check:
    """Add a check to those that a store must pass."""
    _checks.append(function)
    return function


LEASE = 3600.0
"""Seconds: a lease that outlives the check."""
OVER = 1e-6
"""Seconds: a lease that has ended when the next call comes."""


def promise(kept: object, text: str) -> None:
    """Raise AssertionError with the promise that is broken, also where `assert` is switched off."""
    if not kept:
        raise AssertionError(text)


async def refused(kind: type[BaseException], text: str, tried: Awaitable[Any]) -> Any:
    """What was raised, which must be of this kind."""
    try:
        await tried
    except kind as error:
        return error
    raise AssertionError(f"{text}: {kind.__name__} was expected, nothing was raised")


class Written:
    """A run as its writer sees it: makes events with the right positions, and appends them."""

    def __init__(self, store: Store, *, agent: str = "agent", parent: str | None = None) -> None:
        self.store = store
        self.run_id = uuid.uuid4().hex
        self.events: list[Event] = []
        self.epoch = 0
        self._agent = agent
        self._parent = parent

    def started(self) -> RunStarted:
        return RunStarted(**self.position(), agent=self._agent, task="task", parent=self._parent)

    def attempt(self) -> AttemptStarted:
        return AttemptStarted(**self.position(), attempt=1)

    def step(self, output: Any = "ok", ahead: int = 0) -> StepRecorded:
        """The next event, or one `ahead` of it: a step with this output."""
        at = self.position(ahead)
        seq = at["seq"]
        step = Step(action="look", tool_called="look", tool_input={"n": seq}, tool_output=output)
        return StepRecorded(**at, attempt=1, index=seq, step=step)

    def suspended(self, token: str, ahead: int = 0) -> RunSuspended:
        """The next event: the run waits for the answer with this token."""
        at = self.position(ahead)
        return RunSuspended(**at, attempt=1, token_digest=token, question="Go on?")

    def resumed(self, ahead: int = 0) -> RunResumed:
        """The next event: it was answered."""
        return RunResumed(**self.position(ahead), attempt=1, action=Resume("yes"))

    def finished(self, status: str = "done", ahead: int = 0) -> RunFinished:
        """The next event: the run ends."""
        return RunFinished(**self.position(ahead), status=status, result="result")

    def position(self, ahead: int = 0) -> dict[str, Any]:
        """What every event says of where it stands: as the next one, or one `ahead` of it."""
        return {"run_id": self.run_id, "seq": len(self.events) + ahead, "time": time.time()}

    async def append(self, *events: Event, lease_s: float | None = None) -> None:
        """Append the next events as the run's owner."""
        at = len(self.events)
        await self.store.append(self.run_id, events, at=at, epoch=self.epoch, lease_s=lease_s)
        self.events += events

    async def begin(self, *, lease_s: float | None = None) -> Written:
        """Append the first event."""
        await self.append(self.started(), lease_s=lease_s)
        return self

    async def claim(
        self, *, lease_s: float = LEASE, force: bool = False, revive: bool = False
    ) -> None:
        """Take the run over and write as its new owner from now on."""
        claim = await self.store.claim(self.run_id, lease_s=lease_s, force=force, revive=revive)
        promise(claim.epoch == self.epoch + 1, "a claim raises the epoch by one")
        promise(claim.events == len(self.events), "a claim says the journal's length")
        self.epoch = claim.epoch

    async def info(self) -> RunInfo:
        """The run as the store shows it."""
        found = await self.store.info(self.run_id)
        if found is None:
            raise AssertionError("a run that was appended to is known")
        return found

    async def status(self, expected: str) -> None:
        found = (await self.info()).status
        promise(found == expected, f"the status is {expected}, not {found}")

    async def stands(self, events: Sequence[Event] | None = None) -> None:
        """The journal is exactly what was appended."""
        found = await self.store.read(self.run_id)
        expected = self.events if events is None else list(events)
        promise(
            found == expected, f"the journal has {len(found)} events, {len(expected)} are right"
        )


@check
async def a_store_has_every_method(store: Store) -> None:
    promise(isinstance(store, Store), "it has the methods of `Store`")


@check
async def what_is_appended_is_read(store: Store) -> None:
    run = await Written(store).begin()
    await run.append(run.attempt())
    await run.append(run.step(), run.step({"deep": [1, 2.5, None, True]}, ahead=1))
    await run.stands()
    for after in range(-1, len(run.events) + 1):
        found = await store.read(run.run_id, after)
        promise(found == run.events[after + 1 :], f"read(after={after}) gives what is behind it")


@check
async def an_unknown_run_has_no_events(store: Store) -> None:
    for run_id in (
        "nobody",
        "' OR 1=1 --",
        "../../etc/passwd",
        "a\0b",
        "\ud800",
        "",
        "%",
        "*",
        "?",
    ):
        promise(await store.read(run_id) == [], f"run {run_id!r} has no events")
        promise(await store.info(run_id) is None, f"run {run_id!r} is not known")
        promise(await store.find(run_id) is None, f"nobody waits with {run_id!r}")


@check
async def a_run_begins_at_its_start(store: Store) -> None:
    run = Written(store)
    for at, epoch in ((1, 0), (0, 1), (7, 3)):
        tried = store.append(run.run_id, [run.started()], at=at, epoch=epoch)
        await refused(StaleWriter, f"position {at} of epoch {epoch} of a new run", tried)
    promise(await store.info(run.run_id) is None, "a refused append leaves no run")


@check
async def an_append_elsewhere_is_stale(store: Store) -> None:
    run = await Written(store).begin()
    await run.append(run.step(1), run.step(2, ahead=1))
    for at in (0, 1, 2, 4, 100):
        tried = store.append(run.run_id, [run.step("other")], at=at, epoch=0)
        await refused(StaleWriter, f"position {at} of a journal with 3 events", tried)
    await run.stands()


@check
async def an_append_of_another_epoch_is_stale(store: Store) -> None:
    run = await Written(store).begin()
    await run.claim()
    for epoch in (0, 2, 9):
        tried = store.append(run.run_id, [run.step()], at=1, epoch=epoch)
        await refused(StaleWriter, f"epoch {epoch} while 1 is the newest", tried)
    await run.append(run.step())
    await run.stands()


@check
async def an_append_that_comes_again_is_written_once(store: Store) -> None:
    run = await Written(store).begin()
    first = [run.step(1), run.step(2, ahead=1)]
    await run.append(*first)
    await store.append(run.run_id, first, at=1, epoch=0)
    await run.stands()
    await run.append(run.step(3))
    await store.append(run.run_id, first, at=1, epoch=0)
    await run.stands()
    await store.append(run.run_id, run.events[:1], at=0, epoch=0)
    await run.stands()
    await run.claim()
    tried = store.append(run.run_id, first, at=1, epoch=0)
    await refused(StaleWriter, "an append that comes again from an owner before", tried)


@check
async def one_of_many_writers_wins(store: Store) -> None:
    run = await Written(store).begin()
    won: list[Event] = []

    async def write(number: int) -> None:
        event = run.step(number)
        try:
            await store.append(run.run_id, [event], at=1, epoch=0)
        except StaleWriter:
            return
        won.append(event)

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(write, number)
    promise(len(won) == 1, f"{len(won)} of 20 writers wrote at one position")
    await run.stands([*run.events, *won])


@check
async def a_stale_append_does_not_fail_its_neighbours(store: Store) -> None:
    runs = [await Written(store).begin() for _ in range(10)]
    outcomes: dict[int, bool] = {}

    async def write(number: int, run: Written) -> None:
        at = 1 if number % 2 else 5
        try:
            await store.append(run.run_id, [run.step(number)], at=at, epoch=0)
            outcomes[number] = True
        except StaleWriter:
            outcomes[number] = False

    async with anyio.create_task_group() as group:
        for number, run in enumerate(runs):
            group.start_soon(write, number, run)
    promise(outcomes == {n: bool(n % 2) for n in range(10)}, "the right ones are written")
    for number, run in enumerate(runs):
        length = len(await store.read(run.run_id))
        promise(length == 1 + number % 2, "a refused append leaves nothing, a good one stands")


@check
async def many_runs_are_written_at_once(store: Store) -> None:
    runs = [Written(store) for _ in range(50)]

    async def live(run: Written) -> None:
        await run.begin(lease_s=LEASE)
        for number in range(6):
            await run.append(run.step(number), lease_s=LEASE)
        await run.append(run.finished())

    async with anyio.create_task_group() as group:
        for run in runs:
            group.start_soon(live, run)
    for run in runs:
        await run.stands()
        await run.status("done")


@check
async def a_later_change_does_not_reach_the_journal(store: Store) -> None:
    run = await Written(store).begin()
    values: dict[str, Any] = {"list": [1]}
    event = StateUpdated(run.run_id, 1, 1.0, 1, {"list": [1]})
    told: list[BaseException | None] = []
    done = threading.Event()

    def tell(error: BaseException | None) -> None:
        told.append(error)
        done.set()

    given = replace(event, values=values)
    store.submit(run.run_id, (given,), at=1, epoch=0, lease_s=None, done=tell)
    await anyio.to_thread.run_sync(done.wait)
    found = await store.read(run.run_id, 0)
    promise(found == [event] and told == [None], "what was submitted is what is read")


@check
async def any_value_comes_back(store: Store) -> None:
    run = await Written(store).begin()
    values: tuple[Any, ...] = (
        "a\0b", "\ud800 alone", "\u2028 ü 漢 🙂", "'; DROP TABLE runs; --", 2**70, -1e308, "",
        {"": {"$triage": "blob", "digest": "0" * 64}}, [[[[[[]]]]]], '\n\r\t|\\"',
    )  # fmt: skip
    for value in values:
        await run.append(run.step(value))
    await run.stands()


@check
async def large_values_come_back(store: Store) -> None:
    big = {"rows": [{"name": f"row {number}", "text": "x" * 50} for number in range(2_000)]}
    one, two = await Written(store).begin(), await Written(store).begin()
    for run in (one, two):
        await run.append(
            run.step(big), run.step("y" * 100_000, ahead=1), run.step("small", ahead=2)
        )
        await store.append(run.run_id, run.events[1:], at=1, epoch=0)
        await run.stands()
    await one.append(one.finished())
    promise(await store.prune(keep=0) == 1, "one run had finished")
    await two.stands()
    promise(await store.read(one.run_id) == [], "a run that was removed is gone")


@check
async def submitted_appends_keep_their_order(store: Store) -> None:
    run = await Written(store).begin()
    events = [run.step(number, ahead=number) for number in range(50)]
    told: list[BaseException | None] = []
    done = threading.Event()

    def tell(error: BaseException | None) -> None:
        told.append(error)
        if len(told) == len(events):
            done.set()

    def submit_all() -> None:
        for event in events:
            store.submit(run.run_id, [event], at=event.seq, epoch=0, lease_s=LEASE, done=tell)

    await anyio.to_thread.run_sync(submit_all)
    await anyio.to_thread.run_sync(done.wait)
    promise(told == [None] * len(events), "each `done` is called once, with None")
    await run.stands([*run.events, *events])
    lease = (await run.info()).lease_until
    promise(lease is not None, "a submitted append extends the lease")


@check
async def a_submitted_append_that_fails_says_so(store: Store) -> None:
    run = await Written(store).begin()
    told: list[BaseException | None] = []
    done = threading.Event()

    def tell(error: BaseException | None) -> None:
        told.append(error)
        if len(told) == 2:
            done.set()

    for at in (3, 4):
        store.submit(run.run_id, [run.step()], at=at, epoch=0, lease_s=None, done=tell)
    await anyio.to_thread.run_sync(done.wait)
    stale = all(isinstance(error, StaleWriter) for error in told)
    promise(stale and len(told) == 2, "`done` is called once for each, with StaleWriter")
    await run.stands()


@check
async def a_store_that_was_closed_opens_again(store: Store) -> None:
    run = await Written(store).begin()
    await store.close()
    await store.close()
    await run.append(run.step())
    await run.stands()


@check
async def who_is_taken_over_can_write_no_more(store: Store) -> None:
    run = await Written(store).begin(lease_s=OVER)
    await run.append(run.step())
    claim = await store.claim(run.run_id, lease_s=LEASE)
    promise(claim == Claim(epoch=1, events=2, claims=1), f"the first claim is {claim}")
    for late in (run.step("late"), run.suspended("token"), run.resumed(), run.finished()):
        await refused(StaleWriter, "an append of the owner before", run.append(late))
    tried = store.renew(run.run_id, epoch=0, lease_s=LEASE)
    await refused(StaleWriter, "a renewal of the owner before", tried)
    await refused(StaleWriter, "a release of the owner before", store.release(run.run_id, epoch=0))
    await run.stands()
    run.epoch = claim.epoch
    await run.append(run.step("mine"))
    await run.stands()


@check
async def a_lease_keeps_others_away(store: Store) -> None:
    run = await Written(store).begin(lease_s=LEASE)
    busy = await refused(RunBusy, "a lease lives", store.claim(run.run_id, lease_s=LEASE))
    promise(0 < busy.wait_s <= LEASE, "RunBusy says how long the lease lasts")
    promise((await run.info()).epoch == 0, "a refused claim changes nothing")
    await run.claim(force=True)
    await refused(RunBusy, "a new lease lives", store.claim(run.run_id, lease_s=LEASE))
    tried = store.claim(run.run_id, lease_s=LEASE, revive=True)
    await refused(RunBusy, "to revive is not to pass over a lease", tried)


@check
async def a_lease_ends_by_itself(store: Store) -> None:
    run = await Written(store).begin(lease_s=OVER)
    await run.claim(lease_s=OVER)
    await run.claim(lease_s=OVER)
    promise((await run.info()).claims == 2, "claims are counted")


@check
async def leases_are_on_the_clock_that_the_store_tells(store: Store) -> None:
    before = await store.now()
    run = await Written(store).begin(lease_s=LEASE)
    after = await store.now()
    lease = (await run.info()).lease_until or 0.0
    promise(before - 1 <= lease - LEASE <= after + 1, "a lease lasts so many seconds from now()")
    promise(before <= after, "the time goes on")


@check
async def a_run_without_a_lease_can_be_claimed(store: Store) -> None:
    run = await Written(store).begin()
    promise((await run.info()).lease_until is None, "there is no lease")
    await run.claim()
    promise((await run.info()).lease_until is not None, "a claim brings a lease")


@check
async def appends_and_renewals_extend_the_lease(store: Store) -> None:
    run = await Written(store).begin(lease_s=OVER)
    await run.append(run.step(), lease_s=LEASE)
    await refused(RunBusy, "an append extends the lease", store.claim(run.run_id, lease_s=LEASE))
    before = (await run.info()).lease_until or 0.0
    await run.append(run.step())
    promise((await run.info()).lease_until == before, "an append without lease_s leaves it")
    await store.renew(run.run_id, epoch=0, lease_s=2 * LEASE)
    promise(((await run.info()).lease_until or 0.0) > before, "a renewal extends it")
    await store.renew(run.run_id, epoch=0, lease_s=OVER)
    await run.claim()


@check
async def a_release_ends_the_lease_and_takes_back_the_claim(store: Store) -> None:
    run = await Written(store).begin(lease_s=LEASE)
    await store.release(run.run_id, epoch=0)
    for _ in range(5):
        await run.claim()
        promise((await run.info()).claims == 1, "a release takes back the claim")
        await store.release(run.run_id, epoch=run.epoch)
        await store.release(run.run_id, epoch=run.epoch)
    promise((await run.info()).claims == 0, "a release takes back one claim")
    await run.status("running")


@check
async def three_lost_owners_make_a_dead_letter(store: Store) -> None:
    run = await Written(store).begin(lease_s=OVER)
    for _ in range(3):
        await run.claim(lease_s=OVER)
    for force in (True, False):
        tried = store.claim(run.run_id, lease_s=LEASE, force=force)
        await refused(DeadLetter, "a fourth claim, whether the lease lives or not", tried)
        await run.status("dead_letter")
    letters = await store.runs("dead_letter")
    promise([info.run_id for info in letters] == [run.run_id], "a dead letter is listed")
    await refused(StaleWriter, "its last owner is fenced", run.append(run.step()))
    claim = await store.claim(run.run_id, lease_s=LEASE, revive=True)
    promise(claim.claims == 1, "of a dead letter that is revived, the claims count anew")
    run.epoch = claim.epoch
    await run.status("running")
    await run.append(run.finished())
    await run.status("done")


@check
async def a_suspension_forgives_the_claims(store: Store) -> None:
    run = await Written(store).begin(lease_s=OVER)
    for number in range(3):
        await run.claim(lease_s=OVER)
        await run.claim(lease_s=LEASE)
        await run.append(run.suspended(f"token-{run.run_id}-{number}"), lease_s=LEASE)
        info = await run.info()
        promise(info.claims == 0, "a suspension forgives the claims")
        promise(info.lease_until is None, "a suspended run has no lease")
        await run.claim(lease_s=OVER)
        await run.status("suspended")
        await run.append(run.resumed())
    await run.status("running")


def got_on(run: Written, ahead: int = 0) -> list[Event]:
    """Ends of work that nobody does again, each as the next event of the run, or one `ahead` of it."""
    at: dict[str, Any] = {**run.position(ahead), "attempt": 1}
    return [
        CallFinished(**at, key="look:1", outcome="done", result="found"),
        CallFinished(**at, key="look:1", outcome="done", exact=False, typed=True),
        CompensatorRan(**at, registered=0, name="undo", key="pay:1"),
        AttemptFailed(**at, error=None, diagnosis=Diagnosis(FailureType.UNKNOWN)),
    ]


def stood_still(run: Written) -> list[Event]:
    """What a run that dies again and again writes each time, each as the next event of the run."""
    at: dict[str, Any] = {**run.position(), "attempt": 1}
    error = ErrorInfo(type_name="OSError", message="late")
    return [
        run.attempt(),
        run.step(),
        CallStarted(**at, key="look:1", tool="look", effect="read"),
        CallFinished(**at, key="look:1", outcome="failed", error=error),
        CallFinished(**at, key="look:1", outcome="done", exact=False),
        CallFinished(**at, key="look:1", outcome="done", replayed=True),
        CompensatorRan(**at, registered=0, name="undo", key="pay:1", begins=True),
        CompensatorRan(**at, registered=0, name="undo", key="pay:1", error=error),
        RunRecovered(**at, epoch=1),
    ]


@check
async def only_claims_of_a_run_that_stands_still_are_counted(store: Store) -> None:
    run = await Written(store).begin(lease_s=OVER)
    for number in range(len(got_on(run))):
        for _ in range(3):
            await run.claim(lease_s=OVER)
        await run.append(got_on(run)[number], lease_s=OVER)
        promise((await run.info()).claims == 0, f"{run.events[-1]} forgives the claims")
    await run.claim(lease_s=OVER)
    for number in range(len(stood_still(run))):
        await run.append(stood_still(run)[number], lease_s=OVER)
        promise((await run.info()).claims == 1, f"{run.events[-1]} forgives no claims")
    await run.append(got_on(run)[0], run.step(ahead=1), lease_s=OVER)
    promise((await run.info()).claims == 0, "an end of work counts beside other events")
    await run.append(run.suspended(f"token-{run.run_id}"))
    await run.claim(lease_s=OVER)
    await run.append(run.resumed(), got_on(run, ahead=1)[0], lease_s=OVER)
    promise((await run.info()).claims == 0, "an end of work counts beside an answer")
    await run.status("running")


@check
async def a_run_inside_that_gets_on_counts_for_those_around_it(store: Store) -> None:
    outer = await Written(store).begin(lease_s=OVER)
    middle = await Written(store, parent=outer.run_id).begin(lease_s=OVER)
    inner = await Written(store, parent=middle.run_id).begin(lease_s=OVER)
    beside = await Written(store).begin(lease_s=OVER)

    async def claims() -> list[int]:
        return [(await run.info()).claims for run in (outer, middle, inner, beside)]

    for run in (outer, middle, beside):
        await run.claim(lease_s=OVER)
    await inner.append(got_on(inner)[0])
    promise(
        await claims() == [1, 1, 0, 1], "one that was begun anew says nothing of those around it"
    )
    await inner.claim(lease_s=OVER)
    await inner.append(inner.step())
    promise(await claims() == [1, 1, 1, 1], "one that stands still does not either")
    await inner.append(got_on(inner)[0])
    promise(await claims() == [0, 0, 0, 1], "one that was taken over and gets on does")
    await outer.append(outer.step())
    await outer.stands()
    stale = store.append(inner.run_id, got_on(inner), at=len(inner.events), epoch=0)
    await outer.claim(lease_s=OVER)
    await refused(StaleWriter, "an append of an owner before", stale)
    promise(await claims() == [1, 0, 0, 1], "who may not write forgives nothing")
    await outer.append(outer.finished())
    await inner.append(got_on(inner)[0])
    await outer.status("done")


@check
async def renewing_what_waits_or_has_ended_does_nothing(store: Store) -> None:
    run = await Written(store).begin(lease_s=LEASE)
    await run.append(run.suspended(f"token-{run.run_id}"))
    await store.renew(run.run_id, epoch=0, lease_s=LEASE)
    promise((await run.info()).lease_until is None, "a suspended run gets no lease")
    await run.claim()
    await run.append(run.resumed(), run.finished(ahead=1))
    await store.renew(run.run_id, epoch=run.epoch, lease_s=LEASE)
    promise((await run.info()).lease_until is None, "a finished run gets no lease")


@check
async def a_run_that_has_ended_cannot_be_claimed(store: Store) -> None:
    run = await Written(store).begin()
    await run.append(run.finished("aborted"))
    for force in (False, True):
        tried = store.claim(run.run_id, lease_s=LEASE, force=force)
        await refused(RunOver, "a claim of a finished run", tried)
    await run.status("aborted")


@check
async def an_unknown_run_cannot_be_claimed(store: Store) -> None:
    for force in (False, True):
        tried = store.claim("nobody", lease_s=LEASE, force=force)
        await refused(UnknownRun, "a claim of an unknown run", tried)
    await refused(UnknownRun, "a renewal of one", store.renew("nobody", epoch=0, lease_s=LEASE))
    await refused(UnknownRun, "a release of one", store.release("nobody", epoch=0))
    promise(await store.runs() == [], "nothing was made of it")


@check
async def one_of_many_claims_wins(store: Store) -> None:
    run = await Written(store).begin()
    won: list[Claim] = []

    async def take() -> None:
        try:
            won.append(await store.claim(run.run_id, lease_s=LEASE))
        except RunBusy:
            return

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(take)
    promise(won == [Claim(1, 1, 1)], f"{len(won)} of 20 claims won")


@check
async def the_status_follows_from_the_events(store: Store) -> None:
    run = await Written(store).begin(lease_s=LEASE)
    await run.status("running")
    await run.append(run.step(), run.suspended("digest", ahead=1))
    await run.status("suspended")
    await run.append(run.step())
    await run.status("suspended")
    await run.append(run.resumed(), run.step(ahead=1))
    await run.status("running")
    await run.append(run.finished("escalated"))
    await run.status("escalated")
    at_once = Written(store)
    await at_once.append(at_once.started(), at_once.finished("done", ahead=1), lease_s=LEASE)
    await at_once.status("done")
    promise((await at_once.info()).lease_until is None, "a finished run has no lease")


@check
async def a_token_is_found_while_its_question_waits(store: Store) -> None:
    run, other = await Written(store).begin(), await Written(store).begin()
    await run.append(run.suspended("first"))
    promise(await store.find("first") == run.run_id, "the run that waits is found")
    promise(await store.find("second") is None, "no other token finds it")
    await run.append(run.resumed())
    promise(await store.find("first") is None, "an answered question is found no more")
    await run.append(run.suspended("second"))
    promise(await store.find("first") is None, "an old token never meets a new question")
    promise(await store.find("second") == run.run_id, "the new one does")
    await other.append(other.suspended("third"), other.resumed(ahead=1), other.step(ahead=2))
    promise(await store.find("third") is None, "a question answered in its batch is not found")
    await run.append(run.finished("cancelled"))
    promise(await store.find("second") is None, "a finished run waits for nothing")


@check
async def a_question_is_answered_once(store: Store) -> None:
    run = await Written(store).begin()
    await run.append(run.suspended("token"))
    answer, late = run.resumed(), run.resumed()
    await run.append(answer)
    tried = store.append(run.run_id, [late], at=2, epoch=0)
    await refused(StaleWriter, "a second answer", tried)
    await run.stands()


@check
async def runs_are_listed_newest_first(store: Store) -> None:
    runs = [
        await Written(store, agent=agent, parent=parent).begin()
        for agent, parent in (("a", None), ("b", "above"), ("a", "above"), ("it's\0 \ud800", None))
    ]
    await runs[0].append(runs[0].finished())
    ids = [run.run_id for run in runs]

    async def listed(expected: list[int], **wanted: Any) -> None:
        found = [info.run_id for info in await store.runs(**wanted)]
        promise(found == [ids[at] for at in expected], f"runs({wanted}) gives {found}")

    await listed([3, 2, 1, 0])
    await listed([3, 2, 1], status="running")
    await listed([0], status="done")
    await listed([], status="suspended")
    await listed([2, 0], agent="a")
    await listed([3], agent="it's\0 \ud800")
    await listed([2, 1], parent="above")
    await listed([2], parent="above", agent="a", status="running")
    for hostile in ("' OR 1=1 --", "\0", "\ud800", "%", "*"):
        await listed([], status=hostile)
        await listed([], agent=hostile)
        await listed([], parent=hostile)
    for limit in (0, 1, 2, 9):
        found = [info.run_id for info in await store.runs(limit=limit)]
        promise(found == ids[::-1][:limit], f"runs(limit={limit}) gives the newest of them")


@check
async def a_listing_tells_of_a_run(store: Store) -> None:
    run = await Written(store, agent="it's\0", parent="above").begin()
    await run.append(run.step())
    expected = RunInfo(
        run.run_id, "it's\0", "running", run.events[0].time, run.events[1].time, 2, parent="above"
    )
    promise(await run.info() == expected, f"info gives {await run.info()}, not {expected}")
    promise(await store.runs() == [expected], "runs gives the same")


@check
async def pruning_removes_finished_runs_only(store: Store) -> None:
    runs = [await Written(store).begin() for _ in range(6)]
    await runs[0].append(runs[0].suspended("waits"))
    for run in runs[2:]:
        await run.append(run.finished())
    promise(await store.prune() == 0, "with neither bound nothing is removed")
    promise(await store.prune(older_than=3600) == 0, "none finished an hour ago")
    promise(await store.prune(keep=4) == 0, "there are four finished ones")
    promise(await store.prune(keep=3) == 1, "the oldest one goes")
    promise(await store.info(runs[2].run_id) is None, "it is gone")
    promise(await store.prune(older_than=0, keep=2) == 1, "both bounds: what neither keeps")
    promise(await store.prune(older_than=3600, keep=0) == 0, "both bounds: the first keeps all")
    left = [info.run_id for info in await store.runs()]
    expected = [run.run_id for run in (*runs[4:], *runs[:2])]
    promise(sorted(left) == sorted(expected), "the others stay")
    promise(await store.prune(older_than=0) == 2, "all finished ones go")
    promise(await store.find("waits") == runs[0].run_id, "a suspended run is never removed")
    await runs[0].stands()
    await runs[1].append(runs[1].step())


@check
async def a_removed_id_may_be_used_again(store: Store) -> None:
    run = await Written(store).begin()
    await run.append(run.finished())
    promise(await store.prune(keep=0) == 1, "the finished run goes")
    again = Written(store)
    again.run_id = run.run_id
    await again.begin()
    await again.append(again.step())
    await again.stands()
    await again.status("running")


@check
async def bounds_that_mean_nothing_are_refused(store: Store) -> None:
    run = await Written(store).begin()
    await refused(UsageError, "a negative age", store.prune(older_than=-1))
    await refused(UsageError, "a negative count", store.prune(keep=-1))
    for lease_s in (0, -1, float("nan"), float("inf")):
        await refused(UsageError, "no lease", store.claim(run.run_id, lease_s=lease_s))
        await refused(UsageError, "no lease", store.renew(run.run_id, epoch=0, lease_s=lease_s))
    promise((await run.info()).epoch == 0, "nothing was changed")


store_checks: tuple[Check, ...] = tuple(_checks)
"""All checks, each named for its promise."""


async def store_contract(new: Callable[[], Store | Awaitable[Store]]) -> None:
    """Run every check, each against a store of its own, and close it.

    new: gives a store that holds no runs; may be async. Raises AssertionError for the first promise
    that is broken, with the check's name.
    """
    for check in store_checks:
        opened = new()
        store = await opened if inspect.isawaitable(opened) else opened
        try:
            await check(store)
        except AssertionError as error:
            name = getattr(check, "__name__", "")
            raise AssertionError(f"{name}: {error}") from error
        finally:
            await store.close()
