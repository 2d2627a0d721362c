"""A process that is killed at a chosen point, and the one that goes on after it."""

from __future__ import annotations

import itertools
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import anyio
from support import Says, always

import triage
from engine.durable_runs import (
    PAYMENTS,
    agent_of,
    check_journal,
    failures,
    in_doubt,
    payments,
    truth,
)
from triage import Agent, Diagnosis, Durability, Escalate, FailureType, Retry, Rollback
from triage.core import (
    AlreadyResumed,
    CallStarted,
    CompensatorRan,
    CompensatorRegistered,
    Event,
    RunBusy,
    RunFinished,
    StaleWriter,
    StepRecorded,
    TriageError,
    TriageEscalationError,
    TriageSuspendedError,
)
from triage.stores import Store


class Lost(AssertionError):
    """Something that was acknowledged, or an effect that must have happened, is missing."""


class Repeated(AssertionError):
    """An effect has happened more often than it may."""


def check_effects(made: Counter[str], expected: Counter[str]) -> None:
    """Raise Repeated or Lost unless exactly these effects have happened."""
    if made - expected:
        raise Repeated(f"{made - expected} too often; all: {made}")
    if expected - made:
        raise Lost(f"{expected - made}; all: {made}")


LEASE_S = 0.5
"""Seconds: whoever finds a run whose owner died while it answered waits so long."""
EXPECTED = ["task", 10, 20, "paid 5", "paid 7"]


class Place:
    """What outlives a process beside its store: effects, what was acknowledged, the token in the mail."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def note(self, name: str, line: str) -> None:
        """Add a line to a list; no kill can take it back."""
        file = os.open(self.folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{line}\n".encode())
        os.close(file)

    def noted(self, name: str) -> list[str]:
        """The lines of a list."""
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []


class Fuse:
    """Kills its process at the so-manieth point; 0: never."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0

    def point(self) -> None:
        self.count += 1
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


class Outside:
    """The world, in a file: an effect is followed by a point, and so is what comes before it."""

    def __init__(self, place: Place, fuse: Fuse) -> None:
        self.place = place
        self.fuse = fuse

    def do(self, effect: str) -> None:
        self.fuse.point()
        self.place.note("effects", effect)
        self.fuse.point()

    def done(self) -> Counter[str]:
        return Counter(self.place.noted("effects"))


