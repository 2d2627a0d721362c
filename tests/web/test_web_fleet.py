"""The page of a fleet: queue, worker, wait and engine of its runs, begun or not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import anyio
import httpx
import pytest
from fleets import dbos_fleet, migrated

from triage import Agent, TriageEscalationError
from triage.adapters.fleet import Fleet, Worker
from triage.incidents import IncidentDesk
from triage.stores import MemoryStore
from triage.web import Person, Role, app

pytestmark = pytest.mark.usefixtures("theirs_may_block")


async def desk(task: str) -> str:
    if task == "fail":
        raise ValueError("the order has no number")
    return task


class Shown(NamedTuple):
    """What the pages say while one run waits in the queue, one has ended and one has failed."""

    pages: dict[str, str]
    worker: str


async def shown(url: str) -> Shown:
    fleet: Fleet = dbos_fleet(url, [Agent(desk)])
    desk_of = IncidentDesk(fleet.store, owner="test")
    worker = Worker(fleet)
    for run_id, task in (("good-1", "<b>Rome"), ("bad-1", "fail")):
        await fleet.enqueue("desk", task, run_id=run_id)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await fleet.result("good-1", timeout_s=60)
        with pytest.raises(TriageEscalationError):
            await fleet.result("bad-1", timeout_s=60)
        worker.stop()
    await fleet.enqueue("desk", "later", run_id="waits-1")
    await desk_of.detect()
    page = app(fleet, desk=desk_of, who=lambda _: Person("ann", Role.ADMIN))
    transport = httpx.ASGITransport(page)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        paths = ("/", "/fleet", "/runs/good-1", "/incidents", "/incidents/err-001")
        pages = {path: (await client.get(path)).text for path in paths}
    await desk_of.close()
    await fleet.close()
    return Shown(pages, worker.name)


@pytest.fixture(scope="module")
def found() -> Iterator[Shown]:
    with migrated(dbos_fleet) as url:
        yield anyio.run(shown, url)


def test_a_begun_run_shows_its_queue_worker_wait_and_engine(found: Shown) -> None:
    for path in ("/", "/runs/good-1", "/incidents", "/incidents/err-001"):
        assert f"desk, {found.worker}, waited" in found.pages[path], path
    assert "dbos queue desk" in found.pages["/runs/good-1"]
    assert "<dt>dbos</dt>" in found.pages["/incidents/err-001"]


def test_a_run_that_no_worker_has_taken_is_on_the_page_of_the_fleet(found: Shown) -> None:
    page = found.pages["/fleet"]
    assert "1 run queued or running, on dbos" in page
    assert "waits-1" in page
    assert "waits for a worker of this queue, version" in page
    assert "/runs/waits-1" not in page
    assert "good-1" not in page
    assert 'href="/fleet"' in found.pages["/"]


def test_a_store_without_a_fleet_has_no_such_page() -> None:
    async def look() -> tuple[int, str]:
        transport: Any = httpx.ASGITransport(app(MemoryStore()))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return (await client.get("/fleet")).status_code, (await client.get("/")).text

    status, text = anyio.run(look)
    assert status == 404
    assert "/fleet" not in text
