"""What every store must do, as checks that run against yours.

    @pytest.mark.parametrize("check", store_checks, ids=lambda check: check.__name__)
    async def test_my_store_keeps_the_contract(check):
        await check(MyStore())

`await store_contract(MyStore)` runs them all. Every check takes a store that holds no runs, raises
AssertionError where a promise is broken, and runs under asyncio and trio.

Most checks are rows of `PLAYS`: what writers of runs do, one move after another, and what must hold then.
Checks with many tasks, or with values that a row cannot spell, are functions.
"""

from __future__ import annotations

import inspect
import re
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio

from triage.core import errors, events
from triage.core.actions import Resume
from triage.core.diagnosis import Diagnosis
from triage.core.events import Event
from triage.core.failures import ErrorInfo
from triage.core.steps import Step
from triage.core.taxonomy import FailureType
from triage.stores.base import Claim, RunInfo, Store

__all__ = ["store_checks", "store_contract"]

Check = Callable[[Store], Awaitable[None]]
LEASE = 3600.0
"""Seconds: a lease that outlives the check."""
OVER = 1e-6
"""Seconds: a lease that has ended when the next call comes."""


def promise(kept: object, text: str) -> None:
    """Raise AssertionError with the promise that is broken, also where `assert` is switched off."""
    if not kept:
        raise AssertionError(text)


async def refused(kind: type[BaseException], text: str, tried: Awaitable[Any]) -> Any:
    """Return the error that was raised, which must be of this kind."""
    try:
        await tried
    except kind as error:
        return error
    raise AssertionError(f"{text}: {kind.__name__} was expected, nothing was raised")


def _of(kind: Callable[..., Event], **fields: Any) -> Callable[..., Event]:
    return lambda at, _: kind(**at, attempt=1, **fields)


_ERROR = ErrorInfo(type_name="OSError", message="late")
_CALL: dict[str, Any] = {"key": "look:1", "outcome": "done"}
_UNDO: dict[str, Any] = {"registered": 0, "name": "undo", "key": "pay:1"}
PROGRESS: dict[str, Callable[..., Event]] = {
    "call": _of(events.CallFinished, **_CALL, result="found"),
    "typed": _of(events.CallFinished, **_CALL, exact=False, typed=True),
    "undone": _of(events.CompensatorRan, **_UNDO),
    "failed": _of(events.AttemptFailed, error=None, diagnosis=Diagnosis(FailureType.UNKNOWN)),
}
"""Ends of work that nobody does again, by the name that a row has for them."""
NO_PROGRESS: dict[str, Callable[..., Event]] = {
    "attempt": _of(events.AttemptStarted),
    "step": _of(events.StepRecorded, index=0, step=Step(action="look", tool_output="ok")),
    "begun": _of(events.CallStarted, key="look:1", tool="look", effect="read"),
    "call_failed": _of(events.CallFinished, key="look:1", outcome="failed", error=_ERROR),
    "inexact": _of(events.CallFinished, **_CALL, exact=False),
    "replayed": _of(events.CallFinished, **_CALL, replayed=True),
    "undoing": _of(events.CompensatorRan, **_UNDO, begins=True),
    "undo_failed": _of(events.CompensatorRan, **_UNDO, error=_ERROR),
    "recovered": lambda at, _: events.RunRecovered(**at, attempt=1, epoch=1),
}
"""What a run that dies again and again writes each time."""
EVENTS: dict[str, Callable[..., Event]] = {
    **PROGRESS,
    **NO_PROGRESS,
    "suspend": lambda at, token: events.RunSuspended(
        **at, attempt=1, token_digest=token, question="Go on?"
    ),
    "resume": _of(events.RunResumed, action=Resume("yes")),
    "finish": lambda at, status: events.RunFinished(**at, status=status or "done", result="r"),
}


