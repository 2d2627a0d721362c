"""`python -m examples.page`: a store with runs of every kind, one of them at work, and the page of it.

Options are those of `triage web`.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from examples.plan.__main__ import Told, run
from triage.stores import SQLiteStore

from .desk import file_incidents, fill, work


async def show(folder: Path) -> int:
    """Fill a store in the folder, serve it by `triage web`, and keep a run at work until interrupted."""
    with contextlib.redirect_stdout(io.StringIO()):
        await run(folder, Told(Console(file=io.StringIO())))
    store = SQLiteStore(folder / "runs.db")
    await fill(store)
    await file_incidents(store)
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "triage.cli", "web", "--store", f"sqlite:///{store.path}"),
        *sys.argv[1:],
    )
    serving = asyncio.ensure_future(server.wait())
    interrupted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
    async with work(store, "watching") as working:
        while not (serving.done() or interrupted.is_set()):
            working.step()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(interrupted.wait(), 2)
    if not serving.done():
        server.terminate()
    code = await serving
    await store.close()
    return 0 if interrupted.is_set() else code


def main() -> int:
    """Show it; the server's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(show(Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
