"""`triage doctor`: whether triage can work here: Python, extras, the store and the clock."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, NamedTuple

from cyclopts import App

from triage import __version__
from triage.core.errors import TriageError, UsageError
from triage.core.quoting import span
from triage.stores.base import Store

from .fleet import FleetOption, Place, fleet_of
from .options import VARIABLE, AsJson, StoreText, epilogue, run_with, store_of, with_store
from .output import console, json_line, now, print_page, write
from .progress import Line

DONE, FAILED = 0, 1
_CODES = """\
exit codes:
  0    nothing is wrong
  1    something is: the lines that say so say what helps
  2    bad arguments
"""
_PYTHON = ((3, 11), (3, 13))
"""The oldest Python that triage runs on, and the newest that it was tested with."""
_MOST_APART_S = 5.0
_RELEASED = 1_760_000_000.0  # no clock that is right is before this
_STYLES = {"ok": "green", "absent": "dim", "untested": "yellow", "wrong": "red"}


class Package(NamedTuple):
    """A package that triage works with. extra: which installs it, empty for what is always needed."""

    name: str
    extra: str
    least: str
    tested: str


PACKAGES = (
    Package("anyio", "", "4.5", "4.16.0"),
    Package("jsonschema", "", "4.20", "4.26.0"),
    Package("msgspec", "", "0.21", "0.22.0"),
    Package("pydantic", "", "2.8", "2.14.3"),
    Package("cyclopts", "cli", "5.4", "5.4.0"),
    Package("rich", "cli", "13.7", "15.0.0"),
    Package("openai", "openai", "2.0", "3.54.0"),
    Package("anthropic", "anthropic", "0.60", "2.12.0"),
    Package("psycopg", "postgres", "3.2", "3.3.9"),
    Package("langchain", "langgraph", "1.3", "1.4.7"),
    Package("langgraph", "langgraph", "1.2.16", "1.2.22"),
    Package("pydantic-ai-slim", "pydantic-ai", "2.68", "2.68.0"),
    Package("openai-agents", "openai-agents", "0.24", "0.24.0"),
    Package("mcp", "mcp", "2.3", "2.3.0"),
    Package("cryptography", "encryption", "42", "50.0.2"),
    Package("genai-prices", "prices", "0.2", "0.2.3"),
    Package("jinja2", "web", "3.1", "3.1.6"),
    Package("starlette", "web", "1.0", "1.10.0"),
    Package("uvicorn", "web", "0.34", "0.54.0"),
    Package("opentelemetry-api", "otel", "1.39", "1.44.0"),
    Package("dbos", "dbos", "3.4", "3.4.0"),
)
"""What triage works with, the oldest version that it takes and the one that it was tested with."""


class Finding(NamedTuple):
    """What was looked at, how it is, and what there is to say."""

    check: str
    state: Literal["ok", "absent", "untested", "wrong"]
    text: str


app = App(
    name="doctor",
    help_epilogue=epilogue(_CODES, "doctor", "doctor --store sqlite:///runs.db --json"),
)


@app.default
def doctor(*, store: StoreText = None, fleet: FleetOption = None, json: AsJson = False) -> int:
    """Look at Python, the extras and their versions, the store, the clock and a fleet; change nothing."""
    findings = [_python(), *map(_package, PACKAGES), *_store(store), *_fleet(fleet)]
    wrong = sum(finding.state == "wrong" for finding in findings)
    if json:
        checks = [finding._asdict() for finding in findings]
        write(json_line({"v": 1, "triage": __version__, "wrong": wrong, "checks": checks}))
    else:
        title = Line("", "bold", f"triage {__version__}: {wrong or 'nothing'} wrong")
        lines = [
            Line(finding.state, _STYLES[finding.state], f"{finding.check}: {finding.text}")
            for finding in findings
        ]
        print_page(console(), [title, *lines])
    return FAILED if wrong else DONE


def _python() -> Finding:
    oldest, newest = _PYTHON
    here = platform.python_version()
    if sys.version_info < oldest:
        return Finding("Python", "wrong", f"{here}; triage needs {oldest[0]}.{oldest[1]}")
    if sys.version_info[:2] > newest:
        return Finding("Python", "untested", f"{here}; tested up to {newest[0]}.{newest[1]}")
    return Finding("Python", "ok", here)


def _package(package: Package) -> Finding:
    upgrade = f'pip install --upgrade "triage-recovery[{package.extra}]"'.replace("[]", "")
    try:
        here = version(package.name)
    except PackageNotFoundError:
        if not package.extra:
            return Finding(package.name, "wrong", f"is missing: {upgrade}")
        install = upgrade.replace("--upgrade ", "")
        return Finding(package.name, "absent", f"not installed; who wants it: {install}")
    if _numbers(here) < _numbers(package.least):
        return Finding(package.name, "wrong", f"{here} is older than {package.least}: {upgrade}")
    if _numbers(here)[:2] > _numbers(package.tested)[:2]:
        return Finding(package.name, "untested", f"{here}; tested with {package.tested}")
    return Finding(package.name, "ok", f"{here}, tested with {package.tested}")


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)[:3]]


# The store ----------------------------------------------------------------------------------------


def _store(text: str | None) -> Iterator[Finding]:
    """Whether the store answers and may be written, and how far its clock is from this one."""
    here = now()
    if here < _RELEASED:
        yield Finding("clock", "wrong", "it is years behind; leases and waits go by it: set it")
    if text is None and not os.environ.get(VARIABLE):
        yield Finding("store", "absent", f"none is named, by --store or {VARIABLE}")
        return

    async def work(store: Store) -> tuple[int, float]:
        runs = await store.runs(limit=1)
        # Writes, and removes nothing.
        await store.prune(keep=sys.maxsize)
        return len(runs), await store.now() - now()

    try:
        store = store_of(text)
        runs, apart = with_store(store, work)
    except UsageError as error:
        yield Finding("store", "wrong", str(error))
    except TriageError as error:
        yield Finding("store", "wrong", f"{type(error).__name__}: {error}")
    else:
        holds = "holds runs" if runs else "holds no runs yet"
        yield Finding("store", "ok", f"answers, may be written, {holds}")
        if abs(apart) > _MOST_APART_S:
            told = f"{abs(apart):.0f} s from that of the store; questions expire by the store's"
            yield Finding("clock", "wrong", f"{told}: set this machine's")
        else:
            yield Finding("clock", "ok", f"{abs(apart):.1f} s from that of the store")


# The fleet ----------------------------------------------------------------------------------------


def _fleet(place: str | None) -> Iterator[Finding]:
    """Whether a fleet's tables are there, and how many of its runs wait for how long."""
    if place is None:
        return
    try:
        fleet = fleet_of(place)

        async def work() -> list[Place]:
            await fleet.engine.check()
            return await fleet.places()

        places = run_with(work, fleet)
    except UsageError as error:
        yield Finding("fleet", "wrong", str(error))
    except TriageError as error:
        yield Finding("fleet", "wrong", f"{type(error).__name__}: {error}")
    else:
        queued = [place for place in places if place.state == "queued"]
        running = sum(place.state == "running" for place in places)
        longest = max((place.waited_s for place in queued), default=0.0)
        waits = f", the longest for {span(longest)}" if queued else ""
        text = f"{fleet.engine.name} answers; {running} runs go on, {len(queued)} wait{waits}"
        yield Finding("fleet", "ok", text)
