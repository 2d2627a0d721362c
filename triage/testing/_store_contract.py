"""What every store must do, as checks that run against yours.

    @pytest.mark.parametrize("check", store_checks, ids=lambda check: check.__name__)
    async def test_my_store_keeps_the_contract(check):
        await check(MyStore())

`await store_contract(MyStore)` runs them all. Every check takes a store that holds no runs, raises
AssertionError where a promise is broken, and runs under asyncio and trio.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

from triage.stores import Store

from . import _store_appends, _store_owners, _store_runs

Check = Callable[[Store], Awaitable[None]]

store_checks: tuple[Check, ...] = (
    *_store_appends.CHECKS,
    *_store_owners.CHECKS,
    *_store_runs.CHECKS,
)
"""All checks, each named for its promise."""


async def store_contract(new: Callable[[], Store | Awaitable[Store]]) -> None:
    """Run every check, each against a store of its own, and close it.

    new: gives a store that holds no runs; may be async. Raises AssertionError for the first promise
    that is broken, with the check's name.
    """
    for check in store_checks:
        made = new()
        store = await made if inspect.isawaitable(made) else made
        try:
            await check(store)
        except AssertionError as error:
            name = getattr(check, "__name__", "")
            raise AssertionError(f"{name}: {error}") from error
        finally:
            await store.close()
