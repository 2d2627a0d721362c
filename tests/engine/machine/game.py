"""Plays a history rule by rule, beside a plain model of how it may stand and how it must end."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel

import triage
from engine.durable_runs import check_journal
from triage import (
    Escalate,
    Step,
    TriageAbortError,
    TriageEscalationError,
    TriageSuspendedError,
    UsageError,
)
from triage.core.errors import (
    AlreadyResumed,
    DeadLetter,
    RunBusy,
    RunOver,
    StaleWriter,
    TriageFatalError,
)
from triage.core.events import AttemptFailed, AttemptStarted, Event, RunSuspended, StepRecorded
from triage.core.state import fold
from triage.stores import Store

from .foreseen import foreseen
from .histories import (
    Answer,
    Ask,
    AskAnew,
    Cancel,
    Death,
    Fail,
    History,
    Inside,
    InTurn,
    Node,
    Note,
    Pay,
    Race,
    Read,
    Recover,
    Rule,
    StartAgain,
    Together,
    Zombie,
)
from .world import EDITED, RECEIPT, REFUSED, WANTED, Player, Process, World

HANGS_S = 30
"""Seconds of real time after which a process counts as hanging; none waits for the clock."""
MOST_ROUNDS = 40
"""Recoveries and answers until a run must have ended."""
MOST_REFUSALS = 6
"""A person who has refused one payment so often ends the run."""
ENDS = ("done", "escalated", "aborted", "fatal", "cancelled")
_numbers = itertools.count(1)


class Broken(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True)
class Ended:
    """How a process ended. kind: `done`, `suspended`, `dead`, `busy`, `ended`, or an end of the run."""

    kind: str
    value: Any = None
    error: BaseException | None = None


def nothing() -> None:
    """Note nothing."""


def check_attempts(events: Sequence[Event]) -> None:
    """An attempt has the next number if the one before it has failed, and its own if it was cut off."""
    failed = 0
    for event in events:
        if isinstance(event, AttemptStarted) and event.attempt != failed + 1:
            raise Broken(f"attempt {event.attempt} begins after {failed} have failed")
        if isinstance(event, AttemptFailed):
            failed = event.attempt


def _resumes(token: str, answer: Any, agent: Any) -> Callable[[], Awaitable[Any]]:
    return partial(agent.resume, token, answer)


@dataclass(frozen=True)
class Reply:
    """answer: a person's. given: notes it once it is given. wrong: one that does not fit the question."""

    answer: Any
    given: Callable[[], object] = nothing
    wrong: Any = field(default_factory=partial(triage.happened, "receipt of nothing"))


