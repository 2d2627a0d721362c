"""Digests: what the list shows of a run beyond its row in the store, folded from its journal and cached."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from triage.core import events
from triage.core.failures import ErrorInfo
from triage.core.quoting import json_text, one_line
from triage.core.state import ActiveTime, is_reused
from triage.core.steps import NO_USAGE, Usage
from triage.core.wire import to_json
from triage.engine.outside import WAITING
from triage.stores.base import RunInfo, Store

from .pages import money, slug

KEPT = 500
"""The most digests kept in memory, least recently used dropped first; each takes at most about 2 KB."""
_MOST_ERRORS = 5
_MOST_TOOLS = 20


class Digest:
    """The figures of a run and the words a search finds it by, updated event by event.

    events: how many events it has applied. task: the task on one line. attempts, steps, reused: counts;
    reused steps are not in `steps`. usage: the run's total usage. failure, cause: failure type and cause
    of the latest failed attempt. error: the latest error on one line. question: the open question, or
    "". errors, tools: the latest errors and the first tools, for the search.
    """

    __slots__ = (
        "_active", "attempts", "cause", "error", "errors", "events", "failure",
        "question", "reused", "steps", "task", "tools", "usage",
    )  # fmt: skip

    def __init__(self) -> None:
        self.events = 0
        self.task = ""
        self.attempts = self.steps = self.reused = 0
        self.usage: Usage = NO_USAGE
        self._active = ActiveTime()
        self.failure = self.cause = self.error = self.question = ""
        self.errors: list[str] = []
        self.tools: list[str] = []

    def apply(self, event: events.Event) -> None:
        self.events = event.seq + 1
        self._active.apply(event)
        match event:
            case events.RunStarted(task=task):
                self.task = one_line(json_text(to_json(task)), 160)
            case events.AttemptStarted(attempt=number):
                self.attempts = number
            case events.StepRecorded():
                self._step(event)
            case events.UsageRecorded(usage=usage):
                self.usage = self.usage.plus(usage)
            case events.CallStarted(tool=tool):
                self._tool(tool)
            case events.AttemptFailed():
                self._failed(event)
            case events.RunSuspended(question=question):
                self.question = one_line(question, 200)
            case events.RunResumed():
                self.question = ""
            case events.RunFinished(error=ErrorInfo() as error):
                self._error(str(error))
            case _:
                pass

    @property
    def busy(self) -> float:
        """Seconds of work, without waits."""
        return self._active.seconds

    def _step(self, event: events.StepRecorded) -> None:
        step = event.step
        if step.tool_called is not None:
            self._tool(step.tool_called)
        if is_reused(step.metadata):
            self.reused += 1
            return
        self.steps += 1
        if step.usage is not None:
            self.usage = self.usage.plus(step.usage)

    def _tool(self, name: str) -> None:
        name = name[:60]
        if name not in self.tools and len(self.tools) < _MOST_TOOLS:
            self.tools.append(name)

    def _failed(self, event: events.AttemptFailed) -> None:
        found = event.diagnosis
        if found.cause in WAITING:
            return
        self.failure, self.cause = found.failure_type.value, (found.cause or "")[:60]
        self._error(found.user_message if event.error is None else str(event.error))

    def _error(self, text: str) -> None:
        self.error = one_line(text, 200)
        if self.error not in self.errors:
            self.errors = [*self.errors, self.error][-_MOST_ERRORS:]

    def words(self, info: RunInfo) -> str:
        """Return the text that a search looks at, case-folded."""
        parts = [info.run_id, info.agent, info.status, self.task, self.failure, self.cause]
        return "\n".join([*parts, self.question, *self.errors, *self.tools]).casefold()


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

    why: the open question, or else the latest failure. place: where the run is in its fleet, "" without
    one. began: in seconds since the epoch.
    """

    run_id: str
    slug: str
    agent: str
    status: str
    task: str
    why: str
    place: str
    cost: str
    attempts: int
    steps: int
    began: float


def row_of(info: RunInfo, digest: Digest, place: Any = None) -> Row:
    """Make the list's row for a run. place: its `Place` in a fleet, None without one."""
    failure = " ".join(
        filter(
            None, (digest.failure.replace("_", " "), f"({digest.cause})" if digest.cause else "")
        )
    )
    why = digest.question or ": ".join(filter(None, (failure, digest.error)))
    return Row(
        one_line(info.run_id, 128),
        slug(info.run_id),
        one_line(info.agent, 60),
        one_line(info.status, 20),
        digest.task,
        one_line(why, 200),
        "" if place is None else place.summary(),
        money(digest.usage.cost_usd),
        digest.attempts,
        digest.steps,
        info.started,
    )
