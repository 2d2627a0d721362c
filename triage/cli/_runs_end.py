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

    async def work(store: Store) -> list[str]:
        info = await run_of(store, options.run)
        if answer is None:
            return await _cancel(store, info)
        return await _resolve(store, info, answer)

    def say(lines: list[str]) -> None:
        for line in lines:
            _write(line)

    return carry_out(store, work, say)


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


async def _resolve(store: Store, info: RunInfo, answer: Any) -> list[str]:
    run_id = shown(info.run_id)
    try:
        action = await resolve(store, info.run_id, answer, now=now())
    except UsageError as error:
        raise UsageError(
            f"{error}; see triage runs show {run_id}; triage runs resume answers by token"
        ) from error
    then = "ends as aborted" if isinstance(action, Abort) else "goes on"
    how = f"by recover_all() of any worker, or: triage runs recover {run_id} module:agent"
    if info.parent is not None:
        how = f"that is when the run it was started in is, {shown(info.parent)}"
    return [f"run {run_id} is answered: it {then} once it is recovered", how]


async def _cancel(store: Store, info: RunInfo) -> list[str]:
    await cancel(store, info.run_id, now=now())
    stops = "; its process, if it lives, stops with its next event"
    return [f"run {shown(info.run_id)} is cancelled{stops if info.status == 'running' else ''}"]
