"""What a store may not keep as it is: encrypted under a key, or given again; never handed on as if real."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import triage
from triage import Agent, Durability, FailurePolicy, Retry, Suspend, UsageError
from triage.core import StateUpdated, StoreCorrupt, StoreKeyMissing
from triage.core.secret_shapes import HIDDEN
from triage.engine import MissingArguments
from triage.stores import SQLiteStore
from triage.stores.clock import ticks

pytestmark = pytest.mark.anyio

SECRET = "sk-qX7vT2mK9pL4wN8zR3cY6aB1"
KEY, OTHER = "11" * 32, "22" * 32


@triage.tool(effect="once")
async def open_account(name: str) -> dict[str, str]:
    return {"name": name, "api_key": SECRET}


class Killed(BaseException):
    """The process dies."""


class Bank:
    """An agent that dies once, and then says what it was given back."""

    def __init__(self, *, dies: bool = True) -> None:
        self.dies = dies
        self.seen: dict[str, Any] = {}

    async def __call__(self, task: str, *, run: Any, _triage_state: Any = None) -> str:
        account = await open_account("ann")
        if self.dies:
            run.update_state({"key": account["api_key"], "step": 1})
            await run.flush()
            raise Killed
        self.seen = {"task": task, "account": account, "state": _triage_state}
        return str(account["api_key"])


async def killed(folder: Path, durability: Durability, task: str = "open it") -> None:
    store = SQLiteStore(folder / "runs.db")
    with pytest.raises(Killed):
        await Agent(Bank(), store=store, durability=durability).run(task, run_id="r")
    await store.close()
    assert SECRET.encode() not in held(folder)


def held(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


async def recovered(folder: Path, durability: Durability, **given: Any) -> Bank:
    bank = Bank(dies=False)
    store = SQLiteStore(folder / "runs.db")
    try:
        await Agent(bank, store=store, durability=durability).recover("r", **given)
    finally:
        await store.close()
    return bank


async def test_under_a_key_everything_comes_back_whole(tmp_path: Path) -> None:
    await killed(tmp_path, Durability(key=KEY), task=f"open it with {SECRET}")
    bank = await recovered(tmp_path, Durability(key=KEY))
    assert bank.seen == {
        "task": f"open it with {SECRET}",
        "account": {"name": "ann", "api_key": SECRET},
        "state": {"key": SECRET, "step": 1},
    }
    # What is looked at without the key is redacted, the result included.
    store = SQLiteStore(tmp_path / "runs.db")
    events = await store.read("r")
    await store.close()
    assert SECRET not in repr(events)
    assert any(event.sealed for event in events)


async def test_the_keys_of_the_environment_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIAGE_KEY", f"{KEY}, {OTHER}")
    await killed(tmp_path, Durability())
    assert (await recovered(tmp_path, Durability())).seen["state"]["key"] == SECRET


async def test_a_key_that_was_replaced_still_opens_what_it_sealed(tmp_path: Path) -> None:
    await killed(tmp_path, Durability(key=KEY))
    assert (await recovered(tmp_path, Durability(key=[OTHER, KEY]))).seen["state"]["key"] == SECRET


@pytest.mark.parametrize("key", [None, OTHER, [OTHER, "33" * 32]])
async def test_without_the_right_key_the_run_is_left_as_it_is(tmp_path: Path, key: Any) -> None:
    await killed(tmp_path, Durability(key=KEY))
    with pytest.raises(StoreKeyMissing, match="not given") as caught:
        await recovered(tmp_path, Durability(key=key))
    assert SECRET not in str(caught.value)
    assert (await recovered(tmp_path, Durability(key=KEY))).seen["state"]["key"] == SECRET


async def test_what_is_sealed_opens_in_its_place_alone(tmp_path: Path) -> None:
    await killed(tmp_path, Durability(key=KEY))
    store = SQLiteStore(tmp_path / "runs.db")
    events = await store.read("r")
    keys = Durability(key=KEY).keys
    assert keys is not None
    sealed = [event for event in events if event.sealed]
    for event in sealed:
        keys.opened(event)
        for wrong in (
            replace(event, seq=event.seq + 1),
            replace(event, run_id="another"),
            replace(event, sealed=event.sealed[:-8] + "AAAAAAA="),
        ):
            with pytest.raises(StoreCorrupt):
                keys.opened(wrong)
    await store.close()


async def test_without_a_key_state_is_kept_in_the_process_and_asked_for_after_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "triage"):
        await killed(tmp_path, Durability())
    assert [record for record in caplog.records if "state['key']" in record.getMessage()]
    assert SECRET not in caplog.text
    with pytest.raises(MissingArguments, match=r"recover\(run_id, state=\{'key': …\}\)"):
        await recovered(tmp_path, Durability())
    # Nor is the result of the call: nobody makes it up, and it is not called again.
    with pytest.raises(triage.TriageSuspendedError, match="held a secret") as asked:
        await recovered(tmp_path, Durability(), state={"key": SECRET})
    bank = Bank(dies=False)
    store = SQLiteStore(tmp_path / "runs.db")
    account = {"name": "ann", "api_key": SECRET}
    agent = Agent(bank, store=store)
    with pytest.raises(MissingArguments, match="state="):
        await agent.resume(asked.value.token, triage.happened(account))
    await agent.resume(asked.value.token, triage.happened(account), state={"key": SECRET})
    await store.close()
    assert bank.seen["account"] == account
    assert HIDDEN not in repr(bank.seen)


async def test_a_call_whose_result_is_lost_runs_again_where_a_person_says_so(
    tmp_path: Path,
) -> None:
    await killed(tmp_path, Durability())
    lost = {"key": SECRET}
    with pytest.raises(triage.TriageSuspendedError, match=r"rerun\(\) would repeat") as asked:
        await recovered(tmp_path, Durability(), state=lost)
    bank = Bank(dies=False)
    store = SQLiteStore(tmp_path / "runs.db")
    await Agent(bank, store=store).resume(asked.value.token, triage.rerun(), state=lost)
    await store.close()
    assert bank.seen["account"] == {"name": "ann", "api_key": SECRET}


async def test_a_question_of_a_run_that_lost_state_can_be_answered(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def asks(task: str, *, run: Any, _triage_state: Any = None) -> Any:
        if run.attempt == 1:
            run.update_state({"key": SECRET})
            raise LookupError("which one?")
        seen.append(_triage_state)
        return "done"

    def agent(store: SQLiteStore) -> Agent[Any]:
        policy = FailurePolicy(default=Suspend("which one?"))
        return Agent(asks, policy, store=store)

    store = SQLiteStore(tmp_path / "runs.db")
    with pytest.raises(triage.TriageSuspendedError) as asked:
        await agent(store).run("t", run_id="r")
    await store.close()
    store = SQLiteStore(tmp_path / "runs.db")
    with pytest.raises(MissingArguments, match="state="):
        await agent(store).resume(asked.value.token, Retry())
    assert await agent(store).resume(asked.value.token, Retry(), state={"key": SECRET}) == "done"
    await store.close()
    assert SECRET not in repr([event for event in seen if event == HIDDEN])


async def test_an_injected_secret_is_given_again_or_not_at_all(tmp_path: Path) -> None:
    given: list[Any] = []

    async def works(task: str, *, run: Any, password: str | None = None) -> str:
        given.append(password)
        if run.attempt == 2 and len(given) == 2:
            raise Killed
        if run.attempt == 1:
            raise ConnectionError("no answer")
        return "done"

    def agent(store: SQLiteStore) -> Agent[str]:
        policy = FailurePolicy(default=Retry(inject={"password": SECRET}))
        return Agent(works, policy, store=store)

    store = SQLiteStore(tmp_path / "runs.db")
    with pytest.raises(Killed):
        await agent(store).run("t", run_id="r")
    await store.close()
    store = SQLiteStore(tmp_path / "runs.db")
    with pytest.raises(MissingArguments, match="password"):
        await agent(store).recover("r")
    assert await agent(store).recover("r", password=SECRET) == "done"
    assert given == [None, SECRET, SECRET]
    await store.close()


def test_what_is_no_key_is_refused_with_the_way_to_make_one() -> None:
    for wrong in ("short", b"x" * 16, "zz" * 32, [], [KEY, "short"], 5):
        with pytest.raises(UsageError, match="token_hex") as caught:
            Durability(key=wrong)  # type: ignore[arg-type]
        assert "short" not in str(caught.value)
    assert KEY not in repr(Durability(key=KEY))
    assert Durability(key=bytes.fromhex(KEY)).keys is not None
    assert Durability(key=secrets.token_hex(32)).keys is not None


async def test_one_run_that_cannot_go_on_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await killed(tmp_path, Durability(key=KEY))
    store = SQLiteStore(tmp_path / "runs.db")
    bank = Bank()
    agent = Agent(bank, store=store, durability=Durability(key=OTHER))
    with pytest.raises(Killed):
        await agent.run("open it", run_id="s")
    bank.dies = False
    monkeypatch.setattr("triage.stores.clock.ticks", lambda: ticks() + 3600)  # all leases are over
    found = {one.run_id: one for one in await agent.recover_all()}
    assert found["s"].result == SECRET
    await store.close()


def test_the_state_that_is_written_names_what_was_left_out() -> None:
    event = StateUpdated("r", 3, 0.0, 1, {"key": SECRET, "step": 1})
    shown = triage.core.wire.redacted(event, triage.core.Redactor(environment=False))
    assert isinstance(shown, StateUpdated)
    assert shown.values == {"step": 1}
    assert shown.unstored == ("key",)
