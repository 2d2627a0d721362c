"""A travel desk whose runs end in every way: done, recovered, handed over, waiting, in doubt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import triage
from triage import Agent, Checks, FailurePolicy, Limits, Step, Usage
from triage.core import Suspend, TriageError
from triage.engine import GuardedCall
from triage.incidents import IncidentDesk
from triage.stores import Store
from triage.strategies import Backoff, backoff_and_retry, replan

MODEL = "scripted-1"


@triage.tool(effect="read")
async def search_flights(origin: str, to: str, day: str) -> list[dict[str, Any]]:
    """The flights of a day."""
    await asyncio.sleep(0.02)
    return [
        {"flight": "AF1204", "from": origin, "to": to, "day": day, "price_eur": 128},
        {"flight": "U2 4417", "from": origin, "to": to, "day": day, "price_eur": 94},
    ]


@triage.tool(effect="read")
async def seat_map(flight: str) -> dict[str, Any]:
    """The free seats of a flight."""
    await asyncio.sleep(0.01)
    return {"flight": flight, "free": ["12A", "12C", "14F"]}


@triage.tool(effect="once")
async def charge_card(card: str, cents: int) -> str:
    """Charge a card."""
    await asyncio.sleep(0.02)
    return f"receipt-{cents}"


@triage.tool(effect="once")
async def charge_and_hang_up(card: str, cents: int) -> str:
    """Charge a card over a line that breaks before the answer."""
    raise ConnectionResetError("connection reset by peer while the answer was read")


@triage.tool(effect="idempotent")
async def send_mail(to: str, subject: str) -> str:
    """Send a mail."""
    return "queued"


async def says(record_step: Any, text: str, tokens: int, cost: float) -> None:
    """Let the model say something, which takes it a moment."""
    await asyncio.sleep(0.03)
    usage = Usage(input_tokens=tokens, output_tokens=tokens // 6, cost_usd=cost, model=MODEL)
    record_step(Step(action="model", llm_output=text, usage=usage, duration_s=0.03))


async def books(task: str, *, record_step: Any, _triage_hint: str | None = None) -> dict[str, Any]:
    """Books at once."""
    await says(record_step, "I look for flights first.", 410, 0.0011)
    found = await search_flights("CDG", "FCO", "2026-12-01")
    await says(record_step, f"The cheapest is {found[1]['flight']}.", 730, 0.0019)
    receipt = await charge_card("card-on-file", 9400)
    return {"flight": found[1]["flight"], "receipt": receipt}


def flaky(failures: int) -> Callable[..., Any]:
    """An agent whose seat service is down for so many attempts."""
    left = failures

    async def flaky_desk(task: str, *, record_step: Any, _triage_hint: str | None = None) -> str:
        nonlocal left
        await says(record_step, "I look for flights first.", 410, 0.0011)
        days = ("2026-12-01", "2026-12-02")
        found = await asyncio.gather(*(search_flights("CDG", "FCO", day) for day in days))
        if left:
            left -= 1
            raise ConnectionError("seats.internal: connection refused")
        await seat_map(found[0][0]["flight"])
        await charge_card("card-on-file", 12800)
        return "booked AF1204, seat 12A"

    return flaky_desk


def loops(times: int) -> Callable[..., Any]:
    """An agent that asks the same again and again, until it is told."""

    async def looping_desk(task: str, *, record_step: Any, _triage_hint: str | None = None) -> str:
        for turn in range(times):
            if _triage_hint is not None:
                break
            await says(record_step, "Let me look once more.", 500 + 20 * turn, 0.0013)
            await search_flights("CDG", "FCO", "2026-12-01")
        await search_flights("ORY", "FCO", "2026-12-02")
        await says(record_step, "On the second there is one.", 640, 0.0017)
        return "U2 4417 on the second"

    return looping_desk


async def malformed(task: str, *, record_step: Any, _triage_hint: str | None = None) -> Any:
    """Answers with JSON that lacks a field, and cannot do better."""
    await search_flights("CDG", "FCO", "2026-12-01")
    await says(record_step, '{"flight": "AF1204", "price": "128 EUR"}', 520, 0.0014)
    return json.loads('{"flight": "AF1204", "price": "128 EUR"')


async def pays_much(task: str, *, record_step: Any) -> str:
    """Charges more than it may without a person."""
    await says(record_step, "The family of five flies together.", 480, 0.0012)
    await search_flights("CDG", "JFK", "2026-12-20")
    return await charge_card("card-on-file", 412_000)


async def hangs_up(task: str, *, record_step: Any) -> str:
    """Charges, and never hears of it."""
    await says(record_step, "I charge the card.", 300, 0.0008)
    return await charge_and_hang_up("card-on-file", 9400)


def over_the_limit(call: GuardedCall) -> Suspend | None:
    """Ask before a charge of more than a thousand."""
    cents = call.arguments.get("cents", 0)
    return Suspend(f"Charge {cents / 100:,.2f} EUR?") if cents > 100_000 else None


async def fill(store: Store) -> None:
    """Put a run of every kind into a store."""
    quick = FailurePolicy(
        EXTERNAL_FAULT=backoff_and_retry(max_attempts=4, backoff=Backoff(base=0.05)),
        LOOP_DETECTED=replan("Try another airport, or another day."),
        default=FailurePolicy.escalate_by_default(),
    )
    for run_id, function, task in (
        ("order-1001", books, "Book the cheapest flight from Paris to Rome on 1 December"),
        ("order-1002", flaky(2), "Book a flight to Rome with a window seat"),
        ("order-1003", loops(12), "Find any flight to Rome before Friday"),
        ("order-1004", malformed, "Quote a flight to Rome as JSON"),
        ("order-1005", flaky(9), "Book a seat on AF1204"),
        ("order-1006", pays_much, "Fly a family of five to New York"),
        ("order-1007", hangs_up, "Pay order 1007"),
    ):
        agent: Agent[Any] = Agent(
            function,
            name=function.__name__,
            store=store,
            policy=quick,
            limits=Limits(attempts=5, cost_usd=0.5),
            checks=Checks(guard=over_the_limit),
        )
        with suppress(TriageError):
            await agent.run(task, run_id=run_id)


async def file_incidents(store: Store) -> None:
    """Make incidents of the runs that failed, and of a failure elsewhere, which somebody takes."""
    desk = IncidentDesk(store, owner="supervisor")
    reported = await desk.report(
        "no space left on device: /var/lib/fares", agent_type="fare_loader", task_id="load-1201"
    )
    await desk.detect()
    await desk.escalate(reported.error_id, "architect")
    await desk.acknowledge(reported.error_id, by="ann", note="I move the old fares away.")
    await desk.close()


class Working:
    """A run in progress: each `step` makes it do one more thing."""

    def __init__(self) -> None:
        self._turns: asyncio.Queue[str] = asyncio.Queue()
        self.begun = asyncio.Event()

    async def desk(self, task: str, *, record_step: Any) -> str:
        """Do one thing for each turn."""
        self.begun.set()
        number = 0
        while await self._turns.get() == "on":
            number += 1
            await search_flights("CDG", "FCO", f"2026-12-{number % 28 + 1:02d}")
            await says(record_step, f"Nothing on day {number}.", 300 + number, 0.0009)
        return f"looked at {number} days"

    def step(self) -> None:
        """Let it do one more thing."""
        self._turns.put_nowait("on")

    def end(self) -> None:
        """Let it end."""
        self._turns.put_nowait("end")


@asynccontextmanager
async def work(store: Store, run_id: str) -> AsyncGenerator[Working]:
    """A run in progress while the block runs; then it ends."""
    working = Working()
    agent = Agent(working.desk, name="desk", store=store)
    running = asyncio.ensure_future(agent.run("Watch the prices to Rome", run_id=run_id))
    await working.begun.wait()
    try:
        yield working
    finally:
        working.end()
        await running
