"""The service of the examples: orders, a person's signed answer, a restart between both."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

from examples.service import app as service

Questions = SimpleQueue[tuple[str, str]]
SECRET = "signing-secret-of-the-tests"

pytestmark = [pytest.mark.usefixtures("theirs_may_block"), pytest.mark.timeout(120)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Questions:
    """The questions that people were asked, each with its token."""
    questions: Questions = SimpleQueue()

    async def tell(question: str, token: str) -> None:
        questions.put((question, token))

    monkeypatch.setattr(service, "tell", tell)
    monkeypatch.setenv("TRIAGE_STORE", f"sqlite:///{tmp_path}/orders.db")
    monkeypatch.setenv("APPROVAL_SECRET", SECRET)
    return questions


@pytest.fixture
def client(asked: Questions) -> Iterator[TestClient]:
    with TestClient(service.app) as made:
        yield made


def ended(client: TestClient, number: int) -> Any:
    """An order once it is done, asked for again and again."""
    while True:
        found = client.get(f"/orders/{number}").json()
        if found["status"] == "done":
            return found


def click(client: TestClient, value: str, *, secret: str = SECRET, age_s: int = 0) -> Any:
    """Send what a button sends; the response."""
    payload = {"user": {"name": "Ann"}, "actions": [{"value": value}]}
    body = urlencode({"payload": json.dumps(payload)}).encode()
    timestamp = str(int(time.time()) - age_s)
    signed = b"v0:" + timestamp.encode() + b":" + body
    signature = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    headers = {
        "X-Slack-Request-Timestamp": timestamp,
        "X-Slack-Signature": f"v0={signature}",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    return client.post("/answers", content=body, headers=headers)


def test_a_small_order_is_paid_once_however_often_it_is_sent(client: TestClient) -> None:
    order = {"number": 7, "cents": 4_200}
    assert client.post("/orders", json=order).json() == {"run": "order-7"}
    done = ended(client, 7)
    assert client.post("/orders", json=order).status_code == 202
    assert done == client.get("/orders/7").json()
    assert done == {"run": "order-7", "status": "done", "result": "paid: receipt 7"}
    assert client.get("/orders/8").status_code == 404


def test_a_large_order_waits_for_a_person_and_survives_a_restart(
    asked: Questions,
) -> None:
    with TestClient(service.app) as first:
        first.post("/orders", json={"number": 9, "cents": 90_000})
        question, token = asked.get(timeout=60)
        assert "Charge 90000 cents?" in question
        assert first.get("/orders/9").json()["status"] == "suspended"
    with TestClient(service.app) as second:
        assert click(second, f"approve:{token}").json()["ended"] == "paid: receipt 9"
        assert second.get("/orders/9").json()["status"] == "done"
        assert click(second, f"approve:{token}").status_code == 409


def test_what_a_person_refuses_is_not_charged(
    client: TestClient, asked: Questions, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="orders")
    client.post("/orders", json={"number": 10, "cents": 90_000})
    _, token = asked.get(timeout=60)
    assert "Ann said no" in click(client, f"reject:{token}").json()["ended"]
    assert client.get("/orders/10").json()["status"] == "aborted"
    assert "charging" not in caplog.text


@pytest.mark.parametrize("wrong", [{"secret": "another"}, {"age_s": 301}, {"age_s": -301}])
def test_an_answer_that_is_not_signed_is_refused(
    client: TestClient, asked: Questions, wrong: dict[str, Any]
) -> None:
    client.post("/orders", json={"number": 11, "cents": 90_000})
    _, token = asked.get(timeout=60)
    assert click(client, f"approve:{token}", **wrong).status_code == 401
    assert client.get("/orders/11").json()["status"] == "suspended"
