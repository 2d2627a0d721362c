"""The clocks of leases: the machine's counter, and a clock shared through a SQLite file."""

from __future__ import annotations

import os
import sqlite3
import time
from functools import cache
from pathlib import Path

from triage.core.errors import StoreCorrupt

NOTED = 60.0
"""Seconds between notes of the store's time in the file."""


def ticks() -> float:
    """Return seconds of this machine's counter, which never jumps and counts while the machine sleeps."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


@cache
def boot_id() -> str | None:
    """Return an id of the machine's current boot and the process' time namespace; None if unknown.

    Processes with the same id read the same counter in `ticks`.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"  # noqa: PTH115 - the link leads nowhere
    except (OSError, UnicodeDecodeError):
        return None


class Clock:
    """The clock of a store in a file, in seconds since the epoch, shared by all processes that use it.

    It starts at the wall time of the first use after a boot and then counts seconds, without the jumps of
    the wall clock. After a reboot it starts at the wall time again, but not before the latest time noted
    in the file. On a system without `boot_id` it is the wall clock.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._zero: float | None = None
        self._noted = 0.0

    def read(self, db: sqlite3.Connection) -> float:
        """Return the time without writing: the wall time until a writer has set the clock."""
        boot = boot_id()
        if boot is None:
            return time.time()
        if self._zero is None:
            self._zero = self._stored(db, boot)
        return self._start(db) if self._zero is None else self._zero + ticks()

    def tell(self, db: sqlite3.Connection) -> float:
        """Return the time in a transaction that writes: set an unset clock, and note the time."""
        boot = boot_id()
        if boot is None:
            return time.time()
        now = self.read(db)
        if self._zero is None:
            # The transaction holds the lock, so no other process sets the clock meanwhile.
            self._zero = now - ticks()
            db.execute(
                "INSERT INTO clock VALUES (:boot, :zero, :seen, row_crc(:boot, :zero, :seen))",
                {"boot": boot, "zero": self._zero, "seen": now},
            )
            self._noted = now
        elif now - self._noted > NOTED:
            db.execute(
                "UPDATE clock SET seen = :seen, crc = row_crc(boot, zero, :seen) WHERE boot = :boot",
                {"seen": now, "boot": boot},
            )
            self._noted = now
        return now

    def forget(self) -> None:
        """Read the clock from the file next time, since the transaction that set it may be rolled back."""
        self._zero = None
        self._noted = 0.0

    def _stored(self, db: sqlite3.Connection, boot: str) -> float | None:
        row = db.execute(
            "SELECT zero, crc = row_crc(boot, zero, seen) FROM clock WHERE boot = ?", (boot,)
        ).fetchone()
        if row is None:
            return None
        zero, sound = row
        if not sound:
            raise StoreCorrupt(f"the clock in {self._path} is damaged; restore it from a copy")
        return float(zero)

    def _start(self, db: sqlite3.Connection) -> float:
        """Return the start time of a new clock."""
        (seen,) = db.execute(
            "SELECT max(seen) FROM clock WHERE crc = row_crc(boot, zero, seen)"
        ).fetchone()
        return max(time.time(), seen or 0.0)
