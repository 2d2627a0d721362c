"""`triage incidents`: see what has failed in a store; handle, recover, escalate and acknowledge it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from cyclopts import App, Parameter

from triage.core.errors import UsageError
from triage.core.quoting import counted, moment, one_line, span
from triage.incidents.desk import IncidentDesk
from triage.incidents.journal import Incident
from triage.incidents.migration import migrate as migrate_tables
from triage.incidents.model import iso

from . import output
from .desk import (
    DESK_OPTIONS,
    HOOK_OPTIONS,
    LIMIT_OPTIONS,
    DeskOptions,
    HookOptions,
    LimitOptions,
    SilentFor,
    Strategy,
    desk_of,
    with_desk,
)
from .fleet import FleetOption, Place, fleet_of, place_columns, place_json, places_of
from .options import (
    AsJson,
    JsonLines,
    StoreText,
    Watch,
    check_limit,
    epilogue,
    run_with,
    store_of,
    you,
)
from .output import note
from .progress import Line
from .records import Column, Record

T = TypeVar("T")

DONE, FAILED = 0, 1
_CODES = """\
exit codes:
  0    done
  1    it was tried and failed; the store failed; or the incident is closed,
       somebody else has it, or its time has not come
  2    it was never begun: no such incident, task, strategy, level or store,
       bad arguments
  130  interrupted

ERROR is the id of an incident, such as err-0f3a52c19b7e.
"""
_STYLES = {"low": "dim", "medium": "yellow", "high": "red", "critical": "bold red"}
_TIMES = ("next_attempt_at", "ack_due", "lease_until", "first_seen", "last_seen", "resolved_at")
_HIDDEN = ("scope", "sightings", "messages", "log", "events", "epoch")
_CALLED = {
    "severity": "route", "level": "severity", "message": "error_message",
    "action": "recommended_action", "files": "files_affected", "alternative": "suggested_alternative",
}  # fmt: skip
"""Fields of an incident that have another name in JSON."""

Error = Annotated[str, Parameter(help="The id of an incident, such as err-0f3a52c19b7e.")]
By = Annotated[str | None, Parameter(metavar="NAME", help="Who says so (you).")]
Found = dict[str, Any]
"""An incident in the answer of `detect`."""

app = App(
    name="incidents",
    help="See what has failed in a store; handle, recover, escalate and acknowledge it.",
    help_epilogue=_CODES,
)


@dataclass(frozen=True, kw_only=True)
class _Listed:
    """An incident, and the place of its run in a fleet."""

    incident: Incident
    place: Place | None = None


_FOUND = Record[Found](
    columns=(
        Column("error", lambda one: one["error_id"]),
        Column("severity", lambda one: one["severity"], styles=_STYLES),
        Column("retryable", lambda one: "yes" if one["retryable"] else "no"),
        Column("agent", lambda one: one["agent_id"], 128, cut=1),
        Column("task", lambda one: one["task_id"], 128, cut=1),
        Column("time", lambda one: one["timestamp"]),
        Column("message", lambda one: one["error_message"], cut=1),
    ),
    nothing="nothing is unhandled",
)
_LISTED = Record[_Listed](
    columns=(
        Column("error", lambda one: one.incident.error_id),
        Column("severity", lambda one: one.incident.level, styles=_STYLES),
        Column("status", lambda one: one.incident.status),
        Column("seen", lambda one: f"{span(output.now() - one.incident.last_seen)} ago"),
        Column("agent", lambda one: one.incident.agent_id or one.incident.agent_type, 128, cut=1),
        Column("task", lambda one: one.incident.task_id or one.incident.run_id, 128, cut=1),
        Column("message", lambda one: one.incident.message, 80, cut=1),
    ),
    json=lambda one: {**_as_json(one.incident), **place_json(one.place)},
    key=lambda one: (one.incident.error_id, one.incident.events),
    nothing="no incident",
)


def _as_json(one: Incident) -> dict[str, Any]:
    """An incident as a JSON object; `severity` is its level, `route` what a run would do about it."""
    told: dict[str, Any] = {}
    for name, value in output.fields_of(one).items():
        if name not in _HIDDEN:
            known = iso(value) if name in _TIMES and value is not None else value
            told[_CALLED.get(name, name)] = known
    return {**told, "occurrences": one.occurrences}


def _carry_out(
    desk: DeskOptions, work: Callable[[IncidentDesk], Awaitable[T]], **options: Any
) -> T:
    """Do something with the desk that is named."""
    # What modules and functions print must not get between a program and the answer it reads.
    with contextlib.redirect_stdout(sys.stderr):
        return with_desk(desk_of(desk, **options), work)


def _print_answer(answer: dict[str, Any], text: str, *, as_json: bool) -> int:
    """Print the answer of an operation, its JSON or a line; the exit code."""
    output.write(output.json_line(answer) if as_json else one_line(text, 500))
    if answer["success"]:
        return DONE
    if not as_json:
        note(str(answer.get("error") or answer.get("message") or "it failed"))
    return FAILED


# What is seen -------------------------------------------------------------------------------------


@app.command(
    help_epilogue=epilogue(_CODES, "incidents detect", "incidents detect --silent-for 300 --json")
)
def detect(
    *,
    silent_for: SilentFor = None,
    limit: Annotated[int, Parameter(metavar="N", help="List so many (100).")] = 100,
    limits: LimitOptions = LIMIT_OPTIONS,
    desk: DeskOptions = DESK_OPTIONS,
    json: AsJson = False,
) -> None:
    """Find what has failed, and list what nobody has handled."""
    check_limit(limit)
    answer = _carry_out(
        desk, lambda desk: desk.detect(limit=limit), limits=limits, silent_for=silent_for, new=True
    )
    if json:
        output.write(output.json_line(answer))
        return
    found: list[Found] = answer["errors"]
    _FOUND.print(lambda: found, as_json=False)
    if answer["errors_found"] > len(found):
        note(f"these are the newest {len(found)} of {answer['errors_found']}; --limit shows more")


@app.command(
    name="list",
    help_epilogue=epilogue(_CODES, "incidents list", "incidents list --status escalated --json"),
)
def list_incidents(
    *,
    status: Annotated[
        Literal[
            "detected", "waiting", "recovering", "escalated", "acknowledged",
            "recovered", "failed", "ignored",
        ]
        | None,
        Parameter(help="Of this status (all that are open)."),
    ] = None,
    limit: Annotated[int, Parameter(metavar="N", help="At most so many (50).")] = 50,
    desk: DeskOptions = DESK_OPTIONS,
    fleet: FleetOption = None,
    watch: Watch = False,
    json: JsonLines = False,
) -> None:  # fmt: skip
    """List incidents, those changed last first; of a fleet, with the places of their runs."""
    check_limit(limit)
    known = None if fleet is None else fleet_of(fleet)

    async def work(desk: IncidentDesk) -> list[_Listed]:
        found = await desk.incidents(status, limit=limit + 1)
        places = await places_of(known, [one.run_id for one in found if one.run_id])
        return [_Listed(incident=one, place=places.get(one.run_id or "")) for one in found]

    record = _LISTED
    if known is not None:
        record = record.with_columns(*place_columns(lambda one: one.place))
    record.print(
        lambda: _carry_out(desk, work, fleet=known), as_json=json, limit=limit, watch=watch
    )


@app.command(help_epilogue=epilogue(_CODES, "incidents show err-0f3a52c19b7e"))
def show(
    error: Error,
    /,
    *,
    desk: DeskOptions = DESK_OPTIONS,
    fleet: FleetOption = None,
    json: AsJson = False,
) -> None:
    """Show an incident, with its log and messages; of a fleet, with its run's place."""
    known = None if fleet is None else fleet_of(fleet)

    async def work(desk: IncidentDesk) -> _Listed:
        one = await desk.incident(error)
        places = await places_of(known, [one.run_id] if one.run_id else [])
        return _Listed(incident=one, place=places.get(one.run_id or ""))

    found = _carry_out(desk, work, fleet=known)
    if json:
        log = [{**output.fields_of(entry), "at": iso(entry.at)} for entry in found.incident.log]
        told = {"log": log, "messages": list(found.incident.messages)}
        output.write(
            output.json_line({**_as_json(found.incident), **place_json(found.place), **told})
        )
        return
    with output.paged() as out:
        output.print_page(out, list(_page(found.incident, found.place)))


