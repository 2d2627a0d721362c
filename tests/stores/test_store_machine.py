"""Any sequence of appends, claims, suspensions and removals leaves a store as a plain dict says."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from store_kinds import KINDS
from tables import table

from stores.machines import play_over
from triage import Resume, Step
from triage.core import (
    CallFinished,
    DeadLetter,
    Event,
    RunBusy,
    RunFinished,
    RunOver,
    RunResumed,
    RunStarted,
    RunSuspended,
    StaleWriter,
    StepRecorded,
)
from triage.stores import Store

IDS = ("a", "b", "c")
runs = st.sampled_from(IDS)
LONG, SHORT = 3600.0, 1e-6
TELLING = RunSuspended | RunResumed | RunFinished


class Known:
    """What the model knows of a run."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.status = "running"
        self.token: str | None = None
        self.epoch = self.claims = 0
        self.leased = False

    def take(self, events: list[Event]) -> None:
        self.events += events
        for event in events:
            if isinstance(event, RunSuspended):
                self.status, self.token = "suspended", event.token_digest
            elif isinstance(event, RunResumed):
                self.status, self.token = "running", None
            elif isinstance(event, RunFinished):
                self.status, self.token = event.status, None


class Machine(RuleBasedStateMachine):
    """One store beside a dict, and the appends of writers that have been overtaken."""

    store: Store
    call: Callable[..., Any]

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, Known] = {}
        self.ended: list[str] = []
        self.made = 0
        self.tokens: dict[str, str] = {}

    @initialize()
    def empty(self) -> None:
        self.did(self.store.prune, keep=0)
        for info in self.did(self.store.runs):
            self.end(info.run_id)
        self.did(self.store.prune, keep=0)

    def did(self, method: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
        async def run() -> Any:
            return await method(*args, **options)

        return self.call(run)

    def end(self, run_id: str) -> None:
        """Bring a run of an example before to its end."""
        claim = self.did(self.store.claim, run_id, lease_s=LONG, force=True, revive=True)
        last = RunFinished(run_id, claim.events, time.time(), "cancelled")
        self.did(self.store.append, run_id, [last], at=claim.events, epoch=claim.epoch)

    def events(self, run_id: str, at: int, kinds: list[str]) -> list[Event]:
        made: list[Event] = []
        for seq, kind in enumerate(kinds, at):
            now = time.time()
            self.made += 1
            if seq == 0:
                made.append(RunStarted(run_id, 0, now, "agent", self.made))
            elif kind == "step":
                step = Step(action="look", tool_output=self.made)
                made.append(StepRecorded(run_id, seq, now, 1, seq, step))
            elif kind == "call":
                made.append(CallFinished(run_id, seq, now, 1, f"look:{self.made}", "done"))
            elif kind == "suspend":
                made.append(RunSuspended(run_id, seq, now, 1, f"token-{self.made}", "?"))
            elif kind == "resume":
                made.append(RunResumed(run_id, seq, now, 1, Resume("yes")))
            else:
                made.append(RunFinished(run_id, seq, now, "done"))
        return made

    # What hypothesis draws comes by name.
    @rule(
        run_id=runs,
        kinds=st.lists(
            st.sampled_from(["step", "call", "suspend", "resume"]), min_size=1, max_size=3
        ),
        finish=st.booleans(),
        lease_s=st.sampled_from([None, SHORT, LONG]),
        again=st.booleans(),
    )
    def append(
        self, *, run_id: str, kinds: list[str], finish: bool, lease_s: float | None, again: bool
    ) -> None:
        known = self.known.get(run_id) or Known()
        if known.status not in ("running", "suspended"):
            return
        at = len(known.events)
        events = self.events(run_id, at, [*kinds, "finish"] if finish else kinds)
        options: dict[str, Any] = {"at": at, "epoch": known.epoch, "lease_s": lease_s}
        for _ in range(2 if again else 1):
            self.did(self.store.append, run_id, events, **options)
        known.take(events)
        self.known[run_id] = known
        if known.status == "running":
            known.leased = known.leased if lease_s is None else lease_s == LONG
        elif any(isinstance(event, TELLING) for event in events):
            known.claims, known.leased = 0, False
        if any(isinstance(event, CallFinished) for event in events):
            known.claims = 0
        if finish:
            self.ended.append(run_id)

    @rule(run_id=runs, off=st.integers(-3, 3), older=st.integers(-2, 2))
    def append_as_somebody_else(self, run_id: str, off: int, older: int) -> None:
        known = self.known.get(run_id) or Known()
        at, epoch = len(known.events) + off, known.epoch + older
        if (off == 0 and older == 0) or at < 0 or epoch < 0:
            return
        with pytest.raises(StaleWriter):
            self.did(
                self.store.append, run_id, self.events(run_id, at, ["step"]), at=at, epoch=epoch
            )

    @precondition(lambda self: self.known)
    @rule(
        run_id=runs,
        lease_s=st.sampled_from([SHORT, LONG]),
        force=st.booleans(),
        revive=st.booleans(),
    )
    def claim(self, *, run_id: str, lease_s: float, force: bool, revive: bool) -> None:
        known = self.known.get(run_id)
        if known is None:
            return
        options = {"lease_s": lease_s, "force": force, "revive": revive}
        claim = partial(self.did, self.store.claim, run_id, **options)
        if known.status not in ("running", "suspended", "dead_letter"):
            with pytest.raises(RunOver):
                claim()
            return
        if known.leased and not force:
            with pytest.raises(RunBusy):
                claim()
            return
        dead = known.status == "dead_letter"
        spent = dead or (known.status == "running" and known.claims >= 3)
        if spent and not revive:
            with pytest.raises(DeadLetter):
                claim()
            known.epoch += not dead
            known.status, known.leased = "dead_letter", False
            return
        known.epoch += 1
        known.claims = 1 if spent else known.claims + 1
        known.status = "running" if spent else known.status
        known.leased = lease_s == LONG
        assert claim() == (known.epoch, len(known.events), known.claims)

    @rule(run_id=runs, stale=st.booleans())
    def release(self, *, run_id: str, stale: bool) -> None:
        known = self.known.get(run_id)
        if known is None:
            return
        if stale:
            with pytest.raises(StaleWriter):
                self.did(self.store.release, run_id, epoch=known.epoch + 1)
            return
        before = self.did(self.store.info, run_id)
        self.did(self.store.release, run_id, epoch=known.epoch)
        if before.lease_until is not None:
            known.claims = max(0, known.claims - 1)
        known.leased = False

    @rule(keep=st.integers(0, 2))
    def prune(self, keep: int) -> None:
        gone = self.ended[: max(0, len(self.ended) - keep)]
        assert self.did(self.store.prune, keep=keep) == len(gone)
        for run_id in gone:
            self.ended.remove(run_id)
            del self.known[run_id]

    @invariant()
    def the_store_is_as_the_model(self) -> None:
        infos = {info.run_id: info for info in self.did(self.store.runs)}
        assert set(infos) == set(self.known)
        for run_id, known in self.known.items():
            info = infos[run_id]
            told = (info.status, info.events, info.epoch, info.claims)
            assert told == (known.status, len(known.events), known.epoch, known.claims)
            assert self.did(self.store.read, run_id) == known.events
            for event in known.events:
                if isinstance(event, RunSuspended):
                    waits = known.status == "suspended" and event.token_digest == known.token
                    found = self.did(self.store.find, event.token_digest)
                    assert found == (run_id if waits else None)


@table("kind", KINDS)
@table("backend", ["asyncio", "trio"])
def test_a_store_is_as_a_plain_model_says(kind: str, backend: Any) -> None:
    play_over(Machine, kind, backend, examples=12, steps=25)
