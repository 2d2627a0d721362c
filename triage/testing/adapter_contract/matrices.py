"""The matrix of adapters and scenarios, for a terminal and for a page.

`python -m triage.testing.adapter_contract benches` plays every scenario and prints it.
"""

from __future__ import annotations

import argparse
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import anyio

from triage.core.errors import misuse

from .bench import Bench
from .playing import check_adapter, needs_of
from .questions import QUESTIONS
from .scenarios import SCENARIOS
from .wrong_once import WRONG_ONCE

BEGIN, END = "<!-- matrix -->", "<!-- end of matrix -->"


def benches_in(package: str) -> list[Bench]:
    """The benches of a package, which its modules call `BENCH`, by name. Raises UsageError without any."""
    module = import_module(package)
    names = [found.name for found in pkgutil.iter_modules(getattr(module, "__path__", ()))]
    modules = [module, *(import_module(f"{package}.{name}") for name in sorted(names))]
    benches: list[Bench] = [one.BENCH for one in modules if hasattr(one, "BENCH")]
    if not benches:
        raise misuse("benches", package, "a package whose modules have a BENCH")
    return sorted(benches, key=lambda bench: bench.name)


def matrix(benches: Sequence[Bench]) -> str:
    """A table in Markdown: a row for each scenario and what it needs, a column for each bench."""
    lines = [
        f"| scenario | needs | {' | '.join(bench.name for bench in benches)} |",
        f"|---|---|{'---|' * len(benches)}",
    ]
    for scenario in (*SCENARIOS, *QUESTIONS, *WRONG_ONCE):
        needs = needs_of(scenario)
        cells = [
            scenario.__name__.replace("_", " "),
            " and ".join(f"`{name}`" for name in sorted(needs)) or "owed",
            *("yes" if needs <= set(bench.offers) else "not offered" for bench in benches),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def put_into(page: Path, table: str) -> None:
    """Write the table into a page, between its two marks. Raises UsageError without them."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise misuse("page", page.name, f"a page with the lines {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{table}{END}{after}", encoding="utf-8")


def taken_from(page: Path) -> str:
    """The table between the two marks of a page."""
    text = page.read_text(encoding="utf-8")
    return text.partition(f"{BEGIN}\n")[2].partition(END)[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Play, print, and write where it is wanted; 0 if every adapter keeps the contract, else 1."""
    name = "python -m triage.testing.adapter_contract"
    parser = argparse.ArgumentParser(prog=name, description=__doc__)
    parser.add_argument("package", help="the package of benches, such as tests.benches")
    parser.add_argument("--bench", action="append", help="this adapter only; repeatable")
    parser.add_argument("--write", type=Path, help="the page whose table is to be written anew")
    options = parser.parse_args(arguments)
    benches = benches_in(options.package)
    chosen = [bench for bench in benches if not options.bench or bench.name in options.bench]
    problems = [problem for bench in chosen for problem in _problems(bench)]
    sys.stdout.write(matrix(chosen))
    for problem in problems:
        sys.stdout.write(f"broken: {problem}\n")
    if options.write is not None and not problems:
        put_into(options.write, matrix(benches))
    return 1 if problems else 0


def _problems(bench: Bench) -> Iterator[str]:
    for scenario in (*SCENARIOS, *QUESTIONS, *WRONG_ONCE):
        for backend in bench.backends:
            try:
                anyio.run(check_adapter, bench, scenario, backend=backend)
            except AssertionError as error:
                yield f"{error} ({backend})"
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
                yield f"{bench.name}, {scenario.__name__}: {problem} ({backend})"
