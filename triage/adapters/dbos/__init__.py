"""A fleet on DBOS: durable queues in the Postgres that holds the journals. Needs the extra `dbos`.

One workflow of DBOS is one run, and has its id. DBOS says which worker is given a run next; the run's lease
says who goes on with it; its journal says what has become of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from triage.adapters.fleet import Fleet as _Fleet
from triage.adapters.fleet import Place, Queue, Worker, postgres_of
from triage.core import Deduplicated
from triage.engine import Agent
from triage.stores import Store

from .engine import DBOSEngine

__all__ = ["DBOSEngine", "Deduplicated", "Fleet", "Place", "Queue", "Worker"]


class Fleet(_Fleet):
    """Agents whose runs are queued by DBOS, in the Postgres of their journals, and run by any worker.

    agents, store, queues, lease_s: as in `triage.adapters.fleet.Fleet`. name: of the fleet; another fleet
    in the same database has another. version: the fleet's workers take only runs enqueued under it, `"1"`
    by default; change it when new code cannot go on with old runs, and keep workers of the old one until
    those are done.
    """

    def __init__(
        self,
        agents: Iterable[Agent[Any]],
        store: Store | str,
        *,
        queues: Iterable[Queue] = (),
        name: str = "triage",
        version: str = "1",
        lease_s: float = 10.0,
    ) -> None:
        kept = postgres_of(store)
        engine = DBOSEngine(kept, name=name, version=version)
        super().__init__(agents, kept, engine=engine, queues=queues, lease_s=lease_s)
