"""Any sequence of runs, deaths, answers, zombies and removals ends as a simple model says, on any store."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from durable_runs import check_journal
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from machines import play_over
from store_kinds import KINDS
from support import Says, always
from tables import table

import triage
from triage import Agent, Escalate, Limits, Replan, Resume, Retry, Rollback, Run, Step, Suspend
from triage.core import (
    AlreadyResumed,
    DeadLetter,
    RunOver,
    StaleWriter,
    StepRecorded,
    TriageEscalationError,
    TriageSuspendedError,
    UnknownRun,
    UsageError,
)
from triage.stores import Store

PAYMENTS = 3
ACTIONS = {
    "retry": Retry(),
    "replan": Replan(),
    "rollback": Rollback(),
    "resume": Resume("the rest"),
    "suspend": Suspend("go on?"),
    "escalate": Escalate("enough"),
}
Act = tuple[str, Any]
acts = st.one_of(
    st.tuples(st.just("fail"), st.sampled_from(sorted(ACTIONS))),
    # It dies and can still give the run back, or it cannot; or it dies while it pays, having paid.
    st.tuples(st.sampled_from(["dies", "vanishes", "pays and dies"]), st.integers(0, PAYMENTS - 1)),
)
poison = st.lists(st.tuples(st.just("vanishes"), st.just(0)), min_size=3, max_size=6)
names = st.sampled_from(["a", "b", "c"])


class Dead(BaseException):
    """The process is gone."""


class Died(Exception):
    """The same, as whoever watches processes is told."""


class Known:
    """What the model knows of a run. script: what its function will do, one entry an event of it."""

    def __init__(self, script: list[Act]) -> None:
        self.script = script
        self.status = "running"
        self.paid: set[int] = set()
        self.doubt: int | None = None
        self.claims = 0
        self.token: str | None = None
        self.old: list[str] = []

    def goes_on(self, *, lost: bool) -> None:
        """Attempt after attempt, until it ends, waits or dies. lost: with its process all is lost."""
        while True:
            kind, what = self._attempt()
            if kind == "fail":
                self.claims = 0
            if kind == "fail" and what not in ("suspend", "escalate"):
                continue
            if kind in ("dies", "vanishes", "pays and dies"):
                self.status = "cancelled" if lost else "running"
                if kind != "vanishes":
                    self.claims = max(0, self.claims - 1)
            elif kind == "done":
                self.status = "done"
            else:
                self.status = "escalated" if what == "escalate" else "suspended"
            if self.status == "suspended":
                self.claims = 0
            return

    def _attempt(self) -> Act:
        act: Act = self.script[0] if self.script else ("ok", None)
        for number in range(PAYMENTS):
            if act[0] in ("dies", "vanishes") and act[1] == number:
                return self.script.pop(0)
            if self.doubt == number:
                return "asks", None
            if number not in self.paid:
                self.paid.add(number)
                if act == ("pays and dies", number):
                    self.doubt = number
                    return self.script.pop(0)
                self.claims = 0
        return self.script.pop(0) if act[0] == "fail" else ("done", None)


class Holding:
    """A store that forgets a release once, as if who had the run had gone without a word."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.vanished = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def release(self, run_id: str, *, epoch: int) -> None:
        if not self.vanished:
            await self._store.release(run_id, epoch=epoch)
        self.vanished = False


