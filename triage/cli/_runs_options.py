"""The arguments of `triage runs`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TypeAlias

    _Commands: TypeAlias = argparse._SubParsersAction[Any]  # noqa: SLF001 - it has no public name

STATUSES = (
    "running", "suspended", "dead_letter",
    "done", "escalated", "aborted", "fatal", "cancelled", "error",
)  # fmt: skip
ANSWERS = (
    "approve", "reject", "edit", "retry", "replan", "abort", "escalate", "happened", "rerun",
)  # fmt: skip
_FORM = argparse.RawDescriptionHelpFormatter
_CODES = """\
exit codes:
  0    done
  1    it could not be done: the store failed, the run is somebody else's, has ended, or failed
  2    it was never begun: no such run, store or function, or the arguments are wrong
  3    the run waits for an answer
  130  interrupted

RUN is the id of a run, or its beginning where no other run begins so.
"""
_AGENT = "the agent function, or the Agent, that the run was started with"


def add_report(command: Any) -> None:
    """Add how the report of a run that has failed is asked for."""
    command.add_argument(
        "--report",
        choices=("markdown", "text", "json"),
        help="if it has failed, a report of it in this form",
    )
    command.add_argument(
        "--audience",
        choices=("person", "developer"),
        default="developer",
        help="for whom the report is: a person sees no internals (developer)",
    )


def add_runs(commands: _Commands) -> None:
    """Add `runs` and what it can do."""
    runs = commands.add_parser(
        "runs",
        help="see the runs of a store; recover, answer, end and remove them",
        description="See the runs of a store; recover, answer, end and remove them.",
        epilog=_CODES,
        formatter_class=_FORM,
    )
    table = runs.add_subparsers(metavar="what", required=True)
    for add in (_list, _show, _recover, _resume, _resolve, _cancel, _prune):
        add(table)


def _command(table: _Commands, name: str, module: str, told: str) -> Any:
    """One of the commands, with what all of them take."""
    command = table.add_parser(
        name,
        help=told,
        description=f"{told[0].upper()}{told[1:]}.",
        epilog=_CODES,
        formatter_class=_FORM,
    )
    command.set_defaults(module=module, what=name)
    command.add_argument(
        "--store",
        metavar="TEXT",
        help="where the runs are, such as sqlite:///runs.db (the environment's TRIAGE_STORE)",
    )
    return command


def _list(table: _Commands) -> None:
    command = _command(table, "list", "_runs_list", "list runs, the newest first")
    command.add_argument("--status", choices=STATUSES, help="of this status only")
    command.add_argument("--agent", metavar="NAME", help="of this agent only")
    command.add_argument("--limit", metavar="N", type=int, default=50, help="at most so many (50)")
    command.add_argument("--json", action="store_true", help="one line of JSON for each")


def _show(table: _Commands) -> None:
    command = _command(table, "show", "_runs_show", "show what is known of a run")
    command.add_argument("run", metavar="RUN")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="all of it as one line of JSON")
    form.add_argument(
        "--events", action="store_true", help="its journal, one line of JSON an event"
    )
    add_report(command)


def _recover(table: _Commands) -> None:
    command = _command(table, "recover", "_runs_go", "go on with a run that its process has left")
    command.add_argument("run", metavar="RUN")
    _add_agent(command)
    command.add_argument("--task", metavar="TEXT", help="the task, where it could not be stored")
    command.add_argument(
        "--force",
        action="store_true",
        help="although its owner seems to live, or it is a dead letter",
    )


def _resume(table: _Commands) -> None:
    command = _command(table, "resume", "_runs_go", "answer a run by its token, and go on with it")
    command.add_argument(
        "token", metavar="TOKEN", help="as the run gave it; - reads standard input"
    )
    _add_agent(command)
    command.add_argument("answer", metavar="answer", choices=ANSWERS, help=", ".join(ANSWERS))
    command.add_argument(
        "--reason", metavar="TEXT", help="why; what retry and replan tell the next attempt"
    )
    command.add_argument(
        "--payload",
        metavar="JSON",
        help="for edit the arguments of the next attempt, for happened the result of the call",
    )


def _add_agent(command: argparse.ArgumentParser) -> None:
    command.add_argument("function", metavar="module:agent", help=_AGENT)
    command.add_argument("--policy", metavar="policy.toml", help="what to do about which failure")
    command.add_argument("--attempts", metavar="N", type=int, help="calls of the function (10)")
    command.add_argument("--seconds", metavar="S", type=float, help="for the whole run (no limit)")
    command.add_argument("--cost", metavar="USD", type=float, help="for the whole run (no limit)")
    command.add_argument(
        "--arg",
        metavar="name=value",
        action="append",
        default=[],
        dest="args",
        help="an argument that could not be stored; read as JSON, else taken as text",
    )
    command.add_argument(
        "--json", action="store_true", help="one line of JSON instead of the result"
    )
    command.add_argument("--quiet", action="store_true", help="show no progress")


def _resolve(table: _Commands) -> None:
    told = "answer a run that waits, without its token; whoever recovers it goes on"
    command = _command(table, "resolve", "_runs_end", told)
    command.add_argument("run", metavar="RUN")
    command.add_argument(
        "answer",
        choices=("happened", "rerun", "abort"),
        help="the call has happened; it may run (again); the run shall end",
    )
    command.add_argument(
        "--result", metavar="JSON", help="what the call that happened has given (null)"
    )


def _cancel(table: _Commands) -> None:
    command = _command(table, "cancel", "_runs_end", "end a run, whoever has it")
    command.add_argument("run", metavar="RUN")


def _prune(table: _Commands) -> None:
    command = _command(table, "prune", "_runs_list", "remove runs that have ended")
    command.add_argument(
        "--older-than", metavar="30d", help="that ended longer ago: 90s, 30m, 12h, 30d, 4w"
    )
    command.add_argument("--keep", metavar="N", type=int, help="all but the newest so many")
    command.add_argument("--dry-run", action="store_true", help="say how many, and remove none")
