"""The arguments of `triage incidents` and `triage supervise`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TypeAlias

    _Commands: TypeAlias = argparse._SubParsersAction[Any]  # noqa: SLF001 - it has no public name

STATUSES = (
    "detected", "waiting", "recovering", "escalated", "acknowledged",
    "recovered", "failed", "ignored",
)  # fmt: skip
STRATEGIES = (
    "restart", "retry", "increase_timeout", "wait_and_retry", "clear_cache", "fallback", "manual",
    "custom",
)  # fmt: skip
ENDS = ("recovered", "failed", "ignored")
_FORM = argparse.RawDescriptionHelpFormatter
_CODES = """\
exit codes:
  0    done
  1    it was tried and failed; the store failed; or the incident is closed, somebody else has it, or
       its time has not come
  2    it was never begun: no such incident, task, strategy, level or store, or the arguments are wrong
  130  interrupted

ERROR is the id of an incident, such as err-001.
"""
_SUPERVISE_CODES = """\
exit codes:
  0    it was told to stop, and has; with --once and --status: all is well
  1    the store failed; with --once: a recovery failed; with --status: it is not well, or has not been
       heard of
  2    it was never begun: no such agent, function, file or store, or the arguments are wrong

SIGTERM and SIGINT: begin nothing more, finish what is under way, give back the rest. A second one does
not wait. SIGUSR1: say how it does, on standard error.
"""


def add_incidents(commands: _Commands) -> None:
    """Add `incidents` and what it can do."""
    incidents = commands.add_parser(
        "incidents",
        help="see what has failed in a store; handle, escalate and close it",
        description="See what has failed in a store; handle, escalate and close it.",
        epilog=_CODES,
        formatter_class=_FORM,
    )
    table = incidents.add_subparsers(metavar="what", required=True)
    for add in (
        _detect, _list, _show, _handle, _recover, _escalate, _ack, _resolve, _report, _log, _stats,
        _prune,
    ):  # fmt: skip
        add(table)


def _command(table: _Commands, name: str, told: str, *, json: str = "one line of JSON") -> Any:
    """One of the commands, with what all of them take."""
    command = table.add_parser(
        name,
        help=told,
        description=f"{told[0].upper()}{told[1:]}.",
        epilog=_CODES,
        formatter_class=_FORM,
    )
    command.set_defaults(module="_incidents", what=name)
    _add_desk(command)
    command.add_argument("--json", action="store_true", help=json)
    return command


def _add_desk(command: Any) -> None:
    command.add_argument(
        "--store",
        metavar="TEXT",
        help="where the runs are, such as sqlite:///runs.db (the environment's TRIAGE_STORE)",
    )
    command.add_argument(
        "--desk",
        metavar="module:name",
        help="an IncidentDesk of the current directory, or what makes one, instead of all options",
    )
    command.add_argument("--owner", metavar="NAME", help="what the log calls who did it")


def _add_hooks(command: Any) -> None:
    command.add_argument(
        "--agent",
        metavar="module:name",
        action="append",
        default=[],
        dest="agents",
        help="an agent whose runs are gone on with; may be repeated",
    )
    command.add_argument(
        "--hook",
        metavar="strategy=module:function",
        action="append",
        default=[],
        dest="hooks",
        help="what carries a strategy out; may be repeated",
    )
    command.add_argument(
        "--deadline", metavar="S", type=float, help="seconds one recovery may take (3600)"
    )
    command.add_argument(
        "--on-in-doubt",
        choices=("escalate", "rerun"),
        help="a recovery that may have happened: ask a person, or do it again (rerun if agents are "
        "all that recovers, else escalate)",
    )


def _add_error(command: Any) -> None:
    command.add_argument("error_id", metavar="ERROR")


def _add_by(command: Any, *, note: bool = False) -> None:
    command.add_argument("--by", metavar="NAME", help="who says so (you)")
    if note:
        command.add_argument("--note", metavar="TEXT", default="", help="for the log")


def _detect(table: _Commands) -> None:
    command = _command(table, "detect", "find what has failed, and list what nobody has handled")
    command.add_argument(
        "--silent-for",
        metavar="S",
        type=float,
        help="seconds after which a run whose process was not heard of has lost it (60)",
    )
    command.add_argument("--full", action="store_true", help="read all of each source again")
    command.add_argument("--limit", metavar="N", type=int, default=100, help="list so many (100)")


def _list(table: _Commands) -> None:
    lines = "one line of JSON for each"
    command = _command(table, "list", "list incidents, those seen last first", json=lines)
    command.add_argument("--status", choices=STATUSES, help="of this status (all that are open)")
    command.add_argument("--limit", metavar="N", type=int, default=50, help="at most so many (50)")


def _show(table: _Commands) -> None:
    _add_error(_command(table, "show", "show what is known of an incident"))


def _handle(table: _Commands) -> None:
    command = _command(table, "handle", "do what the rules say: recover, wait, or ask a person")
    _add_error(command)
    _add_hooks(command)


def _recover(table: _Commands) -> None:
    told = "carry a strategy out for the newest open incident of a task or run"
    command = _command(table, "recover", told)
    command.add_argument("task", metavar="TASK", help="the id of a task or run")
    command.add_argument(
        "strategy", metavar="strategy", choices=STRATEGIES, help=", ".join(STRATEGIES)
    )
    _add_hooks(command)
    _add_by(command)


def _escalate(table: _Commands) -> None:
    command = _command(table, "escalate", "hand an incident to a role")
    _add_error(command)
    command.add_argument("level", metavar="LEVEL", help="a role, such as architect")
    _add_by(command)


def _ack(table: _Commands) -> None:
    command = _command(table, "ack", "say that somebody has it: no further role is told")
    _add_error(command)
    _add_by(command, note=True)


def _resolve(table: _Commands) -> None:
    command = _command(table, "resolve", "bring an incident to its end")
    _add_error(command)
    command.add_argument(
        "--outcome", choices=ENDS, default="recovered", help="how it ended (recovered)"
    )
    _add_by(command, note=True)


def _report(table: _Commands) -> None:
    command = _command(table, "report", "write down a failure of another system")
    command.add_argument(
        "message", metavar="TEXT", help="what went wrong; - reads a JSON object of all of it"
    )
    command.add_argument("--agent-id", metavar="ID", help="whose")
    command.add_argument("--agent-type", metavar="NAME", help="of what kind that agent is")
    command.add_argument("--task-id", metavar="ID", help="in which task")
    command.add_argument("--run-id", metavar="ID", help="in which run")
    command.add_argument(
        "--file", metavar="PATH", action="append", dest="files", help="affected; may be repeated"
    )
    command.add_argument("--key", metavar="TEXT", help="reported again under it, it is the same")


def _log(table: _Commands) -> None:
    lines = "one line of JSON for each"
    command = _command(table, "log", "show what was done, oldest first", json=lines)
    command.add_argument("error_id", metavar="ERROR", nargs="?", help="about one (all)")
    command.add_argument(
        "--limit", metavar="N", type=int, default=100, help="the newest so many (100)"
    )


def _stats(table: _Commands) -> None:
    _command(table, "stats", "count incidents, messages and agents")


def _prune(table: _Commands) -> None:
    command = _command(table, "prune", "remove incidents that have ended, with their log")
    command.add_argument(
        "--older-than",
        metavar="30d",
        required=True,
        help="that ended longer ago: 90s, 12h, 30d, 4w",
    )
    command.add_argument("--dry-run", action="store_true", help="say how many, and remove none")


def add_supervise(commands: _Commands) -> None:
    """Add `supervise`."""
    command = commands.add_parser(
        "supervise",
        help="detect, recover and tell until told to stop",
        description="Detect, recover and tell until told to stop. Any number may share a store.",
        epilog=_SUPERVISE_CODES,
        formatter_class=_FORM,
    )
    command.set_defaults(module="_supervise", what="supervise")
    _add_desk(command)
    _add_hooks(command)
    command.add_argument(
        "--sink",
        metavar="[role=]sink",
        action="append",
        default=[],
        dest="sinks",
        help="where messages go: log, file:PATH, an https URL (signed with the environment's "
        "TRIAGE_WEBHOOK_SECRET) or module:function; for one role, or for all that have none (log)",
    )
    command.add_argument(
        "--silent-for",
        metavar="S",
        type=float,
        help="seconds after which a run whose process was not heard of has lost it (60)",
    )
    command.add_argument(
        "--interval", metavar="S", type=float, default=5.0, help="seconds between looks (5)"
    )
    command.add_argument(
        "--at-once", metavar="N", type=int, default=10, help="recoveries at the same time (10)"
    )
    command.add_argument(
        "--grace",
        metavar="S",
        type=float,
        default=30.0,
        help="seconds that what is under way has to end once it is told to stop (30)",
    )
    command.add_argument(
        "--health", metavar="FILE", help="keep a line of JSON there on how it does"
    )
    instead = command.add_mutually_exclusive_group()
    instead.add_argument("--once", action="store_true", help="one round, and end")
    instead.add_argument(
        "--status", metavar="FILE", help="only say what such a line says; for health checks"
    )
    command.add_argument("--quiet", action="store_true", help="say nothing but what goes wrong")
