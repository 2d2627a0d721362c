"""Where the runs of a fleet are: their queues, workers and waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from triage.stores import Store

from .pages import Pages

MOST = 200
"""The most runs that the page of a fleet lists."""


@runtime_checkable
class Fleet(Protocol):
    """What the page needs of a `triage.adapters.fleet.Fleet`."""

    @property
    def store(self) -> Store:
        """Where the journals are."""
        ...

    async def places(self, run_ids: Sequence[str] | None = None) -> Sequence[Any]:
        """Return the `Place`s of these runs; None for every run that is delayed, queued or running."""
        ...


class Places:
    """Look up where runs are in a fleet. fleet: None for a store without one, whose runs have no places."""

    def __init__(self, fleet: Fleet | None) -> None:
        self._fleet = fleet

    async def of(self, run_ids: Sequence[str]) -> dict[str, Any]:
        """Return the `Place` of each of these runs that the fleet knows."""
        if self._fleet is None or not run_ids:
            return {}
        return {place.run_id: place for place in await self._fleet.places(run_ids)}


class FleetPage:
    """Handle the requests for the page of a fleet."""

    def __init__(self, fleet: Fleet, pages: Pages) -> None:
        self._fleet = fleet
        self._pages = pages

    def routes(self) -> list[BaseRoute]:
        """Return the route of this page."""
        return [Route("/fleet", self.show, name="fleet")]

    async def show(self, request: Request) -> Response:
        """List the delayed, queued and running runs, those that have waited longest first."""
        places = sorted(await self._fleet.places(), key=lambda place: -place.waited_s)
        return self._pages.render(
            request, "fleet.html", places=places[:MOST], count=len(places), most=MOST
        )
