"""Use a store from another process: `python -m stores.store_child WHAT KIND NAME …`, one answer a line."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import anyio
from store_kinds import Opened

from stores.store_runs import add, created, started, steps
from triage import Resume
from triage.core import RunBusy, RunResumed, StaleWriter


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - how it answers


def ready() -> None:
    """Wait until all have come so far."""
    say("ready")
    sys.stdin.readline()


async def answer(store: Any, tokens: list[str]) -> None:
    """Answer each question as whoever was asked would, and say which ones were taken."""
    await store.open()
    ready()
    for token in tokens:
        run_id = await store.find(token)
        if run_id is None:
            continue
        try:
            claim = await store.claim(run_id, lease_s=60)
            event = RunResumed(run_id, claim.events, time.time(), 1, Resume("yes"))
            if await store.find(token) != run_id:
                continue
            await store.append(run_id, [event], at=claim.events, epoch=claim.epoch)
        except (RunBusy, StaleWriter):
            continue
        say("won", token)


async def write(store: Any, names: list[str]) -> None:
    """Write runs of its own, and try for those of all."""
    mine, shared = names
    await store.open()
    ready()
    await created(store, mine)
    for at in range(1, 51):
        await add(store, mine, at, 1)
        try:
            await add(store, shared, at, 1)
        except StaleWriter:
            continue
        say("won", at)


async def acknowledge(store: Any, names: list[str]) -> None:
    """Write until killed, and say what is durable."""
    (run_id,) = names
    await created(store, run_id)
    at = 1
    while True:
        await add(store, run_id, at, 1)
        say(at)
        at += 1


async def take(store: Any, words: list[str]) -> None:
    """Claim runs with a wall clock that is off by so many seconds; say the store's time and who won."""
    off, *names = words
    real = time.clock_gettime
    time.time = lambda: real(time.CLOCK_REALTIME) + float(off)
    say(repr(await store.now()))
    for run_id in names:
        try:
            await store.claim(run_id, lease_s=30)
        except RunBusy:
            say("busy")
        else:
            say("won")
    await store.close()


def leave(store: Any, names: list[str]) -> None:
    """Submit and end at once."""
    (run_id,) = names
    told: list[object] = []
    store.submit(run_id, [started(run_id)], at=0, epoch=0, lease_s=None, done=told.append)
    for at in range(1, 501):
        store.submit(run_id, steps(run_id, at, 1), at=at, epoch=0, lease_s=None, done=told.append)


def fork(store: Any, names: list[str]) -> None:
    """Parent and child write with a store that was open before, and was in use meanwhile."""
    busy, ours, theirs = names
    anyio.run(created, store, busy)
    anyio.run(created, store, ours)
    stop = threading.Event()

    async def keep_busy() -> None:
        at = 1
        while not stop.is_set():
            await add(store, busy, at, 1)
            at += 1

    thread = threading.Thread(target=anyio.run, args=(keep_busy,))
    thread.start()
    warnings.simplefilter("ignore", DeprecationWarning)
    children = []
    for number in range(5):
        child = os.fork()
        if not child:
            run_id = f"{theirs}-{number}"
            anyio.run(created, store, run_id)
            anyio.run(add, store, run_id, 1, 10)
            os._exit(0 if len(anyio.run(store.read, run_id)) == 11 else 3)
        children.append(child)
        anyio.run(add, store, ours, 1 + number * 10, 10)
    codes = [os.waitpid(child, 0)[1] for child in children]
    stop.set()
    thread.join()
    say(codes, len(anyio.run(store.read, ours)))


if __name__ == "__main__":
    what, kind, name, *rest = sys.argv[1:]
    made = Opened(kind, Path()).at(name)
    if what in ("leave", "fork"):
        globals()[what](made, rest)
    else:
        anyio.run(globals()[what], made, rest)
