"""A success is held against the record: a failure that it leaves out is asked about, nothing else."""

from __future__ import annotations

import builtins
import json
from typing import Any

import pytest
from tables import covering, table

from triage import FailureType, TriageEscalationError, not_attempted
from triage.core import Cause

from .recording_ways import MODELLESS, TASK, WAYS, Asks, Turn, World, words_of
from .successes import HEALTHY, WRONG, Case

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]
TOLD = "leaves out a failure"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def text_of(answer: Any) -> str:
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)


def played_by(case: Case, second: str | None) -> World:
    """A model that makes the case's calls and gives its answer. second: what it says once it is told."""
    calls = {call.tool: [one for one in case.calls if one.tool == call.tool] for call in case.calls}
    asked: dict[tuple[str, str], int] = {}

    def tool(name: str) -> Any:
        def use(given: str) -> Any:
            same = [one for one in calls[name] if json.dumps(one.given) == given]
            made = same[min(asked.get((name, given), 0), len(same) - 1)]
            asked[name, given] = asked.get((name, given), 0) + 1
            if made.error is not None:
                kind, _, words = made.error.partition(": ")
                raised = getattr(builtins, kind, None) or type(kind, (Exception,), {})
                raise not_attempted(raised(words))
            return made.result

        return use

    def think(results: int, told: str) -> Turn:
        if results < len(case.calls):
            call = case.calls[results]
            return Asks(call.tool, json.dumps(call.given))
        return second if second is not None and TOLD in told else text_of(case.answer)

    effects = {call.tool: call.effect for call in case.calls}
    return World(think, {name: tool(name) for name in calls}, effects)


async def run(way: str, world: World) -> Any:
    task = {"messages": [("user", TASK)]} if way == "langgraph" else TASK
    return words_of(await WAYS[way](world).run(task))


FRAMEWORKS = ("langgraph", "pydantic", "openai_agents")


def plays(way: str, case: Case) -> bool:
    """Whether a way can play a case: pydantic and langgraph raise what a tool raises."""
    raises = any(call.error is not None for call in case.calls)
    if not case.calls and way in FRAMEWORKS[1:]:
        return False
    if not text_of(case.answer).strip() or case.answer in (None, []):
        return False
    return not (raises and way in ("langgraph", "pydantic", "run_tools"))


@table("way, case", covering(WAYS, HEALTHY, times=2, where=plays))
async def test_a_healthy_success_is_given_back_at_once(way: str, case: Case) -> None:
    world = played_by(case, second="asked again")
    assert await run(way, world) == text_of(case.answer)
    assert len(world.asked) == len(case.calls) + 1


LEFT = ("login_after_data",)
"""An answer that denies something is never held against the record."""


@table(
    "way, case",
    covering(
        [way for way in WAYS if way not in MODELLESS],
        [case for case in WRONG if case.name not in LEFT],
        times=2,
        where=plays,
    ),
)
async def test_a_failure_that_an_answer_leaves_out_is_asked_about_and_nothing_is_done_twice(
    way: str, case: Case
) -> None:
    world = played_by(case, second=f"It did not work: {case.calls[-1].tool} failed.")
    assert "did not work" in str(await run(way, world))
    made = [(call.tool, json.dumps(call.given)) for call in case.calls]
    again = [call for call in world.calls if call not in made]
    assert again == []
    for call in case.calls:
        if call.effect == "once" and call.error is None:
            times = world.calls.count((call.tool, json.dumps(call.given)))
            assert times == made.count((call.tool, json.dumps(call.given)))


async def test_an_answer_that_another_attempt_could_not_change_is_left_alone() -> None:
    for way in MODELLESS:
        world = played_by(WRONG[0], second=None)
        assert await run(way, world) == WRONG[0].answer
        assert len(world.calls) == 1


@table("way", ["run_model", "openai_client", "anthropic_client", "langgraph"])
async def test_an_answer_that_goes_on_leaving_it_out_is_no_success(way: str) -> None:
    world = played_by(WRONG[0], second=None)
    with pytest.raises(TriageEscalationError) as caught:
        await run(way, world)
    diagnosis = caught.value.diagnosis
    assert diagnosis is not None
    assert (diagnosis.failure_type, diagnosis.cause) == (
        FailureType.HALLUCINATED_STATE,
        Cause.OMITTED_FAILURE,
    )
    assert '"failed": [3]' in str(diagnosis.evidence[0].text)
    assert len(world.calls) == 1
