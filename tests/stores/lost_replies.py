"""A way to a server on which replies can get lost, and a desk in Postgres behind it."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from store_kinds import POSTGRES, Opened

from triage.incidents import IncidentDesk
from triage.stores import PostgresStore


class Way:
    """A way to a server on which replies can get lost, and which can be closed.

    lose: how many of the next replies. to: only those to what has these bytes in it. lost: how many were.
    """

    def __init__(self, url: str, to: bytes = b"") -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._server = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = url.replace(f"{parts.hostname}:{parts.port}", f"127.0.0.1:{port}")
        self.lose = 0
        self.lost = 0
        self._to = to
        self._open = True
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while self._open:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        meant = False
        with client, socket.create_connection(self._server) as server:
            while True:
                ready, _, _ = select.select([client, server], [], [])
                for source in ready:
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    if source is client:
                        meant = self._to in data
                        server.sendall(data)
                    elif meant and self.lose:
                        self.lose -= 1
                        self.lost += 1
                        return  # the server has done it, and nobody hears
                    else:
                        client.sendall(data)

    def close(self) -> None:
        self._open = False
        self._listener.close()


@asynccontextmanager
async def lossy_desk(
    opened: Opened, **options: Any
) -> AsyncGenerator[tuple[IncidentDesk, Callable[[], None]]]:
    """A desk, and what has the reply to its next commit lost; each time it must have been."""
    way = Way(POSTGRES, to=b"Noted")
    store = PostgresStore(way.url, schema=opened.name)
    desk = IncidentDesk(store, **options)
    asked = 0

    def lose() -> None:
        nonlocal asked
        assert way.lost == asked
        asked += 1
        way.lose = 1

    await desk.incidents()
    try:
        yield desk, lose
        assert way.lost == asked
    finally:
        await desk.close()
        await store.close()
        way.close()
