"""A desk in Postgres behind a way on which replies can get lost."""

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
    """Carries bytes to a server; once, the answer to a commit is not carried back."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._server = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = url.replace(f"{parts.hostname}:{parts.port}", f"127.0.0.1:{port}")
        self.losing = False
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        commits = False
        with client, socket.create_connection(self._server) as server:
            while True:
                ready, _, _ = select.select([client, server], [], [])
                for source in ready:
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    if source is client:
                        commits = b"COMMIT" in data and self.losing
                        server.sendall(data)
                    elif commits:
                        self.losing = False
                        self.lost += 1
                        return  # it is done, and nobody hears
                    else:
                        client.sendall(data)

    def close(self) -> None:
        self._listener.close()


@asynccontextmanager
async def lossy_desk(
    opened: Opened, **options: Any
) -> AsyncGenerator[tuple[IncidentDesk, Callable[[], None]]]:
    """A desk, and what has the reply to its next commit lost; each time it must have been."""
    way = Way(POSTGRES)
    store = PostgresStore(way.url, schema=opened.name)
    desk = IncidentDesk(store, **options)
    asked = 0

    def lose() -> None:
        nonlocal asked
        assert way.lost == asked
        asked += 1
        way.losing = True

    await desk.stats()
    try:
        yield desk, lose
        assert way.lost == asked
    finally:
        await desk.close()
        await store.close()
        way.close()
