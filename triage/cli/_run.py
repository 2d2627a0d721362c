"""`triage run`: import the function, run it, show what happens, say how it ended."""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
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
from triage._function import fingerprint
from triage.events import Event
from triage.reports import report_of

from ._show import Progress, clean, printable

if TYPE_CHECKING:
    from rich.console import Console

    from triage.stores import Store

DONE, FAILED, SUSPENDED = 0, 1, 3
_OWN_OPTIONS = ("policy", "attempts", "seconds", "cost")


class Follower:
    """Keeps the events of a run, and shows them. progress: None shows nothing."""

    def __init__(self, progress: Progress | None) -> None:
        self.events: list[Event] = []
        self._progress = progress

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if self._progress is not None:
            self._progress(event)


def watched(agent: Agent[Any], store: Store | None, watcher: Callable[[Event], None]) -> Agent[Any]:
    """The same agent, with one who watches, and a durable store where one is given."""
    config = agent._config  # noqa: SLF001 - an agent's options are its own, and it is ours
    config = replace(config, observers=(*config.observers, watcher), plain=False, busy=True)
    if store is not None:
        code = fingerprint(agent._function)  # noqa: SLF001 - as above
        config = replace(config, store=store, durable=True, code=code)
    again = copy.copy(agent)
    again._config = config  # noqa: SLF001 - as above
    return again


def run(options: argparse.Namespace) -> int:
    """Carry out the command; its exit code. Raises UsageError for what cannot be run."""
    given = _given(options.args)
    for name in ("task", "run_id"):
        if name in given:
            raise UsageError(f"--arg {name} is none of the function's arguments; leave it out")
    follower = Follower(None if options.quiet else Progress(_console()))
    # What the function prints must not get between a program and the result it reads.
    with contextlib.redirect_stdout(sys.stderr):
        named = _agent(options)
        store = _kept_in(options, named)
        error = _ended(watched(named, store, follower), store, options, given, follower)
    state = fold(follower.events)
    if options.json:
        _write(json.dumps(_report(follower.events, state, error), allow_nan=False))
    elif error is None and state.result is not None:
        _write(_text(state.result))
    if error is None:
        return DONE
    if isinstance(error, TriageSuspendedError):
        _note(f"the run waits for an answer: {error.question}")
        if store is not None:
            _note(f"token {error.token}: triage runs resume TOKEN {options.function} goes on, once")
            return SUSPENDED
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


def _ended(
    agent: Agent[Any],
    store: Store | None,
    options: argparse.Namespace,
    given: dict[str, Any],
    follower: Follower,
) -> Exception | None:
    """Run to the end; the error that the run ends with. Raises UsageError where it did not begin."""
    import anyio

    async def work() -> None:
        try:
            await agent.run(options.task, run_id=options.run_id, **given)
        finally:
            if store is not None:
                with anyio.CancelScope(shield=True):
                    await store.close()

    try:
        anyio.run(work)
    except KeyboardInterrupt:
        if store is not None and follower.events:
            run_id = follower.events[0].run_id
            _note(f"the run is kept: triage runs recover {run_id} {options.function} goes on")
        raise
    except Exception as error:
        # Its start alone is no run: it was not taken.
        if isinstance(error, UsageError) and len(follower.events) < 2:  # noqa: PLR2004 - as said
            raise
        return error
    return None


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
    return Agent(found, policy, limits=_limits(options))


def _limits(options: argparse.Namespace) -> Limits:
    """The limits of the options. Raises UsageError, which names the option."""
    limits = Limits()
    for name, field in (("attempts", "attempts"), ("seconds", "seconds"), ("cost", "cost_usd")):
        value = getattr(options, name)
        if value is None:
            continue
        try:
            limits = replace(limits, **{field: value})
        except UsageError as error:
            wrong, _, _ = str(error).partition(";")
            raise UsageError(wrong.replace(f"Limits.{field}", f"--{name}")) from error
    return limits


def _kept_in(options: argparse.Namespace, agent: Agent[Any]) -> Store | None:
    """The durable store the run is kept in, None for none. Raises UsageError for an id without one."""
    from ._runs import durable, store_of

    if options.store is not None:
        return store_of(options.store, new=True)
    if durable(agent.store):
        return agent.store
    if options.run_id is not None:
        return store_of(None, new=True)
    return None


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
        raise UsageError(f"{name} cannot be imported: {what}{_raised_at(error)}") from error


def _raised_at(error: BaseException) -> str:
    """Where an import failed; a SyntaxError says so itself."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or isinstance(error, SyntaxError):
        return ""
    return f" ({frames[-1].filename}, line {frames[-1].lineno})"


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