class Game:
    """One history on one store."""

    def __init__(self, history: History, store: Store) -> None:
        self.history = history
        self.store = store
        self.world = World()
        self.run_id = f"run-{next(_numbers)}"
        self.token: str | None = None
        self.old: list[str] = []
        self.deaths = 0
        self.lies: Counter[str] = Counter()
        self.last: Ended | None = None
        self.gave_up = False

    async def play(self) -> None:
        """Play it to its end. Raises Broken."""
        await self.work(
            lambda agent: partial(agent.run, "go", run_id=self.run_id), self.history.death
        )
        await self.look()
        for rule in self.history.rules:
            if await self.store.info(self.run_id) is None:  # it died before it was written down
                break
            await self.rule(rule)
            await self.look()
        for _ in range(MOST_ROUNDS):
            info = await self.store.info(self.run_id)
            if info is None or info.status in ENDS:
                break
            if info.status == "suspended":
                await self.answer(Answer())
            else:
                await self.recover(Recover("force"))
            await self.look()
        else:
            raise Broken(f"the run does not end: {self.last}")
        if info is not None:
            await self.judge(info.status)
        await self.store.prune(keep=0)

    # --- processes ---

    async def work(
        self, going: Callable[[Any], Callable[[], Awaitable[Any]]], death: Death | None = None
    ) -> Ended:
        """Have a new process do this with its agent, and note how it ended."""
        ended = await self._process(going, death)
        self.last = ended
        if ended.kind == "suspended":
            self._asked(ended.value)
        if ended.kind in ("done", "suspended", *ENDS):
            info = await self.store.info(self.run_id)
            status = None if info is None else info.status
            if status != ended.kind:
                raise Broken(f"the process ended as {ended}, the run stands as {status}")
        return ended

    def _asked(self, token: str) -> None:
        if self.token is not None and self.token != token:
            self.old.append(self.token)
        self.token = token

    async def _process(
        self, going: Callable[[Any], Callable[[], Awaitable[Any]]], death: Death | None
    ) -> Ended:
        process = Process(self.world, death)
        player = Player(self.history, process, self.store)
        ended = Ended("dead")
        async with anyio.create_task_group() as group:
            group.start_soon(process.disk)
            with anyio.fail_after(HANGS_S), process.scope:
                ended = await self._ended(process, going(player.agent))
            group.cancel_scope.cancel()
        if process.died_at:
            self.deaths += 1
        return ended

    async def _ended(self, process: Process, work: Callable[[], Awaitable[Any]]) -> Ended:  # noqa: PLR0911
        try:
            return Ended("done", await work())
        except BaseException as error:
            if process.died_at and not isinstance(error, anyio.get_cancelled_exc_class()):
                return Ended("dead")
            match error:
                case TriageSuspendedError():
                    return Ended("suspended", error.token)
                case TriageFatalError():
                    return Ended("fatal", error=error)
                case TriageEscalationError():
                    return Ended("escalated", error=error)
                case TriageAbortError():
                    return Ended("aborted", error=error)
                case RunBusy() | StaleWriter():
                    return Ended("busy", error=error)
                case DeadLetter() | RunOver() | UsageError() | AlreadyResumed():
                    return Ended("refused", error=error)
            raise

    # --- rules ---

    async def rule(self, rule: Rule) -> None:
        """Play a rule; one that does not apply does nothing."""
        match rule:
            case Recover():
                await self.recover(rule)
            case Race():
                await self.race(rule)
            case Answer():
                await self.answer(rule)
            case AskAnew():
                await self.ask_anew()
            case Cancel():
                await self.cancel()
            case Zombie():
                await self.zombie(rule)
            case StartAgain():
                await self._refused(
                    UsageError, lambda agent: partial(agent.run, "go", run_id=self.run_id)
                )

    async def recover(self, rule: Recover) -> None:
        """Take the run over, or be refused as its status says."""
        info = await self.store.info(self.run_id)
        assert info is not None
        force, polite = rule.how == "force", rule.how == "polite"
        if info.status == "suspended":
            if not force:
                await self._refused(UsageError, lambda agent: partial(agent.recover, self.run_id))
            return
        ended = await self.work(
            lambda agent: partial(agent.recover, self.run_id, force=force, at_once=not polite),
            rule.death,
        )
        leased = info.lease_until is not None and info.lease_until > await self.store.now()
        if ended.kind == "dead":
            await self._check_given_back(info.claims, rule.death)
            return
        if info.status in ENDS:
            self._is(ended, "refused" if info.status == "cancelled" else info.status)
        elif polite and leased:
            self._is(ended, "busy")
        elif not force and (info.claims >= 3 or info.status == "dead_letter"):
            self._is(ended, "refused")
            assert isinstance(ended.error, DeadLetter)
        elif ended.kind in ("busy", "refused"):
            raise Broken(f"a recovery was refused: {ended}")

    async def _check_given_back(self, before: int, death: Death | None) -> None:
        """Who gives the run back has not died of it, and holds it no longer."""
        info = await self.store.info(self.run_id)
        assert info is not None
        if death is not None and death.clean and info.status == "running":
            if info.claims > before:
                raise Broken(f"{info.claims} claims, {before} before the run was given back")
            if info.lease_until is not None:
                raise Broken("the run was not given back")

    def _is(self, ended: Ended, kind: str) -> None:
        if ended.kind != kind:
            raise Broken(f"a process ended as {ended}, not as {kind}")

    async def _refused(
        self, kind: type[Exception], going: Callable[[Any], Callable[[], Awaitable[Any]]]
    ) -> None:
        ended = await self._process(going, None)
        if ended.kind != "refused" or not isinstance(ended.error, kind):
            raise Broken(f"a process ended as {ended}, not refused with {kind.__name__}")

    async def race(self, rule: Race) -> None:
        """Two recover at once: one of them goes on with the run."""
        info = await self.store.info(self.run_id)
        assert info is not None
        if info.status != "running" or info.claims >= 2:
            return
        ends: list[Ended] = []

        async def one(later: int, death: Death | None) -> None:
            for _ in range(later):
                await anyio.lowlevel.checkpoint()
            ends.append(
                await self._process(
                    lambda agent: partial(agent.recover, self.run_id, at_once=not rule.polite),
                    death,
                )
            )

        async with anyio.create_task_group() as group:
            group.start_soon(one, 0, rule.first)
            group.start_soon(one, rule.later, rule.second)
        self.deaths += 1  # who was overtaken may have left a call in doubt
        self._end_of_race(ends)

    def _end_of_race(self, ends: list[Ended]) -> None:
        tokens = [end.value for end in ends if end.kind == "suspended"]
        for token in tokens:
            self._asked(token)
        if len(tokens) > 1:
            raise Broken("both processes asked a question")
        results = [end.value for end in ends if end.kind == "done"]
        if any(result != results[0] for result in results):
            raise Broken(f"two results: {results}")

    async def ask_anew(self) -> None:
        """The same question under a new token."""
        info = await self.store.info(self.run_id)
        assert info is not None
        if info.status == "suspended":
            ended = await self.work(lambda agent: partial(agent.recover, self.run_id, force=True))
            self._is(ended, "suspended")

    async def cancel(self) -> None:
        """End the run."""
        info = await self.store.info(self.run_id)
        assert info is not None
        if info.status in ENDS:
            return
        await triage.engine.cancel(self.store, self.run_id, now=await self.store.now())
        if self.token is not None:
            self.old.append(self.token)
        self.token, self.gave_up = None, True

    async def zombie(self, rule: Zombie) -> None:
        """One that was overtaken writes nothing."""
        info = await self.store.info(self.run_id)
        assert info is not None
        if rule.behind > info.epoch:
            return
        at = info.events if rule.behind else info.events + 1
        step = StepRecorded(self.run_id, at, await self.store.now(), 1, 0, Step(action="zombie"))
        try:
            await self.store.append(self.run_id, [step], at=at, epoch=info.epoch - rule.behind)
        except StaleWriter:
            return
        raise Broken("a process that was overtaken has written")

    # --- answers ---

    async def answer(self, rule: Answer) -> None:
        """Answer what the run asks."""
        if rule.how == "old":
            for old in self.old:
                await self._refused(AlreadyResumed, partial(_resumes, old, triage.approve()))
            return
        info = await self.store.info(self.run_id)
        assert info is not None
        if info.status != "suspended":
            return
        if self.token is None:
            await self.ask_anew()
        token = self.token
        assert token is not None
        reply = await self.reply(lie=rule.how == "lie")
        if rule.how == "wrong":
            await self._refused(UsageError, lambda agent: partial(agent.resume, token, reply.wrong))
            return
        reply.given()
        if rule.how == "written":
            player = Player(self.history, Process(self.world), self.store)
            try:
                await player.agent.answer(token, reply.answer)
            except RunBusy:  # somebody died while answering, and holds the run still
                return
        elif rule.how == "twice":
            await self._twice(token, reply.answer)
        else:
            await self.work(lambda agent: partial(agent.resume, token, reply.answer), rule.death)
        info = await self.store.info(self.run_id)
        assert info is not None
        if self.token == token and info.status != "suspended":
            self.old.append(self.token)
            self.token = None
        elif self.token == token and rule.how != "written":
            self.token = (
                None  # it died before the answer was written, or asks anew under a lost token
            )

    async def _twice(self, token: Any, reply: Any) -> None:
        ends: list[Ended] = []

        async def one() -> None:
            ends.append(
                await self._process(lambda agent: partial(agent.resume, token, reply), None)
            )

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(one)
        if all(end.kind in ("busy", "refused") for end in ends):
            raise Broken(f"neither answer was taken: {ends}")
        if all(end.kind not in ("busy", "refused") for end in ends):
            raise Broken(f"both answers were taken: {ends}")
        self._end_of_race(ends)

    async def reply(self, *, lie: bool) -> Reply:
        """The answer to what the run asks."""
        events = await self.store.read(self.run_id)
        asked = next(event for event in reversed(events) if isinstance(event, RunSuspended))
        text = asked.question
        names = re.findall(r'"name": "(p\d+)"', text)
        if text == "go on?":
            return Reply(triage.approve())
        if not names or re.search(r"^did agent-|^agent-", text):
            return Reply(Escalate("for a person to look into"), self._give_up)
        if asked.doubt:
            self._check_doubt(self._pay(names[0]))
            return await self._truth(names[0], text, lie=lie)
        if "may it run again" in text:
            name = names[-1]
            if len(self.world.standing(name)) >= self.most(name):
                return Reply(triage.reject("that was paid"), partial(self._refuse, name))
            return Reply(triage.approve())
        return self._approval(self._pay(names[-1]), text)

    def _approval(self, pay: Pay, text: str) -> Reply:
        match pay.guard:
            case None:
                raise Broken(f"asked whether {pay} may run: {text}")
            case "edit":
                return Reply(triage.edit({"name": pay.name, "amount": EDITED}))
            case "approve":
                return Reply(triage.approve())
            case _ if self.world.noted[f"refused {pay.name}"] >= MOST_REFUSALS:
                return Reply(Escalate("I have said no"), self._give_up)
            case _:
                return Reply(triage.reject("no"), partial(self._refuse, pay.name))

    def _refuse(self, name: str) -> None:
        self.world.note(f"refused {name}")

    def _give_up(self) -> None:
        self.gave_up = True

    def _check_doubt(self, pay: Pay) -> None:
        reworded = pay.varies or self.history.one_tool
        protected = pay.keyed and not reworded
        if not pay.is_unsafe or (protected and not self.deaths and not self._beside()):
            raise Broken(f"asked whether {pay} has happened")
        if not self.deaths and pay.outcome in ("paid", "refused") and not self._beside():
            raise Broken(f"asked whether {pay} has happened, which is known")

    def _beside(self) -> bool:
        """Whether a step may be cut off by one beside it."""
        return any(isinstance(step, Together) for step in self.history.steps)

    async def _truth(self, name: str, text: str, *, lie: bool) -> Reply:
        """Whether a payment in doubt has happened: money moved that no recorded call accounts for."""
        known = {receipt for results in await self._results() for receipt in results}
        left = [receipt for receipt in self.world.standing(name) if receipt not in known]
        if self._pay(name).varies:
            amount = re.search(r'"amount": (\d+)', text)
            left = [one for one in left if amount is None or one.endswith(f"for {amount[1]}")]
        if not left:
            return Reply(triage.rerun(), wrong=triage.approve())
        if self.world.noted[f"known {left[0]}"]:
            raise Broken(f"lost: the agent had {left[0]}")
        if lie:
            return Reply(triage.rerun(), partial(self.lies.update, [name]), triage.approve())
        return Reply(triage.happened(left[0]), wrong=triage.approve())

    def _pay(self, name: str) -> Pay:
        return next(pay for pay in self.history.pays if pay.name == name)

    async def _results(self) -> list[list[str]]:
        """The receipts that the journals of the run and of those inside it account for."""
        found: list[list[str]] = []
        for run_id in await self._runs():
            calls = fold(await self.store.read(run_id)).calls.values()
            results = [call.result for call in calls if call.outcome == "done"]
            found.append(
                [each for each in results if isinstance(each, str) and RECEIPT.match(each)]
            )
        return found

    async def _runs(self) -> list[str]:
        runs = [self.run_id]
        for run_id in runs:
            runs += [info.run_id for info in await self.store.runs(parent=run_id)]
        return runs

    # --- what must hold ---

    def most(self, name: str) -> int:
        """How often a payment may stand."""
        pay = self._pay(name)
        if pay.guard in ("reject", "insist"):
            return 0
        meant = sum(one.name == name for one in self.history.pays)
        # After a Resume a payment in other words is other work.
        again = self.world.noted["action resume"] if pay.varies else 0
        return meant * (1 + again) + self.lies[name]

    async def look(self) -> None:
        """What must hold at any time."""
        info = await self.store.info(self.run_id)
        if info is not None:
            for run_id in await self._runs():
                inner = await self.store.info(run_id)
                assert inner is not None
                events = await self.store.read(run_id)
                check_journal(events, inner.epoch)
                check_attempts(events)
        for pay in self.history.pays:
            standing = len(self.world.standing(pay.name))
            bounded = pay.is_unsafe or (pay.keyed and not pay.varies)
            if bounded and standing > self.most(pay.name):
                raise Broken(f"{pay} stands {standing} times")
        for receipt, times in self.world.refunds.items():
            if times > 1 + self.deaths or len(self.world.keys[receipt]) > 1:
                raise Broken(f"{receipt} was given back {times} times")

    async def judge(self, status: str) -> None:
        """What must hold at the end."""
        self._check_foreseen(status)
        if status == "done":
            assert self.last is not None
            ended = await self.work(lambda agent: partial(agent.recover, self.run_id))
            self._is(ended, "done")
            used: set[str] = set()
            if not self.fits(self.history.body, ended.value, used):
                raise Broken(f"lost: the result is {ended.value}")
            for name, count in Counter(pay.name for pay in self.history.pays).items():
                pay = self._pay(name)
                least = 1 if pay.effect == "idempotent" else count
                least = 0 if pay.guard in ("reject", "insist") or pay.varies else least
                if len(self.world.standing(name)) < least:
                    raise Broken(f"lost: {pay} does not stand {least} times")
            return
        if not self.may_end(status):
            raise Broken(f"the run ended as {status}: {self.last}")
        if self.world.noted["action compensate"] and status == "escalated":
            self._check_compensated()

    def _check_foreseen(self, status: str) -> None:
        """The world is reused, the judgement is not: see the point of return."""
        told = foreseen(self.history)
        if told is None or any(self.lies.values()):
            return
        end, counts = told
        if end != status:
            raise Broken(f"the run ended as {status}, not as {end}: {self.last}")
        for line in counts | self.world.noted:
            if (
                line.startswith(("read", "asked", "tried"))
                and counts[line] != self.world.noted[line]
            ):
                raise Broken(f"{line}: {self.world.noted[line]} times, not {counts[line]}")

    def _check_compensated(self) -> None:
        """All that can be undone is undone, unless another action ended the run."""
        only = {action for action in ("abort", "escalate") if self.world.noted[f"action {action}"]}
        inside = any(isinstance(step, Inside) for step in self.history.steps)
        if only or inside or self.gave_up or self.deaths or self._beside():
            return
        for pay in self.history.pays:
            if pay.undo in ("works", "once") and self.world.standing(pay.name):
                raise Broken(f"{pay} stands after a compensation")

    def may_end(self, status: str) -> bool:
        """Whether the run may end so."""
        noted = self.world.noted
        fatal = any(
            isinstance(step, Fail) and step.kind == "fatal" and noted[f"failed {step.name}"]
            for step in self.history.steps
        )
        aborted = noted["action abort"]
        match status:
            case "cancelled":
                return self.gave_up
            case "fatal":
                return fatal
            case "aborted":
                return bool(aborted or fatal)
            case _:
                inside = any(isinstance(step, Inside) for step in self.history.steps)
                return bool(
                    self.gave_up
                    or any(pay.guard == "insist" for pay in self.history.pays)
                    or noted["action escalate"]
                    or noted["action compensate"]
                    or (inside and (fatal or aborted))
                    or self._cannot_go_back()
                    or (self.history.on_in_doubt == "fail" and self._may_doubt())
                )

    def _may_doubt(self) -> bool:
        unsure = any(pay.outcome in ("unsent", "unanswered") for pay in self.history.pays)
        varies = any(pay.varies for pay in self.history.pays)
        return bool(unsure or varies or self.deaths or self._beside() or self.history.one_tool)

    def _cannot_go_back(self) -> bool:
        """Whether a rollback may have come to a payment that cannot be undone."""
        back = self.world.noted["action rollback"] or self.world.noted["action start over"]
        inside = any(isinstance(step, Inside) for step in self.history.steps)
        return bool(back) and any(
            pay.is_unsafe
            and (inside or pay.undo in (None, "fails") or self.deaths or pay.outcome != "paid")
            for pay in self.history.pays
        )

    def fits(self, node: Node, result: Any, used: set[str]) -> bool:
        """Whether this is what the steps give; each receipt is of money that moved, and is used once."""
        match node:
            case Pay():
                return self._fits_pay(node, result, used)
            case Read(name):
                return bool(result == f"value of {name}")
            case Ask(name):
                return bool(result == f"answer of {name}")
            case Fail() | Note():
                return result is None
            case InTurn(parts) | Together(parts):
                return len(result) == len(parts) and all(
                    self.fits(part, each, used) for part, each in zip(parts, result, strict=True)
                )
            case Inside(_, body):
                return self.fits(body, result, used)

    def _fits_pay(self, pay: Pay, result: Any, used: set[str]) -> bool:
        if result == REFUSED.format(pay.name):
            return pay.guard in ("reject", "insist") or pay.varies
        amounts = {
            "edit": (EDITED,),
            "reject": (),
            "insist": (),
        }.get(pay.guard or "", (WANTED + 1, WANTED + 2) if pay.varies else (WANTED,))
        found = RECEIPT.fullmatch(str(result))
        if found is None or found[1] != pay.name or int(found[2]) not in amounts:
            return False
        fresh = pay.effect == "idempotent" or result not in used
        fresh = fresh and result in self.world.standing(pay.name)
        used.add(result)
        return fresh