def _page(one: Incident, place: Place | None) -> Iterator[Line]:
    style = _STYLES[one.level]
    yield Line("", f"bold {style}", f"{one.error_id}  {one.level}  {one.status}")
    yield Line("message", style, one.message)
    cause = "" if one.cause is None else f" ({one.cause})"
    yield Line("diagnosis", "", f"{one.failure_type}{cause}, {one.severity}")
    retryable = "retryable" if one.retryable else "not retryable"
    yield Line("recommended", "", f"{one.action}, {retryable}")
    agent = " ".join(filter(None, (one.agent_type, one.agent_id)))
    queue = "" if place is None else f"{place.engine}, queue {place.summary()}"
    told = (
        ("or else", one.alternative), ("agent", agent), ("replaced by", one.new_agent_id),
        ("task", one.task_id), ("run", one.run_id), ("place", queue), ("files", ", ".join(one.files)),
    )  # fmt: skip
    for label, text in told:
        if text:
            yield Line(label, "", text)
    yield Line("seen", "", f"{moment(one.first_seen)} to {moment(one.last_seen)}")
    yield Line("times", "", f"{one.occurrences}, found in {one.source}")
    yield Line("retries", "", f"{one.attempt} of {one.max_retries}, by {one.strategy}")
    if one.owner is not None and one.lease_until is not None:
        left = max(0.0, one.lease_until - output.now())
        yield Line("recovered by", "yellow", f"{one.owner}, whose lease lasts {span(left)}")
    if one.next_attempt_at is not None:
        yield Line("next", "yellow", f"{moment(one.next_attempt_at)}")
    if one.escalation_level is not None:
        unless = "" if one.ack_due is None else f"; the next role is told {moment(one.ack_due)}"
        yield Line("escalated", "yellow", f"to {one.escalation_level}{unless}")
    if one.acknowledged_by is not None:
        yield Line("has it", "green", one.acknowledged_by)
    for entry in one.log:
        text = f": {entry.text}" if entry.text else ""
        yield Line("log", "dim", f"{moment(entry.at)}  {entry.by}  {entry.verb}{text}")
    for message in one.messages:
        yield Line("message", "dim", f"{message.status}: {message.kind} to {message.role}")


