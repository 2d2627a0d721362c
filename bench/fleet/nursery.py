"""Workers as processes that are forked, so that none has to import what all need.

Reads lines from standard input, each the file for what a worker prints; answers each with the number of its
process.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys

from triage.cli import main

from . import agents

PR_SET_PDEATHSIG = 1
WORKER = ("worker", f"{agents.__name__}:fleet", "--drain", "1")


def begin(path: str) -> int:
    """Fork a worker; its process."""
    number = os.fork()
    if number:
        return number
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if sys.platform == "linux":  # end with the nursery, however it ends
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    code = 1
    try:
        code = main(WORKER)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    """Fork as many as are asked for, until nobody can ask any more."""
    # Whoever ends is forgotten at once: the storm sees it by its number being free.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    for line in sys.stdin:
        print(begin(line.strip()), flush=True)


if __name__ == "__main__":
    serve()
