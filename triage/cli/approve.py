"""`triage approve`: see what a run waits to have approved, a plan, a step or a call, and answer it."""

from __future__ import annotations

import json
from typing import Annotated, Any

from cyclopts import App, Group, Parameter
from cyclopts.validators import mutually_exclusive

from triage.core.actions import Reply
from triage.core.errors import UsageError
from triage.core.events import RunSuspended
from triage.core.quoting import moment, one_line
from triage.core.redaction import redact
from triage.core.wire import to_json
from triage.engine.answering import waits_for
from triage.engine.outside import not_asked
from triage.engine.questions import CALL, PLAN, Question
from triage.plan.answers import answer_in, asked_in
from triage.plan.plans import ExecutionPlan
from triage.plan.replies import reply_of
from triage.stores.base import RunInfo, Store

from .options import AsJson, Run, StoreText, epilogue, run_of, store_of, suggested, with_store
from .output import json_given, json_line, write
from .runs import print_answered

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
    as_json: AsJson = False,
) -> None:
    """Answer what a run waits to have approved: a plan, a step, or a call that a guard has stopped.

    Whoever recovers the run goes on. Without --yes, --reject, --plan or --edit it shows what is asked,
    and answers nothing.
    """
    # A file is read before the event loop begins, which must not wait for it.
    planned = None if plan is None else {"steps": ExecutionPlan.load(plan).to_json()["steps"]}
    changed = planned if edit is None else json_given("--edit", edit)
    if ask_again and reject_because is None:
        raise UsageError("--ask-again belongs to --reject REASON")
    reply: Reply | None = None
    if reject_because is not None:
        reply = reply_of("reject", reason=reject_because, ask_again=ask_again)
    elif plan is not None or edit is not None:
        reply = reply_of("edit", payload=changed)
    elif yes:
        reply = reply_of("approve")

    async def work(kept: Store) -> tuple[RunInfo, RunSuspended, Question]:
        info = await run_of(kept, run, store, status="suspended")
        events = await kept.read(info.run_id)
        asked, question = waits_for(events), await asked_in(kept, info.run_id, events)
        if asked is None or question is None or not question.not_begun:
            if asked is None and any(isinstance(event, RunSuspended) for event in events):
                raise not_asked(info.run_id, events)
            show = suggested("runs", "show", info.run_id, store=store)
            raise UsageError(
                f"run {one_line(info.run_id)} does not wait to have a plan or a call approved: it is "
                f"{info.status}; see {show}"
            )
        _check_options(
            question.of,
            of_plan=plan is not None or save is not None,
            ask_again=ask_again,
            edits=edit is not None,
        )
        if reply is not None:
            await answer_in(kept, info.run_id, reply, by=by, question=asked.token_digest)
        return info, asked, question

    info, asked, question = with_store(store_of(store), work)
    if reply is not None:
        print_answered(info, "goes on", store, as_json=as_json)
    else:
        _show(asked, question, save, as_json=as_json)


def _check_options(of: str, *, of_plan: bool, ask_again: bool, edits: bool) -> None:
    """Raise UsageError for an option that does not belong to what is asked about. of: as in `Question`."""
    if of_plan and of != PLAN:
        instead = (
            "--yes, --reject REASON or --edit JSON" if of == CALL else "--yes, --reject REASON"
        )
        raise UsageError(f"a {of} is asked about, not a plan; {instead}")
    if ask_again and of != CALL:
        raise UsageError("--ask-again is about a call; a plan that is refused is made anew")
    if edits and of != CALL:
        raise UsageError("--edit changes the arguments of a call; a plan is edited by --plan FILE")


def _show(asked: RunSuspended, question: Question, save: str | None, *, as_json: bool) -> None:
    content = redact(to_json(question.arguments))
    if save is not None:
        ExecutionPlan.from_json(content).save(save)
    if as_json:
        told = {
            "run_id": asked.run_id,
            "kind": question.of,
            "tool": question.tool,
            "effect": question.effect,
            "arguments": content,
            "question": asked.question,
            "expires": asked.expires,
        }
        write(json_line(told))
        return
    if save is not None:
        write(f"{save} is written; edit it, and give it with --plan")
        return
    write(one_line(asked.question, 2 * _LONGEST))
    if question.of == CALL:
        given = one_line(json.dumps(content, ensure_ascii=False), 2 * _LONGEST)
        write(f"{one_line(question.tool)} [{question.effect}] {given}; it has not begun")
        answers = "--yes, --reject REASON, or --edit JSON to change its arguments"
    else:
        _show_steps(content)
        edits = ", or --save FILE and then --plan FILE" if question.of == PLAN else ""
        answers = f"--yes, --reject REASON{edits}"
    if asked.expires is not None:
        write(f"to be answered until {moment(asked.expires)}")
    write(f"answer with {answers}")


def _show_steps(content: Any) -> None:
    """Print a line for each step: all of it was said by a planner, and is shown as data."""
    content = content if isinstance(content, dict) else {}
    for number, step in enumerate(content.get("steps", [content]), 1):
        what = one_line(str(step.get("task_objective", "")), _LONGEST)
        write(f"{number}. {one_line(str(step.get('capability')))} {what}".rstrip())
        for name in ("parameters", "inputs", "success_criteria"):
            if step.get(name):
                write(
                    f"   {name}: {one_line(json.dumps(step[name], ensure_ascii=False), _LONGEST)}"
                )
