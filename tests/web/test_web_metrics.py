"""The metrics of a store on the page, for Prometheus."""

from __future__ import annotations

from starlette.testclient import TestClient

from triage import Agent
from triage.stores import MemoryStore
from triage.web import app
from triage.web.security import Login, Person, Role

TOKEN = "correct horse battery"
ANN = Person("ann", Role.ADMIN)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def echo(task: str) -> str:
    return task


def test_the_page_has_the_metrics_of_the_store() -> None:
    store = MemoryStore()
    Agent(echo, store=store, name="echo").run_sync("hello")
    answer = TestClient(app(store), base_url="http://localhost").get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    [line] = [line for line in answer.text.splitlines() if line.startswith("triage_runs_total{")]
    assert 'agent="echo"' in line or 'gen_ai_agent_name="echo"' in line
    assert line.endswith(" 1")


def test_a_scraper_reads_the_metrics_by_the_chosen_token_and_nothing_else() -> None:
    page = app(MemoryStore(), login=Login(ANN, token=TOKEN))
    client = TestClient(page, base_url="http://localhost")
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers=bearer("another one, wrong")).status_code == 401
    assert client.get("/metrics", headers=bearer(TOKEN)).status_code == 200
    assert client.get("/", headers=bearer(TOKEN)).status_code == 401
    same_site = {**bearer(TOKEN), "sec-fetch-site": "same-origin"}
    assert client.post("/questions", headers=same_site).status_code in (401, 415)


def test_a_token_for_one_login_is_not_used_up_by_a_scraper() -> None:
    login = Login(ANN)
    client = TestClient(app(MemoryStore(), login=login), base_url="http://localhost")
    token = login.token
    assert client.get("/metrics", headers=bearer(token)).status_code == 401
    assert login.token == token


def test_wrong_tokens_of_a_scraper_count_like_those_of_a_login() -> None:
    client = TestClient(
        app(MemoryStore(), login=Login(ANN, token=TOKEN)), base_url="http://localhost"
    )
    for number in range(20):
        client.get("/metrics", headers=bearer(f"guess number {number}"))
    assert client.get("/metrics", headers=bearer(TOKEN)).status_code == 401
