"""Every store keeps the contract, on asyncio and trio."""

from __future__ import annotations

from typing import Any

import pytest
from store_kinds import KINDS, Opened, opening

from triage.core import UsageError
from triage.stores import MemoryStore, Store
from triage.testing import store_checks, store_contract

pytestmark = pytest.mark.anyio


opened = opening(*KINDS)
# What differs between the durable ones is the driver, in a thread of its own.
SHOWN = [(kind, "asyncio") for kind in KINDS] + [("memory", "trio"), ("sqlite", "trio")]


@pytest.mark.parametrize(("opened", "anyio_backend"), SHOWN, indirect=["opened"])
@pytest.mark.parametrize("check", store_checks, ids=lambda check: check.__name__)
async def test_a_store_keeps_its_promises(check: Any, opened: Opened) -> None:
    store = opened.new()
    try:
        await check(store)
    finally:
        await store.close()


async def test_the_contract_runs_all_checks_on_stores_of_their_own() -> None:
    made: list[Store] = []

    def new() -> Store:
        made.append(MemoryStore())
        return made[-1]

    await store_contract(new)
    assert len(made) == len(store_checks)
    assert len(set(map(id, made))) == len(store_checks)


@pytest.mark.parametrize("keep", [-1, True, 1.5, "10"])
def test_a_wrong_number_of_kept_runs_is_refused(keep: Any) -> None:
    with pytest.raises(UsageError, match=r"MemoryStore.keep must be a whole number from 0"):
        MemoryStore(keep)


class Forgetful(MemoryStore):
    async def find(self, token_digest: str) -> str | None:
        return None


async def test_the_contract_names_the_promise_that_is_broken() -> None:
    with pytest.raises(AssertionError, match=r"a_token_is_found_while.*: find first run: found is"):
        await store_contract(Forgetful)
