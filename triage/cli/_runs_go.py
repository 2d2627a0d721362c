"""`triage runs recover` and `triage runs resume`: going on with a run in this process."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from triage import (
    Abort,
    Agent,
    Escalate,
    Replan,
    Retry,
    TriageError,
    TriageSuspendedError,
    UsageError,
    approve,
    edit,
    fold,
    happened,
    reject,
    rerun,
)
from triage._answers import waits_for
from triage.events import Event
from triage.stores import RunInfo, Store

from ._run import _agent, _console, _given, _note, _report, _text, _write, watched
from ._runs import FAILED, carry_out, durable, json_given, lease, now, run_of, shown, store_of, told
from ._show import Progress

DONE, SUSPENDED = 0, 3
_TAKEN = ("run_id", "task", "force", "token", "action")
"""Names of parameters of `recover` and `resume`, which no argument of a function can have."""


class Ended(NamedTuple):
    """A run that has gone on: its journal, and its result or the error it ended with."""

    events: list[Event]
    result: Any
    error: Exception | None


class _Stands(Exception):
    """The run does not go on: the exit code for that, and what is said of it."""

    def __init__(self, code: int, *lines: str) -> None:
        super().__init__(*lines)
        self.code = code
        self.lines = lines


class Watcher:
    """Notes that a run has gone on, and shows it. progress: None shows nothing."""

    def __init__(self, progress: Progress | None) -> None:
        self.seen = False
        self._progress = progress

    def __call__(self, event: Event) -> None:
        self.seen = True
        if self._progress is not None:
            self._progress(event)


def run(options: argparse.Namespace) -> int:
    """Carry out the command; its exit code. Raises UsageError for what cannot be begun."""
    given = _given(options.args)
    taken = [f"--arg {name}" for name in _TAKEN if name in given]
    if taken:
        raise UsageError(f"{', '.join(taken)} is none of the function's arguments; leave it out")
    answer = _answer(options) if options.what == "resume" else None
    token = _token(options) if options.what == "resume" else ""
    watcher = Watcher(None if options.quiet else Progress(_console()))
    # What the module and the function print must not get between a program and the result it reads.
    with contextlib.redirect_stdout(sys.stderr):
        named = _agent(options)
        store = _store(options, named)
    agent = watched(named, store, watcher)

    async def work(store: Store) -> Ended:
        info = await _meant(store, options, token)
        _check_name(info, agent, options.function)
        if answer is not None:
            goes_on = partial(agent.resume, token, answer, **given)
        else:
            await _check_standing(store, info, force=options.force)
            task = {} if options.task is None else {"task": options.task}
            goes_on = partial(agent.recover, info.run_id, force=options.force, **task, **given)
        result, error = await _outcome(goes_on, watcher)
        return Ended(await store.read(info.run_id), result, error)

    try:
        return carry_out(store, work, lambda ended: _end(options, ended))
    except _Stands as stands:
        for line in stands.lines:
            _note(line)
        return stands.code


def _token(options: argparse.Namespace) -> str:
    """A token on a command line can be seen by who lists processes; one that is read cannot."""
    return sys.stdin.readline().strip() if options.token == "-" else str(options.token)  # noqa: S105


async def _outcome(
    goes_on: Callable[[], Awaitable[Any]], watcher: Watcher
) -> tuple[Any, Exception | None]:
    """What the run gives, or the error it ends with. Raises UsageError where it did not go on."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            return await goes_on(), None
        except Exception as error:
            if isinstance(error, UsageError) and not watcher.seen:
                raise
            return None, error


# What is to go on ---------------------------------------------------------------------------------


def _store(options: argparse.Namespace, agent: Agent[Any]) -> Store:
    """`--store`, else the agent's own, else the environment's."""
    if options.store is None and durable(agent.store):
        return agent.store
    store = store_of(options.store)
    assert store is not None
    return store


async def _meant(store: Store, options: argparse.Namespace, token: str) -> RunInfo:
    """The run that is named, by its id or by its token. Raises UsageError where there is none."""
    if options.what != "resume":
        return await run_of(store, options.run)
    info = await store.info(token.partition("~")[0])
    if info is None:
        raise UsageError("no run of the store waits with this token; give it as the run gave it")
    return info


def _check_name(info: RunInfo, agent: Agent[Any], place: str) -> None:
    if info.agent != agent.name:
        raise UsageError(
            f"run {info.run_id} is one of the agent {info.agent}, and {place} is {agent.name}; name the "
            "function or the Agent that it was started with"
        )


async def _check_standing(store: Store, info: RunInfo, *, force: bool) -> None:
    """Raise `_Stands` for a run that is not to be taken over."""
    run_id = shown(info.run_id)
    if info.status == "suspended":
        asked = waits_for(await store.read(info.run_id))
        question = "" if asked is None else asked.question
        raise _Stands(
            SUSPENDED,
            f"run {run_id} waits for an answer: {question}",
            f"answer with triage runs resume and its token, or triage runs resolve {run_id}",
        )
    # By this clock, which is good enough to ask: the store's own decides who owns the run.
    if info.status == "running" and not force and (info.lease_until or 0.0) > now():
        left = lease(info, now())
        raise _Stands(
            FAILED,
            f"run {run_id} has an owner that seems to live, {left}; wait, or take it: --force",
        )


def _answer(options: argparse.Namespace) -> Any:
    """What `Agent.resume` takes. Raises UsageError for what does not belong to the answer."""
    name, reason, payload = options.answer, options.reason, options.payload
    if reason is not None and name in ("approve", "edit", "happened", "rerun"):
        raise UsageError(f"{name} takes no --reason; leave it out")
    if payload is not None and name not in ("edit", "happened"):
        raise UsageError(f"{name} takes no --payload; leave it out")
    value: Any = None if payload is None else json_given("--payload", payload)
    if name == "edit" and not isinstance(value, dict):
        raise UsageError("edit takes --payload with an object, as in --payload '{\"days\": 3}'")
    made: dict[str, Callable[[], Any]] = {
        "approve": approve,
        "reject": lambda: reject(reason),
        "edit": lambda: edit(value),
        "retry": lambda: Retry(reason),
        "replan": lambda: Replan(reason),
        "abort": lambda: Abort(reason),
        "escalate": lambda: Escalate(reason),
        "happened": lambda: happened(value),
        "rerun": rerun,
    }
    try:
        return made[name]()
    except ValueError as error:
        raise UsageError(f"--payload: {error}") from error


# How it ended -------------------------------------------------------------------------------------


def _end(options: argparse.Namespace, ended: Ended) -> int:
    """Say how it ended, as `triage run` does; the exit code."""
    events, result, error = ended
    if options.json:
        _write(json.dumps(_report(events, fold(events), error), allow_nan=False))
    elif error is None and result is not None:
        _write(_text(fold(events).result))
    if error is None:
        return DONE
    if isinstance(error, TriageSuspendedError):
        _note(f"the run waits for an answer: {error.question}")
        _note(f"token {error.token}: triage runs resume TOKEN {options.function} goes on, once")
        return SUSPENDED
    _note(told(error) if isinstance(error, TriageError) else f"{type(error).__name__}: {error}")
    return FAILED
