"""`python -m examples.page`: a store with runs of every kind, one of them at work, and the page of it."""

from __future__ import annotations

import asyncio
import io
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from examples.plan.__main__ import Told, run
from triage.stores import SQLiteStore

from .desk import fill, work


async def show(folder: Path) -> int:
    """Fill a store in the folder, serve it by `triage web`, and keep a run at work until interrupted."""
    await run(folder, Told(Console(file=io.StringIO())))
    store = SQLiteStore(folder / "runs.db")
    await fill(store)
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "triage.cli", "web", "--store", f"sqlite:///{store.path}")
    )
    serving = asyncio.ensure_future(server.wait())
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, server.terminate)
    async with work(store, "watching") as working:
        while not serving.done():
            working.step()
            await asyncio.wait([serving], timeout=2)
    await store.close()
    return serving.result()


def main() -> int:
    """Show it; the server's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(show(Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
