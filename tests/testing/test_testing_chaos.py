"""Any plan of faults: every run ends, in a result or an error of ours, and pays at most once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triage
from triage import Agent, FailurePolicy, Limits, TriageError
from triage.testing import (
    Crash,
    FaultPlan,
    VirtualTime,
    assert_escalates_sync,
    assert_recovers_sync,
    faults,
)

KINDS = [
    faults.rate_limit(retry_after=2),
    faults.timeout(),
    faults.timeout(after=True),
    faults.server_error(500, after=True),
    faults.server_error(503),
    faults.malformed_json(),
    faults.connection_refused(),
    faults.auth(),
    faults.context_length(),
    faults.hang(),
    faults.slow(8),
    faults.slow(40),
    faults.wrong_tool("chrage"),
    faults.loop(3),
    faults.raises(ValueError("odd"), after=True),
]
NAMES = ["look", "pay", "clerk"]
PLANS = st.one_of(
    st.dictionaries(
        st.tuples(st.sampled_from(NAMES), st.integers(1, 4)), st.sampled_from(KINDS), max_size=6
    ).map(FaultPlan),
    st.builds(
        lambda seed, rate: FaultPlan(seed, faults=KINDS, rate=rate),
        st.integers(0, 10**6),
        st.floats(0, 1),
    ),
)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(plan=PLANS)
def test_every_run_ends_and_pays_at_most_once(backend: str, plan: FaultPlan) -> None:
    paid: list[int] = []

    @plan.wrap_tool
    @triage.tool(effect="read", timeout=20)
    async def look(title: str) -> int:
        return len(title)

    @plan.wrap_tool
    @triage.tool(effect="once", timeout=60)
    async def pay(cents: int) -> str:
        paid.append(cents)
        return "paid"

    async def clerk(task: str) -> str:
        return await pay(await look(task))

    agent = Agent(
        plan.wrap(clerk),
        FailurePolicy.recommended(),
        limits=Limits(seconds=600, attempt_seconds=90),
    )
    ending: BaseException | None = None
    try:
        done = assert_recovers_sync(agent, "Emma", plan, allow_unreached=True, backend=backend)
    except AssertionError as failed:
        ending = failed.__cause__ or failed
    else:
        assert done.result is not None
    assert ending is None or isinstance(ending, TriageError), ending
    assert len(paid) <= 1, plan


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_a_seed_gives_the_same_run_twice(seed: int) -> None:
    seen = []
    for backend in ("asyncio", "trio"):
        plan = FaultPlan(seed, faults=KINDS[:3], rate=0.6)

        @plan.wrap_tool
        @triage.tool(effect="read")
        async def look(title: str) -> int:
            return len(title)

        agent = Agent(look_twice(look))
        env = VirtualTime(seed)
        try:
            done: Any = assert_recovers_sync(agent, "x", plan, backend=backend, environment=env)
        except AssertionError:
            plan.reset()
            env = VirtualTime(seed)
            done = assert_escalates_sync(agent, "x", plan, backend=backend, environment=env)
        faults_seen = [(each.name, each.call, each.attempt, each.fault) for each in done.injected]
        seen.append((faults_seen, done.seconds, env.slept))
    assert seen[0] == seen[1]


def look_twice(look: Any) -> Any:
    async def clerk(task: str) -> Any:
        return await look(task), await look(task)

    return clerk


@settings(max_examples=20)
@given(
    crashes=st.dictionaries(
        st.sampled_from(["look", "pay"]),
        st.sampled_from([faults.crash(), faults.crash(after=True)]),
    )
)
def test_a_crash_anywhere_pays_at_most_once(
    crashes: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    plan = FaultPlan({(name, 1): fault for name, fault in crashes.items()})
    paid: list[int] = []

    @plan.wrap_tool
    @triage.tool(effect="read")
    async def look(title: str) -> int:
        return len(title)

    @plan.wrap_tool
    @triage.tool(effect="once")
    async def pay(cents: int) -> str:
        paid.append(cents)
        return "paid"

    async def clerk(task: str) -> str:
        return await pay(await look(task))

    store = triage.stores.SQLiteStore(tmp_path_factory.mktemp("runs") / "runs.db")
    agent = Agent(clerk, store=store)
    if "pay" in crashes:
        done = assert_escalates_sync(agent, "Emma", plan, ends_in=triage.TriageSuspendedError)
    else:
        done = assert_recovers_sync(agent, "Emma", plan, result="paid")
    assert done.restarts == len(crashes)
    assert len(paid) == (crashes.get("pay") != faults.crash())
    assert not issubclass(Crash, Exception)
