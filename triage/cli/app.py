"""The program `triage`: its commands, and how what goes wrong is said."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import getitem

from cyclopts import App, Argument, CycloptsError, Parameter
from cyclopts.completion.detect import ShellDetectionError
from cyclopts.exceptions import (
    MissingArgumentError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from triage import __version__
from triage.core.errors import TriageError, UnknownRun, UsageError

from .output import note
from .run import explained

DONE, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130
_CODES = """\
exit codes:
  0    done
  1    a run ended with an error, or a recording could not be read in full
  2    it was never begun: something named is not there, or bad arguments
  3    a run waits for an answer
  130  interrupted
"""
_COMMANDS = {
    "run": ("run", "Run an agent function on a task, with recovery."),
    "runs": ("runs", "See the runs of a store; recover, answer, end and remove them."),
    "approve": ("approve", "See and answer what a run waits to have approved."),
    "incidents": ("incidents", "See what has failed in a store; handle, escalate and close it."),
    "web": ("web", "Show the runs of a store as a page, and answer them there."),
    "supervise": ("supervise", "Detect, recover and tell until told to stop."),
    "worker": ("fleet:worker_app", "Take runs from a fleet's queues until told to stop."),
    "fleet": ("fleet", "Make the tables of a fleet, and see where its runs are."),
    "diagnose": ("diagnose", "Say why recorded attempts failed, and what a policy would do."),
    "init": ("init", "Write a policy file and a first agent that runs as it stands."),
    "doctor": ("doctor", "Look at Python, the extras, the store and the clock."),
}
"""The commands, each with its module, imported when it is needed; behind a colon, the name of its app."""

app = App(
    name="triage",
    help="Know why an agent failed, recover, lose nothing, pay for nothing twice.",
    help_format="plaintext",
    help_epilogue=_CODES,
    version=f"triage {__version__}",
    version_format="plaintext",
    default_parameter=Parameter(negative=(), show_default=False, allow_repeating=True),
    result_action="return_value",
    suppress_keyboard_interrupt=False,
    exit_on_error=False,
    print_error=False,
    help_on_error=False,
)
for _order, (_name, (_place, _help)) in enumerate(_COMMANDS.items()):
    _module, _, _own = _place.partition(":")
    app.command(f"triage.cli.{_module}:{_own or 'app'}", name=_name, help=_help, sort_key=_order)
app.register_install_completion_command()


def _too_many(command: str, given: Sequence[str]) -> str:
    """What is wrong with arguments that a command has no place for."""
    text = f"{command} has no place for {shlex.join(given)}"
    if command != "triage run":
        return text
    option = (
        given[0] if given[0].partition("=")[0].isidentifier() and "=" in given[0] else "NAME=VALUE"
    )
    return (
        f"{text}: a function is run on one task. Put a task of several words in quotes, and give the "
        f"function's other arguments as --arg {shlex.quote(option)}"
    )


def _by_position(command: str, error: UnknownOptionError) -> str | None:
    """What is wrong with an option for an argument that is given without one; None for any other."""
    option = error.token.keyword or error.token.value
    word = option.lstrip("-").partition("=")[0].casefold()
    places = _places(error.argument_collection)
    for name, said in places.items():
        if word == name.casefold() or word in said.casefold().split():
            usage = " ".join((command, *places))
            return f"{command} has no {option}: give {name} without an option, as in {usage}"
    return None


def _missing(command: str, error: MissingArgumentError) -> str | None:
    """What is wrong where an argument that is given by its position is missing; None for any other."""
    if error.argument is None or error.command_chain is None:
        return None
    arguments = reduce(getitem, error.command_chain, app).assemble_argument_collection()
    places = _places(one for one in arguments if one.required)
    name = error.argument.names[0]
    if name not in places:
        return None
    usage = " ".join((command, *places))
    return f"{command} needs {name}, as in {usage}: {places[name].rstrip('.')}"


def _places(arguments: Iterable[Argument]) -> dict[str, str]:
    """What each argument that is given by its position is, by its name."""
    found = [one for one in arguments if one.field_info.is_positional_only]
    return {one.names[0]: one.parameter.help or "" for one in found}


def run_command(argv: Sequence[str]) -> int:
    """Carry out the command line; the exit code."""
    try:
        return int(app(list(argv)) or DONE)
    except CycloptsError as error:
        command = " ".join(("triage", *(error.command_chain or ())))
        wrong = str(error).replace(", ...", " and others").rstrip(".")
        if isinstance(error, UnusedCliTokensError):
            wrong = _too_many(command, error.unused_tokens or ())
        elif isinstance(error, UnknownOptionError):
            wrong = _by_position(command, error) or wrong
        elif isinstance(error, MissingArgumentError):
            wrong = _missing(command, error) or wrong
        note(f"{wrong}; see {command} --help")
        return MISUSED
    except ShellDetectionError:
        note("which shell this is cannot be told; name it: --install-completion --shell bash")
        return MISUSED
    except (UsageError, UnknownRun) as error:
        note(str(error))
        return MISUSED
    except TriageError as error:
        note(explained(error))
        return FAILED
    except BrokenPipeError:
        # Whoever read the output has enough, and nothing may be flushed at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        note("interrupted")
        return INTERRUPTED
