"""`triage runs list` and `triage runs prune`."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Sequence
from typing import Any

from triage import UsageError
from triage.redact import redact
from triage.stores import RunInfo, Store

from ._pages import table
from ._run import _note, _write
from ._runs import carry_out, lease, moment, now, shown, span, store_of
from ._runs_options import STATUSES

OPEN = frozenset(STATUSES[:3])
_TITLES = ("run", "agent", "status", "started", "age", "events", "claims", "lease")
_STYLES = {"running": "cyan", "suspended": "yellow", "done": "green"}
_WIDEST = 128
_LENGTH = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) ?(s|m|min|h|d|w)", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def run(options: argparse.Namespace) -> int:
    """Carry out the command; its exit code. Raises UsageError for what cannot be begun."""
    if options.what == "prune":
        return _prune(options)
    if options.limit < 1:
        raise UsageError(f"--limit must be a whole number from 1, not {options.limit}")
    status, agent, limit = options.status, options.agent, options.limit
    return carry_out(
        _store(options),
        lambda store: store.runs(status, agent=agent, limit=limit + 1),
        lambda found: _list(found, options),
    )


def _store(options: argparse.Namespace) -> Store:
    store = store_of(options.store)
    assert store is not None
    return store


# List ---------------------------------------------------------------------------------------------


def _list(found: Sequence[RunInfo], options: argparse.Namespace) -> None:
    runs, time = found[: options.limit], now()
    if options.json:
        for info in runs:
            _write(json.dumps(as_json(info, time)))
    elif runs:
        rows = [_row(info, time) for info in runs]
        table(_TITLES, rows, styled="status", styles=_STYLES)
    if not found:
        _note("no run")
    elif len(found) > len(runs):
        _note(f"these are the newest {len(runs)}; --limit shows more")


def as_json(info: RunInfo, time: float) -> dict[str, Any]:
    """A run as a JSON object. time: now, in seconds since the epoch."""
    told = {**info._asdict(), "age_s": round(time - info.started, 3)}
    return {name: _as_json(value) for name, value in told.items()}


def _as_json(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _row(info: RunInfo, time: float) -> tuple[str, ...]:
    return (
        shown(info.run_id, _WIDEST),
        shown(info.agent, 40),
        shown(info.status, 20),
        moment(info.started),
        span(time - info.started),
        str(info.events),
        str(info.claims),
        lease(info, time) or "-",
    )


# Prune --------------------------------------------------------------------------------------------


def _prune(options: argparse.Namespace) -> int:
    older_than = None if options.older_than is None else length_of(options.older_than)
    keep: int | None = options.keep
    if older_than is None and keep is None:
        raise UsageError("say what may go: --older-than 30d, --keep 1000, or both")
    if keep is not None and keep < 0:
        raise UsageError(f"--keep must be a whole number from 0, not {keep}")

    async def work(store: Store) -> int:
        if options.dry_run:
            return _prunable(await store.runs(), older_than, keep or 0)
        return await store.prune(older_than=older_than, keep=keep)

    def say(count: int) -> None:
        would = "would be removed, by the times of their last events"
        _write(f"{_counted(count)} {would if options.dry_run else 'removed'}")

    return carry_out(_store(options), work, say)


def length_of(text: str) -> float:
    """Seconds of a text such as `30d`. Raises UsageError for anything else."""
    found = _LENGTH.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--older-than {text!r} must be a number and a unit: 90s, 30m, 12h, 30d, 4w"
        )
    return float(found[1]) * _SECONDS[found[2]]


def _prunable(runs: Sequence[RunInfo], older_than: float | None, keep: int) -> int:
    ended = sorted((run.updated for run in runs if run.status not in OPEN), reverse=True)[keep:]
    border = math.inf if older_than is None else now() - older_than
    return sum(1 for time in ended if time < border)


def _counted(number: int) -> str:
    return f"{number} run{'' if number == 1 else 's'}"
