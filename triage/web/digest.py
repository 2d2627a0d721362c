"""The list of runs: digests kept in memory, the search, and the rows."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from triage.core.quoting import one_line
from triage.engine.digest import Digest
from triage.stores.base import RunInfo, Store

from .pages import money, slug

KEPT = 500
"""The most digests kept in memory, least recently used dropped first; each takes at most about 2 KB."""


class Digests:
    """A cache of the digests of a store's runs, each updated by reading only the run's new events."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[str, Digest] = OrderedDict()

    async def of(self, info: RunInfo) -> Digest:
        """Return the digest of a run, up to date with its journal."""
        digest = self._kept.get(info.run_id)
        if digest is None or digest.events > info.events:
            digest = Digest()
        if digest.events < info.events:
            for event in await self._store.read(info.run_id, digest.events - 1):
                # Another task may have applied these events while this one read them.
                if event.seq == digest.events:
                    digest.apply(event)
        self._kept[info.run_id] = digest
        self._kept.move_to_end(info.run_id)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return digest


class Query(NamedTuple):
    """A search in the list of runs. Empty fields and None match every run.

    words: must all be found, ignoring case. status, agent, failure: must match exactly. hours: the run
    started within this many hours.
    """

    words: str = ""
    status: str = ""
    agent: str = ""
    failure: str = ""
    hours: float | None = None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Query:
        """Read a query from URL parameters; cut long values and ignore invalid hours."""
        hours = given.get("hours", "")
        return cls(
            given.get("q", "").strip()[:200],
            given.get("status", "")[:40],
            given.get("agent", "").strip()[:200],
            given.get("failure", "")[:40],
            float(hours) if hours.isascii() and hours.isdecimal() and len(hours) < 6 else None,
        )

    def fits(self, info: RunInfo, digest: Digest) -> bool:
        """Return whether a run matches by failure and words; the store has matched status and agent."""
        if self.failure and digest.failure != self.failure:
            return False
        words = self.words.casefold().split()
        if not words:
            return True
        held = digest.words(info)
        return all(word in held for word in words)


class Found(NamedTuple):
    """A page of search results.

    older: the position to continue from; None at the end. looked_at: how many runs were searched. hasty:
    whether the search ran out of time, so that the page may be incomplete.
    """

    runs: Sequence[tuple[RunInfo, Digest]]
    older: int | None
    looked_at: int
    hasty: bool


_AT_ONCE = 200
_LONGEST_S = 1.0
"""Seconds after which a search stops and shows what it has found."""


async def find(store: Store, digests: Digests, query: Query, start: int, most: int) -> Found:
    """Find at most `most` runs that match a query, newest first, starting at position `start`."""
    found: list[tuple[RunInfo, Digest]] = []
    deadline = time.monotonic() + _LONGEST_S
    since = None if query.hours is None else await store.now() - 3_600 * query.hours
    at = start
    while True:
        status, agent = query.status or None, query.agent or None
        infos = await store.runs(status, agent=agent, limit=at + _AT_ONCE + 1)
        more = len(infos) > at + _AT_ONCE
        for info in infos[at : at + _AT_ONCE]:
            if since is not None and info.started < since:
                return Found(found, None, at - start, hasty=False)
            hasty = time.monotonic() > deadline and at > start
            if len(found) == most or hasty:
                return Found(found, at, at - start, hasty=hasty)
            digest = await digests.of(info)
            at += 1
            if query.fits(info, digest):
                found.append((info, digest))
        if not more:
            return Found(found, None, at - start, hasty=False)


class Row(NamedTuple):
    """A row of the list.

    status: as in the store. shown: as `Digest.status` says it. why: the open question, or else the latest
    failure. place: where the run is in its fleet, "" without one. began: in seconds since the epoch.
    """

    run_id: str = ""
    slug: str = ""
    agent: str = ""
    status: str = ""
    shown: str = ""
    task: str = ""
    why: str = ""
    place: str = ""
    cost: str = ""
    began: float = 0.0


def row_of(info: RunInfo, digest: Digest, time: float, place: Any = None) -> Row:
    """Make the list's row for a run. time: the store's. place: its `Place` in a fleet, None without one."""
    return Row(
        run_id=one_line(info.run_id, 128),
        slug=slug(info.run_id),
        agent=one_line(info.agent, 60),
        status=one_line(info.status, 20),
        shown=digest.status(info, time).replace("_", " "),
        task=digest.task,
        why=digest.why,
        place="" if place is None else place.summary(),
        cost=money(digest.usage.cost_usd),
        began=info.started,
    )
