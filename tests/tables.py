"""A table of cases as one test: every case is run, and all that fail are shown together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


def table(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Any], Callable[..., Any]]:
    """Run a test for each row, as `pytest.mark.parametrize` does, but as one test.

    names: the parameters that a row fills; other parameters are fixtures, which the rows share. Raises an
    BaseExceptionGroup with the errors of all rows that fail.
    """
    known = names.replace(",", " ").split() if isinstance(names, str) else list(names)
    given = [dict(zip(known, row if len(known) > 1 else (row,), strict=True)) for row in rows]

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        def each(**fixtures: Any) -> None:
            failed: list[BaseException] = []
            for row in given:
                with _noted(row, failed):
                    test(**row, **fixtures)
            _raise(failed, len(given))

        async def each_async(**fixtures: Any) -> None:
            failed: list[BaseException] = []
            for row in given:
                with _noted(row, failed):
                    await test(**row, **fixtures)
            _raise(failed, len(given))

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


@contextmanager
def _noted(row: dict[str, Any], failed: list[BaseException]) -> Iterator[None]:
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        error.add_note(f"case: {row!r}")
        failed.append(error)


def _raise(failed: list[BaseException], count: int) -> None:
    if failed:
        raise BaseExceptionGroup(f"{len(failed)} of {count} cases fail", failed)
