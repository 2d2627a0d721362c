"""What the checks of stores share: a run to write, and how a promise is checked."""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Sequence
from typing import Any

from triage import Resume, Step
from triage.events import (
    AttemptStarted,
    Event,
    RunFinished,
    RunResumed,
    RunStarted,
    RunSuspended,
    StepRecorded,
)
from triage.stores import RunInfo, Store

LEASE = 3600.0
"""Seconds: a lease that outlives the check."""
OVER = 1e-6
"""Seconds: a lease that has ended when the next call comes."""


def promise(kept: object, text: str) -> None:
    """Raise AssertionError with the promise that is broken, also where `assert` is switched off."""
    if not kept:
        raise AssertionError(text)


async def refused(kind: type[BaseException], text: str, tried: Awaitable[Any]) -> Any:
    """What was raised, which must be of this kind."""
    try:
        await tried
    except kind as error:
        return error
    raise AssertionError(f"{text}: {kind.__name__} was expected, nothing was raised")


class Written:
    """A run as its writer sees it: makes events with the right positions, and appends them."""

    def __init__(self, store: Store, *, agent: str = "agent", parent: str | None = None) -> None:
        self.store = store
        self.run_id = uuid.uuid4().hex
        self.events: list[Event] = []
        self.epoch = 0
        self._agent = agent
        self._parent = parent

    def started(self) -> RunStarted:
        """The first event."""
        return RunStarted(self.run_id, 0, time.time(), self._agent, "task", parent=self._parent)

    def attempt(self) -> AttemptStarted:
        """The next event: an attempt starts."""
        return AttemptStarted(self.run_id, len(self.events), time.time(), 1)

    def step(self, output: Any = "ok", ahead: int = 0) -> StepRecorded:
        """The next event, or one `ahead` of it: a step with this output."""
        seq = len(self.events) + ahead
        made = Step(action="look", tool_called="look", tool_input={"n": seq}, tool_output=output)
        return StepRecorded(self.run_id, seq, time.time(), 1, seq, made)

    def suspended(self, token: str, ahead: int = 0) -> RunSuspended:
        """The next event: the run waits for the answer with this token."""
        seq = len(self.events) + ahead
        return RunSuspended(self.run_id, seq, time.time(), 1, token, "Go on?")

    def resumed(self, ahead: int = 0) -> RunResumed:
        """The next event: it was answered."""
        return RunResumed(self.run_id, len(self.events) + ahead, time.time(), 1, Resume("yes"))

    def finished(self, status: str = "done", ahead: int = 0) -> RunFinished:
        """The next event: the run ends."""
        return RunFinished(self.run_id, len(self.events) + ahead, time.time(), status, "result")

    async def append(self, *events: Event, lease_s: float | None = None) -> None:
        """Append the next events as the run's owner."""
        at = len(self.events)
        await self.store.append(self.run_id, events, at=at, epoch=self.epoch, lease_s=lease_s)
        self.events += events

    async def begin(self, *, lease_s: float | None = None) -> Written:
        """Append the first event."""
        await self.append(self.started(), lease_s=lease_s)
        return self

    async def claim(
        self, *, lease_s: float = LEASE, force: bool = False, revive: bool = False
    ) -> None:
        """Take the run over and write as its new owner from now on."""
        claim = await self.store.claim(self.run_id, lease_s=lease_s, force=force, revive=revive)
        promise(claim.epoch == self.epoch + 1, "a claim raises the epoch by one")
        promise(claim.events == len(self.events), "a claim says the journal's length")
        self.epoch = claim.epoch

    async def info(self) -> RunInfo:
        """The run as the store shows it."""
        found = await self.store.info(self.run_id)
        if found is None:
            raise AssertionError("a run that was appended to is known")
        return found

    async def status(self, expected: str) -> None:
        """The run has this status."""
        found = (await self.info()).status
        promise(found == expected, f"the status is {expected}, not {found}")

    async def stands(self, events: Sequence[Event] | None = None) -> None:
        """The journal is exactly what was appended."""
        found = await self.store.read(self.run_id)
        expected = self.events if events is None else list(events)
        promise(
            found == expected, f"the journal has {len(found)} events, {len(expected)} are right"
        )
