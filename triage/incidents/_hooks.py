"""Functions of the user's, sync or async, under a deadline: how they end is an outcome, never an error."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from triage.errors import TriageSuspendedError, UsageError
from triage.observers import logger
from triage.redact import redact
from triage.stores._owners import OPEN

from ._acting import HookOutcome
from ._model import Recovery
from ._settings import Hook
from ._texts import check_id

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from triage._agent import Agent


async def call(function: Callable[..., Any], argument: Any, deadline_s: float) -> Any:
    """What a function gives, in a thread where it is sync. Raises TimeoutError at the deadline.

    A thread that does not come back is left behind.
    """
    with anyio.fail_after(deadline_s):
        if _is_async(function):
            return await function(argument)
        # A limiter of its own: what hangs must not take a place from others.
        found = await anyio.to_thread.run_sync(
            partial(function, argument), abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
        )
        return await found if inspect.isawaitable(found) else found


def _is_async(function: Any) -> bool:
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - asked about, not called
    )


async def run_hook(hook: Hook, recovery: Recovery, deadline_s: float) -> HookOutcome:
    """Carry a strategy out; whatever the hook does, there is an outcome."""
    began = anyio.current_time()
    try:
        answer = await call(hook, recovery, deadline_s)
    except TimeoutError as error:
        if anyio.current_time() - began >= deadline_s:
            return HookOutcome(ok=False, error=f"the hook hung for {deadline_s:g} s", doubt=True)
        return HookOutcome(ok=False, error=said(error))
    except Exception as error:  # noqa: BLE001 - whatever it raises is the attempt's outcome
        # It says itself that it was asked for what it cannot do; to ask again is of no use.
        final = isinstance(error, UsageError)
        if not final:
            logger.warning(
                "incident %s: the hook failed", recovery.incident.error_id, exc_info=True
            )
        return HookOutcome(ok=False, error=said(error), final=final)
    if answer is None or answer is True:
        return HookOutcome(ok=True)
    if answer is False:
        return HookOutcome(ok=False, error="the hook said it could not")
    try:
        return HookOutcome(ok=True, new_agent_id=check_id("the hook's answer", answer))
    except UsageError as error:
        # It has come to its end, so something was started; under which name is not known.
        return HookOutcome(ok=False, error=said(error), doubt=True)


def said(error: BaseException) -> str:
    """An error in a line, without secrets."""
    text = " ".join(str(error).split())[:300]
    return redact(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def recovers(*agents: Agent[Any], group: TaskGroup | None = None) -> Hook:
    """A hook that takes a recorded run over with `agent.recover`, and goes on with it.

    agents: those whose runs the store holds, told apart by their names. group: a task group the run goes
    on in, after the hook has returned; without one the hook returns when the run has ended, so its
    deadline must be longer than a run. A run that has found an owner meanwhile is left to that one. A
    dead letter is taken over by force. A run that waits for an answer again counts as recovered. What is
    of no use to try again (a run of another agent, one that has ended) raises UsageError, and a person
    is asked at once.

    Raises UsageError for what is no agent, and for two of one name.
    """
    from triage._agent import Agent as Kind

    for one in agents:
        if not isinstance(one, Kind):
            raise UsageError(f"recovers() takes agents, not {type(one).__name__}")
    known = {one.name: one for one in agents}
    if not agents or len(known) < len(agents):
        raise UsageError("recovers() takes one or more agents, each with a name of its own")

    async def recover_run(recovery: Recovery) -> bool | None:
        incident = recovery.incident
        chosen = known.get(incident.agent_type)
        if incident.run_id is None or chosen is None:
            names = ", ".join(known)
            raise UsageError(
                f"{incident.error_id} is of no run of {names}, but of {incident.agent_type or 'no agent'}"
            )
        if await _is_seen_to(chosen, incident.run_id):
            return None
        force = incident.cause == "dead_letter"
        going_on = partial(_going_on, chosen, incident.run_id, force=force)
        if group is None:
            await going_on(quiet=False)
        else:
            group.start_soon(partial(going_on, quiet=True))
        return None

    return recover_run


async def _is_seen_to(agent: Agent[Any], run_id: str) -> bool:
    """Whether a run is done, or has an owner that lives. Raises UsageError for one that has failed."""
    store = agent.store
    info = await store.info(run_id)
    if info is None:
        raise UsageError(f"the store of {agent.name} knows no run {run_id}")
    if info.status not in (*OPEN, "done"):
        raise UsageError(f"run {run_id} has ended as {info.status}; start a new one in its place")
    alive = info.lease_until is not None and info.lease_until > await store.now()
    return info.status == "done" or alive


async def _going_on(agent: Agent[Any], run_id: str, *, force: bool, quiet: bool) -> None:
    try:
        await agent.recover(run_id, force=force)
    except TriageSuspendedError:
        return
    except Exception:
        if not quiet:
            raise
        logger.warning("run %s was taken over and has failed", run_id, exc_info=True)
