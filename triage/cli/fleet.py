"""`triage fleet`: create the tables of a fleet and show where its runs are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio
from cyclopts import App, Parameter

from triage.core import UsageError, one_line, span

from .loading import load
from .options import AsJson, epilogue
from .output import Listing, print_listing, table, write
from .text import json_line

if TYPE_CHECKING:
    from triage.adapters.fleet import Fleet, Place
else:  # these names are for annotations; fleets need an extra that may not be installed
    Fleet = Place = object

__all__ = [
    "PLACE_TITLES",
    "Fleet",
    "FleetOption",
    "FleetPlace",
    "Place",
    "app",
    "fleet_of",
    "place_json",
    "place_row",
    "places_of",
    "with_fleet",
]

T = TypeVar("T")
VARIABLE = "TRIAGE_FLEET"
FleetOption = Annotated[
    str | None,
    Parameter(
        name="--fleet",
        env_var=VARIABLE,
        metavar="MODULE:NAME",
        help=f"A Fleet of the current directory (the environment's {VARIABLE}).",
    ),
]
FleetPlace = Annotated[str, Parameter(help="A Fleet of the current directory, as module:name.")]
_CODES = """\
exit codes:
  0    done
  1    the database failed
  2    it was never begun: no such fleet, bad arguments
"""
_TITLES = ("run", "queue", "state", "waited", "worker", "waits for")
PLACE_TITLES = ("queue", "worker", "waited")
"""The titles of the columns that `place_row` fills."""

app = App(
    name="fleet",
    help="Make the tables of a fleet, and see where its runs are.",
    help_epilogue=_CODES,
)


def fleet_of(place: str) -> Fleet:
    """Import a fleet. Raises UsageError if the object is not a Fleet."""
    found = load(place)
    if not (hasattr(found, "engine") and hasattr(found, "enqueue")):
        raise UsageError(f"{place} is no Fleet but {type(found).__name__}")
    fleet: Fleet = found
    return fleet


async def places_of(fleet: Fleet | None, run_ids: Sequence[str]) -> dict[str, Place]:
    """Return the places of runs in a fleet, empty if it is None, and close the fleet's engine."""
    if fleet is None:
        return {}
    try:
        return {place.run_id: place for place in await fleet.places(run_ids)}
    finally:
        with anyio.CancelScope(shield=True):
            await fleet.engine.close()


def place_row(place: Place | None) -> tuple[str, ...]:
    """Return the columns of a table that say where a run is in its fleet."""
    if place is None:
        return ("-", "-", "-")
    return one_line(place.queue or "-", 40), one_line(place.worker or "-", 60), span(place.waited_s)


def place_json(place: Place | None) -> dict[str, Any]:
    """Return what the JSON of a run or incident says of the run's place in a fleet."""
    if place is None:
        return {}
    shown = place._asdict()
    return {name: shown[name] for name in ("engine", "queue", "worker", "waited_s")}


def with_fleet(fleet: Fleet, work: Callable[[], Awaitable[T]]) -> T:
    """Run an async function, then close the fleet."""

    async def done() -> T:
        try:
            return await work()
        finally:
            with anyio.CancelScope(shield=True):
                await fleet.close()

    return anyio.run(done)


@app.command(help_epilogue=epilogue(_CODES, "fleet migrate orders:fleet"))
def migrate(fleet: FleetPlace, /) -> None:
    """Make or update the tables of a fleet: its store's and its engine's."""
    found = fleet_of(fleet)
    with_fleet(found, found.migrate)
    write(f"the tables of {found!r} are in order")


@app.command(
    help_epilogue=epilogue(_CODES, "fleet show orders:fleet", "fleet show orders:fleet --json")
)
def show(fleet: FleetPlace, /, *, json: AsJson = False) -> None:
    """Show the queued and running runs, and the workers that run them."""
    found = fleet_of(fleet)
    places = with_fleet(found, found.places)
    if json:
        write(json_line([place._asdict() for place in places]))
        return
    rows = [_row(place) for place in places]
    lines = table(_TITLES, rows, styled="state", styles={"running": "cyan", "queued": "yellow"})
    listing = Listing(lines, [], "" if places else "no run is queued or running")
    print_listing(lambda: listing, watch=False, pager=False)


def _row(place: Place) -> tuple[str, ...]:
    waits = "-"
    if place.state == "queued":
        waits = f"a worker of queue {place.queue}, version {place.version}"
    return (
        one_line(place.run_id, 128),
        one_line(place.queue or "-", 60),
        place.state,
        span(place.waited_s),
        one_line(place.worker or "-", 60),
        waits,
    )
