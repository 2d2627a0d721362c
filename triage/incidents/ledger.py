"""The journals of incidents and tasks in a store: read, found and written by compare-and-append."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import anyio
import msgspec
from msgspec.structs import replace

from triage.core.errors import StaleWriter, StoreCorrupt, UsageError
from triage.core.events import Noted
from triage.stores.base import RunInfo, Store

from . import journal, model
from .journal import Incident

Entry = tuple[Noted, Incident]
"""The next entry of an incident's journal, and the incident after it."""
TASK = "task"
"""The kind of the journals of tasks."""
REMEMBERED = 1000
"""Maximum incidents whose journals are read only from where they were read last."""
READS = 20
"""Journals read at the same time."""


class Ledger:
    """Incidents and tasks in a store.

    clock: seconds since the epoch, by which incidents are due; None for the store's own.

    Raises UsageError for a store that keeps only runs.
    """

    def __init__(self, store: Store, clock: Callable[[], float] | None) -> None:
        if not callable(getattr(store, "journals", None)):
            raise UsageError(
                f"IncidentDesk.store must keep journals of incidents, which {type(store).__name__} does "
                'not; write "sqlite:///runs.db" or "postgresql://…"'
            )
        self.store = store
        self._clock = clock
        self._known: dict[tuple[str, float], Incident] = {}

    async def now(self) -> float:
        """The time by which incidents are due."""
        return await self.store.now() if self._clock is None else self._clock()

    # Incidents ------------------------------------------------------------------------------------

    async def load(self, error_id: str) -> Incident:
        """Return an incident. Raises UnknownIncident, and StoreCorrupt for a journal changed by hand."""
        info = await self.store.info(error_id, kind=journal.KIND)
        if info is None:
            raise model.UnknownIncident(f"the store knows no incident {model.clean(error_id, 80)}")
        return await self._read(info)

    async def _read(self, info: RunInfo) -> Incident:
        key = (info.run_id, info.started)
        before = self._known.pop(key, None)
        events = await self.store.read(info.run_id, -1 if before is None else before.events - 1)
        incident = before if before is not None and not events else None
        if incident is None:
            incident = journal.fold(info.run_id, events, before)
        if incident.events == info.events and str(incident.status) != info.status:
            raise StoreCorrupt(
                f"{info.run_id} is {incident.status} by its journal, and {info.status} in its row"
            )
        if len(self._known) >= REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[key] = incident
        return replace(incident, epoch=info.epoch, lease_until=info.lease_until)

    async def of_subject(self, subject: str) -> list[Incident]:
        """Return the incidents whose subject begins so, those changed last first."""
        return await self.read_all(await self.store.journals(journal.KIND, subject=subject))

    async def read_all(self, infos: Sequence[RunInfo]) -> list[Incident]:
        """Return the incidents of these rows."""
        found: dict[int, Incident] = {}
        limiter = anyio.CapacityLimiter(READS)

        async def read(at: int, info: RunInfo) -> None:
            async with limiter:
                found[at] = await self._read(info)

        async with anyio.create_task_group() as group:
            for at, info in enumerate(infos):
                group.start_soon(read, at, info)
        return [found[at] for at in range(len(infos))]

    async def write(
        self, before: Incident | None, entry: Entry, lease_s: float | None = None
    ) -> Incident:
        """Append an entry. Raises StaleWriter if the journal has gone on; returns the incident after it."""
        event, after = entry
        epoch = 0 if before is None else before.epoch
        await self.store.append(event.run_id, [event], at=event.seq, epoch=epoch, lease_s=lease_s)
        return after

    async def change(self, error_id: str, move: Callable[[Incident, float], Entry]) -> Incident:
        """Append the entry that `move` makes of an incident and the time; again if others were faster."""
        while True:
            before = await self.load(error_id)
            try:
                return await self.write(before, move(before, await self.now()))
            except StaleWriter:
                continue

    # Tasks ----------------------------------------------------------------------------------------

    async def task(self, task_id: str | None) -> model.TaskRecord | None:
        """Return a task, None for an unknown one."""
        info = None if task_id is None else await self.store.info(_place(task_id), kind=TASK)
        return None if info is None else await self._task(info)

    async def _task(self, info: RunInfo) -> model.TaskRecord:
        (event,) = (await self.store.read(info.run_id, info.events - 2))[:1]
        if not isinstance(event, Noted) or event.kind != TASK:
            raise StoreCorrupt(f"{info.run_id} is no journal of a task")
        return msgspec.convert(event.values, model.TaskRecord)

    async def put_task(
        self, task_id: str, by: str, make: Callable[[model.TaskRecord | None], model.TaskRecord]
    ) -> model.TaskRecord:
        """Write a task as `make` makes it of the one before, None for an unknown one."""
        while True:
            info = await self.store.info(_place(task_id), kind=TASK)
            record = make(None if info is None else await self._task(info))
            waits = record.waits_for if record.status == "open" else ()
            event = Noted(
                run_id=_place(task_id),
                seq=0 if info is None else info.events,
                time=await self.now(),
                kind=TASK,
                verb="put",
                status="waiting" if waits else record.status,
                by=by,
                values=msgspec.to_builtins(record),
                subject=json.dumps([task_id, *waits]),
            )
            epoch = 0 if info is None else info.epoch
            try:
                await self.store.append(event.run_id, [event], at=event.seq, epoch=epoch)
            except StaleWriter:
                continue
            return record

    async def waits(self) -> list[tuple[str, str]]:
        """Return who waits for whom among the open tasks."""
        found: list[tuple[str, str]] = []
        for info in await self.store.journals(TASK, status="waiting"):
            waits, *others = json.loads(info.subject or "[]")
            found += [(waits, other) for other in others]
        return found


def _place(task_id: str) -> str:
    return f"task:{task_id}"
