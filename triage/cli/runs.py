"""`triage runs`: see the runs of a store; recover, answer, end and remove them."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import anyio
from cyclopts import App, Group, Parameter
from cyclopts.validators import mutually_exclusive

from triage.core import actions
from triage.core.errors import UsageError
from triage.core.events import (
    AttemptFailed,
    Event,
    StepRecorded,
)
from triage.core.quoting import counted, one_line, span
from triage.core.state import fold
from triage.core.wire import Keyring, dump
from triage.engine.answering import waits_for
from triage.engine.digest import ANSWERED, LEFT, TAIL, TO_APPROVE, Digest
from triage.engine.forking import fork as fork_run
from triage.engine.journal import TASK
from triage.engine.outside import cancel as cancel_run
from triage.engine.outside import lease_of
from triage.engine.resume import MissingArguments
from triage.plan.answers import answer_in
from triage.plan.orchestrator import report_in
from triage.plan.replies import reply_of
from triage.stores.base import RunInfo, Store
from triage.stores.copying import copy_run
from triage.stores.opening import REDIS
from triage.stores.redis import RedisRuns

from . import output
from .fleet import FleetOption, Place, fleet_of, place_columns, place_json, places_of
from .options import (
    AGENT_OPTIONS,
    DASH,
    AgentOptions,
    AsJson,
    Audience,
    Form,
    JsonLines,
    Run,
    StoreText,
    Watch,
    agent_of,
    arguments_of,
    check_limit,
    durable,
    epilogue,
    place_of,
    run_of,
    run_with,
    store_of,
    suggested,
    with_store,
    you,
)
from .records import Column, Record
from .run import FAILED, SUSPENDED, Follower, conclude, print_report
from .runs_page import run_as_json, run_page, would_as_json, would_page

Status = Literal[
    "running", "suspended", "dead_letter",
    "done", "escalated", "aborted", "fatal", "cancelled", "error",
]  # fmt: skip
_OPEN = ("running", "suspended", "dead_letter")
_STYLES = {
    "running": "cyan", LEFT: "yellow", ANSWERED: "yellow", "suspended": "yellow", TO_APPROVE: "yellow",
    "done": "green",
}  # fmt: skip
_LONGEST_JOURNAL = 5_000
"""Events of a journal that is read for its task; more take longer than a list should."""
_MADE_ID = re.compile(r"[0-9a-f]{32}")
_TAKEN = ("run_id", "task", "force", "token", "action")
"""Names of parameters of `recover` and `resume`, which no argument of a function can have."""
_CODES = """\
exit codes:
  0    done
  1    it could not be done: the store failed, the run is somebody else's,
       has ended, or failed
  2    it was never begun: no such run, store or function, bad arguments
  3    the run waits for an answer
  130  interrupted

