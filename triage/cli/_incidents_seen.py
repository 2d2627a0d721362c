"""What `triage incidents` shows: failures that were found, one of them, the log, numbers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple

from triage.incidents import Incident, IncidentDesk, LogEntry, Message
from triage.incidents._texts import iso
from triage.redact import redact

from ._incidents_desk import Options
from ._pages import print_lines, table
from ._run import _note, _write
from ._runs import moment, now, shown, span
from ._show import Line

_STYLES = {"low": "dim", "medium": "yellow", "high": "red", "critical": "bold red"}
_FOUND = ("error", "severity", "retryable", "agent", "task", "time", "message")
_LISTED = ("error", "severity", "status", "seen", "times", "retry", "agent", "task", "message")
_LOGGED = ("time", "error", "did", "by", "what")
_TIMES = ("next_attempt_at", "ack_due", "lease_until", "first_seen", "last_seen", "resolved_at")
_UNTOLD = ("id", "stamp")
_CALLED = {
    "severity": "route", "level": "severity", "message": "error_message",
    "action": "recommended_action", "files": "files_affected",
}  # fmt: skip


class Command(NamedTuple):
    """What a command does with the desk, and how that is told; the exit code of telling, None for 0."""

    work: Callable[[IncidentDesk], Awaitable[Any]]
    say: Callable[[Any], int | None]


def line(value: object) -> str:
    """A value as a line of JSON, without secrets."""
    return json.dumps(_hidden(value), allow_nan=False)


def _hidden(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {name: _hidden(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(item) for item in value]
    return value


def detected(options: Options) -> Command:
    def say(answer: dict[str, Any]) -> None:
        errors = answer["errors"]
        if options.json:
            _write(line(answer))
            return
        rows = [
            (
                one["error_id"],
                one["severity"],
                "yes" if one["retryable"] else "no",
                _id(one["agent_id"]),
                _id(one["task_id"]),
                one["timestamp"],
                shown(one["error_message"]),
            )
            for one in errors
        ]
        if rows:
            table(_FOUND, rows, styled="severity", styles=_STYLES)
        found = answer["errors_found"]
        if not found:
            _note("nothing that nobody has handled")
        elif found > len(errors):
            _note(f"these are the newest {len(errors)} of {found}; --limit shows more")

    return Command(lambda desk: desk.detect(full=options.full, limit=options.limit), say)


def listed(options: Options) -> Command:
    def say(found: Sequence[Incident]) -> None:
        incidents, time = found[: options.limit], now()
        if options.json:
            for one in incidents:
                _write(line(as_json(one)))
        elif incidents:
            rows = [_row(one, time) for one in incidents]
            table(_LISTED, rows, styled="severity", styles=_STYLES)
        if not found:
            _note("no incident")
        elif len(found) > len(incidents):
            _note(f"these are the newest {len(incidents)}; --limit shows more")

    return Command(lambda desk: desk.incidents(options.status, limit=options.limit + 1), say)


def _id(text: str | None) -> str:
    return "-" if text is None else shown(text, 128)


def _row(one: Incident, time: float) -> tuple[str, ...]:
    return (
        one.error_id,
        str(one.level),
        str(one.status),
        f"{span(time - one.last_seen)} ago",
        str(one.occurrences),
        f"{one.attempt} of {one.max_retries}",
        _id(one.agent_id or one.agent_type or None),
        _id(one.task_id or one.run_id),
        shown(one.message, 80),
    )


def as_json(one: Incident) -> dict[str, Any]:
    """An incident as a JSON object; `severity` is its level, `route` what a run would do about it."""
    told: dict[str, Any] = {"error_id": one.error_id}
    for name, value in one._asdict().items():
        if name not in _UNTOLD:
            known = iso(value) if name in _TIMES and value is not None else value
            told[_CALLED.get(name, name)] = known
    return told


def one(options: Options) -> Command:
    async def work(desk: IncidentDesk) -> Any:
        one = await desk.incident(options.error_id)
        return one, await desk.log(options.error_id), await desk.messages(of=options.error_id)

    def say(found: tuple[Incident, list[LogEntry], list[Message]]) -> None:
        one, log, messages = found
        if options.json:
            told = {
                "log": [_entry(entry) for entry in log],
                "messages": [_message(message) for message in messages],
            }
            _write(line({**as_json(one), **told}))
        else:
            print_lines([*_page(one), *_after(one, log, messages)])

    return Command(work, say)


def _page(one: Incident) -> Iterator[Line]:
    style = _STYLES[one.level]
    yield Line("", f"bold {style}", f"{one.error_id}  {one.level}  {one.status}")
    yield Line("message", style, one.message)
    cause = "" if one.cause is None else f" ({one.cause})"
    yield Line("diagnosis", "", f"{one.failure_type}{cause}, {one.severity}")
    retryable = "retryable" if one.retryable else "not retryable"
    yield Line("recommended", "", f"{one.action}, {retryable}")
    agent = " ".join(filter(None, (one.agent_type, one.agent_id)))
    for label, text in (("agent", agent), ("task", one.task_id), ("run", one.run_id)):
        if text:
            yield Line(label, "", text)
    if one.files:
        yield Line("files", "", ", ".join(one.files))
    yield Line("seen", "", f"{moment(one.first_seen)} to {moment(one.last_seen)}")
    yield Line("times", "", f"{one.occurrences}, found in {one.source}")
    yield Line("retries", "", f"{one.attempt} of {one.max_retries}, by {one.strategy}")


def _after(one: Incident, log: list[LogEntry], messages: list[Message]) -> Iterator[Line]:
    time = now()
    if one.owner is not None and one.lease_until is not None:
        left = max(0.0, one.lease_until - time)
        yield Line("recovered by", "yellow", f"{one.owner}, whose lease lasts {span(left)}")
    if one.next_attempt_at is not None:
        yield Line("next", "yellow", f"{moment(one.next_attempt_at)}")
    if one.escalation_level is not None:
        unless = "" if one.ack_due is None else f"; the next role hears {moment(one.ack_due)}"
        yield Line("escalated", "yellow", f"to {one.escalation_level}{unless}")
    if one.acknowledged_by is not None:
        yield Line("has it", "green", one.acknowledged_by)
    for entry in log:
        yield Line("log", "dim", _told(entry))
    for message in messages:
        yield Line("message", "dim", f"{message.status}: {message.kind} to {message.role}")


def _told(entry: LogEntry) -> str:
    text = f": {entry.text}" if entry.text else ""
    return f"{moment(entry.at)}  {entry.by}  {entry.verb}{text}"


def _entry(entry: LogEntry) -> dict[str, Any]:
    told = {**entry._asdict(), "at": iso(entry.at)}
    number = told.pop("incident")
    return {"error_id": None if number is None else f"err-{number:03d}", **told}


def _message(message: Message) -> dict[str, Any]:
    sent = None if message.sent_at is None else iso(message.sent_at)
    kept = ("role", "kind", "key", "text", "status", "attempts")
    return {**{name: getattr(message, name) for name in kept}, "sent_at": sent}


def logged(options: Options) -> Command:
    def say(found: Sequence[LogEntry]) -> None:
        if options.json:
            for entry in found:
                _write(line(_entry(entry)))
        elif found:
            rows = [
                (
                    moment(entry.at),
                    "-" if entry.incident is None else f"err-{entry.incident:03d}",
                    shown(entry.verb, 40),
                    shown(entry.by, 64),
                    shown(entry.text) or "-",
                )
                for entry in found
            ]
            table(_LOGGED, rows, styled="did", styles={entry.verb: "cyan" for entry in found})
        else:
            _note("nothing was done yet")

    return Command(lambda desk: desk.log(options.error_id, limit=options.limit), say)


def counted(options: Options) -> Command:
    def say(numbers: dict[str, Any]) -> None:
        if options.json:
            _write(line(numbers))
            return
        mean = numbers["mean_time_to_recover_s"]
        _write(f"{numbers['incidents']} incidents, {numbers['open']} open")
        for title in ("by_status", "open_by_severity", "messages", "agents"):
            counts = ", ".join(f"{word} {count}" for word, count in numbers[title].items() if count)
            _write(f"{title.replace('_', ' ')}: {counts or 'none'}")
        _write(f"mean time to recover: {'unknown' if mean is None else span(mean)}")

    return Command(lambda desk: desk.stats(), say)
