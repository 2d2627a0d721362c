"""Tell people why a program waits: in the log once for each kind of wait, in a terminal each time."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Timer

from .observers import logger
from .quoting import one_line

LONG_WAIT_S = 2.0
"""Seconds that a program may wait without a message."""
_LONGEST_LINE = 400


class Waits:
    """The messages about waits of one run, gate or store. Safe to use from any thread."""

    __slots__ = ("_said",)

    def __init__(self) -> None:
        self._said: frozenset[str] = frozenset()

    def say(
        self, kind: str, who: str, seconds: float | None, why: str, most: str, remedy: str
    ) -> None:
        """Log a wait above 2 s, unless one of this kind was logged, and show it in a terminal.

        seconds: the length of the wait, which begins now; None for a wait that has lasted 2 s and has no
        known end. why: the reason, with texts from outside quoted. most: a sentence on the maximum.
        remedy: how to change that.
        """
        if seconds is not None and seconds <= LONG_WAIT_S:
            return
        lasts = "has waited 2 s and waits on" if seconds is None else f"waits {seconds:.3g} s"
        text = f"{who} {lasts}: {why}; {most}. To change this: {remedy}"
        new = kind not in self._said
        self._said |= {kind}
        if new:
            logger.warning("%s", text)
        # Without a handler, logging itself prints a new record on standard error.
        if logger.isEnabledFor(logging.WARNING) and not (new and not logger.hasHandlers()):
            with suppress(Exception):  # the terminal may be gone, or unable to encode the text
                _show(one_line(text, _LONGEST_LINE))


def _show(line: str) -> None:
    """Print a line if standard error is a terminal."""
    stream = sys.stderr
    if stream is None or not stream.isatty():
        return
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        print(line, file=stream, flush=True)
    else:
        Console(file=stream).print(Text(line, style="dim"), soft_wrap=True)


def after_a_while(say: Callable[[], None]) -> Timer:
    """Start a timer that calls `say` in a thread after 2 s; cancel it when the wait ends."""
    timer = Timer(LONG_WAIT_S, say)
    timer.daemon = True
    timer.start()
    return timer
