"""How what an agent is called for begins: a run of its own, or one in an attempt of another run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from typing import Any

from ._function import Function
from ._loop import begin, check_run_id, go_on, run_loop, stream_loop
from ._recorder import current
from ._session import Config, Session
from .events import Event


def start(
    config: Config, function: Function, task: Any, kwargs: dict[str, Any], run_id: str | None
) -> Coroutine[Any, Any, Any]:
    """`Agent.run`."""
    if kwargs or function.wanted:  # most runs are given nothing: a call less for each
        function.check(kwargs)
    if run_id is not None:
        check_run_id(run_id)
    outer = current.get()
    if outer is not None and not outer.over:
        from ._children import run_inside

        return run_inside(outer, config, function, task, kwargs, run_id)
    session = Session(config, task, kwargs, run_id, outer)
    if run_id is not None:
        return go_on(session, function, begin(session))
    return run_loop(session, function)


def stream(
    config: Config, function: Function, task: Any, kwargs: dict[str, Any]
) -> AsyncIterator[Any]:
    """`Agent.stream`."""
    function.check(kwargs)
    outer = current.get()
    if outer is not None and not outer.over:
        from ._children import stream_inside

        return stream_inside(outer, config, function, task, kwargs)
    session = Session(config, task, kwargs, None, outer)
    return (
        stream_loop(session, function)
        if function.kind == "generator"
        else _single(session, function)
    )


async def _single(session: Session, function: Function) -> AsyncIterator[Any]:
    yield await run_loop(session, function)


def events(
    config: Config, function: Function, task: Any, kwargs: dict[str, Any]
) -> AsyncIterator[Event]:
    """`Agent.events`."""
    from ._follow import follow

    def new_session(config: Config) -> Session:
        function.check(kwargs)
        return Session(config, task, kwargs, None, current.get())

    return follow(function, new_session, config)


def kept(config: Config, function: Function) -> Config:
    """The options of a run that is gone on with here: in an attempt, those of a run inside it."""
    outer = current.get()
    if outer is None:
        return config
    from ._children import kept_as_safely

    return kept_as_safely(config, function, outer)
