"""A table of cases as one test: every case is run, and all that fail are shown together."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import combinations, product
from typing import Any

import anyio
import pytest
from store_kinds import EXAMPLES


def covering(
    *axes: Iterable[Any],
    together: int = 1,
    times: int = 1,
    where: Callable[..., bool] = lambda *_: True,
) -> list[tuple[Any, ...]]:
    """Some rows of a product of axes; all of them where TRIAGE_EXAMPLES is above 1, as nightly.

    Any `together` values of different axes meet in `times` rows at least, or in all that there are: by
    default each value is in a row, and with 2 any two values are. where: which rows there are, by their
    values; by default all.
    """
    values = [list(axis) for axis in axes]
    rows = [
        (at, row)
        for at, row in zip(
            product(*(range(len(axis)) for axis in values)), product(*values), strict=True
        )
        if where(*row)
    ]
    if EXAMPLES > 1:
        return [row for _, row in rows]
    left = {at: list(combinations(enumerate(at), together)) for at, _ in rows}
    met: Counter[tuple[tuple[int, int], ...]] = Counter()
    chosen: set[tuple[int, ...]] = set()
    while left:
        # The row with the most values that are still to be met, and of those the one with the rarest.
        best = min(
            left,
            key=lambda at: (
                -sum(met[part] < times for part in left[at]),
                sum(met[part] for part in left[at]),
            ),
        )
        if all(met[part] >= times for part in left[best]):
            break
        met.update(left.pop(best))
        chosen.add(best)
    return [row for at, row in rows if at in chosen]


def table(
    names: str | tuple[str, ...], rows: Iterable[Any], *, at_once: bool = False
) -> Callable[[Any], Callable[..., Any]]:
    """Run a test for each row, as `pytest.mark.parametrize` does, but as one test.

    names: the parameters that a row fills. Other parameters are fixtures, which the rows share; but each
    row gets a folder of its own as `tmp_path`, and a `caplog` and a `capsys` that hold nothing yet. Tables
    can be stacked. at_once: start the rows of an async test together, so that they wait for the wall clock
    once; not for rows that use `caplog` or `capsys`, or patch something. Raises a BaseExceptionGroup with
    the errors of all rows that fail. If none does, but a row is skipped, the test counts as skipped.
    """
    known = names.replace(",", " ").split() if isinstance(names, str) else list(names)
    given = [dict(zip(known, row if len(known) > 1 else (row,), strict=True)) for row in rows]

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        def each(*instance: Any, **fixtures: Any) -> None:
            cases = Cases(given, fixtures)
            for row in cases:
                with cases.noted(row):
                    test(*instance, **row)
            cases.end()

        async def each_async(*instance: Any, **fixtures: Any) -> None:
            cases = Cases(given, fixtures)

            async def run(row: dict[str, Any]) -> None:
                with cases.noted(row):
                    await test(*instance, **row)

            if at_once:
                async with anyio.create_task_group() as group:
                    for row in cases:
                        group.start_soon(run, row)
            else:
                for row in cases:
                    await run(row)
            cases.end()

        made: Any = each_async if inspect.iscoroutinefunction(test) else each
        signature = inspect.signature(test)
        rest = [one for name, one in signature.parameters.items() if name not in known]
        made.__signature__ = signature.replace(parameters=rest)
        for name in ("__name__", "__qualname__", "__doc__", "__module__"):
            setattr(made, name, getattr(test, name))
        made.pytestmark = list(getattr(test, "pytestmark", []))
        function: Callable[..., Any] = made
        return function

    return decorate


class Cases:
    """The rows of a table with the fixtures that they share, and what became of them."""

    def __init__(self, rows: list[dict[str, Any]], fixtures: dict[str, Any]) -> None:
        self._rows = rows
        self._fixtures = fixtures
        self._failed: list[BaseException] = []
        self._skipped: list[str] = []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """What each row is called with, as if no row had been run before."""
        shared = self._fixtures
        for number, row in enumerate(self._rows):
            if "caplog" in shared:
                shared["caplog"].clear()
            if "capsys" in shared:
                shared["capsys"].readouterr()
            arguments = {**shared, **row}
            if "tmp_path" in shared:
                arguments["tmp_path"] = shared["tmp_path"] / str(number)
                arguments["tmp_path"].mkdir()
            yield arguments

    @contextmanager
    def noted(self, arguments: dict[str, Any]) -> Generator[None]:
        try:
            yield
        except pytest.skip.Exception as skipped:
            self._skipped.append(str(skipped))
        except (Exception, pytest.fail.Exception) as error:
            case = {name: one for name, one in arguments.items() if name not in self._fixtures}
            error.add_note(f"case: {case!r}")
            self._failed.append(error)

    def end(self) -> None:
        """Raise what the rows have come to."""
        count = len(self._rows)
        if self._failed:
            raise BaseExceptionGroup(f"{len(self._failed)} of {count} cases fail", self._failed)
        if self._skipped:
            pytest.skip(f"{len(self._skipped)} of {count} cases: {self._skipped[0]}")