class Written:
    """A run as its writer sees it: makes events with the right positions, and appends them."""

    def __init__(self, store: Store, *, agent: str = "agent", parent: str | None = None) -> None:
        self.store = store
        self.run_id = uuid.uuid4().hex
        self.events: list[Event] = []
        self.epoch = 0
        self.agent = agent
        self.parent = parent

    def event(self, kind: str, ahead: int = 0) -> Event:
        """Make the next event, or one `ahead` of it. kind: `start`, or as in EVENTS, `finish:aborted`."""
        name, _, given = kind.partition(":")
        seq = len(self.events) + ahead
        at: dict[str, Any] = {"run_id": self.run_id, "seq": seq, "time": time.time()}
        if name == "start":
            return events.RunStarted(**at, agent=self.agent, task="task", parent=self.parent)
        return EVENTS[name](at, given)

    def step(self, output: Any, ahead: int = 0) -> events.StepRecorded:
        """Make a step with this output."""
        seq = len(self.events) + ahead
        step = Step(action="look", tool_called="look", tool_input={"n": seq}, tool_output=output)
        return events.StepRecorded(self.run_id, seq, time.time(), 1, seq, step)

    async def append(self, *made: Event, lease_s: float | None = None) -> None:
        """Append the next events as the run's owner."""
        at = len(self.events)
        await self.store.append(self.run_id, made, at=at, epoch=self.epoch, lease_s=lease_s)
        self.events += made

    async def begin(self, *, lease_s: float | None = None) -> Written:
        """Append the first event."""
        await self.append(self.event("start"), lease_s=lease_s)
        return self

    async def submit(self, *made: Event, at: int | None = None) -> list[BaseException | None]:
        """Submit events one by one, from a thread, at their positions; what each was told of its end."""
        told: list[BaseException | None] = []
        done = threading.Event()

        def tell(error: BaseException | None) -> None:
            told.append(error)
            if len(told) == len(made):
                done.set()

        def submit_all() -> None:
            for event in made:
                position = event.seq if at is None else at
                given: dict[str, Any] = {"epoch": 0, "lease_s": LEASE, "done": tell}
                self.store.submit(self.run_id, [event], at=position, **given)

        await anyio.to_thread.run_sync(submit_all)
        await anyio.to_thread.run_sync(done.wait)
        return told

    async def info(self) -> RunInfo:
        """Return the run as the store shows it."""
        found = await self.store.info(self.run_id)
        if found is None:
            raise AssertionError("a run that was appended to is known")
        return found

    async def stands(self, expected: Sequence[Event] | None = None) -> None:
        """The journal is exactly what was appended."""
        found = await self.store.read(self.run_id)
        wanted = self.events if expected is None else list(expected)
        promise(found == wanted, f"the journal has {len(found)} events, {len(wanted)} are right")


# Rows of moves ------------------------------------------------------------------------------------

NUMBERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("at", "epoch", "keep", "claims", "number"), int),
    **dict.fromkeys(("lease_s", "older_than"), float),
}
REFUSALS = {
    kind.__name__: kind
    for kind in (
        errors.DeadLetter, errors.RunBusy, errors.RunOver, errors.StaleWriter, errors.UnknownRun,
        errors.UsageError,
    )
}  # fmt: skip


