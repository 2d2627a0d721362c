"""A fleet on procrastinate: queues in the same Postgres as the journals. Needs the extra `procrastinate`.

It enforces fewer limits than DBOS (see `ProcrastinateEngine.abilities`), does not need SQLAlchemy, and
notifies workers of new runs at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from triage.adapters.fleet import Fleet as _Fleet
from triage.adapters.fleet import Place, Queue, Worker, postgres_of
from triage.core import Deduplicated
from triage.engine import AgentLike
from triage.stores import Store

from .engine import ProcrastinateEngine

__all__ = ["Deduplicated", "Fleet", "Place", "ProcrastinateEngine", "Queue", "Worker"]


class Fleet(_Fleet):
    """Agents whose runs are queued by procrastinate in the Postgres of their journals.

    agents, store, queues, lease_s: as in `triage.adapters.fleet.Fleet`. name: the fleet's name, `"triage"`
    by default; fleets in the same database need different names.
    """

    def __init__(
        self,
        agents: Iterable[AgentLike],
        store: Store | str,
        *,
        queues: Iterable[Queue] = (),
        name: str = "triage",
        lease_s: float = 10.0,
    ) -> None:
        kept = postgres_of(store)
        engine = ProcrastinateEngine(kept, name=name)
        super().__init__(agents, kept, engine=engine, queues=queues, lease_s=lease_s)
