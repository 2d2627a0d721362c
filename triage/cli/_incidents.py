"""`triage incidents`: what has failed, and what is done about it."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from typing import Any

from triage import UsageError
from triage.incidents import Incident, IncidentDesk

from ._incidents_desk import Options, carry_out, desk_of, you
from ._incidents_seen import Command, as_json, counted, detected, line, listed, logged, one
from ._run import _note, _write
from ._runs import FAILED, json_given, shown
from ._runs_list import length_of

_REPORTED = {
    "message", "agent_id", "agent_type", "task_id", "run_id", "stack_trace", "files", "key",
}  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Carry out the command; its exit code. Raises UsageError for what cannot be begun."""
    if getattr(options, "limit", 1) < 1:
        raise UsageError(f"--limit must be a whole number from 1, not {options.limit}")
    command = _COMMANDS[options.what](options)
    # What modules and functions print must not get between a program and the answer it reads.
    with contextlib.redirect_stdout(sys.stderr):
        desk = desk_of(options)

    async def work(desk: IncidentDesk) -> Any:
        with contextlib.redirect_stdout(sys.stderr):
            return await command.work(desk)

    return carry_out(desk, work, command.say)


def _answered(options: Options, text: Callable[[Any], str]) -> Callable[[Any], int | None]:
    """How the answer of an operation is told: its JSON, or a line."""

    def say(answer: dict[str, Any]) -> int | None:
        _write(line(answer) if options.json else shown(text(answer), 500))
        if answer["success"]:
            return None
        if not options.json:
            _note(str(answer.get("error") or answer.get("message") or "it failed"))
        return FAILED

    return say


def _handle(options: Options) -> Command:
    def text(answer: dict[str, Any]) -> str:
        details = answer["details"]
        retry = f"retry {details['retry_attempt']} of {details['max_retries']}"
        ended = "done" if answer["success"] else "failed"
        told = ", told" if details["message_sent"] else ""
        return f"{answer['error_id']}: {answer['recovery_action']}, {retry}: {ended}{told}"

    return Command(lambda desk: desk.handle(options.error_id), _answered(options, text))


def _recover(options: Options) -> Command:
    def text(answer: dict[str, Any]) -> str:
        new = answer["new_agent_id"]
        return f"{answer['task_id']}: {answer['message']}{'' if new is None else f', as {new}'}"

    by = _by(options)
    strategy = options.strategy
    nobody = options.desk is None and not options.agents and not options.hooks
    if nobody and strategy not in ("manual", "fallback"):
        raise UsageError(
            f"say what carries out {strategy}: --hook {strategy}=module:function, or --agent module:name"
        )
    return Command(
        lambda desk: desk.recover(options.task, strategy, by=by), _answered(options, text)
    )


def _escalate(options: Options) -> Command:
    by = _by(options)
    return Command(
        lambda desk: desk.escalate(options.error_id, options.level, by=by),
        _answered(options, lambda answer: f"{answer['escalation_level']}: {_message_of(answer)}"),
    )


def _message_of(answer: dict[str, Any]) -> str:
    return str(answer["escalation_message"])


def _ack(options: Options) -> Command:
    by = _by(options)
    return Command(
        lambda desk: desk.acknowledge(options.error_id, by=by, note=options.note),
        _answered(options, _status),
    )


def _resolve(options: Options) -> Command:
    by = _by(options)
    return Command(
        lambda desk: desk.resolve(
            options.error_id, by=by, outcome=options.outcome, note=options.note
        ),
        _answered(options, _status),
    )


def _status(answer: dict[str, Any]) -> str:
    return f"{answer['error_id']} is {answer['status']}"


def _by(options: Options) -> str:
    return you() if options.by is None else str(options.by)


def _report(options: Options) -> Command:
    given = _given(options)

    def say(one: Incident) -> None:
        told = (
            f"{one.error_id}: {one.level}, {one.action}, seen {_counted(one.occurrences, 'time')}"
        )
        _write(line(as_json(one)) if options.json else told)

    return Command(lambda desk: desk.report(**given), say)


def _given(options: Options) -> dict[str, Any]:
    """What `report` takes. Raises UsageError for JSON that is no report."""
    names = ("agent_id", "agent_type", "task_id", "run_id", "files", "key")
    given = {name: getattr(options, name) for name in names}
    given = {name: value for name, value in given.items() if value is not None}
    if options.message != "-":
        return {"message": options.message, **given}
    read = json_given("the report", sys.stdin.read())
    if not isinstance(read, dict):
        raise UsageError(f"the report must be a JSON object, not {type(read).__name__}")
    for name in read:
        if name not in _REPORTED:
            fields = ", ".join(sorted(_REPORTED))
            raise UsageError(f"the report has a field {shown(name, 40)!r}; known are {fields}")
    return {**read, **given}


def _prune(options: Options) -> Command:
    seconds = length_of(options.older_than)

    def say(removed: dict[str, int]) -> None:
        if options.json:
            _write(line(removed))
        elif options.dry_run:
            _write(f"{_counted(removed['incidents'], 'incident')} would be removed")
        else:
            one = _counted(removed["incidents"], "incident")
            rest = [_counted(removed["log"], "log line"), _counted(removed["messages"], "message")]
            _write(f"{one} removed, with {' and '.join(rest)}; {removed['agents']} ended agents")

    return Command(lambda desk: desk.prune(older_than=seconds, dry_run=options.dry_run), say)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


_COMMANDS: dict[str, Callable[[Options], Command]] = {
    "detect": detected,
    "list": listed,
    "show": one,
    "handle": _handle,
    "recover": _recover,
    "escalate": _escalate,
    "ack": _ack,
    "resolve": _resolve,
    "report": _report,
    "log": logged,
    "stats": counted,
    "prune": _prune,
}
