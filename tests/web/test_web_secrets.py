"""What a store may hold as it is, a page does not show: texts are redacted as in stores."""

from __future__ import annotations

import anyio
import pytest
from starlette.testclient import TestClient
from web.hostile_pages import run_of

from triage.incidents import IncidentDesk
from triage.stores import MemoryStore
from triage.web import Person, Role, app

pytestmark = pytest.mark.usefixtures("theirs_may_block")
SECRET = "sk-qX7vT2mK9pL4wN8zR3cY6aB1"


def test_a_secret_in_any_field_of_a_journal_is_on_no_page() -> None:
    store = MemoryStore()
    desk = IncidentDesk(store, owner="test")

    async def fill() -> int:
        for name, asks in (("asks", True), ("failed", False)):
            events = run_of(
                name, [f"it said {SECRET} twice", f"api_key={SECRET}"], asks=asks, agent="payer"
            )
            await store.append(name, events, at=0, epoch=0)
        await desk.report(f"the key {SECRET} is wrong", stack_trace=SECRET)
        return len(events)

    count = anyio.run(fill)
    page = TestClient(
        app(store, who=lambda _: Person("ann", Role.ADMIN), desk=desk), base_url="http://localhost"
    )
    addresses = ["/", "/questions", "/incidents", "/incidents/err-001", "/runs/asks/answer"]
    for name in ("asks", "failed"):
        addresses += [f"/runs/{name}", f"/runs/{name}/attempts", f"/runs/{name}/report"]
        addresses += [f"/runs/{name}/events/{seq}" for seq in range(count)]
    shown = [address for address in addresses if SECRET in page.get(address).text]
    assert shown == []
    anyio.run(desk.close)
