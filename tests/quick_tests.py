"""`pytest --quick`: the tests that take under 30 ms each, as measured, on asyncio alone.

Processor time is measured, of the test and of the processes it starts, so that a busy machine makes no
test slow; a test that waits for ten times as long is slow too. What a fixture of a module or a session
takes counts for each test that uses it if it takes more than a second: were it counted for the first
test alone, that one would be left out and the next one would pay. `slow_tests.txt` lists the test functions
that take longer, so that a fresh clone knows them. Beyond that, each run of the tests remembers in
`.pytest_cache` what they took on this machine, and that counts more than the list: a new test that is
slow is run by `--quick` once. `--list-slow-tests` writes the list anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import Any

import pytest

QUICK_S = 0.03
"""Seconds a quick test takes, on average over its parameters. A table of cases is one test."""
SLOW_S = 2 * QUICK_S
"""Seconds from which a test that is not listed counts as slow: not every measurement is the same."""
WAIT = 0.1
"""What a second counts in which a test waits."""
CACHE = "triage/seconds"
SHARED_S = 1.0
"""Seconds from which a shared fixture makes the tests that use it slow."""
SHARED = pytest.StashKey[dict[str, float]]()
"""What the fixtures that the tests of a module or session share took, by name, without those they use."""
BEGAN = pytest.StashKey[float]()
"""The processor time at which a phase of a test began."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("quick tests")
    group.addoption("--quick", action="store_true", help="run the tests that take under 30 ms each")
    group.addoption(
        "--list-slow-tests",
        action="store_true",
        help="write the list of those that --quick leaves out",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Under xdist the reports of all workers come together in the process that started them.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Stopwatch(config))


def list_of(config: pytest.Config) -> Path:
    """The file that lists slow tests."""
    return config.rootpath / "tests" / "slow_tests.txt"


def listed(config: pytest.Config) -> set[str]:
    """The test functions that are listed as slow."""
    file = list_of(config)
    return set(file.read_text(encoding="utf-8").split()) if file.exists() else set()


def measured(config: pytest.Config) -> dict[str, float]:
    """Seconds a case took here, by test function."""
    cache = getattr(config, "cache", None)
    return {} if cache is None else dict(cache.get(CACHE, {}))


def function_of(nodeid: str) -> str:
    """The id of a test without its parameters."""
    return nodeid.partition("[")[0]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("quick"):
        return
    slow, seconds = listed(config), measured(config)

    def is_quick(item: pytest.Item) -> bool:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and callspec.params.get("anyio_backend") == "trio":
            return False
        name = function_of(item.nodeid)
        limit = QUICK_S if name in slow else SLOW_S
        return seconds.get(name, limit if name in slow else 0.0) < limit

    left_out = [item for item in items if not is_quick(item)]
    items[:] = [item for item in items if is_quick(item)]
    config.hook.pytest_deselected(items=left_out)


def processor_s() -> float:
    """Processor time of this process and of its children that have ended, in seconds."""
    used = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[BEGAN] = processor_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    began = processor_s()
    made = yield
    if fixturedef.scope != "function":
        shared = request.node.stash.setdefault(SHARED, {})
        shared[fixturedef.argname] = processor_s() - began
    return made


def shared_s(item: pytest.Item) -> float:
    """Seconds that the slow ones of the shared fixtures took which a test uses."""
    names = getattr(item, "fixturenames", ())
    taken = (
        node.stash.get(SHARED, {}).get(name, 0.0) for node in item.listchain() for name in names
    )
    return sum(seconds for seconds in taken if seconds >= SHARED_S)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    now = processor_s()
    cost = max(now - item.stash[BEGAN], report.duration * WAIT)
    if report.when == "setup":
        cost = max(cost, shared_s(item))
    report.cost_s = cost
    item.stash[BEGAN] = now
    return report


class Stopwatch:
    """Collects what tests take, and remembers it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._passed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # The report of a worker that died is made by whoever waited for it.
        self._seconds[report.nodeid] += getattr(report, "cost_s", 0.0)
        if report.when == "call" and report.passed:
            self._passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        items: defaultdict[str, list[float]] = defaultdict(list)
        for nodeid in self._passed:
            items[function_of(nodeid)].append(self._seconds[nodeid])
        new = {name: sum(some) / len(some) for name, some in items.items()}
        cache = getattr(self._config, "cache", None)
        if cache is not None:
            cache.set(CACHE, {**measured(self._config), **new})
        if self._config.getoption("list_slow_tests"):
            kept = listed(self._config) - new.keys()
            slow = kept | {name for name, seconds in new.items() if seconds >= QUICK_S}
            text = "".join(f"{name}\n" for name in sorted(slow))
            list_of(self._config).write_text(text, encoding="utf-8")
