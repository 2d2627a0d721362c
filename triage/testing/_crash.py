"""Dying as a killed process does, as far as the store can tell."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from triage._recorder import Recorder


class Crash(BaseException):
    """The process has died here, as a fault wanted it. A BaseException: no agent catches it."""


class _Unreachable:
    """The store as a dead process reaches it: not at all, and without waiting for it."""

    def submit(
        self,
        run_id: str,  # noqa: ARG002 - nothing of it is used
        events: Sequence[Any],  # noqa: ARG002
        *,
        done: Callable[[BaseException | None], None],
        **position: Any,  # noqa: ARG002
    ) -> None:
        """Tell a writer that lives no more that all is well."""
        done(None)

    async def renew(self, run_id: str, **lease: Any) -> None:
        """The lease ends by itself."""

    async def release(self, run_id: str, **lease: Any) -> None:
        """The dead give nothing back."""


def die(run: Recorder | None, name: str, exit_code: int | None) -> NoReturn:
    """End the process with this code; None: cut the run and those around it off their stores, and raise."""
    if exit_code is not None:
        os._exit(exit_code)
    while run is not None:
        keeper = run.session.keeper
        if keeper is not None:
            keeper.store = _Unreachable()  # type: ignore[assignment] # of a store, what a writer calls
            keeper.over = True
        run = run.session.parent
    raise Crash(f"the process died in {name}")