# What is done -------------------------------------------------------------------------------------


@app.command(
    help_epilogue=epilogue(
        _CODES,
        "incidents handle err-0f3a52c19b7e --agent orders:desk",
        "incidents handle err-0f3a52c19b7e --hook restart=agents:restart",
    )
)
def handle(
    error: Error,
    /,
    *,
    hooks: HookOptions = HOOK_OPTIONS,
    limits: LimitOptions = LIMIT_OPTIONS,
    desk: DeskOptions = DESK_OPTIONS,
    json: AsJson = False,
) -> int:
    """Do what the rules say: recover, wait, or ask a person."""
    answer = _carry_out(desk, lambda desk: desk.handle(error), hooks=hooks, limits=limits)
    details = answer["details"]
    retry = f"retry {details['retry_attempt']} of {details['max_retries']}"
    ended = "done" if answer["success"] else "failed"
    if "next_attempt" in details:
        ended = f"scheduled for {details['next_attempt']}"
    told = ", told" if details["message_sent"] else ""
    text = f"{answer['error_id']}: {answer['recovery_action']}, {retry}: {ended}{told}"
    return _print_answer(answer, text, as_json=json)


@app.command(help_epilogue=epilogue(_CODES, "incidents recover TASK-1 restart --agent orders:desk"))
def recover(
    task: Annotated[str, Parameter(help="The id of a task or run.")],
    strategy: Strategy,
    /,
    *,
    hooks: HookOptions = HOOK_OPTIONS,
    limits: LimitOptions = LIMIT_OPTIONS,
    by: By = None,
    desk: DeskOptions = DESK_OPTIONS,
    json: AsJson = False,
) -> int:
    """Carry out a strategy for the newest open incident of a task or run."""
    nobody = desk.desk is None and not hooks.agent and not hooks.hook
    if nobody and strategy not in ("manual", "fallback"):
        raise UsageError(
            f"say what carries out {strategy}: --hook {strategy}=module:function, or --agent module:name"
        )
    answer = _carry_out(
        desk,
        lambda desk: desk.recover(task, strategy, by=you() if by is None else by),
        hooks=hooks,
        limits=limits,
    )
    new = answer["new_agent_id"]
    text = f"{answer['task_id']}: {answer['message']}{'' if new is None else f', as {new}'}"
    return _print_answer(answer, text, as_json=json)


@app.command(
    help_epilogue=epilogue(_CODES, "incidents escalate err-0f3a52c19b7e architect --by ann")
)
def escalate(
    error: Error,
    level: Annotated[str, Parameter(help="A role, such as architect.")],
    /,
    *,
    by: By = None,
    desk: DeskOptions = DESK_OPTIONS,
    json: AsJson = False,
) -> int:
    """Hand an incident to a role."""
    answer = _carry_out(
        desk, lambda desk: desk.escalate(error, level, by=you() if by is None else by)
    )
    text = f"{answer['escalation_level']}: {answer['escalation_message']}"
    return _print_answer(answer, text, as_json=json)


@app.command(
    help_epilogue=epilogue(_CODES, 'incidents ack err-0f3a52c19b7e --note "looking at it"')
)
def ack(
    error: Error,
    /,
    *,
    by: By = None,
    note: Annotated[str, Parameter(metavar="TEXT", help="For the log.")] = "",
    desk: DeskOptions = DESK_OPTIONS,
    json: AsJson = False,
) -> int:
    """Record that somebody has it; no further role is told."""
    answer = _carry_out(
        desk, lambda desk: desk.acknowledge(error, by=you() if by is None else by, note=note)
    )
    return _print_answer(answer, f"{answer['error_id']} is {answer['status']}", as_json=json)


@app.command(help_epilogue=epilogue(_CODES, "incidents migrate --store sqlite:///runs.db"))
def migrate(*, store: StoreText = None) -> None:
    """Move incidents out of the tables of 0.2.0, once; the tables stay as they are."""
    found = store_of(store)
    incidents, tasks = run_with(lambda: migrate_tables(found), found)
    output.write(f"{counted(incidents, 'incident')} and {counted(tasks, 'task')} moved")
