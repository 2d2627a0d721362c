"""`triage run`: import the function, run it, show what happens, say how it ended."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triage import (
    Agent,
    FailurePolicy,
    Limits,
    Report,
    RunState,
    TriageError,
    TriageSuspendedError,
    UsageError,
    fold,
)
from triage.events import Event
from triage.reports import report_of

from ._show import Progress, clean, printable

if TYPE_CHECKING:
    from rich.console import Console

DONE, FAILED, SUSPENDED = 0, 1, 3
_OWN_OPTIONS = ("policy", "attempts", "seconds", "cost")


class Follower:
    """Keeps the events of a run, and shows them."""

    def __init__(self, progress: Progress | None) -> None:
        self.events: list[Event] = []
        self._progress = progress

    async def follow(self, agent: Agent[Any], task: str, given: dict[str, Any]) -> None:
        """Run to the end; raises what the run raises."""
        async for event in agent.events(task, **given):
            self.events.append(event)
            if self._progress is not None:
                self._progress(event)


def run(options: argparse.Namespace) -> int:
    """Carry out the command; its exit code. Raises UsageError for what cannot be run."""
    import anyio

    given = _given(options.args)
    follower = Follower(None if options.quiet else Progress(_console()))
    error: Exception | None = None
    # What the function prints must not get between a program and the result it reads.
    with contextlib.redirect_stdout(sys.stderr):
        agent = _agent(options)
        try:
            anyio.run(follower.follow, agent, options.task, given)
        except Exception as raised:
            if isinstance(raised, UsageError) and not follower.events:
                raise
            error = raised
    state = fold(follower.events)
    if options.json:
        _write(json.dumps(_report(follower.events, state, error), allow_nan=False))
    elif error is None and state.result is not None:
        _write(_text(state.result))
    if error is None:
        return DONE
    if isinstance(error, TriageSuspendedError):
        _note(f"the run waits for an answer: {error.question}")
        _note(
            f"token {error.token}: agent.resume(token, action) goes on with it, once, where the run "
            "is kept; one that is kept in memory only has ended with this command"
        )
        return SUSPENDED
    _note(str(error) if isinstance(error, TriageError) else f"{type(error).__name__}: {error}")
    if options.report is not None:
        made = error.report if isinstance(error, TriageError) else None
        told(report_of(error) if made is None else made, options)
    return FAILED


def told(report: Report, options: argparse.Namespace) -> None:
    """Print a report as `--report` and `--audience` ask for it."""
    forms = {"markdown": report.to_markdown, "text": report.to_text, "json": report.to_json}
    _write(printable(forms[options.report](options.audience).rstrip("\n")))


# What is to be run --------------------------------------------------------------------------------


def _agent(options: argparse.Namespace) -> Agent[Any]:
    found = _found(options.function)
    if isinstance(found, Agent):
        own = [f"--{name}" for name in _OWN_OPTIONS if getattr(options, name) is not None]
        if own:
            raise UsageError(
                f"{options.function} is an Agent, which has options of its own; leave out "
                f"{', '.join(own)}, or name the function it wraps"
            )
        return found
    policy = None if options.policy is None else FailurePolicy.from_file(options.policy)
    limits: dict[str, Any] = {}
    for name, field in (("attempts", "attempts"), ("seconds", "seconds"), ("cost", "cost_usd")):
        value = getattr(options, name)
        if value is not None:
            limits[field] = value
    return Agent(found, policy, limits=Limits(**limits))


def _found(place: str) -> Any:
    """What `module:name` names, imported from the current directory."""
    module_name, colon, path = place.partition(":")
    if not colon or not module_name or not path:
        raise UsageError(f"{place!r} names no function; write module:function, as in agents:book")
    if module_name.endswith(".py") or "/" in module_name or "\\" in module_name:
        dotted = module_name.removesuffix(".py").replace("\\", "/").strip("./").replace("/", ".")
        raise UsageError(f"{module_name} is a file; write its module: {dotted}:{path}")
    value: Any = _module(module_name)
    for name in path.split("."):
        if not hasattr(value, name):
            raise UsageError(f"{place}: there is no {name!r}{_nearest(name, dir(value))}")
        value = getattr(value, name)
    return value


def _module(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(f"there is no module {name!r}; run triage in its directory") from None
        raise UsageError(f"{name} needs the module {error.name!r}; install it") from error
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}"
        raise UsageError(f"{name} cannot be imported: {what}; it must be importable") from error


def _nearest(name: str, names: list[str]) -> str:
    from difflib import get_close_matches

    public = [known for known in names if not known.startswith("_")]
    close = get_close_matches(name, public, n=1)
    return f"; did you mean {close[0]!r}?" if close else "; name a function of the module"


def _given(args: list[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for text in args:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--arg {text!r} must be name=value, as in --arg city=Porto")
        if name in given:
            raise UsageError(f"--arg {name} is given twice; give it once")
        try:
            given[name] = json.loads(value)
        except (ValueError, RecursionError):
            given[name] = value
    return given


# What is said -------------------------------------------------------------------------------------


def _report(events: list[Event], state: RunState, error: Exception | None) -> dict[str, Any]:
    usage = state.usage
    seconds = events[-1].time - events[0].time if events else 0.0
    report: dict[str, Any] = {
        "status": state.status,
        "result": state.result,
        "attempts": state.attempt,
        "steps": state.all_steps,
        "usage": {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cost_usd": usage.cost_usd,
            "calls": usage.calls,
        },
        "seconds": round(max(0.0, seconds), 3),
        "run_id": state.run_id,
    }
    if error is not None:
        report["error"] = clean(f"{type(error).__name__}: {error}", 2000)
    if state.history and state.status != "done":
        report["failure_type"] = state.history[-1].failure_type.value
    if isinstance(error, TriageSuspendedError):
        report |= {"question": error.question, "token": error.token}
    return report


def _text(result: Any) -> str:
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, indent=2)
    return printable(text)


def _write(text: str) -> None:
    """On standard output, whatever its encoding."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)  # noqa: T201


def _note(text: str) -> None:
    print(f"triage: {clean(text, 2000)}", file=sys.stderr)  # noqa: T201 - a command line


def _console(*, error: bool = True) -> Console | None:
    """A rich console on standard error, or on standard output; None without rich."""
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(stderr=error, highlight=False, markup=False, emoji=False)
