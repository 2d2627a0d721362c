"""What is done when a limit is reached: a person is asked, or a strategy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from engine.limit_scenarios import SCENARIOS
from support import Killed
from tables import table

import triage
from triage import (
    Abort,
    Agent,
    Escalate,
    FailureContext,
    Replan,
    Retry,
    Run,
    Suspend,
    TriageAbortError,
    TriageEscalationError,
    TriageSuspendedError,
    Usage,
    UsageError,
    approve,
    reject,
)
from triage.core import ActionChosen, AttemptStarted
from triage.stores import SQLiteStore
from triage.testing import VirtualTime

pytestmark = pytest.mark.anyio
ASKS = {"on_limit": "suspend"}


def amount_of(name: str) -> float:
    """What is allowed at first."""
    amount = SCENARIOS[name].limits[name]
    return float(amount["search"] if isinstance(amount, dict) else amount)


def allowed_by(error: TriageSuspendedError) -> float:
    """How much was allowed when the run was stopped, as the question says."""
    found = re.search(r"(?:of|Limits\(\w+=)\s*([\d.]+)", error.question)
    assert found is not None, error.question
    return float(found[1])


async def asked(work: Any) -> TriageSuspendedError:
    with pytest.raises(TriageSuspendedError) as caught:
        await work
    return caught.value


# A person -----------------------------------------------------------------------------------------


@table("name", SCENARIOS)
async def test_a_person_may_allow_as_much_again_and_again_and_end_it(name: str) -> None:
    scenario = SCENARIOS[name]
    agent = scenario.agent(VirtualTime(), more=ASKS)
    error = await asked(agent.run("t"))
    used: list[int] = []
    for time in range(1, 4):
        assert allowed_by(error) == pytest.approx(time * amount_of(name))
        assert error.question.startswith("limit reached: ")
        assert error.question.endswith(f"(Limits.{name}). May the run use as much once more?")
        assert error.context is not None
        used.append(error.context.attempt)
        error = await asked(agent.resume(error.token, approve()))
    assert used == sorted(set(used)), "nothing was done between two questions"
    with pytest.raises(TriageAbortError, match="enough is enough"):
        await agent.resume(error.token, reject("enough is enough"))
    assert [info.status for info in await agent.store.runs()] == ["aborted"]


@table("name", SCENARIOS)
async def test_what_is_asked_names_the_limit(name: str) -> None:
    agent = SCENARIOS[name].agent(VirtualTime(), more=ASKS)
    error = await asked(agent.run("t", run_id="run"))
    [chosen] = [
        event
        for event in await agent.store.read("run")
        if isinstance(event, ActionChosen) and isinstance(event.action, Suspend)
    ]
    named = SCENARIOS[name].name or name
    assert chosen.by == f"limit:{named}"
    assert isinstance(chosen.action, Suspend)
    assert chosen.action.metadata == {"limit": named}
    assert error.context is not None
    assert error.context.partial.usage == error.context.usage


DURABLE = ["attempts", "retries", "seconds", "slept_seconds", "steps", "calls_per_tool", "tokens"]


@pytest.mark.parametrize("name", DURABLE)
async def test_over_a_store_another_agent_takes_the_answer(name: str, tmp_path: Path) -> None:
    env = VirtualTime()
    store = SQLiteStore(tmp_path / "runs.db")

    def agent() -> Agent[str]:
        return SCENARIOS[name].agent(env, more=ASKS, store=store)

    error = await asked(agent().run("t"))
    for time in range(1, 4):
        assert allowed_by(error) == pytest.approx(time * amount_of(name))
        error = await asked(agent().resume(error.token, approve()))
    with pytest.raises(TriageAbortError):
        await agent().resume(error.token, reject())
    await store.close()


@pytest.mark.parametrize("name", DURABLE)
async def test_what_was_allowed_holds_after_a_recovery(name: str, tmp_path: Path) -> None:
    """The process goes away in the first attempt after the answer; so does the one after it."""
    env = VirtualTime()
    store = SQLiteStore(tmp_path / "runs.db")
    dies: list[bool] = [False]

    async def uses(run: Run, env: VirtualTime) -> None:
        if dies[0]:
            run.update_state({"begun": run.attempt})
            dies[0] = False
            raise Killed
        await SCENARIOS[name].uses(run, env)

    def agent() -> Agent[str]:
        return SCENARIOS[name]._replace(uses=uses).agent(env, more=ASKS, store=store)

    error = await asked(agent().run("t", run_id="run"))
    dies[0] = True
    with pytest.raises(Killed):
        await agent().resume(error.token, approve())
    error = await asked(agent().recover("run"))
    assert allowed_by(error) == pytest.approx(2 * amount_of(name))
    await store.close()


async def test_what_was_allowed_holds_where_the_process_died_while_it_decided(
    tmp_path: Path,
) -> None:
    """What the run has used by then is more than its limits allow by themselves, and was allowed."""
    store = SQLiteStore(tmp_path / "runs.db")

    async def works(task: str, *, run: Run) -> str:
        run.record_usage(Usage(60, 0))
        if run.attempt < 4:
            raise ConnectionError("gone")
        return "done"

    def agent(dies: Any = None) -> Agent[str]:
        return Agent(
            works,
            triage.FailurePolicy(default=dies or Retry()),
            limits=triage.Limits(tokens=100, on_limit="suspend"),
            store=store,
        )

    async def dies(context: FailureContext) -> Any:
        raise Killed

    error = await asked(agent().run("t", run_id="run"))
    assert "120 of 100 tokens" in error.question
    with pytest.raises(Killed):
        await agent(dies).resume(error.token, approve())
    error = await asked(agent().recover("run"))
    assert "240 of 200 tokens" in error.question
    assert await agent().resume(error.token, approve()) == "done"
    await store.close()


async def test_waiting_for_the_answer_uses_none_of_the_time() -> None:
    env = VirtualTime()
    agent = SCENARIOS["seconds"].agent(env, fails=lambda run: run.attempt < 4, more=ASKS)
    error = await asked(agent.run("t"))
    env.advance(100_000)
    assert await agent.resume(error.token, approve()) == "done"
    assert env.monotonic() < 100_020


# A strategy ---------------------------------------------------------------------------------------


@table("name", SCENARIOS)
async def test_the_answer_of_a_strategy_is_taken_once_for_each_limit(name: str) -> None:
    told: list[triage.Diagnosis] = []

    async def goes_on(context: FailureContext) -> Replan:
        told.append(context.diagnosis)
        return Replan("Use less.")

    agent = SCENARIOS[name].agent(VirtualTime(), more={"on_limit": goes_on})
    with pytest.raises(TriageEscalationError) as caught:
        await agent.run("t", run_id="run")
    named = SCENARIOS[name].name or name
    rules = [diagnosis.evidence[0].rule for diagnosis in told]
    # A Replan counts as one where those are what is limited.
    assert rules == [f"limit:{named}"]
    assert caught.value.diagnosis is not None
    assert caught.value.diagnosis.evidence[0].rule == f"limit:{named}"
    began = [e for e in await agent.store.read("run") if isinstance(e, AttemptStarted)]
    hints = [event.hint for event in began]
    assert hints.count("Use less.") == 1


async def test_two_limits_are_two_questions() -> None:
    asked_about: list[str] = []

    def goes_on(context: FailureContext) -> Retry:
        asked_about.append(context.diagnosis.evidence[0].rule)
        return Retry()

    async def uses(run: Run, env: VirtualTime) -> None:
        run.record_usage(Usage(10, 0))

    scenario = SCENARIOS["attempts"]._replace(limits={"attempts": 2, "tokens": 35}, uses=uses)
    with pytest.raises(TriageEscalationError, match="5 of 4 attempts"):
        await scenario.agent(VirtualTime(), more={"on_limit": goes_on}).run("t")
    assert asked_about == ["limit:attempts", "limit:tokens"]


async def raises(context: FailureContext) -> Any:
    raise RuntimeError("cannot say")


async def says_junk(context: FailureContext) -> Any:
    return "go on"


@table("strategy", [raises, says_junk])
@table("name", ["attempts", "tokens", "retries"])
async def test_a_strategy_that_fails_escalates(strategy: Any, name: str) -> None:
    agent = SCENARIOS[name].agent(VirtualTime(), more={"on_limit": strategy})
    with pytest.raises(TriageEscalationError) as caught:
        await agent.run("t")
    assert caught.value.diagnosis is not None
    assert caught.value.diagnosis.evidence[0].rule == f"limit:{name}"


@table(
    ("answer", "error"),
    [(Escalate("ask Ann"), TriageEscalationError), (Abort("enough"), TriageAbortError)],
)
async def test_a_strategy_may_end_the_run_in_its_own_way(answer: Any, error: Any) -> None:
    more = {"on_limit": lambda _context: answer}
    with pytest.raises(error, match=answer.reason) as caught:
        await SCENARIOS["tokens"].agent(VirtualTime(), more=more).run("t")
    assert caught.value.diagnosis.evidence[0].rule == "limit:tokens"


async def test_a_strategy_may_ask_a_person() -> None:
    more = {"on_limit": lambda _context: Suspend("more tokens?")}
    agent = SCENARIOS["tokens"].agent(VirtualTime(), more=more)
    error = await asked(agent.run("t"))
    assert error.question == "more tokens?"
    with pytest.raises(TriageEscalationError, match="of 50 tokens"):
        await agent.resume(error.token, approve())


async def test_an_answer_beyond_one_limit_goes_beyond_no_other() -> None:
    env = VirtualTime()
    more = {"on_limit": lambda _context: Retry(delay=1000.0), "seconds": 60}
    agent = SCENARIOS["tokens"].agent(env, more=more)
    with pytest.raises(TriageEscalationError, match=r"retry refused: .* would pass it"):
        await agent.run("t")
    assert env.slept == []


@table("value", ["stop", 5, None, Retry()])
async def test_another_answer_to_a_limit_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"Limits\.on_limit must be"):
        triage.Limits(on_limit=value)
