"""Compensators: tried as often as they say, journalled before and after, at hand in another process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from calls import Killed, in_two_processes, recovers
from support import FakeEnvironment

import triage
from triage import (
    Agent,
    Replan,
    Rollback,
    Run,
    Step,
    TriageEscalationError,
    TriageSuspendedError,
    UsageError,
)
from triage.events import CompensatorRan
from triage.strategies import Backoff, Preset
from triage.tools import Compensator

pytestmark = pytest.mark.anyio


class Bank:
    """Charges, and refunds that fail as often as told."""

    def __init__(self, *fails: Exception, **policy: Any) -> None:
        self.log: list[str] = []
        self.fails = list(fails)
        self.events: list[triage.Event] = []
        self.environment = FakeEnvironment()
        self.charge: Any = triage.tool(
            effect="once", compensate=Compensator(self._refund, **policy), name="charge"
        )(self._charge)

    async def _charge(self, what: str) -> str:
        self.log.append(f"charge {what}")
        return what

    async def _refund(self, receipt: str) -> None:
        self.log.append(f"refund {receipt}")
        if self.fails:
            raise self.fails.pop(0)

    @property
    def ran(self) -> list[str]:
        """What the journal says of compensators."""
        return [
            "begins" if event.begins else "done" if event.error is None else event.error.message
            for event in self.events
            if isinstance(event, CompensatorRan)
        ]

    async def goes_back(self) -> Any:
        async def works(task: str, *, run: Run) -> None:
            run.record_step(Step(action="begin"))
            await self.charge("a")
            if run.attempt == 1:
                raise ConnectionError("late")

        options = recovers(
            Rollback(2), environment=self.environment, observers=[self.events.append]
        )
        await Agent(works, **options).run("t")


async def test_it_is_tried_again_as_often_as_it_says_and_each_try_is_journalled() -> None:
    bank = Bank(LookupError("closed"), ConnectionError("lost"), retries=2)
    await bank.goes_back()
    assert bank.log == ["charge a", "refund a", "refund a", "refund a", "charge a"]
    assert bank.ran == ["begins", "closed", "begins", "lost", "begins", "done"]
    assert bank.environment.slept == [0.5, 1.0]


async def test_it_waits_as_its_preset_says() -> None:
    bank = Bank(LookupError("closed"), retries=Preset(2, Backoff(base=7.0, jitter=False)))
    await bank.goes_back()
    assert bank.environment.slept == [7.0]


@pytest.mark.parametrize(("retries", "tries"), [(None, 1), (2, 3)])
async def test_one_that_fails_to_the_end_is_reported(
    retries: int | None, tries: int, caplog: pytest.LogCaptureFixture
) -> None:
    bank = Bank(*(LookupError(f"closed {n}") for n in range(5)), retries=retries)
    with pytest.raises(TriageEscalationError, match="_refund failed with LookupError") as caught:
        await bank.goes_back()
    assert bank.ran[-1] == f"closed {tries - 1}"
    assert bank.log == ["charge a"] + ["refund a"] * tries
    assert f"closed {tries - 1}" in str(caught.value.__cause__.__notes__)  # type: ignore[union-attr] # set
    assert "compensator" in caplog.text


async def test_it_has_an_idempotency_key_of_its_own() -> None:
    keys: list[str] = []

    @triage.tool(effect="once", compensate=Compensator(lambda _: refund(), retries=1))
    async def charge() -> None:
        keys.append(triage.current_call().idempotency_key)

    def refund() -> None:
        keys.append(triage.current_call().idempotency_key)
        if len(keys) == 2:
            raise ConnectionError("lost")

    async def works(task: str, *, run: Run) -> None:
        run.record_step(Step(action="begin"))
        await charge()
        if run.attempt == 1:
            raise ConnectionError("late")

    await Agent(works, environment=FakeEnvironment(), **recovers(Rollback(2))).run("t")
    assert keys[0] == keys[3]
    assert keys[1] == keys[2] != keys[0]


async def test_a_tool_that_undoes_another_is_no_call_of_the_attempt() -> None:
    log: list[str] = []

    @triage.tool(effect="once")
    async def refund(receipt: str) -> None:
        log.append(f"refund {receipt}")

    @triage.tool(effect="once", compensate=refund)
    async def charge(what: str) -> str:
        log.append(f"charge {what}")
        return what

    async def works(task: str, *, run: Run) -> list[str | None]:
        await charge(f"plan {run.attempt}")
        if run.attempt == 1:
            raise ConnectionError("late")
        return [step.tool_called for step in run.trajectory]

    assert await Agent(works, **recovers(Replan())).run("t") == ["charge"]
    assert log == ["charge plan 1", "refund plan 1", "charge plan 2"]


async def test_it_is_at_hand_in_the_process_that_goes_on(tmp_path: Path) -> None:
    log: list[str] = []

    async def refund(receipt: str, what: str) -> None:
        log.append(f"refund {receipt} for {what}")

    @triage.tool(effect="once", compensate=refund)
    async def charge(what: str) -> str:
        log.append(f"charge {what}")
        return f"receipt {what}"

    async def works(task: str, *, run: Run) -> None:
        run.record_step(Step(action="begin"))
        await charge("a")
        await charge("b")
        if "cut" not in log:
            log.append("cut")
            raise Killed
        if run.attempt == 1:
            raise ConnectionError("late")

    await in_two_processes(works, tmp_path, **recovers(Rollback(2)))
    assert log == [
        "charge a", "charge b", "cut",
        "refund receipt b for b", "refund receipt a for a", "charge a", "charge b",
    ]  # fmt: skip


async def test_one_that_was_cut_off_is_not_run_again_unless_it_may_be_repeated() -> None:
    for retries, expected in ((None, TriageSuspendedError), (1, None)):
        log: list[str] = []
        waiting = anyio.Event()

        async def refund(
            receipt: str, log: list[str] = log, waiting: anyio.Event = waiting
        ) -> None:
            log.append("refund")
            if log.count("refund") == 1:
                waiting.set()
                await anyio.sleep_forever()

        @triage.tool(effect="once", compensate=Compensator(refund, retries=retries))
        async def charge(what: str, log: list[str] = log) -> str:
            log.append(f"charge {what}")
            return what

        async def works(
            task: str,
            *,
            run: Run,
            charge: Any = charge,
            log: list[str] = log,
            waiting: anyio.Event = waiting,
        ) -> None:
            if run.attempt == 1:
                await charge("first")
                raise ConnectionError("late")
            if run.attempt == 2:
                async with anyio.create_task_group() as group:
                    group.start_soon(charge, "second")
                    await waiting.wait()
                    group.cancel_scope.cancel()
                raise ConnectionError("cut off")
            await charge("second")

        agent = Agent(works, **recovers(Replan()))
        if expected is None:
            await agent.run("t")
            assert log == ["charge first", "refund", "refund", "charge second"]
        else:
            with pytest.raises(expected):
                await agent.run("t")
            assert log == ["charge first", "refund"]


async def test_what_cannot_undo_is_refused() -> None:
    nothing: Any = "refund"
    with pytest.raises(UsageError, match=r"Compensator\.function"):
        Compensator(nothing)
    with pytest.raises(UsageError, match=r"Compensator\.retries"):
        Compensator(print, retries=-1)
