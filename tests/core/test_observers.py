"""Observers, and the context managers they give, change nothing of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any

import pytest
from support import RETRY, Says
from tables import table

from triage import Agent, Escalate, FailurePolicy, TriageEscalationError
from triage.core import AttemptStarted, Event

pytestmark = pytest.mark.anyio


def around(manager: Callable[[], AbstractContextManager[Any]]) -> Callable[[Event], Any]:
    """An observer that gives a new manager for each attempt."""
    return lambda event: manager() if isinstance(event, AttemptStarted) else None


@contextmanager
def fails_after() -> Generator[None]:
    try:
        yield
    finally:
        raise OSError("the exporter is down")


class Swallows:
    """Says that whatever is raised inside of it never was."""

    def __enter__(self) -> None:
        """Nothing is done here."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> bool:
        return True


class FailsBefore(Swallows):
    """Cannot be entered."""

    def __enter__(self) -> None:
        raise OSError("the exporter is down")


MANAGERS = [FailsBefore, fails_after, Swallows]


@table("manager", MANAGERS)
async def test_a_result_is_not_lost_with_a_manager(
    manager: Any, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    async def agent(task: str) -> int:
        nonlocal calls
        calls += 1
        return 5

    with caplog.at_level(logging.ERROR, "triage"):
        found = await Agent(agent, RETRY, classifier=Says(), observers=[around(manager)]).run("t")
    assert (found, calls) == (5, 1)
    said = [record for record in caplog.records if "of an observer failed" in record.message]
    assert len(said) == (manager is not Swallows)


@table("manager", MANAGERS)
async def test_an_agents_own_error_is_what_a_run_fails_with(manager: Any) -> None:
    async def agent(task: str) -> int:
        raise LookupError("its own")

    policy = FailurePolicy(default=Escalate())
    wrapped = Agent(agent, policy, classifier=Says(), observers=[around(manager)])
    with pytest.raises(TriageEscalationError) as raised:
        await wrapped.run("t")
    context = raised.value.context
    assert context is not None
    assert isinstance(context.exception, LookupError)
    assert context.attempt == 1


async def test_a_manager_is_left_with_what_ended_the_attempt() -> None:
    seen: list[BaseException | None] = []

    class Watching:
        def __enter__(self) -> None:
            """Nothing is done here."""

        def __exit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            where: TracebackType | None,
        ) -> None:
            seen.append(error)

    async def agent(task: str, *, _triage_hint: str | None = None) -> int:
        if not seen:
            raise LookupError("its own")
        return 5

    assert await Agent(agent, RETRY, classifier=Says(), observers=[around(Watching)]).run("t") == 5
    assert [type(error) for error in seen] == [LookupError, type(None)]
