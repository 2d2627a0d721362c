"""The page of each kind of store: what it shows and does, and what it says of one that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from store_kinds import KINDS, opening

import triage
from triage import Agent, Checks, FailurePolicy, TriageError, TriageSuspendedError
from triage.core import StoreKeyMissing, StoreTooNew, StoreUnavailable, Suspend
from triage.engine import GuardedCall
from triage.engine.answering import waits_for
from triage.stores import MemoryStore, SQLiteStore
from triage.web import Person, Role, app

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]
opened = opening(*KINDS)
OURS = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}


@pytest.fixture(params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The page goes on with runs on asyncio."""
    return str(request.param)


@triage.tool(effect="once")
async def pay(cents: int) -> str:
    return f"paid {cents}"


async def buys(task: str) -> str:
    if task == "fail":
        raise ValueError("no such shop")
    return await pay(500)


def ask(call: GuardedCall) -> Suspend:
    return Suspend("a person must see it")


def client_of(store: Any) -> httpx.AsyncClient:
    page = app(store, who=lambda _: Person("ann", Role.ADMIN))
    transport = httpx.ASGITransport(page)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=OURS)


async def test_runs_of_any_store_are_listed_shown_answered_cancelled_and_forked(
    opened: Any,
) -> None:
    store = opened.new()
    agent: Agent[Any] = Agent(buys, FailurePolicy(), store=store, checks=Checks(guard=ask))
    for run_id in ("pays", "stops"):
        with pytest.raises(TriageSuspendedError):
            await agent.run("buy", run_id=run_id)
    with pytest.raises(TriageError):
        await agent.run("fail", run_id="fails")
    async with client_of(store) as client:
        listed = (await client.get("/")).text
        assert all(f'data-run="{run_id}"' in listed for run_id in ("pays", "stops", "fails"))
        assert "no such shop" in (await client.get("/runs/fails")).text
        assert "a person must see it" in (await client.get("/questions")).text
        question = waits_for(await store.read("pays"))
        assert question is not None
        answer = {"question": question.token_digest, "answer": "approve"}
        assert (await client.post("/runs/pays/answer", data=answer)).status_code == 303
        assert (await client.post("/runs/pays/answer", data=answer)).status_code == 409
        assert (await client.post("/runs/stops/cancel", data={"end": "yes"})).status_code == 303
        failed = next(
            e.seq for e in await store.read("fails") if type(e).__name__ == "AttemptFailed"
        )
        forked = await client.post("/runs/fails/fork", data={"at": str(failed), "hint": "ask ann"})
        made = forked.headers["location"].rpartition("/")[2]
        assert "forked from" in (await client.get(f"/runs/{made}")).text
    assert await agent.recover("pays") == "paid 500"
    info = await store.info("stops")
    assert info is not None
    assert info.status == "cancelled"
    await store.close()


class Failing(MemoryStore):
    """A store that cannot be read."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def runs(self, *_: Any, **__: Any) -> Any:
        raise self.error

    async def info(self, run_id: str) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StoreTooNew("schema 99"), "Update triage where this page runs"),
        (StoreUnavailable("no route"), "See whether its file, server or network is there"),
        (StoreKeyMissing("no key"), "Give this process the key"),
    ],
)
async def test_a_store_that_cannot_be_read_gets_a_page_that_says_what_to_do(
    error: Exception, said: str
) -> None:
    async with client_of(Failing(error)) as client:
        for path in ("/", "/runs/any", "/questions"):
            found = await client.get(path)
            assert found.status_code == 503
            assert said in found.text
            assert str(error) in found.text


async def test_a_sqlite_file_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "folder" / "runs.db")
    async with client_of(store) as client:
        found = await client.get("/runs/any")
    assert found.status_code == 503
    assert "The store cannot be reached" in found.text
    await store.close()


async def test_two_servers_of_one_store_show_the_same_and_the_second_answer_is_refused(
    tmp_path: Path,
) -> None:
    stores = [SQLiteStore(tmp_path / "runs.db") for _ in range(2)]
    agent: Agent[Any] = Agent(buys, FailurePolicy(), store=stores[0], checks=Checks(guard=ask))
    with pytest.raises(TriageSuspendedError):
        await agent.run("buy", run_id="pays")
    question = waits_for(await stores[0].read("pays"))
    assert question is not None
    answer = {"question": question.token_digest, "answer": "approve"}
    statuses: list[int] = []
    for store in stores:
        async with client_of(store) as client:
            assert "pays" in (await client.get("/")).text
            statuses.append((await client.post("/runs/pays/answer", data=answer)).status_code)
    assert statuses == [303, 409]
    for store in stores:
        await store.close()
