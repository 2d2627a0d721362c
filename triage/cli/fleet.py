"""`triage fleet` and `triage worker`: the tables of a fleet, where its runs are, and taking them."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio
from cyclopts import App, Parameter

from triage.core.errors import UsageError
from triage.core.quoting import span

from .options import AsJson, epilogue, load, run_with
from .output import fields_of, json_line, write
from .records import Column, Record

if TYPE_CHECKING:
    from triage.adapters.fleet.engine import Place
    from triage.adapters.fleet.fleet import Fleet
else:  # these names are for annotations; fleets need an extra that may not be installed
    Fleet = Place = object

__all__ = [
    "PLACE_TITLES", "Fleet", "FleetOption", "FleetPlace", "Place", "app", "fleet_of", "place_columns",
    "place_json", "place_row", "places_of", "worker_app",
]  # fmt: skip

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
_PLACE = Record[Place](
    columns=(
        Column("run", lambda at: at.run_id, 128),
        Column("queue", lambda at: at.queue, 60),
        Column("state", lambda at: at.state, styles={"running": "cyan", "queued": "yellow"}),
        Column("waited", lambda at: span(at.waited_s)),
        Column("worker", lambda at: at.worker, 60),
        Column(
            "waits for",
            lambda at: (
                f"a worker of queue {at.queue}, version {at.version}"
                if at.state == "queued"
                else ""
            ),
        ),
    ),
    nothing="no run is queued or running",
)

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


def place_columns(place: Callable[[T], Place | None]) -> tuple[Column[T], ...]:
    """Return the columns that say where a run is in its fleet. place: of a value; None outside a fleet."""

    def column(title: str, text: Callable[[Place], str | None]) -> Column[T]:
        return Column(title, lambda value: None if (at := place(value)) is None else text(at), 60)

    return (
        column("queue", lambda at: at.queue),
        column("worker", lambda at: at.worker),
        column("waited", lambda at: span(at.waited_s)),
    )


PLACE_TITLES = ("queue", "worker", "waited")


def place_row(place: Place | None) -> tuple[str, ...]:
    """Return the cells of `place_columns`."""

    def at(found: Place | None) -> Place | None:
        return found

    return tuple(column.cell(place) for column in place_columns(at))


def place_json(place: Place | None) -> dict[str, Any]:
    """Return what the JSON of a run or incident says of the run's place in a fleet."""
    kept = ("engine", "queue", "worker", "waited_s")
    return {} if place is None else {name: fields_of(place)[name] for name in kept}


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
        write(json_line(places))
    else:
        _PLACE.print(lambda: places, as_json=False)


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
