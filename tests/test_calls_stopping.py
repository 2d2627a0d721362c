"""What a run undoes when it ends, and what a rollback undoes of calls that were given again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from calls import Killed, in_two_processes, recovers
from support import in_turn

import triage
from triage import (
    Abort,
    Agent,
    Escalate,
    Retry,
    Rollback,
    Run,
    Step,
    TriageAbortError,
    TriageEscalationError,
)
from triage.actions import Action

pytestmark = pytest.mark.anyio


class Shop:
    """Books and cancels; cancelling what `refuses` names fails."""

    def __init__(self, refuses: str = "") -> None:
        self.log: list[str] = []

        def cancel(what: str) -> None:
            self.log.append(f"cancel {what}")
            if what == refuses:
                raise LookupError(f"{what} cannot be cancelled")

        @triage.tool(effect="once", compensate=cancel)
        async def book(what: str) -> str:
            self.log.append(f"book {what}")
            return what

        self.book = book
        self.cancel = cancel

    async def works(self, task: str, *, run: Run) -> None:
        await self.book("flight")
        await self.book("hotel")
        if run.attempt == 1:
            run.record_step(Step(action="by hand", effect="once"))
            run.compensator(self.cancel, "taxi")
        raise ConnectionError("late")


@pytest.mark.parametrize(
    ("action", "kind"), [(Escalate, TriageEscalationError), (Abort, TriageAbortError)]
)
async def test_all_is_undone_newest_first_where_it_is_asked_for(action: Any, kind: Any) -> None:
    shop = Shop()
    with pytest.raises(kind) as caught:
        await Agent(shop.works, **recovers(action("enough", compensate=True))).run("t")
    assert shop.log[2:] == ["cancel taxi", "cancel hotel", "cancel flight"]
    assert not getattr(caught.value, "__notes__", [])


@pytest.mark.parametrize("action", [Escalate(), Abort()])
async def test_nothing_is_undone_where_it_is_not(action: Action) -> None:
    shop = Shop()
    with pytest.raises(triage.TriageError):
        await Agent(shop.works, **recovers(action)).run("t")
    assert shop.log == ["book flight", "book hotel"]


async def test_one_that_fails_is_told_on_the_error_and_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = Shop(refuses="hotel")
    with pytest.raises(TriageEscalationError) as caught:
        await Agent(shop.works, **recovers(Escalate(compensate=True))).run("t")
    assert shop.log[2:] == ["cancel taxi", "cancel hotel", "cancel flight"]
    assert "hotel cannot be cancelled" in str(caught.value.__notes__)
    assert isinstance(caught.value.__cause__, ConnectionError)


async def test_a_rollback_whose_compensator_fails_says_so_on_the_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = Shop(refuses="hotel")

    async def works(task: str, *, run: Run) -> None:
        run.record_step(Step(action="begin"))
        await shop.book("hotel")
        raise ConnectionError("late")

    with pytest.raises(TriageEscalationError) as caught:
        await Agent(works, **recovers(Rollback(2))).run("t")
    assert "hotel cannot be cancelled" in str(caught.value.__notes__)


async def test_a_rollback_undoes_what_was_given_again_behind_its_checkpoint() -> None:
    shop = Shop()
    begins: list[int] = []

    async def works(task: str, *, run: Run) -> None:
        begins.append(run.record_step(Step(action="begin")))
        await shop.book("flight")
        if run.attempt < 3:
            raise ConnectionError("late")

    def back(context: triage.FailureContext) -> Action:
        return Retry() if context.attempt == 1 else Rollback(begins[-1])

    await Agent(works, **recovers(back)).run("t")
    assert shop.log == ["book flight", "cancel flight", "book flight"]


async def test_a_rollback_keeps_what_its_checkpoint_had_although_it_was_given_again_later() -> None:
    shop = Shop()
    places: list[int] = []

    async def works(task: str, *, run: Run) -> None:
        await shop.book("flight")
        places.append(run.record_step(Step(action="booked")))
        if run.attempt < 3:
            raise ConnectionError("late")

    def back(context: triage.FailureContext) -> Action:
        return Retry() if context.attempt == 1 else Rollback(places[0])

    await Agent(works, **recovers(back)).run("t")
    assert shop.log == ["book flight"]


async def test_what_only_the_process_before_could_undo_is_told(tmp_path: Path) -> None:
    shop = Shop()

    async def works(task: str, *, run: Run) -> None:
        if "cut" not in shop.log:
            await shop.book("flight")
            shop.log.append("cut")
            raise Killed
        raise ConnectionError("late")

    with pytest.raises(TriageEscalationError) as caught:
        await in_two_processes(works, tmp_path, **recovers(Escalate(compensate=True)))
    assert shop.log == ["book flight", "cut"]
    assert "not of this process" in str(caught.value.__notes__)


async def test_a_policy_for_hand_written_steps_is_kept() -> None:
    tries: list[str] = []

    def cancel() -> None:
        tries.append("cancel")
        if len(tries) == 1:
            raise ConnectionError("busy")

    from support import FakeEnvironment

    from triage.tools import Compensator

    async def works(task: str, *, run: Run) -> None:
        run.record_step(Step(action="by hand", effect="once"))
        run.compensator(Compensator(cancel, retries=1))
        if run.attempt == 1:
            raise ConnectionError("late")

    await Agent(works, environment=FakeEnvironment(), **recovers(in_turn(Retry(), Escalate()))).run(
        "t"
    )
    assert tries == ["cancel", "cancel"]
