"""The world outside of a run, the processes that work on the run, and the agents they make of a program."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import sniffio

import triage
from triage import (
    Abort,
    Agent,
    Checks,
    Diagnosis,
    Durability,
    Escalate,
    FailurePolicy,
    FailureType,
    Limits,
    Replan,
    Resume,
    Retry,
    Rollback,
    Run,
    Severity,
    Step,
    Suspend,
    Trajectory,
)
from triage.core.errors import StaleWriter
from triage.core.taxonomy import Cause
from triage.engine import CallDenied, Guard, GuardedCall
from triage.engine.tools import Compensator
from triage.stores import Store
from triage.testing import VirtualTime

from .histories import Ask, Death, Fail, History, Inside, InTurn, Node, Note, Pay, Read, Together

EPOCH = 1_767_225_600.0
WANTED, EDITED = 7, 5
"""The amount of a payment, and what a person edits it to."""
REFUSED = "{} was refused"
ACTIONS = {
    "retry": Retry(),
    "replan": Replan(),
    "rollback": Rollback(),
    "resume": Resume("the rest"),
    "suspend": Suspend("go on?"),
    "escalate": Escalate("enough"),
    "compensate": Escalate("enough", compensate=True),
    "abort": Abort("no"),
}
RECEIPT = re.compile(r"receipt \d+ of (p\d+) for (\d+)")


class Killed(BaseException):
    """The process is gone."""


def _named(receipt: str) -> str:
    """A receipt without its number, by which an idempotent payment is known."""
    return receipt[receipt.index(" of ") :]


class World:
    """What is outside: what happened stays, whatever becomes of the processes.

    noted: how often each thing has happened. begun: the first checkpoint of each run's latest attempt.
    receipts: of the payments made, oldest first. refunds: how often the compensator of each receipt has
    done its work, and `keys` under which keys.
    """

    def __init__(self) -> None:
        self.noted: Counter[str] = Counter()
        self.receipts: list[str] = []
        self.refunds: Counter[str] = Counter()
        self.keys: dict[str, set[str]] = {}
        self.begun: dict[str, int] = {}
        self._by_key: dict[str, str] = {}

    def note(self, line: str) -> int:
        """Note this, and say how often it has been noted."""
        self.noted[line] += 1
        return self.noted[line]

    def pay(self, name: str, amount: int, key: str | None) -> str:
        """Move the money, once for each key; the receipt."""
        if key is not None and key in self._by_key:
            return self._by_key[key]
        receipt = f"receipt {len(self.receipts) + 1} of {name} for {amount}"
        self.receipts.append(receipt)
        if key is not None:
            self._by_key[key] = receipt
        return receipt

    def refund(self, receipt: str, key: str) -> None:
        """Give the money back."""
        self.refunds[receipt] += 1
        self.keys.setdefault(receipt, set()).add(key)
        self._by_key.pop(_named(receipt), None)

    def standing(self, name: str) -> list[str]:
        """The payments of this name that were made and not given back."""
        made = (receipt for receipt in self.receipts if f" of {name} for " in receipt)
        return [receipt for receipt in made if not self.refunds[receipt]]


class Process:
    """A process at work, until it dies: from then on it reaches neither the world nor the store."""

    def __init__(self, world: World, death: Death | None = None) -> None:
        self.world = world
        self.dead = False
        self.scope = anyio.CancelScope()
        self.died_at = ""
        self._writes: deque[tuple[int, Callable[[], None]]] = deque()
        self._queued = anyio.Event()
        self._death = death
        self._left = -1 if death is None else death.at
        self._thread = threading.get_ident()

    def instant(self, where: str) -> None:
        """Die here, if this is the instant."""
        if self.dies(where):
            raise Killed

    def dies(self, where: str) -> bool:
        """Whether the process is dead, or dies now."""
        if self.dead or self._left < 0 or threading.get_ident() != self._thread:
            return self.dead
        self._left -= 1
        if self._left < 0:
            self.died_at = where
            assert self._death is not None
            if self._death.clean:
                self.scope.cancel()
            else:
                self.dead = True
        return self.dead

    def queue(self, lag: int, write: Callable[[], None]) -> None:
        """Have the disk do this after so many turns, in order; at once for one that needs none."""
        if lag and threading.get_ident() == self._thread:
            self._writes.append((lag, write))
            self._queued.set()
        else:
            write()

    async def disk(self) -> None:
        """Write what is queued. What is queued when the process dies is lost."""
        while True:
            await self._queued.wait()
            self._queued = anyio.Event()
            while self._writes:
                lag, write = self._writes.popleft()
                for _ in range(lag):
                    await anyio.lowlevel.checkpoint()
                write()


class Seen:
    """A store as a process sees it: each write is an instant, before and after it."""

    def __init__(self, store: Store, process: Process, lag: int = 0) -> None:
        self._store = store
        self._process = process
        self._lag = lag
        self.durable = True

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name == "close":
            return method
        return partial(self._called, name, method)

    async def _called(
        self, name: str, method: Callable[..., Any], *args: Any, **options: Any
    ) -> Any:
        process = self._process
        for _ in range(self._lag):
            await anyio.lowlevel.checkpoint()
        writes = name in ("append", "claim", "release")
        if process.dies(f"before {name}") if writes else process.dead:
            raise StaleWriter("the process is gone")
        result = await method(*args, **options)
        if writes and process.dies(f"after {name}"):
            raise StaleWriter("the process is gone")
        return result

    def submit(
        self, run_id: str, events: Sequence[Any], *, done: Callable[[Any], None], **options: Any
    ) -> None:
        write = partial(self._write, run_id, events, done=done, **options)
        self._process.queue(self._lag, write)

    def _write(self, *args: Any, done: Callable[[Any], None], **options: Any) -> None:
        if self._process.dies("before a write"):
            done(StaleWriter("the process is gone"))
        elif self._process.dies("after a write"):
            gone = StaleWriter("the process is gone")
            self._store.submit(*args, done=lambda _: done(gone), **options)
        else:
            self._store.submit(*args, done=done, **options)


class Player:
    """Makes the agents of a history for one process."""

    def __init__(self, history: History, process: Process, store: Store) -> None:
        self._history = history
        self._process = process
        self._world = process.world
        # A sync tool holds up the event loop until its call is written down.
        sync = any(pay.sync for pay in history.pays)
        self._store: Any = Seen(store, process, 0 if sync else history.lag)
        # No two processes begin at the same time.
        self._time = VirtualTime(start=EPOCH + 1000 * self._world.note("process"))
        self._fails = {step.name: step for step in history.steps if isinstance(step, Fail)}
        self._pays = {pay.name: pay for pay in history.pays}
        self._tools: dict[str, Any] = {}
        for pay in history.pays:
            self._tools.setdefault(self._tool_name(pay), self._tool(pay))
        self._agents: dict[str, Agent[Any]] = {}
        self.agent = self._agent("outer", history.body)

    def _agent(self, name: str, body: Node) -> Agent[Any]:
        """An agent that does this."""

        async def works(_task: str, *, run: Run) -> Any:
            self._process.instant("begin")
            begun = run.record_step(Step(action="begin"))
            self._world.begun[run.run_id] = begun
            return await self._do(body, run)

        # No guard that is awaited can be asked about a sync tool.
        sync = any(pay.sync for pay in self._history.pays)
        decide: Any = self._guard_here if sync else self._guard
        return Agent(
            works,
            FailurePolicy(default=self._decide),
            name=name,
            classifier=self,
            store=self._store,
            limits=Limits(attempts=200),
            checks=Checks(guard=Guard(decide, ("once", "unknown", "idempotent")), watch=False),
            environment=self._time,
            durability=Durability(on_in_doubt=self._history.on_in_doubt, redact=False),  # type: ignore[arg-type]
        )

    # --- what goes wrong, and what is done about it ---

    def _failing(self, error: Any) -> Fail | None:
        words = "" if error is None else " ".join(part.message for part in error.walk())
        found = sorted(re.findall(r"failure \d+ at (f\d+)", words))
        return self._fails[found[0]] if found else None

    async def classify(self, trajectory: Trajectory, _task: Any) -> Diagnosis:
        fail = self._failing(trajectory.error)
        match "external" if fail is None else fail.kind:
            case "external":
                return Diagnosis(FailureType.EXTERNAL_FAULT, severity=Severity.RETRIABLE)
            case "conflict":
                return Diagnosis(
                    FailureType.EXTERNAL_FAULT, cause=Cause.CONFLICT, severity=Severity.RETRIABLE
                )
            case "fatal":
                return Diagnosis(FailureType.EXTERNAL_FAULT, severity=Severity.FATAL)
            case _:
                return Diagnosis(FailureType.UNKNOWN, severity=Severity.RETRIABLE)

    def _decide(self, context: Any) -> Any:
        fail = self._failing(context.error)
        action = "retry" if fail is None else fail.action
        ended = context.error is not None and context.error.is_a("TriageError")
        if fail is None and ended and self._world.note(f"inner {context.error.message[-80:]}") > 1:
            action = "escalate"  # the run inside has ended so before
        self._world.note(f"action {action}")
        if action == "start over":
            return Rollback(self._world.begun.get(context.run_id))
        return ACTIONS[action]

    async def _guard(self, call: GuardedCall) -> Suspend | None:
        return self._guard_here(call)

    def _guard_here(self, call: GuardedCall) -> Suspend | None:
        pay = self._pays.get(call.arguments.get("name", ""))
        return None if pay is None or pay.guard is None else Suspend(f"approve {pay.name}?")

    # --- the steps ---

    async def _do(self, node: Node, run: Run) -> Any:  # noqa: PLR0911 - one for each kind
        match node:
            case Pay():
                return await self._pay(node, run)
            case Read():
                return await self._tools_read(node)
            case Ask(name, pauses):
                return await run.model(self._model, name, pauses)
            case Fail(name, _, _, times):
                self._process.instant("fail")
                if (count := self._world.note(f"failed {name}")) <= times:
                    raise RuntimeError(f"failure {count} at {name}")
                return None
            case Note(name):
                run.update_state({name: True})
                return None
            case InTurn(parts):
                return [await self._do(part, run) for part in parts]
            case Together(parts, gather):
                return await self._together(parts, run, gather=gather)
            case Inside(name, body):
                if name not in self._agents:
                    self._agents[name] = self._agent(name, body)
                return await self._agents[name].run(f"task of {name}")

    async def _together(self, parts: Sequence[Node], run: Run, *, gather: bool) -> list[Any]:
        if gather and sniffio.current_async_library() == "asyncio":
            return list(await asyncio.gather(*(self._do(part, run) for part in parts)))
        found: list[Any] = [None] * len(parts)

        async def one(index: int) -> None:
            found[index] = await self._do(parts[index], run)

        async with anyio.create_task_group() as group:
            for index in range(len(parts)):
                group.start_soon(one, index)
        return found

    async def _tools_read(self, node: Read) -> str:
        read = triage.tool(effect="read", name="read")(self._read)
        return str(await read(node.name, node.failures, node.pauses))

    async def _read(self, name: str, failures: int, pauses: int) -> str:
        await self._pause(pauses)
        self._process.instant("read")
        if (count := self._world.note(f"read {name}")) <= failures:
            raise ConnectionError(f"the {count}th time at {name}")
        return f"value of {name}"

    async def _model(self, name: str, pauses: int) -> str:
        await self._pause(pauses)
        self._process.instant("model")
        self._world.note(f"asked {name}")
        return f"answer of {name}"

    @staticmethod
    async def _pause(turns: int) -> None:
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()

    # --- payments ---

    def _tool_name(self, pay: Pay) -> str:
        if not self._history.one_tool:
            return f"pay_{pay.name}"
        return f"pay_{pay.effect}_{pay.undo}_{pay.keyed}_{pay.sync}_{pay.retries}"

    def _tool(self, pay: Pay) -> Any:
        undo: Any = partial(self._refund, pay.undo)
        if pay.undo == "once":
            undo = Compensator(undo, retries=1)
        make: Any = triage.tool(
            effect=pay.effect,
            name=self._tool_name(pay),
            compensate=None if pay.undo is None else undo,
            retries=pay.retries,
        )

        async def pays(name: str, amount: int) -> str:
            key = triage.current_call().idempotency_key if pay.keyed else None
            await self._pause(self._pays[name].pauses)
            receipt = self._moves(name, amount, key)
            await self._pause(self._pays[name].pauses)
            self._process.instant("behind a payment")
            return receipt

        def pays_here(name: str, amount: int) -> str:
            key = triage.current_call().idempotency_key if pay.keyed else None
            return self._moves(name, amount, key)

        return make(pays_here if pay.sync else pays)

    def _moves(self, name: str, amount: int, key: str | None) -> str:
        """Move the money, or fail as the payment's first try does."""
        pay = self._pays[name]
        self._process.instant("before a payment")
        outcome = pay.outcome if self._world.note(f"tried {name}") == 1 else "paid"
        if outcome == "refused":
            raise ConnectionRefusedError("connection refused")
        if outcome == "unsent":
            raise ConnectionResetError("connection reset")
        if pay.effect == "idempotent":
            key = _named(f" of {name} for {amount}")
        receipt = self._world.pay(name, amount, key)
        self._process.instant("after a payment")
        if outcome == "unanswered":
            raise ConnectionResetError("connection reset")
        return receipt

    async def _refund(self, undo: str | None, receipt: str) -> None:
        self._process.instant("before a refund")
        tries = self._world.note(f"refund of {receipt}")
        if undo == "fails" or (undo == "once" and tries == 1):
            raise ConnectionError("the bank is closed")
        self._world.refund(receipt, triage.current_call().idempotency_key)
        self._process.instant("after a refund")

    async def _pay(self, pay: Pay, run: Run) -> str:
        if self._world.noted[f"refused {pay.name}"] and pay.guard != "insist":
            return REFUSED.format(pay.name)  # it was told so
        body = self._tools[self._tool_name(pay)]
        amount = WANTED + (min(run.attempt, 2) if pay.varies else 0)
        try:
            receipt = str(body(pay.name, amount) if pay.sync else await body(pay.name, amount))
        except CallDenied:
            return REFUSED.format(pay.name)
        if not self._process.dead:
            self._world.note(f"known {receipt}")
        self._process.instant("behind a call")
        return receipt
