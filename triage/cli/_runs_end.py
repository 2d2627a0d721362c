"""`triage runs resolve` and `triage runs cancel`: what an operator does at the store alone."""

from __future__ import annotations

import argparse
from typing import Any

from triage import Abort, UsageError, happened, rerun
from triage._answers import cancel, resolve
from triage.stores import RunInfo, Store

from ._run import _write
from ._runs import carry_out, json_given, now, run_of, shown, store_of


def run(options: argparse.Namespace) -> int:
    """Carry out the command; its exit code. Raises UsageError for what cannot be begun."""
    answer = None if options.what == "cancel" else _answer(options)
    store = store_of(options.store)
    assert store is not None

    async def work(store: Store) -> int:
        info = await run_of(store, options.run)
        if answer is None:
            await _cancel(store, info)
        else:
            await _resolve(store, info, answer)
        return 0

    return carry_out(store, work)


def _answer(options: argparse.Namespace) -> Any:
    if options.result is not None and options.answer != "happened":
        raise UsageError(
            f"--result is what a call gave that happened; leave it out with {options.answer}"
        )
    match options.answer:
        case "happened":
            return happened(
                None if options.result is None else json_given("--result", options.result)
            )
        case "rerun":
            return rerun()
        case _:
            return Abort("an operator ended it")


async def _resolve(store: Store, info: RunInfo, answer: Any) -> None:
    run_id = shown(info.run_id)
    try:
        action = await resolve(store, info.run_id, answer, now=now())
    except UsageError as error:
        raise UsageError(
            f"{error}; see triage runs show {run_id}; triage runs resume answers by token"
        ) from error
    then = "ends as aborted" if isinstance(action, Abort) else "goes on"
    _write(f"run {run_id} is answered: it {then} once it is recovered")
    if info.parent is not None:
        _write(f"that is when the run it was started in is, {shown(info.parent)}")
    else:
        _write(f"by recover_all() of any worker, or: triage runs recover {run_id} module:agent")


async def _cancel(store: Store, info: RunInfo) -> None:
    await cancel(store, info.run_id, now=now())
    stops = (
        "; its process, if it lives, stops with its next event" if info.status == "running" else ""
    )
    _write(f"run {shown(info.run_id)} is cancelled{stops}")
