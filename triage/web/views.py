"""The pages of runs: the list, and one run."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from triage.core import UnknownRun, fold, one_line
from triage.stores import RunInfo, Store

from .pages import Pages, unslug

PER_PAGE = 50
"""Runs on a page of the list."""


class Views:
    """Answers requests for pages of runs."""

    def __init__(self, store: Store, pages: Pages) -> None:
        self._store = store
        self._pages = pages

    def routes(self) -> list[BaseRoute]:
        """The routes of these pages."""
        return [
            Route("/", self.runs, name="runs"),
            Route("/runs/{run}", self.run, name="run"),
        ]

    async def runs(self, request: Request) -> Response:
        """The newest runs."""
        found = await self._store.runs(limit=PER_PAGE)
        return self._pages.render(request, "runs.html", runs=found)

    async def run(self, request: Request) -> Response:
        """One run."""
        info = await run_at(self._store, request.path_params["run"])
        state = fold(await self._store.read(info.run_id))
        return self._pages.render(request, "run.html", info=info, state=state)


async def run_at(store: Store, part: str) -> RunInfo:
    """The run whose id is this part of a path (see `slug`). Raises UnknownRun."""
    run_id = unslug(part)
    info = None if run_id is None else await store.info(run_id)
    if info is None:
        raise UnknownRun(f"the store knows no run {one_line(run_id or part)}")
    return info
