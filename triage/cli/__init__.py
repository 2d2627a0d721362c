"""`triage` in a terminal: run an agent function, see to its runs, diagnose what was recorded, score a
classifier.

`Progress` shows a run as it happens and is of use in programs of one's own, too.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from triage import UsageError, __version__

from ._incidents_options import add_incidents, add_supervise
from ._runs_options import add_report, add_runs
from ._show import Progress, clean

__all__ = ["Progress", "main"]

_FORM = argparse.RawDescriptionHelpFormatter

CUT_OFF, MISUSED, INTERRUPTED = 1, 2, 130
_READING = """\
exit codes:
  0    all of it was read
  1    some of it could not be read, or not in full; the rest was
  2    it was never begun: no such file, format, classifier or policy, bad arguments
  130  interrupted
"""
_ALL_CODES = """\
exit codes:
  0    done
  1    a run ended with an error of its own; some of a recording could not be read
  2    it was never begun: something that is named is not there, or the arguments are wrong
  3    a run waits for an answer
  130  interrupted
"""
_CODES = """\
exit codes:
  0    the run is done; its result is on standard output
  1    the run ended with an error of its own: escalated, aborted or fatal
  2    it was never started: no such module or function, a bad policy file, bad arguments
  3    it waits for an answer: the question and the token are on standard error
  130  interrupted

