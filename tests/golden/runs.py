"""The agents whose runs stand in the golden files, and what they do there.

A stored run finds its recorded calls by the names and arguments below: changing one of these agents
makes another agent of it, and the golden files are of no use to that one.
"""

from __future__ import annotations

import contextlib
import itertools
import sysconfig  # noqa: F401 - what a first failure imports looks at the disk, which no event loop may
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

import triage
from triage import (
    Abort,
    Agent,
    Diagnosis,
    Escalate,
    FailurePolicy,
    FailureType,
    Replan,
    Resume,
    Retry,
    Rollback,
    Run,
    Severity,
    Step,
    Suspend,
    Trajectory,
    Usage,
)
from triage.core import Observer
from triage.plan import (
    Approval,
    Capability,
    ExecutionPlan,
    Input,
    Orchestrator,
    PlannedStep,
    Registry,
    unsafe_effects,
)
from triage.stores import Store
from triage.testing import FaultPlan

NOON = 1_761_474_900.0
"""2025-10-26T10:35:00Z, when everything in the golden files happened."""
LONG = "a line of a long answer. " * 200
"""Longer than what stands in the journal itself."""


class Clock:
    """An environment whose time moves by a quarter of a second with every look and by each sleep."""

    def __init__(self, name: str = "run") -> None:
        self.name = name
        self.now = NOON
        self._ids = itertools.count(1)

    def time(self) -> float:
        self.now += 0.25
        return self.now

    def monotonic(self) -> float:
        return self.now

    def new_id(self) -> str:
        return f"{self.name}-id-{next(self._ids)}"

    def new_token(self) -> str:
        return f"{self.name}-token-{next(self._ids)}"

    def random(self) -> float:
        return 0.5

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass(frozen=True)
class Trip:
    """What a traveller comes back with."""

    city: str
    cents: int


class Judge:
    """Says one thing of every failure."""

    def __init__(self, severity: Severity = Severity.RETRIABLE) -> None:
        self._severity = severity

    def classify(self, trajectory: Trajectory, task: Any) -> Diagnosis:
        return Diagnosis(
            FailureType.EXTERNAL_FAULT,
            severity=self._severity,
            critical_step=1,
            hint="Ask for less.",
        )


def _policy(*actions: Any) -> FailurePolicy:
    """These actions one after the other, the last one for ever."""
    return FailurePolicy(default=lambda context: actions[min(context.attempt, len(actions)) - 1])


