"""`triage approve`: see what a run that plans first waits to have approved, and answer it."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from triage import UsageError
from triage.plan import ExecutionPlan, answer_in, asked_in
from triage.stores import Store

from ._run import _write
from ._runs import carry_out, moment, run_of, shown, store_of

if TYPE_CHECKING:
    from triage.plan import ApprovalAnswer, ApprovalRequest

_LONGEST = 300


def run(options: argparse.Namespace) -> int:
    """Carry out the command; its exit code. Raises UsageError for what cannot be begun."""
    # A file is read before the event loop begins, which must not wait for it.
    plan = None if options.plan is None else ExecutionPlan.load(options.plan)
    store = store_of(options.store)
    assert store is not None

    async def work(store: Store) -> tuple[ApprovalRequest, bool]:
        info = await run_of(store, options.run)
        request = await asked_in(store, info.run_id)
        if request is None:
            raise UsageError(f"run {shown(info.run_id)} does not wait to have a plan approved")
        answer = _answer(options, request, plan)
        if answer is not None:
            await answer_in(store, answer)
        return request, answer is not None

    def say(found: tuple[ApprovalRequest, bool]) -> None:
        request, answered = found
        if answered:
            run_id = shown(request.run_id)
            _write(f"run {run_id} is answered: it goes on once it is recovered")
            _write("by recover_all() of any worker, or: triage runs recover RUN module:name.agent")
        elif options.save is not None:
            _saved(request, options.save)
        elif options.json:
            _write(json.dumps(request._asdict()))
        else:
            _show(request)

    return carry_out(store, work, say)


def _answer(
    options: argparse.Namespace, request: ApprovalRequest, plan: ExecutionPlan | None
) -> ApprovalAnswer | None:
    if options.yes:
        return request.answer("approved", by=options.by)
    if options.reject is not None:
        return request.answer("rejected", by=options.by, reason=options.reject)
    if plan is not None:
        return request.answer("edited", by=options.by, payload=plan.to_json())
    return None


def _saved(request: ApprovalRequest, path: str) -> None:
    if request.kind != "plan":
        raise UsageError(
            f"a {request.kind} is asked about, which cannot be edited; --reject REASON"
        )
    ExecutionPlan.from_json(request.payload).save(path)
    _write(f"{path} is written; edit it, and give it with --plan")


def _show(request: ApprovalRequest) -> None:
    """What is asked, a line for each step: all of it was said by a planner, and is shown as data."""
    _write(shown(request.question, 2 * _LONGEST))
    payload = request.payload if isinstance(request.payload, dict) else {}
    steps = payload.get("steps", [payload])
    for number, step in enumerate(steps, 1):
        what = shown(str(step.get("task_objective", "")), _LONGEST)
        _write(f"{number}. {shown(str(step.get('capability')))} {what}".rstrip())
        for name in ("parameters", "inputs", "success_criteria"):
            if step.get(name):
                _write(f"   {name}: {shown(json.dumps(step[name], ensure_ascii=False), _LONGEST)}")
    if request.expires is not None:
        _write(f"to be answered until {moment(request.expires)}")
    _write("answer with --yes, --reject REASON, or --save FILE and then --plan FILE")
