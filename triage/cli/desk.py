"""The desk of `triage incidents` and `triage supervise`, made from their options."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from cyclopts import Parameter

from triage.core.errors import UsageError
from triage.engine.agents import Agent
from triage.incidents.desk import IncidentDesk, log_message
from triage.incidents.handling import recovers
from triage.incidents.model import Hooks, UnknownIncident, Watch
from triage.stores.base import Store

from .fleet import Fleet
from .options import StoreText, durable, load, load_agent, load_function, run_with, store_of, you
from .output import note

T = TypeVar("T")

Strategy = Literal[
    "restart", "retry", "increase_timeout", "wait_and_retry", "clear_cache", "fallback", "manual",
    "custom",
]  # fmt: skip
_HOOKS = tuple(name for name in get_args(Strategy) if name != "manual")
_DEADLINE_S = 3600.0
_ROLE = re.compile(r"([\w-]{1,64}|\*)=(.+)", re.DOTALL)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DeskOptions:
    """Whose incidents, and who works on them.

    Attributes:
        desk: An IncidentDesk of the current directory, or what makes one; it has options of its own.
        owner: The name in the log.
    """

    store: StoreText = None
    desk: Annotated[str | None, Parameter(metavar="MODULE:NAME")] = None
    owner: Annotated[str | None, Parameter(metavar="NAME")] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class HookOptions:
    """What carries out recoveries.

    Attributes:
        agent: An agent whose abandoned runs are taken over; may be repeated.
        hook: A function that carries out a strategy; may be repeated.
        deadline: Seconds one recovery may take (3600).
        on_in_doubt: After a recovery that may have happened: ask a person, or repeat it (rerun if only
            agents recover, else escalate).
    """

    agent: Annotated[tuple[str, ...], Parameter(metavar="MODULE:NAME")] = ()
    hook: Annotated[tuple[str, ...], Parameter(metavar="STRATEGY=MODULE:FUNCTION")] = ()
    deadline: Annotated[float | None, Parameter(metavar="S")] = None
    on_in_doubt: Literal["escalate", "rerun"] | None = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """When to give up.

    Attributes:
        error_threshold: Errors of a task within an hour; one more asks a person (3).
        retry_max: Recoveries of one incident (3; 2 for timeouts and exhausted resources).
    """

    error_threshold: Annotated[int | None, Parameter(metavar="N")] = None
    retry_max: Annotated[int | None, Parameter(metavar="N")] = None


DESK_OPTIONS = DeskOptions()
LIMIT_OPTIONS = LimitOptions()
HOOK_OPTIONS = HookOptions()
SilentFor = Annotated[
    float | None,
    Parameter(
        metavar="S", help="Seconds without a sign of its process after which a run is lost (60)."
    ),
]


def desk_of(
    options: DeskOptions,
    hooks: HookOptions | None = None,
    *,
    limits: LimitOptions = LIMIT_OPTIONS,
    sinks: Sequence[str] = (),
    silent_for: float | None = None,
    owner: str | None = None,
    fleet: Fleet | None = None,
    new: bool = False,
) -> IncidentDesk:
    """The desk of `--desk`, or one that is made of the other options.

    owner: its name where `--owner` gives none. fleet: its store is used where `--store` gives none. new: a
    SQLite file that does not exist is made. Raises UsageError for what cannot be used.
    """
    if options.desk is not None:
        given = [
            *_set(options, but="desk"),
            *([] if hooks is None else _set(hooks)),
            *(["sink"] if sinks else []),
            *([] if silent_for is None else ["silent_for"]),
        ]
        if given:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise UsageError(f"{options.desk} has options of its own; leave out {names}")
        return _named_desk(options.desk).limited(limits.error_threshold, limits.retry_max)
    if fleet is not None and options.store is None:
        store: Store = fleet.store
    else:
        store = store_of(options.store, new=new)
    path = getattr(store, "path", None)
    if path is not None and not Path(path).exists():
        note(f"made {path}; there was no such file")
    desk = IncidentDesk(
        store,
        owner=options.owner or owner or you(),
        hooks=None if hooks is None else _hooks(hooks, store),
        sinks=_sinks(sinks),
        watch=None if silent_for is None else Watch(lease_lost_s=silent_for),
    )
    return desk.limited(limits.error_threshold, limits.retry_max)


def _set(options: DeskOptions | HookOptions, but: str = "") -> list[str]:
    """The options that are set, by name."""
    names = [field.name for field in fields(options) if field.name != but]
    return [name for name in names if getattr(options, name) not in (None, ())]


def _named_desk(place: str) -> IncidentDesk:
    desk = load(place)
    if callable(desk):
        desk = desk()
    if not isinstance(desk, IncidentDesk):
        raise UsageError(f"{place} is no IncidentDesk but {type(desk).__name__}")
    if not durable(desk.store):
        raise UsageError(f"{place}: what is in memory ends with its process")
    return desk


def here() -> str:
    """This process: its machine and number."""
    return f"{socket.gethostname()}:{os.getpid()}"[:200]


def with_desk(desk: IncidentDesk, work: Callable[[IncidentDesk], Awaitable[T]]) -> T:
    """Use a desk, then close it and its store. Raises UsageError for an unknown incident."""
    try:
        return run_with(partial(work, desk), desk, desk.store)
    except UnknownIncident as error:
        raise UsageError(str(error)) from error


# Hooks --------------------------------------------------------------------------------------------


def _hooks(options: HookOptions, store: Store) -> Hooks:
    places: dict[str, str] = {}
    for text in options.hook:
        strategy, equals, place = text.partition("=")
        if not equals or strategy not in _HOOKS:
            words = ", ".join(_HOOKS)
            raise UsageError(
                f"--hook {text!r} must be strategy=module:function; strategies: {words}"
            )
        if strategy in places:
            raise UsageError(f"--hook {strategy} is given twice; give it once")
        places[strategy] = place
    hooks: dict[str, Any] = {
        strategy: load_function("--hook", place) for strategy, place in places.items()
    }
    if options.agent:
        if "restart" in hooks:
            raise UsageError("--agent restarts, and so does --hook restart=…; leave one out")
        found = [load_agent(place) for place in options.agent]
        agents = [one if isinstance(one, Agent) else Agent(one) for one in found]
        hooks["restart"] = recovers(*(agent.stored_in(store) for agent in agents))
    agents_alone = bool(options.agent) and not places
    return Hooks(
        **hooks,
        deadline_s=_DEADLINE_S if options.deadline is None else options.deadline,
        on_in_doubt=options.on_in_doubt or ("rerun" if agents_alone else "escalate"),
    )


# Sinks --------------------------------------------------------------------------------------------


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
        return log_message
    try:
        return load_function("--sink", text)
    except UsageError as error:
        raise UsageError(f"--sink must be log or module:function: {error}") from error
