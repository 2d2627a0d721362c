"""What commands take: parameters, stores and runs, and objects of the current directory."""

from __future__ import annotations

import ast
import getpass
import importlib
import json
import os
import shlex
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

import anyio
from cyclopts import Parameter
from msgspec.structs import replace

from triage.core.errors import UsageError, nearest
from triage.core.redaction import redact
from triage.engine.agents import Agent, underlying_agent
from triage.stores.base import RunInfo, Store
from triage.stores.opening import open_store
from triage.strategies.limits import Limits
from triage.strategies.policy import FailurePolicy

T = TypeVar("T")

VARIABLE = "TRIAGE_STORE"
_NAMED = 5

# Parameters ---------------------------------------------------------------------------------------


def _check_dash(_type: object, value: str | tuple[str, ...]) -> None:
    for text in (value,) if isinstance(value, str) else value:
        if text.startswith("-") and text != "-":
            raise ValueError(f"Unknown option: {text}")


DASH = Parameter(allow_leading_hyphen=True, validator=_check_dash)
"""An argument that may be `-`, for standard input."""

StoreText = Annotated[
    str | None,
    Parameter(
        metavar="TEXT",
        help=f"Where the runs are, such as sqlite:///runs.db (the environment's {VARIABLE}).",
    ),
]
Run = Annotated[str, Parameter(help="Its id, or the first characters of it.")]
AsJson = Annotated[bool, Parameter(name="--json", help="One line of JSON.")]
JsonLines = Annotated[bool, Parameter(name="--json", help="One line of JSON for each.")]
Watch = Annotated[bool, Parameter(help="Look again every two seconds, until interrupted.")]
Form = Annotated[
    Literal["markdown", "text", "json"] | None,
    Parameter(help="If it has failed, a report of it in this form."),
]
Audience = Annotated[
    Literal["person", "developer"],
    Parameter(help="For whom the report is: a person sees no internals (developer)."),
]
Files = Annotated[str, DASH, Parameter(help="A recording, also gzipped; - is standard input.")]
Format = Annotated[
    str | None,
    Parameter(
        metavar="NAME",
        help="openai, responses, anthropic, gemini, otlp, journal, steps or text (found out).",
    ),
]
Classifier = Annotated[
    str,
    Parameter(
        metavar="MODULE:NAME", help="An object, class or function of the current directory (rules)."
    ),
]
Function = Annotated[
    str, Parameter(help="An agent function, as module:name, or an Agent as it is.")
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """What an agent function is wrapped with; an Agent has its own.

    Attributes:
        policy: What to do about which failure: a TOML file.
        attempts: Calls of the function (10).
        seconds: For the whole run (no limit).
        cost: For the whole run, in USD (no limit).
        limit: Any field of Limits, as refusals=1 or polling_seconds=60; null is no limit.
        arg: Another argument of the function, as name=value; read as JSON, else taken as text.
    """

    policy: Annotated[str | None, Parameter(metavar="FILE")] = None
    attempts: Annotated[int | None, Parameter(metavar="N")] = None
    seconds: Annotated[float | None, Parameter(metavar="S")] = None
    cost: Annotated[float | None, Parameter(metavar="USD")] = None
    limit: Annotated[tuple[str, ...], Parameter(metavar="NAME=VALUE")] = ()
    arg: Annotated[tuple[str, ...], Parameter(metavar="NAME=VALUE")] = ()


AGENT_OPTIONS = AgentOptions()


def epilogue(codes: str, *examples: str) -> str:
    """What help ends with: examples, and what the exit codes mean."""
    lines = "\n".join(f"  triage {example}" for example in examples)
    return f"examples:\n{lines}\n\n{codes}" if examples else codes


def you() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "somebody"


# Stores and runs ----------------------------------------------------------------------------------


def store_of(text: str | None, *, new: bool = False) -> Store:
    """Open the store of `--store`, else of the environment. new: it may be made.

    Raises UsageError for none, and for one that can hold no runs.
    """
    named, said = text, "--store"
    if named is None:
        named, said = os.environ.get(VARIABLE), VARIABLE
    if not named:
        raise UsageError(f"say where the runs are: --store sqlite:///runs.db, or {VARIABLE}")
    try:
        store = open_store(named)
    except UsageError as error:
        raise UsageError(f"{said}: {error}") from error
    if not durable(store):
        raise UsageError(f"{said} {named}: what is in memory ends with its process; name another")
    path = getattr(store, "path", None)
    # Opening makes the file, and a mistyped name would pass for a store without runs.
    if path is not None and not new and not Path(path).exists():
        raise UsageError(f"{said}: there is no file {path}")
    return store


def durable(store: Store) -> bool:
    """Whether a store outlives its process; one of a third party does, unless it says otherwise."""
    return bool(getattr(store, "durable", True))


class Closed(Protocol):
    """What is closed when a command is done with it."""

    async def close(self) -> None:
        """Close it."""
        ...


def run_with(work: Callable[[], Awaitable[T]], *opened: Closed) -> T:
    """Do something in an event loop, and close what it was done with."""

    async def done() -> T:
        try:
            return await work()
        finally:
            with anyio.CancelScope(shield=True):
                for one in opened:
                    await one.close()

    return anyio.run(done)


def with_store(store: Store, work: Callable[[Store], Awaitable[T]]) -> T:
    """Do something with a store, and close it."""
    return run_with(partial(work, store), store)


def check_limit(limit: int) -> None:
    """Check how many entries a list may have. Raises UsageError."""
    if limit < 1:
        raise UsageError(f"--limit must be a whole number from 1, not {limit}")


async def run_of(store: Store, given: str, named: str | None, *, status: str = "") -> RunInfo:
    """Find the run of an id, or of the beginning of one.

    named: the store, as `--store` gave it. status: of the runs that are suggested for an unknown one.

    Raises UsageError where that is not one run.
    """
    info = await store.info(given)
    if info is not None:
        return info
    run_id, tilde, _ = given.partition("~")
    if tilde and await store.info(run_id) is not None:
        raise UsageError(f"a token is given in place of a run; name the run it is of: {run_id}")
    found = [info for info in await store.runs() if given and info.run_id.startswith(given)]
    if len(found) == 1:
        return found[0]
    if not found:
        listing = suggested("runs", "list", *(("--status", status) if status else ()), store=named)
        raise UsageError(f"the store knows no run {given!r}; see {listing}")
    names = ", ".join(info.run_id for info in found[:_NAMED])
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    raise UsageError(f"{len(found)} runs begin with {given!r}: {names}{more}; give more of it")


def suggested(*words: str, store: str | None) -> str:
    """A command that can be typed as it stands. store: as it was given by `--store`.

    A store with a password is not repeated; the environment is to name it.
    """
    text = shlex.join(["triage", *words])
    if store is None or store == os.environ.get(VARIABLE):
        return text
    place = shlex.quote(store) if redact(store) == store else f'"${VARIABLE}"'
    return f"{text} --store {place}"


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
    """Import an Agent, the agent under an Orchestrator, or a function."""
    found = load(place)
    return underlying_agent(found) or found


def agent_of(place: str, options: AgentOptions) -> Agent[Any]:
    """The Agent that a place names, or one of the function there. Raises UsageError for neither."""
    found = load_agent(place)
    if isinstance(found, Agent):
        named = ("policy", "attempts", "seconds", "cost", "limit")
        own = [f"--{name}" for name in named if getattr(options, name) not in (None, ())]
        if own:
            raise UsageError(
                f"{place} is an Agent, which has options of its own; leave out "
                f"{', '.join(own)}, or name the function it wraps"
            )
        return found
    policy = None if options.policy is None else FailurePolicy.from_file(options.policy)
    limits = Limits()
    given = {"attempts": options.attempts, "seconds": options.seconds, "cost_usd": options.cost}
    for field, value in given.items():
        if value is not None:
            limits = _limited(limits, f"--{field.removesuffix('_usd')}", field, value)
    for field, value in _values("--limit", options.limit, "refusals=1").items():
        if field not in Limits.__struct_fields__:
            remedy = (
                nearest(field, Limits.__struct_fields__) or "the limits are the fields of Limits"
            )
            raise UsageError(f"--limit: there is no limit {field!r}; {remedy}")
        limits = _limited(limits, f"--limit {field}", field, value)
    return Agent(found, policy, limits=limits)


def _limited(limits: Limits, option: str, field: str, value: Any) -> Limits:
    """Limits with one set by an option. Raises UsageError, which names the option."""
    try:
        return replace(limits, **{field: value})
    except UsageError as error:
        wrong, _, _ = str(error).partition(";")
        raise UsageError(wrong.replace(f"Limits.{field}", option)) from error


def arguments_of(pairs: Sequence[str], *, reserved: Sequence[str]) -> dict[str, Any]:
    """Read the arguments of `--arg`. reserved: names that no argument may have."""
    arguments = _values("--arg", pairs, "city=Porto")
    for name in arguments:
        if name in reserved:
            raise UsageError(f"--arg {name} is none of the function's arguments; leave it out")
    return arguments


def _values(option: str, pairs: Sequence[str], example: str) -> dict[str, Any]:
    """Read `name=value` pairs of an option: JSON, or else text. Raises UsageError for anything else."""
    values: dict[str, Any] = {}
    for text in pairs:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"{option} {text!r} must be name=value, as in {option} {example}")
        if name in values:
            raise UsageError(f"{option} {name} is given twice; give it once")
        try:
            values[name] = json.loads(value)
        except (ValueError, RecursionError):
            values[name] = value
    return values


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
                        func=ast.Name(id="Agent"), args=[ast.Name(id=default), *_]
                    ) as call,
                ):
                    if agent == _name_in(call, default):
                        wrapped.append(f"{file.stem}:{name}")
                case ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=ast.Call(func=ast.Name(id="Orchestrator")) as call,
                ):
                    if agent == _name_in(call, "orchestrator"):
                        wrapped.append(f"{file.stem}:{name}")
                case _:
                    pass
    found = wrapped or functions
    return found[0] if len(found) == 1 else "module:agent"


def _name_in(call: ast.Call, default: str) -> str:
    """The name that a call gives an agent."""
    names = [item.value for item in call.keywords if item.arg == "name"]
    own = [item.value for item in names if isinstance(item, ast.Constant)]
    return str(own[0]) if own else default
