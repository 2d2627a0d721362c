"""Attempt after attempt until the run ends: the loop of `Agent.run` and `Agent.stream`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ._attempts import Failure, Next, count_in_parent, first_attempt, next_attempt
from ._call import Failed, Refused, end, invoke, passes, sort, stream_attempt
from ._env import in_event_loop
from ._function import Function
from ._plain import plain_noting
from ._recorder import current
from ._run import Run
from ._session import Session
from .actions import Action
from .diagnosis import Diagnosis
from .errors import StaleWriter, UsageError
from .events import EXACT, RunFinished
from .observers import logger
from .redact import redacting

if TYPE_CHECKING:
    from ._keeper import Keeper
    from ._redactor import Redactor
    from .stores.base import Store


@cache
def _recover() -> Callable[[Session, Run, Failure], Awaitable[Next]]:
    """The path of a failure, imported with the first one: most processes never see it."""
    from ._recover import recover

    return recover


class Restarted(NamedTuple):
    """Between the items of a stream: those of a new attempt follow. attempt: its number."""

    attempt: int
    diagnosis: Diagnosis
    action: Action


def run_loop(
    session: Session, function: Function, start: Next | None = None
) -> Coroutine[Any, Any, Any]:
    """Run to the end, to be awaited: the checked result, or the error that ends the run."""
    loop = _run_loop(session, function, start)
    return loop if session.config.redactor is None else _redacting(session.config.redactor, loop)


async def _redacting(redactor: Redactor, work: Coroutine[Any, Any, Any]) -> Any:
    with redacting(redactor):
        return await work


async def _run_loop(session: Session, function: Function, start: Next | None) -> Any:
    run = first_attempt(session) if start is None else next_attempt(session, start)
    outside = current.get()
    try:
        while True:
            try:
                # Set back to what it was rather than reset: no token is kept for as long as the run.
                current.set(run)
                try:
                    result = await invoke(function, run, session.kwargs)
                except BaseException as error:
                    await end(run)
                    sort(run, error)
                    raise
                finally:
                    # One that was thrown away may be ended in the midst of another run, whose it stays.
                    if current.get() is run:
                        current.set(outside)
                if run.alert or run.calls_open:
                    await end(run)
                run.over = run.alert = True
                if run.interrupt is not None:
                    raise Failed  # noqa: TRY301 - told apart with what the function raises
                if session.config.checks is not None or run.has_subgoals:
                    result = await _checked(session, run, result)
            except Exception as error:
                failure = await _failure(session, run, error)
                if failure is None:
                    raise
            else:
                return await finish(session, result)
            following = await _recover()(session, run, failure)
            # The error's traceback holds this frame: a frame that held the error too would be a cycle.
            del failure
            run = next_attempt(session, following)
    except Exception:
        raise
    except BaseException as error:
        await _cancelled(session, run, error)
        raise


def go_on(
    session: Session, function: Function, start: Awaitable[Next | None]
) -> Coroutine[Any, Any, Any]:
    """`run_loop` once `start` has done what comes first; a run that it leaves is given back too."""
    work = _go_on(session, function, start)
    return work if session.config.redactor is None else _redacting(session.config.redactor, work)


async def _go_on(session: Session, function: Function, start: Awaitable[Next | None]) -> Any:
    try:
        following = await start
    except Exception:
        raise
    except BaseException as error:
        await _cancelled(session, None, error)
        raise
    return await run_loop(session, function, following)


async def begin(session: Session) -> None:
    """Have the start of a run stored whose id the caller chose. Raises UsageError where it is taken."""
    try:
        await session.flush()
    except StaleWriter as error:
        raise UsageError(f"run_id {session.run_id} is taken; choose another") from error
    except Exception as error:
        if not session.does_without_store(error):
            raise


async def _checked(session: Session, run: Run, result: Any) -> Any:
    from ._checks import check

    return await check(session.config.checks, run, result)


def stream_loop(session: Session, function: Function) -> AsyncGenerator[Any]:
    """As `run_loop`, with the items as they come, and `Restarted` before those of a new attempt."""
    loop = _stream_loop(session, function)
    if session.config.redactor is None:
        return loop
    return _stream_redacting(session.config.redactor, loop)


async def _stream_redacting(redactor: Redactor, items: AsyncGenerator[Any]) -> AsyncGenerator[Any]:
    """The items; nothing of it is in force for whoever takes them."""
    try:
        while True:
            with redacting(redactor):
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
            yield item
    finally:
        with redacting(redactor):
            await items.aclose()


async def _stream_loop(session: Session, function: Function) -> AsyncGenerator[Any]:
    run = first_attempt(session)
    checks = session.config.checks
    try:
        while True:
            items: list[Any] = []
            try:
                async with aclosing(stream_attempt(function, run, session.kwargs)) as stream:
                    async for item in stream:
                        if checks is not None or session.comes_back:
                            items.append(item)
                        yield item
                if checks is not None or run.has_subgoals:
                    await _checked(session, run, items)
            except Exception as error:
                failure = await _failure(session, run, error)
                if failure is None:
                    raise
            else:
                await finish(session, items if session.comes_back else None)
                return
            following = await _recover()(session, run, failure)
            run = next_attempt(session, following)
            yield _restarted(run)
    except Exception:
        raise
    except BaseException as error:
        await _cancelled(session, run, error, streams=True)
        raise


def _restarted(run: Run) -> Restarted:
    guidance = run.told
    assert guidance.diagnosis is not None
    assert guidance.action is not None
    return Restarted(run.number, guidance.diagnosis, guidance.action)


async def _failure(session: Session, run: Run, error: Exception) -> Failure | None:
    """The failure an exception stands for; None, with the run ended, where it is none of ours."""
    if await run.cancelled_outside():
        # Its clean-up failed: nobody waits for another attempt.
        await _cancelled(session, run, error)
        return None
    if isinstance(error, Failed):
        cause = error.__cause__
        return Failure(cause if isinstance(cause, Exception) else None, run.interrupt)
    if isinstance(error, Refused):
        return Failure(error.__cause__, error.diagnosis)
    if session.failed_with(error):
        return None
    if session.inner is not None and session.inner.asked is not None:
        from ._questions import asked_inside

        waits = asked_inside(session, error)
        if waits is not None:
            return Failure(error, waits)
    if passes(error):
        await _leave(session, error, "error")
        return None
    return Failure(error)


async def finish(session: Session, result: Any) -> Any:
    """End a run well: journal the result, store it, give it back."""
    data, exact = (result, True) if type(result) is str else plain_noting(result)
    if session.inner is not None:
        await _end_inner(session)
    ending: tuple[Any, ...] = ("done", data, exact)
    if session.config.durable and not exact:
        ending = (*ending, None, session.config.returns.says_all(result, data))
    session.add(RunFinished, *ending)
    if session.parent is not None:
        count_in_parent(session)
    try:
        await session.flush()
    except Exception as error:
        if session.does_without_store(error):
            return result
        # The result must not be lost with the store: whoever catches the error finds it there.
        error.result = result  # type: ignore[attr-defined] # any exception of any store carries it
        error.add_note("the agent had finished: its result is the attribute `result` of this error")
        raise
    return result


async def _leave(session: Session, error: BaseException, status: str) -> None:
    from ._capture import capture

    if session.inner is not None:
        await _end_inner(session)
    session.add(RunFinished, status, None, EXACT, capture(error))
    await session.flush_beside(error)


async def _end_inner(session: Session) -> None:
    from ._answers import end_inner

    await end_inner(session)


async def _cancelled(
    session: Session, run: Run | None, error: BaseException, *, streams: bool = False
) -> None:
    """Journal a cancellation from outside; the caller raises it on.

    streams: the caller is an async generator, which may await something while it is closed.
    """
    import anyio

    if run is not None:
        run.close()
    if (isinstance(error, GeneratorExit) and not streams) or not in_event_loop():
        # Whoever held the coroutine has let it go: here nothing can be awaited. The lease ends by itself.
        if session.keeper is not None:
            session.keeper.pump()
            session.keeper.over = True
        return
    if session.keeper is not None and session.config.durable:
        await unbroken(_hand_back(session, session.keeper, error))
        return
    with anyio.CancelScope(shield=True):
        if session.comes_back:
            await session.flush_beside(error)
        else:
            await _leave(session, error, "cancelled")


async def unbroken(work: Coroutine[Any, Any, None]) -> BaseException | None:
    """Wait until it is done, whatever happens; a cancellation that came meanwhile, for the caller to raise.

    No scope keeps a `task.cancel()` of asyncio off: there the wait is begun again.
    """
    import asyncio

    import anyio

    cancelled: BaseException | None = None
    with anyio.CancelScope(shield=True):
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            await work
            return None
        task = asyncio.ensure_future(work)
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as error:
                cancelled = error
        task.result()
    return cancelled


async def _hand_back(session: Session, keeper: Keeper, error: BaseException) -> None:
    """A process that goes away, and a caller that does not wait any more, lose no durable run: it is
    given back to the store, where `recover` finds it.
    """
    keeper.over = True
    await session.flush_beside(error)
    keeper.over = True  # whatever was stored last
    await let_go(keeper.store, session.run_id, keeper.epoch)


async def let_go(store: Store, run_id: str, epoch: int) -> None:
    """Give a run back to its store. No error of that is raised: its lease ends by itself."""
    try:
        await store.release(run_id, epoch=epoch)
    except Exception as error:  # noqa: BLE001 - as said
        logger.warning("run %s: not released: %s", run_id, error)


MAX_RUN_ID = 128
_PUNCTUATION = str.maketrans("", "", "._:-")


def check_run_id(run_id: object) -> str:
    """A run id given by a caller. Raises UsageError for one that is no id."""
    if not isinstance(run_id, str):
        raise UsageError(f"run_id must be text or None, not {type(run_id).__name__}")
    letters = run_id.translate(_PUNCTUATION)
    if not (letters.isascii() and letters.isalnum() and len(run_id) <= MAX_RUN_ID):
        raise UsageError(
            f"run_id {run_id[:40]!r} must be 1 to 128 of the characters A-Z a-z 0-9 . _ : -"
        )
    return run_id
