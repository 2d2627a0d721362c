"""Run a desk until it is told to stop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Literal, NamedTuple, cast

import anyio
from anyio.abc import TaskGroup

from triage.core.environment import SYSTEM, Environment
from triage.core.errors import TriageError, UsageError, check_count, check_number, misuse
from triage.core.observers import logger
from triage.strategies.ready_made import Backoff

from .desk import IncidentDesk
from .handling import error_line
from .model import IncidentBusy, IncidentClosed

State = Literal["new", "running", "failing", "stopping", "stopped"]
BACKOFF = Backoff(1.0, 2.0, 60.0)
"""Seconds before a failed loop tries again."""
LOOKED_AT = 1000
"""Failures of each source in one look."""
AHEAD = 10
"""Incidents fetched for each free place, so that several supervisors choose different ones."""
TOLD = 100
"""Incidents in one delivery."""
MARGIN_S = 60.0
"""Seconds a look may take beyond its interval."""
COUNTED = ("looks", "detected", "handled", "failed", "unheard", "delivered")
_LOOK, _RECOVER, _TELL = "look", "recover", "tell"


class Health(NamedTuple):
    """The health of a supervisor.

    state: `new`, `running`, `failing` (looking, recovering or delivering fails, most likely because of the
    store), `stopping` or `stopped`. healthy: running, and has looked recently. started, looked: seconds
    since the epoch, None for never. looks: rounds. detected, unheard: incidents. handled: incidents
    handled. failed: recoveries that failed. delivered: messages. under_way: recoveries now. error: what
    fails, or empty.
    """

    owner: str
    state: State
    healthy: bool
    started: float | None
    looked: float | None
    looks: int
    detected: int
    handled: int
    failed: int
    unheard: int
    delivered: int
    under_way: int
    error: str


class Supervisor:
    """Runs a desk: looks for failures, handles what is due and delivers messages until it is stopped.

    desk: any number of supervisors may work on one store; leases divide the work. interval_s: seconds
    between looks, 5. at_once: recoveries at the same time, 10; one that hangs takes only its own place.
    grace_s: seconds running work has to finish after `stop`, 30. environment: clock and random numbers.

    A failure while it runs is logged and retried after 1, 2, 4 … 60 seconds. Raises UsageError naming the
    field.
    """

    def __init__(
        self,
        desk: IncidentDesk,
        *,
        interval_s: float = 5.0,
        at_once: int = 10,
        grace_s: float = 30.0,
        environment: Environment | None = None,
    ) -> None:
        if not isinstance(cast("object", desk), IncidentDesk):
            raise misuse("Supervisor.desk", desk, "an IncidentDesk")
        check_number("Supervisor.interval_s", interval_s, "seconds", above=True)
        check_count("Supervisor.at_once", at_once, 1)
        check_number("Supervisor.grace_s", grace_s, "seconds")
        self._desk = desk
        self._interval = interval_s
        self._at_once = at_once
        self._grace = grace_s
        self._env: Environment = SYSTEM if environment is None else environment
        self._group: TaskGroup | None = None
        self._bells: dict[str, anyio.Event] = {}
        self._errors: dict[str, str] = {}
        self._under_way: set[str] = set()
        self._aside: set[str] = set()
        self._counts: dict[str, int] = dict.fromkeys(COUNTED, 0)
        self._started: float | None = None
        self._looked: float | None = None
        self._due = 0.0
        self._tasks = 0
        self._stopping = self._over = False
        self._told: anyio.Event | None = None
        self._quiet: anyio.Event | None = None

    def __repr__(self) -> str:
        return f"<Supervisor {self._state} of {self._desk.owner}>"

    # Control ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until `stop` is called. A supervisor runs once.

        Raises what the first look raises: StoreError, or UsageError for missing sources; and UsageError
        when it is run again. On cancellation, it gives back running work.
        """
        if self._told is not None:
            raise UsageError("a Supervisor runs once; make another one")
        self._told, self._quiet = anyio.Event(), anyio.Event()
        self._started = self._env.time()
        loops = {_LOOK: self._look, _RECOVER: self._recover, _TELL: self._tell}
        try:
            if not self._stopping:
                await self._look()
            async with anyio.create_task_group() as group:
                self._group = group
                for name, work in loops.items():
                    group.start_soon(self._counted, partial(self._repeat, name, work))
                if not self._stopping:
                    await self._told.wait()
                with anyio.move_on_after(self._grace):
                    await self._quiet.wait()
                group.cancel_scope.cancel()
        finally:
            self._over = True

    def stop(self, *, at_once: bool = False) -> None:
        """Begin nothing more, and end when running work has finished, or after the grace period.

        Call it in the event loop of `run`, before or during it. at_once: without a grace period: running
        work is cancelled and given back.
        """
        self._stopping = True
        for name in self._bells:
            self._ring(name)
        if self._told is not None:
            self._told.set()
        if at_once:
            self._grace = 0.0
            if self._quiet is not None:
                self._quiet.set()

    def health(self) -> Health:
        state = self._state
        return Health(
            owner=self._desk.owner,
            state=state,
            healthy=state == "running" and self._env.monotonic() <= self._due,
            started=self._started,
            looked=self._looked,
            **self._counts,
            under_way=len(self._under_way),
            error="; ".join(f"{name}: {text}" for name, text in self._errors.items()),
        )

    @property
    def _state(self) -> State:
        if self._over:
            return "stopped"
        if self._stopping:
            return "stopping"
        if self._looked is None:
            return "new"
        return "failing" if self._errors else "running"

    # Rounds -------------------------------------------------------------------

    async def _look(self) -> int:
        """Look for failures; returns how many were new."""
        found = await self._desk.look(limit=LOOKED_AT)
        self._looked = self._env.time()
        self._due = self._env.monotonic() + self._interval + MARGIN_S
        self._count(looks=1, detected=found)
        self._aside.clear()
        self._ring(_RECOVER)
        self._ring(_TELL)
        return found

    async def _recover(self) -> int:
        """Begin to attend to due incidents while there is room; returns how many."""
        room = self._at_once - len(self._under_way)
        if room <= 0:
            self._ring(_TELL)
            return 0
        busy = self._under_way | self._aside
        due = await self._desk.due(limit=AHEAD * room + len(busy))
        chosen = [one for one in due if one not in busy][:room]
        group = self._group
        assert group is not None
        for error_id in chosen:
            self._under_way.add(error_id)
            group.start_soon(self._counted, partial(self._handle, error_id))
        return len(chosen)

    async def _handle(self, error_id: str) -> None:
        try:
            done = await self._desk.attend(error_id)
        except (IncidentBusy, IncidentClosed):
            self._aside.add(error_id)  # another desk was faster
        except Exception as error:  # one incident must not end the others
            # Not before the next look, or it would be tried in a loop.
            self._aside.add(error_id)
            self._count(failed=1)
            logger.warning("incidents: %s could not be handled: %s", error_id, error_line(error))
        else:
            self._count(unheard=int(done.unheard), delivered=done.delivered)
            if done.handled is not None:
                self._count(**{"handled" if done.handled else "failed": 1})
                logger.info("incidents: %s: %s, %s", error_id, done.action, done.error or "done")
        finally:
            self._under_way.discard(error_id)
            self._ring(_RECOVER)

    async def _tell(self) -> int:
        """Deliver messages while recoveries take all places; returns how many."""
        if len(self._under_way) < self._at_once:
            return 0
        count = await self._desk.deliver(limit=TOLD, skip=self._under_way)
        self._count(delivered=count)
        return count

    # Scheduling -------------------------------------------------------------------------------

    async def _repeat(self, name: str, work: Callable[[], Awaitable[int]]) -> None:
        """Repeat at once while there is work, else when the bell rings or after the interval."""
        failures = 0
        while not self._stopping:
            bell = self._bells[name] = anyio.Event()
            wait = self._interval * (0.75 + 0.5 * self._env.random())
            try:
                done = await work()
            except Exception as error:  # logged and retried
                failures += 1
                text = error_line(error)
                # Log each error once, not on each retry.
                if self._errors.get(name) != text:
                    unexpected = not isinstance(error, TriageError)
                    logger.warning("supervisor: to %s fails: %s", name, text, exc_info=unexpected)
                self._errors[name] = text
                done = 0
                wait = BACKOFF.delay(failures, 0.5 + 0.5 * self._env.random())
            else:
                if failures:
                    logger.warning("supervisor: to %s works again", name)
                    del self._errors[name]
                failures = 0
            if not done and not self._stopping:
                with anyio.move_on_after(wait):
                    await bell.wait()

    async def _counted(self, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks += 1
        try:
            await work()
        finally:
            self._tasks -= 1
            if not self._tasks and self._quiet is not None:
                self._quiet.set()

    def _count(self, **more: int) -> None:
        for name, count in more.items():
            self._counts[name] += count

    def _ring(self, name: str) -> None:
        if name in self._bells:
            self._bells[name].set()