class Play:
    """Plays a row: moves between `;`, each `run: verb words !Error`.

    run: the name of a run, `run` by default. A verb is a method of this class. Words with `=` are its
    options; `over` and `lease` stand for a lease that has ended, or lives. !Error: the move is refused so.
    At the end the journal of each run is what was appended.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.runs: dict[str, Written] = {}

    async def play(self, row: str) -> None:
        """Play all moves. Raises AssertionError with the move that broke a promise."""
        for move in filter(None, map(str.strip, row.split(";"))):
            try:
                await self._move(move)
            except (AssertionError, errors.StoreError) as error:
                raise AssertionError(f"{move}: {error}") from error
        for name, run in self.runs.items():
            try:
                await run.stands()
            except AssertionError as error:
                raise AssertionError(f"at the end of {name}: {error}") from error

    async def _move(self, move: str) -> None:
        done, _, error = move.partition(" !")
        name, _, rest = done.rpartition(": ")
        verb, *words = rest.split()
        options = {key: value for word in words if "=" in word for key, value in [word.split("=")]}
        given: dict[str, Any] = {key: NUMBERS[key](value) for key, value in options.items()}
        for word, value in (("over", OVER), ("lease", LEASE)):
            if word in words:
                words.remove(word)
                given["lease_s"] = value
        plain = [word for word in words if "=" not in word]
        run = self.runs.setdefault(name or "run", Written(self.store))
        tried = getattr(self, verb)(run, *plain, **given)
        await (refused(REFUSALS[error], "it went well", tried) if error else tried)

    async def inside(self, run: Written, outer: str) -> None:
        """The run is one inside another."""
        run.parent = self.runs[outer].run_id

    async def append(
        self, run: Written, *kinds: str, at: int | None = None, epoch: int | None = None,
        lease_s: float | None = None,
    ) -> None:  # fmt: skip
        """Append events of these kinds. at, epoch: None for those of the owner."""
        made = [run.event(kind, ahead) for ahead, kind in enumerate(kinds)]
        position = len(run.events) if at is None else at
        owner = run.epoch if epoch is None else epoch
        await self.store.append(run.run_id, made, at=position, epoch=owner, lease_s=lease_s)
        run.events += made

    async def repeat(self, run: Written, first: str, end: str, *, epoch: int | None = None) -> None:
        """Append the events from one position up to another once more."""
        made = run.events[int(first) : int(end)]
        owner = run.epoch if epoch is None else epoch
        await self.store.append(run.run_id, made, at=int(first), epoch=owner)

    async def claim(self, run: Written, *flags: str, lease_s: float = LEASE) -> None:
        """Take the run over and write as its new owner from now on. flags: `force`, `revive`."""
        given: dict[str, Any] = dict.fromkeys(flags, True)
        claim = await self.store.claim(run.run_id, lease_s=lease_s, **given)
        promise(claim.epoch > run.epoch, "a claim raises the epoch")
        promise(claim.events == len(run.events), "a claim says the journal's length")
        promise("revive" not in flags or claim.claims == 1, "claims count anew after a revival")
        run.epoch = claim.epoch

    async def renew(
        self, run: Written, *, epoch: int | None = None, lease_s: float = LEASE
    ) -> None:
        await self.store.renew(
            run.run_id, epoch=run.epoch if epoch is None else epoch, lease_s=lease_s
        )

    async def release(self, run: Written, *, epoch: int | None = None) -> None:
        await self.store.release(run.run_id, epoch=run.epoch if epoch is None else epoch)

    async def status(
        self, run: Written, status: str, *flags: str, claims: int | None = None,
        epoch: int | None = None,
    ) -> None:  # fmt: skip
        """The run is listed with this status. flags: `free` if it has no lease."""
        info = await run.info()
        promise(info.status == status, f"the status is {info.status}")
        listed = [one.run_id for one in await self.store.runs(status=status)]
        promise(run.run_id in listed, "it is listed by its status")
        promise("free" not in flags or info.lease_until is None, "it has no lease")
        promise(claims in (None, info.claims), f"there are {info.claims} claims")
        promise(epoch in (None, info.epoch), f"the epoch is {info.epoch}")

    async def claims(self, _run: Written, *wanted: str) -> None:
        """Runs have so many claims, each as `name:number`."""
        for one in wanted:
            name, _, number = one.partition(":")
            found = (await self.runs[name].info()).claims
            promise(found == int(number), f"there are {found} claims of {name}")

    async def unknown(self, run: Written) -> None:
        """The store knows no such run; its id may be used again."""
        run.events, run.epoch = [], 0
        promise(await self.store.info(run.run_id) is None, "it is not known")
        listed = [one.run_id for one in await self.store.runs()]
        promise(run.run_id not in listed, "it is not listed")

    async def find(self, _run: Written, token: str, name: str) -> None:
        """A token finds this run, or `nobody`."""
        found = await self.store.find(token)
        promise(
            found == (None if name == "nobody" else self.runs[name].run_id), f"found is {found}"
        )

    async def prune(self, _run: Written, *, number: int = 0, **bounds: Any) -> None:
        """Prune within these bounds removes so many runs."""
        found = await self.store.prune(**bounds)
        promise(found == number, f"{found} runs were removed")

    async def close(self, _run: Written) -> None:
        await self.store.close()


STALE = "!StaleWriter"
DIES = "claim over; claim over; claim over;"
PLAYS: dict[str, str] = {
    "a_run_begins_at_its_start": f"""
        append start at=1 {STALE}; append start epoch=1 {STALE}; append start at=7 epoch=3 {STALE};
        unknown""",
    "an_append_elsewhere_is_stale": "append start; append step step;"
    + "".join(f"append step at={at} {STALE};" for at in (0, 1, 2, 4, 100)),
    "an_append_of_another_epoch_is_stale": f"""
        append start; claim; append step epoch=0 {STALE}; append step epoch=2 {STALE};
        append step epoch=9 {STALE}; append step""",
    "an_append_that_comes_again_is_written_once": f"""
        append start; append step step; repeat 1 3; append step; repeat 1 3; repeat 0 1;
        claim; repeat 1 3 epoch=0 {STALE}""",
    "a_store_that_was_closed_opens_again": "append start; close; close; append step",
    "who_is_taken_over_can_write_no_more": f"""
        append start over; append step; claim; status running claims=1 epoch=1;
        append step epoch=0 {STALE}; append suspend:token epoch=0 {STALE};
        append resume epoch=0 {STALE}; append finish epoch=0 {STALE};
        renew epoch=0 {STALE}; release epoch=0 {STALE}; append step""",
    "a_lease_keeps_others_away": """
        append start lease; claim !RunBusy; status running epoch=0; claim force; claim !RunBusy;
        claim revive !RunBusy""",
    "a_lease_ends_by_itself": "append start over; claim over; claim over; status running claims=2",
    "a_release_ends_the_lease_and_takes_back_the_claim": "append start lease; release;"
    + 5 * "claim; status running claims=1; release; release;"
    + "status running claims=0",
    "three_lost_owners_make_a_dead_letter": f"""
        append start over; {DIES} claim force !DeadLetter; status dead_letter;
        claim !DeadLetter; status dead_letter; append step {STALE};
        claim revive; status running; append finish; status done""",
    "a_suspension_forgives_the_claims": "append start over;"
    + "".join(
        f"""claim over; claim; append suspend:{token} lease; status suspended free claims=0;
        claim over; status suspended; append resume;"""
        for token in ("one", "two", "three")
    )
    + "status running",
    "only_claims_of_a_run_that_stands_still_are_counted": "append start over;"
    + "".join(f"{DIES} append {kind} over; status running claims=0;" for kind in PROGRESS)
    + "claim over;"
    + "".join(f"append {kind} over; status running claims=1;" for kind in NO_PROGRESS)
    + """append call step over; status running claims=0; append suspend:token; claim over;
        append resume call over; status running claims=0""",
    # A run inside that was begun anew says nothing of those around it, nor does one that stands still.
    "a_run_inside_that_gets_on_counts_for_those_around_it": f"""
        outer: append start over; middle: inside outer; middle: append start over;
        inner: inside middle; inner: append start over; beside: append start over;
        outer: claim over; middle: claim over; beside: claim over;
        inner: append call; claims outer:1 middle:1 inner:0 beside:1;
        inner: claim over; inner: append step; claims outer:1 middle:1 inner:1 beside:1;
        inner: append call; claims outer:0 middle:0 inner:0 beside:1;
        outer: append step; outer: claim over; inner: append call epoch=0 {STALE};
        claims outer:1 middle:0 inner:0 beside:1;
        outer: append finish; inner: append call; outer: status done""",
    "renewing_what_waits_or_has_ended_does_nothing": """
        append start lease; append suspend:token; renew; status suspended free;
        claim; append resume finish; renew; status done free""",
    "a_run_that_has_ended_cannot_be_claimed": """
        append start; append finish:aborted; claim !RunOver; claim force !RunOver; status aborted""",
    "an_unknown_run_cannot_be_claimed": """
        claim !UnknownRun; claim force !UnknownRun; renew !UnknownRun; release !UnknownRun; unknown""",
    "the_status_follows_from_the_events": """
        append start lease; status running; append step suspend:token; status suspended;
        append step; status suspended; append resume step; status running;
        append finish:escalated; status escalated;
        other: append start finish lease; other: status done free""",
    "a_token_is_found_while_its_question_waits": """
        append start; append suspend:first; find first run; find second nobody;
        append resume; find first nobody; append suspend:second; find first nobody; find second run;
        other: append start; other: append suspend:third resume step; find third nobody;
        append finish:cancelled; find second nobody""",
    "a_question_is_answered_once": f"""
        append start; append suspend:token; append resume; append resume at=2 {STALE}""",
    "pruning_removes_finished_runs_only": "".join(f"{name}: append start;" for name in "abcdef")
    + "a: append suspend:waits;"
    + "".join(f"{name}: append finish;" for name in "cdef")
    + """prune; prune older_than=3600; prune keep=4; prune keep=3 number=1; c: unknown;
        prune older_than=0 keep=2 number=1; d: unknown; prune older_than=3600 keep=0;
        a: status suspended; b: status running; e: status done; f: status done;
        prune older_than=0 number=2; e: unknown; f: unknown; find waits a; b: append step""",
    "a_removed_id_may_be_used_again": """
        append start; append finish; prune keep=0 number=1; unknown; append start; append step;
        status running""",
    "bounds_that_mean_nothing_are_refused": """
        append start; prune older_than=-1 !UsageError; prune keep=-1 !UsageError;"""
    + "".join(
        f"claim lease_s={none} !UsageError; renew lease_s={none} !UsageError;"
        for none in ("0", "-1", "nan", "inf")
    )
    + "status running epoch=0",
}


def _check_of(name: str, row: str) -> Check:
    async def check(store: Store) -> None:
        await Play(store).play(row)

    check.__name__ = check.__qualname__ = name
    check.__doc__ = re.sub(r"\s+", " ", row).strip()
    return check


# Checks of their own ------------------------------------------------------------------------------


async def a_store_has_every_method(store: Store) -> None:
    promise(isinstance(store, Store), "it has the methods of `Store`")


async def what_is_appended_is_read(store: Store) -> None:
    run = await Written(store).begin()
    await run.append(run.event("attempt"))
    await run.append(run.step("ok"), run.step({"deep": [1, 2.5, None, True]}, ahead=1))
    await run.stands()
    for after in range(-1, len(run.events) + 1):
        found = await store.read(run.run_id, after)
        promise(found == run.events[after + 1 :], f"read(after={after}) gives what is behind it")


async def an_unknown_run_has_no_events(store: Store) -> None:
    hostile = ("' OR 1=1 --", "../../etc/passwd", "a\0b", "\ud800", "", "%", "*", "?")
    for run_id in ("nobody", *hostile):
        promise(await store.read(run_id) == [], f"run {run_id!r} has no events")
        promise(await store.info(run_id) is None, f"run {run_id!r} is not known")
        promise(await store.find(run_id) is None, f"nobody waits with {run_id!r}")


async def one_of_many_writers_wins(store: Store) -> None:
    run = await Written(store).begin()
    won: list[Event] = []

    async def write(number: int) -> None:
        event = run.step(number)
        try:
            await store.append(run.run_id, [event], at=1, epoch=0)
        except errors.StaleWriter:
            return
        won.append(event)

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(write, number)
    promise(len(won) == 1, f"{len(won)} of 20 writers wrote at one position")
    await run.stands([*run.events, *won])


async def a_stale_append_does_not_fail_its_neighbours(store: Store) -> None:
    runs = [await Written(store).begin() for _ in range(10)]
    outcomes: dict[int, bool] = {}

    async def write(number: int, run: Written) -> None:
        at = 1 if number % 2 else 5
        try:
            await store.append(run.run_id, [run.step(number)], at=at, epoch=0)
            outcomes[number] = True
        except errors.StaleWriter:
            outcomes[number] = False

    async with anyio.create_task_group() as group:
        for number, run in enumerate(runs):
            group.start_soon(write, number, run)
    promise(outcomes == {n: bool(n % 2) for n in range(10)}, "the right ones are written")
    for number, run in enumerate(runs):
        length = len(await store.read(run.run_id))
        promise(length == 1 + number % 2, "a refused append leaves nothing, a good one stands")


async def many_runs_are_written_at_once(store: Store) -> None:
    runs = [Written(store) for _ in range(50)]

    async def live(run: Written) -> None:
        await run.begin(lease_s=LEASE)
        for number in range(6):
            await run.append(run.step(number), lease_s=LEASE)
        await run.append(run.event("finish"))

    async with anyio.create_task_group() as group:
        for run in runs:
            group.start_soon(live, run)
    for run in runs:
        await run.stands()
        promise((await run.info()).status == "done", "each of many runs is done")


async def one_of_many_claims_wins(store: Store) -> None:
    run = await Written(store).begin()
    won: list[Claim] = []

    async def take() -> None:
        try:
            won.append(await store.claim(run.run_id, lease_s=LEASE))
        except errors.RunBusy as busy:
            promise(0 < busy.wait_s <= LEASE, "RunBusy says how long the lease lasts")

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(take)
    promise(won == [Claim(1, 1, 1)], f"{len(won)} of 20 claims won")


async def any_value_comes_back(store: Store) -> None:
    run = await Written(store).begin()
    values: tuple[Any, ...] = (
        "a\0b", "\ud800 alone", "\u2028 ü 漢 🙂", "'; DROP TABLE runs; --", 2**70, -1e308, "",
        {"": {"$triage": "blob", "digest": "0" * 64}}, [[[[[[]]]]]], '\n\r\t|\\"',
    )  # fmt: skip
    for value in values:
        await run.append(run.step(value))
    await run.stands()


async def large_values_come_back(store: Store) -> None:
    big = {"rows": [{"name": f"row {number}", "text": "x" * 50} for number in range(2_000)]}
    one, two = await Written(store).begin(), await Written(store).begin()
    for run in (one, two):
        large = (run.step(big), run.step("y" * 100_000, ahead=1), run.step("small", ahead=2))
        await run.append(*large)
        await store.append(run.run_id, large, at=1, epoch=0)
        await run.stands()
    await one.append(one.event("finish"))
    promise(await store.prune(keep=0) == 1, "one run had finished")
    await two.stands()
    promise(await store.read(one.run_id) == [], "a run that was removed is gone")


async def submitted_appends_keep_their_order(store: Store) -> None:
    run = await Written(store).begin()
    made = [run.step(number, ahead=number) for number in range(50)]
    told = await run.submit(*made)
    promise(told == [None] * len(made), "each `done` is called once, with None")
    await run.stands([*run.events, *made])
    promise((await run.info()).lease_until is not None, "a submitted append extends the lease")


async def a_submitted_append_that_fails_says_so(store: Store) -> None:
    run = await Written(store).begin()
    told = await run.submit(run.step(1), run.step(2), at=3)
    stale = all(isinstance(error, errors.StaleWriter) for error in told)
    promise(stale and len(told) == 2, "`done` is called once for each, with StaleWriter")
    await run.stands()


async def leases_are_on_the_clock_that_the_store_tells(store: Store) -> None:
    before = await store.now()
    run = await Written(store).begin(lease_s=LEASE)
    after = await store.now()
    lease = (await run.info()).lease_until or 0.0
    promise(before - 1 <= lease - LEASE <= after + 1, "a lease lasts so many seconds from now()")
    promise(before <= after, "the time goes on")
    await store.renew(run.run_id, epoch=0, lease_s=2 * LEASE)
    promise(((await run.info()).lease_until or 0.0) > lease, "a renewal extends it")
    await store.renew(run.run_id, epoch=0, lease_s=OVER)
    await store.claim(run.run_id, lease_s=LEASE)


async def runs_are_listed_newest_first(store: Store) -> None:
    odd = "it's\0 \ud800"
    made = (("a", None), ("b", "above"), ("a", "above"), (odd, None))
    runs = [await Written(store, agent=agent, parent=parent).begin() for agent, parent in made]
    await runs[0].append(runs[0].event("finish"))
    hostile = ("' OR 1=1 --", "\0", "\ud800", "%", "*")
    rows: tuple[tuple[list[int], dict[str, Any]], ...] = (
        ([3, 2, 1, 0], {}),
        ([3, 2, 1], {"status": "running"}),
        ([0], {"status": "done"}),
        ([], {"status": "suspended"}),
        ([2, 0], {"agent": "a"}),
        ([3], {"agent": odd}),
        ([2, 1], {"parent": "above"}),
        ([2], {"parent": "above", "agent": "a", "status": "running"}),
        *(([], {name: text}) for text in hostile for name in ("status", "agent", "parent")),
        *(([3, 2, 1, 0][:limit], {"limit": limit}) for limit in (0, 1, 2, 9)),
    )
    for expected, wanted in rows:
        found = [info.run_id for info in await store.runs(**wanted)]
        right = [runs[at].run_id for at in expected]
        promise(found == right, f"runs({wanted}) gives {found}")


async def a_listing_tells_of_a_run(store: Store) -> None:
    run = await Written(store, agent="it's\0", parent="above").begin()
    await run.append(run.step("ok"))
    began, ended = (event.time for event in run.events)
    expected = RunInfo(run.run_id, "it's\0", "running", began, ended, 2, parent="above")
    promise(await run.info() == expected, f"info gives {await run.info()}, not {expected}")
    promise(await store.runs() == [expected], "runs gives the same")


store_checks: tuple[Check, ...] = (
    a_store_has_every_method,
    what_is_appended_is_read,
    an_unknown_run_has_no_events,
    *(_check_of(name, row) for name, row in PLAYS.items()),
    one_of_many_writers_wins,
    a_stale_append_does_not_fail_its_neighbours,
    many_runs_are_written_at_once,
    one_of_many_claims_wins,
    any_value_comes_back,
    large_values_come_back,
    submitted_appends_keep_their_order,
    a_submitted_append_that_fails_says_so,
    leases_are_on_the_clock_that_the_store_tells,
    runs_are_listed_newest_first,
    a_listing_tells_of_a_run,
)
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
