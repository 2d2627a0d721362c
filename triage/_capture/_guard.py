"""Code of others, run where it can neither block the event loop nor take for ever.

A property of an exception is somebody's function, and may sleep or wait for a network. What reading
runs such code happens in a thread of our own; who reads waits for it for a bounded time only.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

SECONDS = 0.5
"""How long a reader waits. What is not read by then is left out."""
_MOST = 8
"""Threads that may hang at once; with so many, nothing foreign is run until one comes back."""

R = TypeVar("R")
_Inbox = SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...], SimpleQueue[tuple[bool, Any]]]]


class TooSlowError(Exception):
    """The code did not come back in time, or too much of its like has not."""


class _Threads:
    """Threads that are kept for the next reading; each has an inbox, here while it is free."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As new: a forked child has none of its parent's threads."""
        self.free: list[_Inbox] = []
        self.count = 0

    def take(self) -> _Inbox | None:
        """The inbox of a free thread; None if there is none and none can be made."""
        try:
            return self.free.pop()
        except IndexError:
            return self._start() if self.count < _MOST else None

    def _start(self) -> _Inbox | None:
        inbox: _Inbox = SimpleQueue()
        thread = threading.Thread(
            target=_work, args=(inbox, self.free), name="triage-reader", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the machine has no more threads, or the interpreter is ending
            return None
        self.count += 1
        return inbox


def _work(inbox: _Inbox, free: list[_Inbox]) -> None:
    while True:
        function, args, reply = inbox.get()
        try:
            outcome = True, function(*args)
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits, whatever it is
            outcome = False, error
        free.append(inbox)
        reply.put(outcome)
        # Nothing of the last reading is kept alive while waiting for the next.
        del function, args, reply, outcome


_threads = _Threads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.reset)


def within(function: Callable[..., R], *args: Any) -> R:
    """What the function returns, or raises, if it comes back within `SECONDS`.

    Raises TooSlowError if it does not, or if `_MOST` earlier ones have not come back yet.
    """
    inbox = _threads.take()
    if inbox is None:
        raise TooSlowError
    reply: SimpleQueue[tuple[bool, Any]] = SimpleQueue()
    inbox.put((function, args, reply))
    try:
        done, value = reply.get(timeout=SECONDS)
    except Empty:
        raise TooSlowError from None
    if done:
        result: R = value
        return result
    raise value
