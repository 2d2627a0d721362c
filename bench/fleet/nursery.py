"""Forks worker processes, so that each starts with the imports already done.

Each line on standard input names the file for a new worker's output; the answer is the worker's process id.
Read from the environment: STORM_DRAIN_S.
"""

from __future__ import annotations

import ctypes
import gc
import io
import os
import signal
import sys
from contextlib import redirect_stdout

from triage.cli import main

from . import agents

PR_SET_PDEATHSIG = 1
WORKER = ("worker", f"{agents.__name__}:fleet", "--drain", os.environ.get("STORM_DRAIN_S", "1"))


def begin(path: str) -> int:
    """Fork a worker that writes its output to this file, and return its process id."""
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
    """Fork a worker for each line of standard input, until it is closed."""
    with redirect_stdout(io.StringIO()):
        main((*WORKER, "--help"))  # imports what the command needs
    # Ended workers are reaped at once: the storm sees the end by the process id being free.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    for line in sys.stdin:
        print(begin(line.strip()), flush=True)


if __name__ == "__main__":
    serve()
