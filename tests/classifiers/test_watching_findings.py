"""What one step shows by itself, whose detectors are used, and watching that fails."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from engine.watched import ONCE_MORE, Watched, call, watched
from msgspec.structs import replace
from tables import table

from triage import Agent, Checks, Diagnosis, FailureType, RulesClassifier, Run, Step, diagnose
from triage.classifiers import HybridClassifier, Watch
from triage.core import WatchNoticed
from triage.engine import Watching

pytestmark = pytest.mark.anyio
TOOLS = {
    "search": {
        "type": "object",
        "properties": {"q": {"type": "string"}},
        "required": ["q"],
        "additionalProperties": False,
    },
    "book": None,
}
GOOD = call("search", {"q": "Porto"}, "Sol")
UNKNOWN = call("serch", {"q": "Porto"}, None, error="no such tool")
MISFIT = call("search", {"city": "Porto"}, None, error="refused")
FORBIDDEN = Step(action="model", llm_output="The password is hunter2")
TOLD = ["note", "hint"]

# The first arguments that are judged import a library, which no test's loop may do.
diagnose(None, [MISFIT], tools=TOOLS)


async def looked_at(*steps: Step, watch: Any = True) -> Watched:
    checks = Checks(tools=TOOLS, constraints=("password",), watch=watch)
    return await watched(steps, checks=checks)


# By itself ----------------------------------------------------------------------------------------


@table(
    ("step", "rule", "failure_type"),
    [
        (UNKNOWN, "steps.unknown_tool", FailureType.WRONG_TOOL_CALLED),
        (MISFIT, "steps.arguments", FailureType.SCHEMA_MISMATCH),
        (FORBIDDEN, "steps.forbidden_output", FailureType.CONSTRAINT_IGNORED),
    ],
)
@table("before", [0, 2, 30])
async def test_one_wrong_step_is_noted_and_told_at_once_and_stops_nothing(
    step: Step, rule: str, failure_type: FailureType, before: int
) -> None:
    steps = [call("book", at, f"booked {at}") for at in range(before)]
    run = await looked_at(*steps, step)
    assert run.responses == [(response, rule) for response in TOLD]
    assert [one.step for one in run.noticed] == [before, before]
    assert run.first_hint == before + 1
    assert run.diagnoses[-1].failure_type is failure_type
    assert run.told is None, "it failed"


async def test_the_hint_says_what_is_right() -> None:
    unknown = (await looked_at(UNKNOWN)).hints[0]
    assert unknown is not None
    assert "search (the closest name)" in unknown
    misfit = (await looked_at(MISFIT)).hints[0]
    assert misfit is not None
    assert "'q' is missing" in misfit


@table("wrong", [UNKNOWN, MISFIT])
async def test_the_hint_is_withdrawn_when_it_is_put_right(wrong: Step) -> None:
    run = await looked_at(GOOD, wrong, GOOD)
    assert [bool(hint) for hint in run.hints] == [False, True, False]


async def test_a_finding_is_told_again_behind_a_loop_that_ends() -> None:
    loop = [call("book", 1, "busy")] * 6
    run = await looked_at(MISFIT, *loop, call("book", 2, "booked"))
    kinds = [None if one is None else one.failure_type for one in run.diagnoses]
    assert kinds[0] is FailureType.SCHEMA_MISMATCH
    assert kinds[6] is FailureType.LOOP_DETECTED
    assert kinds[7] is FailureType.SCHEMA_MISMATCH


async def test_without_hints_it_is_noted_alone() -> None:
    run = await looked_at(UNKNOWN, MISFIT, FORBIDDEN, watch=Watching(hint_after=None))
    assert [one.response for one in run.noticed] == ["note"] * 3
    assert not any(run.hints)


async def test_a_secret_of_a_step_is_in_no_hint_and_in_no_note() -> None:
    secret = "sk-proj-" + "a1B2" * 12
    run = await watched([call("search", {"api_key": secret}, "nothing")] * 40, policy=None)
    assert "interrupt" in [one.response for one in run.noticed]
    assert secret not in str([run.hints, run.told, run.noticed, run.diagnoses])


# Whose detectors ----------------------------------------------------------------------------------


class Silent:
    """A classifier that watches nothing itself."""

    def classify(self, trajectory: Any, task: Any = None) -> FailureType:
        return FailureType.UNKNOWN


class Own(Silent):
    """One that watches in a way of its own."""

    def __init__(self, answer: Any = None) -> None:
        self.given: list[Any] = []
        self.answer = answer

    def watch(self, tools: Any, constraints: Any, start: int) -> Watch:
        self.given.append((tools, constraints, start))
        return Watch(exempt=["search"], start=start)

    def explain(self, found: Any, trajectory: Any) -> Any:
        hint = f"own words about step {found.step} of {len(trajectory)}"
        return self.answer or Diagnosis(FailureType.GOAL_DRIFT, hint=hint)


@table("classifier", [None, Silent(), HybridClassifier(Silent())])
async def test_a_classifier_without_detectors_is_helped_by_the_rules(classifier: Any) -> None:
    run = await watched([call()] * 40, classifier=classifier)
    assert [one.response for one in run.noticed] == ["note", "hint", "interrupt"]


@table("behind_a_model", [False, True])
async def test_a_classifier_with_detectors_uses_its_own(*, behind_a_model: bool) -> None:
    own = Own()
    classifier = HybridClassifier(Silent(), rules=own) if behind_a_model else own
    run = await watched([*[call()] * 9, *[call("other")] * 40], classifier=classifier)
    assert own.given == [(None, (), 0)]
    assert run.recorded == 15
    assert run.hints[-1] == "own words about step 9 of 13"
    assert run.diagnoses[-1].failure_type is FailureType.GOAL_DRIFT


async def test_its_own_rules_constraints_and_manifest_count() -> None:
    rules = RulesClassifier(constraints=["password"], tools=["book"], exempt=["poll"])
    run = await watched([*[call("poll")] * 20, FORBIDDEN], classifier=rules)
    # Few steps are not looked at one by one where the agent's checks do not ask for it.
    assert {one.rule for one in run.noticed} == {"steps.unknown_tool", "steps.forbidden_output"}


# Watching that fails ------------------------------------------------------------------------------


def never(_text: str) -> bool:
    raise RuntimeError("cannot be told")


class Hostile(dict[str, Any]):
    """A schema that raises when it is read."""

    def get(self, *_: Any) -> Any:
        raise RuntimeError("cannot be read")


class CannotWatch(Own):
    def watch(self, tools: Any, constraints: Any, start: int) -> Watch:
        raise RuntimeError("cannot watch")


class CannotExplain(Own):
    def explain(self, found: Any, trajectory: Any) -> Any:
        raise RuntimeError("cannot explain")

    def watch(self, tools: Any, constraints: Any, start: int) -> Watch:
        return Watch(start=start)


class ExplainsWithJunk(CannotExplain):
    def explain(self, found: Any, trajectory: Any) -> Any:
        return "a loop"


@table(
    "classifier",
    [CannotWatch(), CannotExplain(), ExplainsWithJunk()],
)
async def test_detectors_that_fail_end_the_watching_and_nothing_else(
    classifier: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run = await watched([call()] * 40, classifier=classifier)
    assert run.recorded == 40
    assert run.told is None
    assert "interrupt" not in [one.response for one in run.noticed]
    [record] = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert "watching failed, and ends with this attempt" in record.message


async def test_a_schema_that_cannot_be_read_says_nothing_and_the_watching_goes_on() -> None:
    rules = RulesClassifier(tools={"search": Hostile(type="object")})
    run = await watched([call()] * 40, classifier=rules)
    assert run.recorded == 6
    assert {rule for _, rule in run.responses} == {"steps.loop"}


async def test_a_constraint_that_raises_is_logged_once_and_fails_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    steps = [call("page", at, f"row {at}") for at in range(20)]
    run = await watched([*steps, FORBIDDEN], checks=Checks(constraints=(never, "password")))
    assert run.recorded == 21
    # The result is looked at as well, with all constraints.
    steps_logged = caplog.records[: -1 if run.told is None else None]
    assert [one.message for one in steps_logged] == ["the constraint never failed"]
    assert run.responses == [(response, "steps.forbidden_output") for response in TOLD]


async def test_a_constraint_that_records_is_no_endless_loop() -> None:
    from triage import UsageError, current_run

    def says(_text: str) -> bool:
        with suppress(UsageError):  # it is asked about the result, too
            current_run().record_step(call("note", None, "seen"))
        return True

    run = await watched([call("page", 1, "row 1")] * 2, checks=Checks(constraints=(says,)))
    assert run.recorded == 2


# Threads ------------------------------------------------------------------------------------------


async def test_steps_from_many_threads_are_each_looked_at_once() -> None:
    noticed: list[WatchNoticed] = []
    refused: list[BaseException] = []

    async def works(task: str, *, run: Run) -> str:
        if run.attempt > 1:
            return "done"

        def record(number: int) -> None:
            try:
                for _ in range(30):
                    run.update_state({f"of {number}": 1})
                    run.record_step(call())
            except BaseException as error:
                refused.append(error)

        threads = [threading.Thread(target=record, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await anyio.to_thread.run_sync(thread.join, abandon_on_cancel=True)
        return "in vain"

    def note(event: Any) -> None:
        if isinstance(event, WatchNoticed):
            noticed.append(event)

    assert await Agent(works, ONCE_MORE, observers=[note]).run("t") == "done"
    assert Counter(one.response for one in noticed) == {"note": 1, "hint": 1, "interrupt": 1}
    assert {type(error).__name__ for error in refused} <= {"AttemptInterrupted", "AttemptOver"}


# Runs that went well ------------------------------------------------------------------------------

TRAJECTORIES = Path(__file__).parents[3] / "shared" / "trajectories"


def test_nothing_is_stopped_and_little_is_said_of_runs_that_went_well() -> None:
    """Every recorded run of the healthy sets, through an agent that records it."""
    from bench.diagnosis import records

    if not (TRAJECTORIES / records.RECORDED).exists():
        pytest.skip("there are no trajectories beside the repository")
    well = [record for record in records.recorded(TRAJECTORIES) if record.healthy]
    assert {record.source for record in well} == set(records.HEALTHY)
    responses: Counter[str] = Counter()

    async def main() -> None:
        for record in well:
            steps = record.steps
            run = Watched([replace(step, index=None) for step in steps])
            await run.agent.run(record.task)
            assert run.recorded == len(steps), f"{record.id} was stopped"
            responses.update({one.response for one in run.noticed})

    anyio.run(main)
    assert responses["interrupt"] == 0
    assert max(responses["note"], responses["hint"]) <= 0.03 * len(well)
