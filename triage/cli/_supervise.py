"""`triage supervise`: a desk as a process."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from triage import TriageError, UsageError
from triage.incidents import IncidentDesk, Supervisor
from triage.incidents._texts import iso
from triage.observers import logger

from ._incidents_desk import Options, carry_out, desk_of, here
from ._run import _note, _write
from ._runs import FAILED, json_given, now, shown, span
from ._show import clean

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

_ENDS = (signal.SIGTERM, signal.SIGINT)
_ASKED = getattr(signal, "SIGUSR1", None)
_MARGIN_S = 10.0
_WORKER = "AnyIO worker"
"""How the threads are called that hooks run in; the interpreter would wait for them at its end."""


def run(options: argparse.Namespace) -> int:
    """Supervise until told to stop; the exit code. Raises UsageError for what cannot be begun."""
    if options.status is not None:
        return _status(options.status)
    with _logged(quiet=options.quiet):
        with contextlib.redirect_stdout(sys.stderr):
            desk = desk_of(options, owner=here())
            supervisor = Supervisor(
                desk, interval_s=options.interval, at_once=options.at_once, grace_s=options.grace
            )
            process = _Process(supervisor, options)
        if options.once:
            code = carry_out(desk, partial(_round, at_once=options.at_once), _told)
        else:
            with contextlib.redirect_stdout(sys.stderr):
                code = carry_out(desk, lambda _: process.live(), lambda _: None)
    _leave_behind(code)
    return code


async def _round(desk: IncidentDesk, at_once: int) -> dict[str, int]:
    # What agents and functions print must not get between a program and the answer it reads.
    with contextlib.redirect_stdout(sys.stderr):
        return await desk.tick(at_once=at_once)


class _Process:
    """A supervisor, and the signals and the file by which others reach it."""

    def __init__(self, supervisor: Supervisor, options: Options) -> None:
        self._supervisor = supervisor
        self._file = None if options.health is None else Path(options.health).absolute()
        if self._file is not None and not self._file.parent.is_dir():
            raise UsageError(f"--health: there is no folder {self._file.parent}")
        self._every = max(0.2, min(10.0, options.interval))
        self._quiet = options.quiet

    async def live(self) -> None:
        """Work until a signal comes."""
        failed: TriageError | None = None
        async with anyio.create_task_group() as group:
            await group.start(self._hear)
            if self._file is not None:
                group.start_soon(self._keep)
            self._say("supervises; SIGTERM stops it")
            try:
                await self._supervisor.run()
            except TriageError as error:
                failed = error
            group.cancel_scope.cancel()
        await self._write()
        if failed is not None:
            raise failed
        self._say("has stopped")

    async def _hear(self, *, task_status: TaskStatus[None]) -> None:
        wanted = (*_ENDS, *(() if _ASKED is None else (_ASKED,)))
        with anyio.open_signal_receiver(*wanted) as signals:
            task_status.started()
            told = False
            async for which in signals:
                if which not in _ENDS:
                    await anyio.to_thread.run_sync(_say_line, self._line())
                    continue
                self._say("is told to stop" if not told else "is told to stop at once")
                self._supervisor.stop(at_once=told)
                told = True

    async def _keep(self) -> None:
        while True:
            await self._write()
            await anyio.sleep(self._every)

    async def _write(self) -> None:
        if self._file is None:
            return
        try:
            await anyio.to_thread.run_sync(_replace, self._file, self._line())
        except OSError as error:
            logger.warning("the health file cannot be written: %s", error)

    def _line(self) -> str:
        health = self._supervisor.health()
        told = {**health._asdict(), "pid": os.getpid()}
        for name in ("started", "looked"):
            told[name] = None if told[name] is None else iso(told[name])
        told |= {"written": now(), "next_s": self._every}
        return json.dumps(told)

    def _say(self, text: str) -> None:
        if not self._quiet:
            _note(f"{self._supervisor.health().owner} {text}")


def _leave_behind(code: int) -> None:
    """End although hooks and sinks that did not heed the end still run in threads."""
    deadline = time.monotonic() + 1.0
    left = [one for one in threading.enumerate() if one.name.startswith(_WORKER)]
    for one in left:
        one.join(max(0.0, deadline - time.monotonic()))
    alive = sum(one.is_alive() for one in left)
    if alive:
        _note(f"{alive} functions that did not come to an end are left behind")
        logging.shutdown()
        sys.stderr.flush()
        os._exit(code)


def _say_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - a command line


def _replace(file: Path, line: str) -> None:
    """Whoever reads the file finds the old line or the new one, never a part."""
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    beside.write_text(f"{line}\n", encoding="utf-8")
    beside.replace(file)


def _told(counted: dict[str, int]) -> int:
    _write(json.dumps(counted))
    return FAILED if counted["failed"] else 0


# The status ---------------------------------------------------------------------------------------


def _status(name: str) -> int:
    """Say what a health file says; 1 where it is not well, or nobody writes it any more."""
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"--status {name} cannot be read: {error}") from error
    told = json_given(f"--status {name}", text)
    if not isinstance(told, dict) or not isinstance(told.get("written"), int | float):
        raise UsageError(f"--status {name} is no health file of triage supervise")
    _write(text.strip())
    silent = now() - told["written"]
    next_s = told.get("next_s", 0.0)
    if told.get("state") == "stopped":
        _note("it has stopped")
    elif silent > 3 * next_s + _MARGIN_S:
        _note(f"nobody has written it for {span(silent)}")
    elif told.get("healthy") is not True:
        _note(f"it is {told.get('state')}: {told.get('error') or 'it has not looked for long'}")
    else:
        return 0
    return FAILED


# What is logged -----------------------------------------------------------------------------------


class _Form(logging.Formatter):
    """A line for each record: what it says is data, and steers no terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """As it is written."""
        told = (
            f"{iso(record.created)} {record.levelname.lower()}: {shown(record.getMessage(), 2000)}"
        )
        if record.exc_info:
            lines = (record.exc_text or self.formatException(record.exc_info)).splitlines()
            told = "\n".join([told, *(f"    {clean(line, 500)}" for line in lines)])
        return told


@contextlib.contextmanager
def _logged(*, quiet: bool) -> Generator[None]:
    """What is logged inside goes to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Form())
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
