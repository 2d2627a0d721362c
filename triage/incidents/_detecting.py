"""The desk's way of finding failures: every source read, each failure judged, all written down."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import anyio

from triage._options import check_count
from triage.errors import StoreError
from triage.events import Event
from triage.observers import logger
from triage.stores import MemoryStore, Store

from . import _json as answers
from . import _rows as rows
from ._db import Db
from ._lanes import Lanes
from ._model import Incident, Sighting
from ._seeing import Judge, Rules, see
from ._settings import Watch
from ._sources import RUNS, TAIL, FoundRun, is_known, of_journal, of_listing, of_runs, own_tables
from .lifecycle import Lifecycle

SHOWN = 100
"""Incidents that `detect` lists by default."""
AT_ONCE = 100
"""Failures written in one commit: others may write in between."""


class Detecting:
    """What of a desk finds failures."""

    _store: Store
    _lanes: Lanes
    _judge: Judge
    _rules: Rules
    _watch: Watch
    _sources: tuple[Lifecycle, ...]

    async def detect(self, *, full: bool = False, limit: int = SHOWN) -> dict[str, Any]:
        """Find what has failed since the last look, and list what nobody has handled yet, oldest first.

        Done again, it finds nothing twice: a failure belongs to one incident, however often it is seen.
        full: read all of every source again, not only what is new; for rows that were written very late.
        limit: incidents listed at most, the newest; `errors_found` counts all that wait.
        """
        check_count("limit", limit, 1)
        while await self.look(full=full):
            continue
        count, found = await self._lanes.read(partial(_unhandled, limit=limit))
        return answers.detected(count, found)

    async def look(self, *, full: bool = False, limit: int = 1000) -> int:
        """Read every source once, at most so many failures of each; how many were new."""
        check_count("limit", limit, 1)
        sightings = await self._lanes.read(partial(own_tables, most=limit))
        found = await self._failed_runs(limit, full=full) if self._watch.runs else []
        sightings += [await self._of_run(run) for run in found]
        for source in self._sources:
            sightings += await self._lanes.read(
                partial(source.sightings, most=limit, full=full), before=source.prepare
            )
        new = 0
        for start in range(0, len(sightings), AT_ONCE):
            some = sightings[start : start + AT_ONCE]
            drafts = await anyio.to_thread.run_sync(self._judge.drafts, some)
            new += await self._lanes.write(partial(_write_down, rules=self._rules, drafts=drafts))
        await self._lanes.write(
            partial(_mark, sources=self._sources, seen=sightings, all_runs=len(found) < limit)
        )
        return new

    async def _failed_runs(self, limit: int, *, full: bool) -> list[FoundRun]:
        watch = self._watch
        if not isinstance(self._store, MemoryStore):
            return await self._lanes.read(partial(of_runs, watch=watch, most=limit, full=full))
        infos = await self._store.runs()
        return await self._lanes.read(
            lambda db: _unseen(db, of_listing(infos, watch, db.now))[:limit]
        )

    async def _of_run(self, run: FoundRun) -> Sighting:
        """What the end of its journal says; one that cannot be read is a failure all the same."""
        events: list[Event] = []
        try:
            events = await self._store.read(run.run_id, after=max(-1, run.events - TAIL))
        except StoreError as error:
            logger.warning("incidents: the journal of run %s cannot be read: %s", run.run_id, error)
        now = (
            await self._lanes.read(lambda db: db.now)
            if run.word in ("lost", "left", "waits")
            else 0.0
        )
        return of_journal(run, events, now)


def _unseen(db: Db, found: list[FoundRun]) -> list[FoundRun]:
    return [run for run in found if not is_known(db, Sighting(RUNS, run.key, ""))]


def _unhandled(db: Db, limit: int) -> tuple[int, list[Incident]]:
    row = db.one("SELECT count(*) FROM incidents WHERE status = 'detected'")
    order = "last_seen DESC, id DESC"
    found = rows.find(db, "status = 'detected'", {}, order=order, limit=limit)
    return (0 if row is None else int(row[0])), found[::-1]


def _write_down(db: Db, rules: Rules, drafts: Iterable[tuple[Sighting, Incident]]) -> int:
    return sum(see(db, rules, sighting, draft) is not None for sighting, draft in drafts)


_MARK = """
INSERT INTO cursors (source, mark) VALUES (:source, :mark)
ON CONFLICT (source) DO UPDATE SET mark = excluded.mark
WHERE CAST(excluded.mark AS double precision) > CAST(cursors.mark AS double precision)"""


def _mark(db: Db, sources: Iterable[Lifecycle], seen: list[Sighting], *, all_runs: bool) -> None:
    """Note how far each source has been read; never back, nor beyond now, whatever its clock says."""
    if all_runs:
        db.run(_MARK, {"source": RUNS, "mark": repr(db.now)})
    for source in sources:
        for word in source.failed:
            times = [
                one.at
                for one in seen
                if one.source == source.name and one.status == word and one.at is not None
            ]
            if times:
                db.run(
                    _MARK, {"source": source.cursor(word), "mark": repr(min(max(times), db.now))}
                )
