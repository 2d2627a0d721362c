"""How things are measured: the same blocks, work and payloads for every package.

Times are medians of blocks; an overhead is that less the time of the bare function, measured in
turn with it in the same process. Nothing but asyncio is imported here before a package is: the
import of one is measured too.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Protocol

    class Body(Protocol):
        """What an agent function does before and after its steps."""

        def enter(self, task: str) -> None:
            """The first line of the function."""
            ...

        def leave(self, task: str) -> None:
            """The last line; raises ConnectionError where the attempt is to fail."""
            ...

    class Peer(Protocol):
        """What a package's module offers; None where the package has no such thing."""

        package: str
        """The name it is imported by."""

        def clean(self) -> Run:
            """A function that returns its task, wrapped."""
            ...

        def stepping(self, outputs: list[str]) -> Run | None:
            """A function that records a step with each output, wrapped."""
            ...

        def recovering(self, body: Body, steps: int) -> Run:
            """A function that enters the body, takes small steps and leaves it, wrapped.

            A ConnectionError is tried again at once. A small step is a recorded step and a pause;
            only the pause where the package has no steps.
            """
            ...

        def classifying(self, steps: int) -> Callable[[], object] | None:
            """Says, when it is called, why an attempt of so many different steps failed."""
            ...

        def creation(self) -> str | None:
            """The code that imports the package and wraps the function `f`."""
            ...


Run = Callable[[str], Awaitable[Any]]
"""Takes a task and runs the wrapped function on it."""
Values = dict[str, float]

RUNS = 10_000
STEPS = 5
SHARE = 5
"""One run in so many fails, once."""


def measure(peer: Peer, name: str) -> Values | None:
    """The values of one measurement by name; None where the package has no such thing."""
    return _MEASUREMENTS[name](peer)


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[~middle]) / 2


async def _block(run: Run, size: int) -> float:
    start = time.perf_counter()
    for _ in range(size):
        await run("task")
    return (time.perf_counter() - start) / size


async def _overhead(run: Run, bare: Run, blocks: int, size: int) -> float:
    """Microseconds a run takes longer than the bare function."""
    for _ in range(3):
        await _block(run, size)
        await _block(bare, size)
    pairs = [(await _block(run, size), await _block(bare, size)) for _ in range(blocks)]
    wrapped, plain = zip(*pairs, strict=True)
    return (_median(list(wrapped)) - _median(list(plain))) * 1e6


# --- the measurements ----------------------------------------------------------------------


def _clean(peer: Peer) -> Values:
    async def bare(task: str) -> str:
        return task

    return {"us": asyncio.run(_overhead(peer.clean(), bare, blocks=150, size=100))}


def _bare_steps(outputs: list[str]) -> Run:
    """What the agent does itself: a tool input and an output for each step."""

    async def bare(task: str) -> str:
        for at, output in enumerate(outputs):
            _small(at, output)
        return task

    return bare


def _small(at: int, output: str) -> tuple[dict[str, int], str]:
    return {"page": at}, output


def _ten_steps(peer: Peer) -> Values | None:
    outputs = ["found"] * 10
    run = peer.stepping(outputs)
    if run is None:
        return None
    return {"us": asyncio.run(_overhead(run, _bare_steps(outputs), blocks=150, size=50))}


def _steps(count: int, repeats: int) -> Callable[[Peer], Values | None]:
    """Microseconds a step, looked at as it comes where the package does so, with outputs of 1 KB."""

    async def measured(peer: Peer) -> Values | None:
        outputs = [f"{at:08d}" * 128 for at in range(count)]
        bare = _bare_steps(outputs)
        wrapped: list[float] = []
        plain: list[float] = []
        warm = peer.stepping(outputs[:100])
        if warm is None:
            return None
        await _block(warm, 3)
        for _ in range(repeats):
            # Each time another agent, so that what the last run stored is not in the way.
            run = peer.stepping(outputs)
            assert run is not None
            wrapped.append(await _block(run, 1))
            plain.append(await _block(bare, 1))
        return {"us": (_median(wrapped) - _median(plain)) * 1e6 / count}

    return lambda peer: asyncio.run(measured(peer))


