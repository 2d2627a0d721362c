"""What a desk does by itself, over and over: recover what is due, tell, deliver."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import anyio
import anyio.lowlevel

from triage._env import Environment
from triage._options import check_count
from triage.errors import StoreError
from triage.observers import logger

from . import _acting as acting
from . import _outbox as outbox
from ._db import Db
from ._detecting import Detecting
from ._errors import IncidentError, OutcomeLost
from ._hooks import call, run_hook, said
from ._model import Message, RecoveryStrategy
from ._settings import Hooks
from ._texts import check_id, number_of
from .sinks import Sink

T = TypeVar("T")
ELSE = "*"
"""The sink of roles that have none of their own."""
BEATS = 3
"""How often a lease is renewed while it lasts."""


class Rounds(Detecting):
    """What of a desk acts."""

    _hooks: Hooks
    _sinks: Mapping[str, Sink]
    _env: Environment

    async def tick(self, *, limit: int = 1000, at_once: int = 10) -> dict[str, int]:
        """One round: detect, handle what is due, tell the next role of what nobody heard, deliver.

        limit: failures and messages taken up at most. at_once: hooks that may run at the same time.
        How many of each; what a single incident raises is logged and counted under `failed`.
        """
        check_count("at_once", at_once, 1)
        seen = await self.look(limit=limit)
        counted = {"detected": seen, "handled": 0, "failed": 0}
        limiter = anyio.CapacityLimiter(at_once)
        async with anyio.create_task_group() as group:
            for error_id in await self.due(limit=limit):
                group.start_soon(self._one_due, error_id, limiter, counted)
        unheard = await self.remind()
        return {**counted, "unheard": unheard, "delivered": await self.deliver(limit=limit)}

    async def _one_due(
        self, error_id: str, limiter: anyio.CapacityLimiter, counted: dict[str, int]
    ) -> None:
        async with limiter:
            try:
                _, outcome = await self._carried_out(number_of(error_id), None, None)
            except (StoreError, OutcomeLost) as error:
                # One error for the whole round comes from what it does next, if the store is gone.
                logger.warning("incidents: %s could not be handled: %s", error_id, error)
                counted["failed"] += 1
            except IncidentError:
                return  # another desk was faster
            else:
                counted["handled" if outcome is None or outcome.ok else "failed"] += 1

    async def due(self, *, limit: int = 1000) -> list[str]:
        """The ids of incidents that something is to be done about now: new ones, waiting ones whose time
        has come, and those a desk that died has left. In no order, so that two desks begin apart.
        """
        check_count("limit", limit, 1)
        numbers = await self._lanes.read(partial(acting.due, most=limit))
        return [f"err-{one:03d}" for one in sorted(numbers, key=lambda _: self._env.random())]

    async def remind(self) -> int:
        """Tell the next role of what nobody has acknowledged in time; how many."""
        return await self._lanes.write(partial(acting.remind, rules=self._rules))

    async def deliver(self, *, limit: int = 1000) -> int:
        """Give the messages that are due to their sinks; how many were taken. A sink never raises here."""
        check_count("limit", limit, 1)
        taken = await self._lanes.write(partial(outbox.take, rules=self._rules, most=limit))
        if not taken:
            return 0
        ended: list[outbox.Delivery] = []
        limiter = anyio.CapacityLimiter(outbox.AT_ONCE)
        unbegun = {message.id: message for message in taken}
        try:
            async with anyio.create_task_group() as group:
                for message in taken:
                    group.start_soon(self._one_message, message, limiter, unbegun, ended)
        finally:
            # Who is stopped in the middle writes down what was delivered, so that it is so once.
            settle = partial(
                outbox.settle,
                rules=self._rules,
                judge=self._judge,
                ended=ended,
                unbegun=list(unbegun.values()),
            )
            count = await self._surely(settle)
        return count

    async def _one_message(
        self,
        message: Message,
        limiter: anyio.CapacityLimiter,
        unbegun: dict[int, Message],
        ended: list[outbox.Delivery],
    ) -> None:
        sink = self._sinks.get(message.role, self._sinks[ELSE])
        async with limiter:
            del unbegun[message.id]
            try:
                await call(sink, message, self._rules.notifications.deadline_s)
            except Exception as error:  # noqa: BLE001 - it is written down, and is an incident of its own
                ended.append(outbox.Delivery(message, said(error)))
            else:
                ended.append(outbox.Delivery(message, None))

    # One recovery ---------------------------------------------------------------------------------

    async def _carried_out(
        self, number: int, strategy: RecoveryStrategy | None, by: str | None
    ) -> tuple[acting.Begun, acting.HookOutcome | None]:
        """Begin, run the hook where there is one to run, and write down how it ended.

        Cancelled at any point, it gives back what it has begun before it ends.
        """
        who = None if by is None else check_id("by", by)
        order = acting.Order(self._env.new_token(), self._hooks, strategy, who)
        begin = partial(acting.begin, rules=self._rules, order=order, number=number)
        begun = await self._surely(begin)
        if begun.recovery is None:
            return begun, None
        hook = self._hooks.of(begun.plan.strategy)
        assert hook is not None
        outcome = acting.STOPPED
        try:
            await anyio.lowlevel.checkpoint_if_cancelled()
            outcome = acting.CUT_OFF
            async with self._held(begun):
                outcome = await run_hook(hook, begun.recovery, self._hooks.deadline_s)
        finally:
            finish = partial(
                acting.finish, rules=self._rules, hooks=self._hooks, begun=begun, outcome=outcome
            )
            try:
                await self._surely(finish)
            except StoreError as error:
                did = f"{begun.incident.error_id}: {begun.plan.strategy}"
                raise OutcomeLost(f"{did} has run, how it ended is not kept: {error}") from error
        return begun, outcome

    async def _surely(self, work: Callable[[Db], T]) -> T:
        """Write it, and know the answer, although the caller is being cancelled."""
        found: list[T] = []
        with anyio.CancelScope(shield=True):
            found.append(await self._lanes.write(work))
        return found[0]

    @asynccontextmanager
    async def _held(self, begun: acting.Begun) -> AsyncGenerator[None]:
        """Keep the lease of a recovery; what is inside is stopped where another desk has taken it."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._renew, begun, group.cancel_scope)
            yield
            group.cancel_scope.cancel()

    async def _renew(self, begun: acting.Begun, scope: anyio.CancelScope) -> None:
        lease_s = self._hooks.lease_s
        renew = partial(acting.renew, begun=begun, lease_s=lease_s)
        while True:
            await anyio.sleep(lease_s / BEATS)
            try:
                kept = await self._lanes.write(renew)
            except StoreError as error:
                # Others may take it once the lease is over; that is found out when the store is back.
                logger.warning("incidents: a lease could not be renewed: %s", error)
                continue
            if not kept:
                scope.cancel()
