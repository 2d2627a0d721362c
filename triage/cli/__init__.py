"""`triage` in a terminal: run an agent function and watch it fail, be diagnosed and recover.

`Progress` shows a run as it happens and is of use in programs of one's own, too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from triage import UsageError, __version__

from ._show import Progress, clean

__all__ = ["Progress", "main"]

MISUSED, INTERRUPTED = 2, 130
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


def _parser() -> _Parser:
    form = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="triage",
        description="Know why an agent failed, recover, lose nothing, pay for nothing twice.",
        epilog=_CODES,
        formatter_class=form,
    )
    parser.add_argument("--version", action="version", version=f"triage {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)
    run = commands.add_parser(
        "run",
        help="run an agent function on a task",
        description="Run an agent function of the current directory on a task, with recovery.",
        epilog=_CODES,
        formatter_class=form,
    )
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
    run.add_argument("--json", action="store_true", help="one line of JSON instead of the result")
    run.add_argument("--quiet", action="store_true", help="show no progress")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code. argv: the arguments, None takes the process' own."""
    try:
        options = _parser().parse_args(argv)
        from ._run import run

        return run(options)
    except UsageError as error:
        print(f"triage: {clean(str(error), 2000)}", file=sys.stderr)  # noqa: T201 - a command line
        return MISUSED
    except KeyboardInterrupt:
        print("triage: interrupted", file=sys.stderr)  # noqa: T201 - a command line
        return INTERRUPTED
    except SystemExit as stop:  # of --help and --version
        return stop.code if isinstance(stop.code, int) else 0