The result goes to standard output, everything else to standard error, what the function prints
included. Progress is in colour with rich: pip install "triage-recovery[cli]".
"""


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, instead of printing the usage over it."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


if TYPE_CHECKING:
    _Commands: TypeAlias = argparse._SubParsersAction[_Parser]  # noqa: SLF001 - it has no public name


def _parser() -> _Parser:
    parser = _Parser(
        prog="triage",
        description="Know why an agent failed, recover, lose nothing, pay for nothing twice.",
        epilog=_ALL_CODES,
        formatter_class=_FORM,
    )
    parser.add_argument("--version", action="version", version=f"triage {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)
    for add in (
        _add_run, _add_diagnose, _add_eval, _add_corrections, add_runs, _add_approve, add_incidents,
        add_supervise,
    ):  # fmt: skip
        add(commands)
    return parser


def _add_run(commands: _Commands) -> None:
    run = commands.add_parser(
        "run",
        help="run an agent function on a task",
        description="Run an agent function of the current directory on a task, with recovery.",
        epilog=_CODES,
        formatter_class=_FORM,
    )
    run.set_defaults(module="_run")
    run.add_argument(
        "function", metavar="module:function", help="an agent function, or an Agent as it is"
    )
    run.add_argument("task", help="the task, given to the function as its first argument")
    run.add_argument("--policy", metavar="policy.toml", help="what to do about which failure")
    run.add_argument("--attempts", metavar="N", type=int, help="calls of the function (10)")
    run.add_argument("--seconds", metavar="S", type=float, help="for the whole run (no limit)")
    run.add_argument("--cost", metavar="USD", type=float, help="for the whole run (no limit)")
    run.add_argument(
        "--arg",
        metavar="name=value",
        action="append",
        default=[],
        dest="args",
        help="another argument of the function; the value is read as JSON, else taken as text",
    )
    run.add_argument(
        "--store",
        metavar="TEXT",
        help="keep the run, in such as sqlite:///runs.db (with --run-id: the environment's TRIAGE_STORE)",
    )
    run.add_argument("--run-id", metavar="ID", help="the id it is kept under (one is made)")
    run.add_argument("--json", action="store_true", help="one line of JSON instead of the result")
    run.add_argument("--quiet", action="store_true", help="show no progress")
    add_report(run)


def _add_diagnose(commands: _Commands) -> None:
    diagnose = commands.add_parser(
        "diagnose",
        help="say why recorded attempts failed, and what a policy would do",
        description="Read recorded conversations, spans, journals or steps; say why each failed.",
        epilog=_READING,
        formatter_class=_FORM,
    )
    diagnose.set_defaults(module="_diagnose")
    _add_source(diagnose)
    diagnose.add_argument("--policy", metavar="policy.toml", help="what to do about which failure")
    diagnose.add_argument(
        "--tools", metavar="FILE", help="the tools that exist, as JSON: names, or declarations"
    )
    diagnose.add_argument("--task", metavar="TEXT", help="the task, in place of the recorded one")
    diagnose.add_argument(
        "--ground",
        action="store_true",
        help="look for facts in the last answer that no result holds (by the rules only)",
    )
    diagnose.add_argument("--json", action="store_true", help="one line of JSON for each attempt")


def _add_eval(commands: _Commands) -> None:
    score = commands.add_parser(
        "eval",
        help="score a classifier on labelled records",
        description="Score a classifier on labelled records, beside constant answers.",
        epilog=_READING,
        formatter_class=_FORM,
    )
    score.set_defaults(module="_eval")
    _add_source(score)
    score.add_argument(
        "--label-field",
        metavar="NAME",
        help="where a record has its label (mapped_labels, labels, label or failure_type)",
    )
    score.add_argument(
        "--map",
        metavar="word=type",
        action="append",
        default=[],
        help="another word for a failure type; may be repeated",
    )
    score.add_argument(
        "--healthy-source",
        metavar="NAME",
        action="append",
        default=[],
        help="a `source` whose records without a label went well (all whose outcome says so)",
    )
    score.add_argument("--json", action="store_true", help="one line of JSON")


def _add_corrections(commands: _Commands) -> None:
    corrections = commands.add_parser(
        "corrections",
        help="show what was corrected, and a rule for it",
        description="Show the corrections of a file, and for each a rule to begin with.",
    )
    corrections.set_defaults(module="_corrections")
    corrections.add_argument("file", metavar="FILE", nargs="?", default="triage-corrections.jsonl")
    corrections.add_argument("--json", action="store_true", help="one line of JSON for each")


def _add_approve(commands: _Commands) -> None:
    approve = commands.add_parser(
        "approve",
        help="see and answer what a run that plans first waits to have approved",
        description=(
            "Answer what a run that plans first waits to have approved; whoever recovers it goes on. "
            "Without --yes, --reject or --plan it shows what is asked, and answers nothing."
        ),
        formatter_class=_FORM,
    )
    approve.set_defaults(module="_approve")
    approve.add_argument("run", metavar="RUN", help="its id, or the beginning of it")
    approve.add_argument(
        "--store",
        metavar="TEXT",
        help="where the runs are, such as sqlite:///runs.db (the environment's TRIAGE_STORE)",
    )
    answer = approve.add_mutually_exclusive_group()
    answer.add_argument("--yes", action="store_true", help="it may be run")
    answer.add_argument(
        "--reject", metavar="REASON", help="it may not be run; the planner is told why"
    )
    answer.add_argument("--plan", metavar="FILE", help="run the plan in this file instead")
    answer.add_argument("--save", metavar="FILE", help="write what is asked about to a file")
    answer.add_argument("--json", action="store_true", help="show it as one line of JSON")
    approve.add_argument("--by", metavar="NAME", default="", help="who answers")


def _add_source(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "files", metavar="FILE", nargs="+", help="a recording, also gzipped; - is standard input"
    )
    command.add_argument(
        "--format",
        metavar="NAME",
        help="openai, responses, anthropic, otlp, journal or steps (found out)",
    )
    command.add_argument(
        "--classifier",
        metavar="module:name",
        default="rules",
        help="an object, class or function of the current directory (rules)",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code. argv: the arguments, None takes the process' own."""
    try:
        options = _parser().parse_args(argv)
        command = import_module(f".{options.module}", __name__)
        return int(command.run(options))
    except UsageError as error:
        print(f"triage: {clean(str(error), 2000)}", file=sys.stderr)  # noqa: T201 - a command line
        return MISUSED
    except (
        BrokenPipeError
    ):  # whoever read the output has enough, and nothing may be flushed at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CUT_OFF
    except KeyboardInterrupt:
        print("triage: interrupted", file=sys.stderr)  # noqa: T201 - a command line
        return INTERRUPTED
    except SystemExit as stop:  # of --help and --version
        return stop.code if isinstance(stop.code, int) else 0