class Machine(RuleBasedStateMachine):
    """Runs of one agent in one store, beside the model; each rule is another process."""

    store: Store
    call: Callable[..., Any]

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, Known] = {}
        self.scripts: dict[str, list[Act]] = {}
        self.ended: list[str] = []
        self.paid: Counter[tuple[str, int]] = Counter()
        self.holding: Any = Holding(self.store)
        self.next: dict[str, str] = {}

    @initialize()
    def empty(self) -> None:
        for info in self.did(self.store.runs):
            with contextlib.suppress(RunOver):
                self.did(partial(triage.engine.cancel, now=0.0), self.store, info.run_id)
        self.did(self.store.prune, keep=0)

    def did(self, method: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
        async def run() -> Any:
            try:
                return await method(*args, **options)
            except Dead as end:
                raise Died from end

        return self.call(run)

    @property
    def lost(self) -> bool:
        """Whether a run is gone with its process."""
        return not getattr(self.store, "durable", True)

    def agent(self) -> Agent[Any]:
        """As each process makes it anew."""

        @triage.tool(effect="once")
        async def pay(run_id: str, number: int) -> str:
            self.paid[run_id, number] += 1
            script = self.scripts[run_id]
            if script and script[0] == ("pays and dies", number):
                script.pop(0)
                raise Dead
            return f"paid {number}"

        async def works(task: str, *, run: Run) -> list[str]:
            script = self.scripts[task]
            act: Act = script[0] if script else ("ok", None)
            found: list[str] = []
            for number in range(PAYMENTS):
                if act[0] in ("dies", "vanishes") and act[1] == number:
                    script.pop(0)
                    self.holding.vanished = act[0] == "vanishes"
                    raise Dead
                found.append(await pay(task, number))
            if act[0] == "fail":
                self.next[task] = script.pop(0)[1]
                raise ConnectionError("late")
            return found

        policy = always(lambda context: ACTIONS[self.next[context.task]])
        limits = Limits(attempts=1000)
        return Agent(
            works, policy, classifier=Says(), store=self.holding, limits=limits, name="works"
        )

    def brought_on(self, name: str, method: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Have the run go on in the store and in the model, and compare what both come to."""
        known = self.known[name]
        if known.token is not None:
            known.old.append(known.token)
            known.token = None
        known.goes_on(lost=self.lost)
        try:
            result = self.did(method, *args)
        except Died:
            assert known.status in ("running", "cancelled")
        except TriageSuspendedError as asked:
            assert known.status == "suspended"
            known.token = asked.token
        except TriageEscalationError:
            assert known.status == "escalated"
        else:
            assert known.status == "done"
            assert result == [f"paid {number}" for number in range(PAYMENTS)]
        assert self.scripts[name] == known.script
        if known.status not in ("running", "suspended"):
            self.ended.append(name)

    @rule(name=names, script=st.lists(acts, max_size=5) | poison)
    def start(self, name: str, script: list[Act]) -> None:
        if name in self.known:
            with pytest.raises(UsageError, match="taken"):
                self.did(partial(self.agent().run, run_id=name), name)
            return
        self.known[name], self.scripts[name] = Known(list(script)), list(script)
        for number in range(PAYMENTS):
            del self.paid[name, number]
        self.brought_on(name, partial(self.agent().run, run_id=name), name)

    @rule(name=names, force=st.booleans(), often=st.sampled_from([1, 4]))
    def recover(self, name: str, *, force: bool, often: int) -> None:
        for _ in range(often):
            self.recover_once(name, force=force)

    def recover_once(self, name: str, *, force: bool) -> None:
        known = self.known.get(name)
        recover = partial(self.agent().recover, name, force=force)
        if known is None:
            with pytest.raises(UnknownRun):
                self.did(recover)
        elif known.status == "done":
            assert len(self.did(recover)) == PAYMENTS
        elif known.status in ("escalated", "cancelled"):
            with pytest.raises((TriageEscalationError, RunOver)):
                self.did(recover)
        elif known.status == "suspended":
            self._asked_anew(known, recover, force=force)
        elif (known.claims >= 3 or known.status == "dead_letter") and not force:
            with pytest.raises(DeadLetter):
                self.did(recover)
            known.status = "dead_letter"
        else:
            known.claims = 1 if known.claims >= 3 else known.claims + 1
            self.brought_on(name, recover)

    def _asked_anew(self, known: Known, recover: Callable[..., Any], *, force: bool) -> None:
        if not force:
            with pytest.raises(UsageError, match="waits for an answer"):
                self.did(recover)
            return
        with pytest.raises(TriageSuspendedError) as asked:
            self.did(recover)
        assert known.token is not None
        known.old.append(known.token)
        known.token = asked.value.token

    @rule(name=names, fits=st.booleans())
    def answer(self, name: str, *, fits: bool) -> None:
        known = self.known.get(name)
        if known is None or known.token is None:
            return
        doubt = known.doubt
        right: Any = triage.approve() if doubt is None else triage.happened(f"paid {doubt}")
        if not fits:
            wrong: Any = triage.rerun() if doubt is None else triage.approve()
            with pytest.raises(UsageError):
                self.did(self.agent().resume, known.token, wrong)
            return
        known.doubt, known.claims = None, int(doubt is None)
        self.brought_on(name, self.agent().resume, known.token, right)

    @rule(name=names)
    def answer_an_old_question(self, name: str) -> None:
        known = self.known.get(name)
        for token in known.old if known is not None else ():
            with pytest.raises(AlreadyResumed):
                self.did(self.agent().resume, token, triage.approve())

    @rule(name=names, behind=st.integers(0, 2))
    def a_zombie_writes(self, name: str, behind: int) -> None:
        info = self.did(self.store.info, name)
        if info is None or behind > info.epoch:
            return
        at = info.events if behind else info.events + 1
        step = StepRecorded(name, at, time.time(), 1, 0, Step(action="zombie"))
        with pytest.raises(StaleWriter):
            self.did(self.store.append, name, [step], at=at, epoch=info.epoch - behind)

    @rule(name=names)
    def cancel(self, name: str) -> None:
        known = self.known.get(name)
        if known is None or known.status not in ("running", "suspended", "dead_letter"):
            return
        self.did(partial(triage.engine.cancel, now=time.time()), self.store, name)
        if known.token is not None:
            known.old.append(known.token)
        known.status, known.token = "cancelled", None
        self.ended.append(name)

    @rule(keep=st.integers(0, 2))
    def prune(self, keep: int) -> None:
        gone = self.ended[: max(0, len(self.ended) - keep)]
        assert self.did(self.store.prune, keep=keep) == len(gone)
        for name in gone:
            self.ended.remove(name)
            del self.known[name]

    @invariant()
    def all_is_paid_once_and_every_run_stands_as_the_model_says(self) -> None:
        for name, known in self.known.items():
            info = self.did(self.store.info, name)
            assert info.status == known.status
            if known.status in ("running", "suspended"):
                assert info.claims == known.claims
            check_journal(self.did(self.store.read, name), info.epoch)
            paid = {number: self.paid[name, number] for number in range(PAYMENTS)}
            assert paid == {number: int(number in known.paid) for number in range(PAYMENTS)}


@table("kind", KINDS)
@table("backend", ["asyncio", "trio"])
def test_runs_are_as_a_plain_model_says(kind: str, backend: Any) -> None:
    play_over(Machine, kind, backend, examples=8, steps=20)
