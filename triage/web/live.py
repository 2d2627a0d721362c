"""Live updates as server-sent events: all tabs that show the same page share one poll of the store."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any, NamedTuple

import anyio
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from triage.core.errors import StoreError, UnknownRun
from triage.core.events import is_milestone
from triage.core.quoting import one_line
from triage.engine.digest import Digest
from triage.stores.base import RunInfo, Store

from .digest import Digests, row_of
from .pages import Places, money
from .timeline import Moments, entry_of, lasted

EVERY_S = 0.1
"""Seconds between polls of a run that is open in a browser."""
_LIST_EVERY_S = 0.25
_HEARTBEAT_S = 15.0
_MOST_MESSAGES = 128
_NEWEST = 200
"""How many of the newest runs the list is updated about."""
_MOST_ENTRIES = 200
"""The most timeline entries in one message; if there are more, the page reloads."""

_NOTHING = b":\n\n"
_STALE = b"event: stale\ndata: {}\n\n"


def message(event: str, data: Any) -> bytes:
    """Encode a server-sent event with JSON data."""
    return f"event: {event}\ndata: {json.dumps(data)}\n\n".encode()


class Feed:
    """The messages about a run or a list. One reader at a time polls on behalf of all of them.

    look: returns the next message, or None if nothing is new. every_s: seconds between polls. told: how
    many messages there have been. readers: how many readers there are.
    """

    def __init__(self, look: Callable[[], Awaitable[bytes | None]], every_s: float) -> None:
        self._look = look
        self._every_s = every_s
        self._kept: deque[bytes] = deque(maxlen=_MOST_MESSAGES)
        self.told = 0
        self._news = anyio.Event()
        self._looking = False
        self.readers = 0

    async def read(self, at: int) -> AsyncGenerator[bytes]:
        """Yield the messages after the first `at`, and regular comments that reveal a lost connection."""
        while True:
            with anyio.move_on_after(_HEARTBEAT_S):
                while at == self.told:
                    await self._wait()
            missed = self.told - at
            if missed > len(self._kept):
                yield _STALE
            elif missed:
                yield b"".join(list(self._kept)[-missed:])
            else:
                yield _NOTHING
            at = self.told

    async def _wait(self) -> None:
        """Wait for a new message; the first reader to wait does the polling."""
        if self._looking:
            await self._news.wait()
            return
        self._looking = True
        try:
            while True:
                found = await self._look()
                if found is not None:
                    self._kept.append(found)
                    self.told += 1
                    return
                await anyio.sleep(self._every_s)
        finally:
            # If this reader was cancelled, another one takes over the polling.
            self._looking = False
            self._news.set()
            self._news = anyio.Event()


class RunWatch:
    """Poll one run for new events. Keeps only its digest and its open calls in memory."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._digest = Digest()
        self._moments = Moments()
        self._started = 0.0
        self._before: float | None = None
        self._standing: tuple[Any, ...] = ()
        self._trouble = ""

    @property
    def seen(self) -> int:
        """How many events of the run have been read."""
        return self._digest.events

    async def start(self) -> None:
        """Read the existing events; `look` reports only later ones."""
        await self._news()

    async def look(self) -> bytes | None:
        """Return what is new since the last look, or None. Reports an error of the store once."""
        try:
            found = await self._news()
        except StoreError as error:
            if isinstance(error, UnknownRun) or str(error) == self._trouble:
                return None
            self._trouble = str(error)
            return message("trouble", {"text": one_line(str(error), 300)})
        self._trouble = ""
        return found

    async def _news(self) -> bytes | None:
        info = await self._store.info(self._run_id)
        if info is None:
            raise UnknownRun(self._run_id)
        free = _is_free(info, await self._store.now())
        standing = (info.events, info.status, info.claims, info.epoch, free)
        if standing == self._standing:
            return None
        events = await self._store.read(self._run_id, self.seen - 1)
        changed: dict[int, dict[str, Any]] = {}
        for event in events:
            self._started = self._started or event.time
            moment = self._moments.apply(event)
            before = self._before if moment.first is event else None
            told = entry_of(moment, self._started, before)._asdict()
            # A call that ends keeps the pause shown when it began.
            told["idle"] = told["idle"] or changed.get(moment.first.seq, told)["idle"]
            changed[moment.first.seq] = told
            self._before = event.time
            self._digest.apply(event)
        turned = self._standing[1:] != standing[1:] or any(map(is_milestone, events))
        self._standing = standing
        entries = list(changed.values())
        return message(
            "news",
            {
                "seq": self.seen - 1,
                "entries": entries[-_MOST_ENTRIES:],
                "figures": figures_of(self._digest),
                "refresh": turned or len(entries) > _MOST_ENTRIES,
            },
        )