class World:
    """All golden agents on one store.

    did: the effects that happened, in order. keys: the idempotency keys that were taken. waits: set
    when `waiter` waits. faults: what fails, by tool and count. bank_answers: whether `transfer` comes to
    its end. refunds: whether what was paid is given back. gate: what `waiter` waits for, None for nothing.
    observers: of all agents.
    """

    def __init__(
        self,
        store: Store,
        *,
        environment: Clock | None = None,
        faults: FaultPlan | None = None,
        bank_answers: bool = True,
        refunds: bool = True,
        gate: anyio.Event | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.did: list[str] = []
        self.keys: list[str] = []
        self.bank_answers = bank_answers
        self.refunds = refunds
        self.waits = anyio.Event()
        self.gate = gate
        self._options: dict[str, Any] = {
            "store": store,
            "environment": Clock() if environment is None else environment,
            "observers": observers,
        }
        self._faults = FaultPlan({}) if faults is None else faults
        self._tools()
        self.agents: dict[str, Agent[Any]] = {}
        self._agents()
        self.planner = self._orchestrator("planner", Approval())
        self.careful = self._orchestrator(
            "careful", Approval("selective", unsafe_effects(self._registry()), of="step")
        )

    # Tools ----------------------------------------------------------------------------------------

    def _tools(self) -> None:
        @triage.tool(effect="read")
        async def look(city: str) -> list[str]:
            self.did.append(f"look {city}")
            if city == "Atlantis":
                raise LookupError("no such city")
            if city == "Porto":
                raise ConnectionRefusedError("refused")
            return [city, "sunny"]

        @triage.tool(effect="idempotent")
        async def quote(city: str) -> Trip:
            self.did.append(f"quote {city}")
            return Trip(city, 300)

        @triage.tool(effect="read")
        async def manual(city: str) -> str:
            return LONG

        async def refund(receipt: str) -> None:
            if not self.refunds:
                raise ConnectionError("no refunds")
            self.did.append(f"refund {receipt}")

        @triage.tool(effect="once", compensate=refund)
        async def pay(cents: int) -> str:
            self.did.append(f"pay {cents}")
            return f"receipt {cents}"

        @triage.tool(effect="once")
        async def mail(to: str) -> str:
            self.keys.append(triage.current_call().idempotency_key)
            self.did.append(f"mail {to}")
            return f"mailed {to}"

        @triage.tool(effect="once")
        async def transfer(cents: int) -> str:
            self.did.append(f"transfer {cents}")
            if not self.bank_answers:
                raise ConnectionResetError("connection reset")
            return f"transferred {cents}"

        wrap = self._faults.wrap_tool
        self.look, self.quote, self.manual = wrap(look), wrap(quote), wrap(manual)
        self.pay, self.mail, self.transfer = wrap(pay), wrap(mail), wrap(transfer)

    # Agents ---------------------------------------------------------------------------------------

    def _agent(self, function: Any, *actions: Any, **options: Any) -> Agent[Any]:
        options = {
            "classifier": Judge(), "name": function.__name__, **self._options, **options,
        }  # fmt: skip
        made: Agent[Any] = Agent(function, _policy(*actions or (Escalate(),)), **options)
        self.agents[made.name] = made
        return made

    def _agents(self) -> None:
        self._agent(
            self.traveller,
            Retry(hint="Once more.", delay=1.5, inject={"budget": 7}),
            Replan(hint="Another way."),
            Resume(),
            Retry(),
            result_type=Trip,
        )
        self._agent(self.returner, Rollback(2, hint="Go back."), Retry())
        question = Suspend("May I buy it?", metadata={"desk": "travel", "price": 3})
        self._agent(self.asker, question, Retry())
        self._agent(self.sender)
        self._agent(self.buyer)
        self._agent(self.by_hand)
        self._agent(self.waiter)
        self._agent(self.clerk, Suspend("May I sign?"), Retry())
        self._agent(self.office, Retry())
        self._agent(self.failer, Abort("of no use", compensate=True), name="aborter")
        self._agent(self.failer, Retry(), Escalate("a person must look"), name="escalator")
        self._agent(self.failer, classifier=Judge(Severity.FATAL), name="faller")

    async def traveller(
        self,
        task: dict[str, Any],
        *,
        run: Run,
        record_step: Callable[[Step], int],
        update_state: Callable[[dict[str, Any]], int],
        record_usage: Callable[[Usage], None],
        budget: int = 0,
    ) -> Trip:
        """Records everything that can be recorded, and fails four times."""
        run.subgoals(["find", "book"])
        city = task["city"]
        await self.look(city)
        for wrong in ("Atlantis", "Porto"):
            with contextlib.suppress(LookupError, ConnectionRefusedError):
                await self.look(wrong)
        trip = await self.quote(city)
        await self.manual(city)
        record_step(Step(action="think", tool_output={"city": city, "at": (1, 2)}))
        record_usage(Usage(input_tokens=100, output_tokens=10, cost_usd=0.01))
        update_state({"city": city, "attempt": run.attempt})
        run.complete("find")
        if run.attempt == 1:
            for _ in range(6):
                record_step(
                    Step(action="call", tool_called="search", tool_input=city, tool_output="-")
                )
        await self.pay(trip.cents)
        await self.mail("ann")
        if run.attempt <= 4:
            raise ConnectionError(f"lost in attempt {run.attempt}")
        run.complete("book")
        return Trip(city, trip.cents + budget)

    async def returner(self, task: str, *, run: Run) -> list[str]:
        """Goes back to a checkpoint, behind which everything is undone."""
        run.record_step(Step(action="begin"))
        receipts = [await self.pay(5), await self.pay(7)]
        if run.attempt == 1:
            raise ConnectionError("late")
        return receipts

    async def asker(self, task: str, *, run: Run, price: int = 3) -> str:
        """May not buy without being told so."""
        await self.look(task)
        if run.attempt == 1:
            raise PermissionError("may I?")
        return f"{await self.pay(price)} for {task}"

    async def sender(self, task: str, *, run: Run) -> str:
        """Sends money through a bank that may not answer."""
        await self.pay(5)
        return str(await self.transfer(500))

    async def buyer(self, task: str, *, run: Run, client: Any = None) -> list[Any]:
        """Reads, pays twice and mails."""
        found = await self.look(task)
        run.update_state({"found": found})
        receipts = [await self.pay(5), await self.pay(7)]
        trip = await self.quote(task)
        return [*found, *receipts, trip.cents, await self.mail("ann")]

    async def by_hand(self, task: str, *, run: Run) -> str:
        """Says of its own work that it must not happen twice."""
        self.did.append("by hand")
        run.record_step(Step(action="pay", effect=triage.Effect.ONCE))
        await run.flush()
        await self.look(task)
        return "never told"

    async def waiter(self, task: str, *, run: Run) -> str:
        """Is cancelled while it waits."""
        receipt = await self.pay(5)
        self.waits.set()
        if self.gate is not None:
            await self.gate.wait()
        return str(receipt)

    async def clerk(self, task: str, *, run: Run) -> str:
        """Works inside the office: its runs stand in those of the office."""
        run.record_usage(Usage(input_tokens=7, output_tokens=1))
        if task == "sign" and run.attempt == 1:
            raise PermissionError("may I?")
        return f"{await self.pay(len(task))} of {task}"

    async def office(self, task: list[str], *, run: Run) -> list[str]:
        """Has the clerk do one thing after the other."""
        return [await self.agents["clerk"].run(each) for each in task]

    async def failer(self, task: str, *, run: Run) -> None:
        """Pays, and fails in the same way each time."""
        await self.pay(9)
        raise ConnectionError(f"gone for {task}")

    # Plans ----------------------------------------------------------------------------------------

    def _registry(self) -> Registry:
        async def find(name: str) -> str:
            self.did.append(f"find {name}")
            return f"{name}-1"

        async def read(address: str) -> list[str]:
            self.did.append(f"read {address}")
            return ["value of", address]

        async def charge(cents: int) -> int:
            self.did.append(f"charge {cents}")
            return cents

        async def respond(**results: Any) -> dict[str, Any]:
            return results

        wrap: Callable[[Any], Any] = self._faults.wrap_tool
        return Registry([
            Capability("find", "finds a device", wrap(find), provides=("ADDRESS",), effect="read"),
            Capability(
                "read", "reads it", wrap(read), requires=("ADDRESS",), provides=("VALUE",), effect="read"
            ),
            Capability("charge", "charges money", wrap(charge), effect="once"),
            Capability("respond", "answers", respond, effect="read"),
        ])  # fmt: skip

    def _orchestrator(self, name: str, approval: Approval) -> Orchestrator:
        async def select(request: Any) -> list[str]:
            return ["find", "read", "charge"]

        async def plan(request: Any) -> ExecutionPlan:
            return TORN if not request.feedback else PLAN

        return Orchestrator(
            self._registry(), plan, selector=select, approval=approval, name=name, **self._options
        )


PLAN = ExecutionPlan((
    PlannedStep("where", "find", "find the beam", parameters={"name": "beam"}),
    PlannedStep("now", "read", "read it", inputs=(Input("ADDRESS", "where"),)),
    PlannedStep("bill", "charge", "charge for it", parameters={"cents": 5}),
    PlannedStep("out", "respond", "answer", inputs=(Input("VALUE", "now"),)),
))  # fmt: skip
TORN = ExecutionPlan((PlannedStep("x", "teleport", "go there"),))
"""A plan with something that nobody can do: it is refused."""
PLANNED = {"now": ["value of", "beam-1"]}
"""The result of `PLAN`."""
