"""`triage fleet` and `triage worker`: the tables of a fleet, where its runs are, and taking them."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import anyio
from cyclopts import App, Parameter

from triage.core.errors import UsageError
from triage.core.quoting import one_line, span

from .options import AsJson, epilogue, load, run_with
from .output import Listing, json_line, print_listing, table, write

if TYPE_CHECKING:
    from triage.adapters.fleet.engine import Place
    from triage.adapters.fleet.fleet import Fleet
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
    "worker_app",
]

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


@app.command(help_epilogue=epilogue(_CODES, "fleet migrate orders:fleet"))
def migrate(fleet: FleetPlace, /) -> None:
    """Make or update the tables of a fleet: its store's and its engine's."""
    found = fleet_of(fleet)
    run_with(found.migrate, found)
    write(f"the tables of {found!r} are in order")


@app.command(
    help_epilogue=epilogue(_CODES, "fleet show orders:fleet", "fleet show orders:fleet --json")
)
def show(fleet: FleetPlace, /, *, json: AsJson = False) -> None:
    """Show the queued and running runs, and the workers that run them."""
    found = fleet_of(fleet)
    places = run_with(found.places, found)
    if json:
        write(json_line([place._asdict() for place in places]))
        return
    rows = [_row(place) for place in places]
    lines = table(_TITLES, rows, styled="state", styles={"running": "cyan", "queued": "yellow"})
    listing = Listing(lines, [], "" if places else "no run is queued or running")
    print_listing(lambda: listing, watch=False)


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


# The worker ---------------------------------------------------------------------------------------

_WORKER_CODES = """\
exit codes:
  0    it was told to stop, and has
  1    the database failed at the start
  2    it was never begun: no such fleet or queue, tables that are missing,
       bad arguments

SIGTERM and SIGINT: take no more runs, give those in hand --drain seconds, put
the rest back into their queues. A second one puts them back at once.
"""

worker_app = App(
    name="worker",
    help_epilogue=epilogue(
        _WORKER_CODES,
        "worker orders:fleet",
        "worker orders:fleet --queue desk --queue urgent --concurrency 20",
    ),
)


@worker_app.default
def worker(
    fleet: FleetPlace,
    /,
    *,
    queue: Annotated[
        tuple[str, ...], Parameter(metavar="NAME", help="Take from this queue only (all).")
    ] = (),
    concurrency: Annotated[
        int | None,
        Parameter(
            metavar="N",
            help="Runs of each queue at once in this worker (the queue's own limit, else 10).",
        ),
    ] = None,
    drain: Annotated[
        float,
        Parameter(
            metavar="S", help="Seconds that runs have to finish once it is told to stop (30)."
        ),
    ] = 30.0,
    quiet: Annotated[bool, Parameter(help="Say nothing but what goes wrong.")] = False,
) -> int:
    """Take runs from a fleet's queues until told to stop. Any number may share a fleet."""
    found = fleet_of(fleet)
    from triage.adapters.fleet.worker import Worker

    told = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format=told)
    logging.getLogger("triage.fleet").setLevel(logging.WARNING if quiet else logging.INFO)
    made = Worker(found, queue, concurrency=concurrency, drain_s=drain)

    async def work() -> None:
        try:
            with made.signals():
                await made.run()
        finally:
            await found.close()

    asyncio.run(work())
    return 0
