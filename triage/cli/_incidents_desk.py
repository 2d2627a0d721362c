"""The desk that `triage incidents` and `triage supervise` work with, made of their arguments."""

from __future__ import annotations

import argparse
import getpass
import os
import re
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from triage import Agent, UsageError
from triage.errors import TriageError
from triage.events import Event
from triage.incidents import (
    FileSink,
    Hooks,
    IncidentDesk,
    LogSink,
    UnknownIncident,
    Watch,
    WebhookSink,
    recovers,
)
from triage.stores import Store

from ._run import _found, _note, watched
from ._runs import FAILED, durable, store_of, told

T = TypeVar("T")
Options = argparse.Namespace
DEADLINE_S = 3600.0
SECRET = "TRIAGE_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable
_HOOKS = (
    "restart", "retry", "increase_timeout", "wait_and_retry", "clear_cache", "fallback", "custom",
)  # fmt: skip
_OWN: dict[str, Any] = {
    "store": None, "owner": None, "agents": [], "hooks": [], "deadline": None, "on_in_doubt": None,
    "sinks": [], "silent_for": None,
}  # fmt: skip
_ROLE = re.compile(r"([\w-]{1,64}|\*)=(.+)", re.DOTALL)


def desk_of(options: Options, *, owner: str | None = None) -> IncidentDesk:
    """The desk of `--desk`, or one that is made of the other options.

    owner: its name where `--owner` gives none. Raises UsageError for what cannot be used.
    """
    if options.desk is not None:
        return _ready(options)
    store = store_of(options.store)
    assert store is not None
    silent_for = getattr(options, "silent_for", None)
    return IncidentDesk(
        store,
        owner=options.owner or owner or you(),
        hooks=_hooks(options, store) if "hooks" in options else None,
        sinks=_sinks(getattr(options, "sinks", [])),
        watch=None if silent_for is None else Watch(lease_lost_s=silent_for),
    )


def _ready(options: Options) -> IncidentDesk:
    own = [name for name, unset in _OWN.items() if getattr(options, name, unset) != unset]
    if own:
        names = ", ".join(f"--{name.removesuffix('s').replace('_', '-')}" for name in own)
        raise UsageError(f"{options.desk} has options of its own; leave out {names}")
    desk = _found(options.desk)
    if callable(desk):
        desk = desk()
    if not isinstance(desk, IncidentDesk):
        raise UsageError(f"{options.desk} is no IncidentDesk but {type(desk).__name__}")
    if not durable(desk.store):
        raise UsageError(f"{options.desk}: what is in memory ends with its process")
    return desk


def you() -> str:
    """Who sits at this terminal."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "somebody"


def here() -> str:
    """This process, by its machine and number."""
    return f"{socket.gethostname()}:{os.getpid()}"[:200]


# What recovers ------------------------------------------------------------------------------------


def _hooks(options: Options, store: Store) -> Hooks:
    named = _named(options.hooks)
    hooks: dict[str, Any] = {
        strategy: _function("--hook", place) for strategy, place in named.items()
    }
    if options.agents:
        if "restart" in hooks:
            raise UsageError("--agent restarts, and so does --hook restart=…; leave one out")
        hooks["restart"] = recovers(*_agents(options.agents, store))
    in_doubt: Literal["rerun", "escalate"] = "rerun" if options.agents and not named else "escalate"
    return Hooks(
        **hooks,
        deadline_s=DEADLINE_S if options.deadline is None else options.deadline,
        on_in_doubt=options.on_in_doubt or in_doubt,
    )


def _named(given: Sequence[str]) -> dict[str, str]:
    named: dict[str, str] = {}
    for text in given:
        strategy, equals, place = text.partition("=")
        if not equals or strategy not in _HOOKS:
            words = ", ".join(_HOOKS)
            raise UsageError(
                f"--hook {text!r} must be strategy=module:function; strategies: {words}"
            )
        if strategy in named:
            raise UsageError(f"--hook {strategy} is given twice; give it once")
        named[strategy] = place
    return named


def _function(option: str, place: str) -> Callable[..., Any]:
    found = _found(place)
    if not callable(found):
        raise UsageError(f"{option} {place} is no function but {type(found).__name__}")
    made: Callable[..., Any] = found
    return made


def _agents(places: Sequence[str], store: Store) -> list[Agent[Any]]:
    made: list[Agent[Any]] = []
    for place in places:
        found = _found(place)
        agent: Agent[Any] = found if isinstance(found, Agent) else Agent(found)
        made.append(watched(agent, store, _ignore))
    return made


def _ignore(_event: Event) -> None:
    """Nobody watches these runs."""


# Who is told --------------------------------------------------------------------------------------


def _sinks(given: Sequence[str]) -> Mapping[str, Any]:
    sinks: dict[str, Any] = {}
    for text in given:
        match = _ROLE.fullmatch(text)
        role, sink = (match[1], match[2]) if match is not None else ("*", text)
        if role in sinks:
            who = "all" if role == "*" else role
            raise UsageError(f"--sink for {who} is given twice; give it once")
        sinks[role] = _sink(sink)
    return sinks


def _sink(text: str) -> Callable[..., Any]:
    if text == "log":
        return LogSink()
    if text.startswith("file:"):
        return FileSink(text.removeprefix("file:"))
    if text.startswith(("https://", "http://")):
        secret = os.environ.get(SECRET)
        if not secret:
            raise UsageError(f"--sink: a webhook is signed; give its secret by {SECRET}")
        return WebhookSink(text, secret)
    try:
        return _function("--sink", text)
    except UsageError as error:
        forms = "log, file:PATH, an https URL or module:function"
        raise UsageError(f"--sink must be {forms}: {error}") from error


# Doing it -----------------------------------------------------------------------------------------


def carry_out(
    desk: IncidentDesk,
    work: Callable[[IncidentDesk], Awaitable[T]],
    say: Callable[[T], int | None],
) -> int:
    """Do what a command does with its desk, close it, and say what was found; the exit code.

    say: gives the exit code, None for 0. What goes wrong with the store is said here, as `triage runs`
    says it. Raises UsageError for what is not known.
    """
    import anyio

    async def done() -> T:
        try:
            return await work(desk)
        finally:
            with anyio.CancelScope(shield=True):
                await desk.close()
                await desk.store.close()

    try:
        found = anyio.run(done)
    except UnknownIncident as error:
        raise UsageError(str(error)) from error
    except UsageError:
        raise
    except TriageError as error:
        _note(told(error))
        return FAILED
    return say(found) or 0
