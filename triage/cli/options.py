"""What several commands take, and the store or the run that is named by it."""

from __future__ import annotations

import getpass
import os
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import anyio
from cyclopts import Parameter

from triage.core import UsageError, redact
from triage.stores import RunInfo, Store, open_store

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
NoPager = Annotated[bool, Parameter(help="Print what is long at once, without a pager.")]
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
        metavar="NAME", help="openai, responses, anthropic, otlp, journal or steps (found out)."
    ),
]
Classifier = Annotated[
    str,
    Parameter(
        metavar="MODULE:NAME",
        help="An object, class or function of the current directory (rules).",
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
        arg: Another argument of the function, as name=value; read as JSON, else taken as text.
    """

    policy: Annotated[str | None, Parameter(metavar="FILE")] = None
    attempts: Annotated[int | None, Parameter(metavar="N")] = None
    seconds: Annotated[float | None, Parameter(metavar="S")] = None
    cost: Annotated[float | None, Parameter(metavar="USD")] = None
    arg: Annotated[tuple[str, ...], Parameter(metavar="NAME=VALUE")] = ()


AGENT_OPTIONS = AgentOptions()


def epilogue(codes: str, *examples: str) -> str:
    """What help ends with: examples, and what the exit codes mean."""
    lines = "\n".join(f"  triage {example}" for example in examples)
    return f"examples:\n{lines}\n\n{codes}" if examples else codes


def you() -> str:
    """The user of this terminal."""
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


def with_store(store: Store, work: Callable[[Store], Awaitable[T]]) -> T:
    """Do something with a store, and close it."""

    async def done() -> T:
        try:
            return await work(store)
        finally:
            with anyio.CancelScope(shield=True):
                await store.close()

    return anyio.run(done)


async def run_of(store: Store, given: str, named: str | None) -> RunInfo:
    """Find the run of an id, or of the beginning of one. named: the store, as `--store` gave it.

    Raises UsageError where that is not one run.
    """
    info = await store.info(given)
    if info is not None:
        return info
    found = [info for info in await store.runs() if given and info.run_id.startswith(given)]
    if len(found) == 1:
        return found[0]
    if not found:
        listing = suggested("runs", "list", store=named)
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
