"""`triage supervise`: a desk as a process."""

from __future__ import annotations

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
from typing import Annotated

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus
from cyclopts import App, Group, Parameter
from cyclopts.validators import mutually_exclusive

from triage.core.errors import TriageError, UsageError
from triage.core.observers import logger
from triage.core.quoting import one_line, span
from triage.incidents.desk import IncidentDesk
from triage.incidents.model import iso
from triage.incidents.supervisor import Supervisor

from .desk import (
    DESK_OPTIONS,
    HOOK_OPTIONS,
    LIMIT_OPTIONS,
    DeskOptions,
    HookOptions,
    LimitOptions,
    SilentFor,
    desk_of,
    here,
    with_desk,
)
from .options import epilogue
from .output import json_given, note, now, write
from .run import explained

DONE, FAILED = 0, 1
_ENDS = (signal.SIGTERM, signal.SIGINT)
_ASKED = getattr(signal, "SIGUSR1", None)
_MARGIN_S = 10.0
_WORKER = "AnyIO worker"
"""The name of the threads that hooks run in. The interpreter waits for them at its end."""
_CODES = """\
exit codes:
  0    it was told to stop, and has; with --once and --status: all is well
  1    the store failed; with --once: a recovery failed;
       with --status: it is not healthy, or the file is out of date
  2    it was never begun: no such agent, function, file or store,
       bad arguments

SIGTERM and SIGINT: begin nothing more, finish running work, give back the
rest. A second one does not wait. SIGUSR1: print its health to standard error.
"""
_INSTEAD = Group("Instead", validator=mutually_exclusive)

app = App(
    name="supervise",
    help_epilogue=epilogue(
        _CODES,
        "supervise --agent orders:desk --health health.json",
        "supervise --agent orders:desk --once",
        "supervise --status health.json",
    ),
)


@app.default
def supervise(
    *,
    hooks: HookOptions = HOOK_OPTIONS,
    limits: LimitOptions = LIMIT_OPTIONS,
    desk: DeskOptions = DESK_OPTIONS,
    sink: Annotated[
        tuple[str, ...],
        Parameter(
            metavar="[ROLE=]SINK",
            help="Where messages go: log or module:function; for one role, or for all that have none "
            "(log).",
        ),
    ] = (),
    silent_for: SilentFor = None,
    interval: Annotated[float, Parameter(metavar="S", help="Seconds between looks (5).")] = 5.0,
    at_once: Annotated[int, Parameter(metavar="N", help="Recoveries at the same time (10).")] = 10,
    grace: Annotated[
        float,
        Parameter(
            metavar="S", help="Seconds running work has to finish once it is told to stop (30)."
        ),
    ] = 30.0,
    health: Annotated[
        str | None, Parameter(metavar="FILE", help="Keep its health there, as a line of JSON.")
    ] = None,
    once: Annotated[
        bool, Parameter(group=_INSTEAD, help="Do one round, and print its counts as JSON.")
    ] = False,
    status: Annotated[
        str | None,
        Parameter(
            group=_INSTEAD,
            metavar="FILE",
            help="Only report the health in such a file; for health checks.",
        ),
    ] = None,
    quiet: Annotated[bool, Parameter(help="Say nothing but what goes wrong.")] = False,
) -> int:
    """Detect, recover and notify until told to stop. Any number may share a store."""
    if status is not None:
        return _status(status)
    file = None if health is None else Path(health).absolute()
    # What agents and functions print must not get between a program and the answer it reads.
    with _logged(quiet=quiet), contextlib.redirect_stdout(sys.stderr):
        made = desk_of(
            desk, hooks, limits=limits, sinks=sink, silent_for=silent_for, owner=here(), new=True
        )
        supervisor = Supervisor(made, interval_s=interval, at_once=at_once, grace_s=grace)
        if file is not None and not file.parent.is_dir():
            raise UsageError(f"--health: there is no folder {file.parent}")
        try:
            counts = with_desk(
                made,
                (lambda desk: desk.tick(at_once=at_once))
                if once
                else _Process(supervisor, file, interval, quiet=quiet).live,
            )
            code = FAILED if counts is not None and counts["failed"] else DONE
        except TriageError as error:
            if isinstance(error, UsageError):
                raise
            note(explained(error))
            counts, code = None, FAILED
    if counts is not None:
        write(json.dumps(counts))
    _leave_behind(code)
    return code


class _Process:
    """A supervisor with its signals and its health file."""

    def __init__(
        self,
        supervisor: Supervisor,
        file: Path | None,
        interval: float,
        *,
        quiet: bool,
    ) -> None:
        self._supervisor = supervisor
        self._file = file
        self._every = max(0.2, min(10.0, interval))
        self._quiet = quiet

    async def live(self, _desk: IncidentDesk) -> None:
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
                    line = partial(print, self._line(), file=sys.stderr, flush=True)
                    await anyio.to_thread.run_sync(line)
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
            note(f"{self._supervisor.health().owner} {text}")


def _replace(file: Path, line: str) -> None:
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    beside.write_text(f"{line}\n", encoding="utf-8")
    beside.replace(file)


def _leave_behind(code: int) -> None:
    """Exit even if hooks and sinks that do not return still run in threads."""
    deadline = time.monotonic() + 1.0
    left = [one for one in threading.enumerate() if one.name.startswith(_WORKER)]
    for one in left:
        one.join(max(0.0, deadline - time.monotonic()))
    alive = sum(one.is_alive() for one in left)
    if alive:
        note(f"{alive} functions that did not come to an end are left behind")
        logging.shutdown()
        sys.stderr.flush()
        os._exit(code)


# The status ---------------------------------------------------------------------------------------


def _status(name: str) -> int:
    """Report a health file; 1 if it is not healthy or out of date."""
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"--status {name} cannot be read: {error}") from error
    told = json_given(f"--status {name}", text)
    if not isinstance(told, dict) or not isinstance(told.get("written"), int | float):
        raise UsageError(f"--status {name} is no health file of triage supervise")
    write(text.strip())
    silent = now() - told["written"]
    next_s = told.get("next_s", 0.0)
    if told.get("state") == "stopped":
        note("it has stopped")
    elif silent > 3 * next_s + _MARGIN_S:
        note(f"nobody has written it for {span(silent)}")
    elif told.get("healthy") is not True:
        note(f"it is {told.get('state')}: {told.get('error') or 'it has not looked for long'}")
    else:
        return DONE
    return FAILED


# What is logged -----------------------------------------------------------------------------------


class _Form(logging.Formatter):
    """One line per record, without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        told = f"{iso(record.created)} {record.levelname.lower()}: {one_line(record.getMessage(), 2000)}"
        if record.exc_info:
            lines = (record.exc_text or self.formatException(record.exc_info)).splitlines()
            told = "\n".join([told, *(f"    {one_line(line, 500)}" for line in lines)])
        return told


@contextlib.contextmanager
def _logged(*, quiet: bool) -> Generator[None]:
    """Log to standard error within the block."""
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
