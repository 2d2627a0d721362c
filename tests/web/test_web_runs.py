"""The list of runs, and one run: what a reader without JavaScript sees."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient
from web.page_runs import copied, journals, long_run, stored

from triage.core import Origin, RunFinished, RunStarted, fold
from triage.core.state import active_seconds
from triage.engine.digest import Digest
from triage.stores import MemoryStore, RunInfo
from triage.web import app
from triage.web.live import figures_of


@pytest.fixture(scope="module")
def page() -> Iterator[TestClient]:
    with TestClient(app(copied(long_run(1_000))), base_url="http://localhost") as client:
        yield client


def rows(text: str) -> list[str]:
    """The runs that a list shows."""
    body = text.partition('id="runs">')[2].partition("</tbody>")[0]
    return re.findall(r'<tr data-run="([^"]+)"', body)


def test_the_list_shows_each_run_with_its_status_agent_failure_cost_and_age(
    page: TestClient,
) -> None:
    text = page.get("/").text
    assert rows(text) == [*(f"order-100{n}" for n in range(7, 0, -1)), "long"]
    (row,) = re.findall(r'<tr data-run="order-1005".*?</tr>', text, re.DOTALL)
    assert "escalated" in row
    assert "flaky_desk" in row
    assert "external fault (connection): ConnectionError: seats.internal: connection refused" in row
    assert "$0.0055" in row
    assert re.search(r"<time [^>]*>\d+ (s|min)</time>", row)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("q=refused", {"order-1002", "order-1005"}),
        ("q=REFUSED+escalated", {"order-1005"}),
        ("q=charge_and_hang_up", {"order-1007"}),
        ("q=family+york", {"order-1006"}),
        ("q=nothing+like+it", set()),
        ("status=suspended", {"order-1006", "order-1007"}),
        ("failure=loop_detected", {"order-1003"}),
        ("agent=flaky_desk", {"order-1002", "order-1005"}),
        ("agent=flaky_desk&status=done", {"order-1002"}),
        ("hours=1&q=long", set()),
        ("hours=-3&from=x&status=done&q=books", {"order-1001"}),
    ],
)
def test_runs_are_found_by_error_tool_task_agent_status_failure_and_time(
    page: TestClient, query: str, found: set[str]
) -> None:
    assert set(rows(page.get(f"/?{query}").text)) == found


def test_what_is_sought_stands_in_the_form_again(page: TestClient) -> None:
    text = page.get('/?q=a"<b>&status=done').text
    assert 'value="a&#34;&lt;b&gt;"' in text
    assert '<option value="done" selected>' in text
    assert "No run fits." in text


def test_a_long_list_goes_on_where_the_page_before_ended() -> None:
    store = stored(
        *(long_run(1, f"run-{number:03d}", began=1.7e9 + number) for number in range(120))
    )
    client, seen, address = TestClient(app(store), base_url="http://localhost"), [], "/"
    while address:
        text = client.get(address).text
        seen += rows(text)
        older = re.search(r'<a rel="next" href="(\?[^"]+)">Older', text)
        address = f"/{older[1]}" if older else ""
    assert seen == [f"run-{number:03d}" for number in range(119, -1, -1)]


def test_a_run_shows_its_attempts_its_failure_with_evidence_and_what_was_reused(
    page: TestClient,
) -> None:
    text = page.get("/runs/order-1002").text
    assert "Why attempt 2 failed" in text
    assert "ConnectionError: seats.internal: connection refused" in text
    assert "name.connection" in text
    assert "+ 4 reused" in text
    assert text.count('<svg class="lane"') == 3
    assert "booked AF1204, seat 12A" in text


def test_evidence_leads_to_the_step_that_it_is_about(page: TestClient) -> None:
    text = page.get("/runs/order-1003").text
    evidence = re.search(r'<a href="#e(\d+)">step \d+</a>', text)
    assert evidence
    assert f'id="e{evidence[1]}"' in text


def test_each_failure_of_a_run_is_told_with_its_evidence(page: TestClient) -> None:
    text = page.get("/runs/order-1005").text
    assert "Why it failed" in text
    for number in range(1, 5):
        assert f"Why attempt {number} failed</summary>" in text
    assert text.count("name.connection") == 5


def test_the_hint_is_shown_as_the_model_got_it(page: TestClient) -> None:
    text = page.get("/runs/order-1003").text
    assert "as the model got it</summary><pre>Try another airport, or another day.</pre>" in text


@pytest.mark.parametrize("run", ["order-1002", "order-1003", "order-1006", "order-1007"])
def test_each_event_has_an_address_on_the_run_and_a_page_of_its_own(
    page: TestClient, run: str
) -> None:
    text = page.get(f"/runs/{run}").text
    events = journals()[run]
    assert set(re.findall(r' id="e(\d+)"', text)) == {str(event.seq) for event in events}
    for event in events[:: len(events) // 4]:
        own = page.get(f"/runs/{run}/events/{event.seq}")
        assert type(event).__name__ in own.text
        assert f"/runs/{run}?at={event.seq}#e{event.seq}" in own.text


@pytest.mark.parametrize("seq", ["32", "999", "9" * 6_000, "-1", "x"])
def test_an_event_that_is_not_there_is_said_to_be_none(page: TestClient, seq: str) -> None:
    missing = page.get(f"/runs/order-1002/events/{seq}")
    assert missing.status_code == 404
    assert "the run has the events 0 to 31" in missing.text


def test_two_attempts_stand_side_by_side_with_what_differs(page: TestClient) -> None:
    text = page.get("/runs/order-1002/attempts?left=1&right=3").text
    assert text.count('<tr class="same">') == 3
    assert text.count('<tr class="right">') == 2
    assert page.get("/runs/order-1001/attempts").status_code == 404


def test_a_run_that_waits_says_for_what_and_since_when(page: TestClient) -> None:
    assert "Waits for an approval" in page.get("/runs/order-1006").text
    assert "a call is in doubt" in page.get("/runs/order-1007").text


def test_a_long_run_is_paged_and_an_event_leads_to_its_page(page: TestClient) -> None:
    first = page.get("/runs/long").text
    assert "page 1 of 11" in first
    assert first.partition("<template")[0].count('<li id="e') == 100
    assert "page 11 of 11" in page.get("/runs/long?page=99").text
    middle = page.get("/runs/long?at=1501").text
    assert "page 6 of 11" in middle
    assert 'id="e1501"' in middle


def test_a_run_in_progress_opens_at_its_newest_page() -> None:
    store = stored(long_run(300, ends=False))
    assert (
        "page 4 of 4" in TestClient(app(store), base_url="http://localhost").get("/runs/long").text
    )


def test_a_run_of_fifty_steps_weighs_at_most_60_kb() -> None:
    store = stored(long_run(50, "fifty"))
    client = TestClient(
        app(store), base_url="http://localhost", headers={"Accept-Encoding": "identity"}
    )
    text = client.get("/runs/fifty").text
    parts = re.findall(r'(?:href|src)="(/static/[^"]+)"', text)
    assert len(parts) == 3
    sizes = [len(client.get(part).content) for part in parts]
    assert len(text.encode()) + sum(sizes) <= 60_000


def test_a_page_names_nothing_on_another_host(page: TestClient) -> None:
    for address in ("/", "/runs/order-1002", "/runs/order-1002/attempts", "/runs/nobody"):
        assert not re.search(r'(?:href|src|action)="(?!/|#|\?)', page.get(address).text)


def test_the_page_can_be_mounted_under_a_path() -> None:
    client = TestClient(
        Starlette(routes=[Mount("/ops/triage", app(copied()))]), base_url="http://localhost"
    )
    for address in ("/ops/triage/", "/ops/triage/runs/order-1002"):
        text = client.get(address).text.partition("<template")[0]
        links = {link.partition("#")[0] for link in re.findall(r'(?:href|src)="(/[^"]*)"', text)}
        assert all(link.startswith("/ops/triage/") for link in links)
        assert {client.get(link).status_code for link in links} == {200}


@pytest.mark.parametrize("run", [f"order-100{n}" for n in range(1, 8)])
def test_the_figures_of_a_list_are_those_of_the_fold(run: str) -> None:
    events, digest = journals()[run], Digest()
    for event in events:
        digest.apply(event)
    state = fold(events)
    assert (digest.attempts, digest.steps) == (state.attempt, state.all_steps)
    assert digest.usage.total_tokens == state.usage.total_tokens
    assert figures_of(digest)["cost"] == f"${state.usage.cost_usd:.4f}"


def test_the_time_at_work_of_a_fork_is_the_same_live_as_on_its_page() -> None:
    copied_part = long_run(2, "fork", ends=False)
    started = copied_part[0]
    assert isinstance(started, RunStarted)
    origin = Origin("first", len(copied_part) - 1, len(copied_part), "first")
    later = copied_part[-1].time + 3_600
    events = [
        replace(started, origin=origin),
        *copied_part[1:],
        RunFinished(
            run_id="fork", seq=len(copied_part), time=later, status="done", result="all of it"
        ),
    ]
    digest = Digest()
    for event in events:
        digest.apply(event)
    assert digest.busy == active_seconds(events) < 60


class EndsMeanwhile(MemoryStore):
    """Holds a run that ends just after its status was read."""

    async def info(self, run_id: str) -> RunInfo | None:
        found = await super().info(run_id)
        if found is not None and found.status == "running":
            events = long_run(3, run_id)
            await self.append(run_id, events[found.events :], at=found.events, epoch=0)
        return found


def test_a_run_that_ends_while_its_page_is_made_is_not_shown_as_running_with_its_end() -> None:
    store = EndsMeanwhile()
    events = long_run(3, "ends")
    asyncio.run(store.append("ends", events[:5], at=0, epoch=0))
    with TestClient(app(store), base_url="http://localhost") as page:
        first, second = page.get("/runs/ends").text, page.get("/runs/ends").text
    assert 'data-open="yes" data-seq="4"' in first
    assert f'data-open="no" data-seq="{len(events) - 1}"' in second