RUN is the id of a run, or its beginning where no other run begins so.
"""
_AGENT = "The agent function, or the Agent, that the run was started with, as module:name."
AgentPlace = Annotated[str, Parameter(help=_AGENT)]
Task = Annotated[
    str | None, Parameter(metavar="TEXT", help="The task, where it could not be stored.")
]
AskAgain = Annotated[
    bool, Parameter(help="With reject: ask about the same call again if it comes.")
]
Quiet = Annotated[bool, Parameter(help="Show no progress.")]
_FORM = Group("Form", validator=mutually_exclusive)

app = App(
    name="runs",
    help="See the runs of a store; recover, answer, end and remove them.",
    help_epilogue=_CODES,
)


# List and prune -----------------------------------------------------------------------------------


class Listed(NamedTuple):
    """A run in a list. name: its id, or the beginning of one that was made. shown: the status in words."""

    info: RunInfo
    name: str
    task: str
    shown: str
    lease: str
    age_s: float
    place: Place | None


def _place_of(one: Listed) -> Place | None:
    return one.place


_RUN = Record[Listed](
    columns=(
        Column("run", lambda one: one.name, 128, cut=2),
        Column("agent", lambda one: one.info.agent, 40, cut=1),
        Column("task", lambda one: one.task, 80, cut=1),
        Column("status", lambda one: one.shown, styles=_STYLES),
        Column("age", lambda one: span(one.age_s)),
        Column("lease", lambda one: one.lease),
    ),
    json=lambda one: {
        **one.info._asdict(),
        "shown": one.shown,
        "age_s": round(one.age_s, 3),
        **place_json(one.place),
    },
    key=lambda one: (one.info.run_id, one.info.events, one.info.claims, one.shown),
    nothing="no run",
)


@app.command(
    name="list", help_epilogue=epilogue(_CODES, "runs list", "runs list --status suspended --json")
)
def list_runs(
    *,
    status: Annotated[Status | None, Parameter(help="Of this status only.")] = None,
    agent: Annotated[str | None, Parameter(metavar="NAME", help="Of this agent only.")] = None,
    limit: Annotated[int, Parameter(metavar="N", help="At most so many (50).")] = 50,
    store: StoreText = None,
    fleet: FleetOption = None,
    watch: Watch = False,
    json: JsonLines = False,
) -> None:
    """List runs, the newest first; of a fleet, with their queues, workers and waits."""
    check_limit(limit)
    known = None if fleet is None else fleet_of(fleet)

    async def work(store: Store) -> list[Listed]:
        infos = await store.runs(status, agent=agent, limit=limit + 1)
        ids = [info.run_id for info in infos]
        places, names, time = await places_of(known, ids), short_ids(ids[:limit]), await store.now()
        found: list[Listed] = []
        for info in infos:
            whole = not json and info.events <= _LONGEST_JOURNAL
            digest = Digest(
                await store.read(info.run_id, -1 if whole else max(-1, info.events - 1 - TAIL))
            )
            found.append(
                Listed(
                    info=info,
                    name=names.get(info.run_id, info.run_id),
                    task=digest.task,
                    shown=digest.status(info, time),
                    lease=lease_of(info, time),
                    age_s=output.now() - info.started,
                    place=places.get(info.run_id),
                )
            )
        return found

    def look() -> list[Listed]:
        return with_store(store_of(store) if known is None else known.store, work)

    record = _RUN if known is None else _RUN.with_columns(*place_columns(_place_of))
    record.print(look, as_json=json, limit=limit, watch=watch)


def short_ids(run_ids: Sequence[str]) -> dict[str, str]:
    """Return the names of runs in a table.

    An id that was made is cut to a beginning that no other one has; a chosen one is whole.
    """
    made = [run_id for run_id in run_ids if _MADE_ID.fullmatch(run_id)]
    length = 8
    while len({run_id[:length] for run_id in made}) < len(set(made)):
        length += 1
    return {run_id: run_id[:length] if _MADE_ID.fullmatch(run_id) else run_id for run_id in run_ids}


@app.command(help_epilogue=epilogue(_CODES, "runs prune --older-than 30d --keep 1000 --dry-run"))
def prune(
    *,
    older_than: Annotated[
        str | None, Parameter(metavar="30d", help="That ended longer ago: 90s, 30m, 12h, 30d, 4w.")
    ] = None,
    keep: Annotated[int | None, Parameter(metavar="N", help="All but the newest so many.")] = None,
    dry_run: Annotated[bool, Parameter(help="Say how many, and remove none.")] = False,
    store: StoreText = None,
    json: AsJson = False,
) -> None:
    """Remove runs that have ended."""
    longest = None if older_than is None else output.seconds_of("--older-than", older_than)
    if longest is None and keep is None:
        raise UsageError("say what may go: --older-than 30d, --keep 1000, or both")
    if keep is not None and keep < 0:
        raise UsageError(f"--keep must be a whole number from 0, not {keep}")

    async def work(store: Store) -> int:
        if not dry_run:
            return await store.prune(older_than=longest, keep=keep)
        times = [info.updated for info in await store.runs() if info.status not in _OPEN]
        border = math.inf if longest is None else output.now() - longest
        return sum(time < border for time in sorted(times, reverse=True)[keep or 0 :])

    count = with_store(store_of(store), work)
    if json:
        output.write(output.json_line({"removed": 0 if dry_run else count, "would_remove": count}))
    else:
        would = "would be removed, by the times of their last events"
        output.write(f"{counted(count, 'run')} {would if dry_run else 'removed'}")


# Show ---------------------------------------------------------------------------------------------


@app.command(
    help_epilogue=epilogue(
        _CODES, "runs show order-17", "runs show order-17 --would retry", "runs show 7562 --events"
    )
)
def show(
    run: Run,
    /,
    *,
    json: Annotated[bool, Parameter(group=_FORM, help="All of it as one line of JSON.")] = False,
    events: Annotated[
        bool, Parameter(group=_FORM, help="Its journal, one line of JSON an event.")
    ] = False,
    would: Annotated[
        Literal["retry", "replan", "resume", "rollback"] | None,
        Parameter(
            converter=lambda _type, tokens: tokens[0].value.lower(),
            help="What an attempt after this action would reuse and ask anew; nothing is done.",
        ),
    ] = None,
    report: Form = None,
    audience: Audience = "developer",
    store: StoreText = None,
) -> None:
    """Show what is known of a run."""

    async def work(kept: Store) -> tuple[RunInfo, list[Event], float]:
        info = await run_of(kept, run, store)
        return info, await kept.read(info.run_id), await kept.now()

    info, journal, clock = with_store(store_of(store), work)
    if would is not None and json:
        output.write(output.json_line(would_as_json(journal, would)))
    elif json:
        output.write(output.json_line(run_as_json(info, journal, clock)))
    elif events:
        for event in journal:
            output.write(output.json_line(dump(event)))
    elif would is not None:
        with output.paged() as out:
            output.print_page(out, list(would_page(journal, would)))
    elif report is not None:
        state = fold(journal)
        if state.status in ("done", "running"):
            output.note(f"run {info.run_id} has not failed: {state.status}")
        else:
            print_report(report_in(journal), report, audience)
    else:
        with output.paged() as out:
            output.print_page(out, list(run_page(info, journal, store, clock)))


# Answer and end -----------------------------------------------------------------------------------


@app.command(
    help_epilogue=epilogue(
        _CODES,
        "runs resolve order-17 happened --result '\"receipt 301\"'",
        "runs resolve order-17 edit --payload '{\"days\": 3}'",
    )
)
def resolve(
    run: Run,
    answer: Annotated[
        Literal["approve", "reject", "edit", "happened", "rerun", "abort"],
        Parameter(
            help="Of a call that waits for an approval: approve, reject, or edit its arguments; of one "
            "in doubt: it has happened, or rerun; abort: the run shall end."
        ),
    ],
    /,
    *,
    result: Annotated[
        str | None, Parameter(metavar="JSON", help="What the call that happened has given (null).")
    ] = None,
    reason: Annotated[
        str | None, Parameter(metavar="TEXT", help="Why it is rejected or ended.")
    ] = None,
    ask_again: AskAgain = False,
    payload: Annotated[
        str | None,
        Parameter(metavar="JSON", help="For edit the arguments that the call shall have instead."),
    ] = None,
    store: StoreText = None,
    json: AsJson = False,
) -> None:
    """Answer what a run waits for, without its token; whoever recovers it goes on."""
    if result is not None and answer != "happened":
        raise UsageError(f"--result is what a call gave that happened; leave it out with {answer}")
    if answer == "abort" and reason is None:
        reason = "an operator ended it"
    reply = _reply(answer, reason, result, payload, ask_again=ask_again)

    async def work(kept: Store) -> RunInfo:
        info = await run_of(kept, run, store)
        try:
            await answer_in(kept, info.run_id, reply, by=you())
        except UsageError as error:
            show = suggested("runs", "show", info.run_id, store=store)
            raise UsageError(f"{error}; see {show}") from error
        return info

    info = with_store(store_of(store), work)
    then = "ends as aborted" if answer == "abort" else "goes on"
    print_answered(info, then, store, as_json=json)


def _reply(
    word: str, reason: str | None, result: str | None, payload: str | None, *, ask_again: bool
) -> actions.Reply:
    """Read the answer of a command. Raises UsageError for an option that does not belong to it."""
    option, text = ("--result", result) if payload is None else ("--payload", payload)
    value = None if text is None else output.json_given(option, text)
    return reply_of(word, reason=reason, payload=value, ask_again=ask_again)


def print_answered(info: RunInfo, then: str, store: str | None, *, as_json: bool) -> None:
    """Say that a run is answered, and how it goes on."""
    how = f"that is when the run it was started in is, {one_line(info.parent or '')}"
    if info.parent is None:
        recover = suggested("runs", "recover", info.run_id, place_of(info.agent), store=store)
        how = f"by recover_all() of any worker, or: {recover}"
    if as_json:
        output.write(output.json_line({"run_id": info.run_id, "answered": True, "then": then}))
    else:
        output.write(f"run {one_line(info.run_id)} is answered: it {then} once it is recovered")
        output.write(how)


@app.command(
    help_epilogue=epilogue(
        _CODES, "runs cancel order-17", "runs cancel order-17 --fleet orders:fleet"
    )
)
def cancel(
    run: Run, /, *, store: StoreText = None, fleet: FleetOption = None, json: AsJson = False
) -> None:
    """End a run, whoever has it; with its fleet, also one that still waits in a queue."""

    async def work(kept: Store) -> tuple[str, str]:
        # The whole id of a queued run comes before the beginning of another run's id.
        if known is not None and await kept.info(run) is None and await known.places([run]):
            run_id, was = run, "queued"
        else:
            info = await run_of(kept, run, store)
            run_id, was = info.run_id, info.status
        if known is None:
            await cancel_run(kept, run_id, now=output.now(), by=you())
        else:
            await known.cancel(run_id, by=you())
        return run_id, was

    known = None if fleet is None else fleet_of(fleet)
    if known is None:
        run_id, was = with_store(store_of(store), work)
    else:
        run_id, was = run_with(partial(work, known.store), known)
    if json:
        output.write(output.json_line({"run_id": run_id, "status": "cancelled", "was": was}))
        return
    stops = "; its process, if it lives, stops when it next renews its lease"
    output.write(f"run {one_line(run_id)} is cancelled{stops if was == 'running' else ''}")


@app.command(
    help_epilogue=epilogue(
        _CODES, "runs fork order-17 --at 3", 'runs fork order-17 --hint "ask the other depot"'
    )
)
def fork(
    run: Run,
    /,
    *,
    at: Annotated[
        str | None,
        Parameter(
            metavar="STEP",
            help="Behind this step of the last attempt, or of another one: 3, or 2.3 (its last failure).",
        ),
    ] = None,
    hint: Annotated[
        str | None, Parameter(metavar="TEXT", help="What the attempt after the failure is told.")
    ] = None,
    end: Annotated[bool, Parameter(help="Cancel the run first, if it has not ended.")] = False,
    run_id: Annotated[
        str | None, Parameter(metavar="ID", help="The id of the new run (one is made).")
    ] = None,
    store: StoreText = None,
    json: AsJson = False,
) -> None:
    """Begin a new run that goes on from a step, or from the last failure, of one that has ended.

    What the run has done is reused, and no effect is repeated.
    """
    if at is not None and hint is not None:
        raise UsageError("--hint is told after a failure; leave it out with --at")

    async def work(kept: Store) -> tuple[RunInfo, RunInfo | None]:
        info = await run_of(kept, run, store)
        events = await kept.read(info.run_id)
        made = await fork_run(
            kept,
            info.run_id,
            at=_last_failure(events) if at is None else _step_at(events, at),
            now=output.now(),
            by=you(),
            action=None if hint is None else actions.Retry(hint),
            end=end,
            new_id=run_id,
            keys=Keyring.of(None),
        )
        return info, await kept.info(made)

    info, made = with_store(store_of(store), work)
    assert made is not None
    if json:
        output.write(
            output.json_line({"run_id": made.run_id, "origin": info.run_id, "status": made.status})
        )
        return
    recover = suggested("runs", "recover", made.run_id, place_of(made.agent), store=store)
    output.write(f"run {one_line(made.run_id)} is forked from {one_line(info.run_id)}; it goes on")
    output.write(f"by recover_all() of any worker, or: {recover}")


@app.command(
    help_epilogue=epilogue(
        _CODES,
        "runs copy sqlite:///runs.db postgresql://db/triage",
        "runs copy sqlite:///runs.db sqlite:///kept.db order-17 order-18",
    )
)
def copy(
    source: Annotated[str, Parameter(metavar="FROM", help="The store to copy from.")],
    target: Annotated[str, Parameter(metavar="TO", help="The store to copy to.")],
    /,
    *runs: Annotated[str, Parameter(metavar="RUN", help="Ids of runs; all without one.")],
    agent: Annotated[str | None, Parameter(help="Only runs of this agent.")] = None,
    json: AsJson = False,
) -> None:
    """Copy runs from one store to another: whole journals, with status, claims and lease.

    Again it copies what is new. Stop the workers of the runs first: what they write later is left behind.
    Runs that 0.2.0 kept in Redis are copied too (redis://host/0?prefix=shop).
    """
    kept = store_of(target, new=True)

    async def work(given: Any) -> tuple[int, int]:
        ids = list(runs) or [info.run_id for info in reversed(await given.runs(agent=agent))]
        try:
            new = [await copy_run(given, kept, run_id) for run_id in ids]
        finally:
            await kept.close()
        return sum(map(bool, new)), len(new)

    given: Any = RedisRuns(source) if source.partition(":")[0] in REDIS else store_of(source)
    copied, looked_at = with_store(given, work)
    if json:
        output.write(output.json_line({"copied": copied, "up_to_date": looked_at - copied}))
        return
    output.write(f"{counted(copied, 'run')} copied, {looked_at - copied} were up to date")


def _last_failure(events: Sequence[Event]) -> int:
    """The position of the last failed attempt. Raises UsageError where none has failed."""
    failed = [event.seq for event in events if isinstance(event, AttemptFailed)]
    if not failed:
        raise UsageError("no attempt of the run has failed; say from which step: --at 3")
    return failed[-1]


def _step_at(events: Sequence[Event], text: str) -> int:
    """The position of the step that `--at` names. Raises UsageError where there is none."""
    attempt, dot, index = text.rpartition(".")
    if not index.isdecimal() or (dot and not attempt.isdecimal()):
        raise UsageError(f"--at {text!r} must be a step's number, or attempt.step: 3, or 2.3")
    steps = [event for event in events if isinstance(event, StepRecorded)]
    number = int(attempt) if dot else max((event.attempt for event in steps), default=1)
    found = [event for event in steps if (event.attempt, event.index) == (number, int(index))]
    if not found:
        of = [event.index for event in steps if event.attempt == number]
        has = f"steps {min(of)} to {max(of)}" if of else "no steps"
        raise UsageError(f"--at {text}: attempt {number} has {has}")
    return found[-1].seq


# Go on --------------------------------------------------------------------------------------------


@app.command(
    help_epilogue=epilogue(
        _CODES,
        "runs recover order-17 orders:desk",
        "runs recover order-17 orders:desk --force --quiet",
    )
)
def recover(
    run: Run,
    function: AgentPlace,
    /,
    *,
    force: Annotated[
        bool, Parameter(help="Although its owner seems to live, or it is a dead letter.")
    ] = False,
    task: Task = None,
    options: AgentOptions = AGENT_OPTIONS,
    store: StoreText = None,
    json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Go on with a run that its process has left."""

    async def start(
        kept: Store, agent: Any, arguments: dict[str, Any]
    ) -> tuple[str, Callable[[], Any]]:
        info = await run_of(kept, run, store)
        await _check_name(info, agent, function)
        await _check_free(kept, info, store, force=force)
        return info.run_id, partial(agent.recover, info.run_id, force=force, **arguments)

    return _go_on(start, function, options, task, store, as_json=json, quiet=quiet)


@app.command(
    help_epilogue=epilogue(
        _CODES,
        "runs resume order-17~8f3a orders:desk approve",
        "runs resume - orders:desk edit --payload '{\"days\": 3}'",
    )
)
def resume(
    token: Annotated[
        str,
        DASH,
        Parameter(help="As the run gave it; - reads standard input, where nobody sees it."),
    ],
    function: AgentPlace,
    answer: Annotated[
        Literal[
            "approve", "reject", "edit", "retry", "replan", "abort", "escalate", "happened", "rerun"
        ],
        Parameter(help="What is said to the question."),
    ],
    /,
    *,
    reason: Annotated[
        str | None,
        Parameter(metavar="TEXT", help="Why; what retry and replan tell the next attempt."),
    ] = None,
    ask_again: AskAgain = False,
    payload: Annotated[
        str | None,
        Parameter(
            metavar="JSON",
            help="For edit the arguments of the call that waits for an approval, else of the next "
            "attempt; for happened the result of the call.",
        ),
    ] = None,
    task: Task = None,
    options: AgentOptions = AGENT_OPTIONS,
    store: StoreText = None,
    json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Answer a run by its token, and go on with it."""
    reply = _reply(answer, reason, None, payload, ask_again=ask_again)
    if token == "-":  # noqa: S105 - standard input
        token = sys.stdin.readline().strip()

    async def start(
        kept: Store, agent: Any, arguments: dict[str, Any]
    ) -> tuple[str, Callable[[], Any]]:
        info = await kept.info(token.partition("~")[0])
        if info is None:
            raise UsageError(
                "no run of the store waits with this token; give it as the run gave it"
            )
        await _check_name(info, agent, function)
        return info.run_id, partial(agent.resume, token, reply, **arguments)

    return _go_on(start, function, options, task, store, as_json=json, quiet=quiet)


class _NotNow(Exception):
    """A run does not go on. code: the exit code. lines: the notes."""

    def __init__(self, code: int, *lines: str) -> None:
        super().__init__(*lines)
        self.code = code
        self.lines = lines


def _go_on(
    start: Callable[[Store, Any, dict[str, Any]], Awaitable[tuple[str, Callable[[], Any]]]],
    function: str,
    options: AgentOptions,
    task: str | None,
    store: str | None,
    *,
    as_json: bool,
    quiet: bool,
) -> int:
    """Continue a run in this process, and say how it ended; the exit code.

    start: returns the run's id and the function that continues it. Raises _NotNow.
    """
    arguments = arguments_of(options.arg, reserved=_TAKEN)
    if task is not None:
        arguments["task"] = task
    follower = Follower(quiet=quiet)
    # What the module and the function print must not get between a program and the result it reads.
    with contextlib.redirect_stdout(sys.stderr):
        named = agent_of(function, options)
        kept = named.store if store is None and durable(named.store) else store_of(store)
        agent = named.stored_in(kept).observed_by(follower)

        async def work(kept: Store) -> tuple[list[Event], Exception | None]:
            run_id, go_on = await start(kept, agent, arguments)
            failed: Exception | None = None
            try:
                await go_on()
            except MissingArguments as error:
                again = [
                    "--task TEXT" if name == TASK else f"--arg {name}=VALUE" for name in error.names
                ]
                raise MissingArguments(error.run_id, error.names, " ".join(again)) from None
            except Exception as error:
                if isinstance(error, UsageError) and not follower.events:
                    raise
                failed = error
            return await kept.read(run_id), failed

        try:
            events, failed = with_store(kept, work)
        except _NotNow as refused:
            for line in refused.lines:
                output.note(line)
            return refused.code
    return conclude(events, failed, function, store=store, as_json=as_json)


async def _check_name(info: RunInfo, agent: Any, place: str) -> None:
    if info.agent in (agent.name, *agent.aliases):
        return
    own = await anyio.to_thread.run_sync(place_of, info.agent)
    raise UsageError(
        f"run {info.run_id} is one of the agent {info.agent}, and {place} is {agent.name}; name the "
        f"function or the Agent that it was started with: {own}"
    )


async def _check_free(kept: Store, info: RunInfo, store: str | None, *, force: bool) -> None:
    """Raise _NotNow for a run that waits for an answer or has an owner."""
    run_id, time = one_line(info.run_id), await kept.now()
    if info.status == "suspended":
        asked = waits_for(await kept.read(info.run_id))
        raise _NotNow(
            SUSPENDED,
            f"run {run_id} waits for an answer: {'' if asked is None else asked.question}",
            f"how it may be answered: {suggested('runs', 'show', info.run_id, store=store)}",
        )
    if info.status == "running" and not force and (info.lease_until or 0.0) > time:
        left = lease_of(info, time)
        raise _NotNow(
            FAILED,
            f"run {run_id} has an owner that seems to live, {left}; wait, or take it: --force",
        )
