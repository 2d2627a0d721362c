"""The tasks: one per kind of failure, each with its faults and a check of what really happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .agent import Answer
from .faults import Fault, Kind

if TYPE_CHECKING:
    from .shop import Shop


class Task(NamedTuple):
    """One task.

    id: short name. prompt: what the agent is asked. trouble: what goes wrong, for people. city,
    passengers: where the right fare goes and for how many. order_id: the order that must be paid,
    None for a question only. faults: of the service; what the model does wrong follows from the
    words of the prompt.
    """

    id: str
    trouble: str
    prompt: str
    city: str
    passengers: int = 1
    order_id: int | None = None
    faults: tuple[Fault, ...] = ()

    def check(self, answer: object, shop: Shop) -> bool:
        """Whether the task is done: the answer is the best fare, and the ledger has the payment."""
        if not isinstance(answer, Answer):
            return False
        best = min(shop.fares(self.city, self.passengers), key=lambda fare: fare.cents)
        total = best.cents * self.passengers
        if (answer.fare_id, answer.cents) != (best.fare_id, total):
            return False
        if self.order_id is None:
            return answer.order_id is None
        paid = [row for row in shop.charges(self.order_id) if row.cents == total]
        return answer.order_id == self.order_id and answer.receipt in {row.receipt for row in paid}

    def repeated(self, shop: Shop) -> int:
        """How many charges of its order are second or later ones."""
        if self.order_id is None:
            return 0
        return max(0, len(shop.charges(self.order_id)) - 1)


TASKS = (
    Task(
        "healthy",
        "nothing",
        "Pay for order 1001: the cheapest fare to Lisbon.",
        "Lisbon",
        order_id=1001,
    ),
    Task(
        "unknown_tool",
        "the model calls an unknown tool",
        "Find the cheapest flight to Oslo.",
        "Oslo",
    ),
    Task(
        "wrong_argument",
        "it passes a word for an integer",
        "Find the cheapest fare to Athens for three passengers.",
        "Athens",
        passengers=3,
    ),
    Task(
        "malformed_output",
        "the final answer is not JSON",
        "Find the cheapest fare to Vienna. Be friendly.",
        "Vienna",
    ),
    Task(
        "loop",
        "it repeats a search to the end",
        "Find the cheapest fare to Porto, or to Braga.",
        "Braga",
    ),
    Task(
        "false_success",
        "it says it paid, and did not",
        "Confirm that order 1002, the cheapest fare to Rome, is paid; pay it if not.",
        "Rome",
        order_id=1002,
    ),
    Task(
        "rate_limit",
        "429 for a second",
        "Find the cheapest fare to Madrid.",
        "Madrid",
        faults=(Fault(Kind.RATE_LIMIT),),
    ),
    Task(
        "outage",
        "503, twice",
        "Find the cheapest fare to Dublin.",
        "Dublin",
        faults=(Fault(Kind.OVERLOADED, times=2),),
    ),
    Task(
        "cut_stream",
        "the model's stream breaks off",
        "Find the cheapest fare to Prague.",
        "Prague",
        faults=(Fault(Kind.CUT),),
    ),
    Task(
        "timeout",
        "the model answers too late",
        "Find the cheapest fare to Paris.",
        "Paris",
        faults=(Fault(Kind.HANG, seconds=5),),
    ),
    Task(
        "malformed_json",
        "a tool answers with cut JSON",
        "Find the cheapest fare to Berlin.",
        "Berlin",
        faults=(Fault(Kind.MALFORMED, where="fares"),),
    ),
    Task(
        "late_crash",
        "500 after the card was charged",
        "Pay for order 1003: the cheapest fare to Geneva.",
        "Geneva",
        order_id=1003,
        faults=(Fault(Kind.SERVER_ERROR, first=4),),
    ),
    Task(
        "lost_receipt",
        "charged, the receipt comes late",
        "Pay for order 1004: the cheapest fare to Zurich.",
        "Zurich",
        order_id=1004,
        faults=(Fault(Kind.HANG, where="charge", seconds=5),),
    ),
)
"""All of them, in the order they are run."""
