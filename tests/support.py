"""What the tests of the loop share: classifiers that always say the same, and an environment."""

from __future__ import annotations

import functools
import inspect
import itertools
import traceback
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import anyio
import pytest

from triage import Diagnosis, FailurePolicy, FailureType, Retry, Trajectory


class Says:
    """A classifier with one answer."""

    def __init__(self, answer: Diagnosis | FailureType = FailureType.EXTERNAL_FAULT) -> None:
        self.answer = answer

    def classify(self, trajectory: Trajectory, task: Any) -> Diagnosis | FailureType:
        return self.answer


class FakeEnvironment:
    """Time that stands still but for sleep, ids that count, chance that is always one half."""

    def __init__(self, random: float = 0.5) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self._ids = itertools.count(1)
        self._random = random

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def new_id(self) -> str:
        return f"run-{next(self._ids)}"

    def new_token(self) -> str:
        return f"token-{next(self._ids)}"

    def random(self) -> float:
        return self._random

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def table(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Callable[..., Any]], Any]:
    """Run a test with each row of a table, as one test that tells of every row that fails.

    names: of the arguments that the rows give. For small cases that need no fixture of their own.
    """
    wanted = (names,) if isinstance(names, str) else names
    cases = [dict(zip(wanted, row if len(wanted) > 1 else (row,), strict=True)) for row in rows]

    def decorated(test: Callable[..., Any]) -> Any:
        failed: list[str] = []

        def note(case: dict[str, Any], error: BaseException) -> None:
            failed.append(f"with {case!r}:\n{''.join(traceback.format_exception(error))}")

        def tell() -> None:
            told = failed.copy()
            failed.clear()
            assert not told, "\n".join(told)

        if inspect.iscoroutinefunction(test):

            async def all_rows_async(**fixtures: Any) -> None:
                for case in cases:
                    try:
                        await test(**fixtures, **case)
                    except (Exception, pytest.fail.Exception) as error:
                        note(case, error)
                tell()

            made: Any = all_rows_async
        else:

            def all_rows(**fixtures: Any) -> None:
                for case in cases:
                    try:
                        test(**fixtures, **case)
                    except (Exception, pytest.fail.Exception) as error:
                        note(case, error)
                tell()

            made = all_rows
        made = functools.wraps(test)(made)
        signature = inspect.signature(test)
        left = [each for name, each in signature.parameters.items() if name not in wanted]
        made.__signature__ = signature.replace(parameters=left)
        return made

    return decorated


def on_both_backends() -> Any:
    """A fixture for `anyio_backend` in a file of tests that wait, in a room where one is enough."""

    @pytest.fixture(params=["asyncio", "trio"])
    def anyio_backend(request: pytest.FixtureRequest) -> str:
        return str(request.param)

    return anyio_backend


def always(strategy: Any) -> FailurePolicy:
    """A policy that answers everything in one way."""
    return FailurePolicy(default=strategy)


def in_turn(*actions: Any) -> Callable[[Any], Any]:
    """A strategy that takes these actions one after the other, the last one for ever."""

    def strategy(context: Any) -> Any:
        return actions[min(context.attempt, len(actions)) - 1]

    return strategy


RETRY = always(lambda _context: Retry())


async def cancelled_once(begun: anyio.Event, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Do this until it sets the event, however long that takes, and cancel it then."""
    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await begun.wait()
        group.cancel_scope.cancel()
