"""`triage worker`: execute the runs of a fleet in this process."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Annotated

from cyclopts import App, Parameter

from .fleet import FleetPlace, fleet_of
from .options import epilogue

DONE = 0
_CODES = """\
exit codes:
  0    it was told to stop, and has
  1    the database failed at the start
  2    it was never begun: no such fleet or queue, tables that are missing,
       bad arguments

SIGTERM and SIGINT: take no more runs, give those in hand --drain seconds, put
the rest back into their queues. A second one puts them back at once.
"""

app = App(
    name="worker",
    help_epilogue=epilogue(
        _CODES,
        "worker orders:fleet",
        "worker orders:fleet --queue desk --queue urgent --concurrency 20",
    ),
)


@app.default
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
    from triage.adapters.fleet import Worker

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
    return DONE