class Deadly:
    """A store with a point before and after everything it writes."""

    def __init__(self, store: Store, fuse: Fuse) -> None:
        self._store = store
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        return partial(self._between, method) if name in {"append", "claim", "release"} else method

    async def _between(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._fuse.point()
        answer = await method(*args, **kwargs)
        self._fuse.point()
        return answer

    def submit(self, run_id: str, events: Sequence[Event], **options: Any) -> None:
        done = options.pop("done")

        def told(error: BaseException | None) -> None:
            self._fuse.point()
            done(error)

        self._fuse.point()
        self._store.submit(run_id, events, done=told, **options)


class Kind(NamedTuple):
    """A kind of run. effects: those that must not happen without a record. truth: what somebody who can
    look answers to a question about a call. check: what must hold of the run that has ended so.
    """

    agent: Callable[[Any, Outside], Agent[Any]]
    effects: Callable[[Outside], Counter[str]]
    truth: Callable[[Outside, str], Any]
    check: Callable[[Any, Sequence[Event], Outside], None]


async def drive(kind: Kind, agent: Agent[Any], run_id: str, world: Outside) -> Any:
    """Bring the run to its end from wherever it stands, as a worker and the person asked would."""
    place, store = world.place, agent.store
    token, answer = None, ""
    if tokens := place.noted("tokens"):
        token, answer = tokens[-1].split(" ", 1)
    while True:
        try:
            info = await store.info(run_id)
            if info is None:
                # Whatever has an effect waits until its intent is durable.
                if kind.effects(world):
                    raise Lost(f"no record of the effects {kind.effects(world)}")
                return await agent.run("task", run_id=run_id)
            if info.status != "suspended":
                return await agent.recover(run_id)
            if token is None:
                return await agent.recover(run_id, force=True)
            reply = triage.approve() if answer == "approve" else kind.truth(world, answer)
            return await agent.resume(token, reply)
        except TriageSuspendedError as asked:
            doubt = in_doubt(asked)
            token, answer = asked.token, asked.question if doubt else "approve"
            place.note("tokens", f"{token} {answer}")
            if doubt:
                place.note("doubts", asked.question)
        except AlreadyResumed:
            token = (
                None  # of a question before the last: the process died before it told the new one
            )
        except (RunBusy, StaleWriter):
            continue  # a database may still carry out what a killed process has sent it: look again
        except TriageError as error:
            return error


def works(name: str, store: Store, run_id: str, place: Place, fuse: Fuse, *, last: bool) -> None:
    """All a process does before it is killed, and, if it is the last one, what is checked then."""
    world, kind = Outside(place, fuse), KINDS[name]

    async def main() -> None:
        agent = kind.agent(Deadly(store, fuse), world)
        result = await drive(kind, agent, run_id, world)
        place.note("acknowledged", "end")
        if last:
            events = await store.read(run_id)
            check_journal(events)
            for event in events:
                if isinstance(event, CallStarted) and event.run is not None:
                    check_journal(await store.read(event.run))
            assert isinstance(events[-1], RunFinished), repr(result)
            kind.check(result, events, world)
            place.note("points", str(fuse.count))
        await store.close()

    anyio.run(main, backend="trio" if run_id.endswith("t") else "asyncio")


DURABILITY = Durability(lease_s=LEASE_S)


# Paying -------------------------------------------------------------------------------------------
def pays(store: Any, world: Outside) -> Agent[Any]:
    """An agent that pays twice and asks a person between its attempts."""
    return agent_of("suspend", store, world, durability=DURABILITY, told=world.place.note)


def has_paid(result: Any, events: Sequence[Event], world: Outside) -> None:
    """Each payment was made once, and nothing that was acknowledged is missing."""
    check_effects(payments(world), PAYMENTS)
    assert result == EXPECTED, result
    assert status_of(events) == "done"
    calls = triage.core.fold(events).calls.values()
    done = [call for call in calls if call.tool == "pay" and call.outcome == "done"]
    finished = {f"pay {call.arguments['cents']}" for call in done}
    steps = sum(
        isinstance(event, StepRecorded) and event.step.action == "think" for event in events
    )
    acknowledged = Counter(world.place.noted("acknowledged"))
    lost = [name for name in acknowledged if name.startswith("pay") and name not in finished]
    if lost or acknowledged["think"] > steps:
        raise Lost(f"acknowledged, and not in the journal: {lost or 'a step'}")


def status_of(events: Sequence[Event]) -> str:
    """How a run has ended."""
    (end,) = (event.status for event in events if isinstance(event, RunFinished))
    return end


# Rolling back -------------------------------------------------------------------------------------
CENTS = (5, 7, 9)
CHARGES = Counter(f"charge {cents}" for cents in CENTS)
AT_ONCE = Counter(f"charge {at}" for at in (1, 2, 3))


class Bank:
    """Where `charge` charges: a compensator of a module is at hand in every process.

    refuses: the charge that is never refunded.
    """

    world: ClassVar[Outside]
    refuses: ClassVar[int | None]


async def refund(receipt: str, cents: int) -> None:
    assert receipt == f"receipt {cents}"
    Bank.world.do(f"refund {cents} {triage.current_call().idempotency_key}")
    if cents == Bank.refuses:
        raise LookupError(f"no refund of {cents}")


@triage.tool(effect="once", compensate=refund)
async def charge(cents: int) -> str:
    Bank.world.do(f"charge {cents}")
    return f"receipt {cents}"


def rolls_back(action: Any, refuses: int | None, store: Any, world: Outside) -> Agent[Any]:
    """An agent that charges three times and fails; then that is undone. refuses: as of `Bank`."""
    Bank.world, Bank.refuses = world, refuses

    async def works(task: str, *, run: triage.Run) -> str:
        if failures(run.history):
            return "without"
        run.record_step(triage.Step(action="begin"))
        for cents in CENTS:
            await charge(cents)
        raise ConnectionError("the service is gone")

    says = Says(Diagnosis(FailureType.EXTERNAL_FAULT, critical_step=1))
    return Agent(
        works,
        always(action),
        classifier=says,
        store=store,
        durability=DURABILITY,
        name="rolls back",
    )


def charges(world: Outside) -> Counter[str]:
    """The charges that were made."""
    found = world.done()
    return Counter({name: n for name, n in found.items() if name.startswith("charge")})


def charge_is_true(world: Outside, question: str) -> Any:
    """Whether the charge that is asked about was made."""
    about = re.search(r'"cents": (\d+)', question)
    assert about, question
    made = world.done()[f"charge {about[1]}"]
    return triage.happened(f"receipt {about[1]}") if made else triage.rerun()


def has_undone(refuses: int | None, result: Any, events: Sequence[Event], world: Outside) -> None:
    """Every charge was made once and undone under one key, and the journal says so."""
    check_effects(charges(world), CHARGES)
    keys = {name for name in world.done() if not name.startswith("charge")}
    undone = Counter(key.rpartition(" ")[0] for key in keys)
    assert undone == Counter(f"refund {cents}" for cents in CENTS), keys
    ended = [event for event in events if isinstance(event, CompensatorRan) and not event.begins]
    done = Counter(event.registered for event in ended if event.error is None)
    assert set(done.values()) == {1}, done
    registered = sum(isinstance(event, CompensatorRegistered) for event in events)
    assert len(done) == registered - (refuses is not None), ended
    if refuses is None:
        return
    assert isinstance(result, TriageEscalationError), result
    assert result.report is not None
    (stays,) = result.report.facts.not_undone
    assert f'charge({{"cents": {refuses}}})' in stays, stays
    assert f"no refund of {refuses}" in stays, stays


def went_back(result: Any, events: Sequence[Event], world: Outside) -> None:
    """A rollback undid all, and the run went on without it."""
    assert result == "without", result
    assert status_of(events) == "done"
    has_undone(None, result, events, world)


def gave_up(refuses: int | None, result: Any, events: Sequence[Event], world: Outside) -> None:
    """An escalation undid all but what could not be."""
    assert isinstance(result, TriageEscalationError), result
    assert status_of(events) == "escalated"
    has_undone(refuses, result, events, world)


# Equal charges at once ----------------------------------------------------------------------------
def charges_at_once(store: Any, world: Outside) -> Agent[Any]:
    """An agent that makes three equal charges at once."""

    @triage.tool(effect="once")
    async def charge(cents: int) -> str:
        number = number_of_charge.get()
        await anyio.lowlevel.checkpoint()
        world.do(f"charge {number}")
        return f"receipt {number}"

    async def works(task: str) -> list[str]:
        receipts: list[str] = []
        count = itertools.count(1)

        async def one() -> None:
            number_of_charge.set(next(count))
            receipts.append(await charge(300))

        async with anyio.create_task_group() as group:
            for _ in CENTS:
                group.start_soon(one)
        return sorted(receipts)

    return Agent(works, always(Retry()), store=store, durability=DURABILITY, name="at once")


number_of_charge: ContextVar[int] = ContextVar("number_of_charge")


def one_of_them_is_true(world: Outside, question: str) -> Any:
    """Whether that one of the equal charges was made which is asked about."""
    which = re.search(r"it is call (\d) of \d with these arguments, begun \d", question)
    number = int(which[1]) if which else 1
    made = world.done()[f"charge {number}"]
    return triage.happened(f"receipt {number}") if made else triage.rerun()


def has_charged_at_once(result: Any, events: Sequence[Event], world: Outside) -> None:
    """Each of the three was made once, and each has its own receipt."""
    check_effects(charges(world), AT_ONCE)
    assert result == ["receipt 1", "receipt 2", "receipt 3"], result
    assert status_of(events) == "done"
    begun = sum(isinstance(event, CallStarted) and event.tool == "charge" for event in events)
    asked = set(world.place.noted("doubts"))
    assert len(asked) <= begun, f"{begun} charges were begun, and these questions asked: {asked}"


# Different charges at once, and inside runs ------------------------------------------------------
INNER = 2
"""Runs inside one, at once, of which each charges twice, and fails in between."""
ALL_INNER = Counter(f"charge {10 * run + at}" for run in range(1, INNER + 1) for at in (1, 2))


def charger(world: Outside) -> Any:
    """A tool that charges, as no recovery may do twice."""

    @triage.tool(effect="once")
    async def charge(cents: int) -> str:
        await anyio.lowlevel.checkpoint()
        world.do(f"charge {cents}")
        return f"receipt {cents}"

    return charge


def charges_in_parallel(store: Any, world: Outside) -> Agent[Any]:
    """An agent that makes three different charges at once, and fails once."""
    charge = charger(world)

    async def works(task: str, *, run: triage.Run) -> list[str]:
        receipts: list[str] = []

        async def one(cents: int) -> None:
            receipts.append(await charge(cents))

        async with anyio.create_task_group() as group:
            for cents in CENTS:
                group.start_soon(one, cents)
        if not failures(run.history):
            raise ConnectionError("the service is gone")
        return sorted(receipts)

    options: dict[str, Any] = {"store": store, "durability": DURABILITY, "classifier": Says()}
    return Agent(works, always(Retry()), name="in parallel", **options)


def has_charged_in_parallel(result: Any, events: Sequence[Event], world: Outside) -> None:
    """Each was made once."""
    check_effects(charges(world), CHARGES)
    assert result == [f"receipt {cents}" for cents in CENTS], result
    assert status_of(events) == "done"


def charges_inside(store: Any, world: Outside) -> Agent[Any]:
    """An agent that has others charge at once, in runs inside its own."""
    charge = charger(world)
    options: dict[str, Any] = {"store": store, "durability": DURABILITY, "classifier": Says()}

    async def pays(task: str, *, first: int, run: triage.Run) -> list[str]:
        receipts = [await charge(first)]
        if not failures(run.history):
            raise ConnectionError("the service is gone")
        return [*receipts, await charge(first + 1)]

    payer = Agent(pays, always(Retry()), name="pays inside", **options)

    async def works(task: str) -> list[str]:
        receipts: list[str] = []

        async def one(first: int) -> None:
            receipts.extend(await payer.run(task, first=first))

        async with anyio.create_task_group() as group:
            for number in range(1, INNER + 1):
                group.start_soon(one, 10 * number + 1)
        return sorted(receipts)

    return Agent(works, always(Retry()), name="nested", **options)


def has_charged_inside(result: Any, events: Sequence[Event], world: Outside) -> None:
    """Each run inside has made each of its charges once."""
    check_effects(charges(world), ALL_INNER)
    assert result == [f"receipt {name.split()[1]}" for name in sorted(ALL_INNER)], result
    assert status_of(events) == "done"


KINDS = {
    "answering": Kind(pays, payments, truth, has_paid),
    "rolling back": Kind(partial(rolls_back, Rollback(), None), charges, charge_is_true, went_back),
    "giving up": Kind(
        partial(rolls_back, Escalate("enough", compensate=True), 7),
        charges,
        charge_is_true,
        partial(gave_up, 7),
    ),
    "equal calls": Kind(charges_at_once, charges, one_of_them_is_true, has_charged_at_once),
    "parallel": Kind(charges_in_parallel, charges, charge_is_true, has_charged_in_parallel),
    "nested": Kind(charges_inside, charges, charge_is_true, has_charged_inside),
}
"""By name, the kinds of runs that are killed."""
