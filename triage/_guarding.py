"""Asking the guard before a call runs, and doing as it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ._plain import plain
from ._questions import Question, ask, shown
from .actions import Suspend
from .guards import CallDenied, Guard, GuardedCall
from .observers import logger
from .steps import Step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._recorder import Recorder
    from ._tool import Tool


class Guarded(NamedTuple):
    """A call that must not run before its guard was asked."""

    guard: Guard
    key: str
    call: GuardedCall


def guarded(run: Recorder, tool: Tool, key: str, bound: Mapping[str, Any]) -> Guarded | None:
    """The guard's question about a call; None where no guard has a say in it, or a person has given it."""
    checks = run.session.config.checks
    guard = None if checks is None else checks.guarding
    if guard is None or not guard.covers(tool.name, tool.effect):
        return None
    if key in run.session.state.approved:
        return None
    session = run.session
    arguments = plain(tool.shown(bound))  # a copy of its own, as a guard may change it
    call = GuardedCall(tool.name, arguments, tool.effect, session.run_id, run.number, session.task)
    return Guarded(guard, key, call)


async def rule(run: Recorder, asked: Guarded) -> None:
    """Ask a guard, sync or async: comes back where the call may run."""
    import inspect

    try:
        ruling: Any = asked.guard.decide(asked.call)
        if inspect.isawaitable(ruling):
            ruling = await ruling
    except Exception as error:  # noqa: BLE001 - a guard may raise anything: nothing runs then
        ruling = _unruled(run, asked, error)
    _obey(run, asked, ruling)


def rule_sync(run: Recorder, asked: Guarded) -> None:
    """`rule` where a sync tool stands. An async guard is awaited from its thread."""
    import anyio

    try:
        anyio.from_thread.check_cancelled()
    except RuntimeError:
        pass
    else:
        anyio.from_thread.run(rule, run, asked)
        return
    import inspect

    try:
        ruling: Any = asked.guard.decide(asked.call)
    except Exception as error:  # noqa: BLE001 - as in `rule`
        ruling = _unruled(run, asked, error)
    if inspect.iscoroutine(ruling):
        ruling.close()
        ruling = Suspend("its guard is async, and a sync tool in the event loop cannot wait for it")
    _obey(run, asked, ruling)


def _unruled(run: Recorder, asked: Guarded, error: Exception) -> Suspend:
    logger.error("run %s: the guard of %s failed", run.run_id, asked.call.tool, exc_info=error)
    return Suspend(f"its guard failed with {type(error).__name__}")


def _obey(run: Recorder, asked: Guarded, ruling: object) -> None:
    if ruling is None or ruling is True or ruling == "":
        return
    if isinstance(ruling, str) or ruling is False:
        _deny(run, asked.call, ruling or "no reason was given")
    if not isinstance(ruling, Suspend):
        ruling = Suspend(f"its guard answered {type(ruling).__name__}, which is no ruling")
    call = asked.call
    why = f": {ruling.question}" if ruling.question else ""
    text = f"may {call.tool} run with {shown(call.arguments)}?{why}"
    ask(run, Question(asked.key, call.tool, call.effect.value, call.arguments, text, doubt=False))


def _deny(run: Recorder, call: GuardedCall, reason: str) -> None:
    error = CallDenied(call.tool, reason)
    run.record_call_step(
        Step(
            action="call",
            tool_called=call.tool,
            tool_input=call.arguments,
            error=str(error),
            exception_type=type(error).__name__,
        )
    )
    raise error
