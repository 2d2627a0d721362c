"""Agents that run others inside themselves, for the tests of such runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support import in_turn, recovers

import triage
from triage import Agent, Run
from triage.core import RunStarted
from triage.stores import Store

OUTER = "outer"


class Office:
    """Clerks who do what they are told, and note it. effect: of what they do."""

    def __init__(self, store: Store, effect: str = "once", **options: Any) -> None:
        self.store = store
        self.did: list[str] = []

        @triage.tool(effect=effect)
        async def act(what: str) -> str:
            self.did.append(what)
            return f"did {what}"

        async def clerk(task: str, *, run: Run, client: Any = None) -> str:
            return str(await act(task))

        self.clerk = Agent(clerk, store=store, name="clerk", **options)

    def boss(self, works: Callable[..., Any], *actions: Any, **options: Any) -> Agent[Any]:
        """An agent that gives the clerk work."""
        return Agent(works, **recovers(in_turn(*actions)), store=self.store, **options)

    async def runs(self) -> list[tuple[str, str]]:
        """The task and the status of each run inside, the oldest first."""
        found = []
        for info in await self.store.runs(parent=OUTER):
            started = (await self.store.read(info.run_id))[0]
            assert isinstance(started, RunStarted)
            found.append((str(started.task), info.status))
        return found[::-1]


def asks_once_more(office: Office, *tasks: str) -> Callable[..., Any]:
    """Gives these tasks to the clerk, fails, and gives them again."""

    async def works(task: str, *, run: Run) -> list[str]:
        found = [await office.clerk.run(each) for each in tasks]
        if run.attempt == 1:
            raise ConnectionError("late")
        return found

    return works
