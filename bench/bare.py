"""A bare loop that only inserts and commits in groups: what one would write by hand.

It knows no owners, checks no position and keeps no status.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from pathlib import Path


class Bare:
    """A writer thread that commits whatever has been put meanwhile, and nothing else."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._rows: queue.SimpleQueue[tuple[str, int, str, asyncio.Future[None]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    async def add(self, run_id: str, seq: int, body: str) -> None:
        """Return once the row is durable."""
        done = asyncio.get_running_loop().create_future()
        self._rows.put((run_id, seq, body, done))
        await done

    def close(self) -> None:
        """End the thread."""
        self._rows.put(None)
        self._thread.join()

    def _write(self) -> None:
        db = sqlite3.connect(self._file, isolation_level=None)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("CREATE TABLE events (run TEXT, seq INT, body TEXT, PRIMARY KEY (run, seq))")
        while (row := self._rows.get()) is not None:
            rows = [row]
            while not self._rows.empty() and (more := self._rows.get()) is not None:
                rows.append(more)
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT INTO events VALUES (?, ?, ?)", [each[:3] for each in rows])
            db.execute("COMMIT")
            futures = [each[3] for each in rows]
            rows[0][3].get_loop().call_soon_threadsafe(_tell, futures)
        db.close()


def _tell(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        future.set_result(None)
