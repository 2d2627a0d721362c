"""Running a recorded call: in the event loop, in a thread, or where a sync tool stands."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Awaitable, Mapping
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from ._env import in_event_loop
from ._guarding import Guarded, rule, rule_sync
from ._recorded import Begun, Reused, Undo, begin, fail, finish, pause
from ._recorder import Recorder, current
from ._tool import AGENT_ATTRIBUTE, Tool, tool_of
from ._undo import undo
from .taxonomy import UNSAFE

if TYPE_CHECKING:
    from ._env import Environment


# What is not async itself gives the coroutine to await: each one between a framework and what it calls
# makes all below it dearer.


def call_async(tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Awaitable[Any]:
    """Call an async tool: recorded inside a run, plain outside of any."""
    run = current.get()
    if run is None:
        return tool.function(*args, **kwargs)  # type: ignore[no-any-return] # an async function's
    return _drive(run, tool, args, kwargs)


def call_any(
    run: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Awaitable[Any]:
    """`run.call`: any function, sync ones in a thread."""
    if _is_run(function):
        return _run_inside(run, function, args, kwargs)
    tool, owner = tool_of(function)
    return _drive(run, tool, owner + args if owner else args, kwargs)


def _is_run(function: Any) -> bool:
    """Whether to call this is to run an agent: it is one, or its `run`."""
    bound_to = getattr(function, "__self__", None)
    if bound_to is None:
        return getattr(function, AGENT_ATTRIBUTE, False) is True
    return getattr(bound_to, AGENT_ATTRIBUTE, False) is True and function.__name__ == "run"


async def _run_inside(
    run: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    run.check_open()
    inside = current.set(run)  # a task from outside of the attempt may call through its handle
    try:
        return await function(*args, **kwargs)  # a run writes itself down
    finally:
        current.reset(inside)


async def _drive(
    run: Recorder, tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    begun = begin(run, tool, args, kwargs)
    cleared = False
    while not isinstance(begun, Begun):
        if isinstance(begun, Reused):
            return begun.result
        if isinstance(begun, Guarded):
            await rule(run, begun)
            cleared = True
        else:
            await _undone(run, begun)
        begun = begin(run, tool, args, kwargs, cleared=cleared)
    durable = run.session.durable
    begun.enter(run)
    try:  # not `Running`, which takes twice as long
        if durable and tool.effect in UNSAFE:
            await run.session.barrier()
        if tool.tries is None:
            begun.idle = False
            result = await _body(tool, args, kwargs)
        else:
            result = await _tried(run, begun, args, kwargs)
    except BaseException as error:
        fail(run, begun, error)
        raise
    finally:
        begun.leave()
    finish(run, begun, result)
    if durable and not run.over:
        await run.session.barrier()
    return result


async def _undone(run: Recorder, undoing: Undo) -> None:
    """Undo what a call replaces. A compensator that is a tool itself is no call of the attempt."""
    token = current.set(None)
    try:
        for entry in undoing.entries:
            error = await undo(run.session, run.number, entry)
            if error is not None:
                raise error
    finally:
        current.reset(token)


async def _tried(
    run: Recorder, begun: Begun, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """The body, called again where its tool says how often and the error allows it."""
    while True:
        begun.idle = False
        try:
            return await _body(begun.tool, args, kwargs)
        except Exception as error:
            seconds = pause(run, begun, error)
            if seconds is None:
                raise
            failed = error
        try:
            await run.session.config.env.sleep(seconds)
            if run.over or run.interrupt is not None:
                raise failed
        finally:
            del failed  # its traceback holds this frame


class Running:
    """Around a call's body: `current_call()` inside, and what it raises is written down."""

    __slots__ = ("_begun", "_run")

    def __init__(self, run: Recorder, begun: Begun) -> None:
        self._run = run
        self._begun = begun

    def __enter__(self) -> None:
        self._begun.enter(self._run)

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        try:
            if error is not None:
                fail(self._run, self._begun, error)
        finally:
            self._begun.leave()


def _body(tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Awaitable[Any]:
    if tool.timeout is not None:
        return _in_time(tool, args, kwargs, tool.timeout)
    if tool.is_async:
        return tool.function(*args, **kwargs)  # type: ignore[no-any-return] # an async function's
    return _in_thread(tool, args, kwargs)


async def _in_time(
    tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any], seconds: float
) -> Any:
    import anyio

    with anyio.fail_after(seconds):
        if tool.is_async:
            return await tool.function(*args, **kwargs)
        return await _in_thread(tool, args, kwargs)


async def _in_thread(tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    import anyio

    body = functools.partial(tool.function, *args, **kwargs)
    # With a timeout the thread is left behind when it passes: nothing can stop it.
    result = await anyio.to_thread.run_sync(body, abandon_on_cancel=tool.timeout is not None)
    return await result if inspect.isawaitable(result) else result


def call_sync(tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a sync tool where it stands: recorded inside a run, plain outside of any."""
    run = current.get()
    if run is None:
        return tool.function(*args, **kwargs)
    # A sync tool cannot await a compensator: it is asked about, like one that has none.
    begun = begin(run, tool, args, kwargs, may_undo=False)
    if isinstance(begun, Guarded):
        rule_sync(run, begun)
        begun = begin(run, tool, args, kwargs, may_undo=False, cleared=True)
    if isinstance(begun, Reused):
        return begun.result
    assert isinstance(begun, Begun)
    session = run.session
    unsafe = tool.effect in UNSAFE
    with Running(run, begun):
        if session.durable and unsafe:
            session.barrier_sync()
        result = _tried_sync(run, begun, args, kwargs)
    finish(run, begun, result)
    # In the event loop's own thread only what must not happen twice is worth holding everybody up.
    if session.durable and not run.over and (unsafe or not in_event_loop()):
        session.barrier_sync()
    return result


def _tried_sync(
    run: Recorder, begun: Begun, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    while True:
        begun.idle = False
        try:
            return _body_sync(begun.tool, args, kwargs)
        except Exception as error:
            # Nobody may sleep in the event loop's own thread.
            seconds = None if in_event_loop() else pause(run, begun, error)
            if seconds is None:
                raise
            failed = error
        try:
            _sleep(run.session.config.env, seconds)
            if run.over or run.interrupt is not None:
                raise failed
        finally:
            del failed


def _sleep(env: Environment, seconds: float) -> None:
    """Wait in a thread: as its event loop waits where it has one, else in one of its own."""
    import anyio

    try:
        anyio.from_thread.check_cancelled()
    except RuntimeError:
        anyio.run(env.sleep, seconds)
    else:
        anyio.from_thread.run(env.sleep, seconds)


def _body_sync(tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if tool.timeout is None:
        return tool.function(*args, **kwargs)
    from concurrent.futures import Future

    done: Future[Any] = Future()

    def body() -> None:
        try:
            done.set_result(tool.function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - handed to the waiting caller, whatever it is
            done.set_exception(error)

    # A thread of its own: nothing can stop a function that hangs, so it must not hold a pool's place.
    threading.Thread(target=copy_context().run, args=(body,), daemon=True).start()
    try:
        return done.result(tool.timeout)
    except TimeoutError:
        if done.done():
            raise  # the tool's own
        raise TimeoutError(f"{tool.name} took longer than {tool.timeout} s") from None
