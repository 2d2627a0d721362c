"""Incidents on the page: the queue, one incident, and what a person does about it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from starlette.testclient import TestClient
from store_kinds import opening

from triage.incidents import IncidentDesk
from triage.stores import MemoryStore
from triage.web import Person, Role, app

pytestmark = pytest.mark.usefixtures("theirs_may_block")
opened = opening("memory", "sqlite", "postgres")
HEADERS = {
    "Origin": "http://localhost",
    "Sec-Fetch-Site": "same-origin",
    "Content-Type": "application/x-www-form-urlencoded",
}


class Room:
    """Incidents of a store, and the page of them."""

    def __init__(self, store: Any) -> None:
        self.name, self.role = "ann", Role.ANSWER
        self.desk = IncidentDesk(store, owner="test")
        page = app(store, who=lambda _: Person(self.name, self.role), desk=self.desk)
        self.client = TestClient(
            page, base_url="http://localhost", headers=HEADERS, follow_redirects=False
        )

    def report(self, message: str) -> str:
        async def reported() -> str:
            return (await self.desk.report(message, agent_type="coder", task_id=message)).error_id

        return anyio.run(reported)

    def do(self, error_id: str, act: str, **form: str) -> Any:
        return self.client.post(f"/incidents/{error_id}", data={"act": act, **form})

    def page(self, error_id: str) -> str:
        return self.client.get(f"/incidents/{error_id}").text

    def log(self) -> list[tuple[str, str, str]]:
        return [(one.verb, one.by, one.text) for one in anyio.run(self.desk.log)]


@pytest.fixture
def room(opened: Any) -> Any:
    store = opened.new()
    made = Room(store)
    yield made
    anyio.run(made.desk.close)
    anyio.run(store.close)


def test_the_queue_shows_what_is_open_and_leads_to_each(room: Room) -> None:
    first, second = room.report("Process died <b>now"), room.report("disk full")
    page = room.client.get("/incidents").text
    assert f'href="/incidents/{first}"' in page
    assert "Process died &lt;b&gt;now" in page
    assert room.do(second, "resolve", outcome="ignored", note="known").status_code == 303
    assert f"/incidents/{second}" not in room.client.get("/incidents").text
    assert f"/incidents/{second}" in room.client.get("/incidents?status=ignored").text
    assert f"/incidents/{first}" in room.client.get("/incidents?status=no-such").text


def test_what_a_person_does_is_in_the_log_with_who_did_it(room: Room) -> None:
    one = room.report("Process died")
    assert room.do(one, "acknowledge", note="looking").status_code == 303
    assert room.do(one, "note", note="the disk is full").status_code == 303
    assert room.do(one, "escalate", level="architect", note="needs you").status_code == 303
    assert room.do(one, "resolve", outcome="recovered").status_code == 303
    assert room.do(one, "note", note="it was the cron job").status_code == 303
    mine = [entry for entry in room.log() if entry[1] == "ann"]
    assert [verb for verb, _, _ in mine] == [
        "acknowledged",
        "noted",
        "escalated",
        "noted",
        "resolved",
        "noted",
    ]
    page = room.page(one)
    for said in ("looking", "the disk is full", "needs you", "it was the cron job"):
        assert said in page
    assert 'value="acknowledge"' not in page


@pytest.mark.parametrize(
    ("act", "form", "said"),
    [
        ("escalate", {"level": "emperor"}, "level"),
        ("resolve", {"outcome": "forgotten"}, "outcome"),
        ("note", {"note": "  "}, "say something"),
        ("explode", {}, "act: one of"),
    ],
)
def test_what_does_not_fit_is_said_and_what_was_typed_is_kept(
    room: Room, act: str, form: dict[str, str], said: str
) -> None:
    one = room.report("Process died")
    before = room.log()
    got = room.do(one, act, **{"note": "typed & kept", **form})
    assert got.status_code == 422
    assert said in got.text
    assert room.log() == before
    if "note" not in form:
        assert "typed &amp; kept" in got.text


def test_the_second_to_close_is_told_that_it_is_closed_and_the_log_says_by_whom(room: Room) -> None:
    one = room.report("Process died")
    room.do(one, "resolve", outcome="failed")
    room.name = "bob"
    got = room.do(one, "resolve", outcome="recovered")
    assert got.status_code == 409
    assert f"{one} is failed already" in got.text
    assert "ann" in got.text


def test_who_may_look_may_do_nothing(room: Room) -> None:
    one = room.report("Process died")
    room.role = Role.VIEW
    assert room.do(one, "acknowledge").status_code == 403
    assert "<form method" not in room.page(one)


def test_an_unknown_incident_gets_a_page_that_says_so(room: Room) -> None:
    for name in ("err-999", "nonsense"):
        assert room.client.get(f"/incidents/{name}").status_code == 404


class Theirs:
    """A store of somebody else's, without a database."""

    def __init__(self) -> None:
        self._kept = MemoryStore()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kept, name)


def test_a_store_that_can_have_no_incidents_has_no_such_page() -> None:
    page = TestClient(app(Theirs()), base_url="http://localhost")
    assert page.get("/incidents").status_code == 404
