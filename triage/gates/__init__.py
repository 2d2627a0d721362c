"""What runs share about one service: how often it may be asked, when, and whether at all.

    gate, breaker = RateGate(concurrency=20), CircuitBreaker()

    async with gate.through("openai"), breaker.through():
        answer = await client.responses.create(...)

Each gate is a plain object in memory, for all threads and event loops of the process. What asks one
asks it through the protocols of `base`, which a gate shared by many processes can have as well.
"""

from __future__ import annotations

from ._breaker import CircuitBreaker
from ._budget import RetryBudget
from ._passage import Passage
from ._rate import RateGate
from .base import Breaker, Budget, Gate

__all__ = [
    "Breaker",
    "Budget",
    "CircuitBreaker",
    "Gate",
    "Passage",
    "RateGate",
    "RetryBudget",
]
