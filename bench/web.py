"""What the page weighs, how soon a long run is seen, and how soon an event is, with 100 tabs open.

    python -m bench.web [--tabs 100] [--steps 10000]

Prints each figure beside its bound, and exits with 1 while one is over.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.metadata
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from starlette.testclient import TestClient

from triage import Agent, Step, Usage
from triage.core import (
    AttemptStarted,
    CallFinished,
    CallStarted,
    Event,
    RunFinished,
    RunStarted,
    StepRecorded,
)
from triage.stores import SQLiteStore, Store
from triage.web import app
from triage.web.live import RunWatch

PACKAGES = ("starlette", "uvicorn", "jinja2", "markupsafe", "h11", "click")
"""What the extra `web` installs beside what triage needs anyway."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
FIRST_PAINT = """() => new Promise((painted) => {
  new PerformanceObserver((seen) => {
    const [first] = seen.getEntriesByName("first-contentful-paint");
    if (first) painted(first.startTime);
  }).observe({ type: "paint", buffered: true });
})"""
"""Answers in milliseconds after the navigation began. The page allows no `eval`, so nothing may poll."""
SERVER = """
import sys, uvicorn
from triage.web import app
uvicorn.run(app(sys.argv[1]), port=int(sys.argv[2]), log_level="error")
"""


class Figure(NamedTuple):
    """A figure and the most that it may be, None where there is no bound."""

    name: str
    value: float
    most: float | None
    unit: str

    @property
    def over(self) -> bool:
        """Whether it is more."""
        return self.most is not None and self.value > self.most

    def __str__(self) -> str:
        bound = "" if self.most is None else f"  of {self.most:g} {self.unit}"
        return (
            f"{self.name:<62}{self.value:>10.2f} {self.unit}{bound}{'  OVER' if self.over else ''}"
        )


def journal(run_id: str, steps: int) -> list[Event]:
    """A run of so many recorded calls."""
    events: list[Event] = []

    def add(make: Any, **fields: Any) -> None:
        events.append(make(run_id=run_id, seq=len(events), time=1.7e9 + len(events) / 10, **fields))

    add(RunStarted, agent="bench", task="Look at every page of the catalogue")
    add(AttemptStarted, attempt=1)
    for index in range(steps):
        key = f"look:{index:032x}:1"
        add(CallStarted, attempt=1, key=key, tool="look", effect="read", arguments={"page": index})
        step = Step(
            action="call",
            tool_called="look",
            tool_input={"page": index},
            tool_output=f"what stands on page {index} of the catalogue, in a sentence or two",
            usage=Usage(input_tokens=900, output_tokens=80, cost_usd=0.0011),
            metadata={"call": key},
            duration_s=0.2,
        )
        add(StepRecorded, attempt=1, index=index, step=step)
        add(CallFinished, attempt=1, key=key, outcome="done", result=f"page {index}", step=index)
    add(RunFinished, status="done", result="all of it")
    return events


def stored(store: Store, *journals: list[Event]) -> None:
    """Put journals into a store."""

    async def put() -> None:
        for events in journals:
            for start in range(0, len(events), 3_000):
                part = events[start : start + 3_000]
                await store.append(events[0].run_id, part, at=start, epoch=0)
        await store.close()

    asyncio.run(put())


def weights(folder: Path) -> Iterator[Figure]:
    """What is installed, and what a run of fifty steps is on the wire."""
    files = [
        file.locate().stat().st_size  # type: ignore[attr-defined] # a Path here
        for name in PACKAGES
        for file in importlib.metadata.files(name) or ()
        if file.suffix != ".pyc" and Path(str(file.locate())).exists()
    ]
    here = Path(__file__).parents[1] / "triage" / "web"
    ours = [
        path.stat().st_size for path in here.rglob("*") if path.is_file() and path.suffix != ".pyc"
    ]
    yield Figure("installed with the extra `web`", (sum(files) + sum(ours)) / 1e6, 4, "MB")
    store = SQLiteStore(folder / "fifty.db")
    stored(store, journal("fifty", 50))
    with TestClient(app(store), base_url="http://localhost") as client:
        plain = client.get("/runs/fifty", headers={"Accept-Encoding": "identity"})
        packed = client.get("/runs/fifty")
        size = int(packed.headers["content-length"])
    yield Figure("a run of 50 steps, as HTML", len(plain.content) / 1e3, 60, "KB")
    yield Figure("the same as it is sent, compressed", size / 1e3, None, "KB")