def figures_of(digest: Digest) -> dict[str, str]:
    return {
        "attempts": str(digest.attempts),
        "steps": f"{digest.steps:,}",
        "reused": f"+ {digest.reused:,} reused" if digest.reused else "",
        "calls": f"{digest.usage.calls:,}",
        "tokens": f"{digest.usage.total_tokens:,}",
        "cost": money(digest.usage.cost_usd),
        "busy": lasted(digest.busy),
    }


class ListWatch:
    """Poll the newest runs for changes."""

    def __init__(self, store: Store, digests: Digests, places: Places) -> None:
        self._store = store
        self._digests = digests
        self._places = places
        self._standing: dict[str, tuple[RunInfo, bool]] = {}

    async def start(self) -> None:
        """Read the current state of the runs; `look` reports only later changes."""
        self._standing = _standing(await self._store.runs(limit=_NEWEST), await self._store.now())

    async def look(self) -> bytes | None:
        """Return the rows that changed, oldest first, or None. Reports an error of the store."""
        try:
            infos, now = await self._store.runs(limit=_NEWEST), await self._store.now()
            standing = _standing(infos, now)
            changed = [i for i in infos if standing[i.run_id] != self._standing.get(i.run_id)]
            places = await self._places.of([info.run_id for info in changed])
            rows = [
                row_of(info, await self._digests.of(info), now, places.get(info.run_id))
                for info in reversed(changed)
            ]
        except StoreError as error:
            await anyio.sleep(1)
            return message("trouble", {"text": one_line(str(error), 300)})
        self._standing = standing
        return message("rows", [row._asdict() for row in rows]) if rows else None


def _standing(infos: Iterable[RunInfo], time: float) -> dict[str, tuple[RunInfo, bool]]:
    """Return what the list shows of runs: not the ends of leases, so a renewed one is no change."""
    return {info.run_id: (info._replace(lease_until=None), _is_free(info, time)) for info in infos}


def _is_free(info: RunInfo, time: float) -> bool:
    return info.status == "running" and (info.lease_until or 0.0) <= time


class _Shared(NamedTuple):
    feed: Feed
    watch: RunWatch | ListWatch


class Live:
    """The feeds of a store, each shared by its readers and dropped when the last reader leaves."""

    def __init__(self, store: Store, digests: Digests, places: Places) -> None:
        self._store = store
        self._digests = digests
        self._places = places
        self._shared: dict[str | None, _Shared] = {}
        self._starting = anyio.Lock()

    @property
    def watched(self) -> int:
        """How many runs and lists are open in a browser."""
        return len(self._shared)

    async def run(self, request: Request, run_id: str, after: int) -> StreamingResponse:
        """Stream the changes of a run. after: position of the last event on the page."""
        shared = await self._of(run_id, lambda: RunWatch(self._store, run_id), EVERY_S)
        assert isinstance(shared.watch, RunWatch)
        first = _NOTHING if shared.watch.seen - 1 == after else _STALE
        return _Stream(self._read(run_id, shared, first, shared.feed.told))

    async def runs(self, request: Request) -> StreamingResponse:
        made = lambda: ListWatch(self._store, self._digests, self._places)  # noqa: E731
        shared = await self._of(None, made, _LIST_EVERY_S)
        return _Stream(self._read(None, shared, _NOTHING, shared.feed.told))

    async def _of(
        self, key: str | None, make: Callable[[], RunWatch | ListWatch], every_s: float
    ) -> _Shared:
        async with self._starting:
            shared = self._shared.get(key)
            if shared is None:
                watch = make()
                await watch.start()
                shared = self._shared[key] = _Shared(Feed(watch.look, every_s), watch)
            shared.feed.readers += 1
            return shared

    async def _read(
        self, key: str | None, shared: _Shared, first: bytes, at: int
    ) -> AsyncGenerator[bytes]:
        """Yield `first`, then the messages after the first `at`."""
        try:
            yield first
            async with aclosing(shared.feed.read(at)) as messages:
                async for told in messages:
                    yield told
        finally:
            shared.feed.readers -= 1
            if not shared.feed.readers:
                self._shared.pop(key, None)


class _Stream(StreamingResponse):
    """A response of server-sent events that releases its reader as soon as the connection closes."""

    def __init__(self, messages: AsyncGenerator[bytes]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(messages, media_type="text/event-stream", headers=headers)
        self._messages = messages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._messages):
            await super().__call__(scope, receive, send)
