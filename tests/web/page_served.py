"""The page of a store, served to a browser by a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

import uvicorn

from triage.stores import Store

T = TypeVar("T")


class Served:
    """The page of a store, served by an event loop in a thread of its own."""

    def __init__(self, store: Store, application: Any) -> None:
        self.store = store
        self._application = application
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._server = uvicorn.Server(
            uvicorn.Config(
                application, port=0, log_level="error", ws="none", timeout_graceful_shutdown=1
            )
        )
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        serving = asyncio.ensure_future(self._server.serve())
        while not self._server.started and not serving.done():
            await asyncio.sleep(0.01)
        self._ready.set()
        await serving
        await self.store.close()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(30)

    @property
    def url(self) -> str:
        """Where it is."""
        host, port = self._server.servers[0].sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the loop of the server, and wait for it."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def call(self, work: Callable[[], object]) -> None:
        """Call something in the loop of the server."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(work)
