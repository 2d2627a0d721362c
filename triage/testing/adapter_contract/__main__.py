"""`python -m triage.testing.adapter_contract benches`: play every scenario, and print who can do what."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio

from . import adapter_scenarios, check_adapter, name_of
from ._bench import Bench
from ._report import benches_in, matrix, put_into


def main(arguments: Sequence[str] | None = None) -> int:
    """Play, print, and write where it is wanted; 0 if every adapter does what it declares, else 1."""
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


def _problems(bench: Bench) -> list[str]:
    found: list[str] = []
    for scenario in adapter_scenarios:
        for backend in bench.backends:
            try:
                anyio.run(check_adapter, bench, scenario, backend=backend)
            except AssertionError as error:
                found.append(f"{error} ({backend})")
            except Exception as error:  # noqa: BLE001 - one that breaks down must not hide the others
                problem = f"{type(error).__name__}: {error}"
                found.append(f"{bench.name}, {name_of(scenario)}: {problem} ({backend})")
    return found


if __name__ == "__main__":
    sys.exit(main())
