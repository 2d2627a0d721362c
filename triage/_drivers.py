"""Running a recorded call: in the event loop, in a thread, or where a sync tool stands."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any

from ._recorded import Begun, Reused, Undo, begin, fail, finish
from ._recorder import Recorder
from ._tool import Tool, calling, tool_of
from ._undo import undo

current: ContextVar[Recorder | None] = ContextVar("triage_run", default=None)
"""The attempt the running code belongs to."""


async def call_async(tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call an async tool: recorded inside a run, plain outside of any."""
    run = current.get()
    if run is None:
        return await tool.function(*args, **kwargs)
    return await _drive(run, tool, args, kwargs)


async def call_any(
    run: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`run.call`: any function, sync ones in a thread."""
    tool, owner = tool_of(function)
    return await _drive(run, tool, owner + args, kwargs)


async def _drive(
    run: Recorder, tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    begun = begin(run, tool, args, kwargs)
    while isinstance(begun, Undo):
        for entry in begun.entries:
            error = await undo(run.session, run.number, entry)
            if error is not None:
                raise error
        begun = begin(run, tool, args, kwargs)
    if isinstance(begun, Reused):
        return begun.result
    with _running(run, begun):
        result = await _body(tool, args, kwargs)
    return finish(run, begun, result)


@contextmanager
def _running(run: Recorder, begun: Begun) -> Generator[None, None, None]:
    """Around a call's body: `current_call()` inside, and what it raises is written down."""
    token = calling.set(begun.call)
    try:
        yield
    except BaseException as error:
        fail(run, begun, error)
        raise
    finally:
        calling.reset(token)


async def _body(tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if tool.timeout is not None:
        import anyio

        with anyio.fail_after(tool.timeout):
            return await _unlimited(tool, args, kwargs)
    return await _unlimited(tool, args, kwargs)


async def _unlimited(tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if tool.is_async:
        return await tool.function(*args, **kwargs)
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
    begun = begin(run, tool, args, kwargs)
    if isinstance(begun, Undo):
        # A sync tool cannot await: it is asked about, like one without a compensator.
        begun = begin(run, tool, args, kwargs, may_undo=False)
    if isinstance(begun, Reused):
        return begun.result
    assert isinstance(begun, Begun)
    with _running(run, begun):
        result = _body_sync(tool, args, kwargs)
    return finish(run, begun, result)


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
