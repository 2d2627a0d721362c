"""An agent behind HTTP: take an order, ask a person before much money moves, survive a restart.

    uvicorn examples.service.app:app

TRIAGE_STORE is where runs are kept (`sqlite:///orders.db`), APPROVAL_SECRET signs the answers of people,
and APPROVAL_WEBHOOK, where it is set, is the incoming webhook to which questions are posted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from urllib.parse import parse_qs

import anyio
import anyio.abc
import httpx
from fastapi import FastAPI, Header, HTTPException, Request
from pydantic import BaseModel, Field

import triage
from triage import Abort, Agent, Checks, Suspend, TriageError, TriageSuspendedError, approve
from triage.core import AlreadyResumed
from triage.engine import GuardedCall

STALE_S = 300
"""Seconds after which a signed answer is not taken any more: it may have been recorded and sent again."""
LARGE_CENTS = 5_000
log = logging.getLogger("orders")


class Order(BaseModel):
    """What is ordered. A number that was seen before is the same order."""

    number: int = Field(ge=1)
    cents: int = Field(ge=1)


@triage.tool(effect="once")
async def charge(number: int, cents: int) -> str:
    """Charge the customer; a real one would call the bank, with `triage.current_call().idempotency_key`."""
    log.info("charging %d cents for order %d", cents, number)
    return f"receipt {number}"


async def pay(order: dict[str, Any]) -> str:
    """The agent. This one needs no model; one that asks a model is wrapped in the same way."""
    return f"paid: {await charge(order['number'], order['cents'])}"


def needs_a_person(call: GuardedCall) -> Suspend | None:
    """Ask about large sums."""
    cents = call.arguments["cents"]
    return Suspend(f"Charge {cents} cents?") if cents > LARGE_CENTS else None


class Desk:
    """The agent and the runs in progress. What must outlive the process is in the store alone."""

    def __init__(self, agent: Agent[str], tasks: anyio.abc.TaskGroup) -> None:
        self.agent = agent
        self.tasks = tasks
        self.taken: set[str] = set()

    async def take(self, run_id: str, order: dict[str, Any]) -> None:
        """Start the run of an order, unless there is one."""
        if run_id not in self.taken:
            self.taken.add(run_id)
            if await self.agent.store.info(run_id) is None:
                self.tasks.start_soon(self.follow, self.agent.run(order, run_id=run_id))

    async def follow(self, run: Any) -> None:
        """Wait for a run, and ask a person where it waits for one."""
        try:
            log.info("%s", await run)
        except TriageSuspendedError as asked:
            await tell(asked.question, asked.token)
        except TriageError:
            log.exception("an order has failed")


async def tell(question: str, token: str) -> None:
    """Post a question with two buttons; into the log where no webhook is set."""
    buttons = [
        {"type": "button", "text": {"type": "plain_text", "text": text}, "value": f"{verb}:{token}"}
        for verb, text in (("approve", "Yes"), ("reject", "No"))
    ]
    section = {"type": "section", "text": {"type": "plain_text", "text": question}}
    message = {"text": question, "blocks": [section, {"type": "actions", "elements": buttons}]}
    webhook = os.environ.get("APPROVAL_WEBHOOK")
    if webhook is None:
        log.warning("a person is asked, and APPROVAL_WEBHOOK is not set: %s", question)
        return
    async with httpx.AsyncClient() as client:
        (await client.post(webhook, json=message)).raise_for_status()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    """Go on with what an earlier process left, and stop with this one."""
    store = os.environ.get("TRIAGE_STORE", "sqlite:///orders.db")
    agent = Agent(pay, name="orders", checks=Checks(guard=needs_a_person), store=store)
    async with anyio.create_task_group() as tasks:
        app.state.desk = Desk(agent, tasks)
        tasks.start_soon(agent.recover_all)
        yield
        tasks.cancel_scope.cancel()  # each run is given back to the store as it stands
    await agent.store.close()


app = FastAPI(title="Orders", lifespan=lifespan)


@app.post("/orders", status_code=202)
async def order(order: Order, request: Request) -> dict[str, str]:
    """Take an order and start its run; the same order again changes nothing."""
    desk: Desk = request.app.state.desk
    run_id = f"order-{order.number}"
    await desk.take(run_id, order.model_dump())
    return {"run": run_id}


@app.get("/orders/{number}")
async def status(number: int, request: Request) -> dict[str, Any]:
    """How an order stands, with its result or what went wrong once it has ended."""
    desk: Desk = request.app.state.desk
    run_id = f"order-{number}"
    info = await desk.agent.store.info(run_id)
    if info is None:
        if run_id not in desk.taken:
            raise HTTPException(404, f"there is no order {number}")
        return {"run": run_id, "status": "taken"}
    found = {"run": run_id, "status": info.status}
    if info.status == "done":
        found["result"] = await desk.agent.recover(run_id)
    return found


@app.post("/answers")
async def answer(
    request: Request,
    x_slack_request_timestamp: Annotated[str, Header()],
    x_slack_signature: Annotated[str, Header()],
) -> dict[str, str]:
    """Take the answer of a person: a button of the message, signed as Slack signs it."""
    body = await request.body()
    check_signature(body, x_slack_request_timestamp, x_slack_signature)
    payload = json.loads(parse_qs(body.decode())["payload"][0])
    verb, _, token = payload["actions"][0]["value"].partition(":")
    who = payload["user"]["name"]
    reply = approve() if verb == "approve" else Abort(f"{who} said no")
    desk: Desk = request.app.state.desk
    try:
        result = await desk.agent.resume(token, reply)
    except AlreadyResumed as error:
        raise HTTPException(409, "somebody has answered already") from error
    except TriageError as error:
        return {"said": verb, "by": who, "ended": str(error)}
    return {"said": verb, "by": who, "ended": result}


def check_signature(body: bytes, timestamp: str, signature: str) -> None:
    """Refuse what was not signed with APPROVAL_SECRET, or too long ago."""
    secret = os.environ["APPROVAL_SECRET"].encode()
    wanted = hmac.new(secret, b"v0:" + timestamp.encode() + b":" + body, hashlib.sha256).hexdigest()
    fresh = timestamp.isdecimal() and abs(time.time() - int(timestamp)) <= STALE_S
    if not fresh or not hmac.compare_digest(f"v0={wanted}".encode(), signature.encode()):
        raise HTTPException(401, "the signature is wrong or too old")