class _Probe:
    """Fails every second attempt; the seconds from each failure to the attempt after it.

    Each error says something else, so that nothing about it can be known from before.
    """

    def __init__(self) -> None:
        self.failures = 0
        self.raised: float | None = None
        self.again = False
        self.waits: list[float] = []

    def enter(self, _task: str) -> None:
        if self.raised is not None:
            self.waits.append(time.perf_counter() - self.raised)
            self.raised = None
            self.again = True

    def leave(self, task: str) -> None:
        if self.again:
            self.again = False
            return
        self.failures += 1
        text = f"connection refused for {task} {self.failures}"
        self.raised = time.perf_counter()
        raise ConnectionError(text)


class _Crowd:
    """Every fifth run fails once."""

    def __init__(self) -> None:
        self.seen = bytearray(RUNS)

    def enter(self, _task: str) -> None:
        """Nothing is done here."""

    def leave(self, task: str) -> None:
        number = int(task)
        if number % SHARE == 0 and not self.seen[number]:
            self.seen[number] = 1
            raise ConnectionError(f"connection refused for {task}")


def _reentry(peer: Peer) -> Values | None:
    """Microseconds from the raise to the first line of the next attempt."""

    async def measured() -> Values:
        probe = _Probe()
        run = peer.recovering(probe, 0)
        await _block(run, 100)
        probe.waits.clear()
        await _block(run, 1500)
        return {"us": _median(probe.waits) * 1e6}

    return asyncio.run(measured())


def _crowd(peer: Peer) -> Values:
    """Runs a second, and KB of peak memory a run, with 10,000 of them at once."""
    import resource

    async def measured() -> Values:
        crowd = _Crowd()
        run = peer.recovering(crowd, STEPS)
        for _ in range(20):
            # In a task of its own, as the runs below: triage-agent 1.0.1 keeps what a run records in
            # a context variable, and tasks made later by this one would all share the first run's.
            await asyncio.gather(run("0"))
            crowd.seen[0] = 0
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        await asyncio.gather(*(run(str(number)) for number in range(RUNS)))
        seconds = time.perf_counter() - start
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        # The peak is in bytes on macOS, in KB elsewhere.
        size = grown / 1024 if sys.platform == "darwin" else grown
        return {"per_second": RUNS / seconds, "kb": size / RUNS}

    return asyncio.run(measured())


def _classify(peer: Peer) -> Values | None:
    """Milliseconds to say why an attempt of 10,000 steps failed."""
    look = peer.classifying(10_000)
    if look is None:
        return None
    taken: list[float] = []
    for _ in range(12):
        start = time.perf_counter()
        look()
        taken.append(time.perf_counter() - start)
    return {"ms": _median(taken[2:]) * 1e3}


def _import(peer: Peer) -> Values | None:
    """Milliseconds that the import takes where openai is imported before; once in a process."""
    source = peer.creation()
    if source is None:
        return None

    async def function(task: str, **_: Any) -> str:
        return task

    import_module("openai")
    code = compile(source, "creation", "exec")
    start = time.perf_counter()
    exec(code, {"f": function})  # the same text for every package, and nobody's input
    seconds = time.perf_counter() - start
    home = str(sys.modules[peer.package].__file__)
    assert home.startswith(sys.prefix), f"measured {home}, not what is installed"
    return {"ms": seconds * 1e3}


_MEASUREMENTS: dict[str, Callable[[Peer], Values | None]] = {
    "clean": _clean,
    "ten_steps": _ten_steps,
    "steps_10": _steps(10, 300),
    "steps_10000": _steps(10_000, 3),
    "reentry": _reentry,
    "crowd": _crowd,
    "classify": _classify,
    "import": _import,
}
NAMES = tuple(_MEASUREMENTS)
