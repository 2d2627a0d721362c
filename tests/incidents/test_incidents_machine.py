"""Whatever two desks and a person do with incidents, the tables are as a plain model says."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Awaitable, Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)
from incident_desks import World
from stores.machines import play
from tables import table

from triage.incidents import (
    Hooks,
    IncidentBusy,
    IncidentClosed,
    IncidentDesk,
    IncidentError,
    Recovery,
    Status,
    Threshold,
)
from triage.incidents.journal import MOVES
from triage.incidents.model import CLOSED

LEASE, WINDOW, MOST = 60.0, 3600.0, 3
KINDS = {"died": "Process died unexpectedly", "merge": "Merge conflict in a.py"}
tasks = st.sampled_from(["A", "B"])
kinds = st.sampled_from(sorted(KINDS))
desks = st.sampled_from([0, 1])
outcomes = st.sampled_from(["ok", "fails", "dies", "stops"])
waits = st.sampled_from([10.0, 410.0, 4000.0])
# Long ones of failures that go on and on, or that come back.
stories = st.lists(
    st.tuples(
        st.sampled_from(["fails", "ok", "fails", "ok", "dies", "stops"]),
        st.sampled_from([10.0] * 6 + [410.0]),
    ),
    min_size=4,
    max_size=9,
)
_examples = itertools.count()


class Known:
    """What the model knows of an incident."""

    def __init__(self, task: str, kind: str, error_id: str) -> None:
        self.task, self.kind, self.error_id = task, kind, error_id
        self.status, self.attempt, self.occurrences = "detected", 0, 1
        self.due = self.lease = self.ended = 0.0

    def leased(self, now: float) -> bool:
        return self.status == "recovering" and self.lease > now

    def end(self, status: str, now: float) -> None:
        self.status, self.ended = status, now


class Machine(RuleBasedStateMachine):
    """Two desks on one store beside the model."""

    made: list[IncidentDesk]
    world: World
    begin: Callable[..., Future[Any]]
    outcome: dict[str, Any]
    hooked: list[str]
    left: list[Future[Any]]

    def __init__(self) -> None:
        super().__init__()
        self.known: list[Known] = []
        self.now = 0.0
        self.example = next(_examples)
        self.hooked.clear()
        self.expected: list[str] = []
        self.logged = 0

    def did(self, method: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
        """What a method gives; nothing where its hook has died or was stopped in the middle."""

        async def run() -> Any:
            with anyio.CancelScope() as scope:
                self.outcome["scope"] = scope
                return await method(*args, **options)

        inside = self.outcome["inside"] = Future()
        done = self.begin(run)
        wait([done, inside], return_when=FIRST_COMPLETED)
        if inside.done() and not done.done():
            self.left.append(done)
            return None
        return done.result()

    def refused(self, error: type[Exception], method: Any, *args: Any, **options: Any) -> None:
        with pytest.raises(error):
            self.did(method, *args, **options)

    # What hypothesis draws comes by name.
    @rule(task=tasks, kind=kinds, desk=desks)
    def report(self, task: str, kind: str, desk: int) -> None:
        name = f"{self.example}-{task}"
        found = self.did(self.made[desk].report, KINDS[kind], task_id=name)
        last = next((k for k in reversed(self.known) if (k.task, k.kind) == (name, kind)), None)
        if last is not None and last.status not in ("failed", "ignored", "recovered"):
            last.occurrences += 1
        elif last is not None and last.status == "recovered" and last.ended > self.now - WINDOW:
            last.occurrences += 1
            last.status = "detected"
        else:
            last = Known(name, kind, found.error_id)
            self.known.append(last)
        assert found.error_id == last.error_id

    @precondition(lambda self: self.known)
    @rule(data=st.data(), desk=desks, outcome=outcomes)
    def handle(self, data: Any, desk: int, outcome: str) -> None:
        self.handle_one(data.draw(st.sampled_from(self.known)), desk, outcome)

    def handle_one(self, one: Known, desk: int, outcome: str) -> None:
        handle = self.made[desk].handle
        if one.status in CLOSED:
            return self.refused(IncidentClosed, handle, one.error_id)
        waits = one.status == "waiting" and one.due > self.now
        if one.status in ("escalated", "acknowledged") or waits or one.leased(self.now):
            return self.refused(IncidentBusy, handle, one.error_id)
        self.outcome["is"] = outcome
        self.did(handle, one.error_id)
        if one.status == "recovering" or one.kind == "merge" or one.attempt >= MOST:
            one.status = "escalated"
        elif one.status == "detected" and one.attempt:
            one.status, one.due = "waiting", self.now + 2.0**one.attempt
        else:
            self.hook(one, outcome, ordered=False)
        return None

    @rule(task=tasks, desk=desks, story=stories)
    def goes_on(self, task: str, desk: int, story: list[tuple[str, float]]) -> None:
        """One trouble for a while: handled, waited for, and back again."""
        self.report(task, "died", desk)
        one = next(k for k in reversed(self.known) if k.task.endswith(task) and k.kind == "died")
        for outcome, seconds in story:
            self.later(seconds)
            if one.status == "recovered":
                self.report(task, "died", desk)
            self.handle_one(one, desk, outcome)

    def hook(self, one: Known, outcome: str, *, ordered: bool) -> None:
        one.attempt += 1
        self.expected.append(one.error_id)
        if outcome == "ok":
            one.end("recovered", self.now)
        elif outcome == "dies":
            one.status, one.lease = "recovering", self.now + LEASE
        elif outcome == "stops" or ordered or one.attempt >= MOST:
            one.status = "escalated"
        else:
            one.status, one.due = "waiting", self.now + 2.0**one.attempt

    @rule(task=tasks, desk=desks, outcome=outcomes)
    def recover(self, task: str, desk: int, outcome: str) -> None:
        name = f"{self.example}-{task}"
        there = [k for k in reversed(self.known) if k.task == name and k.status not in CLOSED]
        free = [k for k in there if not k.leased(self.now)]
        if not free:
            return self.refused(IncidentError, self.made[desk].recover, name, "restart")
        self.outcome["is"] = outcome
        self.did(self.made[desk].recover, name, "restart")
        self.hook(free[0], outcome, ordered=True)
        return None

    @precondition(lambda self: self.known)
    @rule(
        data=st.data(), desk=desks,
        verb=st.sampled_from(["escalate", "acknowledge", "recovered", "failed", "ignored"]),
    )  # fmt: skip
    def by_hand(self, data: Any, desk: int, verb: str) -> None:
        one = data.draw(st.sampled_from(self.known))
        it = self.made[desk]
        method: Any = {"escalate": it.escalate, "acknowledge": it.acknowledge}.get(verb, it.resolve)
        given = {"level": "architect"} if verb == "escalate" else {"by": "ann"}
        if verb in CLOSED:
            given["outcome"] = verb
        if one.status in CLOSED:
            return self.refused(IncidentClosed, method, one.error_id, **given)
        lost = one.status == "recovering" and verb == "acknowledge"
        if one.leased(self.now) or lost:
            return self.refused(IncidentBusy, method, one.error_id, **given)
        self.did(method, one.error_id, **given)
        if verb in CLOSED:
            one.end(verb, self.now)
        else:
            one.status = {"escalate": "escalated", "acknowledge": "acknowledged"}[verb]
        return None

    @rule(seconds=waits)
    def later(self, seconds: float) -> None:
        self.now += seconds
        self.world.later(seconds)

    @invariant()
    def the_tables_are_as_the_model(self) -> None:
        desk = self.made[0]
        for one in self.known:
            found = self.did(desk.incident, one.error_id)
            told = (found.status, found.attempt, found.occurrences)
            assert told == (one.status, one.attempt, one.occurrences), one.error_id
        assert self.hooked == self.expected
        logged = sum(len(self.did(desk.log, one.error_id)) for one in self.known)
        assert logged >= self.logged
        self.logged = logged


@table(
    ("kind", "backend", "examples"),
    [("memory", "trio", 20), ("sqlite", "asyncio", 12), ("postgres", "asyncio", 4)],
)
def test_incidents_are_as_a_plain_model_says(kind: str, backend: Any, examples: int) -> None:
    outcome: dict[str, Any] = {}
    hooked: list[str] = []
    left: list[Future[Any]] = []

    async def hook(recovery: Recovery) -> bool:
        hooked.append(recovery.incident.error_id)
        if outcome["is"] == "stops":
            outcome["scope"].cancel()
        elif outcome["is"] == "dies":
            outcome["inside"].set_result(None)
        if outcome["is"] in ("stops", "dies"):
            await anyio.sleep_forever()
        return bool(outcome["is"] == "ok")

    def end() -> None:
        for one in left:
            one.cancel()

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        world = stack.enter_context(World(kind, Path(folder)))
        portal = stack.enter_context(anyio.from_thread.start_blocking_portal(backend))
        stack.callback(portal.call, world.close)
        portal.call(world.store.journals, "incident")
        stack.callback(end)
        options: dict[str, Any] = {"hooks": Hooks(restart=hook), "threshold": Threshold(errors=999)}
        bound = {
            "made": [world.desk(name, **options) for name in ("one", "two")],
            "world": world,
            "begin": staticmethod(portal.start_task_soon),
            "outcome": outcome,
            "hooked": hooked,
            "left": left,
        }
        machine: Any = type("Bound", (Machine,), bound)
        play(machine, examples=examples, steps=25)


@given(st.sampled_from(sorted(MOVES)), st.sampled_from(Status))
def test_no_move_leaves_an_end_but_the_one_that_opens_it_again(verb: str, status: Status) -> None:
    to = MOVES[verb].get(status)
    if status in CLOSED and verb not in ("messages", "came too late"):
        assert (to is None) == ((verb, status) != ("reopened", Status.RECOVERED))
    elif to is not None and verb.startswith("resolved as "):
        assert to == verb.removeprefix("resolved as ")
