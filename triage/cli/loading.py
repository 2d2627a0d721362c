"""Objects of the current directory that a command names, and agents made of them."""

from __future__ import annotations

import ast
import copy
import importlib
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from triage.core import Event, UsageError, nearest
from triage.engine import Agent, fingerprint
from triage.plan import Orchestrator
from triage.stores import Store
from triage.strategies import FailurePolicy, Limits

from .options import AgentOptions


def load(place: str) -> Any:
    """Import what `module:name` names from the current directory. Raises UsageError where it cannot."""
    module_name, colon, path = place.partition(":")
    if not colon or not module_name or not path:
        raise UsageError(f"{place!r} names no function; write module:function, as in agents:book")
    if module_name.endswith(".py") or "/" in module_name or "\\" in module_name:
        dotted = module_name.removesuffix(".py").replace("\\", "/").strip("./").replace("/", ".")
        raise UsageError(f"{module_name} is a file; write its module: {dotted}:{path}")
    value: Any = _module(module_name)
    for name in path.split("."):
        if not hasattr(value, name):
            public = (known for known in dir(value) if not known.startswith("_"))
            remedy = nearest(name, public) or "name a function of the module"
            raise UsageError(f"{place}: there is no {name!r}; {remedy}")
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
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        if isinstance(error, SyntaxError):  # says so itself
            where = ""
        what = f"{type(error).__name__}: {error}"
        raise UsageError(f"{name} cannot be imported: {what}{where}") from error


def load_function(option: str, place: str) -> Callable[..., Any]:
    """Import a function that an option names. Raises UsageError for anything else."""
    found = load(place)
    if not callable(found):
        raise UsageError(f"{option} {place} is no function but {type(found).__name__}")
    function: Callable[..., Any] = found
    return function


# Agents -------------------------------------------------------------------------------------------


def load_agent(place: str) -> Any:
    """Import an Agent, a function, or the agent under an Orchestrator."""
    found = load(place)
    return found.agent if isinstance(found, Orchestrator) else found


def agent_of(place: str, options: AgentOptions) -> Agent[Any]:
    """The Agent that a place names, or one of the function there. Raises UsageError for neither."""
    found = load_agent(place)
    if isinstance(found, Agent):
        named = ("policy", "attempts", "seconds", "cost")
        own = [f"--{name}" for name in named if getattr(options, name) is not None]
        if own:
            raise UsageError(
                f"{place} is an Agent, which has options of its own; leave out "
                f"{', '.join(own)}, or name the function it wraps"
            )
        return found
    policy = None if options.policy is None else FailurePolicy.from_file(options.policy)
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
    return Agent(found, policy, limits=limits)


def watched(
    agent: Agent[Any], store: Store | None, watcher: Callable[[Event], None] | None = None
) -> Agent[Any]:
    """The same agent with a watcher, and with a durable store where one is given."""
    config = agent._config
    observers = config.observers if watcher is None else (*config.observers, watcher)
    config = replace(config, observers=observers, plain=False, busy=True)
    if store is not None:
        code = fingerprint(agent._function)
        config = replace(config, store=store, durable=True, code=code)
    again = copy.copy(agent)
    again._config = config
    return again


def arguments_of(pairs: Sequence[str], *, reserved: Sequence[str]) -> dict[str, Any]:
    """Read the arguments of `--arg`. reserved: names that no argument may have."""
    arguments: dict[str, Any] = {}
    for text in pairs:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--arg {text!r} must be name=value, as in --arg city=Porto")
        if name in reserved:
            raise UsageError(f"--arg {name} is none of the function's arguments; leave it out")
        if name in arguments:
            raise UsageError(f"--arg {name} is given twice; give it once")
        try:
            arguments[name] = json.loads(value)
        except (ValueError, RecursionError):
            arguments[name] = value
    return arguments


def place_of(agent: str) -> str:
    """Where an agent of this name is in the current directory, as `module:name`, without importing it.

    `module:agent` where the files there do not say, or say it twice.
    """
    wrapped: list[str] = []
    functions: list[str] = []
    for file in sorted(Path.cwd().glob("*.py")):
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, ValueError, SyntaxError):
            continue
        for node in tree.body:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name == agent:
                    functions.append(f"{file.stem}:{name}")
                case ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=ast.Call(
                        func=ast.Name(id="Agent"), args=[ast.Name(id=function), *_]
                    ) as call,
                ):
                    names = [item.value for item in call.keywords if item.arg == "name"]
                    own = [item.value for item in names if isinstance(item, ast.Constant)]
                    if agent in (own or [function]):
                        wrapped.append(f"{file.stem}:{name}")
                case _:
                    pass
    found = wrapped or functions
    return found[0] if len(found) == 1 else "module:agent"
