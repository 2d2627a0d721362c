"""The world outside a storm: a log of effects that survives kills and lost databases."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Effect(NamedTuple):
    """An effect: its key, the id of the process that had it, and when, in seconds since the epoch."""

    key: str
    process: int
    at: float


class World:
    """A file with one effect per line. A line is written whole or not at all."""

    def __init__(self, path: str | Path) -> None:
        self._path = os.fspath(path)

    def do(self, key: str) -> None:
        """Append an effect to the log."""
        line = f"{key} {os.getpid()} {time.time():.6f}\n"
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def done(self) -> Iterator[Effect]:
        """Yield all effects in order."""
        if not Path(self._path).exists():
            return
        for line in Path(self._path).read_text(encoding="utf-8").splitlines():
            key, process, at = line.rsplit(" ", 2)
            yield Effect(key, int(process), float(at))

    def has(self, key: str) -> bool:
        """Return whether an effect has happened."""
        return any(effect.key == key for effect in self.done())