def long_run(folder: Path, steps: int) -> Iterator[Figure]:
    """A long run: how long its page takes, and what the server holds afterwards."""
    store = SQLiteStore(folder / "long.db")
    stored(store, journal("long", steps))
    with TestClient(app(store), base_url="http://localhost") as client:
        client.get("/runs/nobody")
        started, worked = time.perf_counter(), time.process_time()
        client.get("/runs/long")
        worked = time.process_time() - worked
        yield Figure(
            f"{steps:,} steps: the page is answered after", time.perf_counter() - started, 1, "s"
        )
        yield Figure(f"{steps:,} steps: of that at work", worked, None, "s")
        gc.collect()
        tracemalloc.start()
        for address in ("/", "/runs/long", "/runs/long?page=50", f"/runs/long?at={2 * steps}"):
            client.get(address)
        gc.collect()
        held, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        yield Figure(f"{steps:,} steps: held by the server afterwards", held / 1e6, 2, "MB")
        yield Figure(f"{steps:,} steps: the most while a page is made", most / 1e6, None, "MB")
    yield Figure(f"{steps:,} steps: held while somebody follows it", followed(store), 2, "MB")


def followed(store: Store) -> float:
    """Megabytes that are held while a tab follows the long run."""

    async def measured() -> float:
        watch = RunWatch(store, "long")
        gc.collect()
        tracemalloc.start()
        await watch.start()
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        await store.close()
        return held / 1e6

    return asyncio.run(measured())


@contextmanager
def serving(path: Path, port: int) -> Iterator[str]:
    """The page of a file, in a process of its own."""
    place = f"sqlite:///{path}"
    process = subprocess.Popen([sys.executable, "-c", SERVER, place, str(port)])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


async def answered(port: int) -> None:
    """Wait until the server takes connections."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


async def tab(port: int, path: str, seen: dict[str, list[float]], ready: asyncio.Semaphore) -> None:
    """Follow a run as a browser does, and note when each step is seen."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    await writer.drain()
    await reader.readuntil(b"\r\n\r\n")
    ready.release()
    try:
        while True:
            line = await reader.readline()
            now = time.perf_counter()
            for word in line.split(b"mark-")[1:]:
                number = word[:6].decode()
                times = seen.setdefault(f"{number} {id(reader)}", [])
                times.append(now)
    finally:
        writer.close()


async def tails(folder: Path, tabs: int, marks: int, port: int) -> list[float]:
    """Seconds from a step that is recorded to each tab that sees it."""
    store = SQLiteStore(folder / "live.db")
    recorded: dict[str, float] = {}
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def agent(_task: str, *, record_step: Any) -> str:
        begun.set()
        await go_on.wait()
        for number in range(marks):
            await asyncio.sleep(0.25)
            name = f"{number:06d}"
            recorded[name] = time.perf_counter()
            record_step(Step(action="model", llm_output=f"mark-{name}"))
        await asyncio.sleep(1)
        return "seen"

    running = asyncio.ensure_future(
        Agent(agent, name="bench", store=store).run("Be seen", run_id="live")
    )
    await begun.wait()
    with serving(folder / "live.db", port):
        await answered(port)
        seen: dict[str, list[float]] = {}
        ready = asyncio.Semaphore(0)
        following = [
            asyncio.ensure_future(tab(port, "/runs/live/live?after=1", seen, ready))
            for _ in range(tabs)
        ]
        for _ in range(tabs):
            await ready.acquire()
        go_on.set()
        await running
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
    await store.close()
    found = [times[0] - recorded[key.partition(" ")[0]] for key, times in seen.items()]
    assert len(found) == tabs * marks, f"{len(found)} of {tabs * marks} were seen"
    return sorted(found)


def painted(folder: Path, steps: int, port: int) -> Iterator[Figure]:
    """How soon a browser has painted a long run; nothing where there is none."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        return
    from playwright.sync_api import sync_playwright

    with serving(folder / "long.db", port) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        page = browser.new_page()
        for _ in range(40):
            try:
                page.goto(f"{url}/runs/nobody")
                break
            except Exception:
                time.sleep(0.25)
        page.goto(f"{url}/runs/long")
        paint = page.evaluate(FIRST_PAINT)
        browser.close()
    yield Figure(f"{steps:,} steps: first paint in a browser", paint / 1000, 1, "s")


def main() -> int:
    """Measure all; 1 if a figure is over its bound."""
    parser = argparse.ArgumentParser(prog="python -m bench.web", description=__doc__)
    parser.add_argument("--tabs", type=int, default=100)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--marks", type=int, default=40, help="steps that the tabs wait for")
    parser.add_argument("--port", type=int, default=8467)
    options = parser.parse_args()
    over = 0

    def tell(figure: Figure) -> None:
        nonlocal over
        over += figure.over
        print(figure, flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for figure in (*weights(folder), *long_run(folder, options.steps)):
            tell(figure)
        for figure in painted(folder, options.steps, options.port + 1):
            tell(figure)
        times = asyncio.run(tails(folder, options.tabs, options.marks, options.port))
        said = f"recorded → seen, {options.tabs} tabs"
        tell(Figure(f"{said}, median", 1e3 * statistics.median(times), None, "ms"))
        tell(Figure(f"{said}, 99 %", 1e3 * times[int(len(times) * 0.99)], 300, "ms"))
        tell(Figure(f"{said}, the slowest", 1e3 * times[-1], None, "ms"))
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
