"""Ask the guard before a call runs, and obey its ruling."""

from __future__ import annotations

import inspect
import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from functools import partial
from typing import Any

import anyio

from triage.core.actions import Suspend
from triage.core.asking import TooSlow, ask_here, deadline_of
from triage.core.asking import ask as ask_user
from triage.core.constructors import Struct
from triage.core.json_values import plain
from triage.core.observers import logger
from triage.core.steps import Step
from triage.core.taxonomy import Effect
from triage.core.waiting import after_a_while

from .options import CallDenied, Guard, GuardedCall
from .questions import APPROVAL, ask, to_be_approved
from .run import Recorder
from .tools import Tool, shown


class Guarded(Struct, frozen=True):
    """A call that waits for its guard's ruling."""

    guard: Guard
    key: str
    call: GuardedCall
    tool: Tool


def guarded(run: Recorder, tool: Tool, key: str, bound: Mapping[str, Any]) -> Guarded | None:
    """Return the call as its guard sees it; None if no guard covers it, or a person has approved it."""
    checks = run.session.config.checks
    guard = None if checks is None else checks.guarding
    # Only a declared effect lets a call pass a guard: a name may lie.
    effect = Effect.UNKNOWN if tool.inferred else tool.effect
    if guard is None or not guard.covers(tool.name, effect):
        return None
    if key in run.session.state.approved:
        return None
    session = run.session
    arguments = plain(tool.shown(bound))  # a copy, as a guard may change it
    call = GuardedCall(tool.name, arguments, effect, session.run_id, run.number, session.task)
    return Guarded(guard, key, call, tool)


async def rule(run: Recorder, asked: Guarded) -> None:
    """Ask a guard, sync or async; return if the call may run."""
    decide = asked.guard.decide
    ruling: Any
    try:
        seconds = deadline_of(decide)
        turn = nullcontext() if inspect.iscoroutinefunction(decide) else run.session.guard_turn
        async with turn:
            left = run.session.attempt_seconds_left()
            with _logged_wait(run, asked):
                ruling = await ask_user(
                    decide, asked.call, seconds=seconds, seconds_left=left, long=True
                )
    except Exception as error:
        ruling = _failed(run, asked, error)
    _obey(run, asked, ruling)


@contextmanager
def _logged_wait(run: Recorder, asked: Guarded) -> Generator[None]:
    """Log once that a call waits for its guard, after 2 s."""
    left = run.session.attempt_seconds_left()
    most = min(deadline_of(asked.guard.decide), math.inf if left is None else left)
    say = partial(
        run.session.waits.say,
        f"guard {asked.call.tool}",
        run.session.named,
        None,
        f"the guard of {asked.call.tool} has not answered whether the call may run",
        f"at most {most:.3g} s, to its deadline or the run's",
        "the attribute deadline of the guard, Limits(seconds=… or attempt_seconds=…), or a guard that "
        "returns a Suspend",
    )
    timer = after_a_while(partial(copy_context().run, say))
    try:
        yield
    finally:
        timer.cancel()


def rule_sync(run: Recorder, asked: Guarded) -> None:
    """Do as `rule` for a sync tool; in a thread, an async guard is awaited in its event loop."""
    try:
        anyio.from_thread.check_cancelled()
    except RuntimeError:
        pass
    else:
        anyio.from_thread.run(rule, run, asked)
        return
    decide = asked.guard.decide
    ruling: Any
    try:
        with _logged_wait(run, asked):
            ruling = ask_here(decide, asked.call, seconds=deadline_of(decide))
    except Exception as error:
        ruling = _failed(run, asked, error)
    if inspect.iscoroutine(ruling):
        ruling.close()
        ruling = Suspend("its guard is async, and a sync tool in the event loop cannot wait for it")
    _obey(run, asked, ruling)


def _failed(run: Recorder, asked: Guarded, error: Exception) -> Suspend:
    logger.error("run %s: the guard of %s failed", run.run_id, asked.call.tool, exc_info=error)
    why = str(error) if isinstance(error, TooSlow) else f"failed with {type(error).__name__}"
    return Suspend(f"its guard {why}")


def _obey(run: Recorder, asked: Guarded, ruling: object) -> None:
    if ruling is None or ruling is True or ruling == "":
        return
    if isinstance(ruling, str) or ruling is False:
        call = asked.call
        denied = CallDenied(call.tool, ruling or "no reason was given")
        run.record_call_step(
            Step(
                action="call",
                tool_called=call.tool,
                tool_input=call.arguments,
                error=str(denied),
                exception_type=type(denied).__name__,
            )
        )
        raise denied
    if not isinstance(ruling, Suspend):
        ruling = Suspend(f"its guard answered {type(ruling).__name__}, which is no ruling")
    call = asked.call
    why = f": {ruling.question}" if ruling.question else ""
    text = f"may {call.tool} run with {shown(call.arguments)}?{why}"
    ask(
        run,
        to_be_approved(asked.key, asked.tool, call.arguments, text, APPROVAL, effect=call.effect),
    )
