"""What is promised of the loop around an agent, as a user of the first page sees it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import FakeEnvironment, Says, always
from tables import table

import triage
from triage import Agent, FailurePolicy, FailureType, Retry, Run, Step, TriageEscalationError
from triage.core import RunFinished, StepRecorded
from triage.stores import MemoryStore, SQLiteStore, Store

ROOT = Path(triage.__file__).parent
NEEDED = {"anyio", "msgspec", "pydantic", "pydantic_core", "jsonschema", "triage"}


@pytest.mark.anyio
async def test_the_signature_on_the_first_page_is_enough_and_the_result_is_the_functions(
    tmp_path: Path,
) -> None:
    failed: list[bool] = []

    async def works(
        task: str, *, record_step: Callable[[Step], int], update_state: Callable[..., None]
    ) -> dict[str, str]:
        record_step(Step(action="look", tool_called="search", tool_output=task))
        update_state({"looked": True})
        if not failed:
            failed.append(True)
            raise ConnectionError("down")
        return {"task": task}

    stores: list[Store] = [MemoryStore(), SQLiteStore(tmp_path / "runs.db")]
    others: list[Store] = [stores[0], SQLiteStore(tmp_path / "runs.db")]
    for store, other in zip(stores, others, strict=True):
        failed.clear()
        agent = Agent(works, environment=FakeEnvironment(), store=store)
        assert await agent.run("hotel", run_id="r") == {"task": "hotel"}
        # All that was recorded is in the store when the result is returned, for everybody.
        events = await other.read("r")
        assert [type(event) for event in events].count(StepRecorded) == 2
        assert isinstance(events[-1], RunFinished)
    for store in (stores[1], others[1]):
        await store.close()


@pytest.mark.anyio
@table("error", [ValueError("x"), LookupError("x"), OSError("x"), Exception("x")])
async def test_any_exception_is_classified_and_no_good_step_is_blamed_for_it(
    error: Exception,
) -> None:
    seen: list[triage.Trajectory] = []

    class Looks:
        def classify(self, trajectory: triage.Trajectory, task: Any) -> FailureType:
            seen.append(trajectory)
            return FailureType.UNKNOWN

    async def fails(task: str, *, record_step: Any) -> None:
        record_step(Step(tool_called="search", tool_output="found"))
        raise error

    with pytest.raises(TriageEscalationError):
        await Agent(fails, always(triage.Escalate()), classifier=Looks()).run("x")
    (trajectory,) = seen
    assert trajectory.error is not None
    assert trajectory.error.type_name == type(error).__name__
    assert [step.error for step in trajectory] == [None]


@pytest.mark.anyio
async def test_a_strategy_only_says_what_to_do_and_the_run_does_it() -> None:
    asked: list[triage.FailureContext] = []

    def strategy(context: triage.FailureContext) -> Retry:
        asked.append(context)
        return Retry("again", delay=3.0)

    attempts: list[str | None] = []

    async def works(task: str, *, run: Run, _triage_hint: str | None) -> str:
        attempts.append(_triage_hint)
        if run.attempt < 3:
            raise ConnectionError("down")
        return "done"

    env = FakeEnvironment()
    assert (
        await Agent(works, always(strategy), classifier=Says(), environment=env).run("t") == "done"
    )
    assert (attempts, env.slept) == ([None, "again", "again"], [3.0, 3.0])
    # Asked once more, outside of the run, the policy answers the same, and nothing happens.
    for policy in (FailurePolicy(default=strategy), FailurePolicy.recommended()):
        first = [await policy.dispatch(context) for context in asked[:1]]
        again = [await policy.dispatch(context) for context in asked[:1]]
        assert first == again
    assert (len(attempts), env.slept) == (3, [3.0, 3.0])


def test_the_core_needs_four_packages_and_the_standard_library_only() -> None:
    imported: set[str] = set()
    for path in (ROOT / "core").rglob("*.py"):
        # What is imported inside of a function is an extra.
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                imported.add(node.module.split(".")[0])
    assert "msgspec" in imported
    assert imported - set(sys.stdlib_module_names) <= NEEDED
