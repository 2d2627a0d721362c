"""What the commands of `triage runs` share: the store, the run that is meant, times, errors."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from triage import UsageError
from triage.errors import DeadLetter, RunBusy, StoreError, TriageError, UnknownRun
from triage.redact import redact
from triage.stores import RunInfo, Store, open_store

from ._run import _note
from ._show import _ESCAPES, _MOST_READ, _UNPRINTABLE, LONGEST, clean

T = TypeVar("T")

FAILED = 1
VARIABLE = "TRIAGE_STORE"
_LEAST = 4
"""Characters that the beginning of a run's id must have."""
_NAMED = 5


def store_of(text: str | None, *, needed: bool = True, new: bool = False) -> Store | None:
    """The store of `--store`, else of the environment; None for none where none is needed.

    new: it may be made. Raises UsageError for none, and for one that can hold no runs.
    """
    given, said = text, "--store"
    if given is None:
        given, said = os.environ.get(VARIABLE) or None, VARIABLE
    if given is None:
        if not needed:
            return None
        raise UsageError(f"say where the runs are: --store sqlite:///runs.db, or {VARIABLE}")
    try:
        store = open_store(given)
    except UsageError as error:
        raise UsageError(f"{said}: {error}") from error
    if not durable(store):
        raise UsageError(f"{said} {given}: what is in memory ends with its process; name another")
    path = getattr(store, "path", None)
    # Opening makes the file, and a mistyped name would pass for a store without runs.
    if path is not None and not new and not Path(path).exists():
        raise UsageError(f"{said}: there is no file {path}")
    return store


def durable(store: Store) -> bool:
    """Whether a store outlives its process; one of a third party does, unless it says otherwise."""
    return bool(getattr(store, "durable", True))


def carry_out(
    store: Store, work: Callable[[Store], Awaitable[T]], say: Callable[[T], int | None]
) -> int:
    """Do what a command does with its store, close it, and say what was found; the exit code.

    say: gives the exit code, None for 0. What goes wrong with the store or the run is said here.
    """
    import anyio

    async def done() -> T:
        try:
            return await work(store)
        finally:
            with anyio.CancelScope(shield=True):
                await store.close()

    try:
        found = anyio.run(done)
    except UnknownRun as error:
        raise UsageError(str(error)) from error
    except UsageError:
        raise
    except TriageError as error:
        _note(told(error))
        return FAILED
    return say(found) or 0


def told(error: TriageError) -> str:
    """What went wrong, and what helps where that is not in it."""
    text = str(error)
    if isinstance(error, RunBusy):
        return f"{text}; wait for that, or see who has it: triage runs show"
    if isinstance(error, DeadLetter):
        return f"{text}: triage runs recover … --force"
    if isinstance(error, StoreError):
        return f"{type(error).__name__}: {text}"
    return text


async def run_of(store: Store, given: str) -> RunInfo:
    """The run of an id, or of the beginning of one. Raises UsageError where that is not one run."""
    info = await store.info(given)
    if info is not None:
        return info
    found = [] if len(given) < _LEAST else await store.runs()
    found = [info for info in found if info.run_id.startswith(given)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(f"the store knows no run {given!r}; see triage runs list")
    names = ", ".join(info.run_id for info in found[:_NAMED])
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    raise UsageError(f"{len(found)} runs begin with {given!r}: {names}{more}; give more of it")


# Texts --------------------------------------------------------------------------------------------


def shown(text: str, longest: int = LONGEST) -> str:
    """`text` in one line and without credentials, its control characters told as escapes.

    One with a credential loses them instead: they could part what would be known as one.
    """
    text = text[:_MOST_READ]
    bare = _UNPRINTABLE.sub("", _ESCAPES.sub("", text))
    if redact(bare) != bare or redact(text) != text:
        return clean(text, longest)
    text = _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def json_given(option: str, text: str) -> Any:
    """The value of an option that is JSON. Raises UsageError for what is none."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option} must be JSON, text in double quotes: {error}") from None


def moment(seconds: float) -> str:
    """A time in seconds since the epoch, as UTC."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "unknown"


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def span(seconds: float) -> str:
    """How long something is, in the largest unit of which it has two: `119 s`, `2 min`, `47 h`."""
    if not math.isfinite(seconds):
        return "unknown"
    whole = max(0, int(seconds))
    size, unit = next((entry for entry in _UNITS if whole >= 2 * entry[0]), _UNITS[-1])
    return f"{whole // size} {unit}"


def lease(info: RunInfo, now: float) -> str:
    """What there is to say of a run's lease; empty without one."""
    if info.lease_until is None:
        return ""
    left = info.lease_until - now
    return f"{span(left)} left" if left > 0 else f"ended {span(-left)} ago"


def now() -> float:
    """Seconds since the epoch, here: what is said of ages is by this clock."""
    return time.time()
