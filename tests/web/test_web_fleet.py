"""The page of a fleet: queue, worker, wait and engine of its runs, begun or not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped] # it has no stubs
from fleet.fleets import dbos_fleet, migrated
from playwright.sync_api import Browser, Page, Route

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
        for path in re.findall('(?:href|src)="(/static/[^"]+)"', pages["/fleet"]):
            pages[path] = (await client.get(path)).text
    await desk_of.close()
    await fleet.close()
    return Shown(pages, worker.name)


@pytest.fixture(scope="module")
def found() -> Iterator[Shown]:
    with migrated() as url:
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


@pytest.fixture
def tab(found: Shown, browser: Browser) -> Iterator[Page]:
    """A browser that is served these pages. It keeps an event loop here, so the pages come first."""
    kinds = {".css": "text/css", ".mjs": "text/javascript", ".svg": "image/svg+xml"}

    def serve(route: Route) -> None:
        path = urlsplit(route.request.url).path
        kind = kinds.get(path[path.rfind(".") :], "text/html")
        route.fulfill(body=found.pages[path], content_type=f"{kind}; charset=utf-8")

    context = browser.new_context(
        base_url="http://localhost", viewport={"width": 400, "height": 800}
    )
    context.route("**/*", serve)
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_a_fleet_has_no_serious_finding_of_axe_and_fits_400_pixels(
    tab: Page, scheme: Literal["light", "dark"]
) -> None:
    tab.emulate_media(color_scheme=scheme)
    tab.goto("/fleet")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400
    found = Axe().run(tab).response["violations"]
    assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []
