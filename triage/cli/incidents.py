"""`triage incidents`: see what has failed in a store; handle, escalate and close it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from typing import Annotated, Any, Literal, TypeVar

from cyclopts import App, Parameter
from rich.text import Text

from triage.core.errors import UsageError
from triage.core.quoting import counted, moment, one_line, span
from triage.incidents.desk import IncidentDesk
from triage.incidents.model import Incident, LogEntry, Message, iso

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
from .fleet import PLACE_TITLES, FleetOption, Place, fleet_of, place_json, place_row, places_of
from .options import DASH, AsJson, JsonLines, Watch, check_limit, epilogue, you
from .output import note
from .progress import Line

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

ERROR is the id of an incident, such as err-001.
"""
_STYLES = {"low": "dim", "medium": "yellow", "high": "red", "critical": "bold red"}
_FOUND = ("error", "severity", "retryable", "agent", "task", "time", "message")
_LISTED = ("error", "severity", "status", "seen", "agent", "task", "message")
_LOGGED = ("time", "error", "did", "by", "what")
_TIMES = ("next_attempt_at", "ack_due", "lease_until", "first_seen", "last_seen", "resolved_at")
_HIDDEN = ("id", "stamp")
_CALLED = {
    "severity": "route", "level": "severity", "message": "error_message",
    "action": "recommended_action", "files": "files_affected", "alternative": "suggested_alternative",
}  # fmt: skip
"""Fields of an incident that have another name in JSON."""
_REPORTED = (
    "agent_id", "agent_type", "files", "key", "message", "run_id", "stack_trace", "task_id",
)  # fmt: skip

Error = Annotated[str, Parameter(help="The id of an incident, such as err-001.")]
By = Annotated[str | None, Parameter(metavar="NAME", help="Who says so (you).")]
Note = Annotated[str, Parameter(metavar="TEXT", help="For the log.")]

app = App(
    name="incidents",
    help="See what has failed in a store; handle, escalate and close it.",
    help_epilogue=_CODES,
)


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
        desk,
        lambda desk: desk.detect(limit=limit),
        limits=limits,
        silent_for=silent_for,
        new=True,
    )
    if json:
        output.write(output.json_line(answer))
        return
    errors = answer["errors"]
    rows = [
        (
            one["error_id"],
            one["severity"],
            "yes" if one["retryable"] else "no",
            _id(one["agent_id"]),
            _id(one["task_id"]),
            one["timestamp"],
            one_line(one["error_message"]),
        )
        for one in errors
    ]
    with output.paged() as out:
        output.print_lines(out, _table(_FOUND, rows))
    found = answer["errors_found"]
    if not found:
        note("nothing is unhandled")
    elif found > len(errors):
        note(f"these are the newest {len(errors)} of {found}; --limit shows more")


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Text]:
    cut = ("agent", "task", "message", "by", "what")
    return output.table(titles, rows, styled="severity", styles=_STYLES, cut=cut) if rows else []


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
    """List incidents, those seen last first; of a fleet, with the places of their runs."""
    check_limit(limit)
    known = None if fleet is None else fleet_of(fleet)

    async def work(desk: IncidentDesk) -> tuple[list[Incident], dict[str, Place]]:
        found = await desk.incidents(status, limit=limit + 1)
        return found, await places_of(known, [one.run_id for one in found if one.run_id])

    def look() -> output.Listing:
        found, places = _carry_out(desk, work, fleet=known)
        incidents = found[:limit]
        keys: list[Hashable] = [(one.error_id, one.version) for one in incidents]
        remark = "" if found else "no incident"
        if len(found) > len(incidents):
            remark = f"these are the newest {len(incidents)}; --limit shows more"
        if json or not incidents:
            lines = [
                Text(
                    output.json_line({**_as_json(one), **place_json(places.get(one.run_id or ""))})
                )
                for one in incidents
            ]
            return output.Listing(lines, keys, remark)
        rows = [
            _row(one) + (() if known is None else place_row(places.get(one.run_id or "")))
            for one in incidents
        ]
        lines = _table(_LISTED if known is None else (*_LISTED, *PLACE_TITLES), rows)
        return output.Listing(lines, ["titles", *keys], remark)

    output.print_listing(look, watch=watch)


def _id(text: str | None) -> str:
    return "-" if text is None else one_line(text, 128)


def _row(one: Incident) -> tuple[str, ...]:
    return (
        one.error_id,
        str(one.level),
        str(one.status),
        f"{span(output.now() - one.last_seen)} ago",
        _id(one.agent_id or one.agent_type or None),
        _id(one.task_id or one.run_id),
        one_line(one.message, 80),
    )


def _as_json(one: Incident) -> dict[str, Any]:
    """An incident as a JSON object; `severity` is its level, `route` what a run would do about it."""
    told: dict[str, Any] = {"error_id": one.error_id}
    for name, value in one._asdict().items():
        if name not in _HIDDEN:
            known = iso(value) if name in _TIMES and value is not None else value
            told[_CALLED.get(name, name)] = known
    return told


@app.command(help_epilogue=epilogue(_CODES, "incidents show err-001"))
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

    async def work(
        desk: IncidentDesk,
    ) -> tuple[Incident, list[LogEntry], list[Message], Place | None]:
        one = await desk.incident(error)
        places = await places_of(known, [one.run_id] if one.run_id else [])
        place = places.get(one.run_id or "")
        return one, await desk.log(error), await desk.messages(of=error), place

    one, log, messages, place = _carry_out(desk, work, fleet=known)
    if json:
        told = {
            "log": [_entry(entry) for entry in log],
            "messages": [_message(message) for message in messages],
        }
        output.write(output.json_line({**_as_json(one), **place_json(place), **told}))
    else:
        with output.paged() as out:
            output.print_page(out, list(_page(one, log, messages, place)))


def _page(
    one: Incident, log: list[LogEntry], messages: list[Message], place: Place | None
) -> Iterator[Line]:
    style = _STYLES[one.level]
    yield Line("", f"bold {style}", f"{one.error_id}  {one.level}  {one.status}")
    yield Line("message", style, one.message)
    cause = "" if one.cause is None else f" ({one.cause})"
    yield Line("diagnosis", "", f"{one.failure_type}{cause}, {one.severity}")
    retryable = "retryable" if one.retryable else "not retryable"
    yield Line("recommended", "", f"{one.action}, {retryable}")
    if one.alternative:
        yield Line("or else", "", one.alternative)
    agent = " ".join(filter(None, (one.agent_type, one.agent_id)))
    for label, text in (("agent", agent), ("task", one.task_id), ("run", one.run_id)):
        if text:
            yield Line(label, "", text)
    if place is not None:
        yield Line(place.engine, "", f"queue {place.summary()}")
    if one.files:
        yield Line("files", "", ", ".join(one.files))
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
    for entry in log:
        text = f": {entry.text}" if entry.text else ""
        yield Line("log", "dim", f"{moment(entry.at)}  {entry.by}  {entry.verb}{text}")
    for message in messages:
        yield Line("message", "dim", f"{message.status}: {message.kind} to {message.role}")


def _entry(entry: LogEntry) -> dict[str, Any]:
    told = {**entry._asdict(), "at": iso(entry.at)}
    number = told.pop("incident")
    return {"error_id": None if number is None else f"err-{number:03d}", **told}


def _message(message: Message) -> dict[str, Any]:
    sent = None if message.sent_at is None else iso(message.sent_at)
    kept = ("role", "kind", "key", "text", "status", "attempts")
    return {**{name: getattr(message, name) for name in kept}, "sent_at": sent}


@app.command(help_epilogue=epilogue(_CODES, "incidents log", "incidents log err-001 --limit 20"))
def log(
    error: Annotated[str | None, Parameter(help="About one (all).")] = None,
    /,
    *,
    limit: Annotated[int, Parameter(metavar="N", help="The newest so many (100).")] = 100,
    desk: DeskOptions = DESK_OPTIONS,
    json: JsonLines = False,
) -> None:
    """Show what was done, oldest first."""
    check_limit(limit)
    found = _carry_out(desk, lambda desk: desk.log(error, limit=limit))
    if json:
        for entry in found:
            output.write(output.json_line(_entry(entry)))
        return
    rows = [
        (
            moment(entry.at),
            "-" if entry.incident is None else f"err-{entry.incident:03d}",
            one_line(entry.verb, 40),
            one_line(entry.by, 64),
            one_line(entry.text) or "-",
        )
        for entry in found
    ]
    with output.paged() as out:
        output.print_lines(out, _table(_LOGGED, rows))
    if not found:
        note("nothing was done yet")


@app.command(help_epilogue=epilogue(_CODES, "incidents stats"))
def stats(*, desk: DeskOptions = DESK_OPTIONS, json: AsJson = False) -> None:
    """Count incidents, messages and agents."""
    numbers = _carry_out(desk, lambda desk: desk.stats())
    if json:
        output.write(output.json_line(numbers))
        return
    output.write(f"{counted(numbers['incidents'], 'incident')}, {numbers['open']} open")
    for title in ("by_status", "open_by_severity", "messages", "agents"):
        counts = ", ".join(f"{word} {count}" for word, count in numbers[title].items() if count)
        output.write(f"{title.replace('_', ' ')}: {counts or 'none'}")
    mean = numbers["mean_time_to_recover_s"]
    output.write(f"mean time to recover: {'unknown' if mean is None else span(mean)}")


# What is done -------------------------------------------------------------------------------------


@app.command(
    help_epilogue=epilogue(
        _CODES,
        "incidents handle err-001 --agent orders:desk",
        "incidents handle err-001 --hook restart=agents:restart",
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


@app.command(help_epilogue=epilogue(_CODES, "incidents escalate err-001 architect --by ann"))
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


@app.command(help_epilogue=epilogue(_CODES, 'incidents ack err-001 --note "looking at it"'))
def ack(
    error: Error,
    /,
    *,
    by: By = None,
    note: Note = "",
    desk: DeskOptions = DESK_OPTIONS,
    json: AsJson = False,
) -> int:
    """Record that somebody has it; no further role is told."""
    answer = _carry_out(
        desk, lambda desk: desk.acknowledge(error, by=you() if by is None else by, note=note)
    )
    return _print_answer(answer, f"{answer['error_id']} is {answer['status']}", as_json=json)


@app.command(
    name="note", help_epilogue=epilogue(_CODES, 'incidents note err-001 "the disk was full"')
)
def write_note(
    error: Error,
    text: Annotated[str, Parameter(help="What is written into its log.")],
    /,
    *,
    by: By = None,
    desk: DeskOptions = DESK_OPTIONS,
    json: AsJson = False,
) -> int:
    """Write a note into the log of an incident, open or closed."""
    answer = _carry_out(desk, lambda desk: desk.note(error, text, by=you() if by is None else by))
    return _print_answer(answer, f"{answer['error_id']} is noted", as_json=json)


@app.command(
    help_epilogue=epilogue(
        _CODES, "incidents resolve err-001", "incidents resolve err-001 --outcome ignored"
    )
)
def resolve(
    error: Error,
    /,
    *,
    outcome: Annotated[
        Literal["recovered", "failed", "ignored"], Parameter(help="How it ended (recovered).")
    ] = "recovered",
    by: By = None,
    note: Note = "",
    desk: DeskOptions = DESK_OPTIONS,
    json: AsJson = False,
) -> int:
    """Close an incident."""
    who = you() if by is None else by
    answer = _carry_out(desk, lambda desk: desk.resolve(error, by=who, outcome=outcome, note=note))
    return _print_answer(answer, f"{answer['error_id']} is {answer['status']}", as_json=json)


@app.command(
    help_epilogue=epilogue(
        _CODES,
        'incidents report "Merge conflict in a.py" --task-id TASK-1 --file a.py',
        "incidents report - < failure.json",
    )
)
def report(
    text: Annotated[
        str, DASH, Parameter(help="What went wrong; - reads a JSON object of all of it.")
    ],
    /,
    *,
    agent_id: Annotated[str | None, Parameter(metavar="ID", help="Whose.")] = None,
    agent_type: Annotated[
        str | None, Parameter(metavar="NAME", help="The type of that agent.")
    ] = None,
    task_id: Annotated[str | None, Parameter(metavar="ID", help="In which task.")] = None,
    run_id: Annotated[str | None, Parameter(metavar="ID", help="In which run.")] = None,
    file: Annotated[
        tuple[str, ...], Parameter(metavar="PATH", help="Affected; may be repeated.")
    ] = (),
    key: Annotated[
        str | None,
        Parameter(metavar="TEXT", help="Identifies it; reporting it again changes nothing."),
    ] = None,
    desk: DeskOptions = DESK_OPTIONS,
    json: AsJson = False,
) -> None:
    """Report a failure of another system."""
    options = {
        "agent_id": agent_id,
        "agent_type": agent_type,
        "task_id": task_id,
        "run_id": run_id,
        "files": list(file) or None,
        "key": key,
    }
    fields: dict[str, Any] = {"message": text}
    if text == "-":
        fields = output.json_given("the report", sys.stdin.read())
        if not isinstance(fields, dict):
            raise UsageError(f"the report must be a JSON object, not {type(fields).__name__}")
        for name in fields:
            if name not in _REPORTED:
                known = ", ".join(_REPORTED)
                raise UsageError(
                    f"the report has a field {one_line(name, 40)!r}; known are {known}"
                )
    fields |= {name: value for name, value in options.items() if value is not None}
    fields.setdefault("message", "")
    one = _carry_out(desk, lambda desk: desk.report(**fields), new=True)
    if json:
        output.write(output.json_line(_as_json(one)))
    else:
        seen = counted(one.occurrences, "time")
        output.write(f"{one.error_id}: {one.level}, {one.action}, seen {seen}")


@app.command(help_epilogue=epilogue(_CODES, "incidents prune --older-than 30d --dry-run"))
def prune(
    *,
    older_than: Annotated[
        str, Parameter(metavar="30d", help="That ended longer ago: 90s, 12h, 30d, 4w.")
    ],
    dry_run: Annotated[bool, Parameter(help="Say how many, and remove none.")] = False,
    desk: DeskOptions = DESK_OPTIONS,
    json: AsJson = False,
) -> None:
    """Remove incidents that have ended, with their log."""
    seconds = output.seconds_of("--older-than", older_than)
    removed = _carry_out(desk, lambda desk: desk.prune(older_than=seconds, dry_run=dry_run))
    one = counted(removed["incidents"], "incident")
    if json:
        output.write(output.json_line(removed))
    elif dry_run:
        output.write(f"{one} would be removed")
    else:
        log, messages = (
            counted(removed["log"], "log line"),
            counted(removed["messages"], "message"),
        )
        agents = counted(removed["agents"], "ended agent")
        output.write(f"{one}, {log}, {messages} and {agents} removed")
