"""Connections of `triage web` that a stranger leaves open: each has a deadline, and their number a bound.

uvicorn closes a connection only while it is idle after a response, and its `limit_concurrency` answers 503
but keeps the socket.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HALF_OPEN_S = 10.0
"""Seconds in which a client has to send a whole request, with its body."""
BACKLOG = 32
"""Connections that are accepted at once, before one of them can be closed again."""
MOST_OPEN, RESERVED, FEWEST_OPEN = 512, 64 + BACKLOG, 16
"""The most connections; the descriptors kept for everything else; the connections kept in any case."""


class Connection(H11Protocol):
    """A connection that is closed if its request does not come, or if a newer one needs its place."""

    _deadline: asyncio.TimerHandle | None = None
    _since = 0.0

    @property
    def awaits_request(self) -> bool:
        """Whether the client has still to send a request, or the rest of one."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._since = self.loop.time()
        self._watch()
        if len(self.connections) > most_open():
            waiting = [
                one
                for one in self.connections
                if isinstance(one, Connection) and one.awaits_request
            ]
            min(waiting, key=lambda one: one._since).transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._deadline is None or not self.awaits_request:
            self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._since = self.loop.time()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._deadline is not None:
            self._deadline.cancel()

    def _watch(self) -> None:
        """Begin the deadline of a request, or end it."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = (
            self.loop.call_later(HALF_OPEN_S, self.transport.abort) if self.awaits_request else None
        )


def most_open() -> int:
    """Return how many connections may be open at once: fewer than the process has descriptors."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return MOST_OPEN
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return MOST_OPEN
    return max(FEWEST_OPEN, min(MOST_OPEN, allowed - RESERVED))
