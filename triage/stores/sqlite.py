"""Runs in a SQLite file: durable on one machine, with the standard library alone."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Literal

from triage._options import check_word, misuse

from ._sqlite import SQLiteDriver
from ._threaded import ThreadedStore


class SQLiteStore(ThreadedStore):
    """Keeps runs in a file, which any number of processes of this machine may share.

    path: of the file, made with mode 0600 if there is none. synchronous: `"full"` (default): what was
    written survives the loss of power; `"normal"`: it survives the death of the process, and the last
    commits may be lost with the power. timeout: seconds, 10 by default, to wait for another process'
    lock. The file is opened by the first use, or by `await store.open()`; one that is damaged,
    read-only, newer or another program's is refused then and left untouched.

    Raises UsageError for any other value.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Literal["full", "normal"] = "full",
        timeout: float = 10.0,
    ) -> None:
        if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
            raise misuse("SQLiteStore.path", path, "the path of a file, as text or a Path")
        if not os.fspath(path) or "\0" in os.fspath(path):
            raise misuse("SQLiteStore.path", path, "the path of a file")
        check_word("SQLiteStore.synchronous", synchronous, ("full", "normal"))
        # Where the process was when it was said, wherever it goes later.
        self.path = str(Path(path).absolute())
        connect = partial(SQLiteDriver, self.path, synchronous, timeout)
        super().__init__(
            partial(connect, writes=True), partial(connect, writes=False), timeout=timeout
        )

    def __repr__(self) -> str:
        return f"SQLiteStore({self.path!r})"
