"""`triage approve`: see what a run waits to have approved, a plan, a step or a call, and answer it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from cyclopts import App, Group, Parameter
from cyclopts.validators import mutually_exclusive

from triage.core.actions import Reply, approve, reject
from triage.core.errors import UsageError
from triage.core.events import Event, RunSuspended
from triage.core.quoting import moment, one_line
from triage.core.redaction import redact
from triage.core.wire import to_json
from triage.engine.answering import waits_for
from triage.engine.outside import not_asked, resolve
from triage.engine.questions import question_at
from triage.plan.answers import answer_in, asked_in
from triage.plan.approval import ApprovalAnswer, ApprovalRequest
from triage.plan.plans import ExecutionPlan
from triage.stores.base import RunInfo, Store

from .options import AsJson, Run, StoreText, epilogue, run_of, store_of, suggested, with_store
from .output import json_line, now, write
from .runs import edited, print_answered

_LONGEST = 300
_CODES = """\
exit codes:
  0    it is shown, or answered
  1    the store failed, somebody else answered first, or the run has ended
  2    the run does not wait for this, or the arguments are wrong
"""
_ANSWER = Group("Answer", validator=mutually_exclusive)

app = App(
    name="approve",
    help_epilogue=epilogue(
        _CODES,
        "approve order-17",
        "approve order-17 --yes --by ann",
        'approve order-17 --reject "over the budget"',
    ),
)


class CallAsked(NamedTuple):
    """A call that waits for an approval. arguments: as JSON. expires: seconds since the epoch, or None."""

    run_id: str
    kind: str
    tool: str
    effect: str
    arguments: Any
    question: str
    expires: float | None


@app.default
def approve_run(
    run: Run,
    /,
    *,
    yes: Annotated[bool, Parameter(group=_ANSWER, help="It may be run.")] = False,
    reject_because: Annotated[
        str | None,
        Parameter(
            name="--reject",
            group=_ANSWER,
            metavar="REASON",
            help="It may not be run; the planner, or the agent, is told why.",
        ),
    ] = None,
    ask_again: Annotated[
        bool,
        Parameter(help="With --reject: ask about the same call again if it comes."),
    ] = False,
    plan: Annotated[
        str | None,
        Parameter(group=_ANSWER, metavar="FILE", help="Run the plan in this file instead."),
    ] = None,
    edit: Annotated[
        str | None,
        Parameter(group=_ANSWER, metavar="JSON", help="Run the call with these arguments changed."),
    ] = None,
    save: Annotated[
        str | None,
        Parameter(group=_ANSWER, metavar="FILE", help="Write the plan that is asked about."),
    ] = None,
    by: Annotated[str, Parameter(metavar="NAME", help="Who answers.")] = "",
    store: StoreText = None,
    json: AsJson = False,
) -> None:
    """Answer what a run waits to have approved: a plan, a step, or a call that a guard has stopped.

    Whoever recovers the run goes on. Without --yes, --reject, --plan or --edit it shows what is asked,
    and answers nothing.
    """
    # A file is read before the event loop begins, which must not wait for it.
    edited_plan = None if plan is None else ExecutionPlan.load(plan)

    async def work(kept: Store) -> tuple[RunInfo, ApprovalRequest | CallAsked, bool]:
        info = await run_of(kept, run, store, status="suspended")
        request = await asked_in(kept, info.run_id)
        if request is None:
            events = await kept.read(info.run_id)
            asked, called = waits_for(events), _call_asked(events)
            if asked is None and any(isinstance(event, RunSuspended) for event in events):
                raise not_asked(info.run_id, events)
            if asked is None or called is None:
                show = suggested("runs", "show", info.run_id, store=store)
                raise UsageError(
                    f"run {one_line(info.run_id)} does not wait to have a plan or a call approved: it is "
                    f"{info.status}; see {show}"
                )
            if plan is not None or save is not None:
                raise UsageError(
                    "a call is asked about, not a plan; --yes, --reject REASON or --edit JSON"
                )
            reply = _reply(reject_because, edit, yes=yes, ask_again=ask_again)
            if reply is not None:
                digest = asked.token_digest
                await resolve(kept, info.run_id, reply, now=now(), by=by, question=digest)
            return info, called, reply is not None
        if ask_again:
            raise UsageError("--ask-again is about a call; a plan that is refused is made anew")
        if edit is not None:
            raise UsageError(
                "--edit changes the arguments of a call; a plan is edited by --plan FILE"
            )
        answer = _answer(request, reject_because, edited_plan, yes=yes, by=by)
        if answer is not None:
            await answer_in(kept, answer)
        return info, request, answer is not None

    info, request, answered = with_store(store_of(store), work)
    if answered:
        print_answered(info, "goes on", store, as_json=json)
    else:
        _show(request, save, as_json=json)


def _show(request: ApprovalRequest | CallAsked, save: str | None, *, as_json: bool) -> None:
    if save is not None and isinstance(request, ApprovalRequest):
        if request.kind != "plan":
            raise UsageError(
                f"a {request.kind} is asked about, which cannot be edited; --reject REASON"
            )
        ExecutionPlan.from_json(request.payload).save(save)
    if as_json:
        write(json_line(request._asdict()))
    elif save is not None:
        write(f"{save} is written; edit it, and give it with --plan")
    elif isinstance(request, CallAsked):
        _show_call(request)
    else:
        _show_plan(request)


def _reply(
    reason: str | None, edit: str | None, *, yes: bool, ask_again: bool = False
) -> Reply | None:
    """The answer to a question about a call; None where there is none."""
    if ask_again and reason is None:
        raise UsageError("--ask-again belongs to --reject REASON")
    if reason is not None:
        return reject(reason, ask_again=ask_again)
    if edit is not None:
        return edited("--edit", edit)
    return approve() if yes else None


def _answer(
    request: ApprovalRequest, reason: str | None, plan: ExecutionPlan | None, *, yes: bool, by: str
) -> ApprovalAnswer | None:
    """The answer to a question about a plan or a step; None where there is none."""
    if reason is not None:
        return request.answer("rejected", by=by, reason=reason)
    if plan is not None:
        return request.answer("edited", by=by, payload=plan.to_json())
    return request.answer("approved", by=by) if yes else None


def _call_asked(events: Sequence[Event]) -> CallAsked | None:
    """The call that a run waits to have approved; None if it waits for nothing, or something else."""
    asked, question = waits_for(events), question_at(events)
    if asked is None or question is None or not question.not_begun:
        return None
    return CallAsked(
        run_id=asked.run_id,
        kind="call",
        tool=question.tool,
        effect=question.effect,
        arguments=redact(to_json(question.arguments)),
        question=asked.question,
        expires=asked.expires,
    )


def _show_call(asked: CallAsked) -> None:
    write(one_line(asked.question, 2 * _LONGEST))
    arguments = one_line(json.dumps(asked.arguments, ensure_ascii=False), 2 * _LONGEST)
    write(f"{one_line(asked.tool)} [{asked.effect}] {arguments}; it has not begun")
    if asked.expires is not None:
        write(f"to be answered until {moment(asked.expires)}")
    write("answer with --yes, --reject REASON, or --edit JSON to change its arguments")


def _show_plan(request: ApprovalRequest) -> None:
    """Print a line for each step: all of it was said by a planner, and is shown as data."""
    write(one_line(request.question, 2 * _LONGEST))
    payload = request.payload if isinstance(request.payload, dict) else {}
    for number, step in enumerate(payload.get("steps", [payload]), 1):
        what = one_line(str(step.get("task_objective", "")), _LONGEST)
        write(f"{number}. {one_line(str(step.get('capability')))} {what}".rstrip())
        for name in ("parameters", "inputs", "success_criteria"):
            if step.get(name):
                write(
                    f"   {name}: {one_line(json.dumps(step[name], ensure_ascii=False), _LONGEST)}"
                )
    if request.expires is not None:
        write(f"to be answered until {moment(request.expires)}")
    write("answer with --yes, --reject REASON, or --save FILE and then --plan FILE")
