"""What is outside of the runs in a storm: a log of effects that no kill and no database takes back."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Effect(NamedTuple):
    """An effect: which, by the process of which number, and when (seconds since the epoch)."""

    key: str
    process: int
    at: float


class World:
    """Effects, one a line of a file. A line is written whole or not at all."""

    def __init__(self, path: str | Path) -> None:
        self._path = os.fspath(path)

    def do(self, key: str) -> None:
        """Have an effect."""
        line = f"{key} {os.getpid()} {time.time():.6f}\n"
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def done(self) -> Iterator[Effect]:
        """All effects, in their order."""
        if not Path(self._path).exists():
            return
        for line in Path(self._path).read_text(encoding="utf-8").splitlines():
            key, process, at = line.rsplit(" ", 2)
            yield Effect(key, int(process), float(at))

    def has(self, key: str) -> bool:
        """Whether an effect has happened."""
        return any(effect.key == key for effect in self.done())
