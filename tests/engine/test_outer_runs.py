"""What an outer run says of a run inside it that has failed, and what it does about it."""

from __future__ import annotations

from typing import Any

import pytest
from support import Says, always
from tables import table

from triage import Agent, Escalate, FailurePolicy, FailureType
from triage.core import TriageEscalationError
from triage.strategies import replan

pytestmark = pytest.mark.anyio

REASON = "no bank of this country is open"


async def transfer(task: str) -> None:
    raise ConnectionError("the bank is closed")


def ways(policy: FailurePolicy | None, said: FailureType) -> Agent[Any]:
    """An agent that asks another first, and does without it once it is told of another way."""
    inner = Agent(
        transfer, always(lambda _context: Escalate(REASON)), classifier=Says(said), name="bank"
    )

    async def pay(task: str, *, _triage_hint: str | None = None) -> str:
        if _triage_hint is not None:
            return f"paid in cash, as: {_triage_hint}"
        await inner.run(task)
        return "paid"

    return Agent(pay, policy)


@table("said", [FailureType.EXTERNAL_FAULT, FailureType.PLAN_INCOMPLETE])
async def test_an_outer_run_ends_with_the_reason_of_the_run_inside(said: FailureType) -> None:
    with pytest.raises(TriageEscalationError, match=REASON) as caught:
        await ways(None, said).run("task")
    assert caught.value.context is not None
    assert caught.value.context.attempt == 1
    assert caught.value.context.failure_type is said
    assert "the bank is closed" in str(caught.value)


@table("said", [FailureType.EXTERNAL_FAULT, FailureType.PLAN_INCOMPLETE])
async def test_an_outer_run_tries_another_way_where_its_policy_has_one_for_that_failure(
    said: FailureType,
) -> None:
    policy = FailurePolicy.from_dict({said: replan("pay in cash")})
    assert (await ways(policy, said).run("task")).startswith("paid in cash, as: pay in cash")
