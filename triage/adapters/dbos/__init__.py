"""A fleet on DBOS: durable queues in the same Postgres as the journals. Needs the extra `dbos`.

Each run is a DBOS workflow with the same id. DBOS decides which worker is offered a run, the run's lease
decides which worker may continue it, and the run's journal records what happened.
"""

from __future__ import annotations

from collections.abc import Iterable

from triage.adapters.fleet import Fleet as _Fleet
from triage.adapters.fleet import Place, Queue, Worker, postgres_of
from triage.core import Deduplicated
from triage.core.constructors import check_constructors
from triage.engine import AgentLike
from triage.stores import Store

from .engine import DBOSEngine

__all__ = ["DBOSEngine", "Deduplicated", "Fleet", "Place", "Queue", "Worker"]


class Fleet(_Fleet):
    """Agents whose runs are queued by DBOS in the Postgres of their journals, and run by any worker.

    agents, store, queues, lease_s: as in `triage.adapters.fleet.Fleet`. name: the fleet's name, `"triage"`
    by default; fleets in the same database need different names. version: `"1"` by default; workers take
    only runs that were enqueued under their own version. Change it when new code cannot continue old runs,
    and keep workers of the old version until those runs are done.
    """

    def __init__(
        self,
        agents: Iterable[AgentLike],
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


check_constructors(globals())
