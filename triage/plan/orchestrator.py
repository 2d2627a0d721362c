"""`Orchestrator`: plan first, then act, on the engine of `Agent`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import Any, TypedDict, TypeVar, Unpack

import msgspec

from triage.core.actions import Action, Edited, Reply
from triage.core.environment import Environment
from triage.core.errors import TriageError, TriageSuspendedError, misuse
from triage.core.events import Event
from triage.core.observers import Observer
from triage.core.state import fold
from triage.engine.agents import Agent
from triage.engine.calls import Run
from triage.engine.options import Checks, Durability
from triage.engine.questions import Question
from triage.engine.resume import Recovered
from triage.reports.analysis import ErrorReporter, report_of
from triage.reports.facts import CapabilityFacts, CounterFacts, Facts, StepFacts
from triage.reports.report import Report
from triage.stores.base import Store
from triage.strategies.limits import Limits
from triage.strategies.ready_made import Backoff

from .answers import asked_in, check_edit
from .approval import OFF, Approval, ApprovalMode
from .capabilities import Capability, Planner, Registry, Selector, asked, takes, tool_for
from .execution import Known, PlanAttempt, Setup, StepJudge, judging, policy
from .plans import PlannedStep
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


T = TypeVar("T")
_RESPOND = "answers the user with the results it is given"


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
        self._agent = _agent(setup, budget or Limits(), options)

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

    async def events(
        self,
        task: Any,
        *,
        background: Any = None,
        approval_mode: ApprovalMode | str | None = None,
        development: bool = False,
    ) -> AsyncIterator[Event]:
        """Run, with the options of `run`, and yield each event as it is recorded; raises as `run` does.

        Leaving early cancels the run; `contextlib.aclosing` waits for its end.
        """
        given = _given(background, approval_mode, development=development)
        try:
            async with aclosing(self._agent.events(task, **given)) as recorded:  # type: ignore[type-var] # it is a generator
                async for event in recorded:
                    yield event
        except TriageError as error:
            ended = error
        else:
            return
        raise await self._with_report(ended, development=development)

    async def resume(self, token: str, answer: Any, *, by: str = "") -> Any:
        """Continue a suspended run, once; returns and raises as `run` does.

        answer: `approve()`, `reject(reason)`, whose reason the planner is told, `edit(plan.to_json())` with
        another plan, or anything else that `Agent.resume` takes. by: who answers. Raises as `Agent.resume`
        does, and UsageError for an edited plan that cannot be run, naming all its issues; the token stays
        valid.
        """
        await self._check_edit(token, answer)
        return await self._reported(self._agent.resume(token, answer, by=by))

    async def answer(self, asked: str, answer: Reply, *, by: str = "") -> Action:
        """Answer a suspended run without continuing it; as `Agent.answer`.

        Raises as that does, and UsageError for an edited plan that cannot be run.
        """
        await self._check_edit(asked, answer)
        return await self._agent.answer(asked, answer, by=by)

    async def _check_edit(self, asked: object, answer: object) -> None:
        if isinstance(asked, str) and isinstance(answer, Edited):
            events = await self.store.read(asked.partition("~")[0])
            check_edit(events, answer, self._setup.validated)

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

    async def asked(self, run_id: str) -> Question | None:
        """The question a run waits with, as `asked_in` reads it. Raises UnknownRun."""
        return await asked_in(self.store, run_id)

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
            ended = error
        raise await self._with_report(ended, development=development)

    async def _with_report(self, ended: TriageError, *, development: bool) -> Exception:
        """The error to raise for a run that has ended: in development that of the user's own code."""
        if ended.reporter is None:
            return ended
        await self.report(ended)
        original = None if ended.context is None else ended.context.exception
        waits = isinstance(ended, TriageSuspendedError)
        return original if development and isinstance(original, Exception) and not waits else ended

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
        approval: Any = None,  # noqa: ARG001 - 0.2.0 gave answers so; they are asked for again
    ) -> Any:
        own = setup
        if approval_mode is not None:
            own = setup._replace(approval=replace(setup.approval, mode=approval_mode))
        attempt = PlanAttempt(own, run, task, background, development=development)
        return await attempt.run()

    seconds = [limit for limit in (budget.seconds, setup.limits.seconds) if limit is not None]
    checks = options.get("checks") or Checks()
    if isinstance(checks, Checks) and checks.watch is True:
        # A plan may contain equal steps; the router ends a run that goes round in circles.
        checks = msgspec.structs.replace(checks, watch=False)
    options["checks"] = checks
    options.setdefault("name", "orchestrator")
    return Agent[Any](
        orchestrate,
        policy(),
        limits=msgspec.structs.replace(budget, attempts=None, seconds=min(seconds, default=None)),
        **options,
    )
