"""`Orchestrator`: plan first, then act, on the engine of `Agent`."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import Any, NamedTuple, TypedDict, TypeVar, Unpack

import anyio
import msgspec

from triage.core.environment import Environment
from triage.core.errors import TriageError, TriageSuspendedError, UnknownRun, UsageError, misuse
from triage.core.events import (
    ApprovalAsked,
    ApprovalGiven,
    CapabilitiesSelected,
    Event,
    PlanFailed,
    PlanMade,
    PlanRouted,
    PlanStepMoved,
    RunFinished,
    RunRecovered,
    RunStarted,
    RunSuspended,
)
from triage.core.observers import Observer
from triage.core.state import fold
from triage.engine.agents import Agent
from triage.engine.calls import Run
from triage.engine.options import Checks, Durability
from triage.engine.resume import Recovered
from triage.reports.analysis import ErrorReporter, report_of
from triage.reports.facts import CapabilityFacts, CounterFacts, Facts, StepFacts
from triage.reports.report import Report
from triage.stores.base import Store
from triage.strategies.limits import Limits
from triage.strategies.ready_made import Backoff

from .answers import OFF, Approval, answer_in, asked_in, carried, read_answer, request_in
from .approval import ApprovalAnswer, ApprovalMode, ApprovalRequest
from .capabilities import Capability, Planner, Registry, Selector, asked, takes, tool_for
from .execution import Known, PlanAttempt, Setup, StepJudge, judging, policy
from .plans import PlannedStep, quoted, shortened
from .routing import LIMITS, PlanLimits, PlanState, Target, fold_plan

# The report of a plan-first run: the steps of its plans, its counters, and what it can do.


def report_in(events: Sequence[Event]) -> Report:
    """Report a run from its journal alone, as `report_of` does, with the plan of one that plans first."""
    base = report_of(fold(events))
    state = fold_plan(events)
    if not state.decisions:
        return base
    return ErrorReporter().facts(facts_of_plan(base.facts, state))


def facts_of_plan(
    facts: Facts,
    state: PlanState,
    registry: Registry | None = None,
    limits: PlanLimits | None = None,
    agent: str = "",
) -> Facts:
    """Add what the journal says about the plan to the facts of a failure.

    registry, limits: None if unknown; what may be used is then what was selected.
    """
    if registry is None:
        capabilities = tuple(CapabilityFacts(name) for name in state.active or ())
    else:
        capabilities = tuple(CapabilityFacts(one.name, one.description) for one in registry)
    facts = msgspec.structs.replace(facts, agent=facts.agent or agent, capabilities=capabilities)
    if not state.run_id:
        return facts
    steps = _steps(state)
    if state.at is Target.STEP and state.next_step is not None and facts.ended != "suspended":
        # A limit or a call in doubt ended the run in this step, without the router.
        at = state.position - len(state.plan.steps if state.plan else ())
        if steps[at].outcome == "open":
            error = facts.error or facts.reason
            steps[at] = msgspec.structs.replace(
                steps[at], outcome="failed", error=error, decisive=True
            )
    ended = state.ended is not None and bool(state.decisions)
    used = {
        "retries": state.total_retries,
        "replans": state.replans,
        "reclassifications": state.reclassifications,
        "rejections": state.rejections,
        "entries": state.entries,
    }
    most: dict[str, int | None] = {}
    if limits is not None:
        most = {**asdict(limits), "retries": limits.total_retries}
    counters = tuple(CounterFacts(name, count, most.get(name)) for name, count in used.items())
    return msgspec.structs.replace(
        facts,
        run_id=facts.run_id or state.run_id,
        failed=_failed_place(state) or facts.failed,
        question=facts.question or ("" if state.asked is None else state.asked.question),
        reason=(state.decisions[-1].reason if ended else "") or facts.reason,
        # Calls of planner and selector are not steps of the work.
        steps=tuple(steps),
        counters=(*counters, *facts.counters),
    )


def _steps(state: PlanState) -> list[StepFacts]:
    """List the completed steps of earlier plans, then all steps of the last plan."""

    def facts(number: int, step: PlannedStep, outcome: str, version: int) -> StepFacts:
        return StepFacts(
            number=number,
            name=step.capability,
            outcome=outcome,
            objective=step.task_objective,
            criteria=step.success_criteria,
            given=dict(step.parameters) or None,
            attempt=version,
        )

    steps = [
        facts(number, done.step, "done", done.version)
        for number, done in enumerate(state.done, 1)
        if done.version != state.version
    ]
    done_keys = {done.step.context_key for done in state.done if done.version == state.version}
    failure = next((failure for failure in reversed(state.failures) if failure.step), None)
    plan = state.plan or state.previous
    for number, step in enumerate(() if plan is None else plan.steps, 1):
        if step.context_key in done_keys:
            steps.append(facts(number, step, "done", state.version))
        elif failure is not None and failure.step == step.context_key:
            error = str(failure.error) if failure.error else failure.diagnosis.technical_details
            failed = facts(number, step, "failed", state.version)
            steps.append(msgspec.structs.replace(failed, error=error, decisive=True))
        else:
            steps.append(facts(number, step, "open", state.version))
    return steps


def _failed_place(state: PlanState) -> str:
    failure = state.failure
    if failure is None:
        return ""
    if failure.target != Target.STEP:
        return f"the {failure.target}"
    plan = state.plan or state.previous
    for number, step in enumerate(() if plan is None else plan.steps, 1):
        if step.context_key == failure.step:
            return f"step {number}, {step.capability}"
    return f"the step {failure.step}"


# The progress of a run, read from its events.

_SELECTED, _PLANNED, _REPORTED = 0.05, 0.1, 0.99


class Progress(NamedTuple):
    """One thing that happened in a plan-first run.

    seq: counts from 0. time: seconds since the epoch. component: `orchestrator`, `router`, `selector`,
    `planner`, `approver`, `report`, or the name of a capability. phase: `started`, `decided`, `waiting`,
    `done` or `failed`. message: text without credentials. progress: from 0 to 1, never falling. complete:
    whether this is the last one. step: the key of the step, if any. report: of a failed run; first its
    facts alone, then with the analysis.
    """

    run_id: str
    seq: int
    time: float
    component: str
    phase: str
    message: str
    progress: float
    complete: bool = False
    step: str = ""
    report: Report | None = None


class Narrator:
    """Turns the events of one run into `Progress`."""

    def __init__(self) -> None:
        self._state = PlanState()
        self._seq = 0
        self._reached = 0.0
        self._time = 0.0
        self._run_id = ""

    def tell(self, event: Event) -> Iterator[Progress]:
        """Turn an event into progress; most events are none."""
        before, self._state = self._state, self._state.apply(event)
        self._run_id, self._time = event.run_id, event.time
        match event:
            case RunStarted():
                yield self._progress("orchestrator", "started", f"{event.agent} begins", reached=0)
            case RunRecovered():
                yield self._progress("orchestrator", "started", "another process goes on")
            case ApprovalAsked():
                yield self._progress("approver", "waiting", shortened(event.question))
            case ApprovalGiven():
                who = f" by {shortened(event.by, 80)}" if event.by else ""
                yield self._progress("approver", "done", f"{event.decision}{who}")
            case RunSuspended():
                yield self._progress("orchestrator", "waiting", shortened(event.question))
            case RunFinished(status="done"):
                progress = self._progress("orchestrator", "done", "done")
                yield progress._replace(progress=1.0, complete=True)
            case RunFinished():
                yield self._progress("orchestrator", "failed", event.status)
            case _:
                yield from self._tell_of_plan(event, before)

    def _tell_of_plan(self, event: Event, before: PlanState) -> Iterator[Progress]:
        match event:
            case PlanRouted():
                where = f"{event.target} {quoted(event.step)}" if event.step else str(event.target)
                delay = f", in {event.delay_s:.3g} s" if event.delay_s else ""
                message = f"{where}{delay}: {shortened(event.reason)}"
                yield self._progress("router", "decided", message, event.step)
                if event.target == Target.STEP:
                    capability, objective = _names(before, event.step)
                    yield self._progress(capability, "started", objective, event.step)
            case CapabilitiesSelected():
                message = f"{len(event.names)} capabilities"
                yield self._progress("selector", "done", message, reached=_SELECTED)
            case PlanMade():
                message = f"plan {event.version} is made"
                yield self._progress("planner", "done", message, reached=_PLANNED)
            case PlanFailed():
                message = event.diagnosis.user_message or str(event.diagnosis)
                component = str(event.target)
                if event.target == Target.STEP:
                    component, _ = _names(before, event.step)
                elif event.diagnosis.evidence:  # our own text about a refused plan
                    message += f" {event.diagnosis.evidence[0].text}"
                yield self._progress(component, "failed", shortened(message), event.step)
            case PlanStepMoved():
                capability, objective = _names(before, event.step)
                yield self._progress(capability, event.status, objective, event.step)
            case _:
                return

    def report(self, report: Report, *, last: bool) -> Progress:
        """The report of a failed run as progress: its facts first, at last all of it."""
        message = shortened(report.facts.user_message or report.facts.reason or "it has failed")
        phase = "done" if last else "started"
        made = self._progress("report", phase, message, reached=_REPORTED)
        return made._replace(progress=1.0 if last else _REPORTED, complete=last, report=report)

    def _progress(
        self, component: str, phase: str, message: str, step: str = "", reached: float | None = None
    ) -> Progress:
        """Make the next `Progress`. reached: None for the share of completed steps."""
        if reached is None:
            plan = self._state.plan
            reached = _SELECTED
            if plan is not None and plan.steps:
                reached = _PLANNED + (1 - _PLANNED) * self._state.position / len(plan.steps)
        self._reached = max(self._reached, min(reached, _REPORTED))
        seq, self._seq = self._seq, self._seq + 1
        return Progress(
            run_id=self._run_id,
            seq=seq,
            time=self._time,
            component=component,
            phase=phase,
            message=message,
            progress=self._reached,
            step=step,
        )


def _names(state: PlanState, key: str) -> tuple[str, str]:
    """The capability and the objective of the current step; the key itself for another step."""
    step = state.next_step
    if step is None or step.context_key != key:
        return key, shortened(key)
    return step.capability, shortened(step.task_objective or key)


T = TypeVar("T")
_RESPOND = "answers the user with the results it is given"
_NO_TASK: Any = object()
_LOOK_AGAIN_S = 0.2
"""Seconds between two looks at a followed run, which another process may run."""


class Options(TypedDict, total=False):
    """The options an orchestrator has in common with agents; see `Orchestrator`."""

    store: Store | str | None
    durability: Durability | None
    observers: Iterable[Observer]
    checks: Checks | None
    name: str
    aliases: Iterable[str]
    environment: Environment | None


class Orchestrator:
    """Plans first, then acts: selects capabilities, has a plan made, checks it, runs it step by step.

    registry: the capabilities; later additions are not seen. planner: makes a plan from a `PlanRequest`.
    selector: chooses the capabilities a plan may use from a `SelectionRequest`; None takes all.
    responder: answers the user with the results it is given, async or not; it becomes the capability
    `respond` if no capability responds. judge: asked after each step with `success_criteria` whether they
    are met; a no fails the step, an error of the judge is never a no; None asks nobody. reporter: makes
    the report of a failed run; None makes one without analysis. approval: what a person must approve; None
    for nothing. limits: None for `PlanLimits()`. budget: what a run may use in tokens, money, calls and
    time; its `attempts` are ignored, since `limits` counts them. store, durability, observers, checks,
    aliases, environment: as for `Agent`. name: `orchestrator` by default.

    One orchestrator serves any number of concurrent runs. Each call of a capability is a recorded call;
    a completed one is not repeated, in this process or another. Raises UsageError naming the argument.
    """

    __triage_agent__ = True

    def __init__(
        self,
        registry: Registry,
        planner: Planner,
        *,
        selector: Selector | None = None,
        responder: Callable[..., Any] | None = None,
        judge: StepJudge | None = None,
        reporter: ErrorReporter | None = None,
        approval: Approval | None = None,
        limits: PlanLimits | None = None,
        budget: Limits | None = None,
        **options: Unpack[Options],
    ) -> None:
        for field, value, kind in (
            ("registry", registry, Registry),
            ("reporter", reporter or ErrorReporter(), ErrorReporter),
            ("approval", approval or OFF, Approval),
            ("limits", limits or LIMITS, PlanLimits),
            ("budget", budget or Limits(), Limits),
        ):
            if not isinstance(value, kind):
                raise misuse(f"Orchestrator.{field}", value, f"a {kind.__name__}")
        for name in options:
            if name not in Options.__annotations__:
                raise TypeError(f"Orchestrator() got an unexpected keyword argument {name!r}")
        self._reporter = reporter or ErrorReporter()
        registry = _answering(registry, responder)
        setup = Setup(
            registry=registry,
            known=_known(registry),
            planner=asked("Orchestrator.planner", planner, "planner"),
            selector=None
            if selector is None
            else asked("Orchestrator.selector", selector, "selector"),
            judge=None if judge is None else judging("Orchestrator.judge", judge),
            approval=approval or OFF,
            limits=limits or LIMITS,
        )
        self._setup = setup
        self._followers: set[_Follower] = set()
        observers = (*options.get("observers", ()), self._tell_followers)
        self._agent = _agent(setup, budget or Limits(), {**options, "observers": observers})

    @property
    def agent(self) -> Agent[Any]:
        """The agent underneath, for code that takes agents only. Its reports lack the plan."""
        return self._agent

    @property
    def name(self) -> str:
        """The orchestrator's name in journals."""
        return self._agent.name

    @property
    def store(self) -> Store:
        """The store of the runs."""
        return self._agent.store

    async def run(
        self,
        task: Any,
        *,
        run_id: str | None = None,
        background: Any = None,
        approval_mode: ApprovalMode | str | None = None,
        development: bool = False,
    ) -> Any:
        """Select, plan and act until the plan is done; returns the result of its last step.

        run_id: as for `Agent.run`. background: given to planner and selector with the task, such as the
        conversation so far or facts about the user. approval_mode: what a person must approve in this
        run, `off`, `selective` or `all`; the journal keeps it. None is the mode of the orchestrator's
        `Approval`, whose other fields always hold. development: True retries nothing and raises the
        error of your own code unchanged.

        Raises UsageError for a mode that is not text, `TriageSuspendedError` where a person must approve,
        `TriageEscalationError` or `TriageFatalError` for a run that failed; each has `.report`.
        """
        given = _given(background, approval_mode, development=development)
        work = self._agent.run(task, run_id=run_id, **given)
        return await self._reported(work, development=development)

    def __call__(self, task: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """`run`."""
        return self.run(task, **kwargs)

    def events(
        self,
        task: Any = _NO_TASK,
        *,
        run_id: str | None = None,
        background: Any = None,
        approval_mode: ApprovalMode | str | None = None,
        development: bool = False,
    ) -> AsyncIterator[Progress]:
        """Start or follow a run, and yield what happens as `Progress`. At its end, raises as `run` does.

        task: starts a new run, with the options of `run`; leaving early cancels it, and
        `contextlib.aclosing` waits for its end. run_id: follows a run that is started, resumed or recovered
        elsewhere, in this process or another. What has happened so far comes first, a suspended run is
        waited for, and leaving early does not affect it. A slow listener holds up nothing: the journal
        is the buffer.

        Raises UsageError unless exactly one of the two is given, and UnknownRun.
        """
        if run_id is None:
            if task is _NO_TASK:
                raise UsageError("events() needs a task, or run_id= of a run to follow")
            given = _given(background, approval_mode, development=development)
            return self._started(task, given, development=development)
        if task is not _NO_TASK:
            raise UsageError("events() takes a task or run_id= of a run to follow, not both")
        return self._followed(run_id)

    async def _followed(self, run_id: str) -> AsyncIterator[Progress]:
        """Yield the progress of a run from the beginning of its journal to its end, whoever runs it."""
        narrator, follower = Narrator(), _Follower(run_id)
        position, over = 0, False
        self._followers.add(follower)
        try:
            while not over:
                kept = await self.store.read(run_id, after=position - 1)
                known = follower.events | {event.seq: event for event in kept}
                if not known and not position:
                    raise UnknownRun(f"the store knows no run {run_id}")
                while position in known:
                    event = known[position]
                    for told in narrator.tell(event):
                        yield told
                    position += 1
                    follower.events.pop(event.seq, None)
                    over = isinstance(event, RunFinished)
                if not over:
                    await follower.wait()
            while not await self.store.read(run_id, after=position - 2):
                await follower.wait()  # observers are told before the store is
        finally:
            self._followers.discard(follower)
        try:
            await self._agent.recover(run_id)
        except TriageError as error:
            ended = error
        else:
            return
        async for told in self._ending(narrator, ended, development=False):
            yield told

    def _tell_followers(self, event: Event) -> None:
        for follower in tuple(self._followers):
            follower(event)

    async def _started(
        self, task: Any, given: dict[str, Any], *, development: bool
    ) -> AsyncIterator[Progress]:
        """Start a run, and yield its progress."""
        narrator = Narrator()
        ended: TriageError | None = None
        try:
            async with aclosing(self._agent.events(task, **given)) as events:  # type: ignore[type-var] # it is a generator
                async for event in events:
                    for told in narrator.tell(event):
                        yield told
        except TriageError as error:
            ended = error
        if ended is not None:
            async for told in self._ending(narrator, ended, development=development):
                yield told

    async def _ending(
        self, narrator: Narrator, ended: TriageError, *, development: bool
    ) -> AsyncIterator[Progress]:
        """Yield the report of a run that ended with an error, then raise the error."""
        if ended.reporter is None:
            raise ended
        first = await self._facts(ended)
        waits = isinstance(ended, TriageSuspendedError)
        if not waits:
            yield narrator.report(first, last=False)
        report = await self._analysed(ended, first)
        if not waits:
            yield narrator.report(report, last=True)
        raise _own_error(ended, development=development)

    async def resume(self, token: str, answer: Any, *, by: str = "") -> Any:
        """Continue a suspended run, once; returns and raises as `run` does.

        answer: `approve()`, `reject(reason)`, whose reason the planner is told, `edit(plan)` with another
        plan, or anything else that `Agent.resume` takes. by: who answers. Raises as `Agent.resume` does,
        and UsageError for an edited plan that cannot be run, naming all its issues; the token stays valid.
        """
        answer = await self._carried(token, answer, by)
        return await self._reported(self._agent.resume(token, answer))

    async def _carried(self, token: object, answer: Any, by: str) -> Any:
        """The action that carries an answer to a question about a plan or step; other answers unchanged."""
        if not isinstance(token, str):
            return answer
        events = await self.store.read(token.partition("~")[0])
        request = request_in(events)
        reply = None if request is None else read_answer(request, answer, by)
        if request is None or reply is None:
            return answer
        state = fold_plan(events)
        # The store checks the expiry with the token, by its own clock.
        request = request._replace(expires=None)
        return carried(request, reply, 0.0, lambda plan: self._setup.validated(plan, state))

    async def recover(self, run_id: str, **given: Any) -> Any:
        """Take over a run whose process is gone, and continue it; as `Agent.recover`."""
        return await self._reported(self._agent.recover(run_id, **given))

    async def recover_all(self, *, concurrency: int = 10) -> list[Recovered]:
        """Take over all runs whose processes are gone; as `Agent.recover_all`."""
        found = await self._agent.recover_all(concurrency=concurrency)
        for one in found:
            if isinstance(one.error, TriageError) and one.error.reporter is not None:
                await self.report(one.error)
        return found

    async def asked(self, run_id: str) -> ApprovalRequest | None:
        """The approval a run waits for; None for none. Raises UnknownRun."""
        return await asked_in(self.store, run_id)

    async def answer(self, answer: ApprovalAnswer) -> None:
        """Answer the approval a run waits for, without its token; `recover` continues the run.

        Raises as `answer_in` does.
        """
        await answer_in(self.store, answer, check=self._setup.validated)

    async def report(self, ended: TriageError, *, store: Store | None = None) -> Report:
        """Make the report of a run that ended with an error, with its plan and the reporter's analysis.

        The error has it as `.report` afterwards. store: where the run is; None for the orchestrator's own.
        """
        return await self._analysed(ended, await self._facts(ended, store))

    def __repr__(self) -> str:
        return f"<Orchestrator {self.name}>"

    # Errors and reports ---------------------------------------------------------------------------

    async def _reported(self, work: Coroutine[Any, Any, T], *, development: bool = False) -> T:
        """Return the result of a run, or raise its error with the report of its plan."""
        try:
            return await work
        except TriageError as error:
            if error.reporter is None:
                raise
            ended = error
        await self.report(ended)
        raise _own_error(ended, development=development)

    async def _analysed(self, ended: TriageError, facts: Report) -> Report:
        """Set the report of an error: its facts and, for a failure, the analysis."""
        ended._report = facts
        if isinstance(ended, TriageSuspendedError):
            return facts  # a question needs no analysis
        ended._report = await self._reporter.generate(facts.facts)
        return ended._report

    async def _facts(self, ended: TriageError, store: Store | None = None) -> Report:
        """The report of the facts, without the plan if the store fails."""
        state = PlanState()
        try:
            if ended.context is not None:
                state = fold_plan(await (store or self.store).read(ended.context.run_id))
        except Exception as error:  # the report must not fail with the store
            ended.add_note(f"the report goes without the plan: {type(error).__name__}")
        base = self._reporter.facts(ended)
        made: Facts = facts_of_plan(
            base.facts, state, self._setup.registry, self._setup.limits, self.name
        )
        return self._reporter.facts(made)


class _Follower:
    """The events of a followed run that this process records.

    events: those not yielded yet, by position.
    """

    def __init__(self, run_id: str) -> None:
        self.events: dict[int, Event] = {}
        self._run_id = run_id
        self._recorded = anyio.Event()
        self._thread = threading.get_ident()

    def __call__(self, event: Event) -> None:
        if event.run_id == self._run_id:
            self.events[event.seq] = event
            if threading.get_ident() == self._thread:  # else the next look finds it
                self._recorded.set()

    async def wait(self) -> None:
        """Return when an event was recorded here, or may have been elsewhere."""
        with anyio.move_on_after(_LOOK_AGAIN_S):
            await self._recorded.wait()
        self._recorded = anyio.Event()


def _own_error(ended: TriageError, *, development: bool) -> Exception:
    """The error to raise for a run that has ended: in development that of the user's own code."""
    original = None if ended.context is None else ended.context.exception
    waits = isinstance(ended, TriageSuspendedError)
    if development and isinstance(original, Exception) and not waits:
        return original
    return ended


def _given(
    background: Any, approval_mode: ApprovalMode | str | None, *, development: bool
) -> dict[str, Any]:
    given: dict[str, Any] = {} if background is None else {"background": background}
    if approval_mode is not None:
        given["approval_mode"] = str(Approval(approval_mode).mode)
    return {**given, "development": True} if development else given


def _answering(registry: Registry, responder: Callable[..., Any] | None) -> Registry:
    """The current capabilities, with the responder as one that responds."""
    if responder is None:
        return Registry(registry)
    if isinstance(responder, type) or not callable(responder):
        raise misuse("Orchestrator.responder", responder, "a function, async or not")
    if registry.responder is not None:
        known = registry.responder.name
        wanted = f"None where the registry has a capability that responds, here {known}"
        raise misuse("Orchestrator.responder", responder, wanted)
    respond = Capability(
        "respond", _RESPOND, responder, effect="read", retry=Backoff.LLM, responds=True
    )
    return Registry([*registry, respond])


def _known(registry: Registry) -> dict[str, Known]:
    known: dict[str, Known] = {}
    for found in registry:
        tool, owner = tool_for(found.function, found.name, found.effect)
        known[found.name.casefold()] = Known(found, tool, owner, takes(found.function))
    return known


def _agent(setup: Setup, budget: Limits, options: Options) -> Agent[Any]:
    async def orchestrate(
        task: Any,
        *,
        run: Run,
        background: Any = None,
        approval_mode: str | None = None,
        development: bool = False,
        approval: Any = None,
    ) -> Any:
        own = setup
        if approval_mode is not None:
            own = setup._replace(approval=replace(setup.approval, mode=approval_mode))
        attempt = PlanAttempt(own, run, task, background, development=development)
        return await attempt.run(approval)

    seconds = [limit for limit in (budget.seconds, setup.limits.seconds) if limit is not None]
    checks = options.get("checks") or Checks()
    if isinstance(checks, Checks) and checks.watch is True:
        # A plan may contain equal steps; the router ends a run that goes round in circles.
        checks = msgspec.structs.replace(checks, watch=False)
    options["checks"] = checks
    options.setdefault("name", "orchestrator")
    return Agent[Any](
        orchestrate,
        policy(setup.approval.expires_s),
        limits=msgspec.structs.replace(budget, attempts=None, seconds=min(seconds, default=None)),
        **options,
    )
