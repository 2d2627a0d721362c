"""Who can do what: the matrix of adapters and scenarios, for a terminal and for a page."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from triage._options import misuse

from ._bench import Bench
from ._rows import SCENARIOS

BEGIN, END = "<!-- matrix -->", "<!-- end of matrix -->"


def benches_in(package: str) -> list[Bench]:
    """The benches of a package: what its modules call `BENCH`, by name. UsageError where there is none."""
    module = import_module(package)
    names = [found.name for found in pkgutil.iter_modules(getattr(module, "__path__", ()))]
    modules = [module, *(import_module(f"{package}.{name}") for name in sorted(names))]
    benches: list[Bench] = [one.BENCH for one in modules if hasattr(one, "BENCH")]
    if not benches:
        raise misuse("benches", package, "a package whose modules have a BENCH")
    return sorted(benches, key=lambda bench: bench.name)


def matrix(benches: Sequence[Bench]) -> str:
    """A table in Markdown: a row for each scenario, a column for each bench, and the reasons below."""
    reasons: list[str] = []
    lines = [
        f"| scenario | {' | '.join(bench.name for bench in benches)} |",
        f"|---|{'---|' * len(benches)}",
    ]
    for scenario in SCENARIOS:
        cells = [_cell(bench, scenario.__name__, reasons) for bench in benches]
        lines.append(f"| {scenario.__name__.replace('_', ' ')} | {' | '.join(cells)} |")
    lines += ["", *(f"{number}. {reason}" for number, reason in enumerate(reasons, 1))]
    return "\n".join(lines).rstrip() + "\n"


def _cell(bench: Bench, scenario: str, reasons: list[str]) -> str:
    reason = bench.cannot.get(scenario)
    if reason is None:
        return "yes"
    text = f"{bench.name}: {reason}"
    if text not in reasons:
        reasons.append(text)
    return f"no ({reasons.index(text) + 1})"


def put_into(page: Path, table: str) -> None:
    """Write the table into a page, between its two marks. UsageError where they are not."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise misuse("page", page.name, f"a page with the lines {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{table}{END}{after}", encoding="utf-8")


def taken_from(page: Path) -> str:
    """The table that stands in a page between its two marks."""
    text = page.read_text(encoding="utf-8")
    return text.partition(f"{BEGIN}\n")[2].partition(END)[0]
