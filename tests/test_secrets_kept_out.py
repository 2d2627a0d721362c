"""What is secret reaches no store, wherever in a run it stands, and the run has it all the same."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

import triage
from triage import Agent, Durability, FailurePolicy, Retry, Step, UsageError

pytestmark = pytest.mark.anyio

KEY = "sk-aB3dE5gH7jK9mN1pQ3sT5vW7"
PASSWORD = "hunter2-and-more"
FORMS = (KEY, PASSWORD, base64.b64encode(KEY.encode()).decode())


@triage.tool(effect="once")
async def log_in(user: str) -> str:
    return KEY


async def uses_secrets(task: str, *, record_step: Any, update_state: Any, run: Any) -> bool:
    record_step(
        Step(
            action="ask",
            tool_called="vault",
            tool_input={"password": PASSWORD, "note": "fine"},
            tool_output=f"the key is {KEY}, in base64 {base64.b64encode(KEY.encode()).decode()}",
            llm_output=f"I have {KEY}",
        )
    )
    record_step(Step(action="note", metadata={"header": f"Authorization: Bearer {KEY}"}))
    with pytest.raises(UsageError, match=r"state\['key'\] holds what looks like a secret"):
        update_state({"key": KEY})
    update_state({"key": KEY}, secret_ok=["key"])
    known = await log_in("ann")
    if run.attempt == 1:
        error = ConnectionError(f"refused for {KEY}")
        error.add_note(f"tried with password={PASSWORD}")
        raise error from ValueError(f"Authorization: Bearer {KEY}")
    return bool(known == KEY)


def kept(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


async def test_no_secret_is_in_the_bytes_of_the_store(tmp_path: Path) -> None:
    policy = FailurePolicy(default=lambda _: Retry(hint=f"use {KEY}"))
    agent = Agent(uses_secrets, policy, store=f"sqlite:///{tmp_path}/runs.db")
    assert await agent.run(f"use {KEY}") is True
    await agent.store.close()
    raw = kept(tmp_path)
    assert b"vault" in raw
    assert [form for form in FORMS if form.encode() in raw] == []


async def test_a_run_may_say_that_its_store_keeps_everything(tmp_path: Path) -> None:
    async def shows(task: str, *, update_state: Any) -> str:
        update_state({"key": KEY})
        return task

    everything = Durability(redact=False)
    agent = Agent(shows, store=f"sqlite:///{tmp_path}/runs.db", durability=everything)
    assert await agent.run("go on") == "go on"
    await agent.store.close()
    assert KEY.encode() in kept(tmp_path)
