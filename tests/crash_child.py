"""A process that is killed at a chosen point, and the one that goes on after it."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from durable_runs import PAYMENTS, agent_of, check_journal, in_doubt, payments, truth

import triage
from triage import Agent, Durability
from triage.errors import AlreadyResumed, TriageSuspendedError
from triage.events import Event, RunFinished, StepRecorded
from triage.stores import Store

LEASE_S = 0.1
"""Seconds: whoever finds a run whose owner died while it answered waits so long."""
EXPECTED = ["task", 10, 20, "paid 5", "paid 7"]


class Place:
    """What outlives a process beside its store: effects, what was acknowledged, the token in the mail."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def note(self, name: str, line: str) -> None:
        """Add a line to a list; no kill can take it back."""
        file = os.open(self.folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{line}\n".encode())
        os.close(file)

    def noted(self, name: str) -> list[str]:
        """The lines of a list."""
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []


class Fuse:
    """Kills its process at the so-manieth point; 0: never."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0

    def point(self) -> None:
        self.count += 1
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


class Outside:
    """The world, in a file: an effect is followed by a point, and so is what comes before it."""

    def __init__(self, place: Place, fuse: Fuse) -> None:
        self.place = place
        self.fuse = fuse

    def do(self, effect: str) -> None:
        self.fuse.point()
        self.place.note("effects", effect)
        self.fuse.point()

    def done(self) -> Counter[str]:
        return Counter(self.place.noted("effects"))


class Deadly:
    """A store with a point before and after everything it writes."""

    def __init__(self, store: Store, fuse: Fuse) -> None:
        self._store = store
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        return partial(self._between, method) if name in {"append", "claim", "release"} else method

    async def _between(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._fuse.point()
        answer = await method(*args, **kwargs)
        self._fuse.point()
        return answer

    def submit(self, run_id: str, events: Sequence[Event], **options: Any) -> None:
        done = options.pop("done")

        def told(error: BaseException | None) -> None:
            self._fuse.point()
            done(error)

        self._fuse.point()
        self._store.submit(run_id, events, done=told, **options)


async def drive(agent: Agent[Any], run_id: str, world: Outside) -> Any:
    """Bring the run to its end from wherever it stands, as a worker and the person asked would."""
    place, store = world.place, agent.store
    token, answer = None, ""
    if tokens := place.noted("tokens"):
        token, answer = tokens[-1].split(" ", 1)
    while True:
        try:
            info = await store.info(run_id)
            if info is None:
                # Whatever has an effect waits until its intent is durable.
                assert not payments(world), "an effect without a record"
                return await agent.run("task", run_id=run_id)
            if info.status != "suspended":
                return await agent.recover(run_id)
            if token is None:
                return await agent.recover(run_id, force=True)
            reply = triage.approve() if answer == "approve" else truth(world, answer)
            return await agent.resume(token, reply)
        except TriageSuspendedError as asked:
            doubt = in_doubt(asked)
            token, answer = asked.token, asked.question if doubt else "approve"
            place.note("tokens", f"{token} {answer}")
            if doubt:
                place.note("doubts", asked.question)
        except AlreadyResumed:
            token = (
                None  # of a question before the last: the process died before it told the new one
            )


def works(store: Store, run_id: str, place: Place, fuse: Fuse, *, last: bool) -> None:
    """All a process does before it is killed, and, if it is the last one, what is checked then."""
    world = Outside(place, fuse)

    async def main() -> None:
        deadly: Any = Deadly(store, fuse)
        durability = Durability(lease_s=LEASE_S)
        agent = agent_of("suspend", deadly, world, durability=durability, told=place.note)
        result = await drive(agent, run_id, world)
        place.note("acknowledged", "end")
        if last:
            assert result == EXPECTED, result
            check(await store.read(run_id), place, world)
            place.note("points", str(fuse.count))
        await store.close()

    anyio.run(main, backend="trio" if run_id.endswith("t") else "asyncio")


def check(events: Sequence[Event], place: Place, world: Outside) -> None:
    """What must hold of a run that was killed and has ended."""
    check_journal(events)
    assert payments(world) == PAYMENTS, world.done()
    assert isinstance(events[-1], RunFinished)
    assert events[-1].status == "done"
    calls = triage.fold(events).calls.values()
    done = [call for call in calls if call.tool == "pay" and call.outcome == "done"]
    finished = {f"pay {call.arguments['cents']}" for call in done}
    steps = sum(
        isinstance(event, StepRecorded) and event.step.action == "think" for event in events
    )
    acknowledged = Counter(place.noted("acknowledged"))
    lost = [name for name in acknowledged if name.startswith("pay") and name not in finished]
    assert not lost, f"lost: {lost}"
    assert acknowledged["think"] <= steps, "a step that was acknowledged is missing"
