"""Compensators: run them, journalled before and after, and rebuild them in another process."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from triage.core.asking import ask
from triage.core.capture import capture
from triage.core.errors import ResultLost
from triage.core.events import CompensatorRan
from triage.core.json_values import digest
from triage.core.observers import logger
from triage.core.quoting import quote
from triage.core.secret_shapes import HIDDEN
from triage.core.state import Call, Compensation, Ledger, RunState, is_call
from triage.core.taxonomy import UNSAFE

from .journal import Session
from .tools import (
    CurrentCall,
    Undoing,
    calling,
    declared,
    declared_tools,
    module_of,
    name_of,
    named_by,
    pause_before,
    restored,
)

LEAST_SECONDS = 10.0
"""Minimum time for a compensator, even after the run's deadline."""


class NotAtHand(LookupError):
    """This process does not have the compensator, or a parallel call is running it."""


async def undo(session: Session, attempt: int, entry: Compensation) -> Exception | None:
    """Run the compensator of `entry`; return its last error, `NotAtHand` without one, None on success."""
    # Removed while it runs: a parallel call must not undo the same effect.
    known = session.undo
    compensator = None if known is None else known.pop(entry.seq, None)
    if known is None or compensator is None:
        return NotAtHand(f"the compensator {entry.name} is running, or is not at hand here")
    try:
        return await _run_with_retries(session, attempt, entry, compensator)
    finally:
        known[entry.seq] = compensator  # the journal decides whether it may run again


async def _run_with_retries(
    session: Session, attempt: int, entry: Compensation, compensator: Callable[[], Any]
) -> Exception | None:
    facts = {
        "attempt": attempt,
        "registered": entry.seq,
        "name": entry.name,
        "key": entry.key,
    }
    env = session.config.env
    key = digest(session.run_id, f"undo:{entry.key}:{entry.seq}")
    for retry in itertools.count(1):
        session.add(CompensatorRan, **facts, begins=True)
        try:
            await session.barrier()
        except Exception as error:
            return error
        try:
            await _run(session, compensator, CurrentCall(entry.name, key, session.run_id))
        except Exception as error:
            info = capture(error, session.handled)
            session.add(CompensatorRan, **facts, error=info)
            tries = compensator.tries if isinstance(compensator, Undoing) else None
            pause = pause_before(
                tries, retry, error, info, draw=env.random(), left=session.seconds_left()
            )
            if pause is None:
                logger.exception("compensator %s failed", entry.name)
                return error
        else:
            session.add(CompensatorRan, **facts)
            return None
        session.waits.say(
            f"undo {entry.name} {info.type_name}",
            session.named,
            pause,
            f"the compensator {entry.name} failed with {info.type_name} {quote(info.message)} "
            "and is run again",
            f"at most {0 if tries is None else tries.retries} times",
            "Compensator(…, retries=…)",
        )
        await env.sleep(pause)
    return None  # pragma: no cover - the count has no end


async def _run(session: Session, compensator: Callable[[], Any], call: CurrentCall) -> None:
    left = session.seconds_left()
    seconds = math.inf if left is None else max(left, LEAST_SECONDS)
    token = calling.set(call)
    try:
        undoes = compensator.bound if isinstance(compensator, Undoing) else compensator
        await ask(undoes, seconds=seconds, long=True)
    finally:
        calling.reset(token)


async def undo_all(session: Session, attempt: int) -> None:
    """Run all compensators of the run, newest first; `not_undone` reports the failed ones."""
    for entry in reversed(session.state.compensations):
        if not entry.ran:
            await undo(session, attempt, entry)


def behind(state: RunState, position: int | None) -> list[Compensation]:
    """Return the compensators, newest first, of effects behind a position; None: of all effects."""
    ledger = None if position is None else state.ledger_at(position)
    kept = calls_kept(ledger, position)
    found: list[Compensation] = []
    for entry in reversed(state.compensations):
        call = state.calls.get(entry.key)
        at = entry.at if call is None or call.done_at is None else call.done_at
        if not entry.ran and entry.key not in kept and (position is None or at > position):
            found.append(entry)
    return found


def calls_kept(ledger: Ledger | None, position: int | None) -> frozenset[str]:
    """Return the keys of the recorded calls among the steps up to a position."""
    if ledger is None or position is None:
        return frozenset()
    steps = ledger.cut(position).steps
    return frozenset(step.metadata["call"] for step in steps if step.metadata and is_call(step))


def undone_before(state: RunState, position: int) -> str | None:
    """Return the name of an effect up to a checkpoint that has been undone since; None without one."""
    ledger = state.ledger_at(position)
    if ledger is None:
        return None
    kept = ledger.cut(position)
    for step, at in zip(kept.steps, kept.positions, strict=True):
        if step.effect not in UNSAFE:
            continue
        key = step.metadata["call"] if step.metadata and is_call(step) else f"step@{at}"
        # A call that was repeated after it was undone has a later compensator.
        entries = [entry for entry in state.compensations if entry.key == key and entry.at <= at]
        if entries and entries[-1].ran:
            return step.tool_called or step.action or "a step"
    return None


def available(session: Session, key: str) -> list[Compensation]:
    """Return the compensators by which this process can undo a call or a step, newest first.

    An interrupted compensator is among them: it runs again, with the same idempotency key.
    """
    known = session.undo or {}
    entries = reversed(session.state.compensations)
    return [entry for entry in entries if entry.key == key and not entry.ran and entry.seq in known]


# Compensators of another process, rebuilt from the journal and the declared functions.


def restore_compensators(session: Session) -> None:
    """Rebuild the compensators of the previous process as far as possible.

    They are found by module and name among the functions that this process has declared, as a store must
    not make it import anything. The journal has their arguments. Any other compensator is registered when
    the agent makes its call again.
    """
    waiting = [
        entry for entry in session.state.compensations if not entry.ran and entry.module is not None
    ]
    if not waiting:
        return
    known = session.undo = {} if session.undo is None else session.undo
    for entry in waiting:
        call = session.state.calls.get(entry.key)
        made = _of_step(entry) if call is None else _of_call(session, entry, call)
        if made is not None:
            known.setdefault(entry.seq, made)


def _of_call(session: Session, entry: Compensation, call: Call) -> Undoing | None:
    tools = (tool for tool in declared_tools() if tool.name == call.tool)
    tool = next((tool for tool in tools if _is_registered(tool.compensate, entry)), None)
    if tool is None or tool.compensate is None or _is_hidden(call.arguments):
        return None
    wanted = named_by(tool.compensate, tool.signature.parameters, after=1)
    arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
    if not wanted.keys() <= arguments.keys():  # the journal lacks ignored ones and the instance
        return None
    try:
        result = restored(tool, call, session.live)
        kwargs = {name: tool.argument(name, arguments[name]) for name in wanted}
    except (ResultLost, ValueError, TypeError):
        return None
    return Undoing(tool.compensate, (result,), kwargs)


def _of_step(entry: Compensation) -> Undoing | None:
    """Rebuild a hand-written step's compensator, if it is declared as a `Compensator` or a tool."""
    if entry.args is None or _is_hidden(entry.args):
        return None
    found = next((item for item in declared() if _is_registered(item, entry)), None)
    return None if found is None else Undoing(found, tuple(entry.args), {})


def _is_registered(function: Any, entry: Compensation) -> bool:
    return name_of(function) == entry.name and module_of(function) == entry.module


def _is_hidden(data: Any) -> bool:
    return HIDDEN in json.dumps(data)
